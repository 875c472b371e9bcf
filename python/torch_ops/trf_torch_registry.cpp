/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_torch_registry.h"

#include "transfuse/cpu.h"
#include "trf_torch_tensor.h"

#include <torch/csrc/stable/c/shim.h>

#include <pthread.h>

#include <cstdio>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <utility>

namespace trf_torch {

namespace {

constexpr size_t kMaxPlans = 32; // of one layer: as many batch sizes as a server captures graphs of

struct place {
    int device;
    const void *blob;

    bool operator==(const place &other) const { return device == other.device && blob == other.blob; }
};

struct place_hash {
    size_t operator()(const place &of) const {
        // Blobs begin at multiples of 16 at least.
        return (reinterpret_cast<uintptr_t>(of.blob) >> 4) * 31 + static_cast<size_t>(of.device);
    }
};

struct context_slot {
    trf_context *context;
    uint32_t process;
};

struct registry {
    std::mutex lock;
    std::unordered_map<place, std::shared_ptr<layer>, place_hash> layers;
    std::unordered_map<int, context_slot> contexts;
    uint32_t process = 0; // forks before this process

    registry();
};

/* Never destroyed: threads may still multiply when the process ends. */
registry &the_registry() {
    static registry *const made = new registry;
    return *made;
}

/* So that no thread of the parent holds the lock in the child. */
registry::registry() {
    pthread_atfork([] { the_registry().lock.lock(); }, [] { the_registry().lock.unlock(); },
                   [] {
                       the_registry().process++;
                       the_registry().lock.unlock();
                   });
}

bool is_usable(int device, uint32_t process, const registry &in) {
    return device == TRF_DEVICE_CPU || process == in.process;
}

trf_status fail(trf_error *err, trf_status status, const char *message) {
    if (err) {
        *err = trf_error{};
        err->status = status;
        err->offset = TRF_NO_OFFSET;
        snprintf(err->message, sizeof err->message, "%s", message);
    }
    return status;
}

/* One that is found moves towards the end, away from where plans are evicted. */
std::shared_ptr<plan> find_plan(std::vector<std::pair<plan_key, std::shared_ptr<plan>>> &plans, const plan_key &key) {
    for (size_t i = plans.size(); i-- > 0;)
        if (plans[i].first == key) {
            std::shared_ptr<plan> found = plans[i].second;
            if (i + 1 < plans.size())
                std::swap(plans[i], plans[i + 1]);
            return found;
        }
    return nullptr;
}

} // namespace

layer::~layer() {
    registry &in = the_registry();
    const bool is_lost = !is_usable(device, process, in);
    if (is_lost)
        for (auto &[key, kept] : plans)
            (void)new std::shared_ptr<plan>(std::move(kept)); // a plan counts on its layer
    plans.clear();
    if (!is_lost)
        trf_device_layer_destroy(handle);
}

found_layer find_layer(int device, const void *blob, const plan_key *key) {
    registry &in = the_registry();
    const std::lock_guard<std::mutex> guard(in.lock);
    const auto at = in.layers.find({device, blob});
    if (at == in.layers.end())
        return {};
    const std::shared_ptr<layer> &found = at->second;
    if (!is_usable(device, found->process, in))
        throw std::runtime_error("transfuse: a layer on a GPU cannot be used after a fork; start processes by spawn");
    found_layer result = {found, nullptr};
    if (key)
        result.plan = find_plan(found->plans, *key);
    return result;
}

std::shared_ptr<plan> make_plan(const std::shared_ptr<layer> &of, const plan_key &key, const char *op) {
    trf_plan_options options;
    trf_plan_options_init(&options);
    options.m = key.m;
    options.x_dtype = options.y_dtype = static_cast<trf_dtype>(key.dtype);
    options.activation = static_cast<trf_activation>(key.activation);
    options.has_bias = key.has_bias;
    options.has_multiplier = key.has_multiplier;
    options.has_residual = key.has_residual;
    auto made = std::make_shared<plan>();
    trf_error error;
    const trf_status status = trf_plan_create(of->handle, &options, &made->handle, &error);
    if (status != TRF_ERR_UNSUPPORTED)
        check_status(status, error, op);
    if (made->handle) {
        trf_plan_info info;
        trf_plan_get_info(made->handle, &info);
        made->workspace_bytes = info.workspace_bytes;
    }
    std::shared_ptr<plan> evicted; // goes when the lock is free
    const std::lock_guard<std::mutex> guard(the_registry().lock);
    auto &plans = of->plans;
    if (const auto other = find_plan(plans, key)) // of another thread
        return other;
    if (plans.size() >= kMaxPlans) {
        evicted = std::move(plans.front().second);
        plans.erase(plans.begin());
    }
    plans.emplace_back(key, made);
    return made;
}

trf_status find_context(int device, trf_context **context, trf_error *err) {
    registry &in = the_registry();
    {
        const std::lock_guard<std::mutex> guard(in.lock);
        const auto at = in.contexts.find(device);
        if (at != in.contexts.end()) {
            if (!is_usable(device, at->second.process, in))
                return fail(err, TRF_ERR_DEVICE, "a GPU cannot be used after a fork; start processes by spawn");
            *context = at->second.context;
            return TRF_OK;
        }
    }
    trf_context *made;
    const trf_status status = trf_context_create(device, &made, err);
    if (status != TRF_OK)
        return status;
    uint32_t threads;
    if (torch_get_num_threads(&threads) == 0)
        trf_context_set_threads(made, static_cast<int>(threads));
    trf_context *other = nullptr;
    {
        const std::lock_guard<std::mutex> guard(in.lock);
        const auto [at, is_first] = in.contexts.insert({device, {made, in.process}});
        if (!is_first)
            other = made;
        *context = at->second.context;
    }
    trf_context_destroy(other);
    return TRF_OK;
}

trf_status insert_layer(int device, const void *blob, uint64_t blob_bytes, trf_device_layer *handle, trf_error *err) {
    trf_device_layer_info info;
    trf_device_layer_get_info(handle, &info);
    auto made = std::make_shared<layer>();
    made->device = device;
    made->blob = blob;
    made->blob_bytes = blob_bytes;
    made->info = info.layer;
    registry &in = the_registry();
    const std::lock_guard<std::mutex> guard(in.lock);
    made->process = in.process;
    if (!in.layers.insert({{device, blob}, made}).second)
        return fail(err, TRF_ERR_EXISTS, "there is a layer at this place already");
    made->handle = handle;
    return TRF_OK;
}

void forget_layer(int device, const void *blob) {
    registry &in = the_registry();
    std::shared_ptr<layer> forgotten; // goes when the lock is free
    const std::lock_guard<std::mutex> guard(in.lock);
    const auto at = in.layers.find({device, blob});
    if (at == in.layers.end())
        return;
    forgotten = std::move(at->second);
    in.layers.erase(at);
}

uint64_t count_layers() {
    registry &in = the_registry();
    const std::lock_guard<std::mutex> guard(in.lock);
    return in.layers.size();
}

} // namespace trf_torch
