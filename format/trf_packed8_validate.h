/* SPDX-License-Identifier: Apache-2.0 */
/* The validator of packed FP8 layers: it checks every byte that format/PACKED.md describes. */
#ifndef TRF_PACKED8_VALIDATE_H
#define TRF_PACKED8_VALIDATE_H

#include "trf_packed8_head.h"

/* Checks a packed FP8 layer in host memory. packed: `bytes` bytes, 16-byte aligned. *view becomes its view if all is
 * well. Errors: as trf_check_packed8_head; TRF_ERR_TILE for lines, packed tiles and the bytes between the sections;
 * TRF_ERR_ARGUMENT if misaligned. err->offset counts from the buffer's first byte.
 *
 * It cannot see whether the weights are those of the layer that was packed: any codes but NaNs and any constants that
 * scales can have are valid. */
trf_status trf_validate_packed8(const void *packed, uint64_t bytes, trf_packed8_view *view, trf_error *err);

#endif
