/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of devices that tests plan for. Each is the initializer of a trf_device_limits. */
#ifndef PLANNED_DEVICES_H
#define PLANNED_DEVICES_H

#include "trf_device_limits.h"

/* Compute capability 9.0. sms: multiprocessors; of_2, of_4, of_8: how many clusters of so many blocks run at once. */
#define PLANNED_HOPPER(sms, of_2, of_4, of_8)                                                                          \
    {                                                                                                                  \
        .multiprocessors = sms, .shared_bytes = 232448, .capability = 90, .clusters_of = {                             \
            [1] = sms,                                                                                                 \
            [2] = of_2,                                                                                                \
            [4] = of_4,                                                                                                \
            [8] = of_8                                                                                                 \
        }                                                                                                              \
    }
/* Without clusters. */
#define PLANNED_AMPERE(sms, bytes, compute_capability)                                                                 \
    {                                                                                                                  \
        .multiprocessors = sms, .shared_bytes = bytes, .capability = compute_capability, .clusters_of = { [1] = sms }  \
    }

#endif
