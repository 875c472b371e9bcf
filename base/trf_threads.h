/* SPDX-License-Identifier: Apache-2.0 */
/* A parallel loop over worker threads: the one place where the library makes threads. */
#ifndef TRF_THREADS_H
#define TRF_THREADS_H

#include "trf_error.h"

enum {
    TRF_MAX_THREADS = 1024
};

/* @return how many workers a request stands for, 1 to TRF_MAX_THREADS: requested itself if positive, else one for each
 * core in the process's affinity mask. */
int trf_thread_count(int requested);

/* The work on one index. worker: 0 to threads - 1; no two calls run at once with the same worker, so that it may index
 * scratch memory. err is never NULL; to be filled on failure. */
typedef trf_status trf_parallel_fn(void *context, uint64_t index, int worker, trf_error *err);

/* Calls fn for every index 0 ... count - 1. Indices are handed out one at a time in ascending order; the caller's
 * thread is worker 0, and if the system refuses further threads, fewer do the work. threads: as trf_thread_count
 * takes it. After a failure no higher index is handed out. Since all lower ones have been by then and are finished,
 * the failure that is returned (that of the lowest index which failed) is the same in every run. err may be NULL. */
trf_status trf_parallel_for(int threads, uint64_t count, trf_parallel_fn *fn, void *context, trf_error *err);

/* The same loop on threads that stay: where loops are short and many. Made by the first loops that ask for them, as
 * many as the largest one wants; they sleep in between. */
typedef struct trf_pool trf_pool;

/* Release with trf_pool_destroy, when no loop runs. Errors: TRF_ERR_MEMORY. */
trf_status trf_pool_create(trf_pool **pool, trf_error *err);
void trf_pool_destroy(trf_pool *pool); /* NULL is allowed; waits for the threads to end */

/* Does what trf_parallel_for does. Several loops may run at once, and share the threads: each has its caller's at
 * least. */
trf_status trf_pool_for(trf_pool *pool, int threads, uint64_t count, trf_parallel_fn *fn, void *context,
                        trf_error *err);

#endif
