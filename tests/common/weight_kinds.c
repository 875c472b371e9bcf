/* SPDX-License-Identifier: Apache-2.0 */
#include "common/weight_kinds.h"

#include "common/test_weights.h"

#include <stdlib.h>

uint16_t *weight_kind_make(weight_kind kind, uint32_t rows, uint32_t cols) {
    static const uint16_t kOdd[] = {0x7F80, 0xFF80, 0x7FC1, 0xFF95, 0x0000, 0x8000, 0x0013, 0x4480};
    test_rng rng = {7 + (uint64_t)kind};
    uint16_t *weights = malloc(2ull * rows * cols);
    test_fill_normal(&rng, weights, TRF_DTYPE_BF16, (size_t)rows * cols, 0.02);
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        const uint32_t row = (uint32_t)(i / cols), col = (uint32_t)(i % cols);
        if (kind == ZEROS && test_below(&rng, 2))
            weights[i] &= 0x8000;
        if (kind == OUTLIERS && test_below(&rng, 3000) == 0)
            weights[i] = kOdd[test_below(&rng, 8)];
        if (kind == BURSTS && row / 64 * 7 % 20 == 1 && col / 32 == 1 && test_below(&rng, 30) == 0)
            weights[i] = kOdd[test_below(&rng, 8)];
        if (kind == SCALED_ROWS && (weights[i] & 0x7FFF) != 0)
            weights[i] = (uint16_t)(weights[i] + (((row * 5 % 7) * 6) << 7));
        if (kind == SCALED_COLS && (weights[i] & 0x7FFF) != 0)
            weights[i] = (uint16_t)(weights[i] + ((col / 8 % 3) << 7));
        if (kind == EXACT)
            weights[i] = (uint16_t)((test_random(&rng) & 0x8040) | (0x3C80 + (test_below(&rng, 3) << 7)));
        if (kind == WILD)
            weights[i] =
                (uint16_t)((test_random(&rng) & 0x807F) | (60 + 140 * test_below(&rng, 2) + test_below(&rng, 2)) << 7);
    }
    return weights;
}
