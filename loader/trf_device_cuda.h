/* Layers in a GPU's memory, for files that have such memory themselves. The device is current. */
#ifndef TRF_DEVICE_CUDA_H
#define TRF_DEVICE_CUDA_H

#include "trf_device_kinds.h"

/* Errors: TRF_ERR_UNSUPPORTED (a blob that is too large for a GPU). */
trf_status trf_cuda_check_size(const trf_layer *layer, trf_error *err);

/* Uploads a layer's image to memory_dev, 256-byte aligned, clears *fault_dev, and sets device_layer's facts and view. Complete when it returns. Errors: TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_cuda_place_layer(trf_device_layer *device_layer, const trf_layer *layer, uint8_t *memory_dev,
                                trf_device_fault *fault_dev, trf_error *err);

#endif
