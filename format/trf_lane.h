/* SPDX-License-Identifier: Apache-2.0 */
/* One lane of a slab: where its weights lie, where its bits lie, and its rANS decode step.
 *
 * This header is the one definition of FORMAT.md sections 6 to 8 for C and for CUDA. The kernels' main loops have
 * versions of the decode step and of the raw bits made for their instructions (decoder_gpu/trf_slab_walk.cuh,
 * trf_fragment.cuh): tests/warp runs those headers, too, on the CPU, under sanitizers and fuzzers. Nothing here bounds
 * an index; each caller does. */
#ifndef TRF_LANE_H
#define TRF_LANE_H

#include "trf_blob.h"

/* The shape of one slab's coded region. row_blocks: rows / 16, 1 or 2. steps: columns / 16, 1 to 16. */
typedef struct trf_slab_shape {
    uint32_t row_blocks;
    uint32_t steps;
} trf_slab_shape;

/* Weights of one lane: 8 in each 16x16 fragment. */
TRF_HD uint32_t trf_lane_weights(trf_slab_shape shape) { return 8 * shape.row_blocks * shape.steps; }

/* Row of weight i of a lane, from the slab's first row: mma.m16n8k16 A fragment, register (i/2)%4. */
TRF_HD uint32_t trf_lane_row(trf_slab_shape shape, uint32_t lane, uint32_t i) {
    uint32_t row_block = (i / 8) % shape.row_blocks;
    return 16 * row_block + lane / 4 + 8 * ((i / 2) % 2);
}

/* Column of weight i of a lane, from the slab's first column. Column steps go in pairs of 32 columns, in which each
 * lane owns 8 neighbouring ones, four for each step: 16 bytes of a row of x or W. A last step without a
 * partner gives it 4. */
TRF_HD uint32_t trf_lane_col(trf_slab_shape shape, uint32_t lane, uint32_t i) {
    uint32_t step = i / (8 * shape.row_blocks), step_pair = step / 2;
    uint32_t lane_cols = 2 * step_pair + 1 < shape.steps ? 8 : 4;
    return 32 * step_pair + lane_cols * (lane % 4) + 4 * (step % 2) + 2 * ((i / 4) % 2) + i % 2;
}

/* ---- raw bits: a chunk has 64 weights of each lane. Its planes follow each other, the widest first, and consist of
 * 32-bit words, which are grouped so that a lane reads 16 bytes at a time ---- */

/* Weights of a lane in chunk c of a slab in which it has `weights`: 64, or fewer in the last chunk. */
TRF_HD uint32_t trf_chunk_weights(uint32_t weights, uint32_t c) {
    uint32_t left = weights - TRF_CHUNK_WEIGHTS * c;
    return left < TRF_CHUNK_WEIGHTS ? left : (uint32_t)TRF_CHUNK_WEIGHTS;
}

/* Where chunk c begins, from the slab's first raw bits. All chunks before it are full ones. */
TRF_HD uint32_t trf_chunk_offset(uint32_t raw_bits, uint32_t c) { return c * (TRF_CHUNK_WEIGHTS * 4) * raw_bits; }

/* 32-bit words of one lane in a chunk's plane of `width` bits a weight; weights: of a lane in the chunk. */
TRF_HD uint32_t trf_plane_lane_words(uint32_t weights, uint32_t width) { return (weights * width + 31) / 32; }

TRF_HD uint32_t trf_plane_bytes(uint32_t weights, uint32_t width) {
    return 4 * TRF_LANES * trf_plane_lane_words(weights, width);
}
/* The raw bits of a tile's slabs lie one after the other, so they all begin at multiples of TRF_TILE_ALIGNMENT. */
TRF_STATIC_ASSERT(4 * TRF_LANES % TRF_TILE_ALIGNMENT == 0, "planes are whole multiples of the tiles' alignment");

/* Bytes of all raw bits of a slab, which are its chunks' planes. weights: how many a lane has in the slab. */
TRF_HD uint32_t trf_raw_bytes(uint32_t raw_bits, uint32_t weights) {
    uint32_t bytes = trf_chunk_offset(raw_bits, weights / TRF_CHUNK_WEIGHTS);
    for (uint32_t width = 8; width > 0; width /= 2)
        bytes += raw_bits & width ? trf_plane_bytes(weights % TRF_CHUNK_WEIGHTS, width) : 0;
    return bytes;
}

/* Byte offset of a lane's word z in a chunk's plane, of which each lane has lane_words words. */
TRF_HD uint32_t trf_plane_word_offset(uint32_t lane_words, uint32_t lane, uint32_t z) {
    uint32_t vector = z / 4, vectors = lane_words / 4;
    uint32_t stride = vector < vectors ? 16 : 4 * (lane_words % 4);
    return 512 * vector + stride * lane + 4 * (z % 4);
}

/* The word of a chunk's plane, and the lowest bit in it, where the lane's weight i of that chunk lies. A word holds 8 /
 * width times four weights; its bytes have the fields of the weights 0, 2, 1 and 3 of each four. */
TRF_HD uint32_t trf_plane_word(uint32_t i, uint32_t width) { return i * width / 32; }
TRF_HD uint32_t trf_plane_bit(uint32_t i, uint32_t width) {
    return width * ((i / 4) % (8 / width)) + 8 * ((i / 2) % 2) + 16 * (i % 2);
}

/* The weight whose raw bits hold weight i's sign (float codecs). It is the weight of the next byte, so that one
 * rotation of the word brings sign and magnitude together. */
TRF_HD uint32_t trf_sign_holder(uint32_t i) { return (i & ~3u) | (0x1Eu >> (2 * (i % 4)) & 3); }

/* ---- the rANS decode step ---- */

/* One slot of the decode table: frequency [11:0], slot - start [23:12], symbol [31:24]. */
TRF_HD uint32_t trf_slot_entry(uint32_t frequency, uint32_t slot_offset, uint32_t symbol) {
    return frequency | slot_offset << 12 | symbol << 24;
}
TRF_HD uint32_t trf_entry_frequency(uint32_t entry) { return entry & 0xFFF; }
TRF_HD uint32_t trf_entry_slot_offset(uint32_t entry) { return entry >> 12 & 0xFFF; }
TRF_HD uint32_t trf_entry_symbol(uint32_t entry) { return entry >> 24; }

/* slot of state x: which entry to look up. */
TRF_HD uint32_t trf_state_slot(uint32_t x, uint32_t probability_bits) { return x & ((1u << probability_bits) - 1); }

/* Advance: x = f[s] * (x >> p) + slot - start[s]. */
TRF_HD uint32_t trf_state_advance(uint32_t x, uint32_t entry, uint32_t probability_bits) {
    return trf_entry_frequency(entry) * (x >> probability_bits) + trf_entry_slot_offset(entry);
}

/* Renormalize: needed when x < 2^L, then one 16-bit word is enough. */
TRF_HD int trf_state_needs_word(uint32_t x, uint32_t state_bits) { return x < (1u << state_bits); }
TRF_HD uint32_t trf_state_renormalize(uint32_t x, uint32_t word) { return x * 65536 + word; }

/* First word of a lane within its slab's words, and the stride from word to word: lane l < 16 walks its lane pair
 * upwards, lane l + 16 downwards. lane_pair_begin, lane_pair_words: of lane pair lane % 16. */
TRF_HD int32_t trf_lane_first_word(uint32_t lane, uint32_t lane_pair_begin, uint32_t lane_pair_words) {
    return (int32_t)(lane < TRF_LANE_PAIRS ? lane_pair_begin : lane_pair_begin + lane_pair_words) -
           (lane < TRF_LANE_PAIRS ? 0 : 1);
}
TRF_HD int32_t trf_lane_word_stride(uint32_t lane) { return lane < TRF_LANE_PAIRS ? 1 : -1; }

/* ---- exceptions: position [31:19], zero [18:16], element [15:0] ---- */

TRF_HD uint32_t trf_weight_position(uint32_t i, uint32_t lane) { return 32 * i + lane; }
TRF_HD uint32_t trf_make_exception(uint32_t position, uint32_t element) { return position << 19 | element; }

TRF_HD uint32_t trf_exception_position(uint32_t exception) { return exception >> 19; }
TRF_HD uint32_t trf_exception_element(uint32_t exception) { return exception & 0xFFFF; }

/* ---- a slab's rANS streams: start_state[32], lane_pair_words[16], the number of exceptions, zero, exceptions, words
 * ---- */

enum {
    TRF_STATES_BYTES = 2 * TRF_LANES,                                    /* then lane_pair_words */
    TRF_RANS_EXCEPTION_COUNT_OFFSET = TRF_STATES_BYTES + TRF_LANE_PAIRS, /* u16 count, u16 zero */
    TRF_RANS_FIXED_BYTES = TRF_RANS_EXCEPTION_COUNT_OFFSET + 4,          /* then the exceptions, then the words */
};
TRF_STATIC_ASSERT(TRF_RANS_EXCEPTION_COUNT_OFFSET == 80 && TRF_RANS_FIXED_BYTES == 84,
                  "layout of a slab's rANS streams");
TRF_STATIC_ASSERT(TRF_RANS_FIXED_BYTES % 4 == 0, "exceptions are aligned");

/* How many exceptions a slab has. rans_streams: its rANS streams, TRF_RANS_FIXED_BYTES or more. */
TRF_HD uint32_t trf_rans_exception_count(const uint8_t *rans_streams) {
    return *(const uint16_t *)(rans_streams + TRF_RANS_EXCEPTION_COUNT_OFFSET);
}

#endif
