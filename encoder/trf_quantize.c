/* SPDX-License-Identifier: Apache-2.0 */
/* Making a quantizer: one pass over the source surveys its scale regions and takes a sample of its weights. */
#include "trf_quantize_state.h"
#include "trf_threads.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

enum {
    EXCERPT_WEIGHTS = 16,    /* divides every group size, so that an excerpt is in one scale region */
    MAX_EXCERPTS = 1 << 16,  /* in the sample */
    RANGE_WEIGHTS = 1 << 18, /* what a worker reads at a time */
};

/* ---- a survey of the source ---- */

typedef struct scale_region_sum {
    double squares;
    uint32_t absmax_bits; /* F32 bits order like the magnitudes they stand for */
} scale_region_sum;

typedef struct survey {
    trf_quantizer *quantizer;
    const trf_source *source;
    uint32_t range_rows, range_cols; /* that are read at a time; all columns unless range_rows is 1 */
    /* A region row is scale_region_rows rows, whose scale regions lie side by side. This is 1 if ranges hold whole
     * region rows. */
    uint64_t ranges_per_region_row;
    uint64_t num_ranges;
    /* [workers][scale_regions_per_row], or [num_ranges][scale_regions_per_row] if a region row takes several ranges */
    scale_region_sum *sums;
    uint8_t *weights; /* [workers][range_rows][range_cols] of the source's dtype */
    float *sample;    /* [MAX_EXCERPTS][EXCERPT_WEIGHTS]; NaN where an excerpt sticks out of the matrix */
    uint64_t excerpts_per_row, excerpt_stride;
} survey;

static void survey_weights(const float *w, uint32_t count, scale_region_sum *sum) {
    double squares[TRF_QUANTIZE_SUMS] = {0};
    int32_t absmax[TRF_QUANTIZE_SUMS] = {0}; /* signed, since SSE2 has no unsigned compare */
    uint32_t i = 0;
    for (; i + TRF_QUANTIZE_SUMS <= count; i += TRF_QUANTIZE_SUMS) {
        for (int j = 0; j < TRF_QUANTIZE_SUMS; j++) {
            int32_t bits = (int32_t)(trf_f32_bits(w[i + j]) & 0x7FFFFFFFu);
            absmax[j] = bits > absmax[j] ? bits : absmax[j];
            squares[j] += (double)w[i + j] * w[i + j];
        }
    }
    for (; i < count; i++) {
        int32_t bits = (int32_t)(trf_f32_bits(w[i]) & 0x7FFFFFFFu);
        absmax[0] = bits > absmax[0] ? bits : absmax[0];
        squares[0] += (double)w[i] * w[i];
    }
    for (int j = 0; j < TRF_QUANTIZE_SUMS; j++) {
        sum->squares += squares[j];
        sum->absmax_bits = (uint32_t)absmax[j] > sum->absmax_bits ? (uint32_t)absmax[j] : sum->absmax_bits;
    }
}

/* Surveys columns col ... col+cols-1 of a row. */
static trf_status survey_row(const trf_quantizer *q, uint32_t row, uint32_t col, uint32_t cols, const void *weights,
                             uint64_t first, scale_region_sum *sums, trf_error *err) {
    float widened[TRF_WIDENED_WEIGHTS];
    for (uint32_t c = 0; c < cols; c += TRF_WIDENED_WEIGHTS) {
        uint32_t width = cols - c < TRF_WIDENED_WEIGHTS ? cols - c : TRF_WIDENED_WEIGHTS;
        trf_widen(q->dtype, weights, first + c, width, widened);
        for (uint32_t i = 0, length; i < width; i += length) {
            length = trf_cols_in_scale_region(q, col + c + i, width - i);
            scale_region_sum *sum = &sums[(col + c + i) / q->scale_region_cols];
            survey_weights(widened + i, length, sum);
            if (sum->absmax_bits < 0x7F800000u)
                continue;
            /* One of these is not finite. */
            while (isfinite(widened[i])) // NOLINT(clang-analyzer-core.CallAndMessage): trf_widen filled them
                i++;
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                            "the weight at row %u, column %u is %s; the int codec takes finite weights only", row,
                            col + c + i,
                            isnan(widened[i]) ? "NaN"
                            : widened[i] > 0  ? "Inf"
                                              : "-Inf");
        }
    }
    return TRF_OK;
}

/* Places excerpt k of the sample at random in the stride that it stands for, so that the sample does not keep step with
 * the columns. */
static uint64_t sampled_excerpt(uint64_t k, uint64_t stride) {
    uint64_t hash = (k + 1) * 0x9E3779B97F4A7C15ull;
    hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93ull;
    return k * stride + (hash >> 32) % stride;
}

/* Copies the excerpts that lie in columns col ... col+cols-1 of a row; col is a multiple of 16. */
static void sample_row(const survey *m, uint32_t row, uint32_t col, uint32_t cols, const void *weights,
                       uint64_t first) {
    uint64_t begin = row * m->excerpts_per_row + col / EXCERPT_WEIGHTS,
             end = begin + (cols + EXCERPT_WEIGHTS - 1) / EXCERPT_WEIGHTS;
    for (uint64_t k = begin / m->excerpt_stride; k <= (end - 1) / m->excerpt_stride; k++) {
        uint64_t excerpt = sampled_excerpt(k, m->excerpt_stride);
        if (excerpt < begin || excerpt >= end)
            continue;
        uint32_t at = (uint32_t)(excerpt - begin) * EXCERPT_WEIGHTS,
                 width = cols - at < EXCERPT_WEIGHTS ? cols - at : EXCERPT_WEIGHTS;
        trf_widen(m->source->dtype, weights, first + at, width, m->sample + k * EXCERPT_WEIGHTS);
        for (uint32_t i = width; i < EXCERPT_WEIGHTS; i++)
            m->sample[k * EXCERPT_WEIGHTS + i] = NAN;
    }
}

static void finish_region_row(trf_quantizer *q, uint64_t region_row, const scale_region_sum *sums) {
    uint64_t first_row = region_row * q->scale_region_rows;
    uint64_t rows = q->rows - first_row < q->scale_region_rows ? q->rows - first_row : q->scale_region_rows;
    for (uint32_t u = 0; u < q->scale_regions_per_row; u++) {
        uint64_t first_col = (uint64_t)u * q->scale_region_cols;
        uint64_t cols = q->cols - first_col < q->scale_region_cols ? q->cols - first_col : q->scale_region_cols;
        float absmax = trf_f32_from_bits(sums[u].absmax_bits);
        float rms = (float)sqrt(sums[u].squares / ((double)rows * (double)cols));
        if (absmax > 0 && rms < FLT_TRUE_MIN)
            rms = FLT_TRUE_MIN;
        q->absmax[region_row * q->scale_regions_per_row + u] = absmax;
        q->magnitude[region_row * q->scale_regions_per_row + u] = q->max_code == TRF_MAX_INT8_CODE ? absmax : rms;
    }
}

/* @return how many rows a range has, of which *first is the first one; 0 if its region row is the last one and ends
 * before the range. */
static uint32_t range_extent(const survey *m, uint64_t range, uint32_t *first) {
    const trf_quantizer *q = m->quantizer;
    uint64_t begin = range * m->range_rows, end = q->rows;
    if (m->ranges_per_region_row > 1) {
        uint64_t region_row_begin = range / m->ranges_per_region_row * q->scale_region_rows,
                 region_row_end = region_row_begin + q->scale_region_rows;
        begin = region_row_begin + range % m->ranges_per_region_row * m->range_rows;
        end = region_row_end < end ? region_row_end : end;
    }
    *first = (uint32_t)begin;
    return begin >= end ? 0 : (uint32_t)(end - begin < m->range_rows ? end - begin : m->range_rows);
}

static trf_status survey_range(void *context, uint64_t range, int worker, trf_error *err) {
    const survey *m = context;
    trf_quantizer *q = m->quantizer;
    int whole_region_rows = m->ranges_per_region_row == 1;
    uint8_t *weights = m->weights + (uint64_t)worker * m->range_rows * m->range_cols * trf_dtype_bytes(q->dtype);
    scale_region_sum *sums = m->sums + (whole_region_rows ? (uint64_t)worker : range) * q->scale_regions_per_row;
    memset(sums, 0, q->scale_regions_per_row * sizeof *sums);

    uint32_t row, rows = range_extent(m, range, &row);
    /* There is more than one round only if the range is one row, which is why the sums of one region row suffice. */
    for (uint32_t col = 0, cols; rows && col < q->cols; col += cols) {
        cols = q->cols - col < m->range_cols ? q->cols - col : m->range_cols;
        trf_status status = m->source->read(m->source->context, row, rows, col, cols, weights, err);
        for (uint32_t r = 0; r < rows && status == TRF_OK; r++) {
            status = survey_row(q, row + r, col, cols, weights, (uint64_t)r * cols, sums, err);
            if (status != TRF_OK)
                break;
            sample_row(m, row + r, col, cols, weights, (uint64_t)r * cols);
            int region_row_ends = r + 1 == rows || (row + r + 1) % q->scale_region_rows == 0;
            if (whole_region_rows && region_row_ends && col + cols == q->cols) {
                finish_region_row(q, (row + r) / q->scale_region_rows, sums);
                memset(sums, 0, q->scale_regions_per_row * sizeof *sums);
            }
        }
        if (status != TRF_OK)
            return status;
    }
    return TRF_OK;
}

/* Adds up the ranges of each row of regions, in their order. */
static void merge_region_rows(const survey *m) {
    trf_quantizer *q = m->quantizer;
    for (uint64_t region_row = 0; region_row < m->num_ranges / m->ranges_per_region_row; region_row++) {
        scale_region_sum *total = m->sums + region_row * m->ranges_per_region_row * q->scale_regions_per_row;
        for (uint64_t part = 1; part < m->ranges_per_region_row; part++) {
            const scale_region_sum *sums = total + part * q->scale_regions_per_row;
            for (uint32_t u = 0; u < q->scale_regions_per_row; u++) {
                total[u].squares += sums[u].squares;
                if (sums[u].absmax_bits > total[u].absmax_bits)
                    total[u].absmax_bits = sums[u].absmax_bits;
            }
        }
        finish_region_row(q, region_row, total);
    }
}

/* Turns the sample into the tails of a histogram of its weights, in units of their scale region's magnitude. */
static void count_sample(const survey *m) {
    trf_quantizer *q = m->quantizer;
    uint64_t num_excerpts = q->rows * m->excerpts_per_row;
    for (uint64_t k = 0; k * m->excerpt_stride < num_excerpts; k++) {
        uint64_t excerpt = sampled_excerpt(k, m->excerpt_stride);
        if (excerpt >= num_excerpts)
            continue;
        uint64_t row = excerpt / m->excerpts_per_row, col = excerpt % m->excerpts_per_row * EXCERPT_WEIGHTS;
        double magnitude =
            q->magnitude[row / q->scale_region_rows * q->scale_regions_per_row + col / q->scale_region_cols];
        double inverse = magnitude > 0 ? 1 / magnitude : 0;
        const float *w = m->sample + k * EXCERPT_WEIGHTS;
        for (int i = 0; i < EXCERPT_WEIGHTS && !isnan(w[i]); i++) {
            q->sampled_weights++;
            uint32_t bits = trf_f32_bits((float)(w[i] * inverse));
            int64_t bin = ((int64_t)(bits & 0x7FFFFFFFu) - TRF_HISTOGRAM_LOWEST) >> (23 - TRF_HISTOGRAM_BIN_BITS);
            if (bin >= 0)
                q->tail[bits >> 31][bin < TRF_HISTOGRAM_BINS ? bin : TRF_HISTOGRAM_BINS - 1]++;
        }
    }
    for (int sign = 0; sign < 2; sign++)
        for (int bin = TRF_HISTOGRAM_BINS - 1; bin >= 0; bin--)
            q->tail[sign][bin] += q->tail[sign][bin + 1];
}

static void find_peaks(trf_quantizer *q) {
    q->min_peak = INFINITY;
    q->max_peak = 0;
    for (uint64_t u = 0; u < q->num_scale_regions; u++) {
        if (q->absmax[u] == 0)
            continue;
        double peak = (double)q->absmax[u] / q->magnitude[u];
        peak = peak < 1 ? 1 : peak; /* the magnitude's rounding */
        q->min_peak = peak < q->min_peak ? peak : q->min_peak;
        q->max_peak = peak > q->max_peak ? peak : q->max_peak;
    }
    if (q->max_peak == 0)
        q->min_peak = q->max_peak = 1;
}

static void lay_out_ranges(survey *m) {
    const trf_quantizer *q = m->quantizer;
    assert(q->rows > 0 && q->cols > 0 && q->scale_region_rows > 0 && q->scale_regions_per_row > 0);
    m->range_cols = q->cols < RANGE_WEIGHTS ? q->cols : RANGE_WEIGHTS;
    uint32_t most_rows = q->cols < RANGE_WEIGHTS ? RANGE_WEIGHTS / q->cols : 1;
    most_rows = most_rows < q->rows ? most_rows : q->rows;
    assert(most_rows > 0);
    if (q->scale_region_rows <= most_rows) {
        m->range_rows = most_rows / q->scale_region_rows * q->scale_region_rows;
        m->ranges_per_region_row = 1;
        m->num_ranges = (q->rows + (uint64_t)m->range_rows - 1) / m->range_rows;
    } else {
        m->range_rows = most_rows;
        m->ranges_per_region_row = ((uint64_t)q->scale_region_rows + most_rows - 1) / most_rows;
        m->num_ranges = q->num_scale_regions / q->scale_regions_per_row * m->ranges_per_region_row;
    }
    m->excerpts_per_row = ((uint64_t)q->cols + EXCERPT_WEIGHTS - 1) / EXCERPT_WEIGHTS;
    m->excerpt_stride = (q->rows * m->excerpts_per_row + MAX_EXCERPTS - 1) / MAX_EXCERPTS;
}

static trf_status survey_source(trf_quantizer *q, const trf_source *source, int threads, trf_error *err) {
    survey m = {.quantizer = q, .source = source};
    lay_out_ranges(&m);
    uint64_t workers = (uint64_t)trf_thread_count(threads);
    workers = workers < m.num_ranges ? workers : m.num_ranges;
    uint64_t num_sums = (m.ranges_per_region_row == 1 ? workers : m.num_ranges) * q->scale_regions_per_row;
    m.sums = calloc(num_sums, sizeof *m.sums);
    m.weights = malloc(workers * m.range_rows * m.range_cols * trf_dtype_bytes(q->dtype));
    m.sample = malloc(sizeof(float) * MAX_EXCERPTS * EXCERPT_WEIGHTS);
    trf_status status;
    if (!m.sums || !m.weights || !m.sample) {
        status =
            trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory to survey a layer of %u x %u", q->rows, q->cols);
    } else {
        status = trf_parallel_for((int)workers, m.num_ranges, survey_range, &m, err);
    }
    if (status == TRF_OK) {
        if (m.ranges_per_region_row > 1)
            merge_region_rows(&m);
        find_peaks(q);
        count_sample(&m);
    }
    free(m.sums);
    free(m.weights);
    free(m.sample);
    return status;
}

/* ---- making one ---- */

static trf_status check_arguments(const trf_source *source, const trf_encode_options *options, trf_error *err) {
    if (source->dtype != TRF_DTYPE_F32 && source->dtype != TRF_DTYPE_F16 && source->dtype != TRF_DTYPE_BF16)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the quantizer takes F32, F16 and BF16 weights, not %s",
                        trf_dtype_name(source->dtype));
    if (source->rows < 1 || source->cols < 1 || source->rows > INT32_MAX || source->cols > INT32_MAX)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a layer of %u x %u cannot be quantized", source->rows,
                        source->cols);
    if (!(options->bits == 0 || (options->bits >= 2 && options->bits <= 8)))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%g bits a weight: it takes 2 to 8, or 0 for absmax INT8",
                        options->bits);
    if ((unsigned)options->granularity > TRF_GRANULARITY_SCALE_BLOCK)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%d is no granularity", (int)options->granularity);
    if (options->granularity >= TRF_GRANULARITY_SCALE_GROUP &&
        (options->scale_group_size < EXCERPT_WEIGHTS || options->scale_group_size > TRF_MAX_SCALE_GROUP_SIZE ||
         options->scale_group_size % EXCERPT_WEIGHTS))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "a scale group size of %u: it takes multiples of 16, up to %d", options->scale_group_size,
                        TRF_MAX_SCALE_GROUP_SIZE);
    return TRF_OK;
}

static void lay_out_scale_regions(trf_quantizer *q, const trf_source *source, const trf_encode_options *options) {
    q->dtype = source->dtype;
    q->rows = source->rows;
    q->cols = source->cols;
    assert(q->rows > 0 && q->cols > 0);
    q->granularity = options->granularity == TRF_GRANULARITY_NONE ? TRF_GRANULARITY_CHANNEL : options->granularity;
    q->scale_group_size = q->granularity >= TRF_GRANULARITY_SCALE_GROUP ? options->scale_group_size : 0;
    q->max_code = options->bits == 0 ? TRF_MAX_INT8_CODE : TRF_MAX_CODE;
    q->dtype_max = q->dtype == TRF_DTYPE_F16 ? 65504 : q->dtype == TRF_DTYPE_BF16 ? 0x1.FEp127 : (double)FLT_MAX;
    q->scale_region_rows = q->granularity == TRF_GRANULARITY_TENSOR        ? q->rows
                           : q->granularity == TRF_GRANULARITY_SCALE_BLOCK ? q->scale_group_size
                                                                           : 1;
    q->scale_region_rows = q->scale_region_rows < q->rows ? q->scale_region_rows : q->rows;
    q->scale_region_cols = q->scale_group_size && q->scale_group_size < q->cols ? q->scale_group_size : q->cols;
    q->scale_regions_per_row = (q->cols + q->scale_region_cols - 1) / q->scale_region_cols;
    q->num_scale_regions =
        ((uint64_t)q->rows + q->scale_region_rows - 1) / q->scale_region_rows * q->scale_regions_per_row;
}

trf_status trf_quantizer_create(const trf_source *source, const trf_encode_options *options, trf_quantizer **quantizer,
                                trf_error *err) {
    *quantizer = NULL;
    trf_status status = check_arguments(source, options, err);
    if (status != TRF_OK)
        return status;
    trf_quantizer *q = calloc(1, sizeof *q);
    if (!q)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for a quantizer");
    lay_out_scale_regions(q, source, options);
    q->absmax = calloc(q->num_scale_regions, sizeof *q->absmax);
    q->magnitude = calloc(q->num_scale_regions, sizeof *q->magnitude);
    q->table = calloc(q->num_scale_regions, sizeof(float));
    for (int sign = 0; sign < 2; sign++)
        q->tail[sign] = calloc(TRF_HISTOGRAM_BINS + 1, sizeof *q->tail[sign]);
    if (!q->absmax || !q->magnitude || !q->table || !q->tail[0] || !q->tail[1]) {
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for %llu scales",
                          (unsigned long long)q->num_scale_regions);
        goto fail;
    }
    status = survey_source(q, source, options->threads, err);
    if (status != TRF_OK)
        goto fail;
    *quantizer = q;
    return TRF_OK;
fail:
    trf_quantizer_free(q);
    return status;
}

void trf_quantizer_free(trf_quantizer *q) {
    if (!q)
        return;
    free(q->absmax);
    free(q->magnitude);
    free(q->table);
    free(q->tail[0]);
    free(q->tail[1]);
    free(q);
}
