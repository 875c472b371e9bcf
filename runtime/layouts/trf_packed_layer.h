/* SPDX-License-Identifier: Apache-2.0 */
/* What packed layers have in common on every kind of device. Such a layer is a buffer that format/PACKED.md describes,
 * and has no directory. */
#ifndef TRF_PACKED_LAYER_H
#define TRF_PACKED_LAYER_H

#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_layer_feed.h"
#include "trf_packed_head.h"

/* What is to be packed: a shard of a blob, or a layer. */
typedef struct trf_pack_request {
    uint32_t codec, rows, cols;
    int has_row_offsets;
} trf_pack_request;

trf_pack_request trf_pack_request_of_shard(const struct trf_blob_view *view, const trf_shard_range *shard);
trf_pack_request trf_pack_request_of_layer(const trf_device_layer *from);

/* The exponent offsets of a blob's or a coded layer's rows that packing takes out, or NULL. */
const int8_t *trf_feed_row_offsets(const trf_layer_feed *feed);
const int8_t *trf_layer_row_offsets(const trf_device_layer *from);

/* Sets *head to the sizes of the largest packed layer that the request may become. Errors: TRF_ERR_UNSUPPORTED (codec,
 * shape). */
trf_status trf_packed_size_most(const trf_pack_request *request, trf_packed_head *head, trf_error *err);

/* Members of trf_layout_ops. The size of a packed layer is known only when its weights are. So the functions give the
 * most that a layer of its shape may take by trf_packed_pays; the layer's memory_bytes says what it did take. Adopting
 * reads the head alone. */
trf_status trf_packed_get_size(const struct trf_blob_view *view, const trf_shard_range *shard, trf_layer_size *size,
                               trf_error *err);
trf_status trf_packed_get_converted_size(const trf_device_layer *from, trf_layer_size *size, trf_error *err);
trf_status trf_packed_get_matrix_size(const trf_device_matrix *matrix, trf_layer_size *size, trf_error *err);
trf_status trf_packed_adopt(trf_device_layer *made, const void *buffer, uint64_t buffer_bytes, trf_error *err);

/* Reads and checks the caller's matrix, except its weights; taken->ld is set. Errors: TRF_ERR_ARGUMENT,
 * TRF_ERR_UNSUPPORTED (another dtype). */
trf_status trf_take_device_matrix(const trf_device_matrix *matrix, trf_device_matrix *taken, trf_error *err);

/* Checks the shape of such a matrix, and that its weights are given; *size is that of trf_packed_get_matrix_size.
 * Errors: TRF_ERR_ARGUMENT, TRF_ERR_UNSUPPORTED. */
trf_status trf_check_dense_weights(const trf_device_matrix *matrix, trf_layer_size *size, trf_error *err);

/* Sets the fields of a layer that describe its buffer, for all of its matrix. info is set, and head has been
 * checked. */
void trf_packed_set_buffer(trf_device_layer *layer, const trf_packed_head *head, const void *buffer);

/* The window of a layer's weights. */
trf_packed_window trf_packed_window_of_view(const trf_packed_view *view);

/* Chooses how many stored tiles a layer that needs `needed` of them gets room for: stored_room more, as long as packing
 * still pays; or, if `like` is not NULL, as many as that has. head has its sizes. Errors: TRF_ERR_UNSUPPORTED (it needs
 * more than `like` has). */
trf_status trf_packed_choose_stored(const trf_packed_head *head, uint64_t needed, uint64_t stored_room,
                                    const trf_packed_view *like, uint64_t *room, trf_error *err);

/* Completes the message that says why a layer is not packed. The packing code counts offsets in the dense weights,
 * which the caller does not have, so the offset is dropped. @return status. */
trf_status trf_packed_fail(trf_status status, trf_error *err);

#endif
