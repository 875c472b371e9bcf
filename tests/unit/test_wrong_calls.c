/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that are wrong are refused before they read or write anything, and the message says in one line why. The device
 * is the CPU. */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "common/was_fp8.h"
#include "transfuse/experts.h"
#include "transfuse/layouts.h"
#include "transfuse/stacks.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 64,
    COLS = 48
};

static trf_error err;
static trf_context *cpu;
static trf_device_layer *layer;
static uint16_t weights[ROWS * COLS];

static void begin(void) {
    test_rng rng = {1};
    void *blob;
    uint64_t blob_bytes;
    fixture_begin();
    for (size_t i = 0; i < ROWS * COLS; i++)
        weights[i] = (uint16_t)(0x3C00 + test_below(&rng, 0x400));
    const trf_matrix matrix = test_matrix(weights, TRF_DTYPE_BF16, ROWS, COLS);
    fixture_check_status(trf_context_create(TRF_DEVICE_CPU, &cpu, &err), TRF_OK, &err);
    fixture_check_status(trf_encode_layer(&matrix, NULL, &blob, &blob_bytes, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_create(cpu, blob, blob_bytes, NULL, &layer, &err), TRF_OK, &err);
    trf_free(blob);
}

static void end(void) {
    trf_device_layer_destroy(layer);
    trf_context_destroy(cpu);
    fixture_end();
}

static void expect_in_one_line(trf_status status, trf_status expected, const char *a, const char *b) {
    fixture_check_status(status, expected, &err);
    ck_assert_int_eq(err.status, expected);
    ck_assert_msg(strstr(err.message, a) && strstr(err.message, b), "'%s' and '%s' are not in: %s", a, b, err.message);
    ck_assert_msg(!strpbrk(err.message, "\n\033"), "not one line: %s", err.message);
}

/* ---- names with control characters ---- */

START_TEST(a_file_that_is_no_layer_is_named_in_one_line) {
    const char *path = fixture_path("a\nb\033.trf");
    trf_layer *none = NULL;
    void *blob;
    uint64_t blob_bytes;
    const trf_matrix matrix = test_matrix(weights, TRF_DTYPE_BF16, ROWS, COLS);
    expect_in_one_line(trf_layer_open(path, &none, &err), TRF_ERR_NOT_FOUND, "a?b?.trf", "cannot open");
    fixture_check_status(trf_encode_layer(&matrix, NULL, &blob, &blob_bytes, NULL, &err), TRF_OK, &err);
    ((uint8_t *)blob)[blob_bytes - 1] ^= 1; /* of the one tile */
    fixture_write(path, blob, blob_bytes);
    trf_free(blob);
    char place[64];
    const trf_status status = trf_layer_open(path, &none, &err);
    snprintf(place, sizeof place, "byte %llu: tile 0", (unsigned long long)err.offset);
    expect_in_one_line(status, TRF_ERR_CHECKSUM, "a?b?.trf", place);
    ck_assert_ptr_null(none);
}
END_TEST

START_TEST(a_tensor_that_is_not_loaded_is_named_in_one_line_with_its_file) {
    static const fixture_tensor tensors[] = {{"w", "BF16", {ROWS, COLS}, 2, 0}};
    static const char *const file = "compressed.safetensors", *const name = "a\nb";
    trf_checkpoint *checkpoint = fixture_open_compressed(tensors, 1);
    trf_experts *experts = NULL;
    trf_stack *stack;
    trf_load_options options;
    trf_load_options_init(&options);
    fixture_check_status(trf_stack_create(cpu, &stack, &err), TRF_OK, &err);
    expect_in_one_line(trf_experts_load(cpu, checkpoint, name, NULL, &experts, &err), TRF_ERR_NOT_FOUND, file, "a?b");
    expect_in_one_line(trf_experts_load(cpu, checkpoint, "w", NULL, &experts, &err), TRF_ERR_ARGUMENT, file, "'w'");
    expect_in_one_line(trf_stack_load(stack, checkpoint, name, NULL, &err), TRF_ERR_NOT_FOUND, file, "a?b");
    options.memory.buffer = weights;
    expect_in_one_line(trf_experts_load(cpu, checkpoint, name, &options, &experts, &err), TRF_ERR_ARGUMENT, file,
                       "a?b");
    expect_in_one_line(trf_stack_load(stack, checkpoint, name, &options, &err), TRF_ERR_ARGUMENT, file, "a?b");
    options.memory.buffer = NULL;
    options.layout = TRF_LAYOUT_PLAIN;
    expect_in_one_line(trf_stack_load(stack, checkpoint, name, &options, &err), TRF_ERR_UNSUPPORTED, file, "a?b");
    ck_assert_ptr_null(experts);
    trf_stack_destroy(stack);
    trf_checkpoint_close(checkpoint);
}
END_TEST

/* ---- options ---- */

/* Any other codec was taken for int, which is not lossless. */
START_TEST(a_codec_that_there_is_not_compresses_nothing) {
    static const fixture_tensor tensors[] = {{"w", "BF16", {ROWS, COLS}, 2, 0}};
    const char *in = fixture_path("in.safetensors"), *out = fixture_path("out.safetensors");
    fixture_write_safetensors(in, NULL, tensors, 1, 8, 1);
    for (int dry_run = 0; dry_run < 2; dry_run++)
        for (int codec = -1; codec < 8; codec++) {
            trf_checkpoint_options options;
            trf_checkpoint_options_init(&options);
            options.encode.codec = (trf_codec)codec;
            options.dry_run = dry_run;
            if (codec >= TRF_CODEC_AUTO && codec <= TRF_CODEC_INT)
                continue;
            expect_in_one_line(trf_compress_checkpoint(in, out, &options, NULL, &err), TRF_ERR_ARGUMENT, "no codec",
                               "");
            ck_assert(!fixture_exists(out));
        }
}
END_TEST

START_TEST(options_are_checked_though_no_tensor_needs_them) {
    static const fixture_tensor tensors[] = {{"w", "BF16", {ROWS}, 1, 0}};
    const char *in = fixture_path("vector.safetensors"), *out = fixture_path("out.safetensors");
    trf_checkpoint_options options[4];
    fixture_write_safetensors(in, NULL, tensors, 1, 8, 1);
    for (int i = 0; i < 4; i++)
        trf_checkpoint_options_init(&options[i]);
    options[0].encode.bits = 9;
    options[1].encode.favor = (trf_favor)2;
    options[2].encode.granularity = (trf_granularity)5;
    options[3].encode.slab_cols = 64;
    for (int i = 0; i < 4; i++) {
        fixture_check_status(trf_compress_checkpoint(in, out, &options[i], NULL, &err), TRF_ERR_ARGUMENT, &err);
        ck_assert(!fixture_exists(out));
    }
}
END_TEST

START_TEST(encode_options_that_are_larger_than_what_they_lie_in_are_not_read) {
    trf_checkpoint_options *options = malloc(sizeof *options); /* by itself, so that a sanitizer sees its end */
    trf_checkpoint_options_init(options);
    options->encode.struct_bytes = 4000;
    expect_in_one_line(trf_compress_checkpoint("in", "out", options, NULL, &err), TRF_ERR_ARGUMENT,
                       "trf_checkpoint_options", "4000");
    options->struct_bytes = 0;
    expect_in_one_line(trf_compress_checkpoint("in", "out", options, NULL, &err), TRF_ERR_ARGUMENT, "struct_bytes", "");
    free(options);
}
END_TEST

START_TEST(packed_fp8_is_not_taken_for_packed_bf16) {
    test_rng rng = {2};
    uint16_t *was_fp8 = was_fp8_make(&rng, TRF_GRANULARITY_SCALE_BLOCK, 128, 256);
    trf_device_matrix matrix;
    trf_device_layer *packed, *none = NULL;
    trf_layer_size size;
    trf_pack_options pack;
    trf_load_options load;
    trf_device_matrix_init(&matrix);
    trf_pack_options_init(&pack);
    trf_load_options_init(&load);
    matrix.weights = was_fp8;
    matrix.rows = 128;
    matrix.cols = 256;
    fixture_check_status(trf_device_layer_get_packed_size(cpu, &matrix, &size, &err), TRF_OK, &err);
    pack.memory.buffer = aligned_alloc(256, (size.buffer_bytes + 255) / 256 * 256);
    pack.memory.buffer_bytes = size.buffer_bytes;
    fixture_check_status(trf_device_layer_pack(cpu, &matrix, &pack, &packed, &err), TRF_OK, &err);
    ck_assert_int_eq(test_device_layer_info(packed).layout, TRF_LAYOUT_PACKED8);
    load.layout = TRF_LAYOUT_PACKED;
    load.buffer_is_on_device = load.packed_bf16 = 1;
    expect_in_one_line(trf_device_layer_create(cpu, pack.memory.buffer, pack.memory.buffer_bytes, &load, &none, &err),
                       TRF_ERR_UNSUPPORTED, "packed8", "packed_bf16");
    ck_assert_ptr_null(none);
    load.packed_bf16 = 0;
    load.memory = (trf_layer_memory){pack.memory.buffer, size.buffer_bytes / 2, NULL, 0}; /* where it lies */
    expect_in_one_line(trf_device_layer_create(cpu, pack.memory.buffer, pack.memory.buffer_bytes, &load, &none, &err),
                       TRF_ERR_ARGUMENT, "bytes of memory for a layer's buffer of", "");
    load.memory.buffer_bytes = size.buffer_bytes;
    fixture_check_status(trf_device_layer_create(cpu, pack.memory.buffer, pack.memory.buffer_bytes, &load, &none, &err),
                         TRF_OK, &err);
    trf_device_layer_destroy(none);
    trf_device_layer_destroy(packed);
    free(pack.memory.buffer);
    free(was_fp8);
}
END_TEST

/* ---- dense experts ---- */

static void expect_not_packed(trf_device_matrix matrix, trf_status expected, const char *reason) {
    trf_device_matrix matrices[2];
    trf_experts *none = NULL;
    trf_expert_pack_options options;
    trf_expert_pack_options_init(&options);
    trf_device_matrix_init(&matrices[0]);
    matrices[0].weights = weights;
    matrices[0].rows = matrix.rows;
    matrices[0].cols = matrix.cols;
    matrices[1] = matrix;
    for (int way = 0; way < 4; way++) {
        options.gate_up_order = way % 2 ? TRF_GATE_UP_INTERLEAVED_8 : TRF_GATE_UP_HALVES;
        options.packed_bf16 = way / 2;
        fixture_check_status(trf_experts_pack(cpu, matrices, 2, &options, &none, &err), expected, &err);
        ck_assert_msg(strstr(err.message, reason), "%s", err.message);
        ck_assert_ptr_null(none);
    }
}

/* Rows that were put in turns were read before anything was checked. */
START_TEST(dense_experts_are_checked_before_they_are_read) {
    uint8_t *bytes = calloc(ROWS, COLS); /* FP8: half of what BF16 would take */
    trf_device_matrix right, wrong;
    trf_device_matrix_init(&right);
    right.weights = weights;
    right.rows = ROWS;
    right.cols = COLS;
    wrong = right;
    wrong.weights = NULL;
    expect_not_packed(wrong, TRF_ERR_ARGUMENT, "expert 1: packing needs weights");
    wrong.weights = (const uint8_t *)weights + 1;
    expect_not_packed(wrong, TRF_ERR_ARGUMENT, "expert 1: packing needs weights");
    wrong = right;
    wrong.weights = bytes;
    wrong.dtype = TRF_DTYPE_F8_E4M3;
    expect_not_packed(wrong, TRF_ERR_UNSUPPORTED, "expert 1: weights of F8_E4M3");
    wrong = right;
    wrong.ld = COLS - 1;
    expect_not_packed(wrong, TRF_ERR_ARGUMENT, "expert 1: rows of 48 weights, 47 apart");
    wrong.ld = (uint64_t)1 << 40;
    expect_not_packed(wrong, TRF_ERR_ARGUMENT, "expert 1: rows of 48 weights");
    wrong = right;
    wrong.rows = 0;
    expect_not_packed(wrong, TRF_ERR_ARGUMENT, "expert 0: a layer of 0x48");
    wrong.rows = UINT32_MAX - 15;
    wrong.cols = UINT32_MAX;
    expect_not_packed(wrong, TRF_ERR_ARGUMENT, "expert 0: a layer of 4294967280 x 4294967295");
    free(bytes);
}
END_TEST

/* ---- groups ---- */

/* A group of two products, x and y of which the test places in one array. */
typedef struct group_call {
    trf_layer_group *group;
    void *workspace;
    const void *x[2];
    void *y[2];
} group_call;

static group_call make_group(const uint32_t m[2], const uint64_t y_strides[2]) {
    group_call made;
    trf_group_member members[2];
    for (int i = 0; i < 2; i++) {
        members[i] = test_group_member(layer, m[i], TRF_DTYPE_BF16, TRF_DTYPE_BF16);
        members[i].y_stride = y_strides[i];
        made.x[i] = weights;
    }
    fixture_check_status(trf_layer_group_create(members, 2, &made.group, &err), TRF_OK, &err);
    made.workspace = aligned_alloc(256, (test_group_info(made.group).workspace_bytes + 255) / 256 * 256);
    return made;
}

/* y[i] begins at out[at[i]]; x of the second product at out[x_at], if that is not negative. */
static void expect_overlap(const uint32_t m[2], const uint64_t y_strides[2], const uint32_t at[2], int x_at,
                           const char *reason) {
    enum {
        OUT = 16 * ROWS
    };
    uint16_t out[OUT], before[OUT];
    group_call call = make_group(m, y_strides);
    memset(out, 0x5A, sizeof out);
    memcpy(before, out, sizeof before);
    for (int i = 0; i < 2; i++)
        call.y[i] = out + at[i];
    if (x_at >= 0)
        call.x[1] = out + x_at;
    const trf_status status = trf_linear_group(call.group, call.x, call.y, call.workspace, NULL, &err);
    fixture_check_status(status, reason ? TRF_ERR_ARGUMENT : TRF_OK, &err);
    if (reason) {
        ck_assert_msg(strstr(err.message, reason), "%s", err.message);
        ck_assert_int_eq(memcmp(out, before, sizeof out), 0);
    } else {
        for (int i = 0; i < 2; i++)
            ck_assert_uint_ne(out[at[i]], 0x5A5A);
    }
    trf_layer_group_destroy(call.group);
    free(call.workspace);
}

START_TEST(a_group_with_operands_that_overlap_writes_nothing) {
    static const uint32_t one[2] = {1, 1}, several[2] = {2, 3}, two[2] = {2, 2};
    static const uint64_t dense[2] = {0, 0}, side_by_side[2] = {2 * ROWS, 2 * ROWS}, apart[2] = {2 * ROWS, 4 * ROWS};
    expect_overlap(one, dense, (const uint32_t[]){0, ROWS}, -1, NULL);
    expect_overlap(one, dense, (const uint32_t[]){0, ROWS - 1}, -1, "layer 1 of a group: y overlaps the y of layer 0");
    expect_overlap(one, dense, (const uint32_t[]){0, 0}, -1, "layer 1 of a group: y overlaps the y of layer 0");
    expect_overlap(one, dense, (const uint32_t[]){0, ROWS}, 2 * ROWS, NULL);
    expect_overlap(one, dense, (const uint32_t[]){0, ROWS}, ROWS + COLS, "y overlaps the x of layer 1");
    expect_overlap(one, dense, (const uint32_t[]){0, ROWS}, ROWS - 1,
                   "layer 0 of a group: y overlaps the x of layer 1");
    expect_overlap(several, side_by_side, (const uint32_t[]){0, ROWS}, -1, NULL);
    expect_overlap(several, side_by_side, (const uint32_t[]){ROWS, 0}, -1, NULL);
    expect_overlap(several, side_by_side, (const uint32_t[]){0, ROWS - 1}, -1, "y overlaps the y of layer 0");
    expect_overlap(several, side_by_side, (const uint32_t[]){0, ROWS}, 2 * ROWS + 1, "y overlaps the x of layer 1");
    expect_overlap(two, apart, (const uint32_t[]){0, ROWS}, -1, NULL); /* 0 and 2; 1 and 5 */
    expect_overlap(two, apart, (const uint32_t[]){3 * ROWS, 4 * ROWS}, -1, NULL);
    expect_overlap(two, apart, (const uint32_t[]){4 * ROWS, 2 * ROWS}, -1,
                   "y overlaps the y of layer 0"); /* 4, 6; 2, 6 */
}
END_TEST

/* ---- layouts ---- */

static trf_layout_layer any_layouts(uint64_t bytes) {
    trf_layout_layer made;
    trf_layout_layer_init(&made);
    made.rows = made.cols = 4096;
    made.layouts = 7;
    made.bytes[TRF_LAYOUT_CODED] = made.bytes[TRF_LAYOUT_PLAIN] = made.bytes[TRF_LAYOUT_PACKED] = bytes;
    return made;
}

START_TEST(sums_of_layouts_do_not_overflow) {
    static const uint32_t batches[2] = {1, 128};
    trf_layout_layer layers[5];
    trf_layouts_options options;
    trf_layouts_choice choice;
    trf_layout layouts[5];
    trf_layouts_options_init(&options);
    options.memory_bytes = UINT64_MAX;
    for (int i = 0; i < 5; i++)
        layers[i] = any_layouts(INT64_MAX / 2);
    fixture_check_status(trf_layouts_choose(layers, 1, &options, layouts, &choice, &err), TRF_OK, &err);
    options.memory_bytes = INT64_MAX / 2; /* what five of them take, modulo 2^64 */
    fixture_check_status(trf_layouts_choose(layers, 5, &options, layouts, &choice, &err), TRF_ERR_ARGUMENT, &err);
    layers[0] = any_layouts(100);
    layers[0].coded_workspace_bytes = UINT64_MAX - 50;
    options.batches = batches;
    options.num_batches = 2;
    options.memory_bytes = 60;
    fixture_check_status(trf_layouts_choose(layers, 1, &options, layouts, &choice, &err), TRF_ERR_ARGUMENT, &err);
    layers[0].rows = 0;
    layers[0].name = "a\nb";
    expect_in_one_line(trf_layouts_choose(layers, 1, &options, layouts, &choice, &err), TRF_ERR_ARGUMENT, "layer 0",
                       "a?b");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("wrong_calls");
    TCase *calls = tcase_create("calls");
    tcase_add_unchecked_fixture(calls, begin, end);
    tcase_add_test(calls, a_file_that_is_no_layer_is_named_in_one_line);
    tcase_add_test(calls, a_tensor_that_is_not_loaded_is_named_in_one_line_with_its_file);
    tcase_add_test(calls, a_codec_that_there_is_not_compresses_nothing);
    tcase_add_test(calls, options_are_checked_though_no_tensor_needs_them);
    tcase_add_test(calls, encode_options_that_are_larger_than_what_they_lie_in_are_not_read);
    tcase_add_test(calls, packed_fp8_is_not_taken_for_packed_bf16);
    tcase_add_test(calls, dense_experts_are_checked_before_they_are_read);
    tcase_add_test(calls, a_group_with_operands_that_overlap_writes_nothing);
    tcase_add_test(calls, sums_of_layouts_do_not_overflow);
    suite_add_tcase(suite, calls);
    return run_suite(suite);
}
