/* SPDX-License-Identifier: Apache-2.0 */
/* Tries every way to cut a product that the kernels can do: variants, sizes of clusters, splits of a unit's columns
 * among warps (split-K), columns cut evenly among blocks (stream-K). The choice is the cheapest one by the cost model
 * among those whose shared memory a block can have. */
#include "trf_fused_partition.h"

#include "trf_cost_model.h"
#include "trf_planning.h"
#include "trf_product_request.h"

#include <math.h>

enum {
    FLAG_STREAM_K = 1,
    FLAG_CLUSTER_SUMS_REPLACE_BUFFERS = 2
};

/* ---- what the kernels take ---- */

static int variant_takes(const trf_product_request *request, uint32_t variant) {
    const trf_device_view *view = request->view;
    if (variant == TRF_VARIANT_GENERAL)
        return 1;
    if (!trf_has_large_smem(request->limits) || !trf_has_default_p(view, request->traits->max_frequency) ||
        request->traits->predictor_modes & TRF_PREDICT_ROW)
        return 0;
    return variant == TRF_VARIANT_ONE_SLAB ||
           trf_fused_x_tiles(request->m, TRF_VARIANT_TWO_SLABS) <=
               trf_fused_two_slab_max_x_tiles(view->codec, (int)view->class_bits, view->raw_bits,
                                              trf_has_scale_groups(view));
}

/* ---- the partition ---- */

/* Whether warps share units. */
static int shares_units(const trf_fused_partition *c) { return c->cluster_size * c->k_splits > 1; }

static int pipelines_x(const trf_fused_partition *c) { return trf_pipelines_x((int)c->unit_slabs, (int)c->x_tiles); }

static uint32_t sum_bytes(const trf_fused_partition *c) { return trf_fused_sum_bytes(c->unit_slabs, c->x_tiles); }

/* With a pipeline of x, a block has all warps that the kernel is made for. Otherwise it has those with work, and at
 * least so many that the table is made quickly. */
uint32_t trf_fused_block_warps(const trf_fused_partition *c) {
    const uint32_t at_work = c->wave_units * c->k_splits, least = trf_min_u32(c->warps, 8);
    return pipelines_x(c) ? c->warps : trf_max_u32(at_work, least);
}

/* Makes the partition that these choices lead to, without the fields that depend on shared memory. clusters: the most
 * that there may be. */
static trf_fused_partition make_partition(const trf_product_request *request, uint32_t variant, uint32_t cluster_size,
                                          uint32_t clusters, uint32_t k_splits, uint32_t flags) {
    const trf_device_view *view = request->view;
    trf_fused_partition c = {.variant = variant, .cluster_size = cluster_size, .k_splits = k_splits};
    c.x_tiles = (uint32_t)trf_fused_x_tiles(request->m, (int)variant);
    c.warps = (uint32_t)trf_fused_warps(view->codec, (int)view->class_bits, trf_has_scale_groups(view), (int)c.x_tiles,
                                        (int)variant);
    c.unit_slabs = (uint32_t)trf_fused_unit_slabs((int)variant);
    c.panels = trf_regular_panels(view);
    c.units = c.panels ? trf_ceil_div(view->rows / TRF_SLAB_ROWS, c.unit_slabs) : 0;
    c.is_stream_k = flags & FLAG_STREAM_K;
    c.cluster_sums_replace_buffers = (flags & FLAG_CLUSTER_SUMS_REPLACE_BUFFERS) != 0;
    const uint32_t most_at_once = c.warps / k_splits;
    if (c.is_stream_k) {
        c.wave_units = most_at_once;
        c.wave_panels = trf_ceil_div(c.units, c.wave_units) * c.panels;
        c.clusters = trf_max_u32(trf_min_u32(clusters, c.wave_panels), 1);
        c.block_panels = c.panels;
        return c;
    }
    c.clusters = trf_max_u32(trf_min_u32(clusters, c.units), 1);
    const uint32_t most_units = c.units ? trf_ceil_div(c.units, c.clusters) : 1;
    c.wave_units = trf_min_u32(most_at_once, most_units);
    c.waves = trf_ceil_div(most_units, c.wave_units);
    c.block_panels = trf_ceil_div(c.panels, cluster_size);
    return c;
}

/* Lays out shared memory. @return whether a block can have it. */
static int lay_out(trf_fused_partition *c, const trf_product_request *request, uint32_t table_log,
                   uint32_t x_stage_cols) {
    const trf_device_view *view = request->view;
    /* Whether sums lie in the buffers of the warps that left them. */
    const int in_buffers = c->k_splits > 1 && c->cluster_size == 1 && c->waves == 1;
    c->x_stage_cols = x_stage_cols;
    c->smem = trf_smem_layout_of(view->raw_bits, request->traits->max_rans_bytes, trf_fused_block_warps(c),
                                 c->unit_slabs, table_log, in_buffers ? sum_bytes(c) : 0,
                                 trf_copied_x_bytes(view->codec, (int)c->unit_slabs, (int)c->x_tiles), TRF_RING_STEPS);
    c->x_stages_offset = c->smem.total;
    c->shared_bytes = c->x_stages_offset + c->k_splits * 2 * trf_x_stage_bytes(x_stage_cols, (int)c->x_tiles);
    const uint32_t in_place_of = pipelines_x(c) ? c->x_stages_offset : c->smem.first_warp;
    c->sums_offset = in_buffers ? c->smem.first_warp : c->cluster_sums_replace_buffers ? in_place_of : c->shared_bytes;
    c->sums_stride = in_buffers ? c->smem.warp_bytes : sum_bytes(c);
    if (shares_units(c) && !in_buffers) { /* room for the tasks of a block, rounded up */
        const uint32_t end =
            c->sums_offset + c->k_splits * (c->wave_units * c->sums_stride + c->cluster_size * TRF_ACC_TILE_BYTES);
        c->shared_bytes = trf_max_u32(end, c->shared_bytes);
    }
    return trf_smem_fits(c->shared_bytes, request->limits);
}

/* Lays out shared memory with the largest table that fits. @return whether one does. */
static int fit(trf_fused_partition *c, const trf_product_request *request) {
    const trf_device_view *view = request->view;
    const int any = c->variant == TRF_VARIANT_GENERAL;
    const uint32_t largest = any ? TRF_TABLE_LOG : trf_fused_table_log((int)view->class_bits, (int)c->unit_slabs),
                   smallest = any ? view->probability_bits + 4 : largest;
    for (uint32_t log = largest; log >= smallest; log--) /* stages hold whole slabs if there is room */
        if (lay_out(c, request, log, pipelines_x(c) ? view->slab_cols : 0) ||
            (pipelines_x(c) && lay_out(c, request, log, TRF_MIN_SLAB_COLS)))
            return 1;
    return 0;
}

/* ---- the choice ---- */

typedef struct fused_search {
    const trf_product_request *request;
    trf_fused_partition best;
    double least_us; /* infinite: no partition was found yet */
} fused_search;

static void consider(fused_search *search, trf_fused_partition candidate) {
    const trf_product_request *request = search->request;
    const double us =
        trf_cost_of_fused(request->view, &candidate, (uint32_t)request->limits->multiprocessors, request->m);
    if (us < search->least_us && fit(&candidate, request)) {
        search->least_us = us;
        search->best = candidate;
    }
}

/* Considers clusters of 1 << log_cluster blocks, with up to `warps` warps a unit. */
static void consider_clusters(fused_search *search, uint32_t variant, uint32_t log_cluster, uint32_t warps) {
    const uint32_t cluster_size = 1u << log_cluster, clusters = search->request->limits->clusters_of[cluster_size];
    for (uint32_t k_splits = 1; k_splits <= warps; k_splits++) {
        const trf_fused_partition c = make_partition(search->request, variant, cluster_size, clusters, k_splits, 0);
        if ((cluster_size > 1 && cluster_size > c.panels) || (k_splits > 1 && k_splits > c.block_panels))
            break; /* a block or a warp would have no panels */
        consider(search, c);
        if (c.x_tiles > 1 && cluster_size > 1 && c.waves == 1 && k_splits <= c.panels / cluster_size)
            consider(search, make_partition(search->request, variant, cluster_size, clusters, k_splits,
                                            FLAG_CLUSTER_SUMS_REPLACE_BUFFERS));
    }
}

/* Finds the best partition of all. @return whether there is one. */
static int find_partition(const trf_product_request *request, trf_fused_partition *best) {
    const trf_device_limits *limits = request->limits;
    fused_search search = {.request = request, .least_us = HUGE_VAL};
    for (uint32_t variant = 0; variant < TRF_FUSED_VARIANTS; variant++) {
        if (variant == TRF_VARIANT_GENERAL && search.least_us < HUGE_VAL)
            break; /* general kernels are the slowest */
        if (!variant_takes(request, variant))
            continue;
        const trf_fused_partition stream_k =
            make_partition(request, variant, 1, limits->clusters_of[1], 1, FLAG_STREAM_K);
        consider(&search, stream_k);
        for (uint32_t log_cluster = 0; log_cluster < TRF_CLUSTER_SIZES && limits->clusters_of[1u << log_cluster];
             log_cluster++)
            consider_clusters(&search, variant, log_cluster, stream_k.warps);
    }
    *best = search.best;
    return search.least_us < HUGE_VAL;
}

const char *trf_fused_refusal(const trf_device_view *view, const trf_layer_traits *traits,
                              const trf_device_limits *limits, uint32_t m, trf_dtype x_dtype) {
    if (m > TRF_FUSED_MAX_M)
        return "the batch is larger than 64";
    const char *reason = trf_fragment_refusal(view, traits, x_dtype);
    if (reason)
        return reason;
    if ((uint64_t)view->num_bands * view->num_panels > UINT32_MAX || ((uint64_t)view->cols + 8) * m > UINT32_MAX / 2)
        return "the layer or the batch is too large";
    const trf_product_request request = {view, traits, limits, m};
    trf_fused_partition c;
    return find_partition(&request, &c) ? NULL : "its rANS streams do not fit this device's shared memory";
}

double trf_fused_microseconds(const trf_device_view *view, const trf_layer_traits *traits,
                              const trf_device_limits *limits, uint32_t m) {
    const trf_product_request request = {view, traits, limits, m};
    trf_fused_partition c;
    return find_partition(&request, &c) ? trf_cost_of_fused(view, &c, (uint32_t)limits->multiprocessors, m) : HUGE_VAL;
}

void trf_fused_choose(const trf_device_view *view, const trf_layer_traits *traits, const trf_device_limits *limits,
                      const trf_product *product, trf_fused_partition *c) {
    const uint32_t m = product->m;
    const trf_product_request request = {view, traits, limits, m};
    find_partition(&request, c);
    c->partials_offset = trf_device_align(traits->irregular_weights ? 4ull * m * view->rows : 0);
    c->padded_x_offset = c->partials_offset + (c->is_stream_k ? 2ull * c->clusters * c->wave_units * sum_bytes(c) : 0);
    c->epilogue_sums_offset = c->padded_x_offset + trf_padded_x_bytes(view->cols, m); /* x may be misaligned */
    c->workspace_bytes =
        c->epilogue_sums_offset +
        (trf_fused_has_sums_in_workspace(view, traits, product) ? trf_device_align(4ull * m * view->rows) : 0);
}
