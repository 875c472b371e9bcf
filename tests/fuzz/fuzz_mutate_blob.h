/* SPDX-License-Identifier: Apache-2.0 */
/* Mutations that know what a blob is made of, for libFuzzer: a field of the head, slots that move from one symbol to
 * another, a lane's start state, words that one lane pair gives to another, an exception. Checksums are made right
 * again. Half of the mutations are libFuzzer's own. */
#ifndef FUZZ_MUTATE_BLOB_H
#define FUZZ_MUTATE_BLOB_H

#include "fuzz_checksums.h"

#include <stdlib.h>
#include <string.h>

/* libFuzzer's own mutations; only fuzzers have them. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size) __attribute__((weak));
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

/* A blob whose head is sound so far that its tiles can be found; and a source of random numbers. */
typedef struct fuzz_mutation {
    uint8_t *blob; /* 16-byte aligned */
    size_t size;
    uint64_t head_bytes;
    uint64_t random;
} fuzz_mutation;

/* @return a random number below n, which is not 0 (xorshift64*, Marsaglia 2003 and Vigna 2016). */
static uint64_t fuzz_below(fuzz_mutation *m, uint64_t n) {
    m->random ^= m->random >> 12;
    m->random ^= m->random << 25;
    m->random ^= m->random >> 27;
    return (m->random * 0x2545F4914F6CDD1D >> 16) % n;
}

/* Changes an integer of 1, 2, 4 or 8 bytes a little, or to a value at an end of some range. */
static void fuzz_change_integer(fuzz_mutation *m, uint8_t *at, uint32_t bytes) {
    static const uint64_t ends[] = {0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, UINT64_MAX};
    uint64_t value = 0;
    memcpy(&value, at, bytes);
    switch (fuzz_below(m, 4)) {
    case 0:
        value ^= 1ull << fuzz_below(m, 8 * bytes);
        break;
    case 1:
        value = ends[fuzz_below(m, sizeof ends / sizeof *ends)];
        break;
    case 2:
        value += 1 + fuzz_below(m, 16);
        break;
    default:
        value -= 1 + fuzz_below(m, 16);
    }
    memcpy(at, &value, bytes);
}

/* Some field of header or extension: fields are aligned. */
static void fuzz_change_head(fuzz_mutation *m) {
    const uint32_t bytes = 1u << fuzz_below(m, 4);
    fuzz_change_integer(m, m->blob + fuzz_below(m, TRF_FREQUENCY_OFFSET / bytes) * bytes, bytes);
}

/* Moves slots from one symbol to another, so that the sum stays. */
static void fuzz_move_slots(fuzz_mutation *m) {
    uint16_t *frequency = (uint16_t *)(m->blob + TRF_FREQUENCY_OFFSET);
    const uint64_t begin = fuzz_below(m, TRF_ALPHABET), to = fuzz_below(m, TRF_ALPHABET);
    for (uint32_t i = 0; i < TRF_ALPHABET; i++) {
        const uint64_t from = (begin + i) % TRF_ALPHABET;
        if (from == to || frequency[from] == 0)
            continue;
        const uint16_t moved = (uint16_t)(1 + fuzz_below(m, frequency[from]));
        frequency[from] = (uint16_t)(frequency[from] - moved);
        frequency[to] = (uint16_t)(frequency[to] + moved);
        return;
    }
}

/* A byte of what follows the frequency table in the head: tiles' metadata, scales, offsets of rows and columns. */
static void fuzz_change_tables(fuzz_mutation *m) {
    if (m->head_bytes > TRF_TILES_OFFSET)
        fuzz_change_integer(m, m->blob + TRF_TILES_OFFSET + fuzz_below(m, m->head_bytes - TRF_TILES_OFFSET), 1);
}

/* One field of a slab's rANS streams; streams: their bytes, which are as many as they say. */
static void fuzz_change_streams(fuzz_mutation *m, uint8_t *streams, uint32_t bytes) {
    const uint32_t exceptions = trf_rans_exception_count(streams);
    uint8_t *pair_words = streams + TRF_STATES_BYTES;
    switch (fuzz_below(m, 6)) {
    case 0:
        fuzz_change_integer(m, streams + 2 * fuzz_below(m, TRF_LANES), 2);
        break;
    case 1: { /* words of one lane pair become another's */
        uint8_t *from = pair_words + fuzz_below(m, TRF_LANE_PAIRS), *to = pair_words + fuzz_below(m, TRF_LANE_PAIRS);
        const uint8_t moved = (uint8_t)(*from && *to < UINT8_MAX);
        *from = (uint8_t)(*from - moved);
        *to = (uint8_t)(*to + moved);
        break;
    }
    case 2:
        fuzz_change_integer(m, pair_words + fuzz_below(m, TRF_LANE_PAIRS), 1);
        break;
    case 3:
        fuzz_change_integer(m, streams + TRF_RANS_EXCEPTION_COUNT_OFFSET, 2);
        break;
    case 4:
        if (exceptions > 0)
            fuzz_change_integer(m, streams + TRF_RANS_FIXED_BYTES + 4 * fuzz_below(m, exceptions), 4);
        break;
    default:
        fuzz_change_integer(m, streams + fuzz_below(m, bytes / 2) * 2, 2);
    }
}

/* A field of a tile's data; tile: sound until now, or its bytes change at random. */
static void fuzz_change_tile(fuzz_mutation *m) {
    trf_blob_view view;
    if (trf_blob_open(m->blob, m->size, m->size, &view, NULL) != TRF_OK)
        return fuzz_change_head(m);
    const uint64_t t = fuzz_below(m, view.num_tiles);
    const trf_tile_meta *meta = &view.tiles[t];
    uint8_t *tile = m->blob + meta->data_offset;
    const trf_tile_shape shape = trf_tile_shape_of(&view.header, t, meta->coding);
    if (meta->data_offset > m->size || meta->data_size > m->size - meta->data_offset || meta->data_size == 0)
        return;
    if (shape.num_slabs == 0 || fuzz_below(m, 4) == 0 || trf_blob_check_tile(&view, t, tile, NULL) != TRF_OK)
        return fuzz_change_integer(m, tile + fuzz_below(m, meta->data_size), 1);
    const uint32_t slab = (uint32_t)fuzz_below(m, shape.num_slabs);
    const trf_tile_sections sections = trf_find_tile_sections(&shape, view.header.raw_bits);
    const trf_slab_location location = trf_locate_slab(&shape, tile, slab, view.header.raw_bits);
    if (fuzz_below(m, 8) == 0)
        return fuzz_change_integer(m, tile + sections.slab_table + 2 * slab, 2);
    fuzz_change_streams(m, tile + location.rans_streams, location.end - location.rans_streams);
}

/* Swaps the data of two tiles of one size. The metadata are copied: they may lie in the data that they point to. */
static void fuzz_swap_tiles(fuzz_mutation *m) {
    const trf_header *header = (const trf_header *)m->blob;
    const trf_tile_meta *metas = (const trf_tile_meta *)(m->blob + TRF_TILES_OFFSET);
    const uint64_t tiles = (uint64_t)header->num_tile_rows * header->num_tile_cols;
    const trf_tile_meta a = metas[fuzz_below(m, tiles)], b = metas[fuzz_below(m, tiles)];
    if (a.data_size != b.data_size || a.data_offset > m->size || b.data_offset > m->size ||
        a.data_size > m->size - a.data_offset || b.data_size > m->size - b.data_offset)
        return;
    for (uint64_t i = 0; i < a.data_size; i++) {
        const uint8_t byte = m->blob[a.data_offset + i];
        m->blob[a.data_offset + i] = m->blob[b.data_offset + i];
        m->blob[b.data_offset + i] = byte;
    }
}

/* Mutates a blob in place. @return 0, and nothing is done, if it does not begin as a blob does. blob: 16-byte
 * aligned. */
static inline int fuzz_mutate_blob(uint8_t *blob, size_t size, unsigned int seed) {
    static void (*const mutations[])(fuzz_mutation *) = {fuzz_change_head,   fuzz_move_slots,  fuzz_change_tables,
                                                         fuzz_change_tables, fuzz_change_tile, fuzz_change_tile,
                                                         fuzz_change_tile,   fuzz_swap_tiles};
    fuzz_mutation m = {.blob = blob, .size = size, .random = seed * 0x9E3779B97F4A7C15 + 1};
    if (trf_blob_head_bytes(blob, size, size, &m.head_bytes, NULL) != TRF_OK || m.head_bytes > size)
        return 0;
    for (uint64_t times = 1 + fuzz_below(&m, 4); times > 0; times--) {
        fuzz_mend_checksums(blob, size);
        if (trf_blob_head_bytes(blob, size, size, &m.head_bytes, NULL) != TRF_OK || m.head_bytes > size)
            break;
        mutations[fuzz_below(&m, sizeof mutations / sizeof *mutations)](&m);
    }
    fuzz_mend_checksums(blob, size);
    return 1;
}

/* A custom mutator for targets whose input is a blob. */
static inline size_t fuzz_mutate_blob_input(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    void *blob;
    int mutated = 0;
    if (seed % 2 && posix_memalign(&blob, TRF_TILE_ALIGNMENT, size ? size : 1) == 0) {
        memcpy(blob, data, size);
        mutated = fuzz_mutate_blob(blob, size, seed / 2);
        memcpy(data, blob, size);
        free(blob);
    }
    return mutated || !LLVMFuzzerMutate ? size : LLVMFuzzerMutate(data, size, max_size);
}

#endif
