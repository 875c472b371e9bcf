/* SPDX-License-Identifier: Apache-2.0 */
/* Looks up single rows of a packed layer in device memory by number. This is the body of the kernel, which also runs on
 * the CPU in emulated warps. It stays inside the view whatever that holds.
 *
 * A block takes 64 packed tiles of a row, 2,048 columns, and each of its four warps takes 16 of them, in two pieces of
 * eight. In a piece four lanes have a packed tile; trf_unpack_row_lane.h says what they have of it. The quartet
 * exchanges words until each lane has an octet, so that a warp stores runs of 512 bytes:
 *
 *      row, 4,096 columns
 *      |          block 0            |          block 1            |
 *      | warp 0  warp 1 warp 2 warp 3| ...
 *       piece 0   piece 1
 *       lanes 0-3: packed tile 0, lanes 4-7: packed tile 1 ...       lane: 16 bytes raw, 8 of indices
 *
 * What is read of a packed tile are 64 contiguous bytes of raw words and 32 of indices: three sectors of 32 bytes, half
 * of which are the row's (the rest is of the row eight rows away). That is 1.5 bytes for each byte of a plain row; the
 * exception line of 32 packed tiles adds 0.06. Where memory is read by 64 bytes at least, it is 2.06.
 *
 * Two loads follow each other, of the id, and then of everything else at once: the line, the row's offset, and the
 * words of all pieces. Nothing waits for the line to know whether a tile is stored; the words of a stored one are
 * loaded in vain. Words are loaded so that they leave the cache first, since nobody reads them again soon; what is
 * written then stays there for the next kernel.
 *
 * A lane keeps one word of the exception line, and a ballot says which records are the row's. Mostly there are none.
 *
 * Shared memory: none. Registers: 32 where rows consist of whole octets of BF16. A warp issues some 300 instructions.
 * The limit is the latency of two loads for few rows, where a gather of plain rows takes as long, and accesses to many
 * places from some hundred on: 4,096 rows of 4096 take 35 us alone, a gather of plain ones 19 (H200). */
#ifndef TRF_UNPACK_ROWS_CUH
#define TRF_UNPACK_ROWS_CUH

#include "trf_pack_launch.h"
#include "trf_row_reader.h"
#include "trf_unpack_row_weights.cuh"

static constexpr uint32_t kByIdWarps = 4, kByIdThreads = kByIdWarps * TRF_LANES;
static constexpr uint32_t kNanHalves = 0x7FC07FC0u;
static_assert(TRF_PACKED_LINE_TILES % kByIdTiles == 0, "a warp's tiles are of one line");

struct trf_unpack_rows_args {
    trf_packed_view view;
    const void *ids;
    uint32_t id_bytes, count;
    uint32_t row_blocks;  /* blocks that share a row: x of the grid; its y is rows, in steps of which blocks go on */
    uint32_t has_octets;  /* whether rows are BF16 and consist of whole octets, each aligned to 16 bytes */
    trf_dense_rows dense; /* row i is the one that id number i asks for */
};

static inline trf_unpack_rows_args trf_unpack_rows_args_of(const trf_packed_view *view, const trf_packed_lookup *lookup,
                                                           const trf_unpack_target *target) {
    const uint32_t block_tiles = kByIdWarps * kByIdTiles;
    trf_unpack_rows_args args = {};
    args.view = *view;
    args.ids = lookup->ids;
    args.id_bytes = lookup->id_bytes;
    args.count = lookup->count;
    args.row_blocks = (view->tiles_per_band + block_tiles - 1) / block_tiles;
    args.dense = trf_dense_rows_of(target->weights, target->stride, 0, lookup->count, view->cols, target->weight_bytes);
    args.has_octets = args.dense.aligned && target->weight_bytes == 2 && view->cols % TRF_OCTET_WEIGHTS == 0;
    return args;
}

/* Unpacks a warp's tiles of a row that the layer has, to an octet for each lane and piece. first_tile: the warp's,
 * which the band has; the others may be after the band's last one. */
template <class Weights>
static __device__ __forceinline__ void trf_unpack_row_octets(const trf_packed_view &view, uint32_t row,
                                                             uint32_t first_tile, uint32_t lane,
                                                             uint32_t (&a)[kByIdPieces][TRF_OCTETS]) {
    const trf_packed_row at = trf_packed_row_of(row);
    Weights weights;
    weights.load(view, at, row, first_tile, lane);
    weights.form(view, at, first_tile, lane, a);
#pragma unroll
    for (uint32_t p = 0; p < kByIdPieces; p++)
        trf_quartet_transpose(a[p], lane);
}

/* Stores a warp's octets. index: of the row that is written. */
template <bool kHasOctets>
static __device__ __forceinline__ void trf_store_row_octets(const trf_dense_rows &dense, uint32_t index,
                                                            uint32_t first_tile, uint32_t lane,
                                                            const uint32_t (&a)[kByIdPieces][TRF_OCTETS]) {
    const uint32_t first_col = TRF_PACKED_TILE_COLS * first_tile + TRF_OCTET_WEIGHTS * lane;
    uint16_t *const to = (uint16_t *)dense.at + index * dense.stride + first_col; /* valid only if has_octets */
#pragma unroll
    for (uint32_t p = 0; p < kByIdPieces; p++) {
        const uint32_t cols = TRF_PACKED_TILE_COLS * kPieceTiles * p;
        const trf_words4 octet = {{a[p][0], a[p][1], a[p][2], a[p][3]}};
        if (!kHasOctets)
            trf_store_octet(&dense, index, first_col + cols, octet);
        else if (first_col + cols < dense.cols)
            *(trf_words4 *)(to + cols) = octet;
    }
}

template <class Weights, bool kHasOctets>
static __device__ __forceinline__ void trf_unpack_rows_by_id(const trf_unpack_rows_args &args) {
    const uint32_t warp = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    const uint32_t first_tile = (blockIdx.x * kByIdWarps + warp) * kByIdTiles;
    if (first_tile >= args.view.tiles_per_band)
        return;
    for (uint64_t index = blockIdx.y; index < args.count; index += gridDim.y) {
        const int64_t id = trf_row_id(args.ids, args.id_bytes, index);
        uint32_t a[kByIdPieces][TRF_OCTETS];
        if (id >= 0 && id < args.view.rows) {
            trf_unpack_row_octets<Weights>(args.view, (uint32_t)id, first_tile, lane, a);
        } else {
#pragma unroll
            for (uint32_t i = 0; i < kByIdPieces * TRF_OCTETS; i++)
                a[i / TRF_OCTETS][i % TRF_OCTETS] = kNanHalves;
        }
        trf_store_row_octets<kHasOctets>(args.dense, (uint32_t)index, first_tile, lane, a);
    }
}

#endif
