/* The CPU's device memory, which is the process's. */
#include "trf_device_cpu.h"

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

trf_status trf_cpu_copy_rows(const trf_context *context, void *to, uint64_t to_pitch, const void *from,
                             uint64_t from_pitch, uint64_t width, uint64_t rows, trf_stream stream, trf_error *err) {
    (void)context, (void)stream, (void)err;
    for (uint64_t r = 0; r < rows; r++)
        if (from)
            memcpy((uint8_t *)to + r * to_pitch, (const uint8_t *)from + r * from_pitch, width);
        else
            memset((uint8_t *)to + r * to_pitch, 0, width);
    return TRF_OK;
}
