/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU as a device: device memory is the process's, streams are ignored, and every call is done when it returns. */
#include "trf_context_create.h"
#include "trf_device_cpu.h"
#include "trf_packed8_layer.h"
#include "trf_packed_layer.h"
#include "trf_plain_layer.h"
#include "trf_stack.h"
#include "trf_verify_layer.h"

#include <stdlib.h>
#include <string.h>

static void cpu_destroy(trf_context *context) { (void)context; }

static const trf_layout_ops coded_layout = {
    .layout = TRF_LAYOUT_CODED,
    .has_several_paths = 1,
    .has_experts = 1,
    .has_stacks = 1,
    .get_size = trf_cpu_get_layer_size,
    .fill = trf_cpu_fill_layer,
    .destroy = trf_cpu_destroy_layer,
    .check = trf_cpu_check_layer,
    .verify = trf_cpu_verify_blob,
    .decode = trf_cpu_decode,
    .decode_rows = trf_cpu_decode_rows,
    .create_plan = trf_cpu_create_plan,
    .linear = trf_cpu_linear,
};

static const trf_layout_ops plain_layout = {
    .layout = TRF_LAYOUT_PLAIN,
    .get_size = trf_plain_get_size,
    .fill = trf_cpu_fill_plain_layer,
    .adopt = trf_plain_adopt,
    .get_converted_size = trf_plain_get_converted_size,
    .convert = trf_cpu_convert_to_plain,
    .destroy = trf_cpu_destroy_plain_layer,
    .check = trf_cpu_check_plain_layer,
    .verify = trf_cpu_verify_buffer,
    .decode = trf_cpu_decode_plain,
    .decode_rows = trf_cpu_decode_plain_rows,
    .create_plan = trf_cpu_create_plain_plan,
    .linear = trf_cpu_linear_plain,
};

static const trf_layout_ops packed_layout = {
    .layout = TRF_LAYOUT_PACKED,
    .has_experts = 1,
    .get_size = trf_packed_get_size,
    .fill = trf_cpu_fill_packed_layer,
    .adopt = trf_cpu_adopt_packed_layer,
    .get_converted_size = trf_packed_get_converted_size,
    .convert = trf_cpu_convert_to_packed,
    .pack = trf_cpu_pack,
    .destroy = trf_cpu_destroy_packed_layer,
    .check = trf_cpu_check_packed_layer,
    .verify = trf_cpu_verify_buffer,
    .decode = trf_cpu_decode_packed,
    .decode_rows = trf_cpu_decode_packed_rows,
    .create_plan = trf_cpu_create_packed_plan,
    .linear = trf_cpu_linear_packed,
};

static const trf_layout_ops packed8_layout = {
    .layout = TRF_LAYOUT_PACKED8,
    .has_experts = 1,
    .get_size = trf_packed8_get_size,
    .fill = trf_cpu_fill_packed_layer,
    .adopt = trf_cpu_adopt_packed8_layer,
    .get_converted_size = trf_packed8_get_converted_size,
    .convert = trf_cpu_convert_to_packed,
    .pack = trf_cpu_pack,
    .pack_turns = trf_cpu_pack8_turns,
    .find_fp8 = trf_cpu_find_fp8,
    .destroy = trf_cpu_destroy_packed_layer,
    .check = trf_cpu_check_packed_layer,
    .verify = trf_cpu_verify_buffer,
    .decode = trf_cpu_decode_packed,
    .decode_rows = trf_cpu_decode_packed_rows,
    .create_plan = trf_cpu_create_packed_plan,
    .linear = trf_cpu_linear_packed,
};

static const trf_layout_ops *const cpu_layouts[] = {&coded_layout, &plain_layout, &packed_layout, &packed8_layout,
                                                    NULL};

static const trf_device_ops cpu_device_ops = {
    .destroy = cpu_destroy,
    .alignment = TRF_ALIGNMENT, /* as for any blob in host memory */
    .open_device_blob = trf_cpu_open_device_blob,
    .layouts = cpu_layouts,
    .round_sums = trf_cpu_round_sums,
    .time = trf_cpu_time,
    .timed_repeats = 3, /* the CPU has one path */
    .allocate = trf_cpu_allocate,
    .release = trf_cpu_release,
    .upload = trf_cpu_copy,
    .download = trf_cpu_copy,
    .copy_rows = trf_cpu_copy_rows,
    .add_data_checksum = trf_cpu_add_data_checksum,
    .stack = &trf_cpu_stack_ops,
};

trf_status trf_cpu_context_create(trf_context **context, trf_error *err) {
    trf_context *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a context");
    made->ops = &cpu_device_ops;
    made->device = TRF_DEVICE_CPU;
    memcpy(made->name, "CPU", sizeof "CPU");
    *context = made;
    return TRF_OK;
}
