/* SPDX-License-Identifier: Apache-2.0 */
/* Products on a GPU: plans and products of coded layers, for their table of layout ops, and the rounding of sums of any
 * layer, for that of device ops. The comment at the member of the same name says what each does and returns:
 * create_plan and linear in trf_layout.h, round_sums in trf_context.h. */
#ifndef TRF_LINEAR_CUDA_H
#define TRF_LINEAR_CUDA_H

#include "trf_context.h"

/* Launches what a plan's path needs; the layer's device is the current one. */
typedef trf_status trf_cuda_launch(const trf_plan *plan, const trf_operands *operands, void *workspace,
                                   trf_stream stream, trf_error *err);

/* Calls launch on the layer's device, within a range of NVTX that has the path's name. The device that was current is
 * so again afterwards. */
trf_status trf_cuda_launch_product(const trf_plan *plan, trf_cuda_launch *launch, const trf_operands *operands,
                                   void *workspace, trf_stream stream, trf_error *err);

trf_status trf_cuda_create_plan(trf_plan *plan, trf_path path, trf_error *err);
trf_status trf_cuda_linear(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                           trf_error *err);
trf_status trf_cuda_round_sums(const trf_context *context, const trf_sums *sums, const trf_epilogue *epilogue,
                               trf_stream stream, trf_error *err);

#endif
