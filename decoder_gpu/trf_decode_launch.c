/* Decoding a whole layer on the device: regular slabs by one kernel, what remains by another. */
#include "trf_decode_launch.h"

#include "trf_cuda_call.h"

int trf_launch_decode(const trf_device_view *view, const trf_device_facts *facts, trf_decode_as as, void *weights,
                      trf_stream stream) {
    int error = facts->slabs ? trf_launch_decode_slabs(view, facts, as, weights, stream) : 0;
    if (!error && facts->irregular_weights)
        error = trf_launch_decode_edges(view, as, weights, stream);
    return error;
}

static trf_status trf_check_target(const trf_device_layer *device_layer, trf_decode_as as, const void *weights,
                                   uint64_t weights_bytes, trf_error *err) {
    const trf_layer_info *info = &device_layer->info;
    if (as < TRF_DECODE_SOURCE || as > TRF_DECODE_F16)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "weights cannot be decoded as %d", (int)as);
    if (!weights || (uintptr_t)weights % 16)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "decoded weights need 16-byte aligned device memory");
    if ((as == TRF_DECODE_BF16 && info->codec == TRF_CODEC_FP16) ||
        (as == TRF_DECODE_F16 && info->codec == TRF_CODEC_BF16))
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "weights of codec %s are not decoded as %s",
                        trf_codec_name(info->codec), as == TRF_DECODE_BF16 ? "BF16" : "F16");
    const uint64_t value_bytes = as == TRF_DECODE_SOURCE ? trf_dtype_bytes(info->dtype) : 2;
    if (weights_bytes % value_bytes || weights_bytes / value_bytes != (uint64_t)info->rows * info->cols)
        return trf_fail(err, TRF_ERR_SHAPE, TRF_NO_OFFSET, "a buffer of %llu bytes for %ux%u weights of %llu bytes",
                        (unsigned long long)weights_bytes, info->rows, info->cols, (unsigned long long)value_bytes);
    return TRF_OK;
}

trf_status trf_device_layer_decode(const trf_device_layer *device_layer, trf_decode_as as, void *weights,
                                   uint64_t weights_bytes, trf_stream stream, trf_error *err) {
    if (!device_layer)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "no layer to decode");
    trf_device_scope scope;
    trf_status status = trf_check_target(device_layer, as, weights, weights_bytes, err);
    if (status == TRF_OK)
        status = trf_enter_device(device_layer->device, &scope, err);
    if (status != TRF_OK)
        return status;
    int error = trf_launch_decode(&device_layer->view, &device_layer->facts, as, weights, stream);
    trf_leave_device(&scope);
    return trf_check_cuda(error, "decoding a layer", err);
}
