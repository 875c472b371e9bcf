/* SPDX-License-Identifier: Apache-2.0 */
/* Launches products of packed layers; it has the kernels of trf_packed_general.cuh, and chooses which kernel runs. */
#include "trf_packed_launch.h"

#include "trf_kernel_launch.cuh"
#include "trf_packed_bulk_launch.cuh"
#include "trf_packed_general.cuh"
#include "trf_packed_wgmma_launch.cuh"
#include "trf_packed_wgmma_sizes.h"
#include "trf_pad_x.h"

static constexpr uint32_t kFinishThreads = 256, kMostGridRows = 65535;

typedef void (*trf_packed_general_kernel)(trf_packed_general_args);

template <int kXTiles, bool kZeroing, bool kTwoAtOnce>
static __global__ void __launch_bounds__(32 * TRF_PACKED_GENERAL_WARPS, 2)
    trf_packed_general(const trf_packed_general_args args) {
    __shared__ uint4 sums[TRF_PACKED_SLABS * kXTiles * TRF_ACC_TILE_BYTES / sizeof(uint4)];
    trf_packed_general_block<kXTiles, kZeroing, kTwoAtOnce>(args, trf_shared_address(sums));
}

/* The second kernel of a product with several k splits. */
static __global__ void __launch_bounds__(kFinishThreads) trf_packed_general_finish(const trf_packed_general_args args) {
    trf_wait_for_predecessor();
    const uint32_t row = blockIdx.x * kFinishThreads + threadIdx.x;
    if (row < args.view.rows)
        for (uint32_t n = blockIdx.y; n < args.m; n += gridDim.y)
            trf_packed_general_finish_element(args, n, row);
}

template <bool kZeroing, bool kTwoAtOnce> static trf_packed_general_kernel kernel_of(uint32_t x_tiles) {
    switch (x_tiles) {
    case 1:
        return trf_packed_general<1, kZeroing, kTwoAtOnce>;
    case 2:
        return trf_packed_general<2, kZeroing, kTwoAtOnce>;
    case 4:
        return trf_packed_general<4, kZeroing, kTwoAtOnce>;
    default:
        return trf_packed_general<8, kZeroing, kTwoAtOnce>;
    }
}

/* Launches a bulk or wgmma kernel. x has rows of whole 16 bytes, and is copied to the workspace if necessary. */
static int launch_bulk(const trf_packed_view *view, const trf_product *product, const trf_packed_partition *partition,
                       const trf_operands *operands, uint8_t *workspace, trf_stream stream) {
    const void *x = operands->x;
    uint32_t x_stride;
    const int status = trf_align_x(&x, product->m, view->cols, workspace, &x_stride, stream);
    if (status)
        return status;
    return (trf_packed_is_wgmma(partition->shape) ? trf_packed_wgmma_launch : trf_packed_bulk_launch)(
        view, product, partition, operands, x, x_stride, workspace + partition->handover_offset, stream);
}

int trf_packed_launch(const trf_packed_view *view, const trf_product *product, const trf_packed_partition *partition,
                      const trf_operands *operands, void *workspace, trf_stream stream) {
    if (partition->shape != TRF_PACKED_GENERAL)
        return launch_bulk(view, product, partition, operands, (uint8_t *)workspace, stream);
    trf_packed_general_args args = {};
    args.view = *view;
    args.x = (const uint16_t *)operands->x;
    args.m = product->m;
    args.x_blocks = partition->x_blocks;
    args.k_splits = partition->k_splits;
    args.partials = (float *)workspace;
    args.epilogue = trf_epilogue_of(product, operands);
    const bool two_at_once = (uintptr_t)operands->x % 4 == 0 && view->cols % 2 == 0;
    const trf_packed_general_kernel kernel =
        view->zeroing
            ? (two_at_once ? kernel_of<true, true>(partition->x_tiles) : kernel_of<true, false>(partition->x_tiles))
            : (two_at_once ? kernel_of<false, true>(partition->x_tiles) : kernel_of<false, false>(partition->x_tiles));
    bool early;
    cudaError_t status = trf_launch_kernel(
        kernel, args, {(uint32_t)partition->blocks, 32 * TRF_PACKED_GENERAL_WARPS, 0, 1, stream}, &early);
    if (status == cudaSuccess && partition->k_splits > 1)
        status = trf_launch_finish(trf_packed_general_finish, args,
                                   dim3((args.view.rows + kFinishThreads - 1) / kFinishThreads,
                                        args.m < kMostGridRows ? args.m : kMostGridRows),
                                   kFinishThreads, early, stream);
    return status;
}
