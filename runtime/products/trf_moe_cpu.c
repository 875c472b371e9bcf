/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts on the CPU: routes are sorted by expert, and the products are those of trf_experts_linear. Sums
 * of gate and up lie as the rows of gate_up do; where these are two tensors, all sums of gate lie before those of up.
 * The workspace: first slots | routes of slots | slots of routes | x of slots | sums of gate and up in F32 | what the
 * activation gives | sums of down in F32 | the products' own. */
#include "trf_activation.h"
#include "trf_experts.h"
#include "trf_moe_route.h"
#include "trf_number_formats.h"

#include <string.h>

typedef struct trf_cpu_moe_workspace {
    uint64_t first_slots, slot_routes, route_slots, slot_x, gate_up, hidden, down, products, bytes;
} trf_cpu_moe_workspace;

/* The plans of all products. up: NULL if gate_up has both. */
typedef struct trf_cpu_moe_plans {
    trf_experts_plan *gate_up, *up, *down;
} trf_cpu_moe_plans;

static void destroy_plans(const trf_cpu_moe_plans *plans) {
    trf_experts_plan_destroy(plans->gate_up);
    trf_experts_plan_destroy(plans->up);
    trf_experts_plan_destroy(plans->down);
}

static trf_status make_plans(const trf_moe *moe, uint32_t routes, trf_cpu_moe_plans *plans, trf_error *err) {
    memset(plans, 0, sizeof *plans);
    trf_status status =
        trf_experts_plan_create(moe->gate_up, routes, TRF_DTYPE_BF16, TRF_DTYPE_F32, &plans->gate_up, err);
    if (status == TRF_OK && moe->up)
        status = trf_experts_plan_create(moe->up, routes, TRF_DTYPE_BF16, TRF_DTYPE_F32, &plans->up, err);
    if (status == TRF_OK)
        status = trf_experts_plan_create(moe->down, routes, TRF_DTYPE_BF16, TRF_DTYPE_F32, &plans->down, err);
    if (status != TRF_OK)
        destroy_plans(plans);
    return status;
}

static uint64_t add_part(trf_cpu_moe_workspace *w, uint64_t bytes) {
    const uint64_t at = w->bytes;
    w->bytes += trf_device_align(bytes);
    return at;
}

static trf_cpu_moe_workspace workspace_of(const trf_moe *moe, uint64_t routes, const trf_cpu_moe_plans *plans) {
    const trf_moe_shape *shape = &moe->shape;
    const uint64_t gate_up = trf_experts_plan_workspace_bytes(plans->gate_up),
                   down = trf_experts_plan_workspace_bytes(plans->down);
    trf_cpu_moe_workspace w = {0};
    w.first_slots = add_part(&w, (shape->experts + 1ull) * sizeof(uint32_t));
    w.slot_routes = add_part(&w, routes * sizeof(uint32_t));
    w.route_slots = add_part(&w, routes * sizeof(uint32_t));
    w.slot_x = add_part(&w, routes * shape->hidden * sizeof(uint16_t));
    w.gate_up = add_part(&w, routes * shape->gate_up_rows * sizeof(float));
    w.hidden = add_part(&w, routes * (shape->gate_up_rows / 2) * sizeof(uint16_t));
    w.down = add_part(&w, routes * shape->hidden * sizeof(float));
    w.products = add_part(&w, gate_up > down ? gate_up : down); /* up's is that of gate, which is alike */
    return w;
}

trf_status trf_cpu_get_moe_workspace(const trf_moe *moe, uint32_t tokens, uint64_t *bytes, trf_error *err) {
    const uint64_t routes = (uint64_t)tokens * moe->shape.top_k;
    trf_cpu_moe_plans plans;
    trf_status status = make_plans(moe, (uint32_t)routes, &plans, err);
    if (status != TRF_OK)
        return status;
    *bytes = workspace_of(moe, routes, &plans).bytes;
    destroy_plans(&plans);
    return TRF_OK;
}

/* Sorts routes by expert, stably. first_slots: [experts + 1]. */
static void sort_routes(const trf_moe_routes *routes, uint32_t *first_slots, uint32_t *slot_routes,
                        uint32_t *route_slots) {
    memset(first_slots, 0, (routes->experts + 1) * sizeof *first_slots);
    for (uint32_t route = 0; route < routes->count; route++) {
        const uint32_t expert = trf_moe_expert_of_route(routes, route);
        if (expert != TRF_MOE_NO_EXPERT)
            first_slots[expert + 1]++;
    }
    for (uint32_t e = 0; e < routes->experts; e++)
        first_slots[e + 1] += first_slots[e];
    /* first_slots[e] moves on to the first slot of the next expert. */
    for (uint32_t route = 0; route < routes->count; route++) {
        const uint32_t expert = trf_moe_expert_of_route(routes, route);
        route_slots[route] = expert == TRF_MOE_NO_EXPERT ? TRF_MOE_NO_SLOT : first_slots[expert]++;
        if (expert != TRF_MOE_NO_EXPERT)
            slot_routes[route_slots[route]] = route;
    }
    memmove(first_slots + 1, first_slots, routes->experts * sizeof *first_slots);
    first_slots[0] = 0;
}

static float bias_at(const void *bias, uint64_t at) {
    return bias ? trf_bf16_to_f32(((const uint16_t *)bias)[at]) : -0.0f;
}

/* Where sum i of gate, or of up, of a slot lies. routes: of the call. */
static uint64_t sum_at(const trf_moe *moe, uint64_t routes, uint64_t slot, uint32_t i, int is_up) {
    const uint32_t rows = moe->shape.gate_up_rows, inner = rows / 2;
    if (moe->gate_up_rows == TRF_PACK_ROWS_OF_TWO)
        return (is_up ? routes + slot : slot) * inner + i;
    if (moe->gate_up_rows == TRF_PACK_ROWS_OF_HALVES)
        return slot * rows + (is_up ? inner + i : i);
    return slot * rows + i / 8 * 16 + i % 8 + (is_up ? 8 : 0); /* TRF_GATE_UP_INTERLEAVED_8 */
}

/* Gives activation(gate) * up of an expert's slots, `first` to `end` - 1. */
static void activate(const trf_moe *moe, const trf_moe_operands *o, uint32_t expert, const float *gate_up,
                     uint64_t first, uint64_t end, uint16_t *hidden) {
    const uint32_t inner = moe->shape.gate_up_rows / 2;
    const uint64_t routes = (uint64_t)o->tokens * moe->shape.top_k;
    for (uint64_t slot = first; slot < end; slot++)
        for (uint32_t i = 0; i < inner; i++) {
            const uint64_t bias = 2ull * expert * inner + i / 8 * 16 + i % 8;
            const float gate = gate_up[sum_at(moe, routes, slot, i, 0)] + bias_at(o->gate_up_bias, bias),
                        up = gate_up[sum_at(moe, routes, slot, i, 1)] + bias_at(o->gate_up_bias, bias + 8);
            hidden[slot * inner + i] = trf_f32_to_bf16(trf_activate(moe->activation, gate) * up);
        }
}

/* Adds up the experts of all tokens. */
static void add_up(const trf_moe *moe, const trf_moe_operands *o, const uint32_t *route_slots, const float *down) {
    const uint32_t hidden = moe->shape.hidden, top_k = moe->shape.top_k;
    for (uint64_t token = 0; token < o->tokens; token++)
        for (uint32_t row = 0; row < hidden; row++) {
            float sum = 0;
            for (uint64_t route = token * top_k; route < (token + 1) * top_k; route++)
                if (route_slots[route] != TRF_MOE_NO_SLOT)
                    sum = fmaf(o->weights[route], down[(uint64_t)route_slots[route] * hidden + row], sum);
            ((uint16_t *)o->y)[token * hidden + row] = trf_f32_to_bf16(sum);
        }
}

trf_status trf_cpu_forward_moe(const trf_moe *moe, const trf_moe_operands *o, void *workspace, trf_error *err) {
    const trf_moe_shape *shape = &moe->shape;
    const uint32_t count = o->tokens * shape->top_k;
    trf_cpu_moe_plans plans;
    trf_status status = make_plans(moe, count, &plans, err);
    if (status != TRF_OK)
        return status;
    const trf_cpu_moe_workspace w = workspace_of(moe, count, &plans);
    uint8_t *const at = workspace;
    uint32_t *const first_slots = (uint32_t *)(at + w.first_slots),
                    *const slot_routes = (uint32_t *)(at + w.slot_routes),
                    *const route_slots = (uint32_t *)(at + w.route_slots);
    uint16_t *const slot_x = (uint16_t *)(at + w.slot_x), *const hidden = (uint16_t *)(at + w.hidden);
    float *const gate_up = (float *)(at + w.gate_up), *const down = (float *)(at + w.down);
    const trf_moe_routes routes = {.ids = o->ids,
                                   .map = o->expert_map,
                                   .id_bytes = o->id_bytes,
                                   .count = count,
                                   .num_ids = shape->num_ids,
                                   .experts = shape->experts,
                                   .top_k = trf_divisor_of(shape->top_k)};
    sort_routes(&routes, first_slots, slot_routes, route_slots);
    for (uint32_t slot = 0; slot < first_slots[shape->experts]; slot++)
        memcpy(slot_x + (uint64_t)slot * shape->hidden,
               (const uint16_t *)o->x + (uint64_t)(slot_routes[slot] / shape->top_k) * shape->hidden,
               shape->hidden * sizeof *slot_x);
    status = trf_experts_linear(plans.gate_up, slot_x, first_slots, gate_up, at + w.products, NULL, err);
    if (status == TRF_OK && moe->up)
        status = trf_experts_linear(plans.up, slot_x, first_slots, gate_up + (uint64_t)count * moe->up->info.rows,
                                    at + w.products, NULL, err);
    for (uint32_t e = 0; status == TRF_OK && e < shape->experts; e++)
        activate(moe, o, e, gate_up, first_slots[e], first_slots[e + 1], hidden);
    if (status == TRF_OK)
        status = trf_experts_linear(plans.down, hidden, first_slots, down, at + w.products, NULL, err);
    for (uint32_t e = 0; status == TRF_OK && o->down_bias && e < shape->experts; e++)
        for (uint64_t slot = first_slots[e]; slot < first_slots[e + 1]; slot++)
            for (uint32_t row = 0; row < shape->hidden; row++)
                down[slot * shape->hidden + row] += bias_at(o->down_bias, (uint64_t)e * shape->hidden + row);
    if (status == TRF_OK)
        add_up(moe, o, route_slots, down);
    destroy_plans(&plans);
    return status;
}
