#include "trf_analyze.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Exponents less their offsets, -CENTRE ... CENTRE - 1, and the weights that an offset excludes (zeros, denormals, Inf, NaN). */
enum { CENTRE = 1024 };
typedef struct exponent_counts {
    uint64_t shifted[2 * CENTRE];
    uint64_t special[2]; /* exponent field 0, and Emax */
} exponent_counts;

/* What a choice of mode and layer offset is expected to cost. */
typedef struct candidate {
    uint32_t modes;
    int32_t exponent_offset;
    trf_classes classes;
    double bits;
} candidate;

typedef struct offsets {
    int8_t *row; /* of the sample's rows [16 * num_units] */
    int8_t *col; /* [unit_cols] */
} offsets;

static void count_exponents(const trf_plan *plan, const trf_sample *sample, const int8_t *row, const int8_t *col,
                            exponent_counts *counts) {
    const trf_float_fields fields = trf_fields_of(plan->header.codec);
    memset(counts, 0, sizeof *counts);
    const uint16_t *element = sample->element;
    for (uint32_t r = 0; r < TRF_BLOCK_ROWS * sample->num_units; r++, element += sample->unit_cols) {
        if (!row && !col) { /* four tables, so that runs of equal exponents do not wait on one counter */
            uint32_t table[4][256] = {{0}};
            for (uint32_t c = 0; c < sample->unit_cols; c += 4)
                for (uint32_t k = 0; k < 4; k++)
                    table[k][trf_element_exponent(fields, element[c + k])]++;
            for (uint32_t e = 0; e < 256; e++)
                counts->shifted[CENTRE + e] += table[0][e] + table[1][e] + table[2][e] + table[3][e];
            continue;
        }
        int of_row = row ? row[r] : 0;
        for (uint32_t c = 0; c < sample->unit_cols; c++) {
            uint32_t e = trf_element_exponent(fields, element[c]);
            if (e == 0 || e == fields.max_exponent)
                counts->special[e != 0]++;
            else
                counts->shifted[CENTRE + (int)e - of_row - (col ? col[c] : 0)]++;
        }
    }
    if (!row && !col)
        for (int side = 0; side < 2; side++) {
            uint64_t *of_special = &counts->shifted[CENTRE + (side ? fields.max_exponent : 0)];
            counts->special[side] = *of_special;
            *of_special = 0;
        }
}

static void try_candidate(candidate *best, const trf_plan *plan, const exponent_counts *counts, uint32_t modes, int32_t d,
                          double side_bits) {
    const uint32_t emax = trf_fields_of(plan->header.codec).max_exponent, class_bits = plan->header.class_bits;
    uint64_t coded[256] = {0}, excluded = 0;
    int offset = modes || d;
    for (int i = 0; i < 2 * CENTRE; i++) {
        int c = i - CENTRE - d;
        if (c >= offset && c <= (int)emax - offset)
            coded[c] += counts->shifted[i];
        else
            excluded += counts->shifted[i];
    }
    if (offset) {
        excluded += counts->special[0] + counts->special[1];
    } else {
        coded[0] += counts->special[0];
        coded[emax] += counts->special[1];
    }
    candidate next = {modes, d, {0}, 0};
    trf_choose_float_classes(&next.classes, coded, excluded, emax, class_bits,
                             trf_float_raw_bits(plan->header.codec, class_bits));
    next.bits = next.classes.bits + side_bits;
    if (next.bits < best->bits)
        *best = next;
}

/* Layer offsets worth trying: with quads they move the grid of the groups of four exponents. */
static void try_mode(candidate *best, const trf_plan *plan, const exponent_counts *counts, uint32_t modes,
                     double side_bits) {
    int32_t span = plan->header.class_bits == 2 && trf_fields_of(plan->header.codec).max_exponent > 15 ? 4 : 1;
    for (int32_t d = 0; d < span; d++)
        try_candidate(best, plan, counts, modes, d, side_bits);
}

/* ---- predictors: the mean exponent of a row or column, rounded, less that of the layer ---- */

/* Adds the exponents of ordinary weights in a row and counts them. */
static void add_row(trf_float_fields fields, const uint16_t *element, uint32_t n, const int8_t *col, uint64_t *sum,
                    uint64_t *count) {
    for (uint32_t c = 0; c < n; c++) {
        uint32_t e = trf_element_exponent(fields, element[c]);
        if (e != 0 && e != fields.max_exponent) {
            *sum += e + 128u - (uint32_t)(col ? col[c] : 0);
            (*count)++;
        }
    }
}

static int8_t rounded_offset(uint64_t sum, uint64_t count, double mean) {
    double offset = count ? rint((double)sum / (double)count - mean) : 0;
    return (int8_t)(offset > 127 ? 127 : offset < -127 ? -127 : offset);
}

/* The layer's mean over the sample: what offsets are relative to. In add_row's scale, where col offsets are taken out. */
static double sample_mean(const trf_plan *plan, const trf_sample *sample, const int8_t *col) {
    uint64_t sum = 0, count = 0;
    for (uint32_t r = 0; r < TRF_BLOCK_ROWS * sample->num_units; r++)
        add_row(trf_fields_of(plan->header.codec), sample->element + (size_t)r * sample->unit_cols, sample->unit_cols, col,
                &sum, &count);
    return count ? (double)sum / (double)count : 0;
}

/* @return whether any offset is not 0. */
static int sample_row_offsets(const trf_plan *plan, const trf_sample *sample, const int8_t *col, double mean, int8_t *row) {
    int any = 0;
    for (uint32_t r = 0; r < TRF_BLOCK_ROWS * sample->num_units; r++) {
        uint64_t sum = 0, count = 0;
        add_row(trf_fields_of(plan->header.codec), sample->element + (size_t)r * sample->unit_cols, sample->unit_cols, col,
                &sum, &count);
        row[r] = rounded_offset(sum, count, mean);
        any |= row[r] != 0;
    }
    return any;
}

static int sample_col_offsets(const trf_plan *plan, const trf_sample *sample, double mean, int8_t *col, uint32_t *sums,
                              uint32_t *counts) {
    const trf_float_fields fields = trf_fields_of(plan->header.codec);
    int any = 0;
    memset(sums, 0, sample->unit_cols * sizeof *sums);
    memset(counts, 0, sample->unit_cols * sizeof *counts);
    const uint16_t *element = sample->element;
    for (uint32_t r = 0; r < TRF_BLOCK_ROWS * sample->num_units; r++, element += sample->unit_cols)
        for (uint32_t c = 0; c < sample->unit_cols; c++) {
            uint32_t e = trf_element_exponent(fields, element[c]);
            uint32_t ordinary = e != 0 && e != fields.max_exponent;
            sums[c] += ordinary ? e + 128u : 0;
            counts[c] += ordinary;
        }
    for (uint32_t c = 0; c < sample->unit_cols; c++) {
        col[c] = rounded_offset(sums[c], counts[c], mean);
        any |= col[c] != 0;
    }
    return any;
}

/* Offsets of all rows, from up to ROW_COLS columns spread over each. */
static trf_status all_row_offsets(trf_plan *plan, const trf_element_source *from, double mean, trf_error *err) {
    enum { PIECE = 256, PIECES = 8, STRIP = 256 };
    const trf_source *source = from->source;
    uint64_t *sum = calloc(STRIP, sizeof *sum), *count = calloc(STRIP, sizeof *count);
    uint16_t *element = malloc(STRIP * PIECE * sizeof *element);
    void *scratch = malloc(STRIP * PIECE * sizeof(float));
    trf_energy ignored = {0, 0};
    trf_status status = TRF_OK;
    if (!sum || !count || !element || !scratch)
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for row offsets");
    uint32_t pieces = source->cols / PIECE < PIECES ? (source->cols + PIECE - 1) / PIECE : PIECES;
    for (uint64_t row = 0; row < source->rows && status == TRF_OK; row += STRIP) {
        uint32_t rows = source->rows - row < STRIP ? (uint32_t)(source->rows - row) : STRIP;
        memset(sum, 0, STRIP * sizeof *sum);
        memset(count, 0, STRIP * sizeof *count);
        for (uint32_t p = 0; p < pieces && status == TRF_OK; p++) {
            uint32_t col = (uint32_t)((uint64_t)p * source->cols / pieces), left = source->cols - col;
            uint32_t cols = left < PIECE ? left : PIECE;
            status = trf_read_elements(from, (uint32_t)row, rows, col, cols, scratch, element, &ignored, err);
            for (uint32_t r = 0; r < rows && status == TRF_OK; r++)
                add_row(trf_fields_of(plan->header.codec), element + r * cols, cols,
                        plan->col_offsets ? plan->col_offsets + col : NULL, &sum[r], &count[r]);
        }
        for (uint32_t r = 0; r < rows && status == TRF_OK; r++)
            plan->row_offsets[row + r] = rounded_offset(sum[r], count[r], mean);
    }
    free(sum);
    free(count);
    free(element);
    free(scratch);
    return status;
}

/* Puts the offsets of the chosen modes into the plan. Columns of a sliver have offset 0; they are stored. */
static trf_status keep_offsets(trf_plan *plan, const trf_sample *sample, const trf_element_source *from,
                               const offsets *found, double mean, trf_error *err) {
    uint32_t modes = plan->header.predictor_modes;
    if (modes & TRF_PREDICT_COL) {
        plan->col_offsets = calloc(plan->header.cols, 1);
        if (!plan->col_offsets)
            return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for column offsets");
        memcpy(plan->col_offsets, found->col, sample->unit_cols);
    }
    if (modes & TRF_PREDICT_ROW) {
        plan->row_offsets = calloc(plan->header.rows, 1);
        if (!plan->row_offsets)
            return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for row offsets");
        return all_row_offsets(plan, from, mean, err);
    }
    return TRF_OK;
}

/* Tries all modes on the sample. found: row and col big enough for it; on return the offsets that the chosen mode uses. */
static void choose_float(candidate *best, const trf_plan *plan, const trf_sample *sample, offsets *found, uint32_t *sums,
                         exponent_counts *counts, double *mean) {
    double row_cost = 8.0 / plan->header.cols, col_cost = 8.0 / plan->header.rows, base_mean;
    uint32_t *col_counts = sums + sample->unit_cols;
    base_mean = *mean = sample_mean(plan, sample, NULL);
    if (sample_row_offsets(plan, sample, NULL, base_mean, found->row)) {
        count_exponents(plan, sample, found->row, NULL, counts);
        try_mode(best, plan, counts, TRF_PREDICT_ROW, row_cost);
    }
    if (!sample->full_width || !sample_col_offsets(plan, sample, base_mean, found->col, sums, col_counts))
        return;
    count_exponents(plan, sample, NULL, found->col, counts);
    try_mode(best, plan, counts, TRF_PREDICT_COL, col_cost);
    double mean_without_cols = sample_mean(plan, sample, found->col);
    if (sample_row_offsets(plan, sample, found->col, mean_without_cols, found->row)) {
        count_exponents(plan, sample, found->row, found->col, counts);
        try_mode(best, plan, counts, TRF_PREDICT_ROW | TRF_PREDICT_COL, row_cost + col_cost);
    }
    if (best->modes == (TRF_PREDICT_ROW | TRF_PREDICT_COL))
        *mean = mean_without_cols;
}

static trf_status analyze_floats(trf_plan *plan, const trf_sample *sample, const trf_element_source *from,
                                 int allow_predictor, trf_classes *classes, double *entropy_bits, trf_error *err) {
    const trf_float_fields fields = trf_fields_of(plan->header.codec);
    size_t rows = (size_t)TRF_BLOCK_ROWS * sample->num_units;
    exponent_counts *counts = malloc(sizeof *counts);
    offsets found = {malloc(rows + 1), malloc(sample->unit_cols + 1)};
    uint32_t *sums = malloc((2 * (size_t)sample->unit_cols + 1) * sizeof *sums);
    trf_status status = TRF_OK;
    if (!counts || !found.row || !found.col || !sums) {
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory to analyze a layer");
        goto done;
    }
    candidate best = {.bits = INFINITY};
    double mean = 0;
    count_exponents(plan, sample, NULL, NULL, counts);
    counts->shifted[CENTRE] = counts->special[0];
    counts->shifted[CENTRE + fields.max_exponent] = counts->special[1];
    *entropy_bits = trf_entropy(counts->shifted, 2 * CENTRE) + fields.mantissa_bits + 1;
    counts->shifted[CENTRE] = counts->shifted[CENTRE + fields.max_exponent] = 0;
    if (allow_predictor)
        try_mode(&best, plan, counts, 0, 0);
    else
        try_candidate(&best, plan, counts, 0, 0, 0);
    if (allow_predictor && sample->num_units)
        choose_float(&best, plan, sample, &found, sums, counts, &mean);
    *classes = best.classes;
    plan->header.predictor_modes = (uint8_t)best.modes;
    plan->extension.exponent_offset = best.exponent_offset;
    status = keep_offsets(plan, sample, from, &found, mean, err);
done:
    free(counts);
    free(found.row);
    free(found.col);
    free(sums);
    return status;
}

static void analyze_codes(const trf_plan *plan, const trf_sample *sample, trf_classes *classes, double *entropy_bits) {
    uint64_t counts[TRF_CODE_COUNTS] = {0};
    double as_double[TRF_CODE_COUNTS];
    size_t n = (size_t)sample->num_units * TRF_BLOCK_ROWS * sample->unit_cols;
    for (size_t i = 0; i < n; i++)
        counts[(int16_t)sample->element[i] + TRF_MAX_CODE]++;
    for (int i = 0; i < TRF_CODE_COUNTS; i++)
        as_double[i] = (double)counts[i];
    *entropy_bits = trf_entropy(counts, TRF_CODE_COUNTS);
    trf_choose_int_classes(classes, as_double, plan->header.class_bits);
}

/* Symbols of the sample, as the encoder itself forms them. */
static void count_symbols(const trf_plan *plan, const trf_sample *sample, trf_tile_scratch *scratch, uint8_t *planes,
                          uint64_t counts[TRF_ALPHABET]) {
    uint32_t per_lane = 8 / plan->header.class_bits;
    for (uint32_t u = 0; u < sample->num_units; u++)
        for (uint32_t col = 0; col < sample->unit_cols; col += TRF_SLAB_COLS) {
            uint32_t left = sample->unit_cols - col;
            trf_slab_shape shape = {1, (left < TRF_SLAB_COLS ? left : TRF_SLAB_COLS) / TRF_BLOCK_ROWS};
            trf_gather_lanes(sample->element + (size_t)u * TRF_BLOCK_ROWS * sample->unit_cols + col, sample->unit_cols, shape,
                             scratch->work.element);
            if (plan->rule.predicted) {
                trf_tile_shape at = {.row = sample->row[u], .col = sample->col[u] + col};
                trf_gather_offsets(plan, &at, 0, shape, scratch);
            }
            plan->split(&plan->rule, shape, &scratch->work, planes);
            uint32_t symbols = trf_lane_weights(shape) / per_lane * TRF_LANES;
            uint32_t table[2][TRF_ALPHABET] = {{0}};
            for (uint32_t i = 0; i < symbols; i += 2) {
                table[0][scratch->work.symbol[i]]++;
                table[1][scratch->work.symbol[i + 1]]++;
            }
            for (uint32_t s = 0; s < TRF_ALPHABET; s++)
                counts[s] += table[0][s] + table[1][s];
        }
}

trf_status trf_analyze(trf_plan *plan, const trf_sample *sample, const trf_element_source *from, int allow_predictor,
                       double *entropy_bits, trf_error *err) {
    trf_classes classes;
    if (plan->header.codec == TRF_CODEC_INT) {
        analyze_codes(plan, sample, &classes, entropy_bits);
    } else {
        trf_status status = analyze_floats(plan, sample, from, allow_predictor, &classes, entropy_bits, err);
        if (status != TRF_OK)
            return status;
    }
    trf_tile_scratch *scratch = aligned_alloc(64, sizeof *scratch);
    uint8_t *planes = malloc(TRF_MAX_TILE_BYTES);
    uint64_t counts[TRF_ALPHABET] = {0};
    trf_status status = TRF_OK;
    if (!scratch || !planes) {
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory to analyze a layer");
    } else {
        trf_plan_finish(plan, &classes);
        count_symbols(plan, sample, scratch, planes, counts);
        trf_normalize(&plan->model, counts, plan->header.class_bits, plan->header.probability_bits);
        trf_plan_finish(plan, &classes);
    }
    free(scratch);
    free(planes);
    return status;
}
