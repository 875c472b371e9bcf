/* SPDX-License-Identifier: Apache-2.0 */
/* Computes y = x . W^T of a packed layer, BF16 or FP8 (trf_packed_wgmma_weights.cuh), by wgmma on compute capability
 * 9.0, for any number of rows of x, though it is made for more than 64. W is operand A and is formed in registers; x is
 * operand B, in shared memory as TMA leaves it there.
 *
 * A *block tile* is 128 rows of W (two packed bands) by 64 to 256 rows of x, in steps of 16; or 192 rows (three bands)
 * by 96 to 128. A block multiplies a tile in k blocks of 64 columns. Each of its two or three consumer warpgroups has a
 * band, and each warp of the warpgroup has a packed slab (the picture has two bands):
 *
 *                       W: packed tiles t, t + 1                          x: 64 columns, as rows of 128 bytes
 *                     +-----------+-----------+                          +------------------------+
 *      warpgroup 0    | warp 0    | slab 0    |                          | row 0   x octets       |
 *      (band 2i)      | ...       |           |   a k block: four k16    | row 1   turned by XOR  |   64 to 256 rows
 *                     | warp 3    | slab 3    |                          | ...     with row % 8   |
 *                     +-----------+-----------+                          +------------------------+
 *      warpgroup 1    | warps 4-7             |                            the same for all warpgroups
 *      (band 2i + 1)  +-----------+-----------+
 *
 * A warp forms a whole k block at a time: its slab of both packed tiles, 16 registers a lane. It patches exceptions in
 * a branch that one k block in 12 takes, and its warpgroup starts four wgmma on the fragments. While these run, the
 * warp forms the next k block in a second set of registers. So a stage is given back when the next one has been formed.
 *
 * A producer warp fills the ring with weights: one copy for each band and k block, and a copy of a band's exception
 * line (128 bytes) where one begins, every 16 k blocks. Another producer warp brings a box of x. A third warp sets the
 * barriers up at the start, while the others find out what they do first. A consumer warp reads a line once. It finds
 * out which packed tiles of the line have exceptions and, in each lane, which register the lane's own record replaces.
 *
 * There are two ways to cut a product; the partition says which (trf_packed_partition.h):
 *   - Each tile has a cluster of 2 to 8 blocks, which share its k blocks. Each block finishes another part of y, and
 * the others send it their sums of that part (st.async), which it adds in the order of blocks.
 *   - Blocks stay. Block b has the whole tiles b, b + blocks, ... The tiles that are left are cut into parts of equal
 *     length (trf_packed_wgmma_share.cuh), and blocks hand the sums of these over (trf_packed_handover.cuh). Example:
 *     8192 rows of x by 8192x8192 make 2,048 tiles of 256 rows of x, of which each of 132 blocks has 15. 68 tiles of
 *     128 k blocks are left: 68 blocks have the first 72 k blocks of one each, and 64 blocks have the others, 59 or 60
 *     each.
 * Tiles are ordered in runs of 8 x blocks: within a run, tiles with the same weights follow each other. So 132 tiles
 * that are under way at once have 8 x blocks and 17 times 128 rows of W, and the L2 cache gives each of those to many
 * blocks.
 *
 * Shared memory: 8 to 5 stages of 20 to 44 KiB (FP8: 10 to 5 of 16 to 40), 272 or 400 bytes a stage for lines and
 * barriers, 4 or 6 KiB for sums on their way to y: 226 KiB at most. Registers with two bands: 168 a thread up to 128
 * rows of x. Above that consumers have 232, of which sums take 72 to 128 and two sets of fragments 32, and the
 * producers' warpgroup keeps 40. With three bands it is 160 and 32.
 *
 * A y of 16 bits without an epilogue is *bare* and is written 16 bytes at a time. Blocks that stay write it by way of
 * the last stage, which is given back after that. Any other y takes some hundred instructions for four elements of a
 * lane; what that costs was not measured.
 *
 * What limits it, found by leaving out parts (14336x4096 on an H200, microseconds with 64 / 128 / 192 / 256 rows of x):
 * copies alone take 24.2 / 25.9 / 28.2 / 31.5, forming and products without copies 18.6 / 24.4 / 32.8 / 42.4, all of it
 * 27.4 / 31.5 / 38.5 / 48. So the limit is memory up to 96 rows, the tensor cores from 192 on, and their overlap in
 * between. Large layers with 128 rows and more run into the power limit: at 693 W the clock falls from 1,980 to 1,590
 * MHz. A k block by 256 rows takes 1,053 clocks, of which the tensor cores need 1,024, and a tile's end takes 3,300
 * clocks (H100). The loop has no spills, and no R2UR before its HGMMA outside of the exceptions' branch (nvcc 13.0):
 * they would cost 4 to 7 %. */
#ifndef TRF_PACKED_WGMMA_CUH
#define TRF_PACKED_WGMMA_CUH

#include "trf_packed_wgmma_sums.cuh"
#include "trf_packed_wgmma_weights.cuh"

#if TRF_HAS_SM_90A

/* ---- the producer ---- */

/* Where a producer is in its stints. */
struct trf_packed_wgmma_cursor {
    trf_packed_wgmma_stint stint;
    uint32_t number, stints, k_block; /* the stint's number, and how many there are; the next k block */

    __device__ __forceinline__ explicit trf_packed_wgmma_cursor(const trf_packed_wgmma_args &a)
        : stint(trf_packed_wgmma_stint_of(a, 0)), number(0), stints(trf_packed_wgmma_stints(a)), k_block(stint.begin) {
        if (stints && k_block == stint.end)
            stints = 0; /* a block of a cluster may have no k blocks */
    }
    __device__ __forceinline__ bool is_there() const { return number < stints; }
    __device__ __forceinline__ void next(const trf_packed_wgmma_args &a) {
        if (++k_block < stint.end || ++number == stints)
            return;
        stint = trf_packed_wgmma_stint_of(a, number);
        k_block = stint.begin;
    }
};

/* Whether the copies of a k block include its bands' exception lines, which hold for all k blocks up to the next line.
 * first: the stint's first k block. */
static __device__ __forceinline__ bool trf_packed_wgmma_brings_lines(uint32_t k_block, uint32_t first) {
    return k_block == first || k_block % TRF_PACKED_WGMMA_LINE_K_BLOCKS == 0;
}

/* Copies the weights of a stage, and exception lines. All lanes call it; each copies another band. first: the stint's
 * first k block. */
template <class Config>
static __device__ __forceinline__ void
trf_packed_wgmma_load_weights(const trf_packed_view &view, uint32_t row_tile, uint32_t k_block, uint32_t first,
                              const trf_packed_ring<Config> &ring, uint32_t lane, uint64_t policy) {
    const uint32_t band = row_tile * Config::kBands, bands = min(Config::kBands, view.bands - band),
                   packed_tile = k_block * TRF_PACKED_WGMMA_STAGE_PACKED_TILES;
    const bool brings_lines = trf_packed_wgmma_brings_lines(k_block, first);
    if (lane == 0)
        trf_mbarrier_arrive_expect_tx(
            ring.full(), bands * (Config::kBandBytes + (brings_lines ? (uint32_t)TRF_PACKED_LINE_BYTES : 0)));
    __syncwarp();
    if (lane >= bands)
        return;
    const uint32_t to = ring.stage() + lane * Config::kBandBytes;
    const uint8_t *const from =
        view.tiles + trf_packed_tile_number(&view, band + lane, packed_tile) * Config::kTileBytes;
    if (packed_tile + 1 < view.tiles_per_band) {
        trf_bulk_load(to, from, Config::kBandBytes, ring.full(), policy);
    } else {
        /* The band's last packed tile fills the place after it, too: its weights are finite, and x multiplies them by
         * zeros. */
        trf_bulk_load(to, from, Config::kTileBytes, ring.full(), policy);
        trf_bulk_load(to + Config::kTileBytes, from, Config::kTileBytes, ring.full(), policy);
    }
    if (brings_lines)
        trf_bulk_load(ring.shared + Config::kLinesAt + ring.index * Config::kLinesBytes + lane * TRF_PACKED_LINE_BYTES,
                      trf_packed_line_of(&view, band + lane, packed_tile), TRF_PACKED_LINE_BYTES, ring.full(), policy);
}

/* Fills the ring with weights, which do not wait for the kernel that may have made x. */
template <class Config>
static __device__ __forceinline__ void trf_packed_wgmma_produce_weights(const trf_packed_wgmma_args &a, uint32_t shared,
                                                                        uint32_t lane) {
    const uint64_t policy = a.x_blocks > 1 ? trf_policy_read_again() : trf_policy_read_once();
    /* phase 1: a wait on a barrier that was never used returns at once */
    trf_packed_ring<Config> ring = {shared, 0, 1};
    trf_packed_wgmma_cursor at(a);
    trf_named_barrier_sync(TRF_PACKED_WEIGHTS_BARRIER_ID, 2);
    for (; at.is_there(); ring.next(), at.next(a)) {
        trf_packed_take_stage(ring);
        trf_packed_wgmma_load_weights<Config>(a.view, at.stint.row_tile, at.k_block, at.stint.begin, ring, lane,
                                              policy);
    }
    trf_allow_successor();
}

/* Fills the ring with x, once x is there. */
template <class Config>
static __device__ __forceinline__ void trf_packed_wgmma_produce_x(const trf_packed_wgmma_args &a, uint32_t shared,
                                                                  uint32_t lane) {
    if (lane == 0) {
        trf_prefetch_map(&a.x_map);
        trf_prefetch_map(&a.last_x_map);
    }
    const uint64_t policy = trf_policy_keep();
    trf_packed_ring<Config> ring = {shared, 0, 1};
    trf_packed_wgmma_cursor at(a);
    trf_named_barrier_sync(TRF_PACKED_X_BARRIER_ID, 2);
    trf_wait_for_predecessor();
    for (; at.is_there(); ring.next(), at.next(a)) {
        trf_packed_take_stage(ring);
        if (lane == 0) {
            const bool is_last = at.stint.x_block + 1 == a.x_blocks;
            trf_mbarrier_arrive_expect_tx(ring.full(),
                                          is_last ? a.last_x_rows * TRF_PACKED_X_BOX_ROW_BYTES : Config::kXBytes);
            trf_tma_load_box(ring.stage() + Config::kXAt, is_last ? &a.last_x_map : &a.x_map,
                             at.k_block * TRF_PACKED_X_BOX_COLS, at.stint.x_block * Config::kXRows, ring.full(),
                             policy);
        }
        __syncwarp();
    }
}

/* ---- weights ---- */

/* A lane's words of a stage. */
template <class Config> struct trf_packed_wgmma_words {
    typename Config::Weights::words packed_tiles[TRF_PACKED_WGMMA_STAGE_PACKED_TILES];
};

template <class Config>
static __device__ __forceinline__ trf_packed_wgmma_words<Config>
trf_packed_wgmma_load_words(const trf_packed_ring<Config> &ring, const trf_packed_wgmma_warp &warp) {
    const uint32_t at = ring.stage() + warp.band() * Config::kBandBytes + warp.slab() * Config::kSlabBytes;
    return {{Config::Weights::load(at, warp.lane), Config::Weights::load(at + Config::kTileBytes, warp.lane)}};
}

/* Forms the fragments of a warp's slab of a stage's packed tiles, without exceptions. */
template <class Config>
static __device__ __forceinline__ void trf_packed_wgmma_form(uint32_t (&a)[TRF_PACKED_WGMMA_STAGE_PACKED_TILES][2][4],
                                                             const trf_packed_wgmma_words<Config> &words,
                                                             const typename Config::Weights &weights) {
#pragma unroll
    for (uint32_t t = 0; t < TRF_PACKED_WGMMA_STAGE_PACKED_TILES; t++)
        weights.form_slab(a[t], words.packed_tiles[t]);
}

/* ---- products ---- */

/* Describes operand B in shared memory: rows of 64 columns under the swizzle of 128 bytes, in atoms of 8 rows that
 * follow one another, as TMA leaves a box. at: a multiple of 1024. */
static __device__ __forceinline__ uint64_t trf_packed_wgmma_descriptor(uint32_t at) {
    return (uint64_t)(at >> 4 & 0x3FFF) | 1ull << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
static constexpr uint32_t kWgmmaStep = 32 >> 4; /* added to a descriptor: 16 columns further */

/* Starts the products of a stage. */
template <class Config>
static __device__ __forceinline__ void
trf_packed_wgmma_start(float (&sums)[Config::kXRows / 2],
                       const uint32_t (&a)[TRF_PACKED_WGMMA_STAGE_PACKED_TILES][2][4], uint32_t x_at) {
    const uint64_t x = trf_packed_wgmma_descriptor(x_at);
    trf_wgmma_fence();
#pragma unroll
    for (uint32_t k = 0; k < 2 * TRF_PACKED_WGMMA_STAGE_PACKED_TILES; k++)
        trf_wgmma_of_registers<Config::kXRows>(sums, a[k / 2][k % 2], x + k * kWgmmaStep);
    trf_wgmma_commit();
}

/* A warp's way through the k blocks of a stint. */
template <class Config> struct trf_packed_wgmma_walk {
    trf_packed_wgmma_words<Config> words; /* words of the stage that is formed next */
    typename Config::Weights weights;     /* ... and of its line */
    uint32_t packed_tile;                 /* that stage's first packed tile */
    uint32_t left;                        /* k blocks left, including that stage's */
    uint32_t multiplied;                  /* the `empty` barrier of the stage whose products run; 0 if none do */

    __device__ __forceinline__ trf_packed_wgmma_walk(const trf_packed_view &view, uint32_t begin, uint32_t end)
        : weights(view), packed_tile(begin * TRF_PACKED_WGMMA_STAGE_PACKED_TILES), left(end - begin), multiplied(0) {}

    /* Loads the words of the next stage, once it has arrived. */
    __device__ __forceinline__ void load(const trf_packed_ring<Config> &ring, const trf_packed_wgmma_warp &warp,
                                         bool with_line) {
        trf_mbarrier_wait(ring.full(), ring.phase);
        words = trf_packed_wgmma_load_words<Config>(ring, warp);
        if (with_line)
            weights.take_line(trf_lds32(ring.shared + Config::kLinesAt + ring.index * Config::kLinesBytes +
                                        warp.band() * TRF_PACKED_LINE_BYTES + 4 * warp.lane),
                              warp.slab(), warp.lane);
        weights.begin_stage(packed_tile);
    }
};

/* Forms a stage and starts its products. Meanwhile loads the next stage's words. Then waits for the previous stage's
 * products, whose registers are formed next. */
template <class Config>
static __device__ __forceinline__ void
trf_packed_wgmma_multiply_stage(const trf_packed_view &view, const trf_packed_wgmma_warp &warp,
                                trf_packed_ring<Config> &ring, trf_packed_wgmma_walk<Config> &walk,
                                uint32_t (&a)[TRF_PACKED_WGMMA_STAGE_PACKED_TILES][2][4],
                                float (&sums)[Config::kXRows / 2]) {
    trf_packed_wgmma_form<Config>(a, walk.words, walk.weights);
    walk.weights.patch(a, view, walk.packed_tile, warp.slab(), warp.lane);
    trf_packed_wgmma_start<Config>(sums, a, ring.stage() + Config::kXAt);
    const uint32_t started = ring.empty();
    ring.next();
    walk.packed_tile += TRF_PACKED_WGMMA_STAGE_PACKED_TILES;
    if (--walk.left)
        walk.load(ring, warp, walk.packed_tile % TRF_PACKED_LINE_TILES == 0);
    trf_wgmma_wait<1>();
    if (walk.multiplied)
        trf_packed_give_stage_back(walk.multiplied, warp.lane);
    walk.multiplied = started;
}

/* Adds the products of k blocks [begin, end), at least one, to the sums, which are complete when it returns. The last
 * stage is not given back. */
template <class Config>
static __device__ __forceinline__ void
trf_packed_wgmma_multiply(const trf_packed_view &view, const trf_packed_wgmma_warp &warp, uint32_t begin, uint32_t end,
                          trf_packed_ring<Config> &ring, float (&sums)[Config::kXRows / 2]) {
    uint32_t a[2][TRF_PACKED_WGMMA_STAGE_PACKED_TILES][2][4]; /* for even and for odd k blocks of the stint */
    trf_packed_wgmma_walk<Config> walk(view, begin, end);
    walk.load(ring, warp, true);
#pragma unroll 1
    for (;;) {
        trf_packed_wgmma_multiply_stage<Config>(view, warp, ring, walk, a[0], sums);
        if (walk.left == 0)
            break;
        trf_packed_wgmma_multiply_stage<Config>(view, warp, ring, walk, a[1], sums);
        if (walk.left == 0)
            break;
    }
    trf_wgmma_wait<0>();
    trf_wgmma_settle_sums(sums);
}

/* Replaces trf_packed_wgmma_multiply where there is nothing to multiply: where the layer has no band for the warpgroup,
 * or the stint has no k blocks. */
template <class Config>
static __device__ __forceinline__ void trf_packed_wgmma_skip(uint32_t begin, uint32_t end,
                                                             trf_packed_ring<Config> &ring, uint32_t lane) {
    for (uint32_t k_block = begin; k_block < end; k_block++, ring.next()) {
        trf_mbarrier_wait(ring.full(), ring.phase);
        trf_packed_give_stage_back(ring.empty(), lane);
    }
}

/* ---- the block ---- */

template <class Config>
static __device__ __forceinline__ void trf_packed_wgmma_consume(const trf_packed_wgmma_args &args, uint32_t shared,
                                                                const trf_packed_wgmma_warp &warp) {
    trf_packed_ring<Config> ring = {shared, 0, 0};
    const uint32_t stints = trf_packed_wgmma_stints(args);
#pragma unroll 1
    for (uint32_t number = 0; number < stints; number++) {
        const trf_packed_wgmma_stint stint = trf_packed_wgmma_stint_of(args, number);
        float sums[Config::kXRows / 2] = {};
        const bool has_band = warp.band_of<Config>(stint) < args.view.bands;
        const bool multiplies = has_band && stint.begin < stint.end;
        if (multiplies)
            trf_packed_wgmma_multiply<Config>(args.view, warp, stint.begin, stint.end, ring, sums);
        else
            trf_packed_wgmma_skip<Config>(stint.begin, stint.end, ring, warp.lane);
        const trf_packed_wgmma_y_writer writer = trf_packed_wgmma_y_writer_of(
            args, has_band ? stint.row_tile * Config::kRows + warp.warp * TRF_PACKED_SLAB_ROWS : 0,
            stint.x_block * Config::kXRows, shared + Config::kSumsAt + warp.warp * TRF_ACC_TILE_BYTES, warp.lane);
        if (args.cluster_size)
            trf_packed_wgmma_add_blocks<Config>(args, warp, writer, has_band, shared, sums);
        else if (has_band)
            trf_packed_wgmma_leave_sums<Config>(args, stint, warp, writer, sums,
                                                ring.previous().stage() + warp.band() * Config::kBandBytes);
        if (multiplies)
            trf_packed_give_stage_back(ring.previous().empty(), warp.lane);
    }
}

/* Sets up the barriers of stages and of sums. */
template <class Config>
static __device__ __forceinline__ void trf_packed_wgmma_set_up(const trf_packed_wgmma_args &args, uint32_t shared,
                                                               uint32_t lane) {
    trf_packed_set_ring_up<Config>(shared, lane);
    if (args.cluster_size && lane < Config::kWarps) {
        const uint32_t barrier = shared + Config::kSumBarriersAt + 8 * lane;
        trf_mbarrier_init(barrier, 1);
        trf_mbarrier_publish();
        trf_mbarrier_arrive_expect_tx(barrier, trf_packed_wgmma_expected_bytes<Config>(args));
    }
    __syncwarp();
}

/* shared: address of trf_packed_wgmma_shared_bytes, a multiple of 1024. */
template <class Config>
static __device__ __forceinline__ void trf_packed_wgmma_block(const trf_packed_wgmma_args &args, uint32_t shared) {
    /* The shuffle tells the compiler that the warp's number is the same in all lanes: wgmma needs uniform registers. */
    const uint32_t warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / TRF_LANES, 0), lane = threadIdx.x % TRF_LANES;
    if (warp < Config::kWarps) {
        trf_named_barrier_sync(TRF_PACKED_CONSUMERS_BARRIER_ID, Config::kWarps + 1);
        trf_take_registers<Config::kRegisters>();
        trf_packed_wgmma_consume<Config>(args, shared, {warp, lane});
        return;
    }
    trf_give_registers<Config::kProducerRegisters>();
    if (warp == Config::kWarps)
        trf_packed_wgmma_produce_weights<Config>(args, shared, lane);
    else if (warp == Config::kWarps + 1)
        trf_packed_wgmma_produce_x<Config>(args, shared, lane);
    else if (warp == Config::kWarps + 2)
        trf_packed_wgmma_set_up<Config>(args, shared, lane);
    if (args.cluster_size) {
        trf_cluster_arrive_relaxed(args.cluster_size);
        trf_cluster_wait(args.cluster_size);
    }
}

#endif

#endif
