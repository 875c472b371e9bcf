/* SPDX-License-Identifier: Apache-2.0 */
/* What one lane does when a device packs and unpacks, in C and CUDA: handling two weights at a time in a register, and
 * eight weights of a row at a time in memory; the order of records; and the choice of stored tiles. It gives the same
 * as trf_pack.c, which goes weight by weight.
 *
 * An *octet* is eight weights of a row, 16 bytes; each of a packed slab's 16 rows has four. Lane 4r + c takes octet c
 * of rows r and r + 8 from memory, so that a warp reads runs of 64 bytes. Then its quartet (lanes 4r to 4r + 3)
 * exchanges words until each lane has the words of a fragment: word c of every octet, which is columns 2c and 2c +
 * 1. */
#ifndef TRF_PACK_LANE_H
#define TRF_PACK_LANE_H

#include "trf_packed_reader.h"

enum {
    TRF_OCTET_WEIGHTS = 8,
    TRF_OCTET_WORDS = 4,
    TRF_OCTETS =
        TRF_PACKED_TILE_COLS / TRF_OCTET_WEIGHTS, /* octets of a row of a packed tile, one for each lane of a quartet */
    TRF_PACKED_LANE_REGISTERS = 8,                /* registers of a lane: [step][register] */
};
TRF_STATIC_ASSERT(TRF_OCTETS == 4 && TRF_OCTET_WORDS == TRF_OCTETS, "a quartet exchanges squares of words");

/* Types for reading and writing several words at once, whatever type the memory was written as. */
#ifdef __CUDACC__
#define TRF_VECTOR(bytes) __attribute__((aligned(bytes)))
#else
#define TRF_VECTOR(bytes) __attribute__((aligned(bytes), may_alias))
#endif
typedef struct TRF_VECTOR(16) trf_words4 {
    uint32_t word[4];
} trf_words4;
typedef struct TRF_VECTOR(8) trf_words2 {
    uint32_t word[2];
} trf_words2;

/* ---- two weights in a register; the flag of a half is its highest bit ---- */

#define TRF_HALF_FLAGS 0x80008000u

/* A range of exponent fields within 1 to 254, which may be empty. Its numbers are such that sums of halves do not carry
 * from one half to the other. */
typedef struct trf_exponent_range {
    uint32_t low, high; /* 0x8000 - (first << 7) and 0x8000 + (last << 7) in both halves */
} trf_exponent_range;

TRF_HD trf_exponent_range trf_exponent_range_of(int32_t first, int32_t last) {
    const int32_t from = first < 1 ? 1 : first > 255 ? 255 : first, to = last < 0 ? 0 : last > 254 ? 254 : last;
    const trf_exponent_range range = {TRF_HALF_FLAGS - (uint32_t)from * 0x00800080u,
                                      TRF_HALF_FLAGS + (uint32_t)to * 0x00800080u};
    return range;
}

/* Flags those of the two weights whose exponent field is in the range. */
TRF_HD uint32_t trf_halves_in_range(uint32_t reg, trf_exponent_range range) {
    const uint32_t exponents = reg & 0x7F807F80u;
    return (exponents + range.low) & (range.high - exponents) & TRF_HALF_FLAGS;
}

/* Flags those of the two weights that are zeros, of either sign. */
TRF_HD uint32_t trf_zero_halves(uint32_t reg) { return (TRF_HALF_FLAGS - (reg & 0x7FFF7FFFu)) & TRF_HALF_FLAGS; }

/* Adds `shift` to the exponents of some halves, which stay within 1 to 254. ones: 1 in each of these halves. It takes
 * one multiplication: what a negative shift borrows from the upper half, in two's complement, the sum gives back. */
TRF_HD uint32_t trf_halves_add_exponent(uint32_t reg, uint32_t ones, int32_t shift) {
    return reg + (uint32_t)(128 * shift) * ones;
}

/* What takes weights from one scale to another: multiplication by 2^shift. */
typedef struct trf_halves_rescale {
    trf_exponent_range normal; /* exponents of numbers that are normal in both scales */
    int32_t shift;
    /* 1 if `normal` includes the exponents of all formed weights except zeros (TRF_FORMED_FIRST to TRF_FORMED_LAST):
     * then trf_scale_formed may replace trf_scale_halves. */
    uint32_t takes_formed;
} trf_halves_rescale;

enum {
    /* If the bits of a zeroing layer are invalid, weights of index 0 may have mantissas other than 0. Forming lifts
     * these to exponent fields from 106 on. */
    TRF_FORMED_FIRST = TRF_PACKED_EXPONENT - 6,
    TRF_FORMED_LAST = TRF_PACKED_EXPONENT + TRF_PACKED_WINDOW - 1,
};

TRF_HD trf_halves_rescale trf_halves_rescale_of(int32_t shift) {
    const trf_halves_rescale rescale = {trf_exponent_range_of(1 - shift, 254 - shift), shift,
                                        shift >= 1 - TRF_FORMED_FIRST && shift <= 254 - TRF_FORMED_LAST};
    return rescale;
}

/* Applies trf_scale_bf16 to both weights. */
TRF_HD uint32_t trf_scale_halves(uint32_t reg, trf_halves_rescale rescale) {
    const uint32_t normal = trf_halves_in_range(reg, rescale.normal);
    int exact = 1;
    if ((normal | trf_zero_halves(reg)) == TRF_HALF_FLAGS)
        return trf_halves_add_exponent(reg, normal >> 15, rescale.shift);
    return trf_scale_bf16(reg & 0xFFFF, rescale.shift, &exact) | trf_scale_bf16(reg >> 16, rescale.shift, &exact) << 16;
}

/* The same for formed weights, if the scale takes them (takes_formed). */
TRF_HD uint32_t trf_scale_formed(uint32_t reg, trf_halves_rescale rescale, uint32_t zeroing) {
    return trf_halves_add_exponent(reg, zeroing ? ~trf_zero_halves(reg) >> 15 & 0x00010001u : 0x00010001u,
                                   rescale.shift);
}

/* What takes a row's weights into the window's scale. */
typedef struct trf_row_to_window {
    trf_exponent_range window; /* exponent fields that need no record */
    int32_t shift;
} trf_row_to_window;

TRF_HD trf_row_to_window trf_row_to_window_of(int32_t base, uint32_t zeroing, int32_t row_offset) {
    const int32_t first = base + row_offset;
    const trf_row_to_window row = {trf_exponent_range_of(first + (int32_t)zeroing, first + TRF_PACKED_WINDOW - 1),
                                   TRF_PACKED_EXPONENT - first};
    return row;
}

/* Takes those of the two weights that fit the window into its scale, and leaves the others. @return 1 in the half of
 * each weight that fits (trf_packed_fits). */
TRF_HD uint32_t trf_pack_halves(uint32_t *reg, trf_row_to_window row, uint32_t zeroing) {
    const uint32_t ones = trf_halves_in_range(*reg, row.window) >> 15;
    const uint32_t zeros = zeroing ? trf_zero_halves(*reg) >> 15 : 0;
    *reg = trf_halves_add_exponent(*reg, ones, row.shift);
    return ones | zeros;
}

/* ---- octets ---- */

/* Dense rows in memory. A kernel sees num_rows of them, from the layer's row first_row on. */
typedef struct trf_dense_rows {
    void *at;        /* where row first_row is */
    uint64_t stride; /* weights from one row to the next */
    uint32_t first_row, num_rows, cols;
    uint32_t weight_bytes; /* 2: BF16; 4: F32, only if rows are written */
    uint32_t aligned;      /* whether every complete octet of a row is aligned to 16 bytes */
} trf_dense_rows;

TRF_HD trf_dense_rows trf_dense_rows_of(const void *at, uint64_t stride, uint32_t first_row, uint32_t num_rows,
                                        uint32_t cols, uint32_t weight_bytes) {
    const uint32_t aligned = (uintptr_t)at % 16 == 0 && stride * weight_bytes % 16 == 0;
    const trf_dense_rows rows = {(void *)(uintptr_t)at, stride, first_row, num_rows, cols, weight_bytes, aligned};
    return rows;
}

TRF_HD int trf_dense_has_row(const trf_dense_rows *rows, uint32_t row) {
    return row - rows->first_row < rows->num_rows;
}

/* Whether all of a rectangle of whole octets is there, aligned, and BF16. */
TRF_HD int trf_dense_is_whole(const trf_dense_rows *rows, uint32_t row, uint32_t num_rows, uint32_t col,
                              uint32_t num_cols) {
    return rows->aligned && rows->weight_bytes == 2 && row >= rows->first_row &&
           (uint64_t)row + num_rows <= (uint64_t)rows->first_row + rows->num_rows &&
           (uint64_t)col + num_cols <= rows->cols;
}

/* Loads eight BF16 of the layer's row from column col on, which is a multiple of 8; zeros for weights that do not
 * exist. */
TRF_HD trf_words4 trf_load_octet(const trf_dense_rows *rows, uint32_t row, uint32_t col) {
    trf_words4 octet = {{0, 0, 0, 0}};
    if (!trf_dense_has_row(rows, row) || col >= rows->cols)
        return octet;
    const uint16_t *from = (const uint16_t *)rows->at + (row - rows->first_row) * rows->stride + col;
    const uint32_t left = rows->cols - col;
    if (rows->aligned && left >= TRF_OCTET_WEIGHTS)
        return *(const trf_words4 *)(const void *)from;
    for (uint32_t i = 0; i < TRF_OCTET_WEIGHTS; i++) /* no word is indexed at run time */
        if (i < left)
            octet.word[i / 2] |= (uint32_t)from[i] << 16 * (i % 2);
    return octet;
}

/* Stores an octet, as F32 if weights have four bytes. Weights that do not exist are not written. */
TRF_HD void trf_store_octet(const trf_dense_rows *rows, uint32_t row, uint32_t col, trf_words4 octet) {
    if (!trf_dense_has_row(rows, row) || col >= rows->cols)
        return;
    const uint64_t at = (row - rows->first_row) * rows->stride + col;
    const uint32_t left = rows->cols - col;
    uint16_t *halves = (uint16_t *)rows->at + at;
    uint32_t *words = (uint32_t *)rows->at + at;
    const uint32_t *w = octet.word;
    if (rows->aligned && left >= TRF_OCTET_WEIGHTS) {
        const trf_words4 first = {{w[0] << 16, w[0] & 0xFFFF0000u, w[1] << 16, w[1] & 0xFFFF0000u}};
        const trf_words4 second = {{w[2] << 16, w[2] & 0xFFFF0000u, w[3] << 16, w[3] & 0xFFFF0000u}};
        if (rows->weight_bytes == 2) {
            *(trf_words4 *)(void *)halves = octet;
        } else {
            ((trf_words4 *)(void *)words)[0] = first;
            ((trf_words4 *)(void *)words)[1] = second;
        }
        return;
    }
    for (uint32_t i = 0; i < TRF_OCTET_WEIGHTS; i++) {
        const uint32_t bits = w[i / 2] >> 16 * (i % 2) & 0xFFFF;
        if (i < left && rows->weight_bytes == 2)
            halves[i] = (uint16_t)bits;
        else if (i < left)
            words[i] = bits << 16;
    }
}

/* ---- a lane of a packed slab: registers [step][register] of rows r (even registers) and r + 8 (odd ones) ---- */

/* Makes registers from what the quartet has exchanged: the lane's word of each octet, of both rows. The second function
 * does the reverse. */
TRF_HD void trf_packed_slab_from_rows(uint32_t a[TRF_PACKED_LANE_REGISTERS], const trf_words4 rows[2]) {
    for (uint32_t i = 0; i < TRF_PACKED_LANE_REGISTERS; i++)
        a[i] = rows[i % 2].word[i / 2];
}
TRF_HD void trf_packed_slab_to_rows(const uint32_t a[TRF_PACKED_LANE_REGISTERS], trf_words4 rows[2]) {
    for (uint32_t i = 0; i < TRF_PACKED_LANE_REGISTERS; i++)
        rows[i % 2].word[i / 2] = a[i];
}

/* Where a lane's raw words and index words begin in a packed tile. */
TRF_HD uint32_t trf_packed_slab_raw_at(uint32_t slab, uint32_t lane) { return trf_packed_raw_offset(slab, lane, 0, 0); }
TRF_HD uint32_t trf_packed_slab_index_at(uint32_t slab, uint32_t lane) {
    return trf_packed_index_offset(slab, lane, 0);
}

TRF_HD void trf_packed_slab_unform(const uint32_t a[TRF_PACKED_LANE_REGISTERS], trf_words4 *raw, trf_words2 *index) {
    for (uint32_t step = 0; step < TRF_PACKED_STEPS; step++)
        trf_unform_packed(a + 4 * step, raw->word + 2 * step, index->word + step);
}
TRF_HD void trf_packed_slab_form(uint32_t a[TRF_PACKED_LANE_REGISTERS], trf_words4 raw, trf_words2 index,
                                 uint32_t zeroing) {
    for (uint32_t step = 0; step < TRF_PACKED_STEPS; step++)
        if (zeroing)
            trf_form_packed_zeroing(a + 4 * step, raw.word[2 * step], raw.word[2 * step + 1], index.word[step]);
        else
            trf_form_packed(a + 4 * step, raw.word[2 * step], raw.word[2 * step + 1], index.word[step]);
}

/* Patches the step that the record is for, if the record is for this lane. lane_record: a record with this lane's tile,
 * packed slab and lane, and zeros otherwise. bits: the record's weight, in the scale of a. */
TRF_HD void trf_packed_slab_patch_bits(uint32_t a[TRF_PACKED_LANE_REGISTERS], uint32_t lane_record, uint32_t record,
                                       uint32_t bits) {
    if (trf_packed_record_step_place((record ^ lane_record) & 0xFEFFFFFFu) != 0)
        return;
    for (uint32_t step = 0; step < TRF_PACKED_STEPS; step++)
        if (trf_packed_record_step(record) == step)
            trf_patch_packed(a + 4 * step, (record & 0xFFFF0000u) | bits);
}

/* The same where the record's weight is first taken to its own scale, in which a already is. rescale: for the row of
 * even registers, and for that of odd ones. */
TRF_HD void trf_packed_slab_patch(uint32_t a[TRF_PACKED_LANE_REGISTERS], uint32_t lane_record, uint32_t record,
                                  const trf_halves_rescale rescale[2]) {
    int exact = 1;
    if (trf_packed_record_step_place((record ^ lane_record) & 0xFEFFFFFFu) != 0)
        return;
    const int32_t shift = trf_packed_record_reg(record) % 2 ? rescale[1].shift : rescale[0].shift;
    trf_packed_slab_patch_bits(a, lane_record, record, trf_scale_bf16(trf_packed_record_bits(record), shift, &exact));
}

/* ---- records ---- */

/* The flags of a lane's 16 weights, joined in the order of registers: those of register i end up at bits 7 - i and 23 -
 * i. */
#define TRF_PACKED_SLAB_ALL_FLAGS 0x00FF00FFu
TRF_HD uint32_t trf_packed_slab_add_flags(uint32_t all, uint32_t ones) { return 2 * all + ones; }

/* Returns which of a lane's 16 weights have no flag, in the order of records: bit 8 * step + 2 * register + half. */
TRF_HD uint32_t trf_packed_slab_unflagged(uint32_t all) {
    uint32_t mask = 0;
    for (uint32_t i = 0; i < TRF_PACKED_LANE_REGISTERS; i++)
        mask |= ((~all >> (7 - i) & 1) | (~all >> (23 - i) & 1) << 1) << 2 * i;
    return mask;
}

/* Returns which of a lane's 16 weights the layer has, in the same order. row: that of the lane's even registers. col:
 * that of its first column. */
TRF_HD uint32_t trf_packed_slab_there(uint32_t row, uint32_t col, uint32_t rows, uint32_t cols) {
    uint32_t mask = 0;
    for (uint32_t i = 0; i < 2 * TRF_PACKED_LANE_REGISTERS; i++)
        if (row + i / 2 % 2 * 8 < rows && col + i / 4 * 8 + i % 2 < cols)
            mask |= 1u << i;
    return mask;
}

TRF_HD uint32_t trf_packed_slab_weight(const uint32_t a[TRF_PACKED_LANE_REGISTERS], uint32_t bit) {
    uint32_t reg = a[0];
    for (uint32_t i = 1; i < TRF_PACKED_LANE_REGISTERS; i++) /* no register is indexed at run time */
        reg = bit / 2 == i ? a[i] : reg;
    return reg >> 16 * (bit % 2) & 0xFFFF;
}

TRF_HD void trf_packed_slab_clear(uint32_t a[TRF_PACKED_LANE_REGISTERS], uint32_t mask) {
    for (uint32_t i = 0; i < TRF_PACKED_LANE_REGISTERS; i++)
        a[i] &= ~((mask >> 2 * i & 1) * 0xFFFFu | (mask >> (2 * i + 1) & 1) * 0xFFFF0000u);
}

/* Returns the record of the weight that a bit of the mask stands for. lane_record: as for trf_packed_slab_patch. */
TRF_HD uint32_t trf_packed_slab_record(uint32_t lane_record, uint32_t bit, uint32_t bits) {
    return lane_record | (bit >> 3) << 24 | (bit & 7) << 16 | bits;
}

/* Chooses stored tiles: the tile with the most records, the first one of several, again and again until the other
 * tiles' records fit a line. counts: records of each of the line's tiles, which become 0 for stored tiles; total: their
 * sum. @return the word that says which tiles are stored. */
TRF_HD uint32_t trf_choose_stored_tiles(uint32_t counts[TRF_PACKED_LINE_TILES], uint32_t total) {
    uint32_t stored = 0;
    while (total > TRF_PACKED_MAX_RECORDS) {
        uint32_t most = 0;
        for (uint32_t tile = 1; tile < TRF_PACKED_LINE_TILES; tile++)
            if (counts[tile] > counts[most])
                most = tile;
        stored |= 1u << most;
        total -= counts[most];
        counts[most] = 0;
    }
    return stored;
}

#endif
