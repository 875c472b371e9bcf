/* SPDX-License-Identifier: Apache-2.0 */
/* What a kind of device does with the layers of a layout: how large they are, and how they are filled, decoded and
 * multiplied. Each kind of device has one table for each of its layouts (trf_device_ops.layouts), and a layer points to
 * its table. The public functions have already checked the arguments and read the structs that callers fill. */
#ifndef TRF_LAYOUT_H
#define TRF_LAYOUT_H

#include "transfuse/device_memory.h"
#include "trf_error.h"
#include "trf_shard_range.h"

struct trf_blob_view;
struct trf_layer_feed;
struct trf_pack8_request;
struct trf_rows_to_pack; /* trf_pack_launch.h */
struct trf_found_fp8;    /* trf_find_fp8_launch.h */

typedef struct trf_layout_ops {
    trf_layout layout;
    /* Whether plans with TRF_PATH_AUTO follow tunings and crossovers. Otherwise there is only one path. */
    int has_several_paths;
    /* Whether products of experts take its layers, and whether stacks do. */
    int has_experts, has_stacks;
    const struct trf_expert_ops *expert_ops; /* of experts (trf_experts.h), if the device has kernels for them */
    /* Computes the memory that a layer takes. shard is the part of the view that is loaded. Errors: TRF_ERR_UNSUPPORTED
     * (also for its codec). */
    trf_status (*get_size)(const struct trf_blob_view *view, const trf_shard_range *shard, trf_layer_size *size,
                           trf_error *err);
    /* Fills a layer whose context, layout, info and shard are set. memory is the caller's and large enough; its buffer
     * may be the feed's own. NULL in it means that the library allocates: both parts, or the directory alone. */
    trf_status (*fill)(trf_device_layer *made, struct trf_layer_feed *feed, const trf_layer_memory *memory,
                       trf_error *err);
    /* Fills a layer whose context and layout are set from a buffer of this layout that lies in the device's memory and
     * stays there. Sets info and shard. NULL means that the buffers of this layout are blobs, which have feeds. */
    trf_status (*adopt)(trf_device_layer *made, const void *buffer, uint64_t buffer_bytes, trf_error *err);
    /* Computes the memory of a layer that is converted from another layout (trf_device_layer_convert). This and
     * `convert` are NULL if no layer is converted to this layout. Errors: TRF_ERR_UNSUPPORTED (also for its codec). */
    trf_status (*get_converted_size)(const trf_device_layer *from, trf_layer_size *size, trf_error *err);
    /* Fills a layer whose context, layout, info and header are set from a layer in another layout, which is not a
     * stack's. memory: as for fill. `from` is only read, except for its fault. */
    trf_status (*convert)(trf_device_layer *made, const trf_device_layer *from, const trf_layer_memory *memory,
                          trf_error *err);
    /* Fills a layer whose context, layout, info and header are set from dense weights, which have been checked. NULL
     * means that no layer of this layout is made from dense weights. */
    trf_status (*pack)(trf_device_layer *made, const trf_device_matrix *matrix, const trf_pack_options *options,
                       trf_error *err);
    /* Fills a layer whose context, layout, info and header are set from dense BF16 weights of gate and up, whose rows
     * take turns (trf_gate_up.h): [2 * rows][cols], in device memory, written by work on the NULL stream. requests [2]:
     * those of gate and of up, which have scales and have been checked. memory: as for fill. NULL but for PACKED8. */
    trf_status (*pack_turns)(trf_device_layer *made, const struct trf_pack8_request *requests, const uint16_t *weights,
                             const trf_layer_memory *memory, trf_error *err);
    /* Looks for FP8 in dense BF16 weights in device memory, which work on `stream` writes, and waits. checks_all: as in
     * trf_launch_find_fp8. scales: device memory, [trf_found_fp8_blocks]; they count if the weights are FP8. A device
     * without products of FP8 finds none. NULL but for PACKED8. */
    trf_status (*find_fp8)(trf_context *context, const struct trf_rows_to_pack *rows, trf_stream stream, int checks_all,
                           float *scales, struct trf_found_fp8 *found, trf_error *err);
    void (*destroy)(trf_device_layer *layer);
    trf_status (*check)(const trf_device_layer *layer, trf_error *err);
    /* Compares the layer's memory with its checksums: trf_device_layer_verify. */
    trf_status (*verify)(const trf_device_layer *layer, trf_error *err);
    trf_status (*decode)(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                         trf_error *err);
    trf_status (*decode_rows)(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                              trf_error *err);
    /* Sets path, reason, device_workspace_bytes and partition of a plan whose layer and products are set. path is the
     * one that was asked for. */
    trf_status (*create_plan)(trf_plan *plan, trf_path path, trf_error *err);
    /* Computes plan->tiles_product. workspace is the device's part of the plan's workspace. */
    trf_status (*linear)(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                         trf_error *err);
} trf_layout_ops;

/* Finds the table that the context's device has for a layout. Errors: TRF_ERR_UNSUPPORTED. */
trf_status trf_find_layout(const trf_context *context, trf_layout layout, const trf_layout_ops **ops, trf_error *err);

#endif
