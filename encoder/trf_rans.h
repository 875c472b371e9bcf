/* SPDX-License-Identifier: Apache-2.0 */
/* The rANS encoder of one slab: the decode step of format/trf_lane.h run backwards, without division. */
#ifndef TRF_RANS_H
#define TRF_RANS_H

#include "trf_symbol_model.h"

/* A symbol s as encoding needs it. x / f is the upper 64 bits of the 128-bit product x * reciprocal (Granlund and
 * Montgomery 1994; exact for every 32-bit x); For f = 1 the reciprocal does not fit; the result is then x - 1, and
 * start makes up for it. */
typedef struct trf_symbol_encoding {
    uint64_t reciprocal;
    uint32_t limit;      /* renormalize while x >= limit = f * 2^(L + 16 - p) */
    uint16_t start;      /* start[s], or start[s] + 2^p - 1 for f = 1 */
    uint16_t complement; /* 2^p - f */
} trf_symbol_encoding;

/* Symbols without a slot get a limit of 0, which no symbol with a slot has. */
void trf_symbol_encodings_init(trf_symbol_encoding symbols[TRF_ALPHABET], const trf_symbol_model *model,
                               uint32_t state_bits);

enum {
    TRF_MAX_LANE_SYMBOLS = TRF_MAX_LANE_WEIGHTS / 2,
    TRF_MAX_LANE_WORDS = TRF_MAX_LANE_SYMBOLS + 1
};

/* The coded lanes of a slab. Lane l < 16 has its words at the end of its row, in the order of decoding; lane l >= 16
 * has them at the start, in the reverse order. So they lie in the blob, too. */
typedef struct trf_coded_lanes {
    uint16_t start_state[TRF_LANES];
    uint16_t count[TRF_LANES];
    uint16_t words[TRF_LANES][TRF_MAX_LANE_WORDS];
} trf_coded_lanes;

/* Encodes lane_symbols symbols of each lane, symbol[i * 32 + lane]. Each of them must have a slot. */
void trf_encode_lanes(const trf_symbol_encoding symbols[TRF_ALPHABET], const uint8_t *symbol, uint32_t lane_symbols,
                      uint32_t state_bits, trf_coded_lanes *lanes);

#endif
