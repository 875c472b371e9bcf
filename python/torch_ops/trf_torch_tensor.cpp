/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_torch_tensor.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <dlfcn.h>

#include <stdexcept>

namespace trf_torch {

namespace {

using stream_function = AOTITorchError (*)(int32_t device_index, void **stream);
using capture_function = int (*)(void *stream, int *status); // cuStreamIsCapturing

/* A function of a library that the process has loaded; of CUDA's parts of torch, which a build of torch for the CPU
 * does not have. */
void *find_loaded(const char *library, const char *name) {
    void *const handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    void *const function = handle ? dlsym(handle, name) : nullptr;
    if (!function)
        throw std::runtime_error(std::string("transfuse: a CUDA tensor, but there is no ") + name + " in " + library +
                                 " of this process");
    return function;
}

} // namespace

dtype_codes dtype_of(const Tensor &tensor) {
    int32_t code;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &code));
    for (int dtype = TRF_DTYPE_F32; dtype <= TRF_DTYPE_I8; dtype++)
        if (dtype_of(static_cast<trf_dtype>(dtype)).torch_dtype == code)
            return {static_cast<trf_dtype>(dtype), code};
    return {TRF_DTYPE_NONE, code};
}

dtype_codes dtype_of(trf_dtype dtype) {
    switch (dtype) {
    case TRF_DTYPE_F32:
        return {dtype, aoti_torch_dtype_float32()};
    case TRF_DTYPE_F16:
        return {dtype, aoti_torch_dtype_float16()};
    case TRF_DTYPE_BF16:
        return {dtype, aoti_torch_dtype_bfloat16()};
    case TRF_DTYPE_F8_E4M3:
        return {dtype, aoti_torch_dtype_float8_e4m3fn()};
    case TRF_DTYPE_F8_E5M2:
        return {dtype, aoti_torch_dtype_float8_e5m2()};
    case TRF_DTYPE_I8:
        return {dtype, aoti_torch_dtype_int8()};
    case TRF_DTYPE_NONE:
        break;
    }
    throw std::runtime_error("transfuse: a dtype that torch has no name for");
}

std::string shape_text(const Tensor &tensor) {
    std::string text = "[";
    for (int64_t i = 0; i < tensor.dim(); i++)
        text += (i ? ", " : "") + std::to_string(tensor.size(i));
    return text + "]";
}

int device_of(const Tensor &tensor, const char *what) {
    if (tensor.is_cuda())
        return tensor.get_device_index();
    if (!tensor.is_cpu())
        throw std::runtime_error(std::string("transfuse: ") + what + " is neither on the CPU nor on a CUDA device");
    return TRF_DEVICE_CPU;
}

std::string device_text(int device) { return device == TRF_DEVICE_CPU ? "cpu" : "cuda:" + std::to_string(device); }

Tensor allocate(const std::vector<int64_t> &sizes, int32_t torch_dtype, int device) {
    const bool on_cpu = device == TRF_DEVICE_CPU;
    std::vector<int64_t> strides(sizes.size());
    int64_t elements = 1;
    for (size_t i = sizes.size(); i-- > 0; elements *= sizes[i] > 0 ? sizes[i] : 1)
        strides[i] = elements;
    AtenTensorHandle made;
    if (aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), torch_dtype,
                                 on_cpu ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda(),
                                 on_cpu ? 0 : device, &made) != TORCH_SUCCESS)
        // The beginning is the one of torch's own message, by which programs know it.
        throw std::runtime_error(
            std::string(on_cpu ? "" : "CUDA out of memory. ") + "transfuse could not allocate " +
            std::to_string(static_cast<uint64_t>(elements) * aoti_torch_dtype_element_size(torch_dtype)) +
            " bytes on " + device_text(device));
    return Tensor(made);
}

workspace::workspace(uint64_t bytes, int device) {
    if (!bytes)
        return;
    const uint64_t alignment = 256;
    memory_ = allocate({static_cast<int64_t>(bytes + (device == TRF_DEVICE_CPU ? alignment - 1 : 0))},
                       aoti_torch_dtype_uint8(), device);
    const uintptr_t first = reinterpret_cast<uintptr_t>(memory_->mutable_data_ptr());
    at_ = reinterpret_cast<void *>((first + alignment - 1) / alignment * alignment);
}

Tensor in_order(const Tensor &tensor) { return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor); }

Tensor to_dtype(const Tensor &tensor, int32_t torch_dtype) {
    int32_t device_type, device_index;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &device_type));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor.get(), &device_index));
    const bool on_cpu = tensor.is_cpu();
    const auto sizes = tensor.sizes();
    Tensor made =
        allocate(std::vector<int64_t>(sizes.begin(), sizes.end()), torch_dtype, on_cpu ? TRF_DEVICE_CPU : device_index);
    TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(made.get(), tensor.get(), 0));
    return made;
}

Tensor dense_linear(const Tensor &x, const Tensor &weight, const std::optional<Tensor> &bias) {
    using torch::stable::detail::from;
    StableIValue stack[3] = {from(x), from(weight), from(bias)};
    TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::linear", "", stack, TORCH_ABI_VERSION));
    return torch::stable::detail::to<Tensor>(stack[0]);
}

trf_stream current_stream(int device) {
    if (device == TRF_DEVICE_CPU)
        return nullptr;
    static const auto current =
        reinterpret_cast<stream_function>(find_loaded("libtorch_cuda.so", "aoti_torch_get_current_cuda_stream"));
    void *stream;
    TORCH_ERROR_CODE_CHECK(current(device, &stream));
    return static_cast<trf_stream>(stream);
}

bool is_capturing(int device) {
    if (device == TRF_DEVICE_CPU)
        return false;
    static const auto query = reinterpret_cast<capture_function>(find_loaded("libcuda.so.1", "cuStreamIsCapturing"));
    // What the default stream gives if another one that waits for it is captured: cudaErrorStreamCaptureImplicit.
    constexpr int kImplicit = 906;
    int status = 0;
    const int error = query(current_stream(device), &status);
    return error == kImplicit || (error == 0 && status != 0);
}

void check_status(trf_status status, const trf_error &error, const char *op) {
    if (status == TRF_OK)
        return;
    throw std::runtime_error(std::string(op) + ": " + error.message + " [" + trf_status_name(status) + "]");
}

} // namespace trf_torch
