/* Timing products on a GPU. */
#include "trf_time.h"

#include "trf_cuda_call.h"
#include "trf_device_layer.h"

#include <cuda_runtime_api.h>

enum {
    WARM_UP = 2
};

typedef struct trf_timer {
    cudaStream_t stream;
    cudaEvent_t begin, end;
} trf_timer;

static void trf_timer_free(const trf_timer *timer) {
    if (timer->begin)
        cudaEventDestroy(timer->begin);
    if (timer->end)
        cudaEventDestroy(timer->end);
    if (timer->stream)
        cudaStreamDestroy(timer->stream);
}

static trf_status trf_timer_make(trf_timer *timer, trf_error *err) {
    *timer = (trf_timer){0};
    cudaError_t error = cudaStreamCreateWithFlags(&timer->stream, cudaStreamNonBlocking);
    if (!error)
        error = cudaEventCreate(&timer->begin);
    if (!error)
        error = cudaEventCreate(&timer->end);
    return trf_check_cuda(error, "preparing to time products", err);
}

/* One call behind an eviction, which takes the device longer than the host takes to queue the rest. */
static trf_status trf_time_call(const trf_timed_product *p, const trf_timer *timer, uint64_t scratch_bytes,
                                double *microseconds, trf_error *err) {
    float milliseconds = 0;
    cudaError_t error = (cudaError_t)trf_launch_evict(p->scratch, scratch_bytes, timer->stream);
    if (!error)
        error = cudaEventRecord(timer->begin, timer->stream);
    trf_status status = trf_check_cuda(error, "timing products", err);
    if (status == TRF_OK)
        status = trf_linear(p->layer, p->plan, p->x, p->y, p->workspace, timer->stream, err);
    if (status != TRF_OK)
        return status;
    error = cudaEventRecord(timer->end, timer->stream);
    if (!error)
        error = cudaStreamSynchronize(timer->stream);
    if (!error)
        error = cudaEventElapsedTime(&milliseconds, timer->begin, timer->end);
    *microseconds = 1e3 * (double)milliseconds;
    return trf_check_cuda(error, "timing products", err);
}

trf_status trf_cuda_time(const trf_timed_product *product, uint32_t runs, double *microseconds, trf_error *err) {
    const trf_context *context = product->layer->context;
    const uint64_t scratch_bytes = 2 * context->cache_bytes;
    trf_device_scope scope;
    trf_timer timer;
    trf_status status = trf_enter_device(context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    status = trf_timer_make(&timer, err);
    if (status == TRF_OK)
        status = trf_check_cuda(cudaMemsetAsync(product->scratch, 0, scratch_bytes, timer.stream),
                                "preparing to time products", err);
    for (uint32_t run = 0; status == TRF_OK && run < WARM_UP + runs; run++)
        status = trf_time_call(product, &timer, scratch_bytes, &microseconds[run < WARM_UP ? 0 : run - WARM_UP], err);
    if (timer.stream)
        cudaStreamSynchronize(timer.stream);
    trf_timer_free(&timer);
    trf_leave_device(&scope);
    return status;
}
