/* How products of experts are shared out: whatever the counts, each grain of each item belongs to one block, and each token to one pass. */
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "trf_expert_cut.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* ck_assert, for inner loops: Check writes a record to disk at each of its own assertions. */
#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            ck_abort_msg("%s", #condition);                                                                            \
    } while (0)

enum {
    MOST_EXPERTS = 300,
    CASES = 400
};

/* Random offsets of 1 to MOST_EXPERTS experts: many empty ones, some with a few tokens, few with many. @return how many experts. */
static uint32_t make_offsets(test_rng *rng, uint32_t *offsets) {
    const uint32_t experts = 1 + test_below(rng, MOST_EXPERTS), empty = test_below(rng, 4);
    offsets[0] = test_below(rng, 3);
    for (uint32_t e = 0; e < experts; e++) {
        const uint32_t most = test_below(rng, 20) == 0 ? 700 : 20;
        offsets[e + 1] = offsets[e] + (test_below(rng, 4) < empty ? 0 : test_below(rng, most));
    }
    return experts;
}

static uint64_t count_items(const uint32_t *offsets, uint32_t experts, uint32_t max_rows) {
    uint64_t items = 0;
    for (uint32_t e = 0; e < experts; e++)
        items += trf_expert_passes(trf_expert_tokens_of(offsets[e], offsets[e + 1], max_rows).count);
    return items;
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
                EXPECT(p * TRF_EXPERT_TOKENS < t.count); /* none is empty */
                for (uint32_t n = p * TRF_EXPERT_TOKENS; n < (p + 1) * TRF_EXPERT_TOKENS && n < t.count; n++)
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

/* Offsets are data. */
START_TEST(offsets_without_sense) {
    test_rng rng = {2};
    for (int i = 0; i < 100000; i++) {
        const uint32_t max_rows = 1 + test_below(&rng, 1000),
                       offset = (uint32_t)test_random(&rng) >> test_below(&rng, 32),
                       next = (uint32_t)test_random(&rng) >> test_below(&rng, 32);
        const trf_expert_tokens t = trf_expert_tokens_of(offset, next, max_rows);
        EXPECT((uint64_t)t.first + t.count <= max_rows);
        if (next <= offset)
            EXPECT(t.count == 0);
    }
}
END_TEST

/* The longest of all blocks' ways: grains, and experts that it enters. Fails unless blocks have all grains once, in order. */
static void check_shares(uint32_t grains, uint64_t items, uint32_t blocks, int whole, uint64_t *most_grains,
                         uint64_t *most_entered) {
    uint64_t next = 0;
    *most_grains = *most_entered = 0;
    for (uint32_t b = 0; b < blocks; b++) {
        const trf_expert_share share = trf_expert_share_of(grains, items, blocks, whole, b);
        EXPECT(share.begin == next);
        EXPECT(share.end >= share.begin);
        next = share.end;
        if (share.end == share.begin)
            continue;
        const uint64_t entered = (share.end - 1) / grains - share.begin / grains + 1;
        *most_grains = share.end - share.begin > *most_grains ? share.end - share.begin : *most_grains;
        *most_entered = entered > *most_entered ? entered : *most_entered;
        if (whole)
            EXPECT(entered == 1);
    }
    EXPECT(next == items * grains);
}

START_TEST(every_grain_has_one_block) {
    static const uint32_t kBlocks[] = {1, 2, 7, 108, 132};
    test_rng rng = {3};
    for (int i = 0; i < CASES; i++) {
        uint32_t offsets[MOST_EXPERTS + 1];
        const uint32_t experts = make_offsets(&rng, offsets), blocks = kBlocks[i % 5],
                       grains = 1 + test_below(&rng, test_below(&rng, 2) ? 4 : 300);
        const uint64_t items = count_items(offsets, experts, offsets[experts]);
        if (items == 0)
            continue;
        const trf_expert_cut cut = {4, 4, grains, 1 + test_below(&rng, 10000)};
        const uint32_t begin_ns = test_below(&rng, 5000);
        int whole;
        const uint64_t cost = trf_expert_cost(&cut, begin_ns, items, blocks, &whole);
        for (int way = 0; way < (items <= blocks ? 2 : 1); way++) {
            uint64_t most_grains, most_entered;
            check_shares(grains, items, blocks, way, &most_grains, &most_entered);
            const uint64_t longest = most_grains * cut.grain_ns + most_entered * begin_ns;
            if (way == whole) /* an estimate of the block that has most to do is what it says */
                EXPECT(cost >= most_grains * (uint64_t)cut.grain_ns + begin_ns);
            if (way == whole)
                EXPECT(cost >= longest);
            if (way == whole && whole)
                EXPECT(cost == longest);
        }
    }
}
END_TEST

/* One item to itself, and an expert without units. */
START_TEST(small_shares) {
    uint64_t grains, entered;
    check_shares(1, 1, 132, 1, &grains, &entered);
    ck_assert(grains == 1 && entered == 1);
    check_shares(16, 8, 132, 1, &grains, &entered);
    ck_assert(grains == 1 && entered == 1); /* 16 blocks for each of 8 experts */
    check_shares(16, 56, 132, 0, &grains, &entered);
    ck_assert(grains == 7 && entered == 2);                               /* 6.8 grains a block */
    check_shares(1u << 27, (uint64_t)1 << 33, 132, 0, &grains, &entered); /* what 32 bits do not hold */
}
END_TEST

int main(void) {
    Suite *suite = suite_create("expert_cut");
    TCase *tests = tcase_create("expert_cut");
    tcase_add_test(tests, every_token_has_one_pass);
    tcase_add_test(tests, offsets_without_sense);
    tcase_add_test(tests, every_grain_has_one_block);
    tcase_add_test(tests, small_shares);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
