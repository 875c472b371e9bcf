#include "trf_cuda_call.h"
#include "trf_decode_rows.h"

trf_status trf_cuda_decode_rows(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                                trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(layer->device, &scope, err);
    if (status != TRF_OK)
        return status;
    int error = trf_launch_decode_rows(&layer->view, &layer->shard, request, stream);
    trf_leave_device(&scope);
    return trf_check_cuda(error, "decoding rows", err);
}
