/* SPDX-License-Identifier: Apache-2.0 */
/* Products of a warpgroup with operand A in registers (wgmma, sm_90a). */
#ifndef TRF_PACKED_WGMMA_PTX_CUH
#define TRF_PACKED_WGMMA_PTX_CUH

#include "trf_packed_ptx.cuh"

#if TRF_HAS_SM_90A

/* More of the text of trf_wide_ptx.cuh: sums as operands, and their numbers. */
#define TRF_SUM_OPERANDS_72 TRF_SUM_OPERANDS_64, TRF_SUM_OPERANDS_8(64)
#define TRF_SUM_OPERANDS_80 TRF_SUM_OPERANDS_72, TRF_SUM_OPERANDS_8(72)
#define TRF_SUM_OPERANDS_88 TRF_SUM_OPERANDS_80, TRF_SUM_OPERANDS_8(80)
#define TRF_SUM_OPERANDS_96 TRF_SUM_OPERANDS_88, TRF_SUM_OPERANDS_8(88)
#define TRF_SUM_OPERANDS_104 TRF_SUM_OPERANDS_96, TRF_SUM_OPERANDS_8(96)
#define TRF_SUM_OPERANDS_112 TRF_SUM_OPERANDS_104, TRF_SUM_OPERANDS_8(104)
#define TRF_SUM_OPERANDS_120 TRF_SUM_OPERANDS_112, TRF_SUM_OPERANDS_8(112)
#define TRF_SUM_OPERANDS_128 TRF_SUM_OPERANDS_120, TRF_SUM_OPERANDS_8(120)
#define TRF_SUM_NUMBERS_72 TRF_SUM_NUMBERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define TRF_SUM_NUMBERS_80 TRF_SUM_NUMBERS_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define TRF_SUM_NUMBERS_88 TRF_SUM_NUMBERS_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define TRF_SUM_NUMBERS_96 TRF_SUM_NUMBERS_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define TRF_SUM_NUMBERS_104 TRF_SUM_NUMBERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define TRF_SUM_NUMBERS_112 TRF_SUM_NUMBERS_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define TRF_SUM_NUMBERS_120 TRF_SUM_NUMBERS_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define TRF_SUM_NUMBERS_128 TRF_SUM_NUMBERS_120 ", %120, %121, %122, %123, %124, %125, %126, %127"

/* rows of B, sums of a thread, and the numbers of the operands behind them: text. */
#define TRF_WGMMA_RS(rows, sums, a0, a1, a2, a3, at_b)                                                                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" rows "k16.f32.bf16.bf16 {" TRF_SUM_NUMBERS_##sums                 \
                 "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" at_b ", 1, 1, 1, 0;"                                     \
                 : TRF_SUM_OPERANDS_##sums                                                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

/* d[64][kRows] += A[64][16] * B[kRows][16]^T, where warp w of the warpgroup has rows 16 * w to 16 * w + 15 of A as the
 * fragment of an mma.m16n8k16, and of d an mma's sums by each 8 rows of B: d[4 * t] to d[4 * t + 3]. Neither a nor what
 * b says may change before the wait, nor d be looked at. */
template <int kRows>
static __device__ __forceinline__ void trf_wgmma_of_registers(float (&d)[kRows / 2], const uint32_t (&a)[4],
                                                              uint64_t b) {
    if constexpr (kRows == 64)
        TRF_WGMMA_RS("64", 32, "32", "33", "34", "35", "36");
    else if constexpr (kRows == 80)
        TRF_WGMMA_RS("80", 40, "40", "41", "42", "43", "44");
    else if constexpr (kRows == 96)
        TRF_WGMMA_RS("96", 48, "48", "49", "50", "51", "52");
    else if constexpr (kRows == 112)
        TRF_WGMMA_RS("112", 56, "56", "57", "58", "59", "60");
    else if constexpr (kRows == 128)
        TRF_WGMMA_RS("128", 64, "64", "65", "66", "67", "68");
    else if constexpr (kRows == 144)
        TRF_WGMMA_RS("144", 72, "72", "73", "74", "75", "76");
    else if constexpr (kRows == 160)
        TRF_WGMMA_RS("160", 80, "80", "81", "82", "83", "84");
    else if constexpr (kRows == 176)
        TRF_WGMMA_RS("176", 88, "88", "89", "90", "91", "92");
    else if constexpr (kRows == 192)
        TRF_WGMMA_RS("192", 96, "96", "97", "98", "99", "100");
    else if constexpr (kRows == 208)
        TRF_WGMMA_RS("208", 104, "104", "105", "106", "107", "108");
    else if constexpr (kRows == 224)
        TRF_WGMMA_RS("224", 112, "112", "113", "114", "115", "116");
    else if constexpr (kRows == 240)
        TRF_WGMMA_RS("240", 120, "120", "121", "122", "123", "124");
    else
        TRF_WGMMA_RS("256", 128, "128", "129", "130", "131", "132");
}

/* Behind the wait: the compiler may not read sums before it. */
template <int kSums> static __device__ __forceinline__ void trf_wgmma_settle_sums(float (&d)[kSums]) {
#pragma unroll
    for (int i = 0; i < kSums; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

#endif

#endif
