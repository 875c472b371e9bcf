/* One lane of a slab: where its weights lie, where its bits lie, and its rANS decode step.
 *
 * This header is the one definition of FORMAT.md sections 6 and 7 for C and for CUDA: what the CPU tests, sanitizers
 * and fuzzers run here is what the kernels run. Nothing here bounds an index; each caller does. */
#ifndef TRF_LANE_H
#define TRF_LANE_H

#include "trf_blob.h"

/* The shape of one slab's coded region. blocks: rows / 16, 1 or 2. steps: columns / 16, 1 to 16. */
typedef struct trf_slab_shape {
    uint32_t blocks;
    uint32_t steps;
} trf_slab_shape;

/* Weights of one lane: 8 in each 16x16 fragment. */
TRF_HD uint32_t trf_lane_weights(trf_slab_shape shape) { return 8 * shape.blocks * shape.steps; }

/* Row of weight i of a lane, from the slab's first row: mma.m16n8k16 A fragment, register (i/2)%4. */
TRF_HD uint32_t trf_lane_row(trf_slab_shape shape, uint32_t lane, uint32_t i) {
    uint32_t block = (i / 8) % shape.blocks;
    return 16 * block + lane / 4 + 8 * ((i / 2) % 2);
}

/* Column of weight i of a lane, from the tile's first column. */
TRF_HD uint32_t trf_lane_col(trf_slab_shape shape, uint32_t lane, uint32_t i) {
    uint32_t step = i / (8 * shape.blocks);
    return 16 * step + 2 * (lane % 4) + i % 2 + 8 * ((i / 4) % 2);
}

/* ---- raw-bit planes: 32-bit words, grouped so that a lane reads 16 bytes at a time ---- */

/* 32-bit words of one lane in a plane of `width` bits a weight. */
TRF_HD uint32_t trf_plane_lane_words(uint32_t weights, uint32_t width) { return (weights * width + 31) / 32; }

TRF_HD uint32_t trf_plane_bytes(uint32_t weights, uint32_t width) {
    return 4 * TRF_LANES * trf_plane_lane_words(weights, width);
}

/* Byte offset in a plane of word z of a lane, lane_words words a lane. */
TRF_HD uint32_t trf_plane_word_offset(uint32_t lane_words, uint32_t lane, uint32_t z) {
    uint32_t group = z / 4, groups = lane_words / 4;
    uint32_t stride = group < groups ? 16 : 4 * (lane_words % 4);
    return 512 * group + stride * lane + 4 * (z % 4);
}

/* Word and lowest bit of weight i in a plane. */
TRF_HD uint32_t trf_plane_word(uint32_t i, uint32_t width) { return i * width / 32; }
TRF_HD uint32_t trf_plane_bit(uint32_t i, uint32_t width) { return width * ((i / 2) % (16 / width)) + 16 * (i % 2); }

/* Bit of weight i's sign in an 8-bit plane of a float codec: 15, 31, 23, 7 for i%4 = 0, 1, 2, 3. */
TRF_HD uint32_t trf_plane_sign_bit(uint32_t i) {
    uint32_t at = (i % 4) * 8;
    return (0x07171F0Fu >> at) & 31;
}

/* ---- the rANS step ---- */

/* One slot of the decode table: frequency [11:0], slot - start [23:12], symbol [31:24]. */
TRF_HD uint32_t trf_slot_entry(uint32_t frequency, uint32_t bias, uint32_t symbol) {
    return frequency | bias << 12 | symbol << 24;
}
TRF_HD uint32_t trf_entry_symbol(uint32_t entry) { return entry >> 24; }

/* slot of state x: which entry to look up. */
TRF_HD uint32_t trf_state_slot(uint32_t x, uint32_t probability_bits) { return x & ((1u << probability_bits) - 1); }

/* Advance: x = f[s] * (x >> p) + slot - start[s]. */
TRF_HD uint32_t trf_state_advance(uint32_t x, uint32_t entry, uint32_t probability_bits) {
    return (entry & 0xFFF) * (x >> probability_bits) + ((entry >> 12) & 0xFFF);
}

/* Renormalize: needed when x < 2^L, then one 16-bit word is enough. */
TRF_HD int trf_state_needs_word(uint32_t x, uint32_t state_bits) { return x < (1u << state_bits); }
TRF_HD uint32_t trf_state_renormalize(uint32_t x, uint32_t word) { return x << 16 | word; }

/* First word of a lane within its slab's words, and the stride from word to word: lane l < 16 walks its pair upwards,
 * lane l + 16 downwards. pair_begin, pair_words: of pair lane % 16. */
TRF_HD int32_t trf_lane_first_word(uint32_t lane, uint32_t pair_begin, uint32_t pair_words) {
    return (int32_t)(lane < TRF_LANE_PAIRS ? pair_begin : pair_begin + pair_words) - (lane < TRF_LANE_PAIRS ? 0 : 1);
}
TRF_HD int32_t trf_lane_word_stride(uint32_t lane) { return lane < TRF_LANE_PAIRS ? 1 : -1; }

/* ---- exceptions ---- */

TRF_HD uint32_t trf_exception_position(uint32_t i, uint32_t lane) { return 32 * i + lane; }

/* 11-bit value of an exception; low is exception_low[e], high exception_high[e]. */
TRF_HD uint32_t trf_exception_value(uint32_t low, uint32_t high) { return high | (low >> 13) << 8; }

/* The value of an int codec's exception as a signed code. */
TRF_HD int32_t trf_exception_code(uint32_t value) { return (int32_t)(value ^ 1024u) - 1024; }

#endif
