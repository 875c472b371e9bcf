/* SPDX-License-Identifier: Apache-2.0 */
/* A lane's part of multiplying a decoded segment of an edge (trf_edges.h) by rows of x. C and CUDA.
 *
 * A lane holds 32 columns of one row. In a segment of 32 columns it has row `lane` of the band. In a segment of 64
 * columns it has one half of row lane % 16: lanes 0 to 15 have the left half. */
#ifndef TRF_EDGE_PRODUCT_H
#define TRF_EDGE_PRODUCT_H

#include "trf_decoded_bits.h"
#include "trf_edges.h"

#include <math.h>

#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif
#ifdef __CUDA_ARCH__
#define TRF_UNROLL _Pragma("unroll")
#else
#define TRF_UNROLL
#endif

enum {
    TRF_EDGE_VECTOR_COLS = 8, /* columns of x in 16 bytes; the weights of these have one scale */
    TRF_EDGE_LANE_COLS = 32,
    TRF_EDGE_VECTORS = TRF_EDGE_LANE_COLS / TRF_EDGE_VECTOR_COLS,
};

/* What a lane holds of a segment. */
typedef struct trf_edge_weights {
    float unscaled[TRF_EDGE_LANE_COLS]; /* elements, without scales; 0 after the last column */
    float scale[TRF_EDGE_VECTORS];
    uint32_t col;  /* of the layer, a multiple of 8 */
    uint32_t cols; /* 0 if the lane has no row */
} trf_edge_weights;

TRF_HD int trf_edge_segment_has_halves(const trf_edge_segment *segment) {
    return segment->width == 2 * TRF_EDGE_LANE_COLS;
}

/* row, col: the layer's row and column that row 0 of the band and column 0 of the tile lie at. decoded: 4-byte
 * aligned. */
TRF_HD void trf_edge_weights_load(trf_edge_weights *w, const trf_device_view *view, const trf_edge_segment *segment,
                                  uint32_t row, uint32_t col, uint32_t lane, const uint16_t *decoded) {
    const int halves = trf_edge_segment_has_halves(segment);
    const uint32_t r = halves ? lane % TRF_FRAGMENT_SIZE : lane;
    const uint32_t first = halves ? lane / TRF_FRAGMENT_SIZE * TRF_EDGE_LANE_COLS : 0;
    const uint32_t left = r >= segment->row0 && r < segment->row1 && segment->cols > first ? segment->cols - first : 0;
    const uint32_t *two = (const uint32_t *)(decoded + r * segment->pitch + first);
    /* Elements of scaled FP8 are weights, which have been scaled. */
    const uint32_t codec = trf_element_codec(view->codec, view->source_dtype);
    const int has_scales = codec == view->codec;
    w->cols = left < TRF_EDGE_LANE_COLS ? left : (uint32_t)TRF_EDGE_LANE_COLS;
    w->col = col + segment->col + first;
    TRF_UNROLL
    for (uint32_t c = 0; c < TRF_EDGE_LANE_COLS; c += 2) { /* elements beyond w->cols are read, but not used */
        w->unscaled[c] = c < w->cols ? trf_element_to_f32(codec, two[c / 2] & 0xFFFF) : 0.0f;
        w->unscaled[c + 1] = c + 1 < w->cols ? trf_element_to_f32(codec, two[c / 2] >> 16) : 0.0f;
    }
    TRF_UNROLL
    for (uint32_t vector = 0; vector < TRF_EDGE_VECTORS; vector++)
        w->scale[vector] = vector * TRF_EDGE_VECTOR_COLS >= w->cols ? 0.0f
                           : has_scales ? trf_device_scale(view, row + r, w->col + vector * TRF_EDGE_VECTOR_COLS)
                                        : 1.0f;
}

/* The F32 value of the 16 bits of x. */
TRF_HD float trf_x_to_f32(uint32_t bits, int bf16) {
    if (bf16)
        return trf_bf16_to_f32((uint16_t)bits);
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half((unsigned short)bits));
#else
    return trf_f16_to_f32((uint16_t)bits);
#endif
}

/* Loads 8 values of x, two to a word; those after the first `count` become zeros. aligned: whether x is 16-byte
 * aligned. */
TRF_HD void trf_x_load(uint32_t word[4], const uint16_t *x, uint32_t count, int aligned) {
#ifdef __CUDA_ARCH__
    if (aligned && count >= TRF_EDGE_VECTOR_COLS) {
        const uint4 eight = __ldg(reinterpret_cast<const uint4 *>(x));
        word[0] = eight.x, word[1] = eight.y, word[2] = eight.z, word[3] = eight.w;
        return;
    }
#else
    (void)aligned;
#endif
    word[0] = word[1] = word[2] = word[3] = 0;
    TRF_UNROLL
    for (uint32_t i = 0; i < TRF_EDGE_VECTOR_COLS; i++)
        if (i < count)
            word[i / 2] |= (uint32_t)x[i] << (16 * (i % 2));
}

/* Returns the sum of the lane's weights times a row of x. x points to the row's first element; nothing after the lane's
 * last column is read. bf16: whether x is BF16, else it is F16. aligned: whether x is 16-byte aligned. */
TRF_HD float trf_edge_weights_multiply(const trf_edge_weights *w, const uint16_t *x, int bf16, int aligned) {
    float sum = 0;
    TRF_UNROLL
    for (uint32_t vector = 0; vector < TRF_EDGE_VECTORS; vector++) {
        const uint32_t c = vector * TRF_EDGE_VECTOR_COLS;
        if (c < w->cols) {
            uint32_t word[4];
            float partial = 0;
            trf_x_load(word, x + w->col + c, w->cols - c, aligned);
            TRF_UNROLL
            for (uint32_t i = 0; i < TRF_EDGE_VECTOR_COLS; i++)
                partial = fmaf(w->unscaled[c + i], trf_x_to_f32(word[i / 2] >> (16 * (i % 2)) & 0xFFFF, bf16), partial);
            sum = fmaf(w->scale[vector], partial, sum);
        }
    }
    return sum;
}

#endif
