/* The look-up of rows in a compressed table, for bench --mode load: batches of random rows, others in every call. */
#include "bench_cuda_kernels.h"
#include "bench_cuda_load.h"
#include "bench_cuda_modes.h"
#include "bench_cuda_timer.h"
#include "cli_cuda.h"
#include "cli_report.h"

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

typedef struct rows_bench {
    bench_cuda *cuda;
    cli_shape shape;
    const uint16_t *weights; /* host */
    void *blob;
    trf_layer *layer;
    trf_device_layer *compressed;
    void *plain, *rows;      /* device: the table, BF16; [MAX_ROWS][cols] */
    int64_t *ids, *ids_host; /* [CALLS * MAX_ROWS]; ids: device */
    uint32_t batch;          /* of the calls that are being queued */
} rows_bench;

static int queue_decode(void *context, uint32_t call, cudaStream_t stream) {
    const rows_bench *b = context;
    trf_error err = {0};
    if (trf_device_layer_decode_rows(b->compressed, b->ids + (uint64_t)call * b->batch, 8, b->batch, TRF_DECODE_BF16,
                                     b->rows, 2ull * b->batch * b->shape.cols, stream, &err))
        return cli_report_error(&err), -1;
    return 0;
}

static int queue_gather(void *context, uint32_t call, cudaStream_t stream) {
    const rows_bench *b = context;
    return cli_cuda_check(bench_gather_launch(b->rows, b->plain, 2ull * b->shape.cols,
                                              b->ids + (uint64_t)call * b->batch, b->batch, stream),
                          "bench: a gather");
}

static int make_table(rows_bench *b, const trf_encode_options *encode) {
    trf_error err = {0};
    uint64_t blob_bytes;
    if (trf_encode_layer(b->weights, TRF_DTYPE_BF16, b->shape.rows, b->shape.cols, encode, &b->blob, &blob_bytes, NULL,
                         &err) ||
        trf_layer_from_memory(b->blob, blob_bytes, &b->layer, &err) ||
        trf_device_layer_create(bench_cuda_context_of(b->cuda), b->layer, &b->compressed, &err))
        return cli_report_error(&err), -1;
    return 0;
}

static int make_ids(rows_bench *b) {
    const uint64_t count = (uint64_t)CALLS * MAX_ROWS, plain_bytes = 2ull * b->shape.rows * b->shape.cols;
    uint64_t state = 1;
    b->ids_host = malloc(count * sizeof *b->ids_host);
    b->ids = cli_cuda_alloc(count * sizeof *b->ids);
    b->plain = cli_cuda_alloc(plain_bytes);
    b->rows = cli_cuda_alloc(2ull * MAX_ROWS * b->shape.cols);
    if (!b->ids_host)
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory");
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

/* The rows of the last call in the graph, which the timer has run, bit for bit. */
static int check_rows(const rows_bench *b) {
    const size_t row_bytes = 2 * (size_t)b->shape.cols;
    uint8_t *found = malloc(b->batch * row_bytes);
    int failed = !found;
    if (failed)
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory");
    else
        failed =
            cli_cuda_check(cudaMemcpy(found, b->rows, b->batch * row_bytes, cudaMemcpyDeviceToHost), "bench: rows");
    for (uint32_t i = 0; !failed && i < b->batch; i++) {
        const int64_t id = b->ids_host[(uint64_t)(CALLS - 1) * b->batch + i];
        failed = memcmp(found + i * row_bytes, b->weights + (uint64_t)id * b->shape.cols, row_bytes) != 0;
        if (failed)
            cli_fail(TRF_ERR_MISMATCH, "bench: row %lld of the table is decoded wrongly", (long long)id);
    }
    free(found);
    return failed ? -1 : 0;
}

static int run_batch(rows_bench *b, const char *subject) {
    static const char *const kNames[2] = {"gather, plain table", "decode rows"};
    static bench_cuda_queue_fn *const kQueues[2] = {queue_gather, queue_decode};
    bench_cuda_timer timers[2] = {{0}};
    int failed = 0;
    const size_t first = bench_cuda_figures_of(b->cuda)->count;
    for (int i = 0; !failed && i < 2; i++) {
        bench_mode_figure *figure = bench_mode_add(b->cuda, subject, kNames[i], i ? kNames[0] : "", b->batch);
        failed = !figure || bench_cuda_timer_make(&timers[i], kQueues[i], b, CALLS, bench_cuda_stream_of(b->cuda));
        if (figure)
            figure->bytes = 2ull * b->batch * b->shape.cols;
    }
    failed = failed || bench_mode_time(b->cuda, timers, first) || check_rows(b);
    for (int i = 0; i < 2; i++)
        bench_cuda_timer_free(&timers[i]);
    if (!failed)
        bench_mode_print(b->cuda, first);
    return failed ? -1 : 0;
}

int bench_cuda_rows_run(bench_cuda *cuda, cli_shape shape, const void *weights, const trf_encode_options *encode) {
    rows_bench b = {.cuda = cuda, .shape = shape, .weights = weights};
    char subject[80];
    snprintf(subject, sizeof subject, "rows of %ux%u bf16", shape.rows, shape.cols);
    int failed = make_table(&b, encode) || make_ids(&b);
    for (int i = 0; !failed && i < NUM_BATCHES; i++) {
        b.batch = kBatches[i];
        failed = run_batch(&b, subject);
    }
    trf_error err = {0};
    if (!failed && trf_device_layer_check(b.compressed, &err))
        failed = (cli_report_error(&err), -1);
    trf_device_layer_destroy(b.compressed);
    trf_layer_free(b.layer);
    trf_free(b.blob);
    cudaFree(b.plain);
    cudaFree(b.rows);
    cudaFree(b.ids);
    free(b.ids_host);
    return failed ? -1 : 0;
}
