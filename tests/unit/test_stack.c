/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks on the CPU device, through the public calls: every layer's products are the same as without a stack, in any
 * order; what is refused; and every allocation fails once. TRF_TEST_WRAPS_ALLOCATIONS. */
#include "common/checkpoint_fixture.h"
#include "common/failing_memory.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "transfuse/cpu.h"
#include "transfuse/stacks.h"

#include <check.h>
#include <string.h>

static const fixture_tensor kTensors[] = {
    {"a.weight", "BF16", {300, 520}, 2, 0},
    {"b.weight", "F16", {64, 520}, 2, 0},
    {"c.weight", "F8_E4M3", {256, 520}, 2, 0},
    {"d.weight", "I8", {100, 520}, 2, 0},
};
static const char *const kNames[] = {"a.weight", "b.weight", "c.weight", "d.weight"};
enum {
    LAYERS = 5, /* those of the checkpoint, and one from memory */
    COLS = 520,
    MOST_ROWS = 300
};

static trf_error err;
static trf_context *cpu;
static trf_checkpoint *checkpoint;
static trf_layer *host; /* b.weight */
static uint16_t x_bf16[COLS], x_f16[COLS];
static float expected[LAYERS][MOST_ROWS];

static const uint16_t *x_of(uint32_t layer) { return layer == 1 || layer == 4 ? x_f16 : x_bf16; }
static trf_dtype x_dtype_of(uint32_t layer) { return layer == 1 || layer == 4 ? TRF_DTYPE_F16 : TRF_DTYPE_BF16; }

static trf_plan *plan_of(trf_device_layer *layer, uint32_t index) {
    trf_plan *plan;
    fixture_check_status(test_make_plan(layer, 1, x_dtype_of(index), TRF_DTYPE_F32, TRF_PATH_AUTO, &plan, &err), TRF_OK,
                         &err);
    return plan;
}

static void *allocate(uint64_t bytes) {
    void *memory;
    fixture_check_status(trf_device_allocate(cpu, bytes, &memory, &err), TRF_OK, &err);
    return memory;
}

/* Computes one product of a layer without a stack. */
static void multiply(trf_device_layer *layer, uint32_t index, float *y) {
    trf_plan *plan = plan_of(layer, index);
    void *workspace = allocate(test_plan_info(plan).workspace_bytes);
    fixture_check_status(test_multiply(plan, x_of(index), y, workspace, NULL, &err), TRF_OK, &err);
    trf_device_free(cpu, workspace);
    trf_plan_destroy(plan);
}

static void begin(void) {
    fixture_begin();
    checkpoint = fixture_open_compressed(kTensors, 4);
    fixture_check_status(
        trf_extract_layer(fixture_path("compressed.safetensors"), kNames[1], fixture_path("b.trf"), 0, &err), TRF_OK,
        &err);
    fixture_check_status(trf_layer_open(fixture_path("b.trf"), &host, &err), TRF_OK, &err);
    fixture_check_status(trf_context_create(TRF_DEVICE_CPU, &cpu, &err), TRF_OK, &err);
    trf_context_set_threads(cpu, 1);
    test_rng rng = {7};
    test_fill_normal(&rng, x_bf16, TRF_DTYPE_BF16, COLS, 1.0);
    test_fill_normal(&rng, x_f16, TRF_DTYPE_F16, COLS, 1.0);
    for (uint32_t i = 0; i < LAYERS; i++) {
        trf_device_layer *layer;
        fixture_check_status(trf_device_layer_load(cpu, checkpoint, kNames[i < 4 ? i : 1], NULL, &layer, &err), TRF_OK,
                             &err);
        multiply(layer, i, expected[i]);
        trf_device_layer_destroy(layer);
    }
}

static void end(void) {
    trf_layer_free(host);
    trf_context_destroy(cpu);
    trf_checkpoint_close(checkpoint);
    fixture_end();
}

static trf_status add_layers(trf_stack *stack) {
    trf_load_options options;
    trf_load_options_init(&options);
    options.threads = 1;
    trf_status status = TRF_OK;
    for (int i = 0; i < 4 && status == TRF_OK; i++)
        status = trf_stack_load(stack, checkpoint, kNames[i], &options, &err);
    return status == TRF_OK ? trf_stack_add(stack, host, &err) : status;
}

static trf_status run_layer(trf_stack *stack, uint32_t index) {
    float y[MOST_ROWS];
    trf_device_layer *layer = trf_stack_layer(stack, index);
    const trf_operands operands = test_operands(x_of(index), y);
    trf_plan *plan = NULL;
    void *workspace = NULL;
    trf_status status = test_make_plan(layer, 1, x_dtype_of(index), TRF_DTYPE_F32, TRF_PATH_AUTO, &plan, &err);
    if (status == TRF_OK)
        status = trf_device_allocate(cpu, test_plan_info(plan).workspace_bytes, &workspace, &err);
    if (status == TRF_OK)
        status = trf_stack_linear(stack, index, plan, &operands, workspace, NULL, &err);
    trf_device_free(cpu, workspace);
    trf_plan_destroy(plan);
    if (status == TRF_OK &&
        memcmp(y, expected[index], test_layer_info(layer).rows * sizeof *y)) /* ck_assert allocates */
        ck_abort_msg("layer %u: y differs", index);
    return status;
}

START_TEST(any_order) {
    trf_stack *stack;
    trf_stack_info info;
    fixture_check_status(trf_stack_create(cpu, &stack, &err), TRF_OK, &err);
    fixture_check_status(add_layers(stack), TRF_OK, &err);
    ck_assert_ptr_null(trf_stack_layer(stack, 0));
    trf_stack_get_info(stack, &info);
    ck_assert_uint_eq(info.layers, LAYERS);
    ck_assert_uint_eq(info.resident, 0);
    fixture_check_status(trf_stack_prepare(stack, _i ? UINT64_MAX : 0, &err), TRF_OK, &err);
    trf_stack_get_info(stack, &info);
    ck_assert_uint_eq(info.resident, LAYERS); /* whatever the budget */
    ck_assert_uint_eq(info.device_bytes, info.layer_bytes);
    ck_assert_uint_eq(info.host_bytes, 0);
    ck_assert_uint_eq(info.offloaded_bytes, 0);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < LAYERS; i++)
        bytes += test_device_layer_info(trf_stack_layer(stack, i)).memory_bytes;
    ck_assert_uint_eq(bytes, info.layer_bytes);
    test_rng rng = {(uint64_t)_i};
    for (uint32_t i = 0; i < 2 * LAYERS; i++)
        fixture_check_status(run_layer(stack, i % LAYERS), TRF_OK, &err);
    for (int i = 0; i < 20; i++)
        fixture_check_status(run_layer(stack, test_below(&rng, LAYERS)), TRF_OK, &err);
    trf_stack_destroy(stack);
}
END_TEST

START_TEST(shards) {
    trf_stack *stack;
    trf_device_layer *alone;
    trf_load_options options;
    trf_load_options_init(&options);
    options.first_row = 16, options.num_rows = 272;
    fixture_check_status(trf_stack_create(cpu, &stack, &err), TRF_OK, &err);
    fixture_check_status(trf_stack_load(stack, checkpoint, "a.weight", &options, &err), TRF_OK, &err);
    fixture_check_status(trf_stack_prepare(stack, 0, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_load(cpu, checkpoint, "a.weight", &options, &alone, &err), TRF_OK, &err);
    float y[2][272];
    multiply(alone, 0, y[0]);
    multiply(trf_stack_layer(stack, 0), 0, y[1]);
    ck_assert_mem_eq(y[0], y[1], sizeof y[0]);
    trf_device_layer_destroy(alone);
    trf_stack_destroy(stack);
}
END_TEST

START_TEST(refused) {
    trf_stack *stack;
    fixture_check_status(trf_stack_create(NULL, &stack, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_stack_create(cpu, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_stack_create(cpu, &stack, &err), TRF_OK, &err);
    fixture_check_status(trf_stack_prepare(stack, 0, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_stack_prepare(NULL, 0, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_stack_add(stack, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_stack_add(NULL, host, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_stack_load(stack, checkpoint, NULL, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_stack_load(stack, checkpoint, "no.weight", NULL, &err), TRF_ERR_NOT_FOUND, &err);
    fixture_check_status(trf_stack_add(stack, host, &err), TRF_OK, &err);
    fixture_check_status(trf_stack_acquire(stack, 0, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_stack_release(stack, 0, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_stack_prepare(stack, 0, &err), TRF_OK, &err);
    fixture_check_status(trf_stack_prepare(stack, 0, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_stack_add(stack, host, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_stack_load(stack, checkpoint, kNames[0], NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_stack_acquire(stack, 1, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_stack_acquire(NULL, 0, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_stack_release(stack, 0, NULL, &err), TRF_ERR_ARGUMENT, &err); /* not acquired */
    ck_assert_ptr_null(trf_stack_layer(stack, 1));
    ck_assert_ptr_nonnull(trf_stack_layer(stack, 0));
    for (int i = 0; i < 2; i++) /* twice at once */
        fixture_check_status(trf_stack_acquire(stack, 0, NULL, &err), TRF_OK, &err);
    for (int i = 0; i < 2; i++)
        fixture_check_status(trf_stack_release(stack, 0, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_stack_release(stack, 0, NULL, NULL), TRF_ERR_ARGUMENT, &err);

    /* A product that is refused leaves nothing acquired. */
    trf_device_layer *another;
    fixture_check_status(trf_device_layer_load(cpu, checkpoint, kNames[1], NULL, &another, &err), TRF_OK, &err);
    trf_plan *plan = plan_of(trf_stack_layer(stack, 0), 1), *of_another = plan_of(another, 1);
    float y[MOST_ROWS];
    const trf_operands operands = test_operands(x_f16, y), without_y = test_operands(x_f16, NULL);
    void *workspace = allocate(test_plan_info(plan).workspace_bytes);
    fixture_check_status(trf_stack_linear(stack, 0, of_another, &operands, workspace, NULL, &err), TRF_ERR_ARGUMENT,
                         &err);
    ck_assert_ptr_nonnull(strstr(err.message, "layer 0 of the stack"));
    fixture_check_status(trf_stack_linear(stack, 0, plan, &without_y, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_stack_linear(stack, 0, NULL, &operands, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_stack_linear(stack, 0, plan, NULL, workspace, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_stack_release(stack, 0, NULL, &err), TRF_ERR_ARGUMENT, &err);
    trf_device_free(cpu, workspace);
    trf_plan_destroy(plan);
    trf_plan_destroy(of_another);
    trf_device_layer_destroy(another);
    trf_stack_destroy(stack);
    trf_stack_destroy(NULL);
}
END_TEST

static trf_status make_and_run(void) {
    trf_stack *stack = NULL;
    trf_status status = trf_stack_create(cpu, &stack, &err);
    if (status == TRF_OK)
        status = add_layers(stack);
    if (status == TRF_OK)
        status = trf_stack_prepare(stack, 0, &err);
    for (uint32_t i = 0; i < LAYERS && status == TRF_OK; i++)
        status = run_layer(stack, i);
    trf_stack_destroy(stack);
    return status;
}

static trf_status attempt(void *context) {
    (void)context;
    return make_and_run();
}

START_TEST(every_allocation_fails_once) {
    ck_assert_int_gt(fail_each_allocation(attempt, NULL, TRF_ERR_IO, &err), 3 * LAYERS); /* TRF_ERR_IO: of mmap */
}
END_TEST

/* trf_stack_prepare after a failure goes on. */
START_TEST(prepared_again) {
    trf_stack *stack;
    fixture_check_status(trf_stack_create(cpu, &stack, &err), TRF_OK, &err);
    fixture_check_status(add_layers(stack), TRF_OK, &err);
    uint32_t failures = 0;
    for (long number = 1;; number++) {
        count_allocations_from_here(number);
        const trf_status status = trf_stack_prepare(stack, 0, &err);
        count_allocations_from_here(0);
        if (status == TRF_OK)
            break;
        fixture_check_status(status, TRF_ERR_MEMORY, &err);
        failures++;
    }
    ck_assert_uint_gt(failures, 2);
    for (uint32_t i = 0; i < LAYERS; i++)
        fixture_check_status(run_layer(stack, i), TRF_OK, &err);
    trf_stack_destroy(stack);
}
END_TEST

START_TEST(calls_do_not_allocate) {
    trf_stack *stack;
    float y[MOST_ROWS];
    fixture_check_status(trf_stack_create(cpu, &stack, &err), TRF_OK, &err);
    fixture_check_status(add_layers(stack), TRF_OK, &err);
    fixture_check_status(trf_stack_prepare(stack, 0, &err), TRF_OK, &err);
    for (uint32_t i = 0; i < LAYERS; i++) {
        trf_plan *plan = plan_of(trf_stack_layer(stack, i), i);
        const trf_operands operands = test_operands(x_of(i), y);
        void *workspace = allocate(test_plan_info(plan).workspace_bytes);
        count_allocations_from_here(0);
        const trf_status status = trf_stack_linear(stack, i, plan, &operands, workspace, NULL, &err);
        const long allocations = atomic_load(&allocations_made);
        fixture_check_status(status, TRF_OK, &err);
        ck_assert_int_eq(allocations, 0);
        trf_device_free(cpu, workspace);
        trf_plan_destroy(plan);
    }
    trf_stack_destroy(stack);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("stack");
    TCase *tests = tcase_create("stack");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, any_order, 0, 2);
    tcase_add_test(tests, shards);
    tcase_add_test(tests, refused);
    tcase_add_test(tests, every_allocation_fails_once);
    tcase_add_test(tests, prepared_again);
    tcase_add_test(tests, calls_do_not_allocate);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
