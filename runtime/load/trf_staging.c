/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_staging.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    PAGE_BYTES = 4096
};

/* A buffer is free, taken, or under way. Those under way are in a queue, in the order in which they were sent, which is
 * also the order in which they arrive. */
struct trf_staging {
    const trf_copy_engine *engine;
    void *context;
    trf_pool *pool;
    pthread_mutex_t sending; /* held while a copy begins, so that copies begin in the order of the queue; locked before
                              * `lock` */
    pthread_mutex_t lock;    /* protects all that follows */
    pthread_cond_t returned; /* a buffer has become free or is under way */
    void **scratches;        /* the free ones: each begins with a pointer to the next */
    uint8_t *memory;         /* all buffers; NULL: not open */
    int is_pinned;
    uint32_t free_buffers[TRF_STAGING_BUFFERS], num_free;
    uint32_t sent[TRF_STAGING_BUFFERS], first_sent, num_sent; /* a ring */
};

trf_status trf_staging_create(const trf_copy_engine *engine, void *context, trf_staging **staging, trf_error *err) {
    trf_staging *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate staging buffers");
    made->engine = engine;
    made->context = context;
    trf_status status = trf_pool_create(&made->pool, err);
    if (status != TRF_OK) {
        free(made);
        return status;
    }
    if (pthread_mutex_init(&made->sending, NULL) != 0 || pthread_mutex_init(&made->lock, NULL) != 0 ||
        pthread_cond_init(&made->returned, NULL) != 0) {
        trf_pool_destroy(made->pool);
        free(made);
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot make a mutex");
    }
    *staging = made;
    return TRF_OK;
}

void trf_staging_destroy(trf_staging *staging) {
    if (!staging)
        return;
    trf_pool_destroy(staging->pool);
    for (uint8_t *scratch; staging->scratches; free(scratch))
        scratch = trf_staging_take_scratch(staging);
    if (staging->is_pinned)
        staging->engine->release(staging->context, staging->memory);
    else
        free(staging->memory);
    pthread_cond_destroy(&staging->returned);
    pthread_mutex_destroy(&staging->lock);
    pthread_mutex_destroy(&staging->sending);
    free(staging);
}

trf_status trf_staging_open(trf_staging *staging, trf_error *err) {
    const size_t bytes = (size_t)TRF_STAGING_BUFFERS * TRF_STAGING_BUFFER_BYTES;
    pthread_mutex_lock(&staging->lock);
    if (!staging->memory) {
        staging->memory = staging->engine->allocate(staging->context, bytes);
        staging->is_pinned = staging->memory != NULL;
        if (!staging->memory)
            staging->memory = aligned_alloc(PAGE_BYTES, bytes);
        for (staging->num_free = 0; staging->memory && staging->num_free < TRF_STAGING_BUFFERS; staging->num_free++)
            staging->free_buffers[staging->num_free] = staging->num_free;
    }
    const int is_open = staging->memory != NULL;
    pthread_mutex_unlock(&staging->lock);
    if (!is_open)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate %zu bytes of staging buffers", bytes);
    return TRF_OK;
}

uint8_t *trf_staging_take_scratch(trf_staging *staging) {
    pthread_mutex_lock(&staging->lock);
    void **scratch = staging->scratches;
    if (scratch)
        staging->scratches = *scratch;
    pthread_mutex_unlock(&staging->lock);
    return scratch ? (uint8_t *)scratch : aligned_alloc(PAGE_BYTES, TRF_STAGING_SCRATCH_BYTES);
}

void trf_staging_give_scratch(trf_staging *staging, uint8_t *scratch) {
    if (!scratch)
        return;
    pthread_mutex_lock(&staging->lock);
    *(void **)scratch = staging->scratches;
    staging->scratches = (void **)scratch;
    pthread_mutex_unlock(&staging->lock);
}

trf_pool *trf_staging_pool(const trf_staging *staging) { return staging->pool; }

int trf_staging_is_pinned(const trf_staging *staging) { return staging->is_pinned; }

trf_status trf_staging_take(trf_staging *staging, uint32_t *buffer, uint8_t **memory, trf_error *err) {
    int is_sent = 0;
    pthread_mutex_lock(&staging->lock);
    while (staging->num_free == 0 && staging->num_sent == 0)
        pthread_cond_wait(&staging->returned, &staging->lock);
    if (staging->num_free > 0) {
        *buffer = staging->free_buffers[--staging->num_free];
    } else {
        *buffer = staging->sent[staging->first_sent];
        staging->first_sent = (staging->first_sent + 1) % TRF_STAGING_BUFFERS;
        staging->num_sent--;
        is_sent = 1;
    }
    *memory = staging->memory + (size_t)*buffer * TRF_STAGING_BUFFER_BYTES;
    pthread_mutex_unlock(&staging->lock);
    trf_status status = is_sent ? staging->engine->wait(staging->context, *buffer, err) : TRF_OK;
    if (status != TRF_OK)
        trf_staging_give_back(staging, *buffer);
    return status;
}

trf_status trf_staging_send(trf_staging *staging, uint32_t buffer, void *to, uint64_t bytes, trf_error *err) {
    const uint8_t *from = staging->memory + (size_t)buffer * TRF_STAGING_BUFFER_BYTES;
    pthread_mutex_lock(&staging->sending); /* the copy may take a while; others can take buffers meanwhile */
    trf_status status = staging->engine->copy(staging->context, buffer, to, from, bytes, err);
    pthread_mutex_lock(&staging->lock);
    if (status == TRF_OK)
        staging->sent[(staging->first_sent + staging->num_sent++) % TRF_STAGING_BUFFERS] = buffer;
    else
        staging->free_buffers[staging->num_free++] = buffer;
    pthread_cond_signal(&staging->returned);
    pthread_mutex_unlock(&staging->lock);
    pthread_mutex_unlock(&staging->sending);
    return status;
}

void trf_staging_give_back(trf_staging *staging, uint32_t buffer) {
    pthread_mutex_lock(&staging->lock);
    staging->free_buffers[staging->num_free++] = buffer;
    pthread_cond_signal(&staging->returned);
    pthread_mutex_unlock(&staging->lock);
}

trf_status trf_staging_finish(trf_staging *staging, void *to, const void *from, uint64_t bytes, trf_error *err) {
    for (uint64_t at = 0, part; at < bytes; at += part) {
        uint32_t buffer;
        uint8_t *memory;
        part = bytes - at < TRF_STAGING_BUFFER_BYTES ? bytes - at : TRF_STAGING_BUFFER_BYTES;
        trf_status status = trf_staging_take(staging, &buffer, &memory, err);
        if (status != TRF_OK)
            return status;
        memcpy(memory, (const uint8_t *)from + at, part);
        if (at + part < bytes) {
            status = trf_staging_send(staging, buffer, (uint8_t *)to + at, part, err);
        } else { /* the last buffer stays taken until it has arrived, so that its mark belongs to this copy */
            status = staging->engine->copy(staging->context, buffer, (uint8_t *)to + at, memory, part, err);
            if (status == TRF_OK)
                status = staging->engine->wait(staging->context, buffer, err);
            trf_staging_give_back(staging, buffer);
        }
        if (status != TRF_OK)
            return status;
    }
    return TRF_OK;
}

void trf_staging_drain(trf_staging *staging) { staging->engine->drain(staging->context, NULL); }
