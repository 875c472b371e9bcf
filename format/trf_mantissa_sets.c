/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_mantissa_sets.h"

#include "trf_number_formats.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

enum {
    SCALES = 1 << 23, /* in [1, 2) */
    CODE_OF_1 = 7 << 3
};

static trf_mantissa_set sets[TRF_MANTISSA_SETS];

static void find_products(uint32_t scale_mantissa, uint16_t products[TRF_E4M3_MANTISSAS]) {
    const float scale = trf_f32_from_bits(127u << 23 | scale_mantissa);
    for (uint32_t m = 0; m < TRF_E4M3_MANTISSAS; m++)
        products[m] = trf_scale_fp8(CODE_OF_1 + m, scale);
}

static int are_products(const uint16_t products[TRF_E4M3_MANTISSAS], uint32_t scale_mantissa) {
    uint16_t others[TRF_E4M3_MANTISSAS];
    find_products(scale_mantissa, others);
    return memcmp(products, others, sizeof others) == 0;
}

/* @return the end of the run that begins at `first`. Products grow with the scale, so a run has no holes. */
static uint32_t find_end(const uint16_t products[TRF_E4M3_MANTISSAS], uint32_t first) {
    uint32_t last = first, step = 1;
    while (last + step < SCALES && are_products(products, last + step)) {
        last += step;
        step *= 2;
    }
    for (; step; step /= 2)
        if (last + step < SCALES && are_products(products, last + step))
            last += step;
    return last + 1;
}

/* @return the number in [first, end) with the most zero bits at its end. */
static uint32_t find_roundest(uint32_t first, uint32_t end) {
    for (uint32_t unit = SCALES; unit > 1; unit /= 2) {
        const uint32_t round = (first + unit - 1) / unit * unit;
        if (round < end)
            return round;
    }
    return first;
}

static void find_sets(void) {
    uint32_t count = 0;
    for (uint32_t first = 0, end; first < SCALES; first = end) {
        uint16_t products[TRF_E4M3_MANTISSAS];
        find_products(first, products);
        end = find_end(products, first);
        assert(count < TRF_MANTISSA_SETS);
        trf_mantissa_set *set = &sets[count++];
        set->scale_mantissa = find_roundest(first, end);
        for (uint32_t m = 0; m < TRF_E4M3_MANTISSAS; m++) {
            set->mantissa[m] = products[m] & 127;
            set->carry[m] = (uint8_t)((products[m] >> 7) - 127);
        }
    }
    assert(count == TRF_MANTISSA_SETS);
}

const trf_mantissa_set *trf_mantissa_sets(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_sets);
    return sets;
}
