/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3-64, compiled for several instruction sets, since it is half the cost of checking a tile. */
#ifndef TRF_CHECKSUM_H
#define TRF_CHECKSUM_H

#include "trf_host.h"

#include <stddef.h>
#include <stdint.h>

typedef uint64_t trf_checksum_fn(const void *bytes, size_t size, uint64_t seed);

trf_checksum_fn trf_checksum_portable;
#ifdef TRF_HAVE_X86_SIMD
trf_checksum_fn trf_checksum_avx2, trf_checksum_avx512;
#endif

/* @return the fastest function that this CPU can run. All give the same result. */
trf_checksum_fn *trf_checksum_best(void);

#endif
