/* SPDX-License-Identifier: Apache-2.0 */
/* A product as the kernels see it: what is computed (trf_product), and what follows it (trf_epilogue). How the work
 * is cut over a device is each kernel family's partition. C and CUDA. */
#ifndef TRF_PRODUCT_H
#define TRF_PRODUCT_H

#include "transfuse.h"
#include "trf_blob.h"

/* What a plan fixes of y = activation(x . W^T + bias) * multiplier + residual. Strides: elements from row to row,
 * never 0. */
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

/* What follows the sums, as kernels take it. Pointers: device; those that are not there are NULL. */
typedef struct trf_epilogue {
    void *y; /* the product's. NULL, of fused kernels alone: these write their sums to y straight (trf_product_args) */
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

/* Sums of a product that wait for an epilogue, or to be rounded: F32 [m][rows], `stride` elements from one row to the
 * next. */
typedef struct trf_sums {
    const float *at;
    uint64_t stride;
    uint32_t m, rows;
} trf_sums;

#endif
