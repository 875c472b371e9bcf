/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA runtime without a GPU, for run.sh: device memory is the host's, streams and events are allocations (so that
 * the address sanitizer sees what is lost), and kernels do nothing. It has what the library's host code calls, and says
 * that the device is an H200.
 *
 * Work is done as late as CUDA allows: what a stream is given waits until somebody waits for the stream, for an event
 * behind it, or for the device; and it goes on no further than that. So code that relies on work of one stream being
 * done before another's, and lets nothing wait for it, does not find it done. With MADE_UP_CUDA_AT_ONCE in the
 * environment all is done at once. The default stream and those of threads are one; all others do not wait for it. */
#include "made_up_cuda.h"

#include <pthread.h>
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

/* ---- streams ---- */

typedef struct work {
    struct work *next;
    void (*run)(void *arguments);
    _Alignas(16) uint8_t arguments[];
} work;

/* What a cudaStream_t stands for. It stays when that is destroyed: events and other streams may still name it. */
typedef struct queue {
    struct queue *next; /* of all */
    work *first, **last;
    uint64_t given, done; /* pieces of work */
} queue;

typedef struct handle {
    queue *queue;
    uint64_t given; /* an event's: what the queue had been given when it was recorded */
} handle;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects all queues, and what memory is page-locked */
static queue default_queue = {.last = &default_queue.first};
static queue *queues = &default_queue;

static queue *queue_of(cudaStream_t stream) {
    return !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread ? &default_queue
                                                                                  : ((handle *)stream)->queue;
}

static void run_until(queue *q, uint64_t given) {
    while (q->done < given) {
        work *const now = q->first;
        q->first = now->next;
        if (!q->first)
            q->last = &q->first;
        q->done++;
        now->run(now->arguments);
        free(now);
    }
}

static void run_all(void) {
    for (queue *q = queues; q; q = q->next)
        run_until(q, q->given);
}

/* The lock is held. */
static cudaError_t enqueue(queue *q, void (*run)(void *arguments), const void *arguments, size_t bytes) {
    void *made;
    if (make(&made, sizeof(work) + bytes))
        return cudaErrorMemoryAllocation;
    work *const last = made;
    *last = (work){NULL, run};
    memcpy(last->arguments, arguments, bytes);
    *q->last = last;
    q->last = &last->next;
    q->given++;
    if (getenv("MADE_UP_CUDA_AT_ONCE"))
        run_all();
    return cudaSuccess;
}

cudaError_t made_up_cuda_enqueue(cudaStream_t stream, void (*run)(void *arguments), const void *arguments,
                                 size_t bytes) {
    pthread_mutex_lock(&lock);
    const cudaError_t error = enqueue(queue_of(stream), run, arguments, bytes);
    pthread_mutex_unlock(&lock);
    return error;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    void *made, *of;
    if (make(&made, sizeof(queue)))
        return cudaErrorMemoryAllocation;
    if (make(&of, sizeof(handle)))
        return release(made), cudaErrorMemoryAllocation;
    queue *const q = made;
    *q = (queue){.last = &q->first};
    *(handle *)of = (handle){q, 0};
    pthread_mutex_lock(&lock);
    q->next = queues->next;
    queues->next = q;
    pthread_mutex_unlock(&lock);
    *stream = of;
    return flags == cudaStreamNonBlocking ? cudaSuccess : cudaErrorInvalidValue; /* the library has no others */
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) { return release(stream); }

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    queue *const q = queue_of(stream);
    run_until(q, q->given);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    pthread_mutex_lock(&lock);
    run_all();
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    void *made;
    if (make(&made, sizeof(handle)))
        return cudaErrorMemoryAllocation;
    *(handle *)made = (handle){&default_queue, 0};
    *event = made;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return release(event); }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    queue *const q = queue_of(stream);
    *(handle *)event = (handle){q, q->given};
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static void wait_for(void *arguments) {
    const handle *until = arguments;
    run_until(until->queue, until->given);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    pthread_mutex_lock(&lock);
    const cudaError_t error = enqueue(queue_of(stream), wait_for, (handle *)event, sizeof(handle));
    pthread_mutex_unlock(&lock);
    return error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    pthread_mutex_lock(&lock);
    wait_for((handle *)event);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* ---- memory ---- */

typedef struct locked_memory {
    struct locked_memory *next;
    const uint8_t *at;
    size_t bytes;
} locked_memory;

static locked_memory *locked;

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags) {
    void *made;
    if (make(&made, sizeof(locked_memory)))
        return cudaErrorMemoryAllocation;
    pthread_mutex_lock(&lock);
    *(locked_memory *)made = (locked_memory){locked, memory, bytes};
    locked = made;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory) {
    pthread_mutex_lock(&lock);
    for (locked_memory **at = &locked; *at; at = &(*at)->next)
        if ((*at)->at == memory) {
            locked_memory *const gone = *at;
            *at = gone->next;
            release(gone);
            break;
        }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* The lock is held. */
static int is_locked(const void *memory) {
    for (const locked_memory *each = locked; each; each = each->next)
        if ((const uint8_t *)memory >= each->at && (const uint8_t *)memory < each->at + each->bytes)
            return 1;
    return 0;
}

cudaError_t cudaMalloc(void **memory, size_t bytes) { return make(memory, bytes); }

cudaError_t cudaFree(void *memory) {
    cudaDeviceSynchronize();
    return release(memory);
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags) {
    if (make(memory, bytes))
        return cudaErrorMemoryAllocation;
    const cudaError_t error = cudaHostRegister(*memory, bytes, flags);
    if (error)
        release(*memory);
    return error;
}

cudaError_t cudaFreeHost(void *memory) {
    cudaHostUnregister(memory);
    return release(memory);
}

typedef struct copy_of_rows {
    uint8_t *to;
    const uint8_t *from; /* NULL: rows of `value` */
    void *taken;         /* what from points to, if that was the caller's */
    size_t to_pitch, from_pitch, width, rows;
    int value;
} copy_of_rows;

static void copy_rows(void *arguments) {
    const copy_of_rows *c = arguments;
    for (size_t i = 0; c->width && i < c->rows; i++)
        if (c->from)
            memmove(c->to + i * c->to_pitch, c->from + i * c->from_pitch, c->width);
        else
            memset(c->to + i * c->to_pitch, c->value, c->width);
    free(c->taken);
}

/* Takes the caller's bytes at once if they are not page-locked, as CUDA does. */
static cudaError_t take(copy_of_rows *c) {
    if (make(&c->taken, c->width * c->rows))
        return cudaErrorMemoryAllocation;
    for (size_t i = 0; c->width && i < c->rows; i++)
        memcpy((uint8_t *)c->taken + i * c->width, c->from + i * c->from_pitch, c->width);
    c->from = c->taken;
    c->from_pitch = c->width;
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows,
                              enum cudaMemcpyKind kind, cudaStream_t stream) {
    copy_of_rows c = {to, from, NULL, to_pitch, from_pitch, width, rows};
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&lock);
    queue *const q = queue_of(stream);
    if (kind == cudaMemcpyHostToDevice && !is_locked(from))
        error = take(&c);
    if (!error)
        error = enqueue(q, copy_rows, &c, sizeof c);
    if (!error && kind == cudaMemcpyDeviceToHost && !is_locked(to))
        run_until(q, q->given);
    pthread_mutex_unlock(&lock);
    return error;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

/* Waits for copies to the host alone: others may arrive later. */
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, NULL);
    return error || kind != cudaMemcpyDeviceToHost ? error : cudaStreamSynchronize(NULL);
}

cudaError_t cudaMemset2DAsync(void *memory, size_t pitch, int value, size_t width, size_t rows, cudaStream_t stream) {
    const copy_of_rows c = {memory, NULL, NULL, pitch, 0, width, rows, value};
    return made_up_cuda_enqueue(stream, copy_rows, &c, sizeof c);
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream) {
    return cudaMemset2DAsync(memory, bytes, value, bytes, 1, stream);
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes) { return cudaMemsetAsync(memory, value, bytes, NULL); }

/* ---- graphs ---- */

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags) {
    (void)graph, (void)flags;
    return make((void **)made, 1);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    (void)stream;
    return make((void **)graph, 1);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return release(graph); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return release(graph); }

#define DOES_NOTHING(name, parameters)                                                                                 \
    cudaError_t name parameters { return cudaSuccess; }

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
