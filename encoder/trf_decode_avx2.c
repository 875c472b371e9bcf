/* The AVX2 decoder: the same two passes as the AVX-512 one, 8 lanes a register in the first, 32 weights in the second.
 *
 * AVX2 has no shifts of single bytes; fields are isolated by masks where they lie and brought into place by a
 * look-up of 16 bytes. A unit's four lanes are kept as registers a (lanes 0 and 2) and b (1 and 3), which interleave
 * into rows. */
#include "trf_decode_simd.h"

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

typedef struct stream_constants {
    const int *slots;
    __m256i slot_mask, largest_needy, twelve_bits;
    __m128i probability_bits;
} stream_constants;

typedef struct lane_streams {
    __m256i x;       /* states */
    __m256i at;      /* of each lane's next word */
    __m256i buffer;  /* two words, the next one on top */
    __m256i symbols; /* the last four */
} lane_streams;

INLINE void fetch_words(lane_streams *lanes, const uint16_t *words, int downwards) {
    if (downwards) {
        lanes->buffer = _mm256_i32gather_epi32((const int *)(words - 1), lanes->at, 2);
        return;
    }
    __m256i two = _mm256_i32gather_epi32((const int *)words, lanes->at, 2);
    lanes->buffer = _mm256_or_si256(_mm256_slli_epi32(two, 16), _mm256_srli_epi32(two, 16));
}

INLINE void renormalize(const stream_constants *k, lane_streams *lanes, int downwards) {
    __m256i needs = _mm256_cmpeq_epi32(_mm256_min_epu32(lanes->x, k->largest_needy), lanes->x);
    __m256i next = _mm256_or_si256(_mm256_slli_epi32(lanes->x, 16), _mm256_srli_epi32(lanes->buffer, 16));
    lanes->x = _mm256_blendv_epi8(lanes->x, next, needs);
    lanes->buffer = _mm256_blendv_epi8(lanes->buffer, _mm256_slli_epi32(lanes->buffer, 16), needs);
    lanes->at = downwards ? _mm256_add_epi32(lanes->at, needs) : _mm256_sub_epi32(lanes->at, needs);
}

INLINE void step(const stream_constants *k, lane_streams *lanes, int downwards) {
    __m256i entry = _mm256_i32gather_epi32(k->slots, _mm256_and_si256(lanes->x, k->slot_mask), 4);
    __m256i frequency = _mm256_and_si256(entry, k->twelve_bits);
    __m256i bias = _mm256_and_si256(_mm256_srli_epi32(entry, 12), k->twelve_bits);
    lanes->symbols = _mm256_or_si256(_mm256_slli_epi32(lanes->symbols, 8), _mm256_srli_epi32(entry, 24));
    lanes->x = _mm256_add_epi32(_mm256_mullo_epi32(frequency, _mm256_srl_epi32(lanes->x, k->probability_bits)), bias);
    renormalize(k, lanes, downwards);
}

/* Two steps of all 32 lanes, for which one fetch is enough. */
INLINE void step_twice(const stream_constants *k, lane_streams lanes[REGISTERS], const uint16_t *words) {
    for (int r = 0; r < REGISTERS; r++)
        fetch_words(&lanes[r], words, r >= 2);
    for (int i = 0; i < 2; i++)
        for (int r = 0; r < REGISTERS; r++)
            step(k, &lanes[r], r >= 2);
}

/* @return whether the lanes' streams end where they must. */
INLINE int streams_end_well(const stream_constants *k, const lane_streams lanes[REGISTERS]) {
    const __m256i one = _mm256_set1_epi32(1), lower_bound = _mm256_add_epi32(k->largest_needy, one);
    __m256i good = _mm256_set1_epi32(-1);
    for (int r = 0; r < REGISTERS; r++)
        good = _mm256_and_si256(good, _mm256_cmpeq_epi32(lanes[r].x, lower_bound));
    for (int r = 0; r < 2; r++) /* a pair's two lanes have met */
        good = _mm256_and_si256(good, _mm256_cmpeq_epi32(lanes[r].at, _mm256_add_epi32(lanes[r + 2].at, one)));
    return _mm256_movemask_epi8(good) == -1;
}

/* @return whether the slab's streams end where they must. */
static int decode_symbols(const trf_tile_work *work, const trf_slab_parts *slab, trf_simd_scratch *scratch) {
    const trf_header *header = &work->view->header;
    const stream_constants k = {(const int *)work->table->slots, _mm256_set1_epi32((1 << header->probability_bits) - 1),
                                _mm256_set1_epi32((1 << header->state_bits) - 1), _mm256_set1_epi32(0xFFF),
                                _mm_cvtsi32_si128(header->probability_bits)};
    const uint32_t steps = trf_lane_weights(slab->shape) * header->class_bits / 8;
    const uint16_t *words = scratch->words;
    uint32_t first[TRF_LANES];
    trf_simd_place_words(slab, scratch, first);
    lane_streams lanes[REGISTERS];
    for (int r = 0; r < REGISTERS; r++) {
        lanes[r].x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(slab->start_states + 8 * r)));
        lanes[r].at = _mm256_loadu_si256((const __m256i *)(first + 8 * r));
        lanes[r].symbols = _mm256_setzero_si256();
        fetch_words(&lanes[r], words, r >= 2);
        renormalize(&k, &lanes[r], r >= 2);
    }
    for (uint32_t group = 0; group < steps / 4; group++) {
        step_twice(&k, lanes, words);
        step_twice(&k, lanes, words);
        for (int r = 0; r < REGISTERS; r++)
            _mm256_store_si256((__m256i *)(scratch->symbols[group] + 8 * r), lanes[r].symbols);
    }
    if (steps % 4) { /* two more: quads, in a slab of 16 rows and an odd number of column steps */
        step_twice(&k, lanes, words);
        for (int r = 0; r < REGISTERS; r++)
            _mm256_store_si256((__m256i *)(scratch->symbols[steps / 4] + 8 * r),
                               _mm256_slli_epi32(lanes[r].symbols, 16));
    }
    return streams_end_well(&k, lanes);
}

/* ---- second pass: elements ---- */

/* How to find a field of each byte's weight among the 16 bytes of its lane. */
typedef struct field_constants {
    __m256i shuffle;      /* the byte that has it, for chunks that begin with a group */
    __m256i lower, upper; /* which bits of that byte: of its lower, or of its upper half */
    __m256i place;        /* from these four bits to the field in its place */
    uint32_t plane, width;
} field_constants;

typedef struct assembly_constants {
    field_constants classes; /* place: low */
    __m256i high, origin;
    field_constants field[TRF_MAX_FIELDS], last;
} assembly_constants;

typedef struct field_chunk {
    const field_constants *constants;
    const uint8_t *group;
    __m256i shuffle;
} field_chunk;

typedef struct unit_bytes {
    __m256i a, b;
} unit_bytes;

INLINE __m256i broadcast_16(const void *bytes) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes)); }

/* Sixteen bytes of each of four lanes. */
INLINE unit_bytes load_unit(const uint8_t *bytes) {
    __m256i front = _mm256_loadu_si256((const __m256i *)bytes),
            back = _mm256_loadu_si256((const __m256i *)(bytes + 32));
    return (unit_bytes){_mm256_permute2x128_si256(front, back, 0x20), _mm256_permute2x128_si256(front, back, 0x31)};
}

/* What a field is worth whose bits stand alone in four bits; width: its own. */
static uint32_t field_value(uint32_t nibble, uint32_t width) {
    if (width == 1)
        return nibble != 0;
    return width == 2 && !(nibble & 3) ? nibble >> 2 : nibble;
}

/* bits: where each byte's field lies among the lane's 128 bits; value: by the field's value, in its place. */
static field_constants make_field(uint32_t plane, uint32_t width, const uint32_t bits[16], const uint8_t value[16]) {
    uint8_t shuffle[16], lower[16], upper[16], place[16];
    for (uint32_t b = 0; b < 16; b++) {
        uint32_t mask = ((1u << width) - 1) << bits[b] % 4;
        shuffle[b] = (uint8_t)(bits[b] / 8);
        lower[b] = bits[b] % 8 < 4 ? (uint8_t)mask : 0;
        upper[b] = bits[b] % 8 < 4 ? 0 : (uint8_t)mask;
        place[b] = value[field_value(b, width) & ((1u << width) - 1)];
    }
    return (field_constants){
        broadcast_16(shuffle), broadcast_16(lower), broadcast_16(upper), broadcast_16(place), plane, width};
}

static field_constants make_plane_field(const trf_assembly_field *field) {
    uint32_t bits[16];
    uint8_t value[16];
    for (uint32_t b = 0; b < 16; b++) {
        uint32_t i = trf_byte_weight(b);
        bits[b] = 32 * trf_plane_word(i, field->width) + trf_plane_bit(i, field->width);
        value[b] = (uint8_t)(b << field->shift & field->mask);
    }
    return make_field(field->plane, field->width, bits, value);
}

static void make_constants(const trf_assembly *assembly, assembly_constants *k) {
    const uint32_t c = assembly->class_bits;
    uint32_t bits[16];
    memset(k, 0, sizeof *k);
    for (uint32_t b = 0; b < 16; b++) { /* of two groups of four symbols */
        uint32_t i = trf_byte_weight(b);
        bits[b] = 32 * (i / 8) + 8 * (3 - i * c / 8 % 4) + i * c % 8;
    }
    k->classes = make_field(0, c, bits, assembly->low);
    k->high = make_field(0, c, bits, assembly->high).place;
    k->origin = _mm256_set1_epi16((short)assembly->origin);
    for (uint32_t i = 0; i < assembly->num_fields; i++)
        k->field[i] = make_plane_field(&assembly->field[i]);
    if (assembly->has_last)
        k->last = make_plane_field(&assembly->last);
}

/* The four bits that contain each byte's field. */
INLINE __m256i isolate(const field_constants *field, __m256i shuffle, __m256i lanes) {
    __m256i bytes = _mm256_shuffle_epi8(lanes, shuffle);
    return _mm256_or_si256(_mm256_and_si256(bytes, field->lower),
                           _mm256_and_si256(_mm256_srli_epi16(bytes, 4), field->upper));
}

INLINE field_chunk begin_field(const trf_simd_slab *place, const field_constants *field, uint32_t chunk) {
    uint32_t word = trf_chunk_word(chunk, field->width);
    uint32_t byte = 4 * (word % 4) + trf_chunk_bit(chunk, field->width) / 8;
    return (field_chunk){field, place->planes[field->plane] + TRF_GROUP_BYTES * (word / 4),
                         _mm256_add_epi8(field->shuffle, _mm256_set1_epi8((char)byte))};
}

INLINE unit_bytes read_field(const field_chunk *from, uint32_t unit) {
    const field_constants *field = from->constants;
    unit_bytes lanes = load_unit(from->group + 64 * unit);
    return (unit_bytes){_mm256_shuffle_epi8(field->place, isolate(field, from->shuffle, lanes.a)),
                        _mm256_shuffle_epi8(field->place, isolate(field, from->shuffle, lanes.b))};
}

/* All that a chunk's eight units share. */
typedef struct chunk_sources {
    const uint32_t *symbols[2]; /* of the first and the second eight weights of each lane */
    const uint8_t *wide;        /* the chunk's group of an 8-bit plane */
    unit_bytes col_offset;
    field_chunk field[TRF_MAX_FIELDS], last;
} chunk_sources;

INLINE chunk_sources begin_chunk(const assembly_constants *k, const trf_simd_slab *place,
                                 const trf_simd_scratch *scratch, uint32_t chunk, uint32_t class_bits,
                                 trf_assembly_out out, uint32_t num_fields) {
    chunk_sources from;
    from.symbols[0] = scratch->symbols[class_bits == 2 ? chunk : 2 * chunk];
    from.symbols[1] = scratch->symbols[class_bits == 2 ? chunk : 2 * chunk + 1];
    from.wide =
        out == TRF_OUT_UNDER_PLANE || out == TRF_OUT_WIDE_CODE ? place->planes[0] + TRF_GROUP_BYTES * chunk : NULL;
    from.col_offset = load_unit(scratch->offsets.col[chunk]);
    for (uint32_t i = 0; i < num_fields; i++)
        from.field[i] = begin_field(place, &k->field[i], chunk);
    if (out == TRF_OUT_BYTE)
        from.last = begin_field(place, &k->last, chunk);
    return from;
}

/* Register pairs 0 and 1 of two lanes: elements q = 0, 1 and q = 2, 3 of each word. wide: their 8-bit plane, if they
 * have one; last: the field that goes on top of an fp8 byte. */
INLINE void make_pairs(const assembly_constants *k, trf_assembly_out out, __m256i classes, __m256i bytes, __m256i wide,
                       __m256i last, __m256i pair[2]) {
    const __m256i low_byte = _mm256_set1_epi16(0xFF);
    if (out == TRF_OUT_UNDER_PLANE) {
        const __m256i mask = _mm256_set1_epi32((int)0x807F807Fu);
        const __m256i rotate =
            _mm256_broadcastsi128_si256(_mm_set_epi8(12, 15, 14, 13, 8, 11, 10, 9, 4, 7, 6, 5, 0, 3, 2, 1));
        pair[0] = select_bits(mask, wide, _mm256_slli_epi32(bytes, 7));
        pair[1] = select_bits(mask, _mm256_shuffle_epi8(wide, rotate), _mm256_srli_epi32(bytes, 1));
    } else if (out == TRF_OUT_BYTE) {
        bytes = _mm256_or_si256(_mm256_and_si256(bytes, _mm256_set1_epi8(0x7F)), last);
        pair[0] = _mm256_and_si256(bytes, low_byte);
        pair[1] = _mm256_srli_epi16(bytes, 8);
    } else {
        __m256i low = out == TRF_OUT_WIDE_CODE ? wide : bytes, high = _mm256_shuffle_epi8(k->high, classes);
        pair[0] = _mm256_add_epi16(select_bits(low_byte, low, _mm256_slli_epi16(high, 8)), k->origin);
        pair[1] = _mm256_add_epi16(select_bits(low_byte, _mm256_srli_epi16(low, 8), high), k->origin);
    }
}

/* One unit of a chunk: four pieces of 16 columns. second: elements from a row's first piece to its lanes' second. */
INLINE void assemble(const assembly_constants *k, const chunk_sources *from, uint32_t unit, __m256i row_offset,
                     trf_assembly_out out, uint32_t num_fields, uint16_t *row, size_t stride, size_t second) {
    __m128i early = _mm_load_si128((const __m128i *)(from->symbols[0] + 4 * unit));
    __m128i late = _mm_load_si128((const __m128i *)(from->symbols[1] + 4 * unit));
    __m256i symbols = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi32(early, late)),
                                              _mm_unpackhi_epi32(early, late), 1);
    __m256i classes_a = isolate(&k->classes, k->classes.shuffle, symbols);
    __m256i classes_b = isolate(&k->classes, k->classes.shuffle, _mm256_srli_si256(symbols, 8));
    __m256i a = _mm256_shuffle_epi8(k->classes.place, classes_a), b = _mm256_shuffle_epi8(k->classes.place, classes_b);
    for (uint32_t i = 0; i < num_fields; i++) {
        unit_bytes field = read_field(&from->field[i], unit);
        a = _mm256_or_si256(a, field.a);
        b = _mm256_or_si256(b, field.b);
    }
    unit_bytes wide = {a, b}, last = {a, b};
    if (out == TRF_OUT_UNDER_PLANE || out == TRF_OUT_WIDE_CODE)
        wide = load_unit(from->wide + 64 * unit);
    if (out == TRF_OUT_BYTE)
        last = read_field(&from->last, unit);
    if (out == TRF_OUT_UNDER_PLANE || out == TRF_OUT_BYTE) {
        a = _mm256_add_epi8(a, _mm256_add_epi8(row_offset, from->col_offset.a));
        b = _mm256_add_epi8(b, _mm256_add_epi8(row_offset, from->col_offset.b));
    }
    __m256i pairs_a[2], pairs_b[2];
    make_pairs(k, out, classes_a, a, wide.a, last.a, pairs_a);
    make_pairs(k, out, classes_b, b, wide.b, last.b, pairs_b);
    for (int i = 0; i < 2; i++) {
        uint16_t *to = row + 8 * (size_t)i * stride;
        __m256i low = _mm256_unpacklo_epi32(pairs_a[i], pairs_b[i]),
                high = _mm256_unpackhi_epi32(pairs_a[i], pairs_b[i]);
        _mm256_storeu_si256((__m256i *)to, _mm256_permute4x64_epi64(low, 0xD8));
        _mm256_storeu_si256((__m256i *)(to + second), _mm256_permute4x64_epi64(high, 0xD8));
    }
}

INLINE void assemble_slab(const assembly_constants *k, const trf_simd_slab *place, const trf_simd_scratch *scratch,
                          uint32_t class_bits, trf_assembly_out out, uint32_t num_fields) {
    const size_t stride = place->stride, second = place->blocks == 2 ? 16 * stride : 16;
    const uint32_t columns = place->blocks == 2 ? 16 : 32; /* of a chunk */
    for (uint32_t chunk = 0; chunk < place->chunks; chunk++) {
        const chunk_sources from = begin_chunk(k, place, scratch, chunk, class_bits, out, num_fields);
        uint16_t *row = place->elements + chunk * columns;
        for (uint32_t unit = 0; unit < TRF_UNITS; unit++, row += stride)
            assemble(k, &from, unit, broadcast_16(scratch->offsets.row[unit]), out, num_fields, row, stride, second);
    }
}

#include "trf_decode_plan_body.h"

static uint32_t decode_slabs(const trf_tile_work *work, const trf_slab_parts *slabs, uint32_t num_slabs,
                             uint16_t *elements, size_t stride) {
    trf_simd_scratch scratch;
    trf_assembly assembly;
    assembly_constants constants;
    trf_assembly_init(&assembly, work);
    make_constants(&assembly, &constants);
    for (uint32_t s = 0; s < num_slabs; s++) {
        const trf_slab_parts *slab = &slabs[s], *previous = s ? slab - 1 : NULL;
        if (!decode_symbols(work, slab, &scratch))
            return s;
        trf_assembly_place_offsets(&assembly, slab, previous, &scratch.offsets);
        trf_simd_slab place = trf_simd_slab_begin(work->view, slab, &scratch, elements, stride);
        assemble_by_plan(&assembly, &constants, &place, &scratch);
        trf_simd_slab_finish(&place, slab, elements, stride);
    }
    return num_slabs;
}

trf_status trf_decode_tile_avx2(const trf_blob_view *view, const trf_decode_table *table, uint64_t tile,
                                const uint8_t *tile_bytes, uint16_t *elements, size_t stride, trf_error *err) {
    return trf_decode_tile_with(decode_slabs, view, table, tile, tile_bytes, elements, stride, err);
}
