/* SPDX-License-Identifier: Apache-2.0 */
/* A soak's threads: what they share, what each has, and failures. */
#include "soak_work.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- shared things ---- */

soak_shared *soak_take(soak *soak, soak_shared *const *slot) {
    pthread_mutex_lock(&soak->lock);
    soak_shared *thing = *slot;
    if (thing)
        thing->users++;
    pthread_mutex_unlock(&soak->lock);
    return thing;
}

void soak_let_go(soak_shared *thing) {
    if (!thing)
        return;
    pthread_mutex_lock(&thing->soak->lock);
    const int last = --thing->users == 0;
    pthread_mutex_unlock(&thing->soak->lock);
    if (last)
        thing->destroy(thing);
}

void soak_put(soak *soak, soak_shared **slot, soak_shared *thing) {
    pthread_mutex_lock(&soak->lock);
    soak_shared *old = *slot;
    *slot = thing;
    pthread_mutex_unlock(&soak->lock);
    soak_let_go(old);
}

/* ---- a thread ---- */

void soak_thread_begin(soak *soak, int number, uint64_t seed, soak_thread *thread) {
    *thread = (soak_thread){.soak = soak, .number = number, .rng = {seed}};
    if (soak->device->make_stream)
        thread->stream = soak->device->make_stream();
}

void soak_thread_end(soak_thread *thread) {
    for (int i = 0; i < SOAK_BUFFERS; i++)
        trf_device_free(thread->soak->memory_context, thread->buffers[i]);
    free(thread->host);
    if (thread->soak->device->destroy_stream)
        thread->soak->device->destroy_stream(thread->stream);
}

enum {
    MOST_TOLD = 20 /* failures, at once */
};

void soak_fail(soak_thread *thread, const char *format, ...) {
    char text[1600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    soak *soak = thread->soak;
    pthread_mutex_lock(&soak->lock);
    if (!soak->failures)
        snprintf(soak->first_failure, sizeof soak->first_failure, "thread %d, step %llu: %s", thread->number,
                 (unsigned long long)thread->step, text);
    if (soak->failures++ < MOST_TOLD) {
        printf("soak: thread %d, step %llu: %s\n", thread->number, (unsigned long long)thread->step, text);
        fflush(stdout);
    }
    pthread_mutex_unlock(&soak->lock);
}

int soak_expect(soak_thread *thread, trf_status status, trf_status due, const char *what) {
    if (status != due)
        soak_fail(thread, "%s: %s, not %s: %s", what, trf_status_name(status), trf_status_name(due),
                  status == TRF_OK ? "" : thread->err.message);
    else if (status != TRF_OK && (thread->err.status != status || !thread->err.message[0]))
        soak_fail(thread, "%s: %s without a message", what, trf_status_name(status));
    else
        return 1;
    return 0;
}

/* ---- device memory ---- */

enum {
    MOST_MARKED_BYTES = 2 << 20 /* more would take longer than products */
};

static int copy(soak_thread *thread, void *to, const void *from, uint64_t bytes) {
    if (!thread->soak->device->copy)
        memcpy(to, from, bytes);
    else if (!thread->soak->device->copy(thread->stream, to, from, bytes)) {
        soak_fail(thread, "a copy of %llu bytes, or what was queued before it, failed", (unsigned long long)bytes);
        return 0;
    }
    return 1;
}

static uint8_t *reserve_host(soak_thread *thread, uint64_t bytes) {
    if (bytes > thread->host_bytes) {
        free(thread->host);
        thread->host = malloc(bytes);
        thread->host_bytes = thread->host ? bytes : 0;
        if (!thread->host)
            soak_fail(thread, "out of memory for %llu bytes", (unsigned long long)bytes);
    }
    return thread->host;
}

void *soak_reserve(soak_thread *thread, soak_buffer buffer, uint64_t bytes) {
    const trf_context *context = thread->soak->memory_context;
    if (!bytes)
        bytes = 1;
    if (bytes > thread->buffer_bytes[buffer]) {
        trf_device_free(context, thread->buffers[buffer]);
        thread->buffers[buffer] = NULL;
        thread->buffer_bytes[buffer] = 0;
        if (!soak_expect(thread, trf_device_allocate(context, bytes, &thread->buffers[buffer], &thread->err), TRF_OK,
                         "a buffer"))
            return NULL;
        thread->buffer_bytes[buffer] = bytes;
    }
    const uint64_t marked_bytes = bytes < MOST_MARKED_BYTES ? bytes : MOST_MARKED_BYTES;
    uint8_t *ones = reserve_host(thread, marked_bytes);
    if (!ones)
        return NULL;
    memset(ones, 0xFF, marked_bytes);
    return copy(thread, thread->buffers[buffer], ones, marked_bytes) ? thread->buffers[buffer] : NULL;
}

void *soak_upload(soak_thread *thread, soak_buffer buffer, const void *from, uint64_t bytes) {
    void *to = soak_reserve(thread, buffer, bytes);
    return to && copy(thread, to, from, bytes) ? to : NULL;
}

const uint8_t *soak_read(soak_thread *thread, const void *from, uint64_t bytes) {
    uint8_t *to = reserve_host(thread, bytes);
    return to && copy(thread, to, from, bytes) ? to : NULL;
}
