/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes layers on the CPU to dense weights, from which a layer in another layout is made, by loading or by
 * converting. */
#ifndef TRF_LOAD_DENSE_CPU_H
#define TRF_LOAD_DENSE_CPU_H

#include "trf_device_layer.h"
#include "trf_layer_feed.h"

/* Decodes all that a feed of a 16-bit float codec loads. weights: elements, row-major
 * [feed->shard.rows][feed->shard.cols], without padding. Errors: those of the feed; TRF_ERR_RANS if a tile does not
 * decode (reported as trf_layer_feed_fail does), TRF_ERR_CANCELLED, TRF_ERR_MEMORY. */
trf_status trf_cpu_load_dense(const trf_layer_feed *feed, uint16_t *weights, trf_error *err);

/* Does the same for a layer on the CPU, in any layout, wherever its shard cuts tiles. Errors: TRF_ERR_RANS,
 * TRF_ERR_MEMORY. */
trf_status trf_cpu_decode_dense(const trf_device_layer *layer, uint16_t *weights, trf_error *err);

#endif
