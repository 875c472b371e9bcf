/* The activations of an epilogue, in F32. C and CUDA; the two differ by what their expf and erfcf do.
 *
 * They err by a few units of 2^-24 of the value, everywhere but among denormals: sums that would cancel are written as products, and where an argument of exp or erfc is itself
 * rounded, what it lacks is carried along. Nothing overflows in between; NaN stays NaN. */
#ifndef TRF_ACTIVATION_H
#define TRF_ACTIVATION_H

#include "transfuse.h"
#include "trf_blob.h"

#include <math.h>

/* v / (1 + exp(-(t + t_rest))), t_rest far below t. */
TRF_HD float trf_times_sigmoid(float v, float t, float t_rest) {
    if (t < -80.0f) { /* exp(-t) would overflow soon; 1 is nothing beside it */
        const float root = expf(0.5f * t);
        return t < -250.0f ? -0.0f : v * root * fmaf(root, t_rest, root);
    }
    const float e = expf(-t);
    return v / (1.0f + fmaf(-t_rest, e, e));
}

TRF_HD float trf_silu(float v) { return trf_times_sigmoid(v, v, 0.0f); }

/* Beyond that both GELUs are v or 0 to F32, and what is below would meet infinities. */
#define TRF_GELU_REACH 20.0f

/* v / 2 * erfc(-v / sqrt 2) */
TRF_HD float trf_gelu(float v) {
    const float root_half = 0x1.6a09e6p-1f, root_half_rest = 0x1.9fcef4p-27f; /* sqrt(1/2) and what F32 lacks of it */
    if (v > TRF_GELU_REACH)
        return v;
    if (v < -TRF_GELU_REACH)
        return -0.0f;
    const float z = -v * root_half, z_rest = fmaf(-v, root_half_rest, fmaf(-v, root_half, -z));
    const float e = erfcf(z);
    /* erfc'(z) / erfc(z) is near -2z where the rest counts */
    return 0.5f * v * (z > 0.5f ? fmaf(-2.0f * z * z_rest, e, e) : e);
}

/* v / 2 * (1 + tanh u) = v / (1 + exp(-2u)), u = sqrt(2 / pi) * (v + 0.044715 v^3) */
TRF_HD float trf_gelu_tanh(float v) {
    /* 2 sqrt(2 / pi), and 0.044715 times that: 2u = v * (k1 + k3 v^2) */
    const float k1 = 0x1.988454p+0f, k1_rest = -0x1.857936p-25f, k3 = 0x1.2444f2p-4f, k3_rest = 0x1.49b16ap-29f;
    if (v > TRF_GELU_REACH)
        return v;
    if (v < -TRF_GELU_REACH)
        return -0.0f;
    const float square = v * v, square_rest = fmaf(v, v, -square);
    const float q = fmaf(k3, square, k1), added = q - k1;
    const float q_rest =
        (k1 - (q - added)) + fmaf(k3, square, -added) + fmaf(k3, square_rest, fmaf(k3_rest, square, k1_rest));
    const float t = v * q, t_rest = fmaf(v, q_rest, fmaf(v, q, -t));
    return trf_times_sigmoid(v, t, t_rest);
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
