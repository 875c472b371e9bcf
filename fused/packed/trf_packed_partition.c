/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_packed_partition.h"

enum {
    BLOCKS_A_MULTIPROCESSOR = 2, /* that run at once, by their registers */
    LEAST_TILES = 16,            /* of a part: four for each of a warp's loads that are under way at once */
    X_TILE_ROWS = 8
};
static const uint64_t kMostBlocks = 0x7FFFFFFF, kMostBytes = 1ull << 48;

static uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

int trf_packed_choose(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                      trf_packed_partition *partition) {
    trf_packed_partition made = {.x_tiles = 1};
    while (made.x_tiles < TRF_PACKED_MAX_X_TILES && made.x_tiles * X_TILE_ROWS < m)
        made.x_tiles *= 2;
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
