/* SPDX-License-Identifier: Apache-2.0 */
/* Multiplies by packed experts, BF16 or FP8, by wgmma on compute capability 9.0, in one launch over the experts that
 * have tokens. The structure is that of trf_packed_wgmma.cuh, whose picture holds here, too: W is operand A, formed in
 * registers; x is operand B, in shared memory. A tile is 128 rows of an expert's W by 8 to 256 of its slots; blocks
 * stay, and find out by themselves which tiles there are (trf_moe_tables.cuh).
 *
 * A kernel has several classes of tiles, by how many slots they have: {8, 16, 32, 64}, {64, 128, 192} or {128, 192,
 * 256}. The wgmma instructions of a class have as many rows of x. (In one kernel with 64, 128, 192 and 256 ptxas orders
 * wgmma one after the other.)
 *
 * TRF_MOE_64 is for few tokens an expert, where memory is the limit: blocks share the k blocks of all tiles evenly, and
 * three warps gather rows of x from where they lie (cp.async, which takes row after row; a bulk copy for each row of
 * 128 bytes would take 80 clocks in the copy engine). With the other kernels, for which rows of x have been sorted,
 * TMA brings x in boxes of 64 slots, and only the tiles that are left over are shared. */
#ifndef TRF_MOE_PRODUCT_CUH
#define TRF_MOE_PRODUCT_CUH

#include "trf_moe_sums.cuh"
#include "trf_moe_tables.cuh"
#include "trf_packed_wgmma.cuh"

/* How BF16 experts are formed that are all not zeroing, or of which some may be; and FP8 experts, as they are or in
 * turns. */
typedef trf_packed_wgmma_bf16<trf_packed_former<false>> trf_moe_bf16;
typedef trf_packed_wgmma_bf16<trf_packed_either_former> trf_moe_bf16_may_zero;
typedef trf_packed_wgmma_fp8<true, true> trf_moe_fp8;
typedef trf_packed_wgmma_fp8<true, true, true> trf_moe_fp8_in_turns;

#if TRF_HAS_SM_90A

/* ---- producers ---- */

/* A view of an expert with what the producer of weights needs. */
template <class Config>
static __device__ __forceinline__ trf_packed_view trf_moe_weights_of(const trf_moe_args &a,
                                                                     const trf_moe_tables<Config> &tables,
                                                                     uint32_t expert) {
    trf_packed_view view = a.shape;
    if constexpr (Config::kGathersX) {
        const ulonglong2 pointers = tables.pointers()[expert];
        view.tiles = (const uint8_t *)pointers.x;
        view.lines = (const uint32_t *)pointers.y;
    } else {
        view.tiles = a.experts[expert].tiles;
        view.lines = a.experts[expert].lines;
    }
    return view;
}

/* Fills the ring with weights, which do not wait for the kernel that may have made x. */
template <class Config>
static __device__ __forceinline__ void
trf_moe_produce_weights(const trf_moe_args &a, const trf_moe_tables<Config> &tables, const trf_moe_share &share,
                        uint32_t shared, uint32_t lane) {
    const uint64_t once = trf_policy_read_once(), again = trf_policy_read_again();
    /* phase 1: a wait on a barrier that was never used returns at once */
    trf_packed_ring<Config> ring = {shared, 0, 1};
#pragma unroll 1
    for (uint32_t number = 0; number < share.stints; number++) {
        const trf_moe_stint stint = share.stint(a, tables, number, lane);
        const trf_packed_view view = trf_moe_weights_of(a, tables, stint.expert);
        const uint64_t policy = stint.is_only_block ? once : again;
        const int32_t exponent = a.experts[stint.expert].base - TRF_PACKED_EXPONENT;
#pragma unroll 1
        for (uint32_t k_block = stint.begin; k_block < stint.end; k_block++, ring.next()) {
            trf_packed_take_stage(ring);
            if (k_block == stint.begin && lane == 0)
                *tables.told(number % Config::kStints) = {
                    stint.expert,      stint.row_tile,
                    stint.first,       stint.count,
                    stint.begin,       stint.end,
                    stint.shared_tile, trf_f32_from_bits((uint32_t)(exponent + 127) << 23)};
            trf_packed_wgmma_load_weights<Config>(view, stint.row_tile, k_block, stint.begin, ring, lane, policy);
        }
    }
    trf_wait_for_predecessor(); /* so that the successor knows that all kernels before this one are done */
    trf_allow_successor();
}

/* Fills the ring with boxes of x. */
template <class Config>
static __device__ __forceinline__ void trf_moe_produce_x(const trf_moe_args &a, const trf_moe_tables<Config> &tables,
                                                         const trf_moe_share &share, uint32_t shared, uint32_t lane) {
    if (lane == 0)
        trf_prefetch_map(&a.x_map);
    const uint64_t policy = trf_policy_keep();
    trf_packed_ring<Config> ring = {shared, 0, 1};
    trf_wait_for_predecessor();
#pragma unroll 1
    for (uint32_t number = 0; number < share.stints; number++) {
        const trf_moe_stint stint = share.stint(a, tables, number, lane);
        const uint32_t boxes = (stint.count + TRF_MOE_BOX_ROWS - 1) / TRF_MOE_BOX_ROWS;
        constexpr uint32_t kBoxBytes = TRF_MOE_BOX_ROWS * TRF_PACKED_X_BOX_ROW_BYTES;
#pragma unroll 1
        for (uint32_t k_block = stint.begin; k_block < stint.end; k_block++, ring.next()) {
            trf_packed_take_stage(ring);
            if (lane == 0) {
                trf_mbarrier_arrive_expect_tx(ring.full(), boxes * kBoxBytes);
                for (uint32_t box = 0; box < boxes; box++)
                    trf_tma_load_box(ring.stage() + Config::kXAt + box * kBoxBytes, &a.x_map,
                                     k_block * TRF_PACKED_X_BOX_COLS, stint.first + box * TRF_MOE_BOX_ROWS, ring.full(),
                                     policy);
            }
            __syncwarp();
        }
    }
}

/* Announces the stages of the last copies, but for those that may still be under way: kPending stages. */
template <class Config, uint32_t kPending>
static __device__ __forceinline__ void trf_moe_announce_gathered(trf_packed_ring<Config> &arrived) {
    trf_cp_async_wait<kPending>();
    trf_fence_async_proxy(); /* wgmma reads what the thread has written */
    trf_mbarrier_arrive(arrived.full());
    arrived.next();
}

/* Fills the ring with rows of x, wherever they lie. A thread copies 16 bytes of every 12th row. A stage is announced
 * when copies of a few more have been started, so that nobody waits for a single one. thread: among those of the warps
 * that gather. */
template <class Config>
static __device__ __forceinline__ void trf_moe_gather_x(const trf_moe_args &a, const trf_moe_tables<Config> &tables,
                                                        const trf_moe_share &share, uint32_t shared, uint32_t thread) {
    constexpr uint32_t kRowsAtOnce = TRF_MOE_GATHERING_WARPS * TRF_LANES / 8,
                       kTurns = (Config::kXRows + kRowsAtOnce - 1) / kRowsAtOnce, kPending = 3;
    static_assert(kPending < Config::kStages, "the stages that are not announced yet are not needed again");
    const uint32_t octet = thread % 8, first_row = thread / 8;
    trf_packed_ring<Config> ring = {shared, 0, 1}, arrived = {shared, 0, 0};
    uint32_t pending = 0;
    trf_wait_for_predecessor();
#pragma unroll 1
    for (uint32_t number = 0; number < share.stints; number++) {
        const trf_moe_stint stint = share.stint(a, tables, number, thread % TRF_LANES);
        const uint16_t *from[kTurns];
#pragma unroll
        for (uint32_t i = 0; i < kTurns; i++) {
            const uint32_t row = first_row + kRowsAtOnce * i;
            from[i] = row < stint.count ? a.x + (uint64_t)tables.x_row_of(a, stint.first + row) * a.x_stride + 8 * octet
                                        : nullptr;
        }
#pragma unroll 1
        for (uint32_t k_block = stint.begin; k_block < stint.end; k_block++, ring.next()) {
            const uint32_t col = k_block * TRF_PACKED_X_BOX_COLS;
            const bool is_there = col + 8 * octet < a.shape.cols;
            trf_mbarrier_wait(ring.empty(), ring.phase);
#pragma unroll
            for (uint32_t i = 0; i < kTurns; i++) {
                const uint32_t row = first_row + kRowsAtOnce * i;
                if (from[i])
                    trf_cp_async16_or_zeros(is_there,
                                            ring.stage() + Config::kXAt + TRF_PACKED_X_BOX_ROW_BYTES * row +
                                                16 * (octet ^ row % 8),
                                            is_there ? from[i] + col : from[i]);
            }
            trf_cp_async_commit();
            if (pending == kPending)
                trf_moe_announce_gathered<Config, kPending>(arrived);
            else
                pending++;
        }
    }
    for (; pending > 0; pending--)
        trf_moe_announce_gathered<Config, 0>(arrived);
}

/* ---- consumers ---- */

/* Does a stint with a class of its tiles. */
template <class Config, uint32_t kTokens>
static __device__ __forceinline__ void trf_moe_do_stint(const trf_moe_args &a, const trf_moe_told_stint &stint,
                                                        const trf_moe_share &share, const trf_packed_wgmma_warp &warp,
                                                        trf_packed_ring<Config> &at) {
    typedef trf_moe_class<Config, kTokens> Class;
    trf_packed_ring<Class> ring = {at.shared, at.index, at.phase};
    const trf_packed_view &view = a.experts[stint.expert];
    float sums[kTokens / 2] = {};
    const bool has_band = stint.row_tile * Config::kBands + warp.band() < a.shape.bands;
    if (has_band) {
        trf_packed_wgmma_multiply<Class>(view, warp, stint.begin, stint.end, ring, sums);
        if (Config::kGathersX)
            trf_packed_give_stage_back(ring.previous().empty(), warp.lane);
    } else {
        trf_packed_wgmma_skip<Class>(stint.begin, stint.end, ring, warp.lane);
    }
    at.index = ring.index;
    at.phase = ring.phase;
    if (has_band && trf_moe_complete_sums<Class>(a, stint, share, warp, sums))
        trf_moe_write<Class>(a, stint, warp, at.shared + Config::kSumsAt + warp.warp * TRF_ACC_TILE_BYTES,
                             ring.previous().stage() + warp.band() * Config::kBandBytes, sums);
    if (has_band && !Config::kGathersX) /* the sums went through its last stage */
        trf_packed_give_stage_back(ring.previous().empty(), warp.lane);
}

/* Reads what the producer of weights tells of the next stint, once its first stage is full. All lanes call it. */
template <class Config>
static __device__ __forceinline__ trf_moe_told_stint trf_moe_next_stint(const trf_moe_tables<Config> &tables,
                                                                        const trf_packed_ring<Config> &ring,
                                                                        uint32_t number) {
    trf_mbarrier_wait(ring.full(), ring.phase);
    const trf_moe_told_stint &told = *tables.told(number % Config::kStints);
    /* The shuffles tell the compiler that these are the same in all lanes: wgmma needs uniform registers. */
    return {trf_moe_uniform(told.expert),      trf_moe_uniform(told.row_tile),
            trf_moe_uniform(told.first),       trf_moe_uniform(told.count),
            trf_moe_uniform(told.begin),       trf_moe_uniform(told.end),
            trf_moe_uniform(told.shared_tile), told.factor};
}

template <class Config>
static __device__ __forceinline__ void trf_moe_consume(const trf_moe_args &a, const trf_moe_tables<Config> &tables,
                                                       const trf_moe_share &share, uint32_t shared,
                                                       const trf_packed_wgmma_warp &warp) {
    trf_packed_ring<Config> ring = {shared, 0, 0};
    const uint32_t stints = trf_moe_uniform(share.stints);
#pragma unroll 1
    for (uint32_t number = 0; number < stints; number++) {
        const trf_moe_told_stint stint = trf_moe_next_stint(tables, ring, number);
        if constexpr (Config::kNumber == TRF_MOE_64) {
            if (stint.count <= 8)
                trf_moe_do_stint<Config, 8>(a, stint, share, warp, ring);
            else if (stint.count <= 16)
                trf_moe_do_stint<Config, 16>(a, stint, share, warp, ring);
            else if (stint.count <= 32)
                trf_moe_do_stint<Config, 32>(a, stint, share, warp, ring);
            else
                trf_moe_do_stint<Config, 64>(a, stint, share, warp, ring);
        } else if constexpr (Config::kNumber == TRF_MOE_192) {
            if (stint.count <= 64)
                trf_moe_do_stint<Config, 64>(a, stint, share, warp, ring);
            else if (stint.count <= 128)
                trf_moe_do_stint<Config, 128>(a, stint, share, warp, ring);
            else
                trf_moe_do_stint<Config, 192>(a, stint, share, warp, ring);
        } else {
            if (stint.count <= 128)
                trf_moe_do_stint<Config, 128>(a, stint, share, warp, ring);
            else if (stint.count <= 192)
                trf_moe_do_stint<Config, 192>(a, stint, share, warp, ring);
            else
                trf_moe_do_stint<Config, 256>(a, stint, share, warp, ring);
        }
    }
}

/* ---- the block ---- */

/* A stage is full when the producer of weights and all that bring x have arrived, and so have their bytes. */
template <class Config> static __device__ __forceinline__ void trf_moe_set_ring_up(uint32_t shared) {
    for (trf_packed_ring<Config> ring = {shared, 0, 0}; ring.phase == 0; ring.next()) {
        trf_mbarrier_init(ring.full(), 1 + (Config::kGathersX ? TRF_MOE_GATHERING_WARPS * TRF_LANES : 1));
        trf_mbarrier_init(ring.empty(), TRF_PACKED_ARRIVALS_A_WARP * Config::kWarps);
    }
    trf_mbarrier_publish();
    trf_fence_async_proxy();
}

/* memory, shared: trf_moe_shared_bytes, at a multiple of 1024. */
template <class Config>
static __device__ __forceinline__ void trf_moe_block(const trf_moe_args &a, uint8_t *memory, uint32_t shared) {
    /* The shuffle tells the compiler that the warp's number is the same in all lanes: wgmma needs uniform registers. */
    const uint32_t warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / TRF_LANES, 0), lane = threadIdx.x % TRF_LANES;
    const trf_moe_tables<Config> tables = {memory};
    if (threadIdx.x == 0)
        trf_moe_set_ring_up<Config>(shared);
    tables.make(a);
    const trf_moe_share share = trf_moe_share::of(a, tables);
    if (warp < Config::kWarps) {
        trf_take_registers<Config::kRegisters>();
        trf_moe_consume<Config>(a, tables, share, shared, {warp, lane});
        return;
    }
    trf_give_registers<Config::kProducerRegisters>();
    if (warp == Config::kWarps)
        trf_moe_produce_weights(a, tables, share, shared, lane);
    else if constexpr (Config::kGathersX)
        trf_moe_gather_x(a, tables, share, shared, threadIdx.x - 32 * (Config::kWarps + 1));
    else if (warp == Config::kWarps + 1)
        trf_moe_produce_x(a, tables, share, shared, lane);
}

#endif

#endif
