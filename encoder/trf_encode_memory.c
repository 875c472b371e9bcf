/* trf_encode_layer: the streaming encoder between two pieces of memory. */
#include "trf_encode.h"

#include <stdlib.h>
#include <string.h>

typedef struct memory_source {
    const uint8_t *weights;
    uint32_t cols;
    size_t element_bytes;
} memory_source;

static trf_status read_block(void *context, uint32_t row, uint32_t num_rows, uint32_t col, uint32_t num_cols, void *dst,
                             trf_error *err) {
    const memory_source *from = context;
    (void)err;
    size_t width = num_cols * from->element_bytes;
    for (uint32_t r = 0; r < num_rows; r++)
        memcpy((uint8_t *)dst + r * width,
               from->weights + (((uint64_t)row + r) * from->cols + col) * from->element_bytes, width);
    return TRF_OK;
}

typedef struct memory_sink {
    uint8_t *bytes;
    uint64_t capacity;
} memory_sink;

static trf_status write_bytes(void *context, uint64_t offset, const void *bytes, size_t size, trf_error *err) {
    memory_sink *to = context;
    if (offset + size > to->capacity) {
        uint64_t capacity = offset + size + (offset + size) / 4;
        uint8_t *grown = realloc(to->bytes, capacity);
        if (!grown)
            return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for a blob of %llu bytes",
                            (unsigned long long)capacity);
        to->bytes = grown;
        to->capacity = capacity;
    }
    memcpy(to->bytes + offset, bytes, size);
    return TRF_OK;
}

trf_status trf_encode_layer(const void *weights, trf_dtype dtype, uint32_t rows, uint32_t cols,
                            const trf_encode_options *options, void **blob, uint64_t *blob_bytes,
                            trf_layer_report *report, trf_error *err) {
    if (!weights || !options || !blob || !blob_bytes)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a required argument is NULL");
    memory_source from = {weights, cols, trf_dtype_bytes(dtype)};
    /* Room for a lossless 16-bit layer at once; what is not used is given back. */
    memory_sink to = {NULL, 0};
    uint64_t guess = (uint64_t)rows * cols * 3 / 2;
    to.bytes = malloc(guess);
    to.capacity = to.bytes ? guess : 0;
    trf_source source = {dtype, rows, cols, &from, read_block};
    trf_sink sink = {&to, write_bytes};
    uint64_t size;
    trf_status status = trf_encode_stream(&source, options, &sink, NULL, &size, report, err);
    if (status != TRF_OK) {
        free(to.bytes);
        return status;
    }
    uint8_t *fitted = realloc(to.bytes, size);
    *blob = fitted ? fitted : to.bytes;
    *blob_bytes = size;
    return TRF_OK;
}
