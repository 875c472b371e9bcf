/* SPDX-License-Identifier: Apache-2.0 */
/* 16 threads that load, run, cancel and close at once on the CPU (tests/common/soak.h); and layers that are loaded and
 * freed again and again, in memory that does not grow. TRF_TEST_SECONDS and TRF_TEST_CYCLES make them long. */
#include "common/checkpoint_fixture.h"
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/soak.h"

static const soak_device cpu = {.ordinal = TRF_DEVICE_CPU};

START_TEST(threads_at_once) { soak_run(&cpu, (soak_length){.steps = test_quick() ? 4 : 8}); }
END_TEST

START_TEST(load_and_free) { soak_cycle(&cpu, test_quick() ? 40 : 400); }
END_TEST

int main(void) {
    Suite *suite = suite_create("soak");
    TCase *tcase = tcase_create("soak");
    tcase_set_tags(tcase, "threads");
    tcase_set_timeout(tcase, 3600);
    tcase_add_unchecked_fixture(tcase, fixture_begin, fixture_end);
    tcase_add_test(tcase, threads_at_once);
    suite_add_tcase(suite, tcase);
    TCase *cycles = tcase_create("cycles");
    tcase_set_timeout(cycles, 3600);
    tcase_add_unchecked_fixture(cycles, fixture_begin, fixture_end);
    tcase_add_test(cycles, load_and_free);
    suite_add_tcase(suite, cycles);
    return run_suite(suite);
}
