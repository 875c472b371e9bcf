/* SPDX-License-Identifier: Apache-2.0 */
/* The validator of packed FP8 layers, and what heads are made of: sizes, the scales that fit, and each fault of a head,
 * a line or a tile with its place. unit.packed8 has the layout itself. */
#include "common/expect.h"
#include "common/packed8_layer.h"
#include "common/run_suite.h"
#include "trf_number_formats.h"
#include "trf_packed8_reader.h"
#include "trf_packed8_validate.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* 70x1100 weights with a zero first: two bands of two lines, of 32 and 3 tiles. The first line has five records: tile 0
 * has two, tile 3 one, tiles 30 and 31 one each. */
static packed8_layer make_layer(int in_turns) {
    test_rng rng = {21 + (uint64_t)in_turns};
    packed8_layer layer = packed8_layer_make(&rng, 70, 1100, 128, 128, SCALES_F32);
    trf_error err;
    if (in_turns)
        packed8_layer_take_turns(&layer, &rng, SCALES_F32);
    layer.codes[0] = 0;
    packed8_layer_define_weights(&layer);
    static const uint32_t at[] = {1, 1103, 100, 961, 1000};
    for (uint32_t i = 0; i < 5; i++)
        layer.weights[at[i]] ^= 0x4000;
    ck_assert_msg(packed8_layer_pack(&layer, 1, &err) == TRF_OK, "%s", err.message);
    return layer;
}

static trf_status validate(const packed8_layer *layer, trf_error *err) {
    trf_packed8_view view;
    return trf_validate_packed8(layer->packed, layer->head.common.buffer_bytes, &view, err);
}

/* Puts a number over bytes of the buffer, expects a status and the place that goes with it, and puts back what was
 * there. The head's checksum is made to fit. */
static void try_bytes(packed8_layer *layer, uint64_t at, size_t bytes, uint64_t value, trf_status status,
                      uint64_t offset) {
    trf_packed8_head *head = (trf_packed8_head *)layer->packed;
    trf_error err = {.offset = 0};
    uint64_t before = 0;
    memcpy(&before, layer->packed + at, bytes);
    memcpy(layer->packed + at, &value, bytes);
    head->common.checksum = trf_layout_head_checksum(&head->common);
    const trf_status is = validate(layer, &err);
    ck_assert_msg(is == status && (is == TRF_OK || err.offset == offset), "byte %llu: %s at %llu, not %s at %llu: %s",
                  (unsigned long long)at, trf_status_name(is), (unsigned long long)err.offset, trf_status_name(status),
                  (unsigned long long)offset, err.message);
    memcpy(layer->packed + at, &before, bytes);
    head->common.checksum = trf_layout_head_checksum(&head->common);
}

static void try_word(packed8_layer *layer, uint64_t at, uint32_t value, uint64_t offset) {
    try_bytes(layer, at, 4, value, TRF_ERR_TILE, offset);
}

static uint32_t word_at(const packed8_layer *layer, uint64_t at) {
    uint32_t word;
    memcpy(&word, layer->packed + at, 4);
    return word;
}

/* ---- heads ---- */

/* But for the data checksum, which trf_device_layer_verify compares. */
START_TEST(every_bit_of_a_head_matters) {
    packed8_layer layer = make_layer(0);
    for (uint32_t bit = 0; bit < 8 * TRF_DATA_CHECKSUM_OFFSET; bit++) {
        layer.packed[bit / 8] ^= (uint8_t)(1 << bit % 8);
        EXPECT(validate(&layer, NULL) != TRF_OK);
        layer.packed[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    ck_assert_int_eq(validate(&layer, NULL), TRF_OK);
    packed8_layer_free(&layer);
}
END_TEST

#define FIELD(name) offsetof(trf_packed8_head, name), sizeof((trf_packed8_head *)0)->name

START_TEST(fields_are_checked) {
    packed8_layer layer = make_layer(0);
    trf_packed8_head *head = (trf_packed8_head *)layer.packed;
    const uint64_t none = offsetof(trf_packed8_head, rows);
    try_bytes(&layer, FIELD(codec), TRF_CODEC_E5M2, TRF_ERR_HEADER, offsetof(trf_packed8_head, codec));
    try_bytes(&layer, FIELD(codec), TRF_CODEC_FP16, TRF_ERR_HEADER, offsetof(trf_packed8_head, codec));
    try_bytes(&layer, FIELD(rows), 0, TRF_ERR_HEADER, none);
    try_bytes(&layer, FIELD(rows), 0x80000000, TRF_ERR_HEADER, none);
    try_bytes(&layer, FIELD(rows), 129, TRF_ERR_HEADER, offsetof(trf_packed8_head, padded_rows));
    try_bytes(&layer, FIELD(rows), 64, TRF_ERR_HEADER, offsetof(trf_packed8_head, padded_rows));
    try_bytes(&layer, FIELD(cols), 1121, TRF_ERR_HEADER, offsetof(trf_packed8_head, padded_cols));
    try_bytes(&layer, FIELD(cols), 1088, TRF_ERR_HEADER, offsetof(trf_packed8_head, padded_cols));
    try_bytes(&layer, FIELD(cols), 0, TRF_ERR_HEADER, offsetof(trf_packed8_head, cols));
    try_bytes(&layer, none, 8, TRF_PACKED_MAX_SIDE, TRF_ERR_HEADER, none + 4); /* columns: 0 */
    try_bytes(&layer, FIELD(cols), 0x80000000, TRF_ERR_HEADER, offsetof(trf_packed8_head, cols));
#define OFF_BY(name, step)                                                                                             \
    try_bytes(&layer, FIELD(name), head->name + (uint64_t)(step), TRF_ERR_HEADER, offsetof(trf_packed8_head, name))
    for (int step = -1; step <= 1; step += 2) {
        OFF_BY(padded_rows, step);
        OFF_BY(padded_rows, 64 * step);
        OFF_BY(padded_cols, step);
        OFF_BY(padded_cols, 32 * step);
        OFF_BY(num_lines, step);
        OFF_BY(num_tiles, step);
        OFF_BY(lines_offset, step);
        OFF_BY(lines_offset, 256 * step);
        OFF_BY(tiles_offset, step);
        OFF_BY(tiles_offset, 256 * step);
    }
    OFF_BY(common.buffer_bytes, -1);
    try_bytes(&layer, FIELD(lines_offset), head->tiles_offset, TRF_ERR_HEADER,
              offsetof(trf_packed8_head, lines_offset));
    try_bytes(&layer, FIELD(tiles_offset), head->lines_offset, TRF_ERR_HEADER,
              offsetof(trf_packed8_head, tiles_offset));
    try_bytes(&layer, FIELD(common.buffer_bytes), head->common.buffer_bytes + 1, TRF_ERR_TRUNCATED,
              head->common.buffer_bytes);
    OFF_BY(flags, TRF_PACKED8_IN_TURNS << 1);
    OFF_BY(flags, 1u << 31);
    for (uint32_t i = 0; i < sizeof head->reserved0; i++)
        OFF_BY(reserved0[i], 1);
    for (uint32_t i = 0; i < sizeof head->reserved1; i++)
        OFF_BY(reserved1[i], 1);
    try_bytes(&layer, FIELD(num_records), 4 * 23 + 1, TRF_ERR_HEADER, offsetof(trf_packed8_head, num_records));
    try_bytes(&layer, FIELD(num_records), 4 * 23, TRF_ERR_TILE, offsetof(trf_packed8_head, num_records));
    try_bytes(&layer, FIELD(num_records), 4, TRF_ERR_TILE, offsetof(trf_packed8_head, num_records));
    try_bytes(&layer, FIELD(num_records), 0, TRF_ERR_HEADER, offsetof(trf_packed8_head, flags));
    try_bytes(&layer, FIELD(flags), head->flags ^ TRF_PACKED8_HAS_RECORDS, TRF_ERR_HEADER,
              offsetof(trf_packed8_head, flags));
    try_bytes(&layer, FIELD(flags), head->flags ^ TRF_PACKED8_HAS_LOW, TRF_ERR_TILE, offsetof(trf_packed8_head, flags));
    packed8_layer_free(&layer);
    packed8_layer turns = make_layer(1);
    try_bytes(&turns, FIELD(num_records), 4 * 15 + 1, TRF_ERR_HEADER, offsetof(trf_packed8_head, num_records));
    try_bytes(&turns, FIELD(num_records), 4 * 15, TRF_ERR_TILE, offsetof(trf_packed8_head, num_records));
    packed8_layer_free(&turns);
}
END_TEST

START_TEST(sizes_are_checked) {
    packed8_layer layer = make_layer(0);
    trf_packed8_view view;
    trf_error err;
    const uint64_t bytes = layer.head.common.buffer_bytes;
    ck_assert_int_eq(trf_validate_packed8(layer.packed, 255, &view, &err), TRF_ERR_TRUNCATED);
    ck_assert_int_eq(trf_validate_packed8(layer.packed, bytes - 1, &view, &err), TRF_ERR_TRUNCATED);
    ck_assert_uint_eq(err.offset, bytes - 1);
    ck_assert_int_eq(trf_validate_packed8(layer.packed, bytes + 256, &view, &err), TRF_OK);
    ck_assert(view.packed.bands == 2 && view.packed.tiles_per_band == 35 && view.packed.lines_per_band == 2);
    ck_assert(view.packed.rows == 70 && view.packed.cols == 1100 && view.packed.base == TRF_PACKED_EXPONENT);
    ck_assert(view.flags == layer.head.flags && view.packed.tiles == layer.packed + layer.head.tiles_offset);
    ck_assert_ptr_eq(view.packed.lines, layer.packed + 256);
    ck_assert_int_eq(trf_validate_packed8(layer.packed + 8, bytes, &view, &err), TRF_ERR_ARGUMENT);
    ck_assert_uint_eq(err.offset, 0);
    packed8_layer_free(&layer);
}
END_TEST

/* PACKED.md: tiles of 64x32, lines of 32 tiles of 128 bytes, and tiles of 2048 bytes from a multiple of 256. */
START_TEST(sizes_of_layers) {
    static const uint64_t sides[] = {1, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025, 100000, TRF_PACKED_MAX_SIDE};
    for (uint32_t i = 0; i < 144; i++) {
        const uint64_t rows = sides[i / 12], cols = sides[i % 12], bands = (rows + 63) / 64, across = (cols + 31) / 32;
        const uint64_t lines = bands * ((across + 31) / 32), tiles = (256 + 128 * lines + 255) / 256 * 256;
        trf_packed8_head head = {.num_records = 9};
        EXPECT(trf_size_packed8(rows, cols, &head, NULL) == TRF_OK);
        EXPECT(head.rows == rows && head.cols == cols && head.codec == TRF_CODEC_E4M3 && head.num_records == 9);
        EXPECT(head.padded_rows == 64 * bands && head.padded_cols == 32 * across);
        EXPECT(head.num_lines == lines && head.num_tiles == bands * across && head.lines_offset == 256);
        EXPECT(head.tiles_offset == tiles && head.common.buffer_bytes == tiles + 2048 * bands * across);
        head.flags = i % 8;
        const uint8_t *const memory = (const uint8_t *)&head;
        const trf_packed8_view view = trf_packed8_view_of(&head, memory);
        EXPECT((const uint8_t *)view.packed.lines == memory + 256 && view.packed.tiles == memory + tiles);
        EXPECT(view.packed.rows == rows && view.packed.cols == cols && view.packed.bands == bands);
        EXPECT(view.packed.tiles_per_band == across && view.packed.lines_per_band == (across + 31) / 32);
        EXPECT(view.packed.base == 112 && view.packed.zeroing == 0 && view.flags == i % 8);
        EXPECT(!view.packed.row_offsets && !view.packed.stored && view.packed.num_stored == 0);
    }
    static const uint64_t bad[][2] = {{0, 1}, {1, 0}, {1ull + TRF_PACKED_MAX_SIDE, 1}, {1, 1ull + TRF_PACKED_MAX_SIDE}};
    for (uint32_t i = 0; i < 4; i++) {
        trf_packed8_head head = {0};
        trf_error err;
        ck_assert_int_eq(trf_size_packed8(bad[i][0], bad[i][1], &head, &err), TRF_ERR_ARGUMENT);
        ck_assert_uint_eq(head.rows, 0);
    }
}
END_TEST

START_TEST(scales_that_fit) {
    static const struct {
        uint32_t granularity, size;
        uint64_t row, rows, col, cols;
        uint32_t tile_rows;
        int fits;
    } cases[] = {
        {TRF_GRANULARITY_NONE, 0, 3, 5, 7, 9, 64, 1},
        {TRF_GRANULARITY_TENSOR, 0, 3, 5, 7, 9, 64, 1},
        {TRF_GRANULARITY_CHANNEL, 0, 0, 64, 0, 128, 64, 0},
        {TRF_GRANULARITY_SCALE_GROUP, 128, 0, 64, 0, 128, 64, 0},
        {TRF_GRANULARITY_SCALE_BLOCK, 128, 0, 999, 0, 999, 64, 1},
        {TRF_GRANULARITY_SCALE_BLOCK, 128, 64, 999, 128, 999, 64, 1},
        {TRF_GRANULARITY_SCALE_BLOCK, 128, 64, 999, 128, 999, 128, 0},
        {TRF_GRANULARITY_SCALE_BLOCK, 128, 32, 999, 0, 128, 64, 0},
        {TRF_GRANULARITY_SCALE_BLOCK, 128, 32, 96, 0, 128, 64, 1}, /* inside one block */
        {TRF_GRANULARITY_SCALE_BLOCK, 128, 32, 97, 0, 128, 64, 0},
        {TRF_GRANULARITY_SCALE_BLOCK, 128, 0, 64, 64, 64, 64, 1},
        {TRF_GRANULARITY_SCALE_BLOCK, 128, 0, 64, 64, 65, 64, 0},
        {TRF_GRANULARITY_SCALE_BLOCK, 64, 0, 64, 0, 65, 64, 0},
        {TRF_GRANULARITY_SCALE_BLOCK, 96, 0, 97, 0, 9, 64, 0},
        {TRF_GRANULARITY_SCALE_BLOCK, 96, 0, 96, 0, 96, 64, 1},
    };
    const trf_packed8_part part = {cases[_i].granularity, cases[_i].size, cases[_i].row,
                                   cases[_i].rows,        cases[_i].col,  cases[_i].cols};
    ck_assert_int_eq(trf_packed8_scales_fit(&part, cases[_i].tile_rows), cases[_i].fits);
}
END_TEST

static float f32_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* 2^-100 to below 2^7, and zero. */
START_TEST(scales_with_constants) {
    const uint32_t least = 27u << 23, end = 134u << 23;
    ck_assert(trf_packed8_has_pair(0.0f) && !trf_packed8_has_pair(-0.0f));
    ck_assert(trf_packed8_has_pair(f32_of(least)) && !trf_packed8_has_pair(f32_of(least - 1)));
    ck_assert(trf_packed8_has_pair(f32_of(end - 1)) && !trf_packed8_has_pair(f32_of(end)));
    ck_assert(!trf_packed8_has_pair(-1.0f) && !trf_packed8_has_pair(INFINITY) && !trf_packed8_has_pair(NAN));
    ck_assert(!trf_packed8_has_pair(f32_of(1)));
}
END_TEST

START_TEST(what_it_was_packed_from) {
    packed8_layer layer = make_layer(0);
    trf_header coded = {.magic = TRF_MAGIC, .version = TRF_FORMAT_VERSION, .rows = 9, .cols = 8, .num_tile_rows = 1};
    coded.num_tile_cols = 1;
    const trf_layer_info from = {.stored_tiles = 77, .exceptions = 88};
    trf_error err;
    for (uint32_t codec = 1; codec <= 5; codec++)
        for (uint32_t dtype = 1; dtype <= 6; dtype++) {
            trf_layer_info info;
            coded.codec = (uint8_t)codec, coded.source_dtype = (uint8_t)dtype;
            trf_packed8_head_set_coded(&layer.head, &coded, &from);
            const int good = (codec == TRF_CODEC_BF16 && dtype == TRF_DTYPE_BF16) ||
                             (codec == TRF_CODEC_E4M3 && dtype == TRF_DTYPE_F8_E4M3);
            EXPECT(trf_check_packed8_head(&layer.head, layer.head.common.buffer_bytes, &err) == TRF_OK);
            EXPECT(trf_packed8_head_get_info(&layer.head, &info, &err) == (good ? TRF_OK : TRF_ERR_HEADER));
            EXPECT(good ? info.rows == 70 && info.cols == 1100 && info.stored_tiles == 77 && info.exceptions == 88
                        : err.offset == offsetof(trf_packed8_head, coded_header));
        }
    trf_layer_info info;
    coded.codec = TRF_CODEC_BF16, coded.source_dtype = TRF_DTYPE_BF16, coded.version++;
    trf_packed8_head_set_coded(&layer.head, &coded, &from);
    ck_assert_int_eq(trf_packed8_head_get_info(&layer.head, &info, &err), TRF_ERR_HEADER);
    coded.version--, coded.magic++;
    trf_packed8_head_set_coded(&layer.head, &coded, &from);
    ck_assert_int_eq(trf_packed8_head_get_info(&layer.head, &info, &err), TRF_ERR_HEADER);
    packed8_layer_free(&layer);
}
END_TEST

/* ---- lines ---- */

/* loop: in turns or not. */
START_TEST(records_are_checked) {
    packed8_layer layer = make_layer(_i);
    const uint64_t line = 256, mask_at = line + 4 * TRF_PACKED8_MASK_WORD;
    const uint32_t mask = word_at(&layer, mask_at), most = trf_packed8_max_records(layer.head.flags);
    ck_assert_uint_eq(mask, 1u | 1u << 3 | 1u << 30 | 1u << 31);
    for (uint32_t i = 1; i < 5; i++)
        try_word(&layer, line + 4 * i, word_at(&layer, line + 4 * (i - 1)), line + 4 * i); /* the same place twice */
    try_word(&layer, line, 0xFFFF0000, line + 4);                                          /* the next one is below */
    try_word(&layer, line + 8, (word_at(&layer, line + 8) & 0x7FFFFFF) | 2u << 27, line + 8); /* no tile of the mask */
    for (uint32_t i = 5; i < most; i++)
        try_word(&layer, line + 4 * i, 1, line + 4 * i); /* unused */
    for (uint32_t tile = 0; tile < 32; tile++) {
        const uint32_t other = mask ^ 1u << tile;
        const uint64_t record = line + 4 * (tile == 0 ? 0 : tile == 3 ? 2 : tile == 30 ? 3 : 4);
        try_word(&layer, mask_at, other, mask >> tile & 1 ? record : mask_at);
    }
    /* Three tiles, and no record: the first word then counts as one, of tile 0. */
    const uint64_t second = line + 128 + 4 * TRF_PACKED8_MASK_WORD;
    for (uint32_t tile = 0; tile < 32; tile++)
        try_word(&layer, second, 1u << tile,
                 tile >= 3 ? second
                 : tile    ? line + 128
                           : offsetof(trf_packed8_head, num_records));
    packed8_layer_free(&layer);
}
END_TEST

/* Pairs of constants: the first 27 to 134, in exponents with the bias 120, the second one smaller. */
START_TEST(constants_are_checked) {
    packed8_layer layer = make_layer(_i);
    const uint32_t least = (27 + 120) << 7, most = (134 + 120) << 7;
    for (uint32_t word = _i ? TRF_PACKED8_SECOND_PAIRS_WORD : TRF_PACKED8_PAIRS_WORD; word < 32; word++) {
        const uint64_t at = 256 + 4 * word, last = at + 128;
        if (word == TRF_PACKED8_MASK_WORD)
            continue;
        try_word(&layer, at, least - 1, at);
        try_bytes(&layer, at, 4, least, TRF_OK, 0);
        try_bytes(&layer, at, 4, most, TRF_OK, 0);
        try_word(&layer, at, most + 1, at);
        try_word(&layer, at, least | least << 16, at);
        try_bytes(&layer, at, 4, least | (least - 1) << 16, TRF_OK, 0);
        const int is_first = word == TRF_PACKED8_PAIRS_WORD || word == TRF_PACKED8_SECOND_PAIRS_WORD;
        try_bytes(&layer, last, 4, least, is_first ? TRF_OK : TRF_ERR_TILE, last); /* the second line has three tiles */
    }
    packed8_layer_free(&layer);
}
END_TEST

START_TEST(bytes_behind_lines) {
    test_rng rng = {3};
    packed8_layer layer = packed8_layer_make(&rng, 10, 10, 16, 16, SCALES_BF16);
    trf_error err;
    ck_assert_int_eq(packed8_layer_pack(&layer, 0, &err), TRF_OK);
    ck_assert_uint_eq(layer.head.tiles_offset, 512);
    for (uint64_t at = 256 + 128; at < 512; at++)
        try_bytes(&layer, at, 1, 0x80, TRF_ERR_TILE, at);
    packed8_layer_free(&layer);
}
END_TEST

/* ---- each place ---- */

/* A layer of zeros but for `records` weights (2i, 44i), each in a tile of its own, which are no codes. */
static packed8_layer make_zeros(uint32_t rows, uint32_t cols, uint32_t records, int in_turns) {
    test_rng rng = {5};
    packed8_layer layer = packed8_layer_make(&rng, rows, cols, 128, 128, SCALES_F32);
    trf_error err;
    if (in_turns)
        packed8_layer_take_turns(&layer, &rng, SCALES_F32);
    memset(layer.codes, 0, (size_t)rows * cols);
    packed8_layer_define_weights(&layer);
    for (uint32_t i = 0; i < records; i++)
        layer.weights[(size_t)(2 * i) * cols + 44 * i] = 0x7F80;
    ck_assert_msg(packed8_layer_pack(&layer, 1, &err) == TRF_OK, "%s", err.message);
    ck_assert_uint_eq(layer.head.num_records, records);
    return layer;
}

/* Expects that the layer is valid, or that the validator says so much of byte `at`. says: NULL if it is valid. */
static void expect_verdict(const packed8_layer *layer, uint64_t at, const char *says) {
    trf_error err = {.offset = 0};
    const trf_status status = validate(layer, &err);
    const int is_right =
        says ? status == TRF_ERR_TILE && err.offset == at && strstr(err.message, says) != NULL : status == TRF_OK;
    if (!is_right)
        ck_abort_msg("%s at %llu: '%s', not '%s' at %llu", trf_status_name(status), (unsigned long long)err.offset,
                     err.message, says ? says : "", (unsigned long long)at);
}

/* Where the two words lie that have a weight's code. */
static uint64_t words_of(const packed8_layer *layer, trf_packed_place place) {
    const uint64_t tile = (uint64_t)place.band * (layer->head.padded_cols / TRF_PACKED_TILE_COLS) + place.tile;
    return layer->head.tiles_offset + tile * TRF_PACKED8_TILE_BYTES +
           trf_packed8_codes_offset(place.slab, place.lane, place.step);
}

/* Gives a weight another code meanwhile. says: as expect_verdict has it. */
static void try_code(packed8_layer *layer, trf_packed_place place, uint32_t code, const char *says) {
    const uint64_t at = words_of(layer, place);
    uint32_t before[2], words[2], a[4];
    memcpy(before, layer->packed + at, sizeof before);
    trf_spread_packed8(a, before[0], before[1]);
    a[place.reg] = (a[place.reg] & 0xFFFF0000u >> 16 * place.half) | trf_packed8_spread_code(code) << 16 * place.half;
    trf_unspread_packed8(a, words);
    memcpy(layer->packed + at, words, sizeof words);
    expect_verdict(layer, at, says);
    memcpy(layer->packed + at, before, sizeof before);
}

/* Whether a place is tried: all of a single tile, in four tiles their edges and the layer's, and in many the corners of
 * the last tiles of bands and of those before them. */
static int is_tried(const packed8_layer *layer, uint32_t row, uint32_t col) {
    const uint64_t tiles = layer->head.num_tiles;
    const int row_edge = row % 64 == 0 || row % 64 == 63 || row == layer->rows || row + 1 == layer->rows;
    const int col_edge = col % 32 == 0 || col % 32 == 31 || col == layer->cols || col + 1 == layer->cols;
    return tiles == 1 || (tiles <= 4 ? row_edge || col_edge : row_edge && col_edge && col + 64 >= layer->cols);
}

static const uint32_t kShapes[][2] = {{45, 27}, {1, 1}, {64, 32}, {77, 43}, {109, 1051}};
enum {
    SHAPES = sizeof kShapes / sizeof *kShapes
};

/* Padding has the code 0, neither a number nor a sign, and no place has a NaN. loop: shapes. */
START_TEST(codes_of_every_place) {
    packed8_layer layer = make_zeros(kShapes[_i][0], kShapes[_i][1], 0, _i % 2);
    for (uint32_t row = 0; row < layer.head.padded_rows; row++)
        for (uint32_t col = 0; col < layer.head.padded_cols; col++) {
            if (!is_tried(&layer, row, col))
                continue;
            const trf_packed_place place = trf_packed_place_of(row, col);
            const char *says = row >= layer.rows || col >= layer.cols ? "padded" : NULL;
            try_code(&layer, place, 0x80, says);
            try_code(&layer, place, 1 + (row + col) % 0x7E, says);
            try_code(&layer, place, col % 2 ? 0x7F : 0xFF, "NaN");
        }
    packed8_layer_free(&layer);
}
END_TEST

/* The layer's only record moves to every place: padding has none, and where it is there must be no code. loop: shapes.
 */
START_TEST(records_of_every_place) {
    packed8_layer layer = make_zeros(kShapes[_i][0], kShapes[_i][1], 1, _i % 2);
    const uint32_t lines_per_band = (uint32_t)layer.head.num_lines / (layer.head.padded_rows / TRF_PACKED_TILE_ROWS);
    uint32_t *const lines = (uint32_t *)(layer.packed + layer.head.lines_offset);
    ck_assert_uint_eq(lines[0], 0x7F80);
    lines[0] = lines[TRF_PACKED8_MASK_WORD] = 0;
    for (uint32_t row = 0; row < layer.head.padded_rows; row++)
        for (uint32_t col = 0; col < layer.head.padded_cols; col++) {
            if (!is_tried(&layer, row, col))
                continue;
            trf_packed_place place = trf_packed_place_of(row, col);
            const int is_padding = row >= layer.rows || col >= layer.cols;
            uint32_t *const line = lines + TRF_PACKED_LINE_WORDS * (place.band * lines_per_band + place.tile / 32);
            line[0] = trf_packed_record(place.tile, place.slab, place.step, place.lane, place.reg, place.half, 0x7F80);
            line[TRF_PACKED8_MASK_WORD] = 1u << place.tile % 32;
            expect_verdict(&layer, (uint64_t)((uint8_t *)line - layer.packed), is_padding ? "padded" : NULL);
            if (!is_padding) {
                try_code(&layer, place, row % 2 ? 0x80 : 1, "code of record 0");
                place.half ^= 1;
                try_code(&layer, place, 0x11, (col ^ 1) < layer.cols ? NULL : "padded");
                place.half ^= 1, place.reg ^= 1;
                try_code(&layer, place, 0x11, (row ^ 8) < layer.rows ? NULL : "padded");
            }
            line[0] = line[TRF_PACKED8_MASK_WORD] = 0;
        }
    packed8_layer_free(&layer);
}
END_TEST

/* Each word of each line of two bands: unused ones, masks, and constants of tiles behind the last column. loop: in
 * turns or not, and how many tiles the bands' last lines have. */
START_TEST(words_of_every_line) {
    static const uint32_t lasts[] = {2, 28, 31, 32};
    const uint32_t last = lasts[_i / 2], in_turns = _i % 2;
    packed8_layer layer = make_zeros(77, 1024 + 32 * last - 5, 0, (int)in_turns);
    const uint32_t most = trf_packed8_max_records(layer.head.flags), pair = (120 + 120) << 7;
    for (uint32_t line = 0; line < 4; line++) {
        const uint64_t at = layer.head.lines_offset + 128 * line, tiles = line % 2 ? last : 32;
        for (uint32_t word = 0; word < most; word++) {
            try_word(&layer, at + 4 * word, 1, at + 4 * word);
            try_word(&layer, at + 4 * word, 1u << 31, at + 4 * word);
        }
        for (uint32_t tile = 0; tile < 32; tile++) { /* its first word counts as a record of tile 0 */
            const uint64_t mask = at + 4 * TRF_PACKED8_MASK_WORD;
            try_word(&layer, mask, 1u << tile,
                     tile >= tiles ? mask
                     : tile        ? at
                                   : offsetof(trf_packed8_head, num_records));
        }
        for (uint32_t i = 0; i < 8; i++) {
            const uint64_t first = at + 4 * (TRF_PACKED8_PAIRS_WORD + i),
                           second = at + 4 * (TRF_PACKED8_SECOND_PAIRS_WORD + i);
            const trf_status status = 4 * i < tiles ? TRF_OK : TRF_ERR_TILE;
            try_bytes(&layer, first, 4, pair | 1u << 16, status, first);
            if (in_turns)
                try_bytes(&layer, second, 4, pair | 1u << 16, status, second);
        }
    }
    packed8_layer_free(&layer);
}
END_TEST

/* A line that is full has no unused word, and each record's code is zero. loop: in turns or not. */
START_TEST(a_full_line) {
    const uint32_t most = _i ? 15 : 23;
    packed8_layer layer = make_zeros(64, 1024, most, _i);
    packed8_layer_check(&layer);
    uint32_t *const line = (uint32_t *)(layer.packed + layer.head.lines_offset);
    for (uint32_t i = 0; i < most; i++) {
        char says[32];
        snprintf(says, sizeof says, "code of record %u is", i);
        try_code(&layer, trf_packed_place_of(2 * i, 44 * i), 1 + i, says);
    }
    const uint64_t at = layer.head.lines_offset, last = at + 4 * (most - 1), mask = at + 4 * TRF_PACKED8_MASK_WORD;
    try_word(&layer, last, line[most - 2], last);
    line[TRF_PACKED8_MASK_WORD] &= ~(1u << trf_packed_record_tile(line[most - 1]));
    expect_verdict(&layer, last, "that has none");
    line[most - 1] = 0; /* one record fewer than the head says */
    expect_verdict(&layer, offsetof(trf_packed8_head, num_records), "records, the head says");
    line[TRF_PACKED8_MASK_WORD] |= 1u;
    line[0] = 0, line[1] = 0;
    expect_verdict(&layer, mask, "the tiles of the line's records");
    packed8_layer_free(&layer);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("packed8_validate");
    TCase *tests = tcase_create("packed8_validate");
    tcase_add_test(tests, every_bit_of_a_head_matters);
    tcase_add_test(tests, fields_are_checked);
    tcase_add_test(tests, sizes_are_checked);
    tcase_add_test(tests, sizes_of_layers);
    tcase_add_loop_test(tests, scales_that_fit, 0, 15);
    tcase_add_test(tests, scales_with_constants);
    tcase_add_test(tests, what_it_was_packed_from);
    tcase_add_loop_test(tests, records_are_checked, 0, 2);
    tcase_add_loop_test(tests, constants_are_checked, 0, 2);
    tcase_add_test(tests, bytes_behind_lines);
    tcase_add_loop_test(tests, codes_of_every_place, 0, SHAPES);
    tcase_add_loop_test(tests, records_of_every_place, 0, SHAPES);
    tcase_add_loop_test(tests, words_of_every_line, 0, 8);
    tcase_add_loop_test(tests, a_full_line, 0, 2);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
