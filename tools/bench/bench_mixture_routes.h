/* SPDX-License-Identifier: Apache-2.0 */
/* Which experts the tokens of a mixture have, as a router gives it: ids and weights. */
#ifndef BENCH_MIXTURE_ROUTES_H
#define BENCH_MIXTURE_ROUTES_H

#include "cli_options.h"

/* All memory is the host's. */
typedef struct bench_mixture_routes {
    cli_mixture of;
    uint32_t tokens, calls;
    int32_t *ids;     /* [calls][tokens][routed] */
    float *weights;   /* the same; those of a token add up to 1 */
    uint32_t *counts; /* [calls][experts]: how many tokens an expert has */
} bench_mixture_routes;

/* Draws the routes of so many calls, which are the same in every run.
 * Uniform: each token has random experts. With one token the calls go through all experts before one is used again.
 * Skewed: a quarter of all routes, at most one a token, go to one expert, and 5 of 16 experts have none; the others of
 * a token are random. Which experts these are differs from call to call. Where a token has as many experts as there
 * are, or all but one, and with one token, skewed routes are uniform ones.
 * routes: zeros. Release with bench_mixture_routes_free in either case. @return 0, or -1 after a message. */
int bench_mixture_routes_make(bench_mixture_routes *routes, const cli_mixture *of, uint32_t tokens, uint32_t calls,
                              int skewed);
void bench_mixture_routes_free(bench_mixture_routes *routes);

/* @return how many experts have tokens, averaged over all calls. */
double bench_mixture_routes_active(const bench_mixture_routes *routes);

#endif
