/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_offload_session_cuda.h"

#include "bench_memory.h"
#include "cli_cuda.h"
#include "cli_messages.h"

#include <stdlib.h>

enum {
    ALIGNMENT = 256
};
static const cli_shape kBlock[] = {{4096, 4096},  {1024, 4096},  {1024, 4096}, {4096, 4096},
                                   {14336, 4096}, {14336, 4096}, {4096, 14336}};
static const double kSigma = 0.02;

static int report(const trf_error *err) {
    cli_report_error(err);
    return -1;
}

static uint64_t align(uint64_t bytes) { return (bytes + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1); }

bench_offload_matrix *bench_offload_matrix_of(bench_offload_session *s, uint32_t layer) {
    return &s->matrices[s->block[layer % s->per_block]];
}

void *bench_offload_y_of(const bench_offload_session *s, uint32_t layer) {
    return (uint8_t *)s->y + s->y_offsets[layer];
}

/* ---- weights ---- */

/* Lists the block's layers and their matrices. */
static void list_matrices(bench_offload_session *s) {
    const cli_options *options = s->options;
    const cli_shape *shapes = options->num_layers ? options->layers : kBlock;
    s->per_block = options->num_layers ? (uint32_t)options->num_layers : sizeof kBlock / sizeof kBlock[0];
    s->count = BENCH_OFFLOAD_BLOCKS * s->per_block;
    for (uint32_t i = 0; i < s->per_block; i++) {
        const cli_shape shape = shapes[i];
        uint32_t k = 0;
        while (k < s->num_matrices &&
               (s->matrices[k].shape.rows != shape.rows || s->matrices[k].shape.cols != shape.cols))
            k++;
        if (k == s->num_matrices) {
            s->matrices[k].shape = shape;
            s->matrices[k].dense_bytes = 2ull * shape.rows * shape.cols;
            s->num_matrices++;
        }
        s->block[i] = k;
        s->block_bytes += align(s->matrices[k].dense_bytes);
        s->num_weights += (uint64_t)BENCH_OFFLOAD_BLOCKS * shape.rows * shape.cols;
    }
}

/* drawn: weights of scale 1. source: room for the matrix's BF16 weights. */
static int make_matrix(const bench_offload_session *s, bench_offload_matrix *matrix, const float *drawn, void *source) {
    const cli_shape shape = matrix->shape;
    bench_blob *blob = &matrix->blob;
    trf_encode_options encode;
    trf_error err = {0};
    trf_encode_options_init(&encode);
    encode.threads = s->options->threads;
    encode.favor = s->options->has_favor ? s->options->favor : TRF_FAVOR_SPEED;
    bench_make_source(drawn, shape, kSigma, TRF_DTYPE_BF16, source);
    if (bench_encode(source, TRF_DTYPE_BF16, shape, &encode, blob))
        return -1;
    if (trf_layer_from_memory(blob->bytes, blob->size, &matrix->layer, &err) ||
        trf_device_layer_create(s->device->context, blob->bytes, blob->size, NULL, &matrix->device_layer, &err))
        return report(&err);
    matrix->dense = cli_cuda_alloc(matrix->dense_bytes);
    matrix->product =
        bench_cublaslt_product_make(s->device->lt, shape.rows, shape.cols, s->batch, TRF_DTYPE_BF16, TRF_DTYPE_BF16);
    if (!matrix->dense || !matrix->product)
        return -1;
    return cli_cuda_check(cudaMemcpy(matrix->dense, source, matrix->dense_bytes, cudaMemcpyHostToDevice),
                          "bench: weights");
}

static int make_matrices(bench_offload_session *s) {
    uint64_t max_bytes = 0;
    for (uint32_t k = 0; k < s->num_matrices; k++)
        max_bytes = s->matrices[k].dense_bytes > max_bytes ? s->matrices[k].dense_bytes : max_bytes;
    float *drawn = bench_alloc(2 * max_bytes);
    void *source = bench_alloc(max_bytes);
    int failed = !drawn || !source;
    if (!failed)
        bench_draw(drawn, max_bytes / 2, 0);
    for (uint32_t k = 0; !failed && k < s->num_matrices; k++)
        failed = make_matrix(s, &s->matrices[k], drawn, source);
    free(drawn);
    free(source);
    return failed;
}

/* Gives every layer its own plain weights, in one pinned allocation for each block. */
static int pin_dense(bench_offload_session *s) {
    const cudaStream_t stream = s->device->stream;
    for (uint32_t i = 0; i < s->count; i++) {
        void **pinned_block = &s->pinned[i / s->per_block];
        if (i % s->per_block == 0 && cli_cuda_check(cudaHostAlloc(pinned_block, s->block_bytes, cudaHostAllocDefault),
                                                    "bench: pinning host memory"))
            return -1;
        const bench_offload_matrix *matrix = bench_offload_matrix_of(s, i);
        s->host_weights_bytes[i] = align(matrix->dense_bytes);
        s->host_weights[i] =
            i % s->per_block ? (uint8_t *)s->host_weights[i - 1] + s->host_weights_bytes[i - 1] : *pinned_block;
        if (cli_cuda_check(
                cudaMemcpyAsync(s->host_weights[i], matrix->dense, matrix->dense_bytes, cudaMemcpyDeviceToHost, stream),
                "bench: plain weights"))
            return -1;
    }
    return cli_cuda_check(cudaStreamSynchronize(stream), "bench: plain weights");
}

/* ---- x, y, and what y must be ---- */

static int make_vectors(bench_offload_session *s) {
    uint64_t cols = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        const cli_shape shape = bench_offload_matrix_of(s, i)->shape;
        cols = shape.cols > cols ? shape.cols : cols;
        s->y_offsets[i] = s->y_bytes;
        s->y_bytes += align(2ull * s->batch * shape.rows);
    }
    const uint64_t n = s->batch * cols;
    float *drawn = bench_alloc(n * sizeof *drawn);
    uint16_t *x = bench_alloc(n * sizeof *x);
    int failed = !drawn || !x;
    if (!failed) {
        bench_draw(drawn, n, 0);
        bench_make_source(drawn, (cli_shape){s->batch, (uint32_t)cols}, 1, TRF_DTYPE_BF16, x);
        s->x = cli_cuda_alloc(2 * n);
        s->y = cli_cuda_alloc(s->y_bytes);
        failed = !s->x || !s->y || cli_cuda_check(cudaMemcpy(s->x, x, 2 * n, cudaMemcpyHostToDevice), "bench: x");
    }
    free(drawn);
    free(x);
    return failed;
}

int bench_offload_plan(bench_offload_session *s, trf_device_layer *layer, bench_plan *plan) {
    if (bench_plan_make_bf16(plan, layer, s->batch))
        return -1;
    if (plan->info.workspace_bytes <= s->workspace_bytes)
        return 0;
    cudaFree(s->workspace);
    s->workspace_bytes = plan->info.workspace_bytes;
    s->workspace = cli_cuda_alloc(s->workspace_bytes);
    return s->workspace ? 0 : -1;
}

int bench_offload_queue_dense(const bench_offload_session *s, const bench_offload_matrix *matrix, const void *w,
                              void *y) {
    return bench_cublaslt_queue(matrix->product, 0, w, s->x, y, s->device->stream);
}

/* Waits for a product, and reads the first y. */
static int read_y(const bench_offload_session *s, void *y, uint64_t bytes) {
    return cli_cuda_check(cudaStreamSynchronize(s->device->stream), "bench: a product") ||
           cli_cuda_check(cudaMemcpy(y, s->y, bytes, cudaMemcpyDeviceToHost), "bench: y");
}

/* Computes the y of a matrix's weights that lie in device memory. */
static int make_reference(bench_offload_session *s, bench_offload_matrix *matrix) {
    const uint64_t bytes = 2ull * s->batch * matrix->shape.rows;
    bench_plan plan = {0};
    matrix->y_compressed = bench_alloc(bytes);
    matrix->y_dense = bench_alloc(bytes);
    const int failed = !matrix->y_compressed || !matrix->y_dense ||
                       bench_offload_plan(s, matrix->device_layer, &plan) ||
                       bench_plan_queue(&plan, s->x, s->y, s->workspace, s->device->stream) ||
                       read_y(s, matrix->y_compressed, bytes) ||
                       bench_offload_queue_dense(s, matrix, matrix->dense, s->y) || read_y(s, matrix->y_dense, bytes);
    bench_plan_free(&plan);
    return failed ? -1 : 0;
}

static int make_references(bench_offload_session *s) {
    for (uint32_t k = 0; k < s->num_matrices; k++)
        if (make_reference(s, &s->matrices[k]))
            return -1;
    return 0;
}

/* ---- all of it ---- */

int bench_offload_session_open(bench_offload_session *s) {
    list_matrices(s);
    s->host_weights = bench_alloc_zeros(s->count, sizeof *s->host_weights);
    s->host_weights_bytes = bench_alloc_zeros(s->count, sizeof *s->host_weights_bytes);
    s->y_offsets = bench_alloc_zeros(s->count, sizeof *s->y_offsets);
    if (!s->host_weights || !s->host_weights_bytes || !s->y_offsets)
        return -1;
    return make_matrices(s) || pin_dense(s) || make_vectors(s) || make_references(s) ? -1 : 0;
}

void bench_offload_session_close(bench_offload_session *s) {
    for (uint32_t k = 0; k < s->num_matrices; k++) {
        bench_offload_matrix *matrix = &s->matrices[k];
        bench_cublaslt_product_free(matrix->product);
        trf_device_layer_destroy(matrix->device_layer);
        trf_layer_free(matrix->layer);
        trf_free(matrix->blob.bytes);
        cudaFree(matrix->dense);
        free(matrix->y_compressed);
        free(matrix->y_dense);
    }
    for (int i = 0; i < BENCH_OFFLOAD_BLOCKS; i++)
        cudaFreeHost(s->pinned[i]);
    cudaFree(s->x);
    cudaFree(s->y);
    cudaFree(s->workspace);
    free(s->host_weights);
    free(s->host_weights_bytes);
    free(s->y_offsets);
}
