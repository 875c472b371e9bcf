/* SPDX-License-Identifier: Apache-2.0 */
/* The tile decoders that this CPU runs, for tests that compare them. */
#ifndef DECODERS_H
#define DECODERS_H

#include "trf_decode_tile.h"

typedef struct decoder {
    const char *name;
    trf_decode_tile_fn *decode;
} decoder;

/* Fills the list, with the reference first. @return their number. */
static inline uint32_t find_decoders(decoder list[3]) {
    uint32_t count = 0;
    list[count++] = (decoder){"scalar", trf_decode_tile_ref};
#ifdef TRF_HAVE_X86_SIMD
    trf_decode_tile_fn *best = trf_decode_tile_best();
    if (best != trf_decode_tile_ref)
        list[count++] = (decoder){"avx2", trf_decode_tile_avx2};
    if (best == trf_decode_tile_avx512)
        list[count++] = (decoder){"avx512", trf_decode_tile_avx512};
#endif
    return count;
}

#endif
