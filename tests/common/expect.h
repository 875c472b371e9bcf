/* SPDX-License-Identifier: Apache-2.0 */
/* Assertions for inner loops, and how much a test tries. */
#ifndef EXPECT_H
#define EXPECT_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* ck_assert, for inner loops: Check writes a record to disk at each of its own assertions, and reads them all again. */
#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            ck_abort_msg("%s", #condition);                                                                            \
    } while (0)

/* Whether TRF_TEST_QUICK asks for less. ctest sets it under sanitizers, which learn as much from a quarter of the cases
 * of one kind as from all. */
static inline int test_quick(void) {
    const char *quick = getenv("TRF_TEST_QUICK");
    return quick && *quick && strcmp(quick, "0") != 0;
}

/* How many of so many rounds, which differ only in random numbers, a test does. */
static inline int test_rounds(int rounds) { return test_quick() ? (rounds + 3) / 4 : rounds; }

/* Whether case i of a list is tried. */
static inline int test_tries(int i) { return !test_quick() || i % 4 == 0; }

#endif
