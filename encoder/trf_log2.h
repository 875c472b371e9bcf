/* SPDX-License-Identifier: Apache-2.0 */
/* Logarithm and power that are the same on every machine. The C library's differ in the last bit from one version,
 * architecture and even CPU to the next, and the encoder chooses by costs that they go into: a blob's bytes would
 * depend on it. These use nothing but operations that IEEE 754 rounds correctly, in a fixed order, and the build keeps
 * compilers from fusing them (-ffp-contract=off). */
#ifndef TRF_LOG2_H
#define TRF_LOG2_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* x: positive, finite and normal. Exact for powers of two, else off by less than 2^-52 or that part of itself.
 *
 * x = 2^e * m with 1 <= m < 2, and c the multiple of 1/16 next to m. log2 x = e + log2 c + log2(m / c), and with
 * s = (m - c) / (m + c), |s| <= 1/65, log2(m / c) = 2 / ln 2 * (s + s^3 / 3 + s^5 / 5 + ...). */
static inline double trf_log2(double x) {
    static const double kOfSixteenths[17] = {
        0,
        0x1.663f6fac91316p-4,
        0x1.5c01a39fbd688p-3,
        0x1.fbc16b902680ap-3,
        0x1.49a784bcd1b8bp-2,
        0x1.91bba891f1709p-2,
        0x1.d6753e032ea0fp-2,
        0x1.0c10500d63aa6p-1,
        0x1.2b803473f7ad1p-1,
        0x1.49a784bcd1b8bp-1,
        0x1.66a008e4788ccp-1,
        0x1.82809d5be7073p-1,
        0x1.9d5d9fd5010b3p-1,
        0x1.b74948f5532dap-1,
        0x1.d053f6d260896p-1,
        0x1.e88c6b3626a73p-1,
        1,
    };
    const uint64_t one = 1023ull << 52, mantissa_mask = (1ull << 52) - 1;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int exponent = (int)(bits >> 52) - 1023;
    const uint32_t sixteenths = (uint32_t)(((bits & mantissa_mask) >> 47) + 1) >> 1;
    bits = (bits & mantissa_mask) | one;
    double m;
    memcpy(&m, &bits, sizeof m);
    const double c = 1 + sixteenths * 0.0625, s = (m - c) / (m + c), q = s * s;
    const double series =
        0x1.71547652b82fep+1 +
        q * (0x1.ec709dc3a03fdp-1 + q * (0x1.2776c50ef9bfep-1 + q * (0x1.a61762a7aded9p-2 + q * 0x1.484b13d7c02a9p-2)));
    return (exponent + kOfSixteenths[sixteenths]) + s * series;
}

/* x: between -1000 and 1000. Off by less than 2^-51 of itself. 2^x = 2^n * e^(f ln 2) with n the integer next to x and
 * f = x - n; the series of e^y. */
static inline double trf_exp2(double x) {
    static const double kSeries[] = {
        1,
        0x1.62e42fefa39efp-1,
        0x1.ebfbdff82c58fp-3,
        0x1.c6b08d704a0c0p-5,
        0x1.3b2ab6fba4e77p-7,
        0x1.5d87fe78a6731p-10,
        0x1.430912f86c787p-13,
        0x1.ffcbfc588b0c7p-17,
        0x1.62c0223a5c824p-20,
        0x1.b5253d395e7c4p-24,
        0x1.e4cf5158b8ecap-28,
        0x1.e8cac7351bb25p-32,
        0x1.c3bd650fc2986p-36,
        0x1.816193166d0f9p-40,
    };
    const double n = rint(x), f = x - n;
    double sum = 0;
    for (int i = sizeof kSeries / sizeof kSeries[0] - 1; i >= 0; i--)
        sum = sum * f + kSeries[i];
    return ldexp(sum, (int)n);
}

#endif
