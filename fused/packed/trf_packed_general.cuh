/* SPDX-License-Identifier: Apache-2.0 */
/* The general kernel: it computes y = x . W^T of a packed BF16 layer by mma.sync, on every device from compute
 * capability 8.0 on, for every batch and any alignment of x. It runs where no kernel made for the device takes the
 * product.
 *
 * A block has one packed band (64 rows of W), one k split of its packed tiles, and up to 64 rows of x. Each of its
 * eight warps has a packed slab (16 rows) and one half of the k split's packed tiles:
 *
 *                       k split 0                 k split 1
 *             +-----------+-----------+-----------+-----------+
 *   slab 0    |  warp 0   |  warp 4   |                       |
 *   slab 1    |  warp 1   |  warp 5   |     another block     |     64 rows, a packed band
 *   slab 2    |  warp 2   |  warp 6   |                       |
 *   slab 3    |  warp 3   |  warp 7   |                       |
 *             +-----------+-----------+-----------+-----------+
 *              32 columns a packed tile, 32 packed tiles an exception line
 *
 * A warp goes from packed tile to packed tile. It loads 24 bytes of weights a lane from global memory straight to
 * registers, and those of the next packed tile while it multiplies by this one. It loads x in the same way, two values
 * at a time, which the block's warps find in the L1 cache. Four weights take 4.5 instructions (trf_packed_form.h). The
 * 32 words of an exception line lie in the warp's lanes while it is in the line's packed tiles; a ballot finds out
 * whether a packed tile has records for this slab.
 *
 * The sums of the two halves are added in shared memory, in the same order on every run. With one k split the block
 * applies the epilogue; with several it leaves F32 partial sums to trf_packed_general_finish, which adds them in the
 * order of the k splits.
 *
 * Shared memory: the accumulator tiles of 4 warps, 512 bytes for each x tile and warp, 16 KiB at most. What limits it
 * was not measured: it runs where the others do not. */
#ifndef TRF_PACKED_GENERAL_CUH
#define TRF_PACKED_GENERAL_CUH

#include "trf_packed_partition.h"
#include "trf_packed_product.cuh"

/* The general kernel takes it by value, and so does the kernel that finishes several k splits. */
struct trf_packed_general_args {
    trf_packed_view view;
    const uint16_t *x; /* BF16 [m][cols] */
    uint32_t m;
    uint32_t x_blocks, k_splits;
    float *partials; /* [k_splits][m][64 * bands], if there are several k splits */
    trf_epilogue epilogue;
};

/* ---- where a block and a warp are ---- */

struct trf_packed_general_place {
    uint32_t band, k_split, slab, x_row; /* x_row: the block's first row of x */
    uint32_t begin, end;                 /* packed tiles of the band */
};

static __device__ __forceinline__ trf_packed_general_place trf_packed_general_place_of(const trf_packed_general_args &a,
                                                                                       uint32_t warp, uint32_t x_rows) {
    trf_packed_general_place place;
    const uint32_t number = blockIdx.x / a.x_blocks, packed_tiles = a.view.tiles_per_band;
    place.x_row = blockIdx.x % a.x_blocks * x_rows;
    place.k_split = number % a.k_splits;
    place.band = number / a.k_splits;
    place.slab = warp % TRF_PACKED_SLABS;
    const uint32_t half = warp / TRF_PACKED_SLABS,
                   first = (uint32_t)((uint64_t)packed_tiles * place.k_split / a.k_splits),
                   behind = (uint32_t)((uint64_t)packed_tiles * (place.k_split + 1) / a.k_splits);
    place.begin = first + (behind - first) * half / 2;
    place.end = first + (behind - first) * (half + 1) / 2;
    return place;
}

/* ---- weights ---- */

static __device__ __forceinline__ trf_packed_product_words trf_packed_general_load_words(const trf_packed_view &view,
                                                                                         uint32_t band,
                                                                                         uint32_t packed_tile,
                                                                                         uint32_t slab, uint32_t lane) {
    const uint8_t *const at = view.tiles + trf_packed_tile_number(&view, band, packed_tile) * TRF_PACKED_TILE_BYTES;
    return {__ldg((const uint4 *)(at + trf_packed_raw_offset(slab, lane, 0, 0))),
            __ldg((const uint2 *)(at + trf_packed_index_offset(slab, lane, 0)))};
}

/* ---- x ---- */

/* Loads two neighbouring values of x; those after the last row or column are zeros. kTwoAtOnce: rows begin at multiples
 * of four bytes, and have an even number of columns. */
template <bool kTwoAtOnce>
static __device__ __forceinline__ uint32_t trf_packed_general_load_x(const trf_packed_general_args &a, uint32_t row,
                                                                     uint32_t col) {
    if (row >= a.m || col >= a.view.cols)
        return 0;
    const uint16_t *const at = a.x + (uint64_t)row * a.view.cols + col;
    if constexpr (kTwoAtOnce)
        return *(const uint32_t *)at;
    return at[0] | (col + 1 < a.view.cols ? (uint32_t)at[1] << 16 : 0);
}

/* Multiplies a warp's packed tile by the block's rows of x. */
template <int kXTiles, bool kTwoAtOnce>
static __device__ __forceinline__ void
trf_packed_general_multiply(const trf_packed_general_args &args, float (&sums)[kXTiles][4], const uint32_t (&a)[2][4],
                            uint32_t x_row, uint32_t packed_tile, uint32_t lane) {
    constexpr int kAtOnce = kXTiles < 4 ? kXTiles : 4; /* x tiles; there are not enough registers for more */
    const uint32_t row = x_row + lane / 4, col = packed_tile * TRF_PACKED_TILE_COLS + 2 * (lane % 4);
#pragma unroll
    for (int first = 0; first < kXTiles; first += kAtOnce) {
        uint32_t x[kAtOnce][4]; /* of the columns col, col + 8, col + 16 and col + 24 */
#pragma unroll
        for (int t = 0; t < kAtOnce; t++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                x[t][i] = trf_packed_general_load_x<kTwoAtOnce>(args, row + 8 * (first + t), col + 8 * i);
#pragma unroll
        for (int t = 0; t < kAtOnce; t++) {
            trf_mma(trf_bf16_type(), sums[first + t], a[0], x[t][0], x[t][1]);
            trf_mma(trf_bf16_type(), sums[first + t], a[1], x[t][2], x[t][3]);
        }
    }
}

/* ---- the walk ---- */

/* Computes a warp's sums over its packed tiles, in the window's scale. */
template <int kXTiles, bool kZeroing, bool kTwoAtOnce>
static __device__ __forceinline__ void trf_packed_general_walk(const trf_packed_general_args &args,
                                                               const trf_packed_general_place &place, uint32_t lane,
                                                               float (&sums)[kXTiles][4]) {
    const trf_packed_view &view = args.view;
    trf_packed_product_line line = {};
    trf_packed_product_words next = {};
    if (place.begin < place.end)
        next = trf_packed_general_load_words(view, place.band, place.begin, place.slab, lane);
    trf_wait_for_predecessor(); /* it may have made x */
    for (uint32_t packed_tile = place.begin; packed_tile < place.end; packed_tile++) {
        const trf_packed_product_words words = next;
        if (packed_tile + 1 < place.end)
            next = trf_packed_general_load_words(view, place.band, packed_tile + 1, place.slab, lane);
        if (packed_tile == place.begin || packed_tile % TRF_PACKED_LINE_TILES == 0)
            line.take(__ldg(trf_packed_line_of(&view, place.band, packed_tile) + lane));
        uint32_t a[2][4];
        if (line.is_stored(packed_tile)) {
            line.load_stored(a, view, packed_tile, place.slab, lane);
        } else {
            trf_packed_form_slab<kZeroing>(a, words);
            line.patch(a, packed_tile, place.slab, lane);
        }
        trf_packed_general_multiply<kXTiles, kTwoAtOnce>(args, sums, a, place.x_row, packed_tile, lane);
    }
}

/* ---- sums ---- */

/* Adds the sums of the upper four warps to those of the lower four, which have the same slabs. shared: address of
 * 4 * kXTiles accumulator tiles. @return whether this warp has the sums. */
template <int kXTiles>
static __device__ __forceinline__ bool trf_packed_general_add_upper_warps(float (&sums)[kXTiles][4], uint32_t shared,
                                                                          uint32_t warp, uint32_t lane) {
    const uint32_t at = shared + (warp % TRF_PACKED_SLABS * kXTiles) * TRF_ACC_TILE_BYTES + 16 * lane;
    if (warp >= TRF_PACKED_SLABS) {
#pragma unroll
        for (int t = 0; t < kXTiles; t++)
            trf_sts128(at + t * TRF_ACC_TILE_BYTES, make_uint4(trf_f32_bits(sums[t][0]), trf_f32_bits(sums[t][1]),
                                                               trf_f32_bits(sums[t][2]), trf_f32_bits(sums[t][3])));
    }
    __syncthreads();
    if (warp >= TRF_PACKED_SLABS)
        return false;
#pragma unroll
    for (int t = 0; t < kXTiles; t++) {
        const uint4 other = trf_lds128(at + t * TRF_ACC_TILE_BYTES);
        sums[t][0] += trf_f32_from_bits(other.x);
        sums[t][1] += trf_f32_from_bits(other.y);
        sums[t][2] += trf_f32_from_bits(other.z);
        sums[t][3] += trf_f32_from_bits(other.w);
    }
    return true;
}

/* Writes a lane's sums to y, or to its part of the partial sums. */
template <int kXTiles>
static __device__ __forceinline__ void trf_packed_general_leave_sums(const trf_packed_general_args &a,
                                                                     const trf_packed_general_place &place,
                                                                     uint32_t lane, const float (&sums)[kXTiles][4]) {
    const uint32_t padded_rows = a.view.bands * TRF_PACKED_TILE_ROWS,
                   first = place.band * TRF_PACKED_TILE_ROWS + place.slab * TRF_PACKED_SLAB_ROWS;
#pragma unroll
    for (int t = 0; t < kXTiles; t++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t row = first + lane / 4 + 8 * (i / 2), n = place.x_row + 8 * t + 2 * (lane % 4) + i % 2;
            if (n >= a.m)
                continue;
            if (a.k_splits > 1)
                a.partials[((uint64_t)place.k_split * a.m + n) * padded_rows + row] = sums[t][i];
            else if (row < a.view.rows)
                trf_packed_write_y(a.view, a.epilogue, n, row, sums[t][i]);
        }
}

/* ---- kernels ---- */

template <int kXTiles, bool kZeroing, bool kTwoAtOnce>
static __device__ __forceinline__ void trf_packed_general_block(const trf_packed_general_args &args, uint32_t shared) {
    const uint32_t warp = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    const trf_packed_general_place place = trf_packed_general_place_of(args, warp, 8 * kXTiles);
    float sums[kXTiles][4] = {};
    trf_packed_general_walk<kXTiles, kZeroing, kTwoAtOnce>(args, place, lane, sums);
    trf_allow_successor();
    if (trf_packed_general_add_upper_warps(sums, shared, warp, lane))
        trf_packed_general_leave_sums(args, place, lane, sums);
}

/* Adds the k splits' sums for element (n, row) of y, in their order. */
static __device__ __forceinline__ void trf_packed_general_finish_element(const trf_packed_general_args &a, uint32_t n,
                                                                         uint32_t row) {
    const uint64_t padded_rows = (uint64_t)a.view.bands * TRF_PACKED_TILE_ROWS, stride = padded_rows * a.m;
    const float *const at = a.partials + n * padded_rows + row;
    float sum = at[0];
    for (uint32_t k_split = 1; k_split < a.k_splits; k_split++)
        sum += at[k_split * stride];
    trf_packed_write_y(a.view, a.epilogue, n, row, sum);
}

#endif
