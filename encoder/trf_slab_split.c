/* SPDX-License-Identifier: Apache-2.0 */
#define TRF_SPLIT_SLAB trf_split_slab_portable
#include "trf_slab_split_body.h"

#include "trf_cpu.h"

trf_split_slab_fn *trf_split_slab_best(void) {
#ifdef TRF_HAVE_X86_SIMD
    if (trf_cpu_simd() == TRF_SIMD_AVX512)
        return trf_split_slab_avx512;
    if (trf_cpu_simd() == TRF_SIMD_AVX2)
        return trf_split_slab_avx2;
#endif
    return trf_split_slab_portable;
}
