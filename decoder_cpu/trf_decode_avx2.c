/* SPDX-License-Identifier: Apache-2.0 */
/* The AVX2 decoder. It has the same two passes as the AVX-512 decoder, with 8 lanes in a register in the first one and
 * 32 weights in the second.
 *
 * AVX2 has no shifts of single bytes, so masks isolate the classes where they lie, and a look-up of 16 bytes takes them
 * from there. The lanes of a quartet take two registers. */
#include "trf_decode_simd.h"

#include <assert.h>
#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* Bits of a where mask is set, else of b. */
INLINE __m256i select_bits(__m256i mask, __m256i a, __m256i b) {
    return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}

/* ---- first pass: symbols ---- */

enum {
    REGISTERS = 4
}; /* of eight lanes; the first two take words upwards, the others downwards */

typedef struct rans_constants {
    const int *decode_table;
    __m256i slot_mask, largest_needy, twelve_bits;
    __m128i probability_bits;
} rans_constants;

typedef struct lane_states {
    __m256i x;       /* states */
    __m256i at;      /* of each lane's next word */
    __m256i buffer;  /* two words, the next one on top */
    __m256i symbols; /* the last four */
} lane_states;

INLINE void fetch_words(lane_states *lanes, const uint16_t *words, int downwards) {
    if (downwards) {
        lanes->buffer = _mm256_i32gather_epi32((const int *)(words - 1), lanes->at, 2);
        return;
    }
    __m256i two = _mm256_i32gather_epi32((const int *)words, lanes->at, 2);
    lanes->buffer = _mm256_or_si256(_mm256_slli_epi32(two, 16), _mm256_srli_epi32(two, 16));
}

INLINE void renormalize(const rans_constants *k, lane_states *lanes, int downwards) {
    __m256i needs = _mm256_cmpeq_epi32(_mm256_min_epu32(lanes->x, k->largest_needy), lanes->x);
    __m256i next = _mm256_or_si256(_mm256_slli_epi32(lanes->x, 16), _mm256_srli_epi32(lanes->buffer, 16));
    lanes->x = _mm256_blendv_epi8(lanes->x, next, needs);
    lanes->buffer = _mm256_blendv_epi8(lanes->buffer, _mm256_slli_epi32(lanes->buffer, 16), needs);
    lanes->at = downwards ? _mm256_add_epi32(lanes->at, needs) : _mm256_sub_epi32(lanes->at, needs);
}

INLINE void step(const rans_constants *k, lane_states *lanes, int downwards) {
    __m256i entry = _mm256_i32gather_epi32(k->decode_table, _mm256_and_si256(lanes->x, k->slot_mask), 4);
    __m256i frequency = _mm256_and_si256(entry, k->twelve_bits);
    __m256i slot_offset = _mm256_and_si256(_mm256_srli_epi32(entry, 12), k->twelve_bits);
    lanes->symbols = _mm256_or_si256(_mm256_slli_epi32(lanes->symbols, 8), _mm256_srli_epi32(entry, 24));
    lanes->x =
        _mm256_add_epi32(_mm256_mullo_epi32(frequency, _mm256_srl_epi32(lanes->x, k->probability_bits)), slot_offset);
    renormalize(k, lanes, downwards);
}

/* Two steps of all 32 lanes, for which one fetch is enough. */
INLINE void step_twice(const rans_constants *k, lane_states lanes[REGISTERS], const uint16_t *words) {
    for (int r = 0; r < REGISTERS; r++)
        fetch_words(&lanes[r], words, r >= 2);
    for (int i = 0; i < 2; i++)
        for (int r = 0; r < REGISTERS; r++)
            step(k, &lanes[r], r >= 2);
}

/* @return whether the lanes' rANS streams end where they must. */
INLINE int lanes_end_well(const rans_constants *k, const lane_states lanes[REGISTERS]) {
    const __m256i one = _mm256_set1_epi32(1), lower_bound = _mm256_add_epi32(k->largest_needy, one);
    __m256i good = _mm256_set1_epi32(-1);
    for (int r = 0; r < REGISTERS; r++)
        good = _mm256_and_si256(good, _mm256_cmpeq_epi32(lanes[r].x, lower_bound));
    for (int r = 0; r < 2; r++) /* a lane pair's two lanes have met */
        good = _mm256_and_si256(good, _mm256_cmpeq_epi32(lanes[r].at, _mm256_add_epi32(lanes[r + 2].at, one)));
    return _mm256_movemask_epi8(good) == -1;
}

/* @return whether the slab's rANS streams end where they must. */
static int decode_symbols(const trf_tile_decoder *decoder, const trf_slab_view *slab, trf_simd_scratch *scratch) {
    const trf_header *header = &decoder->view->header;
    const rans_constants k = {(const int *)decoder->table->slots,
                              _mm256_set1_epi32((1 << header->probability_bits) - 1),
                              _mm256_set1_epi32((1 << header->state_bits) - 1), _mm256_set1_epi32(0xFFF),
                              _mm_cvtsi32_si128(header->probability_bits)};
    const uint32_t steps = trf_lane_weights(slab->shape) * header->class_bits / 8;
    const uint16_t *words = scratch->words;
    uint32_t first[TRF_LANES];
    trf_simd_copy_words(slab, scratch, first);
    lane_states lanes[REGISTERS];
    for (int r = 0; r < REGISTERS; r++) {
        lanes[r].x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(slab->start_states + 8 * r)));
        lanes[r].at = _mm256_loadu_si256((const __m256i *)(first + 8 * r));
        lanes[r].symbols = _mm256_setzero_si256();
        fetch_words(&lanes[r], words, r >= 2);
        renormalize(&k, &lanes[r], r >= 2);
    }
    for (uint32_t row = 0; row < steps / 4; row++) {
        step_twice(&k, lanes, words);
        step_twice(&k, lanes, words);
        for (int r = 0; r < REGISTERS; r++)
            _mm256_store_si256((__m256i *)(scratch->symbols[row] + 8 * r), lanes[r].symbols);
    }
    if (steps % 4) { /* two more: quads, in a slab of 16 rows and an odd number of column steps */
        step_twice(&k, lanes, words);
        for (int r = 0; r < REGISTERS; r++)
            _mm256_store_si256((__m256i *)(scratch->symbols[steps / 4] + 8 * r),
                               _mm256_slli_epi32(lanes[r].symbols, 16));
    }
    return lanes_end_well(&k, lanes);
}

/* ---- second pass: elements ---- */

enum {
    HALVES = 2 * TRF_LANE_QUARTETS
}; /* each of two lanes, which fill a register */

/* A field of a narrow plane: where each weight's word lies in a lane's 16 bytes, how far the field is shifted down in
 * its byte, and how far up it belongs. */
typedef struct field_constants {
    __m256i words; /* which bytes; of strips that begin with a vector */
    __m256i down;  /* a count for each word; of strips that begin at bit 0 */
    __m128i up;    /* 0 for the first field */
    __m256i mask;  /* the field in its place */
    uint32_t offset, width;
} field_constants;

typedef struct join_constants {
    __m256i symbol_byte;              /* which byte of the lanes' symbols has the class */
    __m256i class_lower, class_upper; /* which bits of it, if they are in its lower or its upper half */
    __m256i class_byte, class_high;   /* look-ups by these four bits */
    __m256i lowest_code;
    field_constants field[TRF_MAX_FIELDS];
} join_constants;

/* A field's bytes for one strip. */
typedef struct field_strip {
    const uint8_t *vectors;
    size_t lane_bytes;
    __m256i words, down, mask;
    __m128i up;
} field_strip;

INLINE __m256i broadcast_16(const void *bytes) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes)); }
INLINE __m256i load_32(const void *bytes) { return _mm256_loadu_si256(bytes); }

static field_constants make_field(const trf_join_field *field) {
    const uint32_t width = field->width, mask = ((1u << width) - 1) << field->shift;
    uint8_t words[16];
    uint32_t down[8];
    for (uint32_t b = 0; b < 16; b++)
        words[b] = (uint8_t)(4 * trf_plane_word(b / 4 * 4, width) + b % 4);
    for (uint32_t z = 0; z < 8; z++)
        down[z] = trf_plane_bit(z % 4 * 4, width);
    return (field_constants){broadcast_16(words),          load_32(down), _mm_cvtsi32_si128((int)field->shift),
                             _mm256_set1_epi8((char)mask), field->offset, width};
}

/* After masking, four bits hold only a class. With quads it is in the lower or the upper half of the four, and the
 * look-up takes both. */
static void make_class_constants(const trf_join_rule *rule, join_constants *k) {
    const uint32_t c = rule->class_bits;
    uint8_t bytes[32], lower[32], upper[32], low[16], high[16];
    for (uint32_t b = 0; b < 32; b++) { /* two lanes, each with two words of four symbols, or one with quads */
        uint32_t i = trf_byte_weight(b % 16), bit = i * c % 8, mask = ((1u << c) - 1) << bit % 4;
        bytes[b] = (uint8_t)(b / 16 * (c == 2 ? 4 : 8) + 4 * (i * c / 32) + 3 - i * c / 8 % 4);
        lower[b] = bit < 4 ? (uint8_t)mask : 0;
        upper[b] = bit < 4 ? 0 : (uint8_t)mask;
    }
    for (uint32_t b = 0; b < 16; b++) {
        uint32_t class_ = c == 2 ? (b & 3) | b >> 2 : b;
        low[b] = rule->class_byte[class_];
        high[b] = rule->class_high[class_];
    }
    k->symbol_byte = load_32(bytes);
    k->class_lower = load_32(lower);
    k->class_upper = load_32(upper);
    k->class_byte = broadcast_16(low);
    k->class_high = broadcast_16(high);
}

static void make_constants(const trf_join_rule *rule, join_constants *k) {
    memset(k, 0, sizeof *k);
    make_class_constants(rule, k);
    k->lowest_code = _mm256_set1_epi16((short)rule->lowest_code);
    for (uint32_t i = 0; i < rule->num_fields; i++)
        k->field[i] = make_field(&rule->field[i]);
}

/* chunk: the chunk of the strip. strip: its number in the chunk. */
INLINE field_strip begin_field(const field_constants *field, const uint8_t *chunk, uint32_t strip) {
    uint32_t word = trf_strip_word(strip, field->width), bit = trf_strip_bit(strip, field->width);
    return (field_strip){chunk + field->offset + TRF_PLANE_VECTORS_BYTES * (word / 4),
                         trf_lane_vector_bytes(field->width),
                         _mm256_add_epi8(field->words, _mm256_set1_epi8((char)(4 * (word % 4)))),
                         _mm256_add_epi32(field->down, _mm256_set1_epi32((int)bit)),
                         field->mask,
                         field->up};
}

/* The field of two lanes' weights, moved to its place. moved: whether its shift is not 0. */
INLINE __m256i read_field(const field_strip *field, uint32_t half, int moved) {
    const uint8_t *lanes = field->vectors + field->lane_bytes * 2 * half;
    __m256i words = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)lanes)),
                                            _mm_loadu_si128((const __m128i *)(lanes + field->lane_bytes)), 1);
    words = _mm256_srlv_epi32(_mm256_shuffle_epi8(words, field->words), field->down);
    return _mm256_and_si256(moved ? _mm256_sll_epi32(words, field->up) : words, field->mask);
}

/* All that a strip's halves share. */
typedef struct strip_sources {
    const uint32_t *symbols[2]; /* of the first and the second eight weights of each lane */
    const uint8_t *plane8;      /* the strip's vectors of an 8-bit plane */
    const uint8_t *col_offset;
    field_strip field[TRF_MAX_FIELDS];
} strip_sources;

INLINE strip_sources begin_strip(const join_constants *k, const trf_slab_io *io, const trf_simd_scratch *scratch,
                                 uint32_t strip, uint32_t class_bits, uint32_t num_fields) {
    const uint8_t *chunk = trf_strip_chunk(io, strip);
    strip_sources from;
    from.symbols[0] = scratch->symbols[class_bits == 2 ? strip : 2 * strip];
    from.symbols[1] = scratch->symbols[class_bits == 2 ? strip : 2 * strip + 1];
    from.plane8 = chunk + TRF_PLANE_VECTORS_BYTES * (strip % TRF_CHUNK_STRIPS);
    from.col_offset = scratch->offsets.col[strip];
    for (uint32_t i = 0; i < num_fields; i++)
        from.field[i] = begin_field(&k->field[i], chunk, strip % TRF_CHUNK_STRIPS);
    return from;
}

/* The four bits that contain each weight's class. */
INLINE __m256i read_classes(const join_constants *k, const strip_sources *from, uint32_t half, uint32_t class_bits) {
    __m128i symbols = _mm_loadl_epi64((const __m128i *)(from->symbols[0] + 2 * half));
    if (class_bits == 4)
        symbols = _mm_unpacklo_epi32(symbols, _mm_loadl_epi64((const __m128i *)(from->symbols[1] + 2 * half)));
    __m256i bytes = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(symbols), k->symbol_byte);
    return _mm256_or_si256(_mm256_and_si256(bytes, k->class_lower),
                           _mm256_and_si256(_mm256_srli_epi16(bytes, 4), k->class_upper));
}

/* Register pairs 0 and 1 of two lanes of a strip: elements q = 0, 1 and q = 2, 3 of each word. */
INLINE void join(const join_constants *k, const strip_sources *from, uint32_t half, __m256i row_offset,
                 uint32_t class_bits, trf_join_out out, uint32_t num_fields, __m256i element_pairs[2]) {
    __m256i classes = read_classes(k, from, half, class_bits), bytes = _mm256_shuffle_epi8(k->class_byte, classes);
    for (uint32_t i = 0; i < num_fields; i++)
        bytes = _mm256_or_si256(bytes, read_field(&from->field[i], half, i > 0));
    if (out == TRF_OUT_UNDER_PLANE || out == TRF_OUT_BYTE)
        bytes = _mm256_add_epi8(bytes, _mm256_add_epi8(row_offset, load_32(from->col_offset + 32 * (half % 2))));
    __m256i plane8 =
        out == TRF_OUT_UNDER_PLANE || out == TRF_OUT_PLANE8_CODE ? load_32(from->plane8 + 32 * half) : bytes;
    const __m256i low_byte = _mm256_set1_epi16(0xFF);
    if (out == TRF_OUT_UNDER_PLANE) {
        const __m256i mask = _mm256_set1_epi32((int)0x807F807Fu);
        const __m256i rotate =
            _mm256_broadcastsi128_si256(_mm_set_epi8(12, 15, 14, 13, 8, 11, 10, 9, 4, 7, 6, 5, 0, 3, 2, 1));
        element_pairs[0] = select_bits(mask, plane8, _mm256_slli_epi32(bytes, 7));
        element_pairs[1] = select_bits(mask, _mm256_shuffle_epi8(plane8, rotate), _mm256_srli_epi32(bytes, 1));
    } else if (out == TRF_OUT_BYTE) {
        bytes = _mm256_or_si256(_mm256_srli_epi32(bytes, 1), _mm256_slli_epi32(bytes, 31));
        element_pairs[0] = _mm256_and_si256(bytes, low_byte);
        element_pairs[1] = _mm256_srli_epi16(bytes, 8);
    } else {
        __m256i high = _mm256_shuffle_epi8(k->class_high, classes);
        element_pairs[0] = _mm256_add_epi16(select_bits(low_byte, plane8, _mm256_slli_epi16(high, 8)), k->lowest_code);
        element_pairs[1] = _mm256_add_epi16(select_bits(low_byte, _mm256_srli_epi16(plane8, 8), high), k->lowest_code);
    }
}

/* Second pass over a slab, two strips at a time: 16 columns of four rows, or 32 of two. */
INLINE void join_slab(const join_constants *k, const trf_slab_io *io, const trf_simd_scratch *scratch,
                      uint32_t class_bits, trf_join_out out, uint32_t num_fields) {
    const size_t stride = io->stride;
    const int two_row_blocks = io->row_blocks == 2;
    for (uint32_t strip = 0; strip < io->strips; strip += 2) {
        const strip_sources from[2] = {begin_strip(k, io, scratch, strip, class_bits, num_fields),
                                       begin_strip(k, io, scratch, strip + 1, class_bits, num_fields)};
        uint16_t *columns = io->elements + strip * (two_row_blocks ? 16 : 32);
        for (uint32_t half = 0; half < HALVES; half++) {
            __m256i row_offset = broadcast_16(scratch->offsets.row[half / 2]), a[2], b[2];
            join(k, &from[0], half, row_offset, class_bits, out, num_fields, a);
            join(k, &from[1], half, row_offset, class_bits, out, num_fields, b);
            for (uint32_t i = 0; i < 2; i++) {
                uint16_t *to = columns + (half / 2 + 8 * i) * stride + 16 * (half % 2);
                if (two_row_blocks) {
                    _mm256_storeu_si256((__m256i *)to, _mm256_unpacklo_epi64(a[i], b[i]));
                    _mm256_storeu_si256((__m256i *)(to + 16 * stride), _mm256_unpackhi_epi64(a[i], b[i]));
                } else {
                    _mm256_storeu_si256((__m256i *)to, a[i]);
                    _mm256_storeu_si256((__m256i *)(to + 32), b[i]);
                }
            }
        }
    }
}

#include "trf_join_slab_body.h"
#include "trf_scale_codes_body.h"

static uint32_t decode_slabs(const trf_tile_decoder *decoder, const trf_slab_view *slabs, uint32_t num_slabs,
                             uint16_t *elements, size_t stride) {
    trf_simd_scratch memory[TRF_MAX_SLABS_ACROSS]; /* slabs above each other share their columns' offsets */
    trf_join_rule rule;
    join_constants constants;
    trf_join_rule_init(&rule, decoder);
    make_constants(&rule, &constants);
    for (uint32_t s = 0; s < num_slabs; s++) {
        const uint32_t across = decoder->shape.slabs_across;
        assert(across > 0);
        const trf_slab_view *slab = &slabs[s], *above = s >= across ? slab - across : NULL;
        trf_simd_scratch *scratch = &memory[s % across];
        if (!decode_symbols(decoder, slab, scratch))
            return s;
        trf_join_arrange_offsets(&rule, slab, above, &scratch->offsets);
        trf_slab_io io = trf_slab_io_begin(decoder->view, slab, scratch, elements, stride);
        join_by_codec(&rule, &constants, &io, scratch);
        trf_slab_io_finish(&io, slab, elements, stride);
    }
    return num_slabs;
}

trf_status trf_decode_tile_avx2(const trf_blob_view *view, const trf_decode_table *table, uint64_t tile,
                                const uint8_t *tile_bytes, uint16_t *elements, size_t stride, trf_error *err) {
    return trf_decode_tile_by_slabs(decode_slabs, scale_codes, view, table, tile, tile_bytes, elements, stride, err);
}
