/* SPDX-License-Identifier: Apache-2.0 */
/* The parallel loop, on POSIX threads that live for one loop, or on threads that stay. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "trf_threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct trf_loop {
    pthread_mutex_t mutex; /* protects next, failed_index and failure */
    uint64_t next, count;
    uint64_t failed_index; /* lowest that failed, or UINT64_MAX */
    trf_error failure;
    trf_parallel_fn *fn;
    void *context;
} trf_loop;

typedef struct trf_worker {
    trf_loop *loop;
    int number;
} trf_worker;

static int count_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more cores than a cpu_set_t holds */
    return online < TRF_MAX_THREADS ? (int)online : TRF_MAX_THREADS;
}

int trf_thread_count(int requested) {
    int threads = requested > 0 ? requested : count_cores();
    return threads < 1 ? 1 : threads > TRF_MAX_THREADS ? TRF_MAX_THREADS : threads;
}

/* @return whether there is a further index to work on. */
static int loop_take(trf_loop *loop, uint64_t *index) {
    pthread_mutex_lock(&loop->mutex);
    int taken = loop->next < loop->count && loop->failed_index == UINT64_MAX;
    if (taken)
        *index = loop->next++;
    pthread_mutex_unlock(&loop->mutex);
    return taken;
}

static void loop_fail(trf_loop *loop, uint64_t index, trf_status status, const trf_error *err) {
    pthread_mutex_lock(&loop->mutex);
    if (index < loop->failed_index) {
        loop->failed_index = index;
        loop->failure = *err;
        loop->failure.status = status;
    }
    pthread_mutex_unlock(&loop->mutex);
}

static void *work_on_loop(void *argument) {
    const trf_worker *worker = argument;
    trf_loop *loop = worker->loop;
    trf_error err;
    uint64_t index;
    while (loop_take(loop, &index)) {
        err = (trf_error){.offset = TRF_NO_OFFSET};
        trf_status status = loop->fn(loop->context, index, worker->number, &err);
        if (status != TRF_OK)
            loop_fail(loop, index, status, &err);
    }
    return NULL;
}

/* Releases a loop whose workers have all ended. @return its outcome. */
static trf_status loop_end(trf_loop *loop, trf_error *err) {
    pthread_mutex_destroy(&loop->mutex);
    if (loop->failed_index == UINT64_MAX)
        return TRF_OK;
    if (err)
        *err = loop->failure;
    return loop->failure.status;
}

/* @return how many workers a loop has work for. */
static int loop_workers(int threads, uint64_t count) {
    const int wanted = trf_thread_count(threads);
    return (uint64_t)wanted <= count ? wanted : count ? (int)count : 1;
}

trf_status trf_parallel_for(int threads, uint64_t count, trf_parallel_fn *fn, void *context, trf_error *err) {
    trf_loop loop = {.count = count, .failed_index = UINT64_MAX, .fn = fn, .context = context};
    pthread_t handles[TRF_MAX_THREADS];
    trf_worker workers[TRF_MAX_THREADS];
    int wanted = loop_workers(threads, count), started = 1;
    if (pthread_mutex_init(&loop.mutex, NULL) != 0)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot make a mutex");
    for (; started < wanted; started++) {
        workers[started] = (trf_worker){&loop, started};
        if (pthread_create(&handles[started], NULL, work_on_loop, &workers[started]) != 0)
            break;
    }
    workers[0] = (trf_worker){&loop, 0};
    work_on_loop(&workers[0]);
    for (int i = 1; i < started; i++)
        pthread_join(handles[i], NULL);
    return loop_end(&loop, err);
}

/* ---- a pool ---- */

/* A loop that wants helper threads, or has some. */
typedef struct trf_pool_loop {
    trf_loop *loop;
    int wanted;      /* helpers that may still join */
    int next_number; /* of the next one to join */
    int num_inside;
    struct trf_pool_loop *next; /* the next loop that wants helpers */
} trf_pool_loop;

struct trf_pool {
    pthread_mutex_t mutex; /* protects all of this struct, and the loops in the list except what they point to */
    pthread_cond_t work, helper_left;
    trf_pool_loop *first;
    pthread_t threads[TRF_MAX_THREADS];
    int num_threads, stopping;
};

static void remove_loop(trf_pool *pool, const trf_pool_loop *loop) {
    for (trf_pool_loop **at = &pool->first; *at; at = &(*at)->next)
        if (*at == loop) {
            *at = loop->next;
            return;
        }
}

static void *join_loops(void *argument) {
    trf_pool *pool = argument;
    pthread_mutex_lock(&pool->mutex);
    while (!pool->stopping) {
        trf_pool_loop *joined = pool->first;
        if (!joined) {
            pthread_cond_wait(&pool->work, &pool->mutex);
            continue;
        }
        trf_worker worker = {joined->loop, joined->next_number++};
        joined->num_inside++;
        if (--joined->wanted == 0)
            remove_loop(pool, joined);
        pthread_mutex_unlock(&pool->mutex);
        work_on_loop(&worker);
        pthread_mutex_lock(&pool->mutex);
        if (--joined->num_inside == 0)
            pthread_cond_broadcast(&pool->helper_left);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

trf_status trf_pool_create(trf_pool **pool, trf_error *err) {
    trf_pool *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a pool of threads");
    if (pthread_mutex_init(&made->mutex, NULL) != 0 || pthread_cond_init(&made->work, NULL) != 0 ||
        pthread_cond_init(&made->helper_left, NULL) != 0) {
        free(made);
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot make a mutex");
    }
    *pool = made;
    return TRF_OK;
}

void trf_pool_destroy(trf_pool *pool) {
    if (!pool)
        return;
    pthread_mutex_lock(&pool->mutex);
    pool->stopping = 1;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->num_threads; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->helper_left);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

trf_status trf_pool_for(trf_pool *pool, int threads, uint64_t count, trf_parallel_fn *fn, void *context,
                        trf_error *err) {
    trf_loop loop = {.count = count, .failed_index = UINT64_MAX, .fn = fn, .context = context};
    trf_worker caller = {&loop, 0};
    trf_pool_loop shared = {&loop, loop_workers(threads, count) - 1, 1, 0, NULL};
    if (pthread_mutex_init(&loop.mutex, NULL) != 0)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot make a mutex");
    if (shared.wanted > 0) {
        pthread_mutex_lock(&pool->mutex);
        while (pool->num_threads < shared.wanted &&
               pthread_create(&pool->threads[pool->num_threads], NULL, join_loops, pool) == 0)
            pool->num_threads++;
        shared.next = pool->first;
        pool->first = &shared;
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->mutex);
    }
    work_on_loop(&caller);
    pthread_mutex_lock(&pool->mutex);
    remove_loop(pool, &shared);
    while (shared.num_inside > 0)
        pthread_cond_wait(&pool->helper_left, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
    return loop_end(&loop, err);
}
