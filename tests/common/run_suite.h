/* SPDX-License-Identifier: Apache-2.0 */
/* The end of every unit test's main. */
#ifndef RUN_SUITE_H
#define RUN_SUITE_H

#include <check.h>

/* Runs a suite and frees it. CK_VERBOSITY in the environment sets how much is printed. @return main's exit status. */
static inline int run_suite(Suite *suite) {
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

#endif
