/* SPDX-License-Identifier: Apache-2.0 */
/* The encoder's own logarithm and power: close to the C library's, exact where they can be, and the same everywhere,
 * which hashes of their results show. */
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "trf_checksum.h"
#include "trf_log2.h"

#include <check.h>
#include <float.h>

enum {
    COUNT = 20000
};

/* Numbers from 2^-200 to 2^200, half of them close to 1. */
static double made_number(test_rng *rng, int i) {
    const double m = 1 + (double)(test_random(rng) >> 12) * 0x1p-52;
    return i % 2 ? ldexp(m, (int)test_below(rng, 400) - 200) : 1 + (m - 1.5) * ldexp(1, -(int)test_below(rng, 30));
}

START_TEST(log2_is_close) {
    static double results[COUNT];
    test_rng rng = {5};
    for (int i = 0; i < COUNT; i++) {
        const double x = made_number(&rng, i), due = log2(x);
        results[i] = trf_log2(x);
        ck_assert_msg(fabs(results[i] - due) <= DBL_EPSILON * fmax(1, fabs(due)), "log2(%a) is %a, and not %a", x,
                      results[i], due);
    }
    for (int e = -1022; e <= 1023; e++)
        ck_assert(trf_log2(ldexp(1, e)) == e);
    ck_assert_uint_eq(trf_checksum_portable(results, sizeof results, 0), 0x5E147A5F60AE4329ull);
}
END_TEST

START_TEST(exp2_is_close) {
    static double results[COUNT];
    test_rng rng = {6};
    for (int i = 0; i < COUNT; i++) {
        const double x = ((double)(test_random(&rng) >> 11) * 0x1p-53 - 0.5) * (i % 2 ? 2 : 2000), due = exp2(x);
        results[i] = trf_exp2(x);
        ck_assert_msg(fabs(results[i] - due) <= 2 * DBL_EPSILON * due, "exp2(%a) is %a, and not %a", x, results[i],
                      due);
    }
    for (int n = -1000; n <= 1000; n++)
        ck_assert(trf_exp2(n) == ldexp(1, n));
    ck_assert_uint_eq(trf_checksum_portable(results, sizeof results, 0), 0xA941C570CF32AA06ull);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("log2");
    TCase *tests = tcase_create("log2");
    tcase_add_test(tests, log2_is_close);
    tcase_add_test(tests, exp2_is_close);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
