/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_mixture_routes.h"

#include "bench_memory.h"
#include "bench_random.h"

#include <stdlib.h>

static uint32_t below(uint64_t *state, uint32_t count) { return (uint32_t)(bench_random(state) >> 33) % count; }

/* Puts `wanted` random ones of list[count] to its front. */
static void choose(uint32_t *list, uint32_t count, uint32_t wanted, uint64_t *state) {
    for (uint32_t i = 0; i < wanted; i++) {
        const uint32_t other = i + below(state, count - i), kept = list[i];
        list[i] = list[other];
        list[other] = kept;
    }
}

static void draw_weights(float *weights, uint32_t routed, uint64_t *state) {
    float sum = 0;
    for (uint32_t i = 0; i < routed; i++)
        sum += weights[i] = 0.1f + (float)(bench_random(state) >> 40) * 0x1p-24f;
    for (uint32_t i = 0; i < routed; i++)
        weights[i] /= sum;
}

/* The ids of one call. order: [experts], all of them; with one token it stays as it is. */
static void draw_call(bench_mixture_routes *r, uint32_t call, int skewed, uint32_t *order, uint64_t *state) {
    const cli_mixture of = r->of;
    int32_t *ids = r->ids + (uint64_t)call * r->tokens * of.routed;
    const uint32_t idle = of.experts * 5 / 16, most_idle = of.experts - of.routed - 1;
    const uint32_t with_tokens = skewed ? of.experts - (idle < most_idle ? idle : most_idle) : of.experts;
    if (r->tokens > 1)
        bench_shuffle(order, of.experts, state);
    for (uint32_t t = 0; t < r->tokens; t++, ids += of.routed) {
        /* Token t has the popular expert, order[0], if so many quarters of a route have come together. */
        const uint64_t before = (uint64_t)t * of.routed / 4, after = (uint64_t)(t + 1) * of.routed / 4;
        const uint32_t popular = skewed && after > before;
        if (r->tokens > 1)
            choose(order + skewed, with_tokens - (uint32_t)skewed, of.routed - popular, state);
        const uint32_t step = r->tokens > 1 ? 0 : call % (of.experts / of.routed) * of.routed;
        for (uint32_t i = 0; i < of.routed; i++)
            ids[i] = (int32_t)order[step + i + (skewed && !popular)];
    }
}

int bench_mixture_routes_make(bench_mixture_routes *r, const cli_mixture *of, uint32_t tokens, uint32_t calls,
                              int skewed) {
    const uint64_t routes = (uint64_t)calls * tokens * of->routed;
    uint32_t *order = bench_alloc(of->experts * sizeof *order);
    uint64_t state = 1;
    r->of = *of;
    r->tokens = tokens;
    r->calls = calls;
    r->ids = bench_alloc(routes * sizeof *r->ids);
    r->weights = bench_alloc(routes * sizeof *r->weights);
    r->counts = bench_alloc_zeros((uint64_t)calls * of->experts, sizeof *r->counts);
    if (!order || !r->ids || !r->weights || !r->counts) {
        free(order);
        return -1;
    }
    for (uint32_t e = 0; e < of->experts; e++)
        order[e] = e;
    bench_shuffle(order, of->experts, &state);
    for (uint32_t call = 0; call < calls; call++)
        draw_call(r, call, skewed && tokens > 1 && of->experts > of->routed + 1, order, &state);
    for (uint64_t i = 0; i < routes; i++)
        r->counts[i / ((uint64_t)tokens * of->routed) * of->experts + (uint32_t)r->ids[i]]++;
    for (uint64_t i = 0; i < routes; i += of->routed)
        draw_weights(r->weights + i, of->routed, &state);
    free(order);
    return 0;
}

void bench_mixture_routes_free(bench_mixture_routes *r) {
    free(r->ids);
    free(r->weights);
    free(r->counts);
    *r = (bench_mixture_routes){0};
}

double bench_mixture_routes_active(const bench_mixture_routes *r) {
    double active = 0;
    for (uint64_t i = 0; i < (uint64_t)r->calls * r->of.experts; i++)
        active += r->counts[i] > 0;
    return active / r->calls;
}
