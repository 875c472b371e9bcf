/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_checksum.h"

#include "trf_cpu.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t trf_checksum_portable(const void *bytes, size_t size, uint64_t seed) {
    return XXH3_64bits_withSeed(bytes, size, seed);
}

trf_checksum_fn *trf_checksum_best(void) {
#ifdef TRF_HAVE_X86_SIMD
    if (trf_cpu_simd() == TRF_SIMD_AVX512)
        return trf_checksum_avx512;
    if (trf_cpu_simd() == TRF_SIMD_AVX2)
        return trf_checksum_avx2;
#endif
    return trf_checksum_portable;
}
