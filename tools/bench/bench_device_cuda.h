/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU that a mode measures. */
#ifndef BENCH_DEVICE_CUDA_H
#define BENCH_DEVICE_CUDA_H

#include "bench_cublaslt_cuda.h"
#include "bench_mode.h"

typedef struct bench_device {
    trf_context *context;
    cudaStream_t stream;
    bench_cublaslt *lt;
    uint64_t l2_bytes;
} bench_device;

/* Opens what a mode needs of the request's context, describes the environment in the record, and prints the table's
 * heading. device: zeros. Release with bench_device_close in either case. @return 0, or -1 after a message. */
int bench_device_open(bench_device *device, const bench_request *request);
void bench_device_close(bench_device *device);

#endif
