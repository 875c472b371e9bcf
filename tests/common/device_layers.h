/* SPDX-License-Identifier: Apache-2.0 */
/* What tests do with layers on a device, whatever their layout: weights, rows and products in host memory, malloc'd.
 * Canaries stand around all that the library writes. Everything here ends the test on failure. */
#ifndef DEVICE_LAYERS_H
#define DEVICE_LAYERS_H

#include "transfuse/device_memory.h"

/* Device memory with these bytes; release with trf_device_free. */
void *device_upload(const trf_context *context, const void *from, uint64_t bytes);

uint64_t decoded_weight_bytes(const trf_layer_info *info, trf_decode_as as);

/* The whole matrix. */
uint8_t *device_decode(const trf_device_layer *layer, trf_decode_as as);

/* All rows, each once and in some order (row i is the layer's i * 7919 % rows), and three that there are not. NULL
 * where the layer is not decoded so. */
uint8_t *device_look_up(const trf_device_layer *layer, trf_decode_as as, uint32_t id_bytes);

/* Expects that b gives a's weights and rows, bit for bit; a: may be one that is not decoded whole. */
void device_check_weights(const trf_device_layer *a, const trf_device_layer *b, trf_decode_as as);

/* x[m][cols]: bits that are small numbers when they are read as BF16, and as F16, too. */
uint16_t *device_make_x(uint32_t m, uint32_t cols);

/* Rows of y, what is between them included, of a plan with the operands that its options name; a residual is y. */
uint8_t *device_multiply(trf_device_layer *layer, const trf_plan_options *options, const uint16_t *x);

/* A checkpoint of one tensor, "f32", made of F32 by the codec bf16, in the fixture's folder. */
trf_checkpoint *device_layers_open_f32_as_bf16(uint32_t rows, uint32_t cols);

#endif
