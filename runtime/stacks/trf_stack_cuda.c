/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks on a GPU. The device memory is one allocation, inside the budget: a fault for each layer | two buffers |
 * layers that stay. So every layer has one place, and its view and plans stay valid; the faults are not overwritten
 * when layers are copied to the buffers. The images of offloaded layers lie in pinned memory, each of them contiguous,
 * so that one copy moves it. Copies have a stream of their own. */
#include "trf_cuda_call.h"
#include "trf_layer_directory.h"
#include "trf_nvtx.h"
#include "trf_stack.h"
#include "trf_threads.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

/* Each call that pins memory is slow, so images share segments of this size. A segment is at least as large as a
 * layer. */
static const uint64_t kSegmentBytes = 1ull << 30;
/* The scratch memory through which layers that stay are copied. It is larger if one layer needs more. */
static const uint64_t kScratchBytes = 256 << 20;

/* What an offloaded layer needs. A layer that stays has only the image, and that while it is copied. */
typedef struct trf_stack_copy {
    uint8_t *image;     /* pinned */
    cudaEvent_t copied; /* recorded on the stream of copies */
    cudaEvent_t used;   /* recorded on the stream that released it last */
} trf_stack_copy;

typedef struct trf_stack_device {
    uint8_t *memory_dev;
    void **segments; /* pinned; [num_segments] */
    uint32_t num_segments;
    trf_stack_copy *copies; /* [count] */
    cudaStream_t stream;
} trf_stack_device;

static trf_status cuda_get_layer_bytes(const trf_layer *layer, uint64_t *bytes, trf_error *err) {
    *bytes = trf_offloaded_layer_offsets_of(&layer->view).memory_bytes;
    return trf_check_gpu_takes(&layer->view, err);
}

static uint64_t cuda_fixed_bytes(uint32_t count) {
    return trf_device_align((uint64_t)count * sizeof(trf_device_fault));
}

/* ---- making one ---- */

static trf_status fail_stack_memory(trf_error *err) {
    return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate what a stack keeps of its layers");
}

static trf_status allocate_stack(trf_stack *stack, trf_error *err) {
    const uint64_t bytes = stack->placement.device_bytes;
    trf_stack_device *device = calloc(1, sizeof *device);
    if (!device)
        return fail_stack_memory(err);
    stack->device = device;
    device->copies = calloc(stack->count, sizeof *device->copies);
    device->segments = calloc(stack->count, sizeof *device->segments); /* at most one for each layer */
    if (!device->copies || !device->segments)
        return fail_stack_memory(err);
    trf_status status =
        trf_check_cuda(cudaMalloc((void **)&device->memory_dev, bytes), "allocating device memory", err);
    if (status != TRF_OK)
        return trf_prefix_error(err, status, "%llu bytes for %u layers", (unsigned long long)bytes, stack->count);
    status =
        trf_check_cuda(cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking), "a stream for copies", err);
    if (status == TRF_OK)
        status = trf_check_cuda(cudaMemsetAsync(device->memory_dev, 0, cuda_fixed_bytes(stack->count), device->stream),
                                "clearing faults", err);
    return status;
}

static trf_device_fault *fault_of(const trf_stack *stack, uint32_t index) {
    return (trf_device_fault *)stack->device->memory_dev + index;
}

/* Pins memory for the images. */
static trf_status pin_images(trf_stack *stack, trf_error *err) {
    trf_stack_device *device = stack->device;
    uint64_t left = stack->placement.offloaded_bytes, room = 0;
    uint8_t *at = NULL;
    for (uint32_t i = 0; i < stack->count; i++) {
        const uint64_t bytes = stack->places[i].bytes;
        if (stack->places[i].is_resident)
            continue;
        if (bytes > room) {
            room = left < kSegmentBytes ? left : kSegmentBytes;
            room = bytes > room ? bytes : room;
            trf_status status =
                trf_check_cuda(cudaHostAlloc((void **)&at, room, cudaHostAllocDefault), "pinning host memory", err);
            if (status != TRF_OK)
                return trf_prefix_error(err, status, "%llu bytes, of %llu that are offloaded, with %llu there",
                                        (unsigned long long)room, (unsigned long long)stack->placement.offloaded_bytes,
                                        (unsigned long long)stack->host_bytes);
            device->segments[device->num_segments++] = at;
            stack->host_bytes += room;
        }
        device->copies[i].image = at;
        at += bytes;
        room -= bytes;
        left -= bytes;
    }
    return TRF_OK;
}

/* ---- images ---- */

/* Work on the layers first to end - 1: on those that stay, or on those that are offloaded. */
typedef struct trf_image_work {
    trf_stack *stack;
    uint32_t first, end;
    int is_resident;
} trf_image_work;

/* Opens an offloaded layer's image, which has been written, as a layer in host memory. */
static trf_status open_image(const uint8_t *image, const trf_layer *from, trf_layer **host, trf_error *err) {
    const uint64_t blob_bytes = from->view.header.blob_bytes;
    trf_layer *made = calloc(1, sizeof *made);
    if (!made)
        return fail_stack_memory(err);
    made->blob = image;
    made->table = from->table;
    *host = made;
    return trf_blob_open(image, blob_bytes, blob_bytes, &made->view, err);
}

/* A trf_parallel_fn; index: counted from the first layer of the work. */
static trf_status write_image(void *context, uint64_t index, int worker, trf_error *err) {
    const trf_image_work *work = context;
    const uint32_t i = work->first + (uint32_t)index;
    const trf_stack *stack = work->stack;
    const trf_stack_place *place = &stack->places[i];
    const trf_layer *host = stack->layers[i].host;
    trf_device_layer *layer = stack->layers[i].device_layer;
    uint8_t *image = stack->device->copies[i].image;
    (void)worker;
    if (place->is_resident != work->is_resident)
        return TRF_OK;
    const uint64_t blob_bytes = host->view.header.blob_bytes;
    memcpy(image, host->blob, blob_bytes);
    const uint64_t directory_offset = trf_offloaded_layer_offsets_of(&host->view).directory_offset;
    const uint8_t *const place_dev = stack->device->memory_dev + place->offset;
    memset(image + blob_bytes, 0, place->bytes - blob_bytes);
    trf_write_layer_directory(host, image + directory_offset, &layer->traits);
    trf_status status = trf_keep_checksums(&host->view, image + directory_offset, &layer->kept, err);
    if (status != TRF_OK)
        return status;
    layer->view = trf_device_view_of_layer(&host->view, place_dev, place_dev + directory_offset, fault_of(stack, i));
    return place->is_resident ? TRF_OK : open_image(image, host, &layer->host, err);
}

static trf_status write_images(trf_image_work work, trf_error *err) {
    return trf_parallel_for(work.stack->context->threads, work.end - work.first, write_image, &work, err);
}

/* Gives the layers that stay, from number `first` on, places in the scratch memory, as long as there is room. @return
 * the number of the first layer without a place. */
static uint32_t fill_scratch(const trf_stack *stack, uint32_t first, uint8_t *scratch, uint64_t scratch_bytes) {
    uint64_t used = 0;
    uint32_t i = first;
    for (; i < stack->count; i++) {
        if (!stack->places[i].is_resident)
            continue;
        if (stack->places[i].bytes > scratch_bytes - used)
            break;
        stack->device->copies[i].image = scratch + used;
        used += stack->places[i].bytes;
    }
    return i;
}

/* Copies the layers that stay, as many at a time as the scratch memory holds. */
static trf_status copy_residents(trf_stack *stack, uint8_t *scratch, uint64_t scratch_bytes, trf_error *err) {
    const trf_stack_device *device = stack->device;
    trf_status status = TRF_OK;
    for (uint32_t first = 0, end; status == TRF_OK && first < stack->count; first = end) {
        cudaError_t error = cudaSuccess;
        end = fill_scratch(stack, first, scratch, scratch_bytes);
        status = write_images((trf_image_work){stack, first, end, 1}, err);
        for (uint32_t i = first; status == TRF_OK && !error && i < end; i++)
            if (stack->places[i].is_resident)
                error = cudaMemcpyAsync(device->memory_dev + stack->places[i].offset, device->copies[i].image,
                                        stack->places[i].bytes, cudaMemcpyHostToDevice, device->stream);
        const cudaError_t waited = cudaStreamSynchronize(device->stream); /* after a failure, too: scratch is freed */
        if (status == TRF_OK)
            status = trf_check_cuda(error ? error : waited, "copying layers to the device", err);
    }
    return status;
}

static trf_status place_residents(trf_stack *stack, trf_error *err) {
    uint64_t all = 0, most = 0;
    uint8_t *scratch;
    for (uint32_t i = 0; i < stack->count; i++) {
        const uint64_t bytes = stack->places[i].is_resident ? stack->places[i].bytes : 0;
        all += bytes;
        most = bytes > most ? bytes : most;
    }
    if (!all)
        return TRF_OK;
    const uint64_t ample = all < kScratchBytes ? all : kScratchBytes, bytes = most > ample ? most : ample;
    trf_status status =
        trf_check_cuda(cudaHostAlloc((void **)&scratch, bytes, cudaHostAllocDefault), "pinning host memory", err);
    if (status != TRF_OK)
        return trf_prefix_error(err, status, "%llu bytes to copy layers from", (unsigned long long)bytes);
    status = copy_residents(stack, scratch, bytes, err);
    cudaFreeHost(scratch);
    return status;
}

static trf_status make_events(trf_stack *stack, trf_error *err) {
    cudaError_t error = cudaSuccess;
    for (uint32_t i = 0; !error && i < stack->count; i++) {
        trf_stack_copy *copy = &stack->device->copies[i];
        if (stack->places[i].is_resident)
            continue;
        error = cudaEventCreateWithFlags(&copy->copied, cudaEventDisableTiming);
        if (!error)
            error = cudaEventCreateWithFlags(&copy->used, cudaEventDisableTiming);
    }
    if (!error) /* waits for the clearing of faults, too */
        error = cudaStreamSynchronize(stack->device->stream);
    return trf_check_cuda(error, "making events", err);
}

/* Undoes all that preparing has done. The device is current. */
static void free_stack_device(trf_stack *stack) {
    trf_stack_device *device = stack->device;
    for (uint32_t i = 0; i < stack->count; i++) {
        trf_layer_free(stack->layers[i].device_layer->host);
        stack->layers[i].device_layer->host = NULL;
    }
    stack->host_bytes = 0;
    stack->placement = (trf_stack_placement){0};
    if (!device)
        return;
    for (uint32_t i = 0; device->copies && i < stack->count; i++) {
        if (device->copies[i].copied)
            cudaEventDestroy(device->copies[i].copied);
        if (device->copies[i].used)
            cudaEventDestroy(device->copies[i].used);
    }
    if (device->stream)
        cudaStreamDestroy(device->stream);
    for (uint32_t i = 0; i < device->num_segments; i++)
        cudaFreeHost(device->segments[i]);
    cudaFree(device->memory_dev);
    free(device->segments);
    free(device->copies);
    free(device);
    stack->device = NULL;
}

static trf_status fill_stack(trf_stack *stack, trf_error *err) {
    trf_status status = allocate_stack(stack, err);
    if (status == TRF_OK)
        status = pin_images(stack, err);
    if (status == TRF_OK)
        status = place_residents(stack, err);
    if (status == TRF_OK)
        status = write_images((trf_image_work){stack, 0, stack->count, 0}, err);
    if (status == TRF_OK)
        status = make_events(stack, err);
    return status;
}

static trf_status cuda_prepare(trf_stack *stack, uint64_t budget_bytes, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_stack_placement_make(stack->places, stack->count, cuda_fixed_bytes(stack->count),
                                                 budget_bytes, &stack->placement, err);
    if (status == TRF_OK)
        status = trf_enter_device(stack->context->device, &scope, err);
    if (status != TRF_OK) {
        stack->placement = (trf_stack_placement){0};
        return status;
    }
    trf_nvtx_push("load stack");
    status = fill_stack(stack, err);
    trf_nvtx_pop();
    if (status != TRF_OK)
        free_stack_device(stack);
    trf_leave_device(&scope);
    for (uint32_t i = 0; status == TRF_OK && i < stack->count; i++) {
        if (stack->layers[i].owns_host)
            trf_layer_free(stack->layers[i].host);
        stack->layers[i].host = NULL;
    }
    return status;
}

static void cuda_destroy_stack(trf_stack *stack) {
    trf_device_scope scope;
    trf_enter_device(stack->context->device, &scope, NULL);
    if (stack->device)
        trf_pass_over_cuda(cudaDeviceSynchronize());
    free_stack_device(stack); /* also if the device is lost: some of the memory is the host's */
    trf_leave_device(&scope);
    for (uint32_t i = 0; i < stack->count; i++)
        free(stack->layers[i].device_layer);
}

/* ---- running it ---- */

static trf_status cuda_copy_ahead(trf_stack *stack, uint32_t index, trf_error *err) {
    const trf_stack_device *device = stack->device;
    const trf_stack_place *place = &stack->places[index];
    trf_device_scope scope;
    trf_status status = trf_enter_device(stack->context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    trf_nvtx_push("copy ahead");
    cudaError_t error = cudaMemcpyAsync(device->memory_dev + place->offset, device->copies[index].image, place->bytes,
                                        cudaMemcpyHostToDevice, device->stream);
    if (!error)
        error = cudaEventRecord(device->copies[index].copied, device->stream);
    trf_nvtx_pop();
    trf_leave_device(&scope);
    return trf_check_cuda(error, "copying a layer ahead", err);
}

static trf_status cuda_wait(trf_stack *stack, uint32_t index, trf_error *err) {
    const trf_stack_device *device = stack->device;
    trf_device_scope scope;
    trf_status status = trf_enter_device(stack->context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    cudaError_t error = cudaStreamWaitEvent(device->stream, device->copies[index].used, 0);
    trf_leave_device(&scope);
    return trf_check_cuda(error, "waiting for a layer's last use", err);
}

/* Fails if the stream is captured: copies are made when they are asked for, and not when a graph runs. */
static trf_status refuse_capture(uint32_t index, trf_stream stream, trf_error *err) {
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    trf_status status =
        trf_check_cuda(cudaStreamIsCapturing(stream, &capture), "asking whether a stream is captured", err);
    if (status == TRF_OK && capture != cudaStreamCaptureStatusNone)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "layer %u is offloaded to host memory; that cannot be captured in a graph", index);
    return status;
}

static trf_status cuda_await_copy(trf_stack *stack, uint32_t index, trf_stream stream, trf_error *err) {
    trf_device_scope scope;
    trf_status status = trf_enter_device(stack->context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    status = refuse_capture(index, stream, err);
    if (status == TRF_OK)
        status = trf_check_cuda(cudaStreamWaitEvent(stream, stack->device->copies[index].copied, 0),
                                "waiting for a layer's copy", err);
    trf_leave_device(&scope);
    return status;
}

static trf_status cuda_mark_use(trf_stack *stack, uint32_t index, int again, trf_stream stream, trf_error *err) {
    const cudaEvent_t used = stack->device->copies[index].used;
    trf_device_scope scope;
    trf_status status = trf_enter_device(stack->context->device, &scope, err);
    if (status != TRF_OK)
        return status;
    status = refuse_capture(index, stream, err);
    /* An earlier use may have been on another stream. The event must stand for both uses. */
    if (status == TRF_OK && again)
        status = trf_check_cuda(cudaStreamWaitEvent(stream, used, 0), "marking a layer's use", err);
    if (status == TRF_OK)
        status = trf_check_cuda(cudaEventRecord(used, stream), "marking a layer's use", err);
    trf_leave_device(&scope);
    return status;
}

const trf_stack_ops trf_cuda_stack_ops = {
    .get_layer_bytes = cuda_get_layer_bytes,
    .fixed_bytes = cuda_fixed_bytes,
    .prepare = cuda_prepare,
    .destroy = cuda_destroy_stack,
    .copy = cuda_copy_ahead,
    .wait = cuda_wait,
    .await_copy = cuda_await_copy,
    .mark_use = cuda_mark_use,
};
