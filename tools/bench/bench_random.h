/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers and orders that are the same in every run (splitmix64). state: any number to begin with. */
#ifndef BENCH_RANDOM_H
#define BENCH_RANDOM_H

#include <stdint.h>

uint64_t bench_random(uint64_t *state);

/* Puts order[count] into a random order. */
void bench_shuffle(uint32_t *order, uint32_t count, uint64_t *state);

#endif
