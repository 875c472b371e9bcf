/* The two-step path: the layer decoded to the workspace, then a dense product. */
#ifndef TRF_TWO_STEP_H
#define TRF_TWO_STEP_H

#include "trf_context.h"

/* Sets plan->workspace_bytes; m and types are set and fit the layer. Errors: TRF_ERR_UNSUPPORTED, TRF_ERR_CUDA. */
trf_status trf_two_step_plan(const trf_device_layer *layer, trf_linear_plan *plan, trf_error *err);

/* As trf_linear, arguments checked. */
trf_status trf_two_step_run(const trf_device_layer *layer, const trf_linear_plan *plan, const void *x, void *y,
                            void *workspace, trf_stream stream, trf_error *err);

#ifdef __cplusplus
extern "C" {
#endif

/* Rounds count F32 values to BF16 or F16, to nearest even. Both in device memory; only enqueues. @return a cudaError_t. */
int trf_launch_round(const float *values, uint64_t count, trf_dtype dtype, void *rounded, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
