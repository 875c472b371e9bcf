/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_find_fp8_launch.h"
#include "trf_packed8_form.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

static trf_find_fp8_set sets[TRF_MANTISSA_SETS];

static void make_sets(void) {
    const trf_mantissa_set *from = trf_mantissa_sets();
    for (uint32_t s = 0; s < TRF_MANTISSA_SETS; s++) {
        const int found = trf_packed8_find_pair(trf_f32_from_bits(127u << 23 | from[s].scale_mantissa), &sets[s].pair);
        assert(found);
        (void)found;
        memcpy(sets[s].mantissa, from[s].mantissa, sizeof sets[s].mantissa);
        sets[s].scale_mantissa = from[s].scale_mantissa;
        memcpy(sets[s].carry, from[s].carry, sizeof sets[s].carry);
    }
}

const trf_find_fp8_set *trf_find_fp8_sets(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_sets);
    return sets;
}
