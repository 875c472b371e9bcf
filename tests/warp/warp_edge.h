/* SPDX-License-Identifier: Apache-2.0 */
/* Edges of a layer, decoded by emulated warps (warp_emulation.h) as decoder_gpu/trf_decode_edges.cu has them decoded.
 * All memory is host memory. */
#ifndef WARP_EDGE_H
#define WARP_EDGE_H

#include "trf_device_view.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Decodes edges first to end - 1 of all bands. elements: [rows][cols]; seen: likewise, counts how often each is
 * written. order: of threads, any number. @return whether all edges are what was encoded; if not, view->fault says
 * which tile is corrupt. */
int warp_decode_edges(const trf_device_view *view, uint32_t first, uint32_t end, uint32_t order, uint16_t *elements,
                      uint8_t *seen);

#ifdef __cplusplus
}
#endif

#endif
