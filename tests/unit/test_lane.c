/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that C and CUDA share, one by one, against FORMAT.md's formulas as they stand there: where a lane's
 * weights and bits lie (trf_lane.h), how elements are split (trf_split.h), and the decode step. Then a lane's whole way
 * through a slab (trf_slab_reader.h), in all slabs of the golden files, against the reference decoder. */
#include "common/expect.h"
#include "common/host_view.h"
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "trf_decode.h"
#include "trf_slab_reader.h"
#include "trf_validate.h"

#include <check.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- section 6: places ---- */

/* loop: row blocks B times 16 plus column steps T, less 17. */
START_TEST(places_of_weights) {
    const uint32_t B = 1 + (uint32_t)_i / 16, T = 1 + (uint32_t)_i % 16, n = 8 * B * T;
    const trf_slab_shape shape = {B, T};
    uint8_t met[32][256] = {{0}};
    ck_assert_uint_eq(trf_lane_weights(shape), n);
    for (uint32_t l = 0; l < 32; l++)
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t step = i / (8 * B), block = i / 8 % B, a = i / 2 % 4, half = i % 2;
            const uint32_t span = 2 * (step / 2) + 1 < T ? 8 : 4;
            const uint32_t row = 16 * block + l / 4 + 8 * (a % 2);
            const uint32_t col = 32 * (step / 2) + span * (l % 4) + 4 * (step % 2) + 2 * (a / 2) + half;
            EXPECT(trf_lane_row(shape, l, i) == row && trf_lane_col(shape, l, i) == col);
            EXPECT(row < 16 * B && col < 16 * T && !met[row][col]);
            met[row][col] = 1;
        }
}
END_TEST

/* ---- section 7: raw bits ---- */

START_TEST(places_of_raw_bits) {
    for (uint32_t n = 8; n <= 256; n += 8)
        for (uint32_t r = 0; r <= 13; r++) {
            uint32_t bytes = 0;
            for (uint32_t k = 0; 64 * k < n; k++) {
                const uint32_t m = n - 64 * k < 64 ? n - 64 * k : 64;
                EXPECT(trf_chunk_weights(n, k) == m);
                EXPECT(trf_chunk_offset(r, k) == 256 * r * k);
                for (uint32_t b = 8; b > 0; b /= 2) {
                    const uint32_t Z = (m * b + 31) / 32;
                    EXPECT(trf_plane_lane_words(m, b) == Z && trf_plane_bytes(m, b) == 128 * Z);
                    bytes += r & b ? 128 * Z : 0;
                }
            }
            EXPECT(trf_raw_bytes(r, n) == bytes);
        }
    for (uint32_t Z = 1; Z <= 16; Z++)
        for (uint32_t l = 0; l < 32; l++)
            for (uint32_t z = 0; z < Z; z++)
                EXPECT(trf_plane_word_offset(Z, l, z) == (z / 4 < Z / 4
                                                              ? 512 * (z / 4) + 16 * l + 4 * (z % 4)
                                                              : 512 * (Z / 4) + 4 * (Z % 4) * l + 4 * (z % 4)));
    for (uint32_t b = 1; b <= 8; b *= 2)
        for (uint32_t i = 0; i < 64; i++) {
            EXPECT(trf_plane_word(i, b) == i * b / 32);
            EXPECT(trf_plane_bit(i, b) == b * (i / 4 % (8 / b)) + 8 * (i / 2 % 2) + 16 * (i % 2));
        }
    static const uint32_t holder[4] = {2, 3, 1, 0};
    for (uint32_t i = 0; i < 256; i++)
        EXPECT(trf_sign_holder(i) == i / 4 * 4 + holder[i % 4]);
}
END_TEST

/* ---- section 7: rANS ---- */

START_TEST(the_decode_step) {
    test_rng rng = {7};
    for (int round = 0; round < 20000; round++) {
        const uint32_t p = 9 + test_below(&rng, 4), L = p + test_below(&rng, 17 - p);
        const uint32_t f = 1 + test_below(&rng, (1u << p) - 1), offset = test_below(&rng, f), s = test_below(&rng, 256);
        const uint64_t x = (1ull << L) + test_random(&rng) % ((1ull << (L + 16)) - (1ull << L));
        const uint32_t entry = trf_slot_entry(f, offset, s), word = test_below(&rng, 65536);
        EXPECT(trf_entry_frequency(entry) == f && trf_entry_slot_offset(entry) == offset);
        EXPECT(trf_entry_symbol(entry) == s);
        EXPECT(trf_state_slot((uint32_t)x, p) == x % (1u << p));
        EXPECT(trf_state_advance((uint32_t)x, entry, p) == f * (x >> p) + offset);
        EXPECT(trf_state_needs_word((uint32_t)x, L) == 0 && trf_state_needs_word(1u << L, L) == 0);
        EXPECT(trf_state_needs_word((1u << L) - 1, L) && trf_state_needs_word(0, L));
        const uint32_t small = test_below(&rng, 1u << L);
        EXPECT(trf_state_renormalize(small, word) == (small << 16) + word);
    }
    const uint32_t largest = trf_slot_entry(4095, 4095, 255);
    EXPECT(trf_entry_frequency(largest) == 4095 && trf_entry_slot_offset(largest) == 4095);
    for (uint32_t l = 0; l < 32; l++)
        for (uint32_t words = 0; words < 256; words += 5) {
            EXPECT(trf_lane_first_word(l, 1000, words) == (int32_t)(l < 16 ? 1000 : 1000 + words - 1));
            EXPECT(trf_lane_word_stride(l) == (l < 16 ? 1 : -1));
        }
    EXPECT(trf_lane_first_word(16, 0, 0) == -1);
}
END_TEST

/* ---- section 8: exceptions ---- */

START_TEST(fields_of_exceptions) {
    for (uint32_t i = 0; i < 256; i++)
        for (uint32_t lane = 0; lane < 32; lane++) {
            const uint32_t position = 32 * i + lane, element = (position * 40503) & 0xFFFF;
            const uint32_t exception = position * (1u << 19) + element;
            EXPECT(trf_weight_position(i, lane) == position);
            EXPECT(trf_make_exception(position, element) == exception);
            EXPECT(trf_exception_position(exception) == position && trf_exception_element(exception) == element);
        }
    EXPECT(trf_exception_position(0x7FFFF) == 0 && trf_exception_element(0x7FFFF) == 0xFFFF);
    _Alignas(4) uint8_t streams[TRF_RANS_FIXED_BYTES] = {0};
    memset(streams, 0xEE, sizeof streams);
    streams[80] = 0x34, streams[81] = 0x12;
    EXPECT(trf_rans_exception_count(streams) == 0x1234);
}
END_TEST

/* ---- sections 1 and 5: elements ---- */

typedef struct format_row {
    uint32_t codec, bits, exponent_bits, mantissa_bits, max_exponent;
} format_row;
static const format_row kFormats[] = {{1, 16, 8, 7, 255}, {2, 16, 5, 10, 31}, {3, 8, 4, 3, 15}, {4, 8, 5, 2, 31}};

/* Appends the lowest `count` bits of `value` to the right of what is there. */
static uint32_t append(uint32_t bits, uint32_t value, uint32_t count) {
    return bits << count | (value & ((1u << count) - 1));
}

/* R of section 5's table, s, e and M being the sign, the two low bits of C, and the mantissa. */
static uint32_t raw_by_table(uint32_t codec, int quads, uint32_t s, uint32_t e, uint32_t M) {
    uint32_t R = 0;
    if (codec == 3 && quads)
        return append(append(append(M & 1, s, 1), e, 2), M >> 1, 2);
    if (quads)
        R = e;
    if (codec == 1)
        return append(append(R, s, 1), M, 7);
    if (codec == 2)
        return append(append(append(R, M >> 7, 3), s, 1), M, 7);
    return append(append(R, M, codec == 3 ? 3 : 2), s, 1);
}

/* loop: codecs of floats, with quads and with pairs. */
START_TEST(elements_are_split_and_joined) {
    const format_row *format = &kFormats[_i / 2];
    const uint32_t codec = format->codec, class_bits = _i % 2 ? 2 : 4;
    const trf_float_fields fields = trf_fields_of(codec);
    static const uint32_t pairs_bits[] = {8, 11, 4, 3}, quads_bits[] = {10, 13, 6, 5};
    const uint32_t r = (_i % 2 ? quads_bits : pairs_bits)[_i / 2];
    EXPECT(fields.mantissa_bits == format->mantissa_bits && fields.max_exponent == format->max_exponent);
    EXPECT(fields.sign_bit == format->bits - 1);
    EXPECT(fields.max_ordinary_exponent == format->max_exponent - (codec != 3));
    EXPECT(trf_float_raw_bits(codec, class_bits) == r && trf_codec_is_float(codec));
    for (uint32_t element = 0; element < 1u << format->bits; element++) {
        const uint32_t M = element & ((1u << format->mantissa_bits) - 1), s = element >> (format->bits - 1);
        const uint32_t E = element >> format->mantissa_bits & ((1u << format->exponent_bits) - 1);
        EXPECT(trf_element_exponent(fields, element) == E);
        EXPECT(trf_is_exception_always(codec, element) == (codec == 3 && E == 15 && M == 7));
        for (uint32_t e = 0; e < 4; e++) {
            const uint32_t R = raw_by_table(codec, class_bits == 2, s, e, M);
            EXPECT(trf_float_raw(codec, class_bits, element, e) == R && R < 1u << r);
            EXPECT(class_bits == 4 || trf_raw_low2(codec, R) == e);
            EXPECT(trf_float_element(codec, class_bits, R, E) == element);
            EXPECT((R >> trf_raw_sign_bit(codec, class_bits) & 1) == s);
        }
    }
}
END_TEST

START_TEST(kinds_of_layers) {
    static const int8_t offsets[1];
    for (uint32_t codec = 1; codec <= 5; codec++)
        for (uint32_t dtype = 1; dtype <= 6; dtype++) {
            const int scaled = codec == TRF_CODEC_E4M3 && dtype == TRF_DTYPE_BF16;
            EXPECT(trf_is_scaled_fp8(codec, dtype) == scaled);
            EXPECT(trf_element_codec(codec, dtype) == (scaled ? (uint32_t)TRF_CODEC_BF16 : codec));
            EXPECT(trf_element_row_offsets(codec, dtype, offsets) == (scaled ? NULL : offsets));
        }
    for (uint32_t version = 0; version < 8; version++)
        EXPECT(trf_is_known_version(version) == (version == 4 || version == 5));
    const trf_float_fields of_int = trf_fields_of(TRF_CODEC_INT);
    EXPECT(of_int.mantissa_bits == 0 && of_int.max_exponent == 0 && of_int.sign_bit == 0);
    EXPECT(!trf_codec_is_float(TRF_CODEC_INT) && trf_float_raw_bits(TRF_CODEC_INT, 2) == 0);
    EXPECT(!trf_is_exception_always(TRF_CODEC_E5M2, 0x7F) && trf_is_exception_always(TRF_CODEC_E4M3, 0xFF));
}
END_TEST

/* ---- a lane's way through a slab ---- */

static uint8_t *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s", path);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    void *bytes;
    ck_assert_int_eq(posix_memalign(&bytes, 16, *size), 0);
    ck_assert_uint_eq(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

/* A slab by itself: copies of its raw bits and its streams in memory of exactly their sizes, which a sanitizer sees. */
typedef struct lone_slab {
    trf_slab_reader reader;
    uint8_t *raw, *streams;
    uint32_t rans_bytes;
} lone_slab;

static void *copy_of(const void *bytes, size_t size) {
    void *copy;
    ck_assert_int_eq(posix_memalign(&copy, 16, size ? size : 1), 0);
    memcpy(copy, bytes, size);
    return copy;
}

static lone_slab open_slab(const uint8_t *tile, const trf_slab_location *location, uint32_t raw_bits) {
    lone_slab slab;
    slab.rans_bytes = location->end - location->rans_streams;
    slab.raw = copy_of(tile + location->raw, trf_raw_bytes(raw_bits, trf_lane_weights(location->shape)));
    slab.streams = copy_of(tile + location->rans_streams, slab.rans_bytes);
    ck_assert(trf_slab_reader_open(&slab.reader, slab.raw, slab.streams, slab.rans_bytes, location->shape));
    const uint32_t contents = slab.reader.words + 2 * slab.reader.num_words;
    trf_slab_reader again;
    EXPECT(trf_slab_reader_open(&again, slab.raw, slab.streams, contents, location->shape));
    EXPECT(!trf_slab_reader_open(&again, slab.raw, slab.streams, contents - 1, location->shape));
    EXPECT(!trf_slab_reader_open(&again, slab.raw, slab.streams, TRF_RANS_FIXED_BYTES - 1, location->shape));
    EXPECT(again.num_words == 0 && again.num_exceptions == 0 && again.words == TRF_RANS_FIXED_BYTES);
    return slab;
}

static void close_slab(lone_slab *slab) {
    free(slab->raw);
    free(slab->streams);
}

/* Decodes a slab's elements [32][256] as 32 lanes do, in pieces of `piece` weights. taken: the words that each
 * took. @return the slab's verdict. */
static int decode_slab(const trf_device_view *view, const lone_slab *slab, trf_slab_place place, uint32_t piece,
                       uint16_t *elements, uint32_t taken[32]) {
    trf_lane_reader readers[32];
    for (uint32_t lane = 0; lane < 32; lane++)
        readers[lane] = trf_lane_reader_open(&slab->reader, lane, view->state_bits);
    for (uint32_t first = 0; first < slab->reader.weights; first += piece) {
        const uint32_t left = slab->reader.weights - first, count = left < piece ? left : piece;
        const uint32_t first_col = first / (8 * slab->reader.shape.row_blocks) / 2 * 32; /* of two steps */
        uint16_t *const to = elements + first_col, others[256] = {0};
        for (uint32_t lane = 0; lane < 32; lane++)
            trf_lane_decode(view, view->class_value, &slab->reader, &readers[lane], lane, place, first, count, to, 256,
                            first_col);
        const uint32_t begin = trf_slab_exceptions_below(&slab->reader, first),
                       end = trf_slab_exceptions_below(&slab->reader, first + count);
        for (uint32_t e = 0; e < slab->reader.num_exceptions; e++) {
            const uint32_t index = trf_exception_position(trf_slab_exception(&slab->reader, e)) / 32;
            const int is_inside = index >= first && index < first + count;
            EXPECT((e >= begin && e < end) == is_inside);
            if (is_inside)
                trf_slab_write_exception(&slab->reader, e, first, count, to, 256, first_col);
            else
                trf_slab_write_exception(&slab->reader, e, first, count, others, 0, 0);
        }
        for (uint32_t col = 0; col < 256; col++)
            EXPECT(others[col] == 0);
    }
    int good = 1;
    for (uint32_t lane = 0; lane < 32; lane++) {
        taken[lane] = readers[lane].taken;
        good &=
            trf_lane_reader_verdict(&readers[lane], &slab->reader, lane, readers[lane ^ 16].taken, view->state_bits);
    }
    return good;
}

/* Puts a word between those that the two lanes of a pair take, one pair after the other, where the slab has room for
 * it: all states end right, but a word is left. */
static void check_words_left(const trf_blob_view *blob, const trf_decode_table *table, uint64_t t, uint8_t *tile,
                             const trf_slab_location *location, const lone_slab *slab, const uint32_t taken[32]) {
    static uint16_t elements[256 * 256];
    const uint32_t words = location->rans_streams + slab->reader.words, used = 2 * slab->reader.num_words;
    if (words + used + 2 > location->end)
        return;
    for (uint32_t pair = 0, begin = words; pair < 16; begin += 2u * tile[location->rans_streams + 64 + pair++]) {
        const uint32_t at = begin + 2 * taken[pair], moved = words + used - at;
        if (tile[location->rans_streams + 64 + pair] == 255 || (test_quick() && pair % 5))
            continue;
        memmove(tile + at + 2, tile + at, moved);
        tile[location->rans_streams + 64 + pair]++;
        EXPECT(trf_decode_tile_ref(blob, table, t, tile, elements, 256, NULL) == TRF_ERR_RANS);
        EXPECT(trf_decode_tile_best()(blob, table, t, tile, elements, 256, NULL) == TRF_ERR_RANS);
        tile[location->rans_streams + 64 + pair]--;
        memmove(tile + at, tile + at + 2, moved);
        memset(tile + words + used, 0, 2);
    }
}

/* A tile whose last slab has no rANS words, in memory that ends there: lanes that want one do not read on. */
static void check_words_missing(const trf_blob_view *blob, const trf_decode_table *table, uint64_t t,
                                const uint8_t *tile, const trf_slab_location *last, uint32_t exceptions) {
    static uint16_t elements[256 * 256];
    const size_t size = last->rans_streams + TRF_RANS_FIXED_BYTES + 4 * (size_t)exceptions;
    uint8_t *cut = copy_of(tile, size);
    memset(cut + last->rans_streams + TRF_STATES_BYTES, 0, TRF_LANE_PAIRS);
    EXPECT(trf_decode_tile_ref(blob, table, t, cut, elements, 256, NULL) == TRF_ERR_RANS);
    free(cut);
}

/* Compares a tile's slabs with the reference decoder's elements. */
static void check_tile(const trf_blob_view *blob, const trf_device_view *view, uint8_t *bytes, uint64_t t) {
    static trf_decode_table table;
    static uint16_t expected[256 * 256], changed[256 * 256], elements[32 * 256];
    uint8_t *tile = bytes + blob->tiles[t].data_offset;
    const trf_tile_shape shape = trf_tile_shape_of(&blob->header, t, blob->tiles[t].coding);
    trf_decode_table_init(&table, blob);
    ck_assert_int_eq(trf_decode_tile_ref(blob, &table, t, tile, expected, 256, NULL), TRF_OK);
    for (uint32_t s = 0; s < shape.num_slabs; s++) {
        const trf_slab_location location = trf_locate_slab(&shape, tile, s, blob->header.raw_bits);
        const uint32_t row = trf_slab_row(&shape, s), col = trf_slab_col(&shape, s);
        const trf_slab_place place = {shape.row + row, shape.col + col, blob->tiles[t].predictor_mode};
        uint32_t taken[32], others[32];
        lone_slab slab = open_slab(tile, &location, blob->header.raw_bits);
        for (uint32_t piece = 8; piece <= 256; piece *= test_quick() ? 32 : 4) {
            memset(elements, 0xEE, sizeof elements);
            EXPECT(decode_slab(view, &slab, place, piece, elements, taken));
            for (uint32_t i = 0; i < 16 * location.shape.row_blocks; i++)
                EXPECT(memcmp(elements + 256 * i, expected + 256 * (row + i) + col, 32 * location.shape.steps) == 0);
        }
        if (!test_quick() || s + 1 == shape.num_slabs)
            check_words_left(blob, &table, t, tile, &location, &slab, taken);
        const int is_whole = shape.coded_rows == shape.rows && shape.coded_cols == shape.cols;
        if (s + 1 == shape.num_slabs && is_whole && slab.reader.num_words)
            check_words_missing(blob, &table, t, tile, &location, slab.reader.num_exceptions);
        /* Another start state ends wrong, unless that only changed a symbol: the reference decoder knows. */
        tile[location.rans_streams + 2 * (s % 32)] ^= 1;
        slab.streams[2 * (s % 32)] ^= 1;
        const trf_status status = trf_decode_tile_ref(blob, &table, t, tile, changed, 256, NULL);
        EXPECT(decode_slab(view, &slab, place, 256, elements, others) == (status == TRF_OK));
        slab.streams[2 * (s % 32)] ^= 1;
        tile[location.rans_streams + 2 * (s % 32)] ^= 1;
        uint32_t pair = 0;
        while (pair < 16 && !slab.streams[64 + pair])
            pair++;
        if (pair < 16) { /* a word that the slab does not have */
            slab.streams[64 + pair]--;
            slab.reader.num_words--;
            EXPECT(!decode_slab(view, &slab, place, 256, elements, others));
        }
        close_slab(&slab);
    }
}

/* Slabs of all codecs, shapes and sets of planes, with and without exceptions, offsets and scales. */
START_TEST(slabs_of_golden_files) {
    glob_t files;
    ck_assert_int_eq(glob(TRF_TEST_DATA_DIR "/golden/*.trf", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        size_t size;
        uint8_t *bytes = read_file(files.gl_pathv[i], &size);
        trf_blob_view blob;
        ck_assert_int_eq(trf_blob_validate(bytes, size, &blob, NULL), TRF_OK);
        host_view *host = host_view_make(&blob, bytes, size);
        for (uint64_t t = 0; t < blob.num_tiles; t++)
            check_tile(&blob, &host->view, bytes, t);
        host_view_free(host);
        free(bytes);
    }
    globfree(&files);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("lane");
    TCase *tests = tcase_create("lane");
    tcase_add_loop_test(tests, places_of_weights, 0, 32);
    tcase_add_test(tests, places_of_raw_bits);
    tcase_add_test(tests, the_decode_step);
    tcase_add_test(tests, fields_of_exceptions);
    tcase_add_loop_test(tests, elements_are_split_and_joined, 0, 8);
    tcase_add_test(tests, kinds_of_layers);
    tcase_add_test(tests, slabs_of_golden_files);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
