/* transfuse bench --device cuda: what it measures, and how. All but the type's name needs device code in the build.
 *
 * A *case* is one thing that is timed: a CUDA graph of several calls in a row, each on another copy of the weights, so
 * that none of them is in the cache. All cases of one layer and codec take turns, round by round, so that a change of
 * clocks meets all of them alike. */
#ifndef BENCH_CUDA_H
#define BENCH_CUDA_H

#include "bench.h"
#include "cli_json.h"

/* What a case times. */
typedef enum bench_cuda_kind {
    BENCH_CUDA_FUSED,
    BENCH_CUDA_WIDE,
    BENCH_CUDA_TWO_STEP,
    BENCH_CUDA_AHEAD,    /* the same in a chain, each layer decoded beside the product before it: of batch sweeps */
    BENCH_CUDA_AUTO,     /* the path that a plan takes by itself: of batch sweeps */
    BENCH_CUDA_DECODE,   /* to dense 16-bit weights */
    BENCH_CUDA_CUBLASLT, /* the product with these */
    BENCH_CUDA_RAW8,     /* the product with plain 8-bit codes */
    BENCH_CUDA_COPY,     /* of device memory */
    BENCH_CUDA_KINDS
} bench_cuda_kind;

/* One measurement, as it is kept and written. */
typedef struct bench_cuda_figure {
    bench_cuda_kind kind;
    int favor;      /* trf_favor, or -1 where no compressed weights are read */
    uint32_t batch; /* 0 for decoding and copying */
    uint32_t calls, copies;
    uint64_t bytes_read, bytes_written; /* by a call: weights, not x and y */
    const char *reason;                 /* why there are no times: a static string, or NULL */
    char algorithm[64];                 /* of cuBLASLt: which candidate */
    int has_error;
    double error, error_f32; /* relative to the product in F64: of y as timed, in x's type, and of F32 y */
    bench_times times;       /* a call's, in seconds */
} bench_cuda_figure;

/* A compressed layer. */
typedef struct bench_cuda_blob {
    trf_favor favor;
    trf_layer_report report;
    uint64_t device_bytes, wrong_weights;
} bench_cuda_blob;

/* One layer and codec. */
typedef struct bench_cuda_result {
    bench_subject subject;
    bench_cuda_blob blobs[2]; /* one for each favor that was measured */
    int num_blobs;
    bench_cuda_figure *figures;
    size_t num_figures;
} bench_cuda_result;

typedef struct bench_cuda_environment {
    char gpu[128], driver[64], commit[64];
    int capability, multiprocessors;
    uint64_t l2_bytes;
    int driver_cuda, runtime_cuda; /* as cudaRuntimeGetVersion */
    uint64_t cublaslt;             /* as cublasLtGetVersion; 0: not found */
} bench_cuda_environment;

/* ---- bench_cuda.c; functions that return an int return 0, or -1 after a message ---- */

/* Opens log->cuda, which bench_cuda_end releases. log, context: outlive it. */
int bench_cuda_begin(bench_log *log, trf_context *context);
void bench_cuda_end(bench_cuda *cuda); /* NULL is allowed */

/* Encodes source with every favor that the options ask for, and measures all there is to measure. */
int bench_cuda_measure(bench_cuda *cuda, const bench_subject *subject, const void *source,
                       const trf_encode_options *encode);

/* @return CLI_OK, or CLI_FAILED after a message if any weight was not decoded to what the CPU decodes it to. */
cli_exit bench_cuda_verdict(const bench_cuda *cuda);

/* @return memory of the host, to be released with free; NULL after a message. */
void *bench_host_alloc(uint64_t bytes);

/* What it holds. */
const bench_log *bench_cuda_log_of(const bench_cuda *cuda);
trf_context *bench_cuda_context_of(const bench_cuda *cuda);
trf_stream bench_cuda_stream_of(const bench_cuda *cuda);
struct bench_cublaslt *bench_cuda_lt_of(const bench_cuda *cuda);
struct bench_mode_figures *bench_cuda_figures_of(bench_cuda *cuda); /* of a mode other than layers */
const bench_cuda_environment *bench_cuda_environment_of(const bench_cuda *cuda);
const bench_cuda_result *bench_cuda_results(const bench_cuda *cuda, size_t *count);

/* ---- bench_cuda_output.c ---- */

void bench_cuda_print_device(const bench_log *log);
void bench_cuda_describe_device(const bench_log *log, json_t *root);

void bench_cuda_print_heading(const bench_log *log);
void bench_cuda_print_result(const bench_cuda_result *result);
trf_status bench_cuda_write_json(const bench_log *log, FILE *file);
trf_status bench_cuda_write_csv(const bench_log *log, FILE *file);

#endif
