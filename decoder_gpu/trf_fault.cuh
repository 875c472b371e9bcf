/* SPDX-License-Identifier: Apache-2.0 */
/* Sets a layer's fault, which names a corrupt tile and stays set. */
#ifndef TRF_FAULT_CUH
#define TRF_FAULT_CUH

#include "trf_device_view.h"

/* Notes the first corrupt tile; later ones change nothing. One lane calls it. */
static __device__ __forceinline__ void trf_note_fault(const trf_device_view &view, uint64_t tile) {
    if (atomicCAS(&view.fault->set, 0u, 1u) == 0) {
        view.fault->tile_low = (uint32_t)tile;
        view.fault->tile_high = (uint32_t)(tile >> 32);
    }
}

#endif
