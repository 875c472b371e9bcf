/* SPDX-License-Identifier: Apache-2.0 */
/* The window of a layer that is packed on the device where it lies. */
#ifndef TRF_PACKED_SAMPLE_CUDA_H
#define TRF_PACKED_SAMPLE_CUDA_H

#include "trf_device_layer.h"
#include "trf_packed_head.h"

enum {
    TRF_PACKED_SAMPLE_ROWS = 128 /* at most; of n rows those with the numbers i * (n / 128) */
};

/* Finds the window by some rows of a layer of the bf16 codec, coded or plain, on the device; else as
 * trf_packed_sample_choose. The device is current. Errors: TRF_ERR_MEMORY, TRF_ERR_CUDA; rows that do not decode are
 * left to what decodes all. */
trf_status trf_cuda_sample_window(const trf_device_layer *layer, trf_packed_window *window, trf_error *err);

#endif
