#include "trf_checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t trf_checksum_plain(const void *bytes, size_t size, uint64_t seed) {
    return XXH3_64bits_withSeed(bytes, size, seed);
}

trf_checksum_fn *trf_checksum_best(void) {
#ifdef TRF_HAVE_X86_SIMD
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512vbmi2"))
        return trf_checksum_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma"))
        return trf_checksum_avx2;
#endif
    return trf_checksum_plain;
}
