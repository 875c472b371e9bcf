/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of crossovers that the library brings along: which path a product gets on a GPU that nobody has tuned.
 * There is one for each card that was measured. Other cards of its generation use the table of the card that is the
 * most like them.
 *
 * Crossovers differ between cards of one generation because of how fast memory is compared with the multiprocessors:
 * where memory is slower, reading fewer bytes is worth more, and decoding costs less in comparison. So the distance of
 * two cards is that of their memory bandwidths for each multiprocessor. */
#include "trf_tuning.h"

#include "trf_context.h"

#include <math.h>
#include <string.h>

/* Defines kTables. runtime/tuning/crossovers/make_crossovers.py makes this file from those of the cards in its
 * folder. */
#include "trf_crossovers.inc"

const trf_crossover_table *trf_crossover_tables(uint32_t *num_tables) {
    *num_tables = sizeof kTables / sizeof kTables[0];
    return kTables;
}

/* @return the distance of two cards in octaves of memory bandwidth for each multiprocessor; 0 if a card's is not
 * known. */
static double card_distance(const trf_card *a, const trf_card *b) {
    if (!a->memory_gb_per_second || !b->memory_gb_per_second || !a->multiprocessors || !b->multiprocessors)
        return 0;
    return fabs(log2((double)a->memory_gb_per_second / a->multiprocessors) -
                log2((double)b->memory_gb_per_second / b->multiprocessors));
}

const trf_crossover_table *trf_crossovers_for(const trf_crossover_table *tables, uint32_t num_tables,
                                              const trf_card *card) {
    const trf_crossover_table *nearest = NULL;
    double least = HUGE_VAL;
    for (uint32_t i = 0; i < num_tables; i++) {
        if (tables[i].card.capability != card->capability)
            continue;
        if (strcmp(tables[i].card.name, card->name) == 0)
            return &tables[i];
        const double distance = card_distance(&tables[i].card, card);
        if (distance < least) {
            nearest = &tables[i];
            least = distance;
        }
    }
    return nearest;
}

trf_path trf_crossover_path(const trf_crossover_table *table, const trf_tuning_key *key, uint32_t m) {
    if (table && key->layout == TRF_LAYOUT_PACKED && table->packed_to)
        return m <= table->packed_to ? TRF_PATH_PACKED : TRF_PATH_TWO_STEP;
    const trf_layer_crossovers *nearest = NULL;
    double least = HUGE_VAL;
    for (uint32_t i = 0; table && i < table->num_layers; i++) {
        const double distance = trf_tuning_key_distance(key, &table->layers[i].key);
        if (distance < least) {
            nearest = &table->layers[i];
            least = distance;
        }
    }
    if (!nearest)
        return TRF_PATH_AUTO;
    return m <= nearest->fused_to ? TRF_PATH_FUSED : m <= nearest->wide_to ? TRF_PATH_WIDE : TRF_PATH_TWO_STEP;
}

trf_path trf_path_for_batch(const trf_device_layer *layer, uint32_t m, const char **reason) {
    const trf_tuning *tuning = layer->context->tuning;
    const trf_tuning_key key = trf_tuning_key_of(layer);
    const trf_path tuned = tuning ? trf_tuned_path(tuning, &key, m) : TRF_PATH_AUTO;
    *reason = "the context's tuning has another path for this batch";
    if (tuned != TRF_PATH_AUTO)
        return tuned;
    *reason = "another path is faster for this batch, on GPUs of this generation";
    const trf_card card = trf_card_of(layer->context);
    uint32_t num_tables;
    const trf_crossover_table *tables = trf_crossover_tables(&num_tables);
    return trf_crossover_path(trf_crossovers_for(tables, num_tables, &card), &key, m);
}
