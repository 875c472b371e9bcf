/* SPDX-License-Identifier: Apache-2.0 */
/* What packed layers have in common on every kind of device: a buffer as format/PACKED.md has it, and no directory. */
#ifndef TRF_PACKED_LAYER_H
#define TRF_PACKED_LAYER_H

#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_packed_head.h"

/* What is to be packed: a shard of a blob, or a layer. */
typedef struct trf_pack_request {
    uint32_t codec, rows, cols;
    int has_row_offsets;
} trf_pack_request;

trf_pack_request trf_pack_request_of_shard(const struct trf_blob_view *view, const trf_shard_range *shard);
trf_pack_request trf_pack_request_of_layer(const trf_device_layer *from);

/* Sizes of the largest packed layer that it may become. Errors: TRF_ERR_UNSUPPORTED (codec, shape). */
trf_status trf_packed_size_most(const trf_pack_request *request, trf_packed_head *head, trf_error *err);

/* What trf_layout_ops has. How much a layer takes is known once its weights are: what is said is the most that a
 * layer of its shape may, as trf_packed_pays has it, and what it took is its memory_bytes. Adopting looks at the
 * head alone. */
trf_status trf_packed_get_size(const struct trf_blob_view *view, const trf_shard_range *shard, trf_layer_size *size,
                               trf_error *err);
trf_status trf_packed_get_converted_size(const trf_device_layer *from, trf_layer_size *size, trf_error *err);
trf_status trf_packed_get_matrix_size(const trf_device_matrix *matrix, trf_layer_size *size, trf_error *err);
trf_status trf_packed_adopt(trf_device_layer *made, const void *buffer, uint64_t buffer_bytes, trf_error *err);

/* Sets what a layer has of its buffer, once info is set: all of its matrix. head: checked. */
void trf_packed_set_buffer(trf_device_layer *layer, const trf_packed_head *head, const void *buffer);

/* The window of a layer's weights. */
trf_packed_window trf_packed_window_of_view(const trf_packed_view *view);

/* For how many stored tiles a layer gets room that needs so many: stored_room more, as long as packing pays then; or as
 * many as `like` has, if it is not NULL. head: sized. Errors: TRF_ERR_UNSUPPORTED (more than those of `like`). */
trf_status trf_packed_choose_stored(const trf_packed_head *head, uint64_t needed, uint64_t stored_room,
                                    const trf_packed_view *like, uint64_t *room, trf_error *err);

/* Completes the reason for which a layer is not packed. The offsets of what packs count from the dense weights, which
 * nobody has: they are dropped. @return status. */
trf_status trf_packed_fail(trf_status status, trf_error *err);

#endif
