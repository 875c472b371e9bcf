/* SPDX-License-Identifier: Apache-2.0 */
/* Packed layers whose weights are so small multiples of one number that their sums are exact in F32, whatever their
 * order. So products must have the right bits. Everything here ends the program on failure. */
#ifndef PACKED_INTEGERS_H
#define PACKED_INTEGERS_H

#include "common/packed_layer.h"
#include "common/test_weights.h"

/* What a layer has; these may be combined. */
enum {
    WITH_ZEROS = 1,
    WITH_OUTLIERS = 2, /* a record here and there, and one of the first weight, whose place is all zeros, as in unused
                        * words */
    WITH_STORED = 4,   /* packed tiles with so many that they are stored, where there are more than 1,000 columns */
    WITH_OFFSETS = 8,  /* of rows */
    KINDS = 16
};

/* Makes a packed layer. Its weights are integers within +-31 times 2^-6; outliers are +-2^10. */
packed_layer packed_integers_make(test_rng *rng, uint32_t rows, uint32_t cols, int kind);

#endif
