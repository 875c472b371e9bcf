/* SPDX-License-Identifier: Apache-2.0 */
/* The routes of the bench's mixtures: each token has different experts, as many as asked for; weights add up to 1; and
 * skewed routes are as bench_mixture_routes.h says. */
#include "../../tools/bench/bench_memory.c"
#include "../../tools/bench/bench_mixture_routes.c"
#include "../../tools/bench/bench_random.c"
#include "../../tools/cli_messages.c"
#include "../../tools/cli_signals.c"
#include "common/run_suite.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum {
    CALLS = 3
};

static const cli_mixture kMixtures[] = {{128, 768, 2048, 8}, {8, 8, 8, 2}, {64, 8, 8, 8}, {4, 8, 8, 1},
                                        {9, 8, 8, 8},        {5, 8, 8, 5}, {1, 8, 8, 1}};
enum {
    MIXTURES = sizeof kMixtures / sizeof kMixtures[0]
};

static bench_mixture_routes make(cli_mixture of, uint32_t tokens, int skewed) {
    bench_mixture_routes routes = {0};
    ck_assert_int_eq(bench_mixture_routes_make(&routes, &of, tokens, CALLS, skewed), 0);
    return routes;
}

/* Checks ids and weights of all tokens, and counts the tokens of each expert. counts: [CALLS][experts]. */
static void count_tokens(const bench_mixture_routes *r, uint32_t *counts) {
    const uint32_t routed = r->of.routed;
    memset(counts, 0, CALLS * r->of.experts * sizeof *counts);
    for (uint32_t t = 0; t < CALLS * r->tokens; t++) {
        double sum = 0;
        for (uint32_t i = 0; i < routed; i++) {
            const int32_t id = r->ids[t * routed + i];
            ck_assert(id >= 0 && (uint32_t)id < r->of.experts && r->weights[t * routed + i] > 0);
            for (uint32_t k = 0; k < i; k++)
                ck_assert_int_ne(id, r->ids[t * routed + k]);
            counts[t / r->tokens * r->of.experts + (uint32_t)id]++;
            sum += (double)r->weights[t * routed + i];
        }
        ck_assert(fabs(sum - 1) < 1e-6);
    }
}

START_TEST(tokens_have_different_experts) {
    static const uint32_t tokens[] = {1, 4, 300};
    for (int n = 0; n < 3; n++)
        for (int skewed = 0; skewed < 2; skewed++) {
            bench_mixture_routes r = make(kMixtures[_i], tokens[n], skewed);
            uint32_t counts[CALLS * 128];
            count_tokens(&r, counts);
            ck_assert_mem_eq(counts, r.counts, CALLS * r.of.experts * sizeof *counts);
            double active = 0;
            for (uint32_t i = 0; i < CALLS * r.of.experts; i++)
                active += counts[i] > 0;
            ck_assert_double_eq(bench_mixture_routes_active(&r), active / CALLS);
            bench_mixture_routes_free(&r);
        }
}
END_TEST

START_TEST(one_token_walks_through_all_experts) {
    bench_mixture_routes r = make((cli_mixture){24, 8, 8, 8}, 1, 0);
    uint32_t seen[24] = {0};
    for (int i = 0; i < CALLS * 8; i++)
        seen[r.ids[i]]++;
    for (int e = 0; e < 24; e++)
        ck_assert_uint_eq(seen[e], 1);
    bench_mixture_routes_free(&r);
}
END_TEST

/* idle, most: experts without tokens, and tokens of the one that has most. */
static void check_shares(const bench_mixture_routes *r, uint32_t idle, uint32_t most) {
    uint32_t popular[CALLS] = {0};
    for (uint32_t call = 0; call < CALLS; call++) {
        const uint32_t *counts = r->counts + call * r->of.experts;
        uint32_t without = 0;
        for (uint32_t e = 0; e < r->of.experts; e++) {
            without += counts[e] == 0;
            popular[call] = counts[e] > counts[popular[call]] ? e : popular[call];
        }
        ck_assert_uint_eq(without, idle);
        ck_assert_uint_eq(counts[popular[call]], most);
    }
    ck_assert(popular[0] != popular[1] || popular[1] != popular[2]);
}

START_TEST(skewed_routes_have_a_popular_expert_and_idle_ones) {
    static const struct {
        cli_mixture of;
        uint32_t idle, most;
    } cases[] = {
        {{128, 8, 8, 8}, 40, 3000}, /* all tokens: an eighth of the routes */
        {{128, 8, 8, 2}, 40, 1500},
        {{64, 8, 8, 1}, 20, 750},
        {{10, 8, 8, 8}, 1, 3000}, /* no more are idle than leaves experts to choose among */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench_mixture_routes r = make(cases[i].of, 3000, 1);
        check_shares(&r, cases[i].idle, cases[i].most);
        bench_mixture_routes_free(&r);
    }
    bench_mixture_routes uniform = make((cli_mixture){128, 8, 8, 8}, 3000, 0);
    for (uint32_t i = 0; i < CALLS * 128; i++)
        ck_assert(uniform.counts[i] > 100 && uniform.counts[i] < 300); /* 187.5 on average */
    bench_mixture_routes_free(&uniform);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("routes");
    tcase_add_loop_test(tcase, tokens_have_different_experts, 0, MIXTURES);
    tcase_add_test(tcase, one_token_walks_through_all_experts);
    tcase_add_test(tcase, skewed_routes_have_a_popular_expert_and_idle_ones);
    Suite *suite = suite_create("bench_routes");
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
