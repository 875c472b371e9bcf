/* SPDX-License-Identifier: Apache-2.0 */
/* Which layer of a stack is copied when: ahead of use, as soon as what lies in its place may go. No CUDA in here.
 *
 * Everything is decided when calls are made, before the device does it: a layer may go once all that will use it has
 * been queued, and a copy to its place waits on the device. */
#ifndef TRF_STACK_ORDER_H
#define TRF_STACK_ORDER_H

#include "trf_stack_placement.h"

/* A layer's usage: what calls have made of it so far, and what may become of its copy. */
typedef struct trf_stack_usage {
    uint32_t uses;    /* acquired and not yet released */
    uint8_t present;  /* its copy has been queued, and none to its place since */
    uint8_t spent;    /* may go: used since, or passed over */
    uint8_t released; /* at least once since its copy */
    /* The layer that is to be used next has the least of those that are present and not spent. */
    uint64_t turn;
} trf_stack_usage;

/* What is done on the device. Both only queue work behind all that they have queued before. */
typedef struct trf_stack_actions {
    void *context;
    trf_status (*copy)(void *context, uint32_t layer, trf_error *err);
    trf_status (*wait)(void *context, uint32_t layer,
                       trf_error *err); /* for all that used a layer which was released */
} trf_stack_actions;

typedef struct trf_stack_order {
    const trf_stack_place *places; /* [count] */
    trf_stack_usage *usage;        /* [count], all zeros at first */
    uint32_t count;
    uint32_t next;      /* the layer to copy next: begins as the first that is offloaded */
    uint64_t last_turn; /* that a layer was given */
    trf_stack_actions actions;
} trf_stack_order;

/* All: errors are those of the actions. */

/* Copies ahead as far as there is room. No layer has been acquired. */
trf_status trf_stack_order_begin(trf_stack_order *order, trf_error *err);

/* Sees to it that a layer is present, and stays. In order it is; else it is copied now, and what follows it next. Also
 * TRF_ERR_ARGUMENT: a layer that has not been released lies in its place. On failure it has not been acquired. */
trf_status trf_stack_order_acquire(trf_stack_order *order, uint32_t layer, trf_error *err);

/* layer: acquired. Copies ahead what there is room for now. */
trf_status trf_stack_order_release(trf_stack_order *order, uint32_t layer, trf_error *err);

#endif
