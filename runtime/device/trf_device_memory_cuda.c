/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's memory. */
#include "trf_cuda_call.h"
#include "trf_device_cuda.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

/* The device is current. */
trf_status trf_cuda_allocate_here(uint64_t bytes, void **memory, trf_error *err) {
    char doing[64];
    snprintf(doing, sizeof doing, "allocating %llu bytes of device memory", (unsigned long long)bytes);
    return trf_check_cuda(cudaMalloc(memory, bytes), doing, err);
}

trf_status trf_cuda_allocate(const trf_context *context, uint64_t bytes, void **memory, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    status = trf_cuda_allocate_here(bytes, memory, err);
    trf_leave_device(&scope);
    return status;
}

void trf_cuda_release(const trf_context *context, void *memory) {
    trf_device_scope scope;
    trf_enter_device(context->device, &scope, NULL);
    cudaFree(memory);
    trf_leave_device(&scope);
}

/* The copy runs after all work that was queued on the device before. */
static trf_status cuda_copy(const trf_context *context, void *to, const void *from, uint64_t bytes,
                            enum cudaMemcpyKind kind, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    cudaError_t error = cudaDeviceSynchronize();
    if (!error)
        error = cudaMemcpy(to, from, bytes, kind);
    if (!error) /* copies from pageable memory return before they have arrived */
        error = cudaStreamSynchronize(NULL);
    trf_leave_device(&scope);
    return trf_check_cuda(error, "copying to or from the device", err);
}

trf_status trf_cuda_copy_rows(const trf_context *context, const trf_row_copy *copy, trf_stream stream, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    cudaError_t error = copy->from ? cudaMemcpy2DAsync(copy->to, copy->to_pitch, copy->from, copy->from_pitch,
                                                       copy->width, copy->rows, cudaMemcpyDeviceToDevice, stream)
                                   : cudaMemset2DAsync(copy->to, copy->to_pitch, 0, copy->width, copy->rows, stream);
    trf_leave_device(&scope);
    return trf_check_cuda(error, "copying rows of x or y", err);
}

trf_status trf_cuda_upload(const trf_context *context, void *to, const void *from_host, uint64_t bytes,
                           trf_error *err) {
    return cuda_copy(context, to, from_host, bytes, cudaMemcpyHostToDevice, err);
}

trf_status trf_cuda_download(const trf_context *context, void *to_host, const void *from, uint64_t bytes,
                             trf_error *err) {
    return cuda_copy(context, to_host, from, bytes, cudaMemcpyDeviceToHost, err);
}
