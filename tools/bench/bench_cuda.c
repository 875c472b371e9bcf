/* transfuse bench --device cuda: layer by layer and codec by codec, everything that is measured, in turns. */
#include "bench_cuda.h"

#include "bench_cuda_case.h"
#include "bench_cuda_modes.h"
#include "cli_cuda.h"
#include "cli_report.h"

#include <regex.h>
#include <stdlib.h>
#include <string.h>

struct bench_cuda {
    bench_mode_figures figures;
    const bench_log *log;
    trf_context *context;
    bench_cublaslt *lt;
    cudaStream_t stream;
    bench_cuda_environment environment;
    bench_cuda_result *results;
    size_t num_results;
};

void *bench_host_alloc(uint64_t bytes) {
    void *memory = malloc(bytes);
    char size[16];
    if (!memory)
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory for %s", cli_size_text(bytes, size));
    return memory;
}

const bench_log *bench_cuda_log_of(const bench_cuda *cuda) { return cuda->log; }
trf_context *bench_cuda_context_of(const bench_cuda *cuda) { return cuda->context; }
trf_stream bench_cuda_stream_of(const bench_cuda *cuda) { return cuda->stream; }
bench_cublaslt *bench_cuda_lt_of(const bench_cuda *cuda) { return cuda->lt; }
bench_mode_figures *bench_cuda_figures_of(bench_cuda *cuda) { return &cuda->figures; }

const bench_cuda_environment *bench_cuda_environment_of(const bench_cuda *cuda) { return &cuda->environment; }

const bench_cuda_result *bench_cuda_results(const bench_cuda *cuda, size_t *count) {
    *count = cuda->num_results;
    return cuda->results;
}

/* ---- the device ---- */

/* The driver's own version; CUDA only tells that of the API. The file's first line, with the version as its first
 * number with points: NVRM version: NVIDIA UNIX Open Kernel Module for x86_64 580.65.06 Release ... */
static void read_driver(char *driver, size_t driver_bytes) {
    char line[256] = "";
    regex_t version;
    regmatch_t match;
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    snprintf(driver, driver_bytes, "unknown");
    if (!file)
        return;
    if (fgets(line, sizeof line, file) && !regcomp(&version, "[0-9]+([.][0-9]+)+", REG_EXTENDED)) {
        if (!regexec(&version, line, 1, &match, 0))
            snprintf(driver, driver_bytes, "%.*s", (int)(match.rm_eo - match.rm_so), line + match.rm_so);
        regfree(&version);
    }
    fclose(file);
}

static int describe_device(bench_cuda *cuda) {
    bench_cuda_environment *e = &cuda->environment;
    int device = 0, major = 0, minor = 0, l2_bytes = 0;
    const char *commit = getenv("TRF_COMMIT");
    cli_printable(trf_context_device_name(cuda->context), e->gpu, sizeof e->gpu);
    cli_printable(commit ? commit : "", e->commit, sizeof e->commit);
    read_driver(e->driver, sizeof e->driver);
    if (cli_cuda_check(cudaGetDevice(&device), "bench: the device") ||
        cli_cuda_check(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device), "bench: the device") ||
        cli_cuda_check(cudaDeviceGetAttribute(&e->multiprocessors, cudaDevAttrMultiProcessorCount, device),
                       "bench: the device") ||
        cli_cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                       "bench: the device") ||
        cli_cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
                       "bench: the device") ||
        cli_cuda_check(cudaDriverGetVersion(&e->driver_cuda), "bench: the driver") ||
        cli_cuda_check(cudaRuntimeGetVersion(&e->runtime_cuda), "bench: the runtime"))
        return -1;
    e->l2_bytes = (uint64_t)l2_bytes;
    e->capability = 10 * major + minor;
    e->cublaslt = bench_cublaslt_version(cuda->lt);
    return 0;
}

int bench_cuda_begin(bench_log *log, trf_context *context) {
    bench_cuda *cuda = calloc(1, sizeof *cuda);
    if (!cuda) {
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory");
        return -1;
    }
    log->cuda = cuda;
    cuda->log = log;
    cuda->context = context;
    if (cli_cuda_check(cudaStreamCreate(&cuda->stream), "bench: a stream"))
        return -1;
    cuda->lt = bench_cublaslt_open();
    return !cuda->lt || describe_device(cuda) ? -1 : 0;
}

void bench_cuda_end(bench_cuda *cuda) {
    if (!cuda)
        return;
    for (size_t i = 0; i < cuda->num_results; i++) {
        for (size_t k = 0; k < cuda->results[i].num_figures; k++)
            free(cuda->results[i].figures[k].times.seconds);
        free(cuda->results[i].figures);
    }
    free(cuda->results);
    bench_mode_free(&cuda->figures);
    bench_cublaslt_close(cuda->lt);
    if (cuda->stream)
        cudaStreamDestroy(cuda->stream);
    free(cuda);
}

cli_exit bench_cuda_verdict(const bench_cuda *cuda) {
    for (size_t i = 0; i < cuda->num_results; i++)
        for (int b = 0; b < cuda->results[i].num_blobs; b++) {
            const bench_cuda_blob *blob = &cuda->results[i].blobs[b];
            const bench_subject *subject = &cuda->results[i].subject;
            if (blob->wrong_weights)
                return cli_fail(TRF_ERR_MISMATCH, "bench: %s, %u x %u: the device decodes %llu weights wrongly",
                                subject->codec, subject->shape.rows, subject->shape.cols,
                                (unsigned long long)blob->wrong_weights);
        }
    return CLI_OK;
}

/* ---- one layer and codec ---- */

static void add_figure(bench_cuda_result *result, bench_cuda_kind kind, int favor, uint32_t batch) {
    result->figures[result->num_figures++] = (bench_cuda_figure){.kind = kind, .favor = favor, .batch = batch};
}

/* All figures that there will be, in the order in which they take turns. */
static int list_figures(const bench_layer_session *session, bench_cuda_result *result) {
    const cli_options *options = session->options;
    const int sweeps = options->mode == CLI_BENCH_SWEEP;
    size_t most = 1 + (size_t)result->num_blobs + (size_t)options->num_batches * (2 + 5 * (size_t)result->num_blobs);
    result->figures = calloc(most, sizeof *result->figures);
    if (!result->figures) {
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory");
        return -1;
    }
    add_figure(result, BENCH_CUDA_COPY, -1, 0);
    for (int b = 0; b < result->num_blobs; b++)
        add_figure(result, BENCH_CUDA_DECODE, (int)result->blobs[b].favor, 0);
    for (int i = 0; i < options->num_batches; i++) {
        add_figure(result, BENCH_CUDA_CUBLASLT, -1, options->batches[i]);
        if (session->codes.count)
            add_figure(result, BENCH_CUDA_RAW8, -1, options->batches[i]);
        for (int b = 0; b < result->num_blobs; b++) {
            const int favor = (int)result->blobs[b].favor;
            if (!sweeps || options->batches[i] <= TRF_FUSED_MAX_M)
                add_figure(result, BENCH_CUDA_FUSED, favor, options->batches[i]);
            if (options->batches[i] > 8)
                add_figure(result, BENCH_CUDA_WIDE, favor, options->batches[i]);
            add_figure(result, BENCH_CUDA_TWO_STEP, favor, options->batches[i]);
            if (sweeps && options->batches[i] > TRF_FUSED_MAX_M)
                add_figure(result, BENCH_CUDA_AHEAD, favor, options->batches[i]);
            if (sweeps)
                add_figure(result, BENCH_CUDA_AUTO, favor, options->batches[i]);
        }
    }
    return 0;
}

static int index_of_blob(const bench_cuda_result *result, int favor) {
    for (int b = 0; b < result->num_blobs; b++)
        if ((int)result->blobs[b].favor == favor)
            return b;
    return -1;
}

/* Times all cases that have a timer. */
static int time_cases(bench_cuda_case *cases, size_t count, int rounds, cudaStream_t stream) {
    bench_cuda_timer **timers = calloc(count, sizeof *timers);
    bench_times **times = calloc(count, sizeof *times);
    size_t ready = 0;
    int failed = !timers || !times;
    if (failed)
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory");
    for (size_t i = 0; !failed && i < count; i++)
        if (cases[i].timer.graph) {
            timers[ready] = &cases[i].timer;
            times[ready++] = &cases[i].figure->times;
        }
    if (!failed)
        failed =
            cli_cuda_check(cudaDeviceSynchronize(), "bench") || bench_cuda_time(timers, times, ready, rounds, stream);
    free(timers);
    free(times);
    return failed ? -1 : 0;
}

static int measure_cases(bench_layer_session *session, bench_cuda_result *result, int rounds) {
    bench_cuda_case *cases = calloc(result->num_figures, sizeof *cases);
    int failed = !cases;
    if (failed)
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory");
    for (size_t i = 0; !failed && i < result->num_figures; i++) {
        bench_cuda_figure *figure = &result->figures[i];
        cases[i] =
            (bench_cuda_case){.session = session, .figure = figure, .compressed = index_of_blob(result, figure->favor)};
        failed = bench_cuda_case_make(&cases[i]);
    }
    for (size_t i = 0; !failed && i < result->num_figures; i++)
        failed = bench_cuda_case_capture(&cases[i]);
    if (!failed)
        failed = time_cases(cases, result->num_figures, rounds, session->stream);
    for (size_t i = 0; cases && i < result->num_figures; i++)
        bench_cuda_case_free(&cases[i]);
    free(cases);
    return failed ? -1 : 0;
}

/* Every favor that the options ask for. */
static int compress_favors(bench_layer_session *session, const void *source, trf_encode_options encode,
                           bench_cuda_result *result) {
    const cli_options *options = session->options;
    for (trf_favor favor = TRF_FAVOR_SPEED; favor <= TRF_FAVOR_SIZE; favor++) {
        encode.favor = favor;
        if (options->has_favor && options->favor != favor)
            continue;
        if (bench_cuda_add_compressed(session, source, &encode, &result->blobs[result->num_blobs++]))
            return -1;
    }
    return 0;
}

/* A corrupt stream would have been timed for nothing. */
static int check_faults(const bench_layer_session *session) {
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

int bench_cuda_measure(bench_cuda *cuda, const bench_subject *subject, const void *source,
                       const trf_encode_options *encode) {
    bench_cuda_result *results = realloc(cuda->results, (cuda->num_results + 1) * sizeof *results);
    if (!results) {
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory");
        return -1;
    }
    cuda->results = results;
    bench_cuda_result *result = &results[cuda->num_results];
    *result = (bench_cuda_result){.subject = *subject};
    bench_layer_session session = {
        .context = cuda->context,
        .lt = cuda->lt,
        .options = cuda->log->options,
        .stream = cuda->stream,
        .l2_bytes = cuda->environment.l2_bytes,
        .subject = *subject,
    };
    cuda->num_results++;
    int failed = bench_layer_session_open(&session) || compress_favors(&session, source, *encode, result) ||
                 bench_cuda_add_plain(&session, source, encode) || list_figures(&session, result) ||
                 measure_cases(&session, result, cuda->log->environment.repeats) || check_faults(&session);
    bench_layer_session_close(&session);
    if (!failed)
        bench_cuda_print_result(result);
    return failed ? -1 : 0;
}
