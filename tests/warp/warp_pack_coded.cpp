/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_emulation.h"

#include "trf_pack_coded_experts.cuh"
#include "trf_pack_coded_slabs.cuh"
#include "warp_pack_coded.h"

/* ---- kernels around the bodies ---- */

template <int kClassBits, bool kZeroing> static void pack_coded_slabs(void *args) {
    trf_pack_coded_slabs<trf_codec_config<TRF_CODEC_BF16, kClassBits>, kZeroing>(
        *(const trf_pack_coded_args *)args, warp_shared_memory(), (uint2 *)warp_static_shared_memory());
}
template <bool kZeroing> static void merge_lines(void *args) {
    trf_merge_records_of_lines<kZeroing>(((const trf_pack_coded_args *)args)->to);
}

typedef void kernel_body(void *args);

static kernel_body *kernel_of(uint32_t class_bits, uint32_t zeroing) {
    if (class_bits == 2)
        return zeroing ? pack_coded_slabs<2, true> : pack_coded_slabs<2, false>;
    return zeroing ? pack_coded_slabs<4, true> : pack_coded_slabs<4, false>;
}

template <int kClassBits, bool kTurns> static void pack_experts(void *args) {
    trf_pack_coded_experts<trf_codec_config<TRF_CODEC_BF16, kClassBits>, kTurns>(
        *(const trf_pack_experts_args *)args, warp_shared_memory(), (uint2 *)warp_static_shared_memory());
}
static void merge_experts(void *args) { trf_merge_records_of_experts(*(const trf_pack_experts_args *)args); }

static kernel_body *experts_kernel_of(uint32_t class_bits, bool turns) {
    if (class_bits == 2)
        return turns ? pack_experts<2, true> : pack_experts<2, false>;
    return turns ? pack_experts<4, true> : pack_experts<4, false>;
}

/* ---- as the launchers have it ---- */

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

uint64_t warp_pack_coded_experts_bytes(uint32_t count, uint32_t rows, uint32_t cols) {
    return trf_pack_experts_bytes(count, rows, cols);
}

void warp_pack_coded_experts(const trf_experts_to_pack *experts, uint32_t warps, warp_grid grid) {
    const bool turns = experts->rows != TRF_PACK_ROWS_AS_THEY_ARE;
    const trf_pack_experts_block block =
        trf_pack_experts_block_of(experts->view->raw_bits, experts->max_rans_bytes, warps, turns);
    trf_pack_experts_args args = trf_pack_experts_args_of(experts, block);
    warp_run_grid({turns ? 2 * warps : warps, block.shared_bytes, grid.order}, grid.blocks,
                  experts_kernel_of(experts->view->class_bits, turns), &args);
    warp_run_grid({kMergeWarps, 16, grid.order}, grid.blocks, merge_experts, &args);
}
