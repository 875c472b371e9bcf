/* SPDX-License-Identifier: Apache-2.0 */
/* Sorting of routes by expert, stably, which a block does in chunks of 32 routes. Each chunk counts its routes of each
 * expert; then the counts of earlier chunks are added up, and say at which slot of the expert a chunk begins. */
#ifndef TRF_MOE_SORT_CUH
#define TRF_MOE_SORT_CUH

#include "trf_moe_route.h"
#include "trf_moe_sizes.h"
#include "trf_ptx.cuh"

/* A lane's route of a chunk. */
struct trf_moe_sorted_route {
    uint32_t expert; /* or TRF_MOE_NO_EXPERT */
    uint32_t rank;   /* how many routes of the chunk before it go to the same expert */
};

/* Finds the rank of a lane's route, whose expert is known, and counts. counts: [experts] of the chunk, zeros before.
 * All lanes call it. */
static __device__ __forceinline__ trf_moe_sorted_route trf_moe_count_chunk(uint32_t expert, uint32_t lane,
                                                                           uint16_t *counts) {
    const uint32_t same = __match_any_sync(0xFFFFFFFF, expert), rank = (uint32_t)__popc(same & ((1u << lane) - 1));
    if (rank == 0 && expert != TRF_MOE_NO_EXPERT)
        counts[expert] = (uint16_t)__popc(same);
    return {expert, rank};
}

/* Replaces the counts of an expert in each chunk by those of all earlier chunks. @return the sum of all. */
static __device__ __forceinline__ uint32_t trf_moe_add_up_chunks(uint16_t *counts, uint32_t chunks, uint32_t experts,
                                                                 uint32_t expert) {
    uint32_t sum = 0;
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        uint16_t *const at = counts + chunk * experts + expert;
        const uint32_t count = *at;
        *at = (uint16_t)sum;
        sum += count;
    }
    return sum;
}

/* The sum of v over the lanes before this one. */
static __device__ __forceinline__ uint32_t trf_moe_sum_before(uint32_t v, uint32_t lane) {
    uint32_t sum = v;
#pragma unroll
    for (uint32_t offset = 1; offset < TRF_LANES; offset *= 2) {
        const uint32_t other = __shfl_up_sync(0xFFFFFFFF, sum, offset);
        sum += lane >= offset ? other : 0;
    }
    return sum - v;
}

#endif
