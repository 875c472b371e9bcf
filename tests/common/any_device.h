/* SPDX-License-Identifier: Apache-2.0 */
/* For tests that any device must pass. They run on the CPU, and tests/gpu/ builds them again for a GPU, whose ordinal
 * is TRF_TEST_DEVICE. */
#ifndef ANY_DEVICE_H
#define ANY_DEVICE_H

#include "transfuse.h"

#include <stdio.h>
#include <stdlib.h>

#ifndef TRF_TEST_DEVICE
#define TRF_TEST_DEVICE TRF_DEVICE_CPU
#endif

/* Call this first. test: the test's name on a GPU. @return main's exit status if there is no such device, after saying
 * so; else 0. */
static inline int test_device_missing(const char *test) {
    trf_context *there;
    trf_error err;
    if (TRF_TEST_DEVICE == TRF_DEVICE_CPU)
        return 0;
    if (trf_context_create(TRF_TEST_DEVICE, &there, &err) != TRF_OK) {
        printf("skipped %s: %s\n", test, err.message);
        return 77;
    }
    trf_context_destroy(there);
    setenv("CK_FORK", "no", 1); /* what CUDA has set up does not survive a fork */
    return 0;
}

#endif
