/* SPDX-License-Identifier: Apache-2.0 */
/* The packed layout of FP8 weights in device memory, in C and CUDA: E4M3 codes, and two BF16 constants for each block
 * of 64x128 of them. format/PACKED.md describes it, with pictures. It is never on disk.
 *
 * Tiles, slabs, bands, lines and the places of weights are those of packed BF16 layers (trf_packed.h); a slab has codes
 * instead of raw bits and indices, and a line has constants, too. Nothing here bounds an index; each caller does. */
#ifndef TRF_PACKED8_H
#define TRF_PACKED8_H

#include "trf_packed.h"

enum {
    TRF_PACKED8_VERSION = 2,
    TRF_PACKED8_SLAB_BYTES = 512,
    TRF_PACKED8_TILE_BYTES = TRF_PACKED_SLABS * TRF_PACKED8_SLAB_BYTES,
    /* A line: the records of 32 packed tiles of a band, and the constants of each four of them. */
    TRF_PACKED8_MAX_RECORDS = 23, /* of a line; of a layer in turns, which has second pairs in their place: */
    TRF_PACKED8_MAX_RECORDS_IN_TURNS = 15,
    TRF_PACKED8_SECOND_PAIRS_WORD = 15,
    TRF_PACKED8_MASK_WORD = 23,  /* bit t: packed tile t of the line has records */
    TRF_PACKED8_PAIRS_WORD = 24, /* the first of eight pairs of constants */
    TRF_PACKED8_PAIR_TILES = 4,  /* packed tiles that have the same constants */
    TRF_PACKED8_PAIR_COLS = TRF_PACKED8_PAIR_TILES * TRF_PACKED_TILE_COLS,
    TRF_PACKED8_PAIRS = TRF_PACKED_LINE_TILES / TRF_PACKED8_PAIR_TILES, /* of a line */
    /* A code stands in a BF16 as its own number times 2^-120; both constants carry the factor 2^120. */
    TRF_PACKED8_BIAS = 120,
    TRF_PACKED8_NAN_CODE = 0x7F, /* of either sign; in no packed tile */
    /* 2^-100 <= scale < 2^7: the exponent fields of scales that have constants */
    TRF_PACKED8_MIN_SCALE_EXPONENT = 27,
    TRF_PACKED8_MAX_SCALE_EXPONENT = 133,
};
TRF_STATIC_ASSERT(TRF_PACKED8_SLAB_BYTES == 16 * TRF_LANES, "four words of codes a lane");
TRF_STATIC_ASSERT(TRF_PACKED8_PAIRS_WORD + TRF_PACKED8_PAIRS == TRF_PACKED_LINE_WORDS, "words of a line");
TRF_STATIC_ASSERT(TRF_PACKED8_SECOND_PAIRS_WORD + TRF_PACKED8_PAIRS == TRF_PACKED8_MASK_WORD, "words of a line");
TRF_STATIC_ASSERT(TRF_PACKED8_TILE_BYTES % TRF_PACKED_ALIGNMENT == 0, "packed tiles need no padding");

/* What a layer has that a kernel may do without. */
enum {
    TRF_PACKED8_HAS_RECORDS = 1,
    TRF_PACKED8_HAS_LOW = 2, /* a second constant that is not zero */
    TRF_PACKED8_ALL_FLAGS = TRF_PACKED8_HAS_RECORDS | TRF_PACKED8_HAS_LOW,
};

/* A flag beside these, which no kernel may do without: 8 rows of gate and 8 of up take turns, and rows 8 to 15 of each
 * packed slab, which are up's, have constants of their own. */
enum {
    TRF_PACKED8_IN_TURNS = 4
};

/* The first 256 bytes of the buffer. Offsets count from its first byte. */
typedef struct trf_packed8_head {
    trf_layout_head_common common; /* buffer_bytes: of all sections */
    uint32_t rows;
    uint32_t cols;
    uint32_t padded_rows; /* to whole packed tiles, as all sections are */
    uint32_t padded_cols;
    uint8_t codec; /* trf_codec: e4m3 */
    uint8_t reserved0[3];
    uint32_t flags;
    uint64_t num_lines;
    uint64_t num_tiles;   /* packed tiles */
    uint64_t num_records; /* of all lines */
    uint64_t lines_offset;
    uint64_t tiles_offset;
    uint64_t coded_stored_tiles; /* of the coded layer, or of the shard's tiles of it */
    uint64_t coded_exceptions;
    trf_header coded_header; /* the coded layer's, of E4M3 without scales; or that of BF16 weights, of scaled FP8 */
    uint8_t reserved1[64];
    trf_data_checksum data;
} trf_packed8_head;
TRF_STATIC_ASSERT(sizeof(trf_packed8_head) == TRF_LAYOUT_HEAD_BYTES, "the head is 256 bytes");
TRF_STATIC_ASSERT(offsetof(trf_packed8_head, rows) == sizeof(trf_layout_head_common), "head layout");
TRF_STATIC_ASSERT(offsetof(trf_packed8_head, flags) == 52, "head layout");
TRF_STATIC_ASSERT(offsetof(trf_packed8_head, num_lines) == 56, "head layout");
TRF_STATIC_ASSERT(offsetof(trf_packed8_head, coded_header) == 112, "head layout");
TRF_STATIC_ASSERT(offsetof(trf_packed8_head, reserved1) == 176, "head layout");

/* What device code, or the CPU, sees of such a layer: what it has in common with a packed BF16 layer, and its flags.
 * The weights stand in their own scale, so `base` is TRF_PACKED_EXPONENT; there are no stored tiles and no row
 * offsets. */
typedef struct trf_packed8_view {
    trf_packed_view packed; /* lines: [bands][lines_per_band][32]; tiles: [bands][tiles_per_band][2048] */
    uint32_t flags;
} trf_packed8_view;

/* Byte offset in a packed tile of the two words that have a lane's codes of a step. */
TRF_HD uint32_t trf_packed8_codes_offset(uint32_t slab, uint32_t lane, uint32_t step) {
    return TRF_PACKED8_SLAB_BYTES * slab + 16 * lane + 8 * step;
}

/* The word of a line that has the constants of a packed tile; tile: of the band, or of the line. In turns these are
 * those of rows 0 to 7 of its packed slabs, and the second ones those of rows 8 to 15. */
TRF_HD uint32_t trf_packed8_pair_word(uint32_t tile) {
    return TRF_PACKED8_PAIRS_WORD + tile % TRF_PACKED_LINE_TILES / TRF_PACKED8_PAIR_TILES;
}
TRF_HD uint32_t trf_packed8_second_pair_word(uint32_t tile) {
    return TRF_PACKED8_SECOND_PAIRS_WORD + tile % TRF_PACKED_LINE_TILES / TRF_PACKED8_PAIR_TILES;
}

/* How many records a line holds at most. flags: the layer's. */
TRF_HD uint32_t trf_packed8_max_records(uint32_t flags) {
    return flags & TRF_PACKED8_IN_TURNS ? (uint32_t)TRF_PACKED8_MAX_RECORDS_IN_TURNS
                                        : (uint32_t)TRF_PACKED8_MAX_RECORDS;
}

/* Whether a packed tile has records. */
TRF_HD int trf_packed8_has_records(uint32_t mask, uint32_t tile) {
    return (int)(mask >> tile % TRF_PACKED_LINE_TILES & 1);
}

/* Whether word i of a line that has records is one of them. Records are in ascending order and unused words are zeros,
 * so only the first one may have the place 0. max_records: trf_packed8_max_records. */
TRF_HD int trf_packed8_is_record(uint32_t word, uint32_t i, uint32_t max_records) {
    return i < max_records && (i == 0 || word >> 16 != 0);
}

#endif
