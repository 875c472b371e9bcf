/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_symbol_model.h"

#include "trf_log2.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double trf_entropy(const uint64_t *counts, size_t n) {
    double total = 0, bits = 0;
    for (size_t i = 0; i < n; i++)
        total += (double)counts[i];
    for (size_t i = 0; i < n; i++)
        if (counts[i])
            bits -= (double)counts[i] / total * trf_log2((double)counts[i] / total);
    return bits;
}

int trf_class_of(const trf_classes *classes, int32_t class_key) {
    for (int k = 0; k < 1 << classes->class_bits; k++)
        if (class_key >= classes->class_value[k] && class_key < classes->class_value[k] + (1 << classes->shift))
            return k;
    return -1;
}

/* ---- classes of exponents ---- */

typedef struct bin_count {
    uint64_t count;
    int32_t index;
} bin_count;

/* Orders bins with more weights first; among equals, larger exponents first, since outliers need them. */
static int by_count(const void *a, const void *b) {
    const bin_count *x = a, *y = b;
    if (x->count != y->count)
        return x->count < y->count ? 1 : -1;
    return y->index - x->index;
}

static int by_index(const void *a, const void *b) {
    return ((const bin_count *)a)->index - ((const bin_count *)b)->index;
}

/* Gives classes that no weight needs the bins next to the largest one in use, so that the list is a range. */
static void fill_unused(bin_count *bins, uint32_t num_bins, uint32_t num_classes) {
    uint32_t used = 0;
    while (used < num_classes && bins[used].count)
        used++;
    if (used == 0 || used == num_classes)
        return;
    uint8_t taken[256] = {0};
    int32_t top = 0;
    for (uint32_t i = 0; i < used; i++) {
        taken[bins[i].index] = 1;
        top = bins[i].index > top ? bins[i].index : top;
    }
    for (int32_t reach = 1; used < num_classes && reach < (int32_t)num_bins; reach++)
        for (int side = 0; side < 2 && used < num_classes; side++) {
            int32_t index = side == 0 ? top - reach : top + reach;
            if (index >= 0 && index < (int32_t)num_bins && !taken[index]) {
                taken[index] = 1;
                bins[used].index = index;
                bins[used++].count = 0;
            }
        }
}

/* regular: bits a weight without exceptions; share: the share of weights that are exceptions. */
static void set_bits(trf_classes *classes, double regular, double share, double exception_cost) {
    classes->bits = regular + share * TRF_EXCEPTION_BITS;
    classes->cost = regular + share * exception_cost;
}

void trf_choose_float_classes(trf_classes *classes, const uint64_t counts[256], uint64_t excluded,
                              uint32_t max_exponent, uint32_t class_bits, uint32_t raw_bits, double exception_cost) {
    memset(classes, 0, sizeof *classes);
    classes->class_bits = class_bits;
    classes->shift = class_bits == 2 ? 2 : 0;
    uint32_t num_bins = (max_exponent + 1) >> classes->shift, num_classes = 1u << class_bits;
    bin_count bins[256];
    uint64_t total = excluded;
    for (uint32_t g = 0; g < num_bins; g++) {
        bins[g] = (bin_count){0, (int32_t)g};
        for (uint32_t v = g << classes->shift; v < (g + 1) << classes->shift; v++)
            bins[g].count += counts[v];
        total += bins[g].count;
    }
    qsort(bins, num_bins, sizeof bins[0], by_count);
    fill_unused(bins, num_bins, num_classes);
    qsort(bins, num_classes, sizeof bins[0], by_index);

    uint64_t inside[16], covered = 0;
    classes->contiguous = 1;
    for (uint32_t k = 0; k < num_classes; k++) {
        classes->class_value[k] = (int16_t)(bins[k].index << classes->shift);
        inside[k] = bins[k].count;
        covered += inside[k];
        if (inside[k] > inside[classes->likeliest])
            classes->likeliest = k;
        if (k && bins[k].index != bins[k - 1].index + 1)
            classes->contiguous = 0;
    }
    /* Exceptions are coded as the likeliest class, too. */
    inside[classes->likeliest] += total - covered;
    double share = total ? (double)(total - covered) / (double)total : 0;
    set_bits(classes, raw_bits + trf_entropy(inside, num_classes), share, exception_cost);
}

/* ---- classes of codes ---- */

static double entropy_term(double p) { return p > 0 ? -p * trf_log2(p) : 0; }

/* The sum of the counts of codes low ... high-1, clipped to the codes that there are. prefix: the counts' prefix
 * sums. */
static double count_between(const double *prefix, int32_t low, int32_t high) {
    int32_t a = low + TRF_MAX_CODE, b = high + TRF_MAX_CODE;
    a = a < 0 ? 0 : a > TRF_NUM_CODES ? TRF_NUM_CODES : a;
    b = b < 0 ? 0 : b > TRF_NUM_CODES ? TRF_NUM_CODES : b;
    return prefix[b] - prefix[a];
}

/* Computes what a window of codes costs: sets shift, likeliest, bits and cost. */
static void try_window(trf_classes *classes, const double *prefix, double total, int32_t lowest_code, uint32_t raw_bits,
                       double exception_cost) {
    double share[16], best = -1, covered = 0, regular = raw_bits;
    uint32_t count = 1u << classes->class_bits;
    classes->shift = raw_bits;
    for (uint32_t k = 0; k < count; k++) {
        int32_t low = lowest_code + (int32_t)(k << raw_bits);
        share[k] = count_between(prefix, low, low + (1 << raw_bits)) / total;
        covered += share[k];
        if (share[k] > best)
            best = share[k], classes->likeliest = k;
    }
    double outside = covered < 1 ? 1 - covered : 0;
    share[classes->likeliest] += outside;
    for (uint32_t k = 0; k < count; k++)
        regular += entropy_term(share[k]);
    set_bits(classes, regular, outside, exception_cost);
}

void trf_choose_int_classes(trf_classes *classes, const double counts[TRF_NUM_CODES], uint32_t class_bits,
                            double exception_cost) {
    static const double kHopeless = 1e9;
    double prefix[TRF_NUM_CODES + 1];
    prefix[0] = 0;
    int32_t lowest = 0, highest = 0, any = 0;
    for (int32_t i = 0; i < TRF_NUM_CODES; i++) {
        prefix[i + 1] = prefix[i] + counts[i];
        if (counts[i] > 0) {
            lowest = any ? lowest : i - TRF_MAX_CODE;
            highest = i - TRF_MAX_CODE;
            any = 1;
        }
    }
    double total = prefix[TRF_NUM_CODES] > 0 ? prefix[TRF_NUM_CODES] : 1;
    memset(classes, 0, sizeof *classes);
    classes->class_bits = class_bits;
    classes->contiguous = 1;
    classes->cost = kHopeless;
    trf_classes next = *classes;
    int32_t best_lowest_code = 0;
    for (uint32_t r = 0; r <= TRF_MAX_INT_RAW_BITS && r < classes->cost; r++) {
        int32_t window = 1 << (class_bits + r), stride = r >= 4 ? 1 << (r - 3) : 1;
        int32_t from = lowest - window + 1, to = highest;
        /* If windows are wide enough to hold everything twice, only those around the middle can win. */
        if (window > 4 * (highest - lowest + 1))
            break;
        for (int32_t lowest_code = from < -1024 ? -1024 : from; lowest_code <= to; lowest_code += stride) {
            if (lowest_code + window - (1 << r) > 1023)
                break;
            try_window(&next, prefix, total, lowest_code, r, exception_cost);
            if (next.cost < classes->cost) {
                *classes = next;
                best_lowest_code = lowest_code;
            }
        }
    }
    if (classes->cost == kHopeless) { /* one code, or none: any window around it */
        best_lowest_code = lowest + (1 << class_bits) > 1023 ? 1023 - (1 << class_bits) : lowest;
        try_window(classes, prefix, total, best_lowest_code, 0, exception_cost);
    }
    for (int32_t k = 0; k < 1 << class_bits; k++)
        classes->class_value[k] = (int16_t)(best_lowest_code + (k << classes->shift));
}

/* ---- frequencies ---- */

/* Counts the classes of each symbol that are not 0. For the exclusive or of two symbols, this is the number of
 * exceptions that coding one as the other makes. */
static void count_classes(uint8_t classes_in[TRF_ALPHABET], uint32_t class_bits) {
    uint32_t mask = (1u << class_bits) - 1;
    for (uint32_t s = 0; s < TRF_ALPHABET; s++) {
        classes_in[s] = 0;
        for (uint32_t at = 0; at < 8; at += class_bits)
            classes_in[s] = (uint8_t)(classes_in[s] + ((s >> at & mask) != 0));
    }
}

/* The bits that one more slot saves for a symbol that has f slots; infinite for its first one. */
static double slot_value(double count, uint32_t f) { return f ? count * trf_log2((f + 1.0) / f) : INFINITY; }

/* What it costs to take one of a symbol's f slots away, or to give it one more; infinite for what must not be. */
static double lost_slot(double count, uint32_t f) { return f ? slot_value(count, f - 1) : INFINITY; }
static double gained_slot(double count, uint32_t f, uint32_t max_frequency) {
    return f && f < max_frequency ? -slot_value(count, f) : INFINITY;
}

/* Assigns slots in proportion to counts, at least one and at most max_frequency to each symbol that occurs (2 to
 * `slots` symbols do, and together they may have all slots), and then corrects their number one by one where it costs
 * least. */
static void scale_to_slots(const double counts[TRF_ALPHABET], double total, uint32_t slots, uint32_t max_frequency,
                           uint16_t frequency[TRF_ALPHABET]) {
    uint32_t sum = 0;
    double cost[TRF_ALPHABET]; /* of a correction */
    for (uint32_t s = 0; s < TRF_ALPHABET; s++) {
        double share = counts[s] / total * slots;
        uint32_t f = counts[s] > 0 ? (share < 1 ? 1 : (uint32_t)(share + 0.5)) : 0;
        frequency[s] = (uint16_t)(f > max_frequency ? max_frequency : f);
        sum += frequency[s];
    }
    const int down = sum > slots;
    for (uint32_t s = 0; s < TRF_ALPHABET; s++)
        cost[s] = down ? lost_slot(counts[s], frequency[s]) : gained_slot(counts[s], frequency[s], max_frequency);
    for (; sum != slots; sum += down ? -1u : 1u) {
        uint32_t best = 0;
        for (uint32_t s = 1; s < TRF_ALPHABET; s++)
            best = cost[s] < cost[best] ? s : best;
        uint32_t f = frequency[best] = (uint16_t)(frequency[best] + (down ? -1 : 1));
        cost[best] = down ? lost_slot(counts[best], f) : gained_slot(counts[best], f, max_frequency);
    }
}

/* A layer's symbols for trf_normalize. */
typedef struct symbol_counts {
    bin_count sorted[TRF_ALPHABET]; /* most frequent first */
    double total;
    uint32_t used;
    uint8_t classes_in[TRF_ALPHABET];
    double exception_cost;
    uint32_t max_frequency;
} symbol_counts;

/* Tries a candidate, in which only the `kept` most frequent symbols (at least 2) have slots. */
static void try_symbols(trf_symbol_model *model, const symbol_counts *counts, uint32_t kept) {
    uint32_t slots = 1u << model->probability_bits, weights = counts->classes_in[TRF_ALPHABET - 1];
    double replaced[TRF_ALPHABET] = {0}, exceptions = 0, bits = 0;
    for (uint32_t i = 0; i < TRF_ALPHABET; i++) {
        const uint32_t s = (uint32_t)counts->sorted[i].index;
        uint32_t best = s, best_distance = i < kept ? 0 : 9;
        for (uint32_t k = 0; k < kept && best_distance > 1; k++) { /* the nearest; among equals, the most frequent */
            const uint32_t to = (uint32_t)counts->sorted[k].index, distance = counts->classes_in[s ^ to];
            if (distance < best_distance)
                best_distance = distance, best = to;
        }
        model->replacement[s] = (uint8_t)best;
        replaced[best] += (double)counts->sorted[i].count;
        exceptions += (double)counts->sorted[i].count * best_distance;
    }
    scale_to_slots(replaced, counts->total, slots, counts->max_frequency, model->frequency);
    for (uint32_t s = 0; s < TRF_ALPHABET; s++)
        if (replaced[s] > 0)
            bits += replaced[s] * (model->probability_bits - trf_log2(model->frequency[s]));
    model->cost = (bits + exceptions * counts->exception_cost) / (counts->total * weights);
}

static int symbols_by_count(const void *a, const void *b) {
    const bin_count *x = a, *y = b;
    if (x->count != y->count)
        return x->count < y->count ? 1 : -1;
    return x->index - y->index;
}

static void sort_symbols(symbol_counts *sorted, const uint64_t counts[TRF_ALPHABET]) {
    sorted->total = 0;
    sorted->used = 0;
    for (uint32_t s = 0; s < TRF_ALPHABET; s++) {
        sorted->sorted[s] = (bin_count){counts[s], (int32_t)s};
        sorted->used += counts[s] > 0;
    }
    qsort(sorted->sorted, TRF_ALPHABET, sizeof sorted->sorted[0], symbols_by_count);
    for (; sorted->used < 2; sorted->used++) /* dummies: a table needs two symbols */
        sorted->sorted[sorted->used].count = 1;
    for (uint32_t s = 0; s < TRF_ALPHABET; s++)
        sorted->total += (double)sorted->sorted[s].count;
}

/* Finds the best model whose frequencies are at most sorted->max_frequency. Its cost is infinite if there is none. */
static void choose_symbols(trf_symbol_model *model, const symbol_counts *sorted, uint32_t probability_bits) {
    /* Symbols rarer than so many slots get none. */
    static const double kThresholds[] = {0,    0.005, 0.01, 0.02, 0.03, 0.045, 0.06,
                                         0.08, 0.11,  0.15, 0.25, 0.4,  0.6,   1.0};
    const uint32_t slots = 1u << probability_bits, fewest = (slots - 1) / sorted->max_frequency + 1;
    trf_symbol_model candidate = {.probability_bits = probability_bits};
    memset(model, 0, sizeof *model);
    model->cost = INFINITY;
    for (size_t i = 0, kept = sorted->used; i < sizeof kThresholds / sizeof kThresholds[0] && kept >= fewest; i++) {
        const double rare = kThresholds[i] * sorted->total / slots;
        const size_t before = kept;
        while (kept > fewest && (double)sorted->sorted[kept - 1].count < rare)
            kept--;
        if (i && kept == before)
            continue;
        try_symbols(&candidate, sorted, (uint32_t)kept);
        if (candidate.cost < model->cost)
            *model = candidate;
    }
}

static uint32_t largest_frequency(const trf_symbol_model *model) {
    uint32_t largest = 0;
    for (uint32_t s = 0; s < TRF_ALPHABET; s++)
        largest = model->frequency[s] > largest ? model->frequency[s] : largest;
    return largest;
}

void trf_normalize(trf_symbol_model *model, const uint64_t counts[TRF_ALPHABET], uint32_t class_bits,
                   uint32_t probability_bits, double exception_cost) {
    static const double kFastKernelsAreWorth = 0.02; /* bits a weight */
    symbol_counts sorted = {.exception_cost = exception_cost, .max_frequency = (1u << probability_bits) - 1};
    count_classes(sorted.classes_in, class_bits);
    sort_symbols(&sorted, counts);
    choose_symbols(model, &sorted, probability_bits);
    const uint32_t default_p = class_bits == 2 ? TRF_QUADS_PROBABILITY_BITS : TRF_PAIRS_PROBABILITY_BITS;
    if (probability_bits == default_p && largest_frequency(model) > TRF_DEFAULT_P_MAX_FREQUENCY) {
        trf_symbol_model limited;
        sorted.max_frequency = TRF_DEFAULT_P_MAX_FREQUENCY;
        choose_symbols(&limited, &sorted, probability_bits);
        if (limited.cost <= model->cost + kFastKernelsAreWorth)
            *model = limited;
    }
    uint32_t start = 0;
    for (uint32_t s = 0; s < TRF_ALPHABET; s++) {
        model->start[s] = (uint16_t)start;
        start += model->frequency[s];
    }
}
