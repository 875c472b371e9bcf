#include "bench_cuda_stand.h"

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
static uint32_t count_copies(const bench_cuda_stand *stand, uint64_t bytes) {
    uint64_t count = (4 * stand->l2_bytes + bytes - 1) / bytes;
    return count < BENCH_CUDA_MIN_COPIES   ? BENCH_CUDA_MIN_COPIES
           : count > BENCH_CUDA_MAX_COPIES ? BENCH_CUDA_MAX_COPIES
                                           : (uint32_t)count;
}

static int ring_make(const bench_cuda_stand *stand, bench_cuda_ring *ring, uint64_t bytes) {
    uint32_t count = count_copies(stand, bytes);
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
static int make_x(bench_cuda_stand *stand) {
    const float scale = trf_dtype_bytes(stand->subject.source) == 1 ? 0x1p-8f : 1;
    const uint64_t cols = stand->subject.shape.cols, count = stand->max_batch * cols;
    const uint64_t kept =
        (stand->max_batch < BENCH_CUDA_SAMPLE_BATCH ? stand->max_batch : BENCH_CUDA_SAMPLE_BATCH) * cols;
    float *drawn = bench_host_alloc(count * sizeof *drawn);
    uint16_t *bits = bench_host_alloc(count * sizeof *bits);
    stand->x_host = bench_host_alloc(kept * sizeof *stand->x_host);
    int failed = !drawn || !bits || !stand->x_host;
    if (!failed) {
        bench_draw(drawn, count, 0);
        for (uint64_t i = 0; i < count; i++) {
            bits[i] = (uint16_t)cli_float_to_code(scale * drawn[i], stand->x_dtype);
            if (i < kept)
                stand->x_host[i] = (double)cli_code_to_float(bits[i], stand->x_dtype);
        }
        stand->x = cli_cuda_alloc(count * sizeof *bits);
        failed = !stand->x || cli_cuda_check(cudaMemcpy(stand->x, bits, count * sizeof *bits, cudaMemcpyHostToDevice),
                                             "bench: copying x");
    }
    free(drawn);
    free(bits);
    return failed ? -1 : 0;
}

static int choose_rows(bench_cuda_stand *stand) {
    const uint32_t rows = stand->subject.shape.rows;
    stand->num_rows = rows < BENCH_CUDA_SAMPLE_ROWS ? rows : BENCH_CUDA_SAMPLE_ROWS;
    stand->rows = bench_host_alloc(stand->num_rows * sizeof *stand->rows);
    for (uint32_t i = 0; stand->rows && i < stand->num_rows; i++)
        stand->rows[i] = (uint32_t)((uint64_t)i * rows / stand->num_rows); /* spread over all of them */
    return stand->rows ? 0 : -1;
}

int bench_cuda_stand_open(bench_cuda_stand *stand) {
    const cli_shape shape = stand->subject.shape;
    stand->weights = (uint64_t)shape.rows * shape.cols;
    stand->x_dtype = strcmp(stand->subject.codec, "bf16") == 0 ? TRF_DTYPE_BF16 : TRF_DTYPE_F16;
    for (int i = 0; i < stand->plan->num_batches; i++)
        stand->max_batch = stand->plan->batches[i] > stand->max_batch ? stand->plan->batches[i] : stand->max_batch;
    stand->y = cli_cuda_alloc((uint64_t)stand->max_batch * shape.rows * sizeof(float));
    if (!stand->y || choose_rows(stand) || make_x(stand))
        return -1;
    stand->copy_from = cli_cuda_alloc(kBenchCopyBytes);
    stand->copy_to = stand->copy_from ? cli_cuda_alloc(kBenchCopyBytes) : NULL;
    return stand->copy_to ? cli_cuda_check(cudaMemset(stand->copy_from, 1, kBenchCopyBytes), "bench: device memory")
                          : -1;
}

static void packed_free(bench_cuda_packed *packed) {
    for (uint32_t i = 0; i < packed->num_copies; i++)
        trf_device_layer_destroy(packed->copies[i]);
    free(packed->copies);
    trf_layer_free(packed->layer);
    trf_free(packed->blob);
    free(packed->decoded);
    free(packed->reference);
}

void bench_cuda_stand_close(bench_cuda_stand *stand) {
    for (int i = 0; i < stand->num_packed; i++)
        packed_free(&stand->packed[i]);
    ring_free(&stand->dense);
    ring_free(&stand->decoded);
    ring_free(&stand->codes);
    void *const device[] = {stand->scales, stand->x, stand->y, stand->workspace, stand->copy_from, stand->copy_to};
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++)
        cudaFree(device[i]);
    free(stand->x_host);
    free(stand->rows);
}

int bench_cuda_need_workspace(bench_cuda_stand *stand, uint64_t bytes) {
    if (stand->workspace && bytes <= stand->workspace_bytes)
        return 0;
    cudaFree(stand->workspace);
    stand->workspace_bytes = bytes;
    stand->workspace = cli_cuda_alloc(bytes);
    return stand->workspace ? 0 : -1;
}

/* ---- compressed weights ---- */

/* The sampled rows of x . W^T in F64. */
static int make_reference(const bench_cuda_stand *stand, bench_cuda_packed *packed) {
    const uint64_t cols = stand->subject.shape.cols, row_bytes = cols * trf_dtype_bytes(stand->subject.source);
    const uint32_t batch = stand->max_batch < BENCH_CUDA_SAMPLE_BATCH ? stand->max_batch : BENCH_CUDA_SAMPLE_BATCH;
    float *row = bench_host_alloc(cols * sizeof *row);
    packed->reference = bench_host_alloc((uint64_t)batch * stand->num_rows * sizeof *packed->reference);
    int failed = !row || !packed->reference;
    for (uint32_t r = 0; !failed && r < stand->num_rows; r++) {
        const char *weights = (const char *)packed->decoded + stand->rows[r] * row_bytes;
        failed = cli_widen(weights, stand->subject.source, cols, row);
        for (uint32_t i = 0; !failed && i < batch; i++) {
            double sum = 0;
            for (uint64_t k = 0; k < cols; k++)
                sum += (double)row[k] * stand->x_host[i * cols + k];
            packed->reference[(uint64_t)i * stand->num_rows + r] = sum;
        }
    }
    free(row);
    return failed ? -1 : 0;
}

/* Decodes on the device, and counts the weights that differ from the CPU's. */
static int check_weights(const bench_cuda_stand *stand, const bench_cuda_packed *packed, uint64_t *wrong) {
    const uint64_t element_bytes = trf_dtype_bytes(stand->subject.source), bytes = stand->weights * element_bytes;
    trf_error err = {0};
    void *weights = cli_cuda_alloc(bytes);
    char *found = bench_host_alloc(bytes);
    int failed = !weights || !found;
    if (!failed && trf_device_layer_decode(packed->copies[0], TRF_DECODE_SOURCE, weights, bytes, stand->stream, &err))
        failed = report(&err);
    if (!failed)
        failed = cli_cuda_check(cudaStreamSynchronize(stand->stream), "bench: decoding") ||
                 cli_cuda_check(cudaMemcpy(found, weights, bytes, cudaMemcpyDeviceToHost), "bench: decoding");
    *wrong = 0;
    if (!failed && memcmp(found, packed->decoded, bytes) != 0)
        for (uint64_t i = 0; i < stand->weights; i++)
            *wrong +=
                memcmp(found + i * element_bytes, (char *)packed->decoded + i * element_bytes, element_bytes) != 0;
    cudaFree(weights);
    free(found);
    return failed ? -1 : 0;
}

static int upload_copies(const bench_cuda_stand *stand, bench_cuda_packed *packed, uint64_t blob_bytes) {
    uint32_t count = count_copies(stand, blob_bytes);
    trf_error err = {0};
    packed->copies = calloc(count, sizeof(trf_device_layer *));
    if (!packed->copies)
        return -1;
    for (; packed->num_copies < count; packed->num_copies++)
        if (trf_device_layer_create(stand->context, packed->layer, &packed->copies[packed->num_copies], &err))
            return report(&err);
    return 0;
}

int bench_cuda_add_packed(bench_cuda_stand *stand, const void *source, const trf_encode_options *encode,
                          bench_cuda_blob *blob) {
    const cli_shape shape = stand->subject.shape;
    bench_cuda_packed *packed = &stand->packed[stand->num_packed++];
    trf_error err = {0};
    uint64_t blob_bytes, decoded_bytes = stand->weights * trf_dtype_bytes(stand->subject.source);
    blob->favor = encode->favor;
    if (trf_encode_layer(source, stand->subject.source, shape.rows, shape.cols, encode, &packed->blob, &blob_bytes,
                         &blob->report, &err) ||
        trf_layer_from_memory(packed->blob, blob_bytes, &packed->layer, &err))
        return report(&err);
    packed->decoded = bench_host_alloc(decoded_bytes);
    if (!packed->decoded || upload_copies(stand, packed, blob_bytes))
        return -1;
    if (trf_layer_decode(packed->layer, packed->decoded, decoded_bytes, encode->threads, &err))
        return report(&err);
    blob->device_bytes = trf_device_layer_bytes(packed->copies[0]);
    return check_weights(stand, packed, &blob->wrong_weights) || make_reference(stand, packed) ? -1 : 0;
}

/* ---- plain weights ---- */

/* The codes of an int8 layer, and the scale of each row, from what it decodes to. */
static int split_int8(bench_cuda_stand *stand, int8_t *codes, float *scales) {
    const bench_cuda_packed *packed = &stand->packed[0];
    const uint64_t rows = stand->subject.shape.rows, cols = stand->subject.shape.cols;
    const float *values = packed->decoded; /* its source is F32 */
    trf_error err = {0};
    int16_t *elements = bench_host_alloc(stand->weights * sizeof *elements);
    if (!elements)
        return -1;
    int failed = 0;
    if (trf_device_layer_decode(packed->copies[0], TRF_DECODE_ELEMENTS, stand->decoded.buffers[0], stand->decoded.bytes,
                                stand->stream, &err))
        failed = report(&err);
    failed =
        failed || cli_cuda_check(cudaStreamSynchronize(stand->stream), "bench: decoding") ||
        cli_cuda_check(cudaMemcpy(elements, stand->decoded.buffers[0], stand->decoded.bytes, cudaMemcpyDeviceToHost),
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
static int add_codes(bench_cuda_stand *stand, const void *source, const trf_encode_options *encode) {
    const cli_shape shape = stand->subject.shape;
    const int fp8 = trf_dtype_bytes(stand->subject.source) == 1;
    const int int8 =
        encode->codec == TRF_CODEC_INT && encode->bits == 0 && encode->granularity <= TRF_GRANULARITY_CHANNEL;
    if ((!fp8 && !int8) || shape.cols % BENCH_RAW8_COLS)
        return 0;
    int failed = ring_make(stand, &stand->codes, stand->weights);
    const void *codes = source;
    void *made = NULL;
    float *scales = NULL;
    stand->code_dtype = fp8 ? stand->subject.source : TRF_DTYPE_I8;
    if (!failed && int8) {
        codes = made = bench_host_alloc(stand->weights);
        scales = bench_host_alloc(shape.rows * sizeof *scales);
        stand->scales = cli_cuda_alloc(shape.rows * sizeof *scales);
        failed = !made || !scales || !stand->scales || split_int8(stand, made, scales) ||
                 cli_cuda_check(cudaMemcpy(stand->scales, scales, shape.rows * sizeof *scales, cudaMemcpyHostToDevice),
                                "bench: copying scales");
    }
    if (!failed)
        failed = cli_cuda_check(cudaMemcpy(stand->codes.buffers[0], codes, stand->weights, cudaMemcpyHostToDevice),
                                "bench: copying codes") ||
                 ring_spread(&stand->codes);
    free(made);
    free(scales);
    return failed ? -1 : 0;
}

int bench_cuda_add_plain(bench_cuda_stand *stand, const void *source, const trf_encode_options *encode) {
    const trf_decode_as as = stand->x_dtype == TRF_DTYPE_BF16 ? TRF_DECODE_BF16 : TRF_DECODE_F16;
    trf_error err = {0};
    if (ring_make(stand, &stand->dense, 2 * stand->weights) || ring_make(stand, &stand->decoded, 2 * stand->weights))
        return -1;
    if (trf_device_layer_decode(stand->packed[0].copies[0], as, stand->dense.buffers[0], stand->dense.bytes,
                                stand->stream, &err))
        return report(&err);
    if (cli_cuda_check(cudaStreamSynchronize(stand->stream), "bench: decoding") || ring_spread(&stand->dense))
        return -1;
    return add_codes(stand, source, encode);
}

/* ---- errors ---- */

static double value_of(const void *values, trf_dtype dtype, uint64_t i) {
    return dtype == TRF_DTYPE_F32 ? (double)((const float *)values)[i]
                                  : (double)cli_code_to_float(((const uint16_t *)values)[i], dtype);
}

int bench_cuda_error(bench_cuda_stand *stand, int packed, uint32_t batch, trf_dtype y_dtype, double *error) {
    const uint64_t rows = stand->subject.shape.rows, element_bytes = trf_dtype_bytes(y_dtype);
    const double *reference = stand->packed[packed].reference;
    const uint32_t sample = batch < BENCH_CUDA_SAMPLE_BATCH ? batch : BENCH_CUDA_SAMPLE_BATCH;
    double energy = 0, difference = 0;
    char *y = bench_host_alloc(sample * rows * element_bytes);
    if (!y)
        return -1;
    int failed = cli_cuda_check(cudaStreamSynchronize(stand->stream), "bench: multiplying") ||
                 cli_cuda_check(cudaMemcpy(y, stand->y, sample * rows * element_bytes, cudaMemcpyDeviceToHost),
                                "bench: reading y");
    for (uint32_t i = 0; !failed && i < sample; i++)
        for (uint32_t r = 0; r < stand->num_rows; r++) {
            double expected = reference[(uint64_t)i * stand->num_rows + r];
            double off = value_of(y, y_dtype, i * rows + stand->rows[r]) - expected;
            energy += expected * expected;
            difference += off * off;
        }
    *error = energy > 0 ? sqrt(difference / energy) : sqrt(difference);
    free(y);
    return failed ? -1 : 0;
}
