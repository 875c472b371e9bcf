/* SPDX-License-Identifier: Apache-2.0 */
/* How sums of packed experts (trf_moe_product.cuh) get to memory. */
#ifndef TRF_MOE_SUMS_CUH
#define TRF_MOE_SUMS_CUH

#include "trf_moe_tables.cuh"
#include "trf_packed_wgmma_sums.cuh"

#if TRF_HAS_SM_90A

/* ---- sums that blocks share ----
 *
 * Where few tokens make few sums, each pair of sums is handed over with a *seal*: a number that only this launch and
 * these two sums give. Whoever waits for it reads both until they fit. So no fence is needed, which takes a
 * microsecond, nor a flag after it, and it does not matter in which order the words get there. Like flags
 * (trf_packed_handover.cuh), seals are broken by whoever has read them, since the next run of a CUDA graph has the same
 * launch's number. */

static __device__ __forceinline__ uint64_t trf_moe_seal(uint64_t launch_id, uint64_t sums) {
    return launch_id ^ sums * 0x9E3779B97F4A7C15u;
}

/* Where the pairs of a lane's accumulator tile are handed over: two, TRF_LANES apart. */
template <class Class>
static __device__ __forceinline__ ulonglong2 *trf_moe_sealed(const trf_packed_handover &handover, uint32_t parcel,
                                                             const trf_packed_wgmma_warp &warp, uint32_t t) {
    static_assert(2 * Class::kWarps * Class::kXTiles <= Class::kAccTiles, "they fit the parcel, with their seals");
    return (ulonglong2 *)(handover.sums + (uint64_t)parcel * Class::kAccTiles * TRF_LANES) +
           (warp.warp * Class::kXTiles + t) * (2 * TRF_LANES) + warp.lane;
}

static __device__ __forceinline__ uint64_t trf_moe_pair(float a, float b) {
    return (uint64_t)trf_f32_bits(b) << 32 | trf_f32_bits(a);
}

template <class Class>
static __device__ __forceinline__ void trf_moe_hand_over_sealed(const trf_packed_handover &handover, uint32_t parcel,
                                                                const trf_packed_wgmma_warp &warp,
                                                                const float (&sums)[Class::kXRows / 2]) {
#pragma unroll
    for (uint32_t t = 0; t < Class::kXTiles; t++)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint64_t pair = trf_moe_pair(sums[4 * t + 2 * i], sums[4 * t + 2 * i + 1]);
            trf_store_relaxed(trf_moe_sealed<Class>(handover, parcel, warp, t) + i * TRF_LANES,
                              make_ulonglong2(pair, trf_moe_seal(handover.launch_id, pair)));
        }
}

/* Adds the sums of a parcel to those of the warp, once they are there. */
template <class Class>
static __device__ __forceinline__ void trf_moe_add_sealed(const trf_packed_handover &handover, uint32_t parcel,
                                                          const trf_packed_wgmma_warp &warp,
                                                          float (&sums)[Class::kXRows / 2]) {
    ulonglong2 v[2 * Class::kXTiles];
    bool is_complete;
    do {
        is_complete = true;
#pragma unroll
        for (uint32_t i = 0; i < 2 * Class::kXTiles; i++) {
            v[i] = trf_load_relaxed(trf_moe_sealed<Class>(handover, parcel, warp, i / 2) + i % 2 * TRF_LANES);
            is_complete = is_complete && v[i].y == trf_moe_seal(handover.launch_id, v[i].x);
        }
        /* All lanes go on together: after a loop in which they do not, the compiler takes nothing to be the same in all
         * lanes. */
    } while (!__all_sync(0xFFFFFFFF, is_complete));
#pragma unroll
    for (uint32_t i = 0; i < 2 * Class::kXTiles; i++) {
        trf_store_relaxed(trf_moe_sealed<Class>(handover, parcel, warp, i / 2) + i % 2 * TRF_LANES,
                          make_ulonglong2(0, 0));
        sums[2 * i] += trf_f32_from_bits((uint32_t)v[i].x);
        sums[2 * i + 1] += trf_f32_from_bits((uint32_t)(v[i].x >> 32));
    }
}

/* If blocks share the tile: a warp that does not have its first k blocks hands its sums over, and the warp that has
 * them adds those of the others. @return whether the sums are complete. */
template <class Class>
static __device__ __forceinline__ bool
trf_moe_complete_sums(const trf_moe_args &a, const trf_moe_told_stint &stint, const trf_moe_share &share,
                      const trf_packed_wgmma_warp &warp, float (&sums)[Class::kXRows / 2]) {
    if (stint.end - stint.begin == a.k_blocks)
        return true;
    if (stint.begin > 0) {
        const uint32_t own = trf_packed_share_of_block(blockIdx.x);
        if constexpr (Class::kSeals)
            trf_moe_hand_over_sealed<Class>(a.handover, own, warp, sums);
        else
            trf_packed_wgmma_hand_sums_over<Class>(a.handover, own, warp, sums);
        return false;
    }
    uint32_t other, last;
    trf_stream_k_sharers(&share.shared, stint.shared_tile, &other, &last);
    other = trf_moe_uniform(other) + 1; /* the first one is this block's own */
    last = trf_moe_uniform(last);
#pragma unroll 1
    for (; other <= last; other++) {
        if constexpr (Class::kSeals) {
            trf_moe_add_sealed<Class>(a.handover, other, warp, sums);
        } else {
            trf_packed_take_over(a.handover, other, warp.warp, warp.lane);
            trf_packed_wgmma_add_parcel<Class>(a.handover, other, warp, sums);
        }
    }
    return true;
}

/* ---- to memory ---- */

/* What is added to the sums of the lane's rows lane / 4 and lane / 4 + 8 of a slab. */
static __device__ __forceinline__ float2 trf_moe_bias_of(const trf_moe_args &a, uint32_t expert, uint32_t row) {
    if (!a.bias)
        return make_float2(-0.0f, -0.0f); /* changes no sum, not even -0 */
    const uint16_t *const bias = a.bias + (uint64_t)expert * a.shape.rows;
    return make_float2(row < a.shape.rows ? trf_bf16_to_f32(bias[row]) : 0.0f,
                       row + 8 < a.shape.rows ? trf_bf16_to_f32(bias[row + 8]) : 0.0f);
}

/* The activations that gates have here: v / (1 + exp(-t)), where t is v for SiLU, and for GELU by tanh a polynomial of
 * v. They take some ten instructions; their error, 2^-20 of the value, is far below what BF16 rounds away. NaN stays
 * NaN; an infinite gate has the activation that it has in trf_activation.h. */
static __device__ __forceinline__ float trf_moe_activate(bool is_tanh, float gate) {
    const float k1 = is_tanh ? 0x1.988454p+0f : 1.0f, k3 = is_tanh ? 0x1.2444f2p-4f : 0.0f;
    const float t = gate * fmaf(k3, fminf(gate * gate, 1e30f), k1);
#ifdef __CUDA_ARCH__
    return __fdividef(gate, 1.0f + __expf(-t));
#else
    return gate / (1.0f + expf(-t));
#endif
}

/* activation(gate) * up of an accumulator tile, two values in BF16. */
static __device__ __forceinline__ uint32_t trf_moe_gate(bool is_tanh, float4 v, float factor, float2 bias) {
    return trf_round_two(TRF_DTYPE_BF16,
                         trf_moe_activate(is_tanh, fmaf(v.x, factor, bias.x)) * fmaf(v.z, factor, bias.y),
                         trf_moe_activate(is_tanh, fmaf(v.y, factor, bias.x)) * fmaf(v.w, factor, bias.y));
}

/* Two neighbouring accumulator tiles in 16 bits, t and t + 1, as stmatrix takes them. */
template <uint32_t kTokens>
static __device__ __forceinline__ uint4 trf_moe_round_pair(const trf_moe_args &a, float factor, float2 bias,
                                                           const float (&sums)[kTokens / 2], uint32_t t) {
    uint32_t values[4];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const float4 v = trf_packed_wgmma_acc_tile(sums, (t + i) % (kTokens / 8));
        values[2 * i] = trf_round_two(a.y_dtype, fmaf(v.x, factor, bias.x), fmaf(v.y, factor, bias.x));
        values[2 * i + 1] = trf_round_two(a.y_dtype, fmaf(v.z, factor, bias.y), fmaf(v.w, factor, bias.y));
    }
    return make_uint4(values[0], values[1], values[2], values[3]);
}

/* Writes activation(gate) * up of a warp's slab: 8 values for each of 32 slots at a time. at: the warp's 512 bytes. */
template <uint32_t kTokens>
static __device__ __forceinline__ void trf_moe_write_gated(const trf_moe_args &a, const trf_moe_told_stint &stint,
                                                           uint32_t row, uint32_t at, float factor, float2 bias,
                                                           uint32_t lane, const float (&sums)[kTokens / 2]) {
    constexpr uint32_t kXTiles = kTokens / 8;
    const bool is_tanh = a.activation == TRF_ACTIVATION_GELU_TANH;
#pragma unroll
    for (uint32_t first = 0; first < kXTiles; first += 4) {
        uint32_t values[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            values[i] = 0;
            if (first + i < kXTiles)
                values[i] = trf_moe_gate(is_tanh, trf_packed_wgmma_acc_tile(sums, (first + i) % kXTiles), factor, bias);
        }
        trf_stmatrix4_transposed(at + 16 * lane, make_uint4(values[0], values[1], values[2], values[3]));
        __syncwarp();
        const uint4 octet = trf_lds128_of_others(at + 16 * lane);
        if (8 * first + lane < stint.count && row < a.shape.rows)
            *(uint4 *)((uint16_t *)a.y + (stint.first + 8 * first + lane) * a.y_stride + row / 2) = octet;
        __syncwarp();
    }
}

/* Writes the sums of a warp's slab in 16 bits: 16 rows of 16 slots at a time, a lane 8 rows of a slot. In every other
 * four slots neighbours of 16 bytes are swapped in shared memory, to avoid bank conflicts. */
template <uint32_t kTokens>
static __device__ __forceinline__ void trf_moe_write_octets(const trf_moe_args &a, const trf_moe_told_stint &stint,
                                                            uint32_t row, uint32_t at, float factor, float2 bias,
                                                            uint32_t lane, const float (&sums)[kTokens / 2]) {
    constexpr uint32_t kXTiles = kTokens / 8;
    const uint32_t to_slot = lane % 8 + lane / 16 * 8, to = at + 32 * to_slot + 16 * (lane / 8 % 2 ^ (to_slot / 4 & 1)),
                   from_slot = lane / 2, from = at + 32 * from_slot + 16 * (lane % 2 ^ (from_slot / 4 & 1));
#pragma unroll
    for (uint32_t first = 0; first < kXTiles; first += 2) {
        trf_stmatrix4_transposed(to, trf_moe_round_pair<kTokens>(a, factor, bias, sums, first));
        __syncwarp();
        const uint4 octet = trf_lds128_of_others(from);
        const uint32_t slot = 8 * first + from_slot, octet_row = row + 8 * (lane % 2);
        if (slot < stint.count && octet_row < a.shape.rows)
            *(uint4 *)((uint16_t *)a.y + (stint.first + slot) * a.y_stride + octet_row) = octet;
        __syncwarp();
    }
}

/* Writes the sums of a warp's slab one by one, by way of shared memory. 16 lanes have neighbouring rows. */
template <uint32_t kTokens>
static __device__ __forceinline__ void
trf_moe_write_elements(const trf_moe_args &a, const trf_moe_told_stint &stint, uint32_t first_row, uint32_t at,
                       float factor, float2 bias, uint32_t lane, const float (&sums)[kTokens / 2]) {
    const uint32_t in_slab = lane % 16, row = first_row + in_slab;
    const float upper = __shfl_sync(0xFFFFFFFF, bias.x, in_slab % 8 * 4),
                lower = __shfl_sync(0xFFFFFFFF, bias.y, in_slab % 8 * 4);
#pragma unroll 1
    for (uint32_t t = 0; 8 * t < stint.count; t++) {
        trf_packed_wgmma_put_acc_tile<0, kTokens / 8>(sums, t, at + trf_packed_wgmma_acc_tile_at(lane));
        __syncwarp();
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t in_tile = 2 * i + lane / 16, slot = 8 * t + in_tile, holder = in_slab % 8 * 4 + in_tile / 2;
            const float sum =
                trf_lds32f_of_others(at + trf_packed_wgmma_acc_tile_at(holder) + 4 * (in_slab / 8 * 2 + in_tile % 2));
            if (slot < stint.count && row < a.shape.rows)
                trf_write_rounded(a.y, a.y_dtype, (stint.first + slot) * a.y_stride + row,
                                  fmaf(sum, factor, in_slab < 8 ? upper : lower));
        }
        __syncwarp();
    }
}

/* ---- to memory by way of a band's place in a stage ----
 *
 * Where tiles have many slots, the four warps of a band put what they write of some slots together in the stage whose
 * products were the last ones, so that whole sectors get to memory: 64 bytes of a slot if gated, else 128. Pieces of 16
 * bytes are placed by XOR, to avoid bank conflicts. All four warps call these functions, before they give the stage
 * back. band_at: where the band's weights lie in the stage. */

/* What a piece's number is XORed with, where slots have kPieces of them: so many slots as 128 bytes hold have the same
 * number. */
template <uint32_t kPieces> static __device__ __forceinline__ uint32_t trf_moe_swizzle(uint32_t slot) {
    return slot / (8 / kPieces) % kPieces;
}

/* Writes the pieces of a band's slots that its warps have put together: kPieces of each slot, of kSlots slots from
 * first_slot of the stint on, [slot][piece ^ swizzle]. A slot has rows [first_row, first_row + 8 * kPieces) of `rows`
 * in y. */
template <uint32_t kPieces, uint32_t kSlots>
static __device__ __forceinline__ void trf_moe_write_pieces(const trf_moe_args &a, const trf_moe_told_stint &stint,
                                                            const trf_packed_wgmma_warp &warp, uint32_t band_at,
                                                            uint32_t first_slot, uint32_t first_row, uint32_t rows) {
    constexpr uint32_t kAtOnce = TRF_LANES / kPieces; /* slots of a warp */
    const uint32_t piece = warp.lane % kPieces, row = first_row + 8 * piece;
#pragma unroll
    for (uint32_t i = 0; i < kSlots; i += kAtOnce * TRF_PACKED_SLABS) {
        const uint32_t in = i + kAtOnce * warp.slab() + warp.lane / kPieces, slot = first_slot + in;
        const uint4 octet =
            trf_lds128_of_others(band_at + 16 * kPieces * in + 16 * (piece ^ trf_moe_swizzle<kPieces>(in)));
        if (slot < stint.count && row < rows)
            *(uint4 *)((uint16_t *)a.y + (stint.first + slot) * a.y_stride + row) = octet;
    }
}

/* Writes activation(gate) * up of a band. */
template <class Class>
static __device__ __forceinline__ void trf_moe_write_gated_band(const trf_moe_args &a, const trf_moe_told_stint &stint,
                                                                const trf_packed_wgmma_warp &warp, uint32_t band_at,
                                                                float2 bias, const float (&sums)[Class::kXRows / 2]) {
    constexpr uint32_t kXTiles = Class::kXTiles, kXTilesAtOnce = 8, kPieces = TRF_PACKED_SLABS;
    static_assert(kXTilesAtOnce * 8 * 16 * kPieces <= Class::kBandBytes, "they fit a band's place");
    static_assert(kXTiles % kXTilesAtOnce == 0, "whole turns");
    const bool is_tanh = a.activation == TRF_ACTIVATION_GELU_TANH;
    const uint32_t to = band_at + 16 * kPieces * warp.lane + 16 * (warp.slab() ^ trf_moe_swizzle<kPieces>(warp.lane)),
                   first_row = (stint.row_tile * TRF_MOE_ROWS + warp.band() * TRF_PACKED_TILE_ROWS) / 2;
#pragma unroll
    for (uint32_t first = 0; first < kXTiles; first += kXTilesAtOnce) {
        trf_named_barrier_sync(TRF_PACKED_BAND_BARRIER_ID + warp.band(), TRF_PACKED_SLABS); /* all have read it */
#pragma unroll
        for (uint32_t t = 0; t < kXTilesAtOnce; t += 4) {
            uint32_t values[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                values[i] = trf_moe_gate(is_tanh, trf_packed_wgmma_acc_tile(sums, first + t + i), stint.factor, bias);
            trf_stmatrix4_transposed(to + 16 * kPieces * 8 * t, make_uint4(values[0], values[1], values[2], values[3]));
        }
        trf_named_barrier_sync(TRF_PACKED_BAND_BARRIER_ID + warp.band(), TRF_PACKED_SLABS);
        trf_moe_write_pieces<kPieces, 8 * kXTilesAtOnce>(a, stint, warp, band_at, 8 * first, first_row,
                                                         a.shape.rows / 2);
    }
}

/* Writes the sums of a band in 16 bits. */
template <class Class>
static __device__ __forceinline__ void trf_moe_write_octets_band(const trf_moe_args &a, const trf_moe_told_stint &stint,
                                                                 const trf_packed_wgmma_warp &warp, uint32_t band_at,
                                                                 float2 bias, const float (&sums)[Class::kXRows / 2]) {
    constexpr uint32_t kXTiles = Class::kXTiles, kXTilesAtOnce = 4, kPieces = 2 * TRF_PACKED_SLABS;
    static_assert(kXTilesAtOnce * 8 * 16 * kPieces <= Class::kBandBytes, "they fit a band's place");
    static_assert(kXTiles % kXTilesAtOnce == 0, "whole turns");
    const uint32_t to_slot = warp.lane % 8 + warp.lane / 16 * 8,
                   to = band_at + 16 * kPieces * to_slot +
                        16 * ((2 * warp.slab() + warp.lane / 8 % 2) ^ trf_moe_swizzle<kPieces>(to_slot)),
                   first_row = stint.row_tile * TRF_MOE_ROWS + warp.band() * TRF_PACKED_TILE_ROWS;
#pragma unroll
    for (uint32_t first = 0; first < kXTiles; first += kXTilesAtOnce) {
        trf_named_barrier_sync(TRF_PACKED_BAND_BARRIER_ID + warp.band(), TRF_PACKED_SLABS); /* all have read it */
#pragma unroll
        for (uint32_t t = 0; t < kXTilesAtOnce; t += 2)
            trf_stmatrix4_transposed(to + 16 * kPieces * 8 * t,
                                     trf_moe_round_pair<Class::kXRows>(a, stint.factor, bias, sums, first + t));
        trf_named_barrier_sync(TRF_PACKED_BAND_BARRIER_ID + warp.band(), TRF_PACKED_SLABS);
        trf_moe_write_pieces<kPieces, 8 * kXTilesAtOnce>(a, stint, warp, band_at, 8 * first, first_row, a.shape.rows);
    }
}

/* Writes a warp's complete sums. band_at: as above; for a kernel that gathers x it does not count. */
template <class Class>
static __device__ __forceinline__ void trf_moe_write(const trf_moe_args &a, const trf_moe_told_stint &stint,
                                                     const trf_packed_wgmma_warp &warp, uint32_t at, uint32_t band_at,
                                                     const float (&sums)[Class::kXRows / 2]) {
    constexpr uint32_t kTokens = Class::kXRows;
    const uint32_t row = stint.row_tile * TRF_MOE_ROWS + warp.warp * TRF_PACKED_SLAB_ROWS;
    const float2 bias = trf_moe_bias_of(a, stint.expert, row + warp.lane / 4);
    if (a.result == TRF_MOE_ELEMENTS) {
        trf_moe_write_elements<kTokens>(a, stint, row, at, stint.factor, bias, warp.lane, sums);
    } else if constexpr (Class::kGathersX) {
        if (a.result == TRF_MOE_GATED)
            trf_moe_write_gated<kTokens>(a, stint, row, at, stint.factor, bias, warp.lane, sums);
        else
            trf_moe_write_octets<kTokens>(a, stint, row, at, stint.factor, bias, warp.lane, sums);
    } else {
        if (a.result == TRF_MOE_GATED)
            trf_moe_write_gated_band<Class>(a, stint, warp, band_at, bias, sums);
        else
            trf_moe_write_octets_band<Class>(a, stint, warp, band_at, bias, sums);
        trf_fence_async_proxy(); /* orders this before the next copy to that place */
        __syncwarp();
    }
}

#endif

#endif
