/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_torch_manage.h"

#include "transfuse/device_memory.h"
#include "trf_torch_product.h"
#include "trf_torch_registry.h"

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

namespace {

constexpr const char *kNoAdoptionError = "this buffer is unknown, and transfuse::adopt did not take it";

thread_local std::string adoption_error = kNoAdoptionError;

trf_load_options options_for(trf_layout layout) {
    trf_load_options options;
    trf_load_options_init(&options);
    options.layout = layout;
    return options;
}

trf_load_options options_for(trf_layout layout, uint32_t first_row, uint32_t num_rows, uint32_t first_col,
                             uint32_t num_cols) {
    trf_load_options options = options_for(layout);
    options.first_row = first_row;
    options.num_rows = num_rows;
    options.first_col = first_col;
    options.num_cols = num_cols;
    return options;
}

int is_cancelled(void *cancel, const char *, uint64_t, uint64_t) {
    return __atomic_load_n(static_cast<const int32_t *>(cancel), __ATOMIC_RELAXED);
}

trf_status fail_to_find(const char *message, trf_error *err) {
    *err = {TRF_ERR_NOT_FOUND, 0, TRF_NO_OFFSET, ""};
    snprintf(err->message, sizeof err->message, "%s", message);
    return TRF_ERR_NOT_FOUND;
}

/* Makes a layer known by its memory, if it was made: status is that of making it. It destroys it after a failure. */
trf_status insert_made(int device, const trf_layer_memory *memory, trf_status status, trf_device_layer *made,
                       trf_error *err) {
    if (status == TRF_OK)
        status = trf_torch::insert_layer(device, memory->buffer, memory->buffer_bytes, made, err);
    if (status != TRF_OK)
        trf_device_layer_destroy(made);
    return status;
}

std::vector<const void *> places_of(const void *container, const uint64_t *offsets, uint32_t count) {
    std::vector<const void *> buffers;
    for (uint32_t i = 0; i < count; i++)
        buffers.push_back(static_cast<const uint8_t *>(container) + offsets[i]);
    return buffers;
}

} // namespace

trf_status trf_torch_get_size(int device, const void *buffer, uint64_t buffer_bytes, trf_layout layout,
                              trf_layer_size *size, trf_error *err) {
    trf_context *context;
    const trf_status status = trf_torch::find_or_make_context(device, &context, err);
    if (status != TRF_OK)
        return status;
    trf_load_options options = options_for(layout);
    options.buffer_is_on_device = 1;
    return trf_device_layer_get_size(context, buffer, buffer_bytes, &options, size, err);
}

trf_status trf_torch_adopt(int device, const void *buffer, uint64_t buffer_bytes, trf_layout layout,
                           const trf_layer_memory *memory, trf_error *err) {
    trf_context *context;
    trf_status status = trf_torch::find_or_make_context(device, &context, err);
    if (status != TRF_OK)
        return status;
    trf_load_options options = options_for(layout);
    options.buffer_is_on_device = 1;
    options.memory = *memory;
    trf_device_layer *made = nullptr;
    status = trf_device_layer_create(context, buffer, buffer_bytes, &options, &made, err);
    return insert_made(device, memory, status, made, err);
}

trf_status trf_torch_get_converted_size(int device, const void *buffer, uint64_t buffer_bytes, trf_layout layout,
                                        trf_layer_size *size, trf_error *err) {
    const trf_torch::found_layer found = trf_torch::find_layer(device, buffer, buffer_bytes);
    return found.layer ? trf_device_layer_get_converted_size(found.layer->handle, layout, size, err)
                       : fail_to_find("there is no layer at this place", err);
}

trf_status trf_torch_convert(int device, const void *buffer, uint64_t buffer_bytes, trf_layout layout,
                             const trf_layer_memory *memory, trf_error *err) {
    const trf_torch::found_layer found = trf_torch::find_layer(device, buffer, buffer_bytes);
    if (!found.layer)
        return fail_to_find("there is no layer at this place", err);
    trf_device_layer *made = nullptr;
    trf_status status = trf_device_layer_convert(found.layer->handle, layout, memory, &made, err);
    return insert_made(device, memory, status, made, err);
}

namespace {

/* Layers that are known, as the library takes them. `kept` holds them while it uses them. */
struct layer_list {
    std::vector<trf_torch::found_layer> kept;
    std::vector<const trf_device_layer *> handles;
};

trf_status find_layers(int device, const void *const *buffers, const uint64_t *buffer_bytes, uint32_t count,
                       layer_list &list, trf_error *err) {
    for (uint32_t i = 0; i < count; i++) {
        list.kept.push_back(trf_torch::find_layer(device, buffers[i], buffer_bytes[i]));
        if (!list.kept.back().layer)
            return fail_to_find("there is no layer at this place", err);
        list.handles.push_back(list.kept.back().layer->handle);
    }
    return TRF_OK;
}

/* Gate and up, or gate alone where that has both (up is NULL then). */
trf_status find_gate_up(int device, const void *gate, uint64_t gate_bytes, const void *up, uint64_t up_bytes,
                        layer_list &list, trf_error *err) {
    const void *const buffers[] = {gate, up};
    const uint64_t bytes[] = {gate_bytes, up_bytes};
    const trf_status status = find_layers(device, buffers, bytes, up ? 2 : 1, list, err);
    list.handles.resize(2);
    return status;
}

} // namespace

trf_status trf_torch_get_gate_up_size(int device, const void *gate, uint64_t gate_bytes, const void *up,
                                      uint64_t up_bytes, trf_layer_size *size, trf_error *err) {
    layer_list list;
    const trf_status status = find_gate_up(device, gate, gate_bytes, up, up_bytes, list, err);
    return status == TRF_OK ? trf_gate_up_get_converted_size(list.handles[0], list.handles[1], size, err) : status;
}

trf_status trf_torch_convert_gate_up(int device, const void *gate, uint64_t gate_bytes, const void *up,
                                     uint64_t up_bytes, const trf_layer_memory *memory, trf_error *err) {
    layer_list list;
    trf_device_layer *made = nullptr;
    trf_status status = find_gate_up(device, gate, gate_bytes, up, up_bytes, list, err);
    if (status == TRF_OK)
        status = trf_gate_up_convert(list.handles[0], list.handles[1], memory, &made, err);
    return insert_made(device, memory, status, made, err);
}

trf_status trf_torch_get_joined_size(int device, const void *const *buffers, const uint64_t *buffer_bytes,
                                     uint32_t count, trf_layer_size *size, trf_error *err) {
    layer_list list;
    const trf_status status = find_layers(device, buffers, buffer_bytes, count, list, err);
    return status == TRF_OK ? trf_device_layer_get_joined_size(list.handles.data(), count, size, err) : status;
}

trf_status trf_torch_join(int device, const void *const *buffers, const uint64_t *buffer_bytes, uint32_t count,
                          const trf_layer_memory *memory, trf_error *err) {
    layer_list list;
    trf_device_layer *made = nullptr;
    trf_status status = find_layers(device, buffers, buffer_bytes, count, list, err);
    if (status == TRF_OK)
        status = trf_device_layer_join(list.handles.data(), count, memory, &made, err);
    return insert_made(device, memory, status, made, err);
}

trf_status trf_torch_get_packed_size(int device, const trf_device_matrix *dense, trf_layer_size *size, trf_error *err) {
    trf_context *context;
    const trf_status status = trf_torch::find_or_make_context(device, &context, err);
    return status == TRF_OK ? trf_device_layer_get_packed_size(context, dense, size, err) : status;
}

trf_status trf_torch_pack(int device, const trf_device_matrix *dense, const trf_layer_memory *memory, trf_stream stream,
                          uint64_t stored_room, int packed_bf16, const void *like, uint64_t like_bytes,
                          trf_error *err) {
    trf_context *context;
    trf_status status = trf_torch::find_or_make_context(device, &context, err);
    if (status != TRF_OK)
        return status;
    trf_torch::found_layer other;
    if (like)
        other = trf_torch::find_layer(device, like, like_bytes);
    if (like && !other.layer)
        return fail_to_find("there is no layer at this place", err);
    trf_pack_options options;
    trf_pack_options_init(&options);
    options.memory = *memory;
    options.stream = stream;
    options.stored_room = stored_room;
    options.packed_bf16 = packed_bf16;
    options.like = like ? other.layer->handle : nullptr;
    trf_device_layer *made = nullptr;
    status = trf_device_layer_pack(context, dense, &options, &made, err);
    return insert_made(device, memory, status, made, err);
}

trf_status trf_torch_pack_gate_up(int device, const trf_device_matrix *dense, const trf_layer_memory *memory,
                                  trf_stream stream, trf_error *err) {
    trf_context *context;
    trf_device_layer *made = nullptr;
    trf_status status = trf_torch::find_or_make_context(device, &context, err);
    if (status == TRF_OK)
        status = trf_gate_up_pack(context, dense, stream, memory, &made, err);
    return insert_made(device, memory, status, made, err);
}

trf_status trf_torch_get_load_size(int device, trf_checkpoint *checkpoint, const char *tensor, trf_layout layout,
                                   uint32_t first_row, uint32_t num_rows, uint32_t first_col, uint32_t num_cols,
                                   trf_layer_size *size, trf_error *err) {
    trf_context *context;
    const trf_status status = trf_torch::find_or_make_context(device, &context, err);
    const trf_load_options options = options_for(layout, first_row, num_rows, first_col, num_cols);
    return status == TRF_OK ? trf_device_layer_get_load_size(context, checkpoint, tensor, &options, size, err) : status;
}

trf_status trf_torch_load(int device, trf_checkpoint *checkpoint, const char *tensor, trf_layout layout,
                          uint32_t first_row, uint32_t num_rows, uint32_t first_col, uint32_t num_cols,
                          const trf_layer_memory *memory, const int32_t *cancel, trf_error *err) {
    trf_context *context;
    trf_status status = trf_torch::find_or_make_context(device, &context, err);
    if (status != TRF_OK)
        return status;
    trf_load_options options = options_for(layout, first_row, num_rows, first_col, num_cols);
    options.memory = *memory;
    options.progress = cancel ? is_cancelled : nullptr;
    options.progress_context = const_cast<int32_t *>(cancel);
    trf_device_layer *made = nullptr;
    status = trf_device_layer_load(context, checkpoint, tensor, &options, &made, err);
    return insert_made(device, memory, status, made, err);
}

void trf_torch_set_exact(int exact) { trf_torch::set_exact(exact != 0); }

int trf_torch_is_known(int device, const void *buffer, uint64_t buffer_bytes) {
    return trf_torch::find_layer(device, buffer, buffer_bytes).layer ||
           trf_torch::find_experts(device, buffer, buffer_bytes);
}

uint64_t trf_torch_get_bytes(int device, const void *buffer) { return trf_torch::bytes_at(device, buffer); }

uint32_t trf_torch_get_places(int device, const void *container, uint64_t container_bytes, uint32_t capacity,
                              uint64_t *offsets, uint64_t *sizes, trf_gate_up_order *order) {
    const auto found = trf_torch::find_experts(device, container, container_bytes);
    if (!found || found->layers.size() > capacity)
        return found ? static_cast<uint32_t>(found->layers.size()) : 0;
    for (const auto &layer : found->layers) {
        *offsets++ = static_cast<uint64_t>(static_cast<const uint8_t *>(layer->buffer) -
                                           static_cast<const uint8_t *>(container));
        *sizes++ = layer->buffer_bytes;
    }
    *order =
        found->combined == trf_torch::combination::interleaved_experts ? TRF_GATE_UP_INTERLEAVED_8 : TRF_GATE_UP_HALVES;
    return static_cast<uint32_t>(found->layers.size());
}

int trf_torch_find(int device, const void *buffer, uint64_t buffer_bytes, trf_device_layer_info *info) {
    const trf_torch::found_layer found = trf_torch::find_layer(device, buffer, buffer_bytes);
    if (found.layer)
        trf_device_layer_get_info(found.layer->handle, info);
    return found.layer != nullptr;
}

void trf_torch_get_layout_reason(int device, const void *buffer, uint64_t buffer_bytes, char *reason,
                                 uint64_t reason_bytes) {
    const trf_torch::found_layer found = trf_torch::find_layer(device, buffer, buffer_bytes);
    snprintf(reason, reason_bytes, "%s", found.layer ? trf_device_layer_get_layout_reason(found.layer->handle) : "");
}

trf_status trf_torch_make_experts(int device, const void *container, uint64_t container_bytes, const uint64_t *offsets,
                                  uint32_t count, trf_gate_up_order order, trf_error *err) {
    const auto combined = order == TRF_GATE_UP_INTERLEAVED_8 ? trf_torch::combination::interleaved_experts
                                                             : trf_torch::combination::experts;
    return trf_torch::insert_experts(device, container, container_bytes, places_of(container, offsets, count), combined,
                                     err);
}

trf_status trf_torch_assemble_rows(int device, const void *container, uint64_t container_bytes, const uint64_t *offsets,
                                   uint32_t count, trf_error *err) {
    return trf_torch::insert_experts(device, container, container_bytes, places_of(container, offsets, count),
                                     trf_torch::combination::assembled, err);
}

trf_status trf_torch_check(int device, const void *buffer, uint64_t buffer_bytes, trf_error *err) {
    const trf_torch::found_layer found = trf_torch::find_layer(device, buffer, buffer_bytes);
    return found.layer ? trf_device_layer_check(found.layer->handle, err)
                       : fail_to_find("there is no layer at this place", err);
}

trf_status trf_torch_verify(int device, const void *buffer, uint64_t buffer_bytes, trf_error *err) {
    const trf_torch::found_layer found = trf_torch::find_layer(device, buffer, buffer_bytes);
    return found.layer ? trf_device_layer_verify(found.layer->handle, err)
                       : fail_to_find("there is no layer at this place", err);
}

trf_status trf_torch_check_experts_dtype(int device, const void *container, uint64_t container_bytes, trf_dtype dtype,
                                         trf_error *err) {
    const std::shared_ptr<trf_torch::experts> found = trf_torch::find_experts(device, container, container_bytes);
    if (!found)
        return fail_to_find("there are no experts at this place", err);
    if (!found->handle) {
        *err = found->refusal;
        return found->refusal.status;
    }
    trf_experts_plan *plan = nullptr;
    const trf_status status = trf_experts_plan_create(found->handle, 1, dtype, dtype, &plan, err);
    trf_experts_plan_destroy(plan);
    return status;
}

trf_status trf_torch_prepare_moe(int device, const trf_torch_experts *gate_up, const trf_torch_experts *down,
                                 const trf_torch_experts *up, uint32_t top_k, int is_gelu, trf_error *err) {
    const auto find = [device](const trf_torch_experts *of) {
        return of->container ? trf_torch::find_experts(device, of->container, of->container_bytes) : nullptr;
    };
    const trf_torch::mixed_experts of = {find(gate_up), find(down), find(up)};
    if (!of.gate_up || !of.down || (up->container && !of.up))
        return fail_to_find("there are no experts at this place", err);
    std::shared_ptr<trf_torch::moe> made;
    const trf_activation activation = is_gelu ? TRF_ACTIVATION_GELU_TANH : TRF_ACTIVATION_SILU;
    return trf_torch::find_or_make_moe(of, {nullptr, nullptr, nullptr, top_k, 0, activation}, &made, err);
}

void trf_torch_forget_experts(int device, const void *container) { trf_torch::forget_experts(device, container); }

void trf_torch_forget(int device, const void *buffer) { trf_torch::forget_layer(device, buffer); }

uint64_t trf_torch_count_layers(void) { return trf_torch::count_layers(); }

void trf_torch_set_adoption_error(const char *message) { adoption_error = message; }

namespace trf_torch {

std::string take_adoption_error() { return std::exchange(adoption_error, kNoAdoptionError); }

} // namespace trf_torch
