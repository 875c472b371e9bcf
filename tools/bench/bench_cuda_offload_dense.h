/* Uncompressed layers that are offloaded to pinned host memory: what `bench --mode offload` compares with. As trf_stack
 * does it, in order alone: layers that stay are spread evenly, the others take two buffers in turns, neighbours that
 * fit share one, and copies run ahead on a stream of their own. */
#ifndef BENCH_CUDA_OFFLOAD_DENSE_H
#define BENCH_CUDA_OFFLOAD_DENSE_H

#include <cuda_runtime_api.h>
#include <stdint.h>

typedef struct offload_dense offload_dense;

/* images: pinned, [count], of bytes[i] each, multiples of 256; outlive it. budget: of device memory; below two of the
 * largest layers it is taken for that. @return NULL after a message. */
offload_dense *offload_dense_make(void *const *images, const uint64_t *bytes, uint32_t count, uint64_t budget);
void offload_dense_free(offload_dense *dense); /* waits for the device; NULL is allowed */

uint64_t offload_dense_offload_bytes(const offload_dense *dense);
uint32_t offload_dense_resident(const offload_dense *dense);

/* Layers are used in order, over and over, on one stream: begin, queue what reads the weights, end. begin: @return
 * where they lie, NULL after a message. end: 0, or -1 after a message. */
const void *offload_dense_begin(offload_dense *dense, uint32_t layer, cudaStream_t stream);
int offload_dense_end(offload_dense *dense, uint32_t layer, cudaStream_t stream);

#endif
