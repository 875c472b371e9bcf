/* SPDX-License-Identifier: Apache-2.0 */
/* How products of experts are shared out. Whatever the counts, each unit of each work item belongs to one block, each
 * token to one pass, and each column of a block's units to one warp, whose sums reach y once. */
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "trf_expert_share.h"
#include "trf_stream_k.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_EXPERTS = 300,
    CASES = 400
};

/* Random offsets of 1 to MOST_EXPERTS experts: many empty ones, some with a few tokens, few with many. @return how many
 * experts. */
static uint32_t make_offsets(test_rng *rng, uint32_t *offsets) {
    const uint32_t experts = 1 + test_below(rng, MOST_EXPERTS), empty = test_below(rng, 4);
    offsets[0] = test_below(rng, 3);
    for (uint32_t e = 0; e < experts; e++) {
        const uint32_t most = test_below(rng, 20) == 0 ? 700 : 20;
        offsets[e + 1] = offsets[e] + (test_below(rng, 4) < empty ? 0 : test_below(rng, most));
    }
    return experts;
}

static uint64_t count_items(const uint32_t *offsets, uint32_t experts, uint32_t max_tokens) {
    uint64_t work_items = 0;
    for (uint32_t e = 0; e < experts; e++)
        work_items += trf_expert_passes(trf_expert_tokens_of(offsets[e], offsets[e + 1], max_tokens).count);
    return work_items;
}

START_TEST(every_token_has_one_pass) {
    test_rng rng = {1};
    for (int i = 0; i < CASES; i++) {
        uint32_t offsets[MOST_EXPERTS + 1];
        const uint32_t experts = make_offsets(&rng, offsets), tokens = offsets[experts];
        uint8_t *seen = calloc(tokens + 1, 1);
        for (uint32_t e = 0; e < experts; e++) {
            const trf_expert_tokens t = trf_expert_tokens_of(offsets[e], offsets[e + 1], tokens);
            EXPECT(t.first == offsets[e] && t.count == offsets[e + 1] - offsets[e]);
            const uint32_t passes = trf_expert_passes(t.count);
            for (uint32_t p = 0; p < passes; p++) {
                EXPECT(p * TRF_EXPERT_PASS_TOKENS < t.count); /* none is empty */
                for (uint32_t n = p * TRF_EXPERT_PASS_TOKENS; n < (p + 1) * TRF_EXPERT_PASS_TOKENS && n < t.count; n++)
                    seen[t.first + n]++;
            }
        }
        for (uint32_t t = offsets[0]; t < tokens; t++)
            EXPECT(seen[t] == 1);
        free(seen);
    }
    EXPECT(trf_expert_passes(0) == 0);
    EXPECT(trf_expert_passes(UINT32_MAX) == (UINT32_MAX - 7) / 8 + 1);
}
END_TEST

/* Offsets are untrusted data. */
START_TEST(offsets_without_sense) {
    test_rng rng = {2};
    for (int i = 0; i < 100000; i++) {
        const uint32_t max_tokens = 1 + test_below(&rng, 1000),
                       offset = (uint32_t)test_random(&rng) >> test_below(&rng, 32),
                       next = (uint32_t)test_random(&rng) >> test_below(&rng, 32);
        const trf_expert_tokens t = trf_expert_tokens_of(offset, next, max_tokens);
        EXPECT((uint64_t)t.first + t.count <= max_tokens);
        if (next <= offset)
            EXPECT(t.count == 0);
    }
}
END_TEST

/* @return the most units of a block. Fails unless the blocks have all units once, in order. */
static uint64_t check_shares(const trf_expert_cost_model *cost_model, uint64_t work_items, uint32_t blocks,
                             int one_work_item_each) {
    uint64_t next = 0, most = 0;
    for (uint32_t b = 0; b < blocks; b++) {
        const trf_expert_share share = trf_expert_share_of(cost_model, work_items, blocks, one_work_item_each, b);
        EXPECT(share.begin == next);
        EXPECT(share.end >= share.begin);
        next = share.end;
        most = share.end - share.begin > most ? share.end - share.begin : most;
        if (one_work_item_each && share.end > share.begin)
            EXPECT((share.end - 1) / cost_model->units == share.begin / cost_model->units);
    }
    EXPECT(next == work_items * cost_model->units);
    return most;
}

/* The estimate is for the way that is chosen, and for the block that has the most to do. */
START_TEST(every_unit_has_one_block) {
    static const uint32_t kBlocks[] = {1, 2, 7, 108, 132};
    test_rng rng = {3};
    for (int i = 0; i < CASES; i++) {
        uint32_t offsets[MOST_EXPERTS + 1];
        const uint32_t experts = make_offsets(&rng, offsets), blocks = kBlocks[i % 5],
                       units = 1 + test_below(&rng, test_below(&rng, 2) ? 4 : 300);
        const uint64_t work_items = count_items(offsets, experts, offsets[experts]);
        if (work_items == 0)
            continue;
        const trf_expert_cost_model cost_model = {units,
                                                  1 + test_below(&rng, 100),
                                                  8 + test_below(&rng, 13),
                                                  1 + test_below(&rng, 10000),
                                                  test_below(&rng, 5000),
                                                  test_below(&rng, 30)};
        int one_work_item_each;
        const uint64_t cost = trf_expert_cost(&cost_model, work_items, blocks, &one_work_item_each);
        for (int way = 0; way < (work_items <= blocks ? 2 : 1); way++) {
            const uint64_t longest = trf_expert_time(&cost_model, check_shares(&cost_model, work_items, blocks, way));
            if (way == one_work_item_each)
                EXPECT(cost >= longest);
            if (way == one_work_item_each && one_work_item_each)
                EXPECT(cost == longest);
        }
    }
}
END_TEST

/* A single work item, blocks that enter two experts, and numbers beyond 32 bits. */
START_TEST(small_and_large_shares) {
    trf_expert_cost_model cost_model = {1, 12, 16, 5000, 6000, 6};
    ck_assert_uint_eq(check_shares(&cost_model, 1, 132, 1), 1);
    cost_model.units = 64;
    ck_assert_uint_eq(check_shares(&cost_model, 8, 132, 1), 4);   /* 16 blocks for each of 8 experts */
    ck_assert_uint_eq(check_shares(&cost_model, 56, 132, 0), 28); /* 27.2 units a block, and half of the entries */
    for (uint32_t b = 0; b < 132; b++) {
        const trf_expert_share share = trf_expert_share_of(&cost_model, 56, 132, 0, b);
        const uint64_t entered = (share.end - 1) / 64 - share.begin / 64 + 1;
        ck_assert_uint_le(share.end - share.begin, entered > 1 ? 27 : 28); /* one that enters another has less */
    }
    cost_model.units = 1u << 27;
    check_shares(&cost_model, (uint64_t)1 << 33, 132, 0);
}
END_TEST

/* ---- warps of a block ---- */

/* The sums that warps leave: columns [from, to) of a unit, in one of two places of each warp. */
typedef struct left_sums {
    uint32_t unit, from, to;
    int there;
} left_sums;

static void check_runs(uint32_t units, uint32_t panels, uint32_t warps) {
    left_sums left[20][2] = {{{0}}};
    uint8_t *done = calloc(units + 1, 1); /* how often y of a unit is written */
    const trf_stream_k runs = trf_stream_k_of(units, panels, warps);
    EXPECT(trf_stream_k_begin(&runs, 0) == 0 && trf_stream_k_begin(&runs, warps) == units * panels);
    for (uint32_t w = 0; w < warps; w++) {
        const uint32_t begin = trf_stream_k_begin(&runs, w), end = trf_stream_k_begin(&runs, w + 1);
        EXPECT(begin <= end && end - begin <= (units * panels + warps - 1) / warps);
        for (uint32_t unit = begin / panels; begin < end && unit <= (end - 1) / panels; unit++) {
            if (trf_stream_k_owns_sum(&runs, w, unit)) {
                done[unit]++;
                continue;
            }
            const uint32_t first = unit * panels, from = begin > first ? begin : first,
                           to = end < first + panels ? end : first + panels;
            const int begins = trf_stream_k_begins_in(&runs, w, unit);
            EXPECT(!left[w][begins].there);
            EXPECT(begins || unit == (end - 1) / panels); /* its buffers are free then */
            left[w][begins] = (left_sums){unit, from, to, 1};
        }
    }
    for (uint32_t unit = 0; unit < units; unit++) {
        uint32_t first, last, at = unit * panels;
        trf_stream_k_sharers(&runs, unit, &first, &last);
        EXPECT(first <= last && last < warps);
        for (uint32_t w = first; first < last && w <= last; w++) { /* in order, without gaps */
            left_sums *part = &left[w][w == first ? trf_stream_k_begins_in(&runs, w, unit) : 1];
            EXPECT(part->there && part->unit == unit && part->from == at);
            at = part->to;
            part->there = 0;
        }
        EXPECT(first == last || at == (unit + 1) * panels);
        done[unit] += first < last;
    }
    for (uint32_t unit = 0; unit < units; unit++)
        EXPECT(done[unit] == 1);
    for (uint32_t w = 0; w < warps; w++)
        EXPECT(!left[w][0].there && !left[w][1].there); /* nothing is lost */
    free(done);
}

START_TEST(warps_share_units) {
    test_rng rng = {4};
    for (uint32_t units = 0; units < 40; units++)
        for (uint32_t panels = 1; panels < 60; panels++)
            for (uint32_t warps = 8; warps <= 20; warps++)
                check_runs(units, panels, warps);
    for (int i = 0; i < 1000; i++)
        check_runs(test_below(&rng, 3000), 1 + test_below(&rng, 500), 8 + test_below(&rng, 13));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("expert_cut");
    TCase *tests = tcase_create("expert_cut");
    tcase_add_test(tests, every_token_has_one_pass);
    tcase_add_test(tests, offsets_without_sense);
    tcase_add_test(tests, every_unit_has_one_block);
    tcase_add_test(tests, small_and_large_shares);
    tcase_add_test(tests, warps_share_units);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
