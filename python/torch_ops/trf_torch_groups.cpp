/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_torch_groups.h"

#include "trf_torch_product.h"

#include <torch/csrc/stable/ops.h>

namespace trf_torch {

namespace {

constexpr const char *kGroupOp = "transfuse::linear_group";
constexpr const char *kExpertsOp = "transfuse::experts";
constexpr const char *kDecodeExpertsOp = "transfuse::decode_experts";

/* Whether one launch, or several, may take all of these layers. */
bool are_groupable(const std::vector<std::shared_ptr<layer>> &layers, int64_t m, trf_dtype dtype) {
    if (layers.size() < 2 || m == 0 || m > UINT32_MAX)
        return false;
    for (const auto &one : layers)
        if (!takes_dtype(one->info, dtype))
            return false;
    return true;
}

std::string matrix_text(int64_t rows, int64_t cols) {
    return "[" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
}

void check_decoding(const experts &of, int64_t count, int64_t rows, int64_t cols) {
    const trf_layer_info &info = of.layers[0]->info;
    if (static_cast<uint64_t>(count) != of.layers.size() || rows != info.rows || cols != info.cols)
        throw bad_argument(kDecodeExpertsOp, "the call is for " + std::to_string(count) + " experts of " +
                                                 matrix_text(rows, cols) + "; there are " +
                                                 std::to_string(of.layers.size()) + " of " +
                                                 matrix_text(info.rows, info.cols));
}

/* For experts that the library does not take together: one call each. */
void decode_each(const experts &of, const Tensor &weights) {
    for (size_t i = 0; i < of.layers.size(); i++)
        decode_to_rows(*of.layers[i], torch::stable::select(weights, 0, static_cast<int64_t>(i)), 0, kDecodeExpertsOp);
}

/* A view of a matrix, [rows][cols], whose elements lie in order: 8 rows of gate or up each at [turn][half], where two
 * such runs follow each other at a distance of `turn` and `half` rows. */
Tensor view_runs(const Tensor &matrix, int64_t turn, int64_t half) {
    const int64_t rows = matrix.size(0), cols = matrix.size(1);
    const int64_t sizes[] = {rows / 16, 2, 8, cols}, strides[] = {turn * cols, half * cols, cols, 1};
    AtenTensorHandle made;
    TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(matrix.get(), 4, sizes, strides, 0, &made));
    return Tensor(made);
}

/* Rows of gate and up in turns go back to halves, one expert at a time. */
void decode_interleaved(const experts &of, const Tensor &weights) {
    const trf_layer_info &info = of.layers[0]->info;
    const Tensor scratch = allocate({info.rows, info.cols}, dtype_of(info.dtype).torch_dtype, of.layers[0]->device);
    const Tensor from = view_runs(scratch, 16, 8);
    for (size_t i = 0; i < of.layers.size(); i++) {
        decode_to_rows(*of.layers[i], scratch, 0, kDecodeExpertsOp);
        const Tensor to = view_runs(torch::stable::select(weights, 0, static_cast<int64_t>(i)), 8, info.rows / 2);
        TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(to.get(), from.get(), 0));
    }
}

/* Decodes the experts to weights, [count][rows][cols] of their own dtype, each matrix contiguous. */
void decode_all(const experts &of, const Tensor &weights, int device) {
    const trf_layer_info &info = of.layers[0]->info;
    const uint64_t value_bytes = trf_dtype_bytes(info.dtype), others = of.layers.size() - 1;
    const uint64_t bytes = static_cast<uint64_t>(info.rows) * info.cols * value_bytes;
    if (of.combined == combination::interleaved_experts)
        return decode_interleaved(of, weights);
    if (!of.handle)
        return decode_each(of, weights);
    const uint64_t stride = others ? static_cast<uint64_t>(weights.stride(0)) * value_bytes : bytes;
    trf_error error;
    check_status(trf_experts_decode(of.handle, TRF_DECODE_SOURCE, weights.mutable_data_ptr(), stride,
                                    others * stride + bytes, current_stream(device), &error),
                 error, kDecodeExpertsOp);
}

} // namespace

std::shared_ptr<experts> find_or_adopt_experts(const Tensor &container, int device, const char *op) {
    const void *const at = container.const_data_ptr();
    const uint64_t bytes = static_cast<uint64_t>(container.numel());
    std::shared_ptr<experts> found = find_experts(device, at, bytes);
    if (!found) {
        adopt_missing(container, device, op);
        found = find_experts(device, at, bytes);
    }
    if (!found && find_layer(device, at, bytes).layer)
        throw bad_argument(op, "this is the buffer of a layer, and no container of experts");
    if (!found)
        throw adoption_failure(op);
    if (found->assembled_rows)
        throw bad_argument(op, found->refusal.message);
    return found;
}

std::vector<Tensor> multiply_group(const Tensor &x, const std::vector<Tensor> &buffers,
                                   const std::vector<int64_t> &rows) {
    const int device = device_of(x, "x");
    if (buffers.size() != rows.size())
        throw bad_argument(kGroupOp, std::to_string(buffers.size()) + " buffers, but " + std::to_string(rows.size()) +
                                         " numbers of rows");
    const int64_t dims = x.dim(), cols = dims ? x.size(dims - 1) : 0;
    const int64_t m = cols ? x.numel() / cols : 0;
    const dtype_codes dtype = dtype_of(x);
    std::vector<std::shared_ptr<layer>> layers;
    for (size_t i = 0; i < buffers.size(); i++) {
        check_buffer(buffers[i], device, kGroupOp);
        layers.push_back(find_or_adopt(buffers[i], device, kGroupOp).layer);
        check_layer(*layers[i], rows[i], cols, kGroupOp);
    }
    std::vector<Tensor> y;
    std::shared_ptr<group> together;
    if (are_groupable(layers, m, dtype.dtype))
        together = find_or_make_group(layers, static_cast<uint32_t>(m), dtype.dtype, 0, kGroupOp);
    if (!together || !together->handle) {
        for (size_t i = 0; i < buffers.size(); i++)
            y.push_back(multiply({kGroupOp, x, buffers[i], rows[i], std::nullopt, std::nullopt, std::nullopt}));
        return y;
    }
    const Tensor ordered = in_order(x);
    const auto x_sizes = x.sizes();
    std::vector<int64_t> sizes(x_sizes.begin(), x_sizes.end());
    std::vector<const void *> x_at(buffers.size(), ordered.const_data_ptr());
    std::vector<void *> y_at;
    for (const int64_t count : rows) {
        sizes.back() = count;
        y.push_back(allocate(sizes, dtype.torch_dtype, device));
        y_at.push_back(y.back().mutable_data_ptr());
    }
    const workspace scratch(together->workspace_bytes, device);
    trf_error error;
    check_status(
        trf_linear_group(together->handle, x_at.data(), y_at.data(), scratch.at(), current_stream(device), &error),
        error, kGroupOp);
    return y;
}

Tensor multiply_experts(const Tensor &x, const Tensor &offsets, const Tensor &container, int64_t rows) {
    const int device = device_of(x, "x");
    check_buffer(container, device, kExpertsOp);
    const std::shared_ptr<experts> of = find_or_adopt_experts(container, device, kExpertsOp);
    const trf_layer_info &info = of->layers[0]->info;
    const dtype_codes dtype = dtype_of(x);
    if (of->combined == combination::interleaved_experts)
        throw bad_argument(kExpertsOp,
                           "rows of gate and up are interleaved in this container; transfuse::moe takes it");
    if (x.dim() != 2 || x.size(1) != info.cols || rows != info.rows)
        throw bad_argument(kExpertsOp, "x has the shape " + shape_text(x) + ", and the call is for " +
                                           std::to_string(rows) + " rows; experts are " +
                                           matrix_text(info.rows, info.cols));
    int32_t offsets_dtype;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(offsets.get(), &offsets_dtype));
    if (offsets_dtype != aoti_torch_dtype_int32() || offsets.dim() != 1 || !offsets.is_contiguous() ||
        static_cast<uint64_t>(offsets.size(0)) != of->layers.size() + 1 || device_of(offsets, "offsets") != device)
        throw bad_argument(kExpertsOp, "offsets must be contiguous int32 [" + std::to_string(of->layers.size() + 1) +
                                           "] on x's device; its shape is " + shape_text(offsets));
    if (!takes_dtype(info, dtype.dtype))
        throw bad_argument(kExpertsOp, std::string("weights of codec ") + trf_codec_name(info.codec) +
                                           " do not multiply this dtype of x; decode_experts gives them in any");
    const int64_t tokens = x.size(0);
    const Tensor y = allocate({tokens, rows}, dtype.torch_dtype, device);
    if (tokens == 0)
        return y;
    if (tokens > INT32_MAX)
        throw bad_argument(kExpertsOp, "x has " + std::to_string(tokens) + " rows, which is too many");
    const std::shared_ptr<experts_plan> plan =
        find_or_make_plan(of, {static_cast<uint32_t>(tokens), dtype.dtype}, kExpertsOp);
    const Tensor ordered = in_order(x);
    const workspace scratch(plan->workspace_bytes, device);
    trf_error error;
    check_status(trf_experts_linear(plan->handle, ordered.const_data_ptr(),
                                    static_cast<const uint32_t *>(offsets.const_data_ptr()), y.mutable_data_ptr(),
                                    scratch.at(), current_stream(device), &error),
                 error, kExpertsOp);
    return y;
}

Tensor decode_experts(const expert_decode_request &of) {
    const int device = device_of(of.container, "container");
    check_buffer(of.container, device, kDecodeExpertsOp);
    const std::shared_ptr<experts> found = find_or_adopt_experts(of.container, device, kDecodeExpertsOp);
    check_decoding(*found, of.count, of.rows, of.cols);
    const dtype_codes source = dtype_of(found->layers[0]->info.dtype);
    const Tensor weights = allocate({of.count, of.rows, of.cols}, source.torch_dtype, device);
    decode_all(*found, weights, device);
    const int32_t wanted = torch_dtype_of(of.dtype);
    return wanted == source.torch_dtype ? weights : to_dtype(weights, wanted);
}

void decode_experts_into(const Tensor &container, const Tensor &out) {
    const int device = device_of(container, "container");
    check_buffer(container, device, kDecodeExpertsOp);
    const std::shared_ptr<experts> found = find_or_adopt_experts(container, device, kDecodeExpertsOp);
    if (out.dim() != 3 || out.stride(2) != 1 || out.stride(1) != out.size(2) || device_of(out, "out") != device ||
        dtype_of(out).dtype != found->layers[0]->info.dtype)
        throw bad_argument(kDecodeExpertsOp,
                           "out must be [experts][rows][cols] on the device of container, of the dtype of "
                           "the weights, each matrix contiguous; its shape is " +
                               shape_text(out));
    check_decoding(*found, out.size(0), out.size(1), out.size(2));
    // Some containers are decoded expert by expert, and one would overwrite another without a word.
    if (out.size(0) > 1 && out.stride(0) < out.size(1) * out.size(2))
        throw bad_argument(kDecodeExpertsOp,
                           "matrices of out overlap: they have " + std::to_string(out.size(1) * out.size(2)) +
                               " elements each, and begin " + std::to_string(out.stride(0)) + " apart");
    decode_all(*found, out, device);
}

} // namespace trf_torch
