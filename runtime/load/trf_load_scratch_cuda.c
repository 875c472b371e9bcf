/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_load_scratch_cuda.h"

#include "trf_cuda_call.h"
#include "trf_device_cuda.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>

enum {
    GRANULE_BYTES = 2 << 20 /* the units in which CUDA gives out memory; layers of nearly the same size need equally
                             * many */
};

struct trf_load_scratches {
    pthread_mutex_t lock;
    trf_load_scratch *first; /* the list of those that nobody uses */
    uint32_t used;
    uint64_t most_bytes; /* the most that was ever taken, apart from sizes that would not be kept */
};

/* ---- one of them ---- */

static void destroy(trf_load_scratch *scratch) {
    void *const events[] = {scratch->arrived, scratch->taken[0], scratch->taken[1]};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        if (events[i])
            cudaEventDestroy(events[i]);
    cudaFreeHost(scratch->results);
    cudaFree(scratch->memory);
    cudaFree(scratch->constants);
    free(scratch);
}

static trf_status make_event(void **event, trf_error *err) {
    return trf_check_cuda(cudaEventCreateWithFlags((cudaEvent_t *)event, cudaEventDisableTiming), "making events", err);
}

/* Makes a scratch without device memory. */
static trf_status create(trf_load_scratch **scratch, trf_error *err) {
    trf_load_scratch *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a load's scratch memory");
    trf_status status =
        trf_check_cuda(cudaHostAlloc((void **)&made->results, TRF_LOAD_SCRATCH_RESULT_BYTES, cudaHostAllocDefault),
                       "allocating page-locked memory", err);
    if (status == TRF_OK)
        status = make_event(&made->arrived, err);
    for (int i = 0; status == TRF_OK && i < 2; i++)
        status = make_event(&made->taken[i], err);
    if (status == TRF_OK)
        *scratch = made;
    else
        destroy(made);
    return status;
}

static void release_memory(trf_load_scratch *scratch) {
    cudaFree(scratch->memory);
    scratch->memory = NULL;
    scratch->bytes = 0;
}

/* Replaces the scratch's device memory by so many bytes. */
static trf_status replace_memory(trf_load_scratch *scratch, uint64_t bytes, trf_error *err) {
    release_memory(scratch);
    bytes = (bytes + GRANULE_BYTES - 1) / GRANULE_BYTES * GRANULE_BYTES;
    trf_status status = trf_cuda_allocate_here(bytes, (void **)&scratch->memory, err);
    if (status == TRF_OK)
        scratch->bytes = bytes;
    return status;
}

/* ---- a context's ---- */

trf_status trf_load_scratches_create(trf_load_scratches **scratches, trf_error *err) {
    trf_load_scratches *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a list of scratch memory");
    if (pthread_mutex_init(&made->lock, NULL) != 0) {
        free(made);
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot make a mutex");
    }
    *scratches = made;
    return TRF_OK;
}

void trf_load_scratches_destroy(trf_load_scratches *scratches) {
    if (!scratches)
        return;
    for (trf_load_scratch *at = scratches->first, *next; at; at = next) {
        next = at->next;
        destroy(at);
    }
    pthread_mutex_destroy(&scratches->lock);
    free(scratches);
}

/* Finds the smallest scratch that is large enough, or else any other, whose memory the caller replaces, and takes it
 * from the list. @return NULL if the list is empty. The lock is held. */
static trf_load_scratch *find(trf_load_scratches *scratches, uint64_t bytes) {
    trf_load_scratch **best = NULL;
    for (trf_load_scratch **at = &scratches->first; *at; at = &(*at)->next) {
        const int fits = (*at)->bytes >= bytes, best_fits = best && (*best)->bytes >= bytes;
        if (!best || fits > best_fits || (fits && (*at)->bytes < (*best)->bytes))
            best = at;
    }
    trf_load_scratch *found = best ? *best : NULL;
    if (found)
        *best = found->next;
    return found;
}

/* Releases the device memory of all but one of the scratches that nobody uses. The lock is held. */
static void release_surplus(const trf_load_scratches *scratches) {
    const trf_load_scratch *kept = NULL;
    for (const trf_load_scratch *at = scratches->first; at; at = at->next)
        if (at->bytes <= TRF_LOAD_SCRATCH_MOST_KEPT_BYTES && (!kept || at->bytes > kept->bytes))
            kept = at;
    for (trf_load_scratch *at = scratches->first; at; at = at->next)
        if (at != kept)
            release_memory(at);
}

void trf_load_scratch_give_back(trf_load_scratches *scratches, trf_load_scratch *scratch) {
    if (!scratch)
        return;
    pthread_mutex_lock(&scratches->lock);
    scratch->next = scratches->first;
    scratches->first = scratch;
    if (--scratches->used == 0)
        release_surplus(scratches);
    pthread_mutex_unlock(&scratches->lock);
}

trf_status trf_load_scratch_take(trf_load_scratches *scratches, uint64_t bytes, trf_load_scratch **scratch,
                                 trf_error *err) {
    trf_status status = TRF_OK;
    pthread_mutex_lock(&scratches->lock);
    trf_load_scratch *found = find(scratches, bytes);
    scratches->used++;
    if (bytes > scratches->most_bytes && bytes <= TRF_LOAD_SCRATCH_MOST_KEPT_BYTES)
        scratches->most_bytes = bytes;
    const uint64_t new_bytes = bytes > scratches->most_bytes ? bytes : scratches->most_bytes;
    pthread_mutex_unlock(&scratches->lock);
    if (!found)
        status = create(&found, err);
    if (status == TRF_OK && found->bytes < bytes)
        status = replace_memory(found, new_bytes, err);
    if (status == TRF_ERR_MEMORY && found && new_bytes > bytes)
        status = replace_memory(found, bytes, err);
    if (status == TRF_OK) {
        *scratch = found;
        return TRF_OK;
    }
    if (found)
        destroy(found);
    pthread_mutex_lock(&scratches->lock);
    scratches->used--;
    pthread_mutex_unlock(&scratches->lock);
    return status;
}
