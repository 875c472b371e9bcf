/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_staging_cuda.h"

#include "trf_cuda_call.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
    LARGE_PAGE_BYTES = 2 << 20
};

struct trf_cuda_copier {
    int device;
    cudaStream_t stream, work_stream;
    cudaEvent_t arrived[TRF_STAGING_BUFFERS];
};

/* Uses large pages where the system has them; they are page-locked as they are. What CUDA allocates itself comes in
 * small pages. */
static void *pin_memory(void *context, uint64_t bytes) {
    (void)context;
    void *memory =
        aligned_alloc(LARGE_PAGE_BYTES, (bytes + LARGE_PAGE_BYTES - 1) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES);
    if (!memory)
        return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE); /* a hint */
    if (cudaHostRegister(memory, bytes, cudaHostRegisterDefault) == cudaSuccess)
        return memory;
    cudaGetLastError();
    free(memory);
    return NULL;
}

static void unpin_memory(void *context, void *memory) {
    (void)context;
    cudaHostUnregister(memory);
    free(memory);
}

static trf_status begin_copy(void *context, uint32_t buffer, void *to, const void *from, uint64_t bytes,
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

static trf_status await_cuda_copy(void *context, uint32_t buffer, trf_error *err) {
    const trf_cuda_copier *copier = context;
    return trf_check_cuda(cudaEventSynchronize(copier->arrived[buffer]), "copying a layer to the device", err);
}

static trf_status await_copies(void *context, trf_error *err) {
    const trf_cuda_copier *copier = context;
    return trf_check_cuda(cudaStreamSynchronize(copier->stream), "copying a layer to the device", err);
}

const trf_copy_engine trf_cuda_copy_engine = {
    .allocate = pin_memory,
    .release = unpin_memory,
    .copy = begin_copy,
    .wait = await_cuda_copy,
    .drain = await_copies,
};

trf_status trf_cuda_copy_back(void *copier, void *to_host, const void *from, uint64_t bytes, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(((const trf_cuda_copier *)copier)->device, &scope, err);
    if (status != TRF_OK)
        return status;
    /* Each thread has its own stream, so no thread waits for another's copies, nor for layers that are being loaded. */
    cudaError_t error = cudaMemcpyAsync(to_host, from, bytes, cudaMemcpyDeviceToHost, cudaStreamPerThread);
    if (!error)
        error = cudaStreamSynchronize(cudaStreamPerThread);
    trf_leave_device(&scope);
    return trf_check_cuda(error, "copying a layer back from the device", err);
}

trf_status trf_cuda_copier_create(int device, trf_cuda_copier **copier, trf_error *err) {
    trf_cuda_copier *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a stream for copies");
    made->device = device;
    cudaError_t error = cudaStreamCreateWithFlags(&made->stream, cudaStreamNonBlocking);
    if (!error)
        error = cudaStreamCreateWithFlags(&made->work_stream, cudaStreamNonBlocking);
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
    if (copier->work_stream)
        cudaStreamDestroy(copier->work_stream);
    if (copier->stream)
        cudaStreamDestroy(copier->stream);
    free(copier);
}

trf_stream trf_cuda_copier_stream(const trf_cuda_copier *copier) { return copier->stream; }

trf_stream trf_cuda_copier_work_stream(const trf_cuda_copier *copier) { return copier->work_stream; }
