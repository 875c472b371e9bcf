/* SPDX-License-Identifier: Apache-2.0 */
/* The window by a sample of tiles: what packing chooses that has seen all weights, or no worse. */
#include "common/checkpoint_fixture.h"
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "trf_pack.h"
#include "trf_packed_sample.h"

#include <check.h>

static trf_error err;

typedef enum weight_kind {
    NORMAL,
    ZEROS,
    SCALED_ROWS,
    KINDS
} weight_kind;

static uint16_t *make_weights(weight_kind kind, uint32_t rows, uint32_t cols) {
    test_rng rng = {5};
    uint16_t *weights = malloc(2ull * rows * cols);
    test_fill_normal(&rng, weights, TRF_DTYPE_BF16, (size_t)rows * cols, 0.02);
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        if (kind == ZEROS && test_below(&rng, 10) == 0)
            weights[i] &= 0x8000;
        if (kind == SCALED_ROWS && (weights[i] & 0x7FFF) != 0)
            weights[i] = (uint16_t)(weights[i] + (((i / cols * 5 % 7) * 6) << 7));
    }
    return weights;
}

/* The window by the sample leaves out hardly more than the one that has seen everything; the same for any threads. */
START_TEST(nearly_the_best_window) {
    static const uint32_t shapes[][2] = {{1, 1}, {300, 77}, {600, 520}, {2560, 2300}}; /* the last one has 90 tiles */
    const weight_kind kind = (weight_kind)(_i / 2);
    for (int shape = 0; shape < 4; shape++) {
        const uint32_t rows = shapes[shape][0], cols = shapes[shape][1];
        uint16_t *weights = make_weights(kind, rows, cols);
        const trf_matrix matrix = test_matrix(weights, TRF_DTYPE_BF16, rows, cols);
        trf_encode_options options;
        trf_load_options load;
        trf_layer_feed feed;
        void *blob;
        uint64_t bytes;
        trf_encode_options_init(&options);
        options.favor = _i % 2 ? TRF_FAVOR_SIZE : TRF_FAVOR_SPEED;
        fixture_check_status(trf_encode_layer(&matrix, &options, &blob, &bytes, NULL, &err), TRF_OK, &err);
        trf_load_options_init(&load);
        trf_packed_window found[2];
        trf_packed_head head[2];
        for (int t = 0; t < 2; t++) {
            load.threads = 1 + 2 * t;
            fixture_check_status(trf_layer_feed_open_memory(blob, bytes, &load, &feed, &err), TRF_OK, &err);
            fixture_check_status(trf_packed_sample_window(&feed, &found[t], &err), TRF_OK, &err);
            const trf_pack_source source = {weights, cols, rows, cols, feed.view->row_offsets};
            if (t) {
                const trf_packed_window best = trf_pack_window(&source);
                fixture_check_status(trf_pack_head(&source, found[t], &head[0], &err), TRF_OK, &err);
                fixture_check_status(trf_pack_head(&source, best, &head[1], &err), TRF_OK, &err);
                EXPECT(found[t].zeroing == best.zeroing && found[t].zeroing == (kind == ZEROS && shape > 0));
                EXPECT(head[0].num_records <= 2 * head[1].num_records + 100 && head[0].num_stored == 0);
            }
            trf_layer_feed_close(&feed);
        }
        EXPECT(found[0].base == found[1].base && found[0].zeroing == found[1].zeroing);
        trf_free(blob);
        free(weights);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("packed_sample");
    TCase *tests = tcase_create("packed_sample");
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, nearly_the_best_window, 0, 2 * KINDS);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
