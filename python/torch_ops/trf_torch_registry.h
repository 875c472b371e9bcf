/* SPDX-License-Identifier: Apache-2.0 */
/* The layers of this process that ops know, by the device and address of their blobs, and the plans of each. A blob is
 * a torch tensor of the caller's; `_registry.py` adopts it here and has it forgotten when its storage goes.
 *
 * One lock guards all of it; nothing but look-ups runs under it. Layers and plans are shared: whoever has found one may
 * use it after it was forgotten or evicted. All of it stays as it is at the end of the process, when CUDA may be gone
 * already. After a fork the child keeps layers of the CPU; what was on a GPU can neither be used nor destroyed. */
#ifndef TRF_TORCH_REGISTRY_H
#define TRF_TORCH_REGISTRY_H

#include "transfuse.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace trf_torch {

/* What the plans of one layer differ in; x and y have one dtype. */
struct plan_key {
    uint32_t m;
    uint8_t dtype;      /* trf_dtype */
    uint8_t activation; /* trf_activation */
    bool has_bias, has_multiplier, has_residual;

    bool operator==(const plan_key &other) const {
        return m == other.m && dtype == other.dtype && activation == other.activation && has_bias == other.has_bias &&
               has_multiplier == other.has_multiplier && has_residual == other.has_residual;
    }
};

struct plan {
    trf_plan *handle = nullptr; /* NULL: no path takes this product; it is decoded and multiplied by torch */
    uint64_t workspace_bytes = 0;

    plan() = default;
    plan(const plan &) = delete;
    plan &operator=(const plan &) = delete;
    ~plan() { trf_plan_destroy(handle); }
};

struct layer {
    int device = TRF_DEVICE_CPU;
    const void *blob = nullptr;
    uint64_t blob_bytes = 0;
    trf_device_layer *handle = nullptr;
    trf_layer_info info = {};
    uint32_t process = 0; /* forks of this process before it was made */

    layer() = default;
    layer(const layer &) = delete;
    layer &operator=(const layer &) = delete;
    ~layer();

    /* Of the registry alone, under its lock. Those that are used more often stand further back. */
    std::vector<std::pair<plan_key, std::shared_ptr<plan>>> plans;
};

struct found_layer {
    std::shared_ptr<trf_torch::layer> layer; /* NULL: none is known */
    std::shared_ptr<trf_torch::plan> plan;   /* NULL: none was made with this key */
};

/* Looks up a layer, and one of its plans if a key is given. */
found_layer find_layer(int device, const void *blob, const plan_key *key = nullptr);

/* Makes a plan and keeps it with the layer, of whose plans one that is seldom used goes if there are too many. Throws
 * what the library reports, but for products that no path takes: see `plan`. */
std::shared_ptr<plan> make_plan(const std::shared_ptr<layer> &of, const plan_key &key, const char *op);

/* The context of a device, made at the first call. Errors: trf_context_create's; TRF_ERR_DEVICE (a GPU in the child of
 * a fork). */
trf_status find_context(int device, trf_context **context, trf_error *err);

/* Takes over a device layer if it succeeds. Errors: TRF_ERR_EXISTS (there is a layer at this place). */
trf_status insert_layer(int device, const void *blob, uint64_t blob_bytes, trf_device_layer *handle, trf_error *err);

void forget_layer(int device, const void *blob);

uint64_t count_layers();

} // namespace trf_torch

#endif
