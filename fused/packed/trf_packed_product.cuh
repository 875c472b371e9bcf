/* SPDX-License-Identifier: Apache-2.0 */
/* What all product kernels of packed layers have in common: a lane's words and the fragments that it forms from them,
 * the exception line, and how sums are scaled and written to y. */
#ifndef TRF_PACKED_PRODUCT_CUH
#define TRF_PACKED_PRODUCT_CUH

#include "trf_acc_tile.h"
#include "trf_epilogue.h"
#include "trf_packed_reader.h"
#include "trf_ptx.cuh"

/* ---- weights ---- */

/* A lane's words of a packed slab, in the vectors in which product kernels load them (packing has trf_unpack_words). */
struct trf_packed_product_words {
    uint4 raw;
    uint2 index;
};

/* Forms the fragments of both column steps from a lane's words of one packed slab, without exceptions. */
template <bool kZeroing>
static __device__ __forceinline__ void trf_packed_form_slab(uint32_t (&a)[2][4],
                                                            const trf_packed_product_words &words) {
    if constexpr (kZeroing) {
        trf_form_packed_zeroing(a[0], words.raw.x, words.raw.y, words.index.x);
        trf_form_packed_zeroing(a[1], words.raw.z, words.raw.w, words.index.y);
    } else {
        trf_form_packed(a[0], words.raw.x, words.raw.y, words.index.x);
        trf_form_packed(a[1], words.raw.z, words.raw.w, words.index.y);
    }
}

/* How kernels form the weights of layers that are all zeroing, or that are all not; or that may be either. */
template <bool kZeroing> struct trf_packed_former {
    static __device__ __forceinline__ trf_packed_former of(const trf_packed_view &) { return {}; }
    __device__ __forceinline__ void form_slab(uint32_t (&a)[2][4], const trf_packed_product_words &words) const {
        trf_packed_form_slab<kZeroing>(a, words);
    }
};
struct trf_packed_either_former {
    trf_packed_either either;

    static __device__ __forceinline__ trf_packed_either_former of(const trf_packed_view &view) {
        return {trf_packed_either_of(view.zeroing)};
    }
    __device__ __forceinline__ void form_slab(uint32_t (&a)[2][4], const trf_packed_product_words &words) const {
        trf_form_packed_either(a[0], words.raw.x, words.raw.y, words.index.x, either);
        trf_form_packed_either(a[1], words.raw.z, words.raw.w, words.index.y, either);
    }
};

/* The exception line that a warp of a product kernel is in, one word in each lane. It patches values in the window's
 * scale (trf_unpack_line.cuh has a line that patches in the weights' own scale). All lanes call each function. */
struct trf_packed_product_line {
    uint32_t word; /* lane l has word l */
    uint32_t records;
    uint32_t stored; /* mask of stored packed tiles */

    __device__ __forceinline__ void take(uint32_t of_lane) {
        word = of_lane;
        stored = __shfl_sync(0xFFFFFFFF, word, TRF_PACKED_STORED_WORD);
        const uint32_t count = __shfl_sync(0xFFFFFFFF, word, TRF_PACKED_COUNT_WORD);
        records = count < TRF_PACKED_MAX_RECORDS ? count : (uint32_t)TRF_PACKED_MAX_RECORDS;
    }

    /* Whether the lane's word is a record of this packed tile. */
    __device__ __forceinline__ bool is_of(uint32_t packed_tile, uint32_t lane) const {
        return lane < records && trf_packed_record_tile(word) == packed_tile % TRF_PACKED_LINE_TILES;
    }

    /* Replaces formed weights of a packed tile's slab by its records. */
    __device__ __forceinline__ void patch(uint32_t (&a)[2][4], uint32_t packed_tile, uint32_t slab,
                                          uint32_t lane) const {
        uint32_t lanes = __ballot_sync(0xFFFFFFFF, is_of(packed_tile, lane) && trf_packed_record_slab(word) == slab);
#pragma unroll 1
        while (lanes) {
            const uint32_t record = __shfl_sync(0xFFFFFFFF, word, __ffs((int)lanes) - 1);
            lanes &= lanes - 1;
            /* Each register is compared by itself, so that none is indexed at run time, which would move all of them to
             * local memory. */
            const uint32_t half = trf_packed_record_half(record), keep = 0xFFFF0000u >> 16 * half,
                           bits = trf_packed_record_bits(record) << 16 * half;
            const uint32_t at = trf_packed_record_lane(record) == lane
                                    ? 4 * trf_packed_record_step(record) + trf_packed_record_reg(record)
                                    : 8;
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                a[i / 4][i % 4] = at == i ? (a[i / 4][i % 4] & keep) | bits : a[i / 4][i % 4];
        }
    }

    __device__ __forceinline__ bool is_stored(uint32_t packed_tile) const {
        return stored >> packed_tile % TRF_PACKED_LINE_TILES & 1;
    }

    /* Loads a slab of a stored packed tile; zeros if the layer does not have that tile. All lanes call it. */
    __device__ __forceinline__ void load_stored(uint32_t (&a)[2][4], const trf_packed_view &view, uint32_t packed_tile,
                                                uint32_t slab, uint32_t lane) const {
        const uint32_t before = stored & ((1u << packed_tile % TRF_PACKED_LINE_TILES) - 1);
        const uint64_t number =
            (uint64_t)__shfl_sync(0xFFFFFFFF, word, TRF_PACKED_FIRST_STORED_WORD) + trf_packed_count_bits(before);
        const bool is_there = number < view.num_stored;
#pragma unroll
        for (uint32_t step = 0; step < TRF_PACKED_STEPS; step++) {
            const uint8_t *const at =
                view.stored + number * TRF_PACKED_STORED_TILE_BYTES + trf_packed_stored_offset(slab, lane, step);
            const uint4 registers = is_there ? __ldg((const uint4 *)at) : make_uint4(0, 0, 0, 0);
            a[step][0] = registers.x;
            a[step][1] = registers.y;
            a[step][2] = registers.z;
            a[step][3] = registers.w;
        }
    }
};

/* Whether a line has records for kSlabs slabs of a packed tile (neighbours, the first one a multiple of kSlabs), or the
 * packed tile is stored. It may say yes where there is no record. All lanes call it. word: the lane's word of the line.
 * Unused words have place 0. Since records are in order, only the first record may have place 0; so nobody needs to
 * know how many records there are. */
template <uint32_t kSlabs>
static __device__ __forceinline__ bool trf_packed_has_exceptions(uint32_t word, uint32_t packed_tile, uint32_t slab,
                                                                 uint32_t lane) {
    const uint32_t in_line = packed_tile % TRF_PACKED_LINE_TILES,
                   wanted = trf_packed_record(in_line, slab, 0, 0, 0, 0, 0),
                   same = trf_packed_record(TRF_PACKED_LINE_TILES - 1, TRF_PACKED_SLABS - kSlabs, 0, 0, 0, 0, 0);
    bool has = lane < TRF_PACKED_MAX_RECORDS && ((word ^ wanted) & same) == 0 && (word >> 16 != 0 || lane == 0);
    if (lane == TRF_PACKED_STORED_WORD)
        has = word >> in_line & 1;
    return __ballot_sync(0xFFFFFFFF, has) != 0;
}

/* ---- y ---- */

/* Sets the factor that takes a row's sums from the window's scale to that of y. @return whether it is a normal F32. */
static __device__ __forceinline__ bool trf_packed_get_row_factor(const trf_packed_view &view, uint32_t row,
                                                                 float *factor) {
    const int32_t exponent = trf_packed_row_exponent(&view, row);
    *factor = trf_f32_from_bits((uint32_t)(exponent + 127) << 23);
    return exponent >= -126 && exponent <= 127;
}

/* Whether y is *bare*: it takes the scaled sums in 16 bits, and no epilogue. */
static inline bool trf_packed_is_bare(const trf_epilogue &e) {
    return e.y_dtype != TRF_DTYPE_F32 && e.activation == TRF_ACTIVATION_NONE && !e.bias && !e.multiplier && !e.residual;
}

/* Writes a finished sum, which is in the window's scale, to its element of y. */
static __device__ __forceinline__ void trf_packed_write_y(const trf_packed_view &view, const trf_epilogue &epilogue,
                                                          uint32_t n, uint32_t row, float sum) {
    const trf_epilogue_inputs inputs = trf_epilogue_inputs_of(&epilogue, n, row);
    const float scaled = ldexpf(sum, trf_packed_row_exponent(&view, row));
    trf_write_rounded(epilogue.y, epilogue.y_dtype, n * epilogue.y_stride + row,
                      trf_apply_epilogue(epilogue.activation, &inputs, epilogue.y_dtype, scaled));
}

#endif
