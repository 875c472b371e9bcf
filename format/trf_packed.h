/* SPDX-License-Identifier: Apache-2.0 */
/* The packed layout of a BF16 layer in device memory, in C and CUDA. format/PACKED.md describes it, with pictures. It
 * is never on disk.
 *
 * A packed tile has 64x32 weights; 16 of its rows are a packed slab. In a packed slab each lane has what it needs for
 * the A fragments of two mma.m16n8k16, with columns in their natural order. The four warps of a wgmma take their A
 * fragments in the same way, one packed slab each. Layers are padded to whole packed tiles, so that kernels have no
 * edges. Nothing here bounds an index; each caller does. */
#ifndef TRF_PACKED_H
#define TRF_PACKED_H

#include "trf_blob.h"
#include "trf_layout_head.h"

enum {
    TRF_PACKED_VERSION = 2,
    TRF_PACKED_ALIGNMENT = 256, /* of every section of the buffer, and of the buffer itself */
    TRF_PACKED_TILE_ROWS = 64,  /* also those of a packed band */
    TRF_PACKED_TILE_COLS = 32,
    TRF_PACKED_TILE_WEIGHTS = TRF_PACKED_TILE_ROWS * TRF_PACKED_TILE_COLS,
    TRF_PACKED_SLABS = 4, /* of a packed tile */
    TRF_PACKED_SLAB_ROWS = TRF_PACKED_TILE_ROWS / TRF_PACKED_SLABS,
    TRF_PACKED_STEPS = TRF_PACKED_TILE_COLS / TRF_FRAGMENT_SIZE, /* column steps of a packed tile */
    TRF_PACKED_RAW_BYTES = 512,                                  /* of a packed slab; its indices follow */
    TRF_PACKED_SLAB_BYTES = 768,
    TRF_PACKED_TILE_BYTES = TRF_PACKED_SLABS * TRF_PACKED_SLAB_BYTES,
    TRF_PACKED_STORED_TILE_BYTES = 2 * TRF_PACKED_TILE_WEIGHTS,
    TRF_PACKED_STORED_SLAB_BYTES = TRF_PACKED_STORED_TILE_BYTES / TRF_PACKED_SLABS,
    /* An exception line: the records of 32 packed tiles of a band, and three more words. */
    TRF_PACKED_LINE_TILES = 32,
    TRF_PACKED_LINE_COLS = TRF_PACKED_LINE_TILES * TRF_PACKED_TILE_COLS,
    TRF_PACKED_LINE_WORDS = 32,
    TRF_PACKED_LINE_BYTES = 4 * TRF_PACKED_LINE_WORDS,
    TRF_PACKED_MAX_RECORDS = 29,       /* of a line */
    TRF_PACKED_COUNT_WORD = 29,        /* number of records */
    TRF_PACKED_STORED_WORD = 30,       /* bit t: packed tile t of the line is stored */
    TRF_PACKED_FIRST_STORED_WORD = 31, /* number of the line's first stored tile */
    /* Exponents. A formed weight has the exponent field 112 | index; its true exponent field is base + index. */
    TRF_PACKED_EXPONENT = 112,
    TRF_PACKED_WINDOW = 16,
    TRF_PACKED_MAX_BASE = 254 - (TRF_PACKED_WINDOW - 1),
    /* A layer with more than one zero in so many weights is a zeroing layer; as records, its zeros would fill the
     * lines. */
    TRF_PACKED_WEIGHTS_A_ZERO = 10000,
    /* Exception lines, packed tiles and stored tiles may take so many bits per weight of the padded shape; a layer that
     * would take more is not packed. The limit leaves room for one stored tile in 17. */
    TRF_PACKED_MAX_BITS = 13,
    TRF_PACKED_MAX_SIDE = 0x7FFFFFFF, /* of rows and of cols, as in a blob */
};
TRF_STATIC_ASSERT(TRF_PACKED_TILE_BYTES == 3072 && TRF_PACKED_STORED_TILE_BYTES == 4096, "sizes of packed tiles");
TRF_STATIC_ASSERT(TRF_PACKED_RAW_BYTES == 16 * TRF_LANES, "four raw words a lane");
TRF_STATIC_ASSERT(TRF_PACKED_SLAB_BYTES - TRF_PACKED_RAW_BYTES == 8 * TRF_LANES, "two index words a lane");
TRF_STATIC_ASSERT(TRF_PACKED_STORED_SLAB_BYTES == 32 * TRF_LANES, "eight registers a lane");
TRF_STATIC_ASSERT(TRF_PACKED_MAX_RECORDS + 3 == TRF_PACKED_LINE_WORDS, "words of an exception line");
TRF_STATIC_ASSERT((TRF_PACKED_EXPONENT & (TRF_PACKED_WINDOW - 1)) == 0, "112 + index is 112 | index");

enum {
    TRF_PACKED_ZEROING = 1, /* index 0 is the exponent field 0 and the mantissa 0: +-0 */
    TRF_PACKED_ALL_FLAGS = TRF_PACKED_ZEROING,
};

/* The first 256 bytes of the buffer. Offsets count from its first byte; each section begins where the one before it
 * ends. */
typedef struct trf_packed_head {
    trf_layout_head_common common; /* buffer_bytes: of all sections */
    uint32_t rows;
    uint32_t cols;
    uint32_t padded_rows; /* to whole packed tiles, as all sections but the row offsets are */
    uint32_t padded_cols;
    uint8_t codec; /* trf_codec: bf16 */
    uint8_t base;  /* of the window */
    uint16_t reserved0;
    uint32_t flags;
    uint32_t num_stored; /* stored tiles */
    uint32_t reserved1;
    uint64_t num_lines;          /* exception lines */
    uint64_t num_tiles;          /* packed tiles */
    uint64_t num_records;        /* of all lines */
    uint64_t row_offsets_offset; /* i8[rows], or 0 for none */
    uint64_t lines_offset;
    uint64_t tiles_offset;
    uint64_t stored_offset;
    uint64_t coded_stored_tiles; /* of the coded layer that this one was made from, or of the shard's tiles of it ... */
    uint64_t coded_exceptions;
    /* ... and its first 64 bytes, which say how it was encoded. If there was no blob, they say only shape, codec and
     * dtype. */
    trf_header coded_header;
    uint8_t reserved2[40];
    trf_data_checksum data;
} trf_packed_head;
TRF_STATIC_ASSERT(sizeof(trf_packed_head) == TRF_LAYOUT_HEAD_BYTES, "the packed head is 256 bytes");
TRF_STATIC_ASSERT(offsetof(trf_packed_head, rows) == sizeof(trf_layout_head_common), "packed head layout");
TRF_STATIC_ASSERT(offsetof(trf_packed_head, codec) == 48, "packed head layout");
TRF_STATIC_ASSERT(offsetof(trf_packed_head, num_lines) == 64, "packed head layout");
TRF_STATIC_ASSERT(offsetof(trf_packed_head, row_offsets_offset) == 88, "packed head layout");
TRF_STATIC_ASSERT(offsetof(trf_packed_head, coded_header) == 136, "packed head layout");
TRF_STATIC_ASSERT(offsetof(trf_packed_head, reserved2) == 200, "packed head layout");
TRF_STATIC_ASSERT(sizeof(trf_header) == 64, "a blob's header fits");

/* What device code, or the CPU, sees of a packed layer. */
typedef struct trf_packed_view {
    const int8_t *row_offsets; /* exponent offsets, [padded_rows], 0 after the layer's last row, or NULL */
    const uint32_t *lines;     /* [bands][lines_per_band][32] */
    const uint8_t *tiles;      /* [bands][tiles_per_band][3072] */
    const uint8_t *stored;     /* [num_stored][4096] */
    uint32_t rows, cols;
    uint32_t bands; /* packed bands: 64 rows each */
    uint32_t tiles_per_band;
    uint32_t lines_per_band;
    uint32_t num_stored;
    int32_t base;
    uint32_t zeroing; /* 0 or 1; also the lowest index that is an exponent */
} trf_packed_view;

/* ---- where a weight lies ---- */

/* A packed tile is named by its band and its number in the band. A weight of the tile is named by slab, column step and
 * lane, and by register and half among the four registers that the lane has for the step. */
typedef struct trf_packed_place {
    uint32_t band, tile;
    uint32_t slab, step, lane, reg, half;
} trf_packed_place;

TRF_HD trf_packed_place trf_packed_place_of(uint32_t row, uint32_t col) {
    trf_packed_place place;
    place.band = row / TRF_PACKED_TILE_ROWS;
    place.tile = col / TRF_PACKED_TILE_COLS;
    place.slab = row / TRF_PACKED_SLAB_ROWS % TRF_PACKED_SLABS;
    place.step = col / TRF_FRAGMENT_SIZE % TRF_PACKED_STEPS;
    place.lane = row % 8 * 4 + col % 8 / 2;
    place.reg = row / 8 % 2 + col / 8 % 2 * 2;
    place.half = col % 2;
    return place;
}

/* Row and column of a weight, counted from the tile's first ones. They are those of the A fragment of mma.m16n8k16,
 * with no column permuted. */
TRF_HD uint32_t trf_packed_row_in_tile(uint32_t slab, uint32_t lane, uint32_t reg) {
    return TRF_PACKED_SLAB_ROWS * slab + lane / 4 + 8 * (reg % 2);
}
TRF_HD uint32_t trf_packed_col_in_tile(uint32_t step, uint32_t lane, uint32_t reg, uint32_t half) {
    return TRF_FRAGMENT_SIZE * step + 8 * (reg / 2) + 2 * (lane % 4) + half;
}

/* The number of a tile in the layer, and the number of the exception line that it belongs to. */
TRF_HD uint64_t trf_packed_tile_number(const trf_packed_view *view, uint32_t band, uint32_t tile) {
    return (uint64_t)band * view->tiles_per_band + tile;
}
TRF_HD uint64_t trf_packed_line_number(const trf_packed_view *view, uint32_t band, uint32_t tile) {
    return (uint64_t)band * view->lines_per_band + tile / TRF_PACKED_LINE_TILES;
}

/* Byte offsets in a packed tile of the word with the raw bits of registers reg and reg ^ 1, and of the word with all
 * indices of a step. */
TRF_HD uint32_t trf_packed_raw_offset(uint32_t slab, uint32_t lane, uint32_t step, uint32_t reg) {
    return TRF_PACKED_SLAB_BYTES * slab + 16 * lane + 8 * step + 4 * (reg / 2);
}
TRF_HD uint32_t trf_packed_index_offset(uint32_t slab, uint32_t lane, uint32_t step) {
    return TRF_PACKED_SLAB_BYTES * slab + TRF_PACKED_RAW_BYTES + 8 * lane + 4 * step;
}

/* Byte offset of a lane's registers of a step in a stored tile. */
TRF_HD uint32_t trf_packed_stored_offset(uint32_t slab, uint32_t lane, uint32_t step) {
    return TRF_PACKED_STORED_SLAB_BYTES * slab + 32 * lane + 16 * step;
}

/* The offset of one weight in a stored tile, in 16-bit halves. */
TRF_HD uint32_t trf_packed_stored_half(uint32_t slab, uint32_t lane, uint32_t step, uint32_t reg, uint32_t half) {
    return trf_packed_stored_offset(slab, lane, step) / 2 + 2 * reg + half;
}

/* The byte of a raw word whose bits 6:0 are a weight's mantissa. The weight's sign is bit 7 of the next byte; after
 * byte 3, that is byte 0. Bytes 0 to 3 are the halves of reg 0 and 1, or of 2 and 3, in the order 0.0, 1.0, 0.1,
 * 1.1. */
TRF_HD uint32_t trf_packed_mantissa_byte(uint32_t reg, uint32_t half) { return 2 * half + reg % 2; }
TRF_HD uint32_t trf_packed_sign_byte(uint32_t reg, uint32_t half) { return (2 * half + reg % 2 + 1) % 4; }

/* The lowest bit of a weight's index in an index word, 3 to 31. An index that begins at bit 31 goes on at bit 0. */
TRF_HD uint32_t trf_packed_index_bit(uint32_t reg, uint32_t half) {
    return (7 + 16 * half + 8 * (reg % 2) + 4 * (reg / 2)) % 32;
}

/* ---- records: tile within the line [31:27], slab [26:25], step [24], lane [23:19], register [18:17], half [16], BF16
 * in the window's scale [15:0] ---- */

TRF_HD uint32_t trf_packed_record(uint32_t tile, uint32_t slab, uint32_t step, uint32_t lane, uint32_t reg,
                                  uint32_t half, uint32_t bits) {
    return tile % TRF_PACKED_LINE_TILES << 27 | slab << 25 | step << 24 | lane << 19 | reg << 17 | half << 16 | bits;
}
TRF_HD uint32_t trf_packed_record_tile(uint32_t record) { return record >> 27; }
TRF_HD uint32_t trf_packed_record_slab(uint32_t record) { return record >> 25 & 3; }
TRF_HD uint32_t trf_packed_record_step(uint32_t record) { return record >> 24 & 1; }
TRF_HD uint32_t trf_packed_record_lane(uint32_t record) { return record >> 19 & 31; }
TRF_HD uint32_t trf_packed_record_reg(uint32_t record) { return record >> 17 & 3; }
TRF_HD uint32_t trf_packed_record_half(uint32_t record) { return record >> 16 & 1; }
TRF_HD uint32_t trf_packed_record_bits(uint32_t record) { return record & 0xFFFF; }

/* The place of a record's weight in a stored tile, in 16-bit halves. */
TRF_HD uint32_t trf_packed_record_stored_half(uint32_t record) {
    return trf_packed_stored_half(trf_packed_record_slab(record), trf_packed_record_lane(record),
                                  trf_packed_record_step(record), trf_packed_record_reg(record),
                                  trf_packed_record_half(record));
}

/* The part of a record that says which registers it is for: tile, slab, step and lane. Records of the same registers
 * have equal ones. */
TRF_HD uint32_t trf_packed_record_step_place(uint32_t record) { return record >> 19; }

#endif
