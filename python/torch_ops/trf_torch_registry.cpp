/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_torch_registry.h"

#include "transfuse/cpu.h"
#include "trf_torch_tensor.h"

#include <torch/csrc/stable/c/shim.h>

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <utility>

namespace trf_torch {

namespace {

/* What one call of a mixture takes at most: the library's limit of tokens, and routes that every kernel takes. */
constexpr uint32_t kMostTokens = 1 << 20, kMostRoutes = 1 << 23;

struct place {
    int device;
    const void *buffer;

    bool operator==(const place &other) const { return device == other.device && buffer == other.buffer; }
};

struct place_hash {
    size_t operator()(const place &of) const {
        // Buffers begin at multiples of 16 at least.
        return (reinterpret_cast<uintptr_t>(of.buffer) >> 4) * 31 + static_cast<size_t>(of.device);
    }
};

struct moe_hash {
    size_t operator()(const moe_key &of) const {
        // up and gate_up come together
        return ((reinterpret_cast<uintptr_t>(of.gate_up) >> 4) * 31 + (reinterpret_cast<uintptr_t>(of.down) >> 4)) *
                   31 +
               of.top_k;
    }
};

struct context_slot {
    trf_context *context;
    uint32_t fork_generation;
};

struct registry {
    std::mutex lock;
    std::unordered_map<place, std::shared_ptr<layer>, place_hash> layers;
    std::unordered_map<place, std::shared_ptr<trf_torch::experts>, place_hash> experts;
    std::unordered_map<moe_key, std::shared_ptr<moe>, moe_hash> mixtures;
    std::unordered_map<int, context_slot> contexts;
    uint64_t next_number = 0;     // of layers
    uint32_t fork_generation = 0; // forks before this process

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
                       the_registry().fork_generation++;
                       the_registry().lock.unlock();
                   });
}

bool is_usable(int device, uint32_t fork_generation, const registry &in) {
    return device == TRF_DEVICE_CPU || fork_generation == in.fork_generation;
}

/* Whether a layer that was found at a place may be used there. */
bool is_current(const layer &of, uint64_t buffer_bytes, const registry &in) {
    if (buffer_bytes != kAnyBytes && of.buffer_bytes != buffer_bytes)
        return false;
    if (of.device == TRF_DEVICE_CPU)
        return std::memcmp(of.first_bytes, of.buffer, sizeof of.first_bytes) == 0;
    return is_usable(of.device, of.fork_generation, in);
}

bool is_current(const experts &of, uint64_t container_bytes, const registry &in) {
    if (container_bytes != kAnyBytes && of.container_bytes != container_bytes)
        return false;
    if (of.layers[0]->device != TRF_DEVICE_CPU) // all of them were made by one process
        return is_usable(of.layers[0]->device, of.layers[0]->fork_generation, in);
    for (const auto &one : of.layers)
        if (!is_current(*one, one->buffer_bytes, in))
            return false;
    return true;
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

/* Whatever is there. @return NULL if there is nothing. */
std::shared_ptr<layer> layer_at(const place &where) {
    registry &in = the_registry();
    const std::lock_guard<std::mutex> guard(in.lock);
    const auto at = in.layers.find(where);
    return at == in.layers.end() ? nullptr : at->second;
}

/* Under the lock. Owners that are gone go from the list, too: it would grow without end. */
void note_owner(layer &member, const std::shared_ptr<layer> &owner) {
    auto &owners = member.grouped_under;
    owners.erase(std::remove_if(owners.begin(), owners.end(),
                                [&](const std::weak_ptr<layer> &known) {
                                    const std::shared_ptr<layer> one = known.lock();
                                    return !one || one == owner;
                                }),
                 owners.end());
    owners.push_back(owner);
}

/* What forgetting releases, when the lock is free: groups before layers. */
struct forgotten {
    std::vector<std::shared_ptr<layer>> layers;
    std::vector<std::shared_ptr<group>> groups;
};

/* Under the lock. */
void take_layer(registry &in, const place &at, forgotten *into) {
    const auto found = in.layers.find(at);
    if (found == in.layers.end())
        return;
    layer &of = *found->second;
    of.groups.remove([](const group_key &) { return true; }, &into->groups);
    for (const auto &weak : of.grouped_under)
        if (const std::shared_ptr<layer> first = weak.lock()) {
            first->groups.remove(
                [&](const group_key &key) {
                    for (const uint64_t number : key.members)
                        if (number == of.number)
                            return true;
                    return false;
                },
                &into->groups);
            into->layers.push_back(first);
        }
    into->layers.push_back(std::move(found->second));
    in.layers.erase(found);
}

/* Under the lock. Moves the mixtures of these experts to *into. */
void take_mixtures(registry &in, const experts *of, std::vector<std::shared_ptr<moe>> *into) {
    for (auto at = in.mixtures.begin(); at != in.mixtures.end();)
        if (at->first.gate_up == of || at->first.down == of || at->first.up == of) {
            into->push_back(std::move(at->second));
            at = in.mixtures.erase(at);
        } else
            ++at;
}

/* Under the lock. Whether these are the experts that are found at their place. */
bool is_registered(const registry &in, const experts &of) {
    const auto at = in.experts.find({of.layers[0]->device, of.container});
    return at != in.experts.end() && at->second.get() == &of;
}

/* Whether a mixture takes such experts, whatever the library says of them. */
trf_status check_mixture(const mixed_experts &of, trf_error *err) {
    for (const experts *each : {of.gate_up.get(), of.down.get(), of.up.get()})
        if (each && each->refusal.status != TRF_OK) {
            *err = each->refusal;
            return err->status;
        }
    trf_device_layer_info info;
    trf_device_layer_get_info(of.gate_up->layers[0]->handle, &info);
    const bool is_packed = info.layout == TRF_LAYOUT_PACKED || info.layout == TRF_LAYOUT_PACKED8;
    if (is_packed && of.gate_up->combined != combination::interleaved_experts)
        return fail(err, TRF_ERR_ARGUMENT,
                    "rows of gate and up are not interleaved in gate_up; pack_experts(..., interleave=True) makes such "
                    "a container");
    if (of.down->combined != combination::experts)
        return fail(err, TRF_ERR_ARGUMENT, "down has interleaved rows, as gate_up alone may have");
    if (of.up && (of.up->combined != combination::experts || of.gate_up->combined != combination::experts))
        return fail(err, TRF_ERR_ARGUMENT, "gate and up of two containers have no interleaved rows");
    return TRF_OK;
}

} // namespace

layer::~layer() {
    plans = {}; // before the layer that they are of
    if (is_usable(device, fork_generation, the_registry()))
        trf_device_layer_destroy(handle);
}

experts::~experts() {
    plans = {};
    if (layers.empty() || is_usable(layers[0]->device, layers[0]->fork_generation, the_registry()))
        trf_experts_destroy(handle);
}

found_layer find_layer(int device, const void *buffer, uint64_t buffer_bytes, const plan_key *key) {
    registry &in = the_registry();
    const std::lock_guard<std::mutex> guard(in.lock);
    const auto at = in.layers.find({device, buffer});
    if (at == in.layers.end() || !is_current(*at->second, buffer_bytes, in))
        return {};
    const std::shared_ptr<layer> &found = at->second;
    return {found, key ? found->plans.find(*key) : nullptr, nullptr};
}

uint64_t bytes_at(int device, const void *buffer) {
    registry &in = the_registry();
    const std::lock_guard<std::mutex> guard(in.lock);
    if (const auto at = in.layers.find({device, buffer}); at != in.layers.end())
        return at->second->buffer_bytes;
    const auto at = in.experts.find({device, buffer});
    return at != in.experts.end() ? at->second->container_bytes : 0;
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
    options.y_stride = key.y_stride;
    auto made = std::make_shared<plan>();
    trf_error error;
    const trf_status status = trf_plan_create(of->handle, &options, &made->handle, &error);
    if (status != TRF_ERR_UNSUPPORTED)
        check_status(status, error, op);
    if (made->handle) {
        trf_plan_info info;
        trf_plan_get_info(made->handle, &info);
        made->workspace_bytes = info.workspace_bytes;
        // without cuBLASLt: in passes, each of which decodes the layer; torch has a product of its own
        if (of->device != TRF_DEVICE_CPU && info.path == TRF_PATH_FUSED && key.m > TRF_FUSED_MAX_M) {
            trf_plan_destroy(made->handle);
            made->handle = nullptr;
        }
    }
    const std::lock_guard<std::mutex> guard(the_registry().lock);
    return of->plans.insert(key, &made);
}

std::shared_ptr<plan> find_or_make_plan(const std::shared_ptr<layer> &of, const plan_key &key, const char *op) {
    {
        const std::lock_guard<std::mutex> guard(the_registry().lock);
        if (const std::shared_ptr<plan> found = of->plans.find(key))
            return found;
    }
    return make_plan(of, key, op);
}

std::shared_ptr<group> find_or_make_group(const std::vector<std::shared_ptr<layer>> &layers, uint32_t m,
                                          trf_dtype dtype, uint32_t y_stride, const char *op) {
    group_key key = {m, dtype, y_stride, {}};
    std::vector<trf_group_member> members(layers.size());
    for (size_t i = 0; i < layers.size(); i++) {
        key.members.push_back(layers[i]->number);
        trf_group_member_init(&members[i]);
        members[i].layer = layers[i]->handle;
        members[i].m = m;
        members[i].x_dtype = members[i].y_dtype = dtype;
        members[i].y_stride = y_stride;
    }
    {
        const std::lock_guard<std::mutex> guard(the_registry().lock);
        if (const std::shared_ptr<group> found = layers[0]->groups.find(key))
            return found;
    }
    auto made = std::make_shared<group>();
    trf_error error;
    const trf_status status =
        trf_layer_group_create(members.data(), static_cast<uint32_t>(members.size()), &made->handle, &error);
    if (status != TRF_ERR_UNSUPPORTED)
        check_status(status, error, op);
    if (made->handle) {
        trf_layer_group_info info;
        trf_layer_group_get_info(made->handle, &info);
        made->workspace_bytes = info.workspace_bytes;
    }
    for (size_t i = 1; i < layers.size(); i++)
        if (layers[i] != layers[0])
            made->others.push_back(layers[i]);
    const std::lock_guard<std::mutex> guard(the_registry().lock);
    for (const auto &other : made->others)
        note_owner(*other, layers[0]);
    return layers[0]->groups.insert(key, &made);
}

std::shared_ptr<experts> find_experts(int device, const void *container, uint64_t container_bytes) {
    registry &in = the_registry();
    const std::lock_guard<std::mutex> guard(in.lock);
    const auto at = in.experts.find({device, container});
    if (at == in.experts.end() || !is_current(*at->second, container_bytes, in))
        return nullptr;
    return at->second;
}

std::shared_ptr<experts_plan> find_or_make_plan(const std::shared_ptr<experts> &of, const experts_key &key,
                                                const char *op) {
    check_status(of->refusal.status, of->refusal, op);
    {
        const std::lock_guard<std::mutex> guard(the_registry().lock);
        if (const std::shared_ptr<experts_plan> found = of->plans.find(key))
            return found;
    }
    auto made = std::make_shared<experts_plan>();
    trf_error error;
    check_status(trf_experts_plan_create(of->handle, key.tokens, key.dtype, key.dtype, &made->handle, &error), error,
                 op);
    made->workspace_bytes = trf_experts_plan_workspace_bytes(made->handle);
    const std::lock_guard<std::mutex> guard(the_registry().lock);
    return of->plans.insert(key, &made);
}

trf_status find_or_make_moe(const mixed_experts &of, moe_key key, std::shared_ptr<moe> *found, trf_error *err) {
    registry &in = the_registry();
    key.gate_up = of.gate_up.get();
    key.down = of.down.get();
    key.up = of.up.get();
    {
        const std::lock_guard<std::mutex> guard(in.lock);
        const auto at = in.mixtures.find(key);
        if (at != in.mixtures.end()) {
            *found = at->second;
            return TRF_OK;
        }
    }
    trf_status status = check_mixture(of, err);
    if (status != TRF_OK)
        return status;
    auto made = std::make_shared<moe>();
    made->of = of;
    trf_moe_options options;
    trf_moe_options_init(&options);
    // Memory is taken for the tokens of a call, so that one mixture serves calls of every size.
    made->max_tokens = key.top_k ? std::min(kMostTokens, kMostRoutes / key.top_k) : 1;
    options.max_tokens = made->max_tokens;
    options.top_k = key.top_k;
    options.num_ids = key.num_ids;
    options.gate_up_order =
        of.gate_up->combined == combination::interleaved_experts ? TRF_GATE_UP_INTERLEAVED_8 : TRF_GATE_UP_HALVES;
    options.activation = key.activation;
    options.up = of.up ? of.up->handle : nullptr;
    status = trf_moe_create(of.gate_up->handle, of.down->handle, &options, &made->handle, err);
    if (status != TRF_OK)
        return status;
    *found = made;
    const std::lock_guard<std::mutex> guard(in.lock);
    if (is_registered(in, *of.gate_up) && is_registered(in, *of.down) && (!of.up || is_registered(in, *of.up)))
        *found = in.mixtures.insert({key, made}).first->second; // else they were forgotten in between
    return TRF_OK;
}

trf_status insert_experts(int device, const void *container, uint64_t container_bytes,
                          const std::vector<const void *> &buffers, combination combined, trf_error *err) {
    const bool are_assembled = combined == combination::assembled;
    auto made = std::make_shared<experts>();
    made->combined = combined;
    made->container = container;
    made->container_bytes = container_bytes;
    std::vector<trf_device_layer *> handles;
    for (const void *buffer : buffers) {
        made->layers.push_back(layer_at({device, buffer}));
        const std::shared_ptr<layer> &last = made->layers.back(), &first = made->layers.front();
        if (!last)
            return fail(err, TRF_ERR_ARGUMENT, "an expert's layer is unknown");
        if ((!are_assembled && last->info.rows != first->info.rows) || last->info.cols != first->info.cols ||
            last->info.dtype != first->info.dtype)
            return fail(err, TRF_ERR_ARGUMENT, "layers of one container differ in shape or source dtype");
        if (combined == combination::interleaved_experts && last->info.rows % 16)
            return fail(err, TRF_ERR_ARGUMENT, "rows of gate and up are interleaved, but are no multiple of 16");
        handles.push_back(last->handle);
        if (are_assembled)
            made->assembled_rows += last->info.rows;
    }
    const trf_status status =
        are_assembled
            ? fail(&made->refusal, TRF_ERR_UNSUPPORTED, "these layers are the rows of one matrix, and no experts")
            : trf_experts_create(handles.data(), static_cast<uint32_t>(handles.size()), &made->handle, &made->refusal);
    if (status == TRF_OK)
        made->refusal = {};
    else if (status != TRF_ERR_ARGUMENT && status != TRF_ERR_UNSUPPORTED) {
        *err = made->refusal;
        return status;
    }
    registry &in = the_registry();
    std::shared_ptr<experts> released;
    std::vector<std::shared_ptr<moe>> mixtures;
    const std::lock_guard<std::mutex> guard(in.lock);
    const auto at = in.experts.find({device, container});
    if (at != in.experts.end() && !is_current(*at->second, container_bytes, in)) {
        take_mixtures(in, at->second.get(), &mixtures);
        released = std::move(at->second);
        in.experts.erase(at);
    }
    if (!in.experts.insert({{device, container}, made}).second)
        return fail(err, TRF_ERR_EXISTS, "there are experts at this place already");
    return TRF_OK;
}

void forget_experts(int device, const void *container) {
    registry &in = the_registry();
    forgotten layers;
    std::shared_ptr<experts> found; // goes before its layers
    std::vector<std::shared_ptr<moe>> mixtures;
    const std::lock_guard<std::mutex> guard(in.lock);
    const auto at = in.experts.find({device, container});
    if (at == in.experts.end())
        return;
    found = std::move(at->second);
    in.experts.erase(at);
    take_mixtures(in, found.get(), &mixtures);
    for (const auto &one : found->layers)
        take_layer(in, {device, one->buffer}, &layers);
}

trf_status find_or_make_context(int device, trf_context **context, trf_error *err) {
    registry &in = the_registry();
    {
        const std::lock_guard<std::mutex> guard(in.lock);
        const auto at = in.contexts.find(device);
        if (at != in.contexts.end()) {
            if (!is_usable(device, at->second.fork_generation, in))
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
        const auto [at, is_first] = in.contexts.insert({device, {made, in.fork_generation}});
        if (!is_first)
            other = made;
        *context = at->second.context;
    }
    trf_context_destroy(other);
    return TRF_OK;
}

trf_status insert_layer(int device, const void *buffer, uint64_t buffer_bytes, trf_device_layer *handle,
                        trf_error *err) {
    trf_device_layer_info info;
    trf_device_layer_get_info(handle, &info);
    auto made = std::make_shared<layer>();
    made->device = device;
    made->buffer = buffer;
    made->buffer_bytes = buffer_bytes;
    made->info = info.layer;
    if (device == TRF_DEVICE_CPU)
        std::memcpy(made->first_bytes, buffer, sizeof made->first_bytes);
    registry &in = the_registry();
    forgotten released;
    const std::lock_guard<std::mutex> guard(in.lock);
    const auto at = in.layers.find({device, buffer});
    if (at != in.layers.end() && !is_current(*at->second, buffer_bytes, in))
        take_layer(in, {device, buffer}, &released);
    made->fork_generation = in.fork_generation;
    made->number = in.next_number++;
    if (!in.layers.insert({{device, buffer}, made}).second)
        return fail(err, TRF_ERR_EXISTS, "there is a layer at this place already");
    made->handle = handle;
    return TRF_OK;
}

void forget_layer(int device, const void *buffer) {
    registry &in = the_registry();
    forgotten released;
    const std::lock_guard<std::mutex> guard(in.lock);
    take_layer(in, {device, buffer}, &released);
}

uint64_t count_layers() {
    registry &in = the_registry();
    const std::lock_guard<std::mutex> guard(in.lock);
    return in.layers.size();
}

} // namespace trf_torch
