/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that become something else on the CPU, while they are loaded or later: their dense weights. */
#ifndef TRF_LOAD_DENSE_CPU_H
#define TRF_LOAD_DENSE_CPU_H

#include "trf_device_layer.h"
#include "trf_layer_feed.h"

/* Decodes all that a feed of a 16-bit float codec has. weights: elements, row-major [feed->shard.rows][.cols], without
 * padding. Errors: those of the feed; TRF_ERR_RANS (a tile does not decode; as trf_layer_feed_fail wants it),
 * TRF_ERR_CANCELLED, TRF_ERR_MEMORY. */
trf_status trf_cpu_load_dense(const trf_layer_feed *feed, uint16_t *weights, trf_error *err);

/* The same of a layer on the CPU, in any layout, whatever its shard cuts. Errors: TRF_ERR_RANS, TRF_ERR_MEMORY. */
trf_status trf_cpu_decode_dense(const trf_device_layer *layer, uint16_t *weights, trf_error *err);

#endif
