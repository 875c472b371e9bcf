/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_emulation.h"

#include "trf_pack_coded_slabs.cuh"
#include "warp_pack_coded.h"

/* ---- kernels around the bodies ---- */

template <int kClassBits, bool kZeroing> static void pack_coded_slabs(void *args) {
    trf_pack_coded_slabs<trf_codec_config<TRF_CODEC_BF16, kClassBits>, kZeroing>(
        *(const trf_pack_coded_args *)args, warp_shared_memory(), (uint2 *)warp_static_shared_memory());
}
template <bool kZeroing> static void merge_lines(void *args) {
    trf_merge_records_of_lines<kZeroing>(*(const trf_pack_coded_args *)args);
}

typedef void kernel_body(void *args);

static kernel_body *kernel_of(uint32_t class_bits, uint32_t zeroing) {
    if (class_bits == 2)
        return zeroing ? pack_coded_slabs<2, true> : pack_coded_slabs<2, false>;
    return zeroing ? pack_coded_slabs<4, true> : pack_coded_slabs<4, false>;
}

/* ---- as the launcher has it ---- */

uint64_t warp_pack_coded_scratch_bytes(uint64_t rows, uint64_t cols) {
    return trf_count_tile_halves(rows, cols) * (1 + kTileHalfRecords) * sizeof(uint32_t);
}

void warp_pack_coded(const warp_coded_packing *t, warp_grid grid) {
    const trf_smem_layout smem =
        trf_smem_layout_of(t->view->raw_bits, t->max_rans_bytes, t->warps, 1, TRF_TABLE_LOG, 0, 0, TRF_RING_STEPS);
    trf_pack_coded_args args = trf_pack_coded_args_of(t->view, smem, t->packed, t->first_row, &t->memory);
    warp_run_grid({t->warps, smem.total, grid.order}, grid.blocks, kernel_of(t->view->class_bits, t->packed->zeroing),
                  &args);
    warp_run_grid({kMergeWarps, 16, grid.order}, grid.blocks,
                  t->packed->zeroing ? merge_lines<true> : merge_lines<false>, &args);
}
