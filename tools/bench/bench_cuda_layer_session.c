#include "bench_cuda_layer_session.h"

#include "cli_cuda.h"
#include "cli_float.h"
#include "cli_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int report(const trf_error *err) {
    cli_report_error(err);
    return -1;
}

/* ---- rings ---- */

/* Copies whose sum is four times the L2 cache, so that a copy has left it when its turn comes again. */
static uint32_t count_copies(const bench_layer_session *session, uint64_t bytes) {
    uint64_t count = (4 * session->l2_bytes + bytes - 1) / bytes;
    return count < BENCH_CUDA_MIN_COPIES   ? BENCH_CUDA_MIN_COPIES
           : count > BENCH_CUDA_MAX_COPIES ? BENCH_CUDA_MAX_COPIES
                                           : (uint32_t)count;
}

static int ring_make(const bench_layer_session *session, bench_cuda_ring *ring, uint64_t bytes) {
    uint32_t count = count_copies(session, bytes);
    ring->bytes = bytes;
    ring->buffers = calloc(count, sizeof *ring->buffers);
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

/* Copies the first buffer to all others. */
static int ring_spread(const bench_cuda_ring *ring) {
    for (uint32_t i = 1; i < ring->count; i++)
        if (cli_cuda_check(cudaMemcpy(ring->buffers[i], ring->buffers[0], ring->bytes, cudaMemcpyDeviceToDevice),
                           "bench: copying weights"))
            return -1;
    return 0;
}

static void ring_free(bench_cuda_ring *ring) {
    for (uint32_t i = 0; i < ring->count; i++)
        cudaFree(ring->buffers[i]);
    free(ring->buffers);
}

/* ---- x and y ---- */

/* x: normal, rounded to its type; the host keeps the rows of the sample. FP8 weights reach up to their type's largest
 * value, so their x is small enough for y to stay within F16. */
static int make_x(bench_layer_session *session) {
    const float scale = trf_dtype_bytes(session->subject.source) == 1 ? 0x1p-8f : 1;
    const uint64_t cols = session->subject.shape.cols, count = session->max_batch * cols;
    const uint64_t kept =
        (session->max_batch < BENCH_CUDA_SAMPLE_BATCH ? session->max_batch : BENCH_CUDA_SAMPLE_BATCH) * cols;
    float *drawn = bench_host_alloc(count * sizeof *drawn);
    uint16_t *bits = bench_host_alloc(count * sizeof *bits);
    session->x_host = bench_host_alloc(kept * sizeof *session->x_host);
    int failed = !drawn || !bits || !session->x_host;
    if (!failed) {
        bench_draw(drawn, count, 0);
        for (uint64_t i = 0; i < count; i++) {
            bits[i] = (uint16_t)cli_float_to_code(scale * drawn[i], session->x_dtype);
            if (i < kept)
                session->x_host[i] = (double)cli_code_to_float(bits[i], session->x_dtype);
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
    const uint32_t rows = session->subject.shape.rows;
    session->num_rows = rows < BENCH_CUDA_SAMPLE_ROWS ? rows : BENCH_CUDA_SAMPLE_ROWS;
    session->rows = bench_host_alloc(session->num_rows * sizeof *session->rows);
    for (uint32_t i = 0; session->rows && i < session->num_rows; i++)
        session->rows[i] = (uint32_t)((uint64_t)i * rows / session->num_rows); /* spread over all of them */
    return session->rows ? 0 : -1;
}

int bench_layer_session_open(bench_layer_session *session) {
    const cli_shape shape = session->subject.shape;
    session->weights = (uint64_t)shape.rows * shape.cols;
    session->x_dtype = strcmp(session->subject.codec, "bf16") == 0 ? TRF_DTYPE_BF16 : TRF_DTYPE_F16;
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

static void compressed_free(bench_cuda_compressed *compressed) {
    for (uint32_t i = 0; i < compressed->num_copies; i++)
        trf_device_layer_destroy(compressed->copies[i]);
    free(compressed->copies);
    trf_layer_free(compressed->layer);
    trf_free(compressed->blob);
    free(compressed->decoded);
    free(compressed->reference);
}

void bench_layer_session_close(bench_layer_session *session) {
    for (int i = 0; i < session->num_compressed; i++)
        compressed_free(&session->compressed[i]);
    ring_free(&session->dense);
    ring_free(&session->decoded);
    ring_free(&session->codes);
    void *const device[] = {session->scales,    session->x,         session->y,
                            session->workspace, session->copy_from, session->copy_to};
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++)
        cudaFree(device[i]);
    free(session->x_host);
    free(session->rows);
}

int bench_cuda_need_workspace(bench_layer_session *session, uint64_t bytes) {
    if (session->workspace && bytes <= session->workspace_bytes)
        return 0;
    cudaFree(session->workspace);
    session->workspace_bytes = bytes;
    session->workspace = cli_cuda_alloc(bytes);
    return session->workspace ? 0 : -1;
}

/* ---- compressed weights ---- */

/* The sampled rows of x . W^T in F64. */
static int make_reference(const bench_layer_session *session, bench_cuda_compressed *compressed) {
    const uint64_t cols = session->subject.shape.cols, row_bytes = cols * trf_dtype_bytes(session->subject.source);
    const uint32_t batch = session->max_batch < BENCH_CUDA_SAMPLE_BATCH ? session->max_batch : BENCH_CUDA_SAMPLE_BATCH;
    float *row = bench_host_alloc(cols * sizeof *row);
    compressed->reference = bench_host_alloc((uint64_t)batch * session->num_rows * sizeof *compressed->reference);
    int failed = !row || !compressed->reference;
    for (uint32_t r = 0; !failed && r < session->num_rows; r++) {
        const char *weights = (const char *)compressed->decoded + session->rows[r] * row_bytes;
        failed = cli_widen(weights, session->subject.source, cols, row);
        for (uint32_t i = 0; !failed && i < batch; i++) {
            double sum = 0;
            for (uint64_t k = 0; k < cols; k++)
                sum += (double)row[k] * session->x_host[i * cols + k];
            compressed->reference[(uint64_t)i * session->num_rows + r] = sum;
        }
    }
    free(row);
    return failed ? -1 : 0;
}

/* Decodes on the device, and counts the weights that differ from the CPU's. */
static int check_weights(const bench_layer_session *session, const bench_cuda_compressed *compressed, uint64_t *wrong) {
    const uint64_t element_bytes = trf_dtype_bytes(session->subject.source), bytes = session->weights * element_bytes;
    trf_error err = {0};
    void *weights = cli_cuda_alloc(bytes);
    char *found = bench_host_alloc(bytes);
    int failed = !weights || !found;
    if (!failed &&
        trf_device_layer_decode(compressed->copies[0], TRF_DECODE_SOURCE, weights, bytes, session->stream, &err))
        failed = report(&err);
    if (!failed)
        failed = cli_cuda_check(cudaStreamSynchronize(session->stream), "bench: decoding") ||
                 cli_cuda_check(cudaMemcpy(found, weights, bytes, cudaMemcpyDeviceToHost), "bench: decoding");
    *wrong = 0;
    if (!failed && memcmp(found, compressed->decoded, bytes) != 0)
        for (uint64_t i = 0; i < session->weights; i++)
            *wrong +=
                memcmp(found + i * element_bytes, (char *)compressed->decoded + i * element_bytes, element_bytes) != 0;
    cudaFree(weights);
    free(found);
    return failed ? -1 : 0;
}

static int upload_copies(const bench_layer_session *session, bench_cuda_compressed *compressed, uint64_t blob_bytes) {
    uint32_t count = count_copies(session, blob_bytes);
    trf_error err = {0};
    compressed->copies = calloc(count, sizeof(trf_device_layer *));
    if (!compressed->copies)
        return -1;
    for (; compressed->num_copies < count; compressed->num_copies++)
        if (trf_device_layer_create(session->context, compressed->layer, &compressed->copies[compressed->num_copies],
                                    &err))
            return report(&err);
    return 0;
}

int bench_cuda_add_compressed(bench_layer_session *session, const void *source, const trf_encode_options *encode,
                              bench_cuda_blob *blob) {
    const cli_shape shape = session->subject.shape;
    bench_cuda_compressed *compressed = &session->compressed[session->num_compressed++];
    trf_error err = {0};
    uint64_t blob_bytes, decoded_bytes = session->weights * trf_dtype_bytes(session->subject.source);
    blob->favor = encode->favor;
    if (trf_encode_layer(source, session->subject.source, shape.rows, shape.cols, encode, &compressed->blob,
                         &blob_bytes, &blob->report, &err) ||
        trf_layer_from_memory(compressed->blob, blob_bytes, &compressed->layer, &err))
        return report(&err);
    compressed->decoded = bench_host_alloc(decoded_bytes);
    if (!compressed->decoded || upload_copies(session, compressed, blob_bytes))
        return -1;
    if (trf_layer_decode(compressed->layer, compressed->decoded, decoded_bytes, encode->threads, &err))
        return report(&err);
    blob->device_bytes = trf_device_layer_bytes(compressed->copies[0]);
    return check_weights(session, compressed, &blob->wrong_weights) || make_reference(session, compressed) ? -1 : 0;
}

/* ---- plain weights ---- */

/* The codes of an int8 layer, and the scale of each row, from what it decodes to. */
static int split_int8(bench_layer_session *session, int8_t *codes, float *scales) {
    const bench_cuda_compressed *compressed = &session->compressed[0];
    const uint64_t rows = session->subject.shape.rows, cols = session->subject.shape.cols;
    const float *values = compressed->decoded; /* its source is F32 */
    trf_error err = {0};
    int16_t *elements = bench_host_alloc(session->weights * sizeof *elements);
    if (!elements)
        return -1;
    int failed = 0;
    if (trf_device_layer_decode(compressed->copies[0], TRF_DECODE_ELEMENTS, session->decoded.buffers[0],
                                session->decoded.bytes, session->stream, &err))
        failed = report(&err);
    failed = failed || cli_cuda_check(cudaStreamSynchronize(session->stream), "bench: decoding") ||
             cli_cuda_check(
                 cudaMemcpy(elements, session->decoded.buffers[0], session->decoded.bytes, cudaMemcpyDeviceToHost),
                 "bench: decoding");
    for (uint64_t r = 0; !failed && r < rows; r++) {
        scales[r] = 1;
        for (uint64_t i = r * cols; i < (r + 1) * cols; i++) {
            codes[i] = (int8_t)elements[i];
            if (elements[i] != 0)
                scales[r] = values[i] / elements[i];
        }
    }
    free(elements);
    return failed ? -1 : 0;
}

/* Uploads 8-bit codes where a plain product by such codes exists: FP8, and INT8 with a scale a row at most. */
static int add_codes(bench_layer_session *session, const void *source, const trf_encode_options *encode) {
    const cli_shape shape = session->subject.shape;
    const int fp8 = trf_dtype_bytes(session->subject.source) == 1;
    const int int8 =
        encode->codec == TRF_CODEC_INT && encode->bits == 0 && encode->granularity <= TRF_GRANULARITY_CHANNEL;
    if ((!fp8 && !int8) || shape.cols % BENCH_RAW8_COLS)
        return 0;
    int failed = ring_make(session, &session->codes, session->weights);
    const void *codes = source;
    void *made = NULL;
    float *scales = NULL;
    session->code_dtype = fp8 ? session->subject.source : TRF_DTYPE_I8;
    if (!failed && int8) {
        codes = made = bench_host_alloc(session->weights);
        scales = bench_host_alloc(shape.rows * sizeof *scales);
        session->scales = cli_cuda_alloc(shape.rows * sizeof *scales);
        failed =
            !made || !scales || !session->scales || split_int8(session, made, scales) ||
            cli_cuda_check(cudaMemcpy(session->scales, scales, shape.rows * sizeof *scales, cudaMemcpyHostToDevice),
                           "bench: copying scales");
    }
    if (!failed)
        failed = cli_cuda_check(cudaMemcpy(session->codes.buffers[0], codes, session->weights, cudaMemcpyHostToDevice),
                                "bench: copying codes") ||
                 ring_spread(&session->codes);
    free(made);
    free(scales);
    return failed ? -1 : 0;
}

int bench_cuda_add_plain(bench_layer_session *session, const void *source, const trf_encode_options *encode) {
    const trf_decode_as as = session->x_dtype == TRF_DTYPE_BF16 ? TRF_DECODE_BF16 : TRF_DECODE_F16;
    trf_error err = {0};
    if (ring_make(session, &session->dense, 2 * session->weights) ||
        ring_make(session, &session->decoded, 2 * session->weights))
        return -1;
    if (trf_device_layer_decode(session->compressed[0].copies[0], as, session->dense.buffers[0], session->dense.bytes,
                                session->stream, &err))
        return report(&err);
    if (cli_cuda_check(cudaStreamSynchronize(session->stream), "bench: decoding") || ring_spread(&session->dense))
        return -1;
    return add_codes(session, source, encode);
}

/* ---- errors ---- */

static double value_of(const void *values, trf_dtype dtype, uint64_t i) {
    return dtype == TRF_DTYPE_F32 ? (double)((const float *)values)[i]
                                  : (double)cli_code_to_float(((const uint16_t *)values)[i], dtype);
}

int bench_cuda_error(bench_layer_session *session, int compressed, uint32_t batch, trf_dtype y_dtype, double *error) {
    const uint64_t rows = session->subject.shape.rows, element_bytes = trf_dtype_bytes(y_dtype);
    const double *reference = session->compressed[compressed].reference;
    const uint32_t sample = batch < BENCH_CUDA_SAMPLE_BATCH ? batch : BENCH_CUDA_SAMPLE_BATCH;
    double energy = 0, difference = 0;
    char *y = bench_host_alloc(sample * rows * element_bytes);
    if (!y)
        return -1;
    int failed = cli_cuda_check(cudaStreamSynchronize(session->stream), "bench: multiplying") ||
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
