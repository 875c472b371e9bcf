/* SPDX-License-Identifier: Apache-2.0 */
/* The validator of packed layers: it checks every byte that format/PACKED.md describes. A packed layer comes from
 * checked tiles, so nobody has to call this to stay in bounds; tests and whoever doubts a buffer do. */
#ifndef TRF_PACKED_VALIDATE_H
#define TRF_PACKED_VALIDATE_H

#include "trf_packed_head.h"

/* Checks a packed layer in host memory. packed: `bytes` bytes, 16-byte aligned. *view becomes its view if all is well.
 * Errors: as trf_check_packed_head; TRF_ERR_TILE for lines, packed tiles, stored tiles, row offsets' padding and the
 * bytes between the sections; TRF_ERR_ARGUMENT if misaligned. err->offset counts from the buffer's first byte.
 *
 * It cannot see whether the weights are those of the layer that was packed: any weights are valid. */
trf_status trf_validate_packed(const void *packed, uint64_t bytes, trf_packed_view *view, trf_error *err);

#endif
