/* An epilogue (trf_linear_with) applied to one value of y. C and CUDA. */
#ifndef TRF_EPILOGUE_H
#define TRF_EPILOGUE_H

#include "trf_activation.h"
#include "trf_convert.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

/* Sums of a product, which wait for an epilogue: F32 [m][rows], `stride` elements from one row of x to the next. */
typedef struct trf_sums {
    const float *at;
    uint64_t stride;
    uint32_t m, rows;
} trf_sums;

/* An operand's value, of y's dtype. On a GPU an ordinary load: the operand may be y. */
TRF_HD float trf_operand(const void *values, uint32_t dtype, uint64_t at) {
    if (dtype == TRF_DTYPE_F32)
        return ((const float *)values)[at];
    const uint16_t bits = ((const uint16_t *)values)[at];
    return dtype == TRF_DTYPE_BF16 ? trf_bf16_to_f32(bits) : trf_f16_to_f32(bits);
}

/* Rounds to y's dtype. */
TRF_HD void trf_store_rounded(void *y, uint32_t dtype, uint64_t at, float value) {
    if (dtype == TRF_DTYPE_F32) {
        ((float *)y)[at] = value;
        return;
    }
#ifdef __CUDA_ARCH__
    if (dtype == TRF_DTYPE_BF16)
        ((__nv_bfloat16 *)y)[at] = __float2bfloat16_rn(value);
    else
        ((__half *)y)[at] = __float2half_rn(value);
#else
    ((uint16_t *)y)[at] = dtype == TRF_DTYPE_BF16 ? trf_f32_to_bf16(value) : trf_f32_to_f16(value);
#endif
}

/* An element's operands. Where one is not there, its place is taken by what changes no value, signs of zeros and NaNs included. */
typedef struct trf_operands {
    float bias, multiplier, residual;
} trf_operands;

/* Of y's element `at`, in row `row` of W. */
TRF_HD trf_operands trf_operands_of(const trf_epilogue *epilogue, uint32_t dtype, uint64_t at, uint32_t row) {
    trf_operands operands = {-0.0f, 1.0f, -0.0f};
    if (epilogue->bias)
        operands.bias = trf_operand(epilogue->bias, dtype, row);
    if (epilogue->multiplier)
        operands.multiplier = trf_operand(epilogue->multiplier, dtype, at);
    if (epilogue->residual)
        operands.residual = trf_operand(epilogue->residual, dtype, at);
    return operands;
}

/* A sum to what is rounded to y. */
TRF_HD float trf_apply_epilogue(uint32_t activation, const trf_operands *operands, float sum) {
    return fmaf(trf_activate(activation, sum + operands->bias), operands->multiplier, operands->residual);
}

#endif
