/* SPDX-License-Identifier: Apache-2.0 */
/* Products of packed layers in a GPU's memory: members of trf_layout_ops. */
#ifndef TRF_PACKED_PRODUCT_CUDA_H
#define TRF_PACKED_PRODUCT_CUDA_H

#include "trf_context.h"

trf_status trf_cuda_create_packed_plan(trf_plan *plan, trf_path path, trf_error *err);
trf_status trf_cuda_linear_packed(const trf_plan *plan, const trf_operands *operands, void *workspace,
                                  trf_stream stream, trf_error *err);

/* Those of packed FP8 layers. */
trf_status trf_cuda_create_packed8_plan(trf_plan *plan, trf_path path, trf_error *err);
trf_status trf_cuda_linear_packed8(const trf_plan *plan, const trf_operands *operands, void *workspace,
                                   trf_stream stream, trf_error *err);

#endif
