/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory with canaries before and after the part that is given away. Everything here ends the test on
 * failure. */
#ifndef GUARDED_MEMORY_H
#define GUARDED_MEMORY_H

#include "transfuse/device_memory.h"

typedef struct guarded_memory {
    const trf_context *context;
    uint8_t *memory, *at; /* at: what is given away, 256-byte aligned */
    uint64_t bytes;
} guarded_memory;

guarded_memory guarded_allocate(const trf_context *context, uint64_t bytes);
void guarded_free(guarded_memory *guarded);

/* @return the contents, malloc'd. Checks that the canaries are as they were. */
uint8_t *guarded_read(const guarded_memory *guarded);

/* Fails if anything has been written to it. */
void guarded_check_untouched(const guarded_memory *guarded);

#endif
