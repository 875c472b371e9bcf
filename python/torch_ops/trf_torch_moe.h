/* SPDX-License-Identifier: Apache-2.0 */
/* Whole mixtures of experts. Python's _ops.py has the contracts; errors are thrown. */
#ifndef TRF_TORCH_MOE_H
#define TRF_TORCH_MOE_H

#include "trf_torch_product.h"

#include <optional>
#include <string>

namespace trf_torch {

struct mixture {
    const char *op;
    const Tensor &x;                                       /* BF16, [tokens][hidden] */
    const Tensor &ids;                                     /* int32 or int64, [tokens][k] */
    const Tensor &weights;                                 /* F32, [tokens][k] */
    const Tensor &gate_up, &down;                          /* containers, or their keys */
    const std::optional<Tensor> &up;                       /* none: gate_up has both */
    const std::optional<Tensor> &expert_map;               /* int32, [num_ids] */
    const std::optional<Tensor> &gate_up_bias, &down_bias; /* BF16, [experts][rows] */
    const std::string &activation;
    int64_t num_ids; /* 0: as many as there are experts here */
    naming named_by = naming::buffer;
};

/* @return y, BF16, [tokens][hidden]. */
Tensor forward_moe(const mixture &of);

} // namespace trf_torch

#endif
