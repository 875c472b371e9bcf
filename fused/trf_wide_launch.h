/* The fused product of larger batches, by warpgroups: compute capability 9.0 only. As trf_fused_launch.h has it. */
#ifndef TRF_WIDE_LAUNCH_H
#define TRF_WIDE_LAUNCH_H

#include "trf_fused_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether there are wide kernels for the device. @return NULL, or why not: a static string. */
const char *trf_wide_refuses_device(const trf_device_limits *limits);

/* Whether the wide kernels take this layer and batch. @return NULL, or why not: a static string. */
const char *trf_wide_refuses(const trf_device_view *view, const trf_layer_traits *traits,
                             const trf_device_limits *limits, uint32_t m, trf_dtype x_dtype);

/* Fills plan->choice, except for word TRF_PLAN_LAYER, and the bytes of workspace; m, types and path are set. Only for
 * what trf_wide_refuses takes. */
void trf_wide_choose(const trf_device_view *view, const trf_layer_traits *traits, const trf_device_limits *limits,
                     trf_linear_plan *plan);

/* As trf_linear_with, arguments checked. @return a cudaError_t. */
int trf_wide_launch(const trf_device_view *view, const trf_layer_traits *traits, const trf_linear_plan *plan,
                    const void *x, void *y, const trf_epilogue *epilogue, void *workspace, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
