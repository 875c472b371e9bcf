/* SPDX-License-Identifier: Apache-2.0 */
/* Launches a fused product: copies x to rows of whole 16 bytes if it is misaligned, computes the edges' part, launches
 * the kernel, and for a stream-K partition the second kernel, which adds up the sums of units that blocks share. */
#include "trf_fused_launch.h"

#include "trf_fused_instances.cuh"
#include "trf_kernel_launch.cuh"
#include "trf_pad_x.h"
#include "trf_planning.h"

static trf_fused_kernel kernel_of(const trf_device_view *view, const trf_fused_partition *c, trf_dtype x_dtype) {
    const int variant = (int)c->variant, x_tiles = (int)c->x_tiles, class_bits = (int)view->class_bits,
              bf16_x = x_dtype == TRF_DTYPE_BF16;
    if (trf_is_scaled_fp8(view->codec, view->source_dtype))
        return trf_fused_scaled_fp8(class_bits, x_tiles, variant);
    switch (view->codec) {
    case TRF_CODEC_BF16:
        return trf_fused_bf16(class_bits, x_tiles, variant);
    case TRF_CODEC_FP16:
        return trf_fused_fp16(class_bits, x_tiles, variant);
    case TRF_CODEC_INT:
        return trf_has_scale_groups(view) ? trf_fused_int_scale_groups(class_bits, bf16_x, x_tiles, variant)
                                          : trf_fused_int(class_bits, view->raw_bits, bf16_x, x_tiles, variant);
    case TRF_CODEC_E4M3:
        return trf_fused_e4m3(class_bits, bf16_x, x_tiles, variant);
    default:
        return trf_fused_e5m2(class_bits, bf16_x, x_tiles, variant);
    }
}

/* Launches the kernel that adds up the sums of units that blocks share. early: whether it may start before the
 * preceding kernel ends. */
static cudaError_t launch_finish(const trf_fused_args &args, const trf_fused_partition &c, bool early,
                                 cudaStream_t stream) {
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(trf_ceil_div(c.units * 2 * c.unit_slabs * c.x_tiles, 256 / 32));
    config.blockDim = dim3(256);
    config.stream = stream;
    config.attrs = &attribute;
    if (early)
        trf_launch_allow_early(&config);
    return cudaLaunchKernelEx(&config, trf_fused_finish, args, c.unit_slabs, c.x_tiles);
}

static cudaError_t launch(trf_fused_kernel kernel, const trf_fused_args &args, const trf_fused_partition &c,
                          cudaStream_t stream) {
    bool early;
    cudaError_t status = trf_launch_kernel(
        kernel, args,
        {c.cluster_size * c.clusters, 32 * trf_fused_block_warps(&c), c.shared_bytes, c.cluster_size, stream}, &early);
    if (status == cudaSuccess && c.is_stream_k && c.units)
        status = launch_finish(args, c, early, stream);
    return status;
}

/* base: the workspace. */
static trf_fused_partition_args partition_args(const trf_fused_partition &c, uint8_t *base) {
    const uint32_t shared_out = c.is_stream_k ? c.wave_panels : c.units;
    trf_fused_partition_args args = {};
    args.cluster_size = c.cluster_size;
    args.k_splits = c.k_splits;
    args.wave_units = c.wave_units;
    args.units = c.units;
    args.share_quotient = shared_out / c.clusters;
    args.share_remainder = shared_out % c.clusters;
    args.panel_quotient = c.panels / c.cluster_size;
    args.panel_remainder = c.panels % c.cluster_size;
    args.sums_stride = c.sums_stride;
    args.smem = c.smem;
    args.is_stream_k = c.is_stream_k;
    args.partials = (float *)(base + c.partials_offset);
    args.sums_offset = c.sums_offset;
    args.cluster_sums_replace_buffers = c.cluster_sums_replace_buffers;
    args.x_stages_offset = c.x_stages_offset;
    args.x_stage_cols = c.x_stage_cols;
    return args;
}

/* Sets where the kernel writes: to y, or to sums in the workspace to which an epilogue is then applied. */
static void set_y(const trf_layer_traits *traits, const trf_product *product, const trf_fused_partition &c,
                  const trf_operands *operands, uint8_t *base, trf_fused_args *args) {
    args->product.y = operands->y;
    args->product.y_stride = (uint32_t)product->y_stride;
    args->product.y_dtype = product->y_dtype;
    if (!trf_fused_has_sums_in_workspace(&args->product.view, traits, product))
        return;
    args->epilogue = trf_epilogue_of(product, operands);
    args->product.y = base + c.epilogue_sums_offset;
    args->product.y_stride = args->product.view.rows;
    args->product.y_dtype = TRF_DTYPE_F32;
}

/* Copies x to rows of whole 16 bytes if it is misaligned, and computes the edges' part of y. */
static int prepare_x_and_edges(const trf_layer_traits *traits, trf_dtype x_dtype, const trf_fused_partition &c,
                               uint8_t *base, trf_product_args *args, trf_stream stream) {
    const trf_device_view *view = &args->view;
    if (view->cols % 8 || (uintptr_t)args->x % 16) {
        const void *const x = args->x;
        args->x_stride = trf_padded_x_stride(view->cols);
        args->x = base + c.padded_x_offset;
        const int status = trf_launch_pad_x(x, args->m, view->cols, base + c.padded_x_offset, args->x_stride, stream);
        if (status)
            return status;
    }
    if (!traits->irregular_weights)
        return cudaSuccess;
    float *const edge_sums = (float *)base;
    args->edge_sums = edge_sums;
    return trf_launch_edge_product(view, args->m, x_dtype, args->x, args->x_stride, edge_sums, stream);
}

int trf_fused_launch(const trf_device_view *view, const trf_layer_traits *traits, const trf_product *product,
                     const trf_fused_partition *partition, const trf_operands *operands, void *workspace,
                     trf_stream stream) {
    uint8_t *const base = (uint8_t *)workspace;
    trf_fused_args args = {};
    args.product.view = *view;
    args.product.x = operands->x;
    args.product.x_stride = view->cols;
    args.product.m = product->m;
    args.product.whole_rows = partition->units ? view->rows / TRF_SLAB_ROWS * TRF_SLAB_ROWS : 0;
    args.product.use_row_offsets = (traits->predictor_modes & TRF_PREDICT_ROW) != 0;
    args.product.x_sharers = partition->wave_units > 2 ? partition->wave_units : 0;
    args.partition = partition_args(*partition, base);
    set_y(traits, product, *partition, operands, base, &args);
    const int status = prepare_x_and_edges(traits, product->x_dtype, *partition, base, &args.product, stream);
    if (status)
        return status;
    return launch(kernel_of(view, partition, product->x_dtype), args, *partition, stream);
}
