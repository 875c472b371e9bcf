/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_load_scratch_cuda.h"

#include "trf_cuda_call.h"
#include "trf_device_cuda.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>

enum {
    GRANULE_BYTES = 2 << 20 /* in which CUDA gives memory out: layers of nearly the same size want the same */
};

struct trf_load_scratches {
    pthread_mutex_t lock;
    trf_load_scratch *first; /* that nobody uses */
    uint32_t used;
    uint64_t most_bytes; /* that anybody has taken, but for what would not be kept */
};

/* ---- one of them ---- */

static void destroy(trf_load_scratch *scratch) {
    void *const events[] = {scratch->taker_event, scratch->arrived, scratch->taken[0], scratch->taken[1]};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        if (events[i])
            cudaEventDestroy(events[i]);
    cudaFreeHost(scratch->results);
    cudaFree(scratch->memory);
    free(scratch);
}

static void destroy_list(trf_load_scratch *first) {
    for (trf_load_scratch *next; first; first = next) {
        next = first->next;
        destroy(first);
    }
}

static trf_status make_event(void **event, trf_error *err) {
    return trf_check_cuda(cudaEventCreateWithFlags((cudaEvent_t *)event, cudaEventDisableTiming), "making events", err);
}

static trf_status create(uint64_t bytes, trf_load_scratch **scratch, trf_error *err) {
    trf_load_scratch *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a load's scratch memory");
    made->bytes = (bytes + GRANULE_BYTES - 1) / GRANULE_BYTES * GRANULE_BYTES;
    trf_status status = trf_cuda_allocate_here(made->bytes, (void **)&made->memory, err);
    if (status == TRF_OK)
        status =
            trf_check_cuda(cudaHostAlloc((void **)&made->results, TRF_LOAD_SCRATCH_RESULT_BYTES, cudaHostAllocDefault),
                           "allocating page-locked memory", err);
    if (status == TRF_OK)
        status = make_event(&made->taker_event, err);
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
    destroy_list(scratches->first);
    pthread_mutex_destroy(&scratches->lock);
    free(scratches);
}

/* The smallest one that is large enough, or any other, which is to be replaced; NULL: there is none. The lock is
 * held. */
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

/* The list but for the one that is kept. The lock is held. */
static trf_load_scratch *find_surplus(trf_load_scratches *scratches) {
    trf_load_scratch *surplus = NULL, *kept = NULL;
    for (trf_load_scratch *at = scratches->first, *next; at; at = next) {
        trf_load_scratch *goes = at;
        next = at->next;
        if (at->bytes <= TRF_LOAD_SCRATCH_MOST_KEPT_BYTES && (!kept || at->bytes > kept->bytes)) {
            goes = kept;
            kept = at;
        }
        if (goes) {
            goes->next = surplus;
            surplus = goes;
        }
    }
    if (kept)
        kept->next = NULL;
    scratches->first = kept;
    return surplus;
}

void trf_load_scratch_give_back(trf_load_scratches *scratches, trf_load_scratch *scratch) {
    trf_load_scratch *surplus = NULL;
    if (!scratch)
        return;
    pthread_mutex_lock(&scratches->lock);
    scratch->next = scratches->first;
    scratches->first = scratch;
    if (--scratches->used == 0)
        surplus = find_surplus(scratches);
    pthread_mutex_unlock(&scratches->lock);
    destroy_list(surplus);
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
    if (found && found->bytes < bytes) {
        destroy(found);
        found = NULL;
    }
    if (!found)
        status = create(new_bytes, &found, err);
    if (status == TRF_OK) {
        *scratch = found;
        return TRF_OK;
    }
    pthread_mutex_lock(&scratches->lock);
    scratches->used--;
    pthread_mutex_unlock(&scratches->lock);
    return status;
}
