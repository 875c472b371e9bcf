/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_estimate.h"

#include "trf_blob.h"
#include "trf_find_fp8.h"

#include <stdlib.h>
#include <string.h>

enum {
    TRF_SAMPLE_WINDOWS = 8, /* tiles of a matrix */
    TRF_SAMPLE_ROWS = 4,    /* rows of each window, where rows are taken whole */
    TRF_SAMPLE_WEIGHTS = 1 << 16
};

/* Windows of a matrix, joined to a smaller matrix: one below the other, or side by side if each window has all rows. */
typedef struct trf_sample {
    uint8_t *weights; /* [rows][cols] */
    uint32_t rows, cols;
    uint32_t window_rows, window_cols;
    uint64_t windows;
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

/* Finds where tile data begins. Of all that is written, only the head lies before it, and that begins at 0. */
static trf_status pass_over(void *context, uint64_t offset, const void *bytes, size_t size, trf_error *err) {
    uint64_t *data_offset = context;
    (void)bytes, (void)size, (void)err;
    if (offset && offset < *data_offset)
        *data_offset = offset;
    return TRF_OK;
}

static uint64_t divide_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Chooses the windows of a sample. They are whole tiles, since a tile is coded or stored as a whole, and costs bytes
 * besides its weights; or whole rows, if scales may be those of rows. A small matrix is its own sample. */
static void choose_windows(const trf_sampled_matrix *matrix, int takes_rows, trf_sample *sample) {
    const uint32_t rows = (uint32_t)matrix->rows, cols = (uint32_t)matrix->cols;
    sample->window_rows = smaller(rows, takes_rows ? TRF_SAMPLE_ROWS : TRF_TILE_SIZE);
    sample->window_cols = takes_rows ? cols : smaller(cols, TRF_TILE_SIZE);
    sample->windows = takes_rows ? TRF_SAMPLE_WEIGHTS / TRF_SAMPLE_ROWS / matrix->cols : 0;
    if (sample->windows < TRF_SAMPLE_WINDOWS) {
        const uint64_t down = divide_up(rows, sample->window_rows); /* if there are few of these, each gets equally many
                                                                     * windows */
        sample->windows = down < TRF_SAMPLE_WINDOWS ? divide_up(TRF_SAMPLE_WINDOWS, down) * down : TRF_SAMPLE_WINDOWS;
    }
    if (sample->windows * sample->window_rows * sample->window_cols >= matrix->rows * matrix->cols)
        sample->windows = 1, sample->window_rows = rows, sample->window_cols = cols;
    const int side_by_side = sample->window_rows == rows;
    sample->rows = sample->window_rows * (side_by_side ? 1 : (uint32_t)sample->windows);
    sample->cols = sample->window_cols * (side_by_side ? (uint32_t)sample->windows : 1);
}

static uint32_t reverse_bits(uint32_t bits) {
    uint32_t reversed = 0;
    for (int i = 0; i < 32; i++, bits >>= 1)
        reversed = reversed << 1 | (bits & 1);
    return reversed;
}

/* Reads the windows of a sample. They lie like the points of a Hammersley set, so that halves and quarters of the
 * matrix, by rows, by columns or by both, have equal shares of them. A window at an end overlaps the one before, by a
 * multiple of TRF_FP8_BLOCK, so that scale blocks are whole. */
static trf_status take_sample(const trf_sampled_matrix *matrix, const trf_sample *sample, trf_error *err) {
    const uint32_t last_row = ((uint32_t)matrix->rows - sample->window_rows) / TRF_FP8_BLOCK * TRF_FP8_BLOCK,
                   last_col = ((uint32_t)matrix->cols - sample->window_cols) / TRF_FP8_BLOCK * TRF_FP8_BLOCK;
    const uint64_t down = divide_up(matrix->rows, sample->window_rows),
                   across = divide_up(matrix->cols, sample->window_cols);
    const size_t line = sample->window_cols * sample->weight_bytes, stride = sample->cols * sample->weight_bytes;
    const size_t window_bytes = sample->cols == sample->window_cols ? sample->window_rows * line : line;
    trf_status status = TRF_OK;
    for (uint64_t w = 0; w < sample->windows; w++) {
        const uint64_t tile_row = (2 * w + 1) * down / (2 * sample->windows),
                       tile_col = reverse_bits((uint32_t)w) * across >> 32;
        const uint64_t row = smaller((uint32_t)tile_row * sample->window_rows, last_row),
                       col = smaller((uint32_t)tile_col * sample->window_cols, last_col);
        for (uint32_t r = 0; r < sample->window_rows && status == TRF_OK; r++)
            status =
                trf_file_read(matrix->file, matrix->offset + ((row + r) * matrix->cols + col) * sample->weight_bytes,
                              sample->weights + w * window_bytes + r * stride, line, err);
    }
    return status;
}

static uint64_t tiles_of(uint64_t rows, uint64_t cols) {
    return divide_up(rows, TRF_TILE_SIZE) * divide_up(cols, TRF_TILE_SIZE);
}

trf_status trf_estimate_blob(const trf_sampled_matrix *matrix, const trf_encode_options *options, trf_encoded *encoded,
                             trf_layer_report *report, trf_error *err) {
    trf_sample sample = {.weight_bytes = trf_dtype_bytes(matrix->dtype)};
    choose_windows(matrix, options->codec == TRF_CODEC_INT && matrix->dtype != TRF_DTYPE_I8, &sample);
    uint64_t data_offset = UINT64_MAX;
    sample.weights = malloc((size_t)sample.rows * sample.cols * sample.weight_bytes);
    if (!sample.weights)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for a sample");
    trf_status status = take_sample(matrix, &sample, err);
    const trf_source source = {matrix->dtype, sample.rows, sample.cols, &sample, read_sample, sample.weights};
    const trf_sink sink = {&data_offset, pass_over};
    trf_encode_options as_whole = *options;
    if (!options->slab_cols) /* the encoder's choice depends on the size of the layer, not of the sample */
        as_whole.slab_cols = trf_choose_slab_cols(
            options->codec == TRF_CODEC_AUTO ? trf_lossless_codec(matrix->dtype) : options->codec,
            options->favor == TRF_FAVOR_SIZE ? 4 : 2, (uint32_t)matrix->rows, (uint32_t)matrix->cols);
    if (status == TRF_OK)
        status = trf_encode_source(&source, &as_whole, &sink, NULL, encoded, report, err);
    free(sample.weights);
    if (status != TRF_OK)
        return status;
    const uint64_t bytes = encoded->blob_bytes;
    const uint64_t taken = tiles_of(sample.rows, sample.cols), tiles = tiles_of(matrix->rows, matrix->cols);
    const uint64_t head = data_offset < bytes ? data_offset : bytes;
    const double share = (double)matrix->rows * (double)matrix->cols / ((double)sample.rows * sample.cols);
    if (options->bits > 0) { /* the rate is that of the whole blob, its head included */
        encoded->blob_bytes = (uint64_t)(options->bits / 8 * (double)matrix->rows * (double)matrix->cols);
        return TRF_OK;
    }
    encoded->blob_bytes = head + (tiles - taken) * sizeof(trf_tile_meta) + (uint64_t)((double)(bytes - head) * share);
    return TRF_OK;
}
