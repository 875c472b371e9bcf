/* SPDX-License-Identifier: Apache-2.0 */
/* The choice among partitions of packed products. Bulk kernels run where there are clusters; among their shapes those
 * that leave the fewest multiprocessors idle, of equal ones the larger tile, since that reads x less often. Measured
 * times are to replace this. */
#include "trf_packed_partition.h"

#include "trf_packed_bulk_sizes.h"

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
    /* For a copy of x whose rows are whole 16 bytes, where it may not be so itself. */
    made.partials_offset = ((uint64_t)m * ceil_div(view->cols, 8) * 16 + 255) / 256 * 256;
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

int trf_packed_choose(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                      trf_packed_partition *partition) {
    trf_packed_partition best, made;
    int found = 0;
    for (int shape = 0; shape < TRF_PACKED_BULK_SHAPES; shape++) {
        if (!trf_packed_choose_bulk(view, limits, m, shape, &made))
            continue;
        /* Stream-K's second kernel pays where tiles alone would leave an eighth of the device idle, or more. */
        if (!found || made.blocks > best.blocks ||
            (trf_packed_bulk_is_stream_k(best.shape) && made.blocks * 8 > (uint64_t)limits->multiprocessors * 7))
            best = made;
        found = 1;
    }
    if (!found)
        return trf_packed_choose_general(view, limits, m, partition);
    *partition = best;
    return 1;
}
