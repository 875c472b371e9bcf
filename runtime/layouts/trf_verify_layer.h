/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the memory of layers with their checksums (trf_device_layer_verify), on any kind of device. */
#ifndef TRF_VERIFY_LAYER_H
#define TRF_VERIFY_LAYER_H

#include "trf_device_layer.h"
#include "trf_layer.h"

/* Judges a layer that is not coded. head: a copy of its head, TRF_LAYOUT_HEAD_BYTES, 8-byte aligned. computed: the
 * checksum of its data now. Errors: TRF_ERR_CHECKSUM; offsets count from the buffer's first byte. */
trf_status trf_judge_buffer(const trf_device_layer *layer, const void *head, trf_data_checksum computed,
                            trf_error *err);

/* Checks a coded layer in host memory: its head, its tiles, and the table that it is decoded by. threads: as
 * trf_thread_count takes it. Errors: TRF_ERR_CHECKSUM; offsets count from the blob's first byte. */
trf_status trf_verify_host_layer(const trf_layer *layer, int threads, trf_error *err);

/* Members of trf_layout_ops on the CPU. */
trf_status trf_cpu_verify_blob(const trf_device_layer *layer, trf_error *err);
trf_status trf_cpu_verify_buffer(const trf_device_layer *layer, trf_error *err);

#endif
