/* SPDX-License-Identifier: Apache-2.0 */
/* Packs all coded experts of a tensor, or the gates of one tensor and the up projections of another, in one launch. The
 * bodies of the two kernels are here, and also run on the CPU in emulated warps. They are those of
 * trf_pack_coded_slabs.cuh, in blocks that go from expert to expert as trf_decode_experts.cu has it: an expert is cut
 * into pieces of one slab for each warp, and blocks have equal shares of the pieces.
 *
 * Rows of gate and up in turns are packed by pairs of warps. One walks a slab of gate, the other the same slab of up,
 * in step. Each packed slab needs 8 rows of both, and a lane has all that its place in the packed slab needs in the
 * same lane of the two warps:
 *
 *     gate, rows 0 to 31 | up, rows 0 to 31         packed tile, 64 rows
 *       g0 (8 rows)      |   u0                     g0 u0  packed slab 0 \ packed by the warp of gate,
 *       g1               |   u1                     g1 u1  packed slab 1 / which is given u0 and u1
 *       g2               |   u2                     g2 u2  packed slab 2 \ packed by the warp of up,
 *       g3               |   u3                     g3 u3  packed slab 3 / which is given g2 and g3
 *
 * They exchange these rows through shared memory, with one barrier of two warps for each packed tile. Gate and up have
 * a decode table each, so each has a part of the shared memory that a walk takes, for half of the warps. All slabs are
 * there (trf_pack_coded_experts_refusal), so both warps of a pair take as many steps.
 *
 * Shared memory: what the walk takes, with the larger table; in turns twice what half of the warps take, and 4,096
 * bytes for each pair, 224 KB with 16 warps of bf16 quads. Then what the block knows of the expert. */
#ifndef TRF_PACK_CODED_EXPERTS_CUH
#define TRF_PACK_CODED_EXPERTS_CUH

#include "trf_pack_coded_experts_launch.h"
#include "trf_pack_coded_slabs.cuh"

static constexpr uint32_t kTurnsParts = 2, kPairBytes = kTurnsParts * 2 * kTurnsBufferBytes;
static constexpr uint32_t kFirstPairBarrier = 1;

/* How a launch uses a block. */
struct trf_pack_experts_block {
    uint32_t warps;       /* in turns, of each of the two parts */
    trf_smem_layout smem; /* of a part */
    uint32_t part_bytes, open_at, shared_bytes;
};

/* The kernels take it by value. */
struct trf_pack_experts_args {
    trf_write_call call; /* of an expert; in turns, of its gate or up projection alone */
    trf_pack_experts_block block;
    const trf_expert *experts[kTurnsParts]; /* [count]: those of gate and of up; they may be the same */
    uint32_t first_slab[kTurnsParts];
    uint32_t count, pieces;     /* pieces: of each expert */
    trf_packed_view packed;     /* expert 0's, but for its window */
    uint64_t packed_stride;     /* bytes from an expert's lines and tiles to the next one's */
    trf_packed_view *views;     /* [count] */
    uint64_t tile_halves;       /* of an expert */
    uint32_t *counts, *records; /* lists of expert 0; the others' follow */
    trf_pack_expert_result *results;
    uint16_t windows[TRF_PACK_EXPERTS_MAX];
};

/* What a block knows of the expert that it packs, in shared memory. */
struct trf_open_expert {
    trf_device_view views[kTurnsParts];
    trf_pack_coded_target to;
};

/* ---- planning, on the host ---- */

static inline trf_pack_experts_block trf_pack_experts_block_of(uint32_t raw_bits, uint32_t max_rans_bytes,
                                                               uint32_t warps, bool turns) {
    trf_pack_experts_block block;
    const uint32_t parts = turns ? kTurnsParts : 1;
    block.warps = warps;
    block.smem = trf_smem_layout_of(raw_bits, max_rans_bytes, warps, 1, TRF_TABLE_LOG, 0, 0, TRF_RING_STEPS);
    block.part_bytes = (block.smem.total + 1023) / 1024 * 1024;
    block.open_at = parts * block.part_bytes + (turns ? warps * kPairBytes : 0);
    block.shared_bytes = block.open_at + (uint32_t)((sizeof(trf_open_expert) + 15) / 16 * 16);
    return block;
}

static inline uint64_t trf_pack_expert_lines_bytes(const trf_packed_view &packed) {
    return trf_device_align((uint64_t)packed.bands * packed.lines_per_band * TRF_PACKED_LINE_BYTES);
}
static inline uint64_t trf_pack_expert_stride(const trf_packed_view &packed) {
    return trf_pack_expert_lines_bytes(packed) + (uint64_t)packed.bands * packed.tiles_per_band * TRF_PACKED_TILE_BYTES;
}

/* An expert's view, but for where it lies and its window. */
static inline trf_packed_view trf_pack_expert_shape(uint32_t rows, uint32_t cols) {
    trf_packed_view view = {};
    view.rows = rows;
    view.cols = cols;
    view.bands = (rows + TRF_PACKED_TILE_ROWS - 1) / TRF_PACKED_TILE_ROWS;
    view.tiles_per_band = (cols + TRF_PACKED_TILE_COLS - 1) / TRF_PACKED_TILE_COLS;
    view.lines_per_band = (view.tiles_per_band + TRF_PACKED_LINE_TILES - 1) / TRF_PACKED_LINE_TILES;
    return view;
}

static inline trf_packed_view trf_pack_experts_first(uint32_t count, uint32_t rows, uint32_t cols,
                                                     const uint8_t *memory) {
    trf_packed_view view = trf_pack_expert_shape(rows, cols);
    const uint8_t *const at = memory + trf_device_align(count * sizeof(trf_packed_view));
    view.lines = (const uint32_t *)at;
    view.tiles = at + trf_pack_expert_lines_bytes(view);
    view.stored = at; /* there are none */
    return view;
}

static inline uint64_t trf_pack_experts_bytes(uint32_t count, uint32_t rows, uint32_t cols) {
    return trf_device_align(count * sizeof(trf_packed_view)) +
           count * trf_pack_expert_stride(trf_pack_expert_shape(rows, cols)) +
           trf_device_align(count * trf_count_tile_halves(rows, cols) * (1 + kTileHalfRecords) * sizeof(uint32_t));
}

/* The rows of gate, or of up, in an expert of `rows`; in other orders all rows. */
static inline uint32_t trf_pack_experts_part_rows(const trf_experts_to_pack *e) {
    return e->rows == TRF_PACK_ROWS_OF_HALVES ? e->view->rows / 2 : e->view->rows;
}

static inline trf_pack_experts_args trf_pack_experts_args_of(const trf_experts_to_pack *e,
                                                             const trf_pack_experts_block &block) {
    const bool turns = e->rows != TRF_PACK_ROWS_AS_THEY_ARE;
    const uint32_t rows = trf_pack_experts_part_rows(e);
    const trf_decode_choice chosen = {1, 0, TRF_METHOD_VECTOR, block.smem};
    trf_pack_experts_args args = {};
    trf_device_view part = *e->view;
    part.rows = rows;
    args.call = trf_write_call_of(&part, TRF_DECODE_ELEMENTS, &chosen);
    args.block = block;
    args.experts[0] = e->experts_dev;
    args.experts[1] = e->rows == TRF_PACK_ROWS_OF_TWO ? e->up_dev : e->experts_dev;
    args.first_slab[1] = e->rows == TRF_PACK_ROWS_OF_HALVES ? args.call.num_slabs : 0;
    args.count = e->count;
    args.pieces = (args.call.num_slabs + block.warps - 1) / block.warps;
    args.packed = trf_pack_experts_first(e->count, turns ? 2 * rows : rows, e->view->cols, e->memory);
    args.packed_stride = trf_pack_expert_stride(args.packed);
    args.views = (trf_packed_view *)e->memory;
    args.tile_halves = trf_count_tile_halves(args.packed.rows, args.packed.cols);
    args.counts = (uint32_t *)((uint8_t *)const_cast<uint32_t *>(args.packed.lines) + e->count * args.packed_stride);
    args.records = args.counts + e->count * args.tile_halves;
    args.results = e->results;
    for (uint32_t i = 0; i < e->count; i++)
        args.windows[i] = e->windows[i];
    return args;
}

/* ---- kernels ---- */

static __device__ __forceinline__ trf_pack_coded_target trf_pack_expert_target(const trf_pack_experts_args &a,
                                                                               uint32_t expert) {
    trf_pack_coded_target to;
    to.packed = a.packed;
    to.packed.lines = (const uint32_t *)((const uint8_t *)a.packed.lines + expert * a.packed_stride);
    to.packed.tiles = a.packed.tiles + expert * a.packed_stride;
    to.packed.stored = to.packed.tiles;
    to.packed.base = a.windows[expert] & 255;
    to.packed.zeroing = a.windows[expert] >> 8;
    to.first_band = 0;
    to.num_bands = a.packed.bands;
    to.counts = a.counts + expert * a.tile_halves;
    to.records = a.records + expert * a.tile_halves * kTileHalfRecords;
    to.total = a.results ? &a.results[expert].counts : nullptr;
    to.state = a.results ? &a.results[expert].state : nullptr;
    return to;
}

/* Fills in what the block knows of an expert, once it is done with the one before. */
static __device__ __forceinline__ void trf_open_expert_to_pack(const trf_pack_experts_args &a, uint32_t expert,
                                                               uint32_t parts, trf_open_expert &open) {
    constexpr uint32_t kWords = sizeof(trf_device_view) / 4;
    static_assert(sizeof(trf_device_view) % 4 == 0, "whole words");
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < parts * kWords; i += blockDim.x)
        reinterpret_cast<uint32_t *>(&open.views[i / kWords])[i % kWords] =
            __ldg(reinterpret_cast<const uint32_t *>(&a.experts[i / kWords][expert].view) + i % kWords);
    if (threadIdx.x == 0)
        open.to = trf_pack_expert_target(a, expert);
    __syncthreads();
}

/* Packs a block's slabs of an expert that lies as it is. num_slabs slabs from `first` on. */
template <class Codec, bool kZeroing>
static __device__ __forceinline__ void
trf_pack_expert_slabs(const trf_pack_experts_args &a, const trf_open_expert &open, uint32_t first, uint32_t num_slabs,
                      const uint8_t *shared_memory, uint2 *constants) {
    const trf_slab_share own = {first, num_slabs, threadIdx.x / TRF_LANES, a.block.warps};
    trf_walk_share<Codec, kDefaultP<Codec>, TRF_TABLE_LOG>(
        open.views[0], a.call, own, shared_memory, constants, [&](uint32_t lane, uint32_t) {
            return trf_pack_coded_sink<Codec, kZeroing>(open.views[0], a.call, open.to, {}, lane);
        });
}

/* Packs such slabs of gate and of up, in turns. constants: two for each part. */
template <class Codec, bool kZeroing>
static __device__ __forceinline__ void
trf_pack_expert_turns(const trf_pack_experts_args &a, const trf_open_expert &open, uint32_t first, uint32_t num_slabs,
                      const uint8_t *shared_memory, uint2 *constants) {
    constexpr int kP = kDefaultP<Codec>, kLog = TRF_TABLE_LOG;
    const uint32_t warp = threadIdx.x / TRF_LANES, is_up = warp >= a.block.warps, pair = warp - is_up * a.block.warps;
    const trf_device_view &view = open.views[is_up];
    const trf_slab_share own = {a.first_slab[is_up] + first, num_slabs, pair, a.block.warps};
    const auto build_constants = [&]() {
        for (uint32_t part = 0; part < kTurnsParts; part++) {
            const trf_table_slots<kP> table_source(open.views[part]);
            trf_build_constants<Codec, kP, kLog>(open.views[part], table_source,
                                                 trf_shared_address(shared_memory) + part * a.block.part_bytes,
                                                 a.call.smem, constants + 2 * part);
        }
    };
    trf_walk_part_share<Codec, kP, kLog>(
        view, a.call, own, pair, shared_memory + is_up * a.block.part_bytes, constants + 2 * is_up, build_constants,
        [&](uint32_t lane, uint32_t) {
            const uint32_t given =
                trf_shared_address(shared_memory) + kTurnsParts * a.block.part_bytes + pair * kPairBytes + 16 * lane;
            const trf_pack_turns turns = {is_up,
                                          a.first_slab[is_up] / a.call.regular_panels,
                                          given + is_up * 2 * kTurnsBufferBytes,
                                          given + (is_up ^ 1) * 2 * kTurnsBufferBytes,
                                          kFirstPairBarrier + pair,
                                          0};
            return trf_pack_coded_sink<Codec, kZeroing, true>(view, a.call, open.to, turns, lane);
        });
}

/* All threads of the block call it. constants: two for each part, which the block shares. */
template <class Codec, bool kTurns>
static __device__ __forceinline__ void trf_pack_coded_experts(const trf_pack_experts_args &a, uint8_t *shared_memory,
                                                              uint2 *constants) {
    trf_open_expert &open = *reinterpret_cast<trf_open_expert *>(shared_memory + a.block.open_at);
    const uint64_t all = (uint64_t)a.count * a.pieces, end = all * (blockIdx.x + 1) / gridDim.x;
    uint64_t piece = all * blockIdx.x / gridDim.x;
#pragma unroll 1
    while (piece < end) {
        const trf_expert_part part = trf_expert_part_of(a.call.num_slabs, a.pieces, piece, end);
        trf_open_expert_to_pack(a, part.expert, kTurns ? kTurnsParts : 1, open);
        const bool zeroing = open.to.packed.zeroing != 0;
        if (kTurns && zeroing)
            trf_pack_expert_turns<Codec, true>(a, open, part.slab, part.num_slabs, shared_memory, constants);
        else if (kTurns)
            trf_pack_expert_turns<Codec, false>(a, open, part.slab, part.num_slabs, shared_memory, constants);
        else if (zeroing)
            trf_pack_expert_slabs<Codec, true>(a, open, part.slab, part.num_slabs, shared_memory, constants);
        else
            trf_pack_expert_slabs<Codec, false>(a, open, part.slab, part.num_slabs, shared_memory, constants);
        piece += part.pieces;
    }
}

/* Makes the exception lines and the views. */
static __device__ __forceinline__ void trf_merge_records_of_experts(const trf_pack_experts_args &a) {
    const uint32_t warp = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    const uint64_t lines = (uint64_t)a.packed.bands * a.packed.lines_per_band, end = a.count * lines;
    for (uint64_t line = (uint64_t)blockIdx.x * kMergeWarps + warp; line < end; line += gridDim.x * kMergeWarps) {
        const uint32_t expert = (uint32_t)(line / lines);
        const trf_pack_coded_target to = trf_pack_expert_target(a, expert);
        if (line % lines == 0 && lane == 0)
            a.views[expert] = to.packed;
        if (to.packed.zeroing)
            trf_merge_records<true>(to, 0, line % lines, lane);
        else
            trf_merge_records<false>(to, 0, line % lines, lane);
    }
}

#endif
