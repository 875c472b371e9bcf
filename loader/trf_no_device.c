/* The device functions of a build without device code. No context exists there, so no function that takes one, or a layer of one, can
 * be reached by a correct program; they are here so that every program links. */
#include "trf_error.h"

#include <string.h>

static trf_status trf_no_device(trf_error *err) {
    return trf_fail(err, TRF_ERR_DEVICE, TRF_NO_OFFSET, "this build has no device code");
}

trf_status trf_context_create(int device, trf_context **context, trf_error *err) {
    (void)device, (void)context;
    return trf_no_device(err);
}

void trf_context_destroy(trf_context *context) { (void)context; }

const char *trf_context_device_name(const trf_context *context) {
    (void)context;
    return "";
}

trf_status trf_device_layer_create(trf_context *context, const trf_layer *layer, trf_device_layer **device_layer,
                                   trf_error *err) {
    (void)context, (void)layer, (void)device_layer;
    return trf_no_device(err);
}

void trf_device_layer_destroy(trf_device_layer *device_layer) { (void)device_layer; }

void trf_device_layer_get_info(const trf_device_layer *device_layer, trf_layer_info *info) {
    (void)device_layer;
    memset(info, 0, sizeof *info);
}

uint64_t trf_device_layer_bytes(const trf_device_layer *device_layer) {
    (void)device_layer;
    return 0;
}

trf_status trf_device_layer_decode(const trf_device_layer *device_layer, trf_decode_as as, void *weights,
                                   uint64_t weights_bytes, trf_stream stream, trf_error *err) {
    (void)device_layer, (void)as, (void)weights, (void)weights_bytes, (void)stream;
    return trf_no_device(err);
}

trf_status trf_linear_plan_init(const trf_device_layer *device_layer, uint32_t m, trf_dtype x_dtype, trf_dtype y_dtype,
                                trf_path path, trf_linear_plan *plan, trf_error *err) {
    (void)device_layer, (void)m, (void)x_dtype, (void)y_dtype, (void)path, (void)plan;
    return trf_no_device(err);
}

trf_status trf_linear(const trf_device_layer *device_layer, const trf_linear_plan *plan, const void *x, void *y,
                      void *workspace, trf_stream stream, trf_error *err) {
    (void)device_layer, (void)plan, (void)x, (void)y, (void)workspace, (void)stream;
    return trf_no_device(err);
}

trf_status trf_device_layer_check(const trf_device_layer *device_layer, trf_error *err) {
    (void)device_layer;
    return trf_no_device(err);
}
