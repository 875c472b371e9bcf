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

/* ---- bulk kernels ---- */

static int has_kernel(int shape, uint32_t x_tiles) {
    return shape == TRF_PACKED_BULK_256 ? x_tiles <= 4 : shape == TRF_PACKED_BULK_256_16_WARPS ? x_tiles == 8 : 1;
}

/* The largest cluster by which all blocks run at once; 0: there is none. */
static uint32_t cluster_of(const trf_packed_partition *partition, const trf_device_limits *limits) {
    for (uint32_t log = TRF_CLUSTER_SIZES; log-- > 0;)
        if (partition->tiles <= limits->clusters[log] && (log == 0 || partition->stages >> log >= LEAST_STAGES))
            return 1u << log;
    return 0;
}

int trf_packed_choose_bulk(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m, int shape,
                           trf_packed_partition *partition) {
    trf_packed_partition made = {.shape = shape, .x_tiles = x_tiles_of(m), .x_blocks = 1, .parts = 1, .cluster = 1};
    if (m > TRF_PACKED_BULK_MAX_M || !has_kernel(shape, made.x_tiles) || limits->missing_kernels & TRF_KERNELS_WIDE ||
        limits->capability != 90 || !trf_smem_fits(trf_packed_bulk_shared_bytes(shape, made.x_tiles), limits))
        return 0;
    const uint64_t tiles = ceil_div((uint64_t)view->bands * TRF_PACKED_TILE_ROWS, trf_packed_bulk_rows(shape)),
                   stages = ceil_div(view->tiles_per_band, trf_packed_bulk_col_warps(shape));
    if (tiles * stages > kMostBlocks)
        return 0;
    made.tiles = (uint32_t)tiles;
    made.stages = (uint32_t)stages;
    made.partials_offset = padded_x_bytes(view, m);
    made.workspace_bytes = made.partials_offset;
    if (trf_packed_bulk_is_stream_k(shape)) {
        const uint64_t blocks = (uint64_t)limits->multiprocessors, all = tiles * stages;
        made.blocks = blocks < all ? blocks : all;
        made.workspace_bytes +=
            2 * made.blocks * trf_packed_bulk_items(shape, made.x_tiles) * TRF_PACKED_BULK_ITEM_BYTES;
    } else {
        made.cluster = cluster_of(&made, limits);
        made.blocks = tiles * made.cluster;
    }
    *partition = made;
    return made.cluster > 0;
}

static int choose_best_bulk(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                            trf_packed_partition *best) {
    trf_packed_partition made;
    int found = 0;
    for (int shape = 0; shape < TRF_PACKED_BULK_SHAPES; shape++) {
        if (!trf_packed_choose_bulk(view, limits, m, shape, &made))
            continue;
        /* Stream-K's second kernel pays where tiles alone would leave an eighth of the device idle, or more. */
        if (!found || made.blocks > best->blocks ||
            (trf_packed_bulk_is_stream_k(best->shape) && made.blocks * 8 > (uint64_t)limits->multiprocessors * 7))
            *best = made;
        found = 1;
    }
    return found;
}

/* ---- wgmma kernels ---- */

/* Sets blocks, cluster and whole. @return 0 if the product cannot be cut so. */
static int cut_wgmma(const trf_device_limits *limits, trf_packed_cut cut, trf_packed_partition *made) {
    const uint64_t room = (uint64_t)limits->multiprocessors, all = (uint64_t)made->tiles * made->stages;
    made->cluster = 1;
    made->whole = made->tiles;
    if (cut == TRF_PACKED_CUT_WHOLE) {
        made->blocks = made->tiles < room ? made->tiles : room;
    } else if (cut == TRF_PACKED_CUT_STREAM_K) {
        made->blocks = room < all ? room : all;
        made->whole = (uint32_t)(made->tiles - made->tiles % made->blocks);
        return made->whole < made->tiles;
    } else {
        made->cluster = (uint32_t)cut;
        made->blocks = (uint64_t)made->tiles * made->cluster;
        return made->tiles <= limits->clusters[cut == TRF_PACKED_CUT_2 ? 1 : 2] &&
               made->stages / made->cluster >= LEAST_STAGES;
    }
    return 1;
}

int trf_packed_choose_wgmma(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m, int shape,
                            trf_packed_cut cut, trf_packed_partition *partition) {
    const uint32_t x_rows = trf_packed_wgmma_x_rows(shape);
    trf_packed_partition made = {.shape = shape, .x_tiles = x_rows / X_TILE_ROWS, .parts = 1};
    if (limits->missing_kernels & TRF_KERNELS_WIDE || limits->capability != 90 ||
        !trf_smem_fits(trf_packed_wgmma_shared_bytes(shape), limits))
        return 0;
    made.x_blocks = (uint32_t)ceil_div(m, x_rows);
    const uint64_t tiles = ceil_div(view->bands, TRF_PACKED_WGMMA_BANDS) * made.x_blocks,
                   stages = ceil_div(view->tiles_per_band, TRF_PACKED_WGMMA_STAGE_TILES);
    if (tiles > kMostBlocks || tiles * stages > kMostBlocks)
        return 0;
    made.tiles = (uint32_t)tiles;
    made.stages = (uint32_t)stages;
    if (!cut_wgmma(limits, cut, &made))
        return 0;
    made.partials_offset = padded_x_bytes(view, m);
    made.workspace_bytes = made.partials_offset;
    if (made.whole < made.tiles)
        made.workspace_bytes += 2 * made.blocks * trf_packed_wgmma_items(shape) * TRF_PACKED_BULK_ITEM_BYTES;
    *partition = made;
    return 1;
}

/* Clocks that a product should take: those of the block with most to do, or those of memory, whichever are more. From
 * an experiment of the same structure (trf_packed_wgmma.cuh) on an H200; measured times are to replace all of this. */
static uint64_t wgmma_clocks(const trf_packed_view *view, uint32_t m, const trf_packed_partition *p) {
    enum {
        FORMING = 304,  /* a stage's weights */
        ROW = 5,        /* a stage's products, for each row of x: 80 % of what tensor cores do */
        COPIED = 34,    /* bytes a clock that a multiprocessor gets from the L2 cache */
        READ = 2400,    /* bytes a clock that memory gives to all of them */
        TILE = 1500,    /* filling the pipeline, and ending it */
        OUTPUT = 12,    /* for each row of x of a tile: its sums to y or to the workspace */
        CLUSTER = 1500, /* its meetings, and sums of each other block */
        FINISH = 5000   /* the second kernel, early launch or not */
    };
    const uint64_t x_rows = p->x_tiles * X_TILE_ROWS,
                   copied = ceil_div(trf_packed_wgmma_stage_bytes(p->shape) + TRF_PACKED_WGMMA_LINE_BYTES, COPIED),
                   multiplied = ROW * x_rows > FORMING ? ROW * x_rows : FORMING,
                   stage = copied > multiplied ? copied : multiplied, shared = p->tiles - p->whole;
    uint64_t stages = 0, pieces = 1;
    if (p->cluster > 1) {
        stages = ceil_div(p->stages, p->cluster);
    } else {
        pieces = ceil_div(p->whole, p->blocks);
        stages = pieces * p->stages + ceil_div(shared * p->stages, p->blocks);
        pieces += shared ? 2 : 0;
    }
    uint64_t busiest = stages * stage + pieces * (TILE + OUTPUT * x_rows);
    if (p->cluster > 1)
        busiest += CLUSTER * (p->cluster - 1);
    if (shared)
        busiest += FINISH;
    const uint64_t passes = ceil_div(p->x_blocks, TRF_PACKED_WGMMA_X_GROUP), /* over the weights */
        bytes = passes * view->bands * view->tiles_per_band * TRF_PACKED_TILE_BYTES +
                (uint64_t)m * (view->cols + view->rows) * 2,
                   read = bytes / READ;
    return (busiest > read ? busiest : read) + TILE;
}

static int choose_best_wgmma(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                             trf_packed_partition *best) {
    static const trf_packed_cut cuts[] = {TRF_PACKED_CUT_WHOLE, TRF_PACKED_CUT_2, TRF_PACKED_CUT_4,
                                          TRF_PACKED_CUT_STREAM_K};
    uint64_t best_clocks = UINT64_MAX;
    for (int shape = TRF_PACKED_WGMMA_64; shape < TRF_PACKED_SHAPES; shape++)
        for (int i = 0; i < 4; i++) {
            trf_packed_partition made;
            if (!trf_packed_choose_wgmma(view, limits, m, shape, cuts[i], &made))
                continue;
            const uint64_t clocks = wgmma_clocks(view, m, &made);
            if (clocks < best_clocks) {
                best_clocks = clocks;
                *best = made;
            }
        }
    return best_clocks != UINT64_MAX;
}

int trf_packed_choose(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                      trf_packed_partition *partition) {
    if (m <= TRF_PACKED_BULK_MAX_M ? choose_best_bulk(view, limits, m, partition)
                                   : choose_best_wgmma(view, limits, m, partition))
        return 1;
    return trf_packed_choose_general(view, limits, m, partition);
}
