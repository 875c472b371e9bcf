/* SPDX-License-Identifier: Apache-2.0 */
/* How bulk kernels (trf_packed_bulk.cuh) make fragments of the weights in a stage, for each kind of packed layer. A
 * type of these has what a warp needs to know of a packed tile's line, and is made for each packed tile:
 *
 *   kSlabBytes                  bytes of a packed slab
 *   words                       what a lane loads of a packed slab, by load(); at: address of the slab
 *   form_slab(a, words)         the fragments of both column steps, without exceptions
 *   patch(a, view, ...)         puts exceptions into the fragments of kSlabs neighbouring slabs, from `slab` on, the
 *                               first one a multiple of kSlabs
 *
 * line_at: shared address of the line. All lanes call each function. */
#ifndef TRF_PACKED_BULK_WEIGHTS_CUH
#define TRF_PACKED_BULK_WEIGHTS_CUH

#include "trf_packed8_constants.cuh"
#include "trf_packed_product.cuh"

/* Packed BF16 layers, all zeroing or all not. */
template <bool kZeroing> struct trf_packed_bulk_bf16 {
    static constexpr uint32_t kSlabBytes = TRF_PACKED_SLAB_BYTES;
    typedef trf_packed_product_words words;
    uint32_t line_word; /* lane l has word l */

    __device__ __forceinline__ trf_packed_bulk_bf16(uint32_t line_at, uint32_t, uint32_t lane)
        : line_word(trf_lds32(line_at + 4 * lane)) {}

    __device__ __forceinline__ words load(uint32_t at, uint32_t lane) const {
        return {trf_lds128(at + 16 * lane), trf_lds64(at + TRF_PACKED_RAW_BYTES + 8 * lane)};
    }

    __device__ __forceinline__ void form_slab(uint32_t (&a)[2][4], const words &from) const {
        trf_packed_form_slab<kZeroing>(a, from);
    }

    template <uint32_t kSlabs>
    __device__ __forceinline__ void patch(uint32_t (&a)[kSlabs][2][4], const trf_packed_view &view,
                                          uint32_t packed_tile, uint32_t slab, uint32_t lane) const {
        if (!trf_packed_has_exceptions<kSlabs>(line_word, packed_tile, slab, lane))
            return;
        trf_packed_product_line line;
        line.take(line_word);
#pragma unroll
        for (uint32_t s = 0; s < kSlabs; s++) {
            line.patch(a[s], packed_tile, slab + s, lane);
            if (line.is_stored(packed_tile))
                line.load_stored(a[s], view, packed_tile, slab + s, lane);
        }
    }
};

/* Packed FP8 layers (trf_packed8.h). kHasLow: the second constant is used; kHasRecords: records are looked for. Either
 * may be done without if the layer's flags say so. */
template <bool kHasLow, bool kHasRecords> struct trf_packed_bulk_fp8 : trf_packed8_constants<kHasLow> {
    uint32_t line_at, mask;

    /* packed_tile: the first one of the warp; all of them have the same constants. */
    __device__ __forceinline__ trf_packed_bulk_fp8(uint32_t line_at_, uint32_t packed_tile, uint32_t)
        : line_at(line_at_), mask(0) {
        this->take(trf_lds32(line_at + 4 * trf_packed8_pair_word(packed_tile)));
        if constexpr (kHasRecords)
            mask = trf_lds32(line_at + 4 * TRF_PACKED8_MASK_WORD);
    }

    /* The mask is the same in all lanes, so that no lane has to ask the others whether there are records. */
    template <uint32_t kSlabs>
    __device__ __forceinline__ void patch(uint32_t (&a)[kSlabs][2][4], const trf_packed_view &, uint32_t packed_tile,
                                          uint32_t slab, uint32_t lane) const {
        if (!kHasRecords || !trf_packed8_has_records(mask, packed_tile))
            return;
        trf_packed_product_line line;
        line.word = trf_lds32(line_at + 4 * lane);
        line.records = trf_packed_count_bits(
            __ballot_sync(0xFFFFFFFF, trf_packed8_is_record(line.word, lane, TRF_PACKED8_MAX_RECORDS)));
        line.stored = 0;
#pragma unroll
        for (uint32_t s = 0; s < kSlabs; s++)
            line.patch(a[s], packed_tile, slab + s, lane);
    }
};

#endif
