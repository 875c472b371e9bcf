/* SPDX-License-Identifier: Apache-2.0 */
/* The operators torch.ops.transfuse.*: their schemas, and their kernels for the CPU and CUDA. Fake implementations,
 * autograd and autocast stand in _ops.py; transfuse::adopt has its kernel in _registry.py. */
#include "trf_torch_groups.h"
#include "trf_torch_moe.h"
#include "trf_torch_product.h"

#include <torch/csrc/stable/library.h>

#include <utility>

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

Tensor linear(const Tensor &x, const Tensor &buffer, const std::optional<Tensor> &bias, int64_t rows) {
    return trf_torch::multiply({"transfuse::linear", x, buffer, rows, bias, std::nullopt, std::nullopt});
}

Tensor linear_epilogue(const Tensor &x, const Tensor &buffer, const std::optional<Tensor> &bias,
                       const std::optional<Tensor> &multiplier, const std::optional<Tensor> &residual,
                       const std::string &activation, int64_t rows) {
    constexpr const char *op = "transfuse::linear_epilogue";
    const std::pair<const char *, trf_activation> known[] = {{"none", TRF_ACTIVATION_NONE},
                                                             {"silu", TRF_ACTIVATION_SILU},
                                                             {"gelu", TRF_ACTIVATION_GELU},
                                                             {"gelu_tanh", TRF_ACTIVATION_GELU_TANH}};
    for (const auto &[name, value] : known)
        if (activation == name)
            return trf_torch::multiply({op, x, buffer, rows, bias, multiplier, residual, value});
    throw trf_torch::bad_argument(op, "there is no activation '" + activation +
                                          "'; there are none, silu, gelu and gelu_tanh");
}

std::vector<Tensor> linear_group(const Tensor &x, const std::vector<Tensor> &buffers,
                                 const std::vector<int64_t> &rows) {
    return trf_torch::multiply_group(x, buffers, rows);
}

Tensor experts(const Tensor &x, const Tensor &offsets, const Tensor &container, int64_t rows) {
    return trf_torch::multiply_experts(x, offsets, container, rows);
}

Tensor moe(const Tensor &x, const Tensor &ids, const Tensor &weights, const Tensor &gate_up, const Tensor &down,
           const std::optional<Tensor> &expert_map, const std::optional<Tensor> &gate_up_bias,
           const std::optional<Tensor> &down_bias, const std::string &activation, int64_t num_ids,
           const std::optional<Tensor> &up) {
    return trf_torch::forward_moe({"transfuse::moe", x, ids, weights, gate_up, down, up, expert_map, gate_up_bias,
                                   down_bias, activation, num_ids});
}

Tensor moe_by_key(const Tensor &x, const Tensor &ids, const Tensor &weights, const Tensor &gate_up_key,
                  const Tensor &down_key, const std::optional<Tensor> &expert_map,
                  const std::optional<Tensor> &gate_up_bias, const std::optional<Tensor> &down_bias,
                  const std::string &activation, int64_t num_ids) {
    return trf_torch::forward_moe({"transfuse::moe_by_key", x, ids, weights, gate_up_key, down_key, std::nullopt,
                                   expert_map, gate_up_bias, down_bias, activation, num_ids, trf_torch::naming::key});
}

Tensor decode_experts(const Tensor &container, int64_t count, int64_t rows, int64_t cols, ScalarType dtype) {
    return trf_torch::decode_experts({container, count, rows, cols, dtype});
}

Tensor decode(const Tensor &buffer, int64_t rows, int64_t cols, ScalarType dtype) {
    return trf_torch::decode({"transfuse::decode", buffer, rows, cols, dtype});
}

Tensor embedding(const Tensor &ids, const Tensor &buffer, int64_t rows, int64_t cols, ScalarType dtype) {
    return trf_torch::decode_rows({"transfuse::embedding", buffer, rows, cols, dtype}, ids);
}

Tensor linear_by_key(const Tensor &x, const Tensor &key, const std::optional<Tensor> &bias, int64_t rows) {
    return trf_torch::multiply({"transfuse::linear_by_key", x, key, rows, bias, std::nullopt, std::nullopt,
                                TRF_ACTIVATION_NONE, trf_torch::naming::key});
}

Tensor decode_by_key(const Tensor &key, int64_t rows, int64_t cols, ScalarType dtype) {
    return trf_torch::decode({"transfuse::decode_by_key", key, rows, cols, dtype, trf_torch::naming::key});
}

Tensor embedding_by_key(const Tensor &ids, const Tensor &key, int64_t rows, int64_t cols, ScalarType dtype) {
    return trf_torch::decode_rows({"transfuse::embedding_by_key", key, rows, cols, dtype, trf_torch::naming::key}, ids);
}

void decode_experts_into(const Tensor &container, const Tensor &out) { trf_torch::decode_experts_into(container, out); }

void add_kernels(torch::stable::detail::StableLibrary &library) {
    library.impl("linear", TORCH_BOX(&linear));
    library.impl("linear_epilogue", TORCH_BOX(&linear_epilogue));
    library.impl("linear_group", TORCH_BOX(&linear_group));
    library.impl("experts", TORCH_BOX(&experts));
    library.impl("moe", TORCH_BOX(&moe));
    library.impl("moe_by_key", TORCH_BOX(&moe_by_key));
    library.impl("decode", TORCH_BOX(&decode));
    library.impl("decode_experts", TORCH_BOX(&decode_experts));
    library.impl("decode_experts_into", TORCH_BOX(&decode_experts_into));
    library.impl("embedding", TORCH_BOX(&embedding));
    library.impl("linear_by_key", TORCH_BOX(&linear_by_key));
    library.impl("decode_by_key", TORCH_BOX(&decode_by_key));
    library.impl("embedding_by_key", TORCH_BOX(&embedding_by_key));
}

} // namespace

STABLE_TORCH_LIBRARY(transfuse, library) {
    library.def("adopt(Tensor buffer) -> ()");
    library.def("linear(Tensor x, Tensor buffer, Tensor? bias, int rows) -> Tensor");
    library.def("linear_epilogue(Tensor x, Tensor buffer, Tensor? bias, Tensor? multiplier, Tensor? residual, "
                "str activation, int rows) -> Tensor");
    library.def("linear_group(Tensor x, Tensor[] buffers, int[] rows) -> Tensor[]");
    library.def("experts(Tensor x, Tensor offsets, Tensor container, int rows) -> Tensor");
    library.def("moe(Tensor x, Tensor ids, Tensor weights, Tensor gate_up, Tensor down, Tensor? expert_map, "
                "Tensor? gate_up_bias, Tensor? down_bias, str activation, int num_ids, Tensor? up=None) -> Tensor");
    library.def("moe_by_key(Tensor x, Tensor ids, Tensor weights, Tensor gate_up_key, Tensor down_key, "
                "Tensor? expert_map, Tensor? gate_up_bias, Tensor? down_bias, str activation, int num_ids) -> Tensor");
    library.def("decode(Tensor buffer, int rows, int cols, ScalarType dtype) -> Tensor");
    library.def("decode_experts(Tensor container, int count, int rows, int cols, ScalarType dtype) -> Tensor");
    library.def("decode_experts_into(Tensor container, Tensor(a!) out) -> ()");
    library.def("embedding(Tensor ids, Tensor buffer, int rows, int cols, ScalarType dtype) -> Tensor");
    library.def("linear_by_key(Tensor x, Tensor key, Tensor? bias, int rows) -> Tensor");
    library.def("decode_by_key(Tensor key, int rows, int cols, ScalarType dtype) -> Tensor");
    library.def("embedding_by_key(Tensor ids, Tensor key, int rows, int cols, ScalarType dtype) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(transfuse, CPU, library) { add_kernels(library); }

STABLE_TORCH_LIBRARY_IMPL(transfuse, CUDA, library) { add_kernels(library); }
