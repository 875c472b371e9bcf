/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_emulation.h"

#include "trf_check_tiles.cuh"
#include "trf_sum_data.cuh"
#include "warp_integrity.h"

static uint32_t shared_bytes(size_t bytes) { return ((uint32_t)bytes + 15) / 16 * 16; }

static void sum_data(void *args) {
    trf_sum_data(*(const trf_sum_data_args *)args, *(trf_sum_data_shared *)warp_shared_memory());
}

void warp_sum_data(const void *data, uint64_t bytes, trf_data_checksum *to, warp_grid grid) {
    trf_sum_data_args args = {(const uint8_t *)data, bytes, to};
    const uint64_t pages = trf_count_data_pages(bytes);
    if (pages)
        warp_run_grid({kSumWarps, shared_bytes(sizeof(trf_sum_data_shared)), grid.order},
                      (uint32_t)min(pages, (uint64_t)grid.blocks), sum_data, &args);
}

static void check_blob(void *args) {
    trf_check_blob(*(const trf_check_blob_args *)args, *(trf_check_shared *)warp_shared_memory());
}

void warp_check_blob(const trf_blob_to_check *blob, uint64_t *wrong, warp_grid grid) {
    trf_check_blob_args args = trf_check_blob_args_of(blob, wrong);
    warp_run_grid({kCheckWarps, shared_bytes(sizeof(trf_check_shared)), grid.order},
                  (uint32_t)min(blob->num_tiles + 1, (uint64_t)grid.blocks), check_blob, &args);
}
