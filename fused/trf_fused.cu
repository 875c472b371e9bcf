/* Which fused kernel runs, on how many blocks and with what cut; and its launch. */
#include "trf_fused.h"
#include "trf_fused_launch.cuh"

#include <math.h>

/* plan->choice; word TRF_PLAN_LAYER is not ours. */
enum {
    CHOICE_GEOMETRY,
    CHOICE_TABLE_LOG,
    CHOICE_CLUSTER,
    CHOICE_CLUSTERS,
    CHOICE_PARTS,
    CHOICE_WAYS, /* WAY_STRADDLES, WAY_SUMS_OVER_X */
    CHOICE_WINDOW_COLS,
    CHOICES
};
enum {
    WAY_STRADDLES = 1,
    WAY_SUMS_OVER_X = 2
};
static_assert((int)CHOICES <= (int)TRF_PLAN_LAYER, "the layer's word is free");

/* ---- what the kernels take ---- */

static bool geometry_takes(const trf_device_view *view, const trf_device_facts *facts, const trf_device_limits *limits,
                           uint32_t m, uint32_t geometry) {
    if (geometry != TRF_GEOMETRY_ANY && !has_large_shared(limits))
        return false;
    const bool usual = trf_has_usual_p(*view, facts->max_frequency) && !(facts->predictor_modes & TRF_PREDICT_ROW);
    switch (geometry) {
    case TRF_GEOMETRY_TWO:
        return usual && trf_fused_tiles(m, TRF_GEOMETRY_TWO) <=
                            trf_fused_two_tiles(view->codec, (int)view->class_bits, view->raw_bits, is_scaled(view));
    case TRF_GEOMETRY_ONE:
        return usual;
    default:
        return true;
    }
}

/* ---- what a device can do ---- */

/* Shared memory of `probe`, which tells the host what the code that the device runs was compiled for: none of it needs to run. */
static constexpr uint32_t kProbeStep = 16;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
static constexpr uint32_t kProbeBytes = kProbeStep * (1 + TRF_CODE_LARGE_SHARED + TRF_CODE_WIDE);
#elif TRF_LARGE_SHARED
static constexpr uint32_t kProbeBytes = kProbeStep * (1 + TRF_CODE_LARGE_SHARED);
#else
static constexpr uint32_t kProbeBytes = kProbeStep;
#endif

static __global__ void probe(uint8_t *to) {
    __shared__ uint8_t marks[kProbeBytes];
    marks[threadIdx.x % kProbeBytes] = (uint8_t)threadIdx.x;
    __syncthreads();
    to[threadIdx.x] = marks[(threadIdx.x + 1) % kProbeBytes];
}

int trf_find_limits(trf_device_limits *limits) {
    const void *const kernel = (const void *)probe;
    cudaFuncAttributes attributes = {};
    cudaError_t status = trf_allow_all_shared(kernel, &attributes);
    /* The system's own kilobyte may be counted in. */
    const uint32_t marks = (uint32_t)attributes.sharedSizeBytes % 1024 / kProbeStep;
    limits->missing_code = (TRF_CODE_LARGE_SHARED | TRF_CODE_WIDE) & ~(marks - 1);
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

/* ---- the cut ---- */

/* A way to share out a product: the terms are trf_fused_kernel.cuh's. */
struct cut {
    uint32_t geometry, tiles, warps, slabs; /* of the kernel; slabs that a warp walks side by side */
    uint32_t table_log;                     /* of the decode table */
    uint32_t cluster, clusters;             /* blocks of a cluster; clusters */
    uint32_t units, cols;                   /* of the layer: units, columns of slabs */
    uint32_t parts, group;
    uint32_t groups, block_cols;        /* of the block that has the most */
    uint32_t straddles, items;          /* items: of all blocks, if it does */
    uint32_t sums, sums_stride, window; /* shared offsets */
    uint32_t sums_over_x;  /* sums of clusters in place of windows of x, or of buffers: less space, a meeting more */
    uint32_t window_cols;  /* of a piece of a window of x; 0: there is none */
    uint32_t shared_bytes; /* dynamic */
    trf_shared_plan plan;
};

/* Whether warps do. */
static bool shares_units(const cut &c) { return c.cluster * c.parts > 1; }

static bool has_window(const cut &c) { return trf_has_window((int)c.slabs, (int)c.tiles); }

/* Warps of a block. With a window of x all of the kernel's, else those at work, and so many that the table is soon made. */
static uint32_t block_warps(const cut &c) {
    const uint32_t at_work = c.group * c.parts, least = c.warps < 8 ? c.warps : 8;
    return has_window(c) ? c.warps : at_work > least ? at_work : least;
}

/* Of a warp's sums, as they are left in shared memory. */
static uint32_t sum_bytes(const cut &c) { return kPieceBytes * 2 * c.slabs * c.tiles; }

/* The cut that these lead to; what depends on shared memory is left out. clusters: at most. ways: of CHOICE_WAYS. */
static cut cut_of(const trf_device_view *view, uint32_t m, uint32_t geometry, uint32_t cluster, uint32_t clusters,
                  uint32_t parts, uint32_t ways) {
    cut c = {};
    c.geometry = geometry;
    c.tiles = (uint32_t)trf_fused_tiles(m, (int)geometry);
    c.warps =
        (uint32_t)trf_fused_warps(view->codec, (int)view->class_bits, is_scaled(view), (int)c.tiles, (int)geometry);
    c.slabs = (uint32_t)trf_fused_slabs((int)geometry);
    c.cols = trf_regular_slab_cols(*view);
    c.units = c.cols ? ceil_div(view->rows / TRF_SLAB_ROWS, c.slabs) : 0;
    c.cluster = cluster;
    c.parts = parts;
    c.straddles = ways & WAY_STRADDLES;
    c.sums_over_x = (ways & WAY_SUMS_OVER_X) != 0;
    const uint32_t most_at_once = c.warps / parts;
    if (c.straddles) {
        c.group = most_at_once;
        c.items = ceil_div(c.units, c.group) * c.cols;
        c.clusters = clusters < c.items ? clusters : c.items ? c.items : 1;
        c.block_cols = c.cols;
        return c;
    }
    c.clusters = clusters < c.units ? clusters : c.units ? c.units : 1;
    const uint32_t most_units = c.units ? ceil_div(c.units, c.clusters) : 1;
    c.group = most_at_once < most_units ? most_at_once : most_units;
    c.groups = ceil_div(most_units, c.group);
    c.block_cols = ceil_div(c.cols, cluster);
    return c;
}

/* Lays out shared memory. @return whether it is enough. */
static bool lay_out(cut *c, const trf_device_view *view, const trf_device_facts *facts, uint32_t shared_bytes,
                    uint32_t table_log, uint32_t window_cols) {
    const bool in_buffers = c->parts > 1 && c->cluster == 1 && c->groups == 1; /* those of the warps that left them */
    c->table_log = table_log;
    c->window_cols = window_cols;
    c->plan = trf_shared_plan_of(view->raw_bits, facts->max_stream_bytes, block_warps(*c), c->slabs, table_log,
                                 in_buffers ? sum_bytes(*c) : 0,
                                 trf_copied_x_bytes(view->codec, (int)c->slabs, (int)c->tiles));
    c->window = c->plan.total;
    c->shared_bytes = c->window + c->parts * 2 * trf_window_piece_bytes(window_cols, (int)c->tiles);
    const uint32_t in_place_of = has_window(*c) ? c->window : c->plan.warps;
    c->sums = in_buffers ? c->plan.warps : c->sums_over_x ? in_place_of : c->shared_bytes;
    c->sums_stride = in_buffers ? c->plan.warp_bytes : sum_bytes(*c);
    if (shares_units(*c) && !in_buffers) { /* tasks of a block, rounded up */
        const uint32_t end = c->sums + c->parts * (c->group * c->sums_stride + c->cluster * kPieceBytes);
        c->shared_bytes = end > c->shared_bytes ? end : c->shared_bytes;
    }
    return c->shared_bytes + kStaticSharedBytes <= shared_bytes;
}

/* With the largest table that fits. @return whether one does. */
static bool fit(cut *c, const trf_device_view *view, const trf_device_facts *facts, uint32_t shared_bytes) {
    const bool any = c->geometry == TRF_GEOMETRY_ANY;
    const uint32_t largest = any ? kTableLog : trf_fused_table_log((int)view->class_bits, (int)c->slabs),
                   smallest = any ? view->probability_bits + 4 : largest;
    for (uint32_t log = largest; log >= smallest; log--) /* pieces of whole slabs if there is room */
        if (lay_out(c, view, facts, shared_bytes, log, has_window(*c) ? view->slab_cols : 0) ||
            (has_window(*c) && lay_out(c, view, facts, shared_bytes, log, TRF_MIN_SLAB_COLS)))
            return true;
    return false;
}

/* Slabs of the warps of a multiprocessor's fullest quarter: warps' instructions are issued by four schedulers, every fourth warp's by the same. */
static double fullest_quarter(const cut &c) {
    uint32_t slabs[4] = {}, fullest = 0;
    for (uint32_t warp = 0; warp < c.group * c.parts; warp++) {
        const uint32_t part = warp / c.group;
        uint32_t &own = slabs[warp % 4];
        own += c.block_cols * (part + 1) / c.parts - c.block_cols * part / c.parts;
        fullest = own > fullest ? own : fullest;
    }
    return (double)c.groups * c.slabs * fullest;
}

/* Estimated microseconds beyond those of every launch. */
static double estimate(const trf_device_view *view, const cut &c, uint32_t multiprocessors, uint32_t m) {
    const double width = view->slab_cols / 256.0, longer = view->class_bits == 4 ? 1.8 : 1.0;
    const double slab_us = width * slab_microseconds(view, (int)c.geometry, c.tiles, c.slabs, m);
    const double alone_us =
        width * longer * (c.slabs == 2 ? 6.5 : 5.0); /* of a warp's slab, or two side by side, with little else to do */
    if (c.straddles) {                               /* the second kernel's launch, and what it reads */
        const double items = ceil_div(c.items, c.clusters), sums = 2.0 * c.clusters * c.group * sum_bytes(c),
                     decoding = items * c.group * c.slabs * slab_us, waiting = items * alone_us;
        return fmax(decoding, waiting) + (has_window(c) ? 6.5 : c.tiles > 1 ? 3 : 5) + sums / 4e6;
    }
    const double steps = (double)c.groups * ceil_div(c.block_cols, c.parts), waiting = steps * alone_us;
    const double mean = (double)c.units * c.cols * c.slabs / multiprocessors; /* slabs */
    double cost;
    if (has_window(c)) { /* bound by what a warp takes */
        cost = steps * c.warps * slab_us;
    } else if (c.tiles > 1) {
        const double fewer = 0.88 + 0.12 * c.warps / (c.group * c.parts), /* hide less of each other's latencies */
            busy = 4 * fullest_quarter(c) * slab_us * fewer;
        cost = fmax(busy, waiting);
    } else {
        /* Fewer warps are a little faster each. Where memory binds, blocks with less to do leave it to the others; more than a tile's rows at once are read a
         * little slower. fp16 gets there with nearly all of its warps, and with one slab each. */
        const bool nearly_all = 8 * c.group * c.parts >= 7 * c.warps,
                   by_memory = view->class_bits == 2 && (view->codec == TRF_CODEC_BF16 ||
                                                         (view->codec == TRF_CODEC_FP16 && c.slabs == 1 && nearly_all));
        const double at_work = 0.5 * (c.warps + c.group * c.parts), rows = c.group * c.slabs > 8 ? 1.03 : 1.0,
                     decoding = steps * at_work * c.slabs * slab_us * rows,
                     busy = by_memory ? 0.2 * decoding + 0.8 * mean * slab_us : decoding;
        cost = fmax(busy, waiting);
    }
    if (shares_units(c)) {
        const double meeting = c.cluster > 2   ? 2.4
                               : c.cluster > 1 ? 1.35
                                               : 0.4,
                     bytes_per_us = c.cluster > 1 ? 40e3 : 150e3,
                     left = c.group * c.parts * sum_bytes(c) * (m < 8 ? m / 8.0 : 1.0); /* bytes that a block reads */
        cost += c.groups * (meeting + 0.02 * c.cluster * c.parts + left / bytes_per_us);
    }
    if (c.sums_over_x) /* what is sent waits for the last block */
        cost += has_window(c) ? c.tiles * c.tiles / 6.0 : 0.6;
    return cost;
}

/* The best cut of all. @return whether there is one. */
static bool find_cut(const trf_device_view *view, const trf_device_facts *facts, const trf_device_limits *limits,
                     uint32_t m, cut *best) {
    double least = HUGE_VAL;
    const auto consider = [&](cut c) {
        const double cost = estimate(view, c, (uint32_t)limits->multiprocessors, m);
        if (cost < least && fit(&c, view, facts, (uint32_t)limits->shared_bytes)) {
            least = cost;
            *best = c;
        }
    };
    for (uint32_t geometry = 0; geometry < TRF_GEOMETRIES; geometry++) {
        if (geometry == TRF_GEOMETRY_ANY && least < HUGE_VAL)
            break; /* the slowest */
        if (!geometry_takes(view, facts, limits, m, geometry))
            continue;
        const cut straddling = cut_of(view, m, geometry, 1, limits->clusters[0], 1, WAY_STRADDLES);
        consider(straddling);
        for (uint32_t size = 0; size < TRF_CLUSTER_SIZES && limits->clusters[size]; size++)
            for (uint32_t parts = 1; parts <= straddling.warps; parts++) {
                const cut c = cut_of(view, m, geometry, 1u << size, limits->clusters[size], parts, 0);
                if ((c.cluster > 1 && c.cluster > c.cols) || (parts > 1 && parts > c.block_cols))
                    break; /* a block, or a warp, without columns */
                consider(c);
                if (c.tiles > 1 && c.cluster > 1 && c.groups == 1 && parts <= c.cols / c.cluster)
                    consider(cut_of(view, m, geometry, 1u << size, limits->clusters[size], parts, WAY_SUMS_OVER_X));
            }
    }
    return least < HUGE_VAL;
}

const char *trf_fused_refuses_layer(const trf_device_view *view, const trf_device_facts *facts, trf_dtype x_dtype) {
    if (facts->predictor_modes & TRF_PREDICT_COL)
        return "the layer has column offsets";
    if (facts->mixed_modes)
        return "the tiles differ in their row offsets";
    if (facts->max_abs_offset + (uint32_t)trf_fragment_exponent(view->codec) > 126)
        return "its exponent offsets are larger than 126";
    if (!facts->exceptions_fit_fragments)
        return "an exception is not exact under the layer's exponent offset";
    if (view->codec == TRF_CODEC_INT) {
        if (view->class_bits + view->raw_bits > 8)
            return "its codes are wider than 8 bits";
        if (x_dtype == TRF_DTYPE_BF16 && facts->max_abs_code > 256)
            return "its codes are not exact in BF16";
        if (is_scaled(view) && view->group_size % 32)
            return "its scale groups are not multiples of 32";
    }
    return NULL;
}

const char *trf_fused_refuses(const trf_device_view *view, const trf_device_facts *facts,
                              const trf_device_limits *limits, uint32_t m, trf_dtype x_dtype) {
    if (m > TRF_FUSED_MAX_M)
        return "the batch is larger than 64";
    const char *reason = trf_fused_refuses_layer(view, facts, x_dtype);
    if (reason)
        return reason;
    if ((uint64_t)view->num_bands * view->num_slab_cols > UINT32_MAX || ((uint64_t)view->cols + 8) * m > UINT32_MAX / 2)
        return "the layer or the batch is too large";
    cut c;
    return find_cut(view, facts, limits, m, &c) ? NULL : "its streams do not fit this device's shared memory";
}

double trf_fused_microseconds(const trf_device_view *view, const trf_device_facts *facts,
                              const trf_device_limits *limits, uint32_t m) {
    cut c;
    return find_cut(view, facts, limits, m, &c) ? estimate(view, c, (uint32_t)limits->multiprocessors, m) : HUGE_VAL;
}

/* ---- the plan ---- */

/* Where everything lies in the workspace. */
struct workspace_layout {
    uint64_t partials, padded_x, sums, bytes; /* edges are at 0 */
};

static workspace_layout layout_of(const trf_device_view *view, const trf_device_facts *facts, uint32_t m, const cut &c,
                                  bool has_epilogue) {
    workspace_layout at;
    at.partials = align_256(facts->irregular_weights ? 4ull * m * view->rows : 0);
    at.padded_x = at.partials + (c.straddles ? 2ull * c.clusters * c.group * sum_bytes(c) : 0);
    at.sums = at.padded_x + align_256(2ull * m * ((view->cols + 7) / 8 * 8)); /* x may be misaligned */
    at.bytes = at.sums + (has_epilogue ? align_256(4ull * m * view->rows) : 0);
    return at;
}

void trf_fused_choose(const trf_device_view *view, const trf_device_facts *facts, const trf_device_limits *limits,
                      trf_linear_plan *plan) {
    cut best = {};
    find_cut(view, facts, limits, plan->m, &best);
    plan->choice[CHOICE_GEOMETRY] = best.geometry;
    plan->choice[CHOICE_TABLE_LOG] = best.table_log;
    plan->choice[CHOICE_CLUSTER] = best.cluster;
    plan->choice[CHOICE_CLUSTERS] = best.clusters;
    plan->choice[CHOICE_PARTS] = best.parts;
    plan->choice[CHOICE_WAYS] = best.straddles * WAY_STRADDLES + best.sums_over_x * WAY_SUMS_OVER_X;
    plan->choice[CHOICE_WINDOW_COLS] = best.window_cols;
    plan->workspace_bytes = layout_of(view, facts, plan->m, best, false).bytes;
    plan->epilogue_workspace_bytes = layout_of(view, facts, plan->m, best, true).bytes;
}

/* ---- the launch ---- */

static trf_fused_kernel kernel_of(const trf_device_view *view, const trf_linear_plan *plan) {
    const int geometry = (int)plan->choice[CHOICE_GEOMETRY], tiles = trf_fused_tiles(plan->m, geometry),
              class_bits = (int)view->class_bits, bf16_x = plan->x_dtype == TRF_DTYPE_BF16;
    switch (view->codec) {
    case TRF_CODEC_BF16:
        return trf_fused_bf16(class_bits, tiles, geometry);
    case TRF_CODEC_FP16:
        return trf_fused_fp16(class_bits, tiles, geometry);
    case TRF_CODEC_INT:
        return is_scaled(view) ? trf_fused_int_scaled(class_bits, bf16_x, tiles, geometry)
                               : trf_fused_int(class_bits, view->raw_bits, bf16_x, tiles, geometry);
    case TRF_CODEC_E4M3:
        return trf_fused_e4m3(class_bits, bf16_x, tiles, geometry);
    default:
        return trf_fused_e5m2(class_bits, bf16_x, tiles, geometry);
    }
}

/* Adds up what blocks share, behind the kernel that left it. early: whether it may start before that one ends. */
static cudaError_t launch_finish(const trf_fused_args &args, const cut &c, bool early, cudaStream_t stream) {
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(ceil_div(c.units * 2 * c.slabs * c.tiles, 256 / 32));
    config.blockDim = dim3(256);
    config.stream = stream;
    config.attrs = &attribute;
    if (early)
        allow_early(&config);
    return cudaLaunchKernelEx(&config, trf_fused_finish, args, c.slabs, c.tiles);
}

static cudaError_t launch(trf_fused_kernel kernel, const trf_fused_args &args, const cut &c, cudaStream_t stream) {
    bool early;
    cudaError_t status = launch_kernel(
        kernel, args, {c.cluster * c.clusters, 32 * block_warps(c), c.shared_bytes, c.cluster, stream}, &early);
    if (status == cudaSuccess && c.straddles && c.units)
        status = launch_finish(args, c, early, stream);
    return status;
}

int trf_fused_launch(const trf_device_view *view, const trf_device_facts *facts, const trf_linear_plan *plan,
                     const void *x, void *y, const trf_epilogue *epilogue, void *workspace, trf_stream stream) {
    const uint32_t *choice = plan->choice;
    cut c = cut_of(view, plan->m, choice[CHOICE_GEOMETRY], choice[CHOICE_CLUSTER], choice[CHOICE_CLUSTERS],
                   choice[CHOICE_PARTS], choice[CHOICE_WAYS]);
    lay_out(&c, view, facts, UINT32_MAX, choice[CHOICE_TABLE_LOG], choice[CHOICE_WINDOW_COLS]);
    const workspace_layout at = layout_of(view, facts, plan->m, c, epilogue != nullptr);
    uint8_t *const base = (uint8_t *)workspace;
    trf_fused_args args = {};
    args.view = *view;
    args.shared = c.plan;
    args.x = x;
    args.x_stride = view->cols;
    args.y = y;
    args.m = plan->m;
    args.y_dtype = plan->y_dtype;
    if (epilogue) {
        args.with = {*epilogue, y, (uint32_t)plan->y_dtype, view->rows};
        args.y = base + at.sums;
        args.y_dtype = TRF_DTYPE_F32;
    }
    args.whole_rows = c.units ? view->rows / TRF_SLAB_ROWS * TRF_SLAB_ROWS : 0;
    args.use_row_offsets = (facts->predictor_modes & TRF_PREDICT_ROW) != 0;
    args.cluster = c.cluster;
    args.parts = c.parts;
    args.group = c.group;
    args.units = c.units;
    args.units_each = (c.straddles ? c.items : c.units) / c.clusters;
    args.units_more = (c.straddles ? c.items : c.units) % c.clusters;
    args.straddles = c.straddles;
    args.partials = (float *)(base + at.partials);
    args.cols_each = c.cols / c.cluster;
    args.cols_more = c.cols % c.cluster;
    args.sums = c.sums;
    args.sums_stride = c.sums_stride;
    args.window = c.window;
    args.sums_over_x = c.sums_over_x;
    args.window_cols = c.window_cols;
    if (view->cols % 8 || (uintptr_t)x % 16) {
        args.x_stride = (view->cols + 7) / 8 * 8;
        args.x = base + at.padded_x;
        int status = trf_launch_pad_x(x, plan->m, view->cols, base + at.padded_x, args.x_stride, stream);
        if (status)
            return status;
    }
    if (facts->irregular_weights) {
        float *edges = (float *)base;
        int status = trf_launch_linear_edges(view, plan->m, plan->x_dtype, args.x, args.x_stride, edges, stream);
        if (status)
            return status;
        args.edges = edges;
    }
    return launch(kernel_of(view, plan), args, c, stream);
}
