/* SPDX-License-Identifier: Apache-2.0 */
/* The launchers of trf_integrity_launch.h on the CPU: emulated blocks (warp_emulation.h) run the kernels' bodies. All
 * memory is host memory. */
#ifndef WARP_INTEGRITY_H
#define WARP_INTEGRITY_H

#include "trf_integrity_launch.h"
#include "warp_pack.h"

#ifdef __cplusplus
extern "C" {
#endif

void warp_sum_data(const void *data, uint64_t bytes, trf_data_checksum *to, warp_grid grid);
void warp_check_blob(const trf_blob_to_check *blob, uint64_t *wrong, warp_grid grid);

#ifdef __cplusplus
}
#endif

#endif
