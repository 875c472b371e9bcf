/* SPDX-License-Identifier: Apache-2.0 */
/* What the ops need of torch, by its stable ABI: where a tensor lies and of what dtype it is, allocations, the current
 * stream, calls of other ops, and how failures become exceptions. Every torch hands std::out_of_range to Python as
 * IndexError; std::invalid_argument becomes ValueError or RuntimeError, depending on torch, and is not used. */
#ifndef TRF_TORCH_TENSOR_H
#define TRF_TORCH_TENSOR_H

#include "transfuse.h"

#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace trf_torch {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

/* How transfuse and torch name dtypes; `torch_dtype` is the code of the stable ABI's functions. */
struct dtype_codes {
    trf_dtype dtype; /* NONE: one that transfuse does not know */
    int32_t torch_dtype;
};

dtype_codes dtype_of(const Tensor &tensor);
dtype_codes dtype_of(trf_dtype dtype);

/* @return a text such as "[2, 3, 64]". */
std::string shape_text(const Tensor &tensor);

/* @return the CUDA ordinal of the tensor's device, or TRF_DEVICE_CPU. Throws for tensors on any other device. */
int device_of(const Tensor &tensor, const char *what);

/* @return what it is for people: "cpu", "cuda:1". */
std::string device_text(int device);

/* Uninitialized, contiguous, allocated by torch, in device memory. */
Tensor allocate(const std::vector<int64_t> &sizes, int32_t torch_dtype, int device);

/* Memory that a call of the library needs while it runs, 256-byte aligned, which torch aligns on GPUs alone. Work that
 * was given to a stream may still use it afterwards, as it may any tensor of torch's. */
class workspace {
  public:
    workspace(uint64_t bytes, int device);
    void *at() const { return at_; }

  private:
    std::optional<Tensor> memory_;
    void *at_ = nullptr; /* NULL for no bytes */
};

/* @return the tensor, or a copy of it whose elements lie in order. */
Tensor in_order(const Tensor &tensor);

/* aten's own: the tensor in another dtype, and F.linear. */
Tensor to_dtype(const Tensor &tensor, int32_t torch_dtype);
Tensor dense_linear(const Tensor &x, const Tensor &weight, const std::optional<Tensor> &bias);

/* @return the stream that torch gives work to on a device; NULL on the CPU. */
trf_stream current_stream(int device);

/* @return whether that stream's work is being captured in a CUDA graph. */
bool is_capturing(int device);

/* Throws what a call of the library reported, if it failed. op: its name, to begin the message with. */
void check_status(trf_status status, const trf_error &error, const char *op);

} // namespace trf_torch

#endif
