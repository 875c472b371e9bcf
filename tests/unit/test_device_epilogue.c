/* SPDX-License-Identifier: Apache-2.0 */
/* Epilogues of products: activations against F64, every combination of operands, in place and not, for whole layers and
 * for shards; what is refused; NaN. These tests run on the CPU; tests/gpu/ builds this file for a GPU, too, with its
 * ordinal as TRF_TEST_DEVICE.
 *
 * The sums that an epilogue starts from have the same bits as those of the same product to F32 without one. */
#include "common/any_device.h"
#include "common/checkpoint_fixture.h"
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "transfuse/cpu.h"
#include "trf_number_formats.h"

#include <check.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 600, /* no whole bands: the last rows have only edges */
    COLS = 1100,
    MOST_M = 40
};

static const struct {
    const char *dtype;
    trf_codec codec;
    trf_dtype x_dtype;
} kKinds[] = {{"BF16", TRF_CODEC_AUTO, TRF_DTYPE_BF16},
              {"F32", TRF_CODEC_INT, TRF_DTYPE_F16},
              {"F8_E4M3", TRF_CODEC_AUTO, TRF_DTYPE_F16}};

/* first_row, num_rows, first_col, num_cols; a number of 0 means to the end. */
static const uint32_t kShards[][4] = {{0, 0, 0, 0},   {256, 256, 0, 0}, {16, 400, 0, 0},
                                      {592, 0, 0, 0}, {0, 0, 272, 560}, {48, 416, 272, 560}};

static const uint32_t kBatches[] = {1, 7, MOST_M};
static const trf_dtype kYTypes[] = {TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16};

enum {
    NUM_KINDS = sizeof kKinds / sizeof kKinds[0],
    NUM_SHARDS = sizeof kShards / sizeof kShards[0],
    NUM_BATCHES = sizeof kBatches / sizeof kBatches[0]
};

static trf_error err;
static trf_context *device;
static const char *compressed_path[NUM_KINDS];

static void begin(void) {
    static const char *const all[] = {"*", NULL};
    fixture_begin();
    fixture_check_status(trf_context_create(TRF_TEST_DEVICE, &device, &err), TRF_OK, &err);
    trf_context_set_threads(device, 2);
    for (int i = 0; i < NUM_KINDS; i++) {
        const fixture_tensor tensor = {"w.weight", kKinds[i].dtype, {ROWS, COLS}, 2, 0};
        const char *source = fixture_path("in%d.safetensors", i);
        compressed_path[i] = fixture_path("packed%d.safetensors", i);
        fixture_write_safetensors(source, NULL, &tensor, 1, 8, 5);
        trf_checkpoint_options options;
        trf_checkpoint_options_init(&options);
        options.encode.codec = kKinds[i].codec;
        options.include = all; /* F32 too */
        fixture_check_status(trf_compress_checkpoint(source, compressed_path[i], &options, NULL, &err), TRF_OK, &err);
    }
}

static void end(void) {
    trf_context_destroy(device);
    fixture_end();
}

static trf_device_layer *load(int kind, const uint32_t shard[4]) {
    trf_checkpoint *checkpoint;
    trf_device_layer *layer;
    const trf_load_options options = test_shard(shard);
    fixture_check_status(trf_checkpoint_open(compressed_path[kind], &checkpoint, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_load(device, checkpoint, "w.weight", &options, &layer, &err), TRF_OK, &err);
    trf_checkpoint_close(checkpoint);
    return layer;
}

/* ---- device memory ---- */

static void *allocate(uint64_t bytes) {
    void *memory;
    fixture_check_status(trf_device_allocate(device, bytes, &memory, &err), TRF_OK, &err);
    return memory;
}

static void upload(void *to, const void *from, uint64_t bytes) {
    fixture_check_status(trf_device_upload(device, to, from, bytes, &err), TRF_OK, &err);
}

static void download(void *to, const void *from, uint64_t bytes) {
    fixture_check_status(trf_device_download(device, to, from, bytes, &err), TRF_OK, &err);
}

/* Filled with bytes of 0xFF: NaNs. */
static void *allocate_filled(uint64_t bytes) {
    void *memory = allocate(bytes);
    uint8_t *filler = malloc(bytes + 1);
    memset(filler, 0xFF, bytes + 1);
    upload(memory, filler, bytes);
    free(filler);
    return memory;
}

/* ---- values of y's types ---- */

static void put(void *values, trf_dtype dtype, size_t i, double value) {
    if (dtype == TRF_DTYPE_F32)
        ((float *)values)[i] = (float)value;
    else
        ((uint16_t *)values)[i] = dtype == TRF_DTYPE_BF16 ? trf_f64_to_bf16(value) : trf_f64_to_f16(value);
}

static double get(const void *values, trf_dtype dtype, size_t i) {
    if (dtype == TRF_DTYPE_F32)
        return (double)((const float *)values)[i];
    const uint16_t bits = ((const uint16_t *)values)[i];
    return (double)(dtype == TRF_DTYPE_BF16 ? trf_bf16_to_f32(bits) : trf_f16_to_f32(bits));
}

/* The error that rounding a value to the type may make. */
static double rounding(trf_dtype dtype, double value) {
    const int bits = dtype == TRF_DTYPE_F32    ? 24
                     : dtype == TRF_DTYPE_BF16 ? 8
                                               : 11,
              lowest = dtype == TRF_DTYPE_F16 ? -25 : -150;
    return ldexp(fabs(value), -bits) + ldexp(1, lowest);
}

/* ---- the reference ---- */

static double activate(trf_activation activation, double v) {
    switch (activation) {
    case TRF_ACTIVATION_SILU:
        return v / (1 + exp(-v));
    case TRF_ACTIVATION_GELU:
        return v / 2 * erfc(-v / sqrt(2));
    case TRF_ACTIVATION_GELU_TANH: /* v / 2 * (1 + tanh u), which would cancel */
        return v / (1 + exp(-2 * sqrt(2 / acos(-1)) * (v + 0.044715 * v * v * v)));
    default:
        return v;
    }
}

/* The error that transfuse.h allows an activation. */
static double activation_error(trf_activation activation, double value) {
    return activation == TRF_ACTIVATION_NONE ? 0 : 0x1p-20 * fabs(value) + 0x1p-145;
}

/* ---- products ---- */

/* A layer with the memory that its products take. */
typedef struct bench {
    trf_device_layer *layer;
    trf_layer_info info;
    trf_plan_options options; /* without an epilogue */
    trf_path path;            /* that the plan takes */
    size_t count;             /* of y */
    uint64_t workspace_bytes; /* enough with an epilogue and without */
    void *x, *y, *bias, *multiplier, *residual, *workspace;
    void *host_bias, *host_multiplier, *host_residual; /* what the operands hold, in y's type */
    float *sums;                                       /* the product alone */
} bench;

static void *random_operand(test_rng *rng, trf_dtype dtype, size_t count, void *on_device) {
    void *values = malloc(4 * count);
    for (size_t i = 0; i < count; i++)
        put(values, dtype, i, test_normal(rng));
    upload(on_device, values, count * trf_dtype_bytes(dtype));
    return values;
}

/* The sums, by the same path. */
static float *multiply_alone(const bench *b) {
    trf_plan *plan;
    float *sums = malloc(4 * b->count);
    fixture_check_status(
        test_make_plan(b->layer, b->options.m, b->options.x_dtype, TRF_DTYPE_F32, b->path, &plan, &err), TRF_OK, &err);
    void *y = allocate_filled(4 * b->count), *workspace = allocate_filled(test_plan_info(plan).workspace_bytes);
    fixture_check_status(test_multiply(plan, b->x, y, workspace, NULL, &err), TRF_OK, &err);
    download(sums, y, 4 * b->count);
    trf_plan_destroy(plan);
    trf_device_free(device, y);
    trf_device_free(device, workspace);
    return sums;
}

/* @return whether the device has such a path. */
static int bench_make(bench *b, trf_device_layer *layer, uint32_t m, trf_dtype x_dtype, trf_dtype y_dtype,
                      trf_path path, const uint16_t *x) {
    *b = (bench){
        .layer = layer, .info = test_layer_info(layer), .options = test_plan_options(m, x_dtype, y_dtype, path)};
    trf_plan *plan;
    trf_plan_options with_bias = b->options;
    trf_status status = trf_plan_create(layer, &b->options, &plan, &err);
    if (status == TRF_ERR_UNSUPPORTED && path != TRF_PATH_AUTO)
        return 0;
    fixture_check_status(status, TRF_OK, &err);
    const trf_plan_info alone = test_plan_info(plan);
    trf_plan_destroy(plan);
    b->path = alone.path;
    with_bias.has_bias = 1;
    fixture_check_status(trf_plan_create(layer, &with_bias, &plan, &err), TRF_OK, &err);
    const trf_plan_info with_epilogue = test_plan_info(plan);
    ck_assert_int_eq(with_epilogue.path, alone.path);
    b->workspace_bytes =
        with_epilogue.workspace_bytes > alone.workspace_bytes ? with_epilogue.workspace_bytes : alone.workspace_bytes;
    trf_plan_destroy(plan);
    b->count = (size_t)m * b->info.rows;
    const uint64_t y_bytes = b->count * trf_dtype_bytes(y_dtype), x_bytes = 2ull * m * b->info.cols;
    test_rng rng = {m};
    b->x = allocate(x_bytes);
    upload(b->x, x, x_bytes);
    b->y = allocate(y_bytes);
    b->bias = allocate(y_bytes);
    b->multiplier = allocate(y_bytes);
    b->residual = allocate(y_bytes);
    b->workspace = allocate_filled(b->workspace_bytes);
    b->host_bias = random_operand(&rng, y_dtype, b->info.rows, b->bias);
    b->host_multiplier = random_operand(&rng, y_dtype, b->count, b->multiplier);
    b->host_residual = random_operand(&rng, y_dtype, b->count, b->residual);
    b->sums = multiply_alone(b);
    return 1;
}

static void bench_free(bench *b) {
    void *const on_device[] = {b->x, b->y, b->bias, b->multiplier, b->residual, b->workspace};
    for (size_t i = 0; i < sizeof on_device / sizeof on_device[0]; i++)
        trf_device_free(device, on_device[i]);
    free(b->host_bias);
    free(b->host_multiplier);
    free(b->host_residual);
    free(b->sums);
}

/* A combination: an operand is absent, apart from y, or y. */
typedef struct combination {
    trf_activation activation;
    int bias, multiplier, residual;
} combination;

enum {
    ABSENT,
    APART,
    IN_PLACE,
    COMBINATIONS = 4 * 2 * 3 * 3
};

static combination combination_of(int i) {
    return (combination){(trf_activation)(i % 4), i / 4 % 2, i / 8 % 3, i / 24 % 3};
}

/* Compares every value of y with F64. */
static void check_y(const bench *b, combination c, const void *y) {
    const trf_dtype dtype = b->options.y_dtype;
    const void *const y_before = c.multiplier == IN_PLACE ? b->host_multiplier : b->host_residual;
    for (size_t i = 0; i < b->count; i++) {
        const double bias = c.bias ? get(b->host_bias, dtype, i % b->info.rows) : 0,
                     multiplier = c.multiplier ? get(b->host_multiplier, dtype, i) : 1,
                     residual = c.residual == IN_PLACE ? get(y_before, dtype, i)
                                : c.residual           ? get(b->host_residual, dtype, i)
                                                       : 0,
                     sum = (double)b->sums[i] + bias, v = activate(c.activation, sum), due = v * multiplier + residual;
        /* the sum with the bias is rounded once, and activations magnify that error at most 1.13 times; then further
         * sums are rounded */
        const double wrong =
                         (1.13 * rounding(TRF_DTYPE_F32, sum) + activation_error(c.activation, v)) * fabs(multiplier) +
                         rounding(TRF_DTYPE_F32, due),
                     found = get(y, dtype, i);
        if (!(fabs(found - due) <= wrong + rounding(dtype, fabs(due) + wrong)))
            ck_abort_msg("%ux%u, m %u, y of %s, path %d, activation %d, bias %d, multiplier %d, residual %d: y[%zu] is "
                         "%a, not %a",
                         b->info.rows, b->info.cols, b->options.m, trf_dtype_name(dtype), (int)b->path,
                         (int)c.activation, c.bias, c.multiplier, c.residual, i, found, due);
    }
}

static trf_plan *make_plan(const bench *b, combination c) {
    trf_plan *plan;
    trf_plan_options options = b->options;
    options.activation = c.activation;
    options.has_bias = c.bias != ABSENT;
    options.has_multiplier = c.multiplier != ABSENT;
    options.has_residual = c.residual != ABSENT;
    fixture_check_status(trf_plan_create(b->layer, &options, &plan, &err), TRF_OK, &err);
    ck_assert_uint_le(test_plan_info(plan).workspace_bytes, b->workspace_bytes);
    return plan;
}

static trf_operands operands_of(const bench *b, combination c) {
    trf_operands operands = test_operands(b->x, b->y);
    operands.bias = c.bias ? b->bias : NULL;
    operands.multiplier = c.multiplier == IN_PLACE ? b->y : c.multiplier ? b->multiplier : NULL;
    operands.residual = c.residual == IN_PLACE ? b->y : c.residual ? b->residual : NULL;
    return operands;
}

static void check_combination(const bench *b, combination c) {
    const uint64_t bytes = b->count * trf_dtype_bytes(b->options.y_dtype);
    const trf_operands operands = operands_of(b, c);
    trf_plan *plan = make_plan(b, c);
    void *y = malloc(bytes);
    memset(y, 0xFF, bytes);
    upload(b->y, c.multiplier == IN_PLACE ? b->host_multiplier : c.residual == IN_PLACE ? b->host_residual : y, bytes);
    fixture_check_status(trf_linear(plan, &operands, b->workspace, NULL, &err), TRF_OK, &err);
    download(y, b->y, bytes);
    trf_plan_destroy(plan);
    check_y(b, c, y);
    free(y);
}

static const trf_path *paths_of_device(int *count) {
    static const trf_path paths[] = {TRF_PATH_FUSED, TRF_PATH_TWO_STEP};
    *count = TRF_TEST_DEVICE == TRF_DEVICE_CPU ? 1 : 2;
    return paths;
}

static uint16_t *make_x(trf_dtype dtype) {
    uint16_t *x = malloc(2 * MOST_M * COLS);
    test_rng rng = {9};
    test_fill_normal(&rng, x, dtype, (size_t)MOST_M * COLS, 1.0);
    return x;
}

/* loop: kind and shard. */
START_TEST(combinations) {
    static int turn;
    const int kind = _i / NUM_SHARDS, shard = _i % NUM_SHARDS;
    int num_paths, tried = 0;
    const trf_path *paths = paths_of_device(&num_paths);
    trf_device_layer *layer = load(kind, kShards[shard]);
    uint16_t *x = make_x(kKinds[kind].x_dtype);
    for (int p = 0; p < num_paths; p++)
        for (int m = 0; m < NUM_BATCHES; m++)
            for (int t = 0; t < 3; t++) {
                bench b;
                if (!bench_make(&b, layer, kBatches[m], kKinds[kind].x_dtype, kYTypes[t], paths[p], x))
                    continue;
                const int all = shard == 0 && m == 1 && !test_quick(); /* elsewhere some, in turn */
                for (int i = 0; i < (all ? COMBINATIONS : test_rounds(8)); i++)
                    check_combination(&b, combination_of(all ? i : turn++ * 5 % COMBINATIONS));
                bench_free(&b);
                tried++;
            }
    ck_assert_int_eq(tried, num_paths * NUM_BATCHES * 3);
    trf_device_layer_destroy(layer);
    free(x);
}
END_TEST

/* ---- activations ---- */

/* Values that matter: around 0 and where activations become flat, powers of two, infinities, and any bits. */
static float probe(test_rng *rng, uint32_t i) {
    if (i % 3 == 0)
        return (float)(60 * test_uniform(rng) - 30);
    if (i % 3 == 1)
        return (float)ldexp((test_uniform(rng) + 0.5) * (i % 2 ? 1 : -1), (int)test_below(rng, 40) - 30);
    return trf_f32_from_bits((uint32_t)test_random(rng));
}

/* x is 0, so an activation gets only the bias. */
START_TEST(activations) {
    static const float odd[] = {INFINITY, -INFINITY, NAN,   0.0f,   -0.0f, 88.8f,  -88.8f,
                                103,      -103,      1e30f, -1e30f, 3e38f, -3e38f, 1e-40f};
    const trf_activation activation = (trf_activation)_i;
    const uint32_t shard[4] = {0, 0, 0, 0};
    trf_device_layer *layer = load(0, shard);
    trf_plan *plan;
    trf_plan_options options = test_plan_options(1, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO);
    test_rng rng = {77};
    double worst = 0;
    options.activation = activation;
    options.has_bias = 1;
    fixture_check_status(trf_plan_create(layer, &options, &plan, &err), TRF_OK, &err);
    uint16_t zeros[COLS] = {0};
    float bias[ROWS], y[ROWS];
    void *x_dev = allocate(sizeof zeros), *bias_dev = allocate(sizeof bias), *y_dev = allocate(sizeof y),
         *workspace = allocate(test_plan_info(plan).workspace_bytes);
    trf_operands operands = test_operands(x_dev, y_dev);
    operands.bias = bias_dev;
    upload(x_dev, zeros, sizeof zeros);
    for (int turn = 0; turn < 200; turn++) {
        for (uint32_t r = 0; r < ROWS; r++)
            bias[r] = turn == 0 && r < sizeof odd / sizeof odd[0] ? odd[r] : probe(&rng, r);
        upload(bias_dev, bias, sizeof bias);
        fixture_check_status(trf_linear(plan, &operands, workspace, NULL, &err), TRF_OK, &err);
        download(y, y_dev, sizeof y);
        for (uint32_t r = 0; r < ROWS; r++) {
            const double v = (double)bias[r], found = (double)y[r];
            const double due = v == -INFINITY && activation ? 0 : activate(activation, v);
            const int good = isnan(v)     ? isnan(found)
                             : isinf(due) ? found == due
                                          : fabs(found - due) <= activation_error(activation, due);
            if (!good)
                ck_abort_msg("activation %d of %a is %a, not %a", (int)activation, v, found, due);
            if (isfinite(due) && fabs(due) > 0x1p-120)
                worst = fmax(worst, fabs(found - due) / fabs(due));
        }
    }
    printf("activation %d errs by %.1f x 2^-24 at most\n", (int)activation, worst * 0x1p24);
    trf_device_free(device, x_dev);
    trf_device_free(device, bias_dev);
    trf_device_free(device, y_dev);
    trf_device_free(device, workspace);
    trf_plan_destroy(plan);
    trf_device_layer_destroy(layer);
}
END_TEST

/* ---- what is refused, and what is none ---- */

/* Expects that a plan with these operands refuses the pointers. */
static void refuse(const bench *b, const trf_plan *plan, trf_operands wrong) {
    fixture_check_status(trf_linear(plan, &wrong, b->workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
}

/* Options that lead to no plan. */
static void refuse_plan(const bench *b, trf_plan_options wrong) {
    trf_plan *plan = NULL;
    fixture_check_status(trf_plan_create(b->layer, &wrong, &plan, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_null(plan);
}

START_TEST(refused_plans) {
    const uint32_t shard[4] = {0, 0, 0, 0};
    trf_device_layer *layer = load(0, shard);
    uint16_t *x = make_x(TRF_DTYPE_BF16);
    bench b;
    ck_assert(bench_make(&b, layer, 7, TRF_DTYPE_BF16, TRF_DTYPE_BF16, TRF_PATH_AUTO, x));
    trf_plan_options all = b.options;
    all.activation = TRF_ACTIVATION_SILU;
    all.has_bias = all.has_multiplier = all.has_residual = 1;
    trf_plan_options wrong = all;
    wrong.activation = (trf_activation)4;
    refuse_plan(&b, wrong);
    wrong.activation = (trf_activation)-1;
    refuse_plan(&b, wrong);
    wrong = all;
    wrong.y_stride = ROWS - 1;
    refuse_plan(&b, wrong);
    wrong = all;
    wrong.multiplier_stride = ROWS - 1;
    refuse_plan(&b, wrong);
    wrong = all;
    wrong.residual_stride = 1;
    refuse_plan(&b, wrong);
    ck_assert_uint_eq(test_device_layer_info(layer).plans, 0);
    bench_free(&b);
    trf_device_layer_destroy(layer);
    free(x);
}
END_TEST

START_TEST(refused_operands) {
    const uint32_t shard[4] = {0, 0, 0, 0};
    const combination all = {TRF_ACTIVATION_NONE, APART, APART, APART}, no_bias = {0, ABSENT, APART, APART},
                      no_multiplier = {0, APART, ABSENT, APART}, no_residual = {0, APART, APART, ABSENT},
                      silu = {TRF_ACTIVATION_SILU, ABSENT, APART, ABSENT};
    trf_device_layer *layer = load(0, shard);
    uint16_t *x = make_x(TRF_DTYPE_BF16);
    bench b;
    ck_assert(bench_make(&b, layer, 7, TRF_DTYPE_BF16, TRF_DTYPE_BF16, TRF_PATH_AUTO, x));
    uint8_t *const y = b.y, *const bias = b.bias, *const multiplier = b.multiplier, *const residual = b.residual;
    const uint64_t bytes = 2 * b.count;
    const struct {
        const void *bias, *multiplier, *residual;
    } misplaced[] = {
        {bias + 1, multiplier, residual},
        {bias, multiplier + 1, residual},
        {bias, multiplier, residual + 1},
        {y, multiplier, residual},
        {y + bytes - 2, multiplier, residual},
        {bias, y + 2, residual},
        {bias, multiplier, y + bytes - 2},
        {bias, multiplier, y - bytes + 2},
        {y - 2ull * ROWS + 2, multiplier, residual},
    };
    trf_plan *plan = make_plan(&b, all);
    const trf_operands good = operands_of(&b, all);
    for (size_t i = 0; i < sizeof misplaced / sizeof misplaced[0]; i++) {
        trf_operands wrong = good;
        wrong.bias = misplaced[i].bias;
        wrong.multiplier = misplaced[i].multiplier;
        wrong.residual = misplaced[i].residual;
        refuse(&b, plan, wrong);
    }
    /* Operands that the plan has and the call lacks ... */
    refuse(&b, plan, operands_of(&b, no_bias));
    refuse(&b, plan, operands_of(&b, no_multiplier));
    refuse(&b, plan, operands_of(&b, no_residual));
    trf_plan_destroy(plan);
    /* ... and the other way around. */
    plan = make_plan(&b, no_bias);
    refuse(&b, plan, good);
    trf_plan_destroy(plan);
    plan = make_plan(&b, no_multiplier);
    refuse(&b, plan, good);
    trf_plan_destroy(plan);
    plan = make_plan(&b, no_residual);
    refuse(&b, plan, good);
    trf_plan_destroy(plan);

    plan = make_plan(&b, silu);
    const trf_operands right = operands_of(&b, silu);
    trf_operands wrong = right;
    wrong.y = NULL;
    refuse(&b, plan, wrong);
    wrong = right;
    wrong.x = NULL;
    refuse(&b, plan, wrong);
    wrong = right;
    wrong.struct_bytes = 0;
    refuse(&b, plan, wrong);
    fixture_check_status(trf_linear(NULL, &right, b.workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_linear(plan, NULL, b.workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_linear(plan, &right, NULL, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_linear(plan, &right, b.workspace, NULL, &err), TRF_OK, &err);
    trf_plan_destroy(plan);
    bench_free(&b);
    trf_device_layer_destroy(layer);
    free(x);
}
END_TEST

/* A plan without an epilogue gives the sums. */
START_TEST(empty_epilogues) {
    const uint32_t shard[4] = {0, 0, 0, 0};
    const combination none = {TRF_ACTIVATION_NONE, ABSENT, ABSENT, ABSENT};
    trf_device_layer *layer = load(0, shard);
    uint16_t *x = make_x(TRF_DTYPE_BF16);
    bench b;
    ck_assert(bench_make(&b, layer, 7, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO, x));
    float *y = malloc(4 * b.count);
    trf_plan *plan = make_plan(&b, none);
    const trf_operands operands = operands_of(&b, none);
    memset(y, 0xFF, 4 * b.count);
    upload(b.y, y, 4 * b.count);
    fixture_check_status(trf_linear(plan, &operands, b.workspace, NULL, &err), TRF_OK, &err);
    download(y, b.y, 4 * b.count);
    ck_assert_mem_eq(y, b.sums, 4 * b.count);
    trf_plan_destroy(plan);
    free(y);
    bench_free(&b);
    trf_device_layer_destroy(layer);
    free(x);
}
END_TEST

/* ---- NaN ---- */

/* Computes y of a corrupt layer, F32, m = 1, by a plan with these options. @return malloc'd. */
static float *run_corrupt(trf_device_layer *layer, const trf_plan_options *options, const trf_operands *operands,
                          uint32_t rows) {
    float *y = malloc(4ull * rows);
    trf_plan *plan;
    fixture_check_status(trf_plan_create(layer, options, &plan, &err), TRF_OK, &err);
    void *workspace = allocate(test_plan_info(plan).workspace_bytes);
    const trf_status status = trf_linear(plan, operands, workspace, NULL, &err);
    fixture_check_status(status, TRF_TEST_DEVICE == TRF_DEVICE_CPU ? TRF_ERR_RANS : TRF_OK, &err);
    download(y, operands->y, 4ull * rows);
    trf_device_free(device, workspace);
    trf_plan_destroy(plan);
    return y;
}

/* What a corrupt rANS stream has made NaN stays NaN through any epilogue, and nothing else becomes NaN. */
static void check_corrupt(trf_device_layer *layer) {
    const trf_layer_info info = test_layer_info(layer);
    trf_plan_options options = test_plan_options(1, info.codec == TRF_CODEC_BF16 ? TRF_DTYPE_BF16 : TRF_DTYPE_F16,
                                                 TRF_DTYPE_F32, TRF_PATH_AUTO);
    uint16_t *zeros = calloc(info.cols, 2);
    float *ones = malloc(4ull * info.rows);
    for (uint32_t r = 0; r < info.rows; r++)
        ones[r] = 1;
    void *x = allocate(2ull * info.cols), *y_dev = allocate(4ull * info.rows), *operand = allocate(4ull * info.rows);
    upload(x, zeros, 2ull * info.cols);
    upload(operand, ones, 4ull * info.rows);
    trf_operands operands = test_operands(x, y_dev);
    float *plain = run_corrupt(layer, &options, &operands, info.rows);
    uint32_t nans = 0;
    operands.bias = operands.multiplier = operands.residual = operand;
    options.has_bias = options.has_multiplier = options.has_residual = 1;
    for (int activation = TRF_ACTIVATION_NONE; activation <= TRF_ACTIVATION_GELU_TANH; activation++) {
        options.activation = (trf_activation)activation;
        float *y = run_corrupt(layer, &options, &operands, info.rows);
        for (uint32_t r = 0; r < info.rows; r++) {
            ck_assert_int_eq(isnan(y[r]) != 0, isnan(plain[r]) != 0);
            nans += isnan(y[r]) != 0;
        }
        free(y);
    }
    ck_assert_uint_gt(nans, 0);
    free(plain);
    free(zeros);
    free(ones);
    trf_device_free(device, x);
    trf_device_free(device, y_dev);
    trf_device_free(device, operand);
}

START_TEST(nan_stays) {
    glob_t files;
    int corrupt = 0;
    ck_assert_int_eq(glob(TRF_TEST_DATA_DIR "/golden/corrupt/*.trf", 0, NULL, &files), 0);
    for (size_t f = 0; f < files.gl_pathc; f++) {
        trf_layer *host;
        trf_device_layer *layer;
        if (trf_layer_open(files.gl_pathv[f], &host, NULL) != TRF_OK)
            continue;
        size_t blob_bytes;
        void *blob = fixture_read(files.gl_pathv[f], &blob_bytes);
        fixture_check_status(trf_device_layer_create(device, blob, blob_bytes, NULL, &layer, &err), TRF_OK, &err);
        check_corrupt(layer);
        trf_device_layer_destroy(layer);
        free(blob);
        trf_layer_free(host);
        corrupt++;
    }
    globfree(&files);
    ck_assert_int_gt(corrupt, 0);
}
END_TEST

int main(void) {
    if (test_device_missing("gpu.epilogue"))
        return 77;
    Suite *suite = suite_create("device_epilogue");
    TCase *tests = tcase_create("device_epilogue");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, combinations, 0, NUM_KINDS * NUM_SHARDS);
    tcase_add_loop_test(tests, activations, TRF_ACTIVATION_NONE, TRF_ACTIVATION_GELU_TANH + 1);
    tcase_add_test(tests, refused_plans);
    tcase_add_test(tests, refused_operands);
    tcase_add_test(tests, empty_epilogues);
    tcase_add_test(tests, nan_stays);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
