/* SPDX-License-Identifier: Apache-2.0 */
/* How blocks that share a tile (stream-K) add up its sums in one kernel.
 *
 * Shares follow each other through the k blocks of the tiles, and blocks have them in reverse order: block b of n has
 * share n - 1 - b. The block that has a tile's first k blocks finishes the tile: it adds the sums of the shares that
 * follow, in their order, to its own. Those shares belong to blocks of lower numbers, which were started before it, and
 * the tile is the first one of their shares. So nobody waits for a block that may not have started yet, and mostly
 * nobody waits at all.
 *
 *        tile 0                tile 1                tile 2
 *      |---------------------|---------------------|---------------------|
 *      |   share 0: block 3  |  share 1: block 2   |  share 2: block 1  ...
 *      |-------------->|----------------->|----------------->|
 *                      ^ block 2 hands its sums of tile 0 over to block 3, and finishes tile 1
 *
 * What a block hands over of a tile is a *parcel*: [accumulator tiles][32 lanes] of four sums. In this picture a block
 * has one parcel at most, and the parcel has the block's number. wgmma kernels have one more way of sharing tiles, in
 * which a block has several parcels, and parcels are numbered by shares (trf_packed_wgmma_share.cuh). A flag for each
 * warp says that its sums are there; its value is the launch's number. Whoever has waited for a flag resets it, since
 * the next run of a CUDA graph has the same number. The workspace may hold anything before the first run: the number
 * has 64 bits, and no other launch has the same. */
#ifndef TRF_PACKED_HANDOVER_CUH
#define TRF_PACKED_HANDOVER_CUH

#include "trf_packed_ring.cuh"
#include "trf_packed_stage_sizes.h"
#include "trf_stream_k.h"

struct trf_packed_handover {
    float4 *sums;    /* [parcels][acc_tiles][32] */
    uint64_t *flags; /* [parcels][TRF_PACKED_HANDOVER_WARPS] */
    uint64_t launch_id;
};

/* at: trf_packed_handover_bytes of device memory, 16-byte aligned. */
static inline trf_packed_handover trf_packed_handover_at(void *at, uint64_t parcels, uint32_t acc_tiles,
                                                         uint64_t launch_id) {
    return {(float4 *)at, (uint64_t *)((uint8_t *)at + parcels * acc_tiles * TRF_ACC_TILE_BYTES), launch_id};
}

#if TRF_HAS_SM_90A

/* Shares are given out from the last block on, so these two functions are the inverse of each other. */
static __device__ __forceinline__ uint32_t trf_packed_share_of_block(uint32_t block) { return gridDim.x - 1 - block; }
static __device__ __forceinline__ uint32_t trf_packed_block_of_share(uint32_t share) { return gridDim.x - 1 - share; }

/* Where one lane's sums of an accumulator tile are handed over. */
template <uint32_t kAccTiles>
static __device__ __forceinline__ float4 *trf_packed_handed_over(const trf_packed_handover &handover, uint32_t parcel,
                                                                 uint32_t acc_tile, uint32_t lane) {
    return handover.sums + ((uint64_t)parcel * kAccTiles + acc_tile) * TRF_LANES + lane;
}

/* Says that a warp has written its sums; the warp calls it after that. */
static __device__ __forceinline__ void trf_packed_hand_over(const trf_packed_handover &handover, uint32_t parcel,
                                                            uint32_t warp, uint32_t lane) {
    __syncwarp();
    if (lane == 0)
        trf_publish(handover.flags + parcel * TRF_PACKED_HANDOVER_WARPS + warp, handover.launch_id);
}

/* Waits until the same warp of another block has handed its sums over. */
static __device__ __forceinline__ void trf_packed_take_over(const trf_packed_handover &handover, uint32_t parcel,
                                                            uint32_t warp, uint32_t lane) {
    uint64_t *const flag = handover.flags + parcel * TRF_PACKED_HANDOVER_WARPS + warp;
    trf_await(flag, handover.launch_id);
    __syncwarp();
    if (lane == 0)
        *flag = 0;
}

/* The last share that has k blocks of a tile. */
static __device__ __forceinline__ uint32_t trf_packed_last_share(const trf_stream_k &stream_k, uint32_t tile) {
    return trf_stream_k_share_of(&stream_k, (tile + 1) * stream_k.k_blocks - 1);
}

#endif

#endif
