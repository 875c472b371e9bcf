/* SPDX-License-Identifier: Apache-2.0 */
/* The dot products of the CPU product in AVX-512: 16 sums of 16 floats in 32 registers. */
#define TRF_DOT_ROWS trf_dot_rows_avx512
#define TRF_DOT_FLOATS 16
#define TRF_DOT_X_ROWS 4
#include "trf_matmul_body.h"
