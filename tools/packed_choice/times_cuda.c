/* SPDX-License-Identifier: Apache-2.0 */
/* Times products of packed layers by each kernel in each cut, and cuBLASLt's products by the plain weights, on a GPU of
 * compute capability 9.0. docs/performance/packed.csv is made from these times (packed_medians.py), and the choice of
 * kernels is fitted to them (fit.c). The program reaches into the library, so it is built only with the static one.
 *
 *     packed_choice_times [--layers ROWSxCOLS,...] [--batches M,...] [--early-launches] [--pause SECONDS]
 *                         [--rounds N] > times.csv
 *
 * Weights are N(0, 0.02). A time is that of a graph of calls by at least 8 copies of the layer, which together are four
 * times as large as the L2 cache. Kernels that should take 60 % longer than the choice, by the estimate, are left out;
 * those that take 8 % longer than the fastest are timed twice; all others take turns with cuBLASLt, in changing order.
 * Without --early-launches a product waits for the one in front of it, as cuBLASLt's do. --pause: a pause before a
 * batch is timed to the end, since after a pause the card's power lets it run faster for a while. */
#include "bench_candidates_cuda.h"
#include "bench_memory.h"
#include "bench_plan_cuda.h"
#include "bench_timer_cuda.h"
#include "bench_weights.h"
#include "cli_cuda.h"
#include "cli_messages.h"
#include "cli_values.h"
#include "transfuse/device_memory.h"

#include "trf_context.h"
#include "trf_layout_plans.h"
#include "trf_packed_estimate.h"
#include "usual_layers.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MIN_COPIES = 8,
    MAX_COPIES = 256,
    PATTERN = (1 << 22) + 7, /* weights that are drawn; layers repeat them */
    MAX_CASES = TRF_PACKED_SHAPES * (TRF_MAX_CLUSTER + 1) + 1,
    LOOKS = 2 /* rounds of kernels that may have no chance */
};
static const double kSigma = 0.02, kEstimatedSlack = 1.6, kMeasuredSlack = 1.08; /* of the least time */

typedef struct settings {
    cli_shape layers[CLI_MAX_LIST];
    uint32_t batches[CLI_MAX_LIST];
    int num_layers, num_batches, rounds, early_launches;
    double pause;
    const char *card;
} settings;

/* A layer on the device, in both forms. */
typedef struct layer {
    cli_shape shape;
    uint32_t num_copies, max_batch;
    trf_device_layer *packed[MAX_COPIES];
    void *plain[MAX_COPIES]; /* [rows][cols], BF16 */
    void *x, *y, *workspace; /* [max_batch][cols], [max_batch][rows], BF16 */
    uint64_t workspace_bytes;
    cudaStream_t stream;
    bench_cublaslt *lt;
} layer;

/* A kernel and cut, or cuBLASLt. */
typedef struct kernel_case {
    layer *of;
    bench_plan *plans; /* one for each copy, for this batch; all cases use them in turn */
    bench_cublaslt_product *product;
    int candidate; /* of it */
    trf_packed_partition partition;
    int is_chosen;
    bench_figure figure;
} kernel_case;

/* ---- launches: the linker has calls of cudaLaunchKernelExC come here ---- */

static int early_launches;
cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args);
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args);

cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args) {
    cudaLaunchAttribute kept[8];
    cudaLaunchConfig_t taken = *config;
    taken.attrs = kept;
    taken.numAttrs = 0;
    for (unsigned i = 0; i < config->numAttrs && i < sizeof kept / sizeof kept[0]; i++)
        if (early_launches || config->attrs[i].id != cudaLaunchAttributeProgrammaticStreamSerialization)
            kept[taken.numAttrs++] = config->attrs[i];
    return __real_cudaLaunchKernelExC(&taken, kernel, args);
}

/* ---- options ---- */

static int take_layer(void *context, const char *list_entry) {
    settings *s = context;
    return s->num_layers == CLI_MAX_LIST || cli_parse_shape(list_entry, &s->layers[s->num_layers++]) ? -1 : 0;
}

static int take_batch(void *context, const char *list_entry) {
    settings *s = context;
    uint64_t batch;
    if (s->num_batches == CLI_MAX_LIST || cli_parse_uint(list_entry, 1, 1 << 20, &batch))
        return -1;
    s->batches[s->num_batches++] = (uint32_t)batch;
    return 0;
}

static int set_layers(settings *s, const char *text) {
    s->num_layers = 0;
    return cli_parse_list(text, take_layer, s);
}

static int set_batches(settings *s, const char *text) {
    s->num_batches = 0;
    return cli_parse_list(text, take_batch, s);
}

static int take_options(int argc, char **argv, settings *s) {
    static const struct option options[] = {
        {"layers", required_argument, NULL, 'l'},   {"batches", required_argument, NULL, 'b'},
        {"early-launches", no_argument, NULL, 'e'}, {"pause", required_argument, NULL, 'p'},
        {"rounds", required_argument, NULL, 'r'},   {NULL, 0, NULL, 0}};
    int option, wrong = 0;
    uint64_t rounds = (uint64_t)s->rounds;
    while (!wrong && (option = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (option) {
        case 'l':
            wrong = set_layers(s, optarg);
            break;
        case 'b':
            wrong = set_batches(s, optarg);
            break;
        case 'e':
            s->early_launches = 1;
            break;
        case 'p':
            wrong = cli_parse_real(optarg, 0, 1000, &s->pause);
            break;
        case 'r':
            wrong = cli_parse_uint(optarg, 1, CLI_MAX_REPEATS, &rounds);
            break;
        default:
            wrong = 1;
        }
    s->rounds = (int)rounds;
    if (!wrong && optind == argc)
        return 0;
    fprintf(stderr, "usage: packed_choice_times [--layers ROWSxCOLS,...] [--batches M,...] [--early-launches]\n"
                    "                           [--pause SECONDS] [--rounds N] > times.csv\n");
    return -1;
}

/* ---- a layer ---- */

/* Values of N(0, sigma), as BF16. */
static int fill(uint16_t *values, uint64_t count, double sigma) {
    const uint32_t first = count < PATTERN ? (uint32_t)count : PATTERN;
    float *drawn = bench_alloc(first * sizeof *drawn);
    if (!drawn)
        return -1;
    bench_draw(drawn, first, 0);
    bench_make_source(drawn, (cli_shape){1, first}, sigma, TRF_DTYPE_BF16, values);
    for (uint64_t i = first; i < count; i += PATTERN)
        memcpy(values + i, values, (count - i < PATTERN ? count - i : PATTERN) * sizeof *values);
    free(drawn);
    return 0;
}

/* @return device memory with so many values, or NULL after a message. */
static void *upload(const uint16_t *values, uint64_t count) {
    void *to = cli_cuda_alloc(count * sizeof *values);
    if (to && cli_cuda_check(cudaMemcpy(to, values, count * sizeof *values, cudaMemcpyHostToDevice), "uploading")) {
        cudaFree(to);
        return NULL;
    }
    return to;
}

static int make_copies(layer *l, trf_context *context, const uint16_t *weights) {
    const uint64_t count = (uint64_t)l->shape.rows * l->shape.cols;
    trf_encode_options encode;
    trf_load_options load;
    bench_blob blob = {0};
    trf_error err = {0};
    trf_encode_options_init(&encode);
    trf_load_options_init(&load);
    load.layout = TRF_LAYOUT_PACKED;
    if (bench_encode(weights, TRF_DTYPE_BF16, l->shape, &encode, &blob))
        return -1;
    int failed = 0;
    for (uint32_t i = 0; !failed && i < l->num_copies; i++) {
        l->plain[i] = upload(weights, count);
        failed = !l->plain[i];
        if (!failed && trf_device_layer_create(context, blob.bytes, blob.size, &load, &l->packed[i], &err)) {
            cli_report_error(&err);
            failed = -1;
        }
    }
    trf_free(blob.bytes);
    return failed ? -1 : 0;
}

static int layer_open(layer *l, trf_context *context, uint64_t l2_bytes) {
    const uint64_t weights = (uint64_t)l->shape.rows * l->shape.cols, x_count = (uint64_t)l->max_batch * l->shape.cols,
                   most = weights > x_count ? weights : x_count, copies = 4 * l2_bytes / (weights * 3 / 2) + 1;
    uint16_t *values = bench_alloc(most * sizeof *values);
    int failed = !values || fill(values, x_count, 1);
    l->num_copies = copies < MIN_COPIES ? MIN_COPIES : copies > MAX_COPIES ? MAX_COPIES : (uint32_t)copies;
    if (!failed) {
        l->x = upload(values, x_count);
        l->y = cli_cuda_alloc((uint64_t)l->max_batch * l->shape.rows * sizeof *values);
        failed = !l->x || !l->y || fill(values, weights, kSigma) || make_copies(l, context, values);
    }
    free(values);
    return failed ? -1 : 0;
}

static void layer_close(layer *l) {
    for (uint32_t i = 0; i < l->num_copies; i++) {
        trf_device_layer_destroy(l->packed[i]);
        cudaFree(l->plain[i]);
    }
    cudaFree(l->x);
    cudaFree(l->y);
    cudaFree(l->workspace);
}

/* ---- cases ---- */

static int queue_case(void *context, uint32_t call, cudaStream_t stream) {
    const kernel_case *c = context;
    const layer *l = c->of;
    const uint32_t copy = call % l->num_copies;
    if (c->product)
        return bench_cublaslt_queue(c->product, c->candidate, l->plain[copy], l->x, l->y, stream);
    trf_packed_set_partition(c->plans[copy].plan, &c->partition);
    return bench_plan_queue(&c->plans[copy], l->x, l->y, l->workspace, stream);
}

/* Adds cuBLASLt's product, with its fastest algorithm. */
static int add_cublaslt(kernel_case *c, layer *l, uint32_t m) {
    const bench_candidate_operands operands = {
        .weights = (const void *const *)l->plain, .count = l->num_copies, .step = 1, .x = l->x, .y = l->y};
    *c = (kernel_case){.of = l};
    c->product = bench_cublaslt_product_make(l->lt, l->shape.rows, l->shape.cols, m, TRF_DTYPE_BF16, TRF_DTYPE_BF16);
    c->candidate = c->product ? bench_fastest_candidate(c->product, &operands, l->num_copies, l->stream) : -1;
    return c->candidate < 0 ? -1 : 0;
}

/* Adds the kernels and cuts that run and, by the estimate, have a chance. @return how many cases there are, the first
 * one included. */
static size_t add_kernels(kernel_case *cases, layer *l, bench_plan *plans, uint32_t m) {
    const trf_packed_view *view = &l->packed[0]->packed;
    const trf_device_limits *limits = &l->packed[0]->context->limits;
    const trf_packed_partition *chosen = &plans[0].plan->partition.packed;
    const double least = trf_packed_estimate(&trf_packed_sm_90_costs, TRF_PACKED_SLAB_BYTES, view, limits, m, chosen);
    size_t count = 1;
    for (int shape = 0; shape < TRF_PACKED_SHAPES; shape++)
        for (uint32_t cut = 0; cut <= TRF_MAX_CLUSTER; cut++) {
            kernel_case c = {.of = l, .plans = plans};
            if (!trf_packed_choose_shape(view, limits, m, shape, cut, &c.partition) ||
                trf_packed_estimate(&trf_packed_sm_90_costs, TRF_PACKED_SLAB_BYTES, view, limits, m, &c.partition) >
                    kEstimatedSlack * least)
                continue;
            c.is_chosen = shape == chosen->shape && cut == chosen->cut;
            cases[count++] = c;
        }
    return count;
}

static int need_workspace(layer *l, const kernel_case *cases, size_t count) {
    uint64_t bytes = 256;
    for (size_t i = 1; i < count; i++)
        bytes = cases[i].partition.workspace_bytes > bytes ? cases[i].partition.workspace_bytes : bytes;
    if (bytes <= l->workspace_bytes)
        return 0;
    cudaFree(l->workspace);
    l->workspace = cli_cuda_alloc(bytes);
    l->workspace_bytes = l->workspace ? bytes : 0;
    return l->workspace ? 0 : -1;
}

/* ---- times ---- */

/* Frees the graphs of cases whose least time is 8 % above the least of all, and keeps their times. The case that is
 * chosen stays. */
static void drop_slow(kernel_case *cases, bench_timer *timers, size_t count) {
    double least = 0;
    for (size_t i = 1; i < count; i++) {
        bench_figure_finish(&cases[i].figure);
        least = i == 1 || cases[i].figure.min < least ? cases[i].figure.min : least;
    }
    for (size_t i = 1; i < count; i++)
        if (!cases[i].is_chosen && cases[i].figure.min > kMeasuredSlack * least)
            bench_timer_free(&timers[i]);
}

static void pause_for(double seconds) {
    const struct timespec time = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&time, NULL);
}

static int time_cases(const settings *s, layer *l, kernel_case *cases, bench_timer *timers, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bench_timer_make(&timers[i], queue_case, &cases[i], l->num_copies, l->stream))
            return -1;
    for (size_t i = 0; i < count; i++)
        timers[i].figure = &cases[i].figure;
    if (bench_time(timers, count, LOOKS, l->stream))
        return -1;
    drop_slow(cases, timers, count);
    pause_for(s->pause);
    return bench_time(timers, count, s->rounds, l->stream);
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_case(const settings *s, kernel_case *c, uint32_t m) {
    bench_figure *f = &c->figure;
    const int n = f->num_values;
    bench_figure_finish(f);
    qsort(f->values, (size_t)n, sizeof *f->values, compare_doubles);
    printf("%s,%d,%g,%ux%u,%u,%s,%s,%d,%d,%.3f,%.3f,%.3f\n", s->card, s->early_launches, s->pause, c->of->shape.rows,
           c->of->shape.cols, m, c->product ? "cublaslt" : trf_packed_kernel_name(c->partition.shape),
           c->product ? "" : trf_packed_cut_name(c->partition.cut), c->is_chosen, n, 1e6 * f->median,
           1e6 * f->values[n / 4], 1e6 * f->values[n - 1 - n / 4]);
}

static int measure_batch(const settings *s, layer *l, uint32_t m) {
    static kernel_case cases[MAX_CASES];
    static bench_timer timers[MAX_CASES];
    bench_plan plans[MAX_COPIES] = {0};
    size_t count = 0;
    int failed = add_cublaslt(&cases[0], l, m);
    for (uint32_t i = 0; !failed && i < l->num_copies; i++)
        failed = bench_plan_make(&plans[i], l->packed[i], m, TRF_DTYPE_BF16, TRF_DTYPE_BF16, TRF_PATH_PACKED) != TRF_OK;
    failed = failed || !plans[0].plan; /* as if there were no copies */
    if (!failed)
        count = add_kernels(cases, l, plans, m);
    if (count == 1)
        failed = cli_fail(TRF_ERR_UNSUPPORTED, "%ux%u by %u rows of x: the device has no kernels to choose among",
                          l->shape.rows, l->shape.cols, m) != CLI_OK;
    memset(timers, 0, count * sizeof timers[0]);
    failed = failed || need_workspace(l, cases, count) || time_cases(s, l, cases, timers, count);
    for (size_t i = 0; !failed && i < count; i++)
        print_case(s, &cases[i], m);
    for (size_t i = 0; i < count; i++) {
        bench_timer_free(&timers[i]);
        bench_figure_clear(&cases[i].figure);
    }
    bench_cublaslt_product_free(cases[0].product);
    for (uint32_t i = 0; i < l->num_copies; i++)
        bench_plan_free(&plans[i]);
    fflush(stdout);
    return failed ? -1 : 0;
}

static int measure_layer(const settings *s, trf_context *context, layer *l) {
    int device, l2_bytes;
    if (cli_cuda_check(cudaGetDevice(&device), "the device") ||
        cli_cuda_check(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device), "the device"))
        return -1;
    for (int i = 0; i < s->num_batches; i++)
        l->max_batch = s->batches[i] > l->max_batch ? s->batches[i] : l->max_batch;
    int failed = layer_open(l, context, (uint64_t)l2_bytes);
    for (int i = 0; !failed && i < s->num_batches; i++)
        failed = measure_batch(s, l, s->batches[i]);
    layer_close(l);
    return failed;
}

/* "NVIDIA H100 80GB HBM3": H100. */
static const char *card_name(trf_context *context) {
    static char name[32];
    trf_context_info info;
    trf_context_get_info(context, &info);
    const char *text = strncmp(info.name, "NVIDIA ", 7) == 0 ? info.name + 7 : info.name;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(text, " ,"), text);
    return name;
}

int main(int argc, char **argv) {
    static settings s = {.rounds = 7};
    trf_context *context = NULL;
    cudaStream_t stream = NULL;
    set_layers(&s, USUAL_LAYERS);
    set_batches(&s, "1,2,4,8,12,16,20,24,32,48,56,64,72,96,100,128,130,160,192,200,224,256,260,300,350,384,400,450,512,"
                    "520,600,768,800,1000,1024,1200,1500,1600,2048");
    if (take_options(argc, argv, &s))
        return CLI_USAGE;
    if (cli_open_device(CLI_DEVICE_CUDA, &context) != CLI_OK)
        return CLI_FAILED;
    early_launches = s.early_launches;
    s.card = card_name(context);
    bench_cublaslt *lt = bench_cublaslt_open();
    int failed = !lt || cli_cuda_check(cudaStreamCreate(&stream), "a stream");
    printf("card,early_launch,pause_s,layer,batch,kernel,cut,chosen,rounds,median_us,q1_us,q3_us\n");
    for (int i = 0; !failed && i < s.num_layers; i++) {
        layer *l = bench_alloc_zeros(1, sizeof *l);
        failed = !l;
        if (!failed) {
            l->shape = s.layers[i];
            l->stream = stream;
            l->lt = lt;
            failed = measure_layer(&s, context, l);
        }
        free(l);
    }
    if (!failed && (fflush(stdout) || ferror(stdout)))
        failed = cli_fail(TRF_ERR_IO, "the times could not be written") != CLI_OK;
    bench_cublaslt_close(lt);
    if (stream)
        cudaStreamDestroy(stream);
    trf_context_destroy(context);
    return failed ? CLI_FAILED : CLI_OK;
}
