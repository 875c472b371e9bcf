/* SPDX-License-Identifier: Apache-2.0 */
/* What tests do with layers on a device, whatever their layout: weights, rows and products in host memory, malloc'd.
 * There are canaries around everything that the library writes. Everything here ends the test on failure. */
#ifndef DEVICE_LAYERS_H
#define DEVICE_LAYERS_H

#include "transfuse/device_memory.h"

/* Copies bytes to device memory; release it with trf_device_free. */
void *device_upload(const trf_context *context, const void *from, uint64_t bytes);

uint64_t decoded_weight_bytes(const trf_layer_info *info, trf_decode_as as);

/* Decodes the whole matrix. */
uint8_t *device_decode(const trf_device_layer *layer, trf_decode_as as);

/* Looks up all rows, each once and in some order (row i is the layer's i * 7919 % rows), and three that do not exist.
 * @return NULL if the layer cannot be decoded as `as`. */
uint8_t *device_look_up(const trf_device_layer *layer, trf_decode_as as, uint32_t id_bytes);

/* Expects that b gives a's weights and rows, bit for bit. a may be a layer that cannot be decoded as a whole. */
void device_check_weights(const trf_device_layer *a, const trf_device_layer *b, trf_decode_as as);

/* Makes x[m][cols], whose bits are small numbers both as BF16 and as F16. */
uint16_t *device_make_x(uint32_t m, uint32_t cols);

/* Multiplies by a plan that has the operands its options name; a residual is y. @return the rows of y, including what
 * lies between them. */
uint8_t *device_multiply(trf_device_layer *layer, const trf_plan_options *options, const uint16_t *x);

/* Opens a checkpoint with one tensor, "f32", which the codec bf16 made from F32, in the fixture's folder. */
trf_checkpoint *device_layers_open_f32_as_bf16(uint32_t rows, uint32_t cols);

#endif
