/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of packed experts in emulated warps, whose data a fuzzer makes: the ids of routes and the map from ids to
 * experts, which kernels sort; first slots and the routes of slots, when other kernels have sorted before; and bytes
 * that are written over the experts, but not over their heads. Sorting must give each route of an expert here one slot,
 * in order. Products must not read outside of an expert, x or the tables, write outside of y, or hang.
 *
 * An input begins with the kernel, the kind and shape of the experts, and how many there are, with how many tokens;
 * then come ids, tables if the kernel takes them, and what is written to the experts. */
#include "fuzz_packed_layer.h"
#include "trf_moe_sizes.h"
#include "warp/warp_moe.h"
#include "warp/warp_packed_product.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    MOST_EXPERTS = 4,
    /* trf_moe_result, of the device header */
    GATED = 0,
    RESULTS = 3,
    ELEMENTS = 2
};

typedef struct fuzz_mixture {
    uint32_t experts, rows, cols, tokens, top_k, count; /* count: of routes */
    int kernel, sorts, result, with_map, wide_ids;
    uint32_t options, order;
    fuzz_packed_layer layers[MOST_EXPERTS];
    trf_packed_view views[MOST_EXPERTS];
    int64_t ids[128];
    int32_t narrow_ids[128], map[2 * MOST_EXPERTS];
    uint32_t *first_slots, *slot_routes, *route_slots;
} fuzz_mixture;

static int make_experts(fuzz_mixture *m) {
    int made = 1;
    for (uint32_t e = 0; e < m->experts; e++) {
        fuzz_make_packed(&m->layers[e], m->rows, m->cols, m->options);
        made &= m->layers[e].memory != NULL;
        m->views[e] = m->layers[e].view.packed;
    }
    return made;
}

static void read_mixture(fuzz_mixture *m, fuzz_bytes *bytes) {
    const uint32_t way = fuzz_take(bytes), kind = fuzz_take(bytes);
    memset(m, 0, sizeof *m);
    m->kernel = (int)(way % TRF_MOE_KERNELS);
    m->result = (int)(way / 4 % RESULTS);
    m->with_map = way >> 4 & 1;
    m->wide_ids = way >> 5 & 1;
    m->sorts = m->kernel == TRF_MOE_64 && (way >> 6 & 1); /* the others have tables */
    m->options = (kind & (FUZZ_ZEROING | FUZZ_RECORDS | FUZZ_IS_FP8)) | (kind & 64 ? FUZZ_IN_TURNS : 0);
    if (m->options & FUZZ_IS_FP8 ? kind & 1 : kind & FUZZ_STORED)
        m->options |= m->options & FUZZ_IS_FP8 ? FUZZ_ONE_CONSTANT : FUZZ_STORED;
    m->experts = 1 + fuzz_take(bytes) % MOST_EXPERTS;
    m->rows = 16 * (1 + fuzz_take(bytes) % 9);
    m->cols = 8 * (1 + fuzz_take(bytes) % 40);
    m->top_k = 1 + fuzz_take(bytes) % 4;
    m->tokens = 1 + fuzz_take(bytes) % 32;
    m->order = fuzz_take(bytes);
    m->count = m->tokens * m->top_k;
    for (uint32_t i = 0; i < 2 * MOST_EXPERTS; i++)
        m->map[i] = (int8_t)fuzz_take(bytes);
    for (uint32_t i = 0; i < m->count; i++) {
        const uint32_t id = fuzz_take(bytes);
        m->ids[i] = id < 224 ? (int64_t)(id % 8) : (int64_t)((uint64_t)(id - 224) << 60 | id);
        m->narrow_ids[i] = (int32_t)(id < 224 ? id % 8 : (id - 224) << 27 | id);
    }
}

static trf_moe_routes routes_of(const fuzz_mixture *m) {
    return (trf_moe_routes){.ids = m->wide_ids ? (const void *)m->ids : m->narrow_ids,
                            .map = m->with_map ? m->map : NULL,
                            .id_bytes = m->wide_ids ? 8 : 4,
                            .count = m->count,
                            .num_ids = m->with_map ? 2 * MOST_EXPERTS : m->experts,
                            .experts = m->experts,
                            .top_k = trf_divisor_of(m->top_k)};
}

/* Sorts by the kernels that do nothing else, and looks at what they made. */
static void sort(const fuzz_mixture *m) {
    const trf_moe_routes routes = routes_of(m);
    uint32_t *counts = fuzz_allocate(m->experts * sizeof *counts), slot = 0;
    warp_sort_routes(&routes, counts, m->first_slots, m->slot_routes, m->route_slots, m->order);
    for (uint32_t e = 0; e < m->experts; e++) {
        if (m->first_slots[e] != slot)
            abort();
        for (uint32_t route = 0; route < m->count; route++)
            if (trf_moe_expert_of_route(&routes, route) == e &&
                (m->slot_routes[slot] != route || m->route_slots[route] != slot++))
                abort();
    }
    if (m->first_slots[m->experts] != slot)
        abort();
    free(counts);
}

/* Tables are data, too: any numbers, or those that sorting has made, of which some are changed. */
static void spoil_tables(const fuzz_mixture *m, fuzz_bytes *bytes) {
    const uint32_t changes = fuzz_take(bytes) % 8;
    for (uint32_t i = 0; i < changes; i++) {
        const uint32_t at = fuzz_take(bytes), low = fuzz_take_two(bytes), high = fuzz_take(bytes);
        uint32_t *const table = at & 1 ? m->first_slots : m->slot_routes;
        table[at / 2 % (at & 1 ? m->experts + 1 : m->count)] = low | (high & 1 ? high << 24 : 0);
    }
}

static void multiply(const fuzz_mixture *m) {
    const int has_slots = m->kernel != TRF_MOE_64, is_fp8 = (m->options & FUZZ_IS_FP8) != 0;
    const uint32_t blocks = 1 + m->order % 4, x_rows = has_slots ? m->count : m->tokens,
                   y_cols = m->result == GATED ? m->rows / 2 : m->rows;
    const size_t x_bytes = (size_t)x_rows * m->cols * sizeof(uint16_t);
    uint16_t *x = fuzz_allocate(x_bytes), *bias = fuzz_allocate((size_t)m->experts * m->rows * sizeof *bias);
    void *y = fuzz_allocate((size_t)m->count * y_cols * (m->result == ELEMENTS ? 4 : 2)),
         *handover = fuzz_allocate(trf_packed_handover_bytes(blocks, trf_moe_acc_tiles(m->kernel)));
    memset(x, 0x3F, x_bytes);
    memset(bias, 0, (size_t)m->experts * m->rows * sizeof *bias);
    warp_moe_product product = {.kernel = m->kernel,
                                .blocks = blocks,
                                .experts = m->views,
                                .is_fp8 = is_fp8,
                                .in_turns = is_fp8 && (m->options & FUZZ_IN_TURNS),
                                .routes = routes_of(m),
                                .first_slots = m->first_slots,
                                .slot_routes = m->slot_routes,
                                .route_slots = m->sorts ? m->route_slots : NULL,
                                .max_slots = m->count,
                                .x = x,
                                .x_rows = x_rows,
                                .x_has_slots = (uint32_t)has_slots,
                                .result = m->result,
                                .activation = TRF_ACTIVATION_SILU,
                                .bias = m->order & 64 ? bias : NULL,
                                .y = y,
                                .y_stride = y_cols,
                                .y_dtype = m->result == ELEMENTS ? TRF_DTYPE_F32 : TRF_DTYPE_BF16,
                                .handover = handover,
                                .order = m->order};
    if (!m->sorts)
        product.routes.ids = NULL;
    warp_multiply_experts(&product);
    free(x);
    free(bias);
    free(y);
    free(handover);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_bytes bytes = {data, size};
    fuzz_mixture mixture, *const m = &mixture;
    read_mixture(m, &bytes);
    m->first_slots = fuzz_allocate((m->experts + 1) * sizeof *m->first_slots);
    m->slot_routes = fuzz_allocate(m->count * sizeof *m->slot_routes);
    m->route_slots = fuzz_allocate(m->count * sizeof *m->route_slots);
    memset(m->slot_routes, 0, m->count * sizeof *m->slot_routes);
    if (make_experts(m)) {
        sort(m);
        if (!m->sorts)
            spoil_tables(m, &bytes);
        fuzz_spoil(&m->layers[m->order % m->experts], &bytes);
        multiply(m);
    }
    for (uint32_t e = 0; e < m->experts; e++)
        fuzz_free_packed(&m->layers[e]);
    free(m->first_slots);
    free(m->slot_routes);
    free(m->route_slots);
    return 0;
}
