/* SPDX-License-Identifier: Apache-2.0 */
/* Which experts the tokens of a batch go to in --mode moe. There are 64 experts; each token has 8 of them, and a row of
 * x for each of the 8. For an expert, each such row is a token. */
#ifndef BENCH_MOE_ROUTES_H
#define BENCH_MOE_ROUTES_H

#include <stdint.h>

enum {
    BENCH_MOE_EXPERTS = 64,
    BENCH_MOE_ROUTED = 8, /* experts of a token */
    BENCH_MOE_CALLS = 16  /* of a graph, each with a route of its own */
};

/* Which tokens an expert has, in one call: offsets[e] to offsets[e + 1] - 1. */
typedef struct bench_moe_route {
    uint32_t offsets[BENCH_MOE_EXPERTS + 1];
} bench_moe_route;

/* batch: the number of tokens. With one token, the calls go through all experts before one is used again. With more,
 * each token has random experts. The routes are the same in every run. */
void bench_moe_make_routes(bench_moe_route routes[BENCH_MOE_CALLS], uint32_t batch);

uint32_t bench_moe_tokens_of(const bench_moe_route *route, uint32_t expert);

/* @return how many experts have tokens, averaged over all calls. */
double bench_moe_mean_active(const bench_moe_route routes[BENCH_MOE_CALLS]);

#endif
