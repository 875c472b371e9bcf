/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU as a device: its contexts, and their operations. */
#include "trf_context_create.h"
#include "trf_cuda_call.h"
#include "trf_decode_cuda.h"
#include "trf_device_cuda.h"
#include "trf_device_limits.h"
#include "trf_driver.h"
#include "trf_experts.h"
#include "trf_gemm_cuda.h"
#include "trf_layer_group.h"
#include "trf_linear_cuda.h"
#include "trf_load_scratch_cuda.h"
#include "trf_packed8_layer.h"
#include "trf_packed_layer.h"
#include "trf_packed_layer_cuda.h"
#include "trf_packed_product_cuda.h"
#include "trf_plain_layer.h"
#include "trf_plain_layer_cuda.h"
#include "trf_plain_product_cuda.h"
#include "trf_stack.h"
#include "trf_staging_cuda.h"
#include "trf_time_cuda.h"
#include "trf_verify_layer.h"
#include "trf_verify_layer_cuda.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    MIN_CAPABILITY = 80
};

static trf_status find_device(int device, struct cudaDeviceProp *properties, trf_error *err) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        int driver_cuda = 0; /* stays 0 if there is no driver at all, which gives the same error */
        cudaGetLastError();
        if (error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver_cuda) == cudaSuccess && driver_cuda)
            return trf_fail_old_driver(driver_cuda, CUDART_VERSION, TRF_DRIVER_MODULE_FILE, err);
        return trf_fail(err, TRF_ERR_DEVICE, TRF_NO_OFFSET, "no CUDA device can be used: %s",
                        cudaGetErrorString(error));
    }
    if (device < 0 || device >= count)
        return trf_fail(err, TRF_ERR_DEVICE, TRF_NO_OFFSET, "there is no CUDA device %d; %d are there", device, count);
    trf_status status = trf_check_cuda(cudaGetDeviceProperties(properties, device), "looking at the device", err);
    if (status != TRF_OK)
        return status;
    if (10 * properties->major + properties->minor < MIN_CAPABILITY)
        return trf_fail(err, TRF_ERR_DEVICE, TRF_NO_OFFSET,
                        "CUDA device %d (%s) has compute capability %d.%d; %d.%d is needed", device, properties->name,
                        properties->major, properties->minor, MIN_CAPABILITY / 10, MIN_CAPABILITY % 10);
    return TRF_OK;
}

/* Computes the bandwidth from the peak clock and the width of the memory, which the driver gives, at two transfers a
 * clock. CUDA 13 no longer has these two among the device's properties, and the attributes may be 0 or fail. Then the
 * bandwidth is not known, which is no error. */
static uint32_t memory_gb_per_second(int device) {
    int kilohertz = 0, bits = 0;
    if (cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, device) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return kilohertz > 0 && bits > 0 ? (uint32_t)(2.0 * kilohertz * 1e3 * bits / 8 / 1e9 + 0.5) : 0;
}

static void cuda_destroy(trf_context *context) {
    trf_device_scope scope;
    trf_enter_device(context->device, &scope, NULL);
    trf_gemm_destroy(context->gemm);
    trf_staging_destroy(context->staging);
    trf_load_scratches_destroy(context->load_scratches);
    trf_cuda_copier_destroy(context->copier);
    trf_leave_device(&scope);
}

static const trf_layout_ops coded_layout = {
    .layout = TRF_LAYOUT_CODED,
    .has_several_paths = 1,
    .has_experts = 1,
    .expert_ops = &trf_cuda_coded_expert_ops,
    .has_stacks = 1,
    .get_size = trf_cuda_get_layer_size,
    .fill = trf_cuda_fill_layer,
    .destroy = trf_cuda_destroy_layer,
    .check = trf_cuda_check_layer,
    .verify = trf_cuda_verify_blob,
    .decode = trf_cuda_decode,
    .decode_rows = trf_cuda_decode_rows,
    .create_plan = trf_cuda_create_plan,
    .linear = trf_cuda_linear,
};

static const trf_layout_ops plain_layout = {
    .layout = TRF_LAYOUT_PLAIN,
    .get_size = trf_plain_get_size,
    .fill = trf_cuda_fill_plain_layer,
    .adopt = trf_plain_adopt,
    .get_converted_size = trf_plain_get_converted_size,
    .convert = trf_cuda_convert_to_plain,
    .destroy = trf_cuda_destroy_layer,
    .check = trf_cuda_check_plain_layer,
    .verify = trf_cuda_verify_buffer,
    .decode = trf_cuda_decode_plain,
    .decode_rows = trf_cuda_decode_plain_rows,
    .create_plan = trf_cuda_create_plain_plan,
    .linear = trf_cuda_linear_plain,
};

static const trf_layout_ops packed_layout = {
    .layout = TRF_LAYOUT_PACKED,
    .has_several_paths = 1,
    .has_experts = 1,
    .expert_ops = &trf_cuda_packed_expert_ops,
    .get_size = trf_packed_get_size,
    .fill = trf_cuda_fill_packed_layer,
    .adopt = trf_packed_adopt,
    .get_converted_size = trf_packed_get_converted_size,
    .convert = trf_cuda_convert_to_packed,
    .pack = trf_cuda_pack,
    .destroy = trf_cuda_destroy_layer,
    .check = trf_cuda_check_plain_layer,
    .verify = trf_cuda_verify_buffer,
    .decode = trf_cuda_decode_packed,
    .decode_rows = trf_cuda_decode_packed_rows,
    .create_plan = trf_cuda_create_packed_plan,
    .linear = trf_cuda_linear_packed,
};

static const trf_layout_ops packed8_layout = {
    .layout = TRF_LAYOUT_PACKED8,
    .has_several_paths = 1,
    .has_experts = 1,
    .expert_ops = &trf_cuda_packed_expert_ops,
    .get_size = trf_packed8_get_size,
    .fill = trf_cuda_fill_packed_layer,
    .adopt = trf_packed8_adopt,
    .get_converted_size = trf_packed8_get_converted_size,
    .convert = trf_cuda_convert_to_packed,
    .pack = trf_cuda_pack,
    .pack_turns = trf_cuda_pack8_turns,
    .find_fp8 = trf_cuda_find_fp8,
    .destroy = trf_cuda_destroy_layer,
    .check = trf_cuda_check_plain_layer,
    .verify = trf_cuda_verify_buffer,
    .decode = trf_cuda_decode_packed,
    .decode_rows = trf_cuda_decode_packed_rows,
    .create_plan = trf_cuda_create_packed8_plan,
    .linear = trf_cuda_linear_packed8,
};

static const trf_layout_ops *const cuda_layouts[] = {&coded_layout, &plain_layout, &packed_layout, &packed8_layout,
                                                     NULL};

static const trf_device_ops cuda_device_ops = {
    .destroy = cuda_destroy,
    .alignment = TRF_DEVICE_ALIGNMENT,
    .open_device_blob = trf_cuda_open_device_blob,
    .layouts = cuda_layouts,
    .round_sums = trf_cuda_round_sums,
    .time = trf_cuda_time,
    .timed_repeats = 9,
    .allocate = trf_cuda_allocate,
    .release = trf_cuda_release,
    .upload = trf_cuda_upload,
    .download = trf_cuda_download,
    .copy_rows = trf_cuda_copy_rows,
    .add_data_checksum = trf_cuda_add_data_checksum,
    .stack = &trf_cuda_stack_ops,
    .groups = &trf_cuda_group_ops,
};

/* Makes all that needs a running CUDA. The device is current. */
static trf_status start_context(trf_context *made, trf_error *err) {
    /* CUDA starts on the device here, where a failure gets a message of its own. */
    trf_status status = trf_check_cuda(cudaFree(NULL), "starting CUDA on the device", err);
    if (status == TRF_OK)
        status = trf_check_cuda((cudaError_t)trf_find_device_limits(&made->limits),
                                "looking for what the device can do", err);
    if (status == TRF_OK)
        status = trf_gemm_create(&made->gemm, err);
    if (status == TRF_OK)
        status = trf_cuda_copier_create(made->device, &made->copier, err);
    if (status == TRF_OK)
        status = trf_staging_create(&trf_cuda_copy_engine, made->copier, &made->staging, err);
    if (status == TRF_OK)
        status = trf_load_scratches_create(&made->load_scratches, err);
    return status;
}

trf_status trf_cuda_context_create(int device, trf_context **context, trf_error *err) {
    struct cudaDeviceProp properties = {0};
    trf_device_scope scope;
    trf_status status = find_device(device, &properties, err);
    if (status != TRF_OK)
        return status;
    trf_context *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a context");
    made->ops = &cuda_device_ops;
    made->device = device;
    made->cache_bytes = (uint64_t)properties.l2CacheSize;
    made->limits = (trf_device_limits){.multiprocessors = properties.multiProcessorCount,
                                       .shared_bytes = (int)properties.sharedMemPerBlockOptin,
                                       .capability = 10 * properties.major + properties.minor,
                                       .memory_gb_per_second = memory_gb_per_second(device)};
    snprintf(made->name, sizeof made->name, "%s", properties.name);
    status = trf_enter_device(device, &scope, err);
    if (status == TRF_OK) {
        status = start_context(made, err);
        trf_leave_device(&scope);
    }
    if (status != TRF_OK) {
        cuda_destroy(made);
        free(made);
        return status;
    }
    *context = made;
    return TRF_OK;
}
