/* SPDX-License-Identifier: Apache-2.0 */
/* The layers of this process that ops know, by the device and address of their buffers, and the plans of each. A
 * buffer is a torch tensor of the caller's, in whatever layout: `_registry.py` adopts it here, and has it forgotten
 * when its storage goes.
 *
 * A layer whose buffer has another size is unknown, and on the CPU one whose buffer has changed since; on a GPU, whose
 * memory is not read back, nobody sees that.
 *
 * One lock guards all of it; nothing but look-ups runs under it. Layers and plans are shared: whoever has found one may
 * use it after it was forgotten or evicted. All of it stays as it is at the end of the process, when CUDA may be gone
 * already. After a fork the child keeps layers of the CPU; what was on a GPU is unknown to it, and is not destroyed. */
#ifndef TRF_TORCH_REGISTRY_H
#define TRF_TORCH_REGISTRY_H

#include "transfuse.h"
#include "transfuse/experts.h"
#include "transfuse/groups.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace trf_torch {

/* A few objects by their keys, of which one that is seldom used goes if there are too many. */
template <typename Key, typename Value> class bounded_cache {
  public:
    /* One that is found moves away from the end where they go. @return NULL if there is none. */
    std::shared_ptr<Value> find(const Key &key) {
        for (size_t i = entries_.size(); i-- > 0;)
            if (entries_[i].first == key) {
                std::shared_ptr<Value> found = entries_[i].second;
                if (i + 1 < entries_.size())
                    std::swap(entries_[i], entries_[i + 1]);
                return found;
            }
        return nullptr;
    }

    /* *value: what is taken, and then what goes, if anything: to be released by the caller. @return what is there. */
    std::shared_ptr<Value> insert(const Key &key, std::shared_ptr<Value> *value) {
        std::shared_ptr<Value> found = find(key); // of another thread
        if (found)
            return found;
        found = std::move(*value);
        value->reset();
        if (entries_.size() >= kMost) {
            *value = std::move(entries_.front().second);
            entries_.erase(entries_.begin());
        }
        entries_.emplace_back(key, found);
        return found;
    }

    /* Moves those that `is_meant` says so of to *removed. */
    template <typename Predicate> void remove(Predicate is_meant, std::vector<std::shared_ptr<Value>> *removed) {
        std::vector<std::pair<Key, std::shared_ptr<Value>>> kept;
        for (auto &entry : entries_)
            if (is_meant(entry.first))
                removed->push_back(std::move(entry.second));
            else
                kept.push_back(std::move(entry));
        entries_ = std::move(kept);
    }

  private:
    static constexpr size_t kMost = 32; // as many batch sizes as a server captures graphs of

    std::vector<std::pair<Key, std::shared_ptr<Value>>> entries_;
};

/* What the plans of one layer differ in; x and y have one dtype. */
struct plan_key {
    uint32_t m;
    uint8_t dtype;      /* trf_dtype */
    uint8_t activation; /* trf_activation */
    bool has_bias, has_multiplier, has_residual;
    uint32_t y_stride = 0; /* as trf_plan_options has it */

    bool operator==(const plan_key &other) const {
        return m == other.m && dtype == other.dtype && activation == other.activation && has_bias == other.has_bias &&
               has_multiplier == other.has_multiplier && has_residual == other.has_residual &&
               y_stride == other.y_stride;
    }
};

struct plan {
    trf_plan *handle = nullptr; /* NULL: no path takes this product at once; it is decoded and multiplied by torch */
    uint64_t workspace_bytes = 0;

    plan() = default;
    plan(const plan &) = delete;
    plan &operator=(const plan &) = delete;
    ~plan() { trf_plan_destroy(handle); }
};

struct layer;

/* The groups of one layer, which is the first of each. */
struct group_key {
    uint32_t m;
    trf_dtype dtype;
    uint32_t y_stride;             /* of all of them, as trf_group_member has it */
    std::vector<uint64_t> members; /* their layers' numbers */

    bool operator==(const group_key &other) const {
        return m == other.m && dtype == other.dtype && y_stride == other.y_stride && members == other.members;
    }
};

struct group {
    std::vector<std::shared_ptr<layer>> others; /* all but the first */
    trf_layer_group *handle = nullptr;          /* NULL: each by itself */
    uint64_t workspace_bytes = 0;

    group() = default;
    group(const group &) = delete;
    group &operator=(const group &) = delete;
    ~group() { trf_layer_group_destroy(handle); }
};

struct layer {
    int device = TRF_DEVICE_CPU;
    const void *buffer = nullptr;
    uint64_t buffer_bytes = 0;
    trf_device_layer *handle = nullptr;
    trf_layer_info info = {};
    /* The first bytes of the buffer, on the CPU: a blob's have a checksum of all of it; those of a buffer of another
     * layout have one that the head of its blob goes into. */
    uint8_t first_bytes[64] = {};
    uint64_t number = 0;          /* none has it a second time */
    uint32_t fork_generation = 0; /* forks that led to the process that made it */

    layer() = default;
    layer(const layer &) = delete;
    layer &operator=(const layer &) = delete;
    ~layer();

    /* The registry alone has it, under its lock. */
    bounded_cache<plan_key, plan> plans;
    bounded_cache<group_key, group> groups;
    std::vector<std::weak_ptr<layer>> grouped_under; /* whose groups it is in */
};

struct experts;

struct found_layer {
    std::shared_ptr<trf_torch::layer> layer;       /* NULL: none is known */
    std::shared_ptr<trf_torch::plan> plan;         /* NULL: none was made with this key */
    std::shared_ptr<trf_torch::experts> assembled; /* in place of `layer`, where an op was given the key of several */
};

/* Looks up a layer, and one of its plans if a key is given. buffer_bytes: of all of its buffer, or kAnyBytes where that
 * is known by its place alone. */
constexpr uint64_t kAnyBytes = UINT64_MAX;
found_layer find_layer(int device, const void *buffer, uint64_t buffer_bytes, const plan_key *key = nullptr);

/* @return the bytes of the layer or container that was made known at a place, whatever stands there now; 0: none. */
uint64_t bytes_at(int device, const void *buffer);

/* Makes a plan and keeps it with the layer. Throws what the library reports, but for products that no path takes: see
 * `plan`. */
std::shared_ptr<plan> make_plan(const std::shared_ptr<layer> &of, const plan_key &key, const char *op);

/* Does what make_plan does, or returns the plan that was made before. */
std::shared_ptr<plan> find_or_make_plan(const std::shared_ptr<layer> &of, const plan_key &key, const char *op);

/* The group of these layers, two at least, of one device. Throws as make_plan. */
std::shared_ptr<group> find_or_make_group(const std::vector<std::shared_ptr<layer>> &layers, uint32_t m,
                                          trf_dtype dtype, uint32_t y_stride, const char *op);

struct experts_key {
    uint32_t tokens;
    trf_dtype dtype;

    bool operator==(const experts_key &other) const { return tokens == other.tokens && dtype == other.dtype; }
};

struct experts_plan {
    trf_experts_plan *handle = nullptr;
    uint64_t workspace_bytes = 0;

    experts_plan() = default;
    experts_plan(const experts_plan &) = delete;
    experts_plan &operator=(const experts_plan &) = delete;
    ~experts_plan() { trf_experts_plan_destroy(handle); }
};

/* What the layers of one container are together. */
enum class combination {
    experts,
    interleaved_experts, /* whose rows of gate and up lie as TRF_GATE_UP_INTERLEAVED_8 has it */
    assembled            /* parts of one matrix, whose rows follow each other */
};

/* The layers of one container of buffers. */
struct experts {
    combination combined = combination::experts;
    std::vector<std::shared_ptr<layer>> layers;
    const void *container = nullptr;
    uint64_t container_bytes = 0;
    uint64_t assembled_rows = 0;   /* of the matrix; 0: experts */
    trf_experts *handle = nullptr; /* NULL: the library does not take them together, which `refusal` tells */
    trf_error refusal = {};
    bounded_cache<experts_key, experts_plan> plans; /* of the registry alone */

    experts() = default;
    experts(const experts &) = delete;
    experts &operator=(const experts &) = delete;
    ~experts();
};

/* @return NULL if none is known. container_bytes: as in find_layer. */
std::shared_ptr<experts> find_experts(int device, const void *container, uint64_t container_bytes);

/* Throws what the library reports. */
std::shared_ptr<experts_plan> find_or_make_plan(const std::shared_ptr<experts> &of, const experts_key &key,
                                                const char *op);

/* What the mixtures of the same experts differ in. */
struct moe_key {
    const experts *gate_up, *down, *up; /* up: NULL if gate_up has both */
    uint32_t top_k, num_ids;
    trf_activation activation;

    bool operator==(const moe_key &other) const {
        return gate_up == other.gate_up && down == other.down && up == other.up && top_k == other.top_k &&
               num_ids == other.num_ids && activation == other.activation;
    }
};

/* The experts of a mixture. */
struct mixed_experts {
    std::shared_ptr<experts> gate_up, down, up; /* up: NULL if gate_up has both */
};

/* A mixture of experts, and how many tokens a call of it takes at most. */
struct moe {
    trf_moe *handle = nullptr;
    uint32_t max_tokens = 0;
    mixed_experts of;

    moe() = default;
    moe(const moe &) = delete;
    moe &operator=(const moe &) = delete;
    ~moe() { trf_moe_destroy(handle); }
};

/* Sets *found to the mixture of these experts, which is made at the first call and goes when any of them is forgotten.
 * num_ids: 0: as many as there are experts here. key: its experts are set here. Errors: what the library reports;
 * TRF_ERR_ARGUMENT for packed gate_up whose rows are not interleaved, and for down whose rows are. */
trf_status find_or_make_moe(const mixed_experts &of, moe_key key, std::shared_ptr<moe> *found, trf_error *err);

/* Makes experts of layers that are known, of one device, shape and source dtype; or has them assembled, of one number
 * of columns and source dtype. Errors: TRF_ERR_EXISTS (there are some at this place), TRF_ERR_ARGUMENT (layers that do
 * not belong together, or whose rows cannot be interleaved). */
trf_status insert_experts(int device, const void *container, uint64_t container_bytes,
                          const std::vector<const void *> &buffers, combination combined, trf_error *err);

/* Forgets the layers, too, and mixtures of these experts. */
void forget_experts(int device, const void *container);

/* The context of a device, made at the first call. Errors: trf_context_create's; TRF_ERR_DEVICE (a GPU in the child of
 * a fork). */
trf_status find_or_make_context(int device, trf_context **context, trf_error *err);

/* Takes over a device layer if it succeeds. Errors: TRF_ERR_EXISTS (there is a layer at this place). */
trf_status insert_layer(int device, const void *buffer, uint64_t buffer_bytes, trf_device_layer *handle,
                        trf_error *err);

void forget_layer(int device, const void *buffer);

uint64_t count_layers();

} // namespace trf_torch

#endif
