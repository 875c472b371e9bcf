/* SPDX-License-Identifier: Apache-2.0 */
/* Which layouts are chosen: against all choices of few layers, and against the bound of whole models. */
#include "common/made_tuning.h"
#include "common/run_suite.h"
#include "trf_choice_search.h"
#include "trf_layout_times.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static uint32_t random_below(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % below;
}

/* ---- the search ---- */

enum {
    MOST_ITEMS = 9
};

/* @return the least cost of all choices within a budget, tried one by one. */
static double try_all(const trf_choice_item *items, uint32_t count, uint64_t budget) {
    double least = HUGE_VAL;
    uint32_t combinations = 1;
    for (uint32_t i = 0; i < count; i++)
        combinations *= TRF_LAYOUTS;
    for (uint32_t c = 0; c < combinations; c++) {
        uint64_t bytes = 0;
        double cost = 0;
        uint32_t rest = c;
        int is_allowed = 1;
        for (uint32_t i = 0; i < count; i++, rest /= TRF_LAYOUTS) {
            is_allowed &= items[i].layouts >> rest % TRF_LAYOUTS & 1;
            bytes += items[i].bytes[rest % TRF_LAYOUTS];
            cost += items[i].cost[rest % TRF_LAYOUTS];
        }
        if (is_allowed && bytes <= budget)
            least = fmin(least, cost);
    }
    return least;
}

static void check_search(const trf_choice_item *items, uint32_t count, uint64_t budget, double least) {
    trf_layout chosen[MOST_ITEMS];
    double cost, bound, sum = 0;
    uint64_t bytes, sum_bytes = 0;
    ck_assert_int_eq(trf_choice_search(items, count, budget, chosen, &cost, &bytes, &bound, NULL), TRF_OK);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert(items[i].layouts >> chosen[i] & 1);
        sum += items[i].cost[chosen[i]];
        sum_bytes += items[i].bytes[chosen[i]];
    }
    ck_assert_uint_eq(bytes, sum_bytes);
    ck_assert_uint_le(bytes, budget);
    ck_assert_double_eq_tol(cost, sum, 1e-9 * (1 + sum));
    ck_assert_double_le(bound, least * (1 + 1e-9));
    ck_assert_double_ge(cost, least * (1 - 1e-9));
    ck_assert_double_le(cost, least * 1.0006);
}

/* Costs that do not follow from the bytes, layouts that are not allowed, budgets that just fit and others. */
START_TEST(as_good_as_all_choices_of_few_layers) {
    uint64_t random = 1;
    for (int round = 0; round < 400; round++) {
        trf_choice_item items[MOST_ITEMS];
        const uint32_t count = 1 + random_below(&random, MOST_ITEMS);
        const int is_alike = round % 4 == 0; /* as the layers of a model are */
        uint64_t most = 0;
        for (uint32_t i = 0; i < count; i++) {
            items[i].layouts = 1 + random_below(&random, 7);
            for (int l = 0; l < TRF_LAYOUTS; l++) {
                items[i].bytes[l] = 1 + random_below(&random, round % 3 ? 1000000 : 20);
                items[i].cost[l] = random_below(&random, 10) ? 1 + random_below(&random, 100000) : 0;
            }
            if (is_alike && i)
                items[i] = items[i - 1];
            most += items[i].bytes[0] + items[i].bytes[1] + items[i].bytes[2];
        }
        const uint64_t least_bytes = trf_choice_least_bytes(items, count);
        for (int b = 0; b < 6; b++) {
            const uint64_t budget = least_bytes + (uint64_t)((double)(most - least_bytes) / 4 * b / 5);
            check_search(items, count, budget, try_all(items, count, budget));
        }
    }
}
END_TEST

/* ---- whole models ---- */

enum {
    MOST_LAYERS = 600
};

typedef struct model {
    trf_layout_layer layers[MOST_LAYERS];
    uint32_t count;
    uint64_t plain_bytes;
} model;

static void add_layers(model *of, uint32_t count, uint32_t rows, uint32_t cols, uint32_t experts, uint32_t routed) {
    static uint64_t random = 7;
    for (uint32_t i = 0; i < count; i++) {
        trf_layout_layer *layer = &of->layers[of->count++];
        trf_layout_layer_init(layer);
        layer->rows = rows, layer->cols = cols, layer->experts = experts, layer->routed = routed;
        const double weights = (double)rows * cols * (experts ? experts : 1);
        layer->layouts = experts ? 1u << TRF_LAYOUT_CODED | 1u << TRF_LAYOUT_PACKED : 7;
        layer->bytes[TRF_LAYOUT_PLAIN] = (uint64_t)(2 * weights);
        layer->bytes[TRF_LAYOUT_PACKED] = (uint64_t)(12.02 / 8 * weights);
        layer->bytes[TRF_LAYOUT_CODED] = (uint64_t)((10.8 + random_below(&random, 100) / 1000.0) / 8 * weights);
        layer->coded_workspace_bytes = experts ? 0 : layer->bytes[TRF_LAYOUT_PLAIN];
        of->plain_bytes += layer->bytes[TRF_LAYOUT_PLAIN];
    }
}

static void make_model(model *made, int which) {
    *made = (model){0};
    if (which == 0) { /* 8B */
        add_layers(made, 32, 6144, 4096, 0, 0);
        add_layers(made, 32, 4096, 4096, 0, 0);
        add_layers(made, 32, 28672, 4096, 0, 0);
        add_layers(made, 32, 4096, 14336, 0, 0);
        add_layers(made, 1, 128256, 4096, 0, 0);
    } else if (which == 1) { /* 70B */
        add_layers(made, 80, 10240, 8192, 0, 0);
        add_layers(made, 80, 8192, 8192, 0, 0);
        add_layers(made, 80, 57344, 8192, 0, 0);
        add_layers(made, 80, 8192, 28672, 0, 0);
        add_layers(made, 1, 128256, 8192, 0, 0);
    } else { /* 30B-A3B */
        add_layers(made, 48, 5120, 2048, 0, 0);
        add_layers(made, 48, 2048, 4096, 0, 0);
        add_layers(made, 48, 128, 2048, 0, 0);
        add_layers(made, 48, 3 * 768, 2048, 128, 8);
        add_layers(made, 1, 151936, 2048, 0, 0);
    }
}

/* At five budgets from nearly the least to what plain takes. */
START_TEST(whole_models_are_near_the_bound) {
    static model made;
    static trf_layout layouts[MOST_LAYERS];
    static const uint32_t batches[] = {1, 32, 256}, small[] = {1, 8};
    make_model(&made, _i / 2);
    for (int b = 0; b < 5; b++) {
        trf_layouts_options options;
        trf_layouts_choice choice;
        trf_layouts_options_init(&options);
        options.batches = _i % 2 ? small : batches;
        options.num_batches = _i % 2 ? 2 : 3;
        options.memory_bytes = (uint64_t)((double)made.plain_bytes * (0.76 + 0.06 * b));
        ck_assert_int_eq(trf_layouts_choose(made.layers, made.count, &options, layouts, &choice, NULL), TRF_OK);
        uint64_t bytes = 0, workspace = 0;
        double sum = 0;
        for (uint32_t i = 0; i < made.count; i++) {
            double time;
            ck_assert(made.layers[i].layouts >> layouts[i] & 1);
            ck_assert_int_eq(trf_layouts_estimate(&made.layers[i], layouts[i], &options, &time, NULL), TRF_OK);
            sum += time;
            bytes += made.layers[i].bytes[layouts[i]];
            if (layouts[i] == TRF_LAYOUT_CODED && !(_i % 2))
                workspace = made.layers[made.count - 1].coded_workspace_bytes;
        }
        ck_assert_uint_le(bytes + workspace, options.memory_bytes);
        ck_assert_uint_eq(bytes + workspace, choice.memory_bytes);
        ck_assert_double_eq_tol(sum, choice.microseconds, 1e-6 * sum);
        ck_assert_double_le(choice.least_microseconds, choice.microseconds);
        ck_assert_double_ge(choice.least_microseconds, 0.999 * choice.microseconds);
        ck_assert_double_ge(choice.one_gb_microseconds, 0);
    }
}
END_TEST

/* What the memory leaves out coded layers take, where it is short; for decoding alone packed is as fast as it gets. */
START_TEST(more_memory_is_never_slower) {
    static model made;
    static trf_layout layouts[MOST_LAYERS];
    trf_layouts_options options;
    trf_layouts_choice choice;
    double before = HUGE_VAL;
    make_model(&made, 0);
    trf_layouts_options_init(&options);
    static const uint32_t batch = 32;
    options.batches = &batch;
    options.num_batches = 1;
    options.card = "H200";
    for (int b = 0; b <= 10; b++) {
        options.memory_bytes = (uint64_t)((double)made.plain_bytes * (0.7 + 0.03 * b));
        ck_assert_int_eq(trf_layouts_choose(made.layers, made.count, &options, layouts, &choice, NULL), TRF_OK);
        ck_assert_double_le(choice.microseconds, before * 1.0006);
        before = choice.microseconds;
    }
    ck_assert_int_eq(layouts[0], TRF_LAYOUT_PACKED);
    ck_assert_double_lt(choice.microseconds, 0.9 * choice.plain_microseconds);
    ck_assert_str_eq(choice.card, "NVIDIA H200");
    ck_assert(choice.is_own_card);
}
END_TEST

START_TEST(says_what_is_missing) {
    static model made;
    static trf_layout layouts[MOST_LAYERS];
    trf_layouts_options options;
    trf_layouts_choice choice;
    trf_error err;
    make_model(&made, 2);
    trf_layouts_options_init(&options);
    options.memory_bytes = 10000000000;
    layouts[0] = TRF_LAYOUT_PLAIN;
    ck_assert_int_eq(trf_layouts_choose(made.layers, made.count, &options, layouts, &choice, &err), TRF_ERR_MEMORY);
    ck_assert_ptr_nonnull(strstr(err.message, "10.00 GB may be taken"));
    ck_assert_int_eq(layouts[0], TRF_LAYOUT_PLAIN);
    /* Exactly what fits at least is enough, and a byte less is not. */
    options.memory_bytes = UINT64_MAX;
    ck_assert_int_eq(trf_layouts_choose(made.layers, made.count, &options, layouts, &choice, &err), TRF_OK);
    options.memory_bytes = choice.least_bytes;
    ck_assert_int_eq(trf_layouts_choose(made.layers, made.count, &options, layouts, &choice, &err), TRF_OK);
    ck_assert_uint_eq(choice.memory_bytes, choice.least_bytes);
    options.memory_bytes--;
    ck_assert_int_eq(trf_layouts_choose(made.layers, made.count, &options, layouts, &choice, &err), TRF_ERR_MEMORY);
}
END_TEST

/* Coded layers share their workspace, and one of them alone may not be worth it. */
START_TEST(workspace_counts_once) {
    trf_layout_layer layers[2];
    trf_layout layouts[2];
    trf_layouts_options options;
    trf_layouts_choice choice;
    static const uint32_t batches[] = {1, 65};
    trf_layouts_options_init(&options);
    options.batches = batches;
    for (int i = 0; i < 2; i++) {
        trf_layout_layer_init(&layers[i]);
        layers[i].rows = layers[i].cols = 4096;
        layers[i].layouts = 1u << TRF_LAYOUT_CODED | 1u << TRF_LAYOUT_PACKED;
        layers[i].bytes[TRF_LAYOUT_CODED] = 100;
        layers[i].bytes[TRF_LAYOUT_PACKED] = 120;
        layers[i].coded_workspace_bytes = 30;
    }
    options.memory_bytes = 239;
    options.num_batches = 1;
    ck_assert_int_eq(trf_layouts_choose(layers, 2, &options, layouts, &choice, NULL), TRF_OK);
    ck_assert_uint_eq(choice.least_bytes, 200);
    options.num_batches = 2;
    ck_assert_int_eq(trf_layouts_choose(layers, 2, &options, layouts, &choice, NULL), TRF_OK);
    ck_assert_uint_eq(choice.least_bytes, 230);
    ck_assert_int_eq(layouts[0] + layouts[1], 2 * TRF_LAYOUT_CODED);
    options.memory_bytes = 240;
    ck_assert_int_eq(trf_layouts_choose(layers, 2, &options, layouts, &choice, NULL), TRF_OK);
    ck_assert_int_eq(layouts[0] + layouts[1], 2 * TRF_LAYOUT_PACKED);
    ck_assert_uint_eq(choice.memory_bytes, 240);
}
END_TEST

/* ---- times ---- */

static double estimate(uint32_t rows, uint32_t cols, trf_layout layout, uint32_t m, const trf_tuning *tuning,
                       const char *card) {
    trf_layout_layer layer;
    trf_layouts_options options;
    double time;
    trf_layout_layer_init(&layer);
    trf_layouts_options_init(&options);
    layer.rows = rows, layer.cols = cols, layer.layouts = 1, layer.bytes[0] = 1;
    options.batches = &m, options.num_batches = 1, options.tuning = tuning, options.card = card;
    ck_assert_int_eq(trf_layouts_estimate(&layer, layout, &options, &time, NULL), TRF_OK);
    return time;
}

/* Times of docs/performance/packed.csv and speed.csv, and between them. */
START_TEST(measured_shapes_have_their_times) {
    ck_assert_double_eq_tol(estimate(65536, 8192, TRF_LAYOUT_PLAIN, 1, NULL, "H200"), 245.81, 5);
    ck_assert_double_eq_tol(estimate(65536, 8192, TRF_LAYOUT_PACKED, 1, NULL, "NVIDIA H200"), 187.13, 4);
    ck_assert_double_eq_tol(estimate(65536, 8192, TRF_LAYOUT_CODED, 1, NULL, NULL), 179.29, 4);
    for (uint32_t m = 1; m < 5000; m += 1 + m / 8) {
        const double time = estimate(12000, 5000, TRF_LAYOUT_PACKED, m, NULL, "H100");
        ck_assert(time > 10 && time < 5000);
        ck_assert_double_ge(estimate(12000, 5000, TRF_LAYOUT_PACKED, 2 * m, NULL, "H100"), 0.95 * time);
    }
    ck_assert_double_lt(estimate(12000, 5000, TRF_LAYOUT_PACKED, 1, NULL, "H200"),
                        estimate(12000, 5000, TRF_LAYOUT_PACKED, 1, NULL, "H100"));
}
END_TEST

/* What PACKED gives of FP8 takes the times of packed8.csv, by cuBLASLt's in there; the other layouts take theirs. */
START_TEST(packed_fp8_has_times_of_its_own) {
    static const struct {
        uint32_t m;
        double faster; /* than plain */
    } measured[] = {{1, 35.37 / 18.44}, {8, 34.31 / 18.49}, {16, 34.53 / 19.41}, {32, 34.97 / 22.39}};
    trf_layout_layer layer;
    trf_layouts_options options;
    trf_layout_layer_init(&layer);
    trf_layouts_options_init(&options);
    layer.rows = layer.cols = 8192, layer.layouts = 1, layer.bytes[0] = 1;
    options.num_batches = 1;
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
        double times[2][TRF_LAYOUTS];
        options.batches = &measured[i].m;
        for (layer.packed_is_fp8 = 0; layer.packed_is_fp8 < 2; layer.packed_is_fp8++)
            for (int l = 0; l < TRF_LAYOUTS; l++)
                ck_assert_int_eq(
                    trf_layouts_estimate(&layer, (trf_layout)l, &options, &times[layer.packed_is_fp8][l], NULL),
                    TRF_OK);
        ck_assert_double_eq(times[0][TRF_LAYOUT_CODED], times[1][TRF_LAYOUT_CODED]);
        ck_assert_double_eq(times[0][TRF_LAYOUT_PLAIN], times[1][TRF_LAYOUT_PLAIN]);
        ck_assert_double_lt(times[1][TRF_LAYOUT_PACKED], 0.85 * times[0][TRF_LAYOUT_PACKED]);
        ck_assert_double_eq_tol(times[1][TRF_LAYOUT_PLAIN] / times[1][TRF_LAYOUT_PACKED], measured[i].faster, 0.03);
    }
}
END_TEST

/* A tuning's own times, those of its nearest shape, and what follows for a layout that it lacks. */
START_TEST(tunings_have_their_times) {
    trf_tuning *tuning = make_tuning();
    ck_assert_double_eq_tol(estimate(8192, 8192, TRF_LAYOUT_CODED, 32, tuning, NULL), 20, 1e-9);
    ck_assert_double_eq_tol(estimate(4096, 8192, TRF_LAYOUT_CODED, 384, tuning, NULL), 50, 1e-9);
    ck_assert_double_eq_tol(estimate(8192, 8192, TRF_LAYOUT_CODED, 16384, tuning, NULL), 1800, 1e-6);
    ck_assert_double_eq_tol(estimate(8192, 8192, TRF_LAYOUT_PLAIN, 16, tuning, NULL), 21, 1e-9);
    const double ratio = estimate(8192, 8192, TRF_LAYOUT_PACKED, 32, NULL, NULL) /
                         estimate(8192, 8192, TRF_LAYOUT_CODED, 32, NULL, NULL);
    ck_assert_double_eq_tol(estimate(8192, 8192, TRF_LAYOUT_PACKED, 32, tuning, NULL), 20 * ratio, 1e-6);
    trf_tuning_free(tuning);
}
END_TEST

/* A card is named by a part of its name, or by all of it; the times of another device are not its own. */
START_TEST(a_tuning_is_of_the_card_that_is_named) {
    static const char *const others[] = {"H200", "NVIDIA H200", "some device 2", "Some device", ""};
    trf_tuning *tuning = make_tuning();
    trf_layout_layer layer;
    trf_layouts_options options;
    trf_layout layout = TRF_LAYOUT_PLAIN;
    trf_error err;
    double time;
    ck_assert_double_eq_tol(estimate(8192, 8192, TRF_LAYOUT_CODED, 32, tuning, "some device"), 20, 1e-9);
    ck_assert_double_eq_tol(estimate(8192, 8192, TRF_LAYOUT_CODED, 32, tuning, "device"), 20, 1e-9);
    trf_layout_layer_init(&layer);
    trf_layouts_options_init(&options);
    layer.rows = layer.cols = 8192, layer.layouts = 1, layer.bytes[0] = 1;
    options.memory_bytes = 1000, options.tuning = tuning;
    ck_assert_int_eq(trf_layouts_choose(&layer, 1, &options, &layout, NULL, &err), TRF_OK);
    layout = TRF_LAYOUT_PLAIN;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        options.card = others[i];
        ck_assert_int_eq(trf_layouts_choose(&layer, 1, &options, &layout, NULL, &err), TRF_ERR_DEVICE);
        ck_assert_int_eq(layout, TRF_LAYOUT_PLAIN);
        ck_assert_msg(strstr(err.message, "'some device'") && strstr(err.message, others[i]), "%s", err.message);
        ck_assert_int_eq(trf_layouts_estimate(&layer, TRF_LAYOUT_CODED, &options, &time, &err), TRF_ERR_DEVICE);
    }
    /* A name in a file may hold anything. */
    snprintf(tuning->card.name, sizeof tuning->card.name, "a\nb");
    ck_assert_int_eq(trf_layouts_choose(&layer, 1, &options, &layout, NULL, &err), TRF_ERR_DEVICE);
    ck_assert_msg(strstr(err.message, "'a?b'") != NULL, "%s", err.message);
    trf_tuning_free(tuning);
}
END_TEST

/* Few tokens read few of the experts, and many read all. */
START_TEST(experts_take_what_their_tokens_read) {
    trf_layout_layer layer;
    int is_own;
    trf_layout_layer_init(&layer);
    layer.rows = 3 * 768, layer.cols = 2048, layer.experts = 128, layer.routed = 8;
    const trf_card_times *h200 = trf_card_times_for("NVIDIA H200", &is_own);
    static const struct {
        uint32_t tokens;
        double plain, packed; /* measured: docs/notebook/2026-11-29-packed-experts.md */
    } measured[] = {{1, 28.8, 25.5}, {4, 77.3, 60.6}, {16, 193, 142}, {64, 294, 219}, {256, 326, 258}};
    for (size_t i = 0; i < sizeof measured / sizeof measured[0]; i++) {
        const double plain = trf_layout_microseconds(h200, NULL, &layer, TRF_LAYOUT_PLAIN, measured[i].tokens),
                     packed = trf_layout_microseconds(h200, NULL, &layer, TRF_LAYOUT_PACKED, measured[i].tokens);
        ck_assert_double_eq_tol(plain / measured[i].plain, 1, 0.15);
        ck_assert_double_eq_tol(packed / measured[i].packed, 1, 0.15);
    }
    /* Coded ones keep up with few tokens, and decode again and again, or all of them first, with many. */
    double before = 0;
    for (uint32_t m = 1; m <= 16384; m *= 2) {
        const double packed = trf_layout_microseconds(h200, NULL, &layer, TRF_LAYOUT_PACKED, m),
                     coded = trf_layout_microseconds(h200, NULL, &layer, TRF_LAYOUT_CODED, m);
        ck_assert_double_ge(coded, before);
        ck_assert(m > 8 || coded < 1.2 * packed);
        ck_assert(m < 256 || m > 4096 || coded > 1.4 * packed);
        before = coded;
    }
    /* Packed FP8 experts read two thirds of what packed BF16 ones do. */
    const double bf16 = trf_layout_microseconds(h200, NULL, &layer, TRF_LAYOUT_PACKED, 16);
    layer.packed_is_fp8 = 1;
    ck_assert_double_eq_tol(trf_layout_microseconds(h200, NULL, &layer, TRF_LAYOUT_PACKED, 16) / bf16, 0.68, 0.06);
    layer.is_lookup = 1;
    ck_assert(trf_layout_microseconds(h200, NULL, &layer, TRF_LAYOUT_PACKED, 1) == 0);
}
END_TEST

/* Shares count by their ratios, however great or small they are. */
START_TEST(shares_may_be_of_any_size) {
    static const double shares[][2] = {{1, 1}, {1e308, 1e308}, {5e-324, 5e-324}, {5e-324, 1e308}, {1e308, 5e-324}};
    const uint32_t batches[] = {1, 64};
    double times[5], alone[2];
    trf_layout_layer layer;
    trf_layouts_options options;
    trf_layout_layer_init(&layer);
    trf_layouts_options_init(&options);
    layer.rows = layer.cols = 4096;
    layer.layouts = 1u << TRF_LAYOUT_PACKED;
    layer.bytes[TRF_LAYOUT_PACKED] = 1000;
    options.batches = batches;
    options.num_batches = 2;
    for (int i = 0; i < 5; i++) {
        options.shares = shares[i];
        ck_assert_int_eq(trf_layouts_estimate(&layer, TRF_LAYOUT_PACKED, &options, &times[i], NULL), TRF_OK);
    }
    options.num_batches = 1;
    options.shares = NULL;
    for (int i = 0; i < 2; i++) {
        options.batches = &batches[i];
        ck_assert_int_eq(trf_layouts_estimate(&layer, TRF_LAYOUT_PACKED, &options, &alone[i], NULL), TRF_OK);
    }
    ck_assert_double_eq(times[0], (alone[0] + alone[1]) / 2);
    ck_assert_double_eq(times[1], times[0]);
    ck_assert_double_eq(times[2], times[0]);
    ck_assert_double_eq(times[3], alone[1]);
    ck_assert_double_eq(times[4], alone[0]);
}
END_TEST

static void expect_refused(const trf_layout_layer *layer, const trf_layouts_options *options, const char *why) {
    trf_layout layout;
    trf_error err;
    ck_assert_int_eq(trf_layouts_choose(layer, 1, options, &layout, NULL, &err), TRF_ERR_ARGUMENT);
    ck_assert_msg(strstr(err.message, why) != NULL, "%s", err.message);
}

START_TEST(refuses_what_makes_no_sense) {
    trf_layout_layer layer;
    trf_layouts_options options;
    trf_layout_layer_init(&layer);
    trf_layouts_options_init(&options);
    layer.name = "a.weight";
    options.memory_bytes = 1000;
    expect_refused(&layer, &options, "a.weight: it has no rows");
    layer.rows = layer.cols = 16;
    expect_refused(&layer, &options, "layouts that it may have");
    layer.layouts = 1u << TRF_LAYOUT_PACKED;
    expect_refused(&layer, &options, "takes no bytes");
    layer.bytes[TRF_LAYOUT_PACKED] = 100;
    layer.experts = 4;
    expect_refused(&layer, &options, "experts that a token has");
    layer.experts = 0;
    layer.layouts = 8 | 1;
    expect_refused(&layer, &options, "layouts that it may have");
    layer.layouts = 1u << TRF_LAYOUT_PACKED;
    const uint32_t batches[] = {1, 0};
    const double shares[] = {0};
    options.batches = batches;
    expect_refused(&layer, &options, "there are none");
    options.num_batches = 2;
    expect_refused(&layer, &options, "batch 0 is not");
    options.num_batches = 1;
    options.shares = shares;
    expect_refused(&layer, &options, "share of batch 1");
    options.shares = NULL;
    trf_layout layout;
    ck_assert_int_eq(trf_layouts_choose(&layer, 1, &options, &layout, NULL, NULL), TRF_OK);
    ck_assert_int_eq(layout, TRF_LAYOUT_PACKED);
    layer.struct_bytes = 0;
    expect_refused(&layer, &options, "struct_bytes");
    expect_refused(NULL, &options, "there are none");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("layouts_choose");
    TCase *tests = tcase_create("layouts_choose");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, as_good_as_all_choices_of_few_layers);
    tcase_add_loop_test(tests, whole_models_are_near_the_bound, 0, 6);
    tcase_add_test(tests, more_memory_is_never_slower);
    tcase_add_test(tests, says_what_is_missing);
    tcase_add_test(tests, workspace_counts_once);
    tcase_add_test(tests, measured_shapes_have_their_times);
    tcase_add_test(tests, packed_fp8_has_times_of_its_own);
    tcase_add_test(tests, tunings_have_their_times);
    tcase_add_test(tests, a_tuning_is_of_the_card_that_is_named);
    tcase_add_test(tests, experts_take_what_their_tokens_read);
    tcase_add_test(tests, shares_may_be_of_any_size);
    tcase_add_test(tests, refuses_what_makes_no_sense);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
