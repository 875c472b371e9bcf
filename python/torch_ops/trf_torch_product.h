/* SPDX-License-Identifier: Apache-2.0 */
/* What the ops on one layer compute. Python's _ops.py has the contracts; errors are thrown. */
#ifndef TRF_TORCH_PRODUCT_H
#define TRF_TORCH_PRODUCT_H

#include "trf_torch_registry.h"
#include "trf_torch_tensor.h"

#include <optional>
#include <stdexcept>
#include <string>

namespace trf_torch {

/* How a tensor names a layer. */
enum class naming {
    buffer, /* uint8, [buffer_bytes]: it is the layer, and is adopted if it is not known */
    key     /* uint8, [kKeyBytes]: the first bytes of a buffer that is known, or of a container of layers, which are
             * assembled to one matrix or experts; what is not is an error */
};
constexpr int64_t kKeyBytes = 256; /* no layer has less */

/* Whether products of layers that are named by a key are torch's, of the decoded weights (`set_exact`). */
void set_exact(bool exact);
bool is_exact();

/* y = activation(x . W^T + bias) * multiplier + residual. */
struct product {
    const char *op;
    const Tensor &x;      /* [..., cols] */
    const Tensor &buffer; /* or its key */
    int64_t rows;
    std::optional<Tensor> bias;                 /* [rows] of x's dtype */
    std::optional<Tensor> multiplier, residual; /* [..., rows] of x's dtype */
    trf_activation activation = TRF_ACTIVATION_NONE;
    naming named_by = naming::buffer;
};

/* @return y [..., rows] of x's dtype. */
Tensor multiply(product of);

/* What is to be decoded, and the shape and dtype of what is given back. */
struct decode_request {
    const char *op;
    const Tensor &buffer; /* or its key */
    int64_t rows, cols;
    ScalarType dtype;
    naming named_by = naming::buffer;
};

/* @return [rows][cols]: the weights of the source's dtype, brought to `dtype`. */
Tensor decode(const decode_request &of);

/* @return [...][cols]: rows of these weights. ids: [...] of int32 or int64. */
Tensor decode_rows(const decode_request &of, const Tensor &ids);

/* Decodes a layer to rows of `weights`, [rows][cols] of its source's dtype, from one on; all of its own rows are there.
 */
void decode_to_rows(const layer &of, const Tensor &weights, int64_t first_row, const char *op);

/* The layer that a tensor names, with a plan if the key of one is given and there is one. Has a buffer adopted if it is
 * not known, but for a stream that is being captured. */
found_layer find_or_adopt(const Tensor &buffer, int device, const char *op, const plan_key *key = nullptr,
                          naming named_by = naming::buffer);

/* ---- what the ops check ---- */

std::runtime_error bad_argument(const char *op, const std::string &text);

/* A layer's buffer, or a container of them, on this device. */
void check_buffer(const Tensor &buffer, int device, const char *op);
void check_layer(const layer &of, int64_t rows, int64_t cols, const char *op);

/* @return whether a layer's weights multiply x of a dtype. */
bool takes_dtype(const trf_layer_info &info, trf_dtype dtype);

/* The stable ABI's number of a dtype. */
int32_t torch_dtype_of(ScalarType dtype);

/* What a stream that is being captured forbids; else has the buffer adopted. */
void adopt_missing(const Tensor &buffer, int device, const char *op);

/* What an op throws if a buffer is unknown after that. */
std::runtime_error adoption_failure(const char *op);

} // namespace trf_torch

#endif
