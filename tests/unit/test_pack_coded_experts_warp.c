/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that pack all coded experts of a tensor, in emulated blocks (tests/warp): any number of experts, blocks
 * and warps, rows as they are and in turns. Each packed expert must be byte for byte what trf_pack makes of its
 * weights. */
#include <stdio.h>

#ifndef TRF_HAVE_WARP_WALK
int main(void) {
    puts("skipped: kernels are not emulated in this build");
    return 77;
}
#else
#include "common/coded_layer.h"
#include "common/expect.h"
#include "common/packed_layer.h"
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "trf_decode_choice.h"
#include "warp/warp_pack_coded.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_EXPERTS = 4,
    UNUSED = 0xA5,
    ROWS_AT_ONCE = 8 /* of gate or of up */
};

static trf_error err;

/* ---- experts ---- */

/* Zeros in each third expert, which make it zeroing; NaNs, denormals and large ones; `bad`: so many of these in one
 * expert that lines are left. */
static void fill(test_rng *rng, uint16_t *weights, uint32_t rows, uint32_t cols, int zeros, int is_bad) {
    static const uint16_t kOdd[] = {0x7F80, 0xFF80, 0x7FC1, 0xFF95, 0x0000, 0x8000, 0x0013, 0x4480};
    test_fill_normal(rng, weights, TRF_DTYPE_BF16, (size_t)rows * cols, 0.02);
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        if (zeros && test_below(rng, 3) == 0)
            weights[i] &= 0x8000;
        if (test_below(rng, 12000) == 0 || (is_bad && i % cols < 32 && test_below(rng, 50) == 0))
            weights[i] = kOdd[test_below(rng, 8)];
    }
}

/* Experts of one tensor or of two, and the packed experts that are due. */
typedef struct experts {
    uint32_t count, rows, cols; /* of a packed expert */
    trf_pack_rows order;
    coded_layer coded[MOST_EXPERTS], up[MOST_EXPERTS];
    trf_expert views[MOST_EXPERTS], up_views[MOST_EXPERTS];
    packed_layer due[MOST_EXPERTS];
    uint16_t windows[MOST_EXPERTS];
    uint32_t max_rans_bytes;
    int are_taken;
} experts;

static void take(experts *e, const coded_layer *coded, trf_expert *view) {
    view->view = coded->host->view;
    if (coded->max_rans_bytes > e->max_rans_bytes)
        e->max_rans_bytes = coded->max_rans_bytes;
    e->are_taken &= coded_layer_is_packable(coded) && trf_decode_alike(&view->view, &e->views[0].view);
}

static void make_one(test_rng *rng, experts *e, uint32_t i, trf_favor favor, uint32_t slab_cols, int is_bad) {
    const uint32_t inner = e->rows / 2, cols = e->cols;
    packed_layer *const due = &e->due[i];
    uint16_t *const halves = malloc(2ull * e->rows * cols);
    *due = packed_layer_make(e->rows, cols, 0);
    fill(rng, halves, e->rows, cols, i % 3 == 2, is_bad);
    for (uint32_t row = 0; row < e->rows; row++) {
        const uint32_t turn = row / (2 * ROWS_AT_ONCE) * ROWS_AT_ONCE + row % ROWS_AT_ONCE,
                       from = e->order == TRF_PACK_ROWS_AS_THEY_ARE ? row : turn + row / ROWS_AT_ONCE % 2 * inner;
        memcpy(due->weights + (size_t)row * cols, halves + (size_t)from * cols, 2ull * cols);
    }
    const trf_pack_input input = packed_layer_input(due);
    const trf_packed_window window = trf_pack_window(&input);
    e->windows[i] = trf_pack_window_word(window);
    ck_assert_int_eq(packed_layer_pack(due, &window, &err), TRF_OK);
    if (e->order == TRF_PACK_ROWS_OF_TWO) {
        e->coded[i] = coded_layer_encode(halves, inner, cols, favor, slab_cols);
        e->up[i] = coded_layer_encode(halves + (size_t)inner * cols, inner, cols, favor, slab_cols);
        take(e, &e->coded[i], &e->views[i]);
        take(e, &e->up[i], &e->up_views[i]);
    } else {
        e->coded[i] = coded_layer_encode(halves, e->rows, cols, favor, slab_cols);
        take(e, &e->coded[i], &e->views[i]);
    }
    free(halves);
}

/* bad: the expert of which lines are left, or any other number. */
static experts make_experts(test_rng *rng, trf_pack_rows order, uint32_t rows, uint32_t cols, trf_favor favor,
                            uint32_t slab_cols, uint32_t bad) {
    experts e = {.count = 1 + test_below(rng, MOST_EXPERTS), .rows = rows, .cols = cols, .order = order};
    e.are_taken = 1;
    for (uint32_t i = 0; i < e.count; i++)
        make_one(rng, &e, i, favor, slab_cols, i == bad);
    return e;
}

static void free_experts(experts *e) {
    for (uint32_t i = 0; i < e->count; i++) {
        coded_layer_free(&e->coded[i]);
        if (e->order == TRF_PACK_ROWS_OF_TWO)
            coded_layer_free(&e->up[i]);
        packed_layer_free(&e->due[i]);
    }
}

/* ---- packing ---- */

/* @return the memory, in which everything that is not written is UNUSED. */
static uint8_t *pack(test_rng *rng, const experts *e, trf_pack_expert_result *results) {
    const uint64_t bytes = warp_pack_coded_experts_bytes(e->count, e->rows, e->cols);
    uint8_t *const memory = aligned_alloc(TRF_PACKED_ALIGNMENT, bytes);
    const trf_experts_to_pack request = {.view = &e->views[0].view,
                                         .max_rans_bytes = e->max_rans_bytes,
                                         .count = e->count,
                                         .rows = e->order,
                                         .experts_dev = e->views,
                                         .up_dev = e->order == TRF_PACK_ROWS_OF_TWO ? e->up_views : NULL,
                                         .windows = e->windows,
                                         .memory = memory,
                                         .results = results};
    const warp_grid grid = {1 + test_below(rng, 6), (uint32_t)test_random(rng)};
    memset(memory, UNUSED, bytes);
    warp_pack_coded_experts(&request, 1 + test_below(rng, e->order ? 8 : 16), grid);
    return memory;
}

static const uint32_t *due_line(const packed_layer *due, uint64_t line) {
    return (const uint32_t *)(due->packed + due->head.lines_offset) + line * TRF_PACKED_LINE_WORDS;
}

/* Whether the kernels leave a line: it has stored tiles, or more than 15 records in half a tile. */
static int is_left(const packed_layer *due, uint64_t line) {
    const uint32_t *words = due_line(due, line);
    uint32_t halves[2 * TRF_PACKED_LINE_TILES] = {0};
    int left = words[TRF_PACKED_STORED_WORD] != 0;
    for (uint32_t i = 0; i < words[TRF_PACKED_COUNT_WORD]; i++)
        left |= ++halves[2 * trf_packed_record_tile(words[i]) + trf_packed_record_slab(words[i]) / 2] > 15;
    return left;
}

/* Checks one packed expert, which its view leads to. @return how many lines are left. */
static uint64_t check_one(const packed_layer *due, const trf_packed_view *view) {
    const trf_packed_view expected = trf_packed_view_of(&due->head, due->packed);
    uint64_t left = 0;
    ck_assert(view->rows == due->rows && view->cols == due->cols && view->bands == expected.bands);
    ck_assert(view->base == expected.base && view->zeroing == expected.zeroing && !view->row_offsets);
    ck_assert(view->tiles_per_band == expected.tiles_per_band && view->lines_per_band == expected.lines_per_band);
    for (uint64_t line = 0; line < due->head.num_lines; line++) {
        const uint32_t *words = view->lines + line * TRF_PACKED_LINE_WORDS;
        if (is_left(due, line)) {
            left++;
            continue;
        }
        ck_assert_mem_eq(words, due_line(due, line), sizeof(uint32_t) * TRF_PACKED_FIRST_STORED_WORD);
        ck_assert_uint_eq(words[TRF_PACKED_FIRST_STORED_WORD], 0);
    }
    for (uint64_t tile = 0; tile < due->head.num_tiles; tile++) {
        const uint64_t line =
            tile / view->tiles_per_band * view->lines_per_band + tile % view->tiles_per_band / TRF_PACKED_LINE_TILES;
        if (due_line(due, line)[TRF_PACKED_STORED_WORD] == 0)
            ck_assert_mem_eq(view->tiles + TRF_PACKED_TILE_BYTES * tile, expected.tiles + TRF_PACKED_TILE_BYTES * tile,
                             TRF_PACKED_TILE_BYTES);
    }
    return left;
}

static void check_experts(test_rng *rng, const experts *e) {
    trf_pack_expert_result results[MOST_EXPERTS];
    memset(results, 0, sizeof results);
    for (int with_results = 1; with_results >= 0; with_results--) {
        uint8_t *const memory = pack(rng, e, with_results ? results : NULL);
        for (uint32_t i = 0; i < e->count; i++) {
            const uint64_t left = check_one(&e->due[i], (const trf_packed_view *)memory + i);
            ck_assert_uint_eq(results[i].counts.num_left, left);
            ck_assert(results[i].state.inexact == 0);
            if (!left)
                ck_assert_uint_eq(results[i].counts.num_records, e->due[i].head.num_records);
        }
        free(memory);
    }
    for (uint32_t i = 0; i < e->count; i++)
        ck_assert_uint_eq(e->coded[i].host->fault.set, 0);
}

/* ---- tests ---- */

static const uint32_t kShapes[][2] = {{64, 256}, {128, 1088}, {192, 512}, {320, 192}};
enum {
    SHAPES = sizeof kShapes / sizeof kShapes[0],
    ORDERS = 3,
    CASES = SHAPES * ORDERS * 2
};

/* loop: shape, order and favor. */
START_TEST(what_the_reference_packs) {
    const uint32_t *shape = kShapes[_i / (2 * ORDERS)];
    const trf_pack_rows order = (trf_pack_rows)(_i / 2 % ORDERS);
    test_rng rng = {1 + (uint64_t)_i};
    int taken = 0;
    for (int round = 0; round < (test_quick() ? 1 : 2); round++) {
        experts e = make_experts(&rng, order, shape[0], shape[1], (trf_favor)(_i % 2), test_below(&rng, 2) ? 128 : 256,
                                 MOST_EXPERTS);
        if (e.are_taken)
            check_experts(&rng, &e);
        taken += e.are_taken;
        free_experts(&e);
    }
    if (shape[1] > 256)
        ck_assert_int_gt(taken, 0);
}
END_TEST

/* One expert has lines that are left; the others are packed all the same. */
START_TEST(expert_that_is_left) {
    test_rng rng = {100 + (uint64_t)_i};
    experts e = make_experts(&rng, (trf_pack_rows)(_i % ORDERS), 128, 1088, (trf_favor)(_i / ORDERS % 2), 256, 0);
    if (e.are_taken) {
        trf_pack_expert_result results[MOST_EXPERTS];
        memset(results, 0, sizeof results);
        free(pack(&rng, &e, results));
        ck_assert_uint_gt(results[0].counts.num_left, 0);
        check_experts(&rng, &e);
    }
    free_experts(&e);
}
END_TEST

/* A weight that no record can hold is found in its expert. */
START_TEST(inexact_weight) {
    test_rng rng = {200 + (uint64_t)_i};
    experts e = make_experts(&rng, (trf_pack_rows)_i, 128, 1088, TRF_FAVOR_SPEED, 256, MOST_EXPERTS);
    ck_assert(e.are_taken);
    trf_pack_expert_result results[MOST_EXPERTS];
    memset(results, 0, sizeof results);
    e.windows[e.count - 1] = (uint16_t)trf_pack_window_word((trf_packed_window){TRF_PACKED_MAX_BASE, 0});
    free(pack(&rng, &e, results));
    ck_assert(results[e.count - 1].state.inexact != 0);
    for (uint32_t i = 0; i + 1 < e.count; i++)
        ck_assert(results[i].state.inexact == 0 && results[i].counts.num_left == 0);
    free_experts(&e);
}
END_TEST

/* A corrupt slab is noted, and no block waits for ever, with results or without. */
START_TEST(corrupt_slabs) {
    test_rng rng = {300 + (uint64_t)_i};
    experts e =
        make_experts(&rng, (trf_pack_rows)(_i % ORDERS), 128, 1088, (trf_favor)(_i / ORDERS), 256, MOST_EXPERTS);
    int found = 0;
    for (int round = 0; e.are_taken && round < test_rounds(16); round++) {
        coded_layer *const coded = &e.coded[test_below(&rng, e.count)];
        const trf_tile_meta *tile = &coded->layer->view.tiles[0]; /* its rANS words are the last third */
        uint8_t *const at = (uint8_t *)coded->blob + tile->data_offset + tile->data_size / 3 * 2 +
                            test_below(&rng, tile->data_size / 3);
        const uint8_t was = *at;
        *at ^= (uint8_t)(1 + test_below(&rng, 255));
        coded->host->fault.set = 0;
        free(pack(&rng, &e, NULL));
        found += coded->host->fault.set != 0;
        *at = was;
    }
    ck_assert(!e.are_taken || found > 0);
    free_experts(&e);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("pack_coded_experts_warp");
    TCase *tests = tcase_create("pack_coded_experts_warp");
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, what_the_reference_packs, 0, CASES);
    tcase_add_loop_test(tests, expert_that_is_left, 0, 2 * ORDERS);
    tcase_add_loop_test(tests, inexact_weight, 0, ORDERS);
    tcase_add_loop_test(tests, corrupt_slabs, 0, 2 * ORDERS);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
#endif
