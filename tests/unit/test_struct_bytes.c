/* SPDX-License-Identifier: Apache-2.0 */
/* Structs that callers fill, of versions older and newer than this library's, and of no version. */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "transfuse/device_memory.h"
#include "transfuse/groups.h"
#include "transfuse/tuning.h"
#include "trf_encode.h"
#include "trf_job.h"
#include "trf_struct.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* ---- the function that takes them ---- */

/* Three versions of one struct. */
typedef struct struct_v1 {
    size_t struct_bytes;
    uint64_t a;
} struct_v1;

typedef struct struct_v2 {
    size_t struct_bytes;
    uint64_t a, b;
} struct_v2;

typedef struct struct_v3 {
    size_t struct_bytes;
    uint64_t a, b, c;
} struct_v3;

/* The library is of version 2. */
static const trf_struct_type kType = {"struct_v2", sizeof(struct_v2), TRF_STRUCT_BYTES(struct_v1, a)};

static trf_status take(const void *from, struct_v2 *to, trf_error *err) {
    *to = (struct_v2){.struct_bytes = sizeof *to, .a = 10, .b = 20};
    return trf_take_struct(&kType, to, from, err);
}

START_TEST(the_same_version_is_copied) {
    const struct_v2 from = {sizeof from, 1, 2};
    struct_v2 to;
    ck_assert_int_eq(take(&from, &to, NULL), TRF_OK);
    ck_assert_int_eq(memcmp(&from, &to, sizeof to), 0);
}
END_TEST

START_TEST(an_older_one_keeps_the_defaults_of_what_it_lacks) {
    const struct_v1 from = {sizeof from, 1};
    struct_v2 to;
    ck_assert_int_eq(take(&from, &to, NULL), TRF_OK);
    ck_assert_uint_eq(to.struct_bytes, sizeof to);
    ck_assert_uint_eq(to.a, 1);
    ck_assert_uint_eq(to.b, 20);
}
END_TEST

START_TEST(a_newer_one_is_taken_if_what_is_new_is_zero) {
    struct_v3 from = {sizeof from, 1, 2, 0};
    struct_v2 to;
    trf_error err = {0};
    ck_assert_int_eq(take(&from, &to, &err), TRF_OK);
    ck_assert_uint_eq(to.struct_bytes, sizeof to);
    ck_assert_uint_eq(to.a, 1);
    ck_assert_uint_eq(to.b, 2);
    from.c = (uint64_t)1 << 63; /* its last byte */
    ck_assert_int_eq(take(&from, &to, &err), TRF_ERR_UNSUPPORTED);
    ck_assert_int_eq(err.status, TRF_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "struct_v2"));
    ck_assert_uint_eq(to.a, 10); /* unchanged */
}
END_TEST

START_TEST(sizes_of_no_version_are_refused) {
    static const size_t sizes[] = {0, 1, sizeof(struct_v1) - 1, SIZE_MAX, 1 << 20};
    struct_v2 to;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const struct_v2 from = {sizes[i], 1, 2};
        trf_error err = {0};
        ck_assert_int_eq(take(&from, &to, &err), TRF_ERR_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(err.message, "struct_v2_init"));
        ck_assert_uint_eq(to.a, 10);
    }
}
END_TEST

/* ---- the functions that take such structs ---- */

typedef struct struct_bytes_setup {
    trf_context *context;
    trf_device_layer *layer;
    trf_plan *plan;
    void *blob;
    uint64_t blob_bytes;
    uint16_t weights[32 * 32], x[32];
    float y[32];
    _Alignas(256) uint8_t workspace[4 << 20];
} struct_bytes_setup;

static struct_bytes_setup setup;

static trf_matrix setup_matrix(void) {
    trf_matrix matrix;
    trf_matrix_init(&matrix);
    matrix.weights = setup.weights;
    matrix.dtype = TRF_DTYPE_BF16;
    matrix.rows = matrix.cols = 32;
    return matrix;
}

static trf_plan_options setup_plan_options(void) {
    trf_plan_options options;
    trf_plan_options_init(&options);
    options.x_dtype = TRF_DTYPE_BF16;
    options.y_dtype = TRF_DTYPE_F32;
    return options;
}

static void begin(void) {
    trf_error err;
    trf_plan_info info;
    memset(&setup, 0, sizeof setup);
    for (uint32_t i = 0; i < 32 * 32; i++)
        setup.weights[i] = (uint16_t)(0x3F00 + i * 7 % 256);
    const trf_matrix matrix = setup_matrix();
    const trf_plan_options options = setup_plan_options();
    fixture_check_status(trf_encode_layer(&matrix, NULL, &setup.blob, &setup.blob_bytes, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_context_create(TRF_DEVICE_CPU, &setup.context, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_create(setup.context, setup.blob, setup.blob_bytes, NULL, &setup.layer, &err),
                         TRF_OK, &err);
    fixture_check_status(trf_plan_create(setup.layer, &options, &setup.plan, &err), TRF_OK, &err);
    trf_plan_get_info(setup.plan, &info);
    ck_assert_uint_le(info.workspace_bytes, sizeof setup.workspace);
}

static void end(void) {
    trf_plan_destroy(setup.plan);
    trf_device_layer_destroy(setup.layer);
    trf_context_destroy(setup.context);
    trf_free(setup.blob);
}

/* A call that takes `structure`, which has its struct's type, as its argument. */
typedef trf_status struct_call(const void *structure, trf_error *err);

static trf_status call_encode_matrix(const void *structure, trf_error *err) {
    void *blob = NULL;
    uint64_t bytes;
    trf_status status = trf_encode_layer(structure, NULL, &blob, &bytes, NULL, err);
    trf_free(blob);
    return status;
}

static trf_status call_encode_options(const void *structure, trf_error *err) {
    const trf_matrix matrix = setup_matrix();
    void *blob = NULL;
    uint64_t bytes;
    trf_status status = trf_encode_layer(&matrix, structure, &blob, &bytes, NULL, err);
    trf_free(blob);
    return status;
}

static trf_status call_job(const void *structure, trf_error *err) {
    trf_job job;
    trf_status status = trf_job_begin(&job, structure, err);
    trf_job_end(&job);
    return status;
}

static trf_status call_limits(const void *structure, trf_error *err) {
    trf_checkpoint *checkpoint;
    const char *path = fixture_path("one.safetensors");
    fixture_write_header(path, "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
    trf_status status = trf_checkpoint_open_within(path, structure, &checkpoint, err);
    if (status == TRF_OK)
        trf_checkpoint_close(checkpoint);
    return status;
}

static trf_status call_load(const void *structure, trf_error *err) {
    trf_layer_size size;
    trf_status status = trf_device_layer_get_size(setup.context, setup.blob, setup.blob_bytes, structure, &size, err);
    trf_device_layer *layer = NULL;
    trf_status created = trf_device_layer_create(setup.context, setup.blob, setup.blob_bytes, structure, &layer, NULL);
    trf_device_layer_destroy(layer);
    ck_assert_int_eq(status, created);
    return status;
}

static trf_status call_plan(const void *structure, trf_error *err) {
    trf_plan *plan = NULL;
    trf_status status = trf_plan_create(setup.layer, structure, &plan, err);
    trf_plan_destroy(plan);
    return status;
}

static trf_status call_linear(const void *structure, trf_error *err) {
    return trf_linear(setup.plan, structure, setup.workspace, NULL, err);
}

static trf_status call_rows(const void *structure, trf_error *err) {
    return trf_decode_rows(setup.layer, structure, NULL, err);
}

static trf_status call_group(const void *structure, trf_error *err) {
    trf_layer_group *group = NULL;
    trf_status status = trf_layer_group_create(structure, 1, &group, err);
    trf_layer_group_destroy(group);
    return status;
}

static trf_status call_tune(const void *structure, trf_error *err) {
    trf_tuning *tuning = NULL;
    trf_status status = trf_tuning_measure(&setup.layer, 1, structure, &tuning, err);
    trf_tuning_free(tuning);
    return status;
}

/* What each call takes, filled so that it succeeds. */
typedef union any_struct {
    size_t struct_bytes;
    trf_matrix matrix;
    trf_encode_options encode;
    trf_checkpoint_options checkpoint;
    trf_load_options load;
    trf_limits limits;
    trf_plan_options plan;
    trf_operands operands;
    trf_row_request rows;
    trf_group_member member;
    trf_tune_options tune;
    uint8_t bytes[1024];
} any_struct;

typedef struct struct_case {
    const char *name;
    struct_call *call;
    size_t bytes;
} struct_case;

static const struct_case kCases[] = {
    {"trf_matrix", call_encode_matrix, sizeof(trf_matrix)},
    {"trf_encode_options", call_encode_options, sizeof(trf_encode_options)},
    {"trf_checkpoint_options", call_job, sizeof(trf_checkpoint_options)},
    {"trf_load_options", call_load, sizeof(trf_load_options)},
    {"trf_limits", call_limits, sizeof(trf_limits)},
    {"trf_plan_options", call_plan, sizeof(trf_plan_options)},
    {"trf_operands", call_linear, sizeof(trf_operands)},
    {"trf_row_request", call_rows, sizeof(trf_row_request)},
    {"trf_group_member", call_group, sizeof(trf_group_member)},
    {"trf_tune_options", call_tune, sizeof(trf_tune_options)},
};

static void fill(const struct_case *c, any_struct *any) {
    memset(any, 0, sizeof *any);
    if (c->call == call_encode_matrix)
        any->matrix = setup_matrix();
    else if (c->call == call_encode_options)
        trf_encode_options_init(&any->encode);
    else if (c->call == call_job)
        trf_checkpoint_options_init(&any->checkpoint);
    else if (c->call == call_load)
        trf_load_options_init(&any->load);
    else if (c->call == call_limits)
        trf_limits_init(&any->limits);
    else if (c->call == call_plan)
        any->plan = setup_plan_options();
    else if (c->call == call_rows)
        trf_row_request_init(&any->rows), any->rows.id_bytes = 4;
    else if (c->call == call_tune)
        trf_tune_options_init(&any->tune), any->tune.max_m = 1;
    else if (c->call == call_group) {
        trf_group_member_init(&any->member);
        any->member = (trf_group_member){sizeof any->member, setup.layer, 1, TRF_DTYPE_BF16, TRF_DTYPE_F32, 0};
    } else {
        trf_operands_init(&any->operands);
        any->operands.x = setup.x;
        any->operands.y = setup.y;
    }
    ck_assert_uint_eq(any->struct_bytes, c->bytes);
}

START_TEST(every_call_looks_at_the_size) {
    const struct_case *c = &kCases[_i];
    any_struct any;
    trf_error err = {0};
    fill(c, &any);
    fixture_check_status(c->call(&any, &err), TRF_OK, &err);
    any.struct_bytes = c->bytes + 64; /* a newer program's, with nothing new in it */
    fixture_check_status(c->call(&any, &err), TRF_OK, &err);
    any.bytes[c->bytes + 63] = 1;
    fixture_check_status(c->call(&any, &err), TRF_ERR_UNSUPPORTED, &err);
    ck_assert_ptr_nonnull(strstr(err.message, c->name));
    any.struct_bytes = 0;
    fixture_check_status(c->call(&any, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_nonnull(strstr(err.message, c->name));
    any.struct_bytes = 16; /* less than the first version's */
    fixture_check_status(c->call(&any, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_nonnull(strstr(err.message, c->name));
}
END_TEST

/* ---- one struct within another ---- */

START_TEST(options_behind_larger_encode_options_are_found) {
    enum {
        MORE = 24 /* bytes that the caller's encode options have more than ours */
    };
    trf_checkpoint_options ours;
    _Alignas(8) uint8_t theirs[sizeof ours + MORE] = {0};
    const size_t behind = offsetof(trf_checkpoint_options, include);
    const char *const include[] = {"a", NULL};
    size_t bytes = sizeof theirs;
    trf_job job;
    trf_error err = {0};
    trf_checkpoint_options_init(&ours);
    ours.encode.struct_bytes += MORE;
    ours.encode.threads = 3;
    ours.include = include;
    ours.overwrite = 1;
    memcpy(theirs, &ours, behind);
    memcpy(theirs, &bytes, sizeof bytes);
    memcpy(theirs + behind + MORE, (const uint8_t *)&ours + behind, sizeof ours - behind);
    fixture_check_status(trf_job_begin(&job, (const trf_checkpoint_options *)theirs, &err), TRF_OK, &err);
    ck_assert_int_eq(job.options.encode.threads, 3);
    ck_assert_ptr_eq(job.options.include, include);
    ck_assert_int_eq(job.options.overwrite, 1);
    ck_assert_ptr_null(job.options.exclude);
    trf_job_end(&job);
    theirs[behind + MORE - 1] = 1; /* a field of theirs */
    fixture_check_status(trf_job_begin(&job, (const trf_checkpoint_options *)theirs, &err), TRF_ERR_UNSUPPORTED, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "trf_encode_options"));
    trf_job_end(&job);
}
END_TEST

START_TEST(members_of_a_larger_size_stand_as_far_apart) {
    enum {
        MEMBERS = 3,
        MORE = 16
    };
    const size_t step = sizeof(trf_group_member) + MORE;
    _Alignas(8) uint8_t members[MEMBERS * (sizeof(trf_group_member) + MORE)] = {0};
    trf_layer_group *group;
    trf_layer_group_info info;
    trf_error err = {0};
    for (uint32_t i = 0; i < MEMBERS; i++) {
        const trf_group_member member = {step, setup.layer, 1 + i, TRF_DTYPE_BF16, TRF_DTYPE_F32, 0};
        memcpy(members + i * step, &member, sizeof member);
    }
    fixture_check_status(trf_layer_group_create((const trf_group_member *)members, MEMBERS, &group, &err), TRF_OK,
                         &err);
    trf_layer_group_get_info(group, &info);
    ck_assert_uint_eq(info.members, MEMBERS);
    trf_layer_group_destroy(group);
    members[2 * step] = (uint8_t)sizeof(trf_group_member);
    fixture_check_status(trf_layer_group_create((const trf_group_member *)members, MEMBERS, &group, &err),
                         TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "layer 2"));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("struct_bytes");
    TCase *function = tcase_create("function"), *calls = tcase_create("calls");
    tcase_add_test(function, the_same_version_is_copied);
    tcase_add_test(function, an_older_one_keeps_the_defaults_of_what_it_lacks);
    tcase_add_test(function, a_newer_one_is_taken_if_what_is_new_is_zero);
    tcase_add_test(function, sizes_of_no_version_are_refused);
    suite_add_tcase(suite, function);
    tcase_add_unchecked_fixture(calls, fixture_begin, fixture_end);
    tcase_add_checked_fixture(calls, begin, end);
    tcase_add_loop_test(calls, every_call_looks_at_the_size, 0, sizeof kCases / sizeof kCases[0]);
    tcase_add_test(calls, options_behind_larger_encode_options_are_found);
    tcase_add_test(calls, members_of_a_larger_size_stand_as_far_apart);
    suite_add_tcase(suite, calls);
    return run_suite(suite);
}
