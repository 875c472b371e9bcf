/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel for regular slabs writes, computed lane by lane on the CPU. Elements of the tests' own encoder are
 * made fragments as in the kernel and go through the kernel's functions to bytes in memory, which are compared with
 * trf_decoded_bits of every weight. Each conversion is also tested by itself. */
#include "common/expect.h"
#include "common/host_view.h"
#include "common/run_suite.h"
#include "common/test_tile.h"
#include "trf_decode_tile.h"
#include "trf_fragment_write.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const trf_decode_as kAs[] = {TRF_DECODE_SOURCE, TRF_DECODE_ELEMENTS, TRF_DECODE_BF16, TRF_DECODE_F16};

/* ---- one slab ---- */

typedef struct slab {
    const trf_device_view *view;
    const uint16_t *elements; /* of the layer, [rows][cols] */
    uint32_t row, mode;       /* first row; predictor mode */
    trf_slab_shape shape;
} slab;

static uint32_t element_of(const slab *s, uint32_t lane, uint32_t i) {
    const uint32_t row = s->row + trf_lane_row(s->shape, lane, i), col = trf_lane_col(s->shape, lane, i);
    return s->elements[(size_t)row * s->view->cols + col];
}

/* What the kernel has in the place of a weight before offsets and exceptions: a coded element, or the byte of an FP8
 * element or of a code. It is exact even for elements for which the codec has no class, except for codes that do not
 * fit a byte. */
static uint32_t coded(const slab *s, uint32_t lane, uint32_t i) {
    const trf_device_view *view = s->view;
    const uint32_t element = element_of(s, lane, i);
    if (view->codec == TRF_CODEC_INT)
        return (element - (uint32_t)view->class_value[0]) & 0xFF;
    const trf_float_fields fields = trf_fields_of(view->codec);
    const uint32_t row = s->row + trf_lane_row(s->shape, lane, i), col = trf_lane_col(s->shape, lane, i);
    int32_t offset = view->exponent_offset;
    offset += s->mode & TRF_PREDICT_ROW ? view->row_offsets[row] : 0;
    offset += s->mode & TRF_PREDICT_COL ? view->col_offsets[col] : 0;
    const uint32_t exponent = (trf_element_exponent(fields, element) - (uint32_t)offset) & fields.max_exponent;
    return (element & ~(fields.max_exponent << fields.mantissa_bits)) | exponent << fields.mantissa_bits;
}

/* Makes a lane's registers of a step as trf_build_four leaves them. */
static void form_step(const slab *s, uint32_t lane, uint32_t step, uint32_t reg[8]) {
    static const uint32_t kByte[4] = {0, 2, 1, 3}; /* of weights 0 to 3 of a quad */
    memset(reg, 0, 8 * sizeof *reg);
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t bits = coded(s, lane, 16 * step + i);
        if (s->view->codec == TRF_CODEC_BF16 || s->view->codec == TRF_CODEC_FP16)
            reg[i / 2] |= bits << 16 * (i % 2);
        else
            reg[2 * (i / 4)] |= bits << 8 * kByte[i % 4];
    }
}

/* Writes the exceptions, which here are all elements that a code's byte cannot express. */
static void patch_step(const slab *s, uint32_t lane, uint32_t step, uint32_t reg[8]) {
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t element = element_of(s, lane, 16 * step + i), shift = 16 * (i % 2);
        if (s->view->codec == TRF_CODEC_INT &&
            (element - (uint32_t)s->view->class_value[0]) > 0xFF) /* an unsigned difference */
            reg[i / 2] = (reg[i / 2] & ~(0xFFFFu << shift)) | element << shift;
    }
}

/* Makes the elements of a step, as the kernel does from begin_slab to complete_fragments. */
static void complete_fragments(const slab *s, uint32_t lane, uint32_t step, uint32_t reg[8]) {
    const trf_device_view *view = s->view;
    trf_step_elements(view->codec, view->class_value[0], reg);
    if (view->codec == TRF_CODEC_INT)
        return;
    uint32_t rows[TRF_WRITE_ROWS], col_bytes = 0;
    for (uint32_t r = 0; r < TRF_WRITE_ROWS; r++) {
        const uint32_t row = s->row + trf_lane_row_at(lane, r);
        const int32_t offset = view->exponent_offset + (s->mode & TRF_PREDICT_ROW ? view->row_offsets[row] : 0);
        rows[r] = trf_exponent_offsets(view->codec, offset, offset);
    }
    if (s->mode & TRF_PREDICT_COL)
        memcpy(&col_bytes, view->col_offsets + trf_lane_col_at(lane, step / 2) + 4 * (step % 2), 4);
    if (s->mode || view->exponent_offset)
        trf_step_offsets(view->codec, rows, (s->mode & TRF_PREDICT_COL) != 0, col_bytes, reg);
}

/* Stores a step's elements where the kernel does. */
static void store_step(const slab *s, trf_write_format format, uint32_t lane, uint32_t step, const uint32_t reg[8],
                       uint8_t *weights) {
    const uint32_t bytes = trf_write_format_bytes(format), codec = s->view->codec;
    const uint32_t first_col = trf_lane_col_at(lane, step / 2);
    for (uint32_t r = 0; r < TRF_WRITE_ROWS; r++) {
        const uint32_t row = s->row + trf_lane_row_at(lane, r);
        const float scale = trf_device_scale(s->view, row, first_col); /* of all 8 columns */
        const uint32_t first = reg[trf_row_register(r, 0)], second = reg[trf_row_register(r, 1)];
        uint32_t words[4];
        if (bytes == 1) {
            words[0] = trf_bits_of_four(first, second);
        } else if (bytes == 2) {
            words[0] = trf_bits_of_two(codec, format, first, scale);
            words[1] = trf_bits_of_two(codec, format, second, scale);
        } else {
            for (uint32_t c = 0; c < 4; c++)
                words[c] = trf_bits_of_f32(codec, reg[trf_row_register(r, c / 2)], c % 2, scale);
        }
        const size_t at = ((size_t)row * s->view->cols + first_col) * bytes;
        EXPECT(at % (s->view->cols % 8 == 0 ? 8 * bytes : 1) == 0);
        memcpy(weights + at + 4 * bytes * (step % 2), words, 4 * bytes);
    }
}

/* ---- one layer ---- */

static float random_scale(test_rng *rng) {
    return trf_f32_from_bits(1 + test_below(rng, test_below(rng, 2) ? 0x7F7FFFFF : 0x01000000));
}

/* Gives an int layer's view scales, or makes its source I8. scales: [65536] F32. */
static void make_scales(test_rng *rng, trf_device_view *view, float *scales) {
    static const uint32_t kDtypes[] = {TRF_DTYPE_F32, TRF_DTYPE_F16, TRF_DTYPE_BF16};
    view->granularity = test_below(rng, 5);
    view->source_dtype = view->granularity ? kDtypes[test_below(rng, 3)] : (uint32_t)TRF_DTYPE_I8;
    view->scale_dtype = TRF_SCALE_NONE;
    view->scales = NULL;
    if (view->granularity == TRF_GRANULARITY_NONE)
        return;
    const int grouped =
        view->granularity == TRF_GRANULARITY_SCALE_GROUP || view->granularity == TRF_GRANULARITY_SCALE_BLOCK;
    view->scale_dtype = grouped ? TRF_SCALE_F16 : TRF_SCALE_F32;
    view->scales = scales;
    view->scale_group_size = grouped ? 16 * (1 + test_below(rng, 20)) : 0;
    view->scale_cols = grouped ? (view->cols + view->scale_group_size - 1) / view->scale_group_size : 0;
    view->scale_exponent = grouped ? (int32_t)test_below(rng, 2 * 126 + 1) - 126 : 0;
    if (test_below(rng, 2))
        view->scale_exponent = 0;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t f16;
        do /* an infinite scale is not valid */
            f16 = (uint16_t)(1 + test_below(rng, 0x7BFF));
        while (!isfinite(trf_f16_scale(f16, view->scale_exponent)));
        if (grouped)
            memcpy((uint8_t *)scales + 2 * i, &f16, 2);
        else
            scales[i] = test_below(rng, 2) ? 0.02f * (float)test_uniform(rng) + 1e-6f : random_scale(rng);
    }
}

static void check_decoding(const trf_device_view *view, const test_tile *tile, trf_decode_as as) {
    const trf_write_format format = trf_write_format_of(view, as);
    const int refused = (as == TRF_DECODE_BF16 && view->codec == TRF_CODEC_FP16) ||
                        (as == TRF_DECODE_F16 && view->codec == TRF_CODEC_BF16);
    EXPECT((format == TRF_WRITE_NONE) == refused);
    if (format == TRF_WRITE_NONE)
        return;
    const uint32_t bytes = trf_write_format_bytes(format);
    EXPECT(bytes == trf_decoded_weight_bytes(view, as));
    uint8_t *found = malloc((size_t)view->rows * view->cols * bytes);
    EXPECT(found != NULL);
    memset(found, 0xA5, (size_t)view->rows * view->cols * bytes);
    slab s = {view, tile->elements, 0, tile->meta.predictor_mode, {2, view->cols / 16}};
    for (; s.row < view->rows; s.row += TRF_SLAB_ROWS)
        for (uint32_t lane = 0; lane < TRF_LANES; lane++)
            for (uint32_t step = 0; step < s.shape.steps; step++) {
                uint32_t reg[8];
                form_step(&s, lane, step, reg);
                complete_fragments(&s, lane, step, reg);
                patch_step(&s, lane, step, reg);
                store_step(&s, format, lane, step, reg, found);
            }
    for (uint32_t row = 0; row < view->rows; row++)
        for (uint32_t col = 0; col < view->cols; col++) {
            const size_t at = (size_t)row * view->cols + col;
            const uint32_t element = tile->elements[at];
            uint32_t expected = 0, is = 0;
            trf_store_decoded_bits(&expected, bytes, 0, trf_decoded_bits(view, as, element, row, col));
            memcpy(&is, found + at * bytes, bytes);
            if (is != expected)
                ck_abort_msg("codec %u dtype %u as %d, granularity %u: row %u column %u: element %04x gives %x, not %x",
                             view->codec, view->source_dtype, (int)as, view->granularity, row, col, element, is,
                             expected);
        }
    free(found);
}

/* The expected elements are what the reference decoder gives. */
static void check_reference(const test_tile *tile) {
    static trf_decode_table table;
    static uint16_t due[TRF_TILE_SIZE * TRF_TILE_SIZE];
    const uint32_t cols = tile->view.header.cols;
    trf_decode_table_init(&table, &tile->view);
    ck_assert_int_eq(trf_decode_tile_ref(&tile->view, &table, 0, tile->bytes, due, cols, NULL), TRF_OK);
    EXPECT(memcmp(due, tile->elements, 2 * (size_t)tile->view.header.rows * cols) == 0);
}

START_TEST(slabs) {
    const uint32_t codec = (uint32_t)_i / 2 + 1, class_bits = _i % 2 ? 4 : 2;
    test_rng rng = {1000 + (uint64_t)_i};
    float *scales = malloc(65536 * sizeof *scales);
    ck_assert_ptr_nonnull(scales);
    for (int round = 0; round < 40; round++) {
        test_tile_request request = test_tile_random_request(&rng, codec, class_bits);
        request.rows = 32 * (1 + test_below(&rng, 4));
        request.cols = 64 * (1 + test_below(&rng, 4));
        request.stored = 0;
        request.raw_bits = test_below(&rng, 9 - class_bits);
        if (codec != TRF_CODEC_INT && round % 4) {
            request.predictor_mode = (uint32_t)round % 4;
            request.exponent_offset = round % 8 < 4 ? 0 : (int32_t)test_below(&rng, 509) - 254;
        }
        test_tile *tile = test_tile_make(&rng, &request);
        host_view *host = host_view_make(&tile->view, tile->bytes, tile->meta.data_size);
        check_reference(tile);
        if (codec == TRF_CODEC_INT)
            make_scales(&rng, &host->view, scales);
        else if (codec == TRF_CODEC_BF16)
            host->view.source_dtype = round % 2 ? TRF_DTYPE_F32 : TRF_DTYPE_BF16;
        for (int as = 0; as < 4; as++)
            check_decoding(&host->view, tile, kAs[as]);
        host_view_free(host);
        test_tile_free(tile);
    }
    free(scales);
}
END_TEST

/* ---- conversions ---- */

START_TEST(every_fp8) {
    trf_device_view view = {.codec = (uint32_t)_i};
    for (uint32_t low = 0; low < 256; low++)
        for (uint32_t high = 0; high < 256; high++) {
            const uint32_t pair = low | high << 16;
            EXPECT(trf_bits_of_two(view.codec, TRF_WRITE_BF16, pair, 1) ==
                   (trf_decoded_bits(&view, TRF_DECODE_BF16, low, 0, 0) |
                    trf_decoded_bits(&view, TRF_DECODE_BF16, high, 0, 0) << 16));
            EXPECT(trf_bits_of_two(view.codec, TRF_WRITE_F16, pair, 1) ==
                   (trf_decoded_bits(&view, TRF_DECODE_F16, low, 0, 0) |
                    trf_decoded_bits(&view, TRF_DECODE_F16, high, 0, 0) << 16));
        }
}
END_TEST

/* Every pair of codes, with scales from all of their range: its ends, powers of two, and anything between. */
START_TEST(scaled_fp8) {
    test_rng rng = {2500 + (uint64_t)_i};
    for (int round = 0; round < 200; round++) {
        const float power = ldexpf(1.0f, (int)test_below(&rng, 200) - 100);
        const float scale = round == 0   ? 0x1p-100f
                            : round == 1 ? 0x1p100f
                            : round % 8  ? power * (1.0f + (float)test_below(&rng, 1 << 23) * 0x1p-23f)
                                         : power;
        for (uint32_t low = 0; low < 256; low++) {
            const uint32_t high = test_below(&rng, 256);
            EXPECT(trf_scale_fp8x2(low | high << 16, scale) ==
                   (trf_scale_fp8(low, scale) | (uint32_t)trf_scale_fp8(high, scale) << 16));
        }
    }
}
END_TEST

/* Every code, with scales of all sizes, some of which make products that lie on or beside the middle between two 16-bit
 * values. */
START_TEST(codes) {
    test_rng rng = {2000};
    for (int round = 0; round < 3000; round++) {
        float scale = random_scale(&rng);
        if (round % 3 == 1) {
            const uint32_t odd = 2 * test_below(&rng, 1024) + 1;
            scale = ldexpf((float)odd, (int)test_below(&rng, 270) - 140);
        } else if (round % 3 == 2) {
            const float third = ldexpf((float)(2 * test_below(&rng, 2048) + 1), (int)test_below(&rng, 40) - 30);
            scale = nextafterf(third / (float)(1 + test_below(&rng, 1023)), round % 2 ? 0 : INFINITY);
        }
        if (!(scale > 0) || isinf(scale))
            continue;
        const trf_device_view view = {.codec = TRF_CODEC_INT,
                                      .source_dtype = TRF_DTYPE_F32,
                                      .granularity = TRF_GRANULARITY_TENSOR,
                                      .scale_dtype = TRF_SCALE_F32,
                                      .scales = &scale};
        for (int32_t code = -1279; code <= 1279; code += 1 + (int32_t)test_below(&rng, 9)) {
            const uint32_t low = (uint16_t)code, high = (uint16_t)-code, pair = low | high << 16;
            EXPECT(trf_bits_of_two(view.codec, TRF_WRITE_BF16, pair, scale) ==
                   (trf_decoded_bits(&view, TRF_DECODE_BF16, low, 0, 0) |
                    trf_decoded_bits(&view, TRF_DECODE_BF16, high, 0, 0) << 16));
            EXPECT(trf_bits_of_two(view.codec, TRF_WRITE_F16, pair, scale) ==
                   (trf_decoded_bits(&view, TRF_DECODE_F16, low, 0, 0) |
                    trf_decoded_bits(&view, TRF_DECODE_F16, high, 0, 0) << 16));
            EXPECT(trf_bits_of_f32(view.codec, pair, 0, scale) ==
                   trf_decoded_bits(&view, TRF_DECODE_SOURCE, low, 0, 0));
            EXPECT(trf_bits_of_f32(view.codec, pair, 1, scale) ==
                   trf_decoded_bits(&view, TRF_DECODE_SOURCE, high, 0, 0));
        }
    }
}
END_TEST

/* All codes that a byte and a lowest code can make, with neighbours that differ as much as possible. */
START_TEST(lowest_codes) {
    for (int32_t lowest = -1024; lowest <= 1023; lowest++)
        for (uint32_t u = 0; u < 256; u++) {
            const uint32_t sum = trf_add_code(u | (255 - u) << 16, lowest);
            EXPECT((int16_t)sum == lowest + (int32_t)u && (int16_t)(sum >> 16) == lowest + 255 - (int32_t)u);
        }
}
END_TEST

/* ---- rows gathered in shared memory ---- */

/* Expects that in the 128 bytes which shared memory serves at once, no two lanes' 16 bytes share a bank. */
static void check_banks(const uint32_t place[TRF_LANES]) {
    for (uint32_t first = 0; first < TRF_LANES; first += 8) {
        uint32_t taken = 0;
        for (uint32_t lane = first; lane < first + 8; lane++)
            taken |= 1u << place[lane] / 16 % 8;
        EXPECT(taken == 0xFF);
    }
}

/* What all lanes have of a slab reaches its place, one step pair after the other. */
START_TEST(gathered_rows) {
    enum {
        MOST_ROW_BYTES = 2 * 256
    };
    static uint8_t gather[TRF_GATHER_BYTES], expected[TRF_SLAB_ROWS][MOST_ROW_BYTES],
        found[TRF_SLAB_ROWS][MOST_ROW_BYTES];
    test_rng rng = {77};
    for (uint32_t i = 0; i < sizeof expected; i++)
        ((uint8_t *)expected)[i] = (uint8_t)test_below(&rng, 256);
    for (uint32_t cols = 64; cols <= 256; cols += 64) {
        uint32_t gathered = 0, flushed = 0, place[TRF_LANES];
        memset(found, 0, sizeof found);
        for (uint32_t pair = 0; pair < cols / TRF_STEP_PAIR_COLS; pair++) {
            for (uint32_t r = 0; r < TRF_WRITE_ROWS; r++) {
                for (uint32_t lane = 0; lane < TRF_LANES; lane++) {
                    const uint32_t row = trf_lane_row_at(lane, r), byte = gathered + 2 * trf_lane_col_at(lane, 0);
                    place[lane] = trf_gather_at(row, byte);
                    EXPECT(place[lane] == trf_gather_at(trf_lane_row_at(lane, 0), byte) + 8 * r * TRF_GATHER_ROW_BYTES);
                    EXPECT(place[lane] + 16 <= sizeof gather);
                    memcpy(gather + place[lane], expected[row] + flushed + byte, 16);
                }
                check_banks(place);
            }
            gathered += TRF_STEP_PAIR_COLS * 2;
            if (gathered < TRF_GATHER_ROW_BYTES && pair + 1 < cols / TRF_STEP_PAIR_COLS)
                continue;
            for (uint32_t i = 0; i < TRF_SLAB_ROWS / 2; i++) {
                for (uint32_t lane = 0; lane < TRF_LANES; lane++) {
                    const uint32_t row = trf_gather_row(lane, i), byte = trf_gather_byte(lane);
                    place[lane] = trf_gather_at(row, byte);
                    if (byte < gathered)
                        memcpy(found[row] + flushed + byte, gather + place[lane], 16);
                }
                check_banks(place);
            }
            flushed += gathered;
            gathered = 0;
        }
        EXPECT(flushed == 2 * cols);
        for (uint32_t row = 0; row < TRF_SLAB_ROWS; row++)
            ck_assert_mem_eq(found[row], expected[row], flushed);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("store");
    TCase *tests = tcase_create("store");
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, slabs, 0, 10);
    tcase_add_loop_test(tests, every_fp8, TRF_CODEC_E4M3, TRF_CODEC_E5M2 + 1);
    tcase_add_loop_test(tests, scaled_fp8, 0, 10);
    tcase_add_test(tests, codes);
    tcase_add_test(tests, lowest_codes);
    tcase_add_test(tests, gathered_rows);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
