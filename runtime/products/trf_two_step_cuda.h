/* SPDX-License-Identifier: Apache-2.0 */
/* The two-step path of coded and packed layers: the layer is decoded to the workspace, and a dense product follows. */
#ifndef TRF_TWO_STEP_CUDA_H
#define TRF_TWO_STEP_CUDA_H

#include "trf_context.h"
#include "trf_plan.h"

/* Sets device_workspace_bytes and partition of a plan whose layer and products are set. Errors: TRF_ERR_UNSUPPORTED,
 * TRF_ERR_CUDA. */
trf_status trf_plan_two_step(trf_plan *plan, trf_error *err);

/* Does what trf_linear does for the plan's tiles_product, with checked arguments. The layer's device is current. */
trf_status trf_multiply_two_step(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                                 trf_error *err);

#endif
