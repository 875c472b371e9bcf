/* SPDX-License-Identifier: Apache-2.0 */
/* TRF_DEVICE_AUTO for each way in which the attempt to use a GPU may end. TRF_TEST_WRAPS: trf_cuda_context_create */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "trf_context_create.h"

#include <check.h>

static trf_error err;
static trf_status attempt_ends_in;

trf_status __wrap_trf_cuda_context_create(int device, trf_context **context, trf_error *error);
trf_status __wrap_trf_cuda_context_create(int device, trf_context **context, trf_error *error) {
    ck_assert_int_eq(device, 0);
    (void)context;
    trf_fail(error, attempt_ends_in, TRF_NO_OFFSET, "the attempt ended");
    if (error)
        error->cuda = attempt_ends_in == TRF_ERR_CUDA ? 46 : 0;
    return attempt_ends_in;
}

START_TEST(no_device) {
    trf_context *context = NULL;
    attempt_ends_in = TRF_ERR_DEVICE;
    err = (trf_error){0};
    fixture_check_status(trf_context_create(TRF_DEVICE_AUTO, &context, &err), TRF_OK, &err);
    ck_assert_int_eq(err.status, TRF_OK);
    trf_context_info info;
    trf_context_get_info(context, &info);
    ck_assert_int_eq(info.device, TRF_DEVICE_CPU);
    trf_context_destroy(context);
    fixture_check_status(trf_context_create(0, &context, &err), TRF_ERR_DEVICE, &err);
}
END_TEST

/* If there is a GPU but it fails, the CPU must not take its place unnoticed. */
START_TEST(device_fails) {
    static const trf_status failures[] = {TRF_ERR_MEMORY, TRF_ERR_CUDA};
    for (int i = 0; i < 2; i++) {
        trf_context *context = NULL;
        attempt_ends_in = failures[i];
        fixture_check_status(trf_context_create(TRF_DEVICE_AUTO, &context, &err), failures[i], &err);
        ck_assert_str_eq(err.message, "the attempt ended");
        ck_assert_int_eq(err.cuda, failures[i] == TRF_ERR_CUDA ? 46 : 0);
        ck_assert_ptr_null(context);
        ck_assert_int_eq(trf_context_create(TRF_DEVICE_AUTO, &context, NULL), failures[i]);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("device_auto");
    TCase *tests = tcase_create("device_auto");
    tcase_add_test(tests, no_device);
    tcase_add_test(tests, device_fails);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
