/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_sm90.h"

#include "trf_moe_product.cuh"
#include "trf_moe_route_kernels.cuh"

#include "warp_moe.h"
#include "warp_packed_product.h"

/* NaNs wherever stages have x, of which tiles of few tokens bring only a part; they must not reach y. */
template <class Config> static void fill_stages() {
    alignas(16) uint8_t nan[16];
    memset(nan, 0xFF, sizeof nan);
    for (uint32_t at = 0; at < Config::kLinesAt; at += sizeof nan)
        warp_async_put(trf_shared_address(warp_shared_memory()) + at, nan, sizeof nan);
}

template <int kKernel, class Weights> static void run_block(void *args) {
    if (threadIdx.x == 0)
        fill_stages<trf_moe_config<kKernel, Weights>>();
    __syncthreads();
    trf_moe_block<trf_moe_config<kKernel, Weights>>(*(const trf_moe_args *)args, warp_shared_memory(),
                                                    trf_shared_address(warp_shared_memory()));
}

template <int kKernel, class Weights> static void multiply(const warp_moe_product *product) {
    trf_moe_args args = {};
    args.x_map =
        warp_make_x_map(product->x, product->x_rows, product->experts[0].cols, TRF_MOE_BOX_ROWS, TRF_MOE_BOX_ROWS);
    trf_packed_view any = product->experts[0];
    any.tiles = nullptr; /* its pointers do not count */
    any.lines = nullptr;
    trf_moe_set_experts(args, kKernel, product->experts, any);
    args.max_slots = product->max_slots;
    args.routes = product->routes;
    args.first_slots = product->first_slots;
    args.slot_routes = product->slot_routes;
    args.route_slots = product->route_slots;
    args.x = product->x;
    args.x_stride = args.shape.cols;
    args.x_has_slots = product->x_has_slots;
    args.result = product->result;
    args.activation = product->activation;
    args.bias = product->bias;
    args.y = product->y;
    args.y_stride = product->y_stride;
    args.y_dtype = product->y_dtype;
    args.handover =
        trf_packed_handover_at(product->handover, product->blocks, trf_moe_acc_tiles(kKernel), WARP_LAUNCH_ID);
    gridDim.x = product->blocks;
    const warp_block_shape shape = {TRF_MOE_THREADS / 32, trf_moe_shared_bytes(kKernel, Weights::kSlabBytes),
                                    product->order, 1};
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
        warp_run_block(shape, run_block<kKernel, Weights>, &args);
    warp_expect_taken_over(args.handover, gridDim.x);
    blockIdx.x = 0;
    gridDim.x = 1;
}

template <class Weights> static void multiply_by_kernel(const warp_moe_product *product) {
    if (product->kernel == TRF_MOE_64)
        multiply<TRF_MOE_64, Weights>(product);
    else if (product->kernel == TRF_MOE_192)
        multiply<TRF_MOE_192, Weights>(product);
    else
        multiply<TRF_MOE_256, Weights>(product);
}

void warp_multiply_experts(const warp_moe_product *product) {
    bool may_zero = false;
    for (uint32_t e = 0; e < product->routes.experts; e++)
        may_zero = may_zero || product->experts[e].zeroing;
    (product->in_turns ? multiply_by_kernel<trf_moe_fp8_in_turns>
     : product->is_fp8 ? multiply_by_kernel<trf_moe_fp8>
     : may_zero        ? multiply_by_kernel<trf_moe_bf16_may_zero>
                       : multiply_by_kernel<trf_moe_bf16>)(product);
}

static void count_block(void *args) {
    trf_moe_count_routes(*(const trf_moe_sort_args *)args, (uint16_t *)warp_shared_memory());
}
static void place_block(void *args) {
    uint8_t *const memory = warp_shared_memory();
    const trf_moe_sort_args &sort = *(const trf_moe_sort_args *)args;
    uint32_t *const first = (uint32_t *)(memory + 2 * TRF_MOE_BLOCK_CHUNKS * TRF_MOE_MAX_EXPERTS);
    trf_moe_place_routes(sort, (uint16_t *)memory, first, first + TRF_MOE_MAX_EXPERTS);
}

void warp_sort_routes(const trf_moe_routes *routes, uint32_t *counts, uint32_t *first_slots, uint32_t *slot_routes,
                      uint32_t *route_slots, uint32_t order) {
    trf_moe_sort_args args = {*routes, counts, first_slots, slot_routes, route_slots};
    const warp_block_shape shape = {TRF_MOE_SORT_THREADS / 32,
                                    (2 * TRF_MOE_BLOCK_CHUNKS + 4) * TRF_MOE_MAX_EXPERTS + 4 * 32, order, 1};
    const uint32_t blocks = (routes->count + TRF_MOE_BLOCK_ROUTES - 1) / TRF_MOE_BLOCK_ROUTES;
    warp_run_grid(shape, blocks, count_block, &args);
    warp_run_grid(shape, blocks, place_block, &args);
}
