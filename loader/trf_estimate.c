/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_estimate.h"

#include "trf_blob.h"
#include "trf_encode.h"

#include <stdlib.h>
#include <string.h>

enum {
    TRF_SAMPLE_ROWS = 256, /* a whole tile, so that what a tile costs besides its weights has its share */
    TRF_SAMPLE_COLS = 256
};

typedef struct trf_sample {
    uint8_t *weights;
    uint32_t rows, cols;
    size_t weight_bytes;
} trf_sample;

static trf_status read_sample(void *context, uint32_t row, uint32_t num_rows, uint32_t col, uint32_t num_cols,
                              void *dst, trf_error *err) {
    const trf_sample *sample = context;
    (void)err;
    for (uint32_t r = 0; r < num_rows; r++)
        memcpy((uint8_t *)dst + r * num_cols * sample->weight_bytes,
               sample->weights + ((uint64_t)(row + r) * sample->cols + col) * sample->weight_bytes,
               num_cols * sample->weight_bytes);
    return TRF_OK;
}

/* Tile data comes first: nothing that is written ahead of it but the head, which begins at 0. */
static trf_status pass_over(void *context, uint64_t offset, const void *bytes, size_t size, trf_error *err) {
    uint64_t *data_offset = context;
    (void)bytes, (void)size, (void)err;
    if (offset && offset < *data_offset)
        *data_offset = offset;
    return TRF_OK;
}

/* Rows are spread over the matrix, and each is read at another place. */
static trf_status take_sample(const trf_sampled_matrix *matrix, trf_sample *sample, trf_error *err) {
    const size_t line = sample->cols * sample->weight_bytes;
    const uint64_t places = matrix->cols - sample->cols + 1;
    trf_status status = TRF_OK;
    for (uint32_t r = 0; r < sample->rows && status == TRF_OK; r++) {
        const uint64_t row = r * matrix->rows / sample->rows, col = (uint64_t)r * 7919 % places;
        status = trf_file_read(matrix->file, matrix->offset + (row * matrix->cols + col) * sample->weight_bytes,
                               sample->weights + r * line, line, err);
    }
    return status;
}

static uint64_t tiles_of(uint64_t rows, uint64_t cols) {
    return (rows + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE * ((cols + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE);
}

trf_status trf_estimate_blob(const trf_sampled_matrix *matrix, const trf_encode_options *options, uint64_t *blob_bytes,
                             trf_layer_report *report, trf_error *err) {
    trf_sample sample = {.weight_bytes = trf_dtype_bytes(matrix->dtype)};
    const int quantizes = options->codec == TRF_CODEC_INT && matrix->dtype != TRF_DTYPE_I8;
    sample.rows = matrix->rows < TRF_SAMPLE_ROWS ? (uint32_t)matrix->rows : TRF_SAMPLE_ROWS;
    sample.cols = matrix->cols < TRF_SAMPLE_COLS || quantizes ? (uint32_t)matrix->cols : TRF_SAMPLE_COLS;
    if (quantizes && matrix->cols > TRF_SAMPLE_COLS) { /* scales may be those of whole rows */
        const uint64_t rows = (uint64_t)TRF_SAMPLE_ROWS * TRF_SAMPLE_COLS / matrix->cols;
        sample.rows = rows < 32 ? 32 : (uint32_t)rows;
        sample.rows = sample.rows < matrix->rows ? sample.rows : (uint32_t)matrix->rows;
    }
    uint64_t bytes = 0, data_offset = UINT64_MAX;
    sample.weights = malloc((size_t)sample.rows * sample.cols * sample.weight_bytes);
    if (!sample.weights)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for a sample");
    trf_status status = take_sample(matrix, &sample, err);
    const trf_source source = {matrix->dtype, sample.rows, sample.cols, &sample, read_sample, sample.weights};
    const trf_sink sink = {&data_offset, pass_over};
    trf_encode_options one_thread = *options;
    one_thread.threads = 1;
    if (!options->slab_cols) /* the choice goes by the size of the layer */
        one_thread.slab_cols = trf_choose_slab_cols(options->codec, options->favor == TRF_FAVOR_SIZE ? 4 : 2,
                                                    (uint32_t)matrix->rows, (uint32_t)matrix->cols);
    if (status == TRF_OK)
        status = trf_encode_source(&source, &one_thread, &sink, NULL, &bytes, report, err);
    free(sample.weights);
    if (status != TRF_OK)
        return status;
    const uint64_t taken = tiles_of(sample.rows, sample.cols), tiles = tiles_of(matrix->rows, matrix->cols);
    const uint64_t head = data_offset < bytes ? data_offset : bytes;
    const double share = (double)matrix->rows * (double)matrix->cols / ((double)sample.rows * sample.cols);
    if (options->bits > 0) { /* the rate holds for the whole blob, its head included */
        *blob_bytes = (uint64_t)(options->bits / 8 * (double)matrix->rows * (double)matrix->cols);
        return TRF_OK;
    }
    *blob_bytes = head + (tiles - taken) * sizeof(trf_tile_meta) + (uint64_t)((double)(bytes - head) * share);
    return TRF_OK;
}
