/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_layer_session_cuda.h"

#include "bench_memory.h"
#include "cli_cuda.h"
#include "cli_float.h"
#include "cli_messages.h"
#include "transfuse/device_memory.h"

#include <math.h>
#include <stdlib.h>

enum {
    MIN_COPIES = 2,
    MAX_COPIES = 256
};

/* ---- rings ---- */

uint32_t bench_count_copies(const bench_layer_session *session, uint64_t bytes) {
    uint64_t count = (4 * session->device->l2_bytes + bytes - 1) / bytes;
    return count < MIN_COPIES ? MIN_COPIES : count > MAX_COPIES ? MAX_COPIES : (uint32_t)count;
}

int bench_ring_make(const bench_layer_session *session, bench_ring *ring, uint64_t bytes) {
    uint32_t count = bench_count_copies(session, bytes);
    ring->bytes = bytes;
    ring->buffers = bench_alloc_zeros(count, sizeof *ring->buffers);
    if (!ring->buffers)
        return -1;
    while (ring->count < count) {
        ring->buffers[ring->count] = cli_cuda_alloc(bytes);
        if (!ring->buffers[ring->count])
            return -1;
        ring->count++;
    }
    return 0;
}

int bench_ring_spread(const bench_ring *ring) {
    for (uint32_t i = 1; i < ring->count; i++)
        if (cli_cuda_check(cudaMemcpy(ring->buffers[i], ring->buffers[0], ring->bytes, cudaMemcpyDeviceToDevice),
                           "bench: copying weights"))
            return -1;
    return 0;
}

static void ring_free(bench_ring *ring) {
    for (uint32_t i = 0; i < ring->count; i++)
        cudaFree(ring->buffers[i]);
    free(ring->buffers);
}

/* ---- x and y ---- */

/* Makes x: normal values, rounded to its type. The host keeps the rows of the sample. FP8 weights reach up to their
 * type's largest value, so their x is small enough for y to stay within F16. */
static int make_x(bench_layer_session *session) {
    const float scale = trf_dtype_bytes(session->input->dtype) == 1 ? 0x1p-8f : 1;
    const uint64_t cols = session->input->shape.cols, count = session->max_batch * cols;
    const uint64_t kept = (session->max_batch < BENCH_SAMPLE_BATCH ? session->max_batch : BENCH_SAMPLE_BATCH) * cols;
    float *drawn = bench_alloc(count * sizeof *drawn);
    uint16_t *bits = bench_alloc(count * sizeof *bits);
    session->x_host = bench_alloc(kept * sizeof *session->x_host);
    int failed = !drawn || !bits || !session->x_host;
    if (!failed) {
        bench_draw(drawn, count, 0);
        for (uint64_t i = 0; i < count; i++) {
            bits[i] = (uint16_t)cli_float_to_bits(scale * drawn[i], session->x_dtype);
            if (i < kept)
                session->x_host[i] = (double)cli_bits_to_float(bits[i], session->x_dtype);
        }
        session->x = cli_cuda_alloc(count * sizeof *bits);
        failed =
            !session->x || cli_cuda_check(cudaMemcpy(session->x, bits, count * sizeof *bits, cudaMemcpyHostToDevice),
                                          "bench: copying x");
    }
    free(drawn);
    free(bits);
    return failed ? -1 : 0;
}

static int choose_rows(bench_layer_session *session) {
    const uint32_t rows = session->input->shape.rows;
    session->num_rows = rows < BENCH_SAMPLE_ROWS ? rows : BENCH_SAMPLE_ROWS;
    session->rows = bench_alloc(session->num_rows * sizeof *session->rows);
    for (uint32_t i = 0; session->rows && i < session->num_rows; i++)
        session->rows[i] = (uint32_t)((uint64_t)i * rows / session->num_rows); /* spread over all of them */
    return session->rows ? 0 : -1;
}

int bench_layer_session_open(bench_layer_session *session) {
    const cli_shape shape = session->input->shape;
    session->num_weights = (uint64_t)shape.rows * shape.cols;
    const int is_bf16 = session->input->dtype == TRF_DTYPE_BF16 || session->options->layout == TRF_LAYOUT_PACKED8;
    session->x_dtype = is_bf16 ? TRF_DTYPE_BF16 : TRF_DTYPE_F16;
    for (int i = 0; i < session->options->num_batches; i++)
        session->max_batch =
            session->options->batches[i] > session->max_batch ? session->options->batches[i] : session->max_batch;
    session->y = cli_cuda_alloc((uint64_t)session->max_batch * shape.rows * sizeof(float));
    if (!session->y || choose_rows(session) || make_x(session))
        return -1;
    session->copy_from = cli_cuda_alloc(kBenchCopyBytes);
    session->copy_to = session->copy_from ? cli_cuda_alloc(kBenchCopyBytes) : NULL;
    return session->copy_to ? cli_cuda_check(cudaMemset(session->copy_from, 1, kBenchCopyBytes), "bench: device memory")
                            : -1;
}

static void compressed_free(bench_compressed *compressed) {
    for (uint32_t i = 0; i < compressed->num_copies; i++)
        trf_device_layer_destroy(compressed->copies[i]);
    free(compressed->copies);
    trf_free(compressed->blob.bytes);
    free(compressed->decoded);
    free(compressed->reference);
}

void bench_layer_session_close(bench_layer_session *session) {
    for (int i = 0; i < session->num_compressed; i++)
        compressed_free(&session->compressed[i]);
    ring_free(&session->dense);
    ring_free(&session->decoded);
    ring_free(&session->raw8_weights);
    void *const device[] = {session->scales,    session->x,         session->y,
                            session->workspace, session->copy_from, session->copy_to};
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++)
        cudaFree(device[i]);
    free(session->x_host);
    free(session->rows);
}

int bench_need_workspace(bench_layer_session *session, uint64_t bytes) {
    if (session->workspace && bytes <= session->workspace_bytes)
        return 0;
    cudaFree(session->workspace);
    session->workspace_bytes = bytes;
    session->workspace = cli_cuda_alloc(bytes);
    return session->workspace ? 0 : -1;
}

/* ---- errors ---- */

static double value_of(const void *values, trf_dtype dtype, uint64_t i) {
    return dtype == TRF_DTYPE_F32 ? (double)((const float *)values)[i]
                                  : (double)cli_bits_to_float(((const uint16_t *)values)[i], dtype);
}

int bench_read_error(const bench_layer_session *session, int compressed, uint32_t batch, trf_dtype y_dtype,
                     double *error) {
    const uint64_t rows = session->input->shape.rows, element_bytes = trf_dtype_bytes(y_dtype);
    const double *reference = session->compressed[compressed].reference;
    const uint32_t sample = batch < BENCH_SAMPLE_BATCH ? batch : BENCH_SAMPLE_BATCH;
    double energy = 0, difference = 0;
    char *y = bench_alloc(sample * rows * element_bytes);
    if (!y)
        return -1;
    int failed = cli_cuda_check(cudaStreamSynchronize(session->device->stream), "bench: multiplying") ||
                 cli_cuda_check(cudaMemcpy(y, session->y, sample * rows * element_bytes, cudaMemcpyDeviceToHost),
                                "bench: reading y");
    for (uint32_t i = 0; !failed && i < sample; i++)
        for (uint32_t r = 0; r < session->num_rows; r++) {
            double expected = reference[(uint64_t)i * session->num_rows + r];
            double off = value_of(y, y_dtype, i * rows + session->rows[r]) - expected;
            energy += expected * expected;
            difference += off * off;
        }
    *error = energy > 0 ? sqrt(difference / energy) : sqrt(difference);
    free(y);
    return failed ? -1 : 0;
}

int bench_check_faults(const bench_layer_session *session) {
    for (int p = 0; p < session->num_compressed; p++)
        for (uint32_t i = 0; i < session->compressed[p].num_copies; i++) {
            trf_error err = {0};
            if (trf_device_layer_check(session->compressed[p].copies[i], &err)) {
                cli_report_error(&err);
                return -1;
            }
        }
    return 0;
}
