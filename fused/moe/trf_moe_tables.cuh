/* SPDX-License-Identifier: Apache-2.0 */
/* What a block finds out before it multiplies: which slots each expert has, which tiles there are, and which of them
 * are the block's. Every block works this out by itself, from the same numbers, since only the device has them.
 *
 * A *token block* is up to kXRows slots of one expert. If an expert's slots do not fill all of its token blocks, the
 * last few have 64 slots less each, since a kernel has no class of tiles that would be small enough for what is left,
 * or takes more time for it: 1,040 slots are blocks of 256, 256, 192, 192 and 144 rather than of 256, 256, 256, 256
 * and 16.
 *
 * With few tokens an expert (the kernel that gathers x), tiles are in the order of their row tiles: the first ones of
 * all token blocks, then the second ones. So a block has tiles of many experts, and the few tiles that have the most
 * tokens, which take longest, are spread over all blocks.
 *
 * With many, the tiles of an expert follow each other in runs of TRF_MOE_RUN row tiles: within a run, first all row
 * tiles of the first token block, then those of the next. So blocks that are under way at once have few row tiles and
 * few tokens, and the L2 cache gives each of those to many blocks.
 *
 * Each block has the whole tiles b, b + blocks, ...; the k blocks of the tiles that are left, or of all tiles
 * (shares_all), are cut into one equal share for each block (trf_packed_handover.cuh). */
#ifndef TRF_MOE_TABLES_CUH
#define TRF_MOE_TABLES_CUH

#include "trf_moe_args.cuh"
#include "trf_moe_sort.cuh"
#include "trf_packed_ring.cuh"

#if TRF_HAS_SM_90A

/* The value that all lanes have, in a form in which the compiler knows that they have the same. */
static __device__ __forceinline__ uint32_t trf_moe_uniform(uint32_t v) { return __reduce_or_sync(0xFFFFFFFF, v); }

/* The slots of an expert. */
struct trf_moe_slots {
    uint32_t first, count;
};

/* What consumers are told of a stint by the producer of weights, so that they need not find it out themselves: while
 * they do not multiply, no memory is read once the ring is full. */
struct trf_moe_told_stint {
    uint32_t expert, row_tile, first, count, begin, end, shared_tile;
    float factor; /* takes the expert's sums out of the window's scale */
};
static_assert(sizeof(trf_moe_told_stint) == trf_moe_stint_bytes(), "as planned");

template <class Config> struct trf_moe_tables {
    uint8_t *memory; /* the block's shared memory */

    __device__ __forceinline__ uint16_t *blocks_before() const {
        return (uint16_t *)(memory + Config::kBlocksBeforeAt);
    }
    __device__ __forceinline__ uint32_t *first_slots() const { return (uint32_t *)(memory + Config::kFirstSlotsAt); }
    __device__ __forceinline__ uint16_t *slot_routes() const { return (uint16_t *)(memory + Config::kRoutesAt); }
    __device__ __forceinline__ ulonglong2 *pointers() const { return (ulonglong2 *)(memory + Config::kPointersAt); }

    __device__ __forceinline__ trf_moe_told_stint *told(uint32_t place) const {
        return (trf_moe_told_stint *)(memory + Config::kStintsAt) + place;
    }

    static __device__ __forceinline__ bool sorts(const trf_moe_args &a) { return Config::kGathersX && a.routes.ids; }

    /* The slots of an expert. What other kernels or the caller wrote is data: slots still lie below max_slots. */
    __device__ __forceinline__ trf_moe_slots slots_of(const trf_moe_args &a, uint32_t expert) const {
        if (sorts(a))
            return {first_slots()[expert], first_slots()[expert + 1] - first_slots()[expert]};
        const uint32_t first = min(a.first_slots[expert], a.max_slots),
                       end = min(a.first_slots[expert + 1], a.max_slots);
        return {first, end > first ? end - first : 0};
    }

    /* The row of x that a slot has. */
    __device__ __forceinline__ uint32_t x_row_of(const trf_moe_args &a, uint32_t slot) const {
        if (a.x_has_slots)
            return slot;
        return trf_quotient(sorts(a) ? slot_routes()[slot] : min(a.slot_routes[slot], a.max_slots - 1), a.routes.top_k);
    }

    /* The expert that has a token block, one of all. All lanes call it. */
    __device__ __forceinline__ uint32_t expert_of(uint32_t token_block, uint32_t lane) const {
        static_assert(TRF_MOE_MAX_EXPERTS == 16 * TRF_LANES, "two steps find it");
        const uint32_t sixteenth =
                           (uint32_t)__popc(__ballot_sync(0xFFFFFFFF, blocks_before()[16 * lane] <= token_block)) - 1,
                       in = (uint32_t)__popc(__ballot_sync(
                                0xFFFFFFFF, lane < 16 && blocks_before()[16 * sixteenth + lane] <= token_block)) -
                            1;
        return 16 * sixteenth + in;
    }

    /* Chunks that a warp sorts at most. */
    static constexpr uint32_t kWarps = TRF_MOE_THREADS / TRF_LANES,
                              kTurns = (TRF_MOE_OWN_ROUTES / TRF_MOE_CHUNK + kWarps - 1) / kWarps;

    /* Loads the experts of a lane's routes, in all chunks of its warp. */
    static __device__ __forceinline__ void load_experts(const trf_moe_args &a, uint32_t chunks, uint32_t warp,
                                                        uint32_t lane, uint32_t (&expert)[kTurns]) {
#pragma unroll
        for (uint32_t i = 0; i < kTurns; i++) {
            const uint32_t chunk = warp + kWarps * i, route = TRF_MOE_CHUNK * chunk + lane;
            expert[i] = chunk < chunks ? trf_moe_expert_of_route(&a.routes, route) : (uint32_t)TRF_MOE_NO_EXPERT;
        }
    }

    /* Makes the tables. All threads call it. */
    __device__ __forceinline__ void make(const trf_moe_args &a) const {
        const uint32_t experts = a.routes.experts, warp = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES,
                       chunks = sorts(a) ? (a.routes.count + TRF_MOE_CHUNK - 1) / TRF_MOE_CHUNK : 0;
        uint16_t *const counts = (uint16_t *)memory; /* where the ring will be */
        trf_moe_sorted_route sorted[kTurns];
        /* All of these loads are under way at once. */
        uint32_t expert[kTurns];
        if (a.routes_are_old)
            load_experts(a, chunks, warp, lane, expert);
        if constexpr (Config::kGathersX)
            for (uint32_t e = threadIdx.x; e < experts; e += TRF_MOE_THREADS)
                pointers()[e] = make_ulonglong2((uint64_t)a.experts[e].tiles, (uint64_t)a.experts[e].lines);
        for (uint32_t i = threadIdx.x; i < (chunks * experts + 1) / 2; i += TRF_MOE_THREADS)
            ((uint32_t *)counts)[i] = 0;
        if (!a.routes_are_old) {
            trf_wait_for_predecessor();
            load_experts(a, chunks, warp, lane, expert);
        }
        if (chunks) {
            __syncthreads();
#pragma unroll
            for (uint32_t i = 0; i < kTurns; i++)
                if (warp + kWarps * i < chunks)
                    sorted[i] = trf_moe_count_chunk(expert[i], lane, counts + (warp + kWarps * i) * experts);
            __syncthreads();
            for (uint32_t e = threadIdx.x; e < experts; e += TRF_MOE_THREADS)
                first_slots()[e] = trf_moe_add_up_chunks(counts, chunks, experts, e);
            __syncthreads();
        }
        add_up_experts(a, warp, lane);
        __syncthreads();
        if (!chunks)
            return;
#pragma unroll
        for (uint32_t i = 0; i < kTurns; i++) {
            const uint32_t chunk = warp + kWarps * i, route = TRF_MOE_CHUNK * chunk + lane;
            if (chunk >= chunks || route >= a.routes.count)
                continue;
            const bool has_slot = sorted[i].expert != TRF_MOE_NO_EXPERT;
            const uint32_t slot =
                has_slot ? first_slots()[sorted[i].expert] + counts[chunk * experts + sorted[i].expert] + sorted[i].rank
                         : TRF_MOE_NO_SLOT;
            if (has_slot)
                slot_routes()[slot] = (uint16_t)route;
            if (a.route_slots && blockIdx.x == 0)
                a.route_slots[route] = slot;
        }
        trf_packed_leave_ring_memory();
        __syncthreads();
    }

    /* Sets blocks_before, and first_slots, which has counts before, if the block sorts. A thread has two experts. If
     * first slots from elsewhere decrease, there are no token blocks, as their number has no limit then. */
    __device__ __forceinline__ void add_up_experts(const trf_moe_args &a, uint32_t warp, uint32_t lane) const {
        static_assert(2 * TRF_MOE_THREADS >= TRF_MOE_MAX_EXPERTS + 32, "all entries are set");
        const uint32_t experts = a.routes.experts, e = 2 * threadIdx.x;
        uint32_t counts[2], slots = 0, blocks = 0;
        bool decreases = false;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            counts[i] = e + i >= experts ? 0 : sorts(a) ? first_slots()[e + i] : slots_of(a, e + i).count;
            decreases = decreases || (e + i < experts && !sorts(a) && a.first_slots[e + i + 1] < a.first_slots[e + i]);
            slots += counts[i];
            blocks += (counts[i] + Config::kXRows - 1) / Config::kXRows;
        }
        uint4 *const sums = (uint4 *)(memory + Config::kSumsAt); /* of each warp */
        uint32_t slot = trf_moe_sum_before(slots, lane), block = trf_moe_sum_before(blocks, lane);
        const uint32_t decreasing = __ballot_sync(0xFFFFFFFF, decreases);
        if (lane == TRF_LANES - 1)
            sums[warp] = make_uint4(slot + slots, block + blocks, decreasing, 0);
        __syncthreads();
        bool is_valid = true;
        for (uint32_t i = 0; i < kWarps; i++) {
            const uint4 of_warp = sums[i];
            slot += i < warp ? of_warp.x : 0;
            block += i < warp ? of_warp.y : 0;
            is_valid = is_valid && of_warp.z == 0;
        }
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            if (e + i <= experts && sorts(a))
                first_slots()[e + i] = slot;
            if (e + i < TRF_MOE_MAX_EXPERTS + 32)
                blocks_before()[e + i] = e + i > experts ? 0xFFFF : is_valid ? (uint16_t)block : 0; /* more than any */
            slot += counts[i];
            block += (counts[i] + Config::kXRows - 1) / Config::kXRows;
        }
    }
};

/* ---- what a block works on ---- */

/* Some k blocks of a tile, which a block works on one after the other. */
struct trf_moe_stint {
    uint32_t expert, row_tile;
    uint32_t first, count;  /* slots */
    uint32_t begin, end;    /* k blocks */
    uint32_t shared_tile;   /* its number among the tiles whose k blocks blocks share */
    uint32_t is_only_block; /* whether the expert has no other token block */
};

/* A block's stints. */
struct trf_moe_share {
    uint32_t own_whole_tiles, whole_tiles; /* of the block, of all blocks */
    trf_stream_k shared;                   /* the other tiles */
    uint32_t begin, end;                   /* the block's k blocks of these */
    uint32_t stints;

    template <class Config>
    static __device__ __forceinline__ trf_moe_share of(const trf_moe_args &a, const trf_moe_tables<Config> &tables) {
        trf_moe_share share;
        const uint32_t tiles = tables.blocks_before()[a.routes.experts] * a.row_tiles;
        share.own_whole_tiles = a.shares_all ? 0 : tiles / gridDim.x;
        share.whole_tiles = share.own_whole_tiles * gridDim.x;
        share.shared = trf_stream_k_of(tiles - share.whole_tiles, a.k_blocks, gridDim.x);
        share.begin = trf_stream_k_begin(&share.shared, trf_packed_share_of_block(blockIdx.x));
        share.end = trf_stream_k_begin(&share.shared, trf_packed_share_of_block(blockIdx.x) + 1);
        share.stints = share.own_whole_tiles;
        if (share.begin < share.end)
            share.stints +=
                trf_quotient(share.end - 1, a.tile_k_blocks) - trf_quotient(share.begin, a.tile_k_blocks) + 1;
        return share;
    }

    /* All lanes call it. number: below stints. */
    template <class Config>
    __device__ __forceinline__ trf_moe_stint stint(const trf_moe_args &a, const trf_moe_tables<Config> &tables,
                                                   uint32_t number, uint32_t lane) const {
        trf_moe_stint stint = {};
        uint32_t tile = blockIdx.x + number * gridDim.x;
        stint.end = a.k_blocks;
        if (number >= own_whole_tiles) {
            stint.shared_tile = trf_quotient(begin, a.tile_k_blocks) + number - own_whole_tiles;
            tile = whole_tiles + stint.shared_tile;
            const uint32_t tile_begin = stint.shared_tile * a.k_blocks;
            stint.begin = begin > tile_begin ? begin - tile_begin : 0;
            stint.end = min(end - tile_begin, a.k_blocks);
        }
        uint32_t token_block = tile / a.row_tiles;
        if constexpr (Config::kGathersX) {
            const uint32_t token_blocks = tables.blocks_before()[a.routes.experts];
            stint.row_tile = tile / token_blocks;
            token_block = tile - stint.row_tile * token_blocks;
        }
        stint.expert = tables.expert_of(token_block, lane);
        constexpr uint32_t kUnit = 64, kUnits = Config::kXRows / kUnit;
        const uint32_t first_block = tables.blocks_before()[stint.expert],
                       blocks = tables.blocks_before()[stint.expert + 1] - first_block;
        uint32_t block = token_block - first_block;
        if constexpr (!Config::kGathersX) {
            const uint32_t in_expert = tile - first_block * a.row_tiles, run_tiles = TRF_MOE_RUN * blocks,
                           run = in_expert / run_tiles, in_run = in_expert - run * run_tiles,
                           run_rows = min((uint32_t)TRF_MOE_RUN, a.row_tiles - run * TRF_MOE_RUN);
            block = in_run / run_rows;
            stint.row_tile = run * TRF_MOE_RUN + in_run - block * run_rows;
        }
        const trf_moe_slots slots = tables.slots_of(a, stint.expert);
        /* bounded even if somebody has written the caller's offsets meanwhile */
        const uint32_t units = min((slots.count + kUnit - 1) / kUnit, blocks * kUnits),
                       left_out = blocks * kUnits - units, full = blocks > left_out ? blocks - left_out : 0,
                       smaller = block > full ? block - full : 0, before = block * Config::kXRows - smaller * kUnit;
        stint.first = slots.first + before;
        stint.count = min(Config::kXRows - (block < full ? 0 : kUnit), max(slots.count, before) - before);
        stint.is_only_block = blocks == 1;
        return stint;
    }
};

#endif

#endif
