/* SPDX-License-Identifier: Apache-2.0 */
/* Products of packed experts, and the sorting of routes: the kernels' own code in emulated warps. Weights and x are
 * such small integers that every sum is exact, whatever its order, so what is written must have the right bits. */
#include <stdio.h>

#ifndef TRF_HAVE_WARP_WALK
int main(void) {
    puts("skipped: kernels are not emulated in this build");
    return 77;
}
#else
#include "common/expect.h"
#include "common/packed8_product.h"
#include "common/packed_integers.h"
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "transfuse.h"
#include "trf_moe_sizes.h"
#include "trf_number_formats.h"
#include "warp/warp_moe.h"

#include <check.h>
#include <math.h>

enum {
    MOST_EXPERTS = 9,
    FP8_EXPERTS = -1, /* a kind: of each expert another kind of FP8 layer */
    FP8_IN_TURNS = -2,
    /* trf_moe_result, of the device header */
    GATED = 0,
    OCTETS = 1,
    ELEMENTS = 2
};

typedef struct moe_case {
    uint32_t experts, rows, cols, tokens, top_k, blocks;
    int kernel, sorts, result, biased;
} moe_case;

static const moe_case kCases[] = {
    {5, 144, 200, 9, 2, 3, TRF_MOE_64, 1, ELEMENTS, 0},
    {9, 80, 1096, 30, 3, 4, TRF_MOE_64, 1, GATED, 1},
    {3, 272, 328, 60, 2, 7, TRF_MOE_64, 0, OCTETS, 1},
    {2, 64, 72, 150, 2, 5, TRF_MOE_64, 0, ELEMENTS, 0},
    {4, 144, 136, 100, 3, 5, TRF_MOE_192, 0, GATED, 0},
    {2, 208, 264, 200, 2, 3, TRF_MOE_192, 0, OCTETS, 1},
    {3, 80, 1096, 130, 2, 4, TRF_MOE_256, 0, ELEMENTS, 1},
    {2, 144, 200, 270, 2, 5, TRF_MOE_256, 0, GATED, 0},
    /* some experts have token blocks of several sizes */
    {2, 144, 72, 620, 2, 5, TRF_MOE_256, 0, OCTETS, 0},
    {3, 144, 72, 400, 2, 5, TRF_MOE_192, 0, GATED, 1},
};
enum {
    CASES = sizeof kCases / sizeof kCases[0]
};

typedef struct moe_run {
    const moe_case *of;
    packed_layer layers[MOST_EXPERTS];
    packed8_product fp8[MOST_EXPERTS]; /* in place of these, if is_fp8 */
    int is_fp8, in_turns;
    const uint16_t *weights[MOST_EXPERTS];
    trf_packed_view views[MOST_EXPERTS];
    uint32_t routes;
    int32_t *ids; /* [routes]; some are none */
    uint32_t *first_slots, *slot_routes, *route_slots;
    uint16_t *x, *bias; /* x has a row for each token */
} moe_run;

/* Sorts routes as the kernels must. */
static void sort_routes(moe_run *run) {
    uint32_t slot = 0;
    for (uint32_t e = 0; e < run->of->experts; e++) {
        run->first_slots[e] = slot;
        for (uint32_t route = 0; route < run->routes; route++)
            if (run->ids[route] == (int32_t)e) {
                run->slot_routes[slot] = route;
                run->route_slots[route] = slot++;
            }
    }
    run->first_slots[run->of->experts] = slot;
}

static moe_run make_run(const moe_case *of, int kind) {
    test_rng rng = {77 * (uint64_t)of->cols + (uint64_t)kind};
    moe_run run = {.of = of, .routes = of->tokens * of->top_k, .is_fp8 = kind < 0, .in_turns = kind == FP8_IN_TURNS};
    for (uint32_t e = 0; e < of->experts; e++)
        if (run.is_fp8) {
            run.fp8[e] =
                packed8_product_make(&rng, of->rows, of->cols, 1, run.in_turns ? IN_TURNS : (int)e % PACKED8_KINDS);
            run.weights[e] = run.fp8[e].layer.weights;
            run.views[e] = trf_packed8_view_of(&run.fp8[e].layer.head, run.fp8[e].layer.packed).packed;
        } else { /* zeroing experts beside others */
            run.layers[e] = packed_integers_make(&rng, of->rows, of->cols, e % 2 ? kind : kind & ~WITH_ZEROS);
            run.weights[e] = run.layers[e].weights;
            run.views[e] = trf_packed_view_of(&run.layers[e].head, run.layers[e].packed);
        }
    run.ids = malloc(run.routes * sizeof *run.ids);
    run.first_slots = malloc((of->experts + 1) * sizeof *run.first_slots);
    run.slot_routes = malloc(run.routes * sizeof *run.slot_routes);
    run.route_slots = malloc(run.routes * sizeof *run.route_slots);
    run.x = malloc((size_t)of->tokens * of->cols * sizeof *run.x);
    run.bias = malloc((size_t)of->experts * of->rows * sizeof *run.bias);
    for (uint32_t i = 0; i < run.routes; i++) {
        const uint32_t kind_of_id = test_below(&rng, 8);
        run.ids[i] = kind_of_id < 4 ? 1 : kind_of_id == 4 ? -1 : (int32_t)test_below(&rng, of->experts + 1);
        run.route_slots[i] = TRF_MOE_NO_SLOT;
    }
    for (size_t i = 0; i < (size_t)of->tokens * of->cols; i++)
        run.x[i] = trf_f32_to_bf16((float)test_below(&rng, 9) - 4);
    for (size_t i = 0; i < (size_t)of->experts * of->rows; i++)
        run.bias[i] = trf_f32_to_bf16((float)test_below(&rng, 5) - 2);
    sort_routes(&run);
    return run;
}

static void free_run(moe_run *run) {
    for (uint32_t e = 0; e < run->of->experts; e++)
        if (run->is_fp8)
            packed8_product_free(&run->fp8[e]);
        else
            packed_layer_free(&run->layers[e]);
    free(run->ids);
    free(run->first_slots);
    free(run->slot_routes);
    free(run->route_slots);
    free(run->x);
    free(run->bias);
}

static trf_moe_routes routes_of(const moe_run *run) {
    return (trf_moe_routes){.ids = run->ids,
                            .id_bytes = 4,
                            .count = run->routes,
                            .num_ids = run->of->experts,
                            .experts = run->of->experts,
                            .top_k = trf_divisor_of(run->of->top_k)};
}

/* Columns that y has: rows of W, or half of them if gate and up become one. */
static uint32_t y_cols(const moe_case *of) { return of->result == GATED ? of->rows / 2 : of->rows; }

static float exact_sum(const moe_run *run, uint32_t expert, uint32_t row, uint32_t token) {
    const moe_case *of = run->of;
    const uint16_t *w = run->weights[expert] + (size_t)row * of->cols, *x = run->x + (size_t)token * of->cols;
    double sum = of->biased ? trf_bf16_to_f32(run->bias[expert * of->rows + row]) : 0;
    for (uint32_t c = 0; c < of->cols; c++)
        sum += (double)trf_bf16_to_f32(w[c]) * (double)trf_bf16_to_f32(x[c]);
    EXPECT((double)(float)sum == sum);
    return (float)sum;
}

static void check_slot(const moe_run *run, uint32_t expert, uint32_t slot, const void *y, uint32_t stride) {
    const moe_case *of = run->of;
    const uint32_t token = run->slot_routes[slot] / of->top_k;
    for (uint32_t i = 0; i < y_cols(of); i++) {
        const size_t at = (size_t)slot * stride + i;
        if (of->result == ELEMENTS) {
            if (((const float *)y)[at] != exact_sum(run, expert, i, token))
                ck_abort_msg("slot %u, row %u: %g in place of %g", slot, i, ((const float *)y)[at],
                             exact_sum(run, expert, i, token));
        } else if (of->result == OCTETS) {
            EXPECT(((const uint16_t *)y)[at] == trf_f32_to_bf16(exact_sum(run, expert, i, token)));
        } else {
            const uint32_t row = i / 8 * 16 + i % 8;
            const double gate = exact_sum(run, expert, row, token), up = exact_sum(run, expert, row + 8, token),
                         wanted = gate / (1 + exp(-gate)) * up, got = trf_bf16_to_f32(((const uint16_t *)y)[at]);
            EXPECT(fabs(got - wanted) <= 0x1.01p-8 * fabs(wanted) + 1e-30);
        }
    }
}

/* The product of a run, whose routes are those of its tables. slot_x: x for each slot, for a kernel that does not
 * gather. */
static warp_moe_product product_of(const moe_run *run, const uint16_t *slot_x, void *y, uint64_t y_stride,
                                   void *handover) {
    const moe_case *of = run->of;
    const int has_slots = of->kernel != TRF_MOE_64;
    warp_moe_product product = {.kernel = of->kernel,
                                .blocks = of->blocks,
                                .experts = run->views,
                                .is_fp8 = run->is_fp8,
                                .in_turns = run->in_turns,
                                .routes = routes_of(run),
                                .first_slots = run->first_slots,
                                .slot_routes = run->slot_routes,
                                .max_slots = run->routes,
                                .x = has_slots ? slot_x : run->x,
                                .x_rows = has_slots ? run->routes : of->tokens,
                                .x_has_slots = (uint32_t)has_slots,
                                .result = of->result,
                                .activation = TRF_ACTIVATION_SILU,
                                .bias = of->biased ? run->bias : NULL,
                                .y = y,
                                .y_stride = y_stride,
                                .y_dtype = of->result == ELEMENTS ? TRF_DTYPE_F32 : TRF_DTYPE_BF16,
                                .handover = handover};
    product.routes.ids = NULL;
    return product;
}

/* What is beside the slots must stay as it was. */
START_TEST(products_are_exact) {
    /* 0, 3, 6, 1: all but row offsets, which experts do not have; and FP8 */
    const int round = _i / CASES, kind = round < 4 ? round * 3 % WITH_OFFSETS : round == 4 ? FP8_EXPERTS : FP8_IN_TURNS;
    const moe_case *of = &kCases[_i % CASES];
    if (!test_tries(_i / CASES + _i % CASES))
        return;
    moe_run run = make_run(of, kind);
    const uint32_t stride = y_cols(of) + 8, bytes = of->result == ELEMENTS ? 4 : 2;
    const size_t y_bytes = (size_t)run.routes * stride * bytes,
                 handover_bytes = trf_packed_handover_bytes(of->blocks, trf_moe_acc_tiles(of->kernel));
    uint8_t *y = malloc(y_bytes), *handover = malloc(handover_bytes);
    memset(y, 0x5A, y_bytes);
    memset(handover, 0xA5, handover_bytes);
    uint16_t *slot_x = calloc((size_t)run.routes * of->cols, sizeof *slot_x);
    for (uint32_t slot = 0; slot < run.first_slots[of->experts]; slot++)
        memcpy(slot_x + (size_t)slot * of->cols, run.x + run.slot_routes[slot] / of->top_k * (size_t)of->cols,
               of->cols * sizeof *slot_x);
    uint32_t *route_slots = malloc(run.routes * sizeof *route_slots);
    warp_moe_product product = product_of(&run, slot_x, y, stride, handover);
    product.order = (uint32_t)_i;
    if (of->sorts) {
        product.routes = routes_of(&run);
        product.route_slots = route_slots;
    }
    warp_multiply_experts(&product);
    if (of->sorts)
        EXPECT(memcmp(route_slots, run.route_slots, run.routes * sizeof *route_slots) == 0);
    for (uint32_t e = 0; e < of->experts; e++)
        for (uint32_t slot = run.first_slots[e]; slot < run.first_slots[e + 1]; slot++)
            check_slot(&run, e, slot, y, stride);
    for (size_t at = 0; at < y_bytes; at++)
        if (at / bytes % stride >= y_cols(of) || at / bytes / stride >= run.first_slots[of->experts])
            EXPECT(y[at] == 0x5A);
    free(y);
    free(handover);
    free(slot_x);
    free(route_slots);
    free_run(&run);
}
END_TEST

/* First slots are data. They decrease, or are more than there are: whatever is written lies within y. */
START_TEST(invalid_slots) {
    static const moe_case cases[] = {{4, 144, 136, 40, 2, 3, TRF_MOE_64, 0, ELEMENTS, 0},
                                     {4, 144, 136, 100, 3, 5, TRF_MOE_192, 0, OCTETS, 0}};
    const moe_case *of = &cases[_i / 3];
    moe_run run = make_run(of, 0);
    const uint32_t last = of->experts;
    if (_i % 3 == 0) {
        run.first_slots[2] = 0xFFFFFFF0;
        run.first_slots[3] = 1;
    } else if (_i % 3 == 1) {
        run.first_slots[last - 1] = run.first_slots[last] = 0xFFFFFFFF;
    } else {
        memset(run.slot_routes, 0xFF, run.routes * sizeof *run.slot_routes);
    }
    const uint32_t stride = y_cols(of);
    const size_t y_bytes = (size_t)run.routes * stride * 4,
                 handover_bytes = trf_packed_handover_bytes(of->blocks, trf_moe_acc_tiles(of->kernel));
    /* exactly as large as they must be, for the sanitizer */
    uint8_t *y = malloc(y_bytes), *handover = malloc(handover_bytes);
    uint16_t *slot_x = calloc((size_t)run.routes * of->cols, sizeof *slot_x);
    warp_moe_product product = product_of(&run, slot_x, y, stride, handover);
    product.order = (uint32_t)_i;
    memset(y, 0x5A, y_bytes);
    memset(handover, 0xA5, handover_bytes);
    warp_multiply_experts(&product);
    for (size_t at = 0; _i % 3 == 0 && at < y_bytes; at++) /* they decrease: nothing is computed */
        EXPECT(y[at] == 0x5A);
    free(y);
    free(handover);
    free(slot_x);
    free_run(&run);
}
END_TEST

/* Several blocks, chunks that are not full, and experts without routes. */
START_TEST(sorted_routes) {
    static const uint32_t counts[][3] = {{1, 1, 1}, {700, 3, 5}, {2500, 2, 300}, {1024, 4, 512}, {3000, 1, 128}};
    const uint32_t count = counts[_i][0], experts = counts[_i][2], blocks = (count - 1) / TRF_MOE_BLOCK_ROUTES + 1;
    test_rng rng = {(uint64_t)_i};
    int64_t *ids = malloc(count * sizeof *ids);
    for (uint32_t i = 0; i < count; i++)
        ids[i] = (int64_t)test_below(&rng, 2 * experts + 2) - 1;
    int32_t *map = malloc(2 * experts * sizeof *map);
    for (uint32_t i = 0; i < 2 * experts; i++)
        map[i] = i % 2 ? (int32_t)(i / 2) : -1;
    const trf_moe_routes routes = {.ids = ids,
                                   .map = map,
                                   .id_bytes = 8,
                                   .count = count,
                                   .num_ids = 2 * experts,
                                   .experts = experts,
                                   .top_k = trf_divisor_of(counts[_i][1])};
    uint32_t *block_counts = malloc(blocks * experts * sizeof *block_counts),
             *first_slots = malloc((experts + 1) * sizeof *first_slots),
             *slot_routes = malloc(count * sizeof *slot_routes), *route_slots = malloc(count * sizeof *route_slots);
    warp_sort_routes(&routes, block_counts, first_slots, slot_routes, route_slots, (uint32_t)_i);
    uint32_t slot = 0;
    for (uint32_t e = 0; e < experts; e++) {
        EXPECT(first_slots[e] == slot);
        for (uint32_t route = 0; route < count; route++)
            if (ids[route] == 2 * (int64_t)e + 1) {
                EXPECT(slot_routes[slot] == route);
                EXPECT(route_slots[route] == slot);
                slot++;
            }
    }
    EXPECT(first_slots[experts] == slot);
    for (uint32_t route = 0; route < count; route++)
        if (ids[route] < 0 || ids[route] % 2 == 0 || ids[route] >= 2 * (int64_t)experts)
            EXPECT(route_slots[route] == TRF_MOE_NO_SLOT);
    free(ids);
    free(map);
    free(block_counts);
    free(first_slots);
    free(slot_routes);
    free(route_slots);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("moe_warp");
    TCase *tests = tcase_create("moe_warp");
    tcase_add_loop_test(tests, products_are_exact, 0, 6 * CASES);
    tcase_add_loop_test(tests, invalid_slots, 0, 6);
    tcase_add_loop_test(tests, sorted_routes, 0, 5);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
#endif
