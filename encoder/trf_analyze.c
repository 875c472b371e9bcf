/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_analyze.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Counts of exponents less their offsets, -CENTRE ... CENTRE - 1, and of the weights that an offset excludes (zeros,
 * denormals, Inf, NaN). */
enum {
    CENTRE = 1024
};
typedef struct exponent_counts {
    uint64_t shifted[2 * CENTRE];
    uint64_t special[2]; /* exponent field 0, and Emax */
} exponent_counts;

/* What a choice of mode and layer offset is expected to cost. */
typedef struct candidate {
    uint32_t modes;
    int32_t exponent_offset;
    trf_classes classes;
    double cost;
} candidate;

static void count_exponents(const trf_tile_encoder *encoder, const trf_sample *sample, const int8_t *row,
                            const int8_t *col, exponent_counts *counts) {
    const trf_float_fields fields = trf_fields_of(encoder->header.codec);
    memset(counts, 0, sizeof *counts);
    const uint16_t *element = sample->element;
    for (uint32_t r = 0; r < TRF_FRAGMENT_SIZE * sample->num_excerpts; r++, element += sample->excerpt_cols) {
        if (!row && !col) { /* four tables, so that runs of equal exponents do not wait on one counter */
            uint32_t table[4][256] = {{0}};
            for (uint32_t c = 0; c < sample->excerpt_cols; c += 4)
                for (uint32_t k = 0; k < 4; k++)
                    table[k][trf_element_exponent(fields, element[c + k])]++;
            for (uint32_t e = 0; e < 256; e++)
                counts->shifted[CENTRE + e] += table[0][e] + table[1][e] + table[2][e] + table[3][e];
            continue;
        }
        int of_row = row ? row[r] : 0;
        for (uint32_t c = 0; c < sample->excerpt_cols; c++) {
            uint32_t e = trf_element_exponent(fields, element[c]);
            if (e == 0 || e > fields.max_ordinary_exponent)
                counts->special[e != 0]++;
            else
                counts->shifted[CENTRE + (int)e - of_row - (col ? col[c] : 0)]++;
        }
    }
    if (!row && !col)
        for (int side = 0; side < 2; side++) {
            if (side && fields.max_ordinary_exponent == fields.max_exponent)
                break;
            uint64_t *of_special = &counts->shifted[CENTRE + (side ? fields.max_exponent : 0)];
            counts->special[side] = *of_special;
            *of_special = 0;
        }
}

static void try_candidate(candidate *best, const trf_tile_encoder *encoder, const exponent_counts *counts,
                          uint32_t modes, int32_t d, double side_bits) {
    const trf_float_fields fields = trf_fields_of(encoder->header.codec);
    const uint32_t emax = fields.max_exponent, class_bits = encoder->header.class_bits;
    uint64_t key_counts[256] = {0}, excluded = 0;
    const int offset = modes || d, lowest = offset, highest = (int)(offset ? fields.max_ordinary_exponent : emax);
    for (int i = 0; i < 2 * CENTRE; i++) {
        int c = i - CENTRE - d;
        if (c >= lowest && c <= highest)
            key_counts[c] += counts->shifted[i];
        else
            excluded += counts->shifted[i];
    }
    if (offset) {
        excluded += counts->special[0] + counts->special[1];
    } else {
        key_counts[0] += counts->special[0];
        key_counts[emax] += counts->special[1];
    }
    candidate next = {modes, d, {0}, 0};
    trf_choose_float_classes(&next.classes, key_counts, excluded, emax, class_bits,
                             trf_float_raw_bits(encoder->header.codec, class_bits), encoder->exception_cost);
    next.cost = next.classes.cost + side_bits;
    if (next.cost < best->cost)
        *best = next;
}

/* Tries the layer offsets that are worth it. With quads they move the grid of the classes, which have four exponents
 * each, so four offsets in a row are enough. A matrix product takes C in place of E and scales exceptions by 2^-D,
 * which must be exact; D <= 0 keeps denormals exact. FP8 is different: the product has widened it to F16, which has
 * room below but not above, and weights scaled to the type's range lie close to its top, where D < 0 would push them
 * out. */
static void try_mode(candidate *best, const trf_tile_encoder *encoder, const exponent_counts *counts, uint32_t modes,
                     double side_bits) {
    const int fp8 = encoder->header.codec == TRF_CODEC_E4M3 || encoder->header.codec == TRF_CODEC_E5M2;
    for (int32_t shift = 0; shift < (encoder->header.class_bits == 2 ? 4 : 1); shift++)
        try_candidate(best, encoder, counts, modes, fp8 ? shift : -shift, side_bits);
}

/* ---- predictors: the mean exponent of a row or column, rounded, less that of the layer ---- */

/* The sum of the exponents of the ordinary weights of one row, and the number of these weights. */
typedef struct row_sum {
    uint64_t sum, count;
} row_sum;

/* Adds n weights to a row's sum; col: the columns' offsets, which are subtracted, or NULL. Exponents count from -128,
 * so that the sum stays positive. */
static void add_row(trf_float_fields fields, const uint16_t *element, uint32_t n, const int8_t *col, row_sum *row) {
    enum {
        SPAN_COLS = 1 << 16
    }; /* what 32-bit sums hold */
    for (uint32_t from = 0; from < n; from += SPAN_COLS) {
        uint32_t end = n - from < SPAN_COLS ? n : from + SPAN_COLS, sum = 0, count = 0;
        for (uint32_t c = from; c < end; c++) {
            uint32_t e = trf_element_exponent(fields, element[c]);
            uint32_t ordinary = (e != 0) & (e <= fields.max_ordinary_exponent);
            sum += ordinary * (e + 128u);
            count += ordinary;
        }
        for (uint32_t c = from; col && c < end; c++) {
            uint32_t e = trf_element_exponent(fields, element[c]);
            sum -= e != 0 && e <= fields.max_ordinary_exponent ? (uint32_t)col[c] : 0;
        }
        row->sum += sum;
        row->count += count;
    }
}

static int8_t rounded_offset(uint64_t sum, uint64_t count, double mean) {
    double offset = count ? rint((double)sum / (double)count - mean) : 0;
    return (int8_t)(offset > 127 ? 127 : offset < -127 ? -127 : offset);
}

/* Finds the offsets of the sample's rows relative to their common mean, which goes to *mean. @return whether any offset
 * is not 0. */
static int sample_row_offsets(const trf_tile_encoder *encoder, const trf_sample *sample, const int8_t *col,
                              row_sum *sums, int8_t *row, double *mean) {
    size_t rows = (size_t)TRF_FRAGMENT_SIZE * sample->num_excerpts;
    row_sum all = {0, 0};
    int any = 0;
    for (size_t r = 0; r < rows; r++) {
        sums[r] = (row_sum){0, 0};
        add_row(trf_fields_of(encoder->header.codec), sample->element + r * sample->excerpt_cols, sample->excerpt_cols,
                col, &sums[r]);
        all.sum += sums[r].sum;
        all.count += sums[r].count;
    }
    *mean = all.count ? (double)all.sum / (double)all.count : 0;
    for (size_t r = 0; r < rows; r++) {
        row[r] = rounded_offset(sums[r].sum, sums[r].count, *mean);
        any |= row[r] != 0;
    }
    return any;
}

static int sample_col_offsets(const trf_tile_encoder *encoder, const trf_sample *sample, double mean, int8_t *col,
                              uint32_t *sums, uint32_t *counts) {
    const trf_float_fields fields = trf_fields_of(encoder->header.codec);
    int any = 0;
    memset(sums, 0, sample->excerpt_cols * sizeof *sums);
    memset(counts, 0, sample->excerpt_cols * sizeof *counts);
    const uint16_t *element = sample->element;
    for (uint32_t r = 0; r < TRF_FRAGMENT_SIZE * sample->num_excerpts; r++, element += sample->excerpt_cols)
        for (uint32_t c = 0; c < sample->excerpt_cols; c++) {
            uint32_t e = trf_element_exponent(fields, element[c]);
            uint32_t ordinary = e != 0 && e <= fields.max_ordinary_exponent;
            sums[c] += ordinary ? e + 128u : 0;
            counts[c] += ordinary;
        }
    for (uint32_t c = 0; c < sample->excerpt_cols; c++) {
        col[c] = rounded_offset(sums[c], counts[c], mean);
        any |= col[c] != 0;
    }
    return any;
}

/* Finds the offsets of all rows, from up to ROW_COLS columns spread over each. */
static trf_status all_row_offsets(trf_tile_encoder *encoder, const trf_element_source *from, double mean,
                                  trf_error *err) {
    enum {
        SPAN_COLS = 256,
        MAX_SPANS = 8,
        STEP_ROWS = 256
    };
    const trf_source *source = from->source;
    row_sum *sums = calloc(STEP_ROWS, sizeof *sums);
    uint16_t *element = malloc(STEP_ROWS * SPAN_COLS * sizeof *element);
    void *scratch = malloc(STEP_ROWS * SPAN_COLS * sizeof(float));
    trf_energy ignored = {0, 0};
    trf_status status = TRF_OK;
    if (!sums || !element || !scratch)
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for row offsets");
    uint32_t num_spans = source->cols / SPAN_COLS < MAX_SPANS ? (source->cols + SPAN_COLS - 1) / SPAN_COLS : MAX_SPANS;
    for (uint64_t row = 0; row < source->rows && status == TRF_OK; row += STEP_ROWS) {
        uint32_t rows = source->rows - row < STEP_ROWS ? (uint32_t)(source->rows - row) : STEP_ROWS;
        memset(sums, 0, STEP_ROWS * sizeof *sums);
        for (uint32_t p = 0; p < num_spans && status == TRF_OK; p++) {
            uint32_t col = (uint32_t)((uint64_t)p * source->cols / num_spans), left = source->cols - col;
            uint32_t cols = left < SPAN_COLS ? left : SPAN_COLS;
            status = trf_read_codes(from, (uint32_t)row, rows, col, cols, scratch, element, &ignored, err);
            for (uint32_t r = 0; r < rows && status == TRF_OK; r++)
                add_row(trf_fields_of(encoder->header.codec), element + r * cols, cols,
                        encoder->col_offsets ? encoder->col_offsets + col : NULL, &sums[r]);
        }
        for (uint32_t r = 0; r < rows && status == TRF_OK; r++)
            encoder->row_offsets[row + r] = rounded_offset(sums[r].sum, sums[r].count, mean);
    }
    free(sums);
    free(element);
    free(scratch);
    return status;
}

/* Puts the offsets of the chosen modes into the encoder. Columns of a sliver have offset 0, since they are stored. */
static trf_status set_offsets(trf_tile_encoder *encoder, const trf_sample *sample, const trf_element_source *from,
                              const int8_t *sample_cols, double mean, trf_error *err) {
    uint32_t modes = encoder->header.predictor_modes;
    if (modes & TRF_PREDICT_COL) {
        encoder->col_offsets = calloc(encoder->header.cols, 1);
        if (!encoder->col_offsets)
            return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for column offsets");
        memcpy(encoder->col_offsets, sample_cols, sample->excerpt_cols);
    }
    if (modes & TRF_PREDICT_ROW) {
        encoder->row_offsets = calloc(encoder->header.rows, 1);
        if (!encoder->row_offsets)
            return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for row offsets");
        return all_row_offsets(encoder, from, mean, err);
    }
    return TRF_OK;
}

/* Scratch of a sample's size. */
typedef struct workspace {
    exponent_counts counts;
    int8_t *row, *col;               /* offsets found: of the sample's rows, of its columns */
    row_sum *row_sums;               /* of the sample's rows */
    uint32_t *col_sums, *col_counts; /* [excerpt_cols] */
} workspace;

static void free_workspace(workspace *w) {
    if (!w)
        return;
    free(w->row);
    free(w->col);
    free(w->row_sums);
    free(w->col_sums);
    free(w->col_counts);
    free(w);
}

static workspace *make_workspace(const trf_sample *sample) {
    size_t rows = (size_t)TRF_FRAGMENT_SIZE * sample->num_excerpts + 1, cols = (size_t)sample->excerpt_cols + 1;
    workspace *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->row = malloc(rows);
    w->col = malloc(cols);
    w->row_sums = malloc(rows * sizeof *w->row_sums);
    w->col_sums = malloc(cols * sizeof *w->col_sums);
    w->col_counts = malloc(cols * sizeof *w->col_counts);
    if (w->row && w->col && w->row_sums && w->col_sums && w->col_counts)
        return w;
    free_workspace(w);
    return NULL;
}

/* Tries the modes with offsets on the sample; *mean is what the row offsets of the best one are relative to. With
 * quads, modes with offsets of columns are not tried: quads are for the fused kernels, which do not take them. */
static void try_predictors(candidate *best, const trf_tile_encoder *encoder, const trf_sample *sample, workspace *w,
                           double *mean) {
    double row_cost = 8.0 / encoder->header.cols, col_cost = 8.0 / encoder->header.rows, mean_without_cols;
    if (sample_row_offsets(encoder, sample, NULL, w->row_sums, w->row, mean)) {
        count_exponents(encoder, sample, w->row, NULL, &w->counts);
        try_mode(best, encoder, &w->counts, TRF_PREDICT_ROW, row_cost);
    }
    if (encoder->header.class_bits == 2 || !sample->full_width ||
        !sample_col_offsets(encoder, sample, *mean, w->col, w->col_sums, w->col_counts))
        return;
    count_exponents(encoder, sample, NULL, w->col, &w->counts);
    try_mode(best, encoder, &w->counts, TRF_PREDICT_COL, col_cost);
    if (sample_row_offsets(encoder, sample, w->col, w->row_sums, w->row, &mean_without_cols)) {
        count_exponents(encoder, sample, w->row, w->col, &w->counts);
        try_mode(best, encoder, &w->counts, TRF_PREDICT_ROW | TRF_PREDICT_COL, row_cost + col_cost);
    }
    if (best->modes == (TRF_PREDICT_ROW | TRF_PREDICT_COL))
        *mean = mean_without_cols;
}

static trf_status analyze_floats(trf_tile_encoder *encoder, const trf_sample *sample, const trf_element_source *from,
                                 int allow_predictor, trf_classes *classes, double *entropy_bits, trf_error *err) {
    const trf_float_fields fields = trf_fields_of(encoder->header.codec);
    workspace *w = make_workspace(sample);
    if (!w)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory to analyze a layer");
    uint64_t *zero = &w->counts.shifted[CENTRE], *top = &w->counts.shifted[CENTRE + fields.max_exponent];
    candidate best = {.cost = INFINITY};
    double mean = 0;
    count_exponents(encoder, sample, NULL, NULL, &w->counts);
    *zero += w->counts.special[0];
    *top += w->counts.special[1];
    *entropy_bits = trf_entropy(w->counts.shifted, 2 * CENTRE) + fields.mantissa_bits + 1;
    *zero -= w->counts.special[0];
    *top -= w->counts.special[1];
    if (allow_predictor)
        try_mode(&best, encoder, &w->counts, 0, 0);
    else
        try_candidate(&best, encoder, &w->counts, 0, 0, 0);
    if (allow_predictor && sample->num_excerpts)
        try_predictors(&best, encoder, sample, w, &mean);
    *classes = best.classes;
    encoder->header.predictor_modes = (uint8_t)best.modes;
    encoder->extension.exponent_offset = best.exponent_offset;
    trf_status status = set_offsets(encoder, sample, from, w->col, mean, err);
    free_workspace(w);
    return status;
}

static void analyze_codes(const trf_tile_encoder *encoder, const trf_sample *sample, trf_classes *classes,
                          double *entropy_bits) {
    uint64_t counts[TRF_NUM_CODES] = {0};
    double as_double[TRF_NUM_CODES];
    size_t n = (size_t)sample->num_excerpts * TRF_FRAGMENT_SIZE * sample->excerpt_cols;
    for (size_t i = 0; i < n; i++)
        counts[(int16_t)sample->element[i] + TRF_MAX_CODE]++;
    for (int i = 0; i < TRF_NUM_CODES; i++)
        as_double[i] = (double)counts[i];
    *entropy_bits = trf_entropy(counts, TRF_NUM_CODES);
    trf_choose_int_classes(classes, as_double, encoder->header.class_bits, encoder->exception_cost);
}

/* Counts the symbols of the sample as the encoder itself forms them. They are the same in slabs of either width. */
static void count_symbols(const trf_tile_encoder *encoder, const trf_sample *sample, trf_tile_scratch *scratch,
                          uint8_t *chunks, uint64_t counts[TRF_ALPHABET]) {
    uint32_t per_lane = 8 / encoder->header.class_bits;
    for (uint32_t u = 0; u < sample->num_excerpts; u++)
        for (uint32_t col = 0; col < sample->excerpt_cols; col += TRF_MAX_SLAB_COLS) {
            uint32_t left = sample->excerpt_cols - col;
            trf_slab_shape shape = {1, (left < TRF_MAX_SLAB_COLS ? left : TRF_MAX_SLAB_COLS) / TRF_FRAGMENT_SIZE};
            trf_arrange_lanes(sample->element + (size_t)u * TRF_FRAGMENT_SIZE * sample->excerpt_cols + col,
                              sample->excerpt_cols, shape, scratch->buffers.element);
            if (encoder->rule.predicted)
                trf_arrange_exponent_offsets(encoder, sample->row[u], sample->col[u] + col, shape, scratch);
            encoder->split(&encoder->rule, shape, &scratch->buffers, chunks);
            uint32_t symbols = trf_lane_weights(shape) / per_lane * TRF_LANES;
            uint32_t table[2][TRF_ALPHABET] = {{0}};
            for (uint32_t i = 0; i < symbols; i += 2) {
                table[0][scratch->buffers.symbol[i]]++;
                table[1][scratch->buffers.symbol[i + 1]]++;
            }
            for (uint32_t s = 0; s < TRF_ALPHABET; s++)
                counts[s] += table[0][s] + table[1][s];
        }
}

trf_status trf_analyze(trf_tile_encoder *encoder, const trf_sample *sample, const trf_element_source *from,
                       int allow_predictor, double *entropy_bits, trf_error *err) {
    trf_classes classes;
    if (encoder->header.codec == TRF_CODEC_INT) {
        analyze_codes(encoder, sample, &classes, entropy_bits);
    } else {
        trf_status status = analyze_floats(encoder, sample, from, allow_predictor, &classes, entropy_bits, err);
        if (status != TRF_OK)
            return status;
    }
    trf_tile_scratch *scratch = aligned_alloc(64, sizeof *scratch);
    uint8_t *chunks = malloc(TRF_MAX_TILE_BYTES);
    uint64_t counts[TRF_ALPHABET] = {0};
    trf_status status = TRF_OK;
    if (!scratch || !chunks) {
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory to analyze a layer");
    } else {
        trf_tile_encoder_finish(encoder, &classes);
        count_symbols(encoder, sample, scratch, chunks, counts);
        trf_normalize(&encoder->model, counts, encoder->header.class_bits, encoder->header.probability_bits,
                      encoder->exception_cost);
        trf_tile_encoder_finish(encoder, &classes);
    }
    free(scratch);
    free(chunks);
    return status;
}
