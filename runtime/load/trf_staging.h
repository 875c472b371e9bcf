/* SPDX-License-Identifier: Apache-2.0 */
/* Staging buffers: page-locked host memory through which bytes go to a device while the next ones are made ready. One
 * ring serves all loads of a context. No CUDA in here: a copy engine moves the bytes (trf_staging_cuda.c; the tests
 * have one of their own). */
#ifndef TRF_STAGING_H
#define TRF_STAGING_H

#include "trf_threads.h"

/* Copying 4 MiB over PCIe 5 takes about 80 us. The start of a copy, 3 us, is little beside that, and a layer of some
 * MiB still goes in several transfers. Of the eight buffers one or two are being copied; one or several loads fill the
 * others, or wait with them for a place on the device (trf_upload_in_parts). */
enum {
    TRF_STAGING_BUFFERS = 8,
    TRF_STAGING_BUFFER_BYTES = 4 << 20 /* of each; no tile is larger */
};

/* Moves the bytes. For all functions but allocate and release, either the ring's caller makes the device current
 * before, or the function does so itself. All are thread-safe. */
typedef struct trf_copy_engine {
    /* @return page-locked memory, or NULL if there is none. */
    void *(*allocate)(void *context, uint64_t bytes);
    void (*release)(void *context, void *memory);
    /* Begins to copy host memory to the device, after all copies that were begun before, and then sets the mark of
     * `buffer`. */
    trf_status (*copy)(void *context, uint32_t buffer, void *to, const void *from, uint64_t bytes, trf_error *err);
    trf_status (*wait)(void *context, uint32_t buffer, trf_error *err); /* for the buffer's last mark */
    trf_status (*drain)(void *context, trf_error *err);                 /* waits for all copies */
} trf_copy_engine;

typedef struct trf_staging trf_staging;

/* engine and context must outlive the ring. The first trf_staging_open makes the buffers. Errors: TRF_ERR_MEMORY. */
trf_status trf_staging_create(const trf_copy_engine *engine, void *context, trf_staging **staging, trf_error *err);
void trf_staging_destroy(trf_staging *staging); /* NULL is allowed; no copy is under way */

/* Call this before a load. Without page-locked memory the buffers are ordinary memory, and copies are slower. This and
 * all that follows is thread-safe. Errors: TRF_ERR_MEMORY. */
trf_status trf_staging_open(trf_staging *staging, trf_error *err);
/* Takes a scratch buffer of TRF_STAGING_SCRATCH_BYTES, 4096-byte aligned, in which a thread keeps what it has read
 * while it examines it. Buffers are kept for the next load. @return NULL without memory. */
enum {
    TRF_STAGING_SCRATCH_BYTES = 508 << 10
};
uint8_t *trf_staging_take_scratch(trf_staging *staging);
void trf_staging_give_scratch(trf_staging *staging, uint8_t *scratch); /* NULL is allowed */

/* @return the threads that fill buffers. They belong to the ring. */
trf_pool *trf_staging_pool(const trf_staging *staging);

int trf_staging_is_pinned(const trf_staging *staging); /* whether the buffers are pinned; after trf_staging_open */

/* Waits until a buffer is free, and takes it. A caller that holds an incomplete buffer must be able to complete it
 * without another one. *memory: TRF_STAGING_BUFFER_BYTES, 4096-byte aligned. Errors: those of the engine; no buffer is
 * taken then. */
trf_status trf_staging_take(trf_staging *staging, uint32_t *buffer, uint8_t **memory, trf_error *err);

/* Begins to copy the buffer's first `bytes` bytes to the device. The buffer is free once they have arrived. Errors:
 * those of the engine; the buffer is free then, too. */
trf_status trf_staging_send(trf_staging *staging, uint32_t buffer, void *to, uint64_t bytes, trf_error *err);

/* Gives a buffer back unsent. */
void trf_staging_give_back(trf_staging *staging, uint32_t buffer);

/* Copies host memory of any size through the ring, and waits until it and all that was sent before have arrived. bytes:
 * at least 1. Errors: those of the engine. */
trf_status trf_staging_finish(trf_staging *staging, void *to, const void *from, uint64_t bytes, trf_error *err);

/* Waits for all copies after a failure. Device memory may be released then. */
void trf_staging_drain(trf_staging *staging);

#endif
