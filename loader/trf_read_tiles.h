/* SPDX-License-Identifier: Apache-2.0 */
/* Reads tiles of a layer's blob, wherever that lies. */
#ifndef TRF_READ_TILES_H
#define TRF_READ_TILES_H

#include "trf_error.h"

/* Reads and checks the tiles first to first + count - 1, which lie side by side in the layer's blob. scratch: memory
 * for them, 128-byte aligned. *tiles: where they are then, in the same order and without gaps: in the scratch, or in
 * memory where the function has them anyway. read_context: the function's own. Thread-safe, except for a tile that two
 * threads read at once. Errors: those of tiles, of files. */
typedef trf_status trf_read_tiles_fn(void *read_context, uint64_t first, uint64_t count, uint8_t *scratch,
                                     const uint8_t **tiles, trf_error *err);

#endif
