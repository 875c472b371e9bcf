/* Which wide kernel runs, on how many blocks and with what partition; and its launch. */
#include "trf_wide_launch.h"

#include "trf_kernel_launch.cuh"
#include "trf_two_step.h"
#include "trf_wide_instances.cuh"

#include <cuda.h>

/* plan->choice; word TRF_PLAN_LAYER is not ours. */
enum {
    WIDE_X_ROWS,
    WIDE_MULTICAST,
    WIDE_K_SPLITS,
    WIDE_CLUSTERS,
    WIDE_PRODUCERS
};

/* ---- the partition ---- */

struct wide_partition {
    uint32_t threads, units, max_producers; /* of the kernel */
    uint32_t x_rows, x_stage_bytes;         /* of a block; of a stream's copy of them */
    uint32_t producers;
    uint32_t cols, multicast, k_splits, x_row_blocks, work_items, clusters;
    trf_smem_layout smem;
    uint32_t stages, x_stages, shared_bytes; /* offsets; dynamic */
};

template <int kColumns, int kMulticast> static void set_shape(wide_partition *c) {
    using Shape = trf_wide_shape<kColumns, kMulticast>;
    c->threads = Shape::kThreads;
    c->units = Shape::kUnits;
    c->max_producers = Shape::kProducers;
}

/* Rows of x of a block, where `multicast` blocks decode for each other: as even as multiples of 16 are, which is what
 * kernels have loops for. */
static uint32_t x_rows_of(uint32_t m, uint32_t multicast) {
    if (m <= 64)
        return m <= 48 ? 48 : 64;
    const uint32_t blocks = ceil_div(m, 128 * multicast) * multicast;
    return ceil_div(ceil_div(m, blocks), 16) * 16;
}

/* Of at most so many producers; of fewer, if these need no more rounds. */
static wide_partition make_partition(const trf_device_view *view, const trf_layer_traits *traits, uint32_t m,
                                     uint32_t x_rows, uint32_t multicast, uint32_t k_splits, uint32_t clusters,
                                     uint32_t producers) {
    wide_partition c = {};
    c.x_rows = x_rows;
    c.x_stage_bytes = c.x_rows * 2 * kStageCols;
    if (c.x_rows <= 64)
        set_shape<64, 1>(&c);
    else if (multicast == 1)
        set_shape<128, 1>(&c);
    else
        set_shape<128, 2>(&c);
    c.cols = trf_regular_slab_cols(view);
    const uint32_t most = producers < c.max_producers ? producers : c.max_producers, cols = ceil_div(c.cols, k_splits),
                   rounds = ceil_div(cols, most);
    c.producers = rounds ? ceil_div(cols, rounds) : 1;
    c.multicast = multicast;
    c.k_splits = k_splits;
    c.x_row_blocks = ceil_div(ceil_div(m, c.x_rows), multicast);
    c.work_items = ceil_div(view->rows / TRF_SLAB_ROWS, kWideBands) * c.x_row_blocks;
    c.clusters = clusters < c.work_items ? clusters : c.work_items;
    c.smem = trf_smem_layout_of(view->raw_bits, traits->max_rans_bytes, c.producers * c.units, kWideSlabs,
                                kWideTableLog, 0, 0, kShortRing);
    c.stages = (c.smem.total + 1023) / 1024 * 1024;
    c.x_stages = c.stages + c.producers * kStageBytes;
    c.shared_bytes = c.x_stages + c.producers * c.x_stage_bytes;
    const uint32_t pieces = ceil_div(c.x_rows / 8, k_splits) * k_splits * (kWideRows / 16),
                   sums = c.stages + (k_splits > 1 ? pieces * kAccTileBytes : 0);
    c.shared_bytes = sums > c.shared_bytes ? sums : c.shared_bytes;
    return c;
}

/* With as many producers as there is room for. @return whether there is room for one. */
static bool fit(const trf_device_view *view, const trf_layer_traits *traits, const trf_device_limits *limits,
                uint32_t m, uint32_t multicast, uint32_t log_k_splits, wide_partition *partition) {
    const uint32_t k_splits = 1u << log_k_splits, clusters = limits->clusters[log_k_splits + multicast - 1];
    for (uint32_t most = kMaxProducers; most > 0; most--) {
        *partition = make_partition(view, traits, m, x_rows_of(m, multicast), multicast, k_splits, clusters, most);
        if (partition->clusters && partition->shared_bytes + kStaticSharedBytes <= (uint32_t)limits->shared_bytes)
            return true;
    }
    return false;
}

/* Slabs that a block's decoders walk one after another, in the longest case. */
static uint32_t slabs_in_turn(const wide_partition &c) {
    return ceil_div(c.work_items, c.clusters) * ceil_div(ceil_div(c.cols, c.k_splits), c.producers);
}

/* The one with the least slabs in turn, of as few blocks as that takes. @return whether there is one. */
static bool find_partition(const trf_device_view *view, const trf_layer_traits *traits, const trf_device_limits *limits,
                           uint32_t m, wide_partition *best) {
    if (m > 128 && fit(view, traits, limits, m, 2, 0, best))
        return true;
    bool found = fit(view, traits, limits, m, 1, 0, best);
    for (uint32_t log_k_splits = 1; m <= 128 && log_k_splits < TRF_CLUSTER_SIZES; log_k_splits++) {
        wide_partition c;
        if (fit(view, traits, limits, m, 1, log_k_splits, &c) && c.work_items <= limits->clusters[log_k_splits] &&
            c.cols >= c.k_splits && (!found || slabs_in_turn(c) < slabs_in_turn(*best))) {
            *best = c;
            found = true;
        }
    }
    return found;
}

const char *trf_wide_refuses_device(const trf_device_limits *limits) {
    if (limits->capability != 90)
        return "the device is not of compute capability 9.0";
    if (limits->missing_kernels & TRF_KERNELS_WIDE)
        return "this build has no code for architecture 9.0a";
    return NULL;
}

const char *trf_wide_refuses(const trf_device_view *view, const trf_layer_traits *traits,
                             const trf_device_limits *limits, uint32_t m, trf_dtype x_dtype) {
    const char *reason = trf_fused_refuses_layer(view, traits, x_dtype);
    if (!reason)
        reason = trf_wide_refuses_device(limits);
    if (reason)
        return reason;
    if (traits->irregular_weights)
        return "the layer has stored tiles, or rows or columns that are not multiples of 32 and 64";
    if (!trf_has_default_p(view, traits->max_frequency) || (traits->predictor_modes & TRF_PREDICT_ROW))
        return "the layer has row offsets, or an unusual frequency table";
    if (is_scaled(view))
        return "the layer has scales for groups";
    if (m > INT32_MAX || (uint64_t)view->rows * m > UINT64_MAX / 8)
        return "the layer or the batch is too large";
    wide_partition c;
    return find_partition(view, traits, limits, m, &c) ? NULL : "its streams do not fit this device's shared memory";
}

/* Room for a copy of x that is aligned. */
static uint64_t x_bytes(const trf_device_view *view, uint32_t m) { return align_256(2ull * m * view->cols); }

void trf_wide_choose(const trf_device_view *view, const trf_layer_traits *traits, const trf_device_limits *limits,
                     trf_linear_plan *plan) {
    wide_partition best = {};
    find_partition(view, traits, limits, plan->m, &best);
    plan->choice[WIDE_X_ROWS] = best.x_rows;
    plan->choice[WIDE_MULTICAST] = best.multicast;
    plan->choice[WIDE_K_SPLITS] = best.k_splits;
    plan->choice[WIDE_CLUSTERS] = best.clusters;
    plan->choice[WIDE_PRODUCERS] = best.producers;
    plan->workspace_bytes = x_bytes(view, plan->m);
    plan->epilogue_workspace_bytes = plan->workspace_bytes + align_256(4ull * plan->m * view->rows);
}

/* ---- the launch ---- */

/* The driver's function that describes a matrix to the copy engine of boxes; the runtime knows where it is. */
static cudaError_t describe_x(const void *x, uint32_t m, uint32_t cols, uint32_t x_rows, bool bf16,
                              trf_tensor_map *map) {
    static_assert(sizeof(CUtensorMap) == sizeof(trf_tensor_map), "a tensor map has 128 bytes");
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    if (status != cudaSuccess || found != cudaDriverEntryPointSuccess)
        return status != cudaSuccess ? status : cudaErrorNotSupported;
    const cuuint64_t sizes[2] = {cols, m}, strides[1] = {2ull * cols};
    const cuuint32_t box[2] = {kStageCols, x_rows}, steps[2] = {1, 1};
    CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
        reinterpret_cast<CUtensorMap *>(map), bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        2, const_cast<void *>(x), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_64B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

static trf_wide_kernel kernel_of(const trf_device_view *view, const trf_linear_plan *plan, const wide_partition &c) {
    const int class_bits = (int)view->class_bits, columns = c.x_rows <= 64 ? 64 : 128, multicast = (int)c.multicast;
    if (view->codec == TRF_CODEC_BF16 || view->codec == TRF_CODEC_FP16)
        return trf_wide_float(view->codec, class_bits, columns, multicast);
    return trf_wide_code(view->codec, class_bits, plan->x_dtype == TRF_DTYPE_BF16, columns, multicast);
}

int trf_wide_launch(const trf_device_view *view, const trf_layer_traits *traits, const trf_linear_plan *plan,
                    const void *x, void *y, const trf_epilogue *epilogue, void *workspace, trf_stream stream) {
    const uint32_t *choice = plan->choice;
    const wide_partition c = make_partition(view, traits, plan->m, choice[WIDE_X_ROWS], choice[WIDE_MULTICAST],
                                            choice[WIDE_K_SPLITS], choice[WIDE_CLUSTERS], choice[WIDE_PRODUCERS]);
    if ((uintptr_t)x % 16) {
        int status = trf_launch_pad_x(x, plan->m, view->cols, workspace, view->cols, stream);
        if (status)
            return status;
        x = workspace;
    }
    trf_wide_args args = {};
    args.f.view = *view;
    args.f.smem = c.smem;
    args.f.x = x;
    args.f.x_stride = view->cols;
    float *const sums = (float *)((uint8_t *)workspace + x_bytes(view, plan->m)); /* of an epilogue */
    args.f.y = epilogue ? sums : y;
    args.f.m = plan->m;
    args.f.y_dtype = epilogue ? TRF_DTYPE_F32 : plan->y_dtype;
    args.f.whole_rows = view->rows / TRF_SLAB_ROWS * TRF_SLAB_ROWS;
    args.cols = c.cols;
    while (1u << args.log_k_splits < c.k_splits)
        args.log_k_splits++;
    args.producers = c.producers;
    args.x_rows = c.x_rows;
    args.x_stage_bytes = c.x_stage_bytes;
    args.x_row_blocks = c.x_row_blocks;
    args.work_items = c.work_items;
    args.clusters = c.clusters;
    args.stages = c.stages;
    args.x_stages = c.x_stages;
    bool early;
    cudaError_t status = describe_x(x, plan->m, view->cols, c.x_rows, plan->x_dtype == TRF_DTYPE_BF16, &args.x_map);
    if (status == cudaSuccess)
        status = launch_kernel(
            kernel_of(view, plan, c), args,
            {c.multicast * c.k_splits * c.clusters, c.threads, c.shared_bytes, c.multicast * c.k_splits, stream},
            &early);
    if (status != cudaSuccess || !epilogue)
        return status;
    const trf_sums finished = {sums, view->rows, plan->m, view->rows};
    return trf_launch_round_sums(&finished, plan->y_dtype, y, epilogue, stream);
}
