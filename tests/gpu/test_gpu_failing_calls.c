/* SPDX-License-Identifier: Apache-2.0 */
/* Every call of the CUDA runtime and of cuBLASLt fails, launches of kernels included, once and from then on, in all
 * that programs do with a GPU (common/device_acts.h). Each time there are a status and a message, or the same result as
 * without failures; then the act works again, and nothing is left over. With TRF_ACT_DIGESTS in the environment nothing
 * fails, and what comes of each act is printed. */
#include "common/device_acts.h"
#include "common/expect.h"
#include "gpu_failing_runtime.h"
#include "gpu_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MOST_ATTEMPTS = 150 /* of an act that makes more calls, every second, or third ..., fails */
};

/* Does the act while nothing fails, after a failure of `call`. */
static void do_again(const device_act *act, uint64_t right, long objects, long number, const char *call) {
    uint64_t digest;
    const trf_status status = device_act_do(act, &digest);
    if (status != TRF_OK)
        ck_abort_msg("%s, after call %ld, %s, has failed: %s: %s", act->name, number, call, trf_status_name(status),
                     device_act_error.message);
    if (digest != right)
        ck_abort_msg("%s, after call %ld, %s, has failed: another result", act->name, number, call);
    if (gpu_runtime_objects() > objects)
        ck_abort_msg("%s: call %ld, %s, failed, and of the library's objects there are %ld, not %ld", act->name, number,
                     call, gpu_runtime_objects(), objects);
}

/* Coded experts are refused for a mixture when the device does not say what it has; the message says so. */
static int is_refusal(trf_status status, const trf_error *err) {
    return status == TRF_ERR_UNSUPPORTED && strstr(err->message, "the device does not say");
}

static void check_failure(const device_act *act, trf_status status, cudaError_t error, long number, const char *call) {
    const trf_error *err = &device_act_error;
    const trf_status due = strcmp(call, "cudaGetDeviceCount") == 0 ? TRF_ERR_DEVICE
                           : error == cudaErrorMemoryAllocation    ? TRF_ERR_MEMORY
                                                                   : TRF_ERR_CUDA;
    if ((status != due && !is_refusal(status, err)) || err->status != status || !err->message[0] ||
        (status == TRF_ERR_CUDA && err->cuda != (int32_t)error))
        ck_abort_msg("%s: call %ld, %s, failed: %s, CUDA's %d: %s", act->name, number, call, trf_status_name(status),
                     err->cuda, err->message);
}

/* Lets each `step`-th call fail. @return how many failed. *survived: how many of them the act was done without. */
static long fail_calls(const device_act *act, uint64_t right, int on, cudaError_t error, long step, int *survived) {
    const long objects = gpu_runtime_objects();
    *survived = 0;
    for (long number = 1, failures = 0;; number += step, failures++) {
        uint64_t digest;
        gpu_runtime_begin(number, on, error);
        const trf_status status = device_act_do(act, &digest);
        const char *call = gpu_runtime_end();
        if (!call) {
            ck_assert_int_eq(status, TRF_OK);
            return failures;
        }
        if (status != TRF_OK)
            check_failure(act, status, error, number, call);
        else if (digest != right)
            ck_abort_msg("%s: call %ld, %s, failed: another result, though all seemed well", act->name, number, call);
        *survived += status == TRF_OK;
        if (gpu_runtime_error_left())
            ck_abort_msg("%s: call %ld, %s, failed%s, and cudaGetLastError would still tell of %s", act->name, number,
                         call, on ? ", as all later ones," : "", gpu_runtime_error_left());
        do_again(act, right, objects, number, call);
    }
}

/* @return how many calls an act makes. */
static long count_calls(const device_act *act, uint64_t *digest) {
    long calls = 0;
    for (int round = 0; round < 2; round++) { /* the first one also makes what contexts keep */
        gpu_runtime_begin(0, 0, cudaSuccess);
        gpu_check(device_act_do(act, digest), TRF_OK, &device_act_error, act->name);
        calls = gpu_runtime_calls();
        gpu_runtime_end();
    }
    return calls;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

START_TEST(every_call_fails) {
    const device_act *act = &kDeviceActs[_i];
    const double begun = seconds();
    uint64_t right;
    int survived, survived_more;
    const long calls = count_calls(act, &right), step = 1 + calls / (test_quick() ? 10 : MOST_ATTEMPTS);
    const uint64_t before = gpu_free_bytes();
    if (getenv("TRF_ACT_DIGESTS")) {
        printf("%s gives 0x%016llx\n", act->name, (unsigned long long)right);
        return;
    }
    const long failures = fail_calls(act, right, 0, cudaErrorMemoryAllocation, step, &survived),
               more = fail_calls(act, right, 1, cudaErrorUnknown, step, &survived_more);
    printf("%s: %ld calls; %ld failed once, %d of them were done without; from %ld on all failed, %d of them were done "
           "without; %.1f s\n",
           act->name, calls, failures, survived, more, survived_more, seconds() - begun);
    fflush(stdout);
    ck_assert_msg(gpu_free_bytes() >= before, "%s: device memory is lost", act->name);
}
END_TEST

/* Check's fixtures of gpu_main are none, so that these are tests, too. */
START_TEST(begin) { device_acts_begin(0); }
END_TEST

START_TEST(end) { device_acts_end(); }
END_TEST

int main(void) {
    const gpu_test tests[] = {{begin, 1}, {every_call_fails, kNumDeviceActs}, {end, 1}};
    return gpu_main("failing_calls", tests, sizeof tests / sizeof tests[0]);
}
