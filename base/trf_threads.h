/* SPDX-License-Identifier: Apache-2.0 */
/* A parallel loop over worker threads: the one place where the library makes threads. */
#ifndef TRF_THREADS_H
#define TRF_THREADS_H

#include "trf_error.h"

enum {
    TRF_MAX_THREADS = 1024
};

/* @return how many workers a request stands for, 1 to TRF_MAX_THREADS: `requested` itself if it is positive, else one
 * for each core in the process's affinity mask. */
int trf_thread_count(int requested);

/* Does the work on one index. worker: 0 to threads - 1; no two calls with the same worker run at once, so it may index
 * scratch memory. err is never NULL, and must be filled on failure. */
typedef trf_status trf_parallel_fn(void *context, uint64_t index, int worker, trf_error *err);

/* Calls fn for every index 0 ... count - 1. Indices are handed out one at a time in ascending order. The caller's
 * thread is worker 0. If the system refuses further threads, fewer do the work. threads: as trf_thread_count takes it.
 * After a failure no higher index is handed out. All lower indices have been handed out by then, and are finished. So
 * the failure that is returned, that of the lowest index that failed, is the same in every run. err may be NULL. */
trf_status trf_parallel_for(int threads, uint64_t count, trf_parallel_fn *fn, void *context, trf_error *err);

/* Runs the same loop on threads that stay, for loops that are short and many. The first loops that ask for threads make
 * them, as many as the largest loop wants; they sleep between loops. */
typedef struct trf_pool trf_pool;

/* Release with trf_pool_destroy, when no loop runs. Errors: TRF_ERR_MEMORY. */
trf_status trf_pool_create(trf_pool **pool, trf_error *err);
void trf_pool_destroy(trf_pool *pool); /* NULL is allowed; waits for the threads to end */

/* Does what trf_parallel_for does. Several loops may run at once and share the threads; each has at least its caller's
 * thread. */
trf_status trf_pool_for(trf_pool *pool, int threads, uint64_t count, trf_parallel_fn *fn, void *context,
                        trf_error *err);

#endif
