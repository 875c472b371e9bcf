/* SPDX-License-Identifier: Apache-2.0 */
/* The functions by which _registry.py and _load.py manage the layers, through ctypes. device: CUDA ordinal, or
 * TRF_DEVICE_CPU. */
#ifndef TRF_TORCH_MANAGE_H
#define TRF_TORCH_MANAGE_H

#include "transfuse/device_memory.h"
#include "transfuse/experts.h"

#include <string>

#define TRF_TORCH_API __attribute__((visibility("default")))

extern "C" {

/* The memory of the layer that a blob in device memory becomes in a layout, or that a buffer of this layout is. Errors:
 * trf_device_layer_get_size's. */
TRF_TORCH_API trf_status trf_torch_get_size(int device, const void *buffer, uint64_t buffer_bytes, trf_layout layout,
                                            trf_layer_size *size, trf_error *err);

/* Makes a layer of a blob, or of a buffer of its layout, which is used where it lies: at memory->buffer. Memory
 * stays until the layer, which is known by that, is forgotten. Errors: trf_device_layer_create's; TRF_ERR_EXISTS (there
 * is one already). */
TRF_TORCH_API trf_status trf_torch_adopt(int device, const void *buffer, uint64_t buffer_bytes, trf_layout layout,
                                         const trf_layer_memory *memory, trf_error *err);

/* Makes a layer of one that is known in another layout, in memory that is given, by which it is known then; and how
 * much that takes. The old one stays as it is. Errors: those of trf_device_layer_convert and _get_converted_size;
 * TRF_ERR_NOT_FOUND (it is unknown), TRF_ERR_EXISTS (there is a layer in this memory already). */
TRF_TORCH_API trf_status trf_torch_get_converted_size(int device, const void *buffer, uint64_t buffer_bytes,
                                                      trf_layout layout, trf_layer_size *size, trf_error *err);
TRF_TORCH_API trf_status trf_torch_convert(int device, const void *buffer, uint64_t buffer_bytes, trf_layout layout,
                                           const trf_layer_memory *memory, trf_error *err);

/* They do the same for gate and up that are known, which become one packed FP8 layer as trf_gate_up_convert has it. up:
 * NULL if gate has both. Errors: those of trf_gate_up_convert and _get_converted_size; TRF_ERR_NOT_FOUND (one of them
 * is unknown), TRF_ERR_EXISTS (there is a layer in this memory already). */
TRF_TORCH_API trf_status trf_torch_get_gate_up_size(int device, const void *gate, uint64_t gate_bytes, const void *up,
                                                    uint64_t up_bytes, trf_layer_size *size, trf_error *err);
TRF_TORCH_API trf_status trf_torch_convert_gate_up(int device, const void *gate, uint64_t gate_bytes, const void *up,
                                                   uint64_t up_bytes, const trf_layer_memory *memory, trf_error *err);

/* Makes one packed FP8 layer of known ones, [count] buffers of so many bytes, whose rows follow each other, in memory
 * that is given, by which it is known then; and how much that takes. Errors: those of trf_device_layer_join and
 * _get_joined_size; TRF_ERR_NOT_FOUND (one is unknown), TRF_ERR_EXISTS (there is a layer in this memory already). */
TRF_TORCH_API trf_status trf_torch_get_joined_size(int device, const void *const *buffers, const uint64_t *buffer_bytes,
                                                   uint32_t count, trf_layer_size *size, trf_error *err);
TRF_TORCH_API trf_status trf_torch_join(int device, const void *const *buffers, const uint64_t *buffer_bytes,
                                        uint32_t count, const trf_layer_memory *memory, trf_error *err);

/* Makes a packed layer of dense weights, which `stream` writes, in memory that is given, by which it is known then; and
 * how much that takes. stored_room, packed_bf16: as trf_pack_options has them. like: the buffer of a packed layer that
 * is known, whose form it takes, or NULL. Errors: those of trf_device_layer_pack and _get_packed_size;
 * TRF_ERR_NOT_FOUND (`like` is unknown), TRF_ERR_EXISTS (there is a layer in this memory already). */
TRF_TORCH_API trf_status trf_torch_get_packed_size(int device, const trf_device_matrix *dense, trf_layer_size *size,
                                                   trf_error *err);
TRF_TORCH_API trf_status trf_torch_pack(int device, const trf_device_matrix *dense, const trf_layer_memory *memory,
                                        trf_stream stream, uint64_t stored_room, int packed_bf16, const void *like,
                                        uint64_t like_bytes, trf_error *err);

/* Does the same for gate and up that were FP8, as trf_gate_up_pack has it; trf_torch_get_packed_size's memory is
 * enough. Errors: those of trf_gate_up_pack; TRF_ERR_EXISTS. */
TRF_TORCH_API trf_status trf_torch_pack_gate_up(int device, const trf_device_matrix *dense,
                                                const trf_layer_memory *memory, trf_stream stream, trf_error *err);

/* They do what trf_torch_get_converted_size and _convert do for a tensor of a checkpoint, which is read to the
 * memory that is given: *size is what it takes. first_row to num_cols: the part to load, as trf_load_options has it;
 * zeros: the whole tensor. cancel: nonzero asks to stop, from any thread; or NULL. Errors: trf_device_layer_load's. */
TRF_TORCH_API trf_status trf_torch_get_load_size(int device, trf_checkpoint *checkpoint, const char *tensor,
                                                 trf_layout layout, uint32_t first_row, uint32_t num_rows,
                                                 uint32_t first_col, uint32_t num_cols, trf_layer_size *size,
                                                 trf_error *err);
TRF_TORCH_API trf_status trf_torch_load(int device, trf_checkpoint *checkpoint, const char *tensor, trf_layout layout,
                                        uint32_t first_row, uint32_t num_rows, uint32_t first_col, uint32_t num_cols,
                                        const trf_layer_memory *memory, const int32_t *cancel, trf_error *err);

/* @return whether there is a layer at a place, or a container of experts. */
TRF_TORCH_API int trf_torch_is_known(int device, const void *buffer, uint64_t buffer_bytes);

/* @return how many bytes the layer or container takes that was made known at a place, whatever stands there now, so
 * that trf_torch_is_known may deny it; 0 if none was. */
TRF_TORCH_API uint64_t trf_torch_get_bytes(int device, const void *buffer);

/* Tells where the layers of a container lie in it, [count] offsets and sizes, and in which order their rows do, as they
 * did when it became known. @return count; nothing is written if that is 0, for there is no container, or above
 * capacity. */
TRF_TORCH_API uint32_t trf_torch_get_places(int device, const void *container, uint64_t container_bytes,
                                            uint32_t capacity, uint64_t *offsets, uint64_t *sizes,
                                            trf_gate_up_order *order);

/* @return whether there is a layer at a place; *info is filled then. */
TRF_TORCH_API int trf_torch_find(int device, const void *buffer, uint64_t buffer_bytes, trf_device_layer_info *info);

/* Writes trf_device_layer_get_layout_reason of the layer at a place to `reason`; "" if there is none. */
TRF_TORCH_API void trf_torch_get_layout_reason(int device, const void *buffer, uint64_t buffer_bytes, char *reason,
                                               uint64_t reason_bytes);

/* Makes experts of layers that are known: [count] buffers at these offsets of a container. order: in which their rows
 * lie, if they are gate and up in one matrix. Where the library does not take them together,
 * trf_torch_check_experts_dtype says so. Errors: see insert_experts. */
TRF_TORCH_API trf_status trf_torch_make_experts(int device, const void *container, uint64_t container_bytes,
                                                const uint64_t *offsets, uint32_t count, trf_gate_up_order order,
                                                trf_error *err);

/* Makes one matrix of layers that are known, [count] buffers at these offsets of a container, whose rows follow each
 * other: the ops that take keys find it by the container's first bytes. Errors: see insert_experts. */
TRF_TORCH_API trf_status trf_torch_assemble_rows(int device, const void *container, uint64_t container_bytes,
                                                 const uint64_t *offsets, uint32_t count, trf_error *err);

/* Waits for the device, and says whether it met a corrupt tile of the layer at a place since that is known. Errors:
 * trf_device_layer_check's; TRF_ERR_NOT_FOUND (it is unknown). */
TRF_TORCH_API trf_status trf_torch_check(int device, const void *buffer, uint64_t buffer_bytes, trf_error *err);

/* Compares the layer at a place with its checksums. Errors: trf_device_layer_verify's; TRF_ERR_NOT_FOUND. */
TRF_TORCH_API trf_status trf_torch_verify(int device, const void *buffer, uint64_t buffer_bytes, trf_error *err);

/* Whether transfuse::experts takes them with an x of this dtype. Errors: trf_experts_create's and _plan_create's;
 * TRF_ERR_NOT_FOUND. */
TRF_TORCH_API trf_status trf_torch_check_experts_dtype(int device, const void *container, uint64_t container_bytes,
                                                       trf_dtype dtype, trf_error *err);

/* Experts of a container, as the functions above find them. */
typedef struct trf_torch_experts {
    const void *container; /* NULL: none */
    uint64_t container_bytes;
} trf_torch_experts;

/* Prepares the mixture of transfuse::moe for so many experts a token, so that the first call need not; this waits for
 * the device if they are coded. up: none if gate_up has both. is_gelu: whether the activation is gelu_tanh, and not
 * silu. Errors: trf_moe_create's; TRF_ERR_NOT_FOUND. */
TRF_TORCH_API trf_status trf_torch_prepare_moe(int device, const trf_torch_experts *gate_up,
                                               const trf_torch_experts *down, const trf_torch_experts *up,
                                               uint32_t top_k, int is_gelu, trf_error *err);

/* Exact mode of the ops that take keys. */
TRF_TORCH_API void trf_torch_set_exact(int exact);

TRF_TORCH_API void trf_torch_forget(int device, const void *buffer);
TRF_TORCH_API void trf_torch_forget_experts(int device, const void *container); /* and their layers */
TRF_TORCH_API uint64_t trf_torch_count_layers(void);                            /* how many layers are known */

/* What the op that misses a layer throws, if this thread's transfuse::adopt did not make one. */
TRF_TORCH_API void trf_torch_set_adoption_error(const char *message);
}

namespace trf_torch {

std::string take_adoption_error();

} // namespace trf_torch

#endif
