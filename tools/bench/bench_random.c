/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_random.h"

uint64_t bench_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

void bench_shuffle(uint32_t *order, uint32_t count, uint64_t *state) {
    for (uint32_t left = count; left > 1; left--) {
        const uint32_t other = (uint32_t)(bench_random(state) >> 33) % left, kept = order[left - 1];
        order[left - 1] = order[other];
        order[other] = kept;
    }
}
