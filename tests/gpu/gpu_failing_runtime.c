/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_failing_runtime.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

static atomic_long calls, fails_at, objects;
static atomic_int fails_on, fails_with;
static _Atomic(const char *) failed;
static _Thread_local cudaError_t last_error;
static _Thread_local const char *last_error_of;

void gpu_runtime_begin(long fail_at, int on, cudaError_t error) {
    last_error = cudaSuccess;
    atomic_store(&calls, 0);
    atomic_store(&failed, NULL);
    atomic_store(&fails_on, on);
    atomic_store(&fails_with, (int)error);
    atomic_store(&fails_at, fail_at);
}

const char *gpu_runtime_end(void) {
    atomic_store(&fails_at, 0);
    return atomic_load(&failed);
}

long gpu_runtime_calls(void) { return atomic_load(&calls); }
long gpu_runtime_objects(void) { return atomic_load(&objects); }
const char *gpu_runtime_error_left(void) { return last_error ? last_error_of : NULL; }

/* @return the error that this call ends with, which is then the thread's last one, or cudaSuccess. */
static cudaError_t next_call(const char *name) {
    const long number = atomic_fetch_add(&calls, 1) + 1, at = atomic_load(&fails_at);
    if (!at || number < at || (number > at && !atomic_load(&fails_on)))
        return cudaSuccess;
    const char *none = NULL;
    atomic_compare_exchange_strong(&failed, &none, name);
    last_error_of = name;
    return last_error = (cudaError_t)atomic_load(&fails_with);
}

/* ---- the list: CMakeLists.txt makes the linker's options of the names that follow these four words ---- */

#define DECLARE(name, parameters)                                                                                      \
    cudaError_t __real_##name parameters;                                                                              \
    cudaError_t __wrap_##name parameters;                                                                              \
    cudaError_t __wrap_##name parameters

/* Does nothing when it fails. */
#define FAILS(name, parameters, arguments)                                                                             \
    DECLARE(name, parameters) {                                                                                        \
        const cudaError_t error = next_call(#name);                                                                    \
        return error ? error : __real_##name arguments;                                                                \
    }

/* Makes an object. */
#define MAKES(name, parameters, arguments)                                                                             \
    DECLARE(name, parameters) {                                                                                        \
        cudaError_t error = next_call(#name);                                                                          \
        if (!error) {                                                                                                  \
            error = __real_##name arguments;                                                                           \
            atomic_fetch_add(&objects, !error);                                                                        \
        }                                                                                                              \
        return error;                                                                                                  \
    }

/* Releases an object, if there is one. */
#define FREES(name, parameters, object)                                                                                \
    DECLARE(name, parameters) {                                                                                        \
        atomic_fetch_sub(&objects, (object) != NULL);                                                                  \
        return __real_##name(object);                                                                                  \
    }

/* Waits, whether it fails or not. */
#define WAITS(name, parameters, arguments)                                                                             \
    DECLARE(name, parameters) {                                                                                        \
        const cudaError_t real = __real_##name arguments, error = next_call(#name);                                    \
        return error ? error : real;                                                                                   \
    }

FAILS(cudaGetDeviceCount, (int *count), (count))
FAILS(cudaGetDevice, (int *device), (device))
FAILS(cudaSetDevice, (int device), (device))
FAILS(cudaGetDeviceProperties, (struct cudaDeviceProp * properties, int device), (properties, device))
FAILS(cudaDeviceGetAttribute, (int *value, enum cudaDeviceAttr attribute, int device), (value, attribute, device))
FAILS(cudaFuncGetAttributes, (struct cudaFuncAttributes * attributes, const void *kernel), (attributes, kernel))
FAILS(cudaFuncSetAttribute, (const void *kernel, enum cudaFuncAttribute attribute, int value),
      (kernel, attribute, value))
FAILS(cudaOccupancyMaxActiveClusters, (int *count, const void *kernel, const cudaLaunchConfig_t *config),
      (count, kernel, config))
FAILS(cudaGetDriverEntryPointByVersion,
      (const char *name, void **function, unsigned version, unsigned long long flags,
       enum cudaDriverEntryPointQueryResult *found),
      (name, function, version, flags, found))

MAKES(cudaMalloc, (void **memory, size_t bytes), (memory, bytes))
MAKES(cudaHostAlloc, (void **memory, size_t bytes, unsigned flags), (memory, bytes, flags))
FREES(cudaFreeHost, (void *memory), memory)
MAKES(cudaHostRegister, (void *memory, size_t bytes, unsigned flags), (memory, bytes, flags))
FREES(cudaHostUnregister, (void *memory), memory)
MAKES(cudaStreamCreateWithFlags, (cudaStream_t * stream, unsigned flags), (stream, flags))
FREES(cudaStreamDestroy, (cudaStream_t stream), stream)
MAKES(cudaEventCreate, (cudaEvent_t * event), (event))
MAKES(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned flags), (event, flags))
FREES(cudaEventDestroy, (cudaEvent_t event), event)
MAKES(cudaGraphInstantiate, (cudaGraphExec_t * made, cudaGraph_t graph, unsigned long long flags), (made, graph, flags))
FREES(cudaGraphExecDestroy, (cudaGraphExec_t graph), graph)
FREES(cudaGraphDestroy, (cudaGraph_t graph), graph)

FAILS(cudaMemcpy, (void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind), (to, from, bytes, kind))
FAILS(cudaMemcpyAsync, (void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream),
      (to, from, bytes, kind, stream))
FAILS(cudaMemcpy2DAsync,
      (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows,
       enum cudaMemcpyKind kind, cudaStream_t stream),
      (to, to_pitch, from, from_pitch, width, rows, kind, stream))
FAILS(cudaMemsetAsync, (void *memory, int value, size_t bytes, cudaStream_t stream), (memory, value, bytes, stream))
FAILS(cudaMemset2DAsync, (void *memory, size_t pitch, int value, size_t width, size_t rows, cudaStream_t stream),
      (memory, pitch, value, width, rows, stream))
FAILS(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
FAILS(cudaEventElapsedTime, (float *milliseconds, cudaEvent_t begin, cudaEvent_t end), (milliseconds, begin, end))
FAILS(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags), (stream, event, flags))
FAILS(cudaStreamIsCapturing, (cudaStream_t stream, enum cudaStreamCaptureStatus *status), (stream, status))
FAILS(cudaStreamBeginCapture, (cudaStream_t stream, enum cudaStreamCaptureMode mode), (stream, mode))
FAILS(cudaGraphLaunch, (cudaGraphExec_t graph, cudaStream_t stream), (graph, stream))
WAITS(cudaDeviceSynchronize, (void), ())
WAITS(cudaStreamSynchronize, (cudaStream_t stream), (stream))
WAITS(cudaEventSynchronize, (cudaEvent_t event), (event))

/* What <<<>>> calls before CUDA 13, and from then on, and cudaLaunchKernelEx. */
FAILS(cudaLaunchKernel, (const void *kernel, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream),
      (kernel, grid, block, args, shared, stream))
#if CUDART_VERSION >= 13000
FAILS(__cudaLaunchKernel, (cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream),
      (kernel, grid, block, args, shared, stream))
#endif
FAILS(cudaLaunchKernelExC, (const cudaLaunchConfig_t *config, const void *kernel, void **args), (config, kernel, args))

/* The thread's last error may be one that was made here. */
#define TELLS DECLARE
TELLS(cudaGetLastError, (void)) {
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error ? error : __real_cudaGetLastError();
}

/* Starting CUDA, by releasing nothing, fails; releasing memory does not. Clean-up also releases nothing now and then,
 * and need not look, so that no error is left. */
TELLS(cudaFree, (void *memory)) {
    const cudaError_t error = memory ? cudaSuccess : next_call("cudaFree(NULL)");
    if (error)
        last_error = cudaSuccess;
    atomic_fetch_sub(&objects, memory != NULL);
    return error ? error : __real_cudaFree(memory);
}

/* It ends the capture, and gives no graph if it fails. */
TELLS(cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t *graph)) {
    cudaError_t error = __real_cudaStreamEndCapture(stream, graph);
    const cudaError_t made = error ? cudaSuccess : next_call("cudaStreamEndCapture");
    if (made) {
        __real_cudaGraphDestroy(*graph);
        *graph = NULL;
        error = made;
    }
    atomic_fetch_add(&objects, !error);
    return error;
}

/* ---- cuBLASLt, which the library opens at run time ---- */

static __typeof__(&cublasLtCreate) real_create;
static __typeof__(&cublasLtMatmul) real_matmul;
static __typeof__(&cublasLtMatmulAlgoGetHeuristic) real_heuristic;

static cublasStatus_t next_lt_call(const char *name) {
    const cudaError_t error = next_call(name);
    if (error)
        last_error = cudaSuccess; /* it has statuses of its own */
    return !error                               ? CUBLAS_STATUS_SUCCESS
           : error == cudaErrorMemoryAllocation ? CUBLAS_STATUS_ALLOC_FAILED
                                                : CUBLAS_STATUS_INTERNAL_ERROR;
}

static cublasStatus_t create(cublasLtHandle_t *handle) {
    const cublasStatus_t error = next_lt_call("cublasLtCreate");
    return error ? error : real_create(handle);
}

static cublasStatus_t matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void *alpha, const void *a,
                             cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                             const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                             cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                             size_t workspace_bytes, cudaStream_t stream) {
    const cublasStatus_t error = next_lt_call("cublasLtMatmul");
    return error ? error
                 : real_matmul(handle, product, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                               algorithm, workspace, workspace_bytes, stream);
}

static cublasStatus_t heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                cublasLtMatmulPreference_t preference, int asked_for,
                                cublasLtMatmulHeuristicResult_t results[], int *found) {
    const cublasStatus_t error = next_lt_call("cublasLtMatmulAlgoGetHeuristic");
    return error ? error : real_heuristic(handle, product, a, b, c, d, preference, asked_for, results, found);
}

void *__real_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name) {
    void *symbol = __real_dlsym(library, name), *mine = NULL;
    const __typeof__(&cublasLtCreate) my_create = create;
    const __typeof__(&cublasLtMatmul) my_matmul = matmul;
    const __typeof__(&cublasLtMatmulAlgoGetHeuristic) my_heuristic = heuristic;
    const struct {
        const char *name;
        void *real;
        const void *mine;
    } wrapped[] = {{"cublasLtCreate", &real_create, &my_create},
                   {"cublasLtMatmul", &real_matmul, &my_matmul},
                   {"cublasLtMatmulAlgoGetHeuristic", &real_heuristic, &my_heuristic}};
    for (size_t i = 0; symbol && i < sizeof wrapped / sizeof *wrapped; i++)
        if (strcmp(name, wrapped[i].name) == 0) {
            memcpy(wrapped[i].real, &symbol, sizeof symbol);
            memcpy(&mine, wrapped[i].mine, sizeof mine);
        }
    return mine ? mine : symbol;
}
