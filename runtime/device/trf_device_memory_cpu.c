/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's device memory, which is the process's. */
#include "trf_device_cpu.h"
#include "trf_layout_head.h"

#include <stdlib.h>
#include <string.h>

trf_status trf_cpu_allocate(const trf_context *context, uint64_t bytes, void **memory, trf_error *err) {
    (void)context;
    *memory =
        bytes <= SIZE_MAX - TRF_DEVICE_ALIGNMENT ? aligned_alloc(TRF_DEVICE_ALIGNMENT, trf_device_align(bytes)) : NULL;
    if (!*memory)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate %llu bytes", (unsigned long long)bytes);
    return TRF_OK;
}

void trf_cpu_release(const trf_context *context, void *memory) {
    (void)context;
    free(memory);
}

trf_status trf_cpu_copy(const trf_context *context, void *to, const void *from, uint64_t bytes, trf_error *err) {
    (void)context, (void)err;
    memcpy(to, from, bytes);
    return TRF_OK;
}

trf_status trf_cpu_copy_rows(const trf_context *context, const trf_row_copy *copy, trf_stream stream, trf_error *err) {
    (void)context, (void)stream, (void)err;
    for (uint64_t r = 0; r < copy->rows; r++) {
        uint8_t *const to = (uint8_t *)copy->to + r * copy->to_pitch;
        if (copy->from)
            memcpy(to, (const uint8_t *)copy->from + r * copy->from_pitch, copy->width);
        else
            memset(to, 0, copy->width);
    }
    return TRF_OK;
}

trf_status trf_cpu_add_data_checksum(const trf_context *context, void *buffer, uint64_t buffer_bytes, trf_error *err) {
    return trf_compute_data_checksum((const uint8_t *)buffer + TRF_LAYOUT_HEAD_BYTES,
                                     buffer_bytes - TRF_LAYOUT_HEAD_BYTES, context->threads,
                                     trf_layout_head_data(buffer), err);
}
