/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses among partitions of packed products: the bulk or wgmma kernel and the cut that should take the least time;
 * the general kernel where no other runs. */
#include "trf_packed_partition.h"

#include "trf_packed_estimate.h"
#include "trf_planning.h"

#include <string.h>

enum {
    BLOCKS_A_MULTIPROCESSOR = 2, /* blocks of the general kernel that run at once, limited by registers */
    LEAST_TILES = 16,   /* the fewest packed tiles of a k split; fewer take less time than adding up the sums */
    LEAST_K_BLOCKS = 4, /* the fewest k blocks of a block of a cluster, for the same reason */
    MORE_K_BLOCKS = 6   /* a front has so many more k blocks than an equal share */
};
static const uint64_t kMostBlocks = 0x7FFFFFFF, kMostBytes = 1ull << 48;
static const double kCandidateSlack =
    1.15; /* factor of the least time; the estimate is wrong by less, except for a few products */

static uint32_t x_tiles_of(uint32_t m) {
    uint32_t x_tiles = 1;
    while (x_tiles < TRF_PACKED_MMA_MAX_X_TILES && x_tiles * TRF_PACKED_X_TILE_ROWS < m)
        x_tiles *= 2;
    return x_tiles;
}

int trf_packed_choose_general(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                              trf_packed_partition *partition) {
    trf_packed_partition made = {.shape = TRF_PACKED_GENERAL, .x_tiles = x_tiles_of(m), .cluster_size = 1};
    made.x_blocks = (uint32_t)trf_ceil_div(m, made.x_tiles * TRF_PACKED_X_TILE_ROWS);

    /* It takes as many k splits as fill the device once, unless they become so short that their sums cost more. */
    const uint64_t alone = (uint64_t)view->bands * made.x_blocks,
                   room = (uint64_t)limits->multiprocessors * BLOCKS_A_MULTIPROCESSOR,
                   most = view->tiles_per_band / LEAST_TILES;
    uint64_t k_splits = alone < room ? room / alone : 1;
    k_splits = k_splits < most ? k_splits : most;
    made.k_splits = k_splits > 1 ? (uint32_t)k_splits : 1;
    made.blocks = alone * made.k_splits;
    if (made.blocks > kMostBlocks)
        return 0;
    if (made.k_splits > 1) {
        const uint64_t sums = (uint64_t)view->bands * TRF_PACKED_TILE_ROWS * m;
        if (sums > kMostBytes / sizeof(float) / made.k_splits)
            return 0;
        made.workspace_bytes = sums * made.k_splits * sizeof(float);
    }
    *partition = made;
    return 1;
}

/* ---- bulk and wgmma kernels ---- */

/* Sets blocks and clusters, with one cluster for each tile. @return 0 if they do not all run at once, or have too
 * little to do. */
static int give_clusters(const trf_device_limits *limits, uint32_t blocks, trf_packed_partition *made) {
    made->cluster_size = blocks;
    made->blocks = (uint64_t)made->tiles * blocks;
    return blocks <= TRF_MAX_CLUSTER && made->tiles <= limits->clusters_of[blocks] &&
           (blocks == 1 || made->k_blocks / blocks >= LEAST_K_BLOCKS);
}

/* Sets tiles, k blocks and where blocks hand sums over. @return 0 if there are too many. */
static int count_k_blocks(const trf_packed_view *view, uint32_t m, uint64_t tiles, uint64_t k_blocks,
                          trf_packed_partition *made) {
    if (tiles > kMostBlocks || tiles * k_blocks > kMostBlocks)
        return 0;
    made->tiles = (uint32_t)tiles;
    made->k_blocks = (uint32_t)k_blocks;
    made->handover_offset = trf_padded_x_bytes(view->cols, m);
    made->workspace_bytes = made->handover_offset;
    return 1;
}

static int choose_bulk(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m, uint32_t cut,
                       uint32_t slab_bytes, trf_packed_partition *made) {
    const int shape = made->shape;
    made->x_tiles = x_tiles_of(m);
    made->x_blocks = 1;
    if (m > TRF_PACKED_BULK_MAX_M || !trf_packed_bulk_has_kernel(shape, made->x_tiles, slab_bytes) ||
        trf_packed_bulk_is_stream_k(shape) != (cut == TRF_PACKED_STREAM_K) ||
        !trf_smem_fits(trf_packed_bulk_shared_bytes(shape, made->x_tiles, slab_bytes), limits) ||
        !count_k_blocks(view, m,
                        trf_ceil_div((uint64_t)view->bands * TRF_PACKED_TILE_ROWS, trf_packed_bulk_rows(shape)),
                        trf_ceil_div(view->tiles_per_band, trf_packed_bulk_k_tiles(shape, slab_bytes)), made))
        return 0;
    if (cut != TRF_PACKED_STREAM_K)
        return give_clusters(limits, cut, made);
    const uint64_t blocks = (uint64_t)limits->multiprocessors, all = (uint64_t)made->tiles * made->k_blocks;
    made->blocks = blocks < all ? blocks : all;
    made->workspace_bytes += trf_packed_handover_bytes(made->blocks, trf_packed_bulk_acc_tiles(shape, made->x_tiles));
    return 1;
}

/* Returns how many k blocks the front of a tile has, if blocks share so many tiles; 0: tiles have no fronts. If there
 * is less than a third of a tile for each block, backs would be as scattered as equal shares. A back's block has
 * several beginnings and ends, each of which takes as long as some k blocks; so fronts get more k blocks than an equal
 * share. Of 0, 3, 6, 10 and 16 more, 6 were the best on an H100, for all shapes. */
static uint32_t front_k_blocks(uint64_t shared, const trf_packed_partition *p) {
    if (3 * shared < p->blocks)
        return 0;
    const uint64_t k_blocks = trf_ceil_div(shared * p->k_blocks, p->blocks) + MORE_K_BLOCKS;
    return (uint32_t)(k_blocks < p->k_blocks ? k_blocks : p->k_blocks - 1);
}

static int choose_wgmma(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m, uint32_t cut,
                        uint32_t slab_bytes, trf_packed_partition *made) {
    const uint64_t room = (uint64_t)limits->multiprocessors;
    const uint32_t x_rows = trf_packed_wgmma_x_rows(made->shape);
    made->x_tiles = x_rows / TRF_PACKED_X_TILE_ROWS;
    made->x_blocks = (uint32_t)trf_ceil_div(m, x_rows);
    if (!trf_smem_fits(trf_packed_wgmma_shared_bytes(made->shape, slab_bytes), limits) ||
        !count_k_blocks(view, m, trf_ceil_div(view->bands, trf_packed_wgmma_bands(made->shape)) * made->x_blocks,
                        trf_ceil_div(view->tiles_per_band, TRF_PACKED_WGMMA_STAGE_PACKED_TILES), made))
        return 0;
    made->whole_tiles = made->tiles;
    made->front_k_blocks = made->k_blocks;
    if (cut > 1)
        return give_clusters(limits, cut, made);
    const uint64_t all = (uint64_t)made->tiles * made->k_blocks, most = cut == TRF_PACKED_STREAM_K ? all : made->tiles;
    made->blocks = room < most ? room : most;
    if (cut != TRF_PACKED_STREAM_K)
        return 1;
    const uint64_t shared = made->tiles % made->blocks;
    made->whole_tiles = (uint32_t)(made->tiles - shared);
    made->front_k_blocks = front_k_blocks(shared, made);
    made->workspace_bytes += trf_packed_handover_bytes(made->blocks, trf_packed_wgmma_acc_tiles(made->shape));
    return shared > 0;
}

static int choose_shape(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m, int shape,
                        uint32_t cut, uint32_t slab_bytes, trf_packed_partition *partition) {
    trf_packed_partition made = {.shape = shape, .k_splits = 1, .cut = cut, .cluster_size = 1};
    if (!trf_has_sm_90a(limits) ||
        !(trf_packed_is_wgmma(shape) ? choose_wgmma : choose_bulk)(view, limits, m, cut, slab_bytes, &made))
        return 0;
    *partition = made;
    return 1;
}

int trf_packed_choose_shape(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m, int shape,
                            uint32_t cut, trf_packed_partition *partition) {
    return choose_shape(view, limits, m, shape, cut, TRF_PACKED_SLAB_BYTES, partition);
}

int trf_packed8_choose_shape(const trf_packed8_view *view, const trf_device_limits *limits, uint32_t m, int shape,
                             uint32_t cut, trf_packed_partition *partition) {
    return choose_shape(&view->packed, limits, m, shape, cut, TRF_PACKED8_SLAB_BYTES, partition);
}

/* ---- the choice ---- */

/* Inserts a partition in the order of times among the `count` that there are; if there would be more than n, the last
 * one is dropped. @return how many there are then. */
static uint32_t insert(const trf_packed_partition *made, double made_ns, trf_packed_partition *out, double *ns,
                       uint32_t count, uint32_t n) {
    uint32_t at = count;
    while (at > 0 && made_ns < ns[at - 1])
        at--;
    if (at == n)
        return count;
    count = count < n ? count + 1 : n;
    for (uint32_t i = count - 1; i > at; i--) {
        out[i] = out[i - 1];
        ns[i] = ns[i - 1];
    }
    out[at] = *made;
    ns[at] = made_ns;
    return count;
}

/* Drops those of the candidates, which are in the order of times, that take too long. @return how many are left. */
static uint32_t drop_slow(const double *ns, uint32_t count) {
    while (count > 1 && ns[count - 1] > kCandidateSlack * ns[0])
        count--;
    return count;
}

static uint32_t most_candidates(uint32_t n) { return n < TRF_PACKED_MAX_CANDIDATES ? n : TRF_PACKED_MAX_CANDIDATES; }

/* slab_bytes: of the layer's packed slabs. */
static uint32_t find_candidates(const trf_packed_view *view, uint32_t slab_bytes, const trf_packed_costs *costs,
                                const trf_device_limits *limits, uint32_t m, trf_packed_partition *out, uint32_t n) {
    double ns[TRF_PACKED_MAX_CANDIDATES];
    uint32_t count = 0;
    for (int shape = 0; shape < TRF_PACKED_SHAPES; shape++)
        for (uint32_t cut = 0; cut <= TRF_MAX_CLUSTER; cut++) {
            trf_packed_partition made;
            if (choose_shape(view, limits, m, shape, cut, slab_bytes, &made))
                count = insert(&made, trf_packed_estimate(costs, slab_bytes, view, limits, m, &made), out, ns, count,
                               most_candidates(n));
        }
    return drop_slow(ns, count);
}

uint32_t trf_packed_candidates(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                               trf_packed_partition *out, uint32_t n) {
    return find_candidates(view, TRF_PACKED_SLAB_BYTES, &trf_packed_sm_90_costs, limits, m, out, n);
}

uint32_t trf_packed8_candidates(const trf_packed8_view *view, const trf_device_limits *limits, uint32_t m,
                                trf_packed_partition *out, uint32_t n) {
    const trf_packed_costs costs = trf_packed8_sm_90_costs(view->flags);
    return find_candidates(&view->packed, TRF_PACKED8_SLAB_BYTES, &costs, limits, m, out, n);
}

int trf_packed_choose(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                      trf_packed_partition *partition) {
    return trf_packed_candidates(view, limits, m, partition, 1) ||
           trf_packed_choose_general(view, limits, m, partition);
}

int trf_packed8_choose(const trf_packed8_view *view, const trf_device_limits *limits, uint32_t m,
                       trf_packed_partition *partition) {
    return (int)trf_packed8_candidates(view, limits, m, partition, 1);
}

/* ---- names ---- */

const char *trf_packed_kernel_name(int shape) {
    static const char *const names[TRF_PACKED_SHAPES] = {
        [TRF_PACKED_BULK_256] = "bulk-256",
        [TRF_PACKED_BULK_128] = "bulk-128",
        [TRF_PACKED_BULK_64] = "bulk-64",
        [TRF_PACKED_BULK_32] = "bulk-32",
        [TRF_PACKED_WGMMA_64] = "wgmma-64",
        [TRF_PACKED_WGMMA_80] = "wgmma-80",
        [TRF_PACKED_WGMMA_96] = "wgmma-96",
        [TRF_PACKED_WGMMA_112] = "wgmma-112",
        [TRF_PACKED_WGMMA_128] = "wgmma-128",
        [TRF_PACKED_WGMMA_144] = "wgmma-144",
        [TRF_PACKED_WGMMA_160] = "wgmma-160",
        [TRF_PACKED_WGMMA_176] = "wgmma-176",
        [TRF_PACKED_WGMMA_192] = "wgmma-192",
        [TRF_PACKED_WGMMA_208] = "wgmma-208",
        [TRF_PACKED_WGMMA_224] = "wgmma-224",
        [TRF_PACKED_WGMMA_240] = "wgmma-240",
        [TRF_PACKED_WGMMA_256] = "wgmma-256",
        [TRF_PACKED_WGMMA_192X96] = "wgmma-192x96",
        [TRF_PACKED_WGMMA_192X112] = "wgmma-192x112",
        [TRF_PACKED_WGMMA_192X128] = "wgmma-192x128",
    };
    if (shape == TRF_PACKED_GENERAL)
        return "general";
    return shape >= 0 && shape < TRF_PACKED_SHAPES ? names[shape] : "?";
}

int trf_packed_find_kernel(const char *name) {
    for (int shape = 0; shape < TRF_PACKED_SHAPES; shape++)
        if (strcmp(name, trf_packed_kernel_name(shape)) == 0)
            return shape;
    return TRF_PACKED_GENERAL;
}

int trf_packed_is_former_kernel(const char *name) { return strcmp(name, "bulk-64-8-warps") == 0; }

const char *trf_packed_cut_name(uint32_t cut) {
    static const char *const names[TRF_MAX_CLUSTER + 1] = {"stream-k", "1", "2", "3", "4", "5", "6", "7", "8"};
    return cut <= TRF_MAX_CLUSTER ? names[cut] : "?";
}
