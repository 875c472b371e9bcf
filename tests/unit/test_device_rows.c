/* SPDX-License-Identifier: Apache-2.0 */
/* Rows by number, compared with the whole layer as the host decodes it: every codec and kind of scales, odd shapes,
 * exponent offsets, both sizes of ids, ids that do not exist, what is refused. These tests run on the CPU; tests/gpu/
 * builds this file for a GPU, too, with its ordinal as TRF_TEST_DEVICE. */
#include "common/any_device.h"
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "transfuse/cpu.h"
#include "trf_number_formats.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static trf_error err;
static trf_context *device;

static void check_status(trf_status status, trf_status due, const char *what) {
    if (status != due)
        ck_abort_msg("%s: %s, not %s: %s", what, trf_status_name(status), trf_status_name(due), err.message);
}

static void begin(void) {
    check_status(trf_context_create(TRF_TEST_DEVICE, &device, &err), TRF_OK, "context");
    trf_context_set_threads(device, 2);
}

static void end(void) { trf_context_destroy(device); }

/* ---- layers ---- */

typedef struct kind {
    const char *name;
    trf_dtype dtype;
    trf_codec codec;
    trf_granularity granularity;
    uint32_t scale_group_size;
    double bits;
} kind;

static const kind kKinds[] = {
    {"bf16", TRF_DTYPE_BF16, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, 0},
    {"fp16", TRF_DTYPE_F16, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, 0},
    {"e4m3", TRF_DTYPE_F8_E4M3, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, 0},
    {"e5m2", TRF_DTYPE_F8_E5M2, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, 0},
    {"f32 in bf16", TRF_DTYPE_F32, TRF_CODEC_BF16, TRF_GRANULARITY_NONE, 0, 0},
    {"i8", TRF_DTYPE_I8, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, 0},
    {"tensor", TRF_DTYPE_F32, TRF_CODEC_INT, TRF_GRANULARITY_TENSOR, 0, 0},
    {"channel", TRF_DTYPE_BF16, TRF_CODEC_INT, TRF_GRANULARITY_CHANNEL, 0, 0},
    {"group 48", TRF_DTYPE_F16, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_GROUP, 48, 0},
    {"block 64", TRF_DTYPE_F32, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_BLOCK, 64, 0},
    {"3.5 bits", TRF_DTYPE_BF16, TRF_CODEC_INT, TRF_GRANULARITY_CHANNEL, 0, 3.5},
    {"7.5 bits", TRF_DTYPE_F32, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_GROUP, 32, 7.5},
};
static const uint32_t kShapes[][2] = {{1, 1},     {15, 300}, {33, 65},   {300, 515}, {256, 256}, {272, 320},
                                      {16, 16},   {80, 144}, {31, 2300}, {48, 272},  {17, 1024}, {288, 800},
                                      {257, 256}, {1, 700},  {700, 1},   {530, 1030}};
enum {
    NUM_KINDS = sizeof kKinds / sizeof kKinds[0],
    NUM_SHAPES = sizeof kShapes / sizeof kShapes[0]
};

typedef struct layer {
    char name[160];
    void *blob;
    trf_layer *host;
    trf_device_layer *on_device;
    trf_layer_info info;
} layer;

static layer make_layer(const kind *k, const void *weights, uint32_t rows, uint32_t cols, trf_favor favor,
                        uint32_t slab_cols) {
    layer made;
    uint64_t bytes;
    trf_encode_options options;
    snprintf(made.name, sizeof made.name, "%s, %u x %u, favor %d, slabs of %u", k->name, rows, cols, favor, slab_cols);
    trf_encode_options_init(&options);
    options.codec = k->codec;
    options.granularity = k->granularity;
    options.scale_group_size = k->scale_group_size;
    options.bits = k->bits;
    options.favor = favor;
    options.slab_cols = slab_cols;
    options.verify = 0;
    const trf_matrix matrix = test_matrix(weights, k->dtype, rows, cols);
    check_status(trf_encode_layer(&matrix, &options, &made.blob, &bytes, NULL, &err), TRF_OK, made.name);
    check_status(trf_layer_from_memory(made.blob, bytes, &made.host, &err), TRF_OK, made.name);
    check_status(trf_device_layer_create(device, made.blob, bytes, NULL, &made.on_device, &err), TRF_OK, made.name);
    trf_layer_get_info(made.host, &made.info);
    return made;
}

static void free_layer(layer *l) {
    trf_device_layer_destroy(l->on_device);
    trf_layer_free(l->host);
    free(l->blob);
}

static void *to_device(const void *from, uint64_t bytes) {
    void *memory;
    check_status(trf_device_allocate(device, bytes, &memory, &err), TRF_OK, "allocate");
    check_status(trf_device_upload(device, memory, from, bytes, &err), TRF_OK, "upload");
    return memory;
}

/* ---- rows ---- */

/* Decodes rows into malloc'd memory, and checks that nothing is written before and after them. shift: elements by which
 * they are off their best alignment. */
static uint8_t *decode_rows(const layer *l, const int64_t *ids, uint32_t count, uint32_t id_bytes, trf_decode_as as,
                            uint32_t shift) {
    const uint64_t each = as == TRF_DECODE_SOURCE ? trf_dtype_bytes(l->info.dtype) : 2;
    const uint64_t bytes = count * each * l->info.cols, before = each * shift, all = before + bytes + 64;
    uint8_t *found = malloc(all);
    int32_t *narrow = malloc(count * sizeof *narrow);
    memset(found, 0xA5, all);
    for (uint32_t i = 0; i < count; i++)
        narrow[i] = (int32_t)ids[i];
    void *own_ids = to_device(id_bytes == 8 ? (const void *)ids : narrow, (uint64_t)count * id_bytes);
    uint8_t *own = to_device(found, all);
    const trf_row_request request = test_row_request(own_ids, id_bytes, count, as, own + before, bytes);
    check_status(trf_decode_rows(l->on_device, &request, NULL, &err), TRF_OK, l->name);
    check_status(trf_device_download(device, found, own, all, &err), TRF_OK, l->name);
    for (uint64_t i = 0; i < before; i++)
        EXPECT(found[i] == 0xA5);
    for (uint64_t i = before + bytes; i < all; i++)
        EXPECT(found[i] == 0xA5);
    memmove(found, found + before, bytes);
    trf_device_free(device, own_ids);
    trf_device_free(device, own);
    free(narrow);
    return found;
}

/* The whole layer, by the call that decodes layers; malloc'd. */
static uint8_t *decode_all(const layer *l, trf_decode_as as) {
    const uint64_t each = as == TRF_DECODE_SOURCE ? trf_dtype_bytes(l->info.dtype) : 2;
    const uint64_t bytes = each * l->info.rows * l->info.cols;
    uint8_t *found = calloc(1, bytes);
    if (as == TRF_DECODE_SOURCE) { /* the host decodes it, without a device */
        check_status(trf_layer_decode(l->host, found, bytes, 1, &err), TRF_OK, l->name);
        return found;
    }
    void *own = to_device(found, bytes);
    check_status(trf_device_layer_decode(l->on_device, as, own, bytes, NULL, &err), TRF_OK, l->name);
    check_status(trf_device_download(device, found, own, bytes, &err), TRF_OK, l->name);
    trf_device_free(device, own);
    return found;
}

static int is_nan16(uint16_t bits, trf_decode_as as) {
    return (bits & 0x7FFF) > (as == TRF_DECODE_BF16 ? 0x7F80 : 0x7C00);
}

static int is_same(const uint8_t *found, const uint8_t *due, uint64_t bytes, trf_decode_as as) {
    if (memcmp(found, due, bytes) == 0)
        return 1;
    for (uint64_t i = 0; i < bytes / 2; i++) {
        const uint16_t a = ((const uint16_t *)found)[i], b = ((const uint16_t *)due)[i];
        if (a != b && (as < TRF_DECODE_BF16 || !is_nan16(a, as) || !is_nan16(b, as)))
            return 0;
    }
    return as >= TRF_DECODE_BF16;
}

/* Checks every row once, in some order, and some of them again. */
static void check_rows(test_rng *rng, const layer *l) {
    const uint32_t rows = l->info.rows, count = rows + 7;
    int64_t *ids = malloc(count * sizeof *ids);
    for (uint32_t i = 0; i < count; i++)
        ids[i] = i < rows ? i : test_below(rng, rows);
    for (uint32_t i = count - 1; i > 0; i--) {
        const uint32_t j = test_below(rng, i + 1);
        const int64_t id = ids[i];
        ids[i] = ids[j], ids[j] = id;
    }
    for (trf_decode_as as = TRF_DECODE_SOURCE; as <= TRF_DECODE_F16; as++) {
        if ((as == TRF_DECODE_BF16 && l->info.codec == TRF_CODEC_FP16) ||
            (as == TRF_DECODE_F16 && l->info.codec == TRF_CODEC_BF16))
            continue;
        const uint64_t width = l->info.cols * (as == TRF_DECODE_SOURCE ? trf_dtype_bytes(l->info.dtype) : 2);
        uint8_t *all = decode_all(l, as), *found = decode_rows(l, ids, count, as % 2 ? 4 : 8, as, test_below(rng, 4));
        for (uint32_t i = 0; i < count; i++)
            if (!is_same(found + i * width, all + (uint64_t)ids[i] * width, width, as))
                ck_abort_msg("%s: row %lld as %d is not as in the layer", l->name, (long long)ids[i], as);
        free(all);
        free(found);
    }
    check_status(trf_device_layer_check(l->on_device, &err), TRF_OK, l->name);
    free(ids);
}

/* ---- tests ---- */

/* With fill 1 there are other bit patterns among the finite ones, which are exceptions. */
START_TEST(every_codec_and_shape) {
    const kind *k = &kKinds[_i];
    test_rng rng = {10 + (uint64_t)_i};
    for (int s = 0; s < NUM_SHAPES; s++)
        for (int v = 0; v < 4; v++) {
            if ((s + v / 2) % 2 || !test_tries(s / 2 + _i)) /* each favor with one of the two widths */
                continue;
            const uint32_t rows = kShapes[s][0], cols = kShapes[s][1];
            const size_t weights = (size_t)rows * cols;
            const int patterns = (s + v) % 4 < 2 && k->codec == TRF_CODEC_AUTO;
            void *source = malloc(weights * trf_dtype_bytes(k->dtype));
            if (patterns)
                test_fill_patterns(source, k->dtype, weights);
            else
                test_fill_student(&rng, source, k->dtype, weights, 3, k->dtype == TRF_DTYPE_I8 ? 20 : 0.02);
            layer l = make_layer(k, source, rows, cols, (trf_favor)(v % 2), v / 2 ? 256 : 128);
            check_rows(&rng, &l);
            free_layer(&l);
            free(source);
        }
}
END_TEST

/* Rows and columns of very different size. */
START_TEST(exponent_offsets) {
    const kind *k = &kKinds[_i % 2];
    const uint32_t rows = 330, cols = 590;
    uint16_t *source = malloc(2 * rows * cols);
    test_rng rng = {50 + (uint64_t)_i};
    int row_scale[330], col_scale[590];
    for (uint32_t r = 0; r < rows; r++)
        row_scale[r] = _i / 2 != 1 ? (int)test_below(&rng, _i % 2 ? 5 : 12) : 0;
    for (uint32_t c = 0; c < cols; c++)
        col_scale[c] = _i / 2 != 0 ? (int)test_below(&rng, _i % 2 ? 5 : 12) : 0;
    for (uint32_t i = 0; i < rows * cols; i++)
        test_put_weight(source, k->dtype, i,
                        ldexp(0.05 * test_normal(&rng), row_scale[i / cols] - col_scale[i % cols]));
    uint32_t modes = 0;
    for (int v = 0; v < 4; v++) {
        layer l = make_layer(k, source, rows, cols, (trf_favor)(v % 2), v / 2 ? 256 : 128);
        modes |= l.info.predictor_modes;
        check_rows(&rng, &l);
        free_layer(&l);
    }
    ck_assert(modes != 0 || k->dtype == TRF_DTYPE_F16); /* which may do without */
    free(source);
}
END_TEST

/* A large table, of which most rows are not looked up; the batch is large enough for several threads. */
START_TEST(large_table) {
    const uint32_t rows = 3000, cols = 2048, count = 900;
    uint16_t *source = malloc(2ull * rows * cols);
    int64_t ids[900];
    test_rng rng = {70};
    test_fill_normal(&rng, source, TRF_DTYPE_BF16, (size_t)rows * cols, 0.02);
    layer l = make_layer(&kKinds[0], source, rows, cols, (trf_favor)_i, 256);
    for (uint32_t i = 0; i < count; i++)
        ids[i] = test_below(&rng, rows);
    uint8_t *found = decode_rows(&l, ids, count, 8, TRF_DECODE_BF16, 0);
    for (uint32_t i = 0; i < count; i++)
        EXPECT(memcmp(found + 2ull * cols * i, source + ids[i] * cols, 2 * cols) == 0);
    free(found);
    free_layer(&l);
    free(source);
}
END_TEST

/* Ids that do not exist give NaN, or zero if the type has no NaN, and leave no fault in the layer. */
START_TEST(no_such_rows) {
    static const int64_t ids[] = {299, -1, 0, 300, 5, INT32_MAX, INT32_MIN, 298};
    static const int64_t wide[] = {1ll << 32, (1ll << 32) + 5, INT64_MIN, INT64_MAX, -(1ll << 32), 1ll << 31, 0, 0};
    static const int kinds[] = {0, 1, 4, 5, 7};
    const kind *k = &kKinds[kinds[_i]];
    const uint32_t rows = 300, cols = 530, count = 8;
    const size_t each = trf_dtype_bytes(k->dtype);
    void *source = malloc(rows * cols * each);
    test_rng rng = {80};
    test_fill_normal(&rng, source, k->dtype, (size_t)rows * cols, k->dtype == TRF_DTYPE_I8 ? 20 : 0.02);
    layer l = make_layer(k, source, rows, cols, TRF_FAVOR_SPEED, 128);
    uint8_t *all = decode_all(&l, TRF_DECODE_SOURCE);
    for (int w = 0; w < 3; w++) {
        const int64_t *asked = w == 2 ? wide : ids;
        uint8_t *found = decode_rows(&l, asked, count, w ? 8 : 4, TRF_DECODE_SOURCE, 1);
        for (uint32_t i = 0; i < count; i++) {
            const int is_there = asked[i] >= 0 && asked[i] < rows;
            for (uint32_t c = 0; c < cols; c++) {
                const uint8_t *weight = found + (i * cols + c) * each;
                float value = 0;
                if (each == 4)
                    memcpy(&value, weight, 4);
                else if (each == 2)
                    value = k->dtype == TRF_DTYPE_BF16 ? trf_bf16_to_f32(*(const uint16_t *)weight)
                                                       : trf_f16_to_f32(*(const uint16_t *)weight);
                if (is_there)
                    EXPECT(memcmp(weight, all + ((uint64_t)asked[i] * cols + c) * each, each) == 0);
                else
                    EXPECT(each == 1 ? *weight == 0 : isnan(value));
            }
        }
        free(found);
    }
    check_status(trf_device_layer_check(l.on_device, &err), TRF_OK, l.name);
    free(all);
    free_layer(&l);
    free(source);
}
END_TEST

START_TEST(refused) {
    const uint32_t rows = 40, cols = 100;
    uint16_t source[40 * 100];
    test_rng rng = {90};
    test_fill_normal(&rng, source, TRF_DTYPE_BF16, rows * cols, 0.02);
    layer l = make_layer(&kKinds[0], source, rows, cols, TRF_FAVOR_SPEED, 128);
    const int64_t ids[2] = {0, 1};
    uint8_t *own_ids = to_device(ids, sizeof ids), *to = to_device(source, sizeof source);
    const uint64_t bytes = 2ull * 2 * cols;
    const trf_decode_as as = TRF_DECODE_BF16;
    const trf_row_request good = test_row_request(own_ids, 8, 2, as, to, bytes);
    trf_row_request of_no_size = good;
    of_no_size.struct_bytes = 0;
    const struct {
        trf_row_request request;
        trf_status due;
    } cases[] = {
        {test_row_request(NULL, 8, 2, as, to, bytes), TRF_ERR_ARGUMENT},
        {test_row_request(own_ids, 2, 2, as, to, bytes), TRF_ERR_ARGUMENT},
        {test_row_request(own_ids + 4, 8, 1, as, to, bytes / 2), TRF_ERR_ARGUMENT},
        {test_row_request(own_ids, 8, 2, as, NULL, bytes), TRF_ERR_ARGUMENT},
        {test_row_request(own_ids, 8, 2, as, to + 1, bytes), TRF_ERR_ARGUMENT},
        {test_row_request(own_ids, 8, 2, (trf_decode_as)4, to, bytes), TRF_ERR_ARGUMENT},
        {test_row_request(own_ids, 8, 2, as, to, bytes - 2), TRF_ERR_SHAPE},
        {test_row_request(own_ids, 8, 1, as, to, bytes), TRF_ERR_SHAPE},
        {test_row_request(own_ids, 8, 2, TRF_DECODE_F16, to, bytes), TRF_ERR_UNSUPPORTED},
        {of_no_size, TRF_ERR_ARGUMENT},
        {test_row_request(NULL, 8, 0, as, NULL, 0), TRF_OK},
        {good, TRF_OK},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char what[16];
        snprintf(what, sizeof what, "case %zu", i);
        check_status(trf_decode_rows(l.on_device, &cases[i].request, NULL, &err), cases[i].due, what);
    }
    check_status(trf_decode_rows(NULL, &good, NULL, &err), TRF_ERR_ARGUMENT, "no layer");
    check_status(trf_decode_rows(l.on_device, NULL, NULL, &err), TRF_ERR_ARGUMENT, "no request");
    trf_device_free(device, own_ids);
    trf_device_free(device, to);
    free_layer(&l);
}
END_TEST

int main(void) {
    if (test_device_missing("gpu.rows"))
        return 77;
    Suite *suite = suite_create("device_rows");
    TCase *tests = tcase_create("device_rows");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, every_codec_and_shape, 0, NUM_KINDS);
    tcase_add_loop_test(tests, exponent_offsets, 0, 6);
    tcase_add_loop_test(tests, no_such_rows, 0, 5);
    tcase_add_test(tests, refused);
    suite_add_tcase(suite, tests);
    TCase *threads = tcase_create("threads");
    tcase_set_tags(threads, "threads");
    tcase_add_unchecked_fixture(threads, begin, end);
    tcase_set_timeout(threads, 240);
    tcase_add_loop_test(threads, large_table, 0, 2);
    suite_add_tcase(suite, threads);
    return run_suite(suite);
}
