/* SPDX-License-Identifier: Apache-2.0 */
/* BF16 weights that are FP8 E4M3 codes times scales: they are found, and only they; every decoder, row and product
 * gives them back bit for bit. What is expected is computed in binary64, not by the library's own forming of weights.
 */
#include "common/decoders.h"
#include "common/fp8_matrices.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "trf_find_fp8.h"
#include "trf_layer.h"
#include "trf_mantissa_sets.h"
#include "trf_number_formats.h"

#include "transfuse/cpu.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static trf_error err;

static trf_status encode(const fp8_matrix *m, trf_codec codec, trf_favor favor, int threads, void **blob,
                         uint64_t *bytes, trf_layer_report *report) {
    trf_encode_options options;
    trf_encode_options_init(&options);
    options.codec = codec;
    options.favor = favor;
    options.threads = threads;
    const trf_matrix source = test_matrix(m->weights, TRF_DTYPE_BF16, m->rows, m->cols);
    return trf_encode_layer(&source, &options, blob, bytes, report, &err);
}

static void *encode_fp8(const fp8_matrix *m, trf_favor favor, uint64_t *bytes) {
    void *blob;
    ck_assert_msg(encode(m, TRF_CODEC_E4M3, favor, 2, &blob, bytes, NULL) == TRF_OK, "%s", err.message);
    return blob;
}

/* Decodes by every decoder, and as a layer. */
static void check_decoding(const fp8_matrix *m, const void *blob, uint64_t bytes) {
    decoder decoders[3];
    const uint32_t count = find_decoders(decoders);
    const size_t weights = (size_t)m->rows * m->cols;
    uint16_t *decoded = malloc(weights * 2);
    trf_layer *layer;
    ck_assert_msg(trf_layer_from_memory(blob, bytes, &layer, &err) == TRF_OK, "%s", err.message);
    for (uint32_t d = 0; d < count; d++) {
        memset(decoded, 0xA5, weights * 2);
        for (uint64_t t = 0; t < layer->view.num_tiles; t++) {
            const trf_tile_shape shape = trf_tile_shape_of(&layer->view.header, t, layer->view.tiles[t].coding);
            ck_assert_int_eq(decoders[d].decode(&layer->view, &layer->table, t, trf_layer_tile(layer, t),
                                                decoded + (size_t)shape.row * m->cols + shape.col, m->cols, &err),
                             TRF_OK);
        }
        for (size_t i = 0; i < weights; i++) /* a check for each weight would take seconds */
            if (decoded[i] != m->weights[i])
                ck_abort_msg("%s: weight %zu is 0x%04X, not 0x%04X", decoders[d].name, i, decoded[i], m->weights[i]);
    }
    memset(decoded, 0xA5, weights * 2);
    ck_assert_int_eq(trf_layer_decode(layer, decoded, weights * 2, 2, &err), TRF_OK);
    ck_assert(memcmp(decoded, m->weights, weights * 2) == 0);
    trf_layer_free(layer);
    free(decoded);
}

/* ---- scales ---- */

START_TEST(every_scale_has_its_mantissa_set) {
    const trf_mantissa_set *sets = trf_mantissa_sets();
    uint32_t at = 0;
    for (uint32_t i = 0; i < 1u << 23; i++) {
        const float scale = trf_f32_from_bits(127u << 23 | i);
        for (int second = 0; second < 2; second++) { /* sets come in the order of their scales */
            uint32_t same = 0;
            for (uint32_t m = 0; m < 8; m++) {
                const uint16_t product = trf_f32_to_bf16((float)(8 + m) / 8 * scale);
                same += product == (uint32_t)((127 + sets[at].carry[m]) << 7 | sets[at].mantissa[m]);
            }
            if (same == 8)
                break;
            ck_assert_msg(!second && ++at < TRF_MANTISSA_SETS, "no set for the scale with mantissa %u", i);
        }
    }
    ck_assert_uint_eq(at, TRF_MANTISSA_SETS - 1);
    for (at = 0; at < TRF_MANTISSA_SETS; at++)
        for (uint32_t m = 0; m < 8; m++)
            ck_assert_uint_eq(fp8_scaled(7 << 3 | m, trf_f32_from_bits(127u << 23 | sets[at].scale_mantissa)),
                              (uint32_t)((127 + sets[at].carry[m]) << 7 | sets[at].mantissa[m]));
}
END_TEST

/* A row has all codes, both zeros and the denormal ones included, times one scale, and the rows all sets of mantissas
 * with exponents up to the ends of their range. loop: favors. */
START_TEST(every_code_times_every_set) {
    fp8_matrix m = fp8_new_matrix(TRF_MANTISSA_SETS, 256);
    const trf_mantissa_set *sets = trf_mantissa_sets();
    for (uint32_t r = 0; r < m.rows; r++) {
        const uint32_t exponent = r == 0 ? 27 : r == 1 ? 226 : 27 + r * 37 % 200;
        const float scale = trf_f32_from_bits(exponent << 23 | sets[r].scale_mantissa);
        for (uint32_t code = 0; code < 256; code++)
            m.weights[r * 256 + code] = fp8_scaled((code & 0x7F) == 0x7F ? code - 1 : code, scale);
    }
    uint64_t bytes;
    void *blob = encode_fp8(&m, (trf_favor)_i, &bytes);
    const trf_header *header = blob;
    const trf_extension *extension = (const trf_extension *)((const char *)blob + TRF_EXTENSION_OFFSET);
    ck_assert_uint_eq(header->version, TRF_SCALED_FP8_VERSION);
    ck_assert_uint_eq(extension->granularity, TRF_GRANULARITY_CHANNEL);
    check_decoding(&m, blob, bytes);
    const float *scales = (const float *)((const char *)blob + extension->scales_offset);
    for (uint32_t r = 0; r < m.rows; r++) {
        const uint32_t exponent = r == 0 ? 27 : r == 1 ? 226 : 27 + r * 37 % 200;
        const uint32_t expected = r + 1 < m.rows ? exponent << 23 | sets[r].scale_mantissa
                                                 : (exponent + 1) << 23; /* the last set is the first one, times two */
        ck_assert_uint_eq(trf_f32_bits(scales[r]), expected);
    }
    trf_free(blob);
    free(m.weights);
}
END_TEST

/* ---- what is found ---- */

static trf_granularity find(const fp8_matrix *m, int threads, trf_fp8_scales *scales) {
    const trf_source source = {TRF_DTYPE_BF16, m->rows, m->cols, NULL, NULL, m->weights};
    int found;
    ck_assert_int_eq(trf_find_fp8(&source, threads, scales, &found, &err), TRF_OK);
    return found ? scales->granularity : TRF_GRANULARITY_NONE;
}

static const uint32_t kShapes[][2] = {{32, 32},   {17, 300},  {300, 515}, {1000, 130}, {130, 1000}, {64, 5001},
                                      {515, 127}, {700, 128}, {600, 16},  {256, 256},  {129, 9000}};
enum {
    NUM_SHAPES = sizeof kShapes / sizeof kShapes[0]
};

/* loop: shapes. Every weight has a code in the table that is found, whatever its granularity is called. */
START_TEST(every_granularity_and_shape) {
    test_rng rng = {100 + (uint64_t)_i};
    const uint32_t rows = kShapes[_i][0], cols = kShapes[_i][1];
    const uint32_t regions[3][2] = {{rows, cols}, {1, cols}, {128, 128}};
    const trf_granularity kinds[3] = {TRF_GRANULARITY_TENSOR, TRF_GRANULARITY_CHANNEL, TRF_GRANULARITY_SCALE_BLOCK};
    for (int g = 0; g < 3; g++) {
        fp8_matrix m = fp8_dequantized(&rng, rows, cols, regions[g][0], regions[g][1]);
        trf_fp8_scales scales;
        const trf_granularity found = find(&m, 3, &scales);
        const int one_region = g == 2 && rows <= 128 && cols <= 128;
        ck_assert_int_eq(found, one_region ? TRF_GRANULARITY_TENSOR : kinds[g]);
        uint16_t *codes = malloc((size_t)rows * cols * 2);
        memcpy(codes, m.weights, (size_t)rows * cols * 2);
        trf_find_fp8_codes(&scales, 0, rows, 0, cols, codes, cols);
        size_t without = 0;
        for (size_t i = 0; i < (size_t)rows * cols; i++)
            without += (codes[i] & 0x7F) == TRF_FP8_NO_CODE;
        ck_assert_uint_eq(without, 0);
        uint64_t bytes;
        void *blob = encode_fp8(&m, (trf_favor)(_i % 2), &bytes);
        check_decoding(&m, blob, bytes);
        trf_free(blob);
        trf_fp8_scales_free(&scales);
        free(codes);
        free(m.weights);
    }
}
END_TEST

/* loop: favors. Weights that are no code times their scale come back, too, and many of them make it BF16. */
START_TEST(exceptions) {
    test_rng rng = {7};
    for (int g = 0; g < 2; g++) {
        fp8_matrix m = fp8_dequantized(&rng, 400, 700, g ? 128 : 400, g ? 128 : 700);
        trf_fp8_scales scales;
        uint64_t bytes;
        void *blob;
        fp8_spoil(&rng, &m, 1000);
        blob = encode_fp8(&m, (trf_favor)_i, &bytes);
        ck_assert_uint_gt(((const trf_extension *)((const char *)blob + TRF_EXTENSION_OFFSET))->exception_count, 100);
        check_decoding(&m, blob, bytes);
        trf_free(blob);
        fp8_spoil(&rng, &m, 100);
        ck_assert_int_eq(find(&m, 2, &scales), TRF_GRANULARITY_NONE);
        ck_assert_int_eq(encode(&m, TRF_CODEC_E4M3, (trf_favor)_i, 1, &blob, &bytes, NULL), TRF_ERR_ARGUMENT);
        ck_assert_msg(strstr(err.message, "FP8 codes times scales") != NULL, "%s", err.message);
        free(m.weights);
    }
}
END_TEST

/* A tile that has no codes at all, in a layer with one scale: its weights are stored or exceptions. */
START_TEST(tile_without_codes) {
    test_rng rng = {8};
    fp8_matrix m = fp8_dequantized(&rng, 1024, 8192, 1024, 8192);
    for (uint32_t r = 300; r < 440; r++)
        for (uint32_t c = 600; c < 760; c++)
            m.weights[(size_t)r * m.cols + c] = (uint16_t)test_random(&rng);
    uint64_t bytes;
    void *blob = encode_fp8(&m, TRF_FAVOR_SIZE, &bytes);
    check_decoding(&m, blob, bytes);
    trf_free(blob);
    free(m.weights);
}
END_TEST

/* loop: kinds. */
START_TEST(others_are_not_found) {
    test_rng rng = {200 + (uint64_t)_i};
    fp8_matrix m = fp8_other_matrix(&rng, _i);
    trf_fp8_scales scales;
    ck_assert_int_eq(find(&m, 1, &scales), TRF_GRANULARITY_NONE);
    ck_assert_ptr_null(scales.values);
    free(m.weights);
}
END_TEST

/* MXFP4 is FP8 with scales that are powers of two, of which one does for all. */
START_TEST(mxfp4_is_a_kind_of_fp8) {
    static const double fp4[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    test_rng rng = {300};
    fp8_matrix m = fp8_new_matrix(256, 512);
    double scale = 1;
    for (size_t i = 0; i < (size_t)m.rows * m.cols; i++) {
        scale = i % 32 ? scale : ldexp(1, -8 + (int)test_below(&rng, 3));
        m.weights[i] = trf_f64_to_bf16(fp4[test_below(&rng, 8)] * scale);
    }
    trf_fp8_scales scales;
    ck_assert_int_eq(find(&m, 1, &scales), TRF_GRANULARITY_TENSOR);
    trf_fp8_scales_free(&scales);
    free(m.weights);
}
END_TEST

START_TEST(threads_do_not_matter) {
    test_rng rng = {9};
    for (int g = 0; g < 3; g++) {
        fp8_matrix m = fp8_dequantized(&rng, 900, 1300, g == 0 ? 900 : g == 1 ? 1 : 128, g == 2 ? 128 : 1300);
        uint64_t bytes, others;
        void *blob, *other;
        ck_assert_int_eq(encode(&m, TRF_CODEC_E4M3, TRF_FAVOR_SPEED, 1, &blob, &bytes, NULL), TRF_OK);
        ck_assert_int_eq(encode(&m, TRF_CODEC_E4M3, TRF_FAVOR_SPEED, 4, &other, &others, NULL), TRF_OK);
        ck_assert_uint_eq(bytes, others);
        ck_assert(memcmp(blob, other, bytes) == 0);
        trf_free(blob);
        trf_free(other);
        free(m.weights);
    }
}
END_TEST

/* What is not asked for is not looked for: layers in memory stay BF16, in the old version. */
START_TEST(auto_in_memory_is_bf16) {
    test_rng rng = {10};
    fp8_matrix m = fp8_dequantized(&rng, 64, 256, 64, 256);
    uint64_t bytes;
    void *blob;
    ck_assert_int_eq(encode(&m, TRF_CODEC_AUTO, TRF_FAVOR_SPEED, 1, &blob, &bytes, NULL), TRF_OK);
    ck_assert_uint_eq(((const trf_header *)blob)->codec, TRF_CODEC_BF16);
    ck_assert_uint_eq(((const trf_header *)blob)->version, TRF_FORMAT_VERSION);
    trf_free(blob);
    free(m.weights);
}
END_TEST

/* ---- layers on the CPU ---- */

/* Products of both have to be the same bits: those of the layer of scaled FP8 are those of its BF16 weights. */
START_TEST(products) {
    test_rng rng = {11};
    fp8_matrix m = fp8_dequantized(&rng, 300, 515, 128, 128);
    fp8_spoil(&rng, &m, 2000);
    for (size_t i = 0; i < (size_t)m.rows * m.cols; i++)
        if ((m.weights[i] & 0x7F80) == 0x7F80)
            m.weights[i] = 0;
    void *blobs[2];
    uint64_t bytes;
    float x[5 * 515], y[2][5 * 300];
    for (size_t i = 0; i < sizeof x / sizeof x[0]; i++)
        x[i] = (float)test_normal(&rng);
    for (int i = 0; i < 2; i++) {
        trf_layer *layer;
        ck_assert_int_eq(encode(&m, i ? TRF_CODEC_BF16 : TRF_CODEC_E4M3, TRF_FAVOR_SPEED, 1, &blobs[i], &bytes, NULL),
                         TRF_OK);
        ck_assert_int_eq(trf_layer_from_memory(blobs[i], bytes, &layer, &err), TRF_OK);
        ck_assert_int_eq(trf_layer_matmul_cpu(layer, x, 5, y[i], 2, &err), TRF_OK);
        trf_layer_free(layer);
        trf_free(blobs[i]);
    }
    ck_assert(memcmp(y[0], y[1], sizeof y[0]) == 0);
    free(m.weights);
}
END_TEST

static trf_device_layer *load(trf_context *context, const void *blob, uint64_t bytes, const uint32_t shard[4]) {
    const trf_load_options options = test_shard(shard);
    trf_device_layer *layer;
    ck_assert_msg(trf_device_layer_create(context, blob, bytes, &options, &layer, &err) == TRF_OK, "%s", err.message);
    return layer;
}

static void check_rows(const trf_device_layer *layer, const fp8_matrix *m, const uint32_t shard[4]) {
    const uint32_t rows = shard[1] ? shard[1] : m->rows, cols = shard[3] ? shard[3] : m->cols;
    int32_t *ids = malloc(rows * sizeof *ids);
    uint16_t *weights = malloc((size_t)rows * cols * 2);
    for (uint32_t r = 0; r < rows; r++)
        ids[r] = (int32_t)r;
    trf_row_request request;
    trf_row_request_init(&request);
    request.row_ids = ids;
    request.id_bytes = 4;
    request.count = rows;
    request.as = TRF_DECODE_BF16;
    request.rows = weights;
    request.rows_bytes = (uint64_t)rows * cols * 2;
    ck_assert_msg(trf_decode_rows(layer, &request, NULL, &err) == TRF_OK, "%s", err.message);
    for (uint32_t r = 0; r < rows; r++)
        ck_assert(memcmp(weights + (size_t)r * cols, m->weights + (size_t)(shard[0] + r) * m->cols + shard[2],
                         cols * 2) == 0);
    free(ids);
    free(weights);
}

/* loop: granularities. */
START_TEST(rows_and_shards) {
    static const uint32_t shards[][4] = {{0, 0, 0, 0}, {256, 256, 0, 0}, {112, 288, 64, 512}, {0, 0, 512, 188}};
    test_rng rng = {12};
    fp8_matrix m = fp8_dequantized(&rng, 600, 700, _i == 0 ? 600 : _i == 1 ? 1 : 128, _i == 2 ? 128 : 700);
    fp8_spoil(&rng, &m, 20000);
    uint64_t bytes;
    void *blob = encode_fp8(&m, TRF_FAVOR_SPEED, &bytes);
    trf_context *context;
    ck_assert_int_eq(trf_context_create(TRF_DEVICE_CPU, &context, &err), TRF_OK);
    for (size_t s = 0; s < sizeof shards / sizeof shards[0]; s++) {
        trf_device_layer *layer = load(context, blob, bytes, shards[s]);
        check_rows(layer, &m, shards[s]);
        trf_device_layer_destroy(layer);
    }
    trf_device_layer *layer = load(context, blob, bytes, shards[0]);
    uint16_t *weights = malloc((size_t)m.rows * m.cols * 2);
    for (trf_decode_as as = TRF_DECODE_SOURCE; as <= TRF_DECODE_BF16; as++) {
        ck_assert_int_eq(trf_device_layer_decode(layer, as, weights, (uint64_t)m.rows * m.cols * 2, NULL, &err),
                         TRF_OK);
        ck_assert(memcmp(weights, m.weights, (size_t)m.rows * m.cols * 2) == 0);
    }
    ck_assert_int_eq(trf_device_layer_decode(layer, TRF_DECODE_F16, weights, (uint64_t)m.rows * m.cols * 2, NULL, &err),
                     TRF_ERR_UNSUPPORTED);
    free(weights);
    trf_device_layer_destroy(layer);
    trf_context_destroy(context);
    trf_free(blob);
    free(m.weights);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("scaled_fp8");
    TCase *tests = tcase_create("scaled_fp8");
    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, every_scale_has_its_mantissa_set);
    tcase_add_loop_test(tests, every_code_times_every_set, 0, 2);
    tcase_add_loop_test(tests, every_granularity_and_shape, 0, NUM_SHAPES);
    tcase_add_loop_test(tests, exceptions, 0, 2);
    tcase_add_test(tests, tile_without_codes);
    tcase_add_loop_test(tests, others_are_not_found, 0, FP8_OTHER_KINDS);
    tcase_add_test(tests, mxfp4_is_a_kind_of_fp8);
    tcase_add_test(tests, auto_in_memory_is_bf16);
    tcase_add_test(tests, products);
    tcase_add_loop_test(tests, rows_and_shards, 0, 3);
    suite_add_tcase(suite, tests);
    TCase *threads = tcase_create("threads");
    tcase_set_tags(threads, "threads");
    tcase_set_timeout(threads, 300);
    tcase_add_test(threads, threads_do_not_matter);
    suite_add_tcase(suite, threads);
    return run_suite(suite);
}
