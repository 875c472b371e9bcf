/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses partitions of groups and of experts.
 *
 * Layers of a group: for each kernel, size of clusters and number of warps, a search that halves an interval finds the
 * least time in which all layers can be done. The less time there is, the more clusters a layer needs, and there must
 * be enough clusters for all layers.
 *
 * Experts: of the kernels, the one that takes less time by the estimate that blocks use, too (trf_expert_share.h). */
#include "trf_group_partition.h"

#include "trf_cost_model.h"
#include "trf_planning.h"

#include <math.h>
#include <stdlib.h>

enum {
    MAX_CLUSTERS = 1024, /* the most that the search considers */
    LEAST_WARPS = 8,     /* of a block */
    HALVINGS = 40,       /* of the interval in which a launch's time lies */
    EXPERT_X_ROWS = 4    /* the rows of x that estimates assume */
};

/* ---- what the kernels take ---- */

int trf_group_fits(const trf_device_view *view, const trf_device_view *other) {
    return view->codec == other->codec && view->class_bits == other->class_bits && view->raw_bits == other->raw_bits &&
           trf_is_scaled_fp8(view->codec, view->source_dtype) == trf_is_scaled_fp8(other->codec, other->source_dtype);
}

const char *trf_group_refusal(const trf_device_view *view, const trf_layer_traits *traits,
                              const trf_device_limits *limits, uint32_t m, trf_dtype x_dtype) {
    if (m > TRF_GROUP_MAX_M)
        return "more than 8 rows of x";
    if (!trf_has_large_smem(limits))
        return "the device has too little shared memory a block, or the build no code for it";
    if (trf_has_scale_groups(view))
        return "the layer has scales of scale groups or blocks";
    if (!trf_has_default_p(view, traits->max_frequency))
        return "the layer's probability bits or frequencies are not the usual ones";
    if (traits->predictor_modes & TRF_PREDICT_ROW)
        return "the layer has row offsets";
    return trf_fused_refusal(view, traits, limits, m, x_dtype);
}

/* Lays out shared memory. sums: their bytes. */
static trf_group_smem lay_out(const trf_device_view *view, uint32_t rans_bytes, uint32_t unit_slabs, uint32_t warps,
                              uint32_t sums) {
    trf_group_smem smem;
    smem.layout = trf_smem_layout_of(view->raw_bits, rans_bytes, warps, unit_slabs,
                                     trf_fused_table_log((int)view->class_bits, (int)unit_slabs),
                                     trf_fused_sum_bytes(unit_slabs, 1), 0, TRF_RING_STEPS);
    smem.sums_offset = smem.layout.total;
    smem.bytes = smem.sums_offset + sums;
    return smem;
}

/* ---- layers ---- */

/* A layer's best split, for each number of clusters that it may get. */
typedef struct layer_partitions {
    double us[MAX_CLUSTERS];
    uint8_t k_splits[MAX_CLUSTERS];
} layer_partitions;

/* A kernel, and the clusters it is launched in. */
typedef struct group_launch {
    uint32_t unit_slabs, warps, cluster_size, clusters; /* clusters: the most that there are */
} group_launch;

/* What is asked for, and the best partition so far. */
typedef struct group_search {
    const trf_group_product *products;
    uint32_t count;
    const trf_device_limits *limits;
    trf_cost_layer cost_layers[TRF_GROUP_MAX_LAYERS];
    layer_partitions *partitions; /* [TRF_GROUP_MAX_LAYERS] */
    trf_group_partition best;
} group_search;

static void find_layer_partitions(const trf_cost_layer *layer, uint32_t cluster_size, uint32_t clusters,
                                  layer_partitions *partitions) {
    const uint32_t panels = trf_ceil_div(layer->panels, cluster_size);
    for (uint32_t n = 1; n <= clusters; n++) {
        const uint32_t most_units = layer->units ? trf_ceil_div(layer->units, n) : 0;
        partitions->us[n - 1] = cluster_size == 1 ? trf_cost_of_stream_k(layer, most_units) : HUGE_VAL;
        partitions->k_splits[n - 1] = 1;
        for (uint32_t k_splits = 1;
             cluster_size > 1 && k_splits <= layer->warps && (k_splits == 1 || k_splits <= panels); k_splits++) {
            const uint32_t wave_units = trf_min_u32(layer->warps / k_splits, most_units);
            const double us = wave_units ? trf_cost_of_split_k(layer, trf_ceil_div(most_units, wave_units), wave_units,
                                                               panels, k_splits, cluster_size)
                                         : 0;
            if (us < partitions->us[n - 1]) {
                partitions->us[n - 1] = us;
                partitions->k_splits[n - 1] = (uint8_t)k_splits;
            }
        }
    }
}

/* The fewest clusters with which a layer takes at most `us` microseconds; 0 if there are none. */
static uint32_t clusters_within(const layer_partitions *partitions, const trf_cost_layer *layer, uint32_t clusters,
                                double us) {
    const uint32_t most = trf_max_u32(trf_min_u32(layer->units, clusters), 1);
    for (uint32_t n = 1; n <= most; n++)
        if (partitions->us[n - 1] <= us)
            return n;
    return 0;
}

/* Whether all layers can be done in `us` microseconds. If so, n[] becomes the number of clusters of each. */
static int share_clusters(const group_search *search, uint32_t clusters, double us, uint32_t *n) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < search->count; i++) {
        n[i] = clusters_within(&search->partitions[i], &search->cost_layers[i], clusters, us);
        if (n[i] == 0)
            return 0;
        sum += n[i];
    }
    return sum <= clusters;
}

/* Returns the least time in which all layers can be done, and sets n[] to the clusters of each; infinity if there is no
 * such time. */
static double find_least_us(const group_search *search, uint32_t clusters, uint32_t *n) {
    double low = 0, high = 0;
    for (uint32_t i = 0; i < search->count; i++)
        high = fmax(search->partitions[i].us[0], high);
    if (!share_clusters(search, clusters, high, n))
        return HUGE_VAL;
    for (int i = 0; i < HALVINGS; i++) {
        const double middle = 0.5 * (low + high);
        if (share_clusters(search, clusters, middle, n))
            high = middle;
        else
            low = middle;
    }
    share_clusters(search, clusters, high, n);
    return high;
}

/* Bytes of a block's sums in the launch. */
static uint32_t sums_of(const trf_group_partition *partition, uint32_t count) {
    const uint32_t sum_bytes = trf_fused_sum_bytes(partition->unit_slabs, 1);
    if (partition->cluster_size == 1)
        return partition->warps * sum_bytes;
    uint32_t most = 0;
    for (uint32_t i = 0; i < count; i++) { /* room for the tasks of a block, rounded up */
        const trf_group_layer_partition *layer = &partition->layers[i];
        most = trf_max_u32(
            layer->k_splits * (layer->wave_units * sum_bytes + partition->cluster_size * TRF_ACC_TILE_BYTES), most);
    }
    return most;
}

/* Takes this kernel and cluster size if they fit and are better than the best partition so far. */
static void consider(group_search *search, const group_launch *launch) {
    trf_group_partition candidate = {
        .unit_slabs = launch->unit_slabs, .warps = launch->warps, .cluster_size = launch->cluster_size};
    uint32_t n[TRF_GROUP_MAX_LAYERS];
    for (uint32_t i = 0; i < search->count; i++) {
        const trf_group_product *product = &search->products[i];
        search->cost_layers[i] = trf_cost_layer_of(product->view, launch->unit_slabs, launch->warps, product->m);
        if (launch->cluster_size > 1 && launch->cluster_size > search->cost_layers[i].panels)
            return; /* a block would have no panels */
        candidate.max_rans_bytes =
            trf_max_u32((product->traits->max_rans_bytes + 15) / 16 * 16, candidate.max_rans_bytes);
    }
    for (uint32_t i = 0; i < search->count; i++)
        find_layer_partitions(&search->cost_layers[i], launch->cluster_size, launch->clusters, &search->partitions[i]);
    candidate.microseconds = find_least_us(search, launch->clusters, n);
    if (candidate.microseconds >= search->best.microseconds)
        return;
    for (uint32_t i = 0; i < search->count; i++) {
        trf_group_layer_partition *layer = &candidate.layers[i];
        const uint32_t units = search->cost_layers[i].units, most_units = units ? trf_ceil_div(units, n[i]) : 1;
        layer->clusters = n[i];
        layer->k_splits = search->partitions[i].k_splits[n[i] - 1];
        layer->wave_units = trf_min_u32(launch->cluster_size == 1 ? 1 : launch->warps / layer->k_splits, most_units);
    }
    candidate.smem = lay_out(search->products[0].view, candidate.max_rans_bytes, launch->unit_slabs, launch->warps,
                             sums_of(&candidate, search->count));
    if (trf_smem_fits(candidate.smem.bytes, search->limits))
        search->best = candidate;
}

/* Gives each layer room for the edges' sums and for x in rows of whole 16 bytes, layer by layer. */
static void lay_out_workspace(const trf_group_product *products, uint32_t count, trf_group_partition *partition) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        const trf_device_view *view = products[i].view;
        partition->layers[i].edge_sums_offset = at;
        at += trf_device_align(products[i].traits->irregular_weights ? 4ull * products[i].m * view->rows : 0);
        partition->layers[i].padded_x_offset = at;
        at += trf_padded_x_bytes(view->cols, products[i].m); /* x may be misaligned */
    }
    partition->workspace_bytes = at;
}

int trf_group_choose(const trf_group_product *products, uint32_t count, const trf_device_limits *limits,
                     trf_group_partition *partition) {
    const trf_device_view *view = products[0].view;
    group_search search = {.products = products, .count = count, .limits = limits, .best.microseconds = HUGE_VAL};
    search.partitions = calloc(TRF_GROUP_MAX_LAYERS, sizeof *search.partitions);
    if (!search.partitions)
        return 0; /* then each layer is launched alone */
    for (uint32_t unit_slabs = 1; unit_slabs <= 2; unit_slabs++)
        for (uint32_t log_cluster = 0;
             log_cluster < TRF_CLUSTER_SIZES && trf_has_group_kernel(view->codec, view->class_bits, unit_slabs);
             log_cluster++) {
            group_launch launch = {unit_slabs, trf_group_warps(view->class_bits, unit_slabs), 1u << log_cluster,
                                   trf_min_u32(limits->clusters_of[1u << log_cluster], MAX_CLUSTERS)};
            for (; launch.warps >= LEAST_WARPS && launch.clusters >= count; launch.warps -= 2)
                consider(&search, &launch);
        }
    free(search.partitions);
    if (search.best.microseconds == HUGE_VAL)
        return 0;
    *partition = search.best;
    lay_out_workspace(products, count, partition);
    return 1;
}

/* ---- experts ---- */

/* The number of work items that a call of so many tokens may have. */
static uint64_t work_items_of(uint32_t count, uint32_t tokens) {
    return trf_max_u32(trf_ceil_div(tokens, TRF_EXPERT_PASS_TOKENS), trf_min_u32(count, tokens));
}

static trf_expert_cost_model cost_model_of(const trf_device_view *view, uint32_t unit_slabs, uint32_t warps) {
    const trf_cost_layer layer = trf_cost_layer_of(view, unit_slabs, warps, EXPERT_X_ROWS);
    trf_expert_cost_model cost_model = {
        .units = layer.units ? layer.units : 1, .panels = layer.panels ? layer.panels : 1, .warps = warps};
    cost_model.step_ns = (uint32_t)(1000 * trf_cost_of_step(&layer, warps));
    cost_model.begin_ns = (uint32_t)(1000 * TRF_EXPERT_BEGIN_US);
    cost_model.begin_quarters =
        (uint32_t)(4.0 * cost_model.begin_ns * warps / ((double)cost_model.step_ns * cost_model.panels) + 0.5);
    return cost_model;
}

int trf_experts_choose(const trf_device_view *view, uint32_t count, uint32_t tokens, const trf_device_limits *limits,
                       trf_experts_partition *partition) {
    uint64_t least = UINT64_MAX;
    for (uint32_t unit_slabs = 1; unit_slabs <= 2; unit_slabs++) {
        if (!trf_has_group_kernel(view->codec, view->class_bits, unit_slabs))
            continue;
        const uint32_t sum_bytes = trf_fused_sum_bytes(unit_slabs, 1);
        uint32_t warps = trf_group_warps(view->class_bits, unit_slabs);
        trf_group_smem smem = lay_out(view, partition->max_rans_bytes, unit_slabs, warps, warps * sum_bytes);
        while (warps >= LEAST_WARPS && !trf_smem_fits(smem.bytes, limits)) {
            warps--;
            smem = lay_out(view, partition->max_rans_bytes, unit_slabs, warps, warps * sum_bytes);
        }
        if (warps < LEAST_WARPS)
            continue;
        const trf_expert_cost_model cost_model = cost_model_of(view, unit_slabs, warps);
        int one_work_item_each;
        const uint64_t cost = trf_expert_cost(&cost_model, work_items_of(count, tokens),
                                              (uint32_t)limits->multiprocessors, &one_work_item_each);
        if (cost >= least)
            continue;
        least = cost;
        partition->unit_slabs = unit_slabs;
        partition->warps = warps;
        partition->smem = smem;
        partition->cost_model = cost_model;
    }
    return least < UINT64_MAX;
}

uint64_t trf_experts_padded_x_offset(const trf_device_view *view, const trf_experts_partition *partition,
                                     uint32_t max_tokens) {
    return partition->has_edges ? trf_device_align(4ull * max_tokens * view->rows) : 0;
}

uint64_t trf_experts_workspace_bytes(const trf_device_view *view, const trf_experts_partition *partition,
                                     uint32_t max_tokens) {
    return trf_experts_padded_x_offset(view, partition, max_tokens) + trf_padded_x_bytes(view->cols, max_tokens);
}
