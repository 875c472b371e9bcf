/* SPDX-License-Identifier: Apache-2.0 */
/* Packs a coded layer slab by slab, without dense rows in between.
 *
 * There are two kernels. Their bodies are here, and also run on the CPU in emulated warps.
 *
 *   trf_pack_coded_slabs        This is the walk of trf_decode_slabs.cuh with another sink: warps have equal shares of
 *                               all slabs. In each two steps a warp's lanes have 32 rows of 32 columns, which are two
 *                               packed slabs, one below the other: a *tile half*. Each lane has the octets that
 *                               trf_pack_slab needs.
 *   trf_merge_records_of_lines  A warp takes an exception line, and each lane one of the line's packed tiles. It copies
 *                               the records of the tile's two halves to their place in the line.
 *
 *     a coded slab, 32 rows x 256 columns                     a packed band, 64 rows: tiles side by side
 *     +--------+--------+--      --+--------+                 +--------+--------+--
 *     | steps  | steps  |          | steps  |     band 2i  -> | half 0 | half 0 |      tile half 0: packed slabs 0, 1
 *     | 0, 1   | 2, 3   |   ...    | 14, 15 |                 +--------+--------+--
 *     +--------+--------+--      --+--------+   band 2i + 1-> | half 1 | half 1 |      tile half 1: packed slabs 2, 3
 *                                                             +--------+--------+--
 *
 * The two halves of a tile, and the tiles of a line, are packed by different warps and at different times. So each tile
 * half has a list of its own in scratch memory, with up to 15 records in order, and a count, which may be larger. Few
 * lists are used, since a tile half of weights from N(0, 0.02) has 0.08 records. If a line has more than 29 records, or
 * a tile half more than 15, the line is left as it is and counted: these rows must then be packed from dense ones,
 * which can store tiles.
 *
 * What is walked may be some rows of tiles of a layer. Coded bands and the scratch memory are counted from the first of
 * these, packed bands and lines from the packed layer's first one.
 *
 * Shared memory: what the walk takes, with the larger table; 16 warps of bf16 quads take about 137,280 bytes. */
#ifndef TRF_PACK_CODED_SLABS_CUH
#define TRF_PACK_CODED_SLABS_CUH

#include "trf_decode_slabs.cuh"
#include "trf_pack_coded_launch.h"
#include "trf_pack_slab.cuh"

static constexpr uint32_t kTileHalfRecords = 15; /* the most records of a tile half's list */
static constexpr uint32_t kTileHalves = 2;       /* tile halves of a packed tile */
static constexpr uint32_t kTileHalfSlabs = TRF_PACKED_SLABS / kTileHalves;
static constexpr uint32_t kMergeWarps = 8, kMergeThreads = kMergeWarps * TRF_LANES;
static_assert(kTileHalfSlabs * TRF_PACKED_SLAB_ROWS == (uint32_t)TRF_SLAB_ROWS,
              "a coded slab's rows are half a packed tile's");
static_assert((uint32_t)TRF_STEP_PAIR_COLS == (uint32_t)TRF_PACKED_TILE_COLS, "two steps are a packed tile's columns");

/* Where a coded layer is packed to. */
struct trf_pack_coded_target {
    trf_packed_view packed;
    uint32_t first_band, num_bands; /* packed bands, counted in the packed layer */
    uint32_t *counts;               /* [coded band][packed tile]: how many records each tile half has */
    uint32_t *records;              /* [coded band][packed tile][kTileHalfRecords] */
    trf_pack_coded_counts *total;   /* or NULL */
    trf_pack_state *state;          /* or NULL */
};

/* The kernels take it by value. */
struct trf_pack_coded_args {
    trf_device_view view;
    trf_write_call call;
    trf_pack_coded_target to;
};

static inline uint64_t trf_count_tile_halves(uint64_t rows, uint64_t cols) {
    return (rows + TRF_PACKED_TILE_ROWS - 1) / TRF_PACKED_TILE_ROWS * kTileHalves *
           ((cols + TRF_PACKED_TILE_COLS - 1) / TRF_PACKED_TILE_COLS);
}

static inline trf_pack_coded_args trf_pack_coded_args_of(const trf_device_view *view, const trf_smem_layout &smem,
                                                         const trf_packed_view *packed, uint32_t first_row,
                                                         const trf_pack_coded_memory *memory) {
    const trf_decode_choice chosen = {1, 0, TRF_METHOD_VECTOR, smem};
    uint32_t *const counts = (uint32_t *)memory->scratch;
    return {*view,
            trf_write_call_of(view, TRF_DECODE_ELEMENTS, &chosen),
            {*packed, first_row / TRF_PACKED_TILE_ROWS, view->rows / TRF_PACKED_TILE_ROWS, counts,
             counts + trf_count_tile_halves(view->rows, view->cols), memory->counts, memory->state}};
}

/* ---- rows of gate and up in turns ---- */

/* Two warps walk the same slab of gate and of up at the same time. What is packed of both has 8 rows of gate and the
 * same 8 rows of up in turns, so that a packed slab has a quarter of the rows of each slab
 * (trf_pack_coded_experts.cuh). The warp of gate packs the upper half of each packed tile, and gives the other warp its
 * rows of the lower half: */
struct trf_pack_turns {
    uint32_t is_up;      /* 0 or 1, the same for all lanes of a warp */
    uint32_t first_unit; /* the warp's first coded band of gate or up */
    uint32_t own, other; /* shared addresses of what the lane gives, and of what the other warp's lane gives */
    uint32_t barrier;    /* of the two warps */
    uint32_t buffer; /* 0 or kTurnsBufferBytes: they have two buffers, so that one barrier a packed tile is enough */
};

/* The bytes of a buffer in which a warp gives two words4 a lane. */
static constexpr uint32_t kTurnsBufferBytes = 2 * 16 * TRF_LANES;

/* Selects words one by one: a choice among arrays would move them to local memory. */
static __device__ __forceinline__ trf_words4 trf_select_words(uint32_t first, const trf_words4 &a,
                                                              const trf_words4 &b) {
    return {{first ? a.word[0] : b.word[0], first ? a.word[1] : b.word[1], first ? a.word[2] : b.word[2],
             first ? a.word[3] : b.word[3]}};
}

/* Replaces the octets of the lane's four rows by those of two rows of gate and of up, in turns. */
static __device__ __forceinline__ void trf_take_turns(trf_pack_turns &turns, trf_words4 words[TRF_WRITE_ROWS]) {
    trf_words4 kept[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const trf_words4 given = trf_select_words(turns.is_up, words[i], words[2 + i]);
        kept[i] = trf_select_words(turns.is_up, words[2 + i], words[i]);
        trf_sts128(turns.own + turns.buffer + 16 * TRF_LANES * i,
                   make_uint4(given.word[0], given.word[1], given.word[2], given.word[3]));
    }
    trf_named_barrier_sync(turns.barrier, 2);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint4 v = trf_lds128(turns.other + turns.buffer + 16 * TRF_LANES * i);
        const trf_words4 theirs = {{v.x, v.y, v.z, v.w}};
        words[2 * i] = trf_select_words(turns.is_up, theirs, kept[i]);
        words[2 * i + 1] = trf_select_words(turns.is_up, kept[i], theirs);
    }
    turns.buffer ^= kTurnsBufferBytes;
}

/* ---- the sink of a walk ---- */

/* Packs what the walk decodes. It inherits from the sink that writes elements, for making these. kTurns: whether the
 * warp is one of two, which pack rows of gate and up in turns. */
template <class Codec, bool kZeroing, bool kTurns = false>
struct trf_pack_coded_sink : trf_write_sink<Codec, 2, false> {
    using Base = trf_write_sink<Codec, 2, false>;
    const trf_pack_coded_target &target;
    trf_pack_turns turns;
    trf_row_to_window rows[2];  /* the same for both rows, since there are no row offsets */
    uint32_t band;              /* which half of a packed band; as coded bands are counted, from the first one walked */
    uint32_t packed_band;       /* the packed layer's band */
    uint32_t packed_tile;       /* the current packed tile, counted in its band */
    uint32_t first_packed_tile; /* the slab's first packed tile */
    uint32_t count;             /* lane i: records of the tile half in the slab's i-th packed tile */
    uint8_t *packed_to;         /* where the current tile half is written */

    __device__ __forceinline__ trf_pack_coded_sink(const trf_device_view &view_, const trf_write_call &call_,
                                                   const trf_pack_coded_target &target_, const trf_pack_turns &turns_,
                                                   uint32_t lane_)
        : Base(view_, call_, nullptr, lane_, 0), target(target_), turns(turns_) {
        rows[0] = rows[1] = trf_row_to_window_of(target.packed.base, kZeroing, 0);
    }

    __device__ __forceinline__ void begin_slab(const trf_walk &walk) {
        Base::begin_elements(walk);
        band = kTurns ? kTileHalves * (walk.unit - turns.first_unit) + turns.is_up : walk.unit;
        packed_band = target.first_band + band / kTileHalves;
        packed_tile = first_packed_tile = walk.panel * (this->view.slab_cols / TRF_PACKED_TILE_COLS);
        count = 0;
        packed_to = const_cast<uint8_t *>(target.packed.tiles) +
                    TRF_PACKED_TILE_BYTES * trf_packed_tile_number(&target.packed, packed_band, packed_tile) +
                    band % kTileHalves * (kTileHalfSlabs * TRF_PACKED_SLAB_BYTES);
    }

    /* Packs a tile half. words: the octets of the lane's four rows, from the first one on. */
    __device__ __forceinline__ void pack_tile_half(const trf_words4 words[TRF_WRITE_ROWS]) {
        const uint32_t line_tile = packed_tile % TRF_PACKED_LINE_TILES;
        const uint64_t tile_half = (uint64_t)band * target.packed.tiles_per_band + packed_tile,
                       line =
                           (uint64_t)packed_band * target.packed.lines_per_band + packed_tile / TRF_PACKED_LINE_TILES;
        const trf_record_list list = {target.records + tile_half * kTileHalfRecords, kTileHalfRecords};
        uint32_t found = 0;
#pragma unroll
        for (uint32_t s = 0; s < kTileHalfSlabs; s++) {
            const uint32_t slab = band % kTileHalves * kTileHalfSlabs + s;
            const trf_packed_lane_place place =
                trf_packed_lane_place_of(packed_band, packed_tile - line_tile, line_tile, slab, this->lane, line);
            trf_words4 octets[2] = {words[2 * s], words[2 * s + 1]};
            found = trf_pack_slab<kZeroing>(target.packed, target.state, place, list, octets, rows, found,
                                            packed_to + s * TRF_PACKED_SLAB_BYTES);
        }
        if (this->lane == packed_tile - first_packed_tile)
            count = found;
        packed_tile++;
        packed_to += TRF_PACKED_TILE_BYTES;
    }

    __device__ __forceinline__ void step(const uint32_t (*reg)[8], const trf_walk &, uint32_t) {
        trf_words4 words[TRF_WRITE_ROWS];
#pragma unroll
        for (uint32_t r = 0; r < TRF_WRITE_ROWS; r++) {
            const uint32_t first = reg[0][trf_row_register(r, 0)], second = reg[0][trf_row_register(r, 1)];
            words[r] = {{this->kept[2 * r], this->kept[2 * r + 1], first, second}};
            this->kept[2 * r] = first;
            this->kept[2 * r + 1] = second;
        }
        if (this->odd) {
            if constexpr (kTurns)
                trf_take_turns(turns, words);
            pack_tile_half(words);
            this->col += TRF_STEP_PAIR_COLS;
        }
        this->odd = !this->odd;
    }

    /* A corrupt slab needs no care here: its layer has a fault. */
    __device__ __forceinline__ void end_slab(const trf_walk &, bool) {
        if (this->lane < packed_tile - first_packed_tile)
            target.counts[(uint64_t)band * target.packed.tiles_per_band + first_packed_tile + this->lane] = count;
    }
};

/* All warps of the block call it, and it has a barrier of the block. constants: two, which the block shares. */
template <class Codec, bool kZeroing>
static __device__ __forceinline__ void trf_pack_coded_slabs(const trf_pack_coded_args &args,
                                                            const uint8_t *shared_memory, uint2 *constants) {
    const uint32_t warps = blockDim.x / TRF_LANES, warp = threadIdx.x / TRF_LANES;
    const trf_slab_share own = {0, args.call.num_slabs, (uint64_t)blockIdx.x * warps + warp,
                                (uint64_t)gridDim.x * warps};
    trf_walk_share<Codec, kDefaultP<Codec>, TRF_TABLE_LOG>(
        args.view, args.call, own, shared_memory, constants, [&](uint32_t lane, uint32_t) {
            return trf_pack_coded_sink<Codec, kZeroing>(args.view, args.call, args.to, {}, lane);
        });
}

/* ---- exception lines ---- */

/* Returns the first weight of a line's first tile, in the window's scale, if it has no record. */
template <bool kZeroing>
static __device__ __forceinline__ uint32_t trf_first_formed(const trf_packed_view &view, const trf_line_place &at) {
    const uint8_t *const packed_tile =
        view.tiles + TRF_PACKED_TILE_BYTES * trf_packed_tile_number(&view, at.band, at.first_tile);
    uint32_t a[TRF_PACKED_LANE_REGISTERS];
    trf_packed_slab_form(a, *(const trf_words4 *)(packed_tile + trf_packed_slab_raw_at(0, 0)),
                         *(const trf_words2 *)(packed_tile + trf_packed_slab_index_at(0, 0)), kZeroing);
    return a[0] & 0xFFFF;
}

/* Copies the records of a lane's two lists to the line, from number `first` on. */
static __device__ __forceinline__ void trf_place_records(const trf_pack_coded_target &to,
                                                         const uint64_t tile_half[kTileHalves],
                                                         const uint32_t counts[kTileHalves], uint32_t first,
                                                         uint32_t *line) {
    for (uint32_t h = 0; h < kTileHalves; h++)
        for (uint32_t i = 0; i < counts[h]; i++)
            line[first++] = to.records[tile_half[h] * kTileHalfRecords + i];
}

/* next_stored: the number of the next stored tile, which lines without stored tiles have, too. */
template <bool kZeroing>
static __device__ __forceinline__ void trf_merge_records(const trf_pack_coded_target &to, uint32_t next_stored,
                                                         uint64_t number, uint32_t lane) {
    const trf_packed_view &view = to.packed;
    const trf_line_place at = trf_line_place_of(view, number);
    uint64_t tile_half[kTileHalves];
    uint32_t counts[kTileHalves] = {};
    for (uint32_t h = 0; h < kTileHalves; h++) {
        tile_half[h] =
            (uint64_t)(kTileHalves * (at.band - to.first_band) + h) * view.tiles_per_band + at.first_tile + lane;
        if (lane < at.tiles)
            counts[h] = to.counts[tile_half[h]];
    }
    const bool fits = counts[0] <= kTileHalfRecords && counts[1] <= kTileHalfRecords;
    const uint32_t scan = trf_warp_scan(counts[0] + counts[1], lane);
    const uint32_t records = __shfl_sync(kAllLanes, scan, TRF_LANES - 1);
    if (__ballot_sync(kAllLanes, !fits) || records > TRF_PACKED_MAX_RECORDS) {
        if (lane == 0 && to.total)
            atomicAdd((unsigned long long *)&to.total->num_left, 1ull);
        return;
    }
    uint32_t *const line = trf_line_to_write(view, number);
    trf_place_records(to, tile_half, counts, scan - counts[0] - counts[1], line);
    /* A record of the first weight has a place of all zeros, and is the first record of the first tile's upper half. */
    uint32_t first = trf_first_formed<kZeroing>(view, at);
    if (lane == 0 && counts[0] && to.records[tile_half[0] * kTileHalfRecords] >> 16 == 0)
        first = to.records[tile_half[0] * kTileHalfRecords];
    uint32_t word = __shfl_sync(kAllLanes, first, 0);
    if (lane == TRF_PACKED_COUNT_WORD)
        word = records;
    if (lane == TRF_PACKED_STORED_WORD)
        word = 0;
    if (lane == TRF_PACKED_FIRST_STORED_WORD)
        word = next_stored;
    if (lane >= records)
        line[lane] = word;
    if (lane == 0 && records && to.total)
        atomicAdd((unsigned long long *)&to.total->num_records, (unsigned long long)records);
}

template <bool kZeroing>
static __device__ __forceinline__ void trf_merge_records_of_lines(const trf_pack_coded_target &to) {
    const uint32_t next_stored = (uint32_t)to.state->num_stored;
    const uint32_t warp = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    const uint64_t first = (uint64_t)to.first_band * to.packed.lines_per_band,
                   end = first + (uint64_t)to.num_bands * to.packed.lines_per_band;
    for (uint64_t line = first + (uint64_t)blockIdx.x * kMergeWarps + warp; line < end;
         line += (uint64_t)gridDim.x * kMergeWarps)
        trf_merge_records<kZeroing>(to, next_stored, line, lane);
}

#endif
