/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_rans.h"

#include <string.h>

void trf_symbol_encodings_init(trf_symbol_encoding symbols[TRF_ALPHABET], const trf_symbol_model *model,
                               uint32_t state_bits) {
    uint32_t slots = 1u << model->probability_bits;
    memset(symbols, 0, TRF_ALPHABET * sizeof *symbols);
    for (uint32_t s = 0; s < TRF_ALPHABET; s++) {
        uint32_t f = model->frequency[s];
        if (!f)
            continue;
        symbols[s].limit = f << (state_bits + 16 - model->probability_bits); /* f < 2^p, so it fits */
        symbols[s].complement = (uint16_t)(slots - f);
        symbols[s].reciprocal = f == 1 ? UINT64_MAX : UINT64_MAX / f + 1;
        symbols[s].start = (uint16_t)(model->start[s] + (f == 1 ? slots - 1 : 0));
    }
}

/* One step backwards. It always writes the low word but counts it only if it is needed, so that there is no branch to
 * mispredict. */
#define ENCODE_STEP(x, at, direction, step_symbol)                                                                     \
    do {                                                                                                               \
        const trf_symbol_encoding *e_ = &symbols[step_symbol];                                                         \
        uint32_t full_ = (x) >= e_->limit;                                                                             \
        *(at) = (uint16_t)(x);                                                                                         \
        (at) += (direction) * (int32_t)full_;                                                                          \
        (x) >>= 16 * full_;                                                                                            \
        uint32_t q_ = (uint32_t)(((unsigned __int128)(x)*e_->reciprocal) >> 64);                                       \
        (x) += e_->start + q_ * e_->complement;                                                                        \
    } while (0)

/* A last renormalization brings the state into the 16 bits that are stored. */
static uint16_t flush_state(uint32_t x, uint16_t **at, int direction) {
    if (x >= 1u << 16) {
        **at = (uint16_t)x;
        *at += direction;
        x >>= 16;
    }
    return (uint16_t)x;
}

void trf_encode_lanes(const trf_symbol_encoding symbols[TRF_ALPHABET], const uint8_t *symbol, uint32_t lane_symbols,
                      uint32_t state_bits, trf_coded_lanes *lanes) {
    /* The two lanes of a lane pair and their neighbours are encoded at once, since four independent chains hide the
     * latency of multiplications. Encoding emits words in the reverse order of decoding. */
    for (uint32_t lane_pair = 0; lane_pair < TRF_LANE_PAIRS; lane_pair += 2) {
        uint32_t up0 = lane_pair, up1 = lane_pair + 1, down0 = lane_pair + 16, down1 = lane_pair + 17;
        uint32_t x0 = 1u << state_bits, x1 = x0, x2 = x0, x3 = x0;
        uint16_t *end0 = lanes->words[up0] + TRF_MAX_LANE_WORDS - 1, *end1 = lanes->words[up1] + TRF_MAX_LANE_WORDS - 1;
        uint16_t *at0 = end0, *at1 = end1, *at2 = lanes->words[down0], *at3 = lanes->words[down1];
        const uint8_t *s = symbol + (size_t)lane_symbols * TRF_LANES + lane_pair;
        for (uint32_t step = 0; step < lane_symbols; step++) {
            s -= TRF_LANES;
            ENCODE_STEP(x0, at0, -1, s[0]);
            ENCODE_STEP(x1, at1, -1, s[1]);
            ENCODE_STEP(x2, at2, 1, s[16]);
            ENCODE_STEP(x3, at3, 1, s[17]);
        }
        lanes->start_state[up0] = flush_state(x0, &at0, -1);
        lanes->start_state[up1] = flush_state(x1, &at1, -1);
        lanes->start_state[down0] = flush_state(x2, &at2, 1);
        lanes->start_state[down1] = flush_state(x3, &at3, 1);
        lanes->count[up0] = (uint16_t)(end0 - at0);
        lanes->count[up1] = (uint16_t)(end1 - at1);
        lanes->count[down0] = (uint16_t)(at2 - lanes->words[down0]);
        lanes->count[down1] = (uint16_t)(at3 - lanes->words[down1]);
    }
}
