/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU as a device: contexts, loading from checkpoints, products, decoding, and what goes wrong. Tiles are checked
 * and decoded in parallel. */
#include "common/checkpoint_fixture.h"
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "transfuse/cpu.h"
#include "transfuse/stacks.h"
#include "transfuse/tuning.h"
#include "trf_number_formats.h"

#include <check.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const fixture_tensor kTensors[] = {
    {"a.weight", "BF16", {300, 520}, 2, 0},     {"odd", "U8", {3}, 1, 0},
    {"half.weight", "F16", {64, 272}, 2, 0},    {"experts.up_proj", "BF16", {5, 48, 320}, 3, 0},
    {"e4.weight", "F8_E4M3", {256, 300}, 2, 0}, {"e5.weight", "F8_E5M2", {256, 300}, 2, 0},
    {"codes.weight", "I8", {100, 256}, 2, 0},   {"tall.weight", "BF16", {1100, 48}, 2, 0},
};
static const char *const kMatrices[] = {"a.weight",  "half.weight",  "experts.up_proj[3]", "e4.weight",
                                        "e5.weight", "codes.weight", "tall.weight_trf"};
enum {
    NUM_TENSORS = sizeof kTensors / sizeof kTensors[0],
    NUM_MATRICES = sizeof kMatrices / sizeof kMatrices[0]
};

static trf_error err;
static trf_context *cpu;
static const char *compressed_path;
static trf_checkpoint *checkpoint;

static void begin(void) {
    fixture_begin();
    compressed_path = fixture_path("compressed.safetensors");
    checkpoint = fixture_open_compressed(kTensors, NUM_TENSORS);
    fixture_check_status(trf_context_create(TRF_DEVICE_CPU, &cpu, &err), TRF_OK, &err);
}

static void end(void) {
    trf_context_destroy(cpu);
    trf_checkpoint_close(checkpoint);
    fixture_end();
}

static trf_device_layer *load(const char *tensor) {
    trf_device_layer *layer;
    fixture_check_status(trf_device_layer_load(cpu, checkpoint, tensor, NULL, &layer, &err), TRF_OK, &err);
    return layer;
}

/* The same matrix as a layer on the host. */
static trf_layer *open_host(const char *tensor) {
    trf_layer *layer;
    const char *path = fixture_path("%s.trf", tensor);
    fixture_check_status(trf_extract_layer(compressed_path, tensor, path, 1, &err), TRF_OK, &err);
    fixture_check_status(trf_layer_open(path, &layer, &err), TRF_OK, &err);
    return layer;
}

static void *allocate(uint64_t bytes) {
    void *memory;
    fixture_check_status(trf_device_allocate(cpu, bytes, &memory, &err), TRF_OK, &err);
    return memory;
}

/* ---- contexts ---- */

START_TEST(contexts) {
    trf_context *context = NULL;
    trf_context_info info;
    trf_context_get_info(cpu, &info);
    ck_assert_int_eq(info.device, TRF_DEVICE_CPU);
    ck_assert_int_eq(info.capability, 0);
    ck_assert_str_eq(info.name, "CPU");
    fixture_check_status(trf_context_create(TRF_DEVICE_AUTO, &context, &err), TRF_OK, &err);
    trf_context_get_info(context, &info);
    ck_assert_int_ge(info.device, TRF_DEVICE_CPU);
    trf_context_destroy(context);
    trf_context_destroy(NULL);
    fixture_check_status(trf_context_create(-3, &context, &err), TRF_ERR_DEVICE, &err);

    static const char text[] = "some bytes";
    char back[sizeof text];
    char *memory = allocate(sizeof text);
    ck_assert_uint_eq((uintptr_t)memory % 256, 0);
    fixture_check_status(trf_device_upload(cpu, memory, text, sizeof text, &err), TRF_OK, &err);
    fixture_check_status(trf_device_download(cpu, back, memory, sizeof text, &err), TRF_OK, &err);
    ck_assert_str_eq(back, text);
    trf_device_free(cpu, memory);
    trf_device_free(cpu, allocate(0));
    void *none = &none;
    fixture_check_status(trf_device_allocate(cpu, UINT64_MAX - 100, &none, &err), TRF_ERR_MEMORY, &err);
    ck_assert_ptr_null(none);
}
END_TEST

/* ---- products ---- */

static float widened(uint16_t bits, trf_dtype dtype) {
    return dtype == TRF_DTYPE_BF16 ? trf_bf16_to_f32(bits) : trf_f16_to_f32(bits);
}

/* Compares one product on the device with the host's, value by value. */
static void check_product(trf_device_layer *layer, const trf_layer *host, uint32_t m, trf_dtype x_dtype,
                          trf_dtype y_dtype) {
    trf_layer_info info;
    trf_layer_get_info(host, &info);
    const size_t x_count = (size_t)m * info.cols, y_count = (size_t)m * info.rows;
    trf_plan *plan;
    trf_status status = test_make_plan(layer, m, x_dtype, y_dtype, TRF_PATH_AUTO, &plan, &err);
    if ((info.codec == TRF_CODEC_BF16 && x_dtype == TRF_DTYPE_F16) ||
        (info.codec == TRF_CODEC_FP16 && x_dtype == TRF_DTYPE_BF16)) {
        fixture_check_status(status, TRF_ERR_ARGUMENT, &err);
        return;
    }
    fixture_check_status(status, TRF_OK, &err);
    const trf_plan_info of_plan = test_plan_info(plan);
    ck_assert(of_plan.m == m && of_plan.x_dtype == x_dtype && of_plan.y_dtype == y_dtype);
    ck_assert_int_eq(of_plan.path, TRF_PATH_FUSED);
    ck_assert_str_eq(of_plan.path_name, "fused");
    ck_assert_ptr_null(of_plan.reason);
    uint16_t *x = allocate(2 * x_count);
    void *y = allocate(trf_dtype_bytes(y_dtype) * y_count), *workspace = allocate(of_plan.workspace_bytes);
    float *wide_x = malloc(4 * x_count), *expected = malloc(4 * y_count);
    test_rng rng = {m};
    test_fill_normal(&rng, x, x_dtype, x_count, 1.0);
    for (size_t i = 0; i < x_count; i++)
        wide_x[i] = widened(x[i], x_dtype);
    fixture_check_status(trf_layer_matmul_cpu(host, wide_x, m, expected, 1, &err), TRF_OK, &err);
    memset(workspace, 0xFF, of_plan.workspace_bytes);
    fixture_check_status(test_multiply(plan, x, y, workspace, NULL, &err), TRF_OK, &err);
    for (size_t i = 0; i < y_count; i++) {
        const float value = y_dtype == TRF_DTYPE_F32 ? ((float *)y)[i] : widened(((uint16_t *)y)[i], y_dtype);
        const float due = y_dtype == TRF_DTYPE_F32    ? expected[i]
                          : y_dtype == TRF_DTYPE_BF16 ? trf_bf16_to_f32((uint16_t)trf_f32_to_bf16(expected[i]))
                                                      : trf_f16_to_f32((uint16_t)trf_f32_to_f16(expected[i]));
        if (value != due)
            ck_abort_msg("m %u, y of %s, %zu: %a, not %a", m, trf_dtype_name(y_dtype), i, (double)value, (double)due);
    }
    trf_plan_destroy(plan);
    free(wide_x);
    free(expected);
    trf_device_free(cpu, x);
    trf_device_free(cpu, y);
    trf_device_free(cpu, workspace);
}

START_TEST(products) {
    static const uint32_t batches[] = {1, 8, 70};
    static const trf_dtype x_dtypes[] = {TRF_DTYPE_BF16, TRF_DTYPE_F16};
    static const trf_dtype y_dtypes[] = {TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16};
    trf_device_layer *layer = load(kMatrices[_i]);
    trf_layer *host = open_host(kMatrices[_i]);
    const trf_device_layer_info on_device = test_device_layer_info(layer);
    const trf_layer_info info = on_device.layer;
    trf_layer_info host_info;
    trf_layer_get_info(host, &host_info);
    ck_assert(info.rows == host_info.rows && info.cols == host_info.cols && info.codec == host_info.codec &&
              info.blob_bytes == host_info.blob_bytes);
    ck_assert_int_eq(on_device.layout, TRF_LAYOUT_CODED);
    ck_assert_uint_ge(on_device.memory_bytes, info.blob_bytes);
    for (int b = 0; b < 3; b++)
        for (int x = 0; x < 2; x++)
            for (int y = 0; y < 3; y++) {
                trf_context_set_threads(cpu, 1 + (b + y) % 3);
                check_product(layer, host, batches[b], x_dtypes[x], y_dtypes[y]);
            }
    fixture_check_status(trf_device_layer_check(layer, &err), TRF_OK, &err);
    trf_layer_free(host);
    trf_device_layer_destroy(layer);
}
END_TEST

/* A layer outlives the host memory that it was made from. */
START_TEST(copies_of_layers) {
    size_t bytes;
    trf_layer_free(open_host("a.weight"));
    void *blob = fixture_read(fixture_path("a.weight.trf"), &bytes);
    trf_layer *reference = open_host("a.weight");
    trf_device_layer *layer, *none = NULL;
    fixture_check_status(trf_device_layer_create(cpu, blob, bytes, NULL, &layer, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_create(cpu, blob, bytes - 1, NULL, &none, &err), TRF_ERR_TRUNCATED, &err);
    fixture_check_status(trf_device_layer_create(NULL, blob, bytes, NULL, &none, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_device_layer_create(cpu, blob, bytes, NULL, NULL, &err), TRF_ERR_ARGUMENT, &err);
    trf_load_options options;
    trf_load_options_init(&options);
    options.struct_bytes = 0;
    fixture_check_status(trf_device_layer_create(cpu, blob, bytes, &options, &none, &err), TRF_ERR_ARGUMENT, &err);
    memset(blob, 0, bytes);
    free(blob);
    check_product(layer, reference, 3, TRF_DTYPE_BF16, TRF_DTYPE_F32);
    trf_layer_free(reference);
    trf_device_layer_destroy(layer);
    fixture_check_status(trf_device_layer_create(cpu, NULL, bytes, NULL, &none, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_null(none);
    trf_device_layer_destroy(NULL);
}
END_TEST

/* Options that lead to no plan. */
static void refuse_plan(trf_device_layer *layer, trf_plan_options options, trf_status due) {
    trf_plan *plan = NULL;
    fixture_check_status(trf_plan_create(layer, &options, &plan, &err), due, &err);
    ck_assert_ptr_null(plan);
}

START_TEST(refused_plans) {
    trf_device_layer *layer = load("a.weight");
    const trf_plan_options good = test_plan_options(2, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_FUSED);
    trf_plan_options wrong = good;
    trf_plan *plan = NULL;
    for (wrong.path = TRF_PATH_TWO_STEP; wrong.path <= TRF_PATH_PACKED; wrong.path++) {
        refuse_plan(layer, wrong, TRF_ERR_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(err.message, trf_path_name(wrong.path)));
    }
    refuse_plan(layer, wrong, TRF_ERR_ARGUMENT); /* no such path */
    refuse_plan(layer, test_plan_options(0, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO), TRF_ERR_ARGUMENT);
    refuse_plan(layer, test_plan_options(1, TRF_DTYPE_F32, TRF_DTYPE_F32, TRF_PATH_AUTO), TRF_ERR_ARGUMENT);
    refuse_plan(layer, test_plan_options(1, TRF_DTYPE_BF16, TRF_DTYPE_I8, TRF_PATH_AUTO), TRF_ERR_ARGUMENT);
    refuse_plan(layer, test_plan_options(1, TRF_DTYPE_NONE, TRF_DTYPE_F32, TRF_PATH_AUTO), TRF_ERR_ARGUMENT);
    refuse_plan(layer, test_plan_options(1, TRF_DTYPE_BF16, TRF_DTYPE_NONE, TRF_PATH_AUTO), TRF_ERR_ARGUMENT);
    wrong = good;
    wrong.struct_bytes = 0;
    refuse_plan(layer, wrong, TRF_ERR_ARGUMENT);
    refuse_plan(NULL, good, TRF_ERR_ARGUMENT);
    fixture_check_status(trf_plan_create(layer, NULL, &plan, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_plan_create(layer, &good, NULL, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_null(plan);
    ck_assert_uint_eq(test_device_layer_info(layer).plans, 0);
    trf_plan_destroy(NULL);
    trf_device_layer_destroy(layer);
}
END_TEST

/* A struct of a program that was compiled against a later version: fields that this version does not know must be 0. */
START_TEST(options_of_later_versions) {
    struct {
        trf_plan_options options;
        uint8_t later[24];
    } given = {test_plan_options(1, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO), {0}};
    trf_device_layer *layer = load("a.weight");
    trf_plan *plan = NULL;
    given.options.struct_bytes = sizeof given;
    given.later[7] = 1;
    fixture_check_status(trf_plan_create(layer, &given.options, &plan, &err), TRF_ERR_UNSUPPORTED, &err);
    ck_assert_ptr_null(plan);
    given.later[7] = 0;
    fixture_check_status(trf_plan_create(layer, &given.options, &plan, &err), TRF_OK, &err);
    trf_plan_destroy(plan);
    given.options.struct_bytes = SIZE_MAX;
    fixture_check_status(trf_plan_create(layer, &given.options, &plan, &err), TRF_ERR_ARGUMENT, &err);
    trf_device_layer_destroy(layer);
}
END_TEST

START_TEST(refused_products) {
    trf_device_layer *layer = load("a.weight");
    trf_plan *plan;
    fixture_check_status(test_make_plan(layer, 2, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_FUSED, &plan, &err), TRF_OK,
                         &err);
    uint8_t *x = allocate(2 * 2 * 520), *y = allocate(4 * 2 * 1100),
            *workspace = allocate(test_plan_info(plan).workspace_bytes + 256);
    const trf_operands good = test_operands(x, y);
    trf_operands of_no_size = good;
    of_no_size.struct_bytes = 0;
    fixture_check_status(test_multiply(plan, NULL, y, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(test_multiply(plan, x, NULL, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(test_multiply(plan, x + 1, y, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(test_multiply(plan, x, y + 2, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(test_multiply(plan, x, y, workspace + 64, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(test_multiply(plan, x, y, NULL, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(test_multiply(NULL, x, y, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_linear(plan, NULL, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_linear(plan, &of_no_size, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_linear(plan, &good, workspace, NULL, &err), TRF_OK, &err);
    trf_device_free(cpu, x);
    trf_device_free(cpu, y);
    trf_device_free(cpu, workspace);
    trf_plan_destroy(plan);
    trf_device_layer_destroy(layer);
}
END_TEST

/* ---- decoding ---- */

/* The bits that an element of a codec has when it is decoded as `as`. */
static uint16_t converted(trf_codec codec, uint32_t element, trf_decode_as as) {
    float value = 0;
    switch (codec) {
    case TRF_CODEC_BF16:
    case TRF_CODEC_FP16:
        return (uint16_t)element;
    case TRF_CODEC_E4M3:
        value = trf_e4m3_to_f32((uint8_t)element);
        break;
    case TRF_CODEC_E5M2:
        value = trf_e5m2_to_f32((uint8_t)element);
        break;
    default:
        value = (float)(int8_t)element;
        break;
    }
    return (uint16_t)(as == TRF_DECODE_BF16 ? trf_f32_to_bf16(value) : trf_f32_to_f16(value));
}

START_TEST(decoding) {
    trf_device_layer *layer = load(kMatrices[_i]);
    trf_layer *host = open_host(kMatrices[_i]);
    trf_layer_info info;
    trf_layer_get_info(host, &info);
    const size_t count = (size_t)info.rows * info.cols, bytes = trf_dtype_bytes(info.dtype);
    uint8_t *source = malloc(count * bytes), *decoded = allocate(2 * count);
    fixture_check_status(trf_layer_decode(host, source, count * bytes, 1, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_decode(layer, TRF_DECODE_SOURCE, decoded, count * bytes, NULL, &err), TRF_OK,
                         &err);
    ck_assert_mem_eq(source, decoded, count * bytes);
    for (int as = TRF_DECODE_ELEMENTS; as <= TRF_DECODE_F16; as++) {
        const int refused = (as == TRF_DECODE_BF16 && info.codec == TRF_CODEC_FP16) ||
                            (as == TRF_DECODE_F16 && info.codec == TRF_CODEC_BF16);
        fixture_check_status(trf_device_layer_decode(layer, (trf_decode_as)as, decoded, 2 * count, NULL, &err),
                             refused ? TRF_ERR_UNSUPPORTED : TRF_OK, &err);
        for (size_t i = 0; i < count && !refused; i++) {
            const uint32_t element = bytes == 2 ? ((uint16_t *)source)[i] : source[i];
            const uint16_t due = as != TRF_DECODE_ELEMENTS     ? converted(info.codec, element, (trf_decode_as)as)
                                 : info.codec == TRF_CODEC_INT ? (uint16_t)(int8_t)element
                                                               : (uint16_t)element;
            if (((uint16_t *)decoded)[i] != due)
                ck_abort_msg("kind %d, weight %zu: %04x, not %04x", as, i, ((uint16_t *)decoded)[i], due);
        }
    }
    fixture_check_status(trf_device_layer_decode(layer, TRF_DECODE_ELEMENTS, decoded, 2 * count - 2, NULL, &err),
                         TRF_ERR_SHAPE, &err);
    fixture_check_status(trf_device_layer_decode(layer, TRF_DECODE_ELEMENTS, decoded + 2, 2 * count, NULL, &err),
                         TRF_ERR_ARGUMENT, &err);
    free(source);
    trf_device_free(cpu, decoded);
    trf_layer_free(host);
    trf_device_layer_destroy(layer);
}
END_TEST

/* ---- failures ---- */

/* rANS streams whose corruption only decoding can detect: the call reports it, y is NaN, and the layer remembers. */
START_TEST(corrupt_rans_streams) {
    glob_t files;
    int corrupt = 0, noticed = 0;
    ck_assert_int_eq(glob(TRF_TEST_DATA_DIR "/golden/corrupt/*.trf", 0, NULL, &files), 0);
    for (size_t f = 0; f < files.gl_pathc; f++) {
        trf_layer *host;
        trf_device_layer *layer;
        if (trf_layer_open(files.gl_pathv[f], &host, NULL) != TRF_OK)
            continue;
        corrupt++;
        size_t blob_bytes;
        void *blob = fixture_read(files.gl_pathv[f], &blob_bytes);
        fixture_check_status(trf_device_layer_create(cpu, blob, blob_bytes, NULL, &layer, &err), TRF_OK, &err);
        fixture_check_status(trf_device_layer_check(layer, &err), TRF_OK, &err);
        trf_layer_info info;
        trf_plan *plan;
        trf_layer_get_info(host, &info);
        const trf_dtype x_dtype = info.codec == TRF_CODEC_BF16 ? TRF_DTYPE_BF16 : TRF_DTYPE_F16;
        fixture_check_status(test_make_plan(layer, 1, x_dtype, TRF_DTYPE_F32, TRF_PATH_AUTO, &plan, &err), TRF_OK,
                             &err);
        uint16_t *x = allocate(2 * (uint64_t)info.cols);
        float *y = allocate(4 * (uint64_t)info.rows);
        void *workspace = allocate(test_plan_info(plan).workspace_bytes);
        memset(x, 0, 2 * (size_t)info.cols);
        fixture_check_status(test_multiply(plan, x, y, workspace, NULL, &err), TRF_ERR_RANS, &err);
        ck_assert_uint_ne(err.offset, TRF_NO_OFFSET);
        for (uint32_t r = 0; r < info.rows; r++)
            EXPECT(isnan(y[r]));
        trf_error remembered = {0};
        fixture_check_status(trf_device_layer_check(layer, &remembered), TRF_ERR_RANS, &remembered);
        ck_assert_uint_eq(remembered.offset, err.offset);
        void *weights = allocate((uint64_t)info.rows * info.cols * 4);
        const uint64_t bytes = (uint64_t)info.rows * info.cols * trf_dtype_bytes(info.dtype);
        fixture_check_status(trf_device_layer_decode(layer, TRF_DECODE_SOURCE, weights, bytes, NULL, &err),
                             TRF_ERR_RANS, &err);
        trf_plan_destroy(plan);
        trf_device_layer_destroy(layer);
        /* Decodes row by row, on a layer that no other call has touched. */
        int64_t *ids = allocate(8ull * info.rows);
        for (uint32_t r = 0; r < info.rows; r++)
            ids[r] = r;
        fixture_check_status(trf_device_layer_create(cpu, blob, blob_bytes, NULL, &layer, &err), TRF_OK, &err);
        /* The lanes of a row do not see words that no lane takes. */
        const trf_status status =
            test_decode_rows(layer, test_row_request(ids, 8, info.rows, TRF_DECODE_SOURCE, weights, bytes), NULL, &err);
        if (status != TRF_OK) {
            noticed++;
            fixture_check_status(status, TRF_ERR_RANS, &err);
            ck_assert_uint_eq(remembered.offset, err.offset);
        }
        fixture_check_status(trf_device_layer_check(layer, &remembered), status, &remembered);
        trf_device_free(cpu, ids);
        trf_device_free(cpu, weights);
        trf_device_free(cpu, x);
        trf_device_free(cpu, y);
        trf_device_free(cpu, workspace);
        trf_device_layer_destroy(layer);
        trf_layer_free(host);
        free(blob);
    }
    globfree(&files);
    ck_assert_int_gt(corrupt, 0);
    ck_assert_int_gt(noticed, 0);
}
END_TEST

typedef struct counted_progress {
    int calls, stop_at;
    uint64_t done, total;
} counted_progress;

static int count_progress(void *context, const char *tensor, uint64_t done, uint64_t total) {
    counted_progress *progress = context;
    ck_assert_str_eq(tensor, "a.weight");
    ck_assert_uint_ge(done, progress->done);
    ck_assert_uint_le(done, total);
    progress->done = done;
    progress->total = total;
    return ++progress->calls == progress->stop_at;
}

START_TEST(loads_that_fail) {
    static const struct {
        const char *tensor;
        trf_status status;
    } cases[] = {{"b.weight", TRF_ERR_NOT_FOUND},
                 {"", TRF_ERR_NOT_FOUND},
                 {"odd", TRF_ERR_ARGUMENT},
                 {"experts.up_proj", TRF_ERR_ARGUMENT},
                 {"experts.up_proj[5]", TRF_ERR_NOT_FOUND},
                 {"a.weight[0]", TRF_ERR_NOT_FOUND},
                 {"experts.up_proj[-1]", TRF_ERR_NOT_FOUND}};
    trf_device_layer *layer = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture_check_status(trf_device_layer_load(cpu, checkpoint, cases[i].tensor, NULL, &layer, &err),
                             cases[i].status, &err);
        ck_assert_ptr_nonnull(strstr(err.message, compressed_path));
        ck_assert_ptr_nonnull(strstr(err.message, cases[i].tensor));
        ck_assert_ptr_null(layer);
    }
    trf_load_options options;
    trf_load_options_init(&options);
    options.progress = count_progress;
    for (int stop_at = 1; stop_at <= 4; stop_at++) { /* at the beginning, and after each of two rows of tiles */
        counted_progress progress = {.stop_at = stop_at};
        options.progress_context = &progress;
        const trf_status due = stop_at < 4 ? TRF_ERR_CANCELLED : TRF_OK;
        fixture_check_status(trf_device_layer_load(cpu, checkpoint, "a.weight", &options, &layer, &err), due, &err);
        ck_assert_uint_eq(progress.done == progress.total, stop_at > 2);
    }
    trf_device_layer_destroy(layer);
}
END_TEST

static trf_tensor_info find_tensor(const char *name) {
    trf_tensor_info info;
    uint64_t index = 0;
    do
        fixture_check_status(trf_checkpoint_tensor(checkpoint, index++, &info, &err), TRF_OK, &err);
    while (strcmp(info.name, name) != 0);
    return info;
}

/* The message has the byte, too. */
static void check_place_is_told(void) {
    char place[32];
    snprintf(place, sizeof place, "byte %llu", (unsigned long long)err.offset);
    ck_assert_msg(strstr(err.message, place) != NULL, "%s", err.message);
}

/* Every changed byte of a blob is found, and the message says where it is. */
START_TEST(damaged_files) {
    size_t bytes;
    uint8_t *file = fixture_read(compressed_path, &bytes);
    const char *damaged = fixture_path("damaged.safetensors");
    const trf_tensor_info info = find_tensor("e4.weight");
    for (int part = 0; part < 3; part++) {
        const uint64_t at = info.file_offset + (part == 0 ? 400 : part == 1 ? info.bytes / 2 : info.bytes - 1);
        file[at] ^= 1;
        fixture_write(damaged, file, bytes);
        file[at] ^= 1;
        trf_checkpoint *opened;
        trf_device_layer *layer = NULL;
        fixture_check_status(trf_checkpoint_open(damaged, &opened, &err), TRF_OK, &err);
        fixture_check_status(trf_device_layer_load(cpu, opened, "e4.weight", NULL, &layer, &err), TRF_ERR_CHECKSUM,
                             &err);
        ck_assert_ptr_nonnull(strstr(err.message, "damaged.safetensors"));
        ck_assert_ptr_nonnull(strstr(err.message, "e4.weight"));
        if (part > 0) /* for the head, the message has where the blob begins */
            check_place_is_told();
        ck_assert_uint_ge(err.offset, info.file_offset);
        ck_assert_uint_lt(err.offset, info.file_offset + info.bytes);
        ck_assert_ptr_null(layer);
        fixture_check_status(trf_device_layer_load(cpu, opened, "e5.weight", NULL, &layer, &err), TRF_OK, &err);
        trf_device_layer_destroy(layer);
        trf_checkpoint_close(opened);
    }
    free(file);
}
END_TEST

/* A file that is cut after the checkpoint was opened. */
START_TEST(cut_files) {
    size_t bytes;
    uint8_t *file = fixture_read(compressed_path, &bytes);
    const char *path = fixture_path("cut.safetensors");
    const trf_tensor_info info = find_tensor("e4.weight");
    const uint64_t kept[] = {0, 400, info.bytes / 2, info.bytes - 1};
    for (int i = 0; i < 12; i++) { /* whole, a shard, to a stack */
        fixture_write(path, file, bytes);
        trf_checkpoint *opened;
        trf_device_layer *layer = NULL;
        trf_stack *stack;
        trf_load_options options;
        trf_load_options_init(&options);
        options.first_row = i / 4 == 1 ? 16 : 0;
        fixture_check_status(trf_checkpoint_open(path, &opened, &err), TRF_OK, &err);
        fixture_check_status(trf_stack_create(cpu, &stack, &err), TRF_OK, &err);
        ck_assert_int_eq(truncate(path, (off_t)(info.file_offset + kept[i % 4])), 0);
        const trf_status status = i < 8 ? trf_device_layer_load(cpu, opened, "e4.weight", &options, &layer, &err)
                                        : trf_stack_load(stack, opened, "e4.weight", NULL, &err);
        fixture_check_status(status, TRF_ERR_TRUNCATED, &err);
        ck_assert_ptr_nonnull(strstr(err.message, "cut.safetensors"));
        ck_assert_ptr_nonnull(strstr(err.message, "e4.weight"));
        check_place_is_told();
        ck_assert_uint_ge(err.offset, info.file_offset);
        ck_assert_uint_le(err.offset, info.file_offset + kept[i % 4]);
        ck_assert_ptr_null(layer);
        trf_stack_destroy(stack);
        trf_checkpoint_close(opened);
    }
    free(file);
}
END_TEST

/* Layers do not need their checkpoint any more, and a .trf file is a checkpoint of one tensor. */
START_TEST(checkpoints_may_be_closed) {
    trf_layer *host = open_host("half.weight");
    trf_checkpoint *opened;
    trf_device_layer *layer;
    fixture_check_status(trf_checkpoint_open(fixture_path("half.weight.trf"), &opened, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_load(cpu, opened, "weight", NULL, &layer, &err), TRF_OK, &err);
    trf_checkpoint_close(opened);
    check_product(layer, host, 2, TRF_DTYPE_F16, TRF_DTYPE_F16);
    trf_device_layer_destroy(layer);
    trf_layer_free(host);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("device_cpu");
    TCase *tests = tcase_create("device_cpu");
    tcase_set_tags(tests, "threads");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, contexts);
    tcase_add_loop_test(tests, products, 0, NUM_MATRICES);
    tcase_add_test(tests, copies_of_layers);
    tcase_add_test(tests, refused_plans);
    tcase_add_test(tests, options_of_later_versions);
    tcase_add_test(tests, refused_products);
    tcase_add_loop_test(tests, decoding, 0, NUM_MATRICES);
    tcase_add_test(tests, corrupt_rans_streams);
    tcase_add_test(tests, loads_that_fail);
    tcase_add_test(tests, damaged_files);
    tcase_add_test(tests, cut_files);
    tcase_add_test(tests, checkpoints_may_be_closed);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
