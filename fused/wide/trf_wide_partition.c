/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses among wide partitions: the one whose decoders walk the fewest slabs one after another, on as few blocks as
 * that takes. */
#include "trf_wide_partition.h"

#include "trf_fused_variant.h"
#include "trf_planning.h"
#include "trf_product_request.h"
#include "trf_wide_sizes.h"

/* The rows of x of a block, if `decoding_blocks` blocks decode for each other: as even as multiples of 16 allow, since
 * kernels have loops for these. */
static uint32_t x_rows_of(uint32_t m, uint32_t decoding_blocks) {
    if (m <= 64)
        return m <= 48 ? 48 : 64;
    const uint32_t blocks = trf_ceil_div(m, 128 * decoding_blocks) * decoding_blocks;
    return trf_ceil_div(trf_ceil_div(m, blocks), 16) * 16;
}

/* Lays out shared memory: the decoders' buffers, then stages. Sums of blocks that split a work item take the place of
 * the stages. */
static void lay_out(trf_wide_partition *c, const trf_product_request *request) {
    c->smem = trf_smem_layout_of(request->view->raw_bits, request->traits->max_rans_bytes,
                                 c->producers * trf_wide_block_units(c->decoding_blocks), TRF_WIDE_UNIT_SLABS,
                                 TRF_WIDE_TABLE_LOG, 0, 0, TRF_SHORT_RING_STEPS);
    c->stages_offset = (c->smem.total + 1023) / 1024 * 1024;
    c->x_stages_offset = c->stages_offset + c->producers * TRF_WIDE_STAGE_BYTES;
    const uint32_t acc_tiles = trf_ceil_div(c->x_rows / 8, c->k_splits) * c->k_splits * (TRF_WIDE_ROWS / 16),
                   sums = c->stages_offset + (c->k_splits > 1 ? acc_tiles * TRF_ACC_TILE_BYTES : 0);
    c->shared_bytes = trf_max_u32(sums, c->x_stages_offset + c->producers * c->x_stage_bytes);
}

/* Makes a partition with at most so many producers, and with fewer if these need no more turns. */
static trf_wide_partition make_partition(const trf_product_request *request, uint32_t decoding_blocks,
                                         uint32_t k_splits, uint32_t clusters, uint32_t producers) {
    const trf_device_view *view = request->view;
    trf_wide_partition c = {.decoding_blocks = decoding_blocks, .k_splits = k_splits};
    c.x_rows = x_rows_of(request->m, decoding_blocks);
    c.x_stage_bytes = c.x_rows * 2 * TRF_WIDE_STAGE_COLS;
    c.threads = trf_wide_threads(trf_wide_max_x_rows(c.x_rows));
    c.panels = trf_regular_panels(view);
    const uint32_t most =
                       trf_min_u32(producers, trf_wide_max_producers(trf_wide_max_x_rows(c.x_rows), decoding_blocks)),
                   panels = trf_ceil_div(c.panels, k_splits), turns = trf_ceil_div(panels, most);
    c.producers = turns ? trf_ceil_div(panels, turns) : 1;
    c.x_ranges = trf_ceil_div(trf_ceil_div(request->m, c.x_rows), decoding_blocks);
    c.work_items = trf_ceil_div(view->rows / TRF_SLAB_ROWS, TRF_WIDE_BANDS) * c.x_ranges;
    c.clusters = trf_min_u32(clusters, c.work_items);
    lay_out(&c, request);
    return c;
}

/* Makes a partition with as many producers as there is room for. @return whether there is room for one. */
static int fit(const trf_product_request *request, uint32_t decoding_blocks, uint32_t log_k_splits,
               trf_wide_partition *partition) {
    const uint32_t clusters = request->limits->clusters_of[decoding_blocks << log_k_splits];
    for (uint32_t most = TRF_WIDE_MAX_PRODUCERS; most > 0; most--) {
        *partition = make_partition(request, decoding_blocks, 1u << log_k_splits, clusters, most);
        if (partition->clusters && trf_smem_fits(partition->shared_bytes, request->limits))
            return 1;
    }
    return 0;
}

/* The number of slabs that a decoder walks one after another, in the longest case. */
static uint32_t slabs_in_turn(const trf_wide_partition *c) {
    return trf_ceil_div(c->work_items, c->clusters) * trf_ceil_div(trf_ceil_div(c->panels, c->k_splits), c->producers);
}

/* Finds the partition with the fewest slabs in turn, on as few blocks as that takes. @return whether there is one. */
static int find_partition(const trf_product_request *request, trf_wide_partition *best) {
    if (request->m > 128 && fit(request, 2, 0, best))
        return 1;
    int found = fit(request, 1, 0, best);
    for (uint32_t log_k_splits = 1; request->m <= 128 && log_k_splits < TRF_CLUSTER_SIZES; log_k_splits++) {
        trf_wide_partition c;
        if (fit(request, 1, log_k_splits, &c) && c.work_items <= request->limits->clusters_of[1u << log_k_splits] &&
            c.panels >= c.k_splits && (!found || slabs_in_turn(&c) < slabs_in_turn(best))) {
            *best = c;
            found = 1;
        }
    }
    return found;
}

const char *trf_wide_device_refusal(const trf_device_limits *limits) {
    if (limits->capability != 90)
        return "the device is not of compute capability 9.0";
    if (limits->missing_kernels & TRF_KERNELS_SM_90A)
        return "this build has no code for architecture 9.0a";
    return NULL;
}

const char *trf_wide_refusal(const trf_device_view *view, const trf_layer_traits *traits,
                             const trf_device_limits *limits, uint32_t m, trf_dtype x_dtype) {
    if (view->codec == TRF_CODEC_BF16)
        return "there are no wide kernels for bf16 layers, which can be loaded packed for large batches";
    const char *reason = trf_fragment_refusal(view, traits, x_dtype);
    if (!reason)
        reason = trf_wide_device_refusal(limits);
    if (reason)
        return reason;
    if (traits->irregular_weights)
        return "the layer has stored tiles, or rows or columns that are not multiples of 32 and 64";
    if (!trf_has_default_p(view, traits->max_frequency) || (traits->predictor_modes & TRF_PREDICT_ROW))
        return "the layer has row offsets, or an unusual frequency table";
    if (trf_has_scale_groups(view))
        return "the layer has scales of scale groups or blocks";
    if (m > INT32_MAX || (uint64_t)view->rows * m > UINT64_MAX / 8)
        return "the layer or the batch is too large";
    const trf_product_request request = {view, traits, limits, m};
    trf_wide_partition c;
    return find_partition(&request, &c) ? NULL : "its rANS streams do not fit this device's shared memory";
}

void trf_wide_choose(const trf_device_view *view, const trf_layer_traits *traits, const trf_device_limits *limits,
                     const trf_product *product, trf_wide_partition *c) {
    const trf_product_request request = {view, traits, limits, product->m};
    find_partition(&request, c);
    c->epilogue_sums_offset = trf_device_align(2ull * product->m * view->cols); /* x may be misaligned */
    c->workspace_bytes =
        c->epilogue_sums_offset + (trf_has_epilogue(product) ? trf_device_align(4ull * product->m * view->rows) : 0);
}
