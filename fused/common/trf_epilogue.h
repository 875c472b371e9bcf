/* SPDX-License-Identifier: Apache-2.0 */
/* An epilogue (trf_product.h) applied to one element of y. C and CUDA. */
#ifndef TRF_EPILOGUE_H
#define TRF_EPILOGUE_H

#include "trf_activation.h"
#include "trf_number_formats.h"
#include "trf_product.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

/* The bits of an operand's element, which has y's dtype. On a GPU this is an ordinary load, since the operand may be
 * y. */
TRF_HD uint32_t trf_operand_bits(const void *values, uint32_t dtype, uint64_t at) {
    return dtype == TRF_DTYPE_F32 ? ((const uint32_t *)values)[at] : ((const uint16_t *)values)[at];
}

TRF_HD float trf_operand_value(uint32_t bits, uint32_t dtype) {
    if (dtype == TRF_DTYPE_F32)
        return trf_f32_from_bits(bits);
    return dtype == TRF_DTYPE_BF16 ? trf_bf16_to_f32((uint16_t)bits) : trf_f16_to_f32((uint16_t)bits);
}

/* Rounds to y's dtype. */
TRF_HD void trf_write_rounded(void *y, uint32_t dtype, uint64_t at, float value) {
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

/* Two values rounded to a 16-bit dtype, the first one in the lower half. */
TRF_HD uint32_t trf_round_two(uint32_t dtype, float low, float high) {
#ifdef __CUDA_ARCH__
    if (dtype == TRF_DTYPE_BF16) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *(const uint32_t *)&pair;
    }
    const __half2 pair = __floats2half2_rn(low, high);
    return *(const uint32_t *)&pair;
#else
    return dtype == TRF_DTYPE_BF16 ? trf_f32_to_bf16(low) | (uint32_t)trf_f32_to_bf16(high) << 16
                                   : trf_f32_to_f16(low) | (uint32_t)trf_f32_to_f16(high) << 16;
#endif
}

/* An element's operands as they lie in memory, so that loading one does not wait for another. An operand that is
 * missing is replaced by a value that changes no result, signs of zeros and NaNs included: -0 for bias, 1 for
 * multiplier and -0 for residual. */
typedef struct trf_epilogue_inputs {
    uint32_t bias, multiplier, residual;
} trf_epilogue_inputs;

/* The inputs of element (n, row) of y, for row n of x and row `row` of W. */
TRF_HD trf_epilogue_inputs trf_epilogue_inputs_of(const trf_epilogue *epilogue, uint32_t n, uint32_t row) {
    const uint32_t dtype = epilogue->y_dtype, zero = dtype == TRF_DTYPE_F32 ? 0x80000000u : 0x8000u,
                   one = dtype == TRF_DTYPE_F32    ? 0x3F800000u
                         : dtype == TRF_DTYPE_BF16 ? 0x3F80u
                                                   : 0x3C00u;
    trf_epilogue_inputs inputs = {zero, one, zero};
    if (epilogue->bias)
        inputs.bias = trf_operand_bits(epilogue->bias, dtype, row);
    if (epilogue->multiplier)
        inputs.multiplier = trf_operand_bits(epilogue->multiplier, dtype, n * epilogue->multiplier_stride + row);
    if (epilogue->residual)
        inputs.residual = trf_operand_bits(epilogue->residual, dtype, n * epilogue->residual_stride + row);
    return inputs;
}

/* trf_add_bias gives what the activation is applied to; trf_after_activation gives what is rounded to y. */
TRF_HD float trf_add_bias(const trf_epilogue_inputs *inputs, uint32_t dtype, float sum) {
    return sum + trf_operand_value(inputs->bias, dtype);
}
TRF_HD float trf_after_activation(const trf_epilogue_inputs *inputs, uint32_t dtype, float value) {
    return fmaf(value, trf_operand_value(inputs->multiplier, dtype), trf_operand_value(inputs->residual, dtype));
}

TRF_HD float trf_apply_epilogue(uint32_t activation, const trf_epilogue_inputs *inputs, uint32_t dtype, float sum) {
    return trf_after_activation(inputs, dtype, trf_activate(activation, trf_add_bias(inputs, dtype, sum)));
}

#endif
