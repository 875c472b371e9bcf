/* SPDX-License-Identifier: Apache-2.0 */
/* trf_encode_layer: the encoder, from memory to memory. */
#include "trf_blob.h"
#include "trf_encode.h"
#include "trf_struct.h"

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

/* A sink with room for the largest blob that there can be, so that no write has to move it. The system backs only what
 * is written with memory. */
typedef struct memory_sink {
    uint8_t *bytes;
    uint64_t capacity;
} memory_sink;

static trf_status write_bytes(void *context, uint64_t offset, const void *bytes, size_t size, trf_error *err) {
    memory_sink *to = context;
    if (offset > to->capacity || size > to->capacity - offset)
        return trf_fail(err, TRF_ERR_MEMORY, offset, "a blob of more than %llu bytes",
                        (unsigned long long)to->capacity);
    memcpy(to->bytes + offset, bytes, size);
    return TRF_OK;
}

/* The bytes of a blob in which every tile is stored and every table is present; rows, cols < 2^31. */
static uint64_t largest_blob(uint64_t rows, uint64_t cols) {
    uint64_t tiles = ((rows + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE) * ((cols + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE);
    uint64_t scales = rows * ((cols + 15) / 16) * 2 + rows * 4, offsets = rows + cols;
    return TRF_TILES_OFFSET + tiles * (sizeof(trf_tile_meta) + TRF_TILE_ALIGNMENT) + scales + offsets +
           3 * TRF_ALIGNMENT + TRF_TILE_ALIGNMENT + 2 * rows * cols;
}

void trf_matrix_init(trf_matrix *matrix) { *matrix = (trf_matrix){.struct_bytes = sizeof *matrix}; }

void trf_encode_options_init(trf_encode_options *options) {
    *options = (trf_encode_options){.struct_bytes = sizeof *options, .verify = 1};
}

trf_status trf_take_encode_options(const trf_encode_options *options, trf_encode_options *taken, trf_error *err) {
    static const trf_struct_type type = {"trf_encode_options", sizeof *taken,
                                         TRF_STRUCT_BYTES(trf_encode_options, slab_cols)};
    trf_encode_options_init(taken);
    return options ? trf_take_struct(&type, taken, options, err) : TRF_OK;
}

/* options: already taken by trf_take_encode_options. */
static trf_status encode_matrix(const trf_matrix *matrix, const trf_encode_options *options, void **blob,
                                uint64_t *blob_bytes, trf_layer_report *report, trf_error *err) {
    memory_source from = {matrix->weights, matrix->cols, trf_dtype_bytes(matrix->dtype)};
    memory_sink to = {NULL, 0};
    if (matrix->rows <= INT32_MAX && matrix->cols <= INT32_MAX) {
        to.capacity = largest_blob(matrix->rows, matrix->cols);
        to.bytes = malloc(to.capacity);
        if (!to.bytes)
            return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for a blob of up to %llu bytes",
                            (unsigned long long)to.capacity);
    }
    trf_source source = {matrix->dtype, matrix->rows, matrix->cols, &from, read_block, NULL};
    if ((uintptr_t)matrix->weights % 4 == 0) /* enough for every dtype */
        source.weights = matrix->weights;
    trf_sink sink = {&to, write_bytes};
    trf_encode_options how = *options;
    if (how.codec == TRF_CODEC_AUTO && matrix->dtype == TRF_DTYPE_BF16)
        how.codec = TRF_CODEC_BF16; /* only a checkpoint's BF16 is searched for FP8 unasked */
    trf_encoded encoded;
    trf_status status = trf_encode_source(&source, &how, &sink, NULL, &encoded, report, err);
    if (status != TRF_OK) {
        free(to.bytes);
        return status;
    }
    uint8_t *fitted = realloc(to.bytes, encoded.blob_bytes);
    *blob = fitted ? fitted : to.bytes;
    *blob_bytes = encoded.blob_bytes;
    return TRF_OK;
}

trf_status trf_encode_layer(const trf_matrix *matrix, const trf_encode_options *options, void **blob,
                            uint64_t *blob_bytes, trf_layer_report *report, trf_error *err) {
    static const trf_struct_type type = {"trf_matrix", sizeof *matrix, TRF_STRUCT_BYTES(trf_matrix, cols)};
    trf_matrix source;
    trf_encode_options how;
    if (!matrix || !blob || !blob_bytes)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a required argument is NULL");
    trf_matrix_init(&source);
    trf_status status = trf_take_struct(&type, &source, matrix, err);
    if (status == TRF_OK && !source.weights)
        status = trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a matrix without weights");
    if (status == TRF_OK)
        status = trf_take_encode_options(options, &how, err);
    return status == TRF_OK ? encode_matrix(&source, &how, blob, blob_bytes, report, err) : status;
}
