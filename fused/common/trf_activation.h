/* SPDX-License-Identifier: Apache-2.0 */
/* The activations of an epilogue, in F32. C and CUDA; results of the two differ as far as their expf, erfcf and
 * divisions do.
 *
 * The error is a few units of 2^-24 of the value everywhere but among denormals: sums that would cancel are written as
 * products, and where an argument of exp or erfc is itself rounded, its rounding error is carried along. No
 * intermediate value overflows; NaN stays NaN. */
#ifndef TRF_ACTIVATION_H
#define TRF_ACTIVATION_H

#include "transfuse.h"
#include "trf_blob.h"

#include <math.h>

/* Returns x / y, for y from 1 to 2. */
TRF_HD float trf_divide_floats(float x, float y) {
#ifdef __CUDA_ARCH__
    return __fdividef(x, y); /* within 2 units in the last place, and has no branch */
#else
    return x / y;
#endif
}

/* Returns v / (1 + exp(-(t + t_rest))), where t_rest is far smaller than t, and v and t have the same sign. exp(-|t|),
 * which is at most 1, is computed as two factors; neither is denormal unless the product with v is. */
TRF_HD float trf_times_sigmoid(float v, float t, float t_rest) {
    const float root = expf(-0.5f * fabsf(t)), other = fmaf(t < 0 ? t_rest : -t_rest, root, root);
    const float quotient = trf_divide_floats(t < 0 ? v * root * other : v, fmaf(root, other, 1.0f));
    return t < -250.0f ? -0.0f : quotient; /* this includes -infinity */
}

TRF_HD float trf_silu(float v) { return trf_times_sigmoid(v, v, 0.0f); }

/* v / 2 * erfc(-v / sqrt 2) */
TRF_HD float trf_gelu(float v) {
    /* sqrt(1/2), and its rounding error in F32 */
    const float root_half = 0x1.6a09e6p-1f, root_half_rest = 0x1.9fcef4p-27f;
    const float z = -v * root_half, z_rest = fmaf(-v, root_half_rest, fmaf(-v, root_half, -z));
    const float e = erfcf(z);
    /* erfc'(z) / erfc(z) is near -2z wherever z_rest matters */
    const float product = 0.5f * v * (z > 0.5f ? fmaf(-2.0f * z * z_rest, e, e) : e);
    return v < -20.0f ? -0.0f : product; /* this includes -infinity */
}

/* v / 2 * (1 + tanh u) = v / (1 + exp(-2u)), u = sqrt(2 / pi) * (v + 0.044715 v^3) */
TRF_HD float trf_gelu_tanh(float v) {
    /* 2 sqrt(2 / pi), and 0.044715 times that: 2u = v * (k1 + k3 v^2) */
    const float k1 = 0x1.988454p+0f, k1_rest = -0x1.857936p-25f, k3 = 0x1.2444f2p-4f, k3_rest = 0x1.49b16ap-29f;
    const float square = v * v, square_rest = fmaf(v, v, -square);
    const float q = fmaf(k3, square, k1), added = q - k1;
    const float q_rest =
        (k1 - (q - added)) + fmaf(k3, square, -added) + fmaf(k3, square_rest, fmaf(k3_rest, square, k1_rest));
    const float t = v * q, t_rest = fmaf(v, q_rest, fmaf(v, q, -t));
    const float product = trf_times_sigmoid(v, t, t_rest);
    return v > 20.0f ? v : v < -20.0f ? -0.0f : product; /* beyond these limits the square may be infinite */
}

/* activation: a trf_activation. */
TRF_HD float trf_activate(uint32_t activation, float v) {
    switch (activation) {
    case TRF_ACTIVATION_SILU:
        return trf_silu(v);
    case TRF_ACTIVATION_GELU:
        return trf_gelu(v);
    case TRF_ACTIVATION_GELU_TANH:
        return trf_gelu_tanh(v);
    default:
        return v;
    }
}

#endif
