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

/* Tiles are looked at in ascending or descending order. */
static trf_packed_window sample_window(const trf_layer_feed *feed, int descending) {
    static _Alignas(4096) uint8_t bytes[(TRF_MAX_TILE_BYTES + 4095) / 4096 * 4096];
    static _Alignas(4096) uint16_t elements[TRF_TILE_SIZE * TRF_TILE_SIZE];
    trf_packed_sample *sample;
    trf_packed_window window;
    fixture_check_status(trf_packed_sample_create(feed, &sample, &err), TRF_OK, &err);
    const uint64_t tiles = trf_packed_sample_tiles(sample);
    for (uint64_t i = 0; i < tiles; i++)
        trf_packed_sample_look(sample, descending ? tiles - 1 - i : i, bytes, elements);
    fixture_check_status(trf_packed_sample_choose(sample, &window, &err), TRF_OK, &err);
    trf_packed_sample_destroy(sample);
    return window;
}

/* By the definition: the weights of these tiles, one by one. */
static trf_packed_window count_window(const trf_blob_view *view, const uint16_t *weights) {
    uint64_t exponents[256] = {0}, zeros = 0, all = 0;
    const uint64_t n = view->num_tiles, k = n / 128 > 4 ? n / 128 : n < 4 ? n : 4;
    for (uint64_t i = 0; i < k; i++) {
        const uint64_t tile = i * n / k, tile_row = tile / view->header.num_tile_cols;
        const uint64_t first_row = 256 * tile_row, first_col = 256 * (tile % view->header.num_tile_cols);
        for (uint64_t row = first_row; row < first_row + 256 && row < view->header.rows; row++)
            for (uint64_t col = first_col; col < first_col + 256 && col < view->header.cols; col++) {
                const uint32_t weight = weights[row * view->header.cols + col];
                const int exponent = weight >> 7 & 0xFF, offset = view->row_offsets ? view->row_offsets[row] : 0;
                zeros += (weight & 0x7FFF) == 0;
                all++;
                if (exponent > 0 && exponent < 255 && exponent - offset > 0 && exponent - offset < 255)
                    exponents[exponent - offset]++;
            }
    }
    trf_packed_window window;
    const uint32_t zeroing = trf_packed_is_zeroing(zeros, all);
    return !zeroing && trf_packed_window_of_blob(view, &window) ? window : trf_choose_packed_window(exponents, zeroing);
}

/* The window by the sample leaves out hardly more than the one that has seen everything; the same in any order. */
START_TEST(nearly_the_best_window) {
    static const uint32_t shapes[][2] = {{1, 1}, {300, 77}, {600, 520}, {6400, 5900}}; /* the last one has 600 tiles */
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
            fixture_check_status(trf_layer_feed_open_memory(blob, bytes, &load, &feed, &err), TRF_OK, &err);
            found[t] = sample_window(&feed, t);
            const trf_packed_window counted = count_window(feed.view, weights);
            EXPECT(found[t].base == counted.base && found[t].zeroing == counted.zeroing);
            const trf_pack_input input = {weights, cols, rows, cols, feed.view->row_offsets};
            if (t) {
                const trf_packed_window best = trf_pack_window(&input);
                fixture_check_status(trf_pack_head(&input, found[t], &head[0], &err), TRF_OK, &err);
                fixture_check_status(trf_pack_head(&input, best, &head[1], &err), TRF_OK, &err);
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

/* Tiles that cannot be read are told of, the first one of them, whichever was looked at first. */
START_TEST(first_bad_tile) {
    uint16_t *weights = make_weights(NORMAL, 2560, 2300);
    const trf_matrix matrix = test_matrix(weights, TRF_DTYPE_BF16, 2560, 2300);
    static _Alignas(4096) uint8_t bytes[(TRF_MAX_TILE_BYTES + 4095) / 4096 * 4096];
    static _Alignas(4096) uint16_t elements[TRF_TILE_SIZE * TRF_TILE_SIZE];
    trf_load_options load;
    trf_layer_feed feed;
    trf_packed_sample *sample;
    trf_packed_window window;
    void *blob;
    uint64_t blob_bytes;
    char name[32];
    fixture_check_status(trf_encode_layer(&matrix, NULL, &blob, &blob_bytes, NULL, &err), TRF_OK, &err);
    trf_load_options_init(&load);
    fixture_check_status(trf_layer_feed_open_memory(blob, blob_bytes, &load, &feed, &err), TRF_OK, &err);
    fixture_check_status(trf_packed_sample_create(&feed, &sample, &err), TRF_OK, &err);
    const uint64_t looked_at = trf_packed_sample_tiles(sample), tiles = feed.view->num_tiles;
    for (uint64_t i = 1; i < 4; i += 2)
        ((uint8_t *)blob)[feed.view->tiles[i * tiles / looked_at].data_offset + 5] ^= 1;
    for (uint64_t i = looked_at; i-- > 0;)
        trf_packed_sample_look(sample, i, bytes, elements);
    fixture_check_status(trf_packed_sample_choose(sample, &window, &err), TRF_ERR_CHECKSUM, &err);
    snprintf(name, sizeof name, "tile %llu:", (unsigned long long)(tiles / looked_at));
    ck_assert_msg(strstr(err.message, name) != NULL, "%s", err.message);
    trf_packed_sample_destroy(sample);
    trf_layer_feed_close(&feed);
    trf_free(blob);
    free(weights);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("packed_sample");
    TCase *tests = tcase_create("packed_sample");
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, nearly_the_best_window, 0, 2 * KINDS);
    tcase_add_test(tests, first_bad_tile);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
