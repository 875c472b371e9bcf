/* transfuse bench */
#define _GNU_SOURCE /* sched_getaffinity */
#include "bench_cuda.h"
#include "bench_cuda_modes.h"
#include "cli_file.h"
#include "cli_report.h"

#include <lz4.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <zstd.h>

static const cli_option_id kOptions[] = {
    CLI_OPT_DEVICE,       CLI_OPT_LAYERS, CLI_OPT_BATCH,   CLI_OPT_BENCH_CODECS, CLI_OPT_FAVOR,     CLI_OPT_BENCH_BITS,
    CLI_OPT_DISTRIBUTION, CLI_OPT_SIGMA,  CLI_OPT_REPEATS, CLI_OPT_GRANULARITY,  CLI_OPT_JSON_FILE, CLI_OPT_CSV_FILE,
    CLI_OPT_THREADS,      CLI_OPT_FORCE,  CLI_OPT_MODE,    CLI_OPT_BUDGET,       CLI_OPT_TUNING,    0};

static const char *const kCodecNames[CLI_BENCH_COUNT] = {"bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8", "bits"};
static const trf_dtype kSources[CLI_BENCH_COUNT] = {TRF_DTYPE_BF16,    TRF_DTYPE_F16, TRF_DTYPE_F8_E4M3,
                                                    TRF_DTYPE_F8_E5M2, TRF_DTYPE_F32, TRF_DTYPE_F32};
static const char *const kCompressors[] = {"lz4", "zstd"};

/* ---- what to measure, and on what machine ---- */

/* Modes that go through layers and codecs; the others are bench_cuda_modes.h's. */
static int goes_through_layers(const cli_options *options) {
    return options->mode == CLI_BENCH_LAYERS || options->mode == CLI_BENCH_SWEEP;
}

static void set_sweep(cli_options *options) {
    if (!options->num_layers) {
        options->layers[options->num_layers++] = (cli_shape){8192, 8192};
        options->layers[options->num_layers++] = (cli_shape){14336, 4096};
    }
    if (!options->num_batches) /* every power of two, and three times it */
        for (uint32_t m = 1; m <= 8192; m *= 2) {
            options->batches[options->num_batches++] = m;
            if (m > 1 && m < 8192)
                options->batches[options->num_batches++] = m / 2 * 3;
        }
    if (!options->bench_codecs)
        options->bench_codecs = 1 << CLI_BENCH_BF16;
    options->has_favor = 1; /* speed, if none was asked for */
}

static void set_defaults(cli_options *options) {
    if (options->mode == CLI_BENCH_SWEEP)
        set_sweep(options);
    if (!goes_through_layers(options)) { /* layers and batches are the mode's own to choose */
        if (!options->repeats)
            options->repeats = options->mode == CLI_BENCH_OFFLOAD ? 7 : 20; /* passes through a whole model take long */
        options->budget_bytes = options->budget_bytes ? options->budget_bytes : 8000000000;
        return;
    }
    if (!options->num_layers) {
        options->layers[options->num_layers++] = (cli_shape){4096, 4096};
        options->layers[options->num_layers++] = (cli_shape){2048, 5632};
    }
    if (!options->num_batches) {
        options->batches[options->num_batches++] = 1;
        options->batches[options->num_batches++] = 8;
    }
    if (!options->bench_codecs)
        options->bench_codecs = options->bench_bits.count ? 0 : (1 << CLI_BENCH_COUNT) - 1;
    if (options->bench_bits.count)
        options->bench_codecs |= 1 << CLI_BENCH_BITS;
    else
        options->bench_bits.values[options->bench_bits.count++] = 4.25;
    if (!options->sigmas.count)
        options->sigmas.values[options->sigmas.count++] = 0.02;
    if (!options->repeats)
        options->repeats = options->device == CLI_DEVICE_CUDA ? 20 : 5;
}

static void read_cpu_name(char *name, size_t name_bytes) {
    struct utsname machine;
    snprintf(name, name_bytes, "%s", uname(&machine) == 0 ? machine.machine : "unknown CPU");
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            line[strcspn(line, "\n")] = 0;
            cli_printable(colon + 1 + strspn(colon + 1, " "), name, name_bytes);
            break;
        }
    }
    if (file)
        fclose(file);
}

static int count_cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static void describe_environment(const cli_options *options, bench_environment *e) {
    time_t now = time(NULL);
    struct tm utc;
    read_cpu_name(e->cpu, sizeof e->cpu);
    strftime(e->date, sizeof e->date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    e->version = TRF_VERSION;
    e->lz4_version = LZ4_versionString();
    e->zstd_version = ZSTD_versionString();
    e->distribution = options->student_t ? "student-t" : "normal";
    e->threads = options->threads ? options->threads : count_cores();
    e->repeats = options->repeats;
}

/* ---- measuring ---- */

/* Weights of one layer. */
typedef struct bench_layer {
    cli_shape shape;
    uint64_t weights;
    float *drawn;           /* of scale 1 */
    void *source;           /* room for F32 */
    trf_dtype source_dtype; /* what source holds now, NONE for nothing ... */
    double source_sigma;    /* ... and of which scale */
} bench_layer;

static const void *get_source(bench_layer *layer, double sigma, trf_dtype dtype) {
    if (layer->source_dtype != dtype || layer->source_sigma != sigma)
        bench_make_source(layer->drawn, layer->shape, sigma, dtype, layer->source);
    layer->source_dtype = dtype;
    layer->source_sigma = sigma;
    return layer->source;
}

/* @return the list with one more element, all zeros, or NULL after a message. */
static void *grow(void *list, size_t count, size_t element_bytes) {
    char *grown = realloc(list, (count + 1) * element_bytes);
    if (grown)
        memset(grown + element_bytes * count, 0, element_bytes);
    else
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory");
    return grown;
}

static int run_codec(bench_log *log, bench_layer *layer, const bench_subject *subject,
                     const trf_encode_options *encode) {
    const void *source = get_source(layer, subject->sigma, subject->source);
    bench_result *results = grow(log->results, log->num_results, sizeof *results);
    if (!results)
        return -1;
    log->results = results;
    bench_result *result = &results[log->num_results++];
    result->subject = *subject;
    if (bench_measure_codec(log->options, log->environment.repeats, source, encode, result))
        return -1;
    bench_print_result(log, result);
    return 0;
}

static int run_baselines(bench_log *log, bench_layer *layer, const bench_subject *subject, trf_dtype input) {
    const void *source = get_source(layer, subject->sigma, input);
    for (size_t i = 0; i < sizeof kCompressors / sizeof kCompressors[0]; i++) {
        bench_baseline *baselines = grow(log->baselines, log->num_baselines, sizeof *baselines);
        if (!baselines)
            return -1;
        log->baselines = baselines;
        bench_baseline *baseline = &baselines[log->num_baselines++];
        baseline->subject = *subject;
        baseline->input = input;
        baseline->weights = layer->weights;
        baseline->source_bytes = layer->weights * trf_dtype_bytes(input);
        if (bench_measure_baseline(kCompressors[i], log->environment.repeats, source, baseline))
            return -1;
        bench_print_baseline(baseline);
    }
    return 0;
}

/* bits: of CLI_BENCH_BITS, else 0. */
static int run_subject(bench_log *log, bench_layer *layer, double sigma, cli_bench_codec codec, double bits) {
    const cli_options *options = log->options;
    bench_subject subject = {.shape = layer->shape, .sigma = sigma, .source = kSources[codec]};
    trf_encode_options encode;
    trf_encode_options_init(&encode);
    encode.threads = options->threads;
    snprintf(subject.codec, sizeof subject.codec, "%s", kCodecNames[codec]);
    if (codec == CLI_BENCH_BITS)
        snprintf(subject.codec, sizeof subject.codec, "bits:%g", bits);
    if (codec == CLI_BENCH_BITS || codec == CLI_BENCH_INT8) {
        encode.codec = TRF_CODEC_INT;
        encode.bits = bits;
        encode.granularity = options->granularity;
        encode.scale_group_size = options->scale_group_size;
    }
#ifdef TRF_HAVE_CUDA
    if (log->cuda)
        return bench_cuda_measure(log->cuda, &subject, get_source(layer, sigma, subject.source), &encode);
#endif
    for (trf_favor favor = TRF_FAVOR_SPEED; favor <= TRF_FAVOR_SIZE; favor++) {
        encode.favor = favor;
        if ((!options->has_favor || options->favor == favor) && run_codec(log, layer, &subject, &encode))
            return -1;
    }
    if (codec == CLI_BENCH_BITS)
        return 0; /* there are no such weights without the coder */
    return run_baselines(log, layer, &subject, codec == CLI_BENCH_INT8 ? TRF_DTYPE_I8 : subject.source);
}

static int run_layer(bench_log *log, cli_shape shape) {
    const cli_options *options = log->options;
    bench_layer layer = {.shape = shape, .weights = (uint64_t)shape.rows * shape.cols};
    layer.drawn = malloc(layer.weights * sizeof *layer.drawn);
    layer.source = malloc(layer.weights * sizeof(float));
    int failed = !layer.drawn || !layer.source;
    if (failed)
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory for %u x %u weights", shape.rows, shape.cols);
    else
        bench_draw(layer.drawn, layer.weights, options->student_t);
    for (int s = 0; !failed && s < options->sigmas.count; s++) {
        for (int codec = 0; !failed && codec < CLI_BENCH_COUNT; codec++) {
            int num_subjects = codec == CLI_BENCH_BITS ? options->bench_bits.count : 1;
            for (int i = 0; !failed && (options->bench_codecs & 1u << codec) && i < num_subjects; i++)
                failed = run_subject(log, &layer, options->sigmas.values[s], (cli_bench_codec)codec,
                                     codec == CLI_BENCH_BITS ? options->bench_bits.values[i] : 0);
        }
    }
    free(layer.drawn);
    free(layer.source);
    return failed ? -1 : 0;
}

/* ---- the command ---- */

typedef trf_status write_fn(const bench_log *log, FILE *file);

static cli_exit write_file(const bench_log *log, const char *path, write_fn *write) {
    if (!path)
        return CLI_OK;
    cli_file file;
    cli_signals_hold();
    cli_exit status = cli_file_begin(&file, path, log->options->force);
    if (status == CLI_OK) {
        const trf_status written = write(log, file.stream);
        if (written == TRF_OK) {
            status = cli_file_commit(&file);
        } else {
            cli_file_abandon(&file);
            status = cli_fail(written, "%s: the results could not be written%s", path,
                              written == TRF_ERR_MEMORY ? ": out of memory" : "");
        }
    }
    cli_signals_settle(status != CLI_OK);
    return status;
}

static void free_log(bench_log *log) {
#ifdef TRF_HAVE_CUDA
    bench_cuda_end(log->cuda);
#endif
    for (size_t i = 0; i < log->num_results; i++)
        bench_result_free(&log->results[i]);
    for (size_t i = 0; i < log->num_baselines; i++)
        bench_baseline_free(&log->baselines[i]);
    free(log->results);
    free(log->baselines);
}

/* Measures everything that the options ask for. */
static cli_exit measure_everything(bench_log *log, trf_context *context) {
    const cli_options *options = log->options;
    if (!context)
        bench_print_heading(log);
#ifdef TRF_HAVE_CUDA
    if (context && bench_cuda_begin(log, context))
        return CLI_FAILED;
    if (context && !goes_through_layers(options))
        return bench_cuda_run_mode(log->cuda) ? CLI_FAILED : CLI_OK;
    if (context)
        bench_cuda_print_heading(log);
#endif
    for (int i = 0; i < options->num_layers; i++) {
        if (run_layer(log, options->layers[i]))
            return CLI_FAILED;
    }
    return CLI_OK;
}

static int has_device_results(const bench_log *log) {
    size_t count = 0;
#ifdef TRF_HAVE_CUDA
    if (log->cuda && goes_through_layers(log->options))
        bench_cuda_results(log->cuda, &count);
    else if (log->cuda)
        count = bench_cuda_figures_of(log->cuda)->count;
#else
    (void)log;
#endif
    return count > 0;
}

static cli_exit write_files(const bench_log *log) {
    write_fn *json = bench_write_json, *csv = bench_write_csv;
#ifdef TRF_HAVE_CUDA
    if (log->cuda) {
        json = bench_cuda_write_json;
        csv = bench_cuda_write_csv;
    }
    if (log->cuda && !goes_through_layers(log->options)) {
        json = bench_cuda_write_mode_json;
        csv = bench_cuda_write_mode_csv;
    }
#endif
    cli_exit status = write_file(log, log->options->json_file, json);
    return status == CLI_OK ? write_file(log, log->options->csv_file, csv) : status;
}

static int run(const cli_options *given) {
    cli_options options = *given;
    set_defaults(&options);
    unsigned integer_codecs = 1u << CLI_BENCH_INT8 | 1u << CLI_BENCH_BITS;
    if (options.granularity != TRF_GRANULARITY_NONE && !(options.bench_codecs & integer_codecs))
        return cli_usage_error("bench", "--granularity goes with the codecs int8 and bits only");
    if (options.mode != CLI_BENCH_LAYERS && options.device != CLI_DEVICE_CUDA)
        return cli_usage_error("bench", "only --mode layers runs on the CPU; add --device cuda");
    if (options.tuning && options.device != CLI_DEVICE_CUDA)
        return cli_usage_error("bench", "--tuning goes with --device cuda only");
    trf_context *context;
    cli_exit status = cli_open_device(options.device, &context);
    if (status == CLI_OK)
        status = cli_use_tuning(context, options.tuning);
    if (status == CLI_OK && options.json_file)
        status = cli_file_check(options.json_file, options.force);
    if (status == CLI_OK && options.csv_file)
        status = cli_file_check(options.csv_file, options.force);

    bench_log log = {.options = &options};
    describe_environment(&options, &log.environment);
    if (status == CLI_OK) {
        status = measure_everything(&log, context);
        /* Time on a device is dear: what was measured before a failure is kept. */
        cli_exit written = status == CLI_OK || has_device_results(&log) ? write_files(&log) : CLI_OK;
        status = status == CLI_OK ? written : status;
    }
#ifdef TRF_HAVE_CUDA
    if (status == CLI_OK && log.cuda)
        status = bench_cuda_verdict(log.cuda);
#endif
    free_log(&log);
    trf_context_destroy(context);
    return status;
}

const cli_command cmd_bench = {
    .name = "bench",
    .summary = "measure sizes and rates on synthetic weights",
    .help =
        "usage: transfuse bench [OPTIONS]\n"
        "Lists are separated by commas. Defaults in brackets. On a GPU: fused and two-step products, decoding,\n"
        "cuBLASLt on the plain weights, a plain 8-bit product and a device copy, in turns, with cold caches;\n"
        "TRF_COMMIT of the environment goes into the files.\n\n"
        "  --device cpu|cuda             [cpu]\n"
        "  --mode MODE                   layers; on a GPU also, each with layers and batches of its own unless given:\n"
        "                                batch-sweep, overlap, moe, load, offload [layers]\n"
        "  --budget BYTES                offload: of device memory, such as 24G [8G]; besides, nothing but buffers\n"
        "  --tuning FILE                 on a GPU: plans follow what 'transfuse tune' wrote\n"
        "  --layers ROWSxCOLUMNS,...     [4096x4096,2048x5632]\n"
        "  --batch M,...                 rows of x in the products [1,8]\n"
        "  --codec CODEC,...             bf16, fp16, fp8_e4m3, fp8_e5m2, fp8 (both), int8, bits, int (both) [all]\n"
        "  --bits B,...                  sizes for the codec bits, 2 to 8 [4.25]\n"
        "  --granularity G               of int8 and bits: tensor, channel, group:SIZE, block:SIZE [channel]\n"
        "  --favor speed|size            [both]\n"
        "  --distribution normal|student-t   Student-t has 5 degrees of freedom [normal]\n"
        "  --sigma S,...                 scale of the weights [0.02]\n"
        "  --runs N                      timed runs of each measurement, after one that is not timed [5; cuda: 20]\n"
        "  -T, --threads N               0: one for each core [0]\n"
        "  --json FILE, --csv FILE       write every figure, run by run\n"
        "  -f, --force                   replace these files if they exist\n",
    .options = kOptions,
    .run = run,
};
