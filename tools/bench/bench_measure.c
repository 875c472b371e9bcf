#include "bench.h"

#include "cli_report.h"

#include <limits.h>
#include <lz4.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

/* ---- times ---- */

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(const bench_times *times) {
    double sorted[CLI_MAX_REPEATS];
    if (!times->count)
        return 0;
    memcpy(sorted, times->seconds, (size_t)times->count * sizeof *sorted);
    qsort(sorted, (size_t)times->count, sizeof *sorted, compare_doubles);
    int middle = times->count / 2;
    return times->count % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double bench_min(const bench_times *times) {
    double best = times->count ? times->seconds[0] : 0;
    for (int i = 1; i < times->count; i++)
        best = times->seconds[i] < best ? times->seconds[i] : best;
    return best;
}

double bench_max(const bench_times *times) {
    double worst = 0;
    for (int i = 0; i < times->count; i++)
        worst = times->seconds[i] > worst ? times->seconds[i] : worst;
    return worst;
}

static int fail_memory(uint64_t bytes) {
    cli_fail(TRF_ERR_MEMORY, "bench: out of memory for %llu bytes", (unsigned long long)bytes);
    return -1;
}

/* Calls work once to warm up, then `repeats` times with a clock. @return 0, or -1 after a message. */
static int time_repeats(int repeats, int (*work)(void *context), void *context, bench_times *times) {
    times->seconds = calloc((size_t)repeats, sizeof *times->seconds);
    if (!times->seconds)
        return fail_memory((uint64_t)repeats * sizeof *times->seconds);
    if (work(context))
        return -1;
    for (int i = 0; i < repeats; i++) {
        double start = cli_now();
        if (work(context))
            return -1;
        times->seconds[i] = cli_now() - start;
        times->count = i + 1;
    }
    return 0;
}

/* ---- this library ---- */

typedef struct codec_work {
    const void *source;
    trf_dtype dtype;
    cli_shape shape;
    trf_encode_options encode;
    trf_layer_report *report;
    void *blob;
    uint64_t blob_bytes;
    trf_layer *layer;
    void *decoded;
    uint64_t decoded_bytes;
    float *x, *y;
    uint32_t batch;
    int threads;
} codec_work;

static int run_encode(void *context) {
    codec_work *work = context;
    trf_error err = {0};
    trf_free(work->blob);
    work->blob = NULL;
    if (!trf_encode_layer(work->source, work->dtype, work->shape.rows, work->shape.cols, &work->encode, &work->blob,
                          &work->blob_bytes, work->report, &err))
        return 0;
    cli_report_error(&err);
    return -1;
}

static int run_decode(void *context) {
    codec_work *work = context;
    trf_error err = {0};
    if (!trf_layer_decode(work->layer, work->decoded, work->decoded_bytes, work->threads, &err))
        return 0;
    cli_report_error(&err);
    return -1;
}

static int run_matmul(void *context) {
    codec_work *work = context;
    trf_error err = {0};
    if (!trf_layer_matmul_cpu(work->layer, work->x, work->batch, work->y, work->threads, &err))
        return 0;
    cli_report_error(&err);
    return -1;
}

static int measure_decoding(codec_work *work, int repeats, bench_result *result) {
    uint64_t weights = (uint64_t)work->shape.rows * work->shape.cols;
    work->decoded_bytes = weights * trf_dtype_bytes(work->dtype);
    work->decoded = malloc(work->decoded_bytes);
    if (!work->decoded)
        return fail_memory(work->decoded_bytes);
    if (time_repeats(repeats, run_decode, work, &result->decode))
        return -1;
    if (result->info.codec != TRF_CODEC_INT && memcmp(work->decoded, work->source, work->decoded_bytes)) {
        cli_fail(TRF_ERR_MISMATCH, "bench: %s: the decoded weights differ from the source", result->subject.codec);
        return -1;
    }
    return 0;
}

static int measure_products(codec_work *work, const cli_options *options, int repeats, bench_result *result) {
    for (int i = 0; i < options->num_batches; i++) {
        uint64_t x_count = (uint64_t)options->batches[i] * work->shape.cols;
        uint64_t y_count = (uint64_t)options->batches[i] * work->shape.rows;
        work->batch = options->batches[i];
        work->x = malloc(x_count * sizeof *work->x);
        work->y = malloc(y_count * sizeof *work->y);
        int failed = -1;
        if (work->x && work->y) {
            bench_draw(work->x, x_count, 0);
            failed = time_repeats(repeats, run_matmul, work, &result->matmul[i]);
        } else {
            fail_memory((x_count + y_count) * sizeof *work->x);
        }
        free(work->x);
        free(work->y);
        if (failed)
            return -1;
    }
    return 0;
}

static int measure_all(codec_work *work, const cli_options *options, int repeats, bench_result *result) {
    work->encode.verify = 0;
    if (time_repeats(repeats, run_encode, work, &result->encode))
        return -1;
    work->encode.verify = 1;
    if (time_repeats(repeats, run_encode, work, &result->encode_verified))
        return -1;

    trf_error err = {0};
    if (trf_layer_from_memory(work->blob, work->blob_bytes, &work->layer, &err)) {
        cli_report_error(&err);
        return -1;
    }
    trf_layer_get_info(work->layer, &result->info);
    return measure_decoding(work, repeats, result) || measure_products(work, options, repeats, result) ? -1 : 0;
}

int bench_measure_codec(const cli_options *options, int repeats, const void *source, const trf_encode_options *encode,
                        bench_result *result) {
    codec_work work = {
        .source = source,
        .dtype = result->subject.source,
        .shape = result->subject.shape,
        .encode = *encode,
        .report = &result->report,
        .threads = options->threads,
    };
    result->favor = encode->favor;
    int failed = measure_all(&work, options, repeats, result);
    trf_layer_free(work.layer);
    trf_free(work.blob);
    free(work.decoded);
    return failed;
}

void bench_result_free(bench_result *result) {
    free(result->encode.seconds);
    free(result->encode_verified.seconds);
    free(result->decode.seconds);
    for (int i = 0; i < CLI_MAX_LIST; i++)
        free(result->matmul[i].seconds);
}

/* ---- LZ4 and zstd ---- */

/* LZ4 takes no more than 2 GB at once; a chunk this large loses nothing. */
static const uint64_t kChunkBytes = 1 << 30;

typedef struct baseline_work {
    const char *source;
    uint64_t source_bytes, capacity;
    char *compressed, *decompressed;
    uint64_t *chunk_bytes; /* compressed */
    uint64_t num_chunks;
    ZSTD_CCtx *compressor; /* NULL: LZ4 */
    ZSTD_DCtx *decompressor;
} baseline_work;

static uint64_t chunk_length(const baseline_work *work, uint64_t chunk) {
    uint64_t rest = work->source_bytes - chunk * kChunkBytes;
    return rest < kChunkBytes ? rest : kChunkBytes;
}

static int run_compress(void *context) {
    baseline_work *work = context;
    uint64_t used = 0;
    for (uint64_t i = 0; i < work->num_chunks; i++) {
        const char *source = work->source + i * kChunkBytes;
        uint64_t length = chunk_length(work, i), room = work->capacity - used, compressed;
        if (work->compressor) {
            compressed =
                ZSTD_compressCCtx(work->compressor, work->compressed + used, room, source, length, ZSTD_CLEVEL_DEFAULT);
            compressed = ZSTD_isError(compressed) ? 0 : compressed;
        } else {
            int limit = room < INT_MAX ? (int)room : INT_MAX;
            compressed = (uint64_t)LZ4_compress_default(source, work->compressed + used, (int)length, limit);
        }
        if (compressed == 0) {
            cli_fail(TRF_ERR_UNSUPPORTED, "bench: %s failed to compress", work->compressor ? "zstd" : "lz4");
            return -1;
        }
        work->chunk_bytes[i] = compressed;
        used += compressed;
    }
    return 0;
}

static int run_decompress(void *context) {
    baseline_work *work = context;
    const char *compressed = work->compressed;
    for (uint64_t i = 0; i < work->num_chunks; compressed += work->chunk_bytes[i++]) {
        char *target = work->decompressed + i * kChunkBytes;
        uint64_t length = chunk_length(work, i), bytes = work->chunk_bytes[i], got;
        if (work->compressor)
            got = ZSTD_decompressDCtx(work->decompressor, target, length, compressed, bytes);
        else
            got = (uint64_t)LZ4_decompress_safe(compressed, target, (int)bytes, (int)length);
        if (got != length) {
            cli_fail(TRF_ERR_UNSUPPORTED, "bench: %s failed to decompress", work->compressor ? "zstd" : "lz4");
            return -1;
        }
    }
    return 0;
}

static uint64_t compressed_bound(const baseline_work *work) {
    uint64_t bound = 0;
    for (uint64_t i = 0; i < work->num_chunks; i++) {
        uint64_t length = chunk_length(work, i);
        bound += work->compressor ? ZSTD_compressBound(length) : (uint64_t)LZ4_compressBound((int)length);
    }
    return bound;
}

int bench_measure_baseline(const char *compressor, int repeats, const void *source, bench_baseline *baseline) {
    int zstd = strcmp(compressor, "zstd") == 0, failed = -1;
    baseline_work work = {
        .source = source,
        .source_bytes = baseline->source_bytes,
        .num_chunks = (baseline->source_bytes + kChunkBytes - 1) / kChunkBytes,
        .compressor = zstd ? ZSTD_createCCtx() : NULL,
        .decompressor = zstd ? ZSTD_createDCtx() : NULL,
    };
    work.capacity = compressed_bound(&work);
    work.compressed = malloc(work.capacity);
    work.decompressed = malloc(work.source_bytes);
    work.chunk_bytes = calloc(work.num_chunks, sizeof *work.chunk_bytes);
    baseline->compressor = compressor;
    if (!work.compressed || !work.decompressed || !work.chunk_bytes ||
        (zstd && (!work.compressor || !work.decompressor)))
        fail_memory(work.capacity + work.source_bytes);
    else
        failed = time_repeats(repeats, run_compress, &work, &baseline->compress) ||
                 time_repeats(repeats, run_decompress, &work, &baseline->decompress);
    for (uint64_t i = 0; !failed && i < work.num_chunks; i++)
        baseline->bytes += work.chunk_bytes[i];
    ZSTD_freeCCtx(work.compressor);
    ZSTD_freeDCtx(work.decompressor);
    free(work.compressed);
    free(work.decompressed);
    free(work.chunk_bytes);
    return failed ? -1 : 0;
}

void bench_baseline_free(bench_baseline *baseline) {
    free(baseline->compress.seconds);
    free(baseline->decompress.seconds);
}
