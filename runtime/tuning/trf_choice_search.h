/* SPDX-License-Identifier: Apache-2.0 */
/* Searches for the cheapest choice of one variant for each item within a number of bytes: a multiple-choice knapsack.
 */
#ifndef TRF_CHOICE_SEARCH_H
#define TRF_CHOICE_SEARCH_H

#include "transfuse/layouts.h"

/* A layer to choose a layout for. */
typedef struct trf_choice_item {
    uint64_t bytes[TRF_LAYOUTS];
    double cost[TRF_LAYOUTS]; /* finite */
    unsigned layouts;         /* those that it may have, bits of 1 << layout; at least one */
} trf_choice_item;

/* @return the least bytes of one item, or of all of them. */
uint64_t trf_choice_item_least_bytes(const trf_choice_item *item);
uint64_t trf_choice_least_bytes(const trf_choice_item *items, uint32_t num_items);

/* Searches. The least bytes of all items must fit. chosen: [num_items]. *cost, *bytes: of the choice. *bound: no choice
 * costs less. The cost is within 0.05 % of the least one, unless more than some 10^4 choices would have to be kept in
 * mind at a time. Errors: TRF_ERR_MEMORY. */
trf_status trf_choice_search(const trf_choice_item *items, uint32_t num_items, uint64_t budget_bytes,
                             trf_layout *chosen, double *cost, uint64_t *bytes, double *bound, trf_error *err);

#endif
