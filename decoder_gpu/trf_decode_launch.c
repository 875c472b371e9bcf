/* Decoding a whole layer on the device: regular slabs by one kernel, what remains by another. */
#include "trf_decode_launch.h"

#include "trf_cuda_call.h"
#include "trf_nvtx.h"

int trf_launch_decode(const trf_device_view *view, const trf_layer_traits *traits, trf_decode_as as, void *weights,
                      trf_stream stream) {
    int error = traits->slabs ? trf_launch_decode_slabs(view, traits, as, weights, stream) : 0;
    if (!error && traits->irregular_weights)
        error = trf_launch_decode_edges(view, as, weights, stream);
    return error;
}

trf_status trf_cuda_decode(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                           trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(layer->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("decode");
    int error = trf_launch_decode(&layer->view, &layer->traits, as, weights, stream);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return trf_check_cuda(error, "decoding a layer", err);
}
