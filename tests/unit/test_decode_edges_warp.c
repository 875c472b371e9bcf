/* SPDX-License-Identifier: Apache-2.0 */
/* Edges that a warp decodes, in emulated warps (tests/warp) with lanes in any order: the elements are those from which
 * the tests' own encoder made the tile, nothing outside of a slab is read or prefetched, and a corrupt slab is noted as
 * the layer's fault. */
#include <stdio.h>

#ifndef TRF_HAVE_WARP_WALK
int main(void) {
    puts("skipped: kernels are not emulated in this build");
    return 77;
}
#else
#include "common/expect.h"
#include "common/host_view.h"
#include "common/run_suite.h"
#include "common/test_tile.h"
#include "trf_decode.h"
#include "trf_edges.h"
#include "warp/warp_edge.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_WEIGHTS = TRF_TILE_SIZE * TRF_TILE_SIZE
};

static uint16_t elements[MOST_WEIGHTS], due[MOST_WEIGHTS];
static uint8_t seen[MOST_WEIGHTS];

/* Decodes all of a tile: its edges, and its regular slabs as if they were edges. @return whether it is intact. */
static int decode_all(test_rng *rng, const host_view *host, size_t weights) {
    memset(seen, 0, weights);
    int good = warp_decode_edges(&host->view, 0, TRF_EDGE_COUNT, (uint32_t)test_random(rng), elements, seen);
    good &= warp_decode_edges(&host->view, TRF_REGULAR_AS_EDGE, TRF_REGULAR_AS_EDGE_END, (uint32_t)test_random(rng),
                              elements, seen);
    for (size_t at = 0; at < weights; at++)
        EXPECT(seen[at] == 1 || !good);
    return good;
}

START_TEST(edges_come_back) {
    test_rng rng = {6000 + (uint64_t)_i};
    for (int round = 0; round < test_rounds(8); round++) {
        const test_tile_request request = test_tile_random_request_of(&rng, (uint32_t)_i);
        const size_t weights = (size_t)request.rows * request.cols;
        test_tile *tile = test_tile_make(&rng, &request);
        host_view *host = host_view_make(&tile->view, tile->bytes, tile->meta.data_size);
        EXPECT(decode_all(&rng, host, weights) && !host->fault.set);
        EXPECT(memcmp(elements, tile->elements, weights * sizeof *elements) == 0);
        host_view_free(host);
        test_tile_free(tile);
    }
}
END_TEST

/* Flips a bit of a start state: the warps' verdict is the reference decoder's. */
START_TEST(corrupt_edges_are_noted) {
    static trf_decode_table table;
    test_rng rng = {7000 + (uint64_t)_i};
    int corrupt = 0;
    for (int round = 0; round < test_rounds(12); round++) {
        test_tile_request request = test_tile_random_request_of(&rng, (uint32_t)_i);
        request.stored = 0;
        request.rows = request.rows < 16 ? 16 : request.rows;
        request.cols = request.cols < 16 ? 16 : request.cols;
        test_tile *tile = test_tile_make(&rng, &request);
        host_view *host = host_view_make(&tile->view, tile->bytes, tile->meta.data_size);
        trf_decode_table_init(&table, &tile->view);
        tile->bytes[trf_device_slab_rans_streams(host->slabs[0]) + test_below(&rng, 64)] ^= 1u << test_below(&rng, 8);
        test_tile_seal(tile);
        if (trf_blob_check_tile(&tile->view, 0, tile->bytes, NULL) == TRF_OK) { /* no start state of 0 */
            const trf_status status = trf_decode_tile_ref(&tile->view, &table, 0, tile->bytes, due, request.cols, NULL);
            const int good = decode_all(&rng, host, (size_t)request.rows * request.cols);
            EXPECT(good == (status == TRF_OK) && host->fault.set == !good);
            EXPECT(host->fault.tile_low == 0 && host->fault.tile_high == 0);
            corrupt += !good;
        }
        host_view_free(host);
        test_tile_free(tile);
    }
    ck_assert_int_gt(corrupt, 0);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("decode_edges_warp");
    TCase *tests = tcase_create("edges");
    tcase_add_loop_test(tests, edges_come_back, 0, TEST_TILE_CODECS);
    tcase_add_loop_test(tests, corrupt_edges_are_noted, 0, TEST_TILE_CODECS);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
#endif
