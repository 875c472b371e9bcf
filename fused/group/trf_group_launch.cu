/* SPDX-License-Identifier: Apache-2.0 */
/* The launches of grouped products. */
#include "trf_group_launch.h"

#include "trf_fused_launch.h"
#include "trf_group_instances.cuh"
#include "trf_kernel_launch.cuh"
#include "trf_pad_x.h"
#include "trf_planning.h"

static trf_group_kernel kernel_of(const trf_device_view *view, uint32_t unit_slabs, trf_dtype x_dtype) {
    const bool bf16_x = x_dtype == TRF_DTYPE_BF16;
    if (trf_is_scaled_fp8(view->codec, view->source_dtype))
        return trf_group_scaled_fp8(view->class_bits);
    switch (view->codec) {
    case TRF_CODEC_BF16:
        return trf_group_bf16(view->class_bits, unit_slabs);
    case TRF_CODEC_FP16:
        return trf_group_fp16(view->class_bits, unit_slabs);
    case TRF_CODEC_INT:
        return trf_group_int(view->class_bits, view->raw_bits, bf16_x);
    default:
        return trf_group_fp8(view->codec == TRF_CODEC_E5M2, view->class_bits, bf16_x);
    }
}

static cudaError_t launch(trf_group_kernel kernel, const trf_group_args &args, uint32_t blocks, uint32_t warps,
                          uint32_t shared_bytes, cudaStream_t stream) {
    bool early;
    return trf_launch_kernel(kernel, args, {blocks, 32 * warps, shared_bytes, args.cluster_size, stream}, &early);
}

/* Sets what layers and experts have in common. The rows of y are contiguous, unless the caller changes that. */
static trf_group_layer_args layer_args_of(const trf_device_view *view, uint32_t unit_slabs, trf_dtype y_dtype) {
    const uint32_t panels = trf_regular_panels(view);
    trf_group_layer_args args = {};
    args.partition.units = panels ? trf_ceil_div(view->rows / TRF_SLAB_ROWS, unit_slabs) : 0;
    args.partition.panel_quotient = panels;
    args.partition.cluster_size = 1;
    args.partition.sums_stride = trf_fused_sum_bytes(unit_slabs, 1);
    args.product.view = *view;
    args.product.x_stride = view->cols;
    args.product.y_dtype = y_dtype;
    args.product.y_stride = view->rows;
    args.product.whole_rows = args.partition.units ? view->rows / TRF_SLAB_ROWS * TRF_SLAB_ROWS : 0;
    return args;
}

/* Sets how the layer's units and panels are cut over clusters and blocks. */
static void cut_layer(const trf_group_layer_partition *layer, uint32_t cluster_size, trf_partition_args *args) {
    args->cluster_size = cluster_size;
    args->k_splits = layer->k_splits;
    args->wave_units = layer->wave_units;
    args->share_quotient = args->units / layer->clusters;
    args->share_remainder = args->units % layer->clusters;
    args->panel_remainder = args->panel_quotient % cluster_size;
    args->panel_quotient /= cluster_size;
}

/* Copies x to rows of whole 16 bytes if it is misaligned, and computes the edges' part of y. */
static int prepare_layer(const trf_group_product *product, const trf_group_layer_partition *layer, const void *x,
                         uint8_t *base, trf_product_args *args, trf_stream stream) {
    const trf_device_view *view = product->view;
    args->x = x;
    if (view->cols % 8 || (uintptr_t)x % 16) {
        args->x_stride = trf_padded_x_stride(view->cols);
        args->x = base + layer->padded_x_offset;
        int status = trf_launch_pad_x(x, product->m, view->cols, base + layer->padded_x_offset, args->x_stride, stream);
        if (status)
            return status;
    }
    if (!product->traits->irregular_weights)
        return cudaSuccess;
    float *edge_sums = (float *)(base + layer->edge_sums_offset);
    args->edge_sums = edge_sums;
    return trf_launch_edge_product(view, product->m, product->x_dtype, args->x, args->x_stride, edge_sums, stream);
}

int trf_group_launch(const trf_group_product *products, uint32_t count, const trf_group_partition *partition,
                     const void *const *x, void *const *y, void *workspace, trf_stream stream) {
    trf_group_args args = {};
    args.smem = partition->smem.layout;
    args.sums_offset = partition->smem.sums_offset;
    args.cluster_size = partition->cluster_size;
    args.count = count;
    for (uint32_t i = 0; i < count; i++) {
        const trf_group_layer_partition *layer = &partition->layers[i];
        args.layers[i] = layer_args_of(products[i].view, partition->unit_slabs, products[i].y_dtype);
        args.layers[i].product.m = products[i].m;
        args.layers[i].product.y_stride = (uint32_t)products[i].y_stride;
        args.layers[i].product.y = y[i];
        cut_layer(layer, partition->cluster_size, &args.layers[i].partition);
        args.first_cluster[i + 1] = args.first_cluster[i] + layer->clusters;
        int status = prepare_layer(&products[i], layer, x[i], (uint8_t *)workspace, &args.layers[i].product, stream);
        if (status)
            return status;
    }
    return launch(kernel_of(products[0].view, partition->unit_slabs, products[0].x_dtype), args,
                  args.first_cluster[count] * args.cluster_size, partition->warps, partition->smem.bytes, stream);
}

/* ---- experts ---- */

/* Copies x to rows of whole 16 bytes if it is misaligned, and computes the edges' part of y, for all tokens. */
static int prepare_tokens(const trf_experts_call *call, const trf_experts_partition *partition, trf_product_args *args,
                          trf_stream stream) {
    const trf_device_view *view = call->view;
    if (view->cols % 8 || (uintptr_t)call->x % 16) {
        uint8_t *const padded = call->workspace + trf_experts_padded_x_offset(view, partition, call->max_tokens);
        args->x_stride = trf_padded_x_stride(view->cols);
        args->x = padded;
        int status = trf_launch_pad_tokens(call->x, call->offsets_dev + call->count, call->max_tokens, view->cols,
                                           padded, args->x_stride, stream);
        if (status)
            return status;
    }
    if (!partition->has_edges)
        return cudaSuccess;
    float *edge_sums = (float *)call->workspace;
    args->edge_sums = edge_sums;
    return trf_launch_expert_edge_product(call, args->x, args->x_stride, edge_sums, stream);
}

int trf_experts_launch(const trf_experts_call *call, const trf_experts_partition *partition,
                       const trf_device_limits *limits, trf_stream stream) {
    trf_group_args args = {};
    trf_expert_args *e = &args.experts;
    args.smem = partition->smem.layout;
    args.sums_offset = partition->smem.sums_offset;
    args.cluster_size = 1;
    e->common = layer_args_of(call->view, partition->unit_slabs, call->y_dtype);
    e->common.partition.k_splits = e->common.partition.wave_units = 1;
    e->common.product.x = call->x;
    e->common.product.y = call->y;
    e->experts = call->experts_dev;
    e->offsets = call->offsets_dev;
    e->count = call->count;
    e->max_tokens = call->max_tokens;
    e->cost_model = partition->cost_model;
    int status = prepare_tokens(call, partition, &e->common.product, stream);
    if (status)
        return status;
    return launch(kernel_of(call->view, partition->unit_slabs, call->x_dtype), args, (uint32_t)limits->multiprocessors,
                  partition->warps, partition->smem.bytes, stream);
}
