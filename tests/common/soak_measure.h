/* SPDX-License-Identifier: Apache-2.0 */
/* What a process holds: memory, file descriptors, threads. */
#ifndef SOAK_MEASURE_H
#define SOAK_MEASURE_H

#include "soak.h"

typedef struct soak_measure {
    uint64_t resident_bytes; /* of host memory, after what malloc could give back */
    uint64_t heap_bytes;     /* that malloc has handed out and not got back; 0 where nobody can tell */
    uint64_t device_bytes;
    uint32_t descriptors, threads;
} soak_measure;

/* Call it before threads start: malloc then gives large chunks back at once. Otherwise it raises its thresholds while a
 * program runs, and keeps up to 64 MiB in each thread's arena, so that nobody can tell what is resident for good. */
void soak_measure_begin(void);

soak_measure soak_measure_now(const soak_device *device);
void soak_measure_print(const char *when, const soak_measure *measure);

/* How much more there may be than before. */
typedef struct soak_slack {
    uint64_t resident_bytes, heap_bytes, device_bytes;
    uint32_t descriptors, threads; /* CUDA makes some of its own when it first needs them */
} soak_slack;

/* Ends the test if there is more now than there was before, by more than the slack. */
void soak_measure_check(const char *when, const soak_measure *before, const soak_measure *now, const soak_slack *slack);

#endif
