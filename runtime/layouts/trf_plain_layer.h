/* SPDX-License-Identifier: Apache-2.0 */
/* What plain layers have in common on every kind of device. Such a layer is a buffer that format/trf_plain_head.h
 * describes, and has no directory. */
#ifndef TRF_PLAIN_LAYER_H
#define TRF_PLAIN_LAYER_H

#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_plain_head.h"

/* Members of trf_layout_ops. */
trf_status trf_plain_get_size(const struct trf_blob_view *view, const trf_shard_range *shard, trf_layer_size *size,
                              trf_error *err);
trf_status trf_plain_get_converted_size(const trf_device_layer *from, trf_layer_size *size, trf_error *err);
trf_status trf_plain_adopt(trf_device_layer *made, const void *buffer, uint64_t buffer_bytes, trf_error *err);

/* Sets the fields of a layer that describe its buffer, for all of its matrix. info has its rows and columns. */
void trf_plain_set_buffer(trf_device_layer *layer, const void *buffer);

static inline const uint16_t *trf_plain_weights(const trf_device_layer *layer) {
    return (const uint16_t *)(layer->view.buffer + TRF_PLAIN_WEIGHTS_OFFSET);
}

/* Whether decoding copies the weights unchanged. Otherwise it widens them to F32. */
int trf_plain_is_copied(const trf_device_layer *layer, trf_decode_as as);

#endif
