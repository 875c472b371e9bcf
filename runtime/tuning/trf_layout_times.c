/* SPDX-License-Identifier: Apache-2.0 */
/* Times between shapes and batches that were measured. A line over the number of weights gives most of a time; how far
 * the nearest shapes are from it, the rest. Between batches times are taken to be straight in logarithms. */
#include "trf_layout_times.h"

#include "trf_tuning.h"

#include <math.h>
#include <string.h>

/* Defines kTimedBatches and kCardTimes. runtime/tuning/layout_times/make_layout_times.py makes this file. */
#include "trf_layout_times.inc"

/* In octaves: what the distance of a shape counts at least (NEAR in make_layout_times.py). */
static const double kNear = 0.02;
/* The last of kCardTimes is the H200's. */
static const uint32_t kNumCards = sizeof kCardTimes / sizeof kCardTimes[0];

const trf_card_times *trf_card_times_for(const char *name, int *is_own) {
    *is_own = 1;
    if (!name)
        return &kCardTimes[kNumCards - 1];
    for (uint32_t i = 0; i < kNumCards; i++)
        if (name[0] && strstr(kCardTimes[i].card, name))
            return &kCardTimes[i];
    *is_own = 0;
    return &kCardTimes[kNumCards - 1];
}

static double octaves_between(double rows, double cols, double other_rows, double other_cols) {
    return fabs(log2(rows / other_rows)) + fabs(log2(cols / other_cols));
}

/* @return the time at one of kTimedBatches. */
static double find_at_batch(const trf_card_times *card, int layout, uint32_t batch, double rows, double cols) {
    const trf_size_line line = card->lines[layout][batch];
    double total = 0, weight = 0;
    for (uint32_t i = 0; i < card->num_shapes; i++) {
        const trf_shape_times *shape = &card->shapes[i];
        const double time = shape->microseconds[layout][batch];
        const double distance = octaves_between(rows, cols, shape->rows, shape->cols) + kNear;
        total += log(time / (line.overhead + (double)shape->rows * shape->cols * line.rate)) / (distance * distance);
        weight += 1 / (distance * distance);
    }
    return (line.overhead + rows * cols * line.rate) * exp(total / weight);
}

/* @return the value at m of a line through two points whose axes are logarithmic. */
static double between(double m, double m0, double time0, double m1, double time1) {
    return time0 * pow(time1 / time0, log(m / m0) / log(m1 / m0));
}

static double find_card_time(const trf_card_times *card, int layout, double m, double rows, double cols) {
    const uint32_t last = TRF_TIMED_BATCHES - 1;
    if (m >= kTimedBatches[last])
        return find_at_batch(card, layout, last, rows, cols) * m / kTimedBatches[last];
    uint32_t at = 0;
    while (m >= kTimedBatches[at + 1])
        at++;
    const double time = find_at_batch(card, layout, at, rows, cols);
    if (m <= kTimedBatches[at])
        return time;
    return between(m, kTimedBatches[at], time, kTimedBatches[at + 1], find_at_batch(card, layout, at + 1, rows, cols));
}

/* ---- tunings ---- */

/* @return the least time of the paths that a layout has; 0 if none was measured. */
static double find_least(const trf_tuned_point *point) {
    double least = 0;
    for (int path = 0; path < TRF_TUNED_PATHS; path++)
        if (point->microseconds[path] > 0 && (!(least > 0) || point->microseconds[path] < least))
            least = point->microseconds[path];
    return least;
}

/* @return the tuned layer of this codec and layout that is the nearest in shape, or NULL. */
static const trf_tuned_layer *find_tuned(const trf_tuning *tuning, const trf_layout_layer *layer, trf_layout layout) {
    const trf_tuned_layer *nearest = NULL;
    double least = HUGE_VAL;
    for (uint32_t i = 0; tuning && i < tuning->num_layers; i++) {
        const trf_tuning_key *key = &tuning->layers[i].key;
        const double distance = octaves_between(layer->rows, layer->cols, key->rows, key->cols);
        if (key->layout == layout && key->codec == layer->codec && distance < least) {
            nearest = &tuning->layers[i];
            least = distance;
        }
    }
    return nearest;
}

/* @return the time that a tuning has for a layer's shape, by the nearest shape's time for a weight; 0 if it has none.
 */
static double find_tuned_time(const trf_tuning *tuning, const trf_layout_layer *layer, trf_layout layout, double m) {
    const trf_tuned_layer *tuned = find_tuned(tuning, layer, layout);
    double before_m = 0, before = 0, time = 0;
    for (uint32_t i = 0; tuned && i < tuned->num_points; i++) {
        const double here_m = tuned->points[i].m, here = find_least(&tuned->points[i]);
        if (!(here > 0))
            continue;
        if (m <= here_m) {
            time = before > 0 && m < here_m ? between(m, before_m, before, here_m, here) : here;
            break;
        }
        before_m = here_m;
        before = here;
    }
    if (!(time > 0) && before > 0) /* a batch beyond those that were measured */
        time = before * m / before_m;
    if (!tuned || !(time > 0))
        return 0;
    return time * ((double)layer->rows * layer->cols) / ((double)tuned->key.rows * tuned->key.cols);
}

static double find_dense_time(const trf_card_times *card, const trf_tuning *tuning, const trf_layout_layer *layer,
                              trf_layout layout, double m) {
    const double own = find_tuned_time(tuning, layer, layout, m);
    if (own > 0)
        return own;
    const double time = find_card_time(card, (int)layout, m, layer->rows, layer->cols);
    for (int other = 0; other < TRF_TIMED_LAYOUTS; other++) {
        const double tuned = find_tuned_time(tuning, layer, (trf_layout)other, m);
        if (tuned > 0)
            return time * tuned / find_card_time(card, other, m, layer->rows, layer->cols);
    }
    return time;
}

/* ---- experts ---- */

enum {
    TRF_TOKENS_A_PASS = 8 /* coded experts are decoded once for so many of their tokens (transfuse/experts.h) */
};

/* @return the time of coded experts: decoded inside the product, pass by pass, or all decoded to memory first and then
 * multiplied as plain ones are, whichever is faster. tokens: of an expert that has some, on average. rows: of all
 * active experts, and of all experts. */
static double find_coded_experts_time(const trf_card_times *card, double tokens, double active_rows, double all_rows,
                                      double cols) {
    /* The last pass of an expert is half full on average. */
    const double passes = fmax(1, tokens / TRF_TOKENS_A_PASS + 0.5), in_a_pass = fmin(tokens, TRF_TOKENS_A_PASS);
    const double inside = passes * card->expert_factors[TRF_LAYOUT_CODED] *
                          find_card_time(card, TRF_LAYOUT_CODED, in_a_pass, active_rows, cols);
    /* Above TRF_FUSED_MAX_M rows coded layers are decoded first, too. */
    const double m = 2 * TRF_FUSED_MAX_M, decoding = find_card_time(card, TRF_LAYOUT_CODED, m, all_rows, cols) -
                                                     find_card_time(card, TRF_LAYOUT_PLAIN, m, all_rows, cols);
    const double plain =
        card->expert_factors[TRF_LAYOUT_PLAIN] * find_card_time(card, TRF_LAYOUT_PLAIN, tokens, active_rows, cols);
    return fmin(inside, fmax(decoding, 0) + plain);
}

double trf_layout_microseconds(const trf_card_times *card, const trf_tuning *tuning, const trf_layout_layer *layer,
                               trf_layout layout, uint32_t m) {
    if (layer->is_lookup)
        return 0;
    if (layout == TRF_LAYOUT_PACKED && layer->packed_is_fp8)
        layout = TRF_LAYOUT_PACKED8;
    if (!layer->experts)
        return find_dense_time(card, tuning, layer, layout, m);
    const double experts = layer->experts, active = experts * (1 - pow(1 - layer->routed / experts, m));
    const double tokens = fmax(1, m * (layer->routed / active)), rows = active * layer->rows;
    if (layout == TRF_LAYOUT_CODED)
        return find_coded_experts_time(card, tokens, rows, experts * layer->rows, layer->cols);
    return card->expert_factors[layout] * find_card_time(card, (int)layout, tokens, rows, layer->cols);
}
