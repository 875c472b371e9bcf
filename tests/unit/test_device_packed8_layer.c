/* SPDX-License-Identifier: Apache-2.0 */
/* Packed FP8 layers: which blobs and shards become such layers and which packed BF16 ones, with what reason; their
 * weights, rows, products and bytes; their memory, adopting it, and converting to and from other layouts. These tests
 * run on the CPU; tests/gpu/ builds this file for a GPU, too, with its ordinal as TRF_TEST_DEVICE. */
#include "common/any_device.h"
#include "common/checkpoint_fixture.h"
#include "common/device_layers.h"
#include "common/expect.h"
#include "common/guarded_memory.h"
#include "common/packed8_layer.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "transfuse/groups.h"
#include "trf_device_layer.h"
#include "trf_encode.h"
#include "trf_packed8_form.h"

#include <check.h>
#include <math.h>

enum {
    ON_CPU = TRF_TEST_DEVICE == TRF_DEVICE_CPU,
    LARGE_ROWS = ON_CPU ? 500 : 8500,
    LARGE_COLS = 700
};

static trf_error err;
static trf_context *device, *cpu;

static void begin(void) {
    fixture_check_status(trf_context_create(TRF_TEST_DEVICE, &device, &err), TRF_OK, &err);
    fixture_check_status(trf_context_create(TRF_DEVICE_CPU, &cpu, &err), TRF_OK, &err);
}

static void end(void) {
    trf_context_destroy(device);
    trf_context_destroy(cpu);
}

/* ---- blobs and layers ---- */

typedef struct made_blob {
    void *at;
    uint64_t bytes;
    trf_dtype dtype;
} made_blob;

/* Makes a layer whose codes are those of normal weights, which packed BF16 takes, too. */
static packed8_layer make_weights(test_rng *rng, uint32_t rows, uint32_t cols, uint32_t block_rows, uint32_t block_cols,
                                  int scale_kind) {
    packed8_layer made = packed8_layer_make(rng, rows, cols, block_rows, block_cols, scale_kind);
    for (size_t i = 0; i < (size_t)rows * cols; i++)
        made.codes[i] = (uint8_t)trf_packed8_nearest_code(trf_f64_to_bf16(60 * test_normal(rng)), 1);
    packed8_layer_define_weights(&made);
    return made;
}

static made_blob encode(const void *weights, trf_dtype dtype, uint32_t rows, uint32_t cols, trf_favor favor) {
    const trf_matrix matrix = test_matrix(weights, dtype, rows, cols);
    trf_encode_options options;
    made_blob blob = {.dtype = dtype};
    trf_encode_options_init(&options);
    options.codec = TRF_CODEC_E4M3;
    options.favor = favor;
    fixture_check_status(trf_encode_layer(&matrix, &options, &blob.at, &blob.bytes, NULL, &err), TRF_OK, &err);
    return blob;
}

static trf_status try_make(trf_context *context, const made_blob *blob, trf_layout layout,
                           const trf_load_options *shard, trf_device_layer **layer) {
    trf_load_options options;
    trf_load_options_init(&options);
    if (shard)
        options = *shard;
    options.layout = layout;
    *layer = NULL;
    return trf_device_layer_create(context, blob->at, blob->bytes, &options, layer, &err);
}

static trf_device_layer *make_on(trf_context *context, const made_blob *blob, trf_layout layout,
                                 const trf_load_options *shard) {
    trf_device_layer *layer;
    fixture_check_status(try_make(context, blob, layout, shard, &layer), TRF_OK, &err);
    return layer;
}

static trf_device_layer *make(const made_blob *blob, trf_layout layout, const trf_load_options *shard) {
    return make_on(device, blob, layout, shard);
}

static trf_layout layout_of(const trf_device_layer *layer) { return test_device_layer_info(layer).layout; }

static uint8_t *read_buffer(const trf_device_layer *layer) {
    uint8_t *bytes = malloc(layer->view.buffer_bytes);
    ck_assert_ptr_nonnull(bytes);
    fixture_check_status(trf_device_download(layer->context, bytes, layer->view.buffer, layer->view.buffer_bytes, &err),
                         TRF_OK, &err);
    return bytes;
}

static void check_same_bytes(const trf_device_layer *a, const trf_device_layer *b) {
    uint8_t *of_a = read_buffer(a), *of_b = read_buffer(b);
    ck_assert_uint_eq(a->view.buffer_bytes, b->view.buffer_bytes);
    for (uint64_t i = 0; i < a->view.buffer_bytes; i++)
        if (of_a[i] != of_b[i])
            ck_abort_msg("byte %llu of %llu is %02x, not %02x", (unsigned long long)i,
                         (unsigned long long)a->view.buffer_bytes, of_a[i], of_b[i]);
    free(of_a);
    free(of_b);
}

/* Expects the coded layer's weights and rows. */
static void check_weights(const trf_device_layer *coded, const trf_device_layer *packed8) {
    ck_assert_int_eq(layout_of(packed8), TRF_LAYOUT_PACKED8);
    ck_assert_str_eq(trf_device_layer_get_layout_reason(packed8), "");
    device_check_weights(coded, packed8, TRF_DECODE_SOURCE);
    device_check_weights(coded, packed8, TRF_DECODE_BF16);
    device_check_weights(coded, packed8, TRF_DECODE_ELEMENTS);
    fixture_check_status(trf_device_layer_check(packed8, &err), TRF_OK, &err);
}

/* Expects products that are near those in F64, for which the weights are decoded. */
static void check_product(trf_device_layer *layer, uint32_t m, trf_path path) {
    const uint32_t rows = (uint32_t)test_layer_info(layer).rows, cols = (uint32_t)test_layer_info(layer).cols;
    const trf_plan_options options = test_plan_options(m, TRF_DTYPE_BF16, TRF_DTYPE_F32, path);
    uint16_t *x = device_make_x(m, cols), *w = (uint16_t *)device_decode(layer, TRF_DECODE_BF16);
    float *y = (float *)device_multiply(layer, &options, x);
    for (uint32_t n = 0; n < m; n++)
        for (uint32_t row = 0; row < rows; row++) {
            double due = 0, magnitude = 0;
            for (uint32_t col = 0; col < cols; col++) {
                const double term = (double)trf_bf16_to_f32(w[(size_t)row * cols + col]) *
                                    (double)trf_bf16_to_f32(x[(size_t)n * cols + col]);
                due += term;
                magnitude += fabs(term);
            }
            const double found = (double)y[(size_t)n * rows + row];
            if (isfinite(magnitude) && !(fabs(found - due) <= 2e-6 * magnitude + 1e-37))
                ck_abort_msg("row %u of x, row %u of W: %g, not %g", n, row, found, due);
        }
    free(x);
    free(w);
    free(y);
}

/* Makes a layer of each way that there is, and compares them. shard: or NULL. */
static void check_all_ways(const made_blob *blob, const trf_load_options *shard) {
    trf_device_layer *coded = make(blob, TRF_LAYOUT_CODED, shard), *due = make_on(cpu, blob, TRF_LAYOUT_PACKED8, shard);
    trf_device_layer *made[4] = {make(blob, TRF_LAYOUT_PACKED, shard), make(blob, TRF_LAYOUT_PACKED8, shard)};
    for (int i = 0; i < 2; i++)
        fixture_check_status(
            trf_device_layer_convert(coded, i ? TRF_LAYOUT_PACKED8 : TRF_LAYOUT_PACKED, NULL, &made[2 + i], &err),
            TRF_OK, &err);
    for (int i = 0; i < 4; i++) {
        const trf_layer_info info = test_layer_info(made[i]);
        ck_assert_int_eq(info.codec, blob->dtype == TRF_DTYPE_BF16 ? TRF_CODEC_BF16 : TRF_CODEC_E4M3);
        ck_assert_int_eq(info.dtype, blob->dtype);
        check_weights(coded, made[i]);
        check_same_bytes(due, made[i]);
    }
    check_product(made[0], 3, TRF_PATH_AUTO);
    for (int i = 0; i < 4; i++)
        trf_device_layer_destroy(made[i]);
    trf_device_layer_destroy(due);
    trf_device_layer_destroy(coded);
}

/* Expects packed BF16 with a reason, or where BF16 is refused, too, a refusal; and that PACKED8 is refused for the same
 * reason. The layer is loaded, and then converted. */
static void check_fallback(const made_blob *blob, const trf_load_options *shard, const char *reason) {
    trf_device_layer *coded = make(blob, TRF_LAYOUT_CODED, shard), *layer;
    for (int converts = 0; converts < 2; converts++) {
        trf_status status = converts ? trf_device_layer_convert(coded, TRF_LAYOUT_PACKED, NULL, &layer, &err)
                                     : try_make(device, blob, TRF_LAYOUT_PACKED, shard, &layer);
        if (status == TRF_OK) {
            ck_assert_int_eq(layout_of(layer), TRF_LAYOUT_PACKED);
            if (!strstr(trf_device_layer_get_layout_reason(layer), reason))
                ck_abort_msg("the reason is '%s', without '%s'", trf_device_layer_get_layout_reason(layer), reason);
            device_check_weights(coded, layer, TRF_DECODE_BF16);
            trf_device_layer_destroy(layer);
        } else {
            ck_assert_msg(status == TRF_ERR_UNSUPPORTED, "%s", err.message);
        }
        status = converts ? trf_device_layer_convert(coded, TRF_LAYOUT_PACKED8, NULL, &layer, &err)
                          : try_make(device, blob, TRF_LAYOUT_PACKED8, shard, &layer);
        ck_assert_int_eq(status, TRF_ERR_UNSUPPORTED);
        if (!strstr(err.message, reason))
            ck_abort_msg("the message is '%s', without '%s'", err.message, reason);
    }
    trf_device_layer_destroy(coded);
}

/* ---- layers that are packed as FP8 ---- */

static const uint32_t kShapes[][2] = {{64, 128}, {65, 257}, {170, 1100}, {16, 2100}, {300, 520}, {258, 130}};
enum {
    SHAPES = sizeof kShapes / sizeof kShapes[0]
};

/* _i: kind of scales, favor, and one scale or blocks. */
START_TEST(the_weights_of_the_coded_layer) {
    test_rng rng = {40 + (uint64_t)_i};
    for (int shape = 0; shape < SHAPES; shape++) {
        const uint32_t rows = kShapes[shape][0], cols = kShapes[shape][1];
        const uint32_t block_rows = _i & 4 ? rows : 128, block_cols = _i & 4 ? cols : 128;
        if (!test_tries(shape + _i))
            continue;
        packed8_layer from = make_weights(&rng, rows, cols, block_rows, block_cols, _i & 1);
        const made_blob blob = encode(from.weights, TRF_DTYPE_BF16, rows, cols, (trf_favor)(_i >> 1 & 1));
        check_all_ways(&blob, NULL);
        trf_free(blob.at);
        packed8_layer_free(&from);
    }
}
END_TEST

/* E4M3 without scales, all codes and both NaNs. */
START_TEST(plain_fp8) {
    test_rng rng = {50 + (uint64_t)_i};
    for (int shape = 0; shape < SHAPES; shape++) {
        const uint32_t rows = shape ? kShapes[shape][0] : 1, cols = shape ? kShapes[shape][1] : 1;
        if (!test_tries(shape + _i))
            continue;
        uint8_t *codes = malloc((size_t)rows * cols);
        ck_assert_ptr_nonnull(codes);
        for (size_t i = 0; i < (size_t)rows * cols; i++)
            codes[i] = (uint8_t)(test_below(&rng, 127) | test_below(&rng, 2) << 7);
        codes[0] = 0x7F;
        codes[(size_t)rows * cols - 1] = 0xFF;
        const made_blob blob = encode(codes, TRF_DTYPE_F8_E4M3, rows, cols, (trf_favor)_i);
        check_all_ways(&blob, NULL);
        trf_load_options options;
        trf_device_layer *layer;
        trf_load_options_init(&options);
        options.packed_bf16 = 1; /* which there is not */
        ck_assert_int_eq(try_make(device, &blob, TRF_LAYOUT_PACKED, &options, &layer), TRF_ERR_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(err.message, "does not take the codec fp8_e4m3"));
        trf_free(blob.at);
        free(codes);
    }
}
END_TEST

/* More than what a GPU takes at once; shards that begin with 64 rows and 128 columns, wherever in tiles. */
START_TEST(shards_of_a_large_layer) {
    static const uint32_t shards[][4] = {{0, 0, 0, 0},       {64, 128, 128, 256}, {192, 0, 384, 0},
                                         {256, 192, 0, 512}, {256, 0, 256, 0},    {LARGE_ROWS / 64 * 64, 0, 640, 0}};
    test_rng rng = {60};
    packed8_layer from = make_weights(&rng, LARGE_ROWS, LARGE_COLS, 128, 128, SCALES_F32);
    for (size_t i = 0; i < (size_t)LARGE_ROWS * LARGE_COLS; i += 30011)
        from.weights[i] = 0x7F7F;
    const made_blob blob = encode(from.weights, TRF_DTYPE_BF16, LARGE_ROWS, LARGE_COLS, TRF_FAVOR_SPEED);
    for (size_t i = 0; i < sizeof shards / sizeof *shards; i++) {
        const trf_load_options shard = test_shard(shards[i]);
        check_all_ways(&blob, &shard);
    }
    trf_free(blob.at);
    packed8_layer_free(&from);
}
END_TEST

/* ---- records ---- */

/* A line has room for 23. _i: which line of four, each of 64 rows and 1,024 columns. */
START_TEST(lines_that_are_full) {
    test_rng rng = {70 + (uint64_t)_i};
    packed8_layer from = make_weights(&rng, 128, 2048, 128, 128, _i & 1);
    const uint32_t first_row = (uint32_t)_i / 2 * 64, first_col = (uint32_t)_i % 2 * 1024;
    for (uint32_t i = 0; i < 24; i++) {
        from.weights[(size_t)(first_row + i * 2) * from.cols + first_col + i * 44] =
            i % 5 ? (uint16_t)(0x3F81 + 256 * i) : 0xFF81;
        if (i != 0 && i < 22)
            continue;
        const made_blob blob = encode(from.weights, TRF_DTYPE_BF16, from.rows, from.cols, TRF_FAVOR_SPEED);
        if (i < 23) {
            trf_device_layer *layer = make(&blob, TRF_LAYOUT_PACKED, NULL);
            uint8_t *bytes = read_buffer(layer);
            ck_assert_uint_eq(((const trf_packed8_head *)bytes)->num_records, i + 1);
            free(bytes);
            check_all_ways(&blob, NULL);
            trf_device_layer_destroy(layer);
        } else {
            char reason[80];
            snprintf(reason, sizeof reason, "24 of the weights in rows from %u and columns from %u", first_row,
                     first_col);
            check_fallback(&blob, NULL, reason);
        }
        trf_free(blob.at);
    }
    packed8_layer_free(&from);
}
END_TEST

/* ---- what is packed as BF16 ---- */

START_TEST(scales_of_rows) {
    test_rng rng = {80};
    packed8_layer from = make_weights(&rng, 300, 500, 1, 500, SCALES_F32);
    const made_blob blob = encode(from.weights, TRF_DTYPE_BF16, from.rows, from.cols, TRF_FAVOR_SPEED);
    check_fallback(&blob, NULL, "its scales are those of rows");
    trf_free(blob.at);
    packed8_layer_free(&from);
}
END_TEST

START_TEST(shards_that_cut_blocks) {
    static const uint32_t shards[][4] = {{48, 400, 128, 128}, {64, 320, 16, 480}, {128, 128, 192, 256}};
    test_rng rng = {81};
    packed8_layer from = make_weights(&rng, 600, 700, 128, 128, SCALES_F32);
    const made_blob blob = encode(from.weights, TRF_DTYPE_BF16, from.rows, from.cols, TRF_FAVOR_SPEED);
    for (size_t i = 0; i < sizeof shards / sizeof *shards; i++) {
        const trf_load_options shard = test_shard(shards[i]);
        check_fallback(&blob, &shard, "its scales are those of blocks of 128x128 weights");
    }
    trf_free(blob.at);
    packed8_layer_free(&from);
}
END_TEST

START_TEST(scales_without_constants) {
    test_rng rng = {82};
    packed8_layer from = make_weights(&rng, 300, 400, 128, 128, SCALES_F32);
    for (size_t i = 0; i < from.num_scales; i++)
        from.scales[i] = ldexpf(from.scales[i], 40);
    packed8_layer_define_weights(&from);
    const made_blob blob = encode(from.weights, TRF_DTYPE_BF16, from.rows, from.cols, TRF_FAVOR_SPEED);
    check_fallback(&blob, NULL, "neither 0 nor from 2^-100 to 2^7");
    trf_free(blob.at);
    packed8_layer_free(&from);
}
END_TEST

/* What asks for BF16 gets it without a reason, since none is due; and what is no FP8 is refused. */
START_TEST(bf16_that_is_asked_for) {
    test_rng rng = {83};
    packed8_layer from = make_weights(&rng, 130, 300, 128, 128, SCALES_F32);
    const made_blob blob = encode(from.weights, TRF_DTYPE_BF16, from.rows, from.cols, TRF_FAVOR_SPEED);
    trf_load_options options;
    trf_load_options_init(&options);
    options.packed_bf16 = 1;
    trf_device_layer *bf16 = make(&blob, TRF_LAYOUT_PACKED, &options), *coded = make(&blob, TRF_LAYOUT_CODED, NULL);
    ck_assert_int_eq(layout_of(bf16), TRF_LAYOUT_PACKED);
    ck_assert_str_eq(trf_device_layer_get_layout_reason(bf16), "");
    device_check_weights(coded, bf16, TRF_DECODE_BF16);
    trf_device_layer *packed8 = NULL;
    ck_assert_int_eq(trf_device_layer_convert(bf16, TRF_LAYOUT_PACKED8, NULL, &packed8, &err), TRF_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "a packed layer has no codes and scales"));
    trf_device_layer_destroy(bf16);
    trf_device_layer_destroy(coded);
    trf_free(blob.at);

    trf_encode_options as_bf16;
    trf_encode_options_init(&as_bf16);
    as_bf16.codec = TRF_CODEC_BF16;
    const trf_matrix matrix = test_matrix(from.weights, TRF_DTYPE_BF16, from.rows, from.cols);
    made_blob other = {.dtype = TRF_DTYPE_BF16};
    fixture_check_status(trf_encode_layer(&matrix, &as_bf16, &other.at, &other.bytes, NULL, &err), TRF_OK, &err);
    ck_assert_int_eq(try_make(device, &other, TRF_LAYOUT_PACKED8, NULL, &packed8), TRF_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "takes FP8"));
    trf_free(other.at);
    packed8_layer_free(&from);
}
END_TEST

/* ---- products ---- */

/* Whether the device has kernels for such layers. */
static int has_kernels(void) {
    trf_context_info info;
    trf_context_get_info(device, &info);
    return ON_CPU || info.capability == 90;
}

START_TEST(products) {
    static const uint32_t batches[] = {1, 5, 33, 70, 300};
    test_rng rng = {90 + (uint64_t)_i};
    packed8_layer from = make_weights(&rng, 200, 1100, 128, 128, _i);
    from.weights[77] = 0x3F81;
    const made_blob blob = encode(from.weights, TRF_DTYPE_BF16, from.rows, from.cols, TRF_FAVOR_SPEED);
    trf_device_layer *layer = make(&blob, TRF_LAYOUT_PACKED8, NULL);
    trf_plan *plan = NULL;
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        if (ON_CPU && batches[i] > 64)
            continue;
        check_product(layer, batches[i], TRF_PATH_AUTO);
        fixture_check_status(
            test_make_plan(layer, batches[i], TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO, &plan, &err), TRF_OK, &err);
        ck_assert_int_eq(test_plan_info(plan).path, has_kernels() ? TRF_PATH_PACKED : TRF_PATH_TWO_STEP);
        trf_plan_destroy(plan);
        if (!ON_CPU)
            check_product(layer, batches[i], TRF_PATH_TWO_STEP);
    }
    ck_assert_int_eq(test_make_plan(layer, 1, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_FUSED, &plan, &err),
                     TRF_ERR_UNSUPPORTED);
    trf_device_layer_destroy(layer);
    trf_free(blob.at);
    packed8_layer_free(&from);
}
END_TEST

/* Layers of a group give what they give alone; the last one is packed BF16. */
START_TEST(groups) {
    enum {
        LAYERS = 4,
        M = 3
    };
    static const uint32_t shapes[LAYERS][2] = {{256, 512}, {128, 512}, {200, 512}, {256, 512}};
    test_rng rng = {95};
    trf_device_layer *layers[LAYERS];
    trf_group_member members[LAYERS];
    const void *x[LAYERS];
    void *y[LAYERS];
    uint16_t *const x_host = device_make_x(M, 512);
    for (int i = 0; i < LAYERS; i++) {
        packed8_layer from = make_weights(&rng, shapes[i][0], shapes[i][1], 128, 128, SCALES_F32);
        const made_blob blob = encode(from.weights, TRF_DTYPE_BF16, from.rows, from.cols, TRF_FAVOR_SPEED);
        trf_load_options options;
        trf_load_options_init(&options);
        options.packed_bf16 = i == LAYERS - 1;
        layers[i] = make(&blob, TRF_LAYOUT_PACKED, &options);
        members[i] = test_group_member(layers[i], M, TRF_DTYPE_BF16, TRF_DTYPE_F32);
        x[i] = device_upload(device, x_host, 2ull * M * 512);
        y[i] = device_upload(device, x_host, 2ull * M * 512); /* any contents; larger than what is written */
        ck_assert_uint_ge(2 * 512, 4 * shapes[i][0]);
        trf_free(blob.at);
        packed8_layer_free(&from);
    }
    trf_layer_group *group;
    fixture_check_status(trf_layer_group_create(members, LAYERS, &group, &err), TRF_OK, &err);
    void *workspace = NULL;
    fixture_check_status(trf_device_allocate(device, test_group_info(group).workspace_bytes, &workspace, &err), TRF_OK,
                         &err);
    fixture_check_status(trf_linear_group(group, x, y, workspace, NULL, &err), TRF_OK, &err);
    for (int i = 0; i < LAYERS; i++) {
        const trf_plan_options options = test_plan_options(M, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO);
        const uint32_t count = M * shapes[i][0];
        float *due = (float *)device_multiply(layers[i], &options, x_host), *found = malloc(count * sizeof *found);
        ck_assert_ptr_nonnull(found);
        fixture_check_status(trf_device_download(device, found, y[i], count * sizeof *found, &err), TRF_OK, &err);
        for (uint32_t n = 0; n < count; n++) /* kernels of groups add in another order */
            EXPECT(fabsf(found[n] - due[n]) <= 1e-4f * (fabsf(due[n]) + 1));
        free(due);
        free(found);
    }
    trf_layer_group_destroy(group);
    for (int i = 0; i < LAYERS; i++) {
        trf_device_layer_destroy(layers[i]);
        trf_device_free(device, (void *)(uintptr_t)x[i]);
        trf_device_free(device, y[i]);
    }
    trf_device_free(device, workspace);
    free(x_host);
}
END_TEST

/* ---- memory ---- */

START_TEST(the_callers_memory) {
    test_rng rng = {100};
    packed8_layer from = make_weights(&rng, 200, 1100, 128, 128, SCALES_F32);
    const made_blob blob = encode(from.weights, TRF_DTYPE_BF16, from.rows, from.cols, TRF_FAVOR_SPEED);
    trf_device_layer *due = make(&blob, TRF_LAYOUT_PACKED8, NULL), *layer, *coded = make(&blob, TRF_LAYOUT_CODED, NULL);
    for (trf_layout layout = TRF_LAYOUT_PACKED; layout <= TRF_LAYOUT_PACKED8; layout++) {
        trf_load_options options;
        trf_layer_size size, converted;
        trf_load_options_init(&options);
        options.layout = layout;
        fixture_check_status(trf_device_layer_get_size(device, blob.at, blob.bytes, &options, &size, &err), TRF_OK,
                             &err);
        fixture_check_status(trf_device_layer_get_converted_size(coded, layout, &converted, &err), TRF_OK, &err);
        ck_assert_uint_eq(converted.buffer_bytes, size.buffer_bytes);
        if (layout == TRF_LAYOUT_PACKED8)
            ck_assert_uint_eq(size.buffer_bytes, due->view.buffer_bytes);
        else /* it may become packed BF16 */
            ck_assert_uint_gt(size.buffer_bytes, due->view.buffer_bytes);
        guarded_memory room = guarded_allocate(device, size.buffer_bytes);
        options.memory = (trf_layer_memory){room.at, room.bytes, NULL, 0};
        layer = make(&blob, layout, &options);
        ck_assert_ptr_eq(layer->view.buffer, room.at);
        ck_assert_uint_eq(test_device_layer_info(layer).memory_bytes, due->view.buffer_bytes);
        check_same_bytes(due, layer);
        trf_device_layer_destroy(layer);
        const trf_layer_memory given = {room.at, room.bytes, NULL, 0};
        fixture_check_status(trf_device_layer_convert(coded, layout, &given, &layer, &err), TRF_OK, &err);
        check_same_bytes(due, layer);
        trf_device_layer_destroy(layer);
        options.memory.buffer_bytes--;
        ck_assert_int_eq(try_make(device, &blob, layout, &options, &layer), TRF_ERR_ARGUMENT);
        free(guarded_read(&room));
        guarded_free(&room);
    }
    trf_device_layer_destroy(coded);
    trf_device_layer_destroy(due);
    trf_free(blob.at);
    packed8_layer_free(&from);
}
END_TEST

static trf_status adopt(const void *at, uint64_t bytes, trf_layout layout, trf_device_layer **layer) {
    trf_load_options options;
    trf_load_options_init(&options);
    options.layout = layout;
    options.buffer_is_on_device = 1;
    *layer = NULL;
    return trf_device_layer_create(device, at, bytes, &options, layer, &err);
}

/* Adopts a changed buffer. head: whether its checksum is made right. */
static trf_status adopt_changed(const uint8_t *buffer, uint64_t bytes, uint64_t at, uint8_t change, int seals) {
    uint8_t *changed = malloc(bytes);
    trf_device_layer *layer;
    ck_assert_ptr_nonnull(changed);
    memcpy(changed, buffer, bytes);
    changed[at] ^= change;
    if (seals)
        ((trf_packed8_head *)changed)->common.checksum =
            trf_layout_head_checksum(&((trf_packed8_head *)changed)->common);
    void *there = device_upload(device, changed, bytes);
    const trf_status status = adopt(there, bytes, TRF_LAYOUT_PACKED, &layer);
    if (layer)
        trf_device_layer_destroy(layer);
    trf_device_free(device, there);
    free(changed);
    return status;
}

/* A copied buffer is adopted by its head, as PACKED and as PACKED8, and as nothing else. */
START_TEST(adopted_buffers) {
    test_rng rng = {110};
    packed8_layer from = make_weights(&rng, 200, 300, 128, 128, SCALES_F32);
    const made_blob blob = encode(from.weights, TRF_DTYPE_BF16, from.rows, from.cols, TRF_FAVOR_SPEED);
    trf_device_layer *due = make(&blob, TRF_LAYOUT_PACKED8, NULL), *layer, *coded = make(&blob, TRF_LAYOUT_CODED, NULL);
    const uint64_t bytes = due->view.buffer_bytes;
    uint8_t *buffer = read_buffer(due);
    void *copy = device_upload(device, buffer, bytes);
    for (trf_layout layout = TRF_LAYOUT_PACKED; layout <= TRF_LAYOUT_PACKED8; layout++) {
        fixture_check_status(adopt(copy, bytes, layout, &layer), TRF_OK, &err);
        check_weights(coded, layer);
        check_product(layer, 2, TRF_PATH_AUTO);
        trf_device_layer_destroy(layer);
    }
    ck_assert_int_eq(adopt(copy, bytes, TRF_LAYOUT_PLAIN, &layer), TRF_ERR_HEADER);
    ck_assert_ptr_nonnull(strstr(err.message, "of layout 'packed8', not 'plain'"));
    ck_assert_int_eq(adopt(copy, bytes - 1, TRF_LAYOUT_PACKED8, &layer), TRF_ERR_TRUNCATED);
    ck_assert_int_eq(adopt_changed(buffer, bytes, 33, 1, 0), TRF_ERR_CHECKSUM);
    ck_assert_int_eq(adopt_changed(buffer, bytes, offsetof(trf_packed8_head, num_lines), 1, 1), TRF_ERR_HEADER);
    ck_assert_int_eq(adopt_changed(buffer, bytes, offsetof(trf_packed8_head, flags), 8, 1), TRF_ERR_HEADER);
    ck_assert_int_eq(adopt_changed(buffer, bytes, offsetof(trf_packed8_head, coded_header), 1, 1), TRF_ERR_HEADER);
    ck_assert_int_eq(adopt_changed(buffer, bytes, offsetof(trf_packed8_head, reserved1), 1, 1), TRF_ERR_HEADER);
    if (ON_CPU) /* the whole buffer is looked at: an unused word of a line */
        ck_assert_int_eq(adopt_changed(buffer, bytes, due->packed8.flags ? 256 + 4 * 22 : 256, 1, 0), TRF_ERR_TILE);
    trf_device_free(device, copy);
    free(buffer);
    trf_device_layer_destroy(due);
    trf_device_layer_destroy(coded);
    trf_free(blob.at);
    packed8_layer_free(&from);
}
END_TEST

/* ---- other layouts, and other uses ---- */

START_TEST(to_other_layouts) {
    test_rng rng = {120};
    packed8_layer from = make_weights(&rng, 200, 300, 128, 128, SCALES_F32);
    const made_blob blob = encode(from.weights, TRF_DTYPE_BF16, from.rows, from.cols, TRF_FAVOR_SPEED);
    trf_device_layer *packed8 = make(&blob, TRF_LAYOUT_PACKED8, NULL), *plain, *again;
    fixture_check_status(trf_device_layer_convert(packed8, TRF_LAYOUT_PLAIN, NULL, &plain, &err), TRF_OK, &err);
    device_check_weights(packed8, plain, TRF_DECODE_BF16);
    ck_assert_int_eq(trf_device_layer_convert(packed8, TRF_LAYOUT_PACKED, NULL, &again, &err), TRF_ERR_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.message, "packed8 already"));
    ck_assert_int_eq(trf_device_layer_convert(plain, TRF_LAYOUT_PACKED8, NULL, &again, &err), TRF_ERR_UNSUPPORTED);
    made_blob encoded = {.dtype = TRF_DTYPE_BF16};
    fixture_check_status(trf_device_layer_encode(packed8, 0, &encoded.at, &encoded.bytes, &err), TRF_OK, &err);
    again = make(&encoded, TRF_LAYOUT_CODED, NULL);
    ck_assert_int_eq(test_layer_info(again).codec, TRF_CODEC_E4M3); /* FP8 again */
    ck_assert_uint_eq(encoded.bytes, blob.bytes);
    device_check_weights(packed8, again, TRF_DECODE_BF16);
    trf_device_layer_destroy(again);
    trf_device_layer_destroy(plain);
    trf_device_layer_destroy(packed8);
    trf_free(encoded.at);
    trf_free(blob.at);
    packed8_layer_free(&from);
}
END_TEST

/* ---- encoding again ---- */

typedef struct blob_memory {
    uint8_t bytes[1 << 16];
} blob_memory;

static trf_status read_weights(void *context, uint32_t row, uint32_t num_rows, uint32_t col, uint32_t num_cols,
                               void *dst, trf_error *failure) {
    const packed8_layer *from = context;
    (void)failure;
    for (uint32_t r = 0; r < num_rows; r++)
        memcpy((uint16_t *)dst + (size_t)r * num_cols, from->weights + (size_t)(row + r) * from->cols + col,
               num_cols * sizeof(uint16_t));
    return TRF_OK;
}

static trf_status write_blob(void *context, uint64_t offset, const void *bytes, size_t size, trf_error *failure) {
    (void)failure;
    ck_assert_uint_le(offset + size, sizeof(blob_memory));
    memcpy(((blob_memory *)context)->bytes + offset, bytes, size);
    return TRF_OK;
}

/* FP8 with scales that somebody else says: one number, of which nobody could tell that it was FP8. */
START_TEST(weights_that_are_alike) {
    test_rng rng = {121};
    packed8_layer from = make_weights(&rng, 64, 128, 64, 128, SCALES_F32);
    memset(from.codes, 0x3A, (size_t)from.rows * from.cols);
    packed8_layer_define_weights(&from);
    trf_encode_options options;
    trf_encode_options_init(&options);
    blob_memory memory = {{0}};
    trf_encoded made;
    const trf_source source = {TRF_DTYPE_BF16, from.rows, from.cols, &from, read_weights, NULL};
    const trf_fp8_scales scales = {
        .granularity = TRF_GRANULARITY_TENSOR, .scale_cols = 1, .count = 1, .values = from.scales};
    fixture_check_status(
        trf_encode_scaled_fp8(&source, &scales, &options, &(trf_sink){&memory, write_blob}, NULL, &made, NULL, &err),
        TRF_OK, &err);
    const made_blob blob = {memory.bytes, made.blob_bytes, TRF_DTYPE_BF16};
    trf_device_layer *packed8 = make(&blob, TRF_LAYOUT_PACKED8, NULL);
    made_blob encoded = {.dtype = TRF_DTYPE_BF16};
    fixture_check_status(trf_device_layer_encode(packed8, 1, &encoded.at, &encoded.bytes, &err), TRF_OK, &err);
    trf_device_layer *again = make(&encoded, TRF_LAYOUT_CODED, NULL);
    ck_assert_int_eq(test_layer_info(again).codec, TRF_CODEC_BF16);
    device_check_weights(packed8, again, TRF_DECODE_BF16);
    trf_device_layer_destroy(again);
    trf_device_layer_destroy(packed8);
    trf_free(encoded.at);
    packed8_layer_free(&from);
}
END_TEST

int main(void) {
    if (test_device_missing("gpu.packed8_layer"))
        return 77;
    Suite *suite = suite_create("device_packed8_layer");
    TCase *tests = tcase_create("device_packed8_layer");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, begin, end);
    tcase_add_loop_test(tests, the_weights_of_the_coded_layer, 0, 8);
    tcase_add_loop_test(tests, plain_fp8, 0, 2);
    tcase_add_test(tests, shards_of_a_large_layer);
    tcase_add_loop_test(tests, lines_that_are_full, 0, 4);
    tcase_add_test(tests, scales_of_rows);
    tcase_add_test(tests, shards_that_cut_blocks);
    tcase_add_test(tests, scales_without_constants);
    tcase_add_test(tests, bf16_that_is_asked_for);
    tcase_add_loop_test(tests, products, 0, 2);
    tcase_add_test(tests, groups);
    tcase_add_test(tests, the_callers_memory);
    tcase_add_test(tests, adopted_buffers);
    tcase_add_test(tests, to_other_layouts);
    tcase_add_test(tests, weights_that_are_alike);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
