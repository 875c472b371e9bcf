/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_cuda_call.h"

#include <cuda_runtime_api.h>

trf_status trf_check_cuda(int error, const char *doing, trf_error *err) {
    if (error == cudaSuccess)
        return TRF_OK;
    cudaGetLastError();
    trf_status status = error == cudaErrorMemoryAllocation ? TRF_ERR_MEMORY : TRF_ERR_CUDA;
    trf_fail(err, status, TRF_NO_OFFSET, "%s: %s (%s)", doing, cudaGetErrorString((cudaError_t)error),
             cudaGetErrorName((cudaError_t)error));
    if (err && status == TRF_ERR_CUDA)
        err->cuda = error;
    return status;
}

void trf_pass_over_cuda(int error) {
    if (error != cudaSuccess)
        cudaGetLastError();
}

trf_status trf_enter_device(int device, trf_device_scope *scope, trf_error *err) {
    int previous = device;
    cudaError_t error = cudaGetDevice(&previous);
    if (error == cudaSuccess && previous != device)
        error = cudaSetDevice(device);
    /* on failure there is nothing to undo */
    *scope = (trf_device_scope){error == cudaSuccess ? previous : device, device};
    return trf_check_cuda(error, "making the context's device current", err);
}

void trf_leave_device(const trf_device_scope *scope) {
    if (scope->previous != scope->device)
        trf_pass_over_cuda(cudaSetDevice(scope->previous));
}
