/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads that use the library at once: they load layers of all layouts, cancel loads, multiply, decode, verify,
 * convert, pack, encode, compress, and close what others may still be using others of. What comes out is compared, bit
 * for bit, with what a single thread got at the start. Memory and file descriptors are counted while nothing is open.
 * A run prints what it did. TRF_TEST_SECONDS in the environment makes it as long as that, and TRF_TEST_SEED another
 * one. A test must end within 35 minutes, which are all the microseconds that Check can count. Everything here ends the
 * test on failure, from the calling thread. */
#ifndef SOAK_H
#define SOAK_H

#include "transfuse.h"

#include <stdint.h>

/* The device, and what the public API has no calls for; the functions are NULL on the CPU. */
typedef struct soak_device {
    int ordinal; /* as for trf_context_create */
    trf_stream (*make_stream)(void);
    void (*destroy_stream)(trf_stream stream);
    /* Copies between host and device memory, ordered on the stream, and waits for the stream alone. @return whether it
     * succeeded. */
    int (*copy)(trf_stream stream, void *to, const void *from, uint64_t bytes);
    uint64_t (*used_bytes)(void); /* of device memory, once the device is idle */
    int has_large_layers;         /* layers are of some megabytes, not of some hundred kilobytes */
} soak_device;

/* How much is done, if TRF_TEST_SECONDS is not set: so many seconds, or, if seconds is 0, steps of each thread in each
 * quarter. */
typedef struct soak_length {
    double seconds;
    uint32_t steps;
} soak_length;

/* Runs 16 threads. The run has four quarters, and after each of them nothing is open. */
void soak_run(const soak_device *device, soak_length length);

/* Loads and frees layers one after another, `cycles` of them or as many as TRF_TEST_CYCLES says: files that are opened
 * and closed, mapped layers, layers loaded to the device in each layout. */
void soak_cycle(const soak_device *device, uint32_t cycles);

#endif
