/* SPDX-License-Identifier: Apache-2.0 */
/* The parallel loop: every index once, workers apart, and the same failure in every run. */
#include "common/run_suite.h"
#include "trf_threads.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum {
    COUNT = 1000,
    WORKERS = 8
};

typedef struct visits {
    atomic_int of_index[COUNT];
    atomic_int busy[WORKERS];
    uint64_t fails_from, fails_every; /* which indices fail; every 0: none */
} visits;

static trf_status visit(void *context, uint64_t index, int worker, trf_error *err) {
    visits *seen = context;
    if (worker < 0 || worker >= WORKERS || atomic_fetch_add(&seen->busy[worker], 1) != 0)
        return trf_fail(err, TRF_ERR_ARGUMENT, 0, "worker %d is busy", worker);
    atomic_fetch_add(&seen->of_index[index], 1);
    atomic_fetch_sub(&seen->busy[worker], 1);
    if (seen->fails_every && index >= seen->fails_from && index % seen->fails_every == 0)
        return trf_fail(err, TRF_ERR_RANS, index, "index %d", (int)index);
    return TRF_OK;
}

static trf_pool *pool; /* or NULL: threads of each loop's own */

static void begin_pool(void) { ck_assert_int_eq(trf_pool_create(&pool, NULL), TRF_OK); }
static void end_pool(void) {
    trf_pool_destroy(pool);
    pool = NULL;
}

static trf_status run_loop(int threads, uint64_t count, trf_parallel_fn *fn, void *context, trf_error *err) {
    return pool ? trf_pool_for(pool, threads, count, fn, context, err)
                : trf_parallel_for(threads, count, fn, context, err);
}

START_TEST(visits_every_index_once) {
    for (int threads = 1; threads <= WORKERS; threads++)
        for (uint64_t count = 0; count <= COUNT; count += 1 + count * 4) {
            visits seen;
            memset(&seen, 0, sizeof seen);
            ck_assert_int_eq(run_loop(threads, count, visit, &seen, NULL), TRF_OK);
            for (uint64_t i = 0; i < COUNT; i++)
                if (atomic_load(&seen.of_index[i]) != (i < count))
                    ck_abort_msg("index %d of %d", (int)i, (int)count);
        }
}
END_TEST

START_TEST(returns_the_lowest_failure) {
    for (int threads = 1; threads <= WORKERS; threads++)
        for (uint64_t from = 1; from < COUNT; from += 37) {
            visits seen;
            trf_error err;
            memset(&seen, 0, sizeof seen);
            seen.fails_from = from;
            seen.fails_every = 3;
            uint64_t lowest = (from + 2) / 3 * 3;
            ck_assert_int_eq(run_loop(threads, COUNT, visit, &seen, &err), lowest < COUNT ? TRF_ERR_RANS : TRF_OK);
            if (lowest < COUNT) {
                ck_assert_uint_eq(err.offset, lowest);
                ck_assert_int_eq(err.status, TRF_ERR_RANS);
            }
        }
}
END_TEST

static void *run_loops(void *context) {
    (void)context;
    for (int i = 0; i < 100; i++) {
        visits seen;
        memset(&seen, 0, sizeof seen);
        ck_assert_int_eq(trf_pool_for(pool, 1 + i % WORKERS, COUNT, visit, &seen, NULL), TRF_OK);
        for (uint64_t k = 0; k < COUNT; k++)
            ck_assert(atomic_load(&seen.of_index[k]) == 1);
    }
    return NULL;
}

/* Several loops at once on the same threads. */
START_TEST(shares_a_pool) {
    pthread_t callers[5];
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(pthread_create(&callers[i], NULL, run_loops, NULL), 0);
    for (int i = 0; i < 5; i++)
        pthread_join(callers[i], NULL);
}
END_TEST

START_TEST(counts_threads) {
    ck_assert_int_ge(trf_thread_count(0), 1);
    ck_assert_int_eq(trf_thread_count(0), trf_thread_count(-1));
    ck_assert_int_eq(trf_thread_count(3), 3);
    ck_assert_int_eq(trf_thread_count(1 << 30), TRF_MAX_THREADS);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("threads");
    TCase *tcase = tcase_create("parallel_for");
    tcase_set_tags(tcase, "threads");
    tcase_set_timeout(tcase, 240);
    tcase_add_test(tcase, visits_every_index_once);
    tcase_add_test(tcase, returns_the_lowest_failure);
    tcase_add_test(tcase, counts_threads);
    suite_add_tcase(suite, tcase);
    TCase *with_pool = tcase_create("pool_for");
    tcase_set_tags(with_pool, "threads");
    tcase_add_checked_fixture(with_pool, begin_pool, end_pool);
    tcase_set_timeout(with_pool, 240);
    tcase_add_test(with_pool, visits_every_index_once);
    tcase_add_test(with_pool, returns_the_lowest_failure);
    tcase_add_test(with_pool, shares_a_pool);
    suite_add_tcase(suite, with_pool);
    return run_suite(suite);
}
