/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_layer_weights_cuda.h"

#include "bench_kernels.h"
#include "bench_memory.h"
#include "cli_cuda.h"
#include "cli_float.h"
#include "cli_messages.h"
#include "transfuse/device_memory.h"

#include <stdlib.h>
#include <string.h>

static int report(const trf_error *err) {
    cli_report_error(err);
    return -1;
}

/* ---- compressed weights ---- */

/* Computes the sampled rows of x . W^T in F64. */
static int make_reference(const bench_layer_session *session, bench_compressed *compressed) {
    const uint64_t cols = session->input->shape.cols, row_bytes = cols * trf_dtype_bytes(session->input->dtype);
    const uint32_t batch = session->max_batch < BENCH_SAMPLE_BATCH ? session->max_batch : BENCH_SAMPLE_BATCH;
    float *row = bench_alloc(cols * sizeof *row);
    compressed->reference = bench_alloc((uint64_t)batch * session->num_rows * sizeof *compressed->reference);
    int failed = !row || !compressed->reference;
    for (uint32_t r = 0; !failed && r < session->num_rows; r++) {
        const char *weights = (const char *)compressed->decoded + session->rows[r] * row_bytes;
        failed = cli_widen(weights, session->input->dtype, cols, row);
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
static int check_weights(const bench_layer_session *session, const bench_compressed *compressed, uint64_t *wrong) {
    const uint64_t element_bytes = trf_dtype_bytes(session->input->dtype), bytes = session->num_weights * element_bytes;
    trf_error err = {0};
    void *weights = cli_cuda_alloc(bytes);
    char *found = bench_alloc(bytes);
    int failed = !weights || !found;
    if (!failed && trf_device_layer_decode(compressed->copies[0], TRF_DECODE_SOURCE, weights, bytes,
                                           session->device->stream, &err))
        failed = report(&err);
    if (!failed)
        failed = cli_cuda_check(cudaStreamSynchronize(session->device->stream), "bench: decoding") ||
                 cli_cuda_check(cudaMemcpy(found, weights, bytes, cudaMemcpyDeviceToHost), "bench: decoding");
    *wrong = 0;
    if (!failed && memcmp(found, compressed->decoded, bytes) != 0)
        for (uint64_t i = 0; i < session->num_weights; i++)
            *wrong +=
                memcmp(found + i * element_bytes, (char *)compressed->decoded + i * element_bytes, element_bytes) != 0;
    cudaFree(weights);
    free(found);
    return failed ? -1 : 0;
}

static int upload_copies(const bench_layer_session *session, bench_compressed *compressed) {
    const bench_blob *blob = &compressed->blob;
    trf_load_options load;
    trf_layer_size size;
    trf_error err = {0};
    trf_load_options_init(&load);
    load.layout = session->options->layout;
    if (trf_device_layer_get_size(session->device->context, blob->bytes, blob->size, &load, &size, &err))
        return report(&err);
    compressed->read_bytes = size.buffer_bytes;
    const uint32_t count = bench_count_copies(session, size.buffer_bytes);
    compressed->copies = bench_alloc_zeros(count, sizeof(trf_device_layer *));
    if (!compressed->copies)
        return -1;
    for (; compressed->num_copies < count; compressed->num_copies++)
        if (trf_device_layer_create(session->device->context, blob->bytes, blob->size, &load,
                                    &compressed->copies[compressed->num_copies], &err))
            return report(&err);
    return 0;
}

/* Decodes the layer on the CPU. */
static int decode_on_host(const bench_layer_session *session, bench_compressed *compressed) {
    const uint64_t bytes = session->num_weights * trf_dtype_bytes(session->input->dtype);
    trf_layer *layer = NULL;
    trf_error err = {0};
    compressed->decoded = bench_alloc(bytes);
    if (!compressed->decoded)
        return -1;
    if (trf_layer_from_memory(compressed->blob.bytes, compressed->blob.size, &layer, &err))
        return report(&err);
    const trf_status status = trf_layer_decode(layer, compressed->decoded, bytes, session->input->encode.threads, &err);
    trf_layer_free(layer);
    return status == TRF_OK ? 0 : report(&err);
}

static void describe_blob(const bench_compressed *compressed, uint64_t wrong_weights, bench_fields *details) {
    const trf_layer_report *found = &compressed->blob.report;
    trf_device_layer_info info;
    trf_device_layer_get_info(compressed->copies[0], &info);
    bench_add_integer(details, "weights", found->weights);
    bench_add_integer(details, "bytes", found->blob_bytes);
    bench_add_integer(details, "device_bytes", info.memory_bytes);
    bench_add_real(details, "bits_per_weight", 8 * cli_ratio(found->blob_bytes, found->weights));
    bench_add_real(details, "device_bits_per_weight", 8 * cli_ratio(info.memory_bytes, found->weights));
    bench_add_real(details, "entropy_bits", found->entropy_bits);
    bench_add_real(details, "relative_rms_error", found->relative_rms_error);
    bench_add_integer(details, "exceptions", found->exceptions);
    bench_add_integer(details, "wrong_weights", wrong_weights);
}

int bench_add_compressed(bench_layer_session *session, trf_favor favor, bench_figure *figure) {
    const bench_layer_input *input = session->input;
    bench_compressed *compressed = &session->compressed[session->num_compressed++];
    trf_encode_options encode = input->encode;
    uint64_t wrong_weights;
    compressed->favor = encode.favor = favor;
    if (bench_encode(bench_input_weights(input, input->dtype), input->dtype, input->shape, &encode,
                     &compressed->blob) ||
        upload_copies(session, compressed) || decode_on_host(session, compressed) ||
        check_weights(session, compressed, &wrong_weights) || make_reference(session, compressed))
        return -1;
    describe_blob(compressed, wrong_weights, &figure->details);
    return 0;
}

/* ---- plain weights ---- */

/* Finds the codes of an int8 layer, and the scale of each row, from what it decodes to. */
static int split_int8(bench_layer_session *session, int8_t *codes, float *scales) {
    const bench_compressed *compressed = &session->compressed[0];
    const uint64_t rows = session->input->shape.rows, cols = session->input->shape.cols;
    const float *values = compressed->decoded; /* its source is F32 */
    trf_error err = {0};
    int16_t *elements = bench_alloc(session->num_weights * sizeof *elements);
    if (!elements)
        return -1;
    int failed = 0;
    if (trf_device_layer_decode(compressed->copies[0], TRF_DECODE_ELEMENTS, session->decoded.buffers[0],
                                session->decoded.bytes, session->device->stream, &err))
        failed = report(&err);
    failed = failed || cli_cuda_check(cudaStreamSynchronize(session->device->stream), "bench: decoding") ||
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

/* Uploads 8-bit codes if a plain product by such codes exists: for FP8, and for INT8 with at most one scale a row. */
static int add_codes(bench_layer_session *session) {
    const trf_encode_options *encode = &session->input->encode;
    const cli_shape shape = session->input->shape;
    const int fp8 = trf_dtype_bytes(session->input->dtype) == 1;
    const int int8 =
        encode->codec == TRF_CODEC_INT && encode->bits == 0 && encode->granularity <= TRF_GRANULARITY_CHANNEL;
    if ((!fp8 && !int8) || shape.cols % BENCH_RAW8_COLS)
        return 0;
    int failed = bench_ring_make(session, &session->raw8_weights, session->num_weights);
    const void *codes = bench_input_weights(session->input, session->input->dtype);
    void *made = NULL;
    float *scales = NULL;
    session->raw8_dtype = fp8 ? session->input->dtype : TRF_DTYPE_I8;
    if (!failed && int8) {
        codes = made = bench_alloc(session->num_weights);
        scales = bench_alloc(shape.rows * sizeof *scales);
        session->scales = cli_cuda_alloc(shape.rows * sizeof *scales);
        failed =
            !made || !scales || !session->scales || split_int8(session, made, scales) ||
            cli_cuda_check(cudaMemcpy(session->scales, scales, shape.rows * sizeof *scales, cudaMemcpyHostToDevice),
                           "bench: copying scales");
    }
    if (!failed)
        failed = cli_cuda_check(
                     cudaMemcpy(session->raw8_weights.buffers[0], codes, session->num_weights, cudaMemcpyHostToDevice),
                     "bench: copying codes") ||
                 bench_ring_spread(&session->raw8_weights);
    free(made);
    free(scales);
    return failed ? -1 : 0;
}

int bench_add_dense(bench_layer_session *session) {
    const trf_decode_as as = session->x_dtype == TRF_DTYPE_BF16 ? TRF_DECODE_BF16 : TRF_DECODE_F16;
    trf_error err = {0};
    if (bench_ring_make(session, &session->dense, 2 * session->num_weights) ||
        bench_ring_make(session, &session->decoded, 2 * session->num_weights))
        return -1;
    if (trf_device_layer_decode(session->compressed[0].copies[0], as, session->dense.buffers[0], session->dense.bytes,
                                session->device->stream, &err))
        return report(&err);
    if (cli_cuda_check(cudaStreamSynchronize(session->device->stream), "bench: decoding") ||
        bench_ring_spread(&session->dense))
        return -1;
    return add_codes(session);
}
