/* SPDX-License-Identifier: Apache-2.0 */
/* The operations decode and decode_rows of a GPU (trf_layout.h): they make the layer's device current and launch the
 * kernels. */
#include "trf_decode_cuda.h"

#include "trf_cuda_call.h"
#include "trf_decode_launch.h"
#include "trf_decode_rows.h"
#include "trf_device_layer.h"
#include "trf_nvtx.h"

trf_status trf_cuda_decode(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                           trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(layer->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("decode");
    int error = trf_launch_decode_layer(&layer->view, &layer->traits, as, weights, stream);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return trf_check_cuda(error, "decoding a layer", err);
}

trf_status trf_cuda_decode_rows(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                                trf_error *err) {
    const trf_row_lookup lookup = {request->row_ids, request->id_bytes, request->count, request->as, request->rows};
    trf_device_scope scope;
    trf_status status = trf_enter_device(layer->device, &scope, err);
    if (status != TRF_OK)
        return status;
    int error = trf_launch_decode_rows(&layer->view, &layer->shard, &lookup, stream);
    trf_leave_device(&scope);
    return trf_check_cuda(error, "decoding rows", err);
}
