/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a coded blob from a device layer in any layout. */
#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_layer.h"

#include <stdlib.h>
#include <string.h>

static trf_status allocate_host(uint64_t bytes, void **memory, trf_error *err) {
    *memory = malloc(bytes);
    return *memory
               ? TRF_OK
               : trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate %llu bytes", (unsigned long long)bytes);
}

static trf_status copy_blob(const trf_device_layer *layer, void **blob, uint64_t *blob_bytes, trf_error *err) {
    const trf_context *context = layer->context;
    const uint64_t bytes = layer->view.buffer_bytes;
    void *copy;
    if (trf_shard_cuts_rows(layer) || trf_shard_cuts_cols(layer))
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "a coded shard that does not begin and end with tiles of %d has no blob of its own",
                        TRF_TILE_SIZE);
    trf_status status = allocate_host(bytes, &copy, err);
    if (status != TRF_OK)
        return status;
    if (layer->host) /* a layer of the CPU; or a stack's, which need not be on the device */
        memcpy(copy, layer->host->blob, bytes);
    else
        status = context->ops->download(context, copy, layer->view.buffer, bytes, err);
    if (status != TRF_OK) {
        free(copy);
        return status;
    }
    *blob = copy;
    *blob_bytes = bytes;
    return TRF_OK;
}

/* Decodes the weights to host memory, dense and in the source's dtype. On a GPU it waits for work that may still be
 * writing the layer. */
static trf_status decode_to_host(const trf_device_layer *layer, void *weights, uint64_t bytes, trf_error *err) {
    const trf_context *context = layer->context;
    void *decoded;
    if (context->device == TRF_DEVICE_CPU)
        return layer->layout->decode(layer, TRF_DECODE_SOURCE, weights, NULL, err);
    trf_status status = layer->layout->check(layer, err);
    if (status == TRF_OK)
        status = context->ops->allocate(context, bytes, &decoded, err);
    if (status != TRF_OK)
        return status;
    status = layer->layout->decode(layer, TRF_DECODE_SOURCE, decoded, NULL, err);
    if (status == TRF_OK)
        status = context->ops->download(context, weights, decoded, bytes, err);
    context->ops->release(context, decoded);
    return status;
}

/* Encodes the weights with the options that the layer's blob was encoded with. */
static trf_status encode_weights(const trf_layer_info *info, const void *weights, int threads, void **blob,
                                 uint64_t *blob_bytes, trf_error *err) {
    trf_matrix matrix;
    trf_encode_options options;
    trf_matrix_init(&matrix);
    matrix.weights = weights;
    matrix.dtype = info->dtype;
    matrix.rows = info->rows;
    matrix.cols = info->cols;
    trf_encode_options_init(&options);
    options.codec = info->codec;
    options.favor = info->class_bits == 4 ? TRF_FAVOR_SIZE : TRF_FAVOR_SPEED;
    options.probability_bits = info->probability_bits;
    options.slab_cols = info->slab_cols;
    options.threads = threads;
    return trf_encode_layer(&matrix, &options, blob, blob_bytes, NULL, err);
}

trf_status trf_device_layer_encode(const trf_device_layer *layer, int threads, void **blob, uint64_t *blob_bytes,
                                   trf_error *err) {
    void *weights;
    if (!layer || !blob || !blob_bytes)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "encoding needs a layer, and a place for its blob");
    if (layer->layout->layout == TRF_LAYOUT_CODED)
        return copy_blob(layer, blob, blob_bytes, err);
    const trf_layer_info *info = &layer->info;
    const uint64_t bytes = (uint64_t)info->rows * info->cols * trf_dtype_bytes(info->dtype);
    trf_status status = allocate_host(bytes, &weights, err);
    if (status != TRF_OK)
        return status;
    status = decode_to_host(layer, weights, bytes, err);
    if (status == TRF_OK) {
        trf_layer_info as = *info;
        if (layer->layout->layout == TRF_LAYOUT_PACKED8) /* whose scales are found again */
            as.codec = TRF_CODEC_E4M3;
        status = encode_weights(&as, weights, threads, blob, blob_bytes, err);
        if (status == TRF_ERR_ARGUMENT && as.codec != info->codec) /* so few weights that no scales are found */
            status = encode_weights(info, weights, threads, blob, blob_bytes, err);
    }
    free(weights);
    return status;
}
