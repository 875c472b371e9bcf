/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory: the public functions. */
#include "trf_context.h"

trf_status trf_device_allocate(const trf_context *context, uint64_t bytes, void **memory, trf_error *err) {
    if (!context || !memory)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "device memory needs a context, and a place for its address");
    *memory = NULL;
    return bytes ? context->ops->allocate(context, bytes, memory, err) : TRF_OK;
}

void trf_device_free(const trf_context *context, void *memory) {
    if (memory)
        context->ops->release(context, memory);
}

trf_status trf_device_upload(const trf_context *context, void *to, const void *from_host, uint64_t bytes,
                             trf_error *err) {
    if (!context || (bytes && (!to || !from_host)))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a copy needs a context and two places");
    return bytes ? context->ops->upload(context, to, from_host, bytes, err) : TRF_OK;
}

trf_status trf_device_download(const trf_context *context, void *to_host, const void *from, uint64_t bytes,
                               trf_error *err) {
    if (!context || (bytes && (!to_host || !from)))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a copy needs a context and two places");
    return bytes ? context->ops->download(context, to_host, from, bytes, err) : TRF_OK;
}
