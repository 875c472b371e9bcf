/* SPDX-License-Identifier: Apache-2.0 */
/* How sums of the wgmma kernels (trf_packed_wgmma.cuh) get to y: directly, by way of a cluster's other blocks, or by
 * way of the workspace. */
#ifndef TRF_PACKED_WGMMA_SUMS_CUH
#define TRF_PACKED_WGMMA_SUMS_CUH

#include "trf_packed_wgmma_share.cuh"

#if TRF_HAS_SM_90A

/* ---- to y ---- */

/* What a warp needs to write its sums of a packed slab by an x block to y: where these begin in y, and the factors. */
struct trf_packed_wgmma_y_writer {
    uint32_t at;          /* the warp's 512 bytes of shared memory */
    uint32_t row, n;      /* the first row of W and the first row of x */
    float factor[2];      /* of the lane's rows lane / 4 and lane / 4 + 8 */
    bool writes_16_bytes; /* y is bare, and written 16 bytes of a row at a time */
};

/* All lanes call it. row: the slab's first row, which is in one of the layer's bands, but may be beyond its last row.
 * The warps of a band agree on writes_16_bytes. */
static __device__ __forceinline__ trf_packed_wgmma_y_writer trf_packed_wgmma_y_writer_of(const trf_packed_wgmma_args &a,
                                                                                         uint32_t row, uint32_t n,
                                                                                         uint32_t at, uint32_t lane) {
    trf_packed_wgmma_y_writer writer = {};
    writer.at = at;
    writer.row = row;
    writer.n = n;
    const uint32_t band_row = row - row % TRF_PACKED_TILE_ROWS;
    bool is_exact = true; /* whether all factors of the band are normal F32 */
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        float factor;
        is_exact = trf_packed_get_row_factor(a.view, band_row + lane + TRF_LANES * i, &factor) && is_exact;
        trf_packed_get_row_factor(a.view, row + lane / 4 + 8 * i, &writer.factor[i]);
    }
    writer.writes_16_bytes = __ballot_sync(0xFFFFFFFF, is_exact) == 0xFFFFFFFF && a.writes_16_bytes;
    return writer;
}

/* Stores the scaled sums of two neighbouring x tiles to shared memory, transposed. to: lane l gives the address for the
 * 8 rows of W number lane / 8 % 2, and for row lane % 8 + lane / 16 * 8 of x. */
static __device__ __forceinline__ void trf_packed_wgmma_put_x_tile_pair(const trf_packed_wgmma_args &a,
                                                                        const trf_packed_wgmma_y_writer &writer,
                                                                        uint32_t to, float4 v0, float4 v1) {
    const uint32_t dtype = a.epilogue.y_dtype;
    const float up = writer.factor[0], low = writer.factor[1];
    trf_stmatrix4_transposed(
        to, make_uint4(trf_round_two(dtype, v0.x * up, v0.y * up), trf_round_two(dtype, v0.z * low, v0.w * low),
                       trf_round_two(dtype, v1.x * up, v1.y * up), trf_round_two(dtype, v1.z * low, v1.w * low)));
}

/* Writes 16 bytes of a row of a bare y. */
static __device__ __forceinline__ void trf_packed_wgmma_write_16_bytes(const trf_packed_wgmma_args &a, uint32_t n,
                                                                       uint32_t row, uint4 values) {
    if (n < a.m && row < a.view.rows)
        *(uint4 *)((uint16_t *)a.epilogue.y + n * a.epilogue.y_stride + row) = values;
}

/* Writes the sums of two neighbouring x tiles, t and t + 1, to a bare y. A lane writes 8 rows of W, and two lanes write
 * a whole sector of y. In every other four rows of x, neighbours of 16 bytes are swapped, to avoid bank conflicts. */
static __device__ __forceinline__ void trf_packed_wgmma_write_bare(const trf_packed_wgmma_args &a,
                                                                   const trf_packed_wgmma_y_writer &writer, uint32_t t,
                                                                   float4 v0, float4 v1, uint32_t lane) {
    const uint32_t to_n = lane % 8 + lane / 16 * 8, to_half = lane / 8 % 2;
    trf_packed_wgmma_put_x_tile_pair(a, writer, writer.at + 32 * to_n + 16 * (to_half ^ (to_n / 4 & 1)), v0, v1);
    __syncwarp();
    const uint32_t from_n = lane / 2, half = lane % 2;
    trf_packed_wgmma_write_16_bytes(a, writer.n + 8 * t + from_n, writer.row + 8 * half,
                                    trf_lds128_of_others(writer.at + 32 * from_n + 16 * (half ^ (from_n / 4 & 1))));
    __syncwarp();
}

/* Where a lane's sums of an accumulator tile lie in the warp's 512 bytes. Places are swapped so that neither storing
 * sums there nor reading them to write y causes bank conflicts. */
static __device__ __forceinline__ uint32_t trf_packed_wgmma_acc_tile_at(uint32_t of_lane) {
    return 16 * (of_lane ^ of_lane / 8);
}

/* Writes the accumulator tile of x tile t, which is in shared memory, to any y. 16 lanes have neighbouring rows, which
 * are whole sectors. All lanes call it, in turns with put_acc_tile. */
static __device__ __forceinline__ void trf_packed_wgmma_write_acc_tile(const trf_packed_wgmma_args &a,
                                                                       const trf_packed_wgmma_y_writer &writer,
                                                                       uint32_t t, uint32_t lane) {
    const uint32_t in_slab = lane % 16, row = writer.row + in_slab;
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t in_tile = 2 * i + lane / 16, n = writer.n + 8 * t + in_tile,
                       holder = in_slab % 8 * 4 + in_tile / 2;
        const float sum = trf_lds32f_of_others(writer.at + trf_packed_wgmma_acc_tile_at(holder) +
                                               4 * (in_slab / 8 * 2 + in_tile % 2));
        if (n < a.m && row < a.view.rows)
            trf_packed_write_y(a.view, a.epilogue, n, row, sum);
    }
    __syncwarp();
}

/* Returns a lane's sums of an accumulator tile. */
template <uint32_t kSums>
static __device__ __forceinline__ float4 trf_packed_wgmma_acc_tile(const float (&sums)[kSums], uint32_t t) {
    return make_float4(sums[4 * t], sums[4 * t + 1], sums[4 * t + 2], sums[4 * t + 3]);
}

/* Stores the sums of x tile t, which is one of the kCount from kFirst on, where write_acc_tile finds them. Registers
 * cannot be indexed at run time, so a few branches select them; calling write_acc_tile once for each x tile would take
 * 10,000 instructions. */
template <uint32_t kFirst, uint32_t kCount, uint32_t kSums>
static __device__ __forceinline__ void trf_packed_wgmma_put_acc_tile(const float (&sums)[kSums], uint32_t t,
                                                                     uint32_t at) {
    if constexpr (kCount == 1)
        trf_sts128f(at, trf_packed_wgmma_acc_tile(sums, kFirst));
    else if (t < kFirst + kCount / 2)
        trf_packed_wgmma_put_acc_tile<kFirst, kCount / 2>(sums, t, at);
    else
        trf_packed_wgmma_put_acc_tile<kFirst + kCount / 2, kCount - kCount / 2>(sums, t, at);
}

/* Writes a band's sums to a bare y, in whole cache lines of 128 bytes: 8 lanes write a row of x. The sums go through
 * the band's place in the stage whose products were the last ones (band_at), 48 rows of x at a time, or 32 with FP8.
 * Pieces of 16 bytes are placed by XOR with row % 8 there, to avoid bank conflicts. All warps of the warpgroup call it,
 * before they give the stage back. It takes 2,900 clocks for a tile of 256 rows of x while all multiprocessors write;
 * by sectors and 16 rows at a time, as in write_bare, it takes 4,400 (H100). */
template <class Config>
static __device__ __forceinline__ void
trf_packed_wgmma_write_band(const trf_packed_wgmma_args &a, const trf_packed_wgmma_warp &warp,
                            const trf_packed_wgmma_y_writer &writer, const float (&sums)[Config::kXRows / 2],
                            uint32_t band_at) {
    constexpr uint32_t kXTilesAtOnce = Config::kYRows / 8;
    static_assert(kXTilesAtOnce % 2 == 0, "x tiles go in pairs");
    const uint32_t lane = warp.lane, slab = warp.slab(), octet = 2 * slab + lane / 8 % 2;
    const uint32_t to = band_at + 128 * (lane % 8 + lane / 16 * 8) + 16 * (octet ^ lane % 8);
    const uint32_t from_n = 4 * slab + lane / 8, row = writer.row - TRF_PACKED_SLAB_ROWS * slab + 8 * (lane % 8);
#pragma unroll
    for (uint32_t first = 0; first < Config::kXTiles; first += kXTilesAtOnce) {
        trf_named_barrier_sync(TRF_PACKED_BAND_BARRIER_ID + warp.band(), 4); /* all have read what was there */
#pragma unroll
        for (uint32_t t = 0; t < kXTilesAtOnce && first + t < Config::kXTiles; t += 2)
            trf_packed_wgmma_put_x_tile_pair(a, writer, to + 1024 * t, trf_packed_wgmma_acc_tile(sums, first + t),
                                             trf_packed_wgmma_acc_tile(sums, first + t + 1));
        trf_named_barrier_sync(TRF_PACKED_BAND_BARRIER_ID + warp.band(), 4);
#pragma unroll
        for (uint32_t t = 0; t < kXTilesAtOnce && first + t < Config::kXTiles; t += 2) {
            const uint32_t n = 8 * t + from_n;
            trf_packed_wgmma_write_16_bytes(a, writer.n + 8 * first + n, row,
                                            trf_lds128_of_others(band_at + 128 * n + 16 * (lane % 8 ^ n % 8)));
        }
    }
    trf_fence_async_proxy(); /* orders this before the next copy to that place */
    __syncwarp();
}

/* Hands a warp's sums over in a parcel. */
template <class Config>
static __device__ __forceinline__ void
trf_packed_wgmma_hand_sums_over(const trf_packed_handover &handover, uint32_t parcel, const trf_packed_wgmma_warp &warp,
                                const float (&sums)[Config::kXRows / 2]) {
    float4 *const to =
        trf_packed_handed_over<Config::kAccTiles>(handover, parcel, warp.warp * Config::kXTiles, warp.lane);
#pragma unroll
    for (uint32_t t = 0; t < Config::kXTiles; t++)
        to[t * TRF_LANES] = trf_packed_wgmma_acc_tile(sums, t);
    trf_packed_hand_over(handover, parcel, warp.warp, warp.lane);
}

/* Adds the sums of a parcel, which has been handed over, to those of the warp. */
template <class Config>
static __device__ __forceinline__ void trf_packed_wgmma_add_parcel(const trf_packed_handover &handover, uint32_t parcel,
                                                                   const trf_packed_wgmma_warp &warp,
                                                                   float (&sums)[Config::kXRows / 2]) {
    const float4 *const from =
        trf_packed_handed_over<Config::kAccTiles>(handover, parcel, warp.warp * Config::kXTiles, warp.lane);
#pragma unroll
    for (uint32_t t = 0; t < Config::kXTiles; t++) {
        const float4 other = trf_ldg128f_of_others(from + t * TRF_LANES);
        sums[4 * t] += other.x;
        sums[4 * t + 1] += other.y;
        sums[4 * t + 2] += other.z;
        sums[4 * t + 3] += other.w;
    }
}

/* For blocks that stay, and a tile that they share: a warp that does not have the tile's first k blocks hands its sums
 * over, and the warp that has them adds the others' sums. @return whether the sums are complete. */
template <class Config>
static __device__ __forceinline__ bool
trf_packed_wgmma_share_sums(const trf_packed_wgmma_args &args, const trf_packed_wgmma_stint &stint,
                            const trf_packed_wgmma_warp &warp, float (&sums)[Config::kXRows / 2]) {
    const uint32_t shared_tile = stint.tile - args.whole_tiles;
    if (stint.begin > 0) {
        const uint32_t parcel = trf_packed_wgmma_parcel_of(args, shared_tile, trf_packed_wgmma_back_share(args));
        trf_packed_wgmma_hand_sums_over<Config>(args.handover, parcel, warp, sums);
        return false;
    }
    uint32_t share, last;
    trf_stream_k_sharers(&args.backs, shared_tile, &share, &last);
    if (args.front_k_blocks == 0)
        share++; /* the first share is this block's own */
#pragma unroll 1
    for (; share <= last; share++) {
        const uint32_t parcel = trf_packed_wgmma_parcel_of(args, shared_tile, share);
        trf_packed_take_over(args.handover, parcel, warp.warp, warp.lane);
        trf_packed_wgmma_add_parcel<Config>(args.handover, parcel, warp, sums);
    }
    return true;
}

/* For blocks that stay: brings a warp's sums of a stint to y, if they are complete. band_at: see
 * trf_packed_wgmma_write_band. */
template <class Config>
static __device__ __forceinline__ void
trf_packed_wgmma_leave_sums(const trf_packed_wgmma_args &args, const trf_packed_wgmma_stint &stint,
                            const trf_packed_wgmma_warp &warp, const trf_packed_wgmma_y_writer &writer,
                            float (&sums)[Config::kXRows / 2], uint32_t band_at) {
    if (stint.end - stint.begin < args.k_blocks && !trf_packed_wgmma_share_sums<Config>(args, stint, warp, sums))
        return;
    if (writer.writes_16_bytes) {
        trf_packed_wgmma_write_band<Config>(args, warp, writer, sums, band_at);
    } else {
#pragma unroll 1
        for (uint32_t t = 0; t < Config::kXTiles; t++) {
            trf_packed_wgmma_put_acc_tile<0, Config::kXTiles>(sums, t,
                                                              writer.at + trf_packed_wgmma_acc_tile_at(warp.lane));
            trf_packed_wgmma_write_acc_tile(args, writer, t, warp.lane);
        }
    }
}

/* ---- clusters: a block finishes every so many-th pair of x tiles, and the others send it their sums of these ---- */

/* The block's number in its cluster. */
static __device__ __forceinline__ uint32_t trf_packed_wgmma_rank(const trf_packed_wgmma_args &a) {
    return trf_rest(blockIdx.x, trf_quotient(blockIdx.x, a.cluster_blocks), a.cluster_blocks);
}

/* How many pairs of x tiles the block of this rank finishes; rank 0 has the most. */
template <class Config>
static __device__ __forceinline__ uint32_t trf_packed_wgmma_x_tile_pairs_of(const trf_packed_wgmma_args &a,
                                                                            uint32_t rank) {
    return trf_quotient(Config::kXTiles / 2 + a.cluster_size - 1 - rank, a.cluster_blocks);
}

/* How many bytes the other blocks send to a warp of this one. */
template <class Config>
static __device__ __forceinline__ uint32_t trf_packed_wgmma_expected_bytes(const trf_packed_wgmma_args &a) {
    return (a.cluster_size - 1) * trf_packed_wgmma_x_tile_pairs_of<Config>(a, trf_packed_wgmma_rank(a)) *
           (2 * TRF_ACC_TILE_BYTES);
}

/* Writes the accumulator tiles of x tiles t and t + 1 to y. */
static __device__ __forceinline__ void trf_packed_wgmma_write_x_tile_pair(const trf_packed_wgmma_args &a,
                                                                          const trf_packed_wgmma_y_writer &writer,
                                                                          uint32_t t, const float4 (&v)[2],
                                                                          uint32_t lane) {
    if (writer.writes_16_bytes)
        return trf_packed_wgmma_write_bare(a, writer, t, v[0], v[1], lane);
#pragma unroll 1 /* writing a y that is not bare takes hundreds of instructions */
    for (uint32_t i = 0; i < 2; i++) {
        trf_sts128f(writer.at + trf_packed_wgmma_acc_tile_at(lane), i ? v[1] : v[0]);
        trf_packed_wgmma_write_acc_tile(a, writer, t + i, lane);
    }
}

/* Sends a warp's sums to the blocks that add them, to where the stages were; then adds the blocks' sums in the order of
 * blocks, and writes them to y. All consumers of the cluster call it. */
template <class Config>
static __device__ __forceinline__ void
trf_packed_wgmma_add_blocks(const trf_packed_wgmma_args &args, const trf_packed_wgmma_warp &warp,
                            const trf_packed_wgmma_y_writer &writer, bool has_band, uint32_t shared,
                            const float (&sums)[Config::kXRows / 2]) {
    const uint32_t cluster_size = args.cluster_size, rank = trf_packed_wgmma_rank(args),
                   most = trf_packed_wgmma_x_tile_pairs_of<Config>(args, 0),
                   barrier = shared + Config::kSumBarriersAt + 8 * warp.warp,
                   at = shared + warp.warp * cluster_size * most * (2 * TRF_ACC_TILE_BYTES) + 16 * warp.lane,
                   block_bytes = most * (2 * TRF_ACC_TILE_BYTES);
    trf_cluster_arrive_relaxed(cluster_size); /* all have read the stages */
    trf_cluster_wait(cluster_size);
    if (!has_band)
        return;
    uint32_t owner = 0, to = at + rank * block_bytes;
#pragma unroll
    for (uint32_t t = 0; t < Config::kXTiles; t += 2) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const float4 v = trf_packed_wgmma_acc_tile(sums, t + i);
            if (owner == rank)
                trf_sts128f(to + i * TRF_ACC_TILE_BYTES, v);
            else
                trf_st_async128f(to + i * TRF_ACC_TILE_BYTES, barrier, owner, v);
        }
        if (++owner == cluster_size) {
            owner = 0;
            to += 2 * TRF_ACC_TILE_BYTES;
        }
    }
    trf_wait_for_predecessor(); /* a block without k blocks has not waited yet */
    const uint32_t x_tile_pairs = trf_packed_wgmma_x_tile_pairs_of<Config>(args, rank);
    trf_mbarrier_wait(barrier, 0);
#pragma unroll 1
    for (uint32_t i = 0; i < x_tile_pairs; i++) {
        const uint32_t from = at + i * (2 * TRF_ACC_TILE_BYTES);
        float4 v[2] = {trf_lds128f_of_others(from), trf_lds128f_of_others(from + TRF_ACC_TILE_BYTES)};
#pragma unroll 3
        for (uint32_t r = 1; r < cluster_size; r++) {
            v[0] = trf_add4(v[0], trf_lds128f_of_others(from + r * block_bytes));
            v[1] = trf_add4(v[1], trf_lds128f_of_others(from + r * block_bytes + TRF_ACC_TILE_BYTES));
        }
        trf_packed_wgmma_write_x_tile_pair(args, writer, 2 * (rank + i * cluster_size), v, warp.lane);
    }
}

#endif

#endif
