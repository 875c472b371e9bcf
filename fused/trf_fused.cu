/* Which fused kernel runs, on how many blocks, with what cut of K; and its launch. */
#include "trf_fused.h"
#include "trf_fused_variants.cuh"
#include "trf_kernel_limits.cuh"

#include <math.h>

/* plan->choice; word TRF_PLAN_LAYER is not ours. */
enum {
    CHOICE_TILES,
    CHOICE_GEOMETRY,
    CHOICE_TABLE_LOG,
    CHOICE_BLOCKS,
    CHOICE_SPLITS,
    CHOICE_UNITS,
    CHOICE_ITEMS,
    CHOICES
};
static_assert((int)CHOICES <= (int)TRF_PLAN_LAYER, "the layer's word is free");

enum {
    MOST_SHARED_UNITS = TRF_WORKSPACE_COUNTER_BYTES / 4 /* that blocks may share: a counter each */
};

static uint64_t align_256(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

/* ---- what the kernels take ---- */

static bool is_scaled(const trf_device_view *view) {
    return view->granularity == TRF_GRANULARITY_GROUP || view->granularity == TRF_GRANULARITY_BLOCK;
}

static uint32_t warps_of(const trf_device_view *view, int tiles, uint32_t geometry) {
    return (uint32_t)trf_fused_warps((int)view->class_bits, is_scaled(view), tiles, (int)geometry);
}

/* Rows of a unit. */
static uint32_t unit_rows(uint32_t geometry) { return TRF_SLAB_ROWS * (uint32_t)trf_fused_slabs((int)geometry); }

/* Of a unit's sums: in runs those of the batch's rows, in columns whole fragments. */
static uint32_t unit_sum_bytes(uint32_t m, int tiles, uint32_t geometry) {
    return 4 * unit_rows(geometry) * (trf_walks_columns((int)geometry) ? 8 * (uint32_t)tiles : m);
}

static trf_shared_plan shared_plan(const trf_device_view *view, const trf_device_facts *facts, uint32_t m, int tiles,
                                   uint32_t geometry, uint32_t table_log) {
    const uint32_t kept = trf_walks_columns((int)geometry) ? 0 : unit_sum_bytes(m, tiles, geometry);
    return trf_shared_plan_of(view->raw_bits, facts->max_stream_bytes, warps_of(view, tiles, geometry),
                              (uint32_t)trf_fused_slabs((int)geometry), table_log, kept);
}

static uint32_t parts_of(uint32_t geometry) {
    return trf_walks_columns((int)geometry) ? (uint32_t)trf_column_parts(trf_fused_slabs((int)geometry)) : 1;
}

/* Units that a block walks at once: in columns those of a group. */
static uint32_t units_of(const trf_device_view *view, int tiles, uint32_t geometry) {
    return trf_walks_columns((int)geometry) ? warps_of(view, tiles, geometry) / parts_of(geometry) : 1;
}

/* Of dynamic shared memory: the plan's, and x or sums behind it. */
static uint32_t shared_bytes_of(const trf_shared_plan &plan, const trf_device_view *view, int tiles,
                                uint32_t geometry) {
    const uint32_t parts = parts_of(geometry);
    return plan.total + (parts - 1) * units_of(view, tiles, geometry) * trf_join_bytes(tiles) +
           (tiles > 1 ? 2 * trf_window_column_bytes(tiles) : 0);
}

static bool geometry_takes(const trf_device_view *view, const trf_device_facts *facts, int tiles, uint32_t geometry) {
    const bool usual = trf_has_usual_p(*view, facts->max_frequency) && !(facts->predictor_modes & TRF_PREDICT_ROW);
    const bool two = view->class_bits == 2 && !is_scaled(view);
    switch (geometry) {
    case TRF_GEOMETRY_COLUMNS_TWO:
    case TRF_GEOMETRY_RUNS_TWO:
        return usual && tiles == 1 && two;
    case TRF_GEOMETRY_COLUMNS:
        return usual && (tiles > 1 || !two);
    case TRF_GEOMETRY_RUNS:
        return usual && tiles == 1;
    case TRF_GEOMETRY_COLUMNS_ANY:
        return tiles > 1;
    default:
        return tiles == 1;
    }
}

/* The largest table that leaves room for the rest. @return its size's logarithm, or 0 if there is none. */
static uint32_t find_table(const trf_device_view *view, const trf_device_facts *facts, int shared_bytes, uint32_t m,
                           int tiles, uint32_t geometry) {
    const bool flexible = geometry == TRF_GEOMETRY_RUNS_FEW || geometry == TRF_GEOMETRY_COLUMNS_ANY;
    const uint32_t largest = parts_of(geometry) > 1 ? kSmallTableLog : kTableLog,
                   smallest = flexible ? view->probability_bits + 4 : largest;
    for (uint32_t log = largest; geometry_takes(view, facts, tiles, geometry) && log >= smallest; log--) {
        const trf_shared_plan plan = shared_plan(view, facts, m, tiles, geometry, log);
        if ((int)shared_bytes_of(plan, view, tiles, geometry) + kStaticSharedBytes <= shared_bytes)
            return log;
    }
    return 0;
}

static int tiles_of(uint32_t m) { return m <= 8 ? 1 : m <= 16 ? 2 : m <= 32 ? 4 : 8; }

const char *trf_fused_refuses(const trf_device_view *view, const trf_device_facts *facts,
                              const trf_device_limits *limits, uint32_t m, trf_dtype x_dtype) {
    if (m > TRF_FUSED_MAX_M)
        return "the batch is larger than 64";
    if (facts->predictor_modes & TRF_PREDICT_COL)
        return "the layer has column offsets";
    if (facts->mixed_modes)
        return "the tiles differ in their row offsets";
    if (facts->max_abs_offset > 126)
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
    if ((uint64_t)view->num_bands * view->num_tiles_col > UINT32_MAX || (uint64_t)view->cols * m > UINT32_MAX / 2)
        return "the layer or the batch is too large";
    if (m > 8 && view->num_bands > MOST_SHARED_UNITS)
        return "the layer has too many rows for batches above 8";
    for (uint32_t geometry = 0; geometry < TRF_GEOMETRIES; geometry++)
        if (find_table(view, facts, limits->shared_bytes, m, tiles_of(m), geometry))
            return NULL;
    return "its streams do not fit this device's shared memory";
}

/* ---- the cut ---- */

/* A way to share out a product. */
struct cut {
    uint32_t geometry;
    uint32_t units, cols, splits; /* splits: of a unit's columns among items; columns: 1 */
    uint32_t items, blocks;
};

static cut cut_of(const trf_device_view *view, const trf_device_limits *limits, int tiles, uint32_t geometry,
                  uint32_t splits) {
    const uint32_t cols = trf_regular_tile_cols(*view), bands = cols ? view->rows / TRF_SLAB_ROWS : 0;
    const uint32_t slabs = (uint32_t)trf_fused_slabs((int)geometry);
    cut c = {geometry, (bands + slabs - 1) / slabs, cols, splits, 0, 0};
    const uint32_t group = units_of(view, tiles, geometry);
    c.items = trf_walks_columns((int)geometry) ? (c.units + group - 1) / group * cols : c.units * splits;
    c.blocks = c.items < (uint32_t)limits->multiprocessors ? c.items : (uint32_t)limits->multiprocessors;
    if (c.blocks == 0)
        c.blocks = 1;
    return c;
}

/* Microseconds that a slab takes of a busy multiprocessor, from measurements on an H200 (docs/performance.md). */
static double slab_microseconds(uint32_t geometry, int tiles, uint32_t m) {
    const double more_rows = m <= 8 ? m - 1.0 : 7.0;
    switch (geometry) {
    case TRF_GEOMETRY_COLUMNS_TWO:
        return 0.347 + 0.0020 * more_rows;
    case TRF_GEOMETRY_RUNS_TWO:
        return 0.363 + 0.0043 * more_rows;
    case TRF_GEOMETRY_RUNS:
        return 0.410 + 0.0067 * more_rows;
    case TRF_GEOMETRY_COLUMNS:
        return tiles == 1 ? 0.365 + 0.0040 * more_rows : tiles == 2 ? 0.43 : tiles == 4 ? 0.49 : 0.87;
    default:
        return 1.0;
    }
}

/* Estimated microseconds beyond those of every launch. */
static double estimate(const cut &c, uint32_t warps, int tiles, uint32_t m) {
    const bool columns = trf_walks_columns((int)c.geometry);
    const uint32_t slabs = (uint32_t)trf_fused_slabs((int)c.geometry), parts = parts_of(c.geometry);
    const uint32_t items = (c.items + c.blocks - 1) / c.blocks, sum_bytes = unit_sum_bytes(m, tiles, c.geometry);
    const double round_us = slabs == 2 ? 6.5 : 5.0; /* of a warp's slab, or two side by side, alone */
    const uint64_t most = columns ? (uint64_t)((items + parts - 1) / parts) * warps * slabs
                                  : (uint64_t)items * ((c.cols + c.splits - 1) / c.splits) * slabs;
    const uint64_t rounds = (most + warps * slabs - 1) / (warps * slabs);
    /* Those with less to do leave memory to the others. */
    const double mean = (double)c.units * slabs * c.cols / c.blocks;
    const double busy = 0.5 * ((double)most + mean) * slab_microseconds(c.geometry, tiles, m),
                 waiting = (double)rounds * round_us;
    double cost = busy > waiting ? busy : waiting;
    if (columns && items % c.cols) { /* one block adds what those that share its group have left */
        const double sharing = (double)c.cols / items + 1;
        cost += 2.0 + sharing * warps / parts * sum_bytes / 60e3;
    }
    if (!columns && c.splits > 1)
        cost += 2.0 + (double)c.splits * sum_bytes / 150e3;
    return cost;
}

/* Where everything lies in the workspace. */
struct workspace_layout {
    uint64_t run_sums, block_sums, edges, padded_x, bytes;
};

static workspace_layout layout_of(const trf_device_view *view, const trf_device_facts *facts,
                                  const trf_linear_plan *plan) {
    const uint32_t *choice = plan->choice;
    const int tiles = (int)choice[CHOICE_TILES];
    const uint64_t warps = warps_of(view, tiles, choice[CHOICE_GEOMETRY]), blocks = choice[CHOICE_BLOCKS],
                   sum_bytes = unit_sum_bytes(plan->m, tiles, choice[CHOICE_GEOMETRY]);
    const bool columns = trf_walks_columns((int)choice[CHOICE_GEOMETRY]);
    workspace_layout at;
    at.run_sums = TRF_WORKSPACE_COUNTER_BYTES;
    at.block_sums = at.run_sums + align_256(columns ? 0 : blocks * warps * sum_bytes);
    /* A block shares its first and its last group, or unit. */
    const uint64_t shared_units = columns                      ? 2ull * units_of(view, tiles, choice[CHOICE_GEOMETRY])
                                  : choice[CHOICE_SPLITS] == 1 ? 0
                                                               : 2;
    at.edges = at.block_sums + align_256(blocks * shared_units * sum_bytes);
    at.padded_x = at.edges + align_256(facts->irregular_weights ? 4ull * plan->m * view->rows : 0);
    at.bytes = at.padded_x + align_256(2ull * plan->m * ((view->cols + 7) / 8 * 8)); /* x may be misaligned */
    return at;
}

void trf_fused_choose(const trf_device_view *view, const trf_device_facts *facts, const trf_device_limits *limits,
                      trf_linear_plan *plan) {
    const int tiles = tiles_of(plan->m);
    uint32_t *choice = plan->choice;
    double best = HUGE_VAL;
    for (uint32_t geometry = 0; geometry < TRF_GEOMETRIES; geometry++) {
        const uint32_t table_log = find_table(view, facts, limits->shared_bytes, plan->m, tiles, geometry);
        if (geometry > TRF_GEOMETRY_RUNS && best < HUGE_VAL)
            break; /* those for any p are slower, and the last of them the slowest */
        if (!table_log)
            continue;
        for (uint32_t splits = 1;; splits++) {
            const cut c = cut_of(view, limits, tiles, geometry, splits);
            const bool shares = trf_walks_columns((int)geometry) || splits > 1;
            if (splits > 1 && (trf_walks_columns((int)geometry) || splits > c.cols || splits > 32))
                break;
            if (shares && c.units > MOST_SHARED_UNITS)
                break;
            const double cost = c.units ? estimate(c, warps_of(view, tiles, geometry), tiles, plan->m) : 0;
            if (cost >= best)
                continue;
            best = cost;
            choice[CHOICE_GEOMETRY] = geometry;
            choice[CHOICE_TABLE_LOG] = table_log;
            choice[CHOICE_SPLITS] = splits;
            choice[CHOICE_UNITS] = c.units;
            choice[CHOICE_ITEMS] = c.items;
            choice[CHOICE_BLOCKS] = c.blocks;
        }
    }
    choice[CHOICE_TILES] = (uint32_t)tiles;
    plan->workspace_bytes = layout_of(view, facts, plan).bytes;
}

/* ---- the launch ---- */

static trf_fused_kernel kernel_of(const trf_device_view *view, const trf_linear_plan *plan) {
    const int tiles = (int)plan->choice[CHOICE_TILES], geometry = (int)plan->choice[CHOICE_GEOMETRY],
              class_bits = (int)view->class_bits, bf16_x = plan->x_dtype == TRF_DTYPE_BF16;
    switch (view->codec) {
    case TRF_CODEC_BF16:
        return trf_fused_bf16(class_bits, tiles, geometry);
    case TRF_CODEC_FP16:
        return trf_fused_fp16(class_bits, tiles, geometry);
    case TRF_CODEC_INT:
        return trf_fused_int(is_scaled(view), class_bits, bf16_x, tiles, geometry);
    default:
        return trf_fused_fp8(view->codec == TRF_CODEC_E5M2, class_bits, bf16_x, tiles, geometry);
    }
}

/* Code that the driver made from older PTX does not wait for the kernel in front of it, so it must not start early. */
static cudaError_t launch(trf_fused_kernel kernel, const trf_fused_args &args, uint32_t blocks, uint32_t threads,
                          uint32_t shared_bytes, cudaStream_t stream) {
    cudaFuncAttributes attributes = {};
    cudaError_t status = trf_allow_all_shared((const void *)kernel, &attributes);
    if (status != cudaSuccess)
        return status;
    cudaLaunchAttribute early;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = attributes.ptxVersion >= 90 ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args);
}

int trf_fused_launch(const trf_device_view *view, const trf_device_facts *facts, const trf_linear_plan *plan,
                     const void *x, void *y, void *workspace, trf_stream stream) {
    const uint32_t *choice = plan->choice;
    const int tiles = (int)choice[CHOICE_TILES];
    const uint32_t geometry = choice[CHOICE_GEOMETRY], units = choice[CHOICE_UNITS],
                   warps = warps_of(view, tiles, geometry);
    const workspace_layout at = layout_of(view, facts, plan);
    uint8_t *const base = (uint8_t *)workspace;
    trf_fused_args args = {};
    args.view = *view;
    args.shared = shared_plan(view, facts, plan->m, tiles, geometry, choice[CHOICE_TABLE_LOG]);
    args.x = x;
    args.x_stride = view->cols;
    args.y = y;
    args.m = plan->m;
    args.y_dtype = plan->y_dtype;
    args.units = units;
    args.whole_rows = units ? view->rows / TRF_SLAB_ROWS * TRF_SLAB_ROWS : 0;
    args.regular_cols = trf_regular_tile_cols(*view);
    args.splits = choice[CHOICE_SPLITS];
    args.items = choice[CHOICE_ITEMS];
    args.use_row_offsets = (facts->predictor_modes & TRF_PREDICT_ROW) != 0;
    args.counters = (uint32_t *)workspace;
    args.run_sums = (float *)(base + at.run_sums);
    args.block_sums = (float *)(base + at.block_sums);
    if (view->cols % 8 || (uintptr_t)x % 16) {
        args.x_stride = (view->cols + 7) / 8 * 8;
        args.x = base + at.padded_x;
        int status = trf_launch_pad_x(x, plan->m, view->cols, base + at.padded_x, args.x_stride, stream);
        if (status)
            return status;
    }
    if (facts->irregular_weights) {
        float *edges = (float *)(base + at.edges);
        int status = trf_launch_linear_edges(view, plan->m, plan->x_dtype, args.x, args.x_stride, edges, stream);
        if (status)
            return status;
        args.edges = edges;
    }
    return launch(kernel_of(view, plan), args, choice[CHOICE_BLOCKS], 32 * warps,
                  shared_bytes_of(args.shared, view, tiles, geometry), stream);
}
