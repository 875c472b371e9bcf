/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes packed layers in a GPU's memory. trf_packed_load_cuda.c makes them. */
#include "trf_packed_layer_cuda.h"

#include "trf_cuda_call.h"
#include "trf_decoded_bits.h"
#include "trf_nvtx.h"
#include "trf_pack_launch.h"
#include "trf_packed_layer.h"

/* ---- decoding ---- */

static trf_unpack_target target_of(const trf_device_layer *layer, trf_decode_as as, void *to) {
    return (trf_unpack_target){to, layer->view.cols, trf_decoded_weight_bytes(&layer->view, as)};
}

trf_status trf_cuda_decode_packed(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                                  trf_error *err) {
    const trf_unpack_target target = target_of(layer, as, weights);
    trf_device_scope scope;
    trf_status status = trf_enter_device(layer->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("decode");
    const int error = trf_launch_unpack(&layer->packed, 0, layer->view.rows, &target, stream);
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
    const int error = trf_launch_unpack_rows(&layer->packed, &lookup, &target, stream);
    trf_leave_device(&scope);
    return trf_check_cuda(error, "decoding rows", err);
}
