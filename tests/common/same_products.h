/* SPDX-License-Identifier: Apache-2.0 */
/* Products of two device layers that hold the same weights, wherever these lie. */
#ifndef SAME_PRODUCTS_H
#define SAME_PRODUCTS_H

#include "transfuse.h"

/* Multiplies m rows of x by both layers, of `context`, by every path that the device has, and expects the same bits. */
void check_same_products(const trf_context *context, trf_device_layer *a, trf_device_layer *b, uint32_t m);

#endif
