/* SPDX-License-Identifier: Apache-2.0 */
/* Compares division by a product and a shift (trf_divisor.h) with the machine's: for all small numbers, and for large
 * ones at the edges of quotients and at random. */
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "trf_divisor.h"

#include <check.h>

static const uint32_t kMost = 0x7FFFFFFF; /* the largest number that is divided */

static void check(uint32_t n, trf_divisor divisor) {
    const uint32_t quotient = trf_quotient(n, divisor);
    if (quotient != n / divisor.by || trf_rest(n, quotient, divisor) != n % divisor.by)
        ck_abort_msg("%u / %u: %u", n, divisor.by, quotient);
}

/* Checks the last number of a quotient, and the first number of the next one. */
static void check_edges(uint32_t by) {
    const trf_divisor divisor = trf_divisor_of(by);
    const uint32_t most = kMost / by;
    ck_assert_uint_eq(divisor.by, by);
    for (uint32_t step = 0; step < 64; step++) {
        const uint32_t quotient = (uint32_t)((uint64_t)most * step / 63);
        check(quotient * by, divisor);
        if (quotient > 0)
            check(quotient * by - 1, divisor);
    }
    check(kMost, divisor);
}

START_TEST(small_numbers) {
    for (uint32_t by = 1; by <= 300; by++) {
        const trf_divisor divisor = trf_divisor_of(by);
        for (uint32_t n = 0; n <= 4000; n++)
            check(n, divisor);
    }
}
END_TEST

START_TEST(large_numbers) {
    test_rng rng = {7};
    for (uint32_t by = 1; by <= 20000; by++)
        check_edges(by);
    for (uint32_t bit = 0; bit < 31; bit++) { /* powers of two and their neighbours */
        check_edges(1u << bit);
        check_edges((1u << bit) + 1);
        if (bit > 1)
            check_edges((1u << bit) - 1);
    }
    check_edges(kMost);
    check_edges(kMost + 1u);
    for (int i = 0; i < 20000; i++)
        check_edges(1 + test_below(&rng, kMost));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("divisor");
    TCase *tests = tcase_create("divisor");
    tcase_add_test(tests, small_numbers);
    tcase_add_test(tests, large_numbers);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
