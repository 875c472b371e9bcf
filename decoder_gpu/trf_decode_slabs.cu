/* Which kernel decodes a layer's regular slabs, with how many warps and how large a table; and its launch. */
#include "trf_decode_launch.h"
#include "trf_decode_slabs.cuh"
#include "trf_kernel_limits.cuh"

#include <algorithm>

namespace {

struct geometry {
    bool default_p, gathers;
    uint32_t warps, table_log;
};

bool fits(const trf_device_view *view, const trf_layer_traits *traits, const geometry &chosen, int shared_bytes,
          trf_smem_layout *smem) {
    *smem = trf_smem_layout_of(view->raw_bits, traits->max_rans_bytes, chosen.warps, 1, chosen.table_log, 0,
                               chosen.gathers ? TRF_GATHER_BYTES : 0, kRing);
    return (int)smem->total + TRF_STATIC_SMEM_BYTES <= shared_bytes;
}

/* What a layer takes; 1 is what memory takes for the gathered weights of a slab of 256 columns a multiprocessor (0.96
 * us on an H200, where this was measured: docs/performance.md). A warp has such a slab for 10.5 at least. At the end,
 * when the last slabs are there, memory stands still for 2.2. */
double gathered_time(const trf_device_view *view, uint32_t slabs, uint32_t multiprocessors, uint32_t warps) {
    const uint32_t warps_in_all = multiprocessors * warps, most = (slabs + warps_in_all - 1) / warps_in_all;
    return most * std::max((double)warps, 10.5) * view->slab_cols / TRF_TILE_SIZE + 2.2;
}

double plain_time(const trf_device_view *view, uint32_t slabs, uint32_t multiprocessors) {
    return 1.14 * slabs / multiprocessors * view->slab_cols / TRF_TILE_SIZE;
}

/* The number of warps that gather, or 0 where the layer takes no less time so. */
uint32_t gathering_warps(const trf_device_view *view, const trf_layer_traits *traits, uint32_t slabs,
                         uint32_t multiprocessors, int shared_bytes) {
    uint32_t best = 0;
    double least = plain_time(view, slabs, multiprocessors);
    trf_smem_layout smem;
    for (uint32_t warps = kMaxStoreWarps; warps >= 8; warps--) {
        if (!fits(view, traits, {true, true, warps, kSmallTableLog}, shared_bytes, &smem))
            continue;
        const double time = gathered_time(view, slabs, multiprocessors, warps);
        if (time < least) {
            least = time;
            best = warps;
        }
    }
    return best;
}

/* The first that fits, best first. table_log: of the kernel for a usual p. @return whether one does. */
bool find_geometry(const trf_device_view *view, const trf_layer_traits *traits, uint32_t gathering, uint32_t table_log,
                   int shared_bytes, geometry *found, trf_smem_layout *smem) {
    *found = {true, gathering != 0, gathering ? gathering : kMaxStoreWarps, table_log};
    if (trf_has_default_p(view, traits->max_frequency) && fits(view, traits, *found, shared_bytes, smem))
        return true;
    *found = {false, false, kMaxStoreWarps, kTableLog};
    for (found->warps = kMaxStoreWarps; found->warps >= 4; found->warps /= 2)
        for (found->table_log = kTableLog; found->table_log >= view->probability_bits + 4; found->table_log--)
            if (fits(view, traits, *found, shared_bytes, smem))
                return true;
    return false;
}

trf_store_kernel kernel_of(const trf_device_view *view, trf_store_format format, bool default_p) {
    const uint32_t bytes = trf_store_bytes(format);
    switch (view->codec) {
    case TRF_CODEC_BF16:
        return trf_store_kernel_bf16(view->class_bits, bytes, default_p);
    case TRF_CODEC_FP16:
        return trf_store_kernel_fp16(view->class_bits, default_p);
    case TRF_CODEC_INT:
        return trf_store_kernel_int(view->class_bits, bytes, default_p);
    default:
        return trf_store_kernel_fp8(view->codec, view->class_bits, bytes, default_p);
    }
}

/* Codes of more than 8 bits do not fit the bytes that quads are built in. */
bool has_kernel(const trf_device_view *view, trf_store_format format) {
    return format != TRF_STORE_NONE && (view->codec != TRF_CODEC_INT || view->class_bits + view->raw_bits <= 8);
}

int launch(trf_store_kernel kernel, const trf_store_args &args, uint32_t warps, int multiprocessors,
           trf_stream stream) {
    cudaFuncAttributes attributes = {};
    cudaError_t error = trf_allow_all_shared((const void *)kernel, &attributes);
    if (error != cudaSuccess)
        return error;
    kernel<<<multiprocessors, warps * TRF_LANES, args.smem.total, stream>>>(args);
    return cudaGetLastError();
}

} // namespace

int trf_launch_decode_slabs(const trf_device_view *view, const trf_layer_traits *traits, trf_decode_as as,
                            void *weights, trf_stream stream) {
    trf_store_args args = {};
    args.regular_cols = trf_regular_slab_cols(view);
    args.slabs = view->rows / TRF_SLAB_ROWS * args.regular_cols;
    if (args.slabs == 0)
        return cudaSuccess;
    int device, multiprocessors, shared_bytes;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess)
        return error;
    geometry chosen;
    args.format = trf_store_format_of(view, as);
    const uint32_t bytes = trf_store_bytes(args.format), vector_bytes = bytes == 1 ? 8 : 16;
    const bool aligned = (uint64_t)view->cols * bytes % vector_bytes == 0 && (uintptr_t)weights % vector_bytes == 0;
    const uint32_t gathering = aligned && trf_may_gather(view->codec, bytes)
                                   ? gathering_warps(view, traits, args.slabs, multiprocessors, shared_bytes)
                                   : 0;
    if (!has_kernel(view, args.format) ||
        !find_geometry(view, traits, gathering, trf_store_table_log(view->codec, bytes), shared_bytes, &chosen,
                       &args.smem))
        return trf_launch_decode_slabs_general(view, as, weights, stream);
    args.view = *view;
    args.weights = weights;
    args.as = as;
    args.method = chosen.gathers ? TRF_STORE_GATHERED : aligned ? TRF_STORE_VECTOR : TRF_STORE_SCALAR;
    return launch(kernel_of(view, args.format, chosen.default_p), args, chosen.warps, multiprocessors, stream);
}
