#define TRF_SPLIT_SLAB trf_split_slab_portable
#include "trf_slab_split_body.h"

trf_split_slab_fn *trf_split_slab_best(void) {
#ifdef TRF_HAVE_X86_SIMD
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512vbmi2"))
        return trf_split_slab_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma"))
        return trf_split_slab_avx2;
#endif
    return trf_split_slab_portable;
}
