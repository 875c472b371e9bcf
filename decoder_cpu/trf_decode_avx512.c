/* SPDX-License-Identifier: Apache-2.0 */
/* The AVX-512 decoder. A slab takes two passes. The first one is rANS, with 16 lanes in a register; it gives symbols.
 * The second one joins 64 weights at a time (trf_decode_simd.h). It keeps the order in which planes lie in the slab,
 * which is the order of rows but for one interleaving where there are two row blocks.
 *
 * The first pass takes two thirds of the time, most of it in gathers (18 cycles for 16 lanes on Zen 4, with a latency
 * of 43). There is one in each step for the decode table, and one in every two steps for words, since 32 bits hold two
 * of them. */
#include "trf_decode_simd.h"

#include <immintrin.h>
#include <string.h>

/* Bits of a where mask is set, else of b. */
#define SELECT(mask, a, b) _mm512_ternarylogic_epi32(mask, a, b, 0xCA)
#define INLINE static inline __attribute__((always_inline))

/* ---- first pass: symbols ---- */

typedef struct rans_constants {
    const int *decode_table;
    __m512i slot_mask, lower_bound, twelve_bits;
    __m128i probability_bits;
} rans_constants;

/* Sixteen lanes: 0 to 15, which take words upwards, or 16 to 31, which take them downwards. */
typedef struct lane_states {
    __m512i x;       /* states */
    __m512i at;      /* of each lane's next word */
    __m512i stride;  /* 1 or -1 */
    __m512i buffer;  /* two words, the next one on top */
    __m512i symbols; /* the last four */
} lane_states;

INLINE void fetch_words(lane_states *lanes, const uint16_t *words, int downwards) {
    if (downwards)
        lanes->buffer = _mm512_i32gather_epi32(lanes->at, words - 1, 2);
    else
        lanes->buffer = _mm512_rol_epi32(_mm512_i32gather_epi32(lanes->at, words, 2), 16);
}

INLINE void renormalize(const rans_constants *k, lane_states *lanes) {
    __mmask16 needs = _mm512_cmplt_epu32_mask(lanes->x, k->lower_bound);
    lanes->x = _mm512_mask_shldi_epi32(lanes->x, needs, lanes->x, lanes->buffer, 16);
    lanes->buffer = _mm512_mask_slli_epi32(lanes->buffer, needs, lanes->buffer, 16);
    lanes->at = _mm512_mask_add_epi32(lanes->at, needs, lanes->at, lanes->stride);
}

INLINE void step(const rans_constants *k, lane_states *lanes) {
    __m512i entry = _mm512_i32gather_epi32(_mm512_and_si512(lanes->x, k->slot_mask), k->decode_table, 4);
    __m512i frequency = _mm512_and_si512(entry, k->twelve_bits);
    __m512i slot_offset = _mm512_and_si512(_mm512_srli_epi32(entry, 12), k->twelve_bits);
    lanes->symbols = _mm512_shldi_epi32(lanes->symbols, entry, 8);
    lanes->x =
        _mm512_add_epi32(_mm512_mullo_epi32(frequency, _mm512_srl_epi32(lanes->x, k->probability_bits)), slot_offset);
    renormalize(k, lanes);
}

/* Two steps of all lanes of `count` slabs, for which one fetch is enough. */
INLINE void step_twice(const rans_constants *k, lane_states lanes[][2], trf_simd_scratch *const *scratch,
                       const int count) {
    for (int s = 0; s < count; s++) {
        fetch_words(&lanes[s][0], scratch[s]->words, 0);
        fetch_words(&lanes[s][1], scratch[s]->words, 1);
    }
    for (int i = 0; i < 2; i++)
        for (int s = 0; s < count; s++) {
            step(k, &lanes[s][0]);
            step(k, &lanes[s][1]);
        }
}

INLINE void begin_lanes(const rans_constants *k, const trf_slab_view *slab, trf_simd_scratch *scratch,
                        lane_states lanes[2]) {
    uint32_t first[TRF_LANES];
    trf_simd_copy_words(slab, scratch, first);
    for (int i = 0; i < 2; i++) {
        const void *states = slab->start_states + 16 * i;
        lanes[i].x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(states));
        lanes[i].at = _mm512_loadu_si512(first + 16 * i);
        lanes[i].stride = _mm512_set1_epi32(i ? -1 : 1);
        lanes[i].symbols = _mm512_setzero_si512();
        fetch_words(&lanes[i], scratch->words, i);
        renormalize(k, &lanes[i]);
    }
}

INLINE void store_symbols(uint32_t *to, const lane_states lanes[2]) {
    _mm512_store_si512(to, lanes[0].symbols);
    _mm512_store_si512(to + 16, lanes[1].symbols);
}

/* @return whether the slab's rANS streams end where they must. */
INLINE int lanes_end_well(const rans_constants *k, const lane_states lanes[2]) {
    __mmask16 bad = _mm512_cmpneq_epi32_mask(lanes[0].x, k->lower_bound) |
                    _mm512_cmpneq_epi32_mask(lanes[1].x, k->lower_bound) |
                    /* A lane pair's two lanes have met. */
                    _mm512_cmpneq_epi32_mask(lanes[0].at, _mm512_sub_epi32(lanes[1].at, lanes[1].stride));
    return bad == 0;
}

/* Decodes `count` (1 or 2, a constant) slabs of the same shape. @return the number of the first bad one, or count. */
INLINE uint32_t decode_symbols(const trf_tile_decoder *decoder, const trf_slab_view *slabs,
                               trf_simd_scratch *const *scratch, const int count) {
    const trf_header *header = &decoder->view->header;
    const rans_constants k = {(const int *)decoder->table->slots,
                              _mm512_set1_epi32((1 << header->probability_bits) - 1),
                              _mm512_set1_epi32(1 << header->state_bits), _mm512_set1_epi32(0xFFF),
                              _mm_cvtsi32_si128(header->probability_bits)};
    const uint32_t steps = trf_lane_weights(slabs->shape) * header->class_bits / 8;
    lane_states lanes[2][2];
    for (int s = 0; s < count; s++)
        begin_lanes(&k, &slabs[s], scratch[s], lanes[s]);
    for (uint32_t row = 0; row < steps / 4; row++) {
        step_twice(&k, lanes, scratch, count);
        step_twice(&k, lanes, scratch, count);
        for (int s = 0; s < count; s++)
            store_symbols(scratch[s]->symbols[row], lanes[s]);
    }
    if (steps % 4) { /* two more: quads, in a slab of 16 rows and an odd number of column steps */
        step_twice(&k, lanes, scratch, count);
        for (int s = 0; s < count; s++) {
            for (int i = 0; i < 2; i++)
                lanes[s][i].symbols = _mm512_slli_epi32(lanes[s][i].symbols, 16);
            store_symbols(scratch[s]->symbols[steps / 4], lanes[s]);
        }
    }
    int good = 0;
    while (good < count && lanes_end_well(&k, lanes[good]))
        good++;
    return (uint32_t)good;
}

/* ---- second pass: elements ---- */

/* A field of a narrow plane: its place in a strip's quadwords, and in the byte. */
typedef struct field_constants {
    __m512i quadwords;     /* one for each half lane; of strips whose word is in a lane's first */
    __m512i offsets, mask; /* of strips whose word is the first of its quadword */
    uint32_t offset, width;
} field_constants;

typedef struct join_constants {
    __m512i class_offsets;
    __m512i class_byte, class_high; /* look-ups by class, repeated for the bits above it */
    __m512i lowest_code;
    field_constants field[TRF_MAX_FIELDS];
} join_constants;

/* A field's bytes for one strip. */
typedef struct field_strip {
    const uint8_t *vectors;
    size_t quartet_bytes;
    __m512i quadwords, offsets, mask;
} field_strip;

INLINE __m512i broadcast_16(const void *bytes) { return _mm512_broadcast_i32x4(_mm_loadu_si128(bytes)); }

static field_constants make_field(const trf_join_field *field) {
    const __m512i halves = _mm512_set_epi64(6, 6, 4, 4, 2, 2, 0, 0);
    const uint32_t width = field->width, mask = ((1u << width) - 1) << field->shift;
    uint8_t offsets[16];
    for (uint32_t b = 0; b < 16; b++) {
        uint32_t i = trf_byte_weight(b);
        offsets[b] = (32 * trf_plane_word(i, width) + trf_plane_bit(i, width) - field->shift) & 63;
    }
    return (field_constants){width == 1 ? _mm512_srli_epi64(halves, 1) : halves, broadcast_16(offsets),
                             _mm512_set1_epi8((char)mask), field->offset, width};
}

static void make_constants(const trf_join_rule *rule, join_constants *k) {
    const uint32_t c = rule->class_bits;
    uint8_t offsets[16], low[64], high[64];
    memset(k, 0, sizeof *k);
    for (uint32_t b = 0; b < 16; b++) {
        uint32_t i = trf_byte_weight(b), symbol = i * c / 8 % 4;
        offsets[b] = (uint8_t)(8 * (3 - symbol) + i * c % 8);
    }
    for (uint32_t i = 0; i < 64; i++) {
        low[i] = rule->class_byte[i & ((1u << c) - 1)];
        high[i] = rule->class_high[i & ((1u << c) - 1)];
    }
    k->class_offsets = broadcast_16(offsets);
    k->class_byte = _mm512_loadu_si512(low);
    k->class_high = _mm512_loadu_si512(high);
    k->lowest_code = _mm512_set1_epi16((short)rule->lowest_code);
    for (uint32_t i = 0; i < rule->num_fields; i++)
        k->field[i] = make_field(&rule->field[i]);
}

/* chunk: the chunk of the strip. strip: its number in the chunk. */
INLINE field_strip begin_field(const field_constants *field, const uint8_t *chunk, uint32_t strip) {
    uint32_t word = trf_strip_word(strip, field->width);
    uint32_t bit = 32 * (word % 2) + trf_strip_bit(strip, field->width);
    return (field_strip){chunk + field->offset + TRF_PLANE_VECTORS_BYTES * (word / 4),
                         4 * trf_lane_vector_bytes(field->width),
                         _mm512_add_epi64(field->quadwords, _mm512_set1_epi64(word / 2 % 2)),
                         _mm512_add_epi8(field->offsets, _mm512_set1_epi8((char)bit)), field->mask};
}

/* Puts the field in place in `bytes`. */
INLINE __m512i insert_field(const field_strip *field, uint32_t quartet, __m512i bytes) {
    __m512i words =
        _mm512_permutexvar_epi64(field->quadwords, _mm512_loadu_si512(field->vectors + field->quartet_bytes * quartet));
    return SELECT(field->mask, _mm512_multishift_epi64_epi8(field->offsets, words), bytes);
}

/* All that a strip's eight quartets share. */
typedef struct strip_sources {
    const uint32_t *symbols[2]; /* of the first and the second eight weights of each lane */
    const uint8_t *plane8;      /* the strip's vectors of an 8-bit plane */
    __m512i col_offset;
    field_strip field[TRF_MAX_FIELDS];
} strip_sources;

INLINE strip_sources begin_strip(const join_constants *k, const trf_slab_io *io, const trf_simd_scratch *scratch,
                                 uint32_t strip, uint32_t class_bits, uint32_t num_fields) {
    const uint8_t *chunk = trf_strip_chunk(io, strip);
    strip_sources from;
    from.symbols[0] = scratch->symbols[class_bits == 2 ? strip : 2 * strip];
    from.symbols[1] = scratch->symbols[class_bits == 2 ? strip : 2 * strip + 1];
    from.plane8 = chunk + TRF_PLANE_VECTORS_BYTES * (strip % TRF_CHUNK_STRIPS);
    from.col_offset = _mm512_load_si512(scratch->offsets.col[strip]);
    for (uint32_t i = 0; i < num_fields; i++)
        from.field[i] = begin_field(&k->field[i], chunk, strip % TRF_CHUNK_STRIPS);
    return from;
}

/* Register pairs 0 and 1 of one quartet of a strip: elements q = 0, 1 and q = 2, 3 of each word. */
INLINE void join(const join_constants *k, const strip_sources *from, uint32_t quartet, __m512i row_offset,
                 trf_join_out out, uint32_t num_fields, __m512i element_pairs[2]) {
    const __m512i spread = _mm512_set_epi32(19, 19, 3, 3, 18, 18, 2, 2, 17, 17, 1, 1, 16, 16, 0, 0);
    __m512i symbols[2];
    for (int i = 0; i < 2; i++)
        symbols[i] = _mm512_castsi128_si512(_mm_load_si128((const __m128i *)(from->symbols[i] + 4 * quartet)));
    __m512i classes =
        _mm512_multishift_epi64_epi8(k->class_offsets, _mm512_permutex2var_epi32(symbols[0], spread, symbols[1]));
    __m512i bytes = _mm512_permutexvar_epi8(classes, k->class_byte);
    for (uint32_t i = 0; i < num_fields; i++)
        bytes = insert_field(&from->field[i], quartet, bytes);
    if (out == TRF_OUT_UNDER_PLANE) {
        const __m512i mask = _mm512_set1_epi32((int)0x807F807Fu);
        __m512i plane8 = _mm512_loadu_si512(from->plane8 + 64 * quartet);
        bytes = _mm512_add_epi8(bytes, _mm512_add_epi8(row_offset, from->col_offset));
        element_pairs[0] = SELECT(mask, plane8, _mm512_slli_epi32(bytes, 7));
        element_pairs[1] = SELECT(mask, _mm512_ror_epi32(plane8, 8), _mm512_srli_epi32(bytes, 1));
        return;
    }
    const __m512i low_byte = _mm512_set1_epi16(0xFF);
    if (out == TRF_OUT_BYTE) {
        bytes = _mm512_ror_epi32(_mm512_add_epi8(bytes, _mm512_add_epi8(row_offset, from->col_offset)), 1);
        element_pairs[0] = _mm512_and_si512(bytes, low_byte);
        element_pairs[1] = _mm512_srli_epi16(bytes, 8);
        return;
    }
    if (out == TRF_OUT_PLANE8_CODE)
        bytes = _mm512_loadu_si512(from->plane8 + 64 * quartet);
    __m512i high = _mm512_permutexvar_epi8(classes, k->class_high);
    element_pairs[0] = _mm512_add_epi16(SELECT(low_byte, bytes, _mm512_slli_epi16(high, 8)), k->lowest_code);
    element_pairs[1] = _mm512_add_epi16(SELECT(low_byte, _mm512_srli_epi16(bytes, 8), high), k->lowest_code);
}

/* Second pass over a slab, two strips at a time so that each store is 64 bytes of a row. */
INLINE void join_slab(const join_constants *k, const trf_slab_io *io, const trf_simd_scratch *scratch,
                      uint32_t class_bits, trf_join_out out, uint32_t num_fields) {
    const size_t stride = io->stride;
    const int two_row_blocks = io->row_blocks == 2;
    for (uint32_t strip = 0; strip < io->strips; strip += 2) {
        const strip_sources from[2] = {begin_strip(k, io, scratch, strip, class_bits, num_fields),
                                       begin_strip(k, io, scratch, strip + 1, class_bits, num_fields)};
        uint16_t *row = io->elements + strip * (two_row_blocks ? 16 : 32);
        for (uint32_t quartet = 0; quartet < TRF_LANE_QUARTETS; quartet++, row += stride) {
            __m512i row_offset = broadcast_16(scratch->offsets.row[quartet]), a[2], b[2];
            join(k, &from[0], quartet, row_offset, out, num_fields, a);
            join(k, &from[1], quartet, row_offset, out, num_fields, b);
            for (int i = 0; i < 2; i++) {
                uint16_t *to = row + 8 * (size_t)i * stride;
                if (two_row_blocks) {
                    _mm512_storeu_si512(to, _mm512_unpacklo_epi64(a[i], b[i]));
                    _mm512_storeu_si512(to + 16 * stride, _mm512_unpackhi_epi64(a[i], b[i]));
                } else {
                    _mm512_storeu_si512(to, a[i]);
                    _mm512_storeu_si512(to + 32, b[i]);
                }
            }
        }
    }
}

#include "trf_join_slab_body.h"
#include "trf_scale_codes_body.h"

static int have_one_shape(const trf_slab_view slabs[2]) {
    return slabs[0].shape.row_blocks == slabs[1].shape.row_blocks && slabs[0].shape.steps == slabs[1].shape.steps;
}

static uint32_t decode_slabs(const trf_tile_decoder *decoder, const trf_slab_view *slabs, uint32_t num_slabs,
                             uint16_t *elements, size_t stride) {
    trf_simd_scratch memory[2], *const scratch[2] = {&memory[0], &memory[1]};
    const trf_slab_view *previous[2] = {NULL, NULL};
    trf_join_rule rule;
    join_constants constants;
    trf_join_rule_init(&rule, decoder);
    make_constants(&rule, &constants);
    for (uint32_t s = 0, count; s < num_slabs; s += count) {
        /* Two slabs at a time, so that the gathers of one hide the latency of the other's. */
        count = s + 1 < num_slabs && have_one_shape(slabs + s) ? 2 : 1;
        uint32_t good = count == 2 ? decode_symbols(decoder, slabs + s, scratch, 2)
                                   : decode_symbols(decoder, slabs + s, scratch, 1);
        if (good < count)
            return s + good;
        for (uint32_t i = 0; i < count; i++) {
            const trf_slab_view *slab = &slabs[s + i];
            trf_join_arrange_offsets(&rule, slab, previous[i], &scratch[i]->offsets);
            previous[i] = slab;
            trf_slab_io io = trf_slab_io_begin(decoder->view, slab, scratch[i], elements, stride);
            join_by_codec(&rule, &constants, &io, scratch[i]);
            trf_slab_io_finish(&io, slab, elements, stride);
        }
    }
    return num_slabs;
}

trf_status trf_decode_tile_avx512(const trf_blob_view *view, const trf_decode_table *table, uint64_t tile,
                                  const uint8_t *tile_bytes, uint16_t *elements, size_t stride, trf_error *err) {
    return trf_decode_tile_by_slabs(decode_slabs, scale_codes, view, table, tile, tile_bytes, elements, stride, err);
}
