/* SPDX-License-Identifier: Apache-2.0 */
/* Which instruction sets this CPU has, for functions that are compiled several times. These are the ones that the
 * compiler flags for TRF_HAVE_X86_SIMD (cmake) name. */
#ifndef TRF_CPU_H
#define TRF_CPU_H

#include "trf_host.h"

typedef enum trf_simd {
    TRF_SIMD_NONE = 0,
    TRF_SIMD_AVX2 = 1,
    TRF_SIMD_AVX512 = 2
} trf_simd;

/* @return the widest instruction set that this CPU has and that functions are compiled for. The environment variable
 * TRF_SIMD=scalar|avx2|avx512 lowers it (for tests); it never raises it beyond what the CPU has. Results do not depend
 * on it, but for sums of products in F32. */
trf_simd trf_cpu_simd(void);

#ifdef TRF_HAVE_X86_SIMD
static inline int trf_cpu_has_avx2(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
}

static inline int trf_cpu_has_avx512(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512vbmi2");
}
#endif

#endif
