/* SPDX-License-Identifier: Apache-2.0 */
/* Unpacks a packed layer in device memory, BF16 or FP8 (trf_unpack_weights.cuh), to dense rows. This is the body of the
 * kernel, which also runs on the CPU in emulated warps. It stays inside the view whatever that holds.
 * trf_unpack_rows.cuh looks up single rows.
 *
 * A block takes an exception line, which is 64 rows and 1,024 columns. Each of its 16 warps takes two neighbouring
 * packed tiles, of four packed slabs each. A lane forms its 16 weights of a packed slab, takes them to their own scale,
 * and exchanges words with its quartet until it has an octet (trf_pack_lane.h) of each of two rows, which it stores.
 *
 * A lane keeps one word of the exception line, and a ballot says which records a packed slab has. Mostly there are
 * none; otherwise shuffles pass the records around, in their order.
 *
 * Shared memory: none. Registers: 55, none spilled, for two blocks a multiprocessor.
 *
 * Memory is the limit: for each weight of BF16 1.5 bytes are read and two are written. 28672x8192 take 0.22 ms on an
 * H200 and 0.29 on an H100. */
#ifndef TRF_UNPACK_LINE_CUH
#define TRF_UNPACK_LINE_CUH

#include "trf_pack_launch.h"
#include "trf_unpack_weights.cuh"

static constexpr uint32_t kUnpackWarps = 16, kUnpackThreads = kUnpackWarps * TRF_LANES;
static constexpr uint32_t kUnpackTilesEach = TRF_PACKED_LINE_TILES / kUnpackWarps; /* tiles of a warp */
static_assert(kUnpackTilesEach * kUnpackWarps == TRF_PACKED_LINE_TILES, "warps share a line's tiles");

struct trf_unpack_args {
    trf_packed_view view;
    trf_dense_rows dense;           /* what is written */
    uint64_t first_line, num_lines; /* the lines of the bands that the rows are in */
};

static inline trf_dense_rows trf_dense_target(const trf_packed_view *view, uint32_t first_row, uint32_t num_rows,
                                              const trf_unpack_target *target) {
    return trf_dense_rows_of(target->weights, target->stride, first_row, num_rows, view->cols, target->weight_bytes);
}

/* num_rows: 1 or more. */
static inline trf_unpack_args trf_unpack_args_of(const trf_packed_view *view, uint32_t first_row, uint32_t num_rows,
                                                 const trf_unpack_target *target) {
    const uint64_t band = first_row / TRF_PACKED_TILE_ROWS;
    const uint64_t end = (first_row + num_rows - 1) / TRF_PACKED_TILE_ROWS + 1;
    return {*view, trf_dense_target(view, first_row, num_rows, target), band * view->lines_per_band,
            (end - band) * view->lines_per_band};
}

/* Unpacks one packed slab to octets of two rows. tile: its number in the band. */
template <class Weights>
static __device__ __forceinline__ void trf_unpack_slab(const trf_packed_view &view, const Weights &weights,
                                                       const typename Weights::words &words, uint32_t tile,
                                                       uint32_t slab, uint32_t lane, trf_words4 octets[2]) {
    uint32_t a[TRF_PACKED_LANE_REGISTERS];
    weights.unpack_slab(view, words, tile, slab, lane, a);
    trf_packed_slab_to_rows(a, octets);
    trf_quartet_transpose(octets[0].word, lane);
    trf_quartet_transpose(octets[1].word, lane);
}

/* Unpacks a warp's tiles. For each packed slab the loads of both tiles are under way before the first one is
 * unpacked. */
template <class Weights>
static __device__ __forceinline__ void trf_unpack_tiles(const trf_unpack_args &args, uint32_t band, uint32_t tile,
                                                        uint32_t lane) {
    const trf_packed_view &view = args.view;
    const uint32_t tiles = min(view.tiles_per_band - tile, kUnpackTilesEach);
    const uint32_t col = TRF_PACKED_TILE_COLS * tile + TRF_OCTET_WEIGHTS * (lane % 4);
    const bool whole = trf_dense_is_whole(&args.dense, TRF_PACKED_TILE_ROWS * band, TRF_PACKED_TILE_ROWS,
                                          TRF_PACKED_TILE_COLS * tile, TRF_PACKED_TILE_COLS * kUnpackTilesEach);
    Weights weights(view, band, tile, lane);
    const uint8_t *from = view.tiles + Weights::kTileBytes * trf_packed_tile_number(&view, band, tile);
    uint32_t row = TRF_PACKED_TILE_ROWS * band + lane / 4;
    /* It is valid only if whole. */
    uint16_t *to =
        (uint16_t *)args.dense.at + (int64_t)((int64_t)row - args.dense.first_row) * (int64_t)args.dense.stride + col;
#pragma unroll 1
    for (uint32_t slab = 0; slab < TRF_PACKED_SLABS; slab++) {
        typename Weights::words words[kUnpackTilesEach] = {};
#pragma unroll
        for (uint32_t t = 0; t < kUnpackTilesEach; t++)
            if (t < tiles)
                words[t] = Weights::load(from + Weights::kTileBytes * t, lane);
        weights.begin_slab(view, row);
#pragma unroll
        for (uint32_t t = 0; t < kUnpackTilesEach; t++) {
            trf_words4 octets[2];
            if (t >= tiles)
                continue;
            trf_unpack_slab(view, weights, words[t], tile + t, slab, lane, octets);
            if (whole) {
                *(trf_words4 *)(to + TRF_PACKED_TILE_COLS * t) = octets[0];
                *(trf_words4 *)(to + TRF_PACKED_TILE_COLS * t + 8 * args.dense.stride) = octets[1];
            } else {
                trf_store_octet(&args.dense, row, col + TRF_PACKED_TILE_COLS * t, octets[0]);
                trf_store_octet(&args.dense, row + 8, col + TRF_PACKED_TILE_COLS * t, octets[1]);
            }
        }
        row += TRF_PACKED_SLAB_ROWS;
        to += TRF_PACKED_SLAB_ROWS * args.dense.stride;
        from += Weights::kSlabBytes;
    }
}

template <class Weights> static __device__ __forceinline__ void trf_unpack_lines(const trf_unpack_args &args) {
    const trf_packed_view &view = args.view;
    const uint32_t warp = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    for (uint64_t i = blockIdx.x; i < args.num_lines; i += gridDim.x) {
        const uint64_t number = args.first_line + i;
        const uint32_t band = (uint32_t)(number / view.lines_per_band);
        const uint32_t tile =
            (uint32_t)(number % view.lines_per_band) * TRF_PACKED_LINE_TILES + kUnpackTilesEach * warp;
        if (tile < view.tiles_per_band)
            trf_unpack_tiles<Weights>(args, band, tile, lane);
    }
}

#endif
