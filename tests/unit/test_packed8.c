/* SPDX-License-Identifier: Apache-2.0 */
/* Packed FP8 layers: the constants of every class of scales with every code; words; packing and unpacking of any shape,
 * with records; what is refused; what the validator finds. */
#include "common/expect.h"
#include "common/packed8_layer.h"
#include "common/run_suite.h"
#include "trf_packed8_reader.h"
#include "trf_packed8_validate.h"
#include "trf_unpack8.h"

#include <check.h>
#include <math.h>

/* ---- constants ---- */

/* What the pair makes of the codes that are found for two weights, which must be codes of numbers. */
static uint32_t find_and_form(uint32_t weights, uint32_t pair) {
    const uint32_t codes = trf_packed8_nearest_codes(weights, trf_packed8_inverse(pair));
    EXPECT((codes & ~TRF_PACKED8_CODE_MASK) == 0 && (codes & 0x7F0) < 0x7F0 && (codes >> 16 & 0x7F0) < 0x7F0);
    return trf_packed8_fma(codes, trf_packed8_high(pair), trf_packed8_mul(codes, trf_packed8_low(pair)));
}

static void expect_all_codes(float scale) {
    uint32_t pair;
    if (!trf_packed8_find_pair(scale, &pair))
        ck_abort_msg("%a has no pair", (double)scale);
    EXPECT(trf_packed8_has_pair(scale));
    for (uint32_t code = 0; code < 256; code++) {
        if ((code & 0x7F) == TRF_PACKED8_NAN_CODE)
            continue;
        const uint32_t weight = trf_packed8_weight(code, pair), both = weight | (weight ^ 0x8000) << 16;
        if (weight != trf_packed8_define_weight(code, scale))
            ck_abort_msg("code %02x times %a: %04x instead of %04x", code, (double)scale, weight,
                         trf_packed8_define_weight(code, scale));
        if (find_and_form(both, pair) != both)
            ck_abort_msg("code %02x times %a: %08x is not found again", code, (double)scale, both);
    }
}

/* All classes with all exponents between them; an eighth of the combinations, or one in 64. */
START_TEST(every_class_of_scales_has_a_pair) {
    static uint32_t ends[2 * PACKED8_CLASSES];
    packed8_find_classes(ends);
    const uint32_t step = test_quick() ? 64 : 8;
    for (uint32_t exponent = TRF_PACKED8_MIN_SCALE_EXPONENT; exponent <= TRF_PACKED8_MAX_SCALE_EXPONENT; exponent++)
        for (uint32_t i = exponent % step; i < 2 * PACKED8_CLASSES; i += step)
            expect_all_codes(trf_f32_from_bits(exponent << 23 | ends[i]));
}
END_TEST

START_TEST(random_scales_have_a_pair) {
    test_rng rng = {31};
    for (int i = 0; i < test_rounds(20000); i++) {
        const uint32_t exponents = TRF_PACKED8_MAX_SCALE_EXPONENT - TRF_PACKED8_MIN_SCALE_EXPONENT + 1;
        expect_all_codes(trf_f32_from_bits((TRF_PACKED8_MIN_SCALE_EXPONENT + test_below(&rng, exponents)) << 23 |
                                           test_below(&rng, 1 << 23)));
    }
    for (uint32_t bits = 0; bits < 128; bits++) { /* one constant is enough for BF16 */
        const float scale = trf_f32_from_bits((127u << 7 | bits) << 16);
        uint32_t pair;
        EXPECT(trf_packed8_find_pair(scale, &pair) && pair >> 16 == 0);
        expect_all_codes(scale);
    }
}
END_TEST

START_TEST(other_scales_have_none) {
    const float none[] = {-1,       -0.0f,     NAN,       INFINITY,         -INFINITY, 0x1p7f,
                          0x1p127f, 0x1p-126f, 0x1p-149f, 0x1.fffffep-101f, -0x1p-10f};
    uint32_t pair;
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        EXPECT(!trf_packed8_find_pair(none[i], &pair) && !trf_packed8_has_pair(none[i]));
    EXPECT(trf_packed8_find_pair(0x1p-100f, &pair) && trf_packed8_find_pair(0x1.fffffep6f, &pair));
    expect_all_codes(0);
    EXPECT(trf_packed8_find_pair(0, &pair) && pair == 0);
}
END_TEST

/* Every BF16, with scales of all sizes. What is found for those that are no code times the scale is a number's code all
 * the same, and what is found for others makes them again. _i: the scale's exponent field. */
START_TEST(finds_no_code_but_those_of_numbers) {
    uint32_t pair;
    const float scale = trf_f32_from_bits(((uint32_t)_i << 23) + 0x54321u * (uint32_t)_i % (1 << 23));
    EXPECT(trf_packed8_find_pair(scale, &pair));
    uint8_t is_made[1 << 16] = {0};
    for (uint32_t code = 0; code < 256; code++)
        is_made[trf_packed8_weight(code, pair)] = (code & 0x7F) != TRF_PACKED8_NAN_CODE;
    for (uint32_t weight = 0; weight < 1 << 16; weight++) {
        const uint32_t formed = find_and_form(weight | 0x3F800000, pair) & 0xFFFF;
        EXPECT((formed == weight) == is_made[weight]);
    }
}
END_TEST

/* Numbers of all sizes, and those half way between two BF16 and next to them. */
START_TEST(rounding) {
    test_rng rng = {32};
    for (int i = 0; i < test_rounds(200000); i++) {
        const uint64_t exponent = 1023 - 160 + test_below(&rng, 300), sign = test_random(&rng) & 1ull << 63;
        uint64_t fraction = test_random(&rng) >> 12;
        if (i % 2)
            fraction = (fraction >> 44 << 44) + test_below(&rng, 3) - 1;
        const uint64_t bits = sign | ((exponent << 52) + fraction);
        double value;
        memcpy(&value, &bits, sizeof value);
        EXPECT(trf_packed8_round(value) == trf_f64_to_bf16(value));
    }
    const double ends[] = {0.0, -0.0, INFINITY, -INFINITY, 0x1p-126, 0x1.FFFFFp-127, 0x1.FFp127, 0x1.FEFFFFp127};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        EXPECT(trf_packed8_round(ends[i]) == trf_f64_to_bf16(ends[i]));
}
END_TEST

/* ---- words ---- */

/* One weight takes all codes; the lane's others are random. _i: register and half. */
START_TEST(forms_every_code_in_every_place) {
    const uint32_t reg = (uint32_t)_i % 4, half = (uint32_t)_i / 4;
    test_rng rng = {77 + (uint64_t)_i};
    for (uint32_t code = 0; code < 256; code++) {
        uint32_t spread[4], again[4], words[2], a[4], pair;
        for (uint32_t i = 0; i < 4; i++)
            spread[i] = (uint32_t)test_random(&rng) & TRF_PACKED8_CODE_MASK;
        spread[reg] = (spread[reg] & 0xFFFF0000u >> 16 * half) | trf_packed8_spread_code(code) << 16 * half;
        trf_unspread_packed8(spread, words);
        trf_spread_packed8(again, words[0], words[1]);
        EXPECT(memcmp(spread, again, sizeof spread) == 0);
        EXPECT(trf_packed8_code_of(again[reg] >> 16 * half & 0xFFFF) == code);
        const float scale = ldexpf((float)(1 + test_uniform(&rng)), (int)test_below(&rng, 20) - 15);
        EXPECT(trf_packed8_find_pair(scale, &pair));
        trf_form_packed8(a, words[0], words[1], trf_packed8_high(pair), trf_packed8_low(pair));
        for (uint32_t i = 0; i < 8; i++)
            EXPECT((a[i / 2] >> 16 * (i % 2) & 0xFFFF) ==
                   trf_packed8_weight(trf_packed8_code_of(spread[i / 2] >> 16 * (i % 2) & 0xFFFF), pair));
        trf_form_packed8_by_one(again, words[0], words[1], trf_packed8_high(pair));
        trf_form_packed8(a, words[0], words[1], trf_packed8_high(pair), 0);
        EXPECT(memcmp(a, again, sizeof a) == 0);
    }
}
END_TEST

/* format/PACKED.md's table of bits, which this test has a copy of. */
START_TEST(bits_are_where_the_page_says) {
    static const struct {
        uint32_t word, from, width, weight, code_bit; /* weight: 2 * register + half */
    } fields[] = {{0, 0, 4, 2, 0},  {0, 4, 7, 0, 0},  {0, 11, 1, 2, 7}, {0, 12, 3, 4, 4}, {0, 15, 1, 0, 7},
                  {0, 16, 4, 3, 0}, {0, 20, 7, 1, 0}, {0, 27, 1, 3, 7}, {0, 28, 3, 5, 4}, {0, 31, 1, 1, 7},
                  {1, 0, 3, 6, 4},  {1, 3, 1, 5, 7},  {1, 4, 3, 2, 4},  {1, 7, 1, 6, 7},  {1, 8, 4, 4, 0},
                  {1, 12, 7, 7, 0}, {1, 19, 1, 4, 7}, {1, 20, 3, 3, 4}, {1, 23, 1, 7, 7}, {1, 24, 4, 5, 0},
                  {1, 28, 4, 6, 0}};
    uint32_t seen[2] = {0};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        for (uint32_t bit = 0; bit < fields[i].width; bit++) {
            uint32_t words[2] = {0}, a[4], expected[4] = {0};
            words[fields[i].word] = 1u << (fields[i].from + bit);
            seen[fields[i].word] |= words[fields[i].word];
            expected[fields[i].weight / 2] = trf_packed8_spread_code(1u << (fields[i].code_bit + bit))
                                             << 16 * (fields[i].weight % 2);
            trf_spread_packed8(a, words[0], words[1]);
            EXPECT(memcmp(a, expected, sizeof a) == 0);
        }
    EXPECT(seen[0] == 0xFFFFFFFF && seen[1] == 0xFFFFFFFF);
}
END_TEST

/* ---- layers ---- */

static void pack_and_check(packed8_layer *layer, int with_weights) {
    trf_error err;
    ck_assert_msg(packed8_layer_pack(layer, with_weights, &err) == TRF_OK, "%s", err.message);
    packed8_layer_check(layer);
}

START_TEST(layers_of_any_shape) {
    static const uint32_t shapes[][4] = {{1, 1, 1, 1},         {15, 33, 128, 128},    {64, 32, 64, 128},
                                         {65, 1025, 64, 128},  {300, 1500, 128, 128}, {200, 1100, 1000, 2000},
                                         {3, 5000, 3, 5000},   {700, 31, 128, 31},    {130, 260, 128, 256},
                                         {256, 1024, 192, 384}};
    const uint32_t *shape = shapes[_i / SCALE_KINDS];
    test_rng rng = {5 + (uint64_t)_i};
    packed8_layer layer = packed8_layer_make(&rng, shape[0], shape[1], shape[2], shape[3], _i % SCALE_KINDS);
    pack_and_check(&layer, 0);
    ck_assert_uint_eq(layer.head.num_records, 0);
    ck_assert_int_eq(layer.head.flags & TRF_PACKED8_HAS_RECORDS, 0);
    if (_i % SCALE_KINDS == SCALES_BF16)
        ck_assert_uint_eq(layer.head.flags, 0);
    else if (layer.num_scales > 4)
        ck_assert_uint_eq(layer.head.flags, TRF_PACKED8_HAS_LOW);
    uint8_t *first = layer.packed;
    layer.packed = NULL;
    pack_and_check(&layer, 1); /* the same bytes if the weights are given */
    EXPECT(memcmp(first, layer.packed, layer.head.common.buffer_bytes) == 0);
    free(first);
    packed8_layer_free(&layer);
}
END_TEST

/* The sizes that the page names: 8.016 bits a weight. */
START_TEST(bits_of_a_weight) {
    trf_packed8_head head;
    ck_assert_int_eq(trf_size_packed8(8192, 8192, &head, NULL), TRF_OK);
    ck_assert_uint_eq(8 * (head.common.buffer_bytes - head.lines_offset) * 64,
                      513ull * (8192ull * 8192)); /* 8 + 1 / 64 */
    trf_error err;
    ck_assert_int_eq(trf_size_packed8(0, 8, &head, &err), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_size_packed8(8, 1ull << 31, &head, &err), TRF_ERR_ARGUMENT);
}
END_TEST

/* Zeros of both signs and denormal codes with all scales; a scale of zero. */
START_TEST(zeros_and_denormals) {
    test_rng rng = {6};
    packed8_layer layer = packed8_layer_make(&rng, 200, 700, 128, 128, SCALES_F32);
    layer.scales[3] = 0;
    layer.scales[4] = 0x1p-100f;
    layer.scales[5] = 0x1.fffffep6f;
    for (size_t i = 0; i < (size_t)layer.rows * layer.cols; i++)
        layer.codes[i] = (uint8_t)((i * 37 & 7) | (i * 11 & 0x80));
    packed8_layer_define_weights(&layer);
    pack_and_check(&layer, 0);
    ck_assert_uint_eq(layer.head.num_records, 0);
    packed8_layer_free(&layer);
}
END_TEST

/* ---- records ---- */

/* NaNs as codes, and weights of all kinds that are no code times the scale. */
START_TEST(records_of_every_kind) {
    static const uint16_t kinds[] = {0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x7F81, 0x0001, 0x8001, 0x0080, 0x7F7F, 0xFF7F};
    test_rng rng = {7};
    packed8_layer layer = packed8_layer_make(&rng, 130, 2100, 128, 128, SCALES_F32);
    uint32_t count = 0;
    layer.codes[0] = TRF_PACKED8_NAN_CODE; /* its place is all zeros, as in an unused word */
    layer.codes[2099] = 0x80 | TRF_PACKED8_NAN_CODE;
    packed8_layer_define_weights(&layer);
    pack_and_check(&layer, 0);
    ck_assert_uint_eq(layer.weights[0], 0x7FC0);
    ck_assert_uint_eq(layer.weights[2099], 0xFFC0);
    ck_assert_uint_eq(layer.head.num_records, 2);
    for (uint32_t row = 1; row < layer.rows; row += 8)
        for (uint32_t col = row % 100; col < layer.cols; col += 500)
            layer.weights[(size_t)row * layer.cols + col] = kinds[count++ % (sizeof kinds / sizeof *kinds)];
    layer.weights[5] = 0x8000;
    layer.codes[5] = 0; /* the wrong zero */
    pack_and_check(&layer, 1);
    ck_assert_uint_eq(layer.head.num_records, count + 3);
    ck_assert(layer.head.flags & TRF_PACKED8_HAS_RECORDS);
    packed8_layer_free(&layer);
}
END_TEST

/* A line holds 23 records, wherever they are; a layer with more is refused. _i: the line. */
START_TEST(lines_that_are_full) {
    test_rng rng = {8 + (uint64_t)_i};
    packed8_layer layer = packed8_layer_make(&rng, 128, 2048, 128, 128, SCALES_F32);
    const uint32_t first_row = (uint32_t)_i / 2 * 64, first_col = (uint32_t)_i % 2 * 1024;
    trf_error err;
    for (uint32_t i = 0; i <= TRF_PACKED8_MAX_RECORDS; i++) {
        const size_t at = (size_t)(first_row + i * 2) * layer.cols + first_col + i * 44;
        layer.weights[at] ^= 0x4000;
        if (i < TRF_PACKED8_MAX_RECORDS) {
            pack_and_check(&layer, 1);
            ck_assert_uint_eq(layer.head.num_records, i + 1);
        }
    }
    ck_assert_int_eq(packed8_layer_pack(&layer, 1, &err), TRF_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "24 of the weights"));
    packed8_layer_free(&layer);
}
END_TEST

/* ---- gate and up in turns ---- */

START_TEST(layers_in_turns) {
    static const uint32_t shapes[][4] = {
        {16, 33, 64, 128}, {80, 1025, 64, 128}, {256, 1500, 128, 128}, {144, 260, 144, 260}};
    const uint32_t *shape = shapes[_i / SCALE_KINDS];
    test_rng rng = {65 + (uint64_t)_i};
    packed8_layer layer = packed8_layer_make(&rng, shape[0], shape[1], shape[2], shape[3], _i % SCALE_KINDS);
    packed8_layer_take_turns(&layer, &rng, _i % SCALE_KINDS);
    pack_and_check(&layer, 1);
    ck_assert_uint_eq(layer.head.num_records, 0);
    ck_assert_uint_eq(layer.head.flags & ~(uint32_t)TRF_PACKED8_HAS_LOW, TRF_PACKED8_IN_TURNS);
    if (_i % SCALE_KINDS == SCALES_BF16)
        ck_assert_uint_eq(layer.head.flags, TRF_PACKED8_IN_TURNS);
    packed8_layer_free(&layer);
}
END_TEST

/* A line in turns holds 15 records, and has constants where other lines have more. */
START_TEST(full_lines_in_turns) {
    test_rng rng = {66};
    packed8_layer layer = packed8_layer_make(&rng, 128, 2048, 128, 128, SCALES_F32);
    trf_error err;
    packed8_layer_take_turns(&layer, &rng, SCALES_F32);
    for (uint32_t i = 0; i <= TRF_PACKED8_MAX_RECORDS_IN_TURNS; i++) {
        layer.weights[(size_t)(i * 2) * layer.cols + 1024 + i * 44] ^= 0x4000;
        if (i < TRF_PACKED8_MAX_RECORDS_IN_TURNS) {
            pack_and_check(&layer, 1);
            ck_assert_uint_eq(layer.head.num_records, i + 1);
        }
    }
    ck_assert_int_eq(packed8_layer_pack(&layer, 1, &err), TRF_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "16 of the weights"));
    packed8_layer_free(&layer);
}
END_TEST

/* ---- what is refused ---- */

START_TEST(blocks_and_scales_that_are_refused) {
    static const uint32_t blocks[][2] = {{32, 128}, {1, 128}, {128, 64}, {128, 1}, {96, 128}, {1, 1000}};
    test_rng rng = {9};
    trf_error err;
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        packed8_layer layer = packed8_layer_make(&rng, 200, 300, blocks[i][0], blocks[i][1], SCALES_F32);
        ck_assert_int_eq(packed8_layer_pack(&layer, 0, &err), TRF_ERR_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(err.message, "scales of"));
        packed8_layer_free(&layer);
    }
    packed8_layer layer = packed8_layer_make(&rng, 200, 300, 128, 128, SCALES_F32);
    layer.scales[4] = 0x1p7f;
    ck_assert_int_eq(packed8_layer_pack(&layer, 0, &err), TRF_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "scale 4 is 128"));
    ck_assert_uint_eq(err.offset, 16);
    packed8_layer_free(&layer);
}
END_TEST

START_TEST(head_of_other_weights) {
    test_rng rng = {10};
    packed8_layer layer = packed8_layer_make(&rng, 70, 70, 128, 128, SCALES_F32);
    trf_error err;
    pack_and_check(&layer, 1);
    layer.weights[9] ^= 0x4000;
    const trf_pack8_input input = packed8_layer_input(&layer, 1);
    ck_assert_int_eq(trf_pack8(&input, &layer.head, layer.packed, &err), TRF_ERR_MISMATCH);
    packed8_layer_free(&layer);
}
END_TEST

/* ---- the validator ---- */

/* A layer of 70x1100 with records in its first line: tile 0 has two, tile 3 one. Lines are at 256, tiles at 768. */
static packed8_layer make_valid(void) {
    test_rng rng = {11};
    packed8_layer layer = packed8_layer_make(&rng, 70, 1100, 128, 128, SCALES_F32);
    trf_error err;
    layer.codes[0] = 0;
    packed8_layer_define_weights(&layer);
    layer.weights[1] ^= 0x4000;
    layer.weights[1103] ^= 0x4000;
    layer.weights[100] ^= 0x4000;
    ck_assert_int_eq(packed8_layer_pack(&layer, 1, &err), TRF_OK);
    return layer;
}

typedef struct corruption {
    uint32_t word;  /* of the buffer, 4 bytes each */
    uint32_t value; /* is put over it with xor */
    trf_status status;
    uint64_t offset;
    int seals; /* the head's checksum is made again */
    const char *says;
} corruption;

enum {
    LINE = 256 / 4,
    SECOND_LINE = LINE + TRF_PACKED_LINE_WORDS,
    TILES = 768 / 4,
    SECOND_BAND = TILES + 35 * TRF_PACKED8_TILE_BYTES / 4
};

static const corruption kCorruptions[] = {
    {8, 1, TRF_ERR_CHECKSUM, 24, 0, "checksum"},
    {1, 1, TRF_ERR_HEADER, 4, 1, "layout"},
    {1, 0x10000, TRF_ERR_VERSION, 6, 1, "version"},
    {8, 70, TRF_ERR_HEADER, 32, 1, "no packed layer"},
    {10, 64, TRF_ERR_HEADER, 40, 1, "padded_rows"},
    {12, 1, TRF_ERR_HEADER, 48, 1, "codec"},
    {12, 0x100, TRF_ERR_HEADER, 49, 1, "reserved"},
    {13, 8, TRF_ERR_HEADER, 52, 1, "unknown flags"},
    {13, 1, TRF_ERR_HEADER, 52, 1, "records"},
    {13, 2, TRF_ERR_TILE, 52, 1, "second constants"},
    {18, 7, TRF_ERR_TILE, 72, 1, "records, the head says"},
    {20, 256, TRF_ERR_HEADER, 80, 1, "lines_offset"},
    {44, 1, TRF_ERR_HEADER, 176, 1, "reserved"},
    {LINE, 0x06000000, TRF_ERR_TILE, 4 * LINE + 4, 0, "not behind"},
    {LINE + 2, 0x10000000, TRF_ERR_TILE, 4 * LINE + 8, 0, "that has none"},
    {LINE + 5, 1, TRF_ERR_TILE, 4 * LINE + 20, 0, "unused word"},
    {LINE + TRF_PACKED8_MASK_WORD, 0x100, TRF_ERR_TILE, 4 * (LINE + TRF_PACKED8_MASK_WORD), 0, "tiles of the line"},
    {SECOND_LINE + TRF_PACKED8_MASK_WORD, 8, TRF_ERR_TILE, 4 * (SECOND_LINE + TRF_PACKED8_MASK_WORD), 0, "behind"},
    {LINE + TRF_PACKED8_PAIRS_WORD, 0x8000, TRF_ERR_TILE, 4 * (LINE + TRF_PACKED8_PAIRS_WORD), 0, "no pair"},
    {LINE + TRF_PACKED8_PAIRS_WORD, 0x80000000, TRF_ERR_TILE, 4 * (LINE + TRF_PACKED8_PAIRS_WORD), 0, "no pair"},
    {SECOND_LINE + 25, 0x7000, TRF_ERR_TILE, 4 * (SECOND_LINE + 25), 0, "no pair"},
    {TILES, 0x00100000, TRF_ERR_TILE, 4 * TILES, 0, "code of record 0"}, /* of weight 1 */
    {TILES, 0x000007F0, TRF_ERR_TILE, 4 * TILES, 0, "NaN"},
    {SECOND_BAND + 128, 16, TRF_ERR_TILE, 4 * (SECOND_BAND + 128), 0, "padded"},
};

START_TEST(validator_finds) {
    const corruption *c = &kCorruptions[_i];
    packed8_layer layer = make_valid();
    trf_packed8_view view;
    trf_error err;
    const uint64_t bytes = layer.head.common.buffer_bytes;
    ck_assert_msg(trf_validate_packed8(layer.packed, bytes, &view, &err) == TRF_OK, "%s", err.message);
    ((uint32_t *)layer.packed)[c->word] ^= c->value;
    if (c->seals) {
        trf_layout_head_common *const common = (trf_layout_head_common *)layer.packed;
        common->checksum = trf_layout_head_checksum(common);
    }
    const trf_status status = trf_validate_packed8(layer.packed, bytes, &view, &err);
    ck_assert_msg(status == c->status && err.offset == c->offset && strstr(err.message, c->says),
                  "status %d at %llu: %s", status, (unsigned long long)err.offset, err.message);
    packed8_layer_free(&layer);
}
END_TEST

/* The reader stays inside the buffer whatever is in it, which the address sanitizer sees. */
START_TEST(reading_garbage) {
    test_rng rng = {12 + (uint64_t)_i};
    packed8_layer layer = make_valid();
    const uint64_t bytes = layer.head.common.buffer_bytes;
    for (uint64_t at = layer.head.lines_offset; at < bytes; at++)
        layer.packed[at] = (uint8_t)test_random(&rng);
    const trf_packed8_view view = trf_packed8_view_of(&layer.head, layer.packed);
    trf_packed8_view validated;
    trf_error err;
    trf_unpack8(&view, layer.weights, layer.cols);
    ck_assert_int_ne(trf_validate_packed8(layer.packed, bytes, &validated, &err), TRF_OK);
    ck_assert_int_eq(trf_validate_packed8(layer.packed, bytes - 1, &validated, &err), TRF_ERR_TRUNCATED);
    ck_assert_int_eq(trf_validate_packed8(layer.packed + 8, bytes - 8, &validated, &err), TRF_ERR_ARGUMENT);
    packed8_layer_free(&layer);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("packed8");
    TCase *tcase = tcase_create("all");
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, rounding);
    tcase_add_test(tcase, every_class_of_scales_has_a_pair);
    tcase_add_test(tcase, random_scales_have_a_pair);
    tcase_add_test(tcase, other_scales_have_none);
    tcase_add_loop_test(tcase, finds_no_code_but_those_of_numbers, TRF_PACKED8_MIN_SCALE_EXPONENT,
                        TRF_PACKED8_MAX_SCALE_EXPONENT + 1);
    tcase_add_loop_test(tcase, forms_every_code_in_every_place, 0, 8);
    tcase_add_test(tcase, bits_are_where_the_page_says);
    tcase_add_loop_test(tcase, layers_of_any_shape, 0, 10 * SCALE_KINDS);
    tcase_add_test(tcase, bits_of_a_weight);
    tcase_add_test(tcase, zeros_and_denormals);
    tcase_add_test(tcase, records_of_every_kind);
    tcase_add_loop_test(tcase, lines_that_are_full, 0, 4);
    tcase_add_loop_test(tcase, layers_in_turns, 0, 4 * SCALE_KINDS);
    tcase_add_test(tcase, full_lines_in_turns);
    tcase_add_test(tcase, blocks_and_scales_that_are_refused);
    tcase_add_test(tcase, head_of_other_weights);
    tcase_add_loop_test(tcase, validator_finds, 0, (int)(sizeof kCorruptions / sizeof *kCorruptions));
    tcase_add_loop_test(tcase, reading_garbage, 0, 4);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
