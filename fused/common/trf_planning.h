/* SPDX-License-Identifier: Apache-2.0 */
/* What the planning of every family of kernels needs. C and CUDA, host code. */
#ifndef TRF_PLANNING_H
#define TRF_PLANNING_H

#include "trf_device_view.h"

#include <assert.h>

static inline uint64_t trf_ceil_div(uint64_t a, uint64_t b) {
    assert(b > 0);
    return (a + b - 1) / b;
}
static inline uint32_t trf_min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t trf_max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* Whether the layer has scale groups or scale blocks that are applied to sums, as int has. Weights of scaled FP8 are
 * multiplied by their scales before. */
static inline int trf_has_scale_groups(const trf_device_view *view) {
    if (trf_is_scaled_fp8(view->codec, view->source_dtype))
        return 0;
    return view->granularity == TRF_GRANULARITY_SCALE_GROUP || view->granularity == TRF_GRANULARITY_SCALE_BLOCK;
}

/* Where x is misaligned, it is copied to rows of whole 16 bytes: how many elements such a row has, and how many bytes
 * the copy takes in a workspace. */
static inline uint32_t trf_padded_x_stride(uint32_t cols) { return (cols + 7) / 8 * 8; }
static inline uint64_t trf_padded_x_bytes(uint32_t cols, uint32_t m) {
    return trf_device_align(2ull * m * trf_padded_x_stride(cols));
}

#endif
