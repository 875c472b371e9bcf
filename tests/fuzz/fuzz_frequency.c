/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as the frequency table of a sound blob whose checksums are made right again: the validator must
 * accept exactly the tables that FORMAT.md does, the decode table has to be theirs, and all decoders must agree.
 *
 * The table is the input's own u16[256]; or the blob's own with some frequencies changed; or counts, which the encoder
 * makes a table of. */
#include "common/decoders.h"
#include "fuzz_bytes.h"
#include "fuzz_checksums.h"
#include "transfuse.h"
#include "trf_symbol_model.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    ROWS = 48,
    COLS = 80
};

/* A blob of each favor and probability bits, made once. */
typedef struct sound_blob {
    uint8_t *bytes;
    uint64_t size;
} sound_blob;

static sound_blob make_blob(trf_favor favor, uint32_t probability_bits) {
    uint16_t weights[ROWS * COLS];
    for (uint32_t i = 0; i < ROWS * COLS; i++) {
        const uint32_t mixed = i * 0x9E3779B1u;
        weights[i] = (uint16_t)((mixed >> 16 & 0x807F) | (120 + (uint32_t)__builtin_clz(mixed << 8 | 1) % 24) << 7);
    }
    const trf_matrix matrix = {
        .struct_bytes = sizeof matrix, .weights = weights, .rows = ROWS, .cols = COLS, .dtype = TRF_DTYPE_BF16};
    trf_encode_options options;
    trf_encode_options_init(&options);
    options.favor = favor;
    options.probability_bits = probability_bits;
    options.threads = 1;
    void *blob;
    sound_blob made = {0};
    if (trf_encode_layer(&matrix, &options, &blob, &made.size, NULL, NULL) != TRF_OK)
        abort();
    made.bytes = blob;
    return made;
}

static sound_blob find_blob(uint32_t number) {
    enum {
        COUNT = TRF_MAX_PROBABILITY_BITS - TRF_MIN_PROBABILITY_BITS + 1
    };
    static sound_blob blobs[2 * COUNT]; /* never freed */
    sound_blob *blob = &blobs[number % (2 * COUNT)];
    if (!blob->bytes)
        *blob =
            make_blob(number / COUNT % 2 ? TRF_FAVOR_SIZE : TRF_FAVOR_SPEED, TRF_MIN_PROBABILITY_BITS + number % COUNT);
    return *blob;
}

static void change_table(uint16_t *table, fuzz_bytes *bytes) {
    while (bytes->left > 0) {
        const uint32_t from = fuzz_take(bytes), to = fuzz_take(bytes), by = fuzz_take_two(bytes);
        table[from] = (uint16_t)(table[from] - by % 8);
        table[to] = (uint16_t)(table[to] + (by & 0x8000 ? by : by % 8));
    }
}

static void normalize(uint16_t *table, const trf_header *header, fuzz_bytes *bytes) {
    uint64_t counts[TRF_ALPHABET];
    trf_symbol_model model;
    for (uint32_t s = 0; s < TRF_ALPHABET; s++)
        counts[s] = (uint64_t)fuzz_take(bytes) << fuzz_take(bytes) % 32;
    trf_normalize(&model, counts, header->class_bits, header->probability_bits, TRF_EXCEPTION_BITS);
    memcpy(table, model.frequency, sizeof model.frequency);
}

/* FORMAT.md, section 4. */
static int is_sound(const uint16_t *table, uint32_t slots) {
    uint64_t sum = 0;
    int in_range = 1;
    for (uint32_t s = 0; s < TRF_ALPHABET; s++) {
        sum += table[s];
        in_range &= table[s] <= slots - 1;
    }
    return in_range && sum == slots;
}

static void check_decode_table(const trf_decode_table *table, const trf_blob_view *view) {
    const uint32_t slots = 1u << view->header.probability_bits;
    uint32_t found[TRF_ALPHABET] = {0};
    for (uint32_t slot = 0; slot < slots; slot++) {
        const uint32_t entry = table->slots[slot], symbol = trf_entry_symbol(entry);
        if (trf_entry_frequency(entry) != view->frequency[symbol] || trf_entry_slot_offset(entry) != found[symbol]++ ||
            (slot > 0 && symbol < trf_entry_symbol(table->slots[slot - 1])))
            abort();
    }
}

static void decode_by_all(const trf_blob_view *view, const uint8_t *blob) {
    static trf_decode_table table;
    static uint16_t elements[ROWS * COLS], again[ROWS * COLS];
    decoder decoders[3];
    const uint32_t count = find_decoders(decoders);
    trf_decode_table_init(&table, view);
    check_decode_table(&table, view);
    const uint8_t *tile = blob + view->tiles[0].data_offset;
    if (trf_blob_check_tile(view, 0, tile, NULL) != TRF_OK)
        return;
    const trf_status status = trf_decode_tile_ref(view, &table, 0, tile, elements, COLS, NULL);
    for (uint32_t d = 1; d < count; d++)
        if (decoders[d].decode(view, &table, 0, tile, again, COLS, NULL) != status ||
            (status == TRF_OK && memcmp(elements, again, sizeof elements) != 0))
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_bytes bytes = {data, size};
    const uint32_t mode = fuzz_take(&bytes);
    const sound_blob sound = find_blob(mode / 4);
    void *blob;
    trf_blob_view view;
    if (posix_memalign(&blob, TRF_TILE_ALIGNMENT, sound.size))
        return 0;
    memcpy(blob, sound.bytes, sound.size);
    const trf_header *header = blob;
    uint16_t *table = (uint16_t *)((uint8_t *)blob + TRF_FREQUENCY_OFFSET);
    if (mode % 4 == 0)
        fuzz_take_many(&bytes, table, TRF_FREQUENCY_BYTES);
    else if (mode % 4 == 1)
        normalize(table, header, &bytes);
    else
        change_table(table, &bytes);
    fuzz_mend_checksums(blob, sound.size);
    const trf_status status = trf_blob_open(blob, sound.size, sound.size, &view, NULL);
    if (status != (is_sound(table, 1u << header->probability_bits) ? TRF_OK : TRF_ERR_TABLE) ||
        (mode % 4 == 1 && status != TRF_OK))
        abort();
    if (status == TRF_OK)
        decode_by_all(&view, blob);
    free(blob);
    return 0;
}
