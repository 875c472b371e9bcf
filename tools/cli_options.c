/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_options.h"

#include "cli_messages.h"
#include "cli_suggest.h"
#include "cli_values.h"

#include "transfuse/device_memory.h"
#include "transfuse/tuning.h"

#include <assert.h>
#include <getopt.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cli_exit cli_usage_error(const char *command, const char *format, ...) {
    char text[2048], message[sizeof text]; /* arguments may be names of files that anyone may have made */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "transfuse %s: %s\nTry 'transfuse %s --help'.\n", command,
            cli_printable(text, message, sizeof message), command);
    return CLI_USAGE;
}

/* ---- one setter for each option; it returns 0, or -1 for a value that does not fit ---- */

static int set_path_string(const char **target, const char *value) {
    *target = value;
    return value[0] ? 0 : -1;
}

static int set_output(cli_options *o, const char *value) { return set_path_string(&o->output, value); }
static int set_against(cli_options *o, const char *value) { return set_path_string(&o->against, value); }
static int set_json_file(cli_options *o, const char *value) { return set_path_string(&o->json_file, value); }
static int set_csv_file(cli_options *o, const char *value) { return set_path_string(&o->csv_file, value); }
static int set_tuning(cli_options *o, const char *value) { return set_path_string(&o->tuning, value); }

static int set_progress(cli_options *o, const char *value) {
    static const char *const names[] = {"auto", "always", "never", NULL};
    int i = cli_parse_name(value, names);
    o->progress = (cli_progress_mode)i;
    return i < 0 ? -1 : 0;
}

static int set_threads(cli_options *o, const char *value) {
    uint64_t threads;
    if (cli_parse_uint(value, 0, 1024, &threads))
        return -1;
    o->threads = (int)threads;
    return 0;
}

static int set_repeats(cli_options *o, const char *value) {
    uint64_t repeats;
    if (cli_parse_uint(value, 1, CLI_MAX_REPEATS, &repeats))
        return -1;
    o->repeats = (int)repeats;
    return 0;
}

static int set_codec(cli_options *o, const char *value) {
    static const char *const names[] = {"auto", "bf16", "fp16", "fp8", "int", NULL};
    static const trf_codec codecs[] = {TRF_CODEC_AUTO, TRF_CODEC_BF16, TRF_CODEC_FP16, TRF_CODEC_E4M3, TRF_CODEC_INT};
    int i = cli_parse_name(value, names);
    if (i < 0)
        return -1;
    o->codec = codecs[i];
    o->has_codec = 1;
    return 0;
}

static int set_bits(cli_options *o, const char *value) { return cli_parse_real(value, 2, 8, &o->bits); }

static int set_granularity(cli_options *o, const char *value) {
    return cli_parse_granularity(value, &o->granularity, &o->scale_group_size);
}

static int set_favor(cli_options *o, const char *value) {
    static const char *const names[] = {"speed", "size", NULL};
    int i = cli_parse_name(value, names);
    if (i < 0)
        return -1;
    o->favor = i ? TRF_FAVOR_SIZE : TRF_FAVOR_SPEED;
    o->has_favor = 1;
    return 0;
}

static int append_string(const char ***list, const char *value) {
    size_t count = 0;
    while (*list && (*list)[count])
        count++;
    const char **grown = realloc(*list, (count + 2) * sizeof *grown);
    if (!grown)
        return -1;
    grown[count] = value;
    grown[count + 1] = NULL;
    *list = grown;
    return value[0] ? 0 : -1;
}

static int set_include(cli_options *o, const char *value) { return append_string(&o->include, value); }
static int set_exclude(cli_options *o, const char *value) { return append_string(&o->exclude, value); }
static int set_skip_extra(cli_options *o, const char *value) { return append_string(&o->skip_extra, value); }

static int set_device(cli_options *o, const char *value) {
    static const char *const names[] = {"cpu", "cuda", NULL};
    int i = cli_parse_name(value, names);
    o->device = i ? CLI_DEVICE_CUDA : CLI_DEVICE_CPU;
    o->has_device = 1;
    return i < 0 ? -1 : 0;
}

static int set_path(cli_options *o, const char *value) {
    const char *const names[] = {trf_path_name(TRF_PATH_FUSED),  trf_path_name(TRF_PATH_TWO_STEP),
                                 trf_path_name(TRF_PATH_WIDE),   trf_path_name(TRF_PATH_DENSE),
                                 trf_path_name(TRF_PATH_PACKED), NULL};
    int i = cli_parse_name(value, names);
    o->path = (trf_path)(TRF_PATH_FUSED + i);
    return i < 0 ? -1 : 0;
}

static int set_layout(cli_options *o, const char *value) {
    const char *const names[] = {trf_layout_name(TRF_LAYOUT_CODED), trf_layout_name(TRF_LAYOUT_PLAIN),
                                 trf_layout_name(TRF_LAYOUT_PACKED), trf_layout_name(TRF_LAYOUT_PACKED8), NULL};
    int i = cli_parse_name(value, names);
    o->layout = (trf_layout)(TRF_LAYOUT_CODED + i);
    o->has_layout = 1;
    return i < 0 ? -1 : 0;
}

static int set_mode(cli_options *o, const char *value) {
    static const char *const names[] = {"layers", "batch-sweep", "overlap", "moe", "load", "offload", NULL};
    int i = cli_parse_name(value, names);
    o->mode = (cli_bench_mode)i;
    return i < 0 ? -1 : 0;
}

static int set_budget(cli_options *o, const char *value) { return cli_parse_bytes(value, &o->budget_bytes); }

static int set_distribution(cli_options *o, const char *value) {
    static const char *const names[] = {"normal", "student-t", NULL};
    o->student_t = cli_parse_name(value, names);
    return o->student_t < 0 ? -1 : 0;
}

static int take_layer(void *context, const char *list_entry) {
    cli_options *o = context;
    return o->num_layers == CLI_MAX_LIST || cli_parse_shape(list_entry, &o->layers[o->num_layers++]) ? -1 : 0;
}

static int set_layers(cli_options *o, const char *value) {
    o->num_layers = 0;
    return cli_parse_list(value, take_layer, o);
}

static int take_mixture(void *context, const char *list_entry) {
    cli_options *o = context;
    return o->num_mixtures == CLI_MAX_LIST || cli_parse_mixture(list_entry, &o->mixtures[o->num_mixtures++]) ? -1 : 0;
}

static int set_mixture(cli_options *o, const char *value) {
    o->num_mixtures = 0;
    return cli_parse_list(value, take_mixture, o);
}

static int set_routes(cli_options *o, const char *value) {
    static const char *const names[] = {"uniform", "skewed", NULL};
    o->skewed_routes = cli_parse_name(value, names);
    o->has_routes = 1;
    return o->skewed_routes < 0 ? -1 : 0;
}

static int take_batch(void *context, const char *list_entry) {
    cli_options *o = context;
    uint64_t batch;
    if (o->num_batches == CLI_MAX_LIST || cli_parse_uint(list_entry, 1, 1 << 20, &batch))
        return -1;
    o->batches[o->num_batches++] = (uint32_t)batch;
    return 0;
}

static int set_batch(cli_options *o, const char *value) {
    o->num_batches = 0;
    return cli_parse_list(value, take_batch, o);
}

static int set_max_batch(cli_options *o, const char *value) {
    uint64_t batch;
    if (cli_parse_uint(value, 1, 1 << 20, &batch))
        return -1;
    o->max_batch = (uint32_t)batch;
    return 0;
}

/* "32", or "32:0.5" with its share of the steps. */
static int take_batch_share(void *context, const char *list_entry) {
    cli_options *o = context;
    char batch[32];
    const size_t length = strcspn(list_entry, ":");
    if (length >= sizeof batch)
        return -1;
    memcpy(batch, list_entry, length);
    batch[length] = 0;
    if (take_batch(context, batch))
        return -1;
    double *const share = &o->shares[o->num_batches - 1];
    *share = 1;
    return list_entry[length] ? cli_parse_real(list_entry + length + 1, 1e-9, 1e9, share) : 0;
}

static int set_batch_shares(cli_options *o, const char *value) {
    o->num_batches = 0;
    return cli_parse_list(value, take_batch_share, o);
}

static int set_memory(cli_options *o, const char *value) { return cli_parse_bytes(value, &o->memory_bytes); }
static int set_max_output(cli_options *o, const char *value) { return cli_parse_bytes(value, &o->max_output_bytes); }
static int set_max_memory(cli_options *o, const char *value) { return cli_parse_bytes(value, &o->max_memory_bytes); }
static int set_card(cli_options *o, const char *value) { return set_path_string(&o->card, value); }

static int set_gpus(cli_options *o, const char *value) {
    uint64_t gpus;
    if (cli_parse_uint(value, 1, 1024, &gpus))
        return -1;
    o->gpus = (uint32_t)gpus;
    return 0;
}

static int set_context(cli_options *o, const char *value) {
    return cli_parse_uint(value, 1, (uint64_t)1 << 32, &o->context_tokens);
}

static int take_bench_codec(void *context, const char *list_entry) {
    static const char *const names[] = {"bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "scaled_fp8", "int8",
                                        "bits", "fp8",  "int",      "auto",     NULL};
    static const unsigned masks[] = {1 << CLI_BENCH_BF16,
                                     1 << CLI_BENCH_FP16,
                                     1 << CLI_BENCH_E4M3,
                                     1 << CLI_BENCH_E5M2,
                                     1 << CLI_BENCH_SCALED_FP8,
                                     1 << CLI_BENCH_INT8,
                                     1 << CLI_BENCH_BITS,
                                     1 << CLI_BENCH_E4M3 | 1 << CLI_BENCH_E5M2,
                                     1 << CLI_BENCH_INT8 | 1 << CLI_BENCH_BITS,
                                     (1 << CLI_BENCH_COUNT) - 1};
    cli_options *o = context;
    int i = cli_parse_name(list_entry, names);
    if (i < 0)
        return -1;
    o->bench_codecs |= masks[i];
    return 0;
}

static int set_bench_codecs(cli_options *o, const char *value) {
    o->bench_codecs = 0;
    return cli_parse_list(value, take_bench_codec, o);
}

static int take_bench_bits(void *context, const char *list_entry) {
    cli_reals *list = context;
    return list->count == CLI_MAX_LIST || cli_parse_real(list_entry, 2, 8, &list->values[list->count++]) ? -1 : 0;
}

static int set_bench_bits(cli_options *o, const char *value) {
    o->bench_bits.count = 0;
    return cli_parse_list(value, take_bench_bits, &o->bench_bits);
}

static int take_sigma(void *context, const char *list_entry) {
    cli_reals *list = context;
    return list->count == CLI_MAX_LIST || cli_parse_real(list_entry, 1e-6, 1e3, &list->values[list->count++]) ? -1 : 0;
}

static int set_sigma(cli_options *o, const char *value) {
    o->sigmas.count = 0;
    return cli_parse_list(value, take_sigma, &o->sigmas);
}

/* ---- the table ---- */

typedef struct option_entry {
    const char *long_name;
    const char *expects;                                 /* NULL: takes no value, and sets a flag */
    int (*set)(cli_options *options, const char *value); /* NULL: of a flag */
    char letter;                                         /* 0: has none */
    size_t flag;                                         /* where in cli_options its int is */
} option_entry;

#define FLAG(name, letter, member)                                                                                     \
    { name, NULL, NULL, letter, offsetof(cli_options, member) }

static const option_entry kOptions[] = {
    [CLI_OPT_OUTPUT] = {"output", "a path", set_output, 'o', 0},
    [CLI_OPT_FORCE] = FLAG("force", 'f', force),
    [CLI_OPT_THREADS] = {"threads", "a whole number from 0 to 1024 (0: one for each core)", set_threads, 'T', 0},
    [CLI_OPT_CODEC] = {"codec", "auto, bf16, fp16, fp8 or int", set_codec, 0, 0},
    [CLI_OPT_INT8] = FLAG("int8", 0, int8),
    [CLI_OPT_BITS] = {"bits", "a number from 2 to 8", set_bits, 0, 0},
    [CLI_OPT_GRANULARITY] = {"granularity",
                             "tensor, channel, scale-group:G or scale-block:B (G, B: multiples of 16 from 16 to "
                             "1048576)",
                             set_granularity, 0, 0},
    [CLI_OPT_FAVOR] = {"favor", "speed or size", set_favor, 0, 0},
    [CLI_OPT_INCLUDE] = {"include", "a pattern of tensor names", set_include, 0, 0},
    [CLI_OPT_EXCLUDE] = {"exclude", "a pattern of tensor names", set_exclude, 0, 0},
    [CLI_OPT_EMBEDDINGS] = FLAG("embeddings", 0, embeddings),
    [CLI_OPT_AGAINST] = {"against", "a path", set_against, 0, 0},
    [CLI_OPT_JSON] = FLAG("json", 0, json),
    [CLI_OPT_DEVICE] = {"device", "cpu or cuda", set_device, 0, 0},
    [CLI_OPT_PATH] = {"path", "fused, two-step, wide, dense or packed", set_path, 0, 0},
    [CLI_OPT_LAYERS] = {"layers", "at most 64 sizes such as 4096x4096,2048x5632 (rows x columns)", set_layers, 0, 0},
    [CLI_OPT_MIXTURE] = {"mixture",
                         "at most 64 mixtures such as 128x768x2048/8 (experts x inner x hidden / routed; to 512 "
                         "experts, 32 of them routed)",
                         set_mixture, 0, 0},
    [CLI_OPT_ROUTES] = {"routes", "uniform or skewed", set_routes, 0, 0},
    [CLI_OPT_BATCH] = {"batch", "at most 64 whole numbers from 1 to 1048576, such as 1,8", set_batch, 0, 0},
    [CLI_OPT_BENCH_CODECS] = {"codec",
                              "a list of auto, bf16, fp16, fp8, fp8_e4m3, fp8_e5m2, scaled_fp8, int, int8 and bits",
                              set_bench_codecs, 0, 0},
    [CLI_OPT_BENCH_BITS] = {"bits", "at most 64 numbers from 2 to 8, such as 4.25,5.7", set_bench_bits, 0, 0},
    [CLI_OPT_DISTRIBUTION] = {"distribution", "normal or student-t", set_distribution, 0, 0},
    [CLI_OPT_SIGMA] = {"sigma", "at most 64 numbers from 1e-6 to 1e3, such as 0.02,0.025", set_sigma, 0, 0},
    [CLI_OPT_REPEATS] = {"runs", "a whole number from 1 to 1000", set_repeats, 0, 0},
    [CLI_OPT_JSON_FILE] = {"json", "a path", set_json_file, 0, 0},
    [CLI_OPT_CSV_FILE] = {"csv", "a path", set_csv_file, 0, 0},
    [CLI_OPT_MODE] = {"mode", "layers, batch-sweep, overlap, moe, load or offload", set_mode, 0, 0},
    [CLI_OPT_BUDGET] = {"budget", "a number of bytes such as 8G (K, M, G, T: thousands)", set_budget, 0, 0},
    [CLI_OPT_TUNING] = {"tuning", "a path", set_tuning, 0, 0},
    [CLI_OPT_MAX_BATCH] = {"max-batch", "a whole number from 1 to 1048576", set_max_batch, 0, 0},
    [CLI_OPT_LAYOUT] = {"layout", "coded, plain, packed or packed8", set_layout, 0, 0},
    [CLI_OPT_QUIET] = FLAG("quiet", 'q', quiet),
    [CLI_OPT_VERBOSE] = FLAG("verbose", 'v', verbose),
    [CLI_OPT_PROGRESS] = {"progress", "auto, always or never", set_progress, 0, 0},
    [CLI_OPT_STORE_ONLY] = FLAG("store-only", 0, store_only),
    [CLI_OPT_DRY_RUN] = FLAG("dry-run", 0, dry_run),
    [CLI_OPT_RESUME] = FLAG("resume", 0, resume),
    [CLI_OPT_SKIP_EXTRA] = {"skip-extra", "a pattern of paths below the folder", set_skip_extra, 0, 0},
    [CLI_OPT_STRICT] = FLAG("strict", 0, strict),
    [CLI_OPT_MEMORY] = {"memory", "a number of bytes such as 80G (K, M, G, T: thousands)", set_memory, 0, 0},
    [CLI_OPT_BATCH_SHARES] = {"batch",
                              "at most 64 whole numbers from 1 to 1048576, such as 1,32, or with shares, 1:0.8,32:0.2",
                              set_batch_shares, 0, 0},
    [CLI_OPT_GPUS] = {"gpus", "a whole number from 1 to 1024", set_gpus, 0, 0},
    [CLI_OPT_CONTEXT] = {"context", "a whole number of tokens from 1 to 4294967296", set_context, 0, 0},
    [CLI_OPT_CARD] = {"card", "the name of a GPU such as H100", set_card, 0, 0},
    [CLI_OPT_MAX_OUTPUT] = {"max-output", "a number of bytes such as 80G (K, M, G, T: thousands)", set_max_output, 0,
                            0},
    [CLI_OPT_MAX_MEMORY] = {"max-memory", "a number of bytes such as 2G (K, M, G, T: thousands)", set_max_memory, 0, 0},
};
enum {
    kNumOptions = sizeof kOptions / sizeof kOptions[0],
    kHelp = kNumOptions
};
static_assert(kNumOptions + 1 <= CLI_MAX_OPTIONS, "CLI_MAX_OPTIONS has room for --help and the end, too");

/* Makes getopt's two descriptions of what the command takes. Long options return the option's id. */
static void describe_options(const cli_command *command, struct option *long_options, char *letters) {
    *letters++ = ':'; /* tells missing values from unknown options, and getopt then prints nothing itself */
    *letters++ = 'h';
    *long_options++ = (struct option){"help", no_argument, NULL, kHelp};
    for (const cli_option_id *id = command->options; *id; id++) {
        const option_entry *entry = &kOptions[*id];
        int has_arg = entry->expects ? required_argument : no_argument;
        *long_options++ = (struct option){entry->long_name, has_arg, NULL, (int)*id};
        if (entry->letter) {
            *letters++ = entry->letter;
            if (entry->expects)
                *letters++ = ':';
        }
    }
    *letters = 0;
    *long_options = (struct option){NULL, 0, NULL, 0};
}

/* @return the entry that getopt's code stands for, or NULL. */
static const option_entry *find_option(const cli_command *command, int code) {
    for (const cli_option_id *id = command->options; *id; id++) {
        if (code == (int)*id || (kOptions[*id].letter && code == kOptions[*id].letter))
            return &kOptions[*id];
    }
    return NULL;
}

/* Lists the long names of what the command takes, with NULL after them. names: room for CLI_MAX_OPTIONS. */
static void list_names(const cli_command *command, const char **names) {
    for (const cli_option_id *id = command->options; *id; id++)
        *names++ = kOptions[*id].long_name;
    *names++ = "help";
    *names = NULL;
}

/* "-" is standard output to many commands. Here a file gets its name when it is complete, so it has to have one. */
static cli_exit check_outputs(const cli_command *command, const cli_options *options) {
    const struct {
        const char *option, *path;
    } outputs[] = {{"-o", options->output}, {"--json", options->json_file}, {"--csv", options->csv_file}};
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
        if (outputs[i].path && strcmp(outputs[i].path, "-") == 0)
            return cli_usage_error(command->name,
                                   "%s -: standard output cannot take it; give a path ('./-' is a file of that name)",
                                   outputs[i].option);
    }
    return CLI_OK;
}

static cli_exit take_arguments(const cli_command *command, int count, char **values, cli_options *options) {
    int wanted = 0;
    while (wanted < CLI_MAX_ARGUMENTS && command->arguments[wanted])
        wanted++;
    if (count < wanted)
        return cli_usage_error(command->name, "%s is missing", command->arguments[count]);
    if (count > wanted)
        return cli_usage_error(command->name, "unexpected argument '%s'%s", values[wanted],
                               command->needs_output && !options->output ? "; the output is what -o names" : "");
    for (int i = 0; i < wanted; i++) {
        if (!values[i][0])
            return cli_usage_error(command->name, "%s is empty", command->arguments[i]);
        options->arguments[i] = values[i];
    }
    if (command->needs_output && !options->output && !options->dry_run)
        return cli_usage_error(command->name, "-o OUT is missing");
    if (options->quiet && options->verbose)
        return cli_usage_error(command->name, "--quiet and --verbose exclude each other");
    return check_outputs(command, options);
}

/* @return the word that getopt has stopped at, if it has several letters after one dash; else "". */
static const char *find_cluster(int argc, char **argv) {
    for (int i = optind - 1; i <= optind && i < argc; i++) {
        if (i > 0 && argv[i][0] == '-' && argv[i][1] != '-' && strlen(argv[i]) > 2 && strchr(argv[i], optopt))
            return argv[i] + 1;
    }
    return "";
}

/* Explains what getopt calls '?': an option that does not exist, the beginning of several ones, or a value for an
 * option that takes none. */
static cli_exit explain_unknown(const cli_command *command, int argc, char **argv) {
    const char *const word = argv[optind - 1];
    const char *names[CLI_MAX_OPTIONS];
    if (find_option(command, optopt) || optopt == kHelp)
        return cli_usage_error(command->name, "%s: the option takes no value", word);
    list_names(command, names);
    if (optopt) {
        const char *const near = cli_suggest(find_cluster(argc, argv), names);
        return cli_usage_error(command->name, "unknown option '-%c'%s%s%s", optopt, near ? "; did you mean '--" : "",
                               near ? near : "", near ? "'?" : "");
    }
    char typed[64];
    snprintf(typed, sizeof typed, "%.*s", (int)strcspn(word + 2, "="), word + 2);
    const char *first = NULL;
    for (int i = 0; names[i]; i++) {
        if (strncmp(names[i], typed, strlen(typed)) != 0)
            continue;
        if (first)
            return cli_usage_error(command->name, "'--%s' may be '--%s' or '--%s'", typed, first, names[i]);
        first = names[i];
    }
    const char *const near = cli_suggest(typed, names);
    return cli_usage_error(command->name, "unknown option '--%s'%s%s%s", typed, near ? "; did you mean '--" : "",
                           near ? near : "", near ? "'?" : "");
}

cli_exit cli_options_parse(const cli_command *command, int argc, char **argv, cli_options *options, int *help) {
    struct option long_options[kNumOptions + 2];
    char letters[3 * kNumOptions];
    describe_options(command, long_options, letters);
    memset(options, 0, sizeof *options);
    *help = 0;

    int code;
    optind = 1;
    while ((code = getopt_long(argc, argv, letters, long_options, NULL)) != -1) {
        if (code == kHelp || code == 'h') {
            *help = 1;
            return CLI_OK;
        }
        if (code == ':')
            return cli_usage_error(command->name, "%s: the value is missing", argv[optind - 1]);
        if (code == '?')
            return explain_unknown(command, argc, argv);
        const option_entry *entry = find_option(command, code);
        assert(entry); /* getopt_long returns no other code than those of describe_options */
        if (optarg && optarg[0] == '=' && optarg == argv[optind - 1] + 2)
            return cli_usage_error(command->name, "-%c%s: no '=' goes with one letter; say -%c %s or --%s%s", code,
                                   optarg, code, optarg + 1, entry->long_name, optarg);
        if (!entry->set)
            *(int *)(void *)((char *)options + entry->flag) = 1;
        else if (entry->set(options, optarg))
            return cli_usage_error(command->name, "--%s: expected %s, not '%s'", entry->long_name, entry->expects,
                                   optarg);
    }
    return take_arguments(command, argc - optind, argv + optind, options);
}

void cli_options_free(cli_options *options) {
    free(options->include);
    free(options->exclude);
    free(options->skip_extra);
}
