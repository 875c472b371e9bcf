/* SPDX-License-Identifier: Apache-2.0 */
/* How wgmma kernels (trf_packed_wgmma.cuh) make fragments of the weights in a stage, for each kind of packed layer. A
 * type of these is made for each stint, and has what a warp needs to know of the exception line that it is in:
 *
 *   kSlabBytes                     bytes of a packed slab
 *   words                          what a lane loads of a packed slab, by load(); at: address of the slab
 *   take_line(word, slab, lane)    begins a line; word: the lane's word of it, since the line is soon overwritten
 *   begin_stage(packed_tile)       begins a stage, whose first packed tile this is
 *   form_slab(a, words)            the fragments of both column steps, without exceptions
 *   patch(a, view, ...)            puts exceptions into the fragments of a stage
 *
 * slab: the warp's, in its band. All lanes call each function. */
#ifndef TRF_PACKED_WGMMA_WEIGHTS_CUH
#define TRF_PACKED_WGMMA_WEIGHTS_CUH

#include "trf_packed8_constants.cuh"
#include "trf_packed_product.cuh"
#include "trf_packed_wgmma_sizes.h"

/* What the exception line that a warp is in says about the warp's slab. Each lane has one record of the line as its
 * own, already decoded. A packed tile for which these records are not enough is *crowded*: it is stored, or a lane has
 * a second record in it. kStores: whether lines have stored tiles. */
template <bool kStores> struct trf_packed_wgmma_exceptions {
    trf_packed_product_line line;
    uint32_t excepted, crowded; /* masks of the line's packed tiles: those with exceptions; those that are crowded */
    uint32_t at; /* place of the lane's record: 8 * its packed tile + its register out of 8; 256 if there is none */
    uint32_t keep, bits; /* what that register keeps, and the bits that it gets */

    /* Finds what `line` says. All lanes call it. is_record: whether the lane's word of the line is a record of the
     * slab. It has no branches except the loop's: after a branch in which lanes diverge, the compiler takes nothing in
     * the loop to be the same in all lanes, and moves descriptors to uniform registers for each wgmma. */
    __device__ __forceinline__ void find(bool is_record, uint32_t lane) {
        const uint32_t word = line.word;
        uint32_t left = __ballot_sync(0xFFFFFFFF, is_record), own = 0, second = 0;
        at = 256;
#pragma unroll 1
        while (left) {
            const uint32_t record = __shfl_sync(0xFFFFFFFF, word, __ffs((int)left) - 1);
            left &= left - 1;
            const bool is_own = trf_packed_record_lane(record) == lane, is_first = is_own & (at == 256);
            second |= (is_own & !is_first) ? 1u << trf_packed_record_tile(record) : 0;
            own = is_first ? record : own;
            at = is_first ? 8 * trf_packed_record_tile(record) + 4 * trf_packed_record_step(record) +
                                trf_packed_record_reg(record)
                          : at;
        }
        keep = 0xFFFF0000u >> 16 * trf_packed_record_half(own);
        bits = trf_packed_record_bits(own) << 16 * trf_packed_record_half(own);
        if constexpr (kStores)
            second |= lane == TRF_PACKED_STORED_WORD ? word : 0;
        excepted = __reduce_or_sync(0xFFFFFFFF, second | (is_record ? 1u << trf_packed_record_tile(word) : 0));
        crowded = __reduce_or_sync(0xFFFFFFFF, second);
    }

    /* Replaces weights of a stage's formed fragments by exceptions. All lanes call it. packed_tile: the stage's first
     * one. */
    __device__ __forceinline__ void patch(uint32_t (&a)[TRF_PACKED_WGMMA_STAGE_PACKED_TILES][2][4],
                                          const trf_packed_view &view, uint32_t packed_tile, uint32_t slab,
                                          uint32_t lane) const {
        const uint32_t here = excepted >> packed_tile % TRF_PACKED_LINE_TILES;
        if ((here & ((1u << TRF_PACKED_WGMMA_STAGE_PACKED_TILES) - 1)) == 0)
            return;
#pragma unroll
        for (uint32_t t = 0; t < TRF_PACKED_WGMMA_STAGE_PACKED_TILES; t++)
            if (here >> t & 1)
                patch_packed_tile(a[t], view, packed_tile + t, slab, lane);
    }
    __device__ __forceinline__ void patch_packed_tile(uint32_t (&a)[2][4], const trf_packed_view &view,
                                                      uint32_t packed_tile, uint32_t slab, uint32_t lane) const {
        const uint32_t reg = at - 8 * (packed_tile % TRF_PACKED_LINE_TILES);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) /* each register is compared by itself, so that none is indexed at run time */
            a[i / 4][i % 4] = reg == i ? trf_packed_and_or(a[i / 4][i % 4], keep, bits) : a[i / 4][i % 4];
        if ((crowded >> packed_tile % TRF_PACKED_LINE_TILES & 1) == 0)
            return;
        line.patch(a, packed_tile, slab, lane);
        if constexpr (kStores)
            if (line.is_stored(packed_tile))
                line.load_stored(a, view, packed_tile, slab, lane);
    }
};

/* Packed BF16 layers. Former: trf_packed_former or trf_packed_either_former. */
template <class Former> struct trf_packed_wgmma_bf16 {
    static constexpr uint32_t kSlabBytes = TRF_PACKED_SLAB_BYTES;
    typedef trf_packed_product_words words;
    Former former;
    trf_packed_wgmma_exceptions<true> exceptions;

    __device__ __forceinline__ explicit trf_packed_wgmma_bf16(const trf_packed_view &view) : former(Former::of(view)) {}

    static __device__ __forceinline__ words load(uint32_t at, uint32_t lane) {
        return {trf_lds128(at + 16 * lane), trf_lds64(at + TRF_PACKED_RAW_BYTES + 8 * lane)};
    }
    __device__ __forceinline__ void take_line(uint32_t word, uint32_t slab, uint32_t lane) {
        exceptions.line.take(word);
        const bool is_record = (lane < exceptions.line.records) & (trf_packed_record_slab(word) == slab);
        exceptions.find(is_record, lane);
    }
    __device__ __forceinline__ void begin_stage(uint32_t) {}
    __device__ __forceinline__ void form_slab(uint32_t (&a)[2][4], const words &from) const {
        former.form_slab(a, from);
    }
    __device__ __forceinline__ void patch(uint32_t (&a)[TRF_PACKED_WGMMA_STAGE_PACKED_TILES][2][4],
                                          const trf_packed_view &view, uint32_t packed_tile, uint32_t slab,
                                          uint32_t lane) const {
        exceptions.patch(a, view, packed_tile, slab, lane);
    }
};

/* Packed FP8 layers (trf_packed8.h). kHasLow: the second constant is used; kHasRecords: records are looked for. Either
 * may be done without if the layer's flags say so. kInTurns: TRF_PACKED8_IN_TURNS. */
template <bool kHasLow, bool kHasRecords, bool kInTurns = false>
struct trf_packed_wgmma_fp8 : trf_packed8_constants<kHasLow, kInTurns> {
    static constexpr uint32_t kMaxRecords = kInTurns ? TRF_PACKED8_MAX_RECORDS_IN_TURNS : TRF_PACKED8_MAX_RECORDS;
    uint32_t line_word; /* lane l has word l; the constants are the stage's */
    trf_packed_wgmma_exceptions<false> exceptions;

    __device__ __forceinline__ explicit trf_packed_wgmma_fp8(const trf_packed_view &) {}

    __device__ __forceinline__ void take_line(uint32_t word, uint32_t slab, uint32_t lane) {
        line_word = word;
        if constexpr (kHasRecords) {
            const uint32_t mask = __shfl_sync(0xFFFFFFFF, word, TRF_PACKED8_MASK_WORD);
            const bool is_record = (trf_packed8_is_record(word, lane, kMaxRecords) != 0) &
                                   (trf_packed8_has_records(mask, trf_packed_record_tile(word)) != 0);
            exceptions.line.word = word;
            exceptions.line.records = trf_packed_count_bits(__ballot_sync(0xFFFFFFFF, is_record));
            exceptions.line.stored = 0;
            exceptions.find(is_record & (trf_packed_record_slab(word) == slab), lane);
        }
    }
    __device__ __forceinline__ void begin_stage(uint32_t packed_tile) {
        this->take(__shfl_sync(0xFFFFFFFF, line_word, trf_packed8_pair_word(packed_tile)));
        if constexpr (kInTurns)
            this->take_second(__shfl_sync(0xFFFFFFFF, line_word, trf_packed8_second_pair_word(packed_tile)));
    }
    __device__ __forceinline__ void patch(uint32_t (&a)[TRF_PACKED_WGMMA_STAGE_PACKED_TILES][2][4],
                                          const trf_packed_view &view, uint32_t packed_tile, uint32_t slab,
                                          uint32_t lane) const {
        if constexpr (kHasRecords)
            exceptions.patch(a, view, packed_tile, slab, lane);
    }
};

#endif
