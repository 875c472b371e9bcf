/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_stack_order.h"

static int shares_place(const trf_stack_order *order, uint32_t a, uint32_t b) {
    const trf_stack_place *p = &order->places[a], *q = &order->places[b];
    return a != b && order->usage[a].present && p->offset < q->offset + q->bytes && q->offset < p->offset + p->bytes;
}

/* At least one layer is offloaded. */
static uint32_t next_offloaded(const trf_stack_order *order, uint32_t layer) {
    do
        layer = layer + 1 < order->count ? layer + 1 : 0;
    while (order->places[layer].is_resident);
    return layer;
}

/* @return whether all layers that lie in this layer's place may be replaced. */
static int has_room(const trf_stack_order *order, uint32_t layer) {
    for (uint32_t i = 0; i < order->count; i++)
        if (shares_place(order, i, layer) && (order->usage[i].uses || !order->usage[i].spent))
            return 0;
    return 1;
}

/* Copies a layer to its place. No layer that lies there is in use. */
static trf_status copy_to_place(trf_stack_order *order, uint32_t layer, trf_error *err) {
    const trf_stack_actions *actions = &order->actions;
    trf_stack_usage *usage = &order->usage[layer];
    for (uint32_t i = 0; i < order->count; i++) {
        if (!shares_place(order, i, layer))
            continue;
        if (order->usage[i].released) {
            trf_status status = actions->wait(actions->context, i, err);
            if (status != TRF_OK)
                return status;
        }
        order->usage[i].present = 0;
    }
    trf_status status = actions->copy(actions->context, layer, err);
    if (status == TRF_OK)
        *usage = (trf_stack_usage){.present = 1, .turn = ++order->last_turn};
    return status;
}

/* Copies layers ahead until there is no room for the next one. */
static trf_status copy_ahead(trf_stack_order *order, trf_error *err) {
    for (uint32_t i = 0; i < order->count; i++) {
        trf_stack_usage *usage = &order->usage[order->next];
        if (usage->present) { /* still there from its last turn, or from before a jump */
            usage->spent = 0;
            usage->turn = ++order->last_turn;
        } else if (!has_room(order, order->next)) {
            break;
        } else {
            trf_status status = copy_to_place(order, order->next, err);
            if (status != TRF_OK)
                return status;
        }
        order->next = next_offloaded(order, order->next);
    }
    return TRF_OK;
}

/* Copies a layer that was not the next one, and continues the order from there. */
static trf_status copy_out_of_order(trf_stack_order *order, uint32_t layer, trf_error *err) {
    for (uint32_t i = 0; i < order->count; i++)
        if (shares_place(order, i, layer) && order->usage[i].uses)
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                            "layer %u needs the place of layer %u, which has not been released", layer, i);
    for (uint32_t i = 0; i < order->count; i++) /* the others were copied for another order */
        order->usage[i].spent = 1;
    trf_status status = copy_to_place(order, layer, err);
    if (status == TRF_OK)
        order->next = next_offloaded(order, layer);
    return status;
}

trf_status trf_stack_order_begin(trf_stack_order *order, trf_error *err) {
    order->next = 0;
    while (order->next < order->count && order->places[order->next].is_resident)
        order->next++;
    return order->next < order->count ? copy_ahead(order, err) : TRF_OK;
}

trf_status trf_stack_order_acquire(trf_stack_order *order, uint32_t layer, trf_error *err) {
    trf_stack_usage *usage = &order->usage[layer];
    trf_status status = TRF_OK;
    if (!order->places[layer].is_resident) {
        if (!usage->present)
            status = copy_out_of_order(order, layer, err);
        for (uint32_t i = 0; status == TRF_OK && i < order->count; i++)
            if (order->usage[i].turn < usage->turn) /* passed over, or used already */
                order->usage[i].spent = 1;
        usage->spent = 0;
        if (status == TRF_OK)
            status = copy_ahead(order, err);
    }
    usage->uses += status == TRF_OK;
    return status;
}

trf_status trf_stack_order_release(trf_stack_order *order, uint32_t layer, trf_error *err) {
    trf_stack_usage *usage = &order->usage[layer];
    usage->uses--;
    if (order->places[layer].is_resident)
        return TRF_OK;
    usage->spent = usage->uses == 0;
    return copy_ahead(order, err);
}
