/* SPDX-License-Identifier: Apache-2.0 */
/* Which instruction sets this CPU has, for functions that are compiled several times. These are the ones that the
 * compiler flags for TRF_HAVE_X86_SIMD (cmake) name. */
#ifndef TRF_CPU_H
#define TRF_CPU_H

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
