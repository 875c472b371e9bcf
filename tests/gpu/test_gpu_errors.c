/* SPDX-License-Identifier: Apache-2.0 */
/* What the device API refuses, and what it does with corrupt rANS streams, which validation cannot detect. */
#include "gpu_corrupt.h"
#include "gpu_products.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- corrupt streams ---- */

static void check_fault(const gpu_corrupt_layer *c) {
    char tile[32];
    snprintf(tile, sizeof tile, "%llu", (unsigned long long)c->tile);
    for (int i = 0; i < 2; i++) { /* the state stays */
        trf_error err = {0};
        gpu_check(trf_device_layer_check(c->layer.device, &err), TRF_ERR_RANS, &err, c->layer.name);
        if (!strstr(err.message, tile) || err.offset != c->layer.view.tiles[c->tile].data_offset)
            ck_abort_msg("%s: the message does not name tile %s, or offset %llu its place: %s", c->layer.name, tile,
                         (unsigned long long)err.offset, err.message);
    }
}

/* Expects that y is that of the intact layer for rows outside the corrupt tile, NaN for rows of the corrupt slab, and
 * either for rows of other slabs in the tile. */
static void check_y(const gpu_corrupt_layer *c, const gpu_product *product, const float *y, const float *intact) {
    const uint32_t rows = c->layer.info.rows;
    for (uint32_t i = 0; i < product->info.m; i++)
        for (uint32_t r = 0; r < rows; r++) {
            float found = y[(size_t)i * rows + r], expected = intact[(size_t)i * rows + r];
            int in_tile = r >= c->shape.row && r < c->shape.row + c->shape.rows;
            int in_slab = r >= c->first_row && r < c->first_row + c->rows;
            int good = in_slab ? isnan(found) : found == expected || (in_tile && isnan(found));
            if (!good)
                ck_abort_msg("%s: corrupt tile %llu, rows %u to %u: y[%u][%u] = %g, was %g", product->name,
                             (unsigned long long)c->tile, c->first_row, c->first_row + c->rows - 1, i, r, (double)found,
                             (double)expected);
        }
}

static void check_products(test_rng *rng, const gpu_layer *intact, const gpu_corrupt_layer *c, trf_path path) {
    static const uint32_t batches[] = {1, 9, 64};
    const uint32_t rows = intact->info.rows;
    const trf_dtype x_dtype = gpu_takes(intact, TRF_DTYPE_BF16) ? TRF_DTYPE_BF16 : TRF_DTYPE_F16;
    gpu_input input = gpu_input_normal(rng, 64, intact->info.cols);
    float *expected = gpu_malloc((size_t)64 * rows * sizeof *expected),
          *found = gpu_malloc((size_t)64 * rows * sizeof *found);
    for (int b = 0; b < 3; b++) {
        gpu_product good, bad;
        if (gpu_product_make(&good, intact, batches[b], x_dtype, TRF_DTYPE_F32, path) != TRF_OK ||
            gpu_product_make(&bad, &c->layer, batches[b], x_dtype, TRF_DTYPE_F32, path) != TRF_OK)
            continue;
        gpu_product_run(&good, &input, expected);
        gpu_product_run(&bad, &input, found);
        check_y(c, &bad, found, expected);
        check_fault(c);
        gpu_product_run(&good, &input, found); /* the device still works */
        ck_assert_mem_eq(found, expected, good.y.bytes);
        gpu_product_free(&good);
        gpu_product_free(&bad);
    }
    free(expected);
    free(found);
    gpu_input_free(&input);
}

/* Expects that the weights of the slab are NaN, or zeros if the type has no NaN, and that nothing changes outside the
 * tile. */
static void check_decoding(const gpu_layer *intact, const gpu_corrupt_layer *c) {
    const uint32_t rows = intact->info.rows, cols = intact->info.cols;
    gpu_memory memory = gpu_memory_make((uint64_t)rows * cols * 2);
    uint16_t *expected = gpu_malloc(memory.bytes), *found = gpu_malloc(memory.bytes);
    const trf_decode_as as = intact->info.codec == TRF_CODEC_BF16 ? TRF_DECODE_BF16 : TRF_DECODE_F16;
    const trf_dtype dtype = as == TRF_DECODE_BF16 ? TRF_DTYPE_BF16 : TRF_DTYPE_F16;
    trf_error err = {0};
    for (int i = 0; i < 2; i++) {
        gpu_check(
            trf_device_layer_decode(i ? c->layer.device : intact->device, as, memory.at, memory.bytes, NULL, &err),
            TRF_OK, &err, intact->name);
        gpu_memory_read(&memory, i ? found : expected);
    }
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t k = 0; k < cols; k++) {
            size_t at = (size_t)r * cols + k;
            double value = gpu_to_double(found, dtype, at);
            int in_tile = r >= c->shape.row && r < c->shape.row + c->shape.rows && k >= c->shape.col &&
                          k < c->shape.col + c->shape.cols;
            int in_slab =
                r >= c->first_row && r < c->first_row + c->rows && k >= c->first_col && k < c->first_col + c->cols;
            int replaced = isnan(value) || (intact->info.codec == TRF_CODEC_INT && value == 0);
            if (in_slab ? !replaced : found[at] != expected[at] && !(in_tile && replaced))
                ck_abort_msg("%s: corrupt tile %llu: weight %u, %u is %g", intact->name, (unsigned long long)c->tile, r,
                             k, value);
        }
    check_fault(c);
    free(expected);
    free(found);
    gpu_memory_free(&memory);
}

/* Decodes row by row. Weights that differ from the intact layer must be NaN, or zero, and in the slab. The fault is
 * that of its tile if a row has met it; a row may not meet it, since an error that shows only in the number of a lane
 * pair's words may be in none of the row's own lanes. */
static void check_rows(const gpu_layer *intact, const gpu_corrupt_layer *c) {
    const uint32_t rows = intact->info.rows, cols = intact->info.cols;
    gpu_memory memory = gpu_memory_make((uint64_t)rows * cols * 2);
    uint16_t *expected = gpu_malloc(memory.bytes), *found = gpu_malloc(memory.bytes);
    int32_t *ids = gpu_malloc(rows * sizeof *ids);
    for (uint32_t r = 0; r < rows; r++)
        ids[r] = (int32_t)r;
    gpu_memory own_ids = gpu_memory_copy_of(ids, rows * sizeof *ids);
    const trf_decode_as as = intact->info.codec == TRF_CODEC_BF16 ? TRF_DECODE_BF16 : TRF_DECODE_F16;
    const trf_dtype dtype = as == TRF_DECODE_BF16 ? TRF_DTYPE_BF16 : TRF_DTYPE_F16;
    const trf_row_request request = test_row_request(own_ids.at, 4, rows, as, memory.at, memory.bytes);
    trf_error err = {0};
    uint64_t replaced = 0;
    for (int i = 0; i < 2; i++) {
        gpu_check(trf_decode_rows(i ? c->layer.device : intact->device, &request, NULL, &err), TRF_OK, &err,
                  intact->name);
        gpu_memory_read(&memory, i ? found : expected);
    }
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t k = 0; k < cols; k++) {
            const size_t at = (size_t)r * cols + k;
            const double value = gpu_to_double(found, dtype, at);
            const int in_slab =
                r >= c->first_row && r < c->first_row + c->rows && k >= c->first_col && k < c->first_col + c->cols;
            if (found[at] == expected[at])
                continue;
            replaced++;
            if (!in_slab || !(isnan(value) || (intact->info.codec == TRF_CODEC_INT && value == 0)))
                ck_abort_msg("%s: corrupt tile %llu: weight %u, %u of its row is %g", intact->name,
                             (unsigned long long)c->tile, r, k, value);
        }
    if (replaced)
        check_fault(c);
    else
        gpu_check(trf_device_layer_check(c->layer.device, &err), TRF_OK, &err, c->layer.name);
    free(expected);
    free(found);
    free(ids);
    gpu_memory_free(&own_ids);
    gpu_memory_free(&memory);
}

/* loop: recipes bf16, fp16, e4m3, e5m2, i8, int channel; slabs of either width; favors; and a tile inside or at the
 * edge. */
START_TEST(corrupt_rans_streams) {
    static const int recipes[] = {0, 1, 2, 3, 5, 7};
    static const gpu_shape shape = {560, 1000}; /* the last tile has slabs of 32 and 16 rows, and slivers */
    const gpu_recipe *recipe = &kGpuRecipes[recipes[_i / 8]];
    test_rng rng = {100 + (uint64_t)_i};
    trf_error err = {0};
    gpu_layer intact =
        gpu_layer_make(&rng, recipe, (trf_favor)(_i % 2), kGpuSlabCols[_i / 4 % 2], shape, GPU_WEIGHTS_NORMAL);
    const uint64_t tile = _i & 2 ? intact.view.num_tiles - 1 : test_below(&rng, 8);
    for (int action = 0; action < 4; action++) { /* each on a layer that no other action has touched */
        if (intact.view.tiles[tile].coding == TRF_TILE_STORED)
            break;
        gpu_corrupt_layer c = gpu_corrupt(&rng, &intact, tile);
        gpu_check(trf_device_layer_check(c.layer.device, &err), TRF_OK, &err, c.layer.name);
        if (action == 0)
            check_products(&rng, &intact, &c, TRF_PATH_FUSED);
        else if (action == 1)
            check_products(&rng, &intact, &c, TRF_PATH_TWO_STEP);
        else if (action == 2)
            check_decoding(&intact, &c);
        else
            check_rows(&intact, &c);
        gpu_layer_free(&c.layer);
    }
    gpu_check(trf_device_layer_check(intact.device, &err), TRF_OK, &err, intact.name);
    gpu_layer_free(&intact);
}
END_TEST

/* loop: recipes bf16 and fp16; slabs of either width. A slab in the middle of a band, and the narrow one at its end. */
START_TEST(corrupt_gathered_rows) {
    const uint32_t slab_cols = kGpuSlabCols[_i % 2];
    test_rng rng = {300 + (uint64_t)_i};
    gpu_layer intact = gpu_layer_make(&rng, &kGpuRecipes[_i / 2], TRF_FAVOR_SPEED, slab_cols,
                                      gpu_gathered_shape(slab_cols), GPU_WEIGHTS_NORMAL);
    const uint32_t tile_cols = (intact.info.cols + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE;
    for (int last = 0; last <= 1; last++) {
        gpu_corrupt_layer c = gpu_corrupt(&rng, &intact, last ? tile_cols - 1 : tile_cols / 2);
        check_decoding(&intact, &c);
        gpu_layer_free(&c.layer);
    }
    gpu_layer_free(&intact);
}
END_TEST

/* ---- refusals ---- */

static gpu_layer make_layer(int recipe) {
    static const gpu_shape shape = {128, 256};
    test_rng rng = {200};
    return gpu_layer_make(&rng, &kGpuRecipes[recipe], TRF_FAVOR_SPEED, 0, shape, GPU_WEIGHTS_NORMAL);
}

START_TEST(contexts_and_layers) {
    trf_context *context;
    trf_error err = {0};
    gpu_check(trf_context_create(-3, &context, &err), TRF_ERR_DEVICE, &err, "device -3");
    gpu_check(trf_context_create(1000, &context, &err), TRF_ERR_DEVICE, &err, "device 1000");
    ck_assert_int_eq(trf_context_create(1000, &context, NULL), TRF_ERR_DEVICE);
    trf_context_info own;
    trf_context_get_info(gpu_context, &own);
    ck_assert(own.device == 0 && own.capability >= 80 && own.name[0] != 0);
    trf_context_destroy(NULL);
    trf_device_layer_destroy(NULL);
    gpu_check(trf_context_create(0, &context, &err), TRF_OK, &err, "a second context");
    trf_context_destroy(context);

    gpu_layer layer = make_layer(0);
    const trf_device_layer_info on_device = test_device_layer_info(layer.device);
    const trf_layer_info info = on_device.layer;
    ck_assert(info.rows == layer.info.rows && info.cols == layer.info.cols && info.codec == layer.info.codec);
    ck_assert(info.dtype == layer.info.dtype && info.blob_bytes == layer.blob_bytes);
    ck_assert(on_device.layout == TRF_LAYOUT_CODED && on_device.plans == 0);
    ck_assert_uint_ge(on_device.memory_bytes, layer.blob_bytes);
    ck_assert_uint_le(on_device.memory_bytes, layer.blob_bytes + layer.blob_bytes / 50 + 65536);
    gpu_layer_free(&layer);
}
END_TEST

START_TEST(decoding) {
    gpu_layer layers[] = {make_layer(0), make_layer(1)};
    const uint64_t bytes = 128 * 256 * 2;
    gpu_memory memory = gpu_memory_make(bytes + 64);
    char *at = memory.at;
    trf_error err = {0};
    const struct {
        int layer;
        trf_decode_as as;
        char *weights;
        uint64_t bytes;
        trf_status expected;
        const char *what;
    } cases[] = {
        {0, TRF_DECODE_SOURCE, at, bytes - 2, TRF_ERR_SHAPE, "one weight too few"},
        {0, TRF_DECODE_SOURCE, at, bytes + 2, TRF_ERR_SHAPE, "one weight too many"},
        {0, TRF_DECODE_SOURCE, at, 0, TRF_ERR_SHAPE, "no memory"},
        {0, TRF_DECODE_SOURCE, at + 8, bytes, TRF_ERR_ARGUMENT, "8-byte alignment"},
        {0, TRF_DECODE_SOURCE, at + 2, bytes, TRF_ERR_ARGUMENT, "2-byte alignment"},
        {0, (trf_decode_as)4, at, bytes, TRF_ERR_ARGUMENT, "kind 4"},
        {0, TRF_DECODE_F16, at, bytes, TRF_ERR_UNSUPPORTED, "F16 of bf16"},
        {1, TRF_DECODE_BF16, at, bytes, TRF_ERR_UNSUPPORTED, "BF16 of fp16"},
        {0, TRF_DECODE_SOURCE, NULL, bytes, TRF_ERR_ARGUMENT, "NULL"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        trf_status status = trf_device_layer_decode(layers[cases[i].layer].device, cases[i].as, cases[i].weights,
                                                    cases[i].bytes, NULL, &err);
        gpu_check(status, cases[i].expected, &err, cases[i].what);
    }
    uint8_t *found = gpu_malloc(memory.bytes);
    gpu_memory_read(&memory, found);
    for (uint64_t i = 0; i < memory.bytes; i++)
        EXPECT(found[i] == 0xFF); /* nothing was written */
    free(found);
    gpu_memory_free(&memory);
    for (int i = 0; i < 2; i++)
        gpu_layer_free(&layers[i]);
}
END_TEST

START_TEST(plans) {
    enum {
        BF16 = TRF_DTYPE_BF16,
        F16 = TRF_DTYPE_F16,
        F32 = TRF_DTYPE_F32
    };
    gpu_layer layers[] = {make_layer(0), make_layer(1), make_layer(2), make_layer(5)};
    static const struct {
        int layer;
        uint32_t m;
        int x, y, path;
        trf_status expected;
        const char *what;
    } cases[] = {
        {0, 0, BF16, F32, TRF_PATH_AUTO, TRF_ERR_ARGUMENT, "m 0"},
        {0, 1, F16, F32, TRF_PATH_AUTO, TRF_ERR_ARGUMENT, "F16 by bf16"},
        {1, 1, BF16, F32, TRF_PATH_AUTO, TRF_ERR_ARGUMENT, "BF16 by fp16"},
        {0, 1, F32, F32, TRF_PATH_AUTO, TRF_ERR_ARGUMENT, "F32 by bf16"},
        {2, 1, TRF_DTYPE_F8_E4M3, F32, TRF_PATH_AUTO, TRF_ERR_ARGUMENT, "F8 by e4m3"},
        {0, 1, BF16, TRF_DTYPE_I8, TRF_PATH_AUTO, TRF_ERR_ARGUMENT, "y of I8"},
        {0, 1, BF16, TRF_DTYPE_NONE, TRF_PATH_AUTO, TRF_ERR_ARGUMENT, "y of nothing"},
        {0, 1, BF16, F32, 6, TRF_ERR_ARGUMENT, "path 6"},
        {0, TRF_FUSED_MAX_M + 1, BF16, F32, TRF_PATH_FUSED, TRF_ERR_UNSUPPORTED, "m 65, fused"},
        {2, 1, BF16, F32, TRF_PATH_AUTO, TRF_OK, "BF16 by e4m3"},
        {2, 1, F16, F32, TRF_PATH_AUTO, TRF_OK, "F16 by e4m3"},
        {3, 1, BF16, F16, TRF_PATH_AUTO, TRF_OK, "BF16 by i8"},
        {3, 1, F16, BF16, TRF_PATH_AUTO, TRF_OK, "F16 by i8"},
    };
    trf_error err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        trf_plan *plan = NULL;
        trf_status status = test_make_plan(layers[cases[i].layer].device, cases[i].m, (trf_dtype)cases[i].x,
                                           (trf_dtype)cases[i].y, (trf_path)cases[i].path, &plan, &err);
        gpu_check(status, cases[i].expected, &err, cases[i].what);
        ck_assert_int_eq(plan != NULL, status == TRF_OK);
        trf_plan_destroy(plan);
    }
    trf_plan *plan;
    gpu_check(test_make_plan(layers[0].device, TRF_FUSED_MAX_M + 1, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO, &plan,
                             &err),
              TRF_OK, &err, "m 65");
    const trf_plan_info info = test_plan_info(plan);
    ck_assert_int_eq(info.path, TRF_PATH_TWO_STEP);
    ck_assert_ptr_nonnull(info.reason);
    trf_plan_destroy(plan);
    for (int i = 0; i < 4; i++)
        gpu_layer_free(&layers[i]);
}
END_TEST

/* Expects that a call with these operands is refused. */
static void refuse(const gpu_product *product, trf_operands operands, const char *what) {
    trf_error err = {0};
    gpu_check(trf_linear(product->plan, &operands, gpu_product_workspace(product), NULL, &err), TRF_ERR_ARGUMENT, &err,
              what);
}

START_TEST(products) {
    gpu_layer layer = make_layer(0);
    test_rng rng = {300};
    gpu_input input = gpu_input_normal(&rng, 2, layer.info.cols);
    for (trf_path path = TRF_PATH_FUSED; path <= TRF_PATH_TWO_STEP; path++) {
        gpu_product product;
        trf_error err = {0};
        EXPECT(gpu_product_make(&product, &layer, 2, TRF_DTYPE_BF16, TRF_DTYPE_BF16, path) == TRF_OK);
        char *x = input.bf16.at, *y = product.y.at, *workspace = product.workspace.at;
        const trf_operands good = test_operands(x, y);
        trf_operands wrong = good;
        refuse(&product, test_operands(NULL, y), "no x");
        refuse(&product, test_operands(x, NULL), "no y");
        refuse(&product, test_operands(x + 1, y), "odd x");
        refuse(&product, test_operands(x, y + 1), "odd y");
        refuse(&product, test_operands(x, x), "x that is y");
        wrong.bias = x;
        refuse(&product, wrong, "a bias that the plan does not have");
        wrong = good;
        wrong.multiplier = y;
        refuse(&product, wrong, "a multiplier that the plan does not have");
        wrong = good;
        wrong.residual = y;
        refuse(&product, wrong, "a residual that the plan does not have");
        wrong = good;
        wrong.struct_bytes = 0;
        refuse(&product, wrong, "operands of no size");
        gpu_check(trf_linear(NULL, &good, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err, "no plan");
        gpu_check(trf_linear(product.plan, NULL, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err, "no operands");
        if (product.info.workspace_bytes) {
            gpu_check(trf_linear(product.plan, &good, NULL, NULL, &err), TRF_ERR_ARGUMENT, &err, "no workspace");
            gpu_check(trf_linear(product.plan, &good, workspace + 16, NULL, &err), TRF_ERR_ARGUMENT, &err,
                      "a workspace that is not aligned");
        }
        uint8_t *found = gpu_malloc(product.y.bytes);
        gpu_memory_read(&product.y, found);
        for (uint64_t i = 0; i < product.y.bytes; i++)
            EXPECT(found[i] == 0xFF); /* nothing was computed */
        ck_assert_int_eq(test_multiply(product.plan, NULL, y, workspace, NULL, NULL), TRF_ERR_ARGUMENT);
        free(found);
        gpu_product_free(&product);
    }
    gpu_input_free(&input);
    gpu_layer_free(&layer);
}
END_TEST

int main(void) {
    const gpu_test tests[] = {
        {corrupt_rans_streams, 48}, {contexts_and_layers, 1}, {decoding, 1}, {plans, 1}, {products, 1},
        {corrupt_gathered_rows, 4}};
    return gpu_main("errors", tests, sizeof tests / sizeof tests[0]);
}
