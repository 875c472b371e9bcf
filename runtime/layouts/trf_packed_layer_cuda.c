/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes packed layers, BF16 and FP8, in a GPU's memory. trf_packed_load_cuda.c makes them. */
#include "trf_packed_layer_cuda.h"

#include "trf_cuda_call.h"
#include "trf_decoded_bits.h"
#include "trf_nvtx.h"
#include "trf_pack8_launch.h"
#include "trf_packed_layer.h"
#include "trf_unpack8_launch.h"

/* ---- decoding ---- */

static trf_unpack_target target_of(const trf_device_layer *layer, trf_decode_as as, void *to) {
    return (trf_unpack_target){to, layer->view.cols, trf_decoded_weight_bytes(&layer->view, as)};
}

/* Whether the layer's weights are E4M3 without scales, and are decoded as something else than the BF16 numbers that are
 * packed. */
static int has_other_values(const trf_device_layer *layer, trf_decode_as as) {
    return layer->info.codec == TRF_CODEC_E4M3 && as != TRF_DECODE_BF16;
}

static int launch_unpack(const trf_device_layer *layer, trf_decode_as as, const trf_unpack_target *target,
                         trf_stream stream) {
    const uint32_t rows = layer->view.rows;
    const trf_packed_lookup all = {NULL, 0, rows};
    if (layer->layout->layout == TRF_LAYOUT_PACKED)
        return trf_launch_unpack(&layer->packed, 0, rows, target, stream);
    return has_other_values(layer, as)
               ? trf_launch_unpack8_values(&layer->packed8, &layer->view, as, &all, target->weights, stream)
               : trf_launch_unpack8(&layer->packed8, 0, rows, target, stream);
}

static int launch_unpack_rows(const trf_device_layer *layer, trf_decode_as as, const trf_packed_lookup *lookup,
                              const trf_unpack_target *target, trf_stream stream) {
    if (layer->layout->layout == TRF_LAYOUT_PACKED)
        return trf_launch_unpack_rows(&layer->packed, lookup, target, stream);
    return has_other_values(layer, as)
               ? trf_launch_unpack8_values(&layer->packed8, &layer->view, as, lookup, target->weights, stream)
               : trf_launch_unpack8_rows(&layer->packed8, lookup, target, stream);
}

trf_status trf_cuda_decode_packed(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                                  trf_error *err) {
    const trf_unpack_target target = target_of(layer, as, weights);
    trf_device_scope scope;
    trf_status status = trf_enter_device(layer->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("decode");
    const int error = launch_unpack(layer, as, &target, stream);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return trf_check_cuda(error, "decoding a layer", err);
}

trf_status trf_cuda_decode_packed_rows(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                                       trf_error *err) {
    const trf_unpack_target target = target_of(layer, request->as, request->rows);
    const trf_packed_lookup lookup = {request->row_ids, request->id_bytes, request->count};
    trf_device_scope scope;
    trf_status status = trf_enter_device(layer->device, &scope, err);
    if (status != TRF_OK)
        return status;
    const int error = launch_unpack_rows(layer, request->as, &lookup, &target, stream);
    trf_leave_device(&scope);
    return trf_check_cuda(error, "decoding rows", err);
}
