/* Which fused kernel runs, on how many blocks, with what cut of K; and its launch. */
#include "trf_fused.h"
#include "trf_fused_variants.cuh"

#include <math.h>

/* plan->choice; word TRF_PLAN_LAYER is not ours. */
enum {
    CHOICE_TILES,
    CHOICE_GEOMETRY,
    CHOICE_TABLE_LOG,
    CHOICE_BLOCKS,
    CHOICE_SPLITS,
    CHOICE_UNITS,
    CHOICES
};
static_assert((int)CHOICES <= (int)TRF_PLAN_LAYER, "the layer's word is free");

static uint64_t align_256(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

/* ---- what the kernels take ---- */

static bool is_scaled(const trf_device_view *view) {
    return view->granularity == TRF_GRANULARITY_GROUP || view->granularity == TRF_GRANULARITY_BLOCK;
}

static int warps_of(const trf_device_view *view, int tiles, uint32_t geometry) {
    return trf_fused_warps((int)view->class_bits, tiles, (int)geometry);
}

static trf_shared_plan shared_plan(const trf_device_view *view, const trf_device_facts *facts, uint32_t m, int tiles,
                                   uint32_t geometry, uint32_t table_log) {
    const uint32_t slabs = (uint32_t)trf_fused_slabs((int)geometry);
    return trf_shared_plan_of(view->raw_bits, facts->max_stream_bytes, (uint32_t)warps_of(view, tiles, geometry), slabs,
                              table_log, 4 * m * slabs * TRF_SLAB_ROWS);
}

static bool geometry_takes(const trf_device_view *view, const trf_device_facts *facts, int tiles, uint32_t geometry) {
    const bool nine = view->probability_bits == 9 && view->state_bits == 9 && facts->max_frequency <= 255 &&
                      !(facts->predictor_modes & TRF_PREDICT_ROW);
    switch (geometry) {
    case TRF_GEOMETRY_NINE_TWO:
        return nine && tiles == 1 && view->class_bits == 2 && !is_scaled(view);
    case TRF_GEOMETRY_NINE:
        return nine;
    default:
        return true;
    }
}

/* The largest table that leaves room for the rest. @return its size's logarithm, or 0 if there is none. */
static uint32_t find_table(const trf_device_view *view, const trf_device_facts *facts, int shared_bytes, uint32_t m,
                           int tiles, uint32_t geometry) {
    constexpr int kStaticBytes = 1024; /* at most, of static shared memory */
    const uint32_t smallest = geometry == TRF_GEOMETRY_FEW ? view->probability_bits + 4 : kTableLog;
    for (uint32_t log = kTableLog; geometry_takes(view, facts, tiles, geometry) && log >= smallest; log--)
        if ((int)shared_plan(view, facts, m, tiles, geometry, log).total + kStaticBytes <= shared_bytes)
            return log;
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
    if ((uint64_t)((view->rows + 31) / 32) * view->num_tiles_col > UINT32_MAX || (uint64_t)view->cols * m > UINT32_MAX / 2)
        return "the layer or the batch is too large";
    for (uint32_t geometry = 0; geometry < TRF_GEOMETRIES; geometry++)
        if (find_table(view, facts, limits->shared_bytes, m, tiles_of(m), geometry))
            return NULL;
    return "its streams do not fit this device's shared memory";
}

/* ---- the cut ---- */

/* Estimated microseconds of a product whose units are cut into `splits` items each, from measurements on an H200 (docs/performance.md). */
struct cut {
    uint32_t units, cols, splits;
    uint32_t slabs;     /* side by side */
    uint32_t in_flight; /* that a block decodes at once */
    double slab_us;     /* of a busy multiprocessor's time */
    uint64_t sum_bytes; /* of a unit */
};

static double estimate(const cut &c, uint32_t multiprocessors) {
    const double kRound = 6.0, kExchange = 4.0, kSumBytesPerMicrosecond = 150e3;
    const uint64_t items = (uint64_t)c.units * c.splits;
    const uint64_t blocks = items < multiprocessors ? items : multiprocessors;
    const uint64_t most = (items + blocks - 1) / blocks * ((c.cols + c.splits - 1) / c.splits) * c.slabs;
    const uint64_t rounds = (most + c.in_flight - 1) / c.in_flight;
    const double busy = (double)most * c.slab_us, waiting = (double)rounds * kRound;
    const double exchange = kExchange + (double)(c.splits * c.sum_bytes) / kSumBytesPerMicrosecond;
    return (busy > waiting ? busy : waiting) + (c.splits > 1 ? exchange : 0);
}

/* Where everything lies in the workspace. */
struct workspace_layout {
    uint64_t run_sums, block_sums, edges, padded_x, bytes;
};

static workspace_layout layout_of(const trf_device_view *view, const trf_device_facts *facts,
                                  const trf_linear_plan *plan) {
    const uint32_t *choice = plan->choice;
    const uint64_t warps = (uint64_t)warps_of(view, (int)choice[CHOICE_TILES], choice[CHOICE_GEOMETRY]);
    const uint64_t blocks = choice[CHOICE_BLOCKS],
                   sum_bytes = 4ull * plan->m * TRF_SLAB_ROWS * (uint64_t)trf_fused_slabs((int)choice[CHOICE_GEOMETRY]);
    workspace_layout at;
    at.run_sums = TRF_WORKSPACE_COUNTER_BYTES;
    at.block_sums = at.run_sums + align_256(blocks * warps * sum_bytes);
    at.edges = at.block_sums + align_256(choice[CHOICE_SPLITS] == 1 ? 0 : blocks * 2 * sum_bytes);
    at.padded_x = at.edges + align_256(facts->irregular_weights ? 4ull * plan->m * view->rows : 0);
    at.bytes = at.padded_x + align_256(2ull * plan->m * ((view->cols + 7) / 8 * 8)); /* x may be misaligned */
    return at;
}

void trf_fused_choose(const trf_device_view *view, const trf_device_facts *facts, const trf_device_limits *limits,
                      trf_linear_plan *plan) {
    const uint32_t cols = trf_regular_tile_cols(*view), bands = cols ? view->rows / TRF_SLAB_ROWS : 0;
    const uint32_t multiprocessors = (uint32_t)limits->multiprocessors;
    const int tiles = tiles_of(plan->m);
    uint32_t *choice = plan->choice;
    double best = HUGE_VAL;
    for (uint32_t geometry = 0; geometry < TRF_GEOMETRIES; geometry++) {
        const uint32_t table_log = find_table(view, facts, limits->shared_bytes, plan->m, tiles, geometry);
        if (!table_log)
            continue;
        const uint32_t slabs = (uint32_t)trf_fused_slabs((int)geometry), units = (bands + slabs - 1) / slabs,
                       warps = (uint32_t)warps_of(view, tiles, geometry);
        cut c = {units, cols, 1, slabs, warps * slabs, slabs == 2 ? 0.375 : 0.40, 4ull * plan->m * TRF_SLAB_ROWS * slabs};
        for (; c.splits == 1 || (c.splits <= cols && c.splits <= 32 && units <= TRF_WORKSPACE_COUNTER_BYTES / 4); c.splits++) {
            const double cost = units ? estimate(c, multiprocessors) : 0;
            if (cost >= best)
                continue;
            const uint64_t items = (uint64_t)units * c.splits;
            best = cost;
            choice[CHOICE_GEOMETRY] = geometry;
            choice[CHOICE_TABLE_LOG] = table_log;
            choice[CHOICE_SPLITS] = c.splits;
            choice[CHOICE_UNITS] = units;
            choice[CHOICE_BLOCKS] = items < multiprocessors ? (items ? (uint32_t)items : 1) : multiprocessors;
        }
        if (geometry == TRF_GEOMETRY_NINE || geometry == TRF_GEOMETRY_ANY)
            break; /* the ones behind it are slower */
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
                          cudaStream_t stream) {
    cudaFuncAttributes attributes;
    int device = 0, most = 0;
    cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
    if (status == cudaSuccess)
        status = cudaGetDevice(&device);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (status == cudaSuccess)
        most -= (int)attributes.sharedSizeBytes;
    /* Always all that there is, so that threads with different needs do not take it from each other. */
    if (status == cudaSuccess && attributes.maxDynamicSharedSizeBytes != most)
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    if (status != cudaSuccess)
        return status;
    cudaLaunchAttribute early;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = args.shared.total;
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
                   warps = (uint32_t)warps_of(view, tiles, geometry);
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
    args.items = units * args.splits;
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
    return launch(kernel_of(view, plan), args, choice[CHOICE_BLOCKS], 32 * warps, stream);
}
