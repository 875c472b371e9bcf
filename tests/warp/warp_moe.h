/* SPDX-License-Identifier: Apache-2.0 */
/* Products of packed experts as the kernels compute them (trf_moe_product.cuh), in emulated blocks that run one after
 * the other. */
#ifndef WARP_MOE_H
#define WARP_MOE_H

#include "trf_moe_route.h"
#include "trf_packed.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct warp_moe_product {
    int kernel; /* trf_moe_kernel */
    uint32_t blocks;
    const trf_packed_view *experts; /* [routes.experts], all in host memory; of FP8 experts the parts of their views */
    int is_fp8, in_turns;           /* in_turns: FP8 in turns */
    trf_moe_routes routes;          /* ids: NULL if the tables say which routes there are */
    const uint32_t *first_slots, *slot_routes;
    uint32_t *route_slots;
    uint32_t max_slots;
    const uint16_t *x; /* BF16 [x_rows][cols]; cols is a multiple of 8 */
    uint32_t x_rows, x_has_slots;
    int result; /* trf_moe_result */
    uint32_t activation;
    const uint16_t *bias;
    void *y;
    uint64_t y_stride;
    uint32_t y_dtype;
    void *handover; /* trf_packed_handover_bytes */
    uint32_t order; /* of threads; any number */
} warp_moe_product;

void warp_multiply_experts(const warp_moe_product *product);

/* Sorts routes as kernels do, for which counts has room: [blocks that sort][experts]. */
void warp_sort_routes(const trf_moe_routes *routes, uint32_t *counts, uint32_t *first_slots, uint32_t *slot_routes,
                      uint32_t *route_slots, uint32_t order);

#ifdef __cplusplus
}
#endif

#endif
