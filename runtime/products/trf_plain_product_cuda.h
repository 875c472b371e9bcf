/* SPDX-License-Identifier: Apache-2.0 */
/* Products of plain layers in a GPU's memory: members of trf_layout_ops. */
#ifndef TRF_PLAIN_PRODUCT_CUDA_H
#define TRF_PLAIN_PRODUCT_CUDA_H

#include "trf_context.h"

trf_status trf_cuda_create_plain_plan(trf_plan *plan, trf_path path, trf_error *err);
trf_status trf_cuda_linear_plain(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                                 trf_error *err);

#endif
