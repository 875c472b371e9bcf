/* SPDX-License-Identifier: Apache-2.0 */
/* What a layout is to a kind of device: how large layers of it are, and how they are filled, decoded and multiplied by.
 * Each kind of device has a table for each layout that it has (trf_device_ops.layouts), and a layer points to its own.
 * The public functions have checked the arguments, and taken the structs that callers fill. */
#ifndef TRF_LAYOUT_H
#define TRF_LAYOUT_H

#include "transfuse/device_memory.h"
#include "trf_error.h"
#include "trf_shard_range.h"

struct trf_blob_view;
struct trf_layer_feed;

typedef struct trf_layout_ops {
    trf_layout layout;
    /* Whether plans with TRF_PATH_AUTO follow tunings and crossovers; else there is one path only. */
    int has_several_paths;
    /* Whether products of experts, and stacks, take its layers. */
    int has_experts, has_stacks;
    /* What memory a layer takes. shard: what is meant of the view. Errors: TRF_ERR_UNSUPPORTED (its codec, too). */
    trf_status (*get_size)(const struct trf_blob_view *view, const trf_shard_range *shard, trf_layer_size *size,
                           trf_error *err);
    /* Fills a layer whose context, layout, info and shard are set. memory: the caller's, large enough, whose buffer may
     * be the feed's own; NULL for what the library is to allocate: both, or the directory. */
    trf_status (*fill)(trf_device_layer *made, struct trf_layer_feed *feed, const trf_layer_memory *memory,
                       trf_error *err);
    /* The same for a layer whose context and layout are set, of a buffer of this layout that lies in the device's
     * memory, and stays there; sets info and shard. NULL: such buffers are blobs, which have feeds. */
    trf_status (*adopt)(trf_device_layer *made, const void *buffer, uint64_t buffer_bytes, trf_error *err);
    /* What memory a layer takes that is made of one in another layout (trf_device_layer_convert). NULL, as convert:
     * none is. Errors: TRF_ERR_UNSUPPORTED (its codec, too). */
    trf_status (*get_converted_size)(const trf_device_layer *from, trf_layer_size *size, trf_error *err);
    /* Fills a layer whose context, layout, info and header are set from such a one, which is no stack's. memory: as for
     * fill. `from` is only read, but for its fault. */
    trf_status (*convert)(trf_device_layer *made, const trf_device_layer *from, const trf_layer_memory *memory,
                          trf_error *err);
    /* Fills a layer whose context, layout, info and header are set from dense weights, which are checked. NULL: none is
     * made so. */
    trf_status (*pack)(trf_device_layer *made, const trf_device_matrix *matrix, const trf_pack_options *options,
                       trf_error *err);
    void (*destroy)(trf_device_layer *layer);
    trf_status (*check)(const trf_device_layer *layer, trf_error *err);
    trf_status (*decode)(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                         trf_error *err);
    trf_status (*decode_rows)(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                              trf_error *err);
    /* Sets path, reason, device_workspace_bytes and partition of a plan whose layer and products are set. path: what
     * was asked for. */
    trf_status (*create_plan)(trf_plan *plan, trf_path path, trf_error *err);
    /* Computes plan->tiles_product. workspace: the device's part. */
    trf_status (*linear)(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                         trf_error *err);
} trf_layout_ops;

/* The context's device's table for a layout. Errors: TRF_ERR_UNSUPPORTED. */
trf_status trf_find_layout(const trf_context *context, trf_layout layout, const trf_layout_ops **ops, trf_error *err);

#endif
