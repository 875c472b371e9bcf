/* SPDX-License-Identifier: Apache-2.0 */
/* How fast the device reads memory and multiplies at best: what limits are made of. */
#ifndef BENCH_RATES_CUDA_H
#define BENCH_RATES_CUDA_H

#include "bench_device_cuda.h"

typedef struct bench_rates {
    double bytes_per_second; /* of reading 2 GiB */
    double flops_per_second; /* of cuBLASLt's BF16 product of 8192x8192 by 8192 rows, after a pause of 60 ms */
} bench_rates;

/* Measures both, each as a subject of its own, which it prints. @return 0, or -1 after a message. */
int bench_rates_measure(const bench_request *request, const bench_device *device, bench_rates *rates);

/* @return the longer one of the seconds that so many bytes and operations take at these rates. */
double bench_rates_limit(const bench_rates *rates, double bytes, double flops);

#endif
