/* The two-step path: the layer decoded to the workspace, then a dense product. */
#ifndef TRF_TWO_STEP_H
#define TRF_TWO_STEP_H

#include "trf_context.h"
#include "trf_epilogue.h"

/* Sets the bytes of workspace; m and types are set and fit the layer. Errors: TRF_ERR_UNSUPPORTED, TRF_ERR_CUDA. */
trf_status trf_two_step_plan(const trf_device_layer *layer, trf_linear_plan *plan, trf_error *err);

/* plan->choice: whether the workspace holds the decoded weights already. */
enum {
    TRF_TWO_STEP_DECODED
};

/* As trf_linear_decode, for the workspace's part that is the device's own. */
trf_status trf_two_step_decode(const trf_device_layer *layer, const trf_linear_plan *plan, void *workspace,
                               trf_stream stream, trf_error *err);

/* As trf_linear_with, arguments checked. */
trf_status trf_two_step_multiply(const trf_device_layer *layer, const trf_linear_plan *plan, const void *x, void *y,
                                 const trf_epilogue *epilogue, void *workspace, trf_stream stream, trf_error *err);

#ifdef __cplusplus
extern "C" {
#endif

/* y = the sums with an epilogue (NULL: none), rounded to y's dtype, to nearest even. All in device memory; only
 * enqueues. @return a cudaError_t. */
int trf_launch_round_sums(const trf_sums *sums, trf_dtype y_dtype, void *y, const trf_epilogue *epilogue,
                          trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
