/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_fp8_fit.h"

#include "trf_mantissa_sets.h"
#include "trf_number_formats.h"

#include <string.h>

enum {
    NUM_EXPONENTS = TRF_BF16_EXPONENTS - 2, /* of finite normal numbers: 1 to 254 */
    INFINITE = TRF_BF16_EXPONENTS - 1,
    /* Exponents of the weight that code 1 gives, where scales lie in 2^-100 ... 2^100. */
    LEAST_UNIT = 127 - 100,
    LARGEST_UNIT = 127 + 99,
    LARGEST_CODE = 8, /* the exponent of 448 */
    MAX_SETS = 8      /* that explain equally many weights, and are looked at */
};

/* The exponents of the least codes of each mantissa. Below -6 codes are denormal and have fewer bits. */
static const int kLeastCode[TRF_E4M3_MANTISSAS] = {-9, -6, -7, -6, -8, -6, -7, -6};

void trf_count_magnitudes(const uint16_t *weights, uint32_t count, trf_magnitude_counts *counts,
                          trf_exponent_range *range) {
    uint32_t *const even = &counts->table[0][0][0], *const odd = &counts->table[1][0][0];
    uint16_t least = 0x7FFF, largest = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint16_t magnitude = weights[i] & 0x7FFF;
        least = magnitude < least ? magnitude : least;
        largest = magnitude > largest ? magnitude : largest;
    }
    uint32_t i = 0;
    for (; i + 2 <= count; i += 2) {
        even[weights[i] & 0x7FFF]++;
        odd[weights[i + 1] & 0x7FFF]++;
    }
    if (i < count)
        even[weights[i] & 0x7FFF]++;
    const uint32_t first = least >> 7, end = (largest >> 7) + 1u;
    if (count) {
        range->first = first < range->first ? first : range->first;
        range->end = end > range->end ? end : range->end;
    }
}

void trf_move_magnitudes(trf_magnitude_counts *counts, trf_exponent_range *range, trf_magnitude_sums *sums) {
    for (uint32_t e = range->first; e < range->end; e++) {
        for (uint32_t m = 0; m < TRF_BF16_MANTISSAS; m++) {
            const uint32_t count = counts->table[0][e][m] + counts->table[1][e][m];
            sums->count[e][m] += count;
            sums->weights += count;
        }
        memset(counts->table[0][e], 0, sizeof counts->table[0][e]);
        memset(counts->table[1][e], 0, sizeof counts->table[1][e]);
    }
    sums->first = range->first < sums->first ? range->first : sums->first;
    sums->end = range->end > sums->end ? range->end : sums->end;
    *range = (trf_exponent_range){TRF_BF16_EXPONENTS, 0};
}

void trf_clear_magnitudes(trf_magnitude_sums *sums) {
    if (sums->first < sums->end)
        memset(sums->count[sums->first], 0, (sums->end - sums->first) * sizeof sums->count[0]);
    sums->first = TRF_BF16_EXPONENTS;
    sums->end = 0;
    sums->weights = 0;
}

/* Counts of mantissas of finite normal numbers. */
typedef struct mantissa_counts {
    uint64_t count[TRF_BF16_MANTISSAS];
    uint64_t all;
} mantissa_counts;

static void count_mantissas(const trf_magnitude_sums *sums, mantissa_counts *counts) {
    memset(counts, 0, sizeof *counts);
    for (uint32_t e = sums->first; e < sums->end; e++)
        for (uint32_t m = 0; e >= 1 && e < INFINITE && m < TRF_BF16_MANTISSAS; m++)
            counts->count[m] += sums->count[e][m];
    for (uint32_t m = 0; m < TRF_BF16_MANTISSAS; m++)
        counts->all += counts->count[m];
}

static uint64_t add_eight_largest(const mantissa_counts *counts) {
    uint64_t left[TRF_BF16_MANTISSAS], sum = 0;
    memcpy(left, counts->count, sizeof left);
    for (int i = 0; i < TRF_E4M3_MANTISSAS; i++) {
        uint32_t largest = 0;
        for (uint32_t m = 1; m < TRF_BF16_MANTISSAS; m++)
            largest = left[m] > left[largest] ? m : largest;
        sum += left[largest];
        left[largest] = 0;
    }
    return sum;
}

/* Finds the sets whose mantissas the most weights have. @return their number, at most MAX_SETS. */
static uint32_t find_best_sets(const mantissa_counts *counts, const trf_mantissa_set *best[MAX_SETS], uint64_t *most) {
    const trf_mantissa_set *sets = trf_mantissa_sets();
    uint32_t found = 0;
    *most = 0;
    for (uint32_t s = 0; s < TRF_MANTISSA_SETS; s++) {
        uint64_t sum = 0;
        for (uint32_t m = 0; m < TRF_E4M3_MANTISSAS; m++)
            sum += counts->count[sets[s].mantissa[m]];
        if (sum > *most) {
            *most = sum;
            found = 0;
        }
        if (sum == *most && found < MAX_SETS)
            best[found++] = &sets[s];
    }
    return found;
}

/* Chooses the exponent of the scale for a set: that of the weight which code 1 gives. @return the number of weights
 * that are codes then. */
static uint64_t choose_unit(const trf_magnitude_sums *sums, const trf_mantissa_set *set, int *unit) {
    enum {
        MARGIN = 16 /* so that no exponent of a code is out of the array */
    };
    uint64_t below[TRF_E4M3_MANTISSAS][TRF_BF16_EXPONENTS + 2 * MARGIN], best = 0;
    for (uint32_t m = 0; m < TRF_E4M3_MANTISSAS; m++) {
        memset(below[m], 0, (MARGIN + 1) * sizeof below[m][0]);
        for (uint32_t e = 0; e < TRF_BF16_EXPONENTS + MARGIN - 1; e++) {
            const int counts = e >= 1 && e <= NUM_EXPONENTS && e >= sums->first && e < sums->end;
            below[m][MARGIN + e + 1] = below[m][MARGIN + e] + (counts ? sums->count[e][set->mantissa[m]] : 0);
        }
    }
    const int first = (int)sums->first - MARGIN, end = (int)sums->end + MARGIN; /* no others have codes */
    *unit = LEAST_UNIT;
    for (int u = first > LEAST_UNIT ? first : LEAST_UNIT; u <= LARGEST_UNIT && u < end; u++) {
        uint64_t sum = 0;
        for (uint32_t m = 0; m < TRF_E4M3_MANTISSAS; m++) {
            const int at = MARGIN + u + set->carry[m], largest = LARGEST_CODE - (m == 7); /* 480 is a NaN */
            sum += below[m][at + largest + 1] - below[m][at + kLeastCode[m]];
        }
        if (sum > best) {
            best = sum;
            *unit = u;
        }
    }
    return best;
}

int trf_fit_fp8(const trf_magnitude_sums *sums, uint64_t most, trf_fp8_fit *fit) {
    mantissa_counts counts;
    const trf_mantissa_set *sets[MAX_SETS] = {NULL};
    uint64_t in_set;
    count_mantissas(sums, &counts);
    const uint64_t zeros = sums->first == 0 && sums->end ? sums->count[0][0] : 0,
                   outside = sums->weights - zeros - counts.all; /* denormal, infinite, NaN */
    *fit = (trf_fp8_fit){1, outside, 0};
    if (counts.all == 0 || outside > most)
        return outside <= most;
    if (outside + counts.all - add_eight_largest(&counts) > most)
        return 0;
    const uint32_t num_sets = find_best_sets(&counts, sets, &in_set);
    for (uint32_t s = 0; s < num_sets && outside + counts.all - in_set <= most; s++) {
        int unit;
        const uint64_t numbers = choose_unit(sums, sets[s], &unit);
        if (numbers > fit->numbers) {
            fit->numbers = numbers;
            fit->scale = trf_f32_from_bits((uint32_t)unit << 23 | sets[s]->scale_mantissa);
        }
    }
    fit->misfits = outside + counts.all - fit->numbers;
    return fit->misfits <= most;
}
