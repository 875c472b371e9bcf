/* SPDX-License-Identifier: Apache-2.0 */
/* The validator of packed layers: format/PACKED.md, every byte of it. A packed layer comes from checked tiles, so
 * nobody has to call this to stay in bounds; tests and whoever doubts a buffer do. */
#ifndef TRF_PACKED_VALIDATE_H
#define TRF_PACKED_VALIDATE_H

#include "trf_packed_head.h"

/* Checks a packed layer in host memory. packed: 16-byte aligned, of so many bytes. view: of it, if all is well.
 * Errors: as trf_check_packed_head; TRF_ERR_TILE for lines, packed tiles, stored tiles, row offsets' padding and the
 * bytes between the sections; TRF_ERR_ARGUMENT if misaligned. err->offset counts from the buffer's first byte.
 *
 * What it cannot see: weights other than the layer's, which are as good as any. */
trf_status trf_validate_packed(const void *packed, uint64_t bytes, trf_packed_view *view, trf_error *err);

#endif
