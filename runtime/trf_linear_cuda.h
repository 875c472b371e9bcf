/* SPDX-License-Identifier: Apache-2.0 */
/* Products on a GPU, as trf_device_ops has them. */
#ifndef TRF_LINEAR_CUDA_H
#define TRF_LINEAR_CUDA_H

#include "trf_context.h"

trf_status trf_cuda_create_plan(trf_plan *plan, trf_path path, trf_error *err);
trf_status trf_cuda_linear(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                           trf_error *err);
trf_status trf_cuda_round_sums(const trf_context *context, const trf_sums *sums, const trf_epilogue *epilogue,
                               trf_stream stream, trf_error *err);

#endif
