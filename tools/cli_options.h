/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: which options there are, and their checked values. One table serves every command; a command lists
 * the ones that it takes. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "transfuse.h"

typedef enum cli_exit {
    CLI_OK = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2,
    CLI_NO_DEVICE = 3,
    CLI_STOPPED = 128 /* and the number of the signal */
} cli_exit;

typedef enum cli_device {
    CLI_DEVICE_CPU,
    CLI_DEVICE_CUDA
} cli_device;

/* What `bench` measures; a set of them is a mask of 1 << value. */
typedef enum cli_bench_codec {
    CLI_BENCH_BF16,
    CLI_BENCH_FP16,
    CLI_BENCH_E4M3,
    CLI_BENCH_E5M2,
    CLI_BENCH_SCALED_FP8, /* BF16 that was FP8 with scale blocks */
    CLI_BENCH_INT8,
    CLI_BENCH_BITS,
    CLI_BENCH_COUNT
} cli_bench_codec;

/* Which measurement `bench` makes. */
typedef enum cli_bench_mode {
    CLI_BENCH_LAYERS,
    CLI_BENCH_SWEEP,
    CLI_BENCH_OVERLAP,
    CLI_BENCH_MOE,
    CLI_BENCH_LOAD,
    CLI_BENCH_OFFLOAD
} cli_bench_mode;

typedef enum cli_progress_mode {
    CLI_PROGRESS_AUTO,
    CLI_PROGRESS_ALWAYS,
    CLI_PROGRESS_NEVER
} cli_progress_mode;

/* The value 0 ends a command's list of options. */
typedef enum cli_option_id {
    CLI_OPT_OUTPUT = 1,
    CLI_OPT_FORCE,
    CLI_OPT_THREADS,
    CLI_OPT_CODEC,
    CLI_OPT_INT8,
    CLI_OPT_BITS,
    CLI_OPT_GRANULARITY,
    CLI_OPT_FAVOR,
    CLI_OPT_INCLUDE,
    CLI_OPT_EXCLUDE,
    CLI_OPT_EMBEDDINGS,
    CLI_OPT_AGAINST,
    CLI_OPT_JSON,
    CLI_OPT_DEVICE,
    CLI_OPT_PATH,
    CLI_OPT_LAYERS,
    CLI_OPT_MIXTURE,
    CLI_OPT_ROUTES,
    CLI_OPT_BATCH,
    CLI_OPT_BENCH_CODECS,
    CLI_OPT_BENCH_BITS,
    CLI_OPT_DISTRIBUTION,
    CLI_OPT_SIGMA,
    CLI_OPT_REPEATS,
    CLI_OPT_JSON_FILE,
    CLI_OPT_CSV_FILE,
    CLI_OPT_MODE,
    CLI_OPT_BUDGET,
    CLI_OPT_TUNING,
    CLI_OPT_MAX_BATCH,
    CLI_OPT_LAYOUT,
    CLI_OPT_QUIET,
    CLI_OPT_VERBOSE,
    CLI_OPT_PROGRESS,
    CLI_OPT_STORE_ONLY,
    CLI_OPT_DRY_RUN,
    CLI_OPT_RESUME,
    CLI_OPT_SKIP_EXTRA,
    CLI_OPT_STRICT,
    CLI_OPT_MEMORY,
    CLI_OPT_BATCH_SHARES,
    CLI_OPT_GPUS,
    CLI_OPT_CONTEXT,
    CLI_OPT_CARD,
    CLI_OPT_MAX_OUTPUT,
    CLI_OPT_MAX_MEMORY
} cli_option_id;

enum {
    CLI_MAX_ARGUMENTS = 2,
    CLI_MAX_LIST = 64,
    CLI_MAX_REPEATS = 1000
};

typedef struct cli_shape {
    uint32_t rows, cols;
} cli_shape;

/* A mixture of experts. Each expert has gate and up as one matrix, [2 * inner][hidden], and down, [hidden][inner]. */
typedef struct cli_mixture {
    uint32_t experts, inner, hidden, routed; /* routed: experts of a token */
} cli_mixture;

typedef struct cli_reals {
    double values[CLI_MAX_LIST];
    int count;
} cli_reals;

typedef struct cli_options {
    const char *arguments[CLI_MAX_ARGUMENTS];
    const char *output; /* NULL: not given, as with all pointers here */
    int force;
    int threads; /* 0: all cores */

    trf_codec codec; /* E4M3 stands for both kinds of FP8 */
    int has_codec, int8;
    double bits; /* 0: not given */
    trf_granularity granularity;
    uint32_t scale_group_size;
    trf_favor favor;
    int has_favor;
    const char **include, **exclude, **skip_extra; /* NULL-terminated */
    int embeddings, store_only, dry_run, resume;

    const char *against;
    int strict;
    int json, quiet, verbose;
    cli_progress_mode progress;
    cli_device device;
    int has_device, has_layout;
    trf_path path; /* AUTO: not given */
    trf_layout layout;

    cli_shape layers[CLI_MAX_LIST];
    cli_mixture mixtures[CLI_MAX_LIST];
    uint32_t batches[CLI_MAX_LIST];
    int num_layers, num_mixtures, num_batches;
    int has_routes, skewed_routes;
    cli_bench_mode mode;
    uint64_t budget_bytes; /* 0: not given */
    unsigned bench_codecs;
    cli_reals bench_bits, sigmas;
    int student_t;
    int repeats; /* 0: not given */
    const char *json_file, *csv_file;
    const char *tuning;
    uint32_t max_batch; /* 0: not given */

    uint64_t max_output_bytes, max_memory_bytes; /* 0: not given */
    uint64_t memory_bytes, context_tokens;       /* 0: not given */
    double shares[CLI_MAX_LIST];                 /* of the batches */
    uint32_t gpus;                               /* 0: not given */
    const char *card;
} cli_options;

typedef struct cli_command {
    const char *name, *summary, *help;
    const char *arguments[CLI_MAX_ARGUMENTS]; /* their names; all arguments are required */
    const cli_option_id *options;
    int needs_output;                       /* unless it is a dry run */
    int (*run)(const cli_options *options); /* @return a cli_exit */
} cli_command;

extern const cli_command cmd_compress, cmd_decompress, cmd_verify, cmd_info, cmd_extract, cmd_matmul, cmd_bench,
    cmd_tune, cmd_layouts;

enum {
    CLI_MAX_OPTIONS = 48 /* more than there are */
};

/* Parses what follows the command's name; argv[0] is that name. On CLI_OK, *help tells whether --help was asked for
 * (options are then incomplete). Otherwise a message is on stderr. Release with cli_options_free in every case. */
cli_exit cli_options_parse(const cli_command *command, int argc, char **argv, cli_options *options, int *help);
void cli_options_free(cli_options *options);

/* Prints "transfuse COMMAND: message" and where to find help, on stderr. @return CLI_USAGE. */
__attribute__((format(printf, 2, 3))) cli_exit cli_usage_error(const char *command, const char *format, ...);

#endif
