/* SPDX-License-Identifier: Apache-2.0 */
/* The layers that --mode offload goes through at one batch: the matrices of a transformer with 8 G parameters, or those
 * of --layers as one of its 32 blocks. Weights are drawn once for each shape; every layer has its own copy in host
 * memory. */
#ifndef BENCH_OFFLOAD_SESSION_CUDA_H
#define BENCH_OFFLOAD_SESSION_CUDA_H

#include "bench_device_cuda.h"
#include "bench_plan_cuda.h"
#include "bench_weights.h"

enum {
    BENCH_OFFLOAD_BLOCKS = 32
};

/* One shape: its weights in every form, and the results of its products without any copying. */
typedef struct bench_offload_matrix {
    cli_shape shape;
    uint64_t dense_bytes;
    bench_blob blob;
    trf_layer *layer; /* of the blob */
    trf_device_layer *device_layer;
    void *dense; /* device */
    bench_cublaslt_product *product;
    void *y_compressed, *y_dense; /* host, [batch][rows] BF16 */
} bench_offload_matrix;

typedef struct bench_offload_session {
    const cli_options *options;
    const bench_device *device;
    uint32_t batch;
    bench_offload_matrix matrices[CLI_MAX_LIST];
    uint32_t num_matrices, per_block, count; /* count: of layers */
    uint32_t block[CLI_MAX_LIST];            /* indices into matrices */
    void *pinned[BENCH_OFFLOAD_BLOCKS];      /* dense weights of a block's layers, one after the other */
    uint64_t block_bytes, num_weights;       /* num_weights: of all layers */
    void **host_weights;                     /* [count], into pinned */
    uint64_t *host_weights_bytes;
    uint64_t *y_offsets; /* [count], bytes */
    uint64_t y_bytes, workspace_bytes;
    void *x, *y, *workspace; /* device; y: of all layers */
} bench_offload_session;

/* All that return an int: 0, or -1 after a message. */

/* session: zeros but for options, device and batch. Release with bench_offload_session_close in either case. */
int bench_offload_session_open(bench_offload_session *session);
void bench_offload_session_close(bench_offload_session *session);

bench_offload_matrix *bench_offload_matrix_of(bench_offload_session *session, uint32_t layer);

/* A layer's place in y. */
void *bench_offload_y_of(const bench_offload_session *session, uint32_t layer);

/* Makes a plan, and the workspace large enough for it. */
int bench_offload_plan(bench_offload_session *session, trf_device_layer *layer, bench_plan *plan);

/* Queues cuBLASLt's product. w: device, the matrix's plain weights. */
int bench_offload_queue_dense(const bench_offload_session *session, const bench_offload_matrix *matrix, const void *w,
                              void *y);

#endif
