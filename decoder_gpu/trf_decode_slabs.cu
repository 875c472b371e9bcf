/* SPDX-License-Identifier: Apache-2.0 */
/* Launches the kernel that decodes a layer's regular slabs, as trf_choose_decode_kernel chooses it. */
#include "trf_decode_launch.h"
#include "trf_decode_slabs.cuh"
#include "trf_kernel_smem.cuh"

namespace {

trf_write_kernel kernel_of(const trf_device_view *view, trf_write_format format, bool default_p) {
    const uint32_t bytes = trf_write_format_bytes(format);
    if (trf_is_scaled_fp8(view->codec, view->source_dtype))
        return trf_write_kernel_scaled_fp8(view->class_bits, default_p);
    switch (view->codec) {
    case TRF_CODEC_BF16:
        return trf_write_kernel_bf16(view->class_bits, bytes, default_p);
    case TRF_CODEC_FP16:
        return trf_write_kernel_fp16(view->class_bits, default_p);
    case TRF_CODEC_INT:
        return trf_write_kernel_int(view->class_bits, bytes, default_p);
    default:
        return trf_write_kernel_fp8(view->codec, view->class_bits, bytes, default_p);
    }
}

int launch(trf_write_kernel kernel, const trf_write_args &args, uint32_t warps, int multiprocessors,
           trf_stream stream) {
    cudaFuncAttributes attributes = {};
    cudaError_t error = trf_allow_all_shared((const void *)kernel, &attributes);
    if (error != cudaSuccess)
        return error;
    kernel<<<multiprocessors, warps * TRF_LANES, args.call.smem.total, stream>>>(args);
    return cudaGetLastError();
}

} // namespace

int trf_launch_decode_slabs(const trf_device_view *view, const trf_layer_traits *traits, trf_decode_as as,
                            void *weights, trf_stream stream) {
    trf_decode_request request = {};
    request.regular_slabs = trf_regular_slabs(view);
    request.matrices = 1;
    if (request.regular_slabs == 0)
        return cudaSuccess;
    int device, multiprocessors;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&request.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess)
        return error;
    request.multiprocessors = (uint32_t)multiprocessors;
    request.format = trf_write_format_of(view, as);
    request.aligned = trf_rows_are_aligned(view, request.format, (uintptr_t)weights);
    trf_decode_choice chosen;
    if (!trf_choose_decode_kernel(view, traits, &request, &chosen))
        return trf_launch_decode_slabs_as_edges(view, as, weights, stream);
    const trf_write_args args = {*view, trf_write_call_of(view, as, &chosen), weights};
    return launch(kernel_of(view, request.format, chosen.default_p), args, chosen.warps, multiprocessors, stream);
}
