/* SPDX-License-Identifier: Apache-2.0 */
/* Each step is one of trf_find_fp8_blocks.cuh, which says why it is done. */
#include "trf_block_scales.h"

#include "trf_packed8_form.h"

#include <string.h>

enum {
    SIDE = TRF_FOUND_FP8_BLOCK,
    SAMPLE_STEP = 8 /* one row of so many is looked at first */
};

/* The weights of a scale block. */
typedef struct block {
    const uint16_t *weights; /* the first one */
    uint64_t stride;
    uint32_t rows, cols;
} block;

/* What a sample suggests. */
typedef struct choice {
    const trf_find_fp8_set *set;
    uint32_t normal, in_set; /* normal numbers of the sample, and those with mantissas of the set */
    uint32_t unit;           /* the scale's exponent field */
    int reaches_all;         /* no weight of the block is larger than the largest code */
} choice;

static uint32_t magnitude_at(const block *b, uint32_t row, uint32_t col) {
    return b->weights[row * b->stride + col] & 0x7FFF;
}

static int is_normal(uint32_t magnitude) { return (magnitude >> 7) - 1 < TRF_FIND_LARGEST_NORMAL; }

/* Chooses the set that has the most of the sample's mantissas, of equal ones the first. */
static void choose_set(const block *b, uint32_t row_step, choice *to) {
    uint32_t counts[TRF_FIND_MANTISSAS] = {0};
    const trf_find_fp8_set *const sets = trf_find_fp8_sets();
    to->normal = to->in_set = 0;
    for (uint32_t row = 0; row < b->rows; row += row_step)
        for (uint32_t col = 0; col < b->cols; col++) {
            const uint32_t magnitude = magnitude_at(b, row, col);
            if (is_normal(magnitude)) {
                counts[magnitude % TRF_FIND_MANTISSAS]++;
                to->normal++;
            }
        }
    to->set = sets;
    for (uint32_t s = 0; s < TRF_MANTISSA_SETS; s++) {
        uint32_t sum = 0;
        for (uint32_t k = 0; k < TRF_E4M3_MANTISSAS; k++)
            sum += counts[sets[s].mantissa[k]];
        if (sum > to->in_set) {
            to->in_set = sum;
            to->set = &sets[s];
        }
    }
}

/* Sets number_of[m] to a mantissa's number in the set, or to TRF_E4M3_MANTISSAS. */
static void number_mantissas(const trf_find_fp8_set *set, uint8_t number_of[TRF_FIND_MANTISSAS]) {
    memset(number_of, TRF_E4M3_MANTISSAS, TRF_FIND_MANTISSAS);
    for (uint32_t k = 0; k < TRF_E4M3_MANTISSAS; k++)
        number_of[set->mantissa[k]] = (uint8_t)k;
}

/* The exponent fields, `first` to `last`, that the codes of mantissa k have. */
static void exponents_of(const choice *c, uint32_t k, uint32_t *first, uint32_t *last) {
    const int at = (int)(c->unit + c->set->carry[k]), least = at + trf_find_least_code(k),
              largest = at + trf_find_largest_code(k);
    *first = least < 1 ? 1 : (uint32_t)least;
    *last = largest > TRF_FIND_LARGEST_NORMAL ? TRF_FIND_LARGEST_NORMAL : (uint32_t)largest;
}

static uint32_t largest_magnitude(const block *b) {
    uint32_t largest = 0;
    for (uint32_t row = 0; row < b->rows; row++)
        for (uint32_t col = 0; col < b->cols; col++) {
            const uint32_t magnitude = magnitude_at(b, row, col);
            largest = magnitude > largest ? magnitude : largest;
        }
    return largest;
}

/* Chooses the exponent field of the scale, so that the most of the sample are codes; of equal ones one that reaches the
 * largest weight, and of these the least. */
static void choose_unit(const block *b, uint32_t row_step, uint32_t largest, choice *to) {
    uint32_t counts[TRF_E4M3_MANTISSAS][TRF_FIND_EXPONENTS] = {{0}}, best = 0;
    uint8_t number_of[TRF_FIND_MANTISSAS];
    choice tried = *to;
    number_mantissas(to->set, number_of);
    for (uint32_t row = 0; row < b->rows; row += row_step)
        for (uint32_t col = 0; col < b->cols; col++) {
            const uint32_t magnitude = magnitude_at(b, row, col), k = number_of[magnitude % TRF_FIND_MANTISSAS];
            if (is_normal(magnitude) && k < TRF_E4M3_MANTISSAS)
                counts[k][magnitude / TRF_FIND_MANTISSAS]++;
        }
    for (tried.unit = TRF_PACKED8_MIN_SCALE_EXPONENT; tried.unit <= TRF_PACKED8_MAX_SCALE_EXPONENT; tried.unit++) {
        uint32_t sum = 0, first, last;
        for (uint32_t k = 0; k < TRF_E4M3_MANTISSAS; k++) {
            exponents_of(&tried, k, &first, &last);
            for (uint32_t exponent = first; exponent <= last; exponent++)
                sum += counts[k][exponent];
        }
        const uint32_t top = (tried.unit + to->set->carry[TRF_FIND_TOP_MANTISSA] + TRF_FIND_TOP_EXPONENT) << 7 |
                             to->set->mantissa[TRF_FIND_TOP_MANTISSA],
                       rank = 2 * sum + (largest <= top) + 1;
        if (rank > best) {
            best = rank;
            to->unit = tried.unit;
            to->reaches_all = largest <= top;
        }
    }
}

/* Counts the weights that are no codes times the scale, and those that are, other than zeros. */
static uint32_t count_misfits(const block *b, const choice *c, uint32_t *numbers) {
    uint32_t misfits = 0, first[TRF_E4M3_MANTISSAS], last[TRF_E4M3_MANTISSAS];
    uint8_t number_of[TRF_FIND_MANTISSAS];
    number_mantissas(c->set, number_of);
    for (uint32_t k = 0; k < TRF_E4M3_MANTISSAS; k++)
        exponents_of(c, k, &first[k], &last[k]);
    *numbers = 0;
    for (uint32_t row = 0; row < b->rows; row++)
        for (uint32_t col = 0; col < b->cols; col++) {
            const uint32_t magnitude = magnitude_at(b, row, col), exponent = magnitude / TRF_FIND_MANTISSAS,
                           k = number_of[magnitude % TRF_FIND_MANTISSAS];
            const int is_code = k < TRF_E4M3_MANTISSAS && exponent >= first[k] && exponent <= last[k];
            *numbers += magnitude != 0 && is_code;
            misfits += magnitude != 0 && !is_code;
        }
    return misfits;
}

/* Tries what a sample suggests. trusts: whether to trust it if it can be. @return 1: that is a scale; 0: it is none for
 * these weights; -1: there is none. */
static int try_sample(const block *b, uint32_t row_step, int trusts, uint32_t largest, float *scale,
                      trf_found_fp8 *found) {
    const uint32_t most = b->rows * b->cols * TRF_FOUND_MISFITS_IN_1000 / 1000;
    uint32_t misfits = 0, numbers;
    choice c;
    choose_set(b, row_step, &c);
    if (10 * c.in_set < TRF_FOUND_SAMPLE_FITS_IN_10 * c.normal)
        return -1;
    choose_unit(b, row_step, largest, &c);
    numbers = c.in_set;
    if (!trusts || !c.reaches_all || c.normal < TRF_FOUND_LEAST_SAMPLE)
        misfits = count_misfits(b, &c, &numbers);
    if (misfits > most)
        return 0;
    *scale = numbers ? trf_f32_from_bits(c.unit << 23 | c.set->scale_mantissa) : 1.0f;
    found->misfits += misfits;
    found->numbers += numbers;
    found->has_low |= numbers && c.set->pair >> 16;
    return 1;
}

int trf_find_block_scales(const trf_rows_to_pack *rows, uint64_t block_row, int checks_all, float *scales,
                          trf_found_fp8 *found) {
    const uint64_t row = block_row * SIDE;
    for (uint32_t col = 0; col < rows->cols; col += SIDE) {
        const block b = {rows->weights + row * rows->stride + col, rows->stride,
                         rows->num_rows - row < SIDE ? (uint32_t)(rows->num_rows - row) : SIDE,
                         rows->cols - col < SIDE ? rows->cols - col : SIDE};
        const uint32_t largest = largest_magnitude(&b);
        int is_found = try_sample(&b, SAMPLE_STEP, !checks_all, largest, &scales[col / SIDE], found);
        if (is_found == 0)
            is_found = try_sample(&b, 1, 0, largest, &scales[col / SIDE], found);
        if (is_found != 1) {
            found->refused = 1;
            return 0;
        }
    }
    return 1;
}
