/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_torch_product.h"

#include "transfuse/device_memory.h"
#include "trf_torch_manage.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>

namespace trf_torch {

std::runtime_error bad_argument(const char *op, const std::string &text) {
    return std::runtime_error(std::string(op) + ": " + text);
}

void check_buffer(const Tensor &buffer, int device, const char *op) {
    int32_t dtype;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(buffer.get(), &dtype));
    if (dtype != aoti_torch_dtype_uint8() || buffer.dim() != 1 || !buffer.is_contiguous())
        throw bad_argument(op, "buffer must be a contiguous uint8 tensor of one dimension, not one of shape " +
                                   shape_text(buffer));
    const int own = device_of(buffer, "buffer");
    if (own != device)
        throw bad_argument(op, "x is on " + device_text(device) + ", buffer is on " + device_text(own));
}

static void check_shape(int64_t own_rows, int64_t own_cols, int64_t rows, int64_t cols, const char *op) {
    if (rows != own_rows || cols != own_cols)
        throw bad_argument(op, "the call is for weights of [" + std::to_string(rows) + ", " + std::to_string(cols) +
                                   "]; the layer has [" + std::to_string(own_rows) + ", " + std::to_string(own_cols) +
                                   "]");
}

void check_layer(const layer &of, int64_t rows, int64_t cols, const char *op) {
    check_shape(of.info.rows, of.info.cols, rows, cols, op);
}

bool takes_dtype(const trf_layer_info &info, trf_dtype dtype) {
    if (dtype == TRF_DTYPE_BF16)
        return info.codec != TRF_CODEC_FP16;
    /* BF16 that is coded as FP8 with scales is BF16 in products. */
    const bool is_bf16 = info.codec == TRF_CODEC_BF16 || (info.codec == TRF_CODEC_E4M3 && info.dtype == TRF_DTYPE_BF16);
    return dtype == TRF_DTYPE_F16 && !is_bf16;
}

int32_t torch_dtype_of(ScalarType dtype) {
    return torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
}

namespace {

/* An operand of the epilogue, in order. */
std::optional<Tensor> take_operand(const std::optional<Tensor> &operand, const product &of,
                                   const std::vector<int64_t> &sizes, const char *name) {
    if (!operand)
        return std::nullopt;
    int32_t own, wanted;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(operand->get(), &own));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(of.x.get(), &wanted));
    if (own != wanted)
        throw bad_argument(of.op, std::string(name) + " must be of x's dtype");
    if (device_of(*operand, name) != device_of(of.x, "x"))
        throw bad_argument(of.op, std::string(name) + " must be on x's device");
    const auto found = operand->sizes();
    if (found.size() != sizes.size() || std::memcmp(found.data(), sizes.data(), sizes.size() * sizeof sizes[0]) != 0) {
        std::string text;
        for (const int64_t size : sizes)
            text += (text.empty() ? "" : ", ") + std::to_string(size);
        throw bad_argument(of.op, std::string(name) + " has the shape " + shape_text(*operand) + "; it must be [" +
                                      text + "]");
    }
    return in_order(*operand);
}

Tensor call_aten(const char *name, const char *overload, std::vector<StableIValue> stack) {
    TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION));
    return torch::stable::detail::to<Tensor>(stack[0]);
}

/* The same by torch's own product, on weights decoded to x's dtype, rounding after each step as a model does that has
 * them uncompressed. */
Tensor multiply_dense(const product &of, int64_t cols) {
    using torch::stable::detail::from;
    const Tensor weight = decode({of.op, of.buffer, of.rows, cols, of.x.scalar_type(), of.named_by});
    Tensor y = dense_linear(of.x, weight, of.bias);
    if (of.activation == TRF_ACTIVATION_SILU)
        y = call_aten("aten::silu", "", {from(y)});
    else if (of.activation == TRF_ACTIVATION_GELU)
        y = call_aten("aten::gelu", "", {from(y), from(std::string("none"))});
    else if (of.activation == TRF_ACTIVATION_GELU_TANH)
        y = call_aten("aten::gelu", "", {from(y), from(std::string("tanh"))});
    else if (of.activation != TRF_ACTIVATION_NONE)
        throw bad_argument(of.op, "an activation that is not known");
    if (of.multiplier)
        y = call_aten("aten::mul", "Tensor", {from(y), from(*of.multiplier)});
    if (of.residual) // the stable ABI has no call of aten::add, whose alpha is a Scalar
        y = torch::stable::subtract(y, *of.residual, -1.0);
    return y;
}

uint32_t id_bytes_of(const Tensor &ids, const char *op) {
    int32_t dtype;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(ids.get(), &dtype));
    if (dtype == aoti_torch_dtype_int64())
        return 8;
    if (dtype == aoti_torch_dtype_int32())
        return 4;
    throw bad_argument(op, "ids must be int32 or int64");
}

/* @return how many there are. On the CPU they are looked at; on a GPU, whose memory is not read back, rows that there
 * are not become NaN. ids: contiguous. */
uint32_t check_ids(const Tensor &ids, int device, const decode_request &of) {
    const int64_t count = ids.numel();
    if (count > UINT32_MAX)
        throw bad_argument(of.op, std::to_string(count) + " ids are more than 2^32 - 1");
    if (device != TRF_DEVICE_CPU)
        return static_cast<uint32_t>(count);
    const bool is_long = id_bytes_of(ids, of.op) == 8;
    const void *const at = ids.const_data_ptr();
    for (int64_t i = 0; i < count; i++) {
        const int64_t id = is_long ? static_cast<const int64_t *>(at)[i] : static_cast<const int32_t *>(at)[i];
        if (id < 0 || id >= of.rows)
            throw std::out_of_range(std::string(of.op) + ": there is no row " + std::to_string(id) + "; there are " +
                                    std::to_string(of.rows));
    }
    return static_cast<uint32_t>(count);
}

std::atomic<bool> exact_mode{false};

/* Nothing can be adopted of bytes that are a part of a buffer. */
found_layer find_by_key(const Tensor &layer_key, int device, const char *op, const plan_key *key) {
    if (layer_key.numel() != kKeyBytes)
        throw bad_argument(op, "a key has " + std::to_string(kKeyBytes) + " bytes, this tensor has " +
                                   std::to_string(layer_key.numel()));
    found_layer found = find_layer(device, layer_key.const_data_ptr(), kAnyBytes, key);
    if (found.layer)
        return found;
    found.assembled = find_experts(device, layer_key.const_data_ptr(), kAnyBytes);
    if (found.assembled && !found.assembled->assembled_rows)
        throw bad_argument(op, "this key is of a container of experts, which transfuse::moe_by_key takes");
    if (!found.assembled)
        throw bad_argument(op, "this key is of no layer that is known: its buffer was moved, freed or forgotten, or "
                               "the key was copied; transfuse.torch.layer_key gives the one of a buffer");
    return found;
}

void check_found(const found_layer &found, int64_t rows, int64_t cols, const char *op) {
    if (found.assembled)
        check_shape(static_cast<int64_t>(found.assembled->assembled_rows), found.assembled->layers[0]->info.cols, rows,
                    cols, op);
    else
        check_layer(*found.layer, rows, cols, op);
}

bool has_integers(const dtype_codes &dtype) {
    for (const int32_t code : {aoti_torch_dtype_bool(), aoti_torch_dtype_int8(), aoti_torch_dtype_int16(),
                               aoti_torch_dtype_int32(), aoti_torch_dtype_int64(), aoti_torch_dtype_uint8(),
                               aoti_torch_dtype_uint16(), aoti_torch_dtype_uint32(), aoti_torch_dtype_uint64()})
        if (dtype.torch_dtype == code)
            return true;
    return false;
}

bool is_dense_by_key(const product &of) { return of.named_by == naming::key && is_exact(); }

/* The same in shared launches, where the library has any for these layers. @return whether it has. */
bool multiply_together(const product &of, const experts &assembled, const Tensor &x, const Tensor &y,
                       const plan_key &key, int device) {
    const auto dtype = static_cast<trf_dtype>(key.dtype);
    const std::shared_ptr<group> together = find_or_make_group(assembled.layers, key.m, dtype, key.y_stride, of.op);
    if (!together->handle)
        return false;
    const std::vector<const void *> x_at(assembled.layers.size(), x.const_data_ptr());
    std::vector<void *> y_at;
    uint64_t row = 0;
    for (const auto &one : assembled.layers) {
        y_at.push_back(static_cast<uint8_t *>(y.mutable_data_ptr()) + row * trf_dtype_bytes(dtype));
        row += one->info.rows;
    }
    const workspace scratch(together->workspace_bytes, device);
    trf_error error;
    check_status(
        trf_linear_group(together->handle, x_at.data(), y_at.data(), scratch.at(), current_stream(device), &error),
        error, of.op);
    return true;
}

/* Each layer writes its columns of y. bias: in order. */
Tensor multiply_assembled(const product &of, const experts &assembled, const std::vector<int64_t> &y_sizes,
                          const dtype_codes &dtype, plan_key key, int device) {
    key.y_stride = static_cast<uint32_t>(assembled.assembled_rows);
    std::vector<std::shared_ptr<plan>> plans;
    uint64_t workspace_bytes = 0;
    for (const auto &one : assembled.layers) {
        if (!takes_dtype(one->info, dtype.dtype))
            return multiply_dense(of, one->info.cols);
        plans.push_back(find_or_make_plan(one, key, of.op));
        if (!plans.back()->handle)
            return multiply_dense(of, one->info.cols);
        workspace_bytes = std::max(workspace_bytes, plans.back()->workspace_bytes);
    }
    const Tensor x = in_order(of.x);
    const Tensor y = allocate(y_sizes, dtype.torch_dtype, device);
    if (!of.bias && key.m <= TRF_FUSED_MAX_M && multiply_together(of, assembled, x, y, key, device))
        return y;
    const workspace scratch(workspace_bytes, device);
    uint64_t offset = 0; // bytes of y's row, and of bias
    for (size_t i = 0; i < plans.size(); i++) {
        trf_operands operands;
        trf_operands_init(&operands);
        operands.x = x.const_data_ptr();
        operands.y = static_cast<uint8_t *>(y.mutable_data_ptr()) + offset;
        operands.bias = of.bias ? static_cast<const uint8_t *>(of.bias->const_data_ptr()) + offset : nullptr;
        trf_error error;
        const trf_status status = trf_linear(plans[i]->handle, &operands, scratch.at(), current_stream(device), &error);
        check_status(status, error, of.op);
        offset += assembled.layers[i]->info.rows * trf_dtype_bytes(dtype.dtype);
    }
    return y;
}

} // namespace

void adopt_missing(const Tensor &buffer, int device, const char *op) {
    if (is_capturing(device))
        throw std::runtime_error(std::string(op) +
                                 ": this buffer is used for the first time while a CUDA graph is being "
                                 "captured; call transfuse.torch.adopt on it before");
    StableIValue stack[1] = {torch::stable::detail::from(buffer)};
    TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("transfuse::adopt", "", stack, TORCH_ABI_VERSION));
}

std::runtime_error adoption_failure(const char *op) {
    return std::runtime_error(std::string(op) + ": " + take_adoption_error());
}

void set_exact(bool exact) { exact_mode.store(exact, std::memory_order_relaxed); }

bool is_exact() { return exact_mode.load(std::memory_order_relaxed); }

found_layer find_or_adopt(const Tensor &buffer, int device, const char *op, const plan_key *key, naming named_by) {
    const void *const at = buffer.const_data_ptr();
    const uint64_t bytes = static_cast<uint64_t>(buffer.numel());
    if (named_by == naming::key)
        return find_by_key(buffer, device, op, key);
    found_layer found = find_layer(device, at, bytes, key);
    if (found.layer)
        return found;
    adopt_missing(buffer, device, op);
    found = find_layer(device, at, bytes, key);
    if (!found.layer && find_experts(device, at, bytes))
        throw bad_argument(op,
                           "this is a container of several layers, and no buffer of one; experts, moe and "
                           "decode_experts take containers of experts, and ops by key what load_assembled returned");
    if (!found.layer)
        throw adoption_failure(op);
    return found;
}

Tensor multiply(product of) {
    const int device = device_of(of.x, "x");
    check_buffer(of.buffer, device, of.op);
    const auto x_sizes = of.x.sizes();
    if (x_sizes.size() == 0)
        throw bad_argument(of.op, "x has no dimensions; it must be [..., cols]");
    const int64_t cols = x_sizes[x_sizes.size() - 1];
    std::vector<int64_t> y_sizes(x_sizes.begin(), x_sizes.end());
    y_sizes.back() = of.rows;
    const int64_t m = cols ? of.x.numel() / cols : 0;
    const dtype_codes dtype = dtype_of(of.x);
    const plan_key key = {
        static_cast<uint32_t>(m), static_cast<uint8_t>(dtype.dtype), static_cast<uint8_t>(of.activation),
        of.bias.has_value(),      of.multiplier.has_value(),         of.residual.has_value()};
    if (has_integers(dtype)) // weights would become integers, too, and mostly zero
        throw bad_argument(of.op, "x has integers or booleans; its dtype must be a float one");
    found_layer found = find_or_adopt(of.buffer, device, of.op, &key, of.named_by);
    check_found(found, of.rows, cols, of.op);
    of.bias = take_operand(of.bias, of, {of.rows}, "bias");
    of.multiplier = take_operand(of.multiplier, of, y_sizes, "multiplier");
    of.residual = take_operand(of.residual, of, y_sizes, "residual");
    if (m == 0)
        return allocate(y_sizes, dtype.torch_dtype, device);
    if (m > UINT32_MAX)
        throw bad_argument(of.op, "x has " + std::to_string(m) + " rows, which is more than 2^32 - 1");
    if (is_dense_by_key(of))
        return multiply_dense(of, cols);
    if (found.assembled)
        return multiply_assembled(of, *found.assembled, y_sizes, dtype, key, device);
    if (!takes_dtype(found.layer->info, dtype.dtype))
        return multiply_dense(of, cols);
    if (!found.plan)
        found.plan = make_plan(found.layer, key, of.op);
    if (!found.plan->handle)
        return multiply_dense(of, cols);

    const Tensor x = in_order(of.x);
    const Tensor y = allocate(y_sizes, dtype.torch_dtype, device);
    const workspace scratch(found.plan->workspace_bytes, device);
    trf_operands operands;
    trf_operands_init(&operands);
    operands.x = x.const_data_ptr();
    operands.y = y.mutable_data_ptr();
    operands.bias = of.bias ? of.bias->const_data_ptr() : nullptr;
    operands.multiplier = of.multiplier ? of.multiplier->const_data_ptr() : nullptr;
    operands.residual = of.residual ? of.residual->const_data_ptr() : nullptr;
    trf_error error;
    const trf_status status = trf_linear(found.plan->handle, &operands, scratch.at(), current_stream(device), &error);
    check_status(status, error, of.op);
    return y;
}

void decode_to_rows(const layer &of, const Tensor &weights, int64_t first_row, const char *op) {
    Tensor all = weights; // narrow takes no const one
    const Tensor place = torch::stable::narrow(all, 0, first_row, of.info.rows);
    // The library decodes to multiples of 16 bytes.
    const bool is_aligned = reinterpret_cast<uintptr_t>(place.mutable_data_ptr()) % 16 == 0;
    const dtype_codes source = dtype_of(of.info.dtype);
    const Tensor decoded = is_aligned ? place : allocate({of.info.rows, of.info.cols}, source.torch_dtype, of.device);
    trf_error error;
    check_status(
        trf_device_layer_decode(of.handle, TRF_DECODE_SOURCE, decoded.mutable_data_ptr(),
                                static_cast<uint64_t>(of.info.rows) * of.info.cols * trf_dtype_bytes(source.dtype),
                                current_stream(of.device), &error),
        error, op);
    if (!is_aligned)
        TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(place.get(), decoded.get(), 0));
}

Tensor decode(const decode_request &of) {
    const int device = device_of(of.buffer, "buffer");
    check_buffer(of.buffer, device, of.op);
    const found_layer found = find_or_adopt(of.buffer, device, of.op, nullptr, of.named_by);
    check_found(found, of.rows, of.cols, of.op);
    const layer &first = found.assembled ? *found.assembled->layers[0] : *found.layer;
    const dtype_codes source = dtype_of(first.info.dtype);
    const Tensor weights = allocate({of.rows, of.cols}, source.torch_dtype, device);
    if (found.assembled) {
        int64_t row = 0;
        for (const auto &one : found.assembled->layers) {
            decode_to_rows(*one, weights, row, of.op);
            row += one->info.rows;
        }
    } else
        decode_to_rows(first, weights, 0, of.op);
    const int32_t wanted = torch_dtype_of(of.dtype);
    return wanted == source.torch_dtype ? weights : to_dtype(weights, wanted);
}

Tensor decode_rows(const decode_request &of, const Tensor &ids) {
    const int device = device_of(ids, "ids");
    check_buffer(of.buffer, device, of.op);
    const found_layer found = find_or_adopt(of.buffer, device, of.op, nullptr, of.named_by);
    if (found.assembled)
        throw bad_argument(of.op, "rows are not looked up in assembled layers");
    check_layer(*found.layer, of.rows, of.cols, of.op);
    const auto ids_sizes = ids.sizes();
    std::vector<int64_t> sizes(ids_sizes.begin(), ids_sizes.end());
    sizes.push_back(of.cols);
    const dtype_codes source = dtype_of(found.layer->info.dtype);
    const int32_t wanted = torch_dtype_of(of.dtype);
    const Tensor ordered = in_order(ids);
    trf_row_request request;
    trf_row_request_init(&request);
    request.row_ids = ordered.const_data_ptr();
    request.id_bytes = id_bytes_of(ids, of.op);
    request.count = check_ids(ordered, device, of);
    if (request.count == 0)
        return allocate(sizes, wanted, device);
    const Tensor rows = allocate(sizes, source.torch_dtype, device);
    request.as = TRF_DECODE_SOURCE;
    request.rows = rows.mutable_data_ptr();
    request.rows_bytes = static_cast<uint64_t>(rows.numel()) * trf_dtype_bytes(source.dtype);
    trf_error error;
    check_status(trf_decode_rows(found.layer->handle, &request, current_stream(device), &error), error, of.op);
    return wanted == source.torch_dtype ? rows : to_dtype(rows, wanted);
}

} // namespace trf_torch
