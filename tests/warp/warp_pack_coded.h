/* SPDX-License-Identifier: Apache-2.0 */
/* The launchers of trf_pack_coded_launch.h and trf_pack_coded_experts_launch.h on the CPU: emulated blocks
 * (warp_emulation.h) run the kernels' bodies. */
#ifndef WARP_PACK_CODED_H
#define WARP_PACK_CODED_H

#include "trf_pack_coded_experts_launch.h"
#include "trf_pack_coded_launch.h"
#include "warp_pack.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A layer that trf_can_pack_coded would take, or rows of its tiles, in host memory. max_rans_bytes: the most of a
 * slab. */
typedef struct warp_coded_packing {
    const trf_device_view *view;
    uint32_t max_rans_bytes;
    const trf_packed_view *packed;
    uint32_t first_row; /* of the packed layer */
    trf_pack_coded_memory memory;
    uint32_t warps; /* of a block that walks slabs: 1 to 16 */
} warp_coded_packing;

uint64_t warp_pack_coded_scratch_bytes(uint64_t rows, uint64_t cols);
void warp_pack_coded(const warp_coded_packing *packing, warp_grid grid);

/* Everything is in host memory. warps: of a block, 1 to 16; in turns half of them, 1 to 8. */
uint64_t warp_pack_coded_experts_bytes(uint32_t count, uint32_t rows, uint32_t cols);
void warp_pack_coded_experts(const trf_experts_to_pack *experts, uint32_t warps, warp_grid grid);

#ifdef __cplusplus
}
#endif

#endif
