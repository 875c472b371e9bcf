/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_moe_routes.h"

#include "bench_random.h"

void bench_moe_make_routes(bench_moe_route routes[BENCH_MOE_CALLS], uint32_t batch) {
    uint64_t state = 1;
    uint32_t order[BENCH_MOE_EXPERTS];
    for (uint32_t e = 0; e < BENCH_MOE_EXPERTS; e++)
        order[e] = e;
    bench_shuffle(order, BENCH_MOE_EXPERTS, &state);
    for (uint32_t call = 0; call < BENCH_MOE_CALLS; call++) {
        uint32_t counts[BENCH_MOE_EXPERTS] = {0};
        for (uint32_t t = 0; t < batch; t++) {
            const uint32_t first = batch == 1 ? call % (BENCH_MOE_EXPERTS / BENCH_MOE_ROUTED) * BENCH_MOE_ROUTED : 0;
            if (batch > 1)
                bench_shuffle(order, BENCH_MOE_EXPERTS, &state);
            for (uint32_t i = 0; i < BENCH_MOE_ROUTED; i++)
                counts[order[first + i]]++;
        }
        routes[call].offsets[0] = 0;
        for (uint32_t e = 0; e < BENCH_MOE_EXPERTS; e++)
            routes[call].offsets[e + 1] = routes[call].offsets[e] + counts[e];
    }
}

uint32_t bench_moe_tokens_of(const bench_moe_route *route, uint32_t expert) {
    return route->offsets[expert + 1] - route->offsets[expert];
}

double bench_moe_mean_active(const bench_moe_route routes[BENCH_MOE_CALLS]) {
    double active = 0;
    for (uint32_t call = 0; call < BENCH_MOE_CALLS; call++)
        for (uint32_t e = 0; e < BENCH_MOE_EXPERTS; e++)
            active += bench_moe_tokens_of(&routes[call], e) > 0;
    return active / BENCH_MOE_CALLS;
}
