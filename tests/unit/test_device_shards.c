/* SPDX-License-Identifier: Apache-2.0 */
/* Shards of layers, compared with the whole layer, at multiples of 16 and of whole tiles; weights that must not leak
 * in; damage outside. These tests run on the CPU; tests/gpu/ builds this file for a GPU, too, with its ordinal as
 * TRF_TEST_DEVICE. */
#include "common/any_device.h"
#include "common/checkpoint_fixture.h"
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "transfuse/cpu.h"
#include "trf_device_layer.h"
#include "trf_layer.h"
#include "trf_number_formats.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 600,
    COLS = 1100,
    M = 3
};

/* Kinds of layers. granularity and scale_group_size are of the int codec. */
static const struct {
    const char *name, *dtype;
    trf_codec codec;
    trf_granularity granularity;
    uint32_t scale_group_size;
    trf_favor favor;
} kKinds[] = {
    {"bf16", "BF16", TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, TRF_FAVOR_SPEED},
    {"bf16 pairs", "BF16", TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, TRF_FAVOR_SIZE},
    {"e4m3", "F8_E4M3", TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, TRF_FAVOR_SPEED},
    {"i8", "I8", TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0, TRF_FAVOR_SPEED},
    {"tensor", "F32", TRF_CODEC_INT, TRF_GRANULARITY_TENSOR, 0, TRF_FAVOR_SPEED},
    {"channel", "F32", TRF_CODEC_INT, TRF_GRANULARITY_CHANNEL, 0, TRF_FAVOR_SIZE},
    {"group 32", "F32", TRF_CODEC_INT, TRF_GRANULARITY_SCALE_GROUP, 32, TRF_FAVOR_SPEED},
    {"group 48", "F32", TRF_CODEC_INT, TRF_GRANULARITY_SCALE_GROUP, 48, TRF_FAVOR_SPEED},
    {"group 1024", "F32", TRF_CODEC_INT, TRF_GRANULARITY_SCALE_GROUP, 1024, TRF_FAVOR_SPEED},
    {"block 48", "F32", TRF_CODEC_INT, TRF_GRANULARITY_SCALE_BLOCK, 48, TRF_FAVOR_SPEED},
    {"block 512", "F32", TRF_CODEC_INT, TRF_GRANULARITY_SCALE_BLOCK, 512, TRF_FAVOR_SPEED},
};

/* first_row, num_rows, first_col, num_cols; a number of 0 means to the end. */
static const uint32_t kShards[][4] = {
    {0, 0, 0, 0},     {0, 256, 0, 0},      {256, 256, 0, 0},   {512, 0, 0, 0},  {0, 0, 0, 512},
    {0, 0, 512, 512}, {0, 0, 1024, 0},     {256, 256, 256, 0}, {0, 16, 0, 0},   {16, 32, 0, 0},
    {240, 32, 0, 0},  {592, 0, 0, 0},      {0, 0, 16, 0},      {0, 0, 240, 32}, {0, 0, 1088, 0},
    {0, 0, 0, 1088},  {48, 416, 272, 560}, {304, 80, 528, 64}, {0, 0, 32, 16},  {128, 0, 768, 0},
};
enum {
    NUM_KINDS = sizeof kKinds / sizeof kKinds[0],
    NUM_SHARDS = sizeof kShards / sizeof kShards[0]
};

static trf_error err;
static trf_context *device;

static void begin(void) {
    fixture_begin();
    fixture_check_status(trf_context_create(TRF_TEST_DEVICE, &device, &err), TRF_OK, &err);
    trf_context_set_threads(device, 2);
}

static void end(void) {
    trf_context_destroy(device);
    fixture_end();
}

static const char *source_path(int kind) { return fixture_path("in%d.safetensors", kind); }

static void write_source(int kind) {
    const fixture_tensor tensor = {"w.weight", kKinds[kind].dtype, {ROWS, COLS}, 2, 0};
    fixture_write_safetensors(source_path(kind), NULL, &tensor, 1, 8, 5);
}

static const char *compress(int kind) {
    const char *compressed_path = fixture_path("packed%d.safetensors", kind);
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.codec = kKinds[kind].codec;
    options.encode.granularity = kKinds[kind].granularity;
    options.encode.scale_group_size = kKinds[kind].scale_group_size;
    options.encode.favor = kKinds[kind].favor;
    static const char *const all[] = {"*", NULL};
    options.include = all; /* F32 too */
    options.overwrite = 1;
    fixture_check_status(trf_compress_checkpoint(source_path(kind), compressed_path, &options, NULL, &err), TRF_OK,
                         &err);
    return compressed_path;
}

static trf_status load(const char *path, const uint32_t shard[4], trf_device_layer **layer) {
    trf_checkpoint *checkpoint;
    trf_load_options options = test_shard(shard);
    options.threads = 2;
    fixture_check_status(trf_checkpoint_open(path, &checkpoint, &err), TRF_OK, &err);
    trf_status status = trf_device_layer_load(device, checkpoint, "w.weight", &options, layer, &err);
    trf_checkpoint_close(checkpoint);
    return status;
}

static trf_device_layer *load_good(const char *path, const uint32_t shard[4]) {
    trf_device_layer *layer;
    fixture_check_status(load(path, shard, &layer), TRF_OK, &err);
    return layer;
}

static void *allocate(uint64_t bytes) {
    void *memory;
    fixture_check_status(trf_device_allocate(device, bytes, &memory, &err), TRF_OK, &err);
    return memory;
}

/* Computes y[M][rows], F32, by one path; malloc'd. @return NULL if the device has no such path. x: host. */
static float *multiply(trf_device_layer *layer, const uint16_t *x, trf_path path) {
    trf_plan *plan;
    const trf_layer_info info = test_layer_info(layer);
    trf_status status = test_make_plan(layer, M, TRF_DTYPE_BF16, TRF_DTYPE_F32, path, &plan, &err);
    if (path != TRF_PATH_AUTO && status == TRF_ERR_UNSUPPORTED)
        return NULL;
    fixture_check_status(status, TRF_OK, &err);
    const uint64_t x_bytes = 2ull * M * info.cols, y_bytes = 4ull * M * info.rows,
                   workspace_bytes = test_plan_info(plan).workspace_bytes;
    void *own_x = allocate(x_bytes), *own_y = allocate(y_bytes), *workspace = allocate(workspace_bytes);
    const uint64_t filler_bytes = workspace_bytes > y_bytes ? workspace_bytes : y_bytes;
    uint8_t *filler = malloc(filler_bytes);
    memset(filler, 0xFF, filler_bytes); /* NaNs, so that what is read from there, or not written, shows */
    fixture_check_status(trf_device_upload(device, own_x, x, x_bytes, &err), TRF_OK, &err);
    fixture_check_status(trf_device_upload(device, own_y, filler, y_bytes, &err), TRF_OK, &err);
    fixture_check_status(trf_device_upload(device, workspace, filler, workspace_bytes, &err), TRF_OK, &err);
    fixture_check_status(test_multiply(plan, own_x, own_y, workspace, NULL, &err), TRF_OK, &err);
    trf_plan_destroy(plan);
    float *y = malloc(y_bytes);
    fixture_check_status(trf_device_download(device, y, own_y, y_bytes, &err), TRF_OK, &err);
    free(filler);
    trf_device_free(device, own_x);
    trf_device_free(device, own_y);
    trf_device_free(device, workspace);
    return y;
}

/* Decodes the whole layer, or its rows one by one, in binary64. */
static double *decode(const trf_device_layer *layer, int by_rows) {
    const trf_layer_info info = test_layer_info(layer);
    const size_t count = (size_t)info.rows * info.cols, each = trf_dtype_bytes(info.dtype);
    uint8_t *decoded = allocate(count * each), *bits = malloc(count * each);
    double *values = malloc(count * sizeof *values);
    int32_t *ids = malloc(info.rows * sizeof *ids), *own_ids = allocate(info.rows * sizeof *ids);
    for (uint32_t r = 0; r < info.rows; r++)
        ids[r] = (int32_t)r;
    fixture_check_status(trf_device_upload(device, own_ids, ids, info.rows * sizeof *ids, &err), TRF_OK, &err);
    const trf_row_request request = test_row_request(own_ids, 4, info.rows, TRF_DECODE_SOURCE, decoded, count * each);
    fixture_check_status(by_rows ? trf_decode_rows(layer, &request, NULL, &err)
                                 : trf_device_layer_decode(layer, TRF_DECODE_SOURCE, decoded, count * each, NULL, &err),
                         TRF_OK, &err);
    trf_device_free(device, own_ids);
    free(ids);
    fixture_check_status(trf_device_download(device, bits, decoded, count * each, &err), TRF_OK, &err);
    for (size_t i = 0; i < count; i++)
        switch (info.dtype) {
        case TRF_DTYPE_F32:
            values[i] = (double)((float *)bits)[i];
            break;
        case TRF_DTYPE_BF16:
            values[i] = (double)trf_bf16_to_f32(((uint16_t *)bits)[i]);
            break;
        case TRF_DTYPE_F8_E4M3:
            values[i] = (double)trf_e4m3_to_f32(bits[i]);
            break;
        default:
            values[i] = (double)(int8_t)bits[i];
            break;
        }
    trf_device_free(device, decoded);
    free(bits);
    return values;
}

/* Compares y with F64. rounds: the path rounds the weights to BF16 before it multiplies. */
static void check_sums(const float *y, const double *weights, const uint32_t shard[4], uint32_t rows, uint32_t cols,
                       const uint16_t *x, int rounds) {
    const double part = cols * 0x1p-24 + (rounds ? 0x1p-8 : 0);
    for (uint32_t i = 0; i < M; i++)
        for (uint32_t r = 0; r < rows; r++) {
            double sum = 0, size = 0;
            for (uint32_t c = 0; c < cols; c++) {
                const double product =
                    (double)trf_bf16_to_f32(x[i * cols + c]) * weights[(size_t)(shard[0] + r) * COLS + shard[2] + c];
                sum += product;
                size += fabs(product);
            }
            const double found = (double)y[i * rows + r];
            ck_assert_msg(fabs(found - sum) <= part * size + 1e-30,
                          "rows from %u, columns from %u: y[%u][%u] is %g, not %g", shard[0], shard[2], i, r, found,
                          sum);
        }
}

static void check_shard(const char *path, const double *weights, const uint32_t shard[4], const uint16_t *x) {
    static const trf_path paths[] = {TRF_PATH_AUTO, TRF_PATH_FUSED, TRF_PATH_TWO_STEP};
    trf_device_layer *layer = load_good(path, shard);
    const trf_layer_info info = test_layer_info(layer);
    const uint32_t rows = shard[1] ? shard[1] : ROWS - shard[0], cols = shard[3] ? shard[3] : COLS - shard[2];
    ck_assert(info.rows == rows && info.cols == cols);
    if (layer->host) { /* on the CPU a shard's layer is a blob that any reader takes */
        trf_blob_view view;
        fixture_check_status(trf_blob_validate(layer->host->blob, layer->host->view.header.blob_bytes, &view, &err),
                             TRF_OK, &err);
    }
    uint16_t *own_x = malloc(2ull * M * cols);
    for (uint32_t i = 0; i < M; i++)
        memcpy(own_x + i * cols, x + i * COLS + shard[2], 2 * cols);
    for (int p = 0; p < 3; p++) {
        float *y = multiply(layer, own_x, paths[p]);
        if (y)
            check_sums(y, weights, shard, rows, cols, own_x,
                       paths[p] != TRF_PATH_FUSED && info.granularity != TRF_GRANULARITY_NONE &&
                           TRF_TEST_DEVICE != TRF_DEVICE_CPU);
        free(y);
    }
    free(own_x);
    fixture_check_status(trf_device_layer_check(layer, &err), TRF_OK, &err);
    /* Shards of whole tiles are decoded as well, while others refuse that; rows are decoded in either case. */
    const int whole = shard[0] % 256 == 0 && shard[2] % 256 == 0 && (!shard[1] || shard[1] % 256 == 0) &&
                      (!shard[3] || shard[3] % 256 == 0);
    const uint64_t bytes = (uint64_t)rows * cols * trf_dtype_bytes(info.dtype);
    void *decoded = allocate(bytes);
    fixture_check_status(trf_device_layer_decode(layer, TRF_DECODE_SOURCE, decoded, bytes, NULL, &err),
                         whole ? TRF_OK : TRF_ERR_UNSUPPORTED, &err);
    for (int by_rows = !whole; by_rows < 2; by_rows++) {
        double *own = decode(layer, by_rows);
        for (uint32_t r = 0; r < rows; r++)
            ck_assert_mem_eq(own + (size_t)r * cols, weights + (size_t)(shard[0] + r) * COLS + shard[2],
                             cols * sizeof *own);
        free(own);
    }
    trf_device_free(device, decoded);
    trf_device_layer_destroy(layer);
}

static uint16_t *make_x(void) {
    uint16_t *x = malloc(2 * M * COLS);
    test_rng rng = {9};
    test_fill_normal(&rng, x, TRF_DTYPE_BF16, (size_t)M * COLS, 1.0);
    return x;
}

START_TEST(shards_are_parts_of_the_layer) {
    write_source(_i);
    const char *compressed_path = compress(_i);
    trf_device_layer *all = load_good(compressed_path, kShards[0]);
    double *weights = decode(all, 0);
    uint16_t *x = make_x();
    for (int s = 0; s < NUM_SHARDS; s++)
        if (test_tries(s + _i))
            check_shard(compressed_path, weights, kShards[s], x);
    trf_device_layer_destroy(all);
    free(weights);
    free(x);
}
END_TEST

/* Infinities and NaNs beside a shard, in tiles that it shares, do not reach its products. */
START_TEST(nothing_leaks_in) {
    static const uint16_t odd[] = {0x7F80, 0xFF80, 0x7FC1};
    const int kind = _i; /* 0, 1: bf16 */
    size_t bytes;
    write_source(kind);
    uint8_t *file = fixture_read(source_path(kind), &bytes);
    uint16_t *source = (uint16_t *)(file + bytes - 2 * ROWS * COLS);
    for (uint32_t r = 0; r < ROWS; r += 7) {
        source[(size_t)r * COLS + 271 - r % 3] = odd[r % 3];
        source[(size_t)r * COLS + 832 + r % 5] = odd[(r + 1) % 3];
    }
    fixture_write(source_path(kind), file, bytes);
    const char *compressed_path = compress(kind);
    trf_device_layer *all = load_good(compressed_path, kShards[0]);
    double *weights = decode(all, 0);
    uint16_t *x = make_x();
    static const uint32_t between[4] = {48, 416, 272, 560}, rows_alone[4] = {16, 100 * 4, 272, 560},
                          one_tile[4] = {0, 0, 288, 64};
    check_shard(compressed_path, weights, between, x);
    check_shard(compressed_path, weights, rows_alone, x);
    check_shard(compressed_path, weights, one_tile, x);
    trf_device_layer_destroy(all);
    free(weights);
    free(x);
    free(file);
}
END_TEST

/* Tiles that a shard does not touch are not read, so damage there does not matter. */
START_TEST(only_its_tiles_are_read) {
    size_t bytes;
    write_source(0);
    const char *compressed_path = compress(0), *damaged = fixture_path("damaged.safetensors");
    uint8_t *file = fixture_read(compressed_path, &bytes);
    file[bytes - 200] ^= 1; /* in the last tile */
    fixture_write(damaged, file, bytes);
    static const uint32_t touching[4] = {512, 0, 1024, 0}, above[4] = {0, 512, 0, 0}, beside[4] = {0, 0, 0, 1024};
    trf_device_layer *layer = NULL;
    fixture_check_status(load(damaged, touching, &layer), TRF_ERR_CHECKSUM, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "damaged.safetensors"));
    fixture_check_status(load(damaged, kShards[0], &layer), TRF_ERR_CHECKSUM, &err);
    trf_device_layer_destroy(load_good(damaged, above));
    trf_device_layer_destroy(load_good(damaged, beside));
    free(file);
}
END_TEST

START_TEST(no_such_shard) {
    static const uint32_t wrong[][4] = {
        {8, 0, 0, 0},    {0, 24, 0, 0},           {0, 0, 8, 0},           {0, 0, 0, 40},           {600, 0, 0, 0},
        {608, 0, 0, 0},  {0, 608, 0, 0},          {0, 601, 0, 0},         {0, 0, 1104, 0},         {0, 0, 1088, 16},
        {592, 16, 0, 0}, {0, 0, 16, 4294967280u}, {4294967280u, 0, 0, 0}, {16, 4294967280u, 0, 0},
    };
    write_source(0);
    const char *compressed_path = compress(0);
    trf_device_layer *layer = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        fixture_check_status(load(compressed_path, wrong[i], &layer), TRF_ERR_ARGUMENT, &err);
        ck_assert_ptr_null(layer);
    }
    static const uint32_t to_the_end[4] = {16, 584, 16, 1084};
    trf_device_layer_destroy(load_good(compressed_path, to_the_end));
}
END_TEST

int main(void) {
    if (test_device_missing("gpu.shards"))
        return 77;
    Suite *suite = suite_create("device_shards");
    TCase *tests = tcase_create("device_shards");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, shards_are_parts_of_the_layer, 0, NUM_KINDS);
    tcase_add_loop_test(tests, nothing_leaks_in, 0, 2);
    tcase_add_test(tests, only_its_tiles_are_read);
    tcase_add_test(tests, no_such_shard);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
