/* SPDX-License-Identifier: Apache-2.0 */
/* y = x . W^T on the CPU, one row of tiles after the other. */
#define TRF_DOT_ROWS trf_dot_rows_portable
#define TRF_DOT_FLOATS 4
#define TRF_DOT_X_ROWS 2
#include "trf_matmul_body.h"

#include "transfuse/cpu.h"

#include "trf_cpu.h"
#include "trf_decode_tile.h"
#include "trf_layer.h"
#include "trf_number_formats.h"
#include "trf_scale.h"
#include "trf_threads.h"

#include <stdlib.h>

enum {
    BATCH = 32 /* rows of x at a time */
};

/* What a worker needs. */
typedef struct trf_matmul_scratch {
    _Alignas(64) float w[TRF_TILE_SIZE * TRF_TILE_SIZE];
    _Alignas(64) float x[BATCH * TRF_TILE_SIZE];
    _Alignas(64) float sums[BATCH * TRF_TILE_SIZE];
    _Alignas(64) uint16_t elements[TRF_TILE_SIZE * TRF_TILE_SIZE];
} trf_matmul_scratch;

typedef struct trf_matmul_loop {
    const trf_layer *layer;         /* or NULL ... */
    const trf_dense_weights *dense; /* ... and then this */
    uint32_t rows, cols;            /* of either */
    const float *x;
    uint32_t m;
    float *y;
    trf_decode_tile_fn *decode;
    trf_dot_rows_fn *dot_rows;
    trf_matmul_scratch *scratch; /* [workers] */
} trf_matmul_loop;

static uint32_t count_tiles(uint32_t span) { return span / TRF_TILE_SIZE + (span % TRF_TILE_SIZE != 0); }

static trf_dot_rows_fn *dot_rows_best(void) {
#ifdef TRF_HAVE_X86_SIMD
    if (trf_cpu_simd() == TRF_SIMD_AVX512)
        return trf_dot_rows_avx512;
    if (trf_cpu_simd() == TRF_SIMD_AVX2)
        return trf_dot_rows_avx2;
#endif
    return trf_dot_rows_portable;
}

/* Copies the columns of x that a tile multiplies, padded with zeros. */
static void copy_batch(const trf_matmul_loop *loop, const trf_tile_shape *shape, uint32_t first, uint32_t count,
                       float *to) {
    for (uint32_t i = 0; i < count; i++, to += TRF_TILE_SIZE) {
        memcpy(to, loop->x + (size_t)(first + i) * loop->cols + shape->col, shape->cols * sizeof *to);
        memset(to + shape->cols, 0, (TRF_TILE_SIZE - shape->cols) * sizeof *to);
    }
}

/* Adds one tile's part of the products to y. Codes with scales are summed one scale group after the other, and then the
 * sums are scaled. */
static void multiply_one_tile(const trf_matmul_loop *loop, const trf_tile_shape *shape, trf_matmul_scratch *scratch) {
    const trf_blob_view *view = loop->layer ? &loop->layer->view : NULL;
    const int scaled = view && trf_elements_have_scales(view);
    float scales[TRF_TILE_SIZE];
    for (uint32_t r = 0; r < TRF_TILE_SIZE; r++)
        scales[r] = 1;
    for (uint32_t first = 0; first < loop->m; first += BATCH) {
        uint32_t count = loop->m - first < BATCH ? loop->m - first : BATCH;
        copy_batch(loop, shape, first, count, scratch->x);
        for (uint32_t col = 0, end; col < shape->cols; col = end) {
            end = scaled ? trf_scale_end(view, shape, col) : shape->cols;
            uint32_t padded = (end - col + TRF_DOT_COLS - 1) / TRF_DOT_COLS * TRF_DOT_COLS;
            loop->dot_rows(scratch->w + col, TRF_TILE_SIZE, shape->rows, scratch->x + col, TRF_TILE_SIZE, count, padded,
                           scratch->sums, TRF_TILE_SIZE);
            for (uint32_t r = 0; scaled && r < shape->rows; r++)
                scales[r] = trf_scale_value(view, trf_scale_index(view, shape->row + r, shape->col + col));
            for (uint32_t i = 0; i < count; i++) {
                float *y = loop->y + (size_t)(first + i) * loop->rows + shape->row;
                const float *sums = scratch->sums + i * TRF_TILE_SIZE;
                for (uint32_t r = 0; r < shape->rows; r++)
                    y[r] += scales[r] * sums[r];
            }
        }
    }
}

/* Writes zeros to the columns of y that belong to a tile's rows. */
static void clear_y(const trf_matmul_loop *loop, const trf_tile_shape *shape) {
    for (uint32_t i = 0; i < loop->m; i++)
        memset(loop->y + (size_t)i * loop->rows + shape->row, 0, shape->rows * sizeof *loop->y);
}

/* Multiplies one row of tiles. Workers take rows of tiles in parallel, each of which owns its columns of y. */
static trf_status multiply_tile_row(void *context, uint64_t tile_row, int worker, trf_error *err) {
    const trf_matmul_loop *loop = context;
    const trf_blob_view *view = &loop->layer->view;
    trf_matmul_scratch *scratch = &loop->scratch[worker];
    for (uint32_t j = 0; j < view->header.num_tile_cols; j++) {
        uint64_t tile = tile_row * view->header.num_tile_cols + j;
        trf_tile_shape shape = trf_tile_shape_of(&view->header, tile, view->tiles[tile].coding);
        if (j == 0)
            clear_y(loop, &shape);
        if (shape.cols % TRF_DOT_COLS) /* zeros after the last column */
            memset(scratch->w, 0, sizeof scratch->w);
        trf_status status = loop->decode(view, &loop->layer->table, tile, trf_layer_tile(loop->layer, tile),
                                         scratch->elements, TRF_TILE_SIZE, err);
        if (status != TRF_OK)
            return status;
        trf_elements_to_f32(view, tile, scratch->elements, TRF_TILE_SIZE, scratch->w, TRF_TILE_SIZE, 1);
        multiply_one_tile(loop, &shape, scratch);
    }
    return TRF_OK;
}

/* Widens a tile's weights; its padding is zeros already. */
static void widen_tile(const trf_dense_weights *dense, const trf_tile_shape *shape, float *w) {
    for (uint32_t r = 0; r < shape->rows; r++, w += TRF_TILE_SIZE) {
        const uint16_t *from = dense->weights + (size_t)(shape->row + r) * dense->cols + shape->col;
        if (dense->dtype == TRF_DTYPE_BF16)
            for (uint32_t c = 0; c < shape->cols; c++)
                w[c] = trf_bf16_to_f32(from[c]);
        else
            for (uint32_t c = 0; c < shape->cols; c++)
                w[c] = trf_f16_to_f32(from[c]);
    }
}

/* The same for dense weights, which are widened a tile's number at a time. */
static trf_status multiply_dense_row(void *context, uint64_t tile_row, int worker, trf_error *err) {
    const trf_matmul_loop *loop = context;
    trf_matmul_scratch *scratch = &loop->scratch[worker];
    (void)err;
    for (uint32_t j = 0; j < count_tiles(loop->cols); j++) {
        const trf_tile_shape shape =
            trf_tile_shape_at(loop->rows, loop->cols, TRF_MAX_SLAB_COLS, (uint32_t)tile_row, j, TRF_TILE_STORED);
        if (j == 0)
            clear_y(loop, &shape);
        if (shape.cols % TRF_DOT_COLS)
            memset(scratch->w, 0, sizeof scratch->w);
        widen_tile(loop->dense, &shape, scratch->w);
        multiply_one_tile(loop, &shape, scratch);
    }
    return TRF_OK;
}

int trf_matmul_workers(uint32_t rows, int threads) {
    const uint32_t tile_rows = count_tiles(rows);
    const int workers = trf_thread_count(threads);
    return (uint32_t)workers > tile_rows ? (int)tile_rows : workers;
}

uint64_t trf_matmul_scratch_bytes(int workers) { return (uint64_t)workers * sizeof(trf_matmul_scratch); }

trf_status trf_multiply_layer(const trf_layer *layer, const float *x, uint32_t m, float *y, int workers, void *scratch,
                              trf_error *err) {
    const trf_header *header = &layer->view.header;
    trf_matmul_loop loop = {.layer = layer,
                            .rows = header->rows,
                            .cols = header->cols,
                            .x = x,
                            .m = m,
                            .y = y,
                            .decode = trf_decode_tile_best(),
                            .dot_rows = dot_rows_best(),
                            .scratch = scratch};
    return trf_parallel_for(workers, header->num_tile_rows, multiply_tile_row, &loop, err);
}

trf_status trf_multiply_dense(const trf_dense_weights *dense, const float *x, uint32_t m, float *y, int workers,
                              void *scratch, trf_error *err) {
    trf_matmul_loop loop = {.dense = dense,
                            .rows = dense->rows,
                            .cols = dense->cols,
                            .x = x,
                            .m = m,
                            .y = y,
                            .dot_rows = dot_rows_best(),
                            .scratch = scratch};
    return trf_parallel_for(workers, count_tiles(dense->rows), multiply_dense_row, &loop, err);
}

trf_status trf_layer_matmul_cpu(const trf_layer *layer, const float *x, uint32_t m, float *y, int threads,
                                trf_error *err) {
    if (!layer || !x || !y)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a product needs a layer, x and y");
    if (m < 1)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a product needs one row of x at least");
    const int workers = trf_matmul_workers(layer->view.header.rows, threads);
    void *scratch = aligned_alloc(_Alignof(trf_matmul_scratch), trf_matmul_scratch_bytes(workers));
    if (!scratch)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate buffers for %d workers", workers);
    trf_status status = trf_multiply_layer(layer, x, m, y, workers, scratch, err);
    free(scratch);
    return status;
}
