/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_packed_estimate.h"

#include "trf_planning.h"

#include <string.h>

enum {
    USUAL_GB = 3352 /* assumed bandwidth in GB/s, where the driver does not say it */
};

/* tools/packed_choice/fit.c fitted these to 876 products of 28 layers by 1 to 8,192 rows of x, and to 434 with early
 * launches, measured on four H100s with all kernels in all cuts. For 1,241 of these 1,310 products the kernel and cut
 * with the least cost is at most 3 % slower than the fastest. On other H100s this is so for 566 of 582 products of half
 * of the layers, and for 214 of 224 with early launches; for 7 layers that nothing was fitted to, it is so for 142 of
 * 147, and for 100 of 105. On an H200, at batches of whole blocks, the searches of that day kept 162 of 182 choices,
 * most of which had been fitted there to older kernels (docs/notebook/2026-11-26-packed-choice.md). */
const trf_packed_costs trf_packed_sm_90_costs = {
    .bulk_start = 1949,
    .bulk_stream_k = 8536,
    .bulk_cluster = {0, 0, 1034, 1793, 2503, 1684, 2234, 2265, 2916},
    .bulk_copy = 75.34,
    .bulk_read = 0.8805,
    .bulk_k_block = {[TRF_PACKED_BULK_256] = {698.3, 200.3, 1278, 0},
                     [TRF_PACKED_BULK_128] = {705, 715.6, 1216, 0},
                     [TRF_PACKED_BULK_64] = {698, 715.8, 753.7, 0},
                     [TRF_PACKED_BULK_32] = {575.5, 570.6, 493, 809.8}},
    .wgmma_start = 65.29,
    .wgmma_registers = 2793,
    .wgmma_cluster = {0, 0, 847.7, 1384, 1927, 3072, 5671, 3748, 4064},
    .wgmma_copy = 63.24,
    .wgmma_read = 0.8493,
    .wgmma_stream_k = 1483,
    .wgmma_fronts = 5158,
    .wgmma_tile = 165.8,
    .wgmma_row = 22.53,
    .wgmma_cluster_row = 17.95,
    .wgmma_back_row = 15.56,
    .wgmma_sharer_row = 5.269,
    .wgmma_shared_x = 13.68,
    .wgmma_back_k_block = 0.934,
    .wgmma_k_block = 329.1,
    .wgmma_k_block_row = 1.328,
    .wgmma_product_row = 1.466,
    .wgmma_power_row = 1.403,
    .wgmma_192_k_block = 1.241,
    .wgmma_192_product = 1.138,
};

/* What differs with packed FP8 layers, by the times of one H200: of 174 products of six layers by 1 to 2,048 rows of x,
 * with and without records, 167 choices are at most 3 % slower than the fastest kernel and cut
 * (docs/notebook/2026-11-29-packed-fp8.md). */
static const double kFp8Factor192 = 1.3; /* in place of wgmma_192_k_block: three bands share fewer forming warps */

typedef struct fp8_costs {
    double bulk_k_block[TRF_PACKED_BULK_SHAPES][4];
    double wgmma_k_block;
} fp8_costs;

static const fp8_costs kByOne = {.wgmma_k_block = 335,
                                 .bulk_k_block = {[TRF_PACKED_BULK_256] = {880, 890, 1090, 1900},
                                                  [TRF_PACKED_BULK_128] = {880, 935, 1125, 0},
                                                  [TRF_PACKED_BULK_64] = {480, 520, 597, 0},
                                                  [TRF_PACKED_BULK_32] = {480, 500, 530, 680}}},
                       kByTwo = {.wgmma_k_block = 335,
                                 .bulk_k_block = {[TRF_PACKED_BULK_256] = {945, 1010, 1195, 2000},
                                                  [TRF_PACKED_BULK_128] = {945, 1030, 1245, 0},
                                                  [TRF_PACKED_BULK_64] = {515, 568, 650, 0},
                                                  [TRF_PACKED_BULK_32] = {500, 530, 560, 710}}},
                       kWithRecords = {.wgmma_k_block = 345,
                                       .bulk_k_block = {[TRF_PACKED_BULK_256] = {1000, 1040, 1255, 2100},
                                                        [TRF_PACKED_BULK_128] = {995, 1070, 1260, 0},
                                                        [TRF_PACKED_BULK_64] = {520, 573, 662, 0},
                                                        [TRF_PACKED_BULK_32] = {515, 540, 575, 720}}};

trf_packed_costs trf_packed8_sm_90_costs(uint32_t flags) {
    const fp8_costs *fp8 = flags & TRF_PACKED8_HAS_RECORDS ? &kWithRecords
                           : flags & TRF_PACKED8_HAS_LOW   ? &kByTwo
                                                           : &kByOne;
    trf_packed_costs costs = trf_packed_sm_90_costs;
    costs.wgmma_k_block = fp8->wgmma_k_block;
    costs.wgmma_192_k_block = kFp8Factor192;
    memcpy(costs.bulk_k_block, fp8->bulk_k_block, sizeof costs.bulk_k_block);
    return costs;
}

static double larger(double a, double b) { return a > b ? a : b; }

/* A product, and how it is cut. */
typedef struct product {
    const trf_packed_costs *costs;
    const trf_packed_view *view;
    const trf_device_limits *limits;
    const trf_packed_partition *p;
    uint32_t m;
    uint32_t slab_bytes;
    uint32_t x_rows;   /* wgmma: rows of x of a tile */
    double k_block_ns; /* wgmma: time of a k block whose copies have arrived */
} product;

/* Returns the nanoseconds that memory takes. passes: how often the weights are read; share: of its bandwidth that is
 * reached. */
static double read_ns(const product *w, double passes, double share) {
    const trf_packed_view *view = w->view;
    const uint64_t known_gb = w->limits->memory_gb_per_second, gb = known_gb ? known_gb : USUAL_GB,
                   tile_bytes = TRF_PACKED_SLABS * w->slab_bytes + TRF_PACKED_LINE_BYTES / TRF_PACKED_LINE_TILES;
    const double bytes = passes * (double)((uint64_t)view->bands * view->tiles_per_band * tile_bytes) +
                         2.0 * w->m * ((double)view->cols + view->rows);
    return bytes / ((double)gb * share);
}

/* Returns what the k blocks of a bulk kernel's block take. */
static double bulk_k_blocks_ns(const product *w) {
    const trf_packed_costs *c = w->costs;
    const trf_packed_partition *p = w->p;
    const int log = p->x_tiles == 8 ? 3 : p->x_tiles == 4 ? 2 : (int)p->x_tiles - 1;
    const double bytes = trf_packed_bulk_weight_bytes(p->shape, w->slab_bytes) +
                         trf_packed_bulk_x_bytes(p->shape, 1, w->slab_bytes) / TRF_PACKED_X_TILE_ROWS * w->m,
                 k_block_ns = larger(bytes / c->bulk_copy, c->bulk_k_block[p->shape][log]);
    return (double)(trf_packed_bulk_is_stream_k(p->shape) ? trf_ceil_div((uint64_t)p->tiles * p->k_blocks, p->blocks)
                                                          : trf_ceil_div(p->k_blocks, p->cluster_size)) *
           k_block_ns;
}

static double bulk_ns(const product *w) {
    const trf_packed_costs *c = w->costs;
    const trf_packed_partition *p = w->p;
    return c->bulk_start + larger(read_ns(w, 1, c->bulk_read), bulk_k_blocks_ns(w)) +
           (trf_packed_bulk_is_stream_k(p->shape) ? c->bulk_stream_k : c->bulk_cluster[p->cluster_size]);
}

double trf_packed_estimate_group(const trf_packed_costs *costs, uint32_t slab_bytes,
                                 const trf_packed_view *const *views, const trf_device_limits *limits,
                                 const uint32_t *m, const trf_packed_partition *partitions, uint32_t count) {
    double all_read_ns = 0, k_blocks_ns = 0;
    for (uint32_t i = 0; i < count; i++) {
        const product w = {.costs = costs,
                           .view = views[i],
                           .limits = limits,
                           .p = &partitions[i],
                           .m = m[i],
                           .slab_bytes = slab_bytes};
        all_read_ns += read_ns(&w, 1, costs->bulk_read);
        k_blocks_ns = larger(k_blocks_ns, bulk_k_blocks_ns(&w));
    }
    return costs->bulk_start + larger(all_read_ns, k_blocks_ns) + costs->bulk_cluster[partitions[0].cluster_size];
}

/* Returns what so many of the product's tiles take, with so many passes over their weights: the time of memory, or of
 * the k blocks if that is longer. */
static double wgmma_copy_ns(const product *w, uint64_t tiles, double passes, double k_blocks_ns) {
    return larger(read_ns(w, passes, w->costs->wgmma_read) * (double)tiles / w->p->tiles, k_blocks_ns);
}

/* How often weights are read, if blocks with the same weights read them at the same time. */
static double shared_passes(const product *w) { return (double)trf_ceil_div(w->p->x_blocks, TRF_PACKED_WGMMA_X_RUN); }

/* A tile's rows of x, scaled to two bands: the time of what leaves a block is proportional to this. */
static double rows_out(const product *w) { return (double)w->x_rows * trf_packed_wgmma_bands(w->p->shape) / 2; }

/* Returns what a tile that a block finishes takes besides its k blocks: its begin and end. */
static double tile_ns(const product *w) { return w->costs->wgmma_tile + w->costs->wgmma_row * rows_out(w); }

static double cluster_ns(const product *w) {
    const trf_packed_costs *c = w->costs;
    const uint32_t blocks = w->p->cluster_size;
    return wgmma_copy_ns(w, w->p->tiles, shared_passes(w),
                         (double)trf_ceil_div(w->p->k_blocks, blocks) * w->k_block_ns) +
           c->wgmma_cluster[blocks] + c->wgmma_tile +
           (c->wgmma_row + c->wgmma_cluster_row * (blocks - 1)) * rows_out(w) / blocks;
}

/* Returns what so many whole tiles take, which are no more than blocks. */
static double whole_tiles_ns(const product *w, uint64_t tiles) {
    return tiles ? wgmma_copy_ns(w, tiles, shared_passes(w), w->p->k_blocks * w->k_block_ns) + tile_ns(w) : 0;
}

/* Returns what the shared tiles take if they have no fronts. */
static double equal_shares_ns(const product *w, uint64_t tiles) {
    const trf_packed_costs *c = w->costs;
    const trf_packed_partition *p = w->p;
    const double k_block_ns = w->k_block_ns + (p->x_blocks > 1 ? c->wgmma_shared_x : 0);
    return wgmma_copy_ns(w, tiles, p->x_blocks, (double)trf_ceil_div(tiles * p->k_blocks, p->blocks) * k_block_ns) +
           c->wgmma_stream_k + 2 * tile_ns(w) + c->wgmma_sharer_row * w->x_rows * (double)p->blocks / (double)tiles;
}

/* Returns what the shared tiles take if they have fronts. */
static double fronts_ns(const product *w, uint64_t tiles) {
    const trf_packed_costs *c = w->costs;
    const trf_packed_partition *p = w->p;
    const uint64_t others = p->blocks - tiles, back = trf_ceil_div(tiles * (p->k_blocks - p->front_k_blocks), others),
                   backs = trf_ceil_div(tiles, others) + 1; /* how many tiles' backs a block may have parts of */
    const double back_k_block_ns = w->k_block_ns * (p->x_blocks > 1 ? c->wgmma_back_k_block : 1),
                 back_ns = (double)back * back_k_block_ns + (double)backs * c->wgmma_back_row * w->x_rows;
    return wgmma_copy_ns(w, tiles, shared_passes(w), larger(p->front_k_blocks * w->k_block_ns, back_ns)) +
           c->wgmma_fronts + tile_ns(w);
}

static double staying_ns(const product *w) {
    const trf_packed_partition *p = w->p;
    const uint64_t shared = p->tiles - p->whole_tiles;
    return (double)(p->whole_tiles / p->blocks) * whole_tiles_ns(w, p->blocks) +
           whole_tiles_ns(w, p->whole_tiles % p->blocks) +
           (shared == 0         ? 0
            : p->front_k_blocks ? fronts_ns(w, shared)
                                : equal_shares_ns(w, shared));
}

static double wgmma_ns(product *w) {
    const trf_packed_costs *c = w->costs;
    const trf_packed_partition *p = w->p;
    const uint32_t x_rows = trf_packed_wgmma_x_rows(p->shape), bands = trf_packed_wgmma_bands(p->shape);
    const double bytes = trf_packed_wgmma_stage_bytes(p->shape, w->slab_bytes) +
                         trf_packed_wgmma_stage_lines_bytes(p->shape),
                 rows = bands * x_rows * (bands == 3 ? c->wgmma_192_product : 1),
                 way_ns = (c->wgmma_k_block + c->wgmma_k_block_row * x_rows) * (bands == 3 ? c->wgmma_192_k_block : 1),
                 power_ns = (double)p->tiles * p->k_blocks * c->wgmma_power_row * rows / w->limits->multiprocessors,
                 start_ns = c->wgmma_start + (trf_packed_wgmma_moves_registers(p->shape) ? c->wgmma_registers : 0);
    w->x_rows = x_rows;
    w->k_block_ns = larger(bytes / c->wgmma_copy, larger(way_ns, c->wgmma_product_row * rows));
    return start_ns + larger(p->cluster_size > 1 ? cluster_ns(w) : staying_ns(w), power_ns);
}

double trf_packed_estimate(const trf_packed_costs *costs, uint32_t slab_bytes, const trf_packed_view *view,
                           const trf_device_limits *limits, uint32_t m, const trf_packed_partition *partition) {
    product w = {.costs = costs, .view = view, .limits = limits, .p = partition, .m = m, .slab_bytes = slab_bytes};
    return trf_packed_is_wgmma(partition->shape) ? wgmma_ns(&w) : bulk_ns(&w);
}
