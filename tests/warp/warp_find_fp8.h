/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher of trf_find_fp8_launch.h on the CPU: emulated blocks (warp_emulation.h) run the kernel's body. All
 * memory is host memory. */
#ifndef WARP_FIND_FP8_H
#define WARP_FIND_FP8_H

#include "trf_find_fp8_launch.h"
#include "warp_pack.h"

#ifdef __cplusplus
extern "C" {
#endif

void warp_find_fp8(const trf_rows_to_pack *rows, const trf_found_scales *to, trf_found_fp8 *found, int checks_all,
                   warp_grid grid);

#ifdef __cplusplus
}
#endif

#endif
