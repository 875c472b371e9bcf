/* SPDX-License-Identifier: Apache-2.0 */
/* Whole mixtures of packed experts for --mode moe: trf_moe_forward, from a router's ids and weights to the weighted
 * sum, beside cuBLAS's grouped products of gate and up, and of down, alone. */
#ifndef BENCH_MIXTURES_CUDA_H
#define BENCH_MIXTURES_CUDA_H

#include "bench_cublas_grouped_cuda.h"
#include "bench_rates_cuda.h"

/* Measures the mixtures and numbers of tokens that the options name, or else its own. grouped: NULL if there is none.
 * A mixture is a subject for each number of tokens. @return 0, or -1 after a message. */
int bench_measure_mixtures(const bench_request *request, const bench_device *device, bench_grouped *grouped,
                           const bench_rates *rates);

#endif
