/* SPDX-License-Identifier: Apache-2.0 */
/* Searches for the constants by which the kernels of packed products are chosen (trf_packed_estimate.h), so that the
 * choices lose little of the time of the fastest ones. Needs times (times_cuda.c), and no device.
 *
 *     packed_choice_fit --check TIMES.csv...                                  how good the choices are
 *     packed_choice_fit [--seconds N] [--seed N] [--keep CARD] TIMES.csv...   ... and better constants
 *
 * A *way* is a kernel in a cut. A product with early launches and one without are two. The loss of a product is how
 * much longer its choice takes than the fastest way, as a share of the latter; what exceeds 3 % counts three times.
 * Estimates that differ by less than times can be measured are as good as equal. So each way counts as chosen with a
 * probability that falls as its estimate grows (a softmin), which also makes the loss smooth. The search changes one to
 * four constants at random. It keeps a change if the mean loss is no worse or, at first, only a little worse (simulated
 * annealing).
 *
 * --keep names a card, H100 or H200, that is not at hand and whose choices for usual layers and batches should stay as
 * they are. Each other way counts as 5 % slower there. */
#include "bench_random.h"
#include "cli_values.h"

#include "trf_packed_estimate.h"
#include "trf_planning.h"
#include "usual_layers.h"

#include <getopt.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    WAYS = TRF_PACKED_SHAPES * (TRF_MAX_CLUSTER + 1),
    MOST_PRODUCTS = 8192,
    CONSTANTS = sizeof(trf_packed_costs) / sizeof(double),
    MOST_CHANGED = 4, /* constants of a step */
    WORST = 10        /* products that a report names */
};
static const double kTemperature = 0.008; /* of the softmin, as a share of the least estimate */
static const double kWithin = 0.03, kExcessWeight = 2;
static const double kKeptWeight = 1, kKeptTime = 1.05;
static const double kChangeWeight = 3e-6; /* of its change's squared logarithm: without evidence a constant stays */
static const double kHeat = 0.002;        /* of annealing at its start, as a share of the loss there */

typedef struct way {
    trf_packed_partition partition;
    double time;      /* the mean of `times` times; relative for kept products */
    double ns, trial; /* estimates with the search's present constants, and with those that it tries */
    int times;
} way;

typedef struct product {
    char card[16];
    trf_device_limits limits;
    trf_packed_view view;
    uint32_t m;
    int is_early; /* early launches */
    int is_kept;
    double fastest;
    way *ways;
    int num_ways;
} product;

typedef struct fit {
    product *products[MOST_PRODUCTS];
    int count;
    double weight; /* of all products */
} fit;

static _Noreturn void fail(const char *file, int line, const char *why) {
    if (line)
        fprintf(stderr, "packed_choice_fit: %s:%d: %s\n", file, line, why);
    else
        fprintf(stderr, "packed_choice_fit: %s: %s\n", file, why);
    exit(1);
}

/* ---- products ---- */

static const char *const kCards[] = {"H100", "H200"};
static const uint32_t kGbs[] = {3352, 4814}; /* of memory, a second, by the clock and width that the driver reports */

static uint32_t gb_of(const char *card) {
    for (size_t i = 0; i < sizeof kCards / sizeof kCards[0]; i++)
        if (strcmp(card, kCards[i]) == 0)
            return kGbs[i];
    return 0;
}

/* The product of a layer [rows][cols], with or without early launches; NULL if it is new. */
static product *find_product(const fit *f, const char *card, cli_shape layer, uint32_t m, int is_early) {
    for (int i = f->count - 1; i >= 0; i--) {
        product *p = f->products[i];
        if (p->m == m && p->view.rows == layer.rows && p->view.cols == layer.cols && p->is_early == is_early &&
            strcmp(p->card, card) == 0)
            return p;
    }
    return NULL;
}

/* @return NULL: there are too many. */
static product *add_product(fit *f, const char *card, uint32_t gb, cli_shape layer, uint32_t m) {
    product *p = f->count < MOST_PRODUCTS ? calloc(1, sizeof *p) : NULL;
    if (!p)
        return NULL;
    snprintf(p->card, sizeof p->card, "%s", card);
    p->m = m;
    p->view.rows = layer.rows;
    p->view.cols = layer.cols;
    p->view.bands = (uint32_t)trf_ceil_div(layer.rows, TRF_PACKED_TILE_ROWS);
    p->view.tiles_per_band = (uint32_t)trf_ceil_div(layer.cols, TRF_PACKED_TILE_COLS);
    p->limits = (trf_device_limits){.multiprocessors = 132,
                                    .shared_bytes = 232448,
                                    .capability = 90,
                                    .memory_gb_per_second = gb,
                                    .clusters_of = {0, 132, 66, 42, 30, 22, 20, 15, 15}};
    p->ways = calloc(WAYS, sizeof *p->ways);
    f->products[f->count++] = p;
    return p->ways ? p : NULL;
}

static way *way_of(product *p, int shape, uint32_t cut) {
    for (int i = 0; i < p->num_ways; i++)
        if (p->ways[i].partition.shape == shape && p->ways[i].partition.cut == cut)
            return &p->ways[i];
    way *w = &p->ways[p->num_ways];
    return trf_packed_choose_shape(&p->view, &p->limits, p->m, shape, cut, &w->partition) ? &p->ways[p->num_ways++]
                                                                                          : NULL;
}

/* ---- files ---- */

/* @return the fields of a line, which are cut where commas were. */
static int split(char *line, char **fields, int most) {
    int count = 0;
    for (line[strcspn(line, "\r\n")] = 0; count < most; line += strlen(line) + 1) {
        fields[count++] = line;
        char *comma = strchr(line, ',');
        if (!comma)
            break;
        *comma = 0;
    }
    return count;
}

/* @return TRF_PACKED_STREAM_K, 1 to TRF_MAX_CLUSTER, or -1. */
static int cut_of(const char *name) {
    uint64_t blocks;
    if (strcmp(name, trf_packed_cut_name(TRF_PACKED_STREAM_K)) == 0)
        return TRF_PACKED_STREAM_K;
    return cli_parse_uint(name, 1, TRF_MAX_CLUSTER, &blocks) ? -1 : (int)blocks;
}

static void read_line(fit *f, const char *file, int line, char *text) {
    enum {
        CARD,
        EARLY,
        PAUSE,
        LAYER,
        BATCH,
        KERNEL,
        CUT,
        CHOSEN,
        ROUNDS,
        MEDIAN,
        Q1,
        Q3,
        FIELDS
    };
    char *fields[FIELDS];
    cli_shape layer;
    uint64_t m;
    double time;
    if (split(text, fields, FIELDS) != FIELDS)
        fail(file, line, "a line of 12 fields is expected");
    if (strcmp(fields[KERNEL], "cublaslt") == 0)
        return;
    const uint32_t gb = gb_of(fields[CARD]);
    const int shape = trf_packed_find_kernel(fields[KERNEL]), cut = cut_of(fields[CUT]);
    if (!gb)
        fail(file, line, "the card is none of H100 and H200");
    if (cli_parse_shape(fields[LAYER], &layer) || cli_parse_uint(fields[BATCH], 1, 1 << 20, &m) ||
        cli_parse_real(fields[MEDIAN], 1e-3, 1e9, &time))
        fail(file, line, "layer, batch or time is no number, or out of range");
    if (shape == TRF_PACKED_GENERAL || cut < 0)
        fail(file, line, "there is no such kernel or cut");
    const int is_early = strcmp(fields[EARLY], "1") == 0;
    product *p = find_product(f, fields[CARD], layer, (uint32_t)m, is_early);
    p = p ? p : add_product(f, fields[CARD], gb, layer, (uint32_t)m);
    if (!p)
        fail(file, line, "too many products");
    p->is_early = is_early;
    way *w = way_of(p, shape, (uint32_t)cut);
    if (!w)
        fail(file, line, "the kernel does not run the product in this cut");
    w->time = (w->time * w->times + time) / (w->times + 1);
    w->times++;
}

static void read_file(fit *f, const char *name) {
    char text[512];
    FILE *file = fopen(name, "r");
    if (!file)
        fail(name, 0, "cannot be opened");
    for (int line = 1; fgets(text, sizeof text, file); line++)
        if (line > 1 && text[0] != '\n')
            read_line(f, name, line, text);
        else if (line == 1 && strncmp(text, "card,early_launch,", 18) != 0)
            fail(name, line, "not a file of times");
    fclose(file);
}

/* ---- estimates ---- */

static int is_bulk(const way *w) { return !trf_packed_is_wgmma(w->partition.shape); }

/* Sets the trial estimates. which: those of bulk kernels (1), of wgmma kernels (2), or of both (3); the others stay.
 * @return the product's loss. */
static double loss_of(product *p, const trf_packed_costs *costs, int which) {
    double least = INFINITY, weights = 0, times = 0;
    for (int i = 0; i < p->num_ways; i++) {
        way *w = &p->ways[i];
        w->trial = which & (is_bulk(w) ? 1 : 2)
                       ? trf_packed_estimate(costs, TRF_PACKED_SLAB_BYTES, &p->view, &p->limits, p->m, &w->partition)
                       : w->ns;
        least = w->trial < least ? w->trial : least;
    }
    for (int i = 0; i < p->num_ways; i++) {
        const double above = p->ways[i].trial / least - 1;
        if (above < 12 * kTemperature) {
            const double weight = exp(-above / kTemperature);
            weights += weight;
            times += weight * p->ways[i].time;
        }
    }
    const double loss = times / weights / p->fastest - 1;
    return (loss + kExcessWeight * (loss > kWithin ? loss - kWithin : 0)) * (p->is_kept ? kKeptWeight : 1);
}

/* @return the mean loss with these constants; once it is known to exceed `most`, any number above `most`. */
static double loss_of_all(fit *f, const trf_packed_costs *costs, int which, double most) {
    const double *values = (const double *)costs, *first = (const double *)&trf_packed_sm_90_costs;
    double sum = 0;
    for (int i = 0; i < CONSTANTS; i++)
        if (first[i] != 0)
            sum += f->weight * kChangeWeight * log(values[i] / first[i]) * log(values[i] / first[i]);
    for (int i = 0; i < f->count && sum <= most * f->weight; i++)
        sum += loss_of(f->products[i], costs, which);
    return sum / f->weight;
}

static void take_trial(fit *f) {
    for (int i = 0; i < f->count; i++)
        for (int k = 0; k < f->products[i]->num_ways; k++)
            f->products[i]->ways[k].ns = f->products[i]->ways[k].trial;
}

static const way *choice_of(const product *p) {
    const way *least = &p->ways[0];
    for (int i = 1; i < p->num_ways; i++)
        least = p->ways[i].trial < least->trial ? &p->ways[i] : least;
    return least;
}

/* Adds a product whose present choice is kept. */
static void keep_choice(fit *f, uint32_t gb, cli_shape layer, uint32_t m) {
    product *p = add_product(f, "kept", gb, layer, m);
    if (!p)
        fail("--keep", 0, "too many products");
    p->is_kept = 1;
    for (int shape = 0; shape < TRF_PACKED_SHAPES; shape++)
        for (uint32_t cut = 0; cut <= TRF_MAX_CLUSTER; cut++)
            way_of(p, shape, cut);
    p->fastest = 1;
    loss_of(p, &trf_packed_sm_90_costs, 3);
    const way *chosen = choice_of(p);
    for (int i = 0; i < p->num_ways; i++)
        p->ways[i].time = &p->ways[i] == chosen ? 1 : kKeptTime;
}

typedef struct kept_card {
    fit *f;
    uint32_t gb;
} kept_card;

static int keep_layer(void *context, const char *list_entry) {
    static const uint32_t batches[] = {1, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048};
    const kept_card *card = context;
    cli_shape layer;
    if (cli_parse_shape(list_entry, &layer))
        return -1;
    for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++)
        keep_choice(card->f, card->gb, layer, batches[b]);
    return 0;
}

/* ---- the report ---- */

static double excess_of(const product *p) { return p->is_kept ? 0 : choice_of(p)->time / p->fastest - 1; }

static int compare_excess(const void *a, const void *b) {
    const double x = excess_of(*(product *const *)a), y = excess_of(*(product *const *)b);
    return (x < y) - (x > y);
}

static void report(fit *f, const trf_packed_costs *costs, const char *title) {
    int within = 0, timed = 0, kept = 0;
    const double loss = loss_of_all(f, costs, 3, INFINITY);
    static product *worst[MOST_PRODUCTS];
    for (int i = 0; i < f->count; i++) {
        const product *p = worst[i] = f->products[i];
        timed += !p->is_kept;
        within += !p->is_kept && excess_of(p) <= kWithin;
        kept += p->is_kept && choice_of(p)->time == 1;
    }
    qsort(worst, (size_t)f->count, sizeof worst[0], compare_excess);
    printf("// %s: %d of %d products within 3 %% of the fastest; %d of %d kept choices; loss %.5f\n", title, within,
           timed, kept, f->count - timed, loss);
    for (int i = 0; i < WORST && i < f->count && excess_of(worst[i]) > kWithin; i++) {
        const product *p = worst[i];
        const way *chosen = choice_of(p), *fastest = &p->ways[0];
        for (int k = 1; k < p->num_ways; k++)
            fastest = p->ways[k].time < fastest->time ? &p->ways[k] : fastest;
        printf("//   %s %ux%u by %u%s: %s %s, fastest %s %s, %.1f %%\n", p->card, p->view.rows, p->view.cols, p->m,
               p->is_early ? ", early launches" : "", trf_packed_kernel_name(chosen->partition.shape),
               trf_packed_cut_name(chosen->partition.cut), trf_packed_kernel_name(fastest->partition.shape),
               trf_packed_cut_name(fastest->partition.cut), 100 * excess_of(p));
    }
}

/* ---- constants ---- */

typedef struct field {
    const char *name;
    size_t at, count; /* among all */
} field;

#define FIELD(name)                                                                                                    \
    { #name, offsetof(trf_packed_costs, name) / sizeof(double), sizeof((trf_packed_costs *)0)->name / sizeof(double) }
static const field kFields[] = {
    FIELD(bulk_start),        FIELD(bulk_stream_k),     FIELD(bulk_cluster),      FIELD(bulk_copy),
    FIELD(bulk_read),         FIELD(bulk_k_block),      FIELD(wgmma_start),       FIELD(wgmma_registers),
    FIELD(wgmma_cluster),     FIELD(wgmma_copy),        FIELD(wgmma_read),        FIELD(wgmma_stream_k),
    FIELD(wgmma_fronts),      FIELD(wgmma_tile),        FIELD(wgmma_row),         FIELD(wgmma_cluster_row),
    FIELD(wgmma_back_row),    FIELD(wgmma_sharer_row),  FIELD(wgmma_shared_x),    FIELD(wgmma_back_k_block),
    FIELD(wgmma_k_block),     FIELD(wgmma_k_block_row), FIELD(wgmma_product_row), FIELD(wgmma_power_row),
    FIELD(wgmma_192_k_block), FIELD(wgmma_192_product),
};

static int is_of_bulk(int constant) {
    return (size_t)constant < offsetof(trf_packed_costs, wgmma_start) / sizeof(double);
}

/* Prints the constants as trf_packed_estimate.c has them, except for white space. */
static void print_constants(const trf_packed_costs *costs) {
    static const char *const shapes[TRF_PACKED_BULK_SHAPES] = {"TRF_PACKED_BULK_256", "TRF_PACKED_BULK_128",
                                                               "TRF_PACKED_BULK_64", "TRF_PACKED_BULK_32"};
    const double *values = (const double *)costs;
    for (size_t i = 0; i < sizeof kFields / sizeof kFields[0]; i++) {
        const field *f = &kFields[i];
        const int by_shape = f->count == TRF_PACKED_BULK_SHAPES * 4;
        printf("    .%s = %s", f->name, f->count > 1 ? "{" : "");
        for (size_t k = 0; k < f->count; k++) {
            if (by_shape && k % 4 == 0)
                printf("[%s] = {", shapes[k / 4]);
            printf("%.4g%s", values[f->at + k], by_shape && k % 4 == 3 ? "}" : "");
            printf("%s", k + 1 < f->count ? ", " : "");
        }
        printf("%s,\n", f->count > 1 ? "}" : "");
    }
}

/* ---- the search ---- */

static uint64_t state;
static double uniform(void) { return ((double)(bench_random(&state) >> 11) + 0.5) * 0x1p-53; }
static double normal(void) { return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()); }

/* Changes some constants. @return which estimates this changes, as loss_of's `which`. */
static int change(trf_packed_costs *costs) {
    double *values = (double *)costs;
    const double scale = 0.002 * pow(150, uniform()); /* to 0.3 */
    const int count = 1 + (int)(MOST_CHANGED * uniform());
    int which = 0;
    for (int i = 0; i < count; i++) {
        const int constant = (int)(CONSTANTS * uniform());
        values[constant] *= exp(scale * normal());
        which |= is_of_bulk(constant) ? 1 : 2;
    }
    return which;
}

static void search(fit *f, trf_packed_costs *costs, double seconds) {
    const clock_t start = clock();
    double loss = loss_of_all(f, costs, 3, INFINITY), first = loss, best_loss = loss, left = seconds > 0;
    trf_packed_costs at = *costs;
    take_trial(f);
    while (left > 0) {
        trf_packed_costs trial = at;
        const int which = change(&trial);
        const double most = loss - first * kHeat * left * log(uniform()), made = loss_of_all(f, &trial, which, most);
        if (made <= most) {
            take_trial(f);
            at = trial;
            loss = made;
            if (loss < best_loss) {
                best_loss = loss;
                *costs = at;
            }
        }
        left = 1 - (double)(clock() - start) / CLOCKS_PER_SEC / seconds;
    }
    double *values = (double *)costs;
    for (int i = 0; i < CONSTANTS; i++) {
        char text[32];
        snprintf(text, sizeof text, "%.4g", values[i]);
        values[i] = atof(text);
    }
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"check", no_argument, NULL, 'c'},
                                            {"seconds", required_argument, NULL, 's'},
                                            {"seed", required_argument, NULL, 'r'},
                                            {"keep", required_argument, NULL, 'k'},
                                            {NULL, 0, NULL, 0}};
    static fit f;
    double seconds = 60;
    int option, checks = 0;
    uint32_t kept_gb = 0;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (option) {
        case 'c':
            checks = 1;
            break;
        case 's':
            if (cli_parse_real(optarg, 0, 1e6, &seconds))
                optind = argc;
            break;
        case 'r':
            if (cli_parse_uint(optarg, 0, UINT64_MAX, &state))
                optind = argc;
            break;
        case 'k':
            kept_gb = gb_of(optarg);
            if (!kept_gb)
                optind = argc;
            break;
        default:
            optind = argc;
        }
    if (optind >= argc) {
        fprintf(stderr,
                "usage: packed_choice_fit [--check] [--seconds N] [--seed N] [--keep H100|H200] TIMES.csv...\n");
        return 2;
    }
    for (int i = optind; i < argc; i++)
        read_file(&f, argv[i]);
    for (int i = 0; i < f.count; i++) {
        product *p = f.products[i];
        p->fastest = INFINITY;
        for (int k = 0; k < p->num_ways; k++)
            p->fastest = p->ways[k].time < p->fastest ? p->ways[k].time : p->fastest;
    }
    if (kept_gb && !checks)
        cli_parse_list(USUAL_LAYERS, keep_layer, &(kept_card){&f, kept_gb});
    for (int i = 0; i < f.count; i++)
        f.weight += f.products[i]->is_kept ? kKeptWeight : 1;
    if (!f.count)
        fail(argv[optind], 0, "no times");
    trf_packed_costs costs = trf_packed_sm_90_costs;
    report(&f, &costs, "as they are");
    if (checks)
        return 0;
    search(&f, &costs, seconds);
    report(&f, &costs, "found");
    print_constants(&costs);
    return 0;
}
