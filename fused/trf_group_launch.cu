/* How grouped launches are cut, and the launches. */
#include "trf_group_launch.h"

#include "trf_group_instances.cuh"
#include "trf_kernel_launch.cuh"

#include <math.h>
#include <stdlib.h>

/* ---- what the kernels take ---- */

static bool has_kernel(const trf_device_view *view, uint32_t slabs) {
    return trf_has_group(view->codec, view->class_bits, slabs);
}

static trf_group_kernel kernel_of(const trf_device_view *view, uint32_t slabs, trf_dtype x_dtype) {
    const bool bf16_x = x_dtype == TRF_DTYPE_BF16;
    switch (view->codec) {
    case TRF_CODEC_BF16:
        return trf_group_bf16(view->class_bits, slabs);
    case TRF_CODEC_FP16:
        return trf_group_fp16(view->class_bits, slabs);
    case TRF_CODEC_INT:
        return trf_group_int(view->class_bits, view->raw_bits, bf16_x);
    default:
        return trf_group_fp8(view->codec == TRF_CODEC_E5M2, view->class_bits, bf16_x);
    }
}

int trf_group_fits(const trf_device_view *view, const trf_device_view *other) {
    return view->codec == other->codec && view->class_bits == other->class_bits && view->raw_bits == other->raw_bits;
}

/* ---- shared memory: trf_smem_layout, then sums. Warps of blocks alone leave sums in their buffers, too ---- */

static uint32_t sum_bytes(uint32_t slabs) { return kAccTileBytes * 2 * slabs; }

struct group_smem {
    trf_smem_layout plan;
    uint32_t sums, bytes;
};

/* sums: bytes of them. */
static group_smem lay_out(const trf_device_view *view, uint32_t rans_bytes, uint32_t slabs, uint32_t warps,
                          uint32_t sums) {
    group_smem layout;
    layout.plan = trf_smem_layout_of(view->raw_bits, rans_bytes, warps, slabs,
                                     trf_fused_table_log((int)view->class_bits, (int)slabs), sum_bytes(slabs), 0, kRing);
    layout.sums = layout.plan.total;
    layout.bytes = layout.sums + sums;
    return layout;
}

static bool fits(const group_smem &layout, const trf_device_limits *limits) {
    return layout.bytes + kStaticSharedBytes <= (uint32_t)limits->shared_bytes;
}

const char *trf_group_refuses(const trf_device_view *view, const trf_layer_traits *traits,
                              const trf_device_limits *limits, uint32_t m, trf_dtype x_dtype) {
    if (m > TRF_GROUP_MAX_M)
        return "more than 8 rows of x";
    if (!has_large_shared(limits))
        return "the device has too little shared memory a block, or the build no code for it";
    if (is_scaled(view))
        return "the layer has scales of groups or blocks";
    if (!trf_has_default_p(view, traits->max_frequency))
        return "the layer's probability bits or frequencies are not the usual ones";
    if (traits->predictor_modes & TRF_PREDICT_ROW)
        return "the layer has row offsets";
    return trf_fused_refuses(view, traits, limits, m, x_dtype);
}

/* ---- times, by the figures of trf_fused_launch.cu ---- */

/* A layer, as it is walked. */
struct walk_shape {
    uint32_t units, cols, slabs, warps;
    double slab_us, alone_us; /* of a slab; of a warp's with little else to do */
    double sums;              /* bytes that a warp leaves */
};

/* warps: of a block. */
static walk_shape shape_of(const trf_device_view *view, uint32_t slabs, uint32_t warps, uint32_t m) {
    const double width = view->slab_cols / 256.0, longer = view->class_bits == 4 ? 1.8 : 1.0;
    walk_shape s = {};
    s.cols = trf_regular_slab_cols(view);
    s.units = s.cols ? ceil_div(view->rows / TRF_SLAB_ROWS, slabs) : 0;
    s.slabs = slabs;
    s.warps = warps;
    s.slab_us =
        width * slab_microseconds(view, slabs == 2 ? TRF_GEOMETRY_TWO_SLABS : TRF_GEOMETRY_ONE_SLAB, 1, slabs, m);
    s.alone_us = width * longer * (slabs == 2 ? 6.5 : 5.8); /* the latter with more than a few warps */
    s.sums = sum_bytes(slabs) * (m / 8.0);
    return s;
}

/* Of a step in which so many warps of a block walk a column each. */
static double step_us(const walk_shape &s, double at_work) {
    const double decoding = at_work * s.slabs * s.slab_us;
    return decoding > s.alone_us ? decoding : s.alone_us;
}

/* Of a block alone with so many units, whose warps share them evenly: half of the warps may have a step less, which is
 * time for the others unless each waits for itself. */
static double stream_k_us(const walk_shape &s, uint32_t units) {
    const double columns_per_warp = (double)units * s.cols / s.warps, steps = ceil(columns_per_warp),
                 decoding = 0.5 * (columns_per_warp + steps) * s.warps * s.slabs * s.slab_us,
                 waiting = steps * s.alone_us;
    return units ? (decoding > waiting ? decoding : waiting) + 0.4 + 0.02 * s.warps + s.warps * s.sums / 150e3 : 0;
}

static constexpr double kClusterUs = 0.5; /* that launches of clusters of several blocks take longer */

/* Of a block of a cluster of several that walks `groups` groups of `group` units, `cols` columns in `parts` parts. */
static double split_k_us(const walk_shape &s, uint32_t waves, uint32_t wave_units, uint32_t cols, uint32_t k_splits,
                         uint32_t cluster) {
    const double steps = (double)waves * ceil_div(cols, k_splits), rows = wave_units * s.slabs > 8 ? 1.03 : 1.0,
                 meeting = cluster > 2 ? 2.4 : 1.35;
    return kClusterUs + steps * step_us(s, 0.5 * (s.warps + wave_units * k_splits) * rows) +
           waves * (meeting + 0.02 * cluster * k_splits + wave_units * k_splits * s.sums / 40e3);
}

/* ---- layers ---- */

static constexpr uint32_t kMaxClusters = 1024; /* that the search looks at */

/* A layer's best parts for each number of clusters that it may get. */
struct layer_partitions {
    double us[kMaxClusters];
    uint8_t k_splits[kMaxClusters];
};

static void find_layer_partitions(const walk_shape &s, uint32_t cluster, uint32_t clusters,
                                  layer_partitions *partitions) {
    const uint32_t cols = ceil_div(s.cols, cluster);
    for (uint32_t n = 1; n <= clusters; n++) {
        const uint32_t most_units = s.units ? ceil_div(s.units, n) : 0;
        partitions->us[n - 1] = cluster == 1 ? stream_k_us(s, most_units) : HUGE_VAL;
        partitions->k_splits[n - 1] = 1;
        for (uint32_t k_splits = 1; cluster > 1 && k_splits <= s.warps && (k_splits == 1 || k_splits <= cols);
             k_splits++) {
            const uint32_t at_once = s.warps / k_splits, wave_units = at_once < most_units ? at_once : most_units;
            const double us =
                wave_units ? split_k_us(s, ceil_div(most_units, wave_units), wave_units, cols, k_splits, cluster) : 0;
            if (us < partitions->us[n - 1]) {
                partitions->us[n - 1] = us;
                partitions->k_splits[n - 1] = (uint8_t)k_splits;
            }
        }
    }
}

/* The fewest clusters with which a layer takes `us` at most; 0: none. */
static uint32_t clusters_within(const layer_partitions &partitions, const walk_shape &s, uint32_t clusters, double us) {
    const uint32_t most = s.units < clusters ? s.units : clusters;
    for (uint32_t n = 1; n <= (most ? most : 1); n++)
        if (partitions.us[n - 1] <= us)
            return n;
    return 0;
}

/* Whether all layers can be done in `us`; then n[] are the clusters of each. */
static bool share_clusters(const layer_partitions *partitions, const walk_shape *shapes, uint32_t count,
                           uint32_t clusters, double us, uint32_t *n) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        n[i] = clusters_within(partitions[i], shapes[i], clusters, us);
        if (n[i] == 0)
            return false;
        sum += n[i];
    }
    return sum <= clusters;
}

/* Bytes of sums of the launch. */
static uint32_t sums_of(const trf_group_choice *choice, uint32_t count) {
    if (choice->cluster == 1)
        return choice->warps * sum_bytes(choice->slabs);
    uint32_t most = 0;
    for (uint32_t i = 0; i < count; i++) { /* tasks of a block, rounded up */
        const trf_group_layer_partition *layer = &choice->layers[i];
        const uint32_t bytes =
            layer->k_splits * (layer->wave_units * sum_bytes(choice->slabs) + choice->cluster * kAccTileBytes);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Takes this kernel and size of cluster if they are better than the choice so far, and fit. cuts: room for `count`. */
static void consider(const trf_group_product *products, uint32_t count, const trf_device_limits *limits, uint32_t slabs,
                     uint32_t cluster, uint32_t clusters, uint32_t warps, layer_partitions *partitions,
                     trf_group_choice *best) {
    walk_shape shapes[TRF_GROUP_LAYERS];
    trf_group_choice candidate = {};
    uint32_t n[TRF_GROUP_LAYERS];
    double low = 0, high = 0;
    for (uint32_t i = 0; i < count; i++) {
        shapes[i] = shape_of(products[i].view, slabs, warps, products[i].m);
        if (cluster > 1 && cluster > shapes[i].cols)
            return; /* a block without columns */
        const uint32_t bytes = (products[i].traits->max_rans_bytes + 15) / 16 * 16;
        candidate.rans_bytes = bytes > candidate.rans_bytes ? bytes : candidate.rans_bytes;
    }
    for (uint32_t i = 0; i < count; i++) {
        find_layer_partitions(shapes[i], cluster, clusters, &partitions[i]);
        high = partitions[i].us[0] > high ? partitions[i].us[0] : high;
    }
    if (!share_clusters(partitions, shapes, count, clusters, high, n))
        return;
    for (int i = 0; i < 40; i++) {
        const double middle = 0.5 * (low + high);
        if (share_clusters(partitions, shapes, count, clusters, middle, n))
            high = middle;
        else
            low = middle;
    }
    share_clusters(partitions, shapes, count, clusters, high, n);
    candidate.slabs = slabs;
    candidate.warps = warps;
    candidate.cluster = cluster;
    candidate.microseconds = high;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t most_units = shapes[i].units ? ceil_div(shapes[i].units, n[i]) : 1;
        candidate.layers[i].clusters = n[i];
        candidate.layers[i].k_splits = partitions[i].k_splits[n[i] - 1];
        const uint32_t at_once = cluster == 1 ? 1 : warps / candidate.layers[i].k_splits;
        candidate.layers[i].wave_units = at_once < most_units ? at_once : most_units;
    }
    if (high < best->microseconds &&
        fits(lay_out(products[0].view, candidate.rans_bytes, slabs, warps, sums_of(&candidate, count)), limits))
        *best = candidate;
}

/* Edges' sums and x with whole 16 bytes, layer by layer. */
static void lay_out_workspace(const trf_group_product *products, uint32_t count, trf_group_choice *choice) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        const trf_device_view *view = products[i].view;
        choice->layers[i].edges = at;
        at += align_256(products[i].traits->irregular_weights ? 4ull * products[i].m * view->rows : 0);
        choice->layers[i].padded_x = at;
        at += align_256(2ull * products[i].m * ((view->cols + 7) / 8 * 8)); /* x may be misaligned */
    }
    choice->workspace_bytes = at;
}

int trf_group_choose(const trf_group_product *products, uint32_t count, const trf_device_limits *limits,
                     trf_group_choice *choice) {
    layer_partitions *const partitions = (layer_partitions *)malloc(TRF_GROUP_LAYERS * sizeof *partitions);
    trf_group_choice best = {};
    best.microseconds = HUGE_VAL;
    if (!partitions)
        return 0; /* then each of them runs alone */
    for (uint32_t slabs = 1; slabs <= 2; slabs++)
        for (uint32_t size = 0; size < TRF_CLUSTER_SIZES && has_kernel(products[0].view, slabs); size++) {
            const uint32_t most = trf_group_warps(products[0].view->class_bits, slabs),
                           clusters = limits->clusters[size] < kMaxClusters ? limits->clusters[size] : kMaxClusters;
            for (uint32_t warps = most; warps >= 8 && clusters >= count; warps -= 2)
                consider(products, count, limits, slabs, 1u << size, clusters, warps, partitions, &best);
        }
    free(partitions);
    if (best.microseconds == HUGE_VAL)
        return 0;
    lay_out_workspace(products, count, &best);
    *choice = best;
    return 1;
}

/* ---- launches ---- */

static cudaError_t launch(trf_group_kernel kernel, const trf_group_args &args, uint32_t blocks, uint32_t warps,
                          uint32_t shared_bytes, cudaStream_t stream) {
    bool early;
    return launch_kernel(kernel, args, {blocks, 32 * warps, shared_bytes, args.cluster, stream}, &early);
}

/* What layers and experts have in common. cols: columns of slabs; units of the layer. */
static void set_layer_args(const trf_device_view *view, uint32_t slabs, trf_dtype y_dtype, trf_fused_args *args) {
    const uint32_t cols = trf_regular_slab_cols(view);
    args->view = *view;
    args->y_dtype = y_dtype;
    args->x_stride = view->cols;
    args->units = cols ? ceil_div(view->rows / TRF_SLAB_ROWS, slabs) : 0;
    args->whole_rows = args->units ? view->rows / TRF_SLAB_ROWS * TRF_SLAB_ROWS : 0;
    args->cols_per_block = cols;
    args->cluster = 1;
    args->sums_stride = sum_bytes(slabs);
}

/* x in whole 16 bytes, and the edges' part of y. */
static int prepare_layer(const trf_group_product *product, const trf_group_layer_partition *layer, const void *x,
                         uint8_t *base, trf_fused_args *args, trf_stream stream) {
    const trf_device_view *view = product->view;
    args->x = x;
    if (view->cols % 8 || (uintptr_t)x % 16) {
        args->x_stride = (view->cols + 7) / 8 * 8;
        args->x = base + layer->padded_x;
        int status = trf_launch_pad_x(x, product->m, view->cols, base + layer->padded_x, args->x_stride, stream);
        if (status)
            return status;
    }
    if (!product->traits->irregular_weights)
        return cudaSuccess;
    float *edges = (float *)(base + layer->edges);
    args->edges = edges;
    return trf_launch_edge_product(view, product->m, product->x_dtype, args->x, args->x_stride, edges, stream);
}

int trf_group_launch(const trf_group_product *products, uint32_t count, const trf_group_choice *choice,
                     const void *const *x, void *const *y, void *workspace, trf_stream stream) {
    const trf_device_view *first = products[0].view;
    const group_smem layout = lay_out(first, choice->rans_bytes, choice->slabs, choice->warps, sums_of(choice, count));
    trf_group_args args = {};
    args.smem = layout.plan;
    args.sums = layout.sums;
    args.cluster = choice->cluster;
    args.count = count;
    for (uint32_t i = 0; i < count; i++) {
        const trf_group_layer_partition *layer = &choice->layers[i];
        trf_fused_args *a = &args.layers[i];
        set_layer_args(products[i].view, choice->slabs, products[i].y_dtype, a);
        a->m = products[i].m;
        a->y = y[i];
        a->cluster = choice->cluster;
        a->k_splits = layer->k_splits;
        a->wave_units = layer->wave_units;
        a->units_per_cluster = a->units / layer->clusters;
        a->units_remainder = a->units % layer->clusters;
        a->cols_remainder = a->cols_per_block % choice->cluster;
        a->cols_per_block /= choice->cluster;
        args.first_cluster[i + 1] = args.first_cluster[i] + layer->clusters;
        int status = prepare_layer(&products[i], layer, x[i], (uint8_t *)workspace, a, stream);
        if (status)
            return status;
    }
    return launch(kernel_of(first, choice->slabs, products[0].x_dtype), args, args.first_cluster[count] * args.cluster,
                  choice->warps, layout.bytes, stream);
}

/* ---- experts ---- */

static constexpr double kExpertBeginUs =
    6.0; /* arguments, directory, table, first slabs: latencies of memory; and the end */
static constexpr uint32_t kExpertRows = 4; /* of x, for estimates */

/* Items that a call of so many tokens may have. */
static uint64_t items_of(uint32_t count, uint32_t tokens) {
    const uint32_t full = ceil_div(tokens, TRF_EXPERT_TOKENS), spread = count < tokens ? count : tokens;
    return full > spread ? full : spread;
}

int trf_experts_choose(const trf_device_view *view, uint32_t count, uint32_t tokens, const trf_device_limits *limits,
                       trf_experts_choice *choice) {
    uint64_t least = UINT64_MAX;
    for (uint32_t slabs = 1; slabs <= 2; slabs++) {
        if (!has_kernel(view, slabs))
            continue;
        uint32_t warps = trf_group_warps(view->class_bits, slabs);
        while (warps >= 8 && !fits(lay_out(view, choice->rans_bytes, slabs, warps, warps * sum_bytes(slabs)), limits))
            warps--;
        if (warps < 8)
            continue;
        const walk_shape s = shape_of(view, slabs, warps, kExpertRows);
        trf_expert_cost_model cost_model = {s.units ? s.units : 1,
                                            s.cols ? s.cols : 1,
                                            warps,
                                            (uint32_t)(1000 * step_us(s, warps)),
                                            (uint32_t)(1000 * kExpertBeginUs),
                                            0};
        cost_model.begin_quarters =
            (uint32_t)(4.0 * cost_model.begin_ns * warps / ((double)cost_model.step_ns * cost_model.cols) + 0.5);
        int whole;
        const uint64_t cost =
            trf_expert_cost(&cost_model, items_of(count, tokens), (uint32_t)limits->multiprocessors, &whole);
        if (cost >= least)
            continue;
        least = cost;
        choice->slabs = slabs;
        choice->warps = warps;
        choice->cost_model = cost_model;
    }
    return least < UINT64_MAX;
}

struct experts_workspace {
    uint64_t padded_x, bytes; /* edges are at 0 */
};

static experts_workspace experts_layout(const trf_device_view *view, const trf_experts_choice *choice,
                                        uint32_t max_rows) {
    experts_workspace at;
    at.padded_x = choice->edges ? align_256(4ull * max_rows * view->rows) : 0;
    at.bytes = at.padded_x + align_256(2ull * max_rows * ((view->cols + 7) / 8 * 8)); /* x may be misaligned */
    return at;
}

uint64_t trf_experts_workspace_bytes(const trf_device_view *view, const trf_experts_choice *choice, uint32_t max_rows) {
    return experts_layout(view, choice, max_rows).bytes;
}

int trf_experts_launch(const trf_experts_call *call, const trf_experts_choice *choice, const trf_device_limits *limits,
                       trf_stream stream) {
    const trf_device_view *view = call->view;
    const experts_workspace at = experts_layout(view, choice, call->max_rows);
    const group_smem layout =
        lay_out(view, choice->rans_bytes, choice->slabs, choice->warps, choice->warps * sum_bytes(choice->slabs));
    trf_group_args args = {};
    trf_expert_args *e = &args.experts;
    args.smem = layout.plan;
    args.sums = layout.sums;
    args.cluster = 1;
    set_layer_args(view, choice->slabs, call->y_dtype, &e->common);
    e->common.x = call->x;
    e->common.y = call->y;
    e->experts = call->experts_dev;
    e->offsets = call->offsets_dev;
    e->count = call->count;
    e->max_rows = call->max_rows;
    e->cost_model = choice->cost_model;
    e->common.k_splits = e->common.wave_units = 1;
    if (view->cols % 8 || (uintptr_t)call->x % 16) {
        e->common.x_stride = (view->cols + 7) / 8 * 8;
        e->common.x = call->workspace + at.padded_x;
        int status = trf_launch_pad_tokens(call->x, call->offsets_dev + call->count, call->max_rows, view->cols,
                                           call->workspace + at.padded_x, e->common.x_stride, stream);
        if (status)
            return status;
    }
    if (choice->edges) {
        float *edges = (float *)call->workspace;
        int status = trf_launch_expert_edge_product(call, e->common.x, e->common.x_stride, edges, stream);
        if (status)
            return status;
        e->common.edges = edges;
    }
    return launch(kernel_of(view, choice->slabs, call->x_dtype), args, (uint32_t)limits->multiprocessors, choice->warps,
                  layout.bytes, stream);
}
