#include "trf_staging_cuda.h"

#include "trf_cuda_call.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

struct trf_cuda_copier {
    int device;
    cudaStream_t stream;
    cudaEvent_t arrived[TRF_STAGING_BUFFERS];
};

static void *trf_lock_memory(void *context, uint64_t bytes) {
    void *memory = NULL;
    (void)context;
    if (cudaHostAlloc(&memory, bytes, cudaHostAllocDefault) == cudaSuccess)
        return memory;
    cudaGetLastError();
    return NULL;
}

static void trf_unlock_memory(void *context, void *memory) {
    (void)context;
    cudaFreeHost(memory);
}

static trf_status trf_begin_copy(void *context, uint32_t buffer, void *to, const void *from, uint64_t bytes,
                                 trf_error *err) {
    const trf_cuda_copier *copier = context;
    trf_device_scope scope;
    trf_status status = trf_enter_device(copier->device, &scope, err);
    if (status != TRF_OK)
        return status;
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, copier->stream);
    if (!error)
        error = cudaEventRecord(copier->arrived[buffer], copier->stream);
    trf_leave_device(&scope);
    return trf_check_cuda(error, "copying a layer to the device", err);
}

static trf_status trf_await_copy(void *context, uint32_t buffer, trf_error *err) {
    const trf_cuda_copier *copier = context;
    return trf_check_cuda(cudaEventSynchronize(copier->arrived[buffer]), "copying a layer to the device", err);
}

static trf_status trf_await_copies(void *context, trf_error *err) {
    const trf_cuda_copier *copier = context;
    return trf_check_cuda(cudaStreamSynchronize(copier->stream), "copying a layer to the device", err);
}

const trf_copy_engine trf_cuda_copy_engine = {
    .allocate = trf_lock_memory,
    .release = trf_unlock_memory,
    .copy = trf_begin_copy,
    .wait = trf_await_copy,
    .drain = trf_await_copies,
};

trf_status trf_cuda_copier_create(int device, trf_cuda_copier **copier, trf_error *err) {
    trf_cuda_copier *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a stream for copies");
    made->device = device;
    cudaError_t error = cudaStreamCreateWithFlags(&made->stream, cudaStreamNonBlocking);
    for (int i = 0; !error && i < TRF_STAGING_BUFFERS; i++)
        error = cudaEventCreateWithFlags(&made->arrived[i], cudaEventDisableTiming);
    trf_status status = trf_check_cuda(error, "making a stream for copies", err);
    if (status == TRF_OK)
        *copier = made;
    else
        trf_cuda_copier_destroy(made);
    return status;
}

void trf_cuda_copier_destroy(trf_cuda_copier *copier) {
    if (!copier)
        return;
    for (int i = 0; i < TRF_STAGING_BUFFERS; i++)
        if (copier->arrived[i])
            cudaEventDestroy(copier->arrived[i]);
    if (copier->stream)
        cudaStreamDestroy(copier->stream);
    free(copier);
}
