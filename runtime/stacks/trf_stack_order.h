/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which layer of a stack is copied when: ahead of its use, as soon as the layers in its place may be replaced.
 * No CUDA in here.
 *
 * Everything is decided when calls are made, before the device does it. A layer may be replaced once all work that uses
 * it has been queued; the copy to its place waits for that work on the device. */
#ifndef TRF_STACK_ORDER_H
#define TRF_STACK_ORDER_H

#include "trf_stack_placement.h"

/* A layer's usage: what calls have done with it so far, and whether its copy may be replaced. */
typedef struct trf_stack_usage {
    uint32_t uses;    /* how often it is acquired and not yet released */
    uint8_t present;  /* its copy has been queued, and no other to its place since */
    uint8_t spent;    /* may be replaced: it was used since its copy, or passed over */
    uint8_t released; /* at least once since its copy */
    /* Among the layers that are present and not spent, the one to be used next has the lowest turn. */
    uint64_t turn;
} trf_stack_usage;

/* What is done on the device. Both actions only queue work, which follows all that they have queued before. */
typedef struct trf_stack_actions {
    void *context;
    trf_status (*copy)(void *context, uint32_t layer, trf_error *err);
    trf_status (*wait)(void *context, uint32_t layer,
                       trf_error *err); /* for all work that used the layer before it was released */
} trf_stack_actions;

typedef struct trf_stack_order {
    const trf_stack_place *places; /* [count] */
    trf_stack_usage *usage;        /* [count], all zeros at first */
    uint32_t count;
    uint32_t next;      /* the layer to copy next: begins as the first that is offloaded */
    uint64_t last_turn; /* the highest that a layer was given */
    trf_stack_actions actions;
} trf_stack_order;

/* The errors of all functions are those of the actions. */

/* Copies layers ahead as far as there is room. No layer has been acquired yet. */
trf_status trf_stack_order_begin(trf_stack_order *order, trf_error *err);

/* Makes sure that a layer is present, and stays so. If layers are used in order, it is present already; otherwise it is
 * copied now, and the layers that follow it are copied next. Errors: also TRF_ERR_ARGUMENT, if a layer that has not
 * been released lies in its place. After a failure it has not been acquired. */
trf_status trf_stack_order_acquire(trf_stack_order *order, uint32_t layer, trf_error *err);

/* Releases a layer that has been acquired, and copies ahead the layers for which there is room now. */
trf_status trf_stack_order_release(trf_stack_order *order, uint32_t layer, trf_error *err);

#endif
