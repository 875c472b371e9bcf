/* SPDX-License-Identifier: Apache-2.0 */
/* Looks up batches of random rows, which differ from call to call. */
#include "bench_load_rows_cuda.h"

#include "bench_kernels.h"
#include "bench_memory.h"
#include "bench_table.h"
#include "bench_timer_cuda.h"
#include "bench_weights.h"
#include "cli_cuda.h"
#include "cli_messages.h"
#include "transfuse/device_memory.h"

#include <stdlib.h>
#include <string.h>

enum {
    CALLS = 16, /* in a graph, each with ids of its own */
    MAX_ROWS = 4096
};
static const uint32_t kBatches[] = {1, 64, MAX_ROWS};
enum {
    NUM_BATCHES = sizeof kBatches / sizeof kBatches[0]
};

typedef struct rows_session {
    const bench_request *request;
    const bench_device *device;
    cli_shape shape;
    const uint16_t *weights; /* host */
    trf_device_layer *compressed;
    void *plain, *rows;      /* device: the table, BF16; [MAX_ROWS][cols] */
    int64_t *ids, *ids_host; /* [CALLS * MAX_ROWS]; ids: device */
    uint32_t batch;          /* of the calls that are being queued */
} rows_session;

static int queue_decode(void *context, uint32_t call, cudaStream_t stream) {
    const rows_session *b = context;
    trf_row_request request;
    trf_error err = {0};
    trf_row_request_init(&request);
    request.row_ids = b->ids + (uint64_t)call * b->batch;
    request.id_bytes = sizeof *b->ids;
    request.count = b->batch;
    request.as = TRF_DECODE_BF16;
    request.rows = b->rows;
    request.rows_bytes = 2ull * b->batch * b->shape.cols;
    if (trf_decode_rows(b->compressed, &request, stream, &err))
        return cli_report_error(&err), -1;
    return 0;
}

static int queue_copy_rows(void *context, uint32_t call, cudaStream_t stream) {
    const rows_session *b = context;
    return cli_cuda_check(bench_copy_rows_launch(b->rows, b->plain, 2ull * b->shape.cols,
                                                 b->ids + (uint64_t)call * b->batch, b->batch, stream),
                          "bench: a gather");
}

static int make_table(rows_session *b, const trf_encode_options *encode) {
    trf_error err = {0};
    bench_blob blob = {0};
    trf_load_options load;
    trf_load_options_init(&load);
    load.layout = b->request->options->layout;
    int failed = bench_encode(b->weights, TRF_DTYPE_BF16, b->shape, encode, &blob);
    if (!failed && trf_device_layer_create(b->device->context, blob.bytes, blob.size, &load, &b->compressed, &err)) {
        cli_report_error(&err);
        failed = -1;
    }
    trf_free(blob.bytes);
    return failed;
}

static int make_ids(rows_session *b) {
    const uint64_t count = (uint64_t)CALLS * MAX_ROWS, plain_bytes = 2ull * b->shape.rows * b->shape.cols;
    uint64_t state = 1;
    b->ids_host = bench_alloc(count * sizeof *b->ids_host);
    b->ids = cli_cuda_alloc(count * sizeof *b->ids);
    b->plain = cli_cuda_alloc(plain_bytes);
    b->rows = cli_cuda_alloc(2ull * MAX_ROWS * b->shape.cols);
    if (!b->ids_host || !b->ids || !b->plain || !b->rows)
        return -1;
    for (uint64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        b->ids_host[i] = (int64_t)((state >> 33) % b->shape.rows);
    }
    return cli_cuda_check(cudaMemcpy(b->ids, b->ids_host, count * sizeof *b->ids, cudaMemcpyHostToDevice),
                          "bench: row ids") ||
                   cli_cuda_check(cudaMemcpy(b->plain, b->weights, plain_bytes, cudaMemcpyHostToDevice),
                                  "bench: a table")
               ? -1
               : 0;
}

/* Checks the rows of the last call of the graph that has just run, bit for bit. */
static int check_rows(const rows_session *b) {
    const size_t row_bytes = 2 * (size_t)b->shape.cols;
    uint8_t *found = bench_alloc(b->batch * row_bytes);
    int failed = !found || cli_cuda_check(cudaMemcpy(found, b->rows, b->batch * row_bytes, cudaMemcpyDeviceToHost),
                                          "bench: rows");
    for (uint32_t i = 0; !failed && i < b->batch; i++) {
        const int64_t id = b->ids_host[(uint64_t)(CALLS - 1) * b->batch + i];
        failed = memcmp(found + i * row_bytes, b->weights + (uint64_t)id * b->shape.cols, row_bytes) != 0;
        if (failed)
            cli_fail(TRF_ERR_MISMATCH, "bench: row %lld of the table is decoded wrongly", (long long)id);
    }
    free(found);
    return failed ? -1 : 0;
}

static int measure_batch(rows_session *b, const char *text) {
    static const char *const names[2] = {"gather, plain table", "decode rows"};
    static bench_queue_fn *const queues[2] = {queue_copy_rows, queue_decode};
    const cudaStream_t stream = b->device->stream;
    bench_timer timers[2] = {{0}};
    bench_subject *subject = bench_add_figures_subject(b->request->record, text, b->batch);
    int failed = !subject;
    for (int i = 0; !failed && i < 2; i++) {
        timers[i].figure = bench_add_time(subject, names[i], i ? names[0] : "", 2ull * b->batch * b->shape.cols);
        failed = !timers[i].figure || bench_timer_make(&timers[i], queues[i], b, CALLS, stream);
    }
    /* The last turn of the timers need not be that of the one that decodes. */
    failed = failed || bench_time(timers, 2, b->request->options->repeats, stream) ||
             bench_timer_run(&timers[1], stream) || check_rows(b);
    for (int i = 0; i < 2; i++)
        bench_timer_free(&timers[i]);
    if (!failed)
        bench_print_subject(b->request->style, b->request->record, subject);
    return failed ? -1 : 0;
}

void bench_load_name_weights(const cli_options *options, char text[32]) {
    const char *const codec = options->bench_codecs >> CLI_BENCH_SCALED_FP8 & 1 ? "scaled_fp8" : "bf16";
    if (options->layout == TRF_LAYOUT_CODED)
        snprintf(text, 32, "%s", codec);
    else
        snprintf(text, 32, "%s, %s", codec, trf_layout_name(options->layout));
}

int bench_measure_rows(const bench_request *request, const bench_device *device, cli_shape shape,
                       const uint16_t *weights, const trf_encode_options *encode) {
    rows_session b = {.request = request, .device = device, .shape = shape, .weights = weights};
    char text[80], named[32];
    bench_load_name_weights(request->options, named);
    snprintf(text, sizeof text, "rows of %ux%u %s", shape.rows, shape.cols, named);
    int failed = make_table(&b, encode) || make_ids(&b);
    for (int i = 0; !failed && i < NUM_BATCHES; i++) {
        b.batch = kBatches[i];
        failed = measure_batch(&b, text);
    }
    trf_error err = {0};
    if (!failed && trf_device_layer_check(b.compressed, &err))
        failed = (cli_report_error(&err), -1);
    trf_device_layer_destroy(b.compressed);
    cudaFree(b.plain);
    cudaFree(b.rows);
    cudaFree(b.ids);
    free(b.ids_host);
    return failed ? -1 : 0;
}
