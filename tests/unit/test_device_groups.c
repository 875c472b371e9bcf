/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of layers and mixtures of experts on the CPU device give bit for bit what each layer gives alone; and what is
 * refused. */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "transfuse/cpu.h"
#include "transfuse/experts.h"
#include "trf_number_formats.h"

#include <check.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    EXPERTS = 7,
    ROWS = 48, /* of an expert */
    COLS = 320,
    MOST_TOKENS = 200
};

static const fixture_tensor kTensors[] = {
    {"q.weight", "BF16", {300, 520}, 2, 0},
    {"k.weight", "BF16", {100, 520}, 2, 0},
    {"half.weight", "F16", {64, 272}, 2, 0},
    {"e4.weight", "F8_E4M3", {256, 300}, 2, 0},
    {"codes.weight", "I8", {100, 256}, 2, 0},
    {"experts.up_proj", "BF16", {EXPERTS, ROWS, COLS}, 3, 0},
    {"halves.up_proj", "F16", {EXPERTS, ROWS, COLS}, 3, 0},
    {"narrow.up_proj", "F8_E4M3", {EXPERTS, ROWS, COLS}, 3, 0},
    {"whole.up_proj", "I8", {EXPERTS, ROWS, COLS}, 3, 0},
    {"odd.up_proj", "BF16", {EXPERTS, 33, 131}, 3, 0},
};
enum {
    NUM_TENSORS = sizeof kTensors / sizeof kTensors[0],
    FIRST_EXPERTS = 5
};

static trf_error err;
static trf_context *cpu;
static trf_checkpoint *checkpoint;

static void begin(void) {
    fixture_begin();
    checkpoint = fixture_open_compressed(kTensors, NUM_TENSORS);
    fixture_check_status(trf_context_create(TRF_DEVICE_CPU, &cpu, &err), TRF_OK, &err);
    trf_context_set_threads(cpu, 2);
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

static void *allocate(uint64_t bytes) {
    void *memory;
    fixture_check_status(trf_device_allocate(cpu, bytes, &memory, &err), TRF_OK, &err);
    return memory;
}

static trf_dtype x_dtype_of(const trf_device_layer *layer) {
    return test_layer_info(layer).codec == TRF_CODEC_BF16 ? TRF_DTYPE_BF16 : TRF_DTYPE_F16;
}

static uint16_t *make_x(uint64_t count, trf_dtype dtype, uint64_t seed) {
    test_rng rng = {seed};
    uint16_t *x = allocate(2 * count);
    test_fill_normal(&rng, x, dtype, count, 1.0);
    return x;
}

/* y of a layer alone; malloc'd. */
static uint8_t *product_alone(trf_device_layer *layer, uint32_t m, trf_dtype x_dtype, trf_dtype y_dtype,
                              const void *x) {
    trf_plan *plan;
    fixture_check_status(test_make_plan(layer, m, x_dtype, y_dtype, TRF_PATH_AUTO, &plan, &err), TRF_OK, &err);
    uint8_t *y = malloc((size_t)m * test_layer_info(layer).rows * trf_dtype_bytes(y_dtype));
    void *workspace = allocate(test_plan_info(plan).workspace_bytes);
    fixture_check_status(test_multiply(plan, x, y, workspace, NULL, &err), TRF_OK, &err);
    trf_device_free(cpu, workspace);
    trf_plan_destroy(plan);
    return y;
}

/* ---- groups ---- */

START_TEST(groups_give_what_layers_give) {
    static const char *const names[] = {"q.weight", "k.weight", "half.weight", "e4.weight", "codes.weight", "q.weight"};
    enum {
        COUNT = sizeof names / sizeof names[0]
    };
    static const uint32_t batches[COUNT] = {1, 8, 3, 17, 2, 5};
    static const trf_dtype y_dtypes[] = {TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16};
    trf_group_member members[COUNT];
    trf_device_layer *loaded[COUNT];
    const void *x[COUNT];
    void *y[COUNT];
    uint64_t y_bytes[COUNT];
    for (int i = 0; i < COUNT; i++) {
        loaded[i] = load(names[i]);
        const trf_layer_info info = test_layer_info(loaded[i]);
        members[i] = test_group_member(loaded[i], batches[i], x_dtype_of(loaded[i]), y_dtypes[i % 3]);
        x[i] = make_x((uint64_t)batches[i] * info.cols, members[i].x_dtype, (uint64_t)i + 1);
        y_bytes[i] = (uint64_t)batches[i] * info.rows * trf_dtype_bytes(members[i].y_dtype);
        y[i] = allocate(y_bytes[i]);
    }
    trf_layer_group *group;
    fixture_check_status(trf_layer_group_create(members, COUNT, &group, &err), TRF_OK, &err);
    const trf_layer_group_info info = test_group_info(group);
    ck_assert_uint_eq(info.members, COUNT);
    ck_assert_uint_eq(info.sharing, 0);
    ck_assert_uint_eq(info.launches, 0);
    ck_assert_uint_eq(test_device_layer_info(loaded[0]).plans, 1); /* a group counts as one */
    void *workspace = allocate(info.workspace_bytes);
    memset(workspace, 0xFF, info.workspace_bytes);
    fixture_check_status(trf_linear_group(group, x, y, workspace, NULL, &err), TRF_OK, &err);
    trf_layer_group_destroy(group);
    trf_layer_group_destroy(NULL);
    ck_assert_uint_eq(test_device_layer_info(loaded[0]).plans, 0);
    for (int i = 0; i < COUNT; i++) {
        uint8_t *alone = product_alone(loaded[i], batches[i], members[i].x_dtype, members[i].y_dtype, x[i]);
        ck_assert_mem_eq(alone, y[i], y_bytes[i]);
        free(alone);
        trf_device_free(cpu, (void *)x[i]);
        trf_device_free(cpu, y[i]);
        trf_device_layer_destroy(loaded[i]);
    }
    trf_device_free(cpu, workspace);
}
END_TEST

/* Members write side by side into one y, whose further columns stay as they are. */
START_TEST(groups_write_into_one_y) {
    enum {
        M = 5,
        MORE = 3
    };
    trf_device_layer *layers[] = {load("q.weight"), load("k.weight"), load("q.weight")};
    trf_group_member members[3];
    uint32_t rows[3], stride = MORE;
    for (int i = 0; i < 3; i++)
        stride += rows[i] = test_layer_info(layers[i]).rows;
    const void *const x = make_x((uint64_t)M * test_layer_info(layers[0]).cols, TRF_DTYPE_BF16, 9);
    float *const y = allocate((uint64_t)M * stride * sizeof *y), *at = y;
    void *each_y[3];
    memset(y, 0xFF, (uint64_t)M * stride * sizeof *y);
    for (int i = 0; i < 3; at += rows[i++]) {
        ck_assert_uint_eq(test_layer_info(layers[i]).cols, test_layer_info(layers[0]).cols);
        members[i] = test_group_member(layers[i], M, TRF_DTYPE_BF16, TRF_DTYPE_F32);
        members[i].y_stride = stride;
        each_y[i] = at;
    }
    trf_layer_group *group;
    fixture_check_status(trf_layer_group_create(members, 3, &group, &err), TRF_OK, &err);
    void *workspace = allocate(test_group_info(group).workspace_bytes);
    fixture_check_status(trf_linear_group(group, (const void *[]){x, x, x}, each_y, workspace, NULL, &err), TRF_OK,
                         &err);
    for (int i = 0; i < 3; i++) {
        float *alone = (float *)product_alone(layers[i], M, TRF_DTYPE_BF16, TRF_DTYPE_F32, x);
        for (uint64_t n = 0; n < M; n++)
            ck_assert_mem_eq(alone + n * rows[i], (float *)each_y[i] + n * stride, rows[i] * sizeof *y);
        free(alone);
    }
    for (uint64_t n = 0; n < M; n++)
        for (uint32_t i = 1; i <= MORE; i++)
            ck_assert_float_nan(y[n * stride + stride - i]);
    trf_layer_group_destroy(group);
    members[1].y_stride = rows[1] - 1;
    fixture_check_status(trf_layer_group_create(members, 3, &group, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "layer 1"));
    trf_device_free(cpu, workspace);
    trf_device_free(cpu, y);
    trf_device_free(cpu, (void *)x);
    for (int i = 0; i < 3; i++)
        trf_device_layer_destroy(layers[i]);
}
END_TEST

START_TEST(refused_groups) {
    trf_context *other;
    trf_device_layer *layer = load("q.weight"), *foreign;
    trf_layer_group *group = NULL;
    fixture_check_status(trf_context_create(TRF_DEVICE_CPU, &other, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_load(other, checkpoint, "q.weight", NULL, &foreign, &err), TRF_OK, &err);
    trf_group_member members[2] = {test_group_member(layer, 1, TRF_DTYPE_BF16, TRF_DTYPE_F32),
                                   test_group_member(foreign, 1, TRF_DTYPE_BF16, TRF_DTYPE_F32)};
    fixture_check_status(trf_layer_group_create(NULL, 1, &group, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_layer_group_create(members, 0, &group, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_layer_group_create(members, 2, &group, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_layer_group_create(members, 1, NULL, &err), TRF_ERR_ARGUMENT, &err);
    members[1].layer = NULL;
    fixture_check_status(trf_layer_group_create(members, 2, &group, &err), TRF_ERR_ARGUMENT, &err);
    members[1] = test_group_member(layer, 0, TRF_DTYPE_BF16, TRF_DTYPE_F32);
    fixture_check_status(trf_layer_group_create(members, 2, &group, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "layer 1"));
    members[1] = members[0];
    members[1].struct_bytes = 0;
    fixture_check_status(trf_layer_group_create(members, 2, &group, &err), TRF_ERR_ARGUMENT, &err);
    members[1] = test_group_member(layer, 1, TRF_DTYPE_F16, TRF_DTYPE_F32);
    fixture_check_status(trf_layer_group_create(members, 2, &group, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_null(group);

    members[1] = members[0];
    fixture_check_status(trf_layer_group_create(members, 2, &group, &err), TRF_OK, &err);
    uint8_t *memory = allocate(2 * 520 + 4 * 300 + 64), *workspace = allocate(test_group_info(group).workspace_bytes);
    const void *x[2] = {memory, memory};
    void *y[2] = {memory + 2 * 520, memory + 2 * 520}; /* not read */
    fixture_check_status(trf_linear_group(NULL, x, y, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_linear_group(group, NULL, y, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_linear_group(group, x, NULL, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_linear_group(group, x, y, NULL, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_linear_group(group, x, y, workspace + 64, NULL, &err), TRF_ERR_ARGUMENT, &err);
    x[1] = memory + 1;
    fixture_check_status(trf_linear_group(group, x, y, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    x[1] = NULL;
    fixture_check_status(trf_linear_group(group, x, y, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    trf_layer_group_destroy(group);
    trf_device_free(cpu, memory);
    trf_device_free(cpu, workspace);
    trf_device_layer_destroy(layer);
    trf_device_layer_destroy(foreign);
    trf_context_destroy(other);
}
END_TEST

/* ---- experts ---- */

static trf_experts *load_experts(const char *tensor) {
    trf_experts *experts;
    fixture_check_status(trf_experts_load(cpu, checkpoint, tensor, NULL, &experts, &err), TRF_OK, &err);
    ck_assert_uint_eq(trf_experts_count(experts), EXPERTS);
    ck_assert_ptr_null(trf_experts_layer(experts, EXPERTS));
    return experts;
}

/* Counts of kinds 0 to 3: random ones with zeros, all tokens to one expert, one token each, none at all. */
static void make_offsets(int kind, uint32_t first, uint32_t *offsets) {
    test_rng rng = {(uint64_t)kind + 5};
    offsets[0] = first;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        const uint32_t random = test_below(&rng, 2) ? test_below(&rng, 20) : 0;
        offsets[e + 1] = offsets[e] + (kind == 0 ? random : kind == 1 ? 100 * (e == 4) : kind == 2 ? 1 : 0);
    }
}

START_TEST(experts_give_what_layers_give) {
    static const trf_dtype y_dtypes[] = {TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16};
    const fixture_tensor *tensor = &kTensors[FIRST_EXPERTS + _i / 4];
    const uint32_t rows = (uint32_t)tensor->shape[1], cols = (uint32_t)tensor->shape[2];
    trf_experts *experts = load_experts(tensor->name);
    const trf_dtype x_dtype = x_dtype_of(trf_experts_layer(experts, 0)), y_dtype = y_dtypes[_i % 3];
    const uint64_t row_bytes = rows * trf_dtype_bytes(y_dtype), y_bytes = MOST_TOKENS * row_bytes;
    uint16_t *x = make_x((uint64_t)MOST_TOKENS * cols, x_dtype, (uint64_t)_i + 1);
    uint8_t *y = allocate(y_bytes);
    uint32_t offsets[EXPERTS + 1];
    make_offsets(_i % 4, (uint32_t)_i % 3, offsets);
    trf_experts_plan *plan;
    fixture_check_status(trf_experts_plan_create(experts, MOST_TOKENS, x_dtype, y_dtype, &plan, &err), TRF_OK, &err);
    const uint64_t workspace_bytes = trf_experts_plan_workspace_bytes(plan);
    void *workspace = allocate(workspace_bytes);
    memset(workspace, 0xFF, workspace_bytes);
    memset(y, 0xAB, y_bytes);
    trf_context_set_threads(cpu, 3); /* for plans from here on; this one stays as it is */
    fixture_check_status(trf_experts_linear(plan, x, offsets, y, workspace, NULL, &err), TRF_OK, &err);
    trf_context_set_threads(cpu, 2);
    trf_experts_plan_destroy(plan);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        const uint32_t count = offsets[e + 1] - offsets[e];
        if (!count)
            continue;
        uint8_t *alone =
            product_alone(trf_experts_layer(experts, e), count, x_dtype, y_dtype, x + (size_t)offsets[e] * cols);
        ck_assert_mem_eq(alone, y + offsets[e] * row_bytes, count * row_bytes);
        free(alone);
    }
    for (uint64_t i = 0; i < y_bytes; i++)
        if (i < offsets[0] * row_bytes || i >= offsets[EXPERTS] * row_bytes)
            ck_assert_uint_eq(y[i], 0xAB);
    fixture_check_status(trf_experts_check(experts, &err), TRF_OK, &err);
    trf_device_free(cpu, x);
    trf_device_free(cpu, y);
    trf_device_free(cpu, workspace);
    trf_experts_destroy(experts);
}
END_TEST

/* Offsets that decrease, or lead beyond the plan's tokens: nothing else is touched (the address sanitizer's run checks
 * it). */
START_TEST(offsets_without_sense) {
    enum {
        TOKENS = 4
    };
    trf_experts *experts = load_experts("experts.up_proj");
    trf_experts_plan *plan;
    fixture_check_status(trf_experts_plan_create(experts, TOKENS, TRF_DTYPE_BF16, TRF_DTYPE_F32, &plan, &err), TRF_OK,
                         &err);
    uint16_t *x = make_x(TOKENS * COLS, TRF_DTYPE_BF16, 1);
    float *y = allocate(TOKENS * ROWS * sizeof *y);
    void *workspace = allocate(trf_experts_plan_workspace_bytes(plan));
    test_rng rng = {9};
    for (int i = 0; i < 20; i++) {
        uint32_t offsets[EXPERTS + 1];
        for (int e = 0; e <= EXPERTS; e++)
            offsets[e] = test_below(&rng, 3) ? test_below(&rng, TOKENS + 2) : (uint32_t)test_random(&rng);
        fixture_check_status(trf_experts_linear(plan, x, offsets, y, workspace, NULL, &err), TRF_OK, &err);
    }
    trf_experts_plan_destroy(plan);
    trf_device_free(cpu, x);
    trf_device_free(cpu, y);
    trf_device_free(cpu, workspace);
    trf_experts_destroy(experts);
}
END_TEST

START_TEST(refused_experts) {
    trf_device_layer *q = load("q.weight"), *k = load("k.weight");
    trf_device_layer *mixed[2] = {q, k}, *same[2] = {q, q};
    trf_experts *experts = NULL;
    fixture_check_status(trf_experts_create(NULL, 2, &experts, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_experts_create(mixed, 0, &experts, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_experts_create(mixed, 2, &experts, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "100x520"));
    mixed[1] = NULL;
    fixture_check_status(trf_experts_create(mixed, 2, &experts, &err), TRF_ERR_ARGUMENT, &err);
    trf_load_options options;
    trf_load_options_init(&options);
    options.num_rows = 48;
    fixture_check_status(trf_device_layer_load(cpu, checkpoint, "q.weight", &options, &mixed[0], &err), TRF_OK, &err);
    fixture_check_status(trf_experts_create(mixed, 1, &experts, &err), TRF_ERR_UNSUPPORTED, &err);
    ck_assert_ptr_null(experts);
    trf_device_layer_destroy(mixed[0]);

    fixture_check_status(trf_experts_create(same, 2, &experts, &err), TRF_OK, &err);
    trf_experts_plan *plan = NULL;
    fixture_check_status(trf_experts_plan_create(experts, 0, TRF_DTYPE_BF16, TRF_DTYPE_F32, &plan, &err),
                         TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_experts_plan_create(experts, (1u << 26) + 1, TRF_DTYPE_BF16, TRF_DTYPE_F32, &plan, &err),
                         TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_experts_plan_create(experts, 1, TRF_DTYPE_F16, TRF_DTYPE_F32, &plan, &err),
                         TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_experts_plan_create(experts, 1, TRF_DTYPE_BF16, TRF_DTYPE_I8, &plan, &err),
                         TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_experts_plan_create(NULL, 1, TRF_DTYPE_BF16, TRF_DTYPE_F32, &plan, &err), TRF_ERR_ARGUMENT,
                         &err);
    fixture_check_status(trf_experts_plan_create(experts, 1, TRF_DTYPE_BF16, TRF_DTYPE_F32, NULL, &err),
                         TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_null(plan);
    fixture_check_status(trf_experts_plan_create(experts, 1, TRF_DTYPE_BF16, TRF_DTYPE_F32, &plan, &err), TRF_OK, &err);
    uint8_t *x = allocate(2 * 520 + 2), *y = allocate(4 * 300),
            *workspace = allocate(trf_experts_plan_workspace_bytes(plan) + 256);
    static const uint32_t offsets[3] = {0, 1, 1};
    fixture_check_status(trf_experts_linear(NULL, x, offsets, y, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_experts_linear(plan, NULL, offsets, y, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_experts_linear(plan, x, NULL, y, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_experts_linear(plan, x, offsets, NULL, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_experts_linear(plan, x + 1, offsets, y, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(
        trf_experts_linear(plan, x, (const uint32_t *)((const char *)offsets + 2), y, workspace, NULL, &err),
        TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_experts_linear(plan, x, offsets, y, workspace + 64, NULL, &err), TRF_ERR_ARGUMENT, &err);
    trf_experts_plan_destroy(plan);
    trf_experts_plan_destroy(NULL);
    trf_device_free(cpu, x);
    trf_device_free(cpu, y);
    trf_device_free(cpu, workspace);
    trf_experts_destroy(experts); /* which leaves the layers */
    trf_experts_destroy(NULL);
    trf_device_layer_destroy(q);
    trf_device_layer_destroy(k);
}
END_TEST

START_TEST(experts_that_do_not_load) {
    static const struct {
        const char *tensor;
        trf_status status;
    } cases[] = {{"b.up_proj", TRF_ERR_NOT_FOUND},  {"", TRF_ERR_NOT_FOUND},
                 {"q.weight", TRF_ERR_ARGUMENT},    {"experts.up_proj[2]", TRF_ERR_NOT_FOUND},
                 {"experts.up", TRF_ERR_NOT_FOUND}, {"experts.up_proj_trfx", TRF_ERR_NOT_FOUND}};
    trf_experts *experts = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture_check_status(trf_experts_load(cpu, checkpoint, cases[i].tensor, NULL, &experts, &err), cases[i].status,
                             &err);
        ck_assert_ptr_nonnull(strstr(err.message, cases[i].tensor));
        ck_assert_ptr_null(experts);
    }
    fixture_check_status(trf_experts_load(NULL, checkpoint, "experts.up_proj", NULL, &experts, &err), TRF_ERR_ARGUMENT,
                         &err);
    fixture_check_status(trf_experts_load(cpu, checkpoint, "experts.up_proj_trf", NULL, &experts, &err), TRF_OK, &err);
    trf_experts_destroy(experts);
}
END_TEST

/* loop: tensors of experts, each in its source's type and as BF16 or F16, without a gap and with one. */
START_TEST(experts_decode_as_layers_do) {
    const fixture_tensor *tensor = &kTensors[FIRST_EXPERTS + _i];
    trf_experts *experts = load_experts(tensor->name);
    const trf_layer_info info = test_layer_info(trf_experts_layer(experts, 0));
    const trf_decode_as kinds[] = {TRF_DECODE_SOURCE, info.codec == TRF_CODEC_FP16 ? TRF_DECODE_F16 : TRF_DECODE_BF16};
    for (int k = 0; k < 2; k++)
        for (uint64_t gap = 0; gap <= 6; gap += 6) {
            const uint64_t bytes = (uint64_t)info.rows * info.cols * (k ? 2 : trf_dtype_bytes(info.dtype)),
                           stride = bytes + gap, all = (EXPERTS - 1) * stride + bytes;
            uint8_t *weights = allocate(all), *alone = allocate(bytes);
            memset(weights, 0xAB, all);
            fixture_check_status(trf_experts_decode(experts, kinds[k], weights, stride, all, NULL, &err), TRF_OK, &err);
            for (uint32_t e = 0; e < EXPERTS; e++) {
                fixture_check_status(
                    trf_device_layer_decode(trf_experts_layer(experts, e), kinds[k], alone, bytes, NULL, &err), TRF_OK,
                    &err);
                ck_assert_mem_eq(alone, weights + e * stride, bytes);
                for (uint64_t i = 0; i < gap && e + 1 < EXPERTS; i++)
                    ck_assert_uint_eq(weights[e * stride + bytes + i], 0xAB);
            }
            trf_device_free(cpu, weights);
            trf_device_free(cpu, alone);
        }
    trf_experts_destroy(experts);
}
END_TEST

START_TEST(refused_decoding_of_experts) {
    trf_experts *experts = load_experts("experts.up_proj"), *one;
    trf_device_layer *layer = trf_experts_layer(experts, 0);
    const uint64_t bytes = ROWS * COLS * 2, all = EXPERTS * bytes;
    uint8_t *weights = allocate(all);
    const struct {
        const trf_experts *experts;
        trf_decode_as as;
        uint8_t *weights;
        uint64_t stride, bytes;
        trf_status status;
    } cases[] = {
        {NULL, TRF_DECODE_SOURCE, weights, bytes, all, TRF_ERR_ARGUMENT},
        {experts, (trf_decode_as)4, weights, bytes, all, TRF_ERR_ARGUMENT},
        {experts, TRF_DECODE_SOURCE, NULL, bytes, all, TRF_ERR_ARGUMENT},
        {experts, TRF_DECODE_SOURCE, weights + 1, bytes, all, TRF_ERR_ARGUMENT},
        {experts, TRF_DECODE_SOURCE, weights, bytes + 1, 2 * all, TRF_ERR_ARGUMENT},
        {experts, TRF_DECODE_SOURCE, weights, bytes - 2, all, TRF_ERR_ARGUMENT},
        {experts, TRF_DECODE_SOURCE, weights, 0, all, TRF_ERR_ARGUMENT},
        {experts, TRF_DECODE_F16, weights, bytes, all, TRF_ERR_UNSUPPORTED},
        {experts, TRF_DECODE_SOURCE, weights, bytes, all - 2, TRF_ERR_SHAPE},
        {experts, TRF_DECODE_SOURCE, weights, bytes + 2, all, TRF_ERR_SHAPE},
        {experts, TRF_DECODE_SOURCE, weights, UINT64_MAX - 1, all, TRF_ERR_SHAPE},
        {experts, TRF_DECODE_SOURCE, weights, bytes, bytes - 2, TRF_ERR_SHAPE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        fixture_check_status(trf_experts_decode(cases[i].experts, cases[i].as, cases[i].weights, cases[i].stride,
                                                cases[i].bytes, NULL, &err),
                             cases[i].status, &err);
    fixture_check_status(trf_experts_create(&layer, 1, &one, &err), TRF_OK, &err);
    fixture_check_status(trf_experts_decode(one, TRF_DECODE_SOURCE, weights, 1, bytes, NULL, &err), TRF_OK, &err);
    trf_experts_destroy(one);
    trf_experts_destroy(experts);
    trf_device_free(cpu, weights);
}
END_TEST

/* Int codes of sources of several types. */
START_TEST(experts_of_several_sources) {
    trf_device_layer *layers[2];
    trf_experts *experts;
    test_rng rng = {77};
    const trf_dtype dtypes[] = {TRF_DTYPE_BF16, TRF_DTYPE_F32};
    for (int i = 0; i < 2; i++) {
        uint8_t values[ROWS * 64 * 4];
        trf_encode_options options;
        void *blob;
        uint64_t blob_bytes;
        trf_encode_options_init(&options);
        options.codec = TRF_CODEC_INT;
        test_fill_normal(&rng, values, dtypes[i], ROWS * 64, 0.02);
        const trf_matrix matrix = test_matrix(values, dtypes[i], ROWS, 64);
        fixture_check_status(trf_encode_layer(&matrix, &options, &blob, &blob_bytes, NULL, &err), TRF_OK, &err);
        fixture_check_status(trf_device_layer_create(cpu, blob, blob_bytes, NULL, &layers[i], &err), TRF_OK, &err);
        trf_free(blob);
    }
    fixture_check_status(trf_experts_create(layers, 2, &experts, &err), TRF_OK, &err);
    uint8_t *weights = allocate(2 * ROWS * 64 * 4);
    fixture_check_status(
        trf_experts_decode(experts, TRF_DECODE_SOURCE, weights, ROWS * 64 * 4, 2 * ROWS * 64 * 4, NULL, &err),
        TRF_ERR_UNSUPPORTED, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "expert 1"));
    fixture_check_status(
        trf_experts_decode(experts, TRF_DECODE_BF16, weights, ROWS * 64 * 2, 2 * ROWS * 64 * 2, NULL, &err), TRF_OK,
        &err);
    trf_device_free(cpu, weights);
    trf_experts_destroy(experts);
    for (int i = 0; i < 2; i++)
        trf_device_layer_destroy(layers[i]);
}
END_TEST

/* All experts but the first, which is corrupt, are decoded. */
START_TEST(decoding_a_corrupt_expert) {
    glob_t files;
    int corrupt = 0;
    ck_assert_int_eq(glob(TRF_TEST_DATA_DIR "/golden/corrupt/*.trf", 0, NULL, &files), 0);
    for (size_t f = 0; f < files.gl_pathc; f++) {
        trf_layer *host;
        if (trf_layer_open(files.gl_pathv[f], &host, NULL) != TRF_OK)
            continue;
        trf_layer_info info;
        trf_layer_get_info(host, &info);
        trf_layer_free(host);
        const uint64_t bytes = (uint64_t)info.rows * info.cols * trf_dtype_bytes(info.dtype);
        uint16_t zeros[256 * 512] = {0};
        if (info.codec == TRF_CODEC_INT || bytes > sizeof zeros)
            continue;
        corrupt++;
        trf_device_layer *layers[2];
        trf_experts *experts;
        size_t blob_bytes[2];
        void *blobs[2] = {fixture_read(files.gl_pathv[f], &blob_bytes[0])};
        uint64_t good_bytes;
        const trf_matrix matrix = test_matrix(zeros, info.dtype, info.rows, info.cols);
        trf_encode_options options;
        trf_encode_options_init(&options);
        options.codec = info.codec;
        fixture_check_status(trf_encode_layer(&matrix, &options, &blobs[1], &good_bytes, NULL, &err), TRF_OK, &err);
        blob_bytes[1] = good_bytes;
        for (int i = 0; i < 2; i++)
            fixture_check_status(trf_device_layer_create(cpu, blobs[i], blob_bytes[i], NULL, &layers[i], &err), TRF_OK,
                                 &err);
        free(blobs[0]);
        trf_free(blobs[1]);
        fixture_check_status(trf_experts_create(layers, 2, &experts, &err), TRF_OK, &err);
        uint8_t *weights = allocate(2 * bytes);
        memset(weights, 0xAB, 2 * bytes);
        fixture_check_status(trf_experts_decode(experts, TRF_DECODE_SOURCE, weights, bytes, 2 * bytes, NULL, &err),
                             TRF_ERR_RANS, &err);
        ck_assert_ptr_nonnull(strstr(err.message, "expert 0"));
        for (uint64_t i = bytes; i < 2 * bytes; i++)
            ck_assert_uint_eq(weights[i], 0);
        trf_device_free(cpu, weights);
        trf_experts_destroy(experts);
        for (int i = 0; i < 2; i++)
            trf_device_layer_destroy(layers[i]);
    }
    globfree(&files);
    ck_assert_int_gt(corrupt, 0);
}
END_TEST

/* Only an expert that has tokens can be found corrupt. Its y is NaN; that of the others is not affected. */
START_TEST(corrupt_experts) {
    glob_t files;
    int corrupt = 0;
    ck_assert_int_eq(glob(TRF_TEST_DATA_DIR "/golden/corrupt/*.trf", 0, NULL, &files), 0);
    for (size_t f = 0; f < files.gl_pathc; f++) {
        trf_layer *host;
        trf_device_layer *layers[2];
        trf_experts *experts;
        if (trf_layer_open(files.gl_pathv[f], &host, NULL) != TRF_OK)
            continue;
        corrupt++;
        size_t blob_bytes;
        void *blob = fixture_read(files.gl_pathv[f], &blob_bytes);
        for (int i = 0; i < 2; i++)
            fixture_check_status(trf_device_layer_create(cpu, blob, blob_bytes, NULL, &layers[i], &err), TRF_OK, &err);
        free(blob);
        fixture_check_status(trf_experts_create(layers, 2, &experts, &err), TRF_OK, &err);
        trf_layer_info info;
        trf_experts_plan *plan;
        trf_layer_get_info(host, &info);
        fixture_check_status(trf_experts_plan_create(experts, 2, x_dtype_of(layers[0]), TRF_DTYPE_F32, &plan, &err),
                             TRF_OK, &err);
        uint16_t *x = make_x(2 * (uint64_t)info.cols, x_dtype_of(layers[0]), 3);
        float *y = allocate(4 * 2 * (uint64_t)info.rows);
        void *workspace = allocate(trf_experts_plan_workspace_bytes(plan));
        static const uint32_t none[3] = {1, 1, 1}, second[3] = {1, 1, 2};
        for (uint32_t r = 0; r < 2 * info.rows; r++)
            y[r] = 5;
        fixture_check_status(trf_experts_linear(plan, x, none, y, workspace, NULL, &err), TRF_OK, &err);
        fixture_check_status(trf_experts_check(experts, &err), TRF_OK, &err);
        fixture_check_status(trf_experts_linear(plan, x, second, y, workspace, NULL, &err), TRF_ERR_RANS, &err);
        ck_assert_ptr_nonnull(strstr(err.message, "expert 1"));
        for (uint32_t r = 0; r < info.rows; r++)
            ck_assert(y[r] == 5 && isnan(y[info.rows + r]));
        trf_error remembered = {0};
        fixture_check_status(trf_experts_check(experts, &remembered), TRF_ERR_RANS, &remembered);
        ck_assert_uint_eq(remembered.offset, err.offset);
        ck_assert_ptr_nonnull(strstr(remembered.message, "expert 1"));
        trf_device_free(cpu, x);
        trf_device_free(cpu, y);
        trf_device_free(cpu, workspace);
        trf_experts_plan_destroy(plan);
        trf_experts_destroy(experts);
        for (int i = 0; i < 2; i++)
            trf_device_layer_destroy(layers[i]);
        trf_layer_free(host);
    }
    globfree(&files);
    ck_assert_int_gt(corrupt, 0);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("device_groups");
    TCase *tests = tcase_create("device_groups");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 240);
    tcase_add_test(tests, groups_give_what_layers_give);
    tcase_add_test(tests, groups_write_into_one_y);
    tcase_add_test(tests, refused_groups);
    tcase_add_loop_test(tests, experts_give_what_layers_give, 0, 4 * (NUM_TENSORS - FIRST_EXPERTS));
    tcase_add_test(tests, offsets_without_sense);
    tcase_add_test(tests, refused_experts);
    tcase_add_test(tests, experts_that_do_not_load);
    tcase_add_test(tests, corrupt_experts);
    tcase_add_loop_test(tests, experts_decode_as_layers_do, 0, NUM_TENSORS - FIRST_EXPERTS);
    tcase_add_test(tests, refused_decoding_of_experts);
    tcase_add_test(tests, experts_of_several_sources);
    tcase_add_test(tests, decoding_a_corrupt_expert);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
