/* SPDX-License-Identifier: Apache-2.0 */
/* Tunings: making them, and finding the path that they give a product. */
#include "trf_tuning.h"

#include "trf_context.h"
#include "trf_error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In octaves, a little more than a half so that a half itself counts. The best cut depends on how many blocks a device
 * runs at once, so it is soon wrong for a layer of another size. */
static const double kPackedWithin = 0.51;

trf_status trf_tuning_create(const trf_card *card, uint32_t num_layers, trf_tuning **tuning, trf_error *err) {
    trf_tuning *made = calloc(1, sizeof *made);
    trf_tuned_layer *layers = calloc(num_layers ? num_layers : 1, sizeof *layers);
    if (!made || !layers) {
        free(made);
        free(layers);
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a tuning of %u layers", num_layers);
    }
    made->card = *card;
    made->num_layers = num_layers;
    made->layers = layers;
    *tuning = made;
    return TRF_OK;
}

void trf_tuning_free(trf_tuning *tuning) {
    if (!tuning)
        return;
    free(tuning->layers);
    free(tuning);
}

trf_card trf_card_of(const trf_context *context) {
    trf_card card = {.capability = (uint32_t)context->limits.capability,
                     .multiprocessors = (uint32_t)context->limits.multiprocessors,
                     .memory_gb_per_second = context->limits.memory_gb_per_second};
    snprintf(card.name, sizeof card.name, "%s", context->name);
    return card;
}

trf_tuning_key trf_tuning_key_of(const trf_device_layer *layer) {
    return (trf_tuning_key){.layout = layer->layout->layout,
                            .codec = layer->info.codec,
                            .class_bits = layer->info.class_bits,
                            .raw_bits = layer->info.raw_bits,
                            .has_scale_groups = layer->info.granularity >= TRF_GRANULARITY_SCALE_GROUP,
                            .rows = layer->view.rows,
                            .cols = layer->view.cols};
}

double trf_tuning_key_distance(const trf_tuning_key *a, const trf_tuning_key *b) {
    const int is_coded = a->layout == TRF_LAYOUT_CODED;
    if (a->layout != b->layout || a->codec != b->codec || (is_coded && a->class_bits != b->class_bits) ||
        a->has_scale_groups != b->has_scale_groups)
        return HUGE_VAL;
    return fabs(log2((double)a->rows / b->rows)) + fabs(log2((double)a->cols / b->cols)) +
           (is_coded ? fabs((double)a->raw_bits - b->raw_bits) : 0);
}

/* @return the point that the nearest layer has for a batch, if that layer is less than `within` away; NULL if there is
 * none. */
static const trf_tuned_point *find_point(const trf_tuning *tuning, const trf_tuning_key *key, uint32_t m,
                                         double within) {
    const trf_tuned_layer *nearest = NULL;
    double least = within;
    for (uint32_t i = 0; i < tuning->num_layers; i++) {
        const double distance = trf_tuning_key_distance(key, &tuning->layers[i].key);
        if (distance < least) {
            nearest = &tuning->layers[i];
            least = distance;
        }
    }
    for (uint32_t i = 0; nearest && i < nearest->num_points; i++)
        if (m <= nearest->points[i].m)
            return &nearest->points[i];
    return NULL;
}

trf_path trf_tuned_path(const trf_tuning *tuning, const trf_tuning_key *key, uint32_t m) {
    const trf_tuned_point *point = find_point(tuning, key, m, HUGE_VAL);
    return point ? point->path : TRF_PATH_AUTO;
}

int trf_tuned_packed(const trf_tuning *tuning, const trf_tuning_key *key, uint32_t m, trf_tuned_kernel *kernel) {
    const trf_tuned_point *point = find_point(tuning, key, m, kPackedWithin);
    if (!point || !point->has_packed)
        return 0;
    *kernel = point->packed;
    return 1;
}

uint32_t trf_fastest_candidate(const double *microseconds, uint32_t num_candidates) {
    uint32_t fastest = 0;
    for (uint32_t i = 1; i < num_candidates; i++)
        if (microseconds[i] < microseconds[fastest])
            fastest = i;
    return microseconds[fastest] < 0.99 * microseconds[0] ? fastest : 0;
}

trf_path trf_fastest_path(const double microseconds[TRF_TUNED_PATHS]) {
    static const trf_path order[TRF_TUNED_PATHS] = {TRF_PATH_FUSED, TRF_PATH_WIDE, TRF_PATH_PACKED, TRF_PATH_TWO_STEP,
                                                    TRF_PATH_DENSE}; /* in the order of the memory that they take */
    trf_path fastest = TRF_PATH_AUTO;
    for (int i = 0; i < TRF_TUNED_PATHS; i++) {
        const double time = microseconds[order[i] - 1];
        if (time > 0 && (fastest == TRF_PATH_AUTO || time < 0.99 * microseconds[fastest - 1]))
            fastest = order[i];
    }
    return fastest;
}

trf_path trf_tuning_path(const trf_tuning *tuning, const trf_device_layer *device_layer, uint32_t m) {
    const trf_tuning_key key = trf_tuning_key_of(device_layer);
    return trf_tuned_path(tuning, &key, m);
}

trf_status trf_context_set_tuning(trf_context *context, const trf_tuning *tuning, trf_error *err) {
    trf_tuning *copy = NULL;
    if (!context)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a tuning is set in a context");
    if (tuning && strcmp(tuning->card.name, context->name) != 0)
        return trf_fail(err, TRF_ERR_DEVICE, TRF_NO_OFFSET, "the tuning is one for '%s', and the device is '%s'",
                        tuning->card.name, context->name);
    if (tuning) {
        trf_status status = trf_tuning_create(&tuning->card, tuning->num_layers, &copy, err);
        if (status != TRF_OK)
            return status;
        memcpy(copy->layers, tuning->layers, tuning->num_layers * sizeof *copy->layers);
    }
    trf_tuning_free(context->tuning);
    context->tuning = copy;
    return TRF_OK;
}
