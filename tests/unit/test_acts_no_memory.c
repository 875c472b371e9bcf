/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation and every thread that the library asks for fails, once and from then on, in all that programs do
 * with the CPU device (device_acts.h). Each time there are a status and a message, or the same result as without
 * failures, and in the end the act works. (The address sanitizer's run looks for leaks.) TRF_TEST_WRAPS_ALLOCATIONS.
 * TRF_TEST_WRAPS: pthread_create */
#include "common/device_acts.h"
#include "common/expect.h"
#include "common/failing_memory.h"
#include "common/run_suite.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>

/* tests/faults/cuda_without_gpu has a device of its own. */
#ifdef TRF_TEST_DEVICE
static const int kDevice = TRF_TEST_DEVICE;
#else
static const int kDevice = TRF_DEVICE_CPU;
#endif

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    return allocation_fails() ? EAGAIN : __real_pthread_create(thread, attributes, start, argument);
}

static void begin(void) { device_acts_begin(kDevice); }

/* Does the act with calls failing from `first` on, each `step` after the one before, until none is left. @return how
 * many there are. *survived: how often the act was done all the same. */
static long fail_calls(const device_act *act, uint64_t right, long step, int *survived) {
    uint64_t digest;
    *survived = 0;
    for (long number = 1;; number += step) {
        count_allocations_from_here(number);
        const trf_status status = device_act_do(act, &digest);
        const int failed = atomic_load(&allocation_has_failed);
        count_allocations_from_here(0);
        if (status == TRF_OK) {
            EXPECT(digest == right);
            *survived += failed;
        } else {
            const trf_error *err = &device_act_error;
            /* IO: of mmap */
            if (!failed || (status != TRF_ERR_MEMORY && status != TRF_ERR_IO) || err->status != status ||
                !err->message[0])
                ck_abort_msg("%s: call %ld: %s, %s", act->name, number, trf_status_name(status), err->message);
        }
        if (!failed)
            return number - step;
    }
}

/* In the quick runs of sanitizers memory that stays short is tried at each seventh call. */
START_TEST(every_call_fails) {
    const device_act *act = &kDeviceActs[_i];
    uint64_t right, again;
    int survived, survived_more;
    fixture_check_status(device_act_do(act, &right), TRF_OK, &device_act_error);
    const long calls = fail_calls(act, right, 1, &survived);
    atomic_store(&allocations_fail_on, 1);
    fail_calls(act, right, test_quick() ? 7 : 2, &survived_more);
    atomic_store(&allocations_fail_on, 0);
    fixture_check_status(device_act_do(act, &again), TRF_OK, &device_act_error);
    ck_assert(again == right);
    printf("%s: %ld calls failed, %d of them were done without; of those that failed on, %d\n", act->name, calls,
           survived, survived_more);
    if (kDevice == TRF_DEVICE_CPU) /* memory that a GPU has is not counted here */
        ck_assert_int_gt(calls, survived);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("acts_no_memory");
    TCase *tests = tcase_create("acts_no_memory");
    tcase_add_unchecked_fixture(tests, begin, device_acts_end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, every_call_fails, 0, kNumDeviceActs);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
