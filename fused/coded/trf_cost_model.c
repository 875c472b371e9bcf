/* SPDX-License-Identifier: Apache-2.0 */
/* A multiprocessor's warps take turns at its four schedulers. While enough warps are at work, a step, in which each
 * warp walks one panel of its unit, takes as long as the schedulers need for all slabs: `decoding`. With fewer warps,
 * it takes as long as one warp's chain of rANS states needs, whatever the others do: `waiting`. The time of what
 * follows the walk is added. */
#include "trf_cost_model.h"

#include "trf_planning.h"

#include <math.h>

/* ---- constants: microseconds unless the name says otherwise; slabs are 256 columns wide ---- */

/* The time of a slab on a multiprocessor whose warps are all at work, with 1 row of x; and what each of up to 7 more
 * rows adds. */
static const double kOneSlabUs = 0.365, kOneSlabRowUs = 0.0040, kTwoSlabsUs = 0.340, kTwoSlabsRowUs = 0.0020;
/* The same with two slabs a warp and several x tiles: a constant, and what each x tile adds. */
static const double kTwoSlabsTiledUs = 0.30, kTwoSlabsTileUs = 0.04;
/* The same with one slab a warp and 2, 4 and 8 x tiles. */
static const double kOneSlabUs2Tiles = 0.41, kOneSlabUs4Tiles = 0.47, kOneSlabUs8Tiles = 0.82;
/* The same in general kernels, with 1 and 8 x tiles. */
static const double kGeneralUs = 1.0, kGeneralUs8Tiles = 1.5;
/* How much longer decoding takes with pairs, and with quads of FP16, than with other quads. */
static const double kPairsFactor = 1.2, kFp16Factor = 1.25;

/* The time of a warp's slab, or of two at the same time, when the warp has the multiprocessor almost to itself; and how
 * much longer pairs take. A block of a single layer's product waits for warps only where there are few of them. Grouped
 * launches wait with more warps at work, which is where 5.8 was measured. */
static const double kAloneSlabUs = 5.0, kGroupAloneSlabUs = 5.8, kAloneTwoSlabsUs = 6.5, kAlonePairsFactor = 1.8;

/* The second kernel of a stream-K partition: its launch and its work, if x is pipelined, with several x tiles, and with
 * one; and the speed at which it reads sums. */
static const double kFinishPipelinedUs = 6.5, kFinishTilesUs = 3, kFinishUs = 5, kFinishBytesPerUs = 4e6;

/* With several x tiles, fewer warps hide less of each other's latencies. For a full block the two shares add up to
 * 1. */
static const double kLatencyShare = 0.88, kLatencyOfWarpsShare = 0.12;

/* Where memory is the limit, blocks with less to do leave bandwidth to the others. The time is then the first share
 * times the fullest block's decoding, plus the second share times the mean of all multiprocessors. */
static const double kDecodingShare = 0.2, kMemoryShare = 0.8;

/* If slabs of more than a tile's rows are read at once, reading is a little slower. */
static const double kManyRowsFactor = 1.03;

/* Costs at the end of a wave: the barrier of a block alone, of a cluster of two blocks, and of larger clusters; a cost
 * for each warp that leaves sums; and the speed at which a block reads these sums, within a block and within a
 * cluster. */
static const double kMeetBlockUs = 0.4, kMeetPairUs = 1.35, kMeetClusterUs = 2.4, kMeetWarpUs = 0.02,
                    kBlockBytesPerUs = 150e3, kClusterBytesPerUs = 40e3;

/* Sums that take the place of other buffers wait for the last block. If they replace the pipeline of x, this takes
 * x_tiles^2 divided by the first number; if they replace warps' buffers, it takes the second. */
static const double kSumsOverXTilesSquaredPerUs = 6.0, kSumsOverBuffersUs = 0.6;

/* How much longer grouped launches take with clusters of several blocks. In a single layer's estimate this is part of
 * the barriers' costs. */
static const double kGroupClusterUs = 0.5;

/* ---- slabs ---- */

/* Microseconds of a slab of 256 columns. */
static double slab_us(const trf_device_view *view, uint32_t variant, uint32_t x_tiles, uint32_t unit_slabs,
                      uint32_t m) {
    const double more_rows = m <= 8 ? m - 1.0 : 7.0, longer = view->class_bits == 4           ? kPairsFactor
                                                              : view->codec == TRF_CODEC_FP16 ? kFp16Factor
                                                                                              : 1.0;
    if (variant == TRF_VARIANT_GENERAL)
        return x_tiles == 1 ? kGeneralUs : kGeneralUs8Tiles;
    if (unit_slabs == 2)
        return longer *
               (x_tiles == 1 ? kTwoSlabsUs + kTwoSlabsRowUs * more_rows : kTwoSlabsTiledUs + kTwoSlabsTileUs * x_tiles);
    return longer * (x_tiles == 1   ? kOneSlabUs + kOneSlabRowUs * more_rows
                     : x_tiles == 2 ? kOneSlabUs2Tiles
                     : x_tiles == 4 ? kOneSlabUs4Tiles
                                    : kOneSlabUs8Tiles);
}

static double width_of(const trf_device_view *view) { return view->slab_cols / 256.0; }

static double lone_step_us(const trf_device_view *view, double quads_us) {
    return width_of(view) * (view->class_bits == 4 ? kAlonePairsFactor : 1.0) * quads_us;
}

/* ---- one layer ---- */

static int shares_units(const trf_fused_partition *c) { return c->cluster_size * c->k_splits > 1; }

static int pipelines_x(const trf_fused_partition *c) { return trf_pipelines_x((int)c->unit_slabs, (int)c->x_tiles); }

/* The number of slabs of the warps of a multiprocessor's fullest quarter. Four schedulers issue the warps'
 * instructions, and each has every fourth warp. */
static double fullest_quarter(const trf_fused_partition *c) {
    uint32_t num_slabs[4] = {0}, fullest = 0;
    for (uint32_t warp = 0; warp < c->wave_units * c->k_splits; warp++) {
        const uint32_t k_split = warp / c->wave_units;
        uint32_t *const own = &num_slabs[warp % 4];
        *own += c->block_panels * (k_split + 1) / c->k_splits - c->block_panels * k_split / c->k_splits;
        fullest = trf_max_u32(*own, fullest);
    }
    return (double)c->waves * c->unit_slabs * fullest;
}

static double cost_of_stream_k_blocks(const trf_fused_partition *c, double each_us, double waiting_us) {
    const double wave_panels = trf_ceil_div(c->wave_panels, c->clusters),
                 sums = 2.0 * c->clusters * c->wave_units * trf_fused_sum_bytes(c->unit_slabs, c->x_tiles),
                 decoding = wave_panels * c->wave_units * c->unit_slabs * each_us, waiting = wave_panels * waiting_us;
    return fmax(decoding, waiting) +
           (pipelines_x(c)   ? kFinishPipelinedUs
            : c->x_tiles > 1 ? kFinishTilesUs
                             : kFinishUs) +
           sums / kFinishBytesPerUs;
}

/* The cost of the steps of a block with one x tile. mean: slabs of a multiprocessor, on average. */
static double cost_of_one_tile(const trf_device_view *view, const trf_fused_partition *c, double steps, double mean,
                               double each_us) {
    /* Quads of BF16 are bound by memory; quads of FP16 are, too, with one slab a warp and nearly all warps at work.
     * With fewer warps at work, each one is a little faster. */
    const int nearly_all = 8 * c->wave_units * c->k_splits >= 7 * c->warps,
              by_memory =
                  view->class_bits == 2 && (view->codec == TRF_CODEC_BF16 ||
                                            (view->codec == TRF_CODEC_FP16 && c->unit_slabs == 1 && nearly_all));
    const double at_work = 0.5 * (c->warps + c->wave_units * c->k_splits),
                 rows = c->wave_units * c->unit_slabs > 8 ? kManyRowsFactor : 1.0,
                 decoding = steps * at_work * c->unit_slabs * each_us * rows;
    return by_memory ? kDecodingShare * decoding + kMemoryShare * mean * each_us : decoding;
}

/* The cost of adding up the sums of warps that share units. */
static double cost_of_meeting(const trf_fused_partition *c, uint32_t m) {
    const double meeting = c->cluster_size > 2   ? kMeetClusterUs
                           : c->cluster_size > 1 ? kMeetPairUs
                                                 : kMeetBlockUs,
                 bytes_per_us = c->cluster_size > 1 ? kClusterBytesPerUs : kBlockBytesPerUs,
                 left = c->wave_units * c->k_splits * trf_fused_sum_bytes(c->unit_slabs, c->x_tiles) *
                        (m < 8 ? m / 8.0 : 1.0); /* bytes of sums that a block reads */
    return c->waves * (meeting + kMeetWarpUs * c->cluster_size * c->k_splits + left / bytes_per_us);
}

double trf_cost_of_fused(const trf_device_view *view, const trf_fused_partition *c, uint32_t multiprocessors,
                         uint32_t m) {
    const double each_us = width_of(view) * slab_us(view, c->variant, c->x_tiles, c->unit_slabs, m);
    const double waiting_us = lone_step_us(view, c->unit_slabs == 2 ? kAloneTwoSlabsUs : kAloneSlabUs);
    if (c->is_stream_k)
        return cost_of_stream_k_blocks(c, each_us, waiting_us);
    const double steps = (double)c->waves * trf_ceil_div(c->block_panels, c->k_splits), waiting = steps * waiting_us;
    const double mean = (double)c->units * c->panels * c->unit_slabs / multiprocessors; /* slabs of a multiprocessor */
    double cost;
    if (pipelines_x(c)) { /* the limit is the time that a warp takes */
        cost = steps * c->warps * each_us;
    } else if (c->x_tiles > 1) {
        const double fewer = kLatencyShare + kLatencyOfWarpsShare * c->warps / (c->wave_units * c->k_splits);
        cost = fmax(4 * fullest_quarter(c) * each_us * fewer, waiting);
    } else {
        cost = fmax(cost_of_one_tile(view, c, steps, mean, each_us), waiting);
    }
    if (shares_units(c))
        cost += cost_of_meeting(c, m);
    if (c->cluster_sums_replace_buffers) /* sums cannot be sent before the last block is ready */
        cost += pipelines_x(c) ? c->x_tiles * c->x_tiles / kSumsOverXTilesSquaredPerUs : kSumsOverBuffersUs;
    return cost;
}

/* ---- layers that share a launch, and experts ---- */

trf_cost_layer trf_cost_layer_of(const trf_device_view *view, uint32_t unit_slabs, uint32_t warps, uint32_t m) {
    const uint32_t variant = unit_slabs == 2 ? TRF_VARIANT_TWO_SLABS : TRF_VARIANT_ONE_SLAB;
    trf_cost_layer layer;
    layer.panels = trf_regular_panels(view);
    layer.units = layer.panels ? trf_ceil_div(view->rows / TRF_SLAB_ROWS, unit_slabs) : 0;
    layer.unit_slabs = unit_slabs;
    layer.warps = warps;
    layer.slab_us = width_of(view) * slab_us(view, variant, 1, unit_slabs, m);
    layer.lone_step_us = lone_step_us(view, unit_slabs == 2 ? kAloneTwoSlabsUs : kGroupAloneSlabUs);
    layer.sum_bytes = trf_fused_sum_bytes(unit_slabs, 1) * (m / 8.0);
    return layer;
}

double trf_cost_of_step(const trf_cost_layer *layer, double warps_at_work) {
    return fmax(warps_at_work * layer->unit_slabs * layer->slab_us, layer->lone_step_us);
}

/* Half of the warps may have one step less. The others gain time from this, unless each waits for its own chain. */
double trf_cost_of_stream_k(const trf_cost_layer *layer, uint32_t units) {
    const double panels_per_warp = (double)units * layer->panels / layer->warps, steps = ceil(panels_per_warp),
                 decoding = 0.5 * (panels_per_warp + steps) * layer->warps * layer->unit_slabs * layer->slab_us,
                 waiting = steps * layer->lone_step_us;
    return units ? fmax(decoding, waiting) + kMeetBlockUs + kMeetWarpUs * layer->warps +
                       layer->warps * layer->sum_bytes / kBlockBytesPerUs
                 : 0;
}

double trf_cost_of_split_k(const trf_cost_layer *layer, uint32_t waves, uint32_t wave_units, uint32_t panels,
                           uint32_t k_splits, uint32_t cluster_size) {
    const double steps = (double)waves * trf_ceil_div(panels, k_splits),
                 rows = wave_units * layer->unit_slabs > 8 ? kManyRowsFactor : 1.0,
                 meeting = cluster_size > 2 ? kMeetClusterUs : kMeetPairUs;
    return kGroupClusterUs + steps * trf_cost_of_step(layer, 0.5 * (layer->warps + wave_units * k_splits) * rows) +
           waves * (meeting + kMeetWarpUs * cluster_size * k_splits +
                    wave_units * k_splits * layer->sum_bytes / kClusterBytesPerUs);
}
