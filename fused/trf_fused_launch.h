/* The fused product's launchers, and the choice among its kernels. C and CUDA; launchers return a cudaError_t as an int
 * and only enqueue work on `stream`. */
#ifndef TRF_FUSED_LAUNCH_H
#define TRF_FUSED_LAUNCH_H

#include "trf_decode_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TRF_CLUSTER_SIZES = 4, /* of 1, 2, 4 and 8 blocks */
    TRF_PLAN_LAYER = 7     /* the word of a plan's choice that is trf_linear_plan_init's: the layer's serial number */
};

/* What a choice needs to know of a device. */
typedef struct trf_device_limits {
    int multiprocessors;
    int shared_bytes; /* that a block may opt in to */
    int capability;   /* 80, 86, 89, 90 ... */
    /* Clusters of 1 << i blocks that run at once, one block a multiprocessor; 0: such clusters cannot be launched. */
    uint32_t clusters[TRF_CLUSTER_SIZES];
    uint32_t missing_kernels; /* of trf_kernel_set: kernels that the code which this device runs was compiled without */
} trf_device_limits;

/* Kernels that not every architecture has code for: a build for others may still run here, by way of PTX. */
typedef enum trf_kernel_set {
    TRF_KERNELS_LARGE_SMEM = 1, /* those that want 160 KiB of shared memory */
    TRF_KERNELS_WIDE = 2
} trf_kernel_set;

/* Fills limits->clusters and missing_kernels; the other fields are set, and the device is the current one. @return a
 * cudaError_t. */
int trf_find_limits(trf_device_limits *limits);

/* Whether kernels that decode inside a product take this layer at all. @return NULL, or why not: a static string. */
const char *trf_fused_refuses_layer(const trf_device_view *view, const trf_layer_traits *traits, trf_dtype x_dtype);

/* Whether the fused kernels take this layer and batch. @return NULL, or why not: a static string. */
const char *trf_fused_refuses(const trf_device_view *view, const trf_layer_traits *traits,
                              const trf_device_limits *limits, uint32_t m, trf_dtype x_dtype);

/* Fills plan->choice, except for word TRF_PLAN_LAYER, and the bytes of workspace; m, types and path are set. Only for
 * what trf_fused_refuses takes. */
void trf_fused_choose(const trf_device_view *view, const trf_layer_traits *traits, const trf_device_limits *limits,
                      trf_linear_plan *plan);

/* Estimated time of the product alone, beyond what every launch takes. Only for what trf_fused_refuses takes. */
double trf_fused_microseconds(const trf_device_view *view, const trf_layer_traits *traits,
                              const trf_device_limits *limits, uint32_t m);

/* As trf_linear_with, arguments checked. */
int trf_fused_launch(const trf_device_view *view, const trf_layer_traits *traits, const trf_linear_plan *plan,
                     const void *x, void *y, const trf_epilogue *epilogue, void *workspace, trf_stream stream);

/* The edges' part of the product: partial[m][rows] = x . W^T over the weights that are not in regular slabs, scales and
 * offsets applied; all m x rows values are written, zeros where there are no edges. x: device, rows of x_stride
 * elements. partial: device, F32. The order of additions is fixed. */
int trf_launch_edge_product(const trf_device_view *view, uint32_t m, trf_dtype x_dtype, const void *x,
                            uint64_t x_stride, float *partial, trf_stream stream);

/* Copies x[m][cols] of 16-bit values to padded[m][stride], stride a multiple of 8; what lies behind the columns becomes
 * 0. */
int trf_launch_pad_x(const void *x, uint32_t m, uint32_t cols, void *padded, uint64_t stride, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
