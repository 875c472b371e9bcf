/* SPDX-License-Identifier: Apache-2.0 */
/* Uncompressed layers that are offloaded to pinned host memory, which `bench --mode offload` compares with. It works as
 * trf_stack does, but takes layers only in order: resident layers are spread evenly, the others take two buffers in
 * turns, neighbours that fit share a buffer, and copies run ahead on a stream of their own. */
#ifndef BENCH_OFFLOAD_DENSE_CUDA_H
#define BENCH_OFFLOAD_DENSE_CUDA_H

#include <cuda_runtime_api.h>
#include <stdint.h>

typedef struct bench_offload_dense bench_offload_dense;

/* host_weights: [count], each layer's dense weights in pinned memory, host_weights_bytes[i] bytes, which are multiples
 * of 256; they must outlive the result. budget: bytes of device memory; less than two of the largest layers counts as
 * two. @return NULL after a message. */
bench_offload_dense *bench_offload_dense_make(void *const *host_weights, const uint64_t *host_weights_bytes,
                                              uint32_t count, uint64_t budget);
void bench_offload_dense_free(bench_offload_dense *dense); /* waits for the device; NULL is allowed */

uint64_t bench_offload_dense_offloaded_bytes(const bench_offload_dense *dense);
uint32_t bench_offload_dense_resident(const bench_offload_dense *dense);

/* Layers are used in order, over and over, on one stream: begin, queue what reads the weights, end. begin returns where
 * the weights lie, or NULL after a message; end returns 0, or -1 after a message. */
const void *bench_offload_dense_begin(bench_offload_dense *dense, uint32_t layer, cudaStream_t stream);
int bench_offload_dense_end(bench_offload_dense *dense, uint32_t layer, cudaStream_t stream);

#endif
