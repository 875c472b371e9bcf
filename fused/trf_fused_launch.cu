/* Which fused kernel runs, on how many blocks and with what partition; and its launch. */
#include "trf_fused_launch.h"
#include "trf_kernel_launch.cuh"

#include <math.h>

/* plan->choice; word TRF_PLAN_LAYER is not ours. */
enum {
    CHOICE_GEOMETRY,
    CHOICE_TABLE_LOG,
    CHOICE_CLUSTER,
    CHOICE_CLUSTERS,
    CHOICE_K_SPLITS,
    CHOICE_FLAGS, /* FLAG_STREAM_K, FLAG_SUMS_OVER_X */
    CHOICE_X_STAGE_COLS,
    CHOICES
};
enum {
    FLAG_STREAM_K = 1,
    FLAG_SUMS_OVER_X = 2
};
static_assert((int)CHOICES <= (int)TRF_PLAN_LAYER, "the layer's word is free");

/* ---- what the kernels take ---- */

static bool geometry_takes(const trf_device_view *view, const trf_layer_traits *traits, const trf_device_limits *limits,
                           uint32_t m, uint32_t geometry) {
    if (geometry != TRF_GEOMETRY_GENERAL && !has_large_shared(limits))
        return false;
    const bool default_p =
        trf_has_default_p(view, traits->max_frequency) && !(traits->predictor_modes & TRF_PREDICT_ROW);
    switch (geometry) {
    case TRF_GEOMETRY_TWO_SLABS:
        return default_p &&
               trf_fused_x_tiles(m, TRF_GEOMETRY_TWO_SLABS) <=
                   trf_fused_two_slab_max_x_tiles(view->codec, (int)view->class_bits, view->raw_bits, is_scaled(view));
    case TRF_GEOMETRY_ONE_SLAB:
        return default_p;
    default:
        return true;
    }
}

/* ---- what a device can do ---- */

/* Shared memory of `probe`, which tells the host what the code that the device runs was compiled for: none of it needs
 * to run. */
static constexpr uint32_t kProbeStepBytes = 16;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
static constexpr uint32_t kProbeBytes = kProbeStepBytes * (1 + TRF_KERNELS_LARGE_SMEM + TRF_KERNELS_WIDE);
#elif TRF_LARGE_SHARED
static constexpr uint32_t kProbeBytes = kProbeStepBytes * (1 + TRF_KERNELS_LARGE_SMEM);
#else
static constexpr uint32_t kProbeBytes = kProbeStepBytes;
#endif

static __global__ void probe_compiled_code(uint8_t *to) {
    __shared__ uint8_t marks[kProbeBytes];
    marks[threadIdx.x % kProbeBytes] = (uint8_t)threadIdx.x;
    __syncthreads();
    to[threadIdx.x] = marks[(threadIdx.x + 1) % kProbeBytes];
}

int trf_find_limits(trf_device_limits *limits) {
    const void *const kernel = (const void *)probe_compiled_code;
    cudaFuncAttributes attributes = {};
    cudaError_t status = trf_allow_all_shared(kernel, &attributes);
    /* The system's own kilobyte may be counted in. */
    const uint32_t marks = (uint32_t)attributes.sharedSizeBytes % 1024 / kProbeStepBytes;
    limits->missing_kernels = (TRF_KERNELS_LARGE_SMEM | TRF_KERNELS_WIDE) & ~(marks - 1);
    limits->clusters[0] = (uint32_t)limits->multiprocessors;
    for (uint32_t i = 1; i < TRF_CLUSTER_SIZES; i++) {
        limits->clusters[i] = 0;
        if (status != cudaSuccess || limits->capability < 90 || attributes.ptxVersion < 90)
            continue;
        cudaLaunchAttribute attribute;
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(1u << i);
        config.blockDim = dim3(512);
        config.dynamicSmemBytes = (size_t)limits->shared_bytes - kStaticSharedBytes;
        config.attrs = &attribute;
        form_clusters(&config, 1u << i);
        int clusters = 0;
        status = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
        limits->clusters[i] = clusters > 0 ? (uint32_t)clusters : 0;
    }
    return status;
}

/* ---- the partition ---- */

/* A way to share out a product: the terms are trf_fused_kernel.cuh's. */
struct partition {
    uint32_t geometry, x_tiles, warps, slabs; /* of the kernel; slabs that a warp walks side by side */
    uint32_t table_log;                       /* of the decode table */
    uint32_t cluster, clusters;               /* blocks of a cluster; clusters */
    uint32_t units, cols;                     /* of the layer: units, columns of slabs */
    uint32_t k_splits, wave_units;
    uint32_t waves, block_cols;           /* of the block that has the most */
    uint32_t stream_k, work_items;        /* items: of all blocks, if it does */
    uint32_t sums, sums_stride, x_shared; /* shared offsets */
    uint32_t sums_over_x;  /* sums of clusters in place of windows of x, or of buffers: less space, a meeting more */
    uint32_t x_stage_cols; /* of a piece of a window of x; 0: there is none */
    uint32_t shared_bytes; /* dynamic */
    trf_smem_layout smem;
};

/* Whether warps do. */
static bool shares_units(const partition &c) { return c.cluster * c.k_splits > 1; }

static bool pipelines_x(const partition &c) { return trf_pipelines_x((int)c.slabs, (int)c.x_tiles); }

/* Warps of a block. With a window of x all of the kernel's, else those at work, and so many that the table is soon
 * made. */
static uint32_t block_warps(const partition &c) {
    const uint32_t at_work = c.wave_units * c.k_splits, least = c.warps < 8 ? c.warps : 8;
    return pipelines_x(c) ? c.warps : at_work > least ? at_work : least;
}

/* Of a warp's sums, as they are left in shared memory. */
static uint32_t sum_bytes(const partition &c) { return kAccTileBytes * 2 * c.slabs * c.x_tiles; }

/* The cut that these lead to; what depends on shared memory is left out. clusters: at most. flags: of CHOICE_FLAGS. */
static partition make_partition(const trf_device_view *view, uint32_t m, uint32_t geometry, uint32_t cluster,
                                uint32_t clusters, uint32_t k_splits, uint32_t flags) {
    partition c = {};
    c.geometry = geometry;
    c.x_tiles = (uint32_t)trf_fused_x_tiles(m, (int)geometry);
    c.warps =
        (uint32_t)trf_fused_warps(view->codec, (int)view->class_bits, is_scaled(view), (int)c.x_tiles, (int)geometry);
    c.slabs = (uint32_t)trf_fused_slabs((int)geometry);
    c.cols = trf_regular_slab_cols(view);
    c.units = c.cols ? ceil_div(view->rows / TRF_SLAB_ROWS, c.slabs) : 0;
    c.cluster = cluster;
    c.k_splits = k_splits;
    c.stream_k = flags & FLAG_STREAM_K;
    c.sums_over_x = (flags & FLAG_SUMS_OVER_X) != 0;
    const uint32_t most_at_once = c.warps / k_splits;
    if (c.stream_k) {
        c.wave_units = most_at_once;
        c.work_items = ceil_div(c.units, c.wave_units) * c.cols;
        c.clusters = clusters < c.work_items ? clusters : c.work_items ? c.work_items : 1;
        c.block_cols = c.cols;
        return c;
    }
    c.clusters = clusters < c.units ? clusters : c.units ? c.units : 1;
    const uint32_t most_units = c.units ? ceil_div(c.units, c.clusters) : 1;
    c.wave_units = most_at_once < most_units ? most_at_once : most_units;
    c.waves = ceil_div(most_units, c.wave_units);
    c.block_cols = ceil_div(c.cols, cluster);
    return c;
}

/* Lays out shared memory. @return whether it is enough. */
static bool lay_out(partition *c, const trf_device_view *view, const trf_layer_traits *traits, uint32_t shared_bytes,
                    uint32_t table_log, uint32_t x_stage_cols) {
    const bool in_buffers = c->k_splits > 1 && c->cluster == 1 && c->waves == 1; /* those of the warps that left them */
    c->table_log = table_log;
    c->x_stage_cols = x_stage_cols;
    c->smem = trf_smem_layout_of(view->raw_bits, traits->max_rans_bytes, block_warps(*c), c->slabs, table_log,
                                 in_buffers ? sum_bytes(*c) : 0,
                                 trf_copied_x_bytes(view->codec, (int)c->slabs, (int)c->x_tiles), kRing);
    c->x_shared = c->smem.total;
    c->shared_bytes = c->x_shared + c->k_splits * 2 * trf_x_stage_bytes(x_stage_cols, (int)c->x_tiles);
    const uint32_t in_place_of = pipelines_x(*c) ? c->x_shared : c->smem.warps;
    c->sums = in_buffers ? c->smem.warps : c->sums_over_x ? in_place_of : c->shared_bytes;
    c->sums_stride = in_buffers ? c->smem.warp_bytes : sum_bytes(*c);
    if (shares_units(*c) && !in_buffers) { /* tasks of a block, rounded up */
        const uint32_t end = c->sums + c->k_splits * (c->wave_units * c->sums_stride + c->cluster * kAccTileBytes);
        c->shared_bytes = end > c->shared_bytes ? end : c->shared_bytes;
    }
    return c->shared_bytes + kStaticSharedBytes <= shared_bytes;
}

/* With the largest table that fits. @return whether one does. */
static bool fit(partition *c, const trf_device_view *view, const trf_layer_traits *traits, uint32_t shared_bytes) {
    const bool any = c->geometry == TRF_GEOMETRY_GENERAL;
    const uint32_t largest = any ? kTableLog : trf_fused_table_log((int)view->class_bits, (int)c->slabs),
                   smallest = any ? view->probability_bits + 4 : largest;
    for (uint32_t log = largest; log >= smallest; log--) /* pieces of whole slabs if there is room */
        if (lay_out(c, view, traits, shared_bytes, log, pipelines_x(*c) ? view->slab_cols : 0) ||
            (pipelines_x(*c) && lay_out(c, view, traits, shared_bytes, log, TRF_MIN_SLAB_COLS)))
            return true;
    return false;
}

/* Slabs of the warps of a multiprocessor's fullest quarter: warps' instructions are issued by four schedulers, every
 * fourth warp's by the same. */
static double fullest_quarter(const partition &c) {
    uint32_t slabs[4] = {}, fullest = 0;
    for (uint32_t warp = 0; warp < c.wave_units * c.k_splits; warp++) {
        const uint32_t k_split = warp / c.wave_units;
        uint32_t &own = slabs[warp % 4];
        own += c.block_cols * (k_split + 1) / c.k_splits - c.block_cols * k_split / c.k_splits;
        fullest = own > fullest ? own : fullest;
    }
    return (double)c.waves * c.slabs * fullest;
}

/* Estimated microseconds beyond those of every launch. */
static double estimate(const trf_device_view *view, const partition &c, uint32_t multiprocessors, uint32_t m) {
    const double width = view->slab_cols / 256.0, longer = view->class_bits == 4 ? 1.8 : 1.0;
    const double slab_us = width * slab_microseconds(view, (int)c.geometry, c.x_tiles, c.slabs, m);
    const double alone_us =
        width * longer * (c.slabs == 2 ? 6.5 : 5.0); /* of a warp's slab, or two side by side, with little else to do */
    if (c.stream_k) {                                /* the second kernel's launch, and what it reads */
        const double work_items = ceil_div(c.work_items, c.clusters),
                     sums = 2.0 * c.clusters * c.wave_units * sum_bytes(c),
                     decoding = work_items * c.wave_units * c.slabs * slab_us, waiting = work_items * alone_us;
        return fmax(decoding, waiting) + (pipelines_x(c) ? 6.5 : c.x_tiles > 1 ? 3 : 5) + sums / 4e6;
    }
    const double steps = (double)c.waves * ceil_div(c.block_cols, c.k_splits), waiting = steps * alone_us;
    const double mean = (double)c.units * c.cols * c.slabs / multiprocessors; /* slabs */
    double cost;
    if (pipelines_x(c)) { /* bound by what a warp takes */
        cost = steps * c.warps * slab_us;
    } else if (c.x_tiles > 1) {
        const double fewer =
                         0.88 + 0.12 * c.warps / (c.wave_units * c.k_splits), /* hide less of each other's latencies */
            busy = 4 * fullest_quarter(c) * slab_us * fewer;
        cost = fmax(busy, waiting);
    } else {
        /* Fewer warps are a little faster each. Where memory binds, blocks with less to do leave it to the others; more
         * than a tile's rows at once are read a little slower. fp16 gets there with nearly all of its warps, and with
         * one slab each. */
        const bool nearly_all = 8 * c.wave_units * c.k_splits >= 7 * c.warps,
                   by_memory = view->class_bits == 2 && (view->codec == TRF_CODEC_BF16 ||
                                                         (view->codec == TRF_CODEC_FP16 && c.slabs == 1 && nearly_all));
        const double at_work = 0.5 * (c.warps + c.wave_units * c.k_splits),
                     rows = c.wave_units * c.slabs > 8 ? 1.03 : 1.0,
                     decoding = steps * at_work * c.slabs * slab_us * rows,
                     busy = by_memory ? 0.2 * decoding + 0.8 * mean * slab_us : decoding;
        cost = fmax(busy, waiting);
    }
    if (shares_units(c)) {
        const double meeting = c.cluster > 2   ? 2.4
                               : c.cluster > 1 ? 1.35
                                               : 0.4,
                     bytes_per_us = c.cluster > 1 ? 40e3 : 150e3,
                     left = c.wave_units * c.k_splits * sum_bytes(c) *
                            (m < 8 ? m / 8.0 : 1.0); /* bytes that a block reads */
        cost += c.waves * (meeting + 0.02 * c.cluster * c.k_splits + left / bytes_per_us);
    }
    if (c.sums_over_x) /* what is sent waits for the last block */
        cost += pipelines_x(c) ? c.x_tiles * c.x_tiles / 6.0 : 0.6;
    return cost;
}

/* The best cut of all. @return whether there is one. */
static bool find_partition(const trf_device_view *view, const trf_layer_traits *traits, const trf_device_limits *limits,
                           uint32_t m, partition *best) {
    double least = HUGE_VAL;
    const auto consider = [&](partition c) {
        const double cost = estimate(view, c, (uint32_t)limits->multiprocessors, m);
        if (cost < least && fit(&c, view, traits, (uint32_t)limits->shared_bytes)) {
            least = cost;
            *best = c;
        }
    };
    for (uint32_t geometry = 0; geometry < TRF_GEOMETRIES; geometry++) {
        if (geometry == TRF_GEOMETRY_GENERAL && least < HUGE_VAL)
            break; /* the slowest */
        if (!geometry_takes(view, traits, limits, m, geometry))
            continue;
        const partition stream_k_partition =
            make_partition(view, m, geometry, 1, limits->clusters[0], 1, FLAG_STREAM_K);
        consider(stream_k_partition);
        for (uint32_t size = 0; size < TRF_CLUSTER_SIZES && limits->clusters[size]; size++)
            for (uint32_t k_splits = 1; k_splits <= stream_k_partition.warps; k_splits++) {
                const partition c = make_partition(view, m, geometry, 1u << size, limits->clusters[size], k_splits, 0);
                if ((c.cluster > 1 && c.cluster > c.cols) || (k_splits > 1 && k_splits > c.block_cols))
                    break; /* a block, or a warp, without columns */
                consider(c);
                if (c.x_tiles > 1 && c.cluster > 1 && c.waves == 1 && k_splits <= c.cols / c.cluster)
                    consider(make_partition(view, m, geometry, 1u << size, limits->clusters[size], k_splits,
                                            FLAG_SUMS_OVER_X));
            }
    }
    return least < HUGE_VAL;
}

const char *trf_fused_refuses_layer(const trf_device_view *view, const trf_layer_traits *traits, trf_dtype x_dtype) {
    if (traits->predictor_modes & TRF_PREDICT_COL)
        return "the layer has column offsets";
    if (traits->mixed_modes)
        return "the tiles differ in their row offsets";
    if (traits->max_abs_offset + (uint32_t)trf_fragment_exponent(view->codec) > 126)
        return "its exponent offsets are larger than 126";
    if (!traits->exceptions_fit_fragments)
        return "an exception is not exact under the layer's exponent offset";
    if (view->codec == TRF_CODEC_INT) {
        if (view->class_bits + view->raw_bits > 8)
            return "its codes are wider than 8 bits";
        if (x_dtype == TRF_DTYPE_BF16 && traits->max_abs_code > 256)
            return "its codes are not exact in BF16";
        if (is_scaled(view) && view->scale_group_size % 32)
            return "its scale groups are not multiples of 32";
    }
    return NULL;
}

const char *trf_fused_refuses(const trf_device_view *view, const trf_layer_traits *traits,
                              const trf_device_limits *limits, uint32_t m, trf_dtype x_dtype) {
    if (m > TRF_FUSED_MAX_M)
        return "the batch is larger than 64";
    const char *reason = trf_fused_refuses_layer(view, traits, x_dtype);
    if (reason)
        return reason;
    if ((uint64_t)view->num_bands * view->num_slab_cols > UINT32_MAX || ((uint64_t)view->cols + 8) * m > UINT32_MAX / 2)
        return "the layer or the batch is too large";
    partition c;
    return find_partition(view, traits, limits, m, &c) ? NULL : "its streams do not fit this device's shared memory";
}

double trf_fused_microseconds(const trf_device_view *view, const trf_layer_traits *traits,
                              const trf_device_limits *limits, uint32_t m) {
    partition c;
    return find_partition(view, traits, limits, m, &c) ? estimate(view, c, (uint32_t)limits->multiprocessors, m)
                                                       : HUGE_VAL;
}

/* ---- the plan ---- */

/* Where everything lies in the workspace. */
struct workspace_layout {
    uint64_t partials, padded_x, sums, bytes; /* edges are at 0 */
};

static workspace_layout layout_of(const trf_device_view *view, const trf_layer_traits *traits, uint32_t m,
                                  const partition &c, bool has_epilogue) {
    workspace_layout at;
    at.partials = align_256(traits->irregular_weights ? 4ull * m * view->rows : 0);
    at.padded_x = at.partials + (c.stream_k ? 2ull * c.clusters * c.wave_units * sum_bytes(c) : 0);
    at.sums = at.padded_x + align_256(2ull * m * ((view->cols + 7) / 8 * 8)); /* x may be misaligned */
    at.bytes = at.sums + (has_epilogue ? align_256(4ull * m * view->rows) : 0);
    return at;
}

void trf_fused_choose(const trf_device_view *view, const trf_layer_traits *traits, const trf_device_limits *limits,
                      trf_linear_plan *plan) {
    partition best = {};
    find_partition(view, traits, limits, plan->m, &best);
    plan->choice[CHOICE_GEOMETRY] = best.geometry;
    plan->choice[CHOICE_TABLE_LOG] = best.table_log;
    plan->choice[CHOICE_CLUSTER] = best.cluster;
    plan->choice[CHOICE_CLUSTERS] = best.clusters;
    plan->choice[CHOICE_K_SPLITS] = best.k_splits;
    plan->choice[CHOICE_FLAGS] = best.stream_k * FLAG_STREAM_K + best.sums_over_x * FLAG_SUMS_OVER_X;
    plan->choice[CHOICE_X_STAGE_COLS] = best.x_stage_cols;
    plan->workspace_bytes = layout_of(view, traits, plan->m, best, false).bytes;
    plan->epilogue_workspace_bytes = layout_of(view, traits, plan->m, best, true).bytes;
}

/* ---- the launch ---- */

static trf_fused_kernel kernel_of(const trf_device_view *view, const trf_linear_plan *plan) {
    const int geometry = (int)plan->choice[CHOICE_GEOMETRY], x_tiles = trf_fused_x_tiles(plan->m, geometry),
              class_bits = (int)view->class_bits, bf16_x = plan->x_dtype == TRF_DTYPE_BF16;
    switch (view->codec) {
    case TRF_CODEC_BF16:
        return trf_fused_bf16(class_bits, x_tiles, geometry);
    case TRF_CODEC_FP16:
        return trf_fused_fp16(class_bits, x_tiles, geometry);
    case TRF_CODEC_INT:
        return is_scaled(view) ? trf_fused_int_scaled(class_bits, bf16_x, x_tiles, geometry)
                               : trf_fused_int(class_bits, view->raw_bits, bf16_x, x_tiles, geometry);
    case TRF_CODEC_E4M3:
        return trf_fused_e4m3(class_bits, bf16_x, x_tiles, geometry);
    default:
        return trf_fused_e5m2(class_bits, bf16_x, x_tiles, geometry);
    }
}

/* Adds up what blocks share, behind the kernel that left it. early: whether it may start before that one ends. */
static cudaError_t launch_finish(const trf_fused_args &args, const partition &c, bool early, cudaStream_t stream) {
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(ceil_div(c.units * 2 * c.slabs * c.x_tiles, 256 / 32));
    config.blockDim = dim3(256);
    config.stream = stream;
    config.attrs = &attribute;
    if (early)
        allow_early(&config);
    return cudaLaunchKernelEx(&config, trf_fused_finish, args, c.slabs, c.x_tiles);
}

static cudaError_t launch(trf_fused_kernel kernel, const trf_fused_args &args, const partition &c,
                          cudaStream_t stream) {
    bool early;
    cudaError_t status = launch_kernel(
        kernel, args, {c.cluster * c.clusters, 32 * block_warps(c), c.shared_bytes, c.cluster, stream}, &early);
    if (status == cudaSuccess && c.stream_k && c.units)
        status = launch_finish(args, c, early, stream);
    return status;
}

int trf_fused_launch(const trf_device_view *view, const trf_layer_traits *traits, const trf_linear_plan *plan,
                     const void *x, void *y, const trf_epilogue *epilogue, void *workspace, trf_stream stream) {
    const uint32_t *choice = plan->choice;
    partition c = make_partition(view, plan->m, choice[CHOICE_GEOMETRY], choice[CHOICE_CLUSTER],
                                 choice[CHOICE_CLUSTERS], choice[CHOICE_K_SPLITS], choice[CHOICE_FLAGS]);
    lay_out(&c, view, traits, UINT32_MAX, choice[CHOICE_TABLE_LOG], choice[CHOICE_X_STAGE_COLS]);
    const workspace_layout at = layout_of(view, traits, plan->m, c, epilogue != nullptr);
    uint8_t *const base = (uint8_t *)workspace;
    trf_fused_args args = {};
    args.view = *view;
    args.smem = c.smem;
    args.x = x;
    args.x_stride = view->cols;
    args.y = y;
    args.m = plan->m;
    args.y_dtype = plan->y_dtype;
    if (epilogue) {
        args.epilogue_args = {*epilogue, y, (uint32_t)plan->y_dtype, view->rows};
        args.y = base + at.sums;
        args.y_dtype = TRF_DTYPE_F32;
    }
    args.whole_rows = c.units ? view->rows / TRF_SLAB_ROWS * TRF_SLAB_ROWS : 0;
    args.use_row_offsets = (traits->predictor_modes & TRF_PREDICT_ROW) != 0;
    args.cluster = c.cluster;
    args.k_splits = c.k_splits;
    args.wave_units = c.wave_units;
    args.units = c.units;
    args.units_per_cluster = (c.stream_k ? c.work_items : c.units) / c.clusters;
    args.units_remainder = (c.stream_k ? c.work_items : c.units) % c.clusters;
    args.stream_k = c.stream_k;
    args.partials = (float *)(base + at.partials);
    args.cols_per_block = c.cols / c.cluster;
    args.cols_remainder = c.cols % c.cluster;
    args.sums = c.sums;
    args.sums_stride = c.sums_stride;
    args.x_shared = c.x_shared;
    args.sums_over_x = c.sums_over_x;
    args.x_stage_cols = c.x_stage_cols;
    if (view->cols % 8 || (uintptr_t)x % 16) {
        args.x_stride = (view->cols + 7) / 8 * 8;
        args.x = base + at.padded_x;
        int status = trf_launch_pad_x(x, plan->m, view->cols, base + at.padded_x, args.x_stride, stream);
        if (status)
            return status;
    }
    if (traits->irregular_weights) {
        float *edges = (float *)base;
        int status = trf_launch_edge_product(view, plan->m, plan->x_dtype, args.x, args.x_stride, edges, stream);
        if (status)
            return status;
        args.edges = edges;
    }
    return launch(kernel_of(view, plan), args, c, stream);
}
