/* SPDX-License-Identifier: Apache-2.0 */
/* The checksum of a layer's data: mixing is a bijection, so that every change within a word is found; every bit of a
 * small buffer that flips is found, and its page; random damage is found; and threads do not matter, unless there is no
 * memory for them. TRF_TEST_WRAPS: trf_parallel_for */
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "trf_data_checksum.h"
#include "trf_threads.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static int has_no_memory, threads_asked;
static uint64_t runs_asked;

trf_status __real_trf_parallel_for(int threads, uint64_t count, trf_parallel_fn *fn, void *context, trf_error *err);
trf_status __wrap_trf_parallel_for(int threads, uint64_t count, trf_parallel_fn *fn, void *context, trf_error *err);
trf_status __wrap_trf_parallel_for(int threads, uint64_t count, trf_parallel_fn *fn, void *context, trf_error *err) {
    threads_asked = threads;
    runs_asked = count;
    if (has_no_memory)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "there is none");
    return __real_trf_parallel_for(threads, count, fn, context, err);
}

static trf_data_checksum checksum_of(const void *data, uint64_t bytes, int threads) {
    trf_data_checksum checksum = {0};
    trf_error err;
    ck_assert_int_eq(trf_compute_data_checksum(data, bytes, threads, &checksum, &err), TRF_OK);
    return checksum;
}

static uint8_t *random_bytes(test_rng *rng, uint64_t bytes) {
    uint8_t *made = malloc(bytes + 1); /* the last one is not to be read */
    ck_assert_ptr_nonnull(made);
    for (uint64_t i = 0; i <= bytes; i++)
        made[i] = (uint8_t)(i < bytes ? test_random(rng) : 0xFF);
    return made;
}

/* The definition, word by word. */
static trf_data_checksum define(const uint8_t *data, uint64_t bytes) {
    trf_data_checksum sum = {0};
    for (uint64_t i = 0; i < (bytes + 7) / 8; i++) {
        uint64_t word = 0;
        memcpy(&word, data + 8 * i, bytes - 8 * i < 8 ? bytes - 8 * i : 8);
        const uint64_t mixed = trf_mix_data_word(word, i);
        sum.sum += mixed;
        sum.places += (i / 512 + 1) * mixed;
    }
    return sum;
}

/* Threads take 256 pages at a time, and there are no more of them than that makes. */
static void check_size(test_rng *rng, uint64_t bytes) {
    uint8_t *data = random_bytes(rng, bytes);
    const trf_data_checksum due = define(data, bytes);
    ck_assert(!trf_data_checksums_differ(due, checksum_of(data, bytes, 1)));
    ck_assert(!trf_data_checksums_differ(due, checksum_of(data, bytes, 3)));
    ck_assert_uint_eq(runs_asked, (bytes + (1 << 20) - 1) >> 20);
    ck_assert_int_eq(threads_asked, runs_asked > 3 ? 3 : runs_asked > 1 ? (int)runs_asked : 1);
    free(data);
}

START_TEST(sizes_and_threads_agree) {
    test_rng rng = {1};
    for (uint64_t bytes = 0; bytes < 3 << 20; bytes += 1 + bytes / 3 + test_below(&rng, 9))
        check_size(&rng, bytes);
    static const uint64_t pages[] = {1, 2, 256, 768}; /* 256: what a thread takes at a time */
    for (uint32_t i = 0; i < 4; i++)
        for (uint64_t step = 0; step < 3; step++)
            check_size(&rng, pages[i] * TRF_DATA_PAGE_BYTES + step - 1);
}
END_TEST

/* Differences of known pages, and of none: page i counts as i + 1. */
START_TEST(pages_of_differences) {
    static const struct {
        uint64_t sum, places, page;
    } cases[] = {{5, 5, 0},
                 {5, 35, 6},
                 {5, 40, UINT64_MAX},
                 {5, 0, UINT64_MAX},
                 {0, 0, UINT64_MAX},
                 {0, 7, UINT64_MAX},
                 {8, 24, 2},
                 {8, 28, UINT64_MAX},
                 {1ull << 63, 1ull << 63, 0},
                 {1ull << 63, 1, UINT64_MAX},
                 {UINT64_MAX, UINT64_MAX - 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const trf_data_checksum kept = {77, 99}, now = {77 + cases[i].sum, 99 + cases[i].places};
        ck_assert_uint_eq(trf_find_changed_page(kept, now, 7 * TRF_DATA_PAGE_BYTES), cases[i].page);
        ck_assert_uint_eq(trf_find_changed_page(kept, now, 6 * TRF_DATA_PAGE_BYTES + 1), cases[i].page);
    }
}
END_TEST

/* The number whose product with the mixer's multiplier is 1 modulo 2^64, found bit by bit. */
static uint64_t find_inverse(uint64_t multiplier) {
    uint64_t inverse = 0, product = 0;
    for (int bit = 0; bit < 64; bit++)
        if (((product ^ 1) >> bit) & 1) {
            inverse |= 1ull << bit;
            product += multiplier << bit;
        }
    return inverse;
}

/* What undoes each step of mixing exists, so that no two words mix alike. */
START_TEST(mixing_can_be_undone) {
    const uint64_t inverse = find_inverse(0xD6E8FEB86659FD93u);
    test_rng rng = {2};
    ck_assert(inverse * 0xD6E8FEB86659FD93u == 1);
    for (int i = 0; i < 100000; i++) {
        const uint64_t word = i < 64 ? 1ull << i : test_random(&rng), index = i % 3 ? test_random(&rng) : (uint64_t)i;
        uint64_t x = trf_mix_data_word(word, index);
        x = (x ^ x >> 32) * inverse;
        x = (x ^ x >> 32) * inverse;
        x = (x ^ x >> 32) - (index + 1) * 0x9E3779B97F4A7C15u;
        ck_assert(x == word);
    }
}
END_TEST

/* Expects that a change is found, and its page. */
static void expect_found(trf_data_checksum kept, const uint8_t *data, uint64_t bytes, uint64_t at) {
    const trf_data_checksum now = checksum_of(data, bytes, 1);
    ck_assert(kept.sum != now.sum);
    ck_assert_uint_eq(trf_find_changed_page(kept, now, bytes), at / TRF_DATA_PAGE_BYTES);
}

START_TEST(every_bit_is_found) {
    enum {
        BYTES = 2 * TRF_DATA_PAGE_BYTES + 14
    };
    test_rng rng = {3};
    for (int kind = 0; kind < 2; kind++) {
        uint8_t *data = random_bytes(&rng, BYTES);
        if (kind)
            memset(data, 0, BYTES);
        const trf_data_checksum kept = checksum_of(data, BYTES, 1);
        for (uint64_t bit = 0; bit < 8 * BYTES; bit += 1 + (kind ? 0 : test_below(&rng, 16))) {
            data[bit / 8] ^= 1 << bit % 8;
            expect_found(kept, data, BYTES, bit / 8);
            data[bit / 8] ^= 1 << bit % 8;
        }
        free(data);
    }
}
END_TEST

/* Damage of several words: the same bit of many words, words that change places, runs that become zeros or others. */
START_TEST(larger_damage_is_found) {
    enum {
        BYTES = 24 * TRF_DATA_PAGE_BYTES
    };
    test_rng rng = {4};
    uint8_t *data = random_bytes(&rng, BYTES), *damaged = malloc(BYTES);
    const trf_data_checksum kept = checksum_of(data, BYTES, 1);
    for (int i = 0; i < 2000; i++) {
        const uint32_t count = 2 + test_below(&rng, 64), stride = 8 << test_below(&rng, 6),
                       first = test_below(&rng, BYTES - count * stride - 8) & ~7u, bit = test_below(&rng, 64);
        memcpy(damaged, data, BYTES);
        if (i % 4 == 0)
            for (uint32_t k = 0; k < count; k++)
                damaged[first + k * stride + bit / 8] ^= 1 << bit % 8;
        else if (i % 4 == 1)
            for (uint32_t k = 0; k < 8; k++) {
                damaged[first + k] = data[first + stride + k];
                damaged[first + stride + k] = data[first + k];
            }
        else
            for (uint32_t k = 0; k < count * stride; k++)
                damaged[first + k] = i % 4 == 2 ? 0 : (uint8_t)test_random(&rng);
        const trf_data_checksum now = checksum_of(damaged, BYTES, 1);
        ck_assert(kept.sum != now.sum);
        const uint64_t end = first + (i % 4 == 1 ? stride + 7 : count * stride - 1),
                       one = first / TRF_DATA_PAGE_BYTES == end / TRF_DATA_PAGE_BYTES ? first / TRF_DATA_PAGE_BYTES
                                                                                      : UINT64_MAX;
        if (one != UINT64_MAX)
            ck_assert_uint_eq(trf_find_changed_page(kept, now, BYTES), one);
    }
    free(data);
    free(damaged);
}
END_TEST

/* A kept checksum that is wrong itself names no page. */
START_TEST(a_wrong_checksum_names_no_page) {
    test_rng rng = {5};
    uint8_t *data = random_bytes(&rng, 9000);
    const trf_data_checksum now = checksum_of(data, 9000, 1);
    for (int bit = 0; bit < 128; bit++) {
        trf_data_checksum kept = now;
        *(bit < 64 ? &kept.sum : &kept.places) ^= 1ull << bit % 64;
        ck_assert(trf_data_checksums_differ(kept, now));
        ck_assert_uint_eq(trf_find_changed_page(kept, now, 9000), UINT64_MAX);
    }
    free(data);
}
END_TEST

START_TEST(no_memory_for_threads) {
    const uint8_t data[100] = {1};
    trf_data_checksum checksum = {5, 6};
    trf_error err = {.status = TRF_OK};
    has_no_memory = 1;
    const trf_status status = trf_compute_data_checksum(data, sizeof data, 2, &checksum, &err);
    has_no_memory = 0;
    ck_assert(status == TRF_ERR_MEMORY && err.status == TRF_ERR_MEMORY && checksum.sum == 5 && checksum.places == 6);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("data_checksum");
    TCase *tests = tcase_create("data_checksum");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, sizes_and_threads_agree);
    tcase_add_test(tests, pages_of_differences);
    tcase_add_test(tests, mixing_can_be_undone);
    tcase_add_test(tests, every_bit_is_found);
    tcase_add_test(tests, larger_damage_is_found);
    tcase_add_test(tests, a_wrong_checksum_names_no_page);
    tcase_add_test(tests, no_memory_for_threads);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
