/* SPDX-License-Identifier: Apache-2.0 */
/* The ops on several layers: those that share x, and experts. Python's _ops.py has the contracts; errors are thrown. */
#ifndef TRF_TORCH_GROUPS_H
#define TRF_TORCH_GROUPS_H

#include "trf_torch_registry.h"
#include "trf_torch_tensor.h"

#include <memory>
#include <vector>

namespace trf_torch {

/* @return for each layer y = x . W^T, [..., rows[i]], of x's dtype. */
std::vector<Tensor> multiply_group(const Tensor &x, const std::vector<Tensor> &buffers,
                                   const std::vector<int64_t> &rows);

/* @return y [tokens][rows] of x's dtype. x: [tokens][cols], sorted by expert; offsets: int32, [experts + 1]. */
Tensor multiply_experts(const Tensor &x, const Tensor &offsets, const Tensor &container, int64_t rows);

/* The experts of a container, which is adopted if it is not known. Throws if there are none. */
std::shared_ptr<experts> find_or_adopt_experts(const Tensor &container, int device, const char *op);

/* Which experts are to be decoded, and the shape and dtype of what is given back. */
struct expert_decode_request {
    const Tensor &container;
    int64_t count, rows, cols;
    ScalarType dtype;
};

/* @return [count][rows][cols], with rows of gate and up in the order that they had before they were interleaved. */
Tensor decode_experts(const expert_decode_request &of);

/* Does what decode_experts does, to memory that is there. out: [count][rows][cols] of the weights' own dtype, each
 * expert's matrix contiguous, the experts apart as they like. */
void decode_experts_into(const Tensor &container, const Tensor &out);

} // namespace trf_torch

#endif
