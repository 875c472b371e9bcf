/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_find_fp8.h"

#include "trf_blob.h"
#include "trf_fp8_fit.h"
#include "trf_threads.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    SEGMENTS = 16,        /* of the sample, spread over rows and columns */
    CHUNK_COLS = 4096,    /* that are read at a time; a multiple of TRF_FP8_BLOCK */
    STRIP_ROWS = 64,      /* that are one index of a loop, where scales are not those of blocks */
    LEAST_MAGNITUDES = 4, /* that are not zero, in the sample */
    LEAST_NUMBERS = 256,  /* weights of a layer other than zeros that are codes: fewer prove nothing */
    MISFITS_IN_1000 = 4,  /* of a scale region, at most */
    SAMPLE_MISFITS_IN_100 = 10
};

/* Memory of one worker. */
typedef struct worker {
    trf_magnitude_counts counts;
    trf_exponent_range range;
    trf_magnitude_sums sums;
    uint64_t numbers; /* of all scale regions that it has found scales for */
    uint16_t weights[TRF_FP8_BLOCK * CHUNK_COLS];
} worker;

/* A search for scales of one granularity. */
typedef struct search {
    const trf_source *source;
    trf_fp8_scales *scales;
    worker **workers;
    trf_magnitude_sums *all; /* of the layer, with TENSOR */
    pthread_mutex_t lock;    /* of `all` */
} search;

static uint64_t most_misfits(uint64_t weights) { return weights * MISFITS_IN_1000 / 1000; }

static void init_worker(worker *w) {
    memset(&w->counts, 0, sizeof w->counts);
    memset(&w->sums, 0, sizeof w->sums);
    w->range = (trf_exponent_range){TRF_BF16_EXPONENTS, 0};
    w->sums.first = TRF_BF16_EXPONENTS;
    w->numbers = 0;
}

/* Finds a rectangle of weights in memory, or reads it to the worker's memory. *stride: from row to row. */
static trf_status get_weights(const trf_source *source, worker *w, uint32_t row, uint32_t rows, uint32_t col,
                              uint32_t cols, const uint16_t **weights, size_t *stride, trf_error *err) {
    if (source->weights) {
        *weights = (const uint16_t *)source->weights + (size_t)row * source->cols + col;
        *stride = source->cols;
        return TRF_OK;
    }
    *weights = w->weights;
    *stride = cols;
    return source->read(source->context, row, rows, col, cols, w->weights, err);
}

/* ---- the sample ---- */

/* A piece of a row that, in wide layers, lies in one scale block. */
typedef struct segment {
    uint32_t row, col, cols;
} segment;

static segment sample_segment(const trf_source *source, uint32_t i) {
    const uint64_t blocks = (source->cols + TRF_FP8_BLOCK - 1) / TRF_FP8_BLOCK;
    const uint32_t col = (uint32_t)((7 * i + 3) % SEGMENTS * blocks / SEGMENTS) * TRF_FP8_BLOCK;
    const uint32_t left = source->cols - col;
    return (segment){(uint32_t)((2ull * i + 1) * source->rows / (2 * SEGMENTS)), col,
                     left < TRF_FP8_BLOCK ? left : TRF_FP8_BLOCK};
}

/* @return whether nine in ten of a segment's weights, zeros left out, have one of eight mantissas, as nearly all codes
 * times one scale have. Of 128 weights of true BF16 a fourth has them. */
static int has_few_mantissas(const uint16_t *weights, uint32_t count) {
    uint32_t counts[TRF_BF16_MANTISSAS] = {0}, with_eight = 0, numbers = 0;
    for (uint32_t i = 0; i < count; i++) {
        counts[weights[i] & 127] += (weights[i] & 0x7FFF) != 0;
        numbers += (weights[i] & 0x7FFF) != 0;
    }
    for (int k = 0; k < 8; k++) {
        uint32_t largest = 0;
        for (uint32_t m = 1; m < TRF_BF16_MANTISSAS; m++)
            largest = counts[m] > counts[largest] ? m : largest;
        with_eight += counts[largest];
        counts[largest] = 0;
    }
    return 10 * with_eight >= 9 * numbers;
}

/* Magnitudes that occur, up to LEAST_MAGNITUDES of them. */
typedef struct magnitudes {
    uint16_t list[LEAST_MAGNITUDES];
    uint32_t count;
} magnitudes;

static void note_magnitudes(const uint16_t *weights, uint32_t count, magnitudes *found) {
    for (uint32_t i = 0; i < count && found->count < LEAST_MAGNITUDES; i++) {
        const uint16_t magnitude = weights[i] & 0x7FFF;
        uint32_t k = 0;
        while (k < found->count && found->list[k] != magnitude)
            k++;
        if (k == found->count && magnitude)
            found->list[found->count++] = magnitude;
    }
}

/* Sets *maybe to whether most segments of the sample have few mantissas, though it is more than a few constants. */
static trf_status look_at_sample(const trf_source *source, int *maybe, trf_error *err) {
    uint32_t with_few = 0;
    magnitudes found = {{0}, 0};
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        const segment at = sample_segment(source, i);
        uint16_t weights[TRF_FP8_BLOCK];
        if (source->weights) {
            memcpy(weights, (const uint16_t *)source->weights + (size_t)at.row * source->cols + at.col, 2 * at.cols);
        } else {
            trf_status status = source->read(source->context, at.row, 1, at.col, at.cols, weights, err);
            if (status != TRF_OK)
                return status;
        }
        with_few += (uint32_t)has_few_mantissas(weights, at.cols);
        note_magnitudes(weights, at.cols, &found);
    }
    *maybe = 2 * with_few >= SEGMENTS && found.count == LEAST_MAGNITUDES;
    return TRF_OK;
}

/* Sets *yes to whether one scale might do for the whole sample. */
static trf_status may_have_one_scale(const search *s, int *yes, trf_error *err) {
    worker *w = s->workers[0];
    trf_fp8_fit fit;
    init_worker(w);
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        const segment at = sample_segment(s->source, i);
        const uint16_t *weights;
        size_t stride;
        trf_status status = get_weights(s->source, w, at.row, 1, at.col, at.cols, &weights, &stride, err);
        if (status != TRF_OK)
            return status;
        trf_count_magnitudes(weights, at.cols, &w->counts, &w->range);
    }
    trf_move_magnitudes(&w->counts, &w->range, &w->sums);
    *yes = trf_fit_fp8(&w->sums, w->sums.weights * SAMPLE_MISFITS_IN_100 / 100, &fit);
    return TRF_OK;
}

/* ---- scale regions ---- */

/* Ends the search: a trf_parallel_fn that returns this has found a scale region without a scale. */
static trf_status no_scale(trf_error *err) {
    return trf_fail(err, TRF_ERR_MISMATCH, TRF_NO_OFFSET, "weights are not FP8 codes times a scale");
}

/* Finds the scale of the weights that the worker has counted. */
static trf_status fit_region(const search *s, worker *w, uint64_t at, trf_error *err) {
    trf_fp8_fit fit;
    trf_move_magnitudes(&w->counts, &w->range, &w->sums);
    const int found = trf_fit_fp8(&w->sums, most_misfits(w->sums.weights), &fit);
    trf_clear_magnitudes(&w->sums);
    w->numbers += fit.numbers;
    s->scales->values[at] = fit.scale;
    return found ? TRF_OK : no_scale(err);
}

/* A trf_parallel_fn; index: a row of scale blocks. */
static trf_status fit_blocks(void *context, uint64_t index, int worker_index, trf_error *err) {
    const search *s = context;
    const trf_source *source = s->source;
    worker *w = s->workers[worker_index];
    const uint32_t row = (uint32_t)index * TRF_FP8_BLOCK, rows_left = source->rows - row,
                   rows = rows_left < TRF_FP8_BLOCK ? rows_left : TRF_FP8_BLOCK;
    trf_status status = TRF_OK;
    for (uint64_t begin = 0; begin < source->cols && status == TRF_OK; begin += CHUNK_COLS) {
        const uint32_t left = source->cols - (uint32_t)begin, cols = left < CHUNK_COLS ? left : CHUNK_COLS;
        const uint16_t *weights;
        size_t stride;
        status = get_weights(source, w, row, rows, (uint32_t)begin, cols, &weights, &stride, err);
        for (uint32_t c = 0; c < cols && status == TRF_OK; c += TRF_FP8_BLOCK) {
            for (uint32_t r = 0; r < rows; r++)
                trf_count_magnitudes(weights + r * stride + c, cols - c < TRF_FP8_BLOCK ? cols - c : TRF_FP8_BLOCK,
                                     &w->counts, &w->range);
            status = fit_region(s, w, index * s->scales->scale_cols + (begin + c) / TRF_FP8_BLOCK, err);
        }
    }
    return status;
}

static trf_status count_row(const search *s, worker *w, uint32_t row, trf_error *err) {
    trf_status status = TRF_OK;
    for (uint64_t begin = 0; begin < s->source->cols && status == TRF_OK; begin += TRF_FP8_BLOCK * CHUNK_COLS) {
        const uint32_t left = s->source->cols - (uint32_t)begin,
                       cols = left < TRF_FP8_BLOCK * CHUNK_COLS ? left : TRF_FP8_BLOCK * CHUNK_COLS;
        const uint16_t *weights;
        size_t stride;
        status = get_weights(s->source, w, row, 1, (uint32_t)begin, cols, &weights, &stride, err);
        if (status == TRF_OK)
            trf_count_magnitudes(weights, cols, &w->counts, &w->range);
    }
    return status;
}

/* A trf_parallel_fn; index: STRIP_ROWS rows, each of which is a scale region, or which belong to the only one. */
static trf_status fit_rows(void *context, uint64_t index, int worker_index, trf_error *err) {
    search *s = context;
    worker *w = s->workers[worker_index];
    const uint64_t behind = (index + 1) * STRIP_ROWS, end = behind < s->source->rows ? behind : s->source->rows;
    trf_status status = TRF_OK;
    for (uint64_t row = index * STRIP_ROWS; row < end && status == TRF_OK; row++) {
        status = count_row(s, w, (uint32_t)row, err);
        if (status == TRF_OK && s->scales->granularity == TRF_GRANULARITY_CHANNEL) {
            status = fit_region(s, w, row, err);
        } else if (status == TRF_OK) {
            pthread_mutex_lock(&s->lock);
            trf_move_magnitudes(&w->counts, &w->range, s->all);
            pthread_mutex_unlock(&s->lock);
        }
    }
    return status;
}

/* ---- granularities ---- */

static uint64_t divide_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

static void shape_scales(const trf_source *source, trf_granularity granularity, trf_fp8_scales *scales) {
    *scales = (trf_fp8_scales){.granularity = granularity, .scale_cols = 1, .count = 1};
    if (granularity == TRF_GRANULARITY_CHANNEL) {
        scales->count = source->rows;
    } else if (granularity == TRF_GRANULARITY_SCALE_BLOCK) {
        scales->scale_group_size = TRF_FP8_BLOCK;
        scales->scale_cols = (uint32_t)divide_up(source->cols, TRF_FP8_BLOCK);
        scales->count = divide_up(source->rows, TRF_FP8_BLOCK) * scales->scale_cols;
    }
}

/* Tests a scale region in the middle of the layer, so that most of those who have none of this granularity are spared
 * the rest. */
static trf_status fit_middle(search *s, trf_error *err) {
    const uint64_t rows = s->scales->granularity == TRF_GRANULARITY_SCALE_BLOCK ? TRF_FP8_BLOCK : STRIP_ROWS,
                   middle = divide_up(s->source->rows, rows) / 2;
    return s->scales->granularity == TRF_GRANULARITY_SCALE_BLOCK ? fit_blocks(s, middle, 0, err)
                                                                 : fit_rows(s, middle, 0, err);
}

/* Looks at all weights. Errors: also TRF_ERR_MISMATCH if there are no such scales. */
static trf_status fit_all(search *s, int threads, trf_error *err) {
    const int by_blocks = s->scales->granularity == TRF_GRANULARITY_SCALE_BLOCK;
    const uint64_t strips = divide_up(s->source->rows, by_blocks ? TRF_FP8_BLOCK : STRIP_ROWS);
    uint64_t numbers = 0;
    trf_status status = TRF_OK;
    if (s->scales->granularity != TRF_GRANULARITY_TENSOR && strips > 2)
        status = fit_middle(s, err);
    s->workers[0]->numbers = 0;
    if (status == TRF_OK)
        status = trf_parallel_for(threads, strips, by_blocks ? fit_blocks : fit_rows, s, err);
    if (status == TRF_OK && s->scales->granularity == TRF_GRANULARITY_TENSOR) {
        trf_fp8_fit fit;
        if (!trf_fit_fp8(s->all, most_misfits(s->all->weights), &fit))
            return no_scale(err);
        s->scales->values[0] = fit.scale;
        numbers = fit.numbers;
    }
    for (int i = 0; i < threads; i++)
        numbers += s->workers[i]->numbers;
    return status == TRF_OK && numbers < LEAST_NUMBERS ? no_scale(err) : status;
}

static trf_status try_granularity(search *s, int threads, trf_granularity granularity, int *found, trf_error *err) {
    trf_error failure = {0};
    shape_scales(s->source, granularity, s->scales);
    s->scales->values = calloc(s->scales->count, sizeof *s->scales->values);
    if (!s->scales->values)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for %llu scales",
                        (unsigned long long)s->scales->count);
    for (int i = 0; i < threads; i++)
        init_worker(s->workers[i]);
    trf_status status = fit_all(s, threads, &failure);
    *found = status == TRF_OK;
    if (status != TRF_OK)
        trf_fp8_scales_free(s->scales);
    if (status == TRF_OK || status == TRF_ERR_MISMATCH)
        return TRF_OK;
    if (err)
        *err = failure;
    return status;
}

/* Tries the granularities in their order. */
static trf_status try_all(search *s, int threads, int one_scale, int *found, trf_error *err) {
    const int is_narrow = s->source->cols <= TRF_FP8_BLOCK;
    const trf_granularity order[3] = {TRF_GRANULARITY_TENSOR,
                                      is_narrow ? TRF_GRANULARITY_SCALE_BLOCK : TRF_GRANULARITY_CHANNEL,
                                      is_narrow ? TRF_GRANULARITY_CHANNEL : TRF_GRANULARITY_SCALE_BLOCK};
    trf_status status = TRF_OK;
    for (int i = one_scale ? 0 : 1; i < 3 && !*found && status == TRF_OK; i++)
        status = try_granularity(s, threads, order[i], found, err);
    return status;
}

static void free_search(search *s, int count) {
    for (int i = 0; s->workers && i < count; i++)
        free(s->workers[i]);
    free(s->workers);
    free(s->all);
    pthread_mutex_destroy(&s->lock);
}

/* Allocates what `count` workers need. @return whether there was memory for it. */
static int begin_search(search *s, int count) {
    s->workers = calloc((size_t)count, sizeof *s->workers);
    s->all = calloc(1, sizeof *s->all);
    int ready = s->workers && s->all && count > 0;
    for (int i = 0; i < count && ready; i++)
        ready = (s->workers[i] = malloc(sizeof *s->workers[i])) != NULL;
    if (ready)
        s->all->first = TRF_BF16_EXPONENTS;
    return ready;
}

/* @return the number of workers: one a thread, but no more than there are strips. */
static int count_workers(uint32_t rows, int threads) {
    const uint64_t strips = divide_up(rows, STRIP_ROWS);
    const int count = trf_thread_count(threads);
    return (uint64_t)count < strips ? count : (int)strips;
}

uint64_t trf_find_fp8_bytes(uint32_t rows, int threads) {
    return (uint64_t)count_workers(rows, threads) * sizeof(worker) + sizeof(trf_magnitude_sums);
}

trf_status trf_find_fp8(const trf_source *source, int threads, trf_fp8_scales *scales, int *found, trf_error *err) {
    int maybe = 0, one_scale = 0;
    *scales = (trf_fp8_scales){0};
    *found = 0;
    trf_status status = look_at_sample(source, &maybe, err);
    if (status != TRF_OK || !maybe)
        return status;
    const int count = count_workers(source->rows, threads);
    search s = {.source = source, .scales = scales, .lock = PTHREAD_MUTEX_INITIALIZER};
    if (!begin_search(&s, count))
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for counts of weights");
    if (status == TRF_OK)
        status = may_have_one_scale(&s, &one_scale, err);
    if (status == TRF_OK)
        status = try_all(&s, count, one_scale, found, err);
    free_search(&s, count);
    return status;
}

void trf_fp8_scales_free(trf_fp8_scales *scales) {
    free(scales->values);
    *scales = (trf_fp8_scales){0};
}
