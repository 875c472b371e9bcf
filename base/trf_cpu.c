/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_cpu.h"

#include <stdlib.h>
#include <string.h>

trf_simd trf_cpu_simd(void) {
#ifdef TRF_HAVE_X86_SIMD
    const char *limit = getenv("TRF_SIMD");
    const int scalar = limit && strcmp(limit, "scalar") == 0, avx2 = limit && strcmp(limit, "avx2") == 0;
    if (!scalar && !avx2 && trf_cpu_has_avx512())
        return TRF_SIMD_AVX512;
    if (!scalar && trf_cpu_has_avx2())
        return TRF_SIMD_AVX2;
#endif
    return TRF_SIMD_NONE;
}
