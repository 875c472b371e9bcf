/* SPDX-License-Identifier: Apache-2.0 */
/* What an H100 can do, for tests that choose kernels without one. */
#ifndef HOPPER_LIMITS_H
#define HOPPER_LIMITS_H

#include "trf_device_limits.h"

static inline trf_device_limits hopper_limits(void) {
    return (trf_device_limits){.multiprocessors = 132,
                               .shared_bytes = 227 << 10,
                               .capability = 90,
                               .memory_gb_per_second = 3352,
                               .clusters_of = {0, 132, 66, 42, 30, 22, 20, 15, 15}};
}

#endif
