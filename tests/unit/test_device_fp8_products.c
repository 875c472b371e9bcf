/* SPDX-License-Identifier: Apache-2.0 */
/* Products of coded layers of scaled FP8 on every path: with unit vectors as x, each y is a weight, bit for bit; alone,
 * in groups, and as experts. These tests run on the CPU; tests/gpu/ builds this file for a GPU, too, with its ordinal
 * as TRF_TEST_DEVICE. */
#include "common/any_device.h"
#include "common/checkpoint_fixture.h"
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/was_fp8.h"
#include "transfuse/experts.h"
#include "trf_context.h"
#include "trf_number_formats.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum {
    ON_GPU = TRF_TEST_DEVICE != TRF_DEVICE_CPU,
    GROUP = 3, /* layers of a group, experts of a mixture */
    GROUP_M = 8
};

static trf_error err;
static trf_context *device;

static void begin(void) { fixture_check_status(trf_context_create(TRF_TEST_DEVICE, &device, &err), TRF_OK, &err); }
static void end(void) { trf_context_destroy(device); }

static const trf_granularity kGranularities[GROUP] = {TRF_GRANULARITY_TENSOR, TRF_GRANULARITY_CHANNEL,
                                                      TRF_GRANULARITY_SCALE_BLOCK};

/* ---- device memory ---- */

static void *allocate(uint64_t bytes) {
    void *memory;
    fixture_check_status(trf_device_allocate(device, bytes ? bytes : 1, &memory, &err), TRF_OK, &err);
    return memory;
}

/* ---- a layer ---- */

typedef struct made_layer {
    trf_device_layer *device_layer;
    uint32_t rows, cols;
    uint16_t *weights;        /* [rows][cols] */
    uint32_t predictor_modes; /* as in trf_layer_info */
} made_layer;

static made_layer make_layer(test_rng *rng, trf_granularity granularity, trf_favor favor, uint32_t rows,
                             uint32_t cols) {
    made_layer made = {NULL, rows, cols, was_fp8_make(rng, granularity, rows, cols), 0};
    trf_layer *layer;
    trf_layer_info info;
    void *blob;
    uint64_t blob_bytes;
    trf_load_options options;
    trf_load_options_init(&options);
    options.layout = TRF_LAYOUT_CODED;
    was_fp8_encode(made.weights, favor, rows, cols, &blob, &blob_bytes);
    fixture_check_status(trf_device_layer_create(device, blob, blob_bytes, &options, &made.device_layer, &err), TRF_OK,
                         &err);
    fixture_check_status(trf_layer_from_memory(blob, blob_bytes, &layer, &err), TRF_OK, &err);
    trf_layer_get_info(layer, &info);
    made.predictor_modes = info.predictor_modes;
    trf_layer_free(layer);
    trf_free(blob);
    ck_assert_int_eq(test_layer_info(made.device_layer).granularity, granularity);
    return made;
}

static void free_layer(made_layer *made) {
    trf_device_layer_destroy(made->device_layer);
    free(made->weights);
}

/* A layer without exponent offsets, whose kernels products of experts do not have. The scales that the encoder finds
 * depend on each block's largest weight, so that some drawn layers get offsets. */
static made_layer make_expert(test_rng *rng, trf_granularity granularity, trf_favor favor, uint32_t rows,
                              uint32_t cols) {
    made_layer made = make_layer(rng, granularity, favor, rows, cols);
    for (int tries = 0; made.predictor_modes; tries++) {
        ck_assert_int_lt(tries, 100);
        free_layer(&made);
        made = make_layer(rng, granularity, favor, rows, cols);
    }
    return made;
}

/* ---- unit vectors ---- */

/* x and y of a product with m unit vectors. */
typedef struct unit_product {
    uint32_t m, rows, cols;
    uint16_t *x; /* BF16 [m][cols] */
    float *y;    /* [m][rows] */
    void *x_dev, *y_dev;
} unit_product;

static unit_product unit_product_make(uint32_t m, uint32_t rows, uint32_t cols) {
    unit_product p = {m,
                      rows,
                      cols,
                      malloc(2ull * m * cols),
                      malloc(4ull * m * rows),
                      allocate(2ull * m * cols),
                      allocate(4ull * m * rows)};
    ck_assert(p.x && p.y);
    return p;
}

/* Row n of x becomes the unit vector of column first + n. */
static void unit_product_begin(unit_product *p, uint32_t first) {
    memset(p->x, 0, 2ull * p->m * p->cols);
    for (uint32_t n = 0; n < p->m; n++)
        p->x[(size_t)n * p->cols + (first + n) % p->cols] = 0x3F80;
    fixture_check_status(trf_device_upload(device, p->x_dev, p->x, 2ull * p->m * p->cols, &err), TRF_OK, &err);
}

static void unit_product_expect(unit_product *p, uint32_t first, const uint16_t *weights, const char *what) {
    fixture_check_status(trf_device_download(device, p->y, p->y_dev, 4ull * p->m * p->rows, &err), TRF_OK, &err);
    for (uint32_t n = 0; n < p->m; n++)
        for (uint32_t row = 0; row < p->rows; row++) {
            const uint32_t col = (first + n) % p->cols;
            const float due = trf_bf16_to_f32(weights[(size_t)row * p->cols + col]),
                        found = p->y[(size_t)n * p->rows + row];
            if (found != due)
                ck_abort_msg("%s, %u rows of x: row %u column %u of %ux%u is %a, not %a", what, p->m, row, col, p->rows,
                             p->cols, (double)found, (double)due);
        }
}

static void unit_product_free(unit_product *p) {
    trf_device_free(device, p->x_dev);
    trf_device_free(device, p->y_dev);
    free(p->x);
    free(p->y);
}

/* ---- one layer ---- */

/* Multiplies by every `step`-th m unit vectors. @return whether the path takes the layer. */
static int check_path(const made_layer *layer, uint32_t m, trf_path path, uint32_t step, const char *what) {
    trf_plan *plan;
    if (test_make_plan(layer->device_layer, m, TRF_DTYPE_BF16, TRF_DTYPE_F32, path, &plan, &err) != TRF_OK)
        return 0;
    unit_product p = unit_product_make(m, layer->rows, layer->cols);
    void *workspace = allocate(test_plan_info(plan).workspace_bytes);
    for (uint32_t first = 0; first < layer->cols; first += step * m) {
        unit_product_begin(&p, first);
        fixture_check_status(test_multiply(plan, p.x_dev, p.y_dev, workspace, NULL, &err), TRF_OK, &err);
        unit_product_expect(&p, first, layer->weights, what);
    }
    fixture_check_status(trf_device_layer_check(layer->device_layer, &err), TRF_OK, &err);
    trf_device_free(device, workspace);
    unit_product_free(&p);
    trf_plan_destroy(plan);
    return 1;
}

/* Whether the wide kernels must take a layer: it has no edges, and no exponent offsets, which some drawn ones get. */
static int must_go_wide(const made_layer *layer) {
    return ON_GPU && trf_has_sm_90a(&device->limits) && layer->rows % 32 == 0 && !layer->predictor_modes;
}

START_TEST(weights) {
    static const uint32_t kShapes[][2] = {{256, 512}, {300, 530}, {1024, 1280}};
    static const uint32_t kFew[] = {1, 3, 8, 9, 16, 24, 31, 32, 64}, kMany[] = {48, 64, 96, 128, 200, 300};
    const uint32_t shapes = ON_GPU && !test_quick() ? 3 : 2;
    test_rng rng = {9300 + (uint64_t)_i};
    for (uint32_t s = 0; s < shapes; s++) {
        const trf_favor favor = _i % 2 ? TRF_FAVOR_SPEED : TRF_FAVOR_SIZE;
        made_layer layer = make_layer(&rng, kGranularities[_i / 2], favor, kShapes[s][0], kShapes[s][1]);
        for (size_t i = 0; i < sizeof kFew / sizeof *kFew; i++)
            ck_assert_msg(check_path(&layer, kFew[i], TRF_PATH_FUSED, ON_GPU ? 1 + 64 / kFew[i] / 8 : 9, "fused"), "%s",
                          err.message);
        for (size_t i = 0; ON_GPU && i < sizeof kMany / sizeof *kMany; i++) {
            const int taken = check_path(&layer, kMany[i], TRF_PATH_WIDE, 1, "wide");
            ck_assert_msg(taken || !must_go_wide(&layer), "%s", err.message);
        }
        trf_plan *plan;
        fixture_check_status(
            test_make_plan(layer.device_layer, 1, TRF_DTYPE_BF16, TRF_DTYPE_BF16, TRF_PATH_AUTO, &plan, &err), TRF_OK,
            &err);
        ck_assert_int_eq(test_plan_info(plan).path, TRF_PATH_FUSED);
        trf_plan_destroy(plan);
        free_layer(&layer);
    }
}
END_TEST

/* ---- several layers ---- */

START_TEST(groups) {
    test_rng rng = {9400 + (uint64_t)_i};
    made_layer layers[GROUP];
    unit_product products[GROUP];
    trf_group_member members[GROUP];
    const void *x[GROUP];
    void *y[GROUP];
    for (int i = 0; i < GROUP; i++) { /* the last one has edges */
        layers[i] = make_layer(&rng, kGranularities[i], _i ? TRF_FAVOR_SPEED : TRF_FAVOR_SIZE, i == 2 ? 140 : 256, 512);
        products[i] = unit_product_make(GROUP_M, layers[i].rows, layers[i].cols);
        members[i] = test_group_member(layers[i].device_layer, GROUP_M, TRF_DTYPE_BF16, TRF_DTYPE_F32);
        x[i] = products[i].x_dev, y[i] = products[i].y_dev;
    }
    trf_layer_group *group;
    fixture_check_status(trf_layer_group_create(members, GROUP, &group, &err), TRF_OK, &err);
    ck_assert_msg(!ON_GPU || test_group_info(group).sharing, "no members share a launch");
    void *workspace = allocate(test_group_info(group).workspace_bytes);
    for (uint32_t first = 0; first < 512; first += GROUP_M * (ON_GPU ? 1 : 9)) {
        for (int i = 0; i < GROUP; i++)
            unit_product_begin(&products[i], first);
        fixture_check_status(trf_linear_group(group, x, y, workspace, NULL, &err), TRF_OK, &err);
        for (int i = 0; i < GROUP; i++)
            unit_product_expect(&products[i], first, layers[i].weights, "in a group");
    }
    trf_layer_group_destroy(group);
    trf_device_free(device, workspace);
    for (int i = 0; i < GROUP; i++) {
        unit_product_free(&products[i]);
        free_layer(&layers[i]);
    }
}
END_TEST

/* Each expert has another granularity, and as many tokens as its number and one. */
START_TEST(experts) {
    static const uint32_t kOffsets[GROUP + 1] = {0, 1, 3, 14};
    enum {
        TOKENS = 14,
        ROWS = 160,
        COLS = 384
    };
    test_rng rng = {9500 + (uint64_t)_i};
    made_layer layers[GROUP];
    trf_device_layer *device_layers[GROUP];
    for (int i = 0; i < GROUP; i++) {
        layers[i] = make_expert(&rng, kGranularities[i], _i ? TRF_FAVOR_SPEED : TRF_FAVOR_SIZE, ROWS, COLS);
        device_layers[i] = layers[i].device_layer;
    }
    trf_experts *experts_of;
    trf_experts_plan *plan;
    fixture_check_status(trf_experts_create(device_layers, GROUP, &experts_of, &err), TRF_OK, &err);
    fixture_check_status(trf_experts_plan_create(experts_of, TOKENS, TRF_DTYPE_BF16, TRF_DTYPE_F32, &plan, &err),
                         TRF_OK, &err);
    unit_product p = unit_product_make(TOKENS, ROWS, COLS);
    void *workspace = allocate(trf_experts_plan_workspace_bytes(plan)), *offsets = allocate(sizeof kOffsets);
    fixture_check_status(trf_device_upload(device, offsets, kOffsets, sizeof kOffsets, &err), TRF_OK, &err);
    for (uint32_t first = 0; first < COLS; first += ON_GPU ? 1 : 50) {
        unit_product_begin(&p, first);
        fixture_check_status(trf_experts_linear(plan, p.x_dev, offsets, p.y_dev, workspace, NULL, &err), TRF_OK, &err);
        for (uint32_t i = 0; i < GROUP; i++) { /* an expert's tokens as a product of their own */
            unit_product own = p;
            own.m = kOffsets[i + 1] - kOffsets[i];
            own.y_dev = (float *)p.y_dev + (size_t)kOffsets[i] * ROWS;
            unit_product_expect(&own, first + kOffsets[i], layers[i].weights, "an expert");
        }
    }
    trf_experts_plan_destroy(plan);
    trf_experts_destroy(experts_of);
    trf_device_free(device, workspace);
    trf_device_free(device, offsets);
    unit_product_free(&p);
    for (int i = 0; i < GROUP; i++)
        free_layer(&layers[i]);
}
END_TEST

int main(void) {
    if (test_device_missing("gpu.fp8_products"))
        return 77;
    Suite *suite = suite_create("device_fp8_products");
    TCase *tests = tcase_create("device_fp8_products");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, begin, end);
    tcase_add_loop_test(tests, weights, 0, 2 * GROUP);
    tcase_add_loop_test(tests, groups, 0, 2);
    tcase_add_loop_test(tests, experts, 0, 2);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
