/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA runtime without a GPU, for run.sh: device memory is the host's, copies are made at once, streams and events
 * are allocations (so that the address sanitizer sees what is lost), and kernels do nothing. It has what the library's
 * host code calls, and says that the device is an H200. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

enum {
    MULTIPROCESSORS = 132,
    SHARED_BYTES = 232448
};

/* Where a test lets allocations fail, these are not the library's. */
#ifdef WRAPS_ALLOCATIONS
void *__real_aligned_alloc(size_t alignment, size_t bytes);
#define ALLOCATE __real_aligned_alloc
#else
#define ALLOCATE aligned_alloc
#endif

static cudaError_t make(void **made, size_t bytes) {
    *made = bytes ? ALLOCATE(256, (bytes + 255) / 256 * 256) : NULL;
    if (bytes && !*made)
        return cudaErrorMemoryAllocation;
    if (bytes)
        memset(*made, 0x5A, bytes);
    return cudaSuccess;
}

static cudaError_t release(void *made) {
    free(made);
    return cudaSuccess;
}

/* ---- the device ---- */

cudaError_t cudaGetDeviceCount(int *count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device ? cudaErrorInvalidDevice : cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    *properties = (struct cudaDeviceProp){.name = "NVIDIA H200",
                                          .major = 9,
                                          .l2CacheSize = 1 << 20,
                                          .multiProcessorCount = MULTIPROCESSORS,
                                          .sharedMemPerBlockOptin = SHARED_BYTES};
    return cudaSetDevice(device);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    *value = attribute == cudaDevAttrMultiProcessorCount            ? MULTIPROCESSORS
             : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? SHARED_BYTES
                                                                    : 0;
    return cudaSetDevice(device);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel) {
    (void)kernel;
    memset(attributes, 0, sizeof *attributes);
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) {
    (void)kernel, (void)attribute, (void)value;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveClusters(int *count, const void *kernel, const cudaLaunchConfig_t *config) {
    (void)kernel, (void)config;
    return *count = MULTIPROCESSORS / 2, cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *found) {
    (void)name, (void)version, (void)flags;
    *function = NULL;
    *found = cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *now, size_t *all) { return *now = *all = (size_t)1 << 37, cudaSuccess; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
const char *cudaGetErrorName(cudaError_t error) { return error ? "cudaErrorMadeUp" : "cudaSuccess"; }
const char *cudaGetErrorString(cudaError_t error) { return error ? "a made-up error" : "no error"; }

/* ---- memory ---- */

cudaError_t cudaMalloc(void **memory, size_t bytes) { return make(memory, bytes); }
cudaError_t cudaFree(void *memory) { return release(memory); }
cudaError_t cudaFreeHost(void *memory) { return release(memory); }

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags) {
    (void)flags;
    return make(memory, bytes);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags) {
    (void)memory, (void)bytes, (void)flags;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory) {
    (void)memory;
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows,
                              enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind, (void)stream;
    for (size_t i = 0; width && i < rows; i++)
        memmove((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, bytes, kind, NULL);
}

cudaError_t cudaMemset2DAsync(void *memory, size_t pitch, int value, size_t width, size_t rows, cudaStream_t stream) {
    (void)stream;
    for (size_t i = 0; width && i < rows; i++)
        memset((char *)memory + i * pitch, value, width);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream) {
    return cudaMemset2DAsync(memory, bytes, value, bytes, 1, stream);
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes) { return cudaMemsetAsync(memory, value, bytes, NULL); }

/* ---- streams, events, graphs ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    (void)flags;
    return make((void **)stream, 1);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    return make((void **)event, 1);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags) {
    (void)graph, (void)flags;
    return make((void **)made, 1);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    (void)stream;
    return make((void **)graph, 1);
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return make((void **)event, 1); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return release(stream); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return release(event); }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return release(graph); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return release(graph); }
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }

#define DOES_NOTHING(name, parameters)                                                                                 \
    cudaError_t name parameters { return cudaSuccess; }

DOES_NOTHING(cudaStreamSynchronize, (cudaStream_t stream))
DOES_NOTHING(cudaEventSynchronize, (cudaEvent_t event))
DOES_NOTHING(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream))
DOES_NOTHING(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags))
DOES_NOTHING(cudaStreamBeginCapture, (cudaStream_t stream, enum cudaStreamCaptureMode mode))
DOES_NOTHING(cudaGraphLaunch, (cudaGraphExec_t graph, cudaStream_t stream))
DOES_NOTHING(cudaLaunchKernel, (const void *kernel, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t on))
DOES_NOTHING(__cudaLaunchKernel, (void *kernel, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream))
DOES_NOTHING(cudaLaunchKernelExC, (const cudaLaunchConfig_t *config, const void *kernel, void **args))

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    (void)stream;
    return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    (void)begin, (void)end;
    return *milliseconds = 1, cudaSuccess;
}
