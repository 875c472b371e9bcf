/* SPDX-License-Identifier: Apache-2.0 */
/* Times products on a GPU. A graph multiplies copies of the layer, which together are larger than the L2 cache, one
 * after the other as a model does. A call alone would begin later, and would make others wait until what it left in the
 * cache is written back: 3 to 9 us, depending on the path. */
#include "trf_time_cuda.h"

#include "trf_cuda_call.h"
#include "trf_device_layer.h"
#include "trf_error.h"
#include "trf_plan.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

enum {
    LEAST_CALLS = 8,
    MOST_COPIES = 64
};

typedef struct trf_timer {
    const trf_timed_product *product;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    cudaGraphExec_t graph;
    uint32_t num_copies;
    trf_device_layer copies[MOST_COPIES]; /* the layer, and its copies in the product's memory */
    trf_plan plans[MOST_COPIES];          /* one for each copy */
} trf_timer;

static void timer_free(trf_timer *timer) {
    if (timer->graph)
        cudaGraphExecDestroy(timer->graph);
    if (timer->begin)
        cudaEventDestroy(timer->begin);
    if (timer->end)
        cudaEventDestroy(timer->end);
    if (timer->stream) {
        trf_pass_over_cuda(cudaStreamSynchronize(timer->stream));
        cudaStreamDestroy(timer->stream);
    }
    free(timer);
}

/* @return the place in the copy that corresponds to the layer's `at`, which may be NULL. The copy begins at `to`, and
 * what it copies at `from`. */
static const void *place_in_copy(const void *from, const char *to, const void *at) {
    return at ? to + ((const char *)at - (const char *)from) : NULL;
}

static void point_packed_into(trf_packed_view *packed, const void *from, const char *to) {
    packed->row_offsets = place_in_copy(from, to, packed->row_offsets);
    packed->lines = place_in_copy(from, to, packed->lines);
    packed->tiles = place_in_copy(from, to, packed->tiles);
    packed->stored = place_in_copy(from, to, packed->stored);
}

/* to: the copy's blob. Its directory follows at the next multiple of 256. */
static void point_into(trf_device_layer *copy, const trf_device_layer *layer, char *to) {
    const void *const blob = layer->view.buffer, *const directory = layer->view.slabs;
    char *const directory_to = to + trf_device_align(layer->view.buffer_bytes);
    trf_device_view *const view = &copy->view;
    *copy = *layer;
    copy->memory = to;
    view->buffer = place_in_copy(blob, to, view->buffer);
    view->tiles = place_in_copy(blob, to, view->tiles);
    view->scales = place_in_copy(blob, to, view->scales);
    view->row_offsets = place_in_copy(blob, to, view->row_offsets);
    view->col_offsets = place_in_copy(blob, to, view->col_offsets);
    view->slabs = place_in_copy(directory, directory_to, view->slabs);
    view->decode_table = place_in_copy(directory, directory_to, view->decode_table);
    view->fault = (trf_device_fault *)place_in_copy(directory, directory_to, view->fault);
    point_packed_into(&copy->packed, blob, to);
    point_packed_into(&copy->packed8.packed, blob, to);
}

static cudaError_t copy_layer(const trf_device_layer *layer, char *to, cudaStream_t stream) {
    const uint64_t blob_bytes = layer->view.buffer_bytes;
    cudaError_t error = cudaMemcpyAsync(to, layer->view.buffer, blob_bytes, cudaMemcpyDeviceToDevice, stream);
    if (!error && layer->directory_bytes)
        error = cudaMemcpyAsync(to + trf_device_align(blob_bytes), layer->view.slabs, layer->directory_bytes,
                                cudaMemcpyDeviceToDevice, stream);
    return error;
}

static cudaError_t make_copies(trf_timer *timer) {
    const trf_device_layer *const layer = timer->product->plan->layer;
    const uint64_t room = 2 * layer->context->cache_bytes,
                   step = trf_device_align(layer->view.buffer_bytes) + trf_device_align(layer->directory_bytes);
    cudaError_t error = cudaSuccess;
    timer->copies[0] = *layer;
    for (timer->num_copies = 1; !error && timer->num_copies < MOST_COPIES && timer->num_copies * step <= room;
         timer->num_copies++) {
        char *const to = (char *)timer->product->copies + (timer->num_copies - 1) * step;
        error = copy_layer(layer, to, timer->stream);
        point_into(&timer->copies[timer->num_copies], layer, to);
    }
    for (uint32_t i = 0; i < timer->num_copies; i++) {
        timer->plans[i] = *timer->product->plan;
        timer->plans[i].layer = &timer->copies[i];
    }
    return error;
}

static uint32_t run_calls(const trf_timer *timer) {
    return timer->num_copies > LEAST_CALLS ? timer->num_copies : LEAST_CALLS;
}

static trf_status capture_calls(trf_timer *timer, trf_error *err) {
    const trf_timed_product *const p = timer->product;
    cudaGraph_t graph = NULL;
    trf_status status = trf_check_cuda(cudaStreamBeginCapture(timer->stream, cudaStreamCaptureModeThreadLocal),
                                       "capturing products", err);
    if (status != TRF_OK)
        return status;
    for (uint32_t i = 0; status == TRF_OK && i < run_calls(timer); i++)
        status = p->multiply(&timer->plans[i % timer->num_copies], p->operands, p->workspace, timer->stream, err);
    cudaError_t error = cudaStreamEndCapture(timer->stream, &graph);
    if (status == TRF_OK && !error)
        error = cudaGraphInstantiate(&timer->graph, graph, 0);
    if (graph)
        cudaGraphDestroy(graph);
    return status == TRF_OK ? trf_check_cuda(error, "capturing products", err) : status;
}

static trf_status time_calls(const trf_timer *timer, double *microseconds, trf_error *err) {
    float milliseconds = 0;
    cudaError_t error = cudaEventRecord(timer->begin, timer->stream);
    if (!error)
        error = cudaGraphLaunch(timer->graph, timer->stream);
    if (!error)
        error = cudaEventRecord(timer->end, timer->stream);
    if (!error)
        error = cudaStreamSynchronize(timer->stream);
    if (!error)
        error = cudaEventElapsedTime(&milliseconds, timer->begin, timer->end);
    *microseconds = 1e3 * (double)milliseconds / run_calls(timer);
    return trf_check_cuda(error, "timing products", err);
}

trf_status trf_cuda_time(const trf_timed_product *product, uint32_t repeats, double *microseconds, trf_error *err) {
    trf_device_scope scope;
    trf_timer *timer = calloc(1, sizeof *timer);
    if (!timer)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate what times products");
    timer->product = product;
    trf_status status = trf_enter_device(product->plan->layer->device, &scope, err);
    if (status != TRF_OK) {
        free(timer);
        return status;
    }
    cudaError_t error = cudaStreamCreateWithFlags(&timer->stream, cudaStreamNonBlocking);
    if (!error)
        error = cudaEventCreate(&timer->begin);
    if (!error)
        error = cudaEventCreate(&timer->end);
    if (!error)
        error = make_copies(timer);
    status = trf_check_cuda(error, "preparing to time products", err);
    if (status == TRF_OK)
        status = capture_calls(timer, err);
    if (status == TRF_OK)
        status = time_calls(timer, &microseconds[0], err); /* warms up */
    for (uint32_t repeat = 0; status == TRF_OK && repeat < repeats; repeat++)
        status = time_calls(timer, &microseconds[repeat], err);
    timer_free(timer);
    trf_leave_device(&scope);
    return status;
}
