/* The parallel loop, on POSIX threads that live for one loop. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "trf_threads.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

typedef struct trf_loop {
    pthread_mutex_t mutex; /* over next, failed_index and failure */
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

static int trf_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more cores than a cpu_set_t holds */
    return online < TRF_MAX_THREADS ? (int)online : TRF_MAX_THREADS;
}

int trf_thread_count(int requested) {
    int threads = requested > 0 ? requested : trf_cores();
    return threads < 1 ? 1 : threads > TRF_MAX_THREADS ? TRF_MAX_THREADS : threads;
}

/* @return whether there is a further index to work on. */
static int trf_loop_take(trf_loop *loop, uint64_t *index) {
    pthread_mutex_lock(&loop->mutex);
    int taken = loop->next < loop->count && loop->failed_index == UINT64_MAX;
    if (taken)
        *index = loop->next++;
    pthread_mutex_unlock(&loop->mutex);
    return taken;
}

static void trf_loop_fail(trf_loop *loop, uint64_t index, trf_status status, const trf_error *err) {
    pthread_mutex_lock(&loop->mutex);
    if (index < loop->failed_index) {
        loop->failed_index = index;
        loop->failure = *err;
        loop->failure.status = status;
    }
    pthread_mutex_unlock(&loop->mutex);
}

static void *trf_loop_run(void *argument) {
    const trf_worker *worker = argument;
    trf_loop *loop = worker->loop;
    trf_error err;
    uint64_t index;
    while (trf_loop_take(loop, &index)) {
        err = (trf_error){.offset = TRF_NO_OFFSET};
        trf_status status = loop->fn(loop->context, index, worker->number, &err);
        if (status != TRF_OK)
            trf_loop_fail(loop, index, status, &err);
    }
    return NULL;
}

trf_status trf_parallel_for(int threads, uint64_t count, trf_parallel_fn *fn, void *context, trf_error *err) {
    trf_loop loop = {.count = count, .failed_index = UINT64_MAX, .fn = fn, .context = context};
    pthread_t handles[TRF_MAX_THREADS];
    trf_worker workers[TRF_MAX_THREADS];
    int wanted = trf_thread_count(threads), started = 1;
    if ((uint64_t)wanted > count)
        wanted = count ? (int)count : 1;
    if (pthread_mutex_init(&loop.mutex, NULL) != 0)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot make a mutex");
    for (; started < wanted; started++) {
        workers[started] = (trf_worker){&loop, started};
        if (pthread_create(&handles[started], NULL, trf_loop_run, &workers[started]) != 0)
            break;
    }
    workers[0] = (trf_worker){&loop, 0};
    trf_loop_run(&workers[0]);
    for (int i = 1; i < started; i++)
        pthread_join(handles[i], NULL);
    pthread_mutex_destroy(&loop.mutex);
    if (loop.failed_index == UINT64_MAX)
        return TRF_OK;
    if (err)
        *err = loop.failure;
    return loop.failure.status;
}
