/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_moe_partition.h"

#include "transfuse.h"
#include "trf_planning.h"

#include <string.h>

enum {
    /* Up to so many slots, down writes F32, which takes no time that counts. Above, it rounds to BF16, which halves
     * what is written and read, 8 rows of a slot at a time: 2,048 slots of 2048 take 254 us rather than 263 in all
     * (H200). */
    F32_SLOTS = 1024
};

/* The kernel for so many tokens an expert on average. */
static int kernel_for(uint64_t routes, uint32_t num_ids) {
    const uint64_t mean = (routes + num_ids - 1) / num_ids;
    return mean <= 48 ? TRF_MOE_64 : mean <= 160 ? TRF_MOE_192 : TRF_MOE_256;
}

/* Whether the numbers of token blocks fit 16 bits, and those of k blocks 31. */
static int fits(int kernel, uint64_t slots, uint32_t experts, uint32_t rows, uint32_t cols) {
    const uint64_t blocks = slots / trf_moe_x_rows(kernel) + experts,
                   tiles = blocks * ((rows + TRF_MOE_ROWS - 1) / TRF_MOE_ROWS);
    return blocks < 0xFFFF && tiles * ((cols + TRF_PACKED_X_BOX_COLS - 1) / TRF_PACKED_X_BOX_COLS) < 0x7FFFFFFF;
}

int trf_moe_device_allows(const trf_device_limits *limits, uint32_t experts) {
    return limits->capability == 90 && limits->shared_bytes >= TRF_PACKED_SMEM_BYTES && experts <= TRF_MOE_MAX_EXPERTS;
}

/* Adds a part to the workspace. @return where it lies. */
static uint64_t add_part(uint64_t *workspace_bytes, uint64_t bytes) {
    const uint64_t at = *workspace_bytes;
    *workspace_bytes += (bytes + 255) / 256 * 256;
    return at;
}

int trf_moe_choose(const trf_moe_shape *shape, const trf_device_limits *limits, uint32_t tokens, int kernel,
                   trf_moe_partition *partition) {
    const uint64_t routes = (uint64_t)tokens * shape->top_k;
    trf_moe_partition made;
    memset(&made, 0, sizeof made);
    made.kernel = kernel < 0 ? kernel_for(routes, shape->num_ids) : kernel;
    if (!trf_moe_device_allows(limits, shape->experts) || routes > 0x7FFFFFFF ||
        !fits(made.kernel, routes, shape->experts, shape->gate_up_rows, shape->hidden) ||
        !fits(made.kernel, routes, shape->experts, shape->hidden, shape->gate_up_rows / 2))
        return 0;
    made.tokens = tokens;
    made.routes = (uint32_t)routes;
    made.blocks = (uint32_t)limits->multiprocessors;
    made.slot_dtype = routes <= F32_SLOTS ? TRF_DTYPE_F32 : TRF_DTYPE_BF16;
    const uint64_t blocks_that_sort = (routes + TRF_MOE_BLOCK_ROUTES - 1) / TRF_MOE_BLOCK_ROUTES,
                   f32_slots = routes < F32_SLOTS ? routes : F32_SLOTS, slot_y_bytes = 2 * routes * shape->hidden,
                   f32_bytes = 4 * f32_slots * shape->hidden;
    uint64_t *const end = &made.workspace_bytes;
    made.counts = add_part(end, blocks_that_sort * shape->experts * sizeof(uint32_t));
    made.first_slots = add_part(end, (shape->experts + 1) * sizeof(uint32_t));
    made.slot_routes = add_part(end, routes * sizeof(uint32_t));
    made.route_slots = add_part(end, routes * sizeof(uint32_t));
    made.hidden = add_part(end, routes * (shape->gate_up_rows / 2) * sizeof(uint16_t));
    made.slot_y = add_part(end, slot_y_bytes > f32_bytes ? slot_y_bytes : f32_bytes);
    made.gate_up_handover = add_part(end, trf_packed_handover_bytes(made.blocks, trf_moe_acc_tiles(made.kernel)));
    made.down_handover = add_part(end, trf_packed_handover_bytes(made.blocks, trf_moe_acc_tiles(made.kernel)));
    made.slot_x = add_part(end, trf_moe_gathers_x(made.kernel) ? 0 : routes * shape->hidden * sizeof(uint16_t));
    *partition = made;
    return 1;
}

int trf_packed_experts_choose(uint32_t experts, uint32_t rows, uint32_t cols, const trf_device_limits *limits,
                              uint32_t max_tokens, int kernel, trf_packed_experts_partition *partition) {
    trf_packed_experts_partition made;
    memset(&made, 0, sizeof made);
    made.kernel = kernel < 0 ? kernel_for(max_tokens, experts) : kernel;
    if (!trf_moe_device_allows(limits, experts) || !fits(made.kernel, max_tokens, experts, rows, cols))
        return 0;
    made.blocks = (uint32_t)limits->multiprocessors;
    made.x_stride = trf_padded_x_stride(cols);
    add_part(&made.workspace_bytes, (uint64_t)max_tokens * made.x_stride * sizeof(uint16_t));
    made.handover_offset =
        add_part(&made.workspace_bytes, trf_packed_handover_bytes(made.blocks, trf_moe_acc_tiles(made.kernel)));
    *partition = made;
    return 1;
}
