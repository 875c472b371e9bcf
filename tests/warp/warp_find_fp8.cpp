/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_emulation.h"

#include "trf_find_fp8_blocks.cuh"
#include "warp_find_fp8.h"

static void find_scales(void *args) {
    trf_find_scales(*(const trf_find_fp8_args *)args, *(trf_find_fp8_shared *)warp_shared_memory());
}

void warp_find_fp8(const trf_rows_to_pack *rows, const trf_found_scales *to, trf_found_fp8 *found, int checks_all,
                   warp_grid grid) {
    trf_find_fp8_args args = trf_find_fp8_args_of(rows, trf_find_fp8_sets(), to, found, checks_all);
    const uint32_t bytes = ((uint32_t)sizeof(trf_find_fp8_shared) + 15) / 16 * 16;
    warp_run_grid({kFindWarps, bytes, grid.order}, (uint32_t)min(args.blocks, (uint64_t)grid.blocks), find_scales,
                  &args);
}
