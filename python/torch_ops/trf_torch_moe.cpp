/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_torch_moe.h"

#include "trf_torch_groups.h"
#include "trf_torch_registry.h"

#include <algorithm>

namespace trf_torch {

namespace {

trf_activation activation_of(const mixture &of) {
    if (of.activation == "silu")
        return TRF_ACTIVATION_SILU;
    if (of.activation == "gelu_tanh")
        return TRF_ACTIVATION_GELU_TANH;
    throw bad_argument(of.op, "mixtures have no activation '" + of.activation + "'; they have silu and gelu_tanh");
}

int32_t torch_dtype_of(const Tensor &tensor) {
    int32_t dtype;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
    return dtype;
}

/* @return the operand, in order; a copy if it does not begin at a multiple of `alignment` bytes. */
Tensor take_operand(const Tensor &given, const mixture &of, const char *name, int32_t torch_dtype,
                    const char *dtype_name, const std::vector<int64_t> &sizes, size_t alignment) {
    const int device = device_of(of.x, "x");
    std::string wanted;
    bool fits = static_cast<size_t>(given.dim()) == sizes.size();
    for (size_t i = 0; i < sizes.size(); i++) {
        wanted += (i ? ", " : "") + std::to_string(sizes[i]);
        fits = fits && given.size(static_cast<int64_t>(i)) == sizes[i];
    }
    if (!fits || torch_dtype_of(given) != torch_dtype || device_of(given, name) != device)
        throw bad_argument(of.op, std::string(name) + " must be " + dtype_name + " [" + wanted + "] on x's device, " +
                                      device_text(device) + "; its shape is " + shape_text(given));
    const Tensor ordered = in_order(given);
    return reinterpret_cast<uintptr_t>(ordered.const_data_ptr()) % alignment ? to_dtype(ordered, torch_dtype) : ordered;
}

std::shared_ptr<experts> find(const Tensor &container, const mixture &of, int device) {
    check_buffer(container, device, of.op);
    if (of.named_by == naming::buffer)
        return find_or_adopt_experts(container, device, of.op);
    if (container.numel() != kKeyBytes)
        throw bad_argument(of.op, "a key has " + std::to_string(kKeyBytes) + " bytes, this tensor has " +
                                      std::to_string(container.numel()));
    const std::shared_ptr<experts> found = find_experts(device, container.const_data_ptr(), kAnyBytes);
    if (!found || found->assembled_rows)
        throw bad_argument(of.op, "this key is of no experts that are known: their container was moved, freed or "
                                  "forgotten, or the key was copied; transfuse.torch.layer_key gives the one of a "
                                  "container");
    return found;
}

/* The operands of a call, held while its work is enqueued. */
struct operands {
    Tensor x, ids, weights;
    std::optional<Tensor> map, gate_up_bias, down_bias;
    uint32_t id_bytes;
};

operands take_operands(const mixture &of, const mixed_experts &by, int64_t tokens, int64_t k) {
    const experts &gate_up = *by.gate_up, &down = *by.down;
    const int64_t count = static_cast<int64_t>(gate_up.layers.size());
    const int64_t hidden = gate_up.layers[0]->info.cols,
                  gate_up_rows = int64_t{by.up ? 2 : 1} * gate_up.layers[0]->info.rows;
    const int32_t bf16 = aoti_torch_dtype_bfloat16(), ids_dtype = torch_dtype_of(of.ids);
    if (ids_dtype != aoti_torch_dtype_int32() && ids_dtype != aoti_torch_dtype_int64())
        throw bad_argument(of.op, "ids must be int32 or int64");
    const uint32_t id_bytes = ids_dtype == aoti_torch_dtype_int64() ? 8 : 4;
    operands taken = {take_operand(of.x, of, "x", bf16, "BF16", {tokens, hidden}, 16),
                      take_operand(of.ids, of, "ids", ids_dtype, "int32 or int64", {tokens, k}, id_bytes),
                      take_operand(of.weights, of, "weights", aoti_torch_dtype_float32(), "F32", {tokens, k}, 4),
                      std::nullopt,
                      std::nullopt,
                      std::nullopt,
                      id_bytes};
    if (of.expert_map)
        taken.map = take_operand(*of.expert_map, of, "expert_map", aoti_torch_dtype_int32(), "int32",
                                 {of.num_ids ? of.num_ids : count}, 4);
    if (of.gate_up_bias)
        taken.gate_up_bias = take_operand(*of.gate_up_bias, of, "gate_up_bias", bf16, "BF16", {count, gate_up_rows}, 2);
    if (of.down_bias)
        taken.down_bias =
            take_operand(*of.down_bias, of, "down_bias", bf16, "BF16", {count, down.layers[0]->info.rows}, 2);
    return taken;
}

const void *at(const std::optional<Tensor> &tensor) { return tensor ? tensor->const_data_ptr() : nullptr; }

/* Computes tokens first to first + count - 1. */
void forward_tokens(const mixture &of, const moe &by, const operands &o, const Tensor &y, uint64_t first,
                    uint32_t count, int device) {
    const uint64_t hidden = static_cast<uint64_t>(o.x.size(1)), k = static_cast<uint64_t>(o.ids.size(1));
    trf_moe_operands call;
    trf_moe_operands_init(&call);
    call.tokens = count;
    call.x = static_cast<const uint16_t *>(o.x.const_data_ptr()) + first * hidden;
    call.ids = static_cast<const uint8_t *>(o.ids.const_data_ptr()) + first * k * o.id_bytes;
    call.id_bytes = o.id_bytes;
    call.weights = static_cast<const float *>(o.weights.const_data_ptr()) + first * k;
    call.expert_map = static_cast<const int32_t *>(at(o.map));
    call.gate_up_bias = at(o.gate_up_bias);
    call.down_bias = at(o.down_bias);
    call.y = static_cast<uint16_t *>(y.mutable_data_ptr()) + first * hidden;
    trf_error error;
    uint64_t bytes;
    check_status(trf_moe_get_workspace(by.handle, count, &bytes, &error), error, of.op);
    const workspace scratch(bytes, device);
    check_status(trf_moe_forward(by.handle, &call, scratch.at(), current_stream(device), &error), error, of.op);
}

} // namespace

Tensor forward_moe(const mixture &of) {
    const int device = device_of(of.x, "x");
    if (of.named_by == naming::key && is_exact())
        throw bad_argument(of.op, "mixtures have no exact mode; multiply by what decode_experts gives");
    if (of.x.dim() != 2 || of.ids.dim() != 2)
        throw bad_argument(of.op, "x must be [tokens, hidden], and ids [tokens, k]; their shapes are " +
                                      shape_text(of.x) + " and " + shape_text(of.ids));
    const trf_activation activation = activation_of(of);
    const mixed_experts experts = {find(of.gate_up, of, device), find(of.down, of, device),
                                   of.up ? find(*of.up, of, device) : nullptr};
    const int64_t tokens = of.x.size(0), k = of.ids.size(1);
    if (of.num_ids < 0 || of.num_ids > INT32_MAX || k > INT32_MAX)
        throw bad_argument(of.op, "num_ids is " + std::to_string(of.num_ids) + " and k " + std::to_string(k) +
                                      "; 0 to 2^31 - 1 can be had");
    std::shared_ptr<moe> by;
    trf_error error;
    check_status(find_or_make_moe(experts,
                                  {nullptr, nullptr, nullptr, static_cast<uint32_t>(k),
                                   static_cast<uint32_t>(of.num_ids), activation},
                                  &by, &error),
                 error, of.op);
    const operands taken = take_operands(of, experts, tokens, k);
    const Tensor y = allocate({tokens, of.x.size(1)}, aoti_torch_dtype_bfloat16(), device);
    for (int64_t first = 0; first < tokens; first += by->max_tokens)
        forward_tokens(of, *by, taken, y, static_cast<uint64_t>(first),
                       static_cast<uint32_t>(std::min<int64_t>(tokens - first, by->max_tokens)), device);
    return y;
}

} // namespace trf_torch
