/* SPDX-License-Identifier: Apache-2.0 */
/* The rANS lane alone. Takes any bytes as the rANS streams of a slab, decodes them with a frequency table that is made
 * of the input, too, and compares each lane with decoding by definition. With mode 1 it takes bytes as symbols, codes
 * them, and they must come back. */
#include "fuzz_bytes.h"

#include "trf_rans.h"
#include "trf_slab_reader.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct lane_case {
    trf_symbol_model model;
    uint32_t state_bits;
    uint32_t slots[TRF_MAX_SLOTS]; /* the decode table */
    trf_slab_shape shape;
    uint32_t symbols; /* of a lane */
} lane_case;

static void *allocate(size_t bytes) {
    void *memory;
    if (posix_memalign(&memory, 16, bytes ? bytes : 1))
        abort();
    return memory;
}

/* Makes a frequency table of symbols and frequencies; the last symbol gets the slots that are left. */
static void make_table(lane_case *c, fuzz_bytes *bytes) {
    trf_symbol_model *model = &c->model;
    memset(model, 0, sizeof *model);
    model->probability_bits =
        TRF_MIN_PROBABILITY_BITS + fuzz_take(bytes) % (TRF_MAX_PROBABILITY_BITS - TRF_MIN_PROBABILITY_BITS + 1);
    c->state_bits = model->probability_bits + fuzz_take(bytes) % (TRF_MAX_STATE_BITS - model->probability_bits + 1);
    const uint32_t slots = 1u << model->probability_bits, count = 1 + fuzz_take(bytes) % 32;
    uint32_t left = slots - 1; /* one for the last symbol, or for another one if the last symbol has all others */
    for (uint32_t i = 0; i < count && left > 1; i++) {
        const uint32_t symbol = fuzz_take(bytes), frequency = 1 + fuzz_take_two(bytes) % (left - 1);
        model->frequency[symbol] = (uint16_t)(model->frequency[symbol] + frequency);
        left -= frequency;
    }
    const uint32_t last = fuzz_take(bytes);
    model->frequency[last] = (uint16_t)(model->frequency[last] + left);
    model->frequency[(last + 1) % TRF_ALPHABET]++;
    uint32_t slot = 0;
    for (uint32_t s = 0; s < TRF_ALPHABET; s++) {
        model->start[s] = (uint16_t)slot;
        model->replacement[s] = (uint8_t)s;
        for (uint32_t offset = 0; offset < model->frequency[s]; offset++)
            c->slots[slot++] = trf_slot_entry(model->frequency[s], offset, s);
    }
    if (slot != slots)
        abort();
}

/* FORMAT.md's decoding of one lane, in 64 bits and without tables. */
typedef struct defined_lane {
    uint64_t x;
    int64_t at, stride;
    uint32_t taken;
} defined_lane;

static void renormalize_by_definition(const lane_case *c, const trf_slab_reader *slab, defined_lane *lane) {
    if (lane->x >> c->state_bits)
        return;
    uint16_t word = 0;
    if (lane->at >= 0 && lane->at < slab->num_words)
        memcpy(&word, slab->rans_streams + slab->words + 2 * lane->at, sizeof word);
    lane->x = lane->x << 16 | word;
    lane->at += lane->stride;
    lane->taken++;
}

static uint32_t next_by_definition(const lane_case *c, const trf_slab_reader *slab, defined_lane *lane) {
    const uint32_t slot = (uint32_t)(lane->x % (1u << c->model.probability_bits));
    uint32_t symbol =
        0; /* the last one that starts at the slot or before it: those without slots start with the next */
    for (uint32_t step = TRF_ALPHABET / 2; step > 0; step /= 2)
        if (c->model.start[symbol + step] <= slot)
            symbol += step;
    lane->x = c->model.frequency[symbol] * (lane->x >> c->model.probability_bits) + slot - c->model.start[symbol];
    renormalize_by_definition(c, slab, lane);
    return symbol;
}

static defined_lane open_by_definition(const lane_case *c, const trf_slab_reader *slab, uint32_t lane) {
    const uint8_t *pair_words = slab->rans_streams + TRF_STATES_BYTES;
    uint16_t state;
    int64_t begin = 0;
    for (uint32_t pair = 0; pair < lane % TRF_LANE_PAIRS; pair++)
        begin += pair_words[pair];
    memcpy(&state, slab->rans_streams + 2 * lane, sizeof state);
    defined_lane opened = {state, begin, 1, 0};
    if (lane >= TRF_LANE_PAIRS) {
        opened.at = begin + pair_words[lane % TRF_LANE_PAIRS] - 1;
        opened.stride = -1;
    }
    renormalize_by_definition(c, slab, &opened);
    return opened;
}

/* Decodes a slab whose reader is open. symbols: [symbols of a lane][32], where they go. @return the slab's verdict. */
static int decode(const lane_case *c, const trf_slab_reader *slab, uint8_t *symbols) {
    uint32_t taken[TRF_LANES];
    trf_lane_reader readers[TRF_LANES];
    for (uint32_t lane = 0; lane < TRF_LANES; lane++) {
        trf_lane_reader *reader = &readers[lane];
        *reader = trf_lane_reader_open(slab, lane, c->state_bits);
        defined_lane defined = open_by_definition(c, slab, lane);
        for (uint32_t i = 0; i < c->symbols; i++) {
            const uint32_t symbol =
                trf_lane_next_symbol(reader, slab, c->slots, c->model.probability_bits, c->state_bits);
            if (symbol != next_by_definition(c, slab, &defined) || reader->x != defined.x)
                abort();
            symbols[i * TRF_LANES + lane] = (uint8_t)symbol;
        }
        if (reader->taken != defined.taken)
            abort();
        taken[lane] = reader->taken;
    }
    int good = 1;
    for (uint32_t lane = 0; lane < TRF_LANES; lane++)
        good &= trf_lane_reader_verdict(&readers[lane], slab, lane, taken[lane ^ TRF_LANE_PAIRS], c->state_bits);
    return good;
}

/* Takes the rest of the input as rANS streams, which may say that they have more than they do. */
static void decode_any(lane_case *c, fuzz_bytes *bytes) {
    const uint32_t size = (uint32_t)bytes->left / TRF_ALIGNMENT * TRF_ALIGNMENT;
    uint8_t *streams = allocate(size), *symbols = allocate(c->symbols * TRF_LANES);
    trf_slab_reader slab;
    fuzz_take_many(bytes, streams, size);
    if (trf_slab_reader_open(&slab, NULL, streams, size, c->shape))
        (void)decode(c, &slab, symbols);
    free(streams);
    free(symbols);
}

/* Lays coded lanes out as a blob has them. @return their bytes, malloc'd; NULL if a pair of lanes has too many words
 * for a slab. */
static uint8_t *lay_out(const trf_coded_lanes *lanes, uint32_t *size) {
    uint32_t words = 0;
    for (uint32_t lane = 0; lane < TRF_LANES; lane++)
        words += lanes->count[lane];
    *size = TRF_RANS_FIXED_BYTES + 2 * words;
    uint8_t *streams = allocate(*size), *at = streams + TRF_RANS_FIXED_BYTES;
    memset(streams, 0, TRF_RANS_FIXED_BYTES);
    memcpy(streams, lanes->start_state, TRF_STATES_BYTES);
    for (uint32_t pair = 0; pair < TRF_LANE_PAIRS; pair++) {
        const uint32_t up = lanes->count[pair], down = lanes->count[pair + TRF_LANE_PAIRS];
        if (up + down > UINT8_MAX) {
            free(streams);
            return NULL;
        }
        streams[TRF_STATES_BYTES + pair] = (uint8_t)(up + down);
        memcpy(at, lanes->words[pair] + TRF_MAX_LANE_WORDS - up, 2 * up);
        memcpy(at + 2 * up, lanes->words[pair + TRF_LANE_PAIRS], 2 * down);
        at += 2 * (up + down);
    }
    return streams;
}

/* Codes symbols and decodes them; then decodes them with a byte changed, which must stay inside the streams. */
static void code_and_decode(lane_case *c, fuzz_bytes *bytes) {
    static trf_coded_lanes lanes;
    trf_symbol_encoding encodings[TRF_ALPHABET];
    const size_t count = c->symbols * TRF_LANES;
    const uint32_t where = fuzz_take_two(bytes), change = fuzz_take(bytes);
    uint8_t *symbols = allocate(count), *decoded = allocate(count);
    fuzz_take_many(bytes, symbols, count);
    for (size_t i = 0; i < count; i++)
        while (c->model.frequency[symbols[i]] == 0)
            symbols[i]++;
    trf_symbol_encodings_init(encodings, &c->model, c->state_bits);
    trf_encode_lanes(encodings, symbols, c->symbols, c->state_bits, &lanes);
    uint32_t size;
    uint8_t *streams = lay_out(&lanes, &size);
    trf_slab_reader slab;
    if (streams) {
        if (!trf_slab_reader_open(&slab, NULL, streams, size, c->shape) || !decode(c, &slab, decoded) ||
            memcmp(symbols, decoded, count) != 0)
            abort();
        streams[where % size] ^= (uint8_t)change;
        if (trf_slab_reader_open(&slab, NULL, streams, size, c->shape))
            (void)decode(c, &slab, decoded);
    }
    free(streams);
    free(symbols);
    free(decoded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static lane_case c;
    fuzz_bytes bytes = {data, size};
    const uint32_t mode = fuzz_take(&bytes);
    c.shape = (trf_slab_shape){1 + mode / 2 % 2, 1 + fuzz_take(&bytes) % (TRF_MAX_SLAB_COLS / TRF_FRAGMENT_SIZE)};
    c.symbols = trf_lane_weights(c.shape) / (mode & 4 ? 2 : 4); /* pairs or quads */
    make_table(&c, &bytes);
    if (mode & 1)
        code_and_decode(&c, &bytes);
    else
        decode_any(&c, &bytes);
    return 0;
}
