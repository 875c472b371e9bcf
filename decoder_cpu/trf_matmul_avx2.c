/* SPDX-License-Identifier: Apache-2.0 */
/* The dot products of the CPU product in AVX2 and FMA: 8 sums of 8 floats in 16 registers. */
#define TRF_DOT_ROWS trf_dot_rows_avx2
#define TRF_DOT_FLOATS 8
#define TRF_DOT_X_ROWS 2
#include "trf_matmul_body.h"
