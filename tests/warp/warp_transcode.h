/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher of trf_transcode_launch.h on the CPU: the kernels' bodies, run by emulated blocks (warp_emulation.h). */
#ifndef WARP_TRANSCODE_H
#define WARP_TRANSCODE_H

#include "trf_transcode_launch.h"
#include "warp_pack.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A layer that trf_can_transcode would take, in host memory. max_rans_bytes: of its slabs. */
typedef struct warp_transcoding {
    const trf_device_view *view;
    uint32_t max_rans_bytes;
    const trf_packed_view *packed;
    trf_transcode_memory memory;
    uint32_t warps; /* of a block that walks: 1 to 16 */
} warp_transcoding;

uint64_t warp_transcode_scratch_bytes(const trf_packed_view *packed);
void warp_transcode(const warp_transcoding *transcoding, warp_grid grid);

#ifdef __cplusplus
}
#endif

#endif
