/* SPDX-License-Identifier: Apache-2.0 */
/* The message about a driver that is too old, whatever its kernel module says of itself. */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "trf_driver.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static trf_error err;

/* @return the message if the module's file has this text. */
static const char *say(const char *text, int cuda_found, int cuda_needed) {
    char path[] = "/tmp/test_driver.XXXXXX";
    int file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(write(file, text, strlen(text)), (ssize_t)strlen(text));
    close(file);
    fixture_check_status(trf_fail_old_driver(cuda_found, cuda_needed, path, &err), TRF_ERR_DEVICE, &err);
    unlink(path);
    return err.message;
}

START_TEST(both_are_named) {
    ck_assert_str_eq(say("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
                         "GCC version:  gcc version 12.2.0\n",
                         12040, 13000),
                     "the NVIDIA driver 550.54.15 is for CUDA 12.4; this build has CUDA 13.0, and needs a driver for "
                     "CUDA 13 (580 or newer)");
    ck_assert_str_eq(
        say("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  510.39.01  Release Build\n", 11060, 12090),
        "the NVIDIA driver 510.39.01 is for CUDA 11.6; this build has CUDA 12.9, and needs a driver for "
        "CUDA 12 (525.60.13 or newer)");
}
END_TEST

START_TEST(version_is_unknown) {
    const char *wanted = "the NVIDIA driver is for CUDA 13.1; this build has CUDA 14.0, and needs a driver for CUDA 14";
    const char *const texts[] = {"", "\n", "  ", "NVRM version:  unknown\n", "a line without its end"};
    for (int i = 0; i < 5; i++)
        ck_assert_str_eq(say(texts[i], 13010, 14000), wanted);
    fixture_check_status(trf_fail_old_driver(13010, 14000, "/nowhere/version", &err), TRF_ERR_DEVICE, &err);
    ck_assert_str_eq(err.message, wanted);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("driver");
    TCase *tests = tcase_create("driver");
    tcase_add_test(tests, both_are_named);
    tcase_add_test(tests, version_is_unknown);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
