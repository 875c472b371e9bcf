/* SPDX-License-Identifier: Apache-2.0 */
/* The scheme by which both SIMD decoders join classes and raw bits to elements, and the plain C that they share.
 *
 * Their unit of work is a *strip*: 16 consecutive weights of each of the four lanes 4u ... 4u+3 (quartet u, 0 to 7),
 * which make up rows u and u+8. A chunk of raw bits has four strips. In each plane a lane's share of a strip lies
 * within 16 bytes, so four lanes fill a 64-byte register, in the order (lane 4u + c, word z of four, weight q of a
 * word's four). Within a word the weights' bytes are kept in the order of the planes, q = 0, 2, 1, 3, which lets one
 * shift put two of them in place in a register pair (q = 0, 1 in one, 2, 3 in the other). With one row block, a lane's
 * four words are then 8 neighbouring weights of a row; with two, they are four weights of one row block and four of the
 * other, and the strip of the next column step has the next four of each.
 *
 * One byte is built for each weight: a look-up by class gives its upper bits, the fields of the planes narrower than 8
 * bits come below them, and the offsets are added. What the byte means depends on `out`. */
#ifndef TRF_DECODE_SIMD_H
#define TRF_DECODE_SIMD_H

#include "trf_decode_tile.h"

typedef enum trf_join_out {
    TRF_OUT_UNDER_PLANE, /* bf16, fp16: bits 14:7 of the element; an 8-bit plane has sign and bits 6:0 */
    TRF_OUT_BYTE,        /* fp8: the element rotated left by a bit, with another weight's sign */
    TRF_OUT_CODE,        /* int: its low byte, the high one from a look-up too, class_value[0] to be added */
    TRF_OUT_PLANE8_CODE, /* int with 8 raw bits: the byte is zero, the low byte an 8-bit plane */
} trf_join_out;

enum {
    TRF_STRIP_WEIGHTS = 16, /* of a lane */
    TRF_MAX_STRIPS = TRF_MAX_LANE_WEIGHTS / TRF_STRIP_WEIGHTS,
    TRF_CHUNK_STRIPS = TRF_CHUNK_WEIGHTS / TRF_STRIP_WEIGHTS,
    TRF_LANE_QUARTETS = 8,
    /* A row of vectors of a plane: 16 bytes of each of the 32 lanes, side by side. Planes of width 1 have only one row,
     * with 8 bytes a lane. */
    TRF_PLANE_VECTORS_BYTES = 512,
    TRF_MAX_FIELDS = 3,
    TRF_MAX_SYMBOL_ROWS = TRF_MAX_LANE_WEIGHTS / 8, /* at most, of four symbols */
    TRF_WORD_GUARD = 136,                           /* words; more than a lane can ask for, first word included */
    TRF_MAX_SLAB_WORDS = TRF_LANE_PAIRS * 255,
    TRF_MAX_CHUNK_BYTES = TRF_MAX_RAW_BITS * 4 * TRF_CHUNK_WEIGHTS,
    /* Bytes after a chunk that decoders may read. Where the chunk is not in scratch, more raw bits or the slab table
     * and states follow it. */
    TRF_OVERREAD = 32,
};

/* A field of a plane narrower than 8 bits: its value << shift goes into the byte. offset: where the plane begins in a
 * full chunk. */
typedef struct trf_join_field {
    uint32_t offset, width, shift;
} trf_join_field;

typedef struct trf_join_rule {
    trf_join_out out;
    uint32_t class_bits;
    uint32_t num_fields;                  /* 0 to 3 */
    trf_join_field field[TRF_MAX_FIELDS]; /* the first one's shift is 0 */
    /* What a class gives to a weight's byte and, with the int codec, to its code's upper byte. */
    uint8_t class_byte[16], class_high[16];
    uint16_t lowest_code;                                         /* added to codes */
    int by_row, by_col;                                           /* whether there are offsets of rows, of columns */
    uint8_t layer_offset;                                         /* shifted into place, as the next two are */
    uint8_t row_offset[TRF_TILE_SIZE], col_offset[TRF_TILE_SIZE]; /* the rows' include the layer's */
} trf_join_rule;

/* Offsets of a slab's weights, in the order in which a strip's bytes are (trf_byte_weight). */
typedef struct trf_join_offsets {
    _Alignas(64) uint8_t row[TRF_LANE_QUARTETS][16]; /* the same for all four lanes */
    _Alignas(64) uint8_t col[TRF_MAX_STRIPS][64];    /* the same for all quartets */
} trf_join_offsets;

/* Working memory of one call, on its stack. */
typedef struct trf_simd_scratch {
    _Alignas(64) uint32_t symbols[TRF_MAX_SYMBOL_ROWS][TRF_LANES]; /* four symbols, the first one in bits 31:24 */
    _Alignas(64) uint16_t words[TRF_WORD_GUARD + TRF_MAX_SLAB_WORDS + TRF_WORD_GUARD];
    _Alignas(64) uint8_t last_chunk[TRF_MAX_CHUNK_BYTES + TRF_OVERREAD];
    _Alignas(64) uint16_t rows[TRF_SLAB_ROWS * TRF_MAX_SLAB_COLS];
    trf_join_offsets offsets;
} trf_simd_scratch;

/* Where a slab's raw bits are read and its elements written. */
typedef struct trf_slab_io {
    const uint8_t *raw, *last_chunk;
    uint32_t chunk_bytes, full_chunks; /* after those comes last_chunk, if there is one more */
    uint32_t row_blocks, strips;       /* strips: even */
    uint16_t *elements;                /* of the slab's first weight */
    size_t stride;
    int copy; /* elements is scratch->rows, from where trf_slab_io_finish copies them */
} trf_slab_io;

void trf_join_rule_init(trf_join_rule *rule, const trf_tile_decoder *decoder);

/* Sets scratch->offsets for one slab. previous: the slab that it was last called for, or NULL. */
void trf_join_arrange_offsets(const trf_join_rule *rule, const trf_slab_view *slab, const trf_slab_view *previous,
                              trf_join_offsets *offsets);

/* Copies a slab's words between guards that catch every position an overrunning lane can get to, so that no
 * read has to be checked. first: index in scratch->words of each lane's first word. */
void trf_simd_copy_words(const trf_slab_view *slab, trf_simd_scratch *scratch, uint32_t first[TRF_LANES]);

/* Sets up reading and writing for a slab. A last chunk that is not full is spread out to a full one in scratch, and a
 * slab whose width does not fill pairs of strips is decoded to rows in scratch. */
trf_slab_io trf_slab_io_begin(const trf_blob_view *view, const trf_slab_view *slab, trf_simd_scratch *scratch,
                              uint16_t *elements, size_t stride);
void trf_slab_io_finish(const trf_slab_io *io, const trf_slab_view *slab, uint16_t *elements, size_t stride);

/* The chunk that a strip's raw bits are in, as if it were a full one. */
static inline const uint8_t *trf_strip_chunk(const trf_slab_io *io, uint32_t strip) {
    uint32_t chunk = strip / TRF_CHUNK_STRIPS;
    return chunk < io->full_chunks ? io->raw + chunk * io->chunk_bytes : io->last_chunk;
}

/* The first word of a chunk's strip in a plane; strip: its number in the chunk. Planes of width 1 have two strips in a
 * word, and trf_strip_bit says where a strip's bits begin in each byte. */
static inline uint32_t trf_strip_word(uint32_t strip, uint32_t width) { return strip * width / 2; }
static inline uint32_t trf_strip_bit(uint32_t strip, uint32_t width) { return width == 1 ? 4 * (strip % 2) : 0; }

/* Bytes that a lane has in a row of vectors of a plane. Planes of width 1 have only 8. */
static inline uint32_t trf_lane_vector_bytes(uint32_t width) { return width == 1 ? 8 : 16; }

/* The weight of a strip for which byte b (0 to 15) of a lane stands. */
static inline uint32_t trf_byte_weight(uint32_t b) { return b / 4 * 4 + (0x3120u >> (b % 4 * 4) & 3); }

#endif
