/* SPDX-License-Identifier: Apache-2.0 */
/* Packs dense rows on the device, for any range of packed bands. It does what trf_pack.c does, byte for byte.
 *
 * There are three kernels, one after the other. Their bodies are here, and also run on the CPU in emulated warps.
 *
 *   trf_pack_lines           A block takes an exception line: 64 rows and 1,024 columns, 32 packed tiles. Each of its
 *                            16 warps takes two neighbouring tiles, of four packed slabs each. It writes them as if
 *                            they were not to be stored, and puts their records into shared memory: at most 29 for a
 *                            tile, since a tile with more is always stored. Then one warp chooses the stored tiles and
 *                            writes the line, and the block clears those tiles.
 *   trf_number_stored_tiles  One block writes the number of its first stored tile into each line, in order, and passes
 *                            the counts on from range to range (trf_pack_state).
 *   trf_make_stored_tiles    A block takes a line again, and each of its four warps makes a packed slab of every stored
 *                            tile. For nearly all lines there is nothing to do.
 *
 *     64 rows x 1,024 columns                          a packed slab, 16 rows x 32 columns
 *     +-------+-------+--     --+--------+                      +----+----+----+----+
 *     | warp  | warp  |         | warp   |   4 packed   row r   | 4r |4r+1|4r+2|4r+3|  lanes: one octet of 8 weights
 *     |   0   |   1   |   ...   |   15   |   slabs              +----+----+----+----+  of row r and one of r + 8,
 *     |2 tiles|2 tiles|         |2 tiles |             row r+8  | 4r |4r+1|4r+2|4r+3|  then words are exchanged
 *     +-------+-------+--     --+--------+                      +----+----+----+----+
 *
 * The place of a record in its line is counted, and no race decides it: it depends on the tile, on how many records the
 * tile's earlier packed slabs have, and on how many the lanes before have in the same packed slab (a scan). So the
 * order of threads does not show anywhere.
 *
 * Shared memory: 3,960 bytes. Registers: 62 (sm_80: 64), none spilled, for two blocks a multiprocessor.
 *
 * Memory is the limit: a weight is read once and 1.5 bytes are written. 28672x8192, 470 + 353 MB, take 0.23 ms on an
 * H200 and 0.31 on an H100, which are 3.6 and 2.6 TB/s. About 11 instructions a weight fill half of what the
 * multiprocessors can issue in that time. A range of 256 such rows fills an eighth of the blocks that run at once; its
 * time is that of three launches and four round trips to memory, however fast memory is. */
#ifndef TRF_PACK_LINE_CUH
#define TRF_PACK_LINE_CUH

#include "trf_pack_slab.cuh"

static constexpr uint32_t kPackWarps = 16, kPackThreads = kPackWarps * TRF_LANES;
static constexpr uint32_t kTilesEach = TRF_PACKED_LINE_TILES / kPackWarps; /* tiles of a warp */
static constexpr uint32_t kNumberingWarps = 16, kNumberingThreads = kNumberingWarps * TRF_LANES;
static constexpr uint32_t kStoredTileWarps = TRF_PACKED_SLABS, kStoredTileThreads = kStoredTileWarps * TRF_LANES;
static_assert(kTilesEach * kPackWarps == TRF_PACKED_LINE_TILES, "warps share a line's tiles");

struct trf_pack_args {
    trf_packed_view view;
    trf_dense_rows dense;
    trf_pack_state *state;
    uint64_t first_line, num_lines; /* the lines of the range */
};

/* Makes the arguments for the range that the rows are. */
static inline trf_pack_args trf_pack_args_of(const trf_packed_view *view, const trf_rows_to_pack *rows,
                                             trf_pack_state *state) {
    const uint64_t band = rows->first_row / TRF_PACKED_TILE_ROWS;
    const uint64_t bands = ((uint64_t)rows->num_rows + TRF_PACKED_TILE_ROWS - 1) / TRF_PACKED_TILE_ROWS;
    return {*view, trf_dense_rows_of(rows->weights, rows->stride, rows->first_row, rows->num_rows, rows->cols, 2),
            state, band * view->lines_per_band, bands * view->lines_per_band};
}

struct trf_pack_shared {
    uint32_t counts[TRF_PACKED_LINE_TILES]; /* records of each tile */
    /* [tile][number]; as many as counts says, or all if that is more */
    uint32_t records[TRF_PACKED_LINE_TILES][TRF_PACKED_MAX_RECORDS];
    uint32_t line[TRF_PACKED_MAX_RECORDS];
    uint32_t stored;
};

struct trf_numbering_shared {
    uint32_t stored[kNumberingWarps], records[kNumberingWarps];
};

/* Loads the lane's octets of dense rows that become a packed slab, before the quartet exchanges words. */
static __device__ __forceinline__ void trf_load_slab_octets(const trf_dense_rows &dense, uint32_t row, uint32_t tile,
                                                            uint32_t lane, trf_words4 octets[2]) {
    const uint32_t col = TRF_PACKED_TILE_COLS * tile + TRF_OCTET_WEIGHTS * (lane % 4);
    octets[0] = trf_load_octet(&dense, row, col);
    octets[1] = trf_load_octet(&dense, row + 8, col);
}

/* ---- lines and packed tiles ---- */

/* Packs the warp's tiles of a line. For each packed slab the loads of both tiles are under way before the first one is
 * packed; other warps provide the rest of the loads that must be under way. */
template <bool kZeroing>
static __device__ __forceinline__ void trf_pack_tiles(const trf_pack_args &args, trf_pack_shared &shared,
                                                      const trf_line_place &at, uint32_t warp, uint32_t lane) {
    const trf_packed_view &view = args.view;
    const uint32_t tile = kTilesEach * warp, band_tile = at.first_tile + tile;
    const bool whole = trf_dense_is_whole(&args.dense, TRF_PACKED_TILE_ROWS * at.band, TRF_PACKED_TILE_ROWS,
                                          TRF_PACKED_TILE_COLS * band_tile, TRF_PACKED_TILE_COLS * kTilesEach);
    uint32_t row = TRF_PACKED_TILE_ROWS * at.band + lane / 4;
    const uint16_t *from = (const uint16_t *)args.dense.at + (row - args.dense.first_row) * args.dense.stride +
                           TRF_PACKED_TILE_COLS * band_tile + TRF_OCTET_WEIGHTS * (lane % 4);
    uint8_t *to = trf_packed_tile_to_write(view, at.band, band_tile);
    uint32_t records[kTilesEach] = {};
#pragma unroll 1
    for (uint32_t slab = 0; slab < TRF_PACKED_SLABS; slab++) {
        trf_words4 octets[kTilesEach][2];
        trf_row_to_window rows[2];
#pragma unroll
        for (uint32_t t = 0; t < kTilesEach; t++)
            if (whole) {
                octets[t][0] = *(const trf_words4 *)(from + TRF_PACKED_TILE_COLS * t);
                octets[t][1] = *(const trf_words4 *)(from + TRF_PACKED_TILE_COLS * t + 8 * args.dense.stride);
            } else {
                trf_load_slab_octets(args.dense, row, band_tile + t, lane, octets[t]);
            }
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            rows[i] = trf_row_to_window_of(view.base, kZeroing, view.row_offsets ? view.row_offsets[row + 8 * i] : 0);
#pragma unroll
        for (uint32_t t = 0; t < kTilesEach; t++)
            if (tile + t < at.tiles) {
                const trf_packed_lane_place place =
                    trf_packed_lane_place_of(at.band, at.first_tile, tile + t, slab, lane, at.line);
                const trf_record_list list = {shared.records[tile + t], TRF_PACKED_MAX_RECORDS};
                records[t] = trf_pack_slab<kZeroing>(view, args.state, place, list, octets[t], rows, records[t],
                                                     to + TRF_PACKED_TILE_BYTES * t);
            }
        row += TRF_PACKED_SLAB_ROWS;
        from += TRF_PACKED_SLAB_ROWS * args.dense.stride;
        to += TRF_PACKED_SLAB_BYTES;
    }
#pragma unroll
    for (uint32_t t = 0; t < kTilesEach; t++)
        if (lane == 0)
            shared.counts[tile + t] = records[t];
}

/* Called by one warp: chooses the line's stored tiles and writes the line, except for the number of the first stored
 * tile. */
static __device__ __forceinline__ void trf_finish_line(const trf_pack_args &args, trf_pack_shared &shared,
                                                       const trf_line_place &at, uint32_t lane) {
    const uint32_t all = __shfl_sync(kAllLanes, trf_warp_scan(shared.counts[lane], lane), TRF_LANES - 1);
    __syncwarp();
    if (lane == 0)
        shared.stored = trf_choose_stored_tiles(shared.counts, all);
    __syncwarp();
    /* Each lane has a tile. The tiles that are not stored have 29 records together, at most. */
    const uint32_t count = shared.counts[lane], scan = trf_warp_scan(count, lane);
    const uint32_t records = __shfl_sync(kAllLanes, scan, TRF_LANES - 1);
    for (uint32_t i = 0; i < count; i++)
        shared.line[scan - count + i] = shared.records[lane][i];
    __syncwarp();
    const uint32_t row = TRF_PACKED_TILE_ROWS * at.band, col = TRF_PACKED_TILE_COLS * at.first_tile;
    const int32_t offset = args.view.row_offsets ? args.view.row_offsets[row] : 0;
    const uint32_t first = trf_load_octet(&args.dense, row, col).word[0] & 0xFFFF;
    int exact = 1;
    uint32_t word = trf_scale_bf16(first, TRF_PACKED_EXPONENT - args.view.base - offset, &exact);
    if (lane < records)
        word = shared.line[lane];
    if (lane == TRF_PACKED_COUNT_WORD)
        word = records;
    if (lane == TRF_PACKED_STORED_WORD)
        word = shared.stored;
    if (lane == TRF_PACKED_FIRST_STORED_WORD)
        word = 0;
    trf_line_to_write(args.view, at.line)[lane] = word;
}

template <bool kZeroing>
static __device__ __forceinline__ void trf_pack_lines(const trf_pack_args &args, trf_pack_shared &shared) {
    const uint32_t warp = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    const trf_words4 zeros = {{0, 0, 0, 0}};
    for (uint64_t i = blockIdx.x; i < args.num_lines; i += gridDim.x) {
        const trf_line_place at = trf_line_place_of(args.view, args.first_line + i);
        trf_pack_tiles<kZeroing>(args, shared, at, warp, lane);
        __syncthreads();
        if (warp == 0)
            trf_finish_line(args, shared, at, lane);
        __syncthreads();
        /* The next line's counts may be written now; shared.stored is not written before the next barrier. */
        for (uint32_t stored = shared.stored; stored; stored &= stored - 1) {
            const uint32_t tile = at.first_tile + (uint32_t)__ffs((int)stored) - 1;
            if (threadIdx.x < TRF_PACKED_TILE_BYTES / sizeof zeros)
                ((trf_words4 *)trf_packed_tile_to_write(args.view, at.band, tile))[threadIdx.x] = zeros;
        }
    }
}

/* ---- stored tiles ---- */

/* Numbers stored tiles. A range has less than 2^27 lines, which are 2^43 weights, so that 32 bits can count what it
 * adds. */
static __device__ __forceinline__ void trf_number_stored_tiles(const trf_pack_args &args,
                                                               trf_numbering_shared &shared) {
    const uint32_t warp = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    const uint64_t each = (args.num_lines + kNumberingThreads - 1) / kNumberingThreads;
    const uint64_t begin = args.first_line + min(each * threadIdx.x, args.num_lines);
    const uint64_t end = args.first_line + min(each * (threadIdx.x + 1), args.num_lines);
    uint32_t stored = 0, records = 0;
    for (uint64_t line = begin; line < end; line++) {
        const uint32_t *const words = trf_line_to_write(args.view, line);
        stored += trf_packed_count_bits(words[TRF_PACKED_STORED_WORD]);
        records += words[TRF_PACKED_COUNT_WORD];
    }
    const uint32_t scan = trf_warp_scan(stored, lane), records_scan = trf_warp_scan(records, lane);
    if (lane == TRF_LANES - 1) {
        shared.stored[warp] = scan;
        shared.records[warp] = records_scan;
    }
    __syncthreads();
    uint32_t before = scan - stored, all_stored = 0, all_records = 0;
    for (uint32_t w = 0; w < kNumberingWarps; w++) {
        before += w < warp ? shared.stored[w] : 0;
        all_stored += shared.stored[w];
        all_records += shared.records[w];
    }
    uint64_t number = args.state->num_stored + before;
    for (uint64_t line = begin; line < end; line++) {
        uint32_t *const words = trf_line_to_write(args.view, line);
        words[TRF_PACKED_FIRST_STORED_WORD] = (uint32_t)number;
        number += trf_packed_count_bits(words[TRF_PACKED_STORED_WORD]);
    }
    __syncthreads(); /* all have read the state */
    if (threadIdx.x == 0) {
        args.state->num_stored += all_stored;
        args.state->num_records += all_records;
    }
}

/* Makes one packed slab of a stored tile: registers in the window's scale. Padding is zeros, and stays so. */
static __device__ __forceinline__ void trf_make_stored_slab(const trf_pack_args &args, uint32_t band, uint32_t tile,
                                                            uint32_t slab, uint32_t lane, uint8_t *to) {
    const trf_packed_view &view = args.view;
    const uint32_t row = TRF_PACKED_TILE_ROWS * band + trf_packed_row_in_tile(slab, lane, 0);
    trf_words4 octets[2], a[TRF_PACKED_STEPS];
    trf_load_slab_octets(args.dense, row, tile, lane, octets);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const int32_t offset = view.row_offsets ? view.row_offsets[row + 8 * i] : 0;
        const trf_halves_rescale scale = trf_halves_rescale_of(TRF_PACKED_EXPONENT - view.base - offset);
        trf_quartet_transpose(octets[i].word, lane);
        for (uint32_t w = 0; w < TRF_OCTET_WORDS; w++)
            a[w / 2].word[w % 2 * 2 + i] = trf_scale_halves(octets[i].word[w], scale);
    }
    for (uint32_t step = 0; step < TRF_PACKED_STEPS; step++)
        *(trf_words4 *)(to + trf_packed_stored_offset(slab, lane, step)) = a[step];
}

static __device__ __forceinline__ void trf_make_stored_tiles(const trf_pack_args &args) {
    const uint32_t slab = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    for (uint64_t i = blockIdx.x; i < args.num_lines; i += gridDim.x) {
        const uint32_t *const words = trf_line_to_write(args.view, args.first_line + i);
        const uint32_t stored = words[TRF_PACKED_STORED_WORD];
        if (stored == 0)
            continue;
        const trf_line_place at = trf_line_place_of(args.view, args.first_line + i);
        /* Where a number does not fit 32 bits there is no room for the tile, whatever its lower bits are; but then
         * there is no room for the tiles before it, either. */
        uint64_t number = words[TRF_PACKED_FIRST_STORED_WORD];
        for (uint32_t left = stored; left && number < args.view.num_stored; left &= left - 1, number++)
            trf_make_stored_slab(args, at.band, at.first_tile + (uint32_t)__ffs((int)left) - 1, slab, lane,
                                 const_cast<uint8_t *>(args.view.stored) + TRF_PACKED_STORED_TILE_BYTES * number);
    }
}

#endif
