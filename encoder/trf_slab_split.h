/* SPDX-License-Identifier: Apache-2.0 */
/* Splitting a slab's elements into symbols, planes of raw bits and exceptions: the part of encoding that touches every
 * weight. */
#ifndef TRF_SLAB_SPLIT_H
#define TRF_SLAB_SPLIT_H

#include "trf_symbol_model.h"

enum {
    TRF_MAX_SLAB_WEIGHTS = TRF_SLAB_ROWS * TRF_MAX_SLAB_COLS /* at most */
};

/* What the splitting of a layer's elements depends on. */
typedef struct trf_split_rule {
    uint32_t codec, class_bits, raw_bits;
    uint32_t num_planes, plane_width[TRF_MAX_PLANES];
    trf_classes classes;
    uint8_t class_of[256]; /* of a coded exponent, 0xFF for none; used if the classes are not contiguous */
    int32_t exponent_offset;
    int offsets;   /* exponent_offset != 0, or a predictor mode is on: zeros and the like are exceptions */
    int predicted; /* a predictor mode is on: buffers->offset counts */
} trf_split_rule;

/* A slab in lane order: weight i of lane l at [(i / 2) * 64 + 2 * l + i % 2]. */
typedef struct trf_slab_buffers {
    _Alignas(64) uint16_t element[TRF_MAX_SLAB_WEIGHTS];
    _Alignas(64) uint16_t
        offset[TRF_MAX_SLAB_WEIGHTS]; /* row plus column offset of each weight; read only with rule->predicted */
    _Alignas(64) uint16_t class_key[TRF_MAX_SLAB_WEIGHTS]; /* C or code; 0xFFFF: no class may hold it */
    _Alignas(64) uint16_t raw[TRF_MAX_SLAB_WEIGHTS];
    _Alignas(64) uint8_t class_[TRF_MAX_SLAB_WEIGHTS];
    _Alignas(64) uint8_t symbol[TRF_MAX_SLAB_WEIGHTS / 2]; /* [symbol][lane] */
    uint32_t exceptions;
    uint64_t exception_mask[TRF_MAX_SLAB_WEIGHTS / 64]; /* bit 32 * i + lane */
} trf_slab_buffers;

/* Splits buffers->element (with offset) into class_key, raw, class_ and symbol, notes weights without a class as
 * exceptions, and writes the slab's raw bits to chunks as they lie in the blob. */
typedef void trf_split_slab_fn(const trf_split_rule *rule, trf_slab_shape shape, trf_slab_buffers *buffers,
                               uint8_t *chunks);

trf_split_slab_fn trf_split_slab_portable;
#ifdef TRF_HAVE_X86_SIMD
trf_split_slab_fn trf_split_slab_avx2;
trf_split_slab_fn trf_split_slab_avx512;
#endif

/* The widest of these functions that this CPU runs. All give the same bytes. */
trf_split_slab_fn *trf_split_slab_best(void);

/* Notes weight i of a lane as an exception, once. */
static inline void trf_note_exception(trf_slab_buffers *buffers, uint32_t position) {
    uint64_t bit = 1ull << (position % 64);
    buffers->exceptions += !(buffers->exception_mask[position / 64] & bit);
    buffers->exception_mask[position / 64] |= bit;
}

#endif
