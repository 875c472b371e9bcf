/* SPDX-License-Identifier: Apache-2.0 */
/* Staging buffers: page-locked host memory through which bytes go to a device while the next ones are made ready. One
 * ring serves all loads of a context. No CUDA in here: what moves the bytes is an engine (trf_staging_cuda.c; the tests
 * have one of their own). */
#ifndef TRF_STAGING_H
#define TRF_STAGING_H

#include "trf_threads.h"

/* Copying 4 MiB over PCIe 5 takes about 80 us, beside which the start of a copy (3 us) is little, while a layer of
 * some MiB still goes in several transfers. Eight: one or two are under way, and the others are filled, by one load or
 * by several at a time, or wait for a place on the device (trf_upload_in_parts). */
enum {
    TRF_STAGING_BUFFERS = 8,
    TRF_STAGING_BUFFER_BYTES = 4 << 20 /* of each; no tile is larger */
};

/* What moves the bytes. Before all but allocate and release the caller of the ring makes the device current, or these
 * functions do so themselves. Thread-safe. */
typedef struct trf_copy_engine {
    /* @return page-locked memory, or NULL if there is none to be had. */
    void *(*allocate)(void *context, uint64_t bytes);
    void (*release)(void *context, void *memory);
    /* Begins to copy host memory to the device, behind all copies begun before; a mark of `buffer`'s follows it. */
    trf_status (*copy)(void *context, uint32_t buffer, void *to, const void *from, uint64_t bytes, trf_error *err);
    trf_status (*wait)(void *context, uint32_t buffer, trf_error *err); /* for the buffer's last mark */
    trf_status (*drain)(void *context, trf_error *err);                 /* waits for all copies */
} trf_copy_engine;

typedef struct trf_staging trf_staging;

/* engine, context: outlive the ring. Buffers are made by the first trf_staging_open. Errors: TRF_ERR_MEMORY. */
trf_status trf_staging_create(const trf_copy_engine *engine, void *context, trf_staging **staging, trf_error *err);
void trf_staging_destroy(trf_staging *staging); /* NULL is allowed; nothing is under way */

/* To be called before a load. Without page-locked memory the buffers are ordinary memory, and copies go slower.
 * Thread-safe, as all that follows. Errors: TRF_ERR_MEMORY. */
trf_status trf_staging_open(trf_staging *staging, trf_error *err);
/* Scratch buffers of TRF_STAGING_SCRATCH_BYTES, 4096-byte aligned: where a thread has what it reads while it looks at
 * it. They are kept for the next load. @return NULL without memory. */
enum {
    TRF_STAGING_SCRATCH_BYTES = 508 << 10
};
uint8_t *trf_staging_take_scratch(trf_staging *staging);
void trf_staging_give_scratch(trf_staging *staging, uint8_t *scratch); /* NULL is allowed */

/* The threads that fill buffers; the ring's. */
trf_pool *trf_staging_pool(const trf_staging *staging);

int trf_staging_is_pinned(const trf_staging *staging); /* whether the buffers are pinned; after trf_staging_open */

/* Waits until a buffer is free, and takes it. A caller that has one incomplete must be able to complete it without
 * another. *memory: TRF_STAGING_BUFFER_BYTES, 4096-byte aligned. Errors: those of the engine; then no buffer is
 * taken. */
trf_status trf_staging_take(trf_staging *staging, uint32_t *buffer, uint8_t **memory, trf_error *err);

/* Begins to copy the buffer's first `bytes` bytes to the device; the buffer is free once they are there. Errors: those
 * of the engine; it is free then, too. */
trf_status trf_staging_send(trf_staging *staging, uint32_t buffer, void *to, uint64_t bytes, trf_error *err);

/* Gives a buffer back unsent. */
void trf_staging_give_back(trf_staging *staging, uint32_t buffer);

/* Copies host memory of any size through the ring, and waits until that and all that was sent before has arrived.
 * bytes: at least 1. Errors: those of the engine. */
trf_status trf_staging_finish(trf_staging *staging, void *to, const void *from, uint64_t bytes, trf_error *err);

/* Waits for all copies, after a failure: device memory may be released then. */
void trf_staging_drain(trf_staging *staging);

#endif
