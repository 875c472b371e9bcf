/* SPDX-License-Identifier: Apache-2.0 */
/* The choice among partitions of packed products. Bulk kernels run where there are clusters, to 64 rows of x; among
 * their shapes those that leave the fewest multiprocessors idle, of equal ones the larger tile, since that reads x less
 * often. Above 64 rows wgmma kernels run, the one that should take the least time. Measured times are to replace all of
 * this. */
#include "trf_packed_partition.h"

#include "trf_packed_wgmma_sizes.h"

enum {
    BLOCKS_A_MULTIPROCESSOR = 2, /* of the general kernel that run at once, by their registers */
    LEAST_TILES = 16,            /* packed tiles of a part: fewer are over before their sums are */
    LEAST_STAGES = 4,            /* of a cluster's block, likewise */
    X_TILE_ROWS = 8
};
static const uint64_t kMostBlocks = 0x7FFFFFFF, kMostBytes = 1ull << 48;

static uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

static uint32_t x_tiles_of(uint32_t m) {
    uint32_t x_tiles = 1;
    while (x_tiles < TRF_PACKED_MAX_X_TILES && x_tiles * X_TILE_ROWS < m)
        x_tiles *= 2;
    return x_tiles;
}

int trf_packed_choose_general(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                              trf_packed_partition *partition) {
    trf_packed_partition made = {.shape = TRF_PACKED_GENERAL, .x_tiles = x_tiles_of(m), .cluster = 1};
    made.x_blocks = (uint32_t)ceil_div(m, made.x_tiles * X_TILE_ROWS);

    /* As many parts as fill the device once, unless they become so short that their sums cost more. */
    const uint64_t alone = (uint64_t)view->bands * made.x_blocks,
                   room = (uint64_t)limits->multiprocessors * BLOCKS_A_MULTIPROCESSOR,
                   most = view->tiles_per_band / LEAST_TILES;
    uint64_t parts = alone < room ? room / alone : 1;
    parts = parts < most ? parts : most;
    made.parts = parts > 1 ? (uint32_t)parts : 1;
    made.blocks = alone * made.parts;
    if (made.blocks > kMostBlocks)
        return 0;
    if (made.parts > 1) {
        const uint64_t sums = (uint64_t)view->bands * TRF_PACKED_TILE_ROWS * m;
        if (sums > kMostBytes / sizeof(float) / made.parts)
            return 0;
        made.workspace_bytes = sums * made.parts * sizeof(float);
    }
    *partition = made;
    return 1;
}

/* Room for a copy of x whose rows are whole 16 bytes, where it may not be so itself. */
static uint64_t padded_x_bytes(const trf_packed_view *view, uint32_t m) {
    return ((uint64_t)m * ceil_div(view->cols, 8) * 16 + 255) / 256 * 256;
}

/* ---- bulk and wgmma kernels ---- */

static int has_kernel(int shape, uint32_t x_tiles) {
    return shape == TRF_PACKED_BULK_32 || (shape == TRF_PACKED_BULK_64_8_WARPS) == (x_tiles == 8);
}

/* Sets blocks and cluster, one for each tile. @return 0 if they do not all run at once, or have little to do. */
static int give_clusters(const trf_device_limits *limits, uint32_t blocks, trf_packed_partition *made) {
    made->cluster = blocks;
    made->blocks = (uint64_t)made->tiles * blocks;
    return blocks <= TRF_MAX_CLUSTER && made->tiles <= limits->clusters_of[blocks] &&
           (blocks == 1 || made->stages / blocks >= LEAST_STAGES);
}

/* Sets tiles, stages and the place of partial sums. @return 0 if there are too many. */
static int count_stages(const trf_packed_view *view, uint32_t m, uint64_t tiles, uint64_t stages,
                        trf_packed_partition *made) {
    if (tiles > kMostBlocks || tiles * stages > kMostBlocks)
        return 0;
    made->tiles = (uint32_t)tiles;
    made->stages = (uint32_t)stages;
    made->partials_offset = padded_x_bytes(view, m);
    made->workspace_bytes = made->partials_offset;
    return 1;
}

static int choose_bulk(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m, uint32_t cut,
                       trf_packed_partition *made) {
    const int shape = made->shape;
    made->x_tiles = x_tiles_of(m);
    made->x_blocks = 1;
    if (m > TRF_PACKED_BULK_MAX_M || !has_kernel(shape, made->x_tiles) ||
        trf_packed_bulk_is_stream_k(shape) != (cut == TRF_PACKED_STREAM_K) ||
        !trf_smem_fits(trf_packed_bulk_shared_bytes(shape, made->x_tiles), limits) ||
        !count_stages(view, m, ceil_div((uint64_t)view->bands * TRF_PACKED_TILE_ROWS, trf_packed_bulk_rows(shape)),
                      ceil_div(view->tiles_per_band, trf_packed_bulk_col_warps(shape)), made))
        return 0;
    if (cut != TRF_PACKED_STREAM_K)
        return give_clusters(limits, cut, made);
    const uint64_t blocks = (uint64_t)limits->multiprocessors, all = (uint64_t)made->tiles * made->stages;
    made->blocks = blocks < all ? blocks : all;
    made->workspace_bytes +=
        2 * made->blocks * trf_packed_bulk_items(shape, made->x_tiles) * TRF_PACKED_BULK_ITEM_BYTES;
    return 1;
}

static int choose_wgmma(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m, uint32_t cut,
                        trf_packed_partition *made) {
    const uint64_t room = (uint64_t)limits->multiprocessors;
    const uint32_t x_rows = trf_packed_wgmma_x_rows(made->shape);
    made->x_tiles = x_rows / X_TILE_ROWS;
    made->x_blocks = (uint32_t)ceil_div(m, x_rows);
    if (!trf_smem_fits(trf_packed_wgmma_shared_bytes(made->shape), limits) ||
        !count_stages(view, m, ceil_div(view->bands, TRF_PACKED_WGMMA_BANDS) * made->x_blocks,
                      ceil_div(view->tiles_per_band, TRF_PACKED_WGMMA_STAGE_TILES), made))
        return 0;
    made->whole = made->tiles;
    if (cut > 1)
        return give_clusters(limits, cut, made);
    const uint64_t all = (uint64_t)made->tiles * made->stages, most = cut == TRF_PACKED_STREAM_K ? all : made->tiles;
    made->blocks = room < most ? room : most;
    if (cut != TRF_PACKED_STREAM_K)
        return 1;
    made->whole = (uint32_t)(made->tiles - made->tiles % made->blocks);
    made->workspace_bytes += 2 * made->blocks * trf_packed_wgmma_items(made->shape) * TRF_PACKED_BULK_ITEM_BYTES;
    return made->whole < made->tiles;
}

int trf_packed_choose_shape(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m, int shape,
                            uint32_t cut, trf_packed_partition *partition) {
    trf_packed_partition made = {.shape = shape, .parts = 1, .cluster = 1};
    if (limits->missing_kernels & TRF_KERNELS_WIDE || limits->capability != 90 ||
        !(trf_packed_is_wgmma(shape) ? choose_wgmma : choose_bulk)(view, limits, m, cut, &made))
        return 0;
    *partition = made;
    return 1;
}

/* Nanoseconds that a product should take. */
static uint64_t product_ns(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                           const trf_packed_partition *p) {
    static const uint32_t cluster_ns[] = {2500, 0, 1600, 2100, 2500, 2600, 2700, 2800, 2900};
    const int is_wgmma = trf_packed_is_wgmma(p->shape);
    const uint64_t x_rows = (uint64_t)p->x_tiles * X_TILE_ROWS,
                   gb = limits->memory_gb_per_second ? limits->memory_gb_per_second : 3000;
    const uint64_t passes = is_wgmma ? ceil_div(p->x_blocks, TRF_PACKED_WGMMA_X_GROUP) : 1,
                   bytes =
                       passes * view->bands * view->tiles_per_band * 3076 + (uint64_t)m * (view->cols + view->rows) * 2,
                   read_ns = bytes * 100 / (gb * 89);
    uint64_t stages = ceil_div((uint64_t)p->tiles * p->stages, p->blocks), stage_ns, fixed = is_wgmma ? 4000 : 2700;
    if (is_wgmma && p->cluster == 1 && p->whole == p->tiles)
        stages = ceil_div(p->tiles, p->blocks) * p->stages;
    if (is_wgmma) {
        stage_ns = 5 * x_rows * 10 / 17;
        stage_ns = stage_ns > 270 ? stage_ns : 270;
        fixed += x_rows * 12;
    } else {
        stage_ns = (trf_packed_bulk_weight_bytes(p->shape) + trf_packed_bulk_x_bytes(p->shape, p->x_tiles)) / 42;
    }
    const uint64_t block_ns = stages * stage_ns, cut = is_wgmma && p->whole == p->tiles ? p->cluster
                                                       : p->cluster > 1 || !trf_packed_bulk_is_stream_k(p->shape)
                                                           ? p->cluster
                                                           : 0;
    return (block_ns > read_ns ? block_ns : read_ns) + fixed + cluster_ns[cut];
}

static int choose_fastest(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                          trf_packed_partition *best) {
    uint64_t least = UINT64_MAX;
    for (int shape = 0; shape < TRF_PACKED_SHAPES; shape++)
        for (uint32_t cut = 0; cut <= TRF_MAX_CLUSTER; cut++) {
            trf_packed_partition made;
            if (!trf_packed_choose_shape(view, limits, m, shape, cut, &made))
                continue;
            const uint64_t ns = product_ns(view, limits, m, &made);
            if (ns < least) {
                least = ns;
                *best = made;
            }
        }
    return least != UINT64_MAX;
}

int trf_packed_choose(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                      trf_packed_partition *partition) {
    return choose_fastest(view, limits, m, partition) || trf_packed_choose_general(view, limits, m, partition);
}
