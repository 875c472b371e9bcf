/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that compute checksums, in emulated blocks (tests/warp) with threads in any order: they compute what the
 * CPU computes, find every flipped bit of a small blob, and read nothing outside of one whose head is corrupt. */
#include <stdio.h>

#ifndef TRF_HAVE_WARP_WALK
int main(void) {
    puts("skipped: kernels are not emulated in this build");
    return 77;
}
#else
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "trf_validate.h"
#include "warp/warp_integrity.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static uint8_t *random_bytes(test_rng *rng, uint64_t bytes) {
    uint8_t *made = aligned_alloc(128, (bytes + 127) / 128 * 128 + 128);
    ck_assert_ptr_nonnull(made);
    for (uint64_t i = 0; i < bytes; i++)
        made[i] = (uint8_t)test_random(rng);
    return made;
}

static warp_grid random_grid(test_rng *rng) { return (warp_grid){1 + test_below(rng, 5), (uint32_t)test_random(rng)}; }

/* ---- data ---- */

START_TEST(sums_agree) {
    static const uint64_t sizes[] = {2, 8, 14, 16, 4094, 4096, 4098, 40962, 6 * 4096, 130 * 4096 - 2};
    test_rng rng = {1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint8_t *data = random_bytes(&rng, sizes[i]);
        trf_data_checksum due, sum = {0};
        trf_error err;
        ck_assert_int_eq(trf_compute_data_checksum(data, sizes[i], 1, &due, &err), TRF_OK);
        warp_sum_data(data, sizes[i], &sum, random_grid(&rng));
        ck_assert(!trf_data_checksums_differ(due, sum));
        free(data);
    }
}
END_TEST

/* ---- blobs ---- */

typedef struct made_blob {
    uint8_t *at;
    trf_blob_to_check blob;
} made_blob;

/* Makes what the kernel looks at of a blob: a header, metadata and tiles of random bytes, with the right checksums. */
static made_blob make_blob(test_rng *rng, uint64_t num_tiles, const uint32_t *tile_bytes) {
    uint64_t bytes = 1024 + (sizeof(trf_tile_meta) * num_tiles + 127) / 128 * 128;
    const uint64_t head_bytes = bytes;
    for (uint64_t t = 0; t < num_tiles; t++)
        bytes += tile_bytes[t];
    made_blob made = {.at = random_bytes(rng, bytes)};
    trf_tile_meta *tiles = (trf_tile_meta *)(made.at + 832);
    made.blob = (trf_blob_to_check){made.at, bytes, head_bytes, tiles, num_tiles};
    uint64_t at = head_bytes;
    for (uint64_t t = 0; t < num_tiles; t++) {
        tiles[t] = (trf_tile_meta){.data_offset = at, .data_size = tile_bytes[t]};
        tiles[t].checksum = trf_tile_checksum(made.at + at, tile_bytes[t], t);
        at += tile_bytes[t];
    }
    ((trf_header *)made.at)->head_checksum = trf_head_checksum(made.at, head_bytes);
    return made;
}

/* @return what is wrong: 0 for the head, 1 + t for tile t, UINT64_MAX for nothing. */
static uint64_t check(const trf_blob_to_check *blob, warp_grid grid) {
    uint64_t wrong = 0;
    warp_check_blob(blob, &wrong, grid);
    return wrong ? ~wrong : UINT64_MAX;
}

START_TEST(sizes_of_tiles) {
    enum {
        TILES = 9
    };
    test_rng rng = {2};
    for (int round = 0; round < 3; round++) {
        uint32_t bytes[TILES] = {128, 256, 1024, 1152, 4096, 128 * 33, 131072, 131072 + 128, 516224 / 128 * 128};
        for (uint32_t t = 0; round && t < TILES; t++)
            bytes[t] = 128 * (1 + test_below(&rng, t < 7 ? 80 : 1100));
        made_blob made = make_blob(&rng, TILES, bytes);
        ck_assert_uint_eq(check(&made.blob, random_grid(&rng)), UINT64_MAX);
        for (uint32_t t = 0; t < TILES; t++) {
            uint8_t *const flipped = made.at + made.blob.tiles[t].data_offset + test_below(&rng, bytes[t]);
            const uint8_t bit = (uint8_t)(1 << test_below(&rng, 8));
            *flipped ^= bit;
            ck_assert_uint_eq(check(&made.blob, random_grid(&rng)), 1 + t);
            *flipped ^= bit;
        }
        free(made.at);
    }
}
END_TEST

/* Every byte, by one of its bits; the head's own checksum included. */
START_TEST(every_byte_is_found) {
    static const uint32_t bytes[] = {128, 1280};
    test_rng rng = {3};
    made_blob made = make_blob(&rng, 2, bytes);
    for (uint64_t at = 0; at < made.blob.blob_bytes; at++) {
        const uint8_t bit = (uint8_t)(1 << test_below(&rng, 8));
        const uint64_t due = at < made.blob.head_bytes ? 0 : at < made.blob.head_bytes + bytes[0] ? 1 : 2;
        made.at[at] ^= bit;
        ck_assert_uint_eq(check(&made.blob, (warp_grid){3, (uint32_t)at}), due);
        made.at[at] ^= bit;
    }
    free(made.at);
}
END_TEST

/* A corrupt head may say anything of where tiles lie. Memory ends with the blob. */
START_TEST(corrupt_metadata) {
    static const uint32_t bytes[] = {1280, 128};
    static const struct {
        uint64_t offset;
        uint32_t size;
    } lies[] = {{~0ull, 128},    {~0ull - 127, 128}, {1ull << 40, 256}, {0, 0},
                {0, UINT32_MAX}, {128, 0xFFFFFF80},  {1, 128}};
    test_rng rng = {4};
    made_blob made = make_blob(&rng, 2, bytes);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        uint8_t *copy = aligned_alloc(128, made.blob.blob_bytes);
        trf_blob_to_check blob = made.blob;
        memcpy(copy, made.at, blob.blob_bytes);
        blob.blob = copy;
        blob.tiles = (const trf_tile_meta *)(copy + ((const uint8_t *)made.blob.tiles - made.at));
        trf_tile_meta *const meta = (trf_tile_meta *)blob.tiles + i % 2;
        meta->data_offset = lies[i].offset;
        meta->data_size = lies[i].size;
        ck_assert_uint_eq(check(&blob, random_grid(&rng)), 0);
        free(copy);
    }
    free(made.at);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("integrity_warp");
    TCase *tests = tcase_create("integrity_warp");
    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, sums_agree);
    tcase_add_test(tests, sizes_of_tiles);
    tcase_add_test(tests, every_byte_is_found);
    tcase_add_test(tests, corrupt_metadata);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
#endif
