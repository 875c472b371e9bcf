/* SPDX-License-Identifier: Apache-2.0 */
/* Launches a wide product: copies x if it is misaligned, launches the kernel, and applies an epilogue to its sums if
 * there is one. */
#include "trf_wide_launch.h"

#include "trf_kernel_launch.cuh"
#include "trf_pad_x.h"
#include "trf_round_sums.h"
#include "trf_wide_instances.cuh"

static trf_wide_kernel kernel_of(const trf_device_view *view, const trf_wide_partition &c, trf_dtype x_dtype) {
    const int class_bits = (int)view->class_bits, max_x_rows = (int)trf_wide_max_x_rows(c.x_rows),
              decoding_blocks = (int)c.decoding_blocks;
    if (view->codec == TRF_CODEC_FP16)
        return trf_wide_fp16(class_bits, max_x_rows, decoding_blocks);
    if (trf_is_scaled_fp8(view->codec, view->source_dtype))
        return trf_wide_scaled_fp8(class_bits, max_x_rows, decoding_blocks);
    return trf_wide_8_bit(view->codec, class_bits, x_dtype == TRF_DTYPE_BF16, max_x_rows, decoding_blocks);
}

static trf_wide_partition_args partition_args(const trf_wide_partition &c) {
    trf_wide_partition_args args = {};
    args.smem = c.smem;
    args.panels = c.panels;
    while (1u << args.log_k_splits < c.k_splits)
        args.log_k_splits++;
    args.producers = c.producers;
    args.x_rows = c.x_rows;
    args.x_stage_bytes = c.x_stage_bytes;
    args.x_ranges = c.x_ranges;
    args.work_items = c.work_items;
    args.clusters = c.clusters;
    args.stages_offset = c.stages_offset;
    args.x_stages_offset = c.x_stages_offset;
    return args;
}

static cudaError_t launch(trf_wide_kernel kernel, const trf_wide_args &args, const trf_wide_partition &c,
                          cudaStream_t stream) {
    bool early;
    const uint32_t cluster_size = c.decoding_blocks * c.k_splits;
    return trf_launch_kernel(kernel, args, {cluster_size * c.clusters, c.threads, c.shared_bytes, cluster_size, stream},
                             &early);
}

int trf_wide_launch(const trf_device_view *view, const trf_product *product, const trf_wide_partition *partition,
                    const trf_operands *operands, void *workspace, trf_stream stream) {
    const bool has_epilogue = trf_has_epilogue(product);
    float *const sums = (float *)((uint8_t *)workspace + partition->epilogue_sums_offset);
    const void *x = operands->x;
    if ((uintptr_t)x % 16) {
        const int status = trf_launch_pad_x(x, product->m, view->cols, workspace, view->cols, stream);
        if (status)
            return status;
        x = workspace;
    }
    trf_wide_args args = {};
    args.product.view = *view;
    args.product.x = x;
    args.product.x_stride = view->cols;
    args.product.m = product->m;
    args.product.y = has_epilogue ? sums : operands->y;
    args.product.y_stride = has_epilogue ? view->rows : (uint32_t)product->y_stride;
    args.product.y_dtype = has_epilogue ? TRF_DTYPE_F32 : product->y_dtype;
    args.product.whole_rows = view->rows / TRF_SLAB_ROWS * TRF_SLAB_ROWS;
    args.partition = partition_args(*partition);
    cudaError_t status = trf_make_x_map(x, product->m, view->cols, view->cols, partition->x_rows, TRF_WIDE_STAGE_COLS,
                                        product->x_dtype == TRF_DTYPE_BF16, &args.x_map);
    if (status == cudaSuccess)
        status = launch(kernel_of(view, *partition, product->x_dtype), args, *partition, stream);
    if (status != cudaSuccess || !has_epilogue)
        return status;
    const trf_sums finished = {sums, view->rows, product->m, view->rows};
    const trf_epilogue epilogue = trf_epilogue_of(product, operands);
    return trf_launch_round_sums(&finished, &epilogue, stream);
}
