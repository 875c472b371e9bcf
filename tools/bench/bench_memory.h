/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory for the bench. */
#ifndef BENCH_MEMORY_H
#define BENCH_MEMORY_H

#include <stdint.h>

/* Both functions: @return memory to be released with free, or NULL after a message. */
void *bench_alloc(uint64_t bytes);
void *bench_alloc_zeros(uint64_t count, uint64_t element_bytes);

#endif
