/* transfuse bench: synthetic weights, what is measured on them, and where the figures go. */
#ifndef BENCH_H
#define BENCH_H

#include "cli_options.h"

#include <stdio.h>

typedef struct bench_times {
    double *seconds; /* one for each run */
    int count;
} bench_times;

/* What was compressed. */
typedef struct bench_subject {
    cli_shape shape;
    double sigma;
    char codec[24];   /* "bf16" ... "int8", "bits:4.25" */
    trf_dtype source; /* of the weights that the codec was given */
} bench_subject;

typedef struct bench_result {
    bench_subject subject;
    trf_favor favor;
    trf_layer_report report;
    trf_layer_info info;
    bench_times encode, encode_verified, decode;
    bench_times matmul[CLI_MAX_LIST]; /* one for each of the options' batches */
} bench_result;

/* A general-purpose compressor on the same weights. */
typedef struct bench_baseline {
    bench_subject subject;
    const char *compressor;
    trf_dtype input; /* the subject's source, or I8: the plain codes of int8 */
    uint64_t weights, source_bytes, bytes;
    bench_times compress, decompress;
} bench_baseline;

typedef struct bench_environment {
    char cpu[128], date[32]; /* UTC, ISO 8601 */
    const char *version, *lz4_version, *zstd_version, *distribution;
    int threads, repeats;
} bench_environment;

typedef struct bench_cuda bench_cuda; /* bench_cuda.h */

typedef struct bench_log {
    bench_environment environment;
    const cli_options *options;
    bench_cuda *cuda; /* NULL: measured on the CPU */
    bench_result *results;
    bench_baseline *baselines;
    size_t num_results, num_baselines;
} bench_log;

/* ---- bench_weights.c ---- */

/* Fills n weights of scale 1: normal, or Student-t with 5 degrees of freedom. Always the same ones. */
void bench_draw(float *weights, uint64_t n, int student_t);

/* weights: n of scale 1. Multiplies them by sigma and rounds them to dtype, as a checkpoint of that type would hold
 * them: FP8 weights are scaled so that the largest takes the type's largest value; I8 ones likewise, row by row.
 * target: n elements of dtype. */
void bench_make_source(const float *weights, cli_shape shape, double sigma, trf_dtype dtype, void *target);

/* ---- bench_measure.c: each returns 0, or -1 after a message ---- */

/* Encodes, decodes and multiplies source; fills all of *result but its subject. The decoded weights of lossless codecs
 * are compared. Release with bench_result_free in either case. */
int bench_measure_codec(const cli_options *options, int repeats, const void *source, const trf_encode_options *encode,
                        bench_result *result);
void bench_result_free(bench_result *result);

/* compressor: "lz4" or "zstd", at the library's default level, in one thread. */
int bench_measure_baseline(const char *compressor, int repeats, const void *source, bench_baseline *baseline);
void bench_baseline_free(bench_baseline *baseline);

double bench_median(const bench_times *times);
double bench_min(const bench_times *times);
double bench_max(const bench_times *times);

/* ---- bench_output.c ---- */

void bench_print_heading(const bench_log *log);
void bench_print_result(const bench_log *log, const bench_result *result);
void bench_print_baseline(const bench_baseline *baseline);

/* Every figure that was measured, run by run. Errors, without a message: TRF_ERR_MEMORY, TRF_ERR_IO. */
trf_status bench_write_json(const bench_log *log, FILE *file);
trf_status bench_write_csv(const bench_log *log, FILE *file);

#endif
