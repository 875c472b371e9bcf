/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher of trf_transcode_launch.h on the CPU: the kernels' bodies, run by emulated blocks (warp_emulation.h). */
#ifndef WARP_TRANSCODE_H
#define WARP_TRANSCODE_H

#include "trf_transcode_launch.h"
#include "warp_pack.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A layer, or rows of tiles of one, that trf_can_transcode would take, in host memory. max_rans_bytes: of its slabs. */
typedef struct warp_transcoding {
    const trf_device_view *view;
    uint32_t max_rans_bytes;
    const trf_packed_view *packed;
    uint32_t first_row; /* of the packed layer */
    trf_transcode_memory memory;
    uint32_t warps; /* of a block that walks: 1 to 16 */
} warp_transcoding;

uint64_t warp_transcode_scratch_bytes(uint64_t rows, uint64_t cols);
void warp_transcode(const warp_transcoding *transcoding, warp_grid grid);

#ifdef __cplusplus
}
#endif

#endif
