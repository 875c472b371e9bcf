/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_data_checksum.h"

#include "trf_threads.h"

#include <stdatomic.h>
#include <string.h>

enum {
    PAGES_AT_A_TIME = 256 /* 1 MiB, which takes longer than it takes to hand it out */
};

typedef struct checksum_work {
    const uint8_t *data;
    uint64_t bytes;
    _Atomic uint64_t sum, places;
} checksum_work;

/* Adds up the mixed words of a page. */
static uint64_t mix_page(const checksum_work *work, uint64_t page) {
    const uint64_t first = page * TRF_DATA_PAGE_BYTES, left = work->bytes - first,
                   bytes = left < TRF_DATA_PAGE_BYTES ? left : TRF_DATA_PAGE_BYTES;
    uint64_t mixed = 0, at = 0, word;
    for (; at + sizeof word <= bytes; at += sizeof word) {
        memcpy(&word, work->data + first + at, sizeof word);
        mixed += trf_mix_data_word(word, (first + at) / sizeof word);
    }
    if (at < bytes) {
        word = 0;
        memcpy(&word, work->data + first + at, bytes - at);
        mixed += trf_mix_data_word(word, (first + at) / sizeof word);
    }
    return mixed;
}

/* A trf_parallel_fn; index: number of a run of PAGES_AT_A_TIME pages. */
static trf_status add_pages(void *context, uint64_t index, int worker, trf_error *err) {
    checksum_work *work = context;
    const uint64_t pages = trf_count_data_pages(work->bytes), first = index * PAGES_AT_A_TIME,
                   end = first + PAGES_AT_A_TIME < pages ? first + PAGES_AT_A_TIME : pages;
    trf_data_checksum own = {0};
    (void)worker, (void)err;
    for (uint64_t page = first; page < end; page++)
        trf_add_data_page(&own, page, mix_page(work, page));
    atomic_fetch_add(&work->sum, own.sum);
    atomic_fetch_add(&work->places, own.places);
    return TRF_OK;
}

trf_status trf_compute_data_checksum(const void *data, uint64_t bytes, int threads, trf_data_checksum *checksum,
                                     trf_error *err) {
    checksum_work work = {.data = data, .bytes = bytes};
    const uint64_t runs = (trf_count_data_pages(bytes) + PAGES_AT_A_TIME - 1) / PAGES_AT_A_TIME;
    const int most = trf_thread_count(threads);
    trf_status status =
        trf_parallel_for(runs < (uint64_t)most ? (int)(runs ? runs : 1) : most, runs, add_pages, &work, err);
    if (status == TRF_OK)
        *checksum = (trf_data_checksum){atomic_load(&work.sum), atomic_load(&work.places)};
    return status;
}

/* The number whose product with an odd one is 1 modulo 2^64. */
static uint64_t inverse_of(uint64_t odd) {
    uint64_t inverse = odd; /* right in three bits, and in twice as many after each step (Newton) */
    for (int i = 0; i < 5; i++)
        inverse *= 2 - odd * inverse;
    return inverse;
}

uint64_t trf_find_changed_page(trf_data_checksum kept, trf_data_checksum computed, uint64_t bytes) {
    const uint64_t sum = computed.sum - kept.sum, places = computed.places - kept.places;
    if (sum == 0)
        return UINT64_MAX;
    const int zeros = __builtin_ctzll(sum);
    /* Only number · sum = places modulo 2^64 can be solved, and only modulo 2^(64 - zeros). */
    const uint64_t number = ((places >> zeros) * inverse_of(sum >> zeros)) & (UINT64_MAX >> zeros);
    if (number == 0 || number > trf_count_data_pages(bytes) || number * sum != places)
        return UINT64_MAX;
    return number - 1;
}
