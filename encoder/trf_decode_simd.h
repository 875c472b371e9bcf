/* The plan that both SIMD decoders follow to put elements together, and what they share in plain C.
 *
 * Their unit of work is a *chunk*: 16 consecutive weights of each of the four lanes 4u ... 4u+3 (unit u, 0 to 7), which
 * make up rows u and u+8 of 16-column pieces. Plane by plane a lane's share of a chunk lies within 16 bytes, so four
 * lanes fill a 64-byte register in the order (lane 4u + c, word z of four, weight q of a word's four). Within a word
 * the weights' bytes are kept in the order q = 0, 2, 1, 3, which is that of 8-bit planes and lets one shift put two of
 * them in place in a register pair (q = 0, 1 in one, 2, 3 in the other).
 *
 * One byte is built for each weight: a look-up by class, the fields of the planes narrower than 8 bits put in place
 * by masks, the offsets added, and a last field put above that. What the byte means depends on `out`. */
#ifndef TRF_DECODE_SIMD_H
#define TRF_DECODE_SIMD_H

#include "trf_decode_tile.h"

typedef enum trf_assembly_out {
    TRF_OUT_UNDER_PLANE, /* bf16, fp16: bits 14:7 of the element; an 8-bit plane has sign and bits 6:0 */
    TRF_OUT_BYTE,        /* fp8: the element */
    TRF_OUT_CODE,        /* int: its low byte, the high one from a look-up too, class_value[0] to be added */
    TRF_OUT_WIDE_CODE,   /* int with 8 raw bits: the byte is zero, the low byte an 8-bit plane */
} trf_assembly_out;

enum {
    TRF_CHUNK = 16, /* weights of a lane */
    TRF_MAX_CHUNKS = TRF_LANE_WEIGHTS / TRF_CHUNK,
    TRF_UNITS = 8,
    TRF_GROUP_BYTES = 512, /* 16 bytes a lane */
    TRF_MAX_FIELDS = 3,
    TRF_SYMBOL_GROUPS = TRF_LANE_WEIGHTS / 8, /* at most, of four symbols */
    TRF_WORD_GUARD = 136,                     /* words; more than a lane can ask for, first word included */
    TRF_MAX_SLAB_WORDS = TRF_LANE_PAIRS * 255,
};

/* A field of a plane narrower than 8 bits: its value << shift, under mask, goes into the byte. */
typedef struct trf_assembly_field {
    uint32_t plane, width, shift, mask;
} trf_assembly_field;

typedef struct trf_assembly {
    trf_assembly_out out;
    uint32_t class_bits;
    uint32_t num_fields; /* 0 to 3, before the offsets are added */
    trf_assembly_field field[TRF_MAX_FIELDS];
    int has_last; /* 1 for fp8: its sign */
    trf_assembly_field last;
    uint8_t low[16], high[16]; /* by class */
    uint16_t origin;           /* added to codes */
    int has_offsets;
    uint8_t row_offset[TRF_TILE_SIZE], col_offset[TRF_TILE_SIZE]; /* exponent_offset in the rows', shifted into place */
} trf_assembly;

/* Offsets of a slab's weights in byte order; zeros where none are in effect. */
typedef struct trf_assembly_offsets {
    _Alignas(64) uint8_t row[TRF_UNITS][16];      /* the same for all four lanes */
    _Alignas(64) uint8_t col[TRF_MAX_CHUNKS][64]; /* the same for all units */
} trf_assembly_offsets;

/* Working memory of one call, on its stack. */
typedef struct trf_simd_scratch {
    _Alignas(64) uint32_t symbols[TRF_SYMBOL_GROUPS][TRF_LANES]; /* four symbols, the first one in bits 31:24 */
    _Alignas(64) uint16_t words[TRF_WORD_GUARD + TRF_MAX_SLAB_WORDS + TRF_WORD_GUARD];
    _Alignas(64) uint8_t planes[TRF_MAX_RAW_BITS * 2 * TRF_GROUP_BYTES];
    _Alignas(64) uint16_t rows[TRF_SLAB_ROWS * TRF_SLAB_COLS];
    trf_assembly_offsets offsets;
} trf_simd_scratch;

/* Where a slab's planes are read and its elements written. */
typedef struct trf_simd_slab {
    const uint8_t *planes[TRF_MAX_PLANES];
    uint32_t blocks, chunks; /* chunks: even */
    uint16_t *elements;      /* of the slab's first weight */
    size_t stride;
    int copy; /* elements is scratch->rows, from where trf_simd_slab_finish copies them */
} trf_simd_slab;

void trf_assembly_init(trf_assembly *assembly, const trf_tile_work *work);

/* Sets scratch->offsets for one slab. previous: the slab that it was last called for, or NULL. */
void trf_assembly_place_offsets(const trf_assembly *assembly, const trf_slab_parts *slab,
                                const trf_slab_parts *previous, trf_assembly_offsets *offsets);

/* Copies a slab's words between guards that catch every position an overrunning lane can get to, so that no
 * read has to be checked. first: index in scratch->words of each lane's first word. */
void trf_simd_place_words(const trf_slab_parts *slab, trf_simd_scratch *scratch, uint32_t first[TRF_LANES]);

/* A slab whose planes do not consist of whole 512-byte groups is copied to such planes in scratch, and one
 * whose width does not fill pairs of chunks is decoded to scratch rows. */
trf_simd_slab trf_simd_slab_begin(const trf_blob_view *view, const trf_slab_parts *slab, trf_simd_scratch *scratch,
                                  uint16_t *elements, size_t stride);
void trf_simd_slab_finish(const trf_simd_slab *place, const trf_slab_parts *slab, uint16_t *elements, size_t stride);

/* Byte offset within a lane's 16 bytes, and its group, of a plane's word for `chunk`. Planes of width 1 have two chunks
 * in a word: trf_chunk_bit is the bit at which the chunk's low halves begin. */
static inline uint32_t trf_chunk_word(uint32_t chunk, uint32_t width) { return chunk * width / 2; }
static inline uint32_t trf_chunk_bit(uint32_t chunk, uint32_t width) { return width == 1 ? 8 * (chunk % 2) : 0; }

/* Weight of a chunk that byte b (0 to 15) of a lane stands for. */
static inline uint32_t trf_byte_weight(uint32_t b) { return b / 4 * 4 + (0x3120u >> (b % 4 * 4) & 3); }

#endif
