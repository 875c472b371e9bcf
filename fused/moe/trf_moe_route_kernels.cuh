/* SPDX-License-Identifier: Apache-2.0 */
/* What blocks of the small kernels around the products of a mixture of experts do: sorting routes, moving rows of x to
 * the order of slots, and adding up a token's experts. */
#ifndef TRF_MOE_ROUTE_KERNELS_CUH
#define TRF_MOE_ROUTE_KERNELS_CUH

#include "trf_epilogue.h"
#include "trf_moe_sort.cuh"

enum {
    TRF_MOE_SORT_THREADS = TRF_MOE_BLOCK_ROUTES, /* a thread for each route of a block, so a warp for each chunk */
    TRF_MOE_ROW_THREADS = 128                    /* of blocks that move or add up rows */
};

/* Each block has TRF_MOE_BLOCK_ROUTES routes. */
struct trf_moe_sort_args {
    trf_moe_routes routes;
    uint32_t *counts;      /* [blocks][experts]: routes of each block to each expert */
    uint32_t *first_slots; /* [experts + 1] */
    uint32_t *slot_routes; /* [slots] */
    uint32_t *route_slots; /* [routes] */
};

/* Counts a block's routes. counts: shared memory, [TRF_MOE_BLOCK_CHUNKS][experts], 4-byte aligned. @return the route of
 * the thread. Afterwards counts has those of earlier chunks, and total, if it is not NULL, those of the block. */
static __device__ __forceinline__ trf_moe_sorted_route trf_moe_count_block(const trf_moe_routes &routes,
                                                                           uint16_t *counts, uint32_t *total) {
    const uint32_t lane = threadIdx.x % TRF_LANES, chunk = threadIdx.x / TRF_LANES, experts = routes.experts;
    for (uint32_t i = threadIdx.x; i < TRF_MOE_BLOCK_CHUNKS * experts / 2; i += TRF_MOE_SORT_THREADS)
        ((uint32_t *)counts)[i] = 0;
    __syncthreads();
    const trf_moe_sorted_route sorted =
        trf_moe_count_chunk(trf_moe_expert_of_route(&routes, blockIdx.x * TRF_MOE_BLOCK_ROUTES + threadIdx.x), lane,
                            counts + chunk * experts);
    __syncthreads();
    if (threadIdx.x < experts) {
        const uint32_t count = trf_moe_add_up_chunks(counts, TRF_MOE_BLOCK_CHUNKS, experts, threadIdx.x);
        if (total)
            total[threadIdx.x] = count;
    }
    return sorted;
}

/* The first kernel: counts. */
static __device__ __forceinline__ void trf_moe_count_routes(const trf_moe_sort_args &a, uint16_t *counts) {
    trf_moe_count_block(a.routes, counts, a.counts + blockIdx.x * a.routes.experts);
}

/* The second kernel: each block adds up the counts of all blocks, and gives its routes their slots. first: shared
 * memory, [experts]; sums: shared memory, [32]. */
static __device__ __forceinline__ void trf_moe_place_routes(const trf_moe_sort_args &a, uint16_t *counts,
                                                            uint32_t *first, uint32_t *sums) {
    const uint32_t experts = a.routes.experts, e = threadIdx.x, lane = e % TRF_LANES, warp = e / TRF_LANES;
    const trf_moe_sorted_route sorted = trf_moe_count_block(a.routes, counts, nullptr);
    uint32_t all = 0, earlier = 0;
    if (e < experts) {
#pragma unroll 8
        for (uint32_t block = 0; block < gridDim.x; block++) {
            const uint32_t count = a.counts[block * experts + e];
            all += count;
            earlier += block < blockIdx.x ? count : 0;
        }
    }
    const uint32_t before = trf_moe_sum_before(all, lane);
    if (lane == TRF_LANES - 1)
        sums[warp] = before + all;
    __syncthreads();
    uint32_t first_slot = before;
    for (uint32_t i = 0; i < warp; i++)
        first_slot += sums[i];
    if (e < experts)
        first[e] = first_slot + earlier;
    if (blockIdx.x == 0 && e <= experts)
        a.first_slots[e] = first_slot; /* that of `experts`: all slots, since later threads have no counts */
    __syncthreads();
    const uint32_t route = blockIdx.x * TRF_MOE_BLOCK_ROUTES + threadIdx.x;
    if (route >= a.routes.count)
        return;
    uint32_t slot = TRF_MOE_NO_SLOT;
    if (sorted.expert != TRF_MOE_NO_EXPERT) {
        slot = first[sorted.expert] + counts[warp * experts + sorted.expert] + sorted.rank;
        a.slot_routes[slot] = route;
    }
    a.route_slots[route] = slot;
}

struct trf_moe_gather_args {
    const uint16_t *x;           /* [tokens][cols] */
    uint16_t *slot_x;            /* [slots][cols] */
    const uint32_t *slot_routes; /* [slots] */
    const uint32_t *num_slots;
    trf_divisor top_k;
    uint32_t octets; /* of a row: 16 bytes each */
};

/* Copies the row of one slot. */
static __device__ __forceinline__ void trf_moe_gather_row(const trf_moe_gather_args &a, uint32_t slot) {
    if (slot >= *a.num_slots)
        return;
    const uint4 *const from = (const uint4 *)a.x + (uint64_t)trf_quotient(a.slot_routes[slot], a.top_k) * a.octets;
    uint4 *const to = (uint4 *)a.slot_x + (uint64_t)slot * a.octets;
    for (uint32_t i = threadIdx.x; i < a.octets; i += TRF_MOE_ROW_THREADS)
        to[i] = from[i];
}

struct trf_moe_sum_args {
    const void *slot_y; /* [slots][8 * octets] of BF16 or F32 */
    uint32_t slot_dtype;
    const uint32_t *route_slots; /* [tokens][top_k] */
    const float *weights;        /* [tokens][top_k] */
    uint16_t *y;                 /* BF16 [tokens][8 * octets] */
    uint32_t top_k, octets;
};

/* Where a route of a token went, and with which weight. */
struct trf_moe_route_place {
    uint32_t slot; /* or TRF_MOE_NO_SLOT */
    float weight;
};

/* A lane's route of a token: lane i of a warp has route i, of the first 32. They were known before down began. */
static __device__ __forceinline__ trf_moe_route_place trf_moe_place_of(const trf_moe_sum_args &a, uint32_t token,
                                                                       uint32_t i) {
    if (i >= a.top_k)
        return {TRF_MOE_NO_SLOT, 0.0f};
    return {a.route_slots[token * a.top_k + i], a.weights[token * a.top_k + i]};
}

/* Adds weight times eight elements of a slot. */
static __device__ __forceinline__ void trf_moe_add_octet(const trf_moe_sum_args &a, uint32_t slot, uint32_t octet,
                                                         float weight, float (&sums)[8]) {
    const uint64_t at = (uint64_t)slot * a.octets + octet;
    if (a.slot_dtype == TRF_DTYPE_F32) {
        const float4 low = ((const float4 *)a.slot_y)[2 * at], high = ((const float4 *)a.slot_y)[2 * at + 1];
        const float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; i++)
            sums[i] = fmaf(weight, v[i], sums[i]);
        return;
    }
    const uint4 v = ((const uint4 *)a.slot_y)[at];
    const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sums[2 * i] = fmaf(weight, trf_f32_from_bits(pairs[i] << 16), sums[2 * i]);
        sums[2 * i + 1] = fmaf(weight, trf_f32_from_bits(pairs[i] & 0xFFFF0000u), sums[2 * i + 1]);
    }
}

/* Adds up one octet of a token's row, its experts in the order of its routes. All lanes call it. place: the lane's. */
static __device__ __forceinline__ void trf_moe_sum_octet(const trf_moe_sum_args &a, uint32_t token, uint32_t octet,
                                                         trf_moe_route_place place) {
    float sums[8] = {};
#pragma unroll 4
    for (uint32_t i = 0; i < a.top_k; i++) {
        const uint32_t slot = __shfl_sync(0xFFFFFFFF, place.slot, i);
        const float weight = __shfl_sync(0xFFFFFFFF, place.weight, i);
        if (slot != TRF_MOE_NO_SLOT && octet < a.octets)
            trf_moe_add_octet(a, slot, octet, weight, sums);
    }
    if (octet >= a.octets)
        return;
    ((uint4 *)a.y)[(uint64_t)token * a.octets + octet] =
        make_uint4(trf_round_two(TRF_DTYPE_BF16, sums[0], sums[1]), trf_round_two(TRF_DTYPE_BF16, sums[2], sums[3]),
                   trf_round_two(TRF_DTYPE_BF16, sums[4], sums[5]), trf_round_two(TRF_DTYPE_BF16, sums[6], sums[7]));
}

#endif
