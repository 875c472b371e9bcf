/* SPDX-License-Identifier: Apache-2.0 */
/* A product as the kernels see it: what is computed (trf_product), and what follows the sums (trf_epilogue). Each
 * kernel family has a partition of its own, which says how the work is cut over a device. C and CUDA. */
#ifndef TRF_PRODUCT_H
#define TRF_PRODUCT_H

#include "transfuse.h"
#include "trf_blob.h"

/* What a plan fixes of y = activation(x . W^T + bias) * multiplier + residual. Strides are elements from row to row,
 * and never 0. */
typedef struct trf_product {
    uint32_t m;
    trf_dtype x_dtype, y_dtype;
    trf_activation activation;
    int has_bias, has_multiplier, has_residual;
    uint64_t y_stride, multiplier_stride, residual_stride;
} trf_product;

static inline int trf_has_epilogue(const trf_product *product) {
    return product->activation != TRF_ACTIVATION_NONE || product->has_bias || product->has_multiplier ||
           product->has_residual;
}

/* What follows the sums, as kernels take it. Pointers are to device memory; those of missing operands are NULL. */
typedef struct trf_epilogue {
    /* The y of the product. Fused kernels take NULL, too: they then write their sums straight to y
     * (trf_product_args). */
    void *y;
    const void *bias, *multiplier, *residual;
    uint64_t y_stride, multiplier_stride, residual_stride;
    uint32_t activation, y_dtype;
} trf_epilogue;

static inline trf_epilogue trf_epilogue_of(const trf_product *product, const trf_operands *operands) {
    trf_epilogue epilogue;
    epilogue.y = operands->y;
    epilogue.bias = operands->bias;
    epilogue.multiplier = operands->multiplier;
    epilogue.residual = operands->residual;
    epilogue.y_stride = product->y_stride;
    epilogue.multiplier_stride = product->multiplier_stride;
    epilogue.residual_stride = product->residual_stride;
    epilogue.activation = (uint32_t)product->activation;
    epilogue.y_dtype = (uint32_t)product->y_dtype;
    return epilogue;
}

/* Sums of a product that are still to be rounded, or to go through an epilogue: F32 [m][rows], `stride` elements from
 * one row to the next. */
typedef struct trf_sums {
    const float *at;
    uint64_t stride;
    uint32_t m, rows;
} trf_sums;

#endif
