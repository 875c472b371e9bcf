/* SPDX-License-Identifier: Apache-2.0 */
/* Products of dense weights in a GPU's memory: cuBLASLt, and the pass that rounds its sums. They are the second step of
 * the two-step path, and all of a plain layer's product. */
#ifndef TRF_DENSE_PRODUCT_CUDA_H
#define TRF_DENSE_PRODUCT_CUDA_H

#include "trf_context.h"
#include "trf_plan.h"

/* Sets device_workspace_bytes and partition.dense of a plan whose layer and products are set. first_bytes: the front
 * part of the workspace, to which two-step decodes the layer; 0 for a plain layer. Errors: TRF_ERR_UNSUPPORTED,
 * TRF_ERR_CUDA. */
trf_status trf_plan_dense_product(trf_plan *plan, uint64_t first_bytes, trf_error *err);

/* Does what trf_linear does for the plan's tiles_product, with checked arguments. weights: [rows][cols] of x's type,
 * 16-byte aligned. The layer's device is current. */
trf_status trf_multiply_by_dense(const trf_plan *plan, const void *weights, const trf_operands *operands,
                                 void *workspace, trf_stream stream, trf_error *err);

#endif
