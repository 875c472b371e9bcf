/* SPDX-License-Identifier: Apache-2.0 */
/* A warp's walk through a sequence of slabs, which is the core of every kernel that decodes coded tiles. Kernels differ
 * in the slabs that a warp gets, and in the sink to which the walk hands what it has decoded.
 *
 *   a tile: 256 x 256 weights                        a slab: 32 rows of slab_cols columns, 256 or 128
 *
 *       0            128           256                 chunk 0     chunk 1     chunk 2     chunk 3
 *     0 +-------------+-------------+               +-----------+-----------+-----------+-----------+
 *       |   slab 0    |   slab 1    | band 0        | step      |           |           |           |
 *    32 +-------------+-------------+          =>   | 0  1  2  3| 4  5  6  7| 8  9 10 11|12 13 14 15|  32 rows
 *       |   slab 2    |   slab 3    | band 1        |           |           |           |           |
 *    64 +-------------+-------------+               +-----------+-----------+-----------+-----------+
 *       :             :             :                 a chunk: 64 columns, 64 weights a lane;
 *   256 +-------------+-------------+                 a step: 16 columns, 16 weights a lane
 *     (slab_cols = 128; with 256 a band of a tile is one slab)
 *
 *   two steps: 32 columns by 32 rows; each lane has the same 8 neighbouring columns of four rows
 *
 *     column         0          8         16         24       31
 *     rows 0, 8, 16, 24   lane 0  |  lane 1  |  lane 2  |  lane 3     first step: columns 0 to 3 of the lane's 8,
 *     rows 1, 9, 17, 25   lane 4  |  lane 5  |  lane 6  |  lane 7     second step: columns 4 to 7
 *     ...                                                             reg[8] of a step in lane 0: row 0 columns 0, 1;
 *     rows 7, 15, 23, 31  lane 28 |  lane 29 |  lane 30 |  lane 31    8: 0, 1; 0: 2, 3; 8: 2, 3; then rows 16 and 24
 *
 * Each warp works alone, on one slab or on two at a time, one below the other (rows 64u and 64u + 32): two chains of
 * states hide each other's latency, and share x. In each step a lane decodes, from its own rANS stream, four times four
 * weights of a slab, and puts them together with their raw bits. Everything comes through shared memory, by cp.async of
 * 16 bytes:
 *
 *     8-bit plane     a ring of four places of a step each     copied three steps ahead
 *     narrow planes   one or two buffers of a chunk each       copied with the chunk's first step
 *     rANS streams    two buffers of a slab each               copied with the slab's first chunk
 *
 *     current step           0       1       2       3       4     At step k a lane waits for its copies of that step,
 *     its place             [0]     [1]     [2]     [3]     [0]    loads its 16 bytes, starts the copy of step k + 3
 *     copy that starts    3 > [3] 4 > [0] 5 > [1] 6 > [2] 7 > [3]  to the place that step k - 1 has left, and decodes.
 *
 * The words of a lane's rANS stream begin at one end of what the two lanes of its lane pair share, and those of the
 * other lane at the other end, so the rANS streams of a whole slab must be there when the lane begins. From the planes
 * each lane copies what it reads itself, so that waiting for its own copies is enough; for rANS streams the warp
 * synchronizes. Where space is short, the ring has two places, and there is one narrow buffer: both are filled again
 * once they have been read.
 *
 * Shared memory of a block, in bytes (trf_smem_layout), with rans_bytes = the bytes of the layer's longest rANS
 * streams of a slab:
 *
 *     decode table               65,536 or 32,768
 *     masks of lane pairs           512
 *     guard                         544   a corrupt rANS stream leads no lane beyond it
 *     for each warp and slab      2,048   ring of the 8-bit plane: 4 places of 32 lanes of 16 bytes (short: 1,024)
 *                    + narrow_bytes      narrow planes: 256 for each raw bit in them, 512 where one of them has 4 bits
 *                    + 2 rans_bytes      rANS streams
 *     for each warp                       what the kernel adds
 *     guard                         544
 *
 * With bf16 quads (planes of 8 and of 2 bits) and rans_bytes = 912, as normally distributed weights of a layer of
 * 4096 x 4096 have it, a slab takes 2,048 + 512 + 1,824 = 4,384 bytes; 16 warps of one slab and the larger table take
 * 137,280. */
#ifndef TRF_SLAB_WALK_CUH
#define TRF_SLAB_WALK_CUH

#include "trf_rans_stream.cuh"
#include "trf_slab_prefetcher.cuh"
#include "trf_smem_table.cuh"

/* ---- the walk, step by step ---- */

/* What a walk reads and never changes. masks: shared address of what trf_build_lane_pair_masks has built. */
template <int kP, int kLog, class UnitOrder> struct trf_walk_inputs {
    const trf_device_view &view;
    const trf_smem_layout &smem;
    const trf_int_planes &planes;
    const trf_rans_params<kP, kLog> &params;
    const UnitOrder &unit_order;
    uint32_t masks, lane;
};

/* The slabs that a warp is decoding. */
template <int kSlabs> struct trf_open_slabs {
    trf_rans_stream rans_stream[kSlabs]; /* the lane's */
    trf_exceptions exceptions[kSlabs];
    uint32_t last_exception; /* exceptions of step k are those up to k << 28 | 0x0FFFFFFF */
};

/* How many groups of cp.async are committed after those of a step, at the time that the step's are waited for. */
template <class Codec, class Prefetcher, class Sink>
constexpr int kPendingCopies = (Codec::kHasPlane8 ? Prefetcher::kAhead - 1 : 0) + Sink::kCopiesX;

/* Begins the lanes' rANS streams, which are in shared memory, and the cursors on exceptions. */
template <int kSlabs, int kRingSteps, class Inputs>
static __device__ __forceinline__ void
trf_begin_rans_streams(trf_open_slabs<kSlabs> &open, trf_prefetcher<kSlabs, kRingSteps> &prefetcher, const Inputs &in) {
#pragma unroll
    for (int s = 0; s < kSlabs; s++) {
        const uint32_t at = prefetcher.address - 16 * in.lane + s * in.smem.slab_bytes + in.smem.rans_streams +
                            prefetcher.read_buffer * in.smem.rans_bytes;
        const uint32_t count =
            min(trf_lds16(at + TRF_RANS_EXCEPTION_COUNT_OFFSET), (prefetcher.bytes[s] - TRF_RANS_FIXED_BYTES) / 4);
        trf_lane_begin(open.rans_stream[s], in.params, at, prefetcher.bytes[s], count, in.masks, in.lane);
        trf_exceptions_begin(open.exceptions[s], at, count);
    }
    prefetcher.read_buffer ^= 1;
    open.last_exception = 0x0FFFFFFF;
}

/* Lets the sink start its own copies, before step k of a chunk. chunks: those left of the slab, including this one. */
template <int kSlabs, int kRingSteps, class Sink>
static __device__ __forceinline__ void trf_begin_step(const trf_prefetcher<kSlabs, kRingSteps> &prefetcher,
                                                      uint32_t chunks, int k, Sink &sink) {
    if (k % 2 == 0)
        sink.begin_step_pair(k / 2);
    if constexpr (!trf_prefetcher<kSlabs, kRingSteps>::kRefillAfterRead) {
        if (k == 2 && chunks > 1)
            sink.prefetch_chunk();
        else if (k == 2 && prefetcher.bytes[0])
            sink.prefetch_slab(prefetcher.entered);
    }
    if (Sink::kCopiesX && k % 2 == 0)
        trf_cp_async_commit();
}

/* Waits until the planes of step k of a chunk are in shared memory, and loads the lane's words of them. */
template <class Codec, class Sink, int kSlabs, int kRingSteps, class Inputs>
static __device__ __forceinline__ void trf_load_step(const trf_prefetcher<kSlabs, kRingSteps> &prefetcher,
                                                     const Inputs &in, int k, uint4 *plane8, trf_narrow_words *narrow) {
    constexpr uint32_t kRingBytes = Codec::kHasPlane8 ? kRingSteps * kStepBytes : 0;
    constexpr int kPending = kPendingCopies<Codec, trf_prefetcher<kSlabs, kRingSteps>, Sink>;
    if (Codec::kHasPlane8 || k == 0)
        trf_cp_async_wait<kPending>();
    else if (Sink::kCopiesX && k == 2) /* the copies of step 1 may still be on their way */
        trf_cp_async_wait<kPending + 1>();
#pragma unroll
    for (int s = 0; s < kSlabs; s++) {
        const uint32_t address = prefetcher.address + s * in.smem.slab_bytes;
        if (Codec::kHasPlane8)
            plane8[s] = trf_lds128(address + k % kRingSteps * kStepBytes);
        trf_load_narrow<Codec>(narrow[s], address + kRingBytes + prefetcher.read_narrow, in.lane, k, in.planes);
    }
}

/* Starts the copies that are due at step k of a chunk: those for the step that is kAhead steps later. */
template <class Codec, int kSlabs, int kRingSteps, class Inputs>
static __device__ __forceinline__ void trf_prefetch_ahead(trf_prefetcher<kSlabs, kRingSteps> &prefetcher,
                                                          const Inputs &in, int k) {
    using Prefetcher = trf_prefetcher<kSlabs, kRingSteps>;
    if (k == Prefetcher::kEnterStep)
        trf_enter_chunk<Codec>(prefetcher, in.view, in.smem, in.unit_order, in.lane);
    if (Codec::kHasPlane8)
        trf_prefetch_step<Codec>(prefetcher, in.smem, (k + Prefetcher::kAhead) % 4, in.lane, in.planes);
    else if (k == Prefetcher::kEnterStep)
        trf_prefetch_step<Codec>(prefetcher, in.smem, 0, in.lane, in.planes);
}

/* Decodes step k of a chunk: four times four weights of each slab, to reg[kSlabs][8] as trf_build_four leaves them.
 * Slabs take turns symbol by symbol, so that their chains of states overlap. */
template <class Codec, int kSlabs, class Inputs>
static __device__ __forceinline__ void trf_decode_column_step(trf_open_slabs<kSlabs> &open, const Inputs &in,
                                                              const uint4 *plane8, const trf_narrow_words *narrow,
                                                              int k, uint32_t (*reg)[8]) {
#pragma unroll
    for (int g = 0; g < 4; g++) {
        uint32_t x[kSlabs][2] = {};
#pragma unroll
        for (int i = 0; i < Codec::kSymbols; i++)
#pragma unroll
            for (int s = 0; s < kSlabs; s++)
                x[s][i] = trf_lane_decode_step<Codec>(open.rans_stream[s], in.params);
#pragma unroll
        for (int s = 0; s < kSlabs; s++) {
            const uint4 &words = plane8[s];
            const uint32_t word = g == 0 ? words.x : g == 1 ? words.y : g == 2 ? words.z : words.w;
            trf_build_four<Codec>(reg[s] + 2 * g, x[s][0], x[s][1], word, narrow[s], k, g, in.planes);
        }
    }
}

/* Puts the step's exceptions into reg[kSlabs][8], and moves the cursors to those of the next step. */
template <int kSlabs, class Sink>
static __device__ __forceinline__ void trf_patch_step(trf_open_slabs<kSlabs> &open, const trf_walk &walk, uint32_t lane,
                                                      const Sink &sink, uint32_t (*reg)[8]) {
    trf_exceptions *const exceptions = open.exceptions;
    if ((kSlabs == 2 ? min(exceptions[0].next, exceptions[kSlabs - 1].next) : exceptions[0].next) <
        open.last_exception) {
#pragma unroll
        for (int s = 0; s < kSlabs; s++)
#pragma unroll 1
            while (exceptions[s].next < open.last_exception) {
                const uint32_t exception = exceptions[s].next;
                trf_patch_exception(reg[s], exception, sink.exception_bits(s, exception, walk), lane);
                trf_exceptions_advance(exceptions[s]);
            }
    }
    open.last_exception += 1u << 28;
}

/* Decodes a chunk, which is four steps. chunks: those left of the slab, including this one; first_step: the chunk's
 * first step in the slab: 0, 4, 8 or 12. */
template <class Codec, int kSlabs, int kRingSteps, class Inputs, class Sink>
static __device__ __forceinline__ void
trf_walk_chunk(trf_open_slabs<kSlabs> &open, trf_prefetcher<kSlabs, kRingSteps> &prefetcher, const Inputs &in,
               const trf_walk &walk, uint32_t chunks, uint32_t first_step, Sink &sink) {
    using Prefetcher = trf_prefetcher<kSlabs, kRingSteps>;
    trf_narrow_words narrow[kSlabs] = {};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint4 plane8[kSlabs] = {};
        uint32_t reg[kSlabs][8];
        trf_begin_step(prefetcher, chunks, k, sink);
        trf_load_step<Codec, Sink>(prefetcher, in, k, plane8, narrow);
        if (!Prefetcher::kRefillAfterRead)
            trf_prefetch_ahead<Codec>(prefetcher, in, k);
        trf_decode_column_step<Codec>(open, in, plane8, narrow, k, reg);
        if (Prefetcher::kRefillAfterRead)
            trf_prefetch_ahead<Codec>(prefetcher, in, k);
#pragma unroll
        for (int s = 0; s < kSlabs; s++)
            sink.complete_fragments(reg[s]);
        if constexpr (Codec::kSpread)
#pragma unroll
            for (int s = 0; s < kSlabs; s++)
                sink.scale_fragments(s, reg[s]);
        trf_patch_step(open, walk, in.lane, sink, reg);
        if (Sink::kCopiesX && Codec::kHasPlane8 && k == 0 && first_step == 0) /* waits for what prefetch_slab started */
            trf_cp_async_wait<kPendingCopies<Codec, Prefetcher, Sink> - 1>();
        sink.step(reg, walk, first_step + k);
    }
    prefetcher.read_narrow ^= trf_narrow_stride(Codec::raw(in.planes.raw_bits), kRingSteps);
}

/* Whether the slabs are what was encoded, as far as their rANS streams show; if not, notes their tile as corrupt. */
template <int kSlabs, class Inputs>
static __device__ __forceinline__ bool trf_slab_verdict(const trf_open_slabs<kSlabs> &open, const Inputs &in,
                                                        const trf_walk &walk) {
    bool good = true;
#pragma unroll
    for (int s = 0; s < kSlabs; s++)
        good &= trf_lane_good(open.rans_stream[s], in.params);
    good = __all_sync(0xFFFFFFFFu, good);
    if (!good && in.lane == 0)
        trf_note_slab_fault(in.view, kSlabs * walk.unit, walk.panel);
    return good;
}

/* ---- the walk ----
 * It makes these calls of the sink for each slab of a warp's walk that is there (stored tiles have none), in order, up
 * to the slabs of unit last_unit:
 *   sink.begin_slab(walk)
 *   sink.begin_step_pair(step_pair)         before each two steps; step_pair: 0 or 1, of a chunk
 *   sink.prefetch_chunk()                   two steps before another chunk of the slab begins, or
 *   sink.prefetch_slab(walk)                before the first one of another slab does (neither with the short ring)
 *   sink.complete_fragments(reg)            turns reg[8] in place from what trf_build_four leaves (fragments; int, and
 *                                           fp8 unless it is decoded as F16: the four byte words in reg[0, 2, 4, 6])
 *                                           into what step is to get
 *   sink.scale_fragments(s, reg)            after that, only of spread codes (trf_codec_config): multiplies those of
 *                                           slab s by their scales
 *   sink.exception_bits(s, exception, walk) for each exception of the step in slab s: the 16 bits that take its place
 *   sink.step(reg, walk, k)                 reg[kSlabs][8], exceptions in place; k: 0 to 15
 *   sink.end_slab(walk, good)
 * A unit is kSlabs bands. Sink::kCopiesX: the sink copies x (activations) itself; begin_step_pair, prefetch_chunk and
 * prefetch_slab start copies, which the walk commits; they are there for the steps after the next begin_step_pair.
 *
 * masks: shared address of what trf_build_lane_pair_masks leaves. All lanes of the warp call it. */
template <class Codec, int kSlabs, int kRingSteps, int kP, int kLog, class UnitOrder, class Sink>
static __device__ __forceinline__ void
trf_walk_slabs(const trf_device_view &view, const trf_smem_layout &smem, const trf_int_planes &planes,
               trf_prefetcher<kSlabs, kRingSteps> &prefetcher, const trf_rans_params<kP, kLog> &params, uint32_t masks,
               const UnitOrder &unit_order, uint32_t last_unit, uint32_t lane, Sink &sink) {
    const trf_walk_inputs<kP, kLog, UnitOrder> in = {view, smem, planes, params, unit_order, masks, lane};
#pragma unroll 1
    while (prefetcher.bytes[0] && prefetcher.entered.unit <= last_unit) {
        const trf_walk walk = prefetcher.entered;
        uint32_t chunks = prefetcher.chunks_left, first_step = 0;
        trf_open_slabs<kSlabs> open;
        sink.begin_slab(walk);
        trf_cp_async_wait<kPendingCopies<Codec, trf_prefetcher<kSlabs, kRingSteps>, Sink>>();
        __syncwarp();
        trf_begin_rans_streams(open, prefetcher, in);
#pragma unroll 1
        do {
            trf_walk_chunk<Codec>(open, prefetcher, in, walk, chunks, first_step, sink);
            first_step += 4;
        } while (--chunks);
        sink.end_slab(walk, trf_slab_verdict(open, in, walk));
    }
}

#endif
