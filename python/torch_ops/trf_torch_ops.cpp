/* SPDX-License-Identifier: Apache-2.0 */
/* The operators torch.ops.transfuse.*: their schemas, and their kernels for the CPU and CUDA. Fake implementations,
 * autograd and autocast stand in _ops.py; transfuse::adopt has its kernel in _registry.py. */
#include "trf_torch_product.h"

#include <torch/csrc/stable/library.h>

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

Tensor linear(const Tensor &x, const Tensor &blob, const std::optional<Tensor> &bias, int64_t rows) {
    return trf_torch::multiply({"transfuse::linear", x, blob, rows, bias, std::nullopt, std::nullopt});
}

Tensor decode(const Tensor &blob, int64_t rows, int64_t cols, ScalarType dtype) {
    return trf_torch::decode({"transfuse::decode", blob, rows, cols, dtype});
}

Tensor embedding(const Tensor &ids, const Tensor &blob, int64_t rows, int64_t cols, ScalarType dtype) {
    return trf_torch::decode_rows({"transfuse::embedding", blob, rows, cols, dtype}, ids);
}

} // namespace

STABLE_TORCH_LIBRARY(transfuse, library) {
    library.def("adopt(Tensor blob) -> ()");
    library.def("linear(Tensor x, Tensor blob, Tensor? bias, int rows) -> Tensor");
    library.def("decode(Tensor blob, int rows, int cols, ScalarType dtype) -> Tensor");
    library.def("embedding(Tensor ids, Tensor blob, int rows, int cols, ScalarType dtype) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(transfuse, CPU, library) {
    library.impl("linear", TORCH_BOX(&linear));
    library.impl("decode", TORCH_BOX(&decode));
    library.impl("embedding", TORCH_BOX(&embedding));
}

STABLE_TORCH_LIBRARY_IMPL(transfuse, CUDA, library) {
    library.impl("linear", TORCH_BOX(&linear));
    library.impl("decode", TORCH_BOX(&decode));
    library.impl("embedding", TORCH_BOX(&embedding));
}
