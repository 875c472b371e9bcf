/* Which fused kernel runs, on how many blocks, with what cut of K; and its launch. */
#include "trf_fused.h"
#include "trf_fused_variants.cuh"

#include <atomic>

/* plan->choice */
enum {
    CHOICE_TILES,
    CHOICE_GEOMETRY,
    CHOICE_TABLE_LOG,
    CHOICE_BLOCKS,
    CHOICE_SPLITS,
    CHOICE_BANDS,
    CHOICE_STRIDE /* of padded x, or 0 */
};

static constexpr uint64_t kCounterBytes = 1 << 20; /* trf_workspace_init zeroes these */

static uint64_t align_256(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

/* ---- what the kernels take ---- */

static bool is_scaled(const trf_device_view *view) {
    return view->granularity == TRF_GRANULARITY_GROUP || view->granularity == TRF_GRANULARITY_BLOCK;
}

static trf_shared_plan shared_plan(const trf_device_view *view, const trf_device_facts *facts, int tiles, int geometry,
                                   uint32_t table_log) {
    return trf_shared_plan_of(view->raw_bits, facts->max_stream_bytes, (uint32_t)trf_fused_warps(tiles, geometry),
                              table_log);
}

/* The first geometry that fits, best first. @return whether there is one. */
static bool find_geometry(const trf_device_view *view, const trf_device_facts *facts, int shared_bytes, int tiles,
                          uint32_t *geometry, uint32_t *table_log) {
    constexpr int kStaticBytes = 1024; /* at most, of static shared memory */
    const bool nine = view->probability_bits == 9 && view->state_bits == 9;
    for (uint32_t g = nine ? TRF_GEOMETRY_NINE : TRF_GEOMETRY_ANY; g < TRF_GEOMETRIES; g++)
        for (uint32_t log = kTableLog; log >= view->probability_bits + 4 && (g == TRF_GEOMETRY_FEW || log == kTableLog); log--)
            if ((int)shared_plan(view, facts, tiles, (int)g, log).total + kStaticBytes <= shared_bytes) {
                *geometry = g;
                *table_log = log;
                return true;
            }
    return false;
}

static int tiles_of(uint32_t m) { return m <= 8 ? 1 : m <= 16 ? 2 : m <= 32 ? 4 : 8; }

const char *trf_fused_refuses(const trf_device_view *view, const trf_device_facts *facts,
                              const trf_device_limits *limits, uint32_t m, trf_dtype x_dtype) {
    uint32_t geometry, table_log;
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
    if (!find_geometry(view, facts, limits->shared_bytes, tiles_of(m), &geometry, &table_log))
        return "its streams do not fit this device's shared memory";
    return NULL;
}

/* ---- the cut ---- */

/* Estimated microseconds for `splits` items a band or group; from measurements on an H200, in docs/performance.md. */
static double estimate(uint32_t rows_of_items, uint32_t regular_cols, uint32_t splits, uint32_t multiprocessors,
                       uint32_t slabs_side_by_side, uint32_t slabs_in_flight) {
    const double kSlab = 0.33, kSlabAlone = 0.21, kSlabLatency = 2.4, kExchange = 1.2;
    const uint64_t items = (uint64_t)rows_of_items * splits;
    const uint32_t blocks = items < multiprocessors ? (uint32_t)items : multiprocessors;
    const uint64_t most = (items + blocks - 1) / blocks * ((regular_cols + splits - 1) / splits) * slabs_side_by_side;
    const double all = (double)rows_of_items * regular_cols * slabs_side_by_side / multiprocessors;
    const double rounds = (double)((most + slabs_in_flight - 1) / slabs_in_flight);
    double cost = all * kSlab;
    if (cost < 0.3 * all * kSlab + 0.7 * (double)most * kSlab)
        cost = 0.3 * all * kSlab + 0.7 * (double)most * kSlab;
    if (blocks < multiprocessors && cost > (double)most * kSlabAlone && all * kSlab < (double)most * kSlabAlone)
        cost = (double)most * kSlabAlone;
    if (cost < rounds * kSlabLatency)
        cost = rounds * kSlabLatency;
    return cost + (splits > 1 ? kExchange : 0);
}

void trf_fused_choose(const trf_device_view *view, const trf_device_facts *facts, const trf_device_limits *limits,
                      trf_linear_plan *plan) {
    const int tiles = tiles_of(plan->m);
    uint32_t *choice = plan->choice;
    choice[CHOICE_TILES] = (uint32_t)tiles;
    find_geometry(view, facts, limits->shared_bytes, tiles, &choice[CHOICE_GEOMETRY], &choice[CHOICE_TABLE_LOG]);
    const uint32_t warps = (uint32_t)trf_fused_warps(tiles, (int)choice[CHOICE_GEOMETRY]);
    const uint32_t cols = trf_regular_tile_cols(*view), bands = cols ? view->rows / kBandRows : 0;
    const uint32_t side = tiles == 1 ? 1 : warps, groups = (bands + side - 1) / side;
    const uint32_t multiprocessors = (uint32_t)limits->multiprocessors;
    uint32_t splits = 1;
    if (bands) {
        double best = estimate(groups, cols, 1, multiprocessors, side, warps);
        for (uint32_t s = 2; s <= cols && s <= 64 && groups <= kCounterBytes / 4; s++) {
            const double cost = estimate(groups, cols, s, multiprocessors, side, warps);
            if (cost < best) {
                best = cost;
                splits = s;
            }
        }
    }
    const uint64_t items = (uint64_t)groups * splits;
    choice[CHOICE_BANDS] = bands;
    choice[CHOICE_SPLITS] = splits;
    choice[CHOICE_BLOCKS] = items < multiprocessors ? (items ? (uint32_t)items : 1) : multiprocessors;
    const bool aligned = view->cols % 8 == 0;
    choice[CHOICE_STRIDE] = aligned ? 0 : (view->cols + 7) / 8 * 8;

    const uint64_t band_bytes = 4ull * plan->m * kBandRows;
    uint64_t bytes = kCounterBytes;
    bytes += align_256(tiles == 1 ? choice[CHOICE_BLOCKS] * warps * band_bytes : 0);
    bytes += align_256(splits == 1 ? 0 : tiles == 1 ? choice[CHOICE_BLOCKS] * 2 * band_bytes : items * warps * band_bytes);
    bytes += align_256(facts->irregular_weights ? 4ull * plan->m * view->rows : 0);
    bytes += align_256(2ull * plan->m * ((view->cols + 7) / 8 * 8)); /* x may be misaligned */
    plan->workspace_bytes = bytes;
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
    cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
    if (status != cudaSuccess)
        return status;
    if ((uint32_t)attributes.maxDynamicSharedSizeBytes < args.shared.total) {
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)args.shared.total);
        if (status != cudaSuccess)
            return status;
    }
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
    const uint32_t warps = (uint32_t)trf_fused_warps(tiles, (int)choice[CHOICE_GEOMETRY]);
    const uint64_t band_bytes = 4ull * plan->m * kBandRows;
    uint8_t *free_bytes = (uint8_t *)workspace + kCounterBytes;
    auto take = [&](uint64_t bytes) {
        uint8_t *taken = free_bytes;
        free_bytes += align_256(bytes);
        return taken;
    };
    trf_fused_args args = {};
    args.view = *view;
    args.shared = shared_plan(view, facts, tiles, (int)choice[CHOICE_GEOMETRY], choice[CHOICE_TABLE_LOG]);
    args.x = x;
    args.x_stride = view->cols;
    args.y = y;
    args.m = plan->m;
    args.y_dtype = plan->y_dtype;
    args.bands = choice[CHOICE_BANDS];
    args.regular_cols = trf_regular_tile_cols(*view);
    args.splits = choice[CHOICE_SPLITS];
    args.items = (tiles == 1 ? args.bands : (args.bands + warps - 1) / warps) * args.splits;
    args.use_row_offsets = (facts->predictor_modes & TRF_PREDICT_ROW) != 0;
    args.counters = (uint32_t *)workspace;
    args.run_sums = (float *)take(tiles == 1 ? choice[CHOICE_BLOCKS] * warps * band_bytes : 0);
    args.block_sums = (float *)take(args.splits == 1 ? 0
                                    : tiles == 1     ? choice[CHOICE_BLOCKS] * 2 * band_bytes
                                                     : args.items * warps * band_bytes);
    float *edges = (float *)take(facts->irregular_weights ? 4ull * plan->m * view->rows : 0);
    if (choice[CHOICE_STRIDE] || (uintptr_t)x % 16) {
        args.x_stride = (view->cols + 7) / 8 * 8;
        args.x = take(2ull * plan->m * args.x_stride);
        int status = trf_launch_pad_x(x, plan->m, view->cols, (void *)args.x, args.x_stride, stream);
        if (status)
            return status;
    }
    if (facts->irregular_weights) {
        int status = trf_launch_linear_edges(view, plan->m, plan->x_dtype, args.x, args.x_stride, edges, stream);
        if (status)
            return status;
        args.edges = edges;
    }
    return launch(kernel_of(view, plan), args, choice[CHOICE_BLOCKS], 32 * warps, stream);
}
