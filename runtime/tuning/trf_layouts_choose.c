/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing layouts: the public functions that need no checkpoint. */
#include "trf_choice_search.h"
#include "trf_error.h"
#include "trf_layout_times.h"
#include "trf_struct.h"
#include "trf_tuning.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRF_MOST_ROWS = 1 << 20 /* of x */
};
static const uint64_t kGb = 1000000000;
static const unsigned kAllLayouts = (1u << TRF_LAYOUTS) - 1;

void trf_layouts_options_init(trf_layouts_options *options) {
    *options = (trf_layouts_options){.struct_bytes = sizeof *options};
}

/* Checks that a tuning is one of the card that is named, by a part of its name at least. */
static trf_status check_tuning(const trf_tuning *tuning, const char *card, trf_error *err) {
    if (!tuning || !card || (card[0] && strstr(tuning->card.name, card)))
        return TRF_OK;
    return trf_sanitize_error(trf_fail(err, TRF_ERR_DEVICE, TRF_NO_OFFSET,
                                       "the tuning is one for '%s', and the card is '%s'", tuning->card.name, card),
                              err);
}

static trf_status take_options(const trf_layouts_options *from, trf_layouts_options *options, trf_error *err) {
    static const uint32_t one = 1;
    static const trf_struct_type type = {"trf_layouts_options", sizeof *options,
                                         TRF_STRUCT_BYTES(trf_layouts_options, tuning)};
    trf_layouts_options_init(options);
    if (!from)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "layouts are chosen by options, which are missing");
    trf_status status = trf_take_struct(&type, options, from, err);
    if (status == TRF_OK)
        status = check_tuning(options->tuning, options->card, err);
    if (status != TRF_OK)
        return status;
    if (!options->card && options->tuning)
        options->card = options->tuning->card.name;
    if (!options->batches) {
        options->batches = &one;
        options->num_batches = 1;
        options->shares = NULL;
    }
    if (!options->num_batches)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "layouts are chosen for batches, and there are none");
    for (uint32_t i = 0; i < options->num_batches; i++) {
        if (options->batches[i] < 1 || options->batches[i] > TRF_MOST_ROWS)
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "batch %" PRIu32 " is not from 1 to 2^20",
                            options->batches[i]);
        if (options->shares && !(options->shares[i] > 0 && isfinite(options->shares[i])))
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the share of batch %" PRIu32 " is not above 0",
                            options->batches[i]);
    }
    return TRF_OK;
}

/* Copies and checks a layer. */
static trf_status take_layer(const trf_layout_layer *from, trf_layout_layer *layer, trf_error *err) {
    static const trf_struct_type type = {"trf_layout_layer", sizeof *layer,
                                         TRF_STRUCT_BYTES(trf_layout_layer, coded_workspace_bytes)};
    trf_layout_layer_init(layer);
    const trf_status status = trf_take_struct(&type, layer, from, err);
    if (status != TRF_OK)
        return status;
    const char *fault = NULL;
    if (!layer->rows || !layer->cols)
        fault = "it has no rows or no columns";
    else if (layer->codec < TRF_CODEC_BF16 || layer->codec > TRF_CODEC_INT)
        fault = "it has no codec";
    else if (layer->experts && (!layer->routed || layer->routed > layer->experts))
        fault = "the experts that a token has are not from 1 to all of them";
    else if (!layer->layouts || layer->layouts & ~kAllLayouts)
        fault = "the layouts that it may have are none, or there are no such ones";
    for (int l = 0; l < TRF_LAYOUTS && !fault; l++)
        if (layer->layouts >> l & 1 && (layer->bytes[l] == 0 || layer->bytes[l] > INT64_MAX / 2))
            fault = "a layout that it may have takes no bytes, or too many";
    if (!fault && layer->coded_workspace_bytes > INT64_MAX / 2)
        fault = "coded layers are to share too many bytes";
    if (!fault)
        return TRF_OK;
    return trf_sanitize_error(trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%s%s%s", layer->name ? layer->name : "",
                                       layer->name ? ": " : "", fault),
                              err);
}

/* @return the most bytes of a layer in the layouts that it may have. */
static uint64_t find_most_bytes(const trf_layout_layer *layer) {
    uint64_t most = 0;
    for (int l = 0; l < TRF_LAYOUTS; l++)
        if (layer->layouts >> l & 1 && layer->bytes[l] > most)
            most = layer->bytes[l];
    return most;
}

/* @return the microseconds of a step, expected over the batches. */
static double expect_time(const trf_card_times *card, const trf_layouts_options *options, const trf_layout_layer *layer,
                          trf_layout layout) {
    double total = 0, shares = 0, most = 1;
    /* Shares are those of the greatest one, since the sum of finite ones need not be finite. */
    for (uint32_t i = 0; i < options->num_batches && options->shares; i++)
        most = i == 0 || options->shares[i] > most ? options->shares[i] : most;
    for (uint32_t i = 0; i < options->num_batches; i++) {
        const double share = options->shares ? options->shares[i] / most : 1;
        total += share * trf_layout_microseconds(card, options->tuning, layer, layout, options->batches[i]);
        shares += share;
    }
    return total / shares;
}

trf_status trf_layouts_estimate(const trf_layout_layer *from, trf_layout layout, const trf_layouts_options *asked,
                                double *microseconds, trf_error *err) {
    trf_layouts_options options;
    trf_layout_layer layer;
    int is_own;
    if (!from || !microseconds || (unsigned)layout >= TRF_LAYOUTS)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the time is that of a layer in a layout");
    trf_status status = take_options(asked, &options, err);
    if (status == TRF_OK)
        status = take_layer(from, &layer, err);
    if (status == TRF_OK)
        *microseconds = expect_time(trf_card_times_for(options.card, &is_own), &options, &layer, layout);
    return status;
}

/* ---- choosing ---- */

/* What is chosen from, and the better of two choices: one with coded layers and the memory that these share, and one
 * without. Choices without any also count as the former. */
typedef struct selection {
    trf_choice_item *items, *uncoded; /* [num_layers]; uncoded: without the layout CODED */
    trf_layout *layouts, *other;
    uint32_t num_layers;
    uint64_t workspace; /* that coded layers share */
    int has_uncoded;    /* whether every layer may have another layout than CODED */
    double cost, bound;
    uint64_t bytes;
} selection;

static void free_selection(selection *at) {
    free(at->items);
    free(at->uncoded);
    free(at->layouts);
    free(at->other);
}

/* @return the most rows of x. */
static uint32_t find_most_rows(const trf_layouts_options *options) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < options->num_batches; i++)
        most = options->batches[i] > most ? options->batches[i] : most;
    return most;
}

static trf_status fill_selection(const trf_layout_layer *layers, const trf_layouts_options *options,
                                 const trf_card_times *card, selection *at, double *plain, trf_error *err) {
    const unsigned coded = 1u << TRF_LAYOUT_CODED;
    const int is_shared = find_most_rows(options) > TRF_FUSED_MAX_M;
    uint64_t most = INT64_MAX / 2; /* of all layers; what coded ones share is as much at most, so no sum overflows */
    at->has_uncoded = 1;
    *plain = 0;
    for (uint32_t i = 0; i < at->num_layers; i++) {
        const trf_layout_layer *from =
            (const trf_layout_layer *)(const void *)((const uint8_t *)layers + i * layers[0].struct_bytes);
        trf_layout_layer layer;
        const trf_status status = take_layer(from, &layer, err);
        if (status != TRF_OK)
            return trf_prefix_error(err, status, "layer %" PRIu32, i);
        if (from->struct_bytes != layers[0].struct_bytes)
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                            "layer %" PRIu32 ": its struct_bytes is not that of the first one", i);
        const uint64_t bytes = find_most_bytes(&layer);
        if (bytes > most)
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                            "layer %" PRIu32 ": the layers up to this one may take more than 2^62 bytes together", i);
        most -= bytes;
        trf_choice_item *item = &at->items[i];
        item->layouts = layer.layouts;
        for (int l = 0; l < TRF_LAYOUTS; l++) {
            item->bytes[l] = layer.bytes[l];
            item->cost[l] = expect_time(card, options, &layer, (trf_layout)l);
        }
        *plain += item->cost[TRF_LAYOUT_PLAIN];
        at->uncoded[i] = *item;
        at->uncoded[i].layouts &= ~coded;
        at->has_uncoded &= at->uncoded[i].layouts != 0;
        if (is_shared && layer.layouts & coded && layer.coded_workspace_bytes > at->workspace)
            at->workspace = layer.coded_workspace_bytes;
    }
    return TRF_OK;
}

/* @return the least bytes of any choice. */
static uint64_t find_least_bytes(const selection *at) {
    const uint64_t with = trf_choice_least_bytes(at->items, at->num_layers) + at->workspace;
    if (!at->has_uncoded)
        return with;
    const uint64_t without = trf_choice_least_bytes(at->uncoded, at->num_layers);
    return with < without ? with : without;
}

/* Chooses for a budget, which is find_least_bytes at least. */
static trf_status select_within(selection *at, uint64_t budget, trf_error *err) {
    const uint64_t least = trf_choice_least_bytes(at->items, at->num_layers) + at->workspace;
    double cost = HUGE_VAL, bound = HUGE_VAL;
    uint64_t bytes = 0;
    trf_status status = TRF_OK;
    if (least <= budget)
        status = trf_choice_search(at->items, at->num_layers, budget - at->workspace, at->layouts, &cost, &bytes,
                                   &bound, err);
    for (uint32_t i = 0; i < at->num_layers && least <= budget && status == TRF_OK; i++)
        if (at->layouts[i] == TRF_LAYOUT_CODED) {
            bytes += at->workspace;
            break;
        }
    at->cost = cost;
    at->bytes = bytes;
    at->bound = bound;
    cost = HUGE_VAL;
    if (status == TRF_OK && at->workspace && at->has_uncoded &&
        trf_choice_least_bytes(at->uncoded, at->num_layers) <= budget) {
        status = trf_choice_search(at->uncoded, at->num_layers, budget, at->other, &cost, &bytes, &bound, err);
        at->bound = fmin(at->bound, bound);
    }
    if (status == TRF_OK && cost < at->cost) {
        memcpy(at->layouts, at->other, at->num_layers * sizeof *at->layouts);
        at->cost = cost;
        at->bytes = bytes;
    }
    return status;
}

static trf_status choose_within(selection *at, const trf_layouts_options *options, trf_layout *layouts,
                                trf_layouts_choice *choice, trf_error *err) {
    choice->least_bytes = find_least_bytes(at);
    if (choice->least_bytes > options->memory_bytes)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET,
                        "the layers take %.2f GB at least, and %.2f GB may be taken: %.2f GB are missing",
                        (double)choice->least_bytes / 1e9, (double)options->memory_bytes / 1e9,
                        (double)(choice->least_bytes - options->memory_bytes) / 1e9);
    /* One GB more first, so that at->layouts are those of the budget afterwards. */
    const uint64_t more = options->memory_bytes < UINT64_MAX - kGb ? options->memory_bytes + kGb : UINT64_MAX;
    trf_status status = select_within(at, more, err);
    const double with_more = at->cost;
    if (status == TRF_OK)
        status = select_within(at, options->memory_bytes, err);
    if (status != TRF_OK)
        return status;
    choice->memory_bytes = at->bytes;
    choice->microseconds = at->cost;
    choice->least_microseconds = fmin(at->bound, at->cost);
    choice->one_gb_microseconds = fmax(0, at->cost - with_more);
    memcpy(layouts, at->layouts, at->num_layers * sizeof *layouts);
    return TRF_OK;
}

trf_status trf_layouts_choose(const trf_layout_layer *layers, uint32_t num_layers, const trf_layouts_options *asked,
                              trf_layout *layouts, trf_layouts_choice *choice, trf_error *err) {
    trf_layouts_options options;
    trf_layouts_choice made = {0};
    if (!layers || !num_layers || !layouts)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "layouts are chosen for layers, and there are none");
    trf_status status = take_options(asked, &options, err);
    if (status != TRF_OK)
        return status;
    const trf_card_times *card = trf_card_times_for(options.card, &made.is_own_card);
    made.card = card->card;
    selection at = {.num_layers = num_layers,
                    .items = calloc(num_layers, sizeof *at.items),
                    .uncoded = calloc(num_layers, sizeof *at.uncoded),
                    .layouts = calloc(num_layers, sizeof *at.layouts),
                    .other = calloc(num_layers, sizeof *at.other)};
    if (!at.items || !at.uncoded || !at.layouts || !at.other)
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory to choose layouts");
    if (status == TRF_OK)
        status = fill_selection(layers, &options, card, &at, &made.plain_microseconds, err);
    if (status == TRF_OK)
        status = choose_within(&at, &options, layouts, &made, err);
    free_selection(&at);
    if (status == TRF_OK && choice)
        *choice = made;
    return status;
}
