/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of loading and running a layer on the CPU device fails once. Each time there is a status, nothing is
 * lost (the address sanitizer's run looks for leaks), and the next attempt works. The calls of products themselves
 * allocate nothing. TRF_TEST_WRAPS_ALLOCATIONS. */
#include "common/checkpoint_fixture.h"
#include "common/failing_memory.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "transfuse/cpu.h"
#include "transfuse/experts.h"
#include "transfuse/tuning.h"

#include <check.h>
#include <string.h>

enum {
    ROWS = 300,
    COLS = 530
};

/* ---- what is done ---- */

static trf_error err;
static uint16_t x[COLS];
static float y[ROWS];
static long call_allocations; /* of run_together's calls of products */

static void begin(void) {
    static const fixture_tensor tensors[] = {{"lossless", "BF16", {ROWS, COLS}, 2, 0},
                                             {"group", "F32", {ROWS, COLS}, 2, 0}};
    static const char *const lossless[] = {"lossless", NULL}, *const group[] = {"group", NULL};
    fixture_begin();
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    for (int i = 0; i < 2; i++) {
        const char *source = fixture_path("%d.safetensors", i);
        fixture_write_safetensors(source, NULL, &tensors[i], 1, 8, 3);
        options.include = i ? group : lossless;
        options.encode.codec = i ? TRF_CODEC_INT : TRF_CODEC_AUTO;
        options.encode.granularity = i ? TRF_GRANULARITY_SCALE_GROUP : TRF_GRANULARITY_NONE;
        options.encode.scale_group_size = i ? 48 : 0;
        fixture_check_status(
            trf_compress_checkpoint(source, fixture_path("packed%d.safetensors", i), &options, NULL, &err), TRF_OK,
            &err);
    }
    test_rng rng = {4};
    test_fill_normal(&rng, x, TRF_DTYPE_BF16, COLS, 1.0);
}

/* Computes the same product by a group of one layer, and by experts of which one has a token (but not for shards that
 * cut tiles). */
static trf_status run_together(trf_context *context, trf_device_layer *layer, int experts_too) {
    static const uint32_t offsets[] = {0, 0, 1};
    const trf_group_member list = test_group_member(layer, 1, TRF_DTYPE_BF16, TRF_DTYPE_F32);
    const void *const each_x[] = {x};
    void *const each_y[] = {y};
    trf_device_layer *twice[] = {layer, layer};
    trf_layer_group *group = NULL;
    trf_experts *experts = NULL;
    trf_experts_plan *plan = NULL;
    void *workspace = NULL, *expert_workspace = NULL;
    trf_status status = trf_layer_group_create(&list, 1, &group, &err);
    if (status == TRF_OK)
        status = trf_device_allocate(context, test_group_info(group).workspace_bytes, &workspace, &err);
    if (status == TRF_OK && experts_too)
        status = trf_experts_create(twice, 2, &experts, &err);
    if (status == TRF_OK && experts_too)
        status = trf_experts_plan_create(experts, 1, TRF_DTYPE_BF16, TRF_DTYPE_F32, &plan, &err);
    if (status == TRF_OK && experts_too)
        status = trf_device_allocate(context, trf_experts_plan_workspace_bytes(plan), &expert_workspace, &err);
    const long before = atomic_load(&allocations_made);
    if (status == TRF_OK)
        status = trf_linear_group(group, each_x, each_y, workspace, NULL, &err);
    if (status == TRF_OK && experts_too)
        status = trf_experts_linear(plan, x, offsets, y, expert_workspace, NULL, &err);
    if (status == TRF_OK)
        call_allocations = atomic_load(&allocations_made) - before;
    trf_experts_plan_destroy(plan);
    trf_experts_destroy(experts);
    trf_layer_group_destroy(group);
    trf_device_free(context, workspace);
    trf_device_free(context, expert_workspace);
    return status;
}

/* Loads a shard, and multiplies. */
static trf_status load_and_run(trf_checkpoint *checkpoint, const char *tensor, const trf_load_options *options) {
    trf_context *context = NULL;
    trf_device_layer *layer = NULL;
    void *workspace = NULL;
    trf_plan *plan = NULL;
    trf_status status = trf_context_create(TRF_DEVICE_CPU, &context, &err);
    if (status == TRF_OK)
        status = trf_device_layer_load(context, checkpoint, tensor, options, &layer, &err);
    if (status == TRF_OK)
        status = test_make_plan(layer, 1, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO, &plan, &err);
    if (status == TRF_OK)
        status = trf_device_allocate(context, test_plan_info(plan).workspace_bytes, &workspace, &err);
    if (status == TRF_OK)
        status = test_multiply(plan, x, y, workspace, NULL, &err);
    if (status == TRF_OK)
        status =
            run_together(context, layer, !options || (options->num_rows == 0 && options->layout == TRF_LAYOUT_CODED));
    trf_plan_destroy(plan);
    if (layer)
        trf_device_layer_destroy(layer);
    if (context)
        trf_device_free(context, workspace);
    trf_context_destroy(context);
    return status;
}

typedef struct attempt_args {
    trf_checkpoint *checkpoint;
    const char *tensor;
    const trf_load_options *options;
} attempt_args;

static trf_status attempt(void *context) {
    const attempt_args *args = context;
    return load_and_run(args->checkpoint, args->tensor, args->options);
}

START_TEST(every_allocation_fails_once) {
    static const char *const names[] = {"lossless", "group"};
    const int tensor = _i / 2 == 1; /* coded only */
    trf_checkpoint *checkpoint;     /* opened before, since Jansson reports some failures of its own as bad JSON */
    fixture_check_status(trf_checkpoint_open(fixture_path("packed%d.safetensors", tensor), &checkpoint, &err), TRF_OK,
                         &err);
    trf_load_options options;
    trf_load_options_init(&options);
    options.threads = 1;
    options.layout = (trf_layout)(_i < 4 ? 0 : _i / 2 - 1);
    if (_i % 2) {
        options.first_row = 16, options.num_rows = 272;
        options.first_col = 48, options.num_cols = 400;
    }
    float good[ROWS];
    fixture_check_status(load_and_run(checkpoint, names[tensor], &options), TRF_OK, &err);
    memcpy(good, y, sizeof y);
    const attempt_args args = {checkpoint, names[tensor], &options};
    /* Context, layer, blob, mapping, workspace: this shows that the linker sends allocations here. TRF_ERR_IO is
     * mmap's. */
    ck_assert_int_gt(fail_each_allocation(attempt, (void *)&args, TRF_ERR_IO, &err), 5);
    ck_assert_mem_eq(good, y, sizeof y);
    trf_checkpoint_close(checkpoint);
}
END_TEST

static trf_status encode_again(void *layer) {
    void *blob = NULL;
    uint64_t blob_bytes;
    const trf_status status = trf_device_layer_encode(layer, 1, &blob, &blob_bytes, &err);
    trf_free(blob);
    if (status == TRF_OK)
        err = (trf_error){0};
    return status;
}

START_TEST(every_allocation_of_encoding_fails_once) {
    trf_checkpoint *checkpoint;
    trf_context *context;
    trf_device_layer *layer;
    trf_load_options options;
    trf_load_options_init(&options);
    options.layout = (trf_layout)_i;
    fixture_check_status(trf_checkpoint_open(fixture_path("packed0.safetensors"), &checkpoint, &err), TRF_OK, &err);
    fixture_check_status(trf_context_create(TRF_DEVICE_CPU, &context, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_load(context, checkpoint, "lossless", &options, &layer, &err), TRF_OK, &err);
    /* TRF_OK: the encoder keeps what it cannot shrink. */
    ck_assert_int_gt(fail_each_allocation(encode_again, layer, TRF_OK, &err), _i ? 3 : 1);
    trf_device_layer_destroy(layer);
    trf_context_destroy(context);
    trf_checkpoint_close(checkpoint);
}
END_TEST

typedef struct tune_args {
    trf_context *context;
    trf_device_layer *layer;
    const char *path;
} tune_args;

/* Measures a tuning, sets it, writes it and reads it again. */
static trf_status tune(void *context) {
    const tune_args *args = context;
    trf_tune_options options;
    trf_tuning *measured = NULL, *read = NULL;
    trf_tune_options_init(&options);
    options.max_m = 3;
    trf_status status = trf_tuning_measure(&args->layer, 1, &options, &measured, &err);
    if (status == TRF_OK)
        status = trf_context_set_tuning(args->context, measured, &err);
    if (status == TRF_OK)
        status = trf_tuning_write(measured, args->path, 1, &err);
    if (status == TRF_OK)
        status = trf_tuning_read(args->path, &read, &err);
    trf_tuning_free(measured);
    trf_tuning_free(read);
    return status;
}

START_TEST(tuning_survives_too) {
    trf_context *context;
    trf_checkpoint *checkpoint;
    trf_device_layer *layer;
    fixture_check_status(trf_context_create(TRF_DEVICE_CPU, &context, &err), TRF_OK, &err);
    trf_context_set_threads(context, 1);
    fixture_check_status(trf_checkpoint_open(fixture_path("packed0.safetensors"), &checkpoint, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_load(context, checkpoint, "lossless", NULL, &layer, &err), TRF_OK, &err);
    tune_args args = {context, layer, fixture_path("tuning.json")};
    const int entries = fixture_count_entries(fixture_path("."));
    ck_assert_int_gt(fail_each_allocation(tune, &args, TRF_ERR_MEMORY, &err), 7);
    ck_assert_int_eq(fixture_count_entries(fixture_path(".")), entries + 1); /* no temporary file */
    trf_device_layer_destroy(layer);
    trf_checkpoint_close(checkpoint);
    trf_context_destroy(context);
}
END_TEST

START_TEST(products_do_not_allocate) {
    trf_context *context;
    trf_checkpoint *checkpoint;
    trf_device_layer *layer;
    trf_plan *plan, *with_epilogue;
    void *workspace;
    trf_load_options options;
    trf_load_options_init(&options);
    if (_i % 2) {
        options.first_row = 16;
        options.first_col = 16;
    }
    options.layout = _i / 2 ? TRF_LAYOUT_PLAIN : TRF_LAYOUT_CODED;
    fixture_check_status(trf_context_create(TRF_DEVICE_CPU, &context, &err), TRF_OK, &err);
    trf_context_set_threads(context, 1); /* with more threads, each call makes and prepares them */
    fixture_check_status(trf_checkpoint_open(fixture_path("packed0.safetensors"), &checkpoint, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_load(context, checkpoint, "lossless", &options, &layer, &err), TRF_OK, &err);
    trf_plan_options plan_options = test_plan_options(1, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO);
    trf_operands operands = test_operands(x, y);
    fixture_check_status(trf_plan_create(layer, &plan_options, &plan, &err), TRF_OK, &err);
    plan_options.activation = TRF_ACTIVATION_SILU;
    plan_options.has_residual = 1;
    operands.residual = y;
    fixture_check_status(trf_plan_create(layer, &plan_options, &with_epilogue, &err), TRF_OK, &err);
    const uint64_t alone_bytes = test_plan_info(plan).workspace_bytes,
                   epilogue_bytes = test_plan_info(with_epilogue).workspace_bytes;
    fixture_check_status(
        trf_device_allocate(context, alone_bytes > epilogue_bytes ? alone_bytes : epilogue_bytes, &workspace, &err),
        TRF_OK, &err);
    count_allocations_from_here(0);
    trf_status status = test_multiply(plan, x, y, workspace, NULL, &err);
    if (status == TRF_OK)
        status = trf_linear(with_epilogue, &operands, workspace, NULL, &err);
    const long allocations = atomic_load(&allocations_made);
    fixture_check_status(status, TRF_OK, &err);
    ck_assert_int_eq(allocations, 0);
    fixture_check_status(run_together(context, layer, _i == 0), TRF_OK, &err);
    ck_assert_int_eq(call_allocations, 0);
    trf_plan_destroy(plan);
    trf_plan_destroy(with_epilogue);
    trf_device_layer_destroy(layer);
    trf_device_free(context, workspace);
    trf_checkpoint_close(checkpoint);
    trf_context_destroy(context);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("device_no_memory");
    TCase *tests = tcase_create("device_no_memory");
    tcase_add_unchecked_fixture(tests, begin, fixture_end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, every_allocation_fails_once, 0, 8);
    tcase_add_loop_test(tests, every_allocation_of_encoding_fails_once, TRF_LAYOUT_CODED, TRF_LAYOUT_PACKED + 1);
    tcase_add_test(tests, tuning_survives_too);
    tcase_add_loop_test(tests, products_do_not_allocate, 0, 4);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
