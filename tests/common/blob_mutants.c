/* SPDX-License-Identifier: Apache-2.0 */
#include "blob_mutants.h"

#include "expect.h"
#include "trf_decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OTHER_VALUES = 255,
    ADDED_BYTES = 3, /* a 0, a 0xFF, a copy */
};

/* ---- a blob and its structure ---- */

void *blob_of_golden(const char *name, uint64_t *bytes) {
    char path[512];
    void *blob;
    snprintf(path, sizeof path, "%s/golden/%s.trf", TRF_TEST_DATA_DIR, name);
    FILE *file = fopen(path, "rb");
    if (!file)
        ck_abort_msg("%s cannot be read", path);
    fseek(file, 0, SEEK_END);
    *bytes = (uint64_t)ftell(file);
    rewind(file);
    EXPECT(posix_memalign(&blob, TRF_TILE_ALIGNMENT, *bytes) == 0);
    EXPECT(fread(blob, 1, *bytes, file) == *bytes);
    fclose(file);
    return blob;
}

static void add_range(blob_mutants *m, uint64_t begin, uint64_t end) {
    if (m->num_structure % 64 == 0) {
        m->structure = realloc(m->structure, (m->num_structure + 64) * sizeof *m->structure);
        EXPECT(m->structure != NULL);
    }
    m->structure[m->num_structure++] = (blob_range){begin, end};
}

static void find_structure(blob_mutants *m) {
    const trf_blob_view *view = &m->view;
    add_range(m, 0, view->extension.data_offset);
    for (uint64_t t = 0; t < view->num_tiles; t++) {
        const trf_tile_meta *meta = &view->tiles[t];
        const trf_tile_shape shape = trf_tile_shape_of(&view->header, t, meta->coding);
        const trf_tile_sections sections = trf_find_tile_sections(&shape, view->header.raw_bits);
        const uint8_t *tile = m->blob + meta->data_offset;
        if (shape.num_slabs)
            add_range(m, meta->data_offset + sections.slab_table, meta->data_offset + sections.rans_streams);
        for (uint32_t s = 0; s < shape.num_slabs; s++) {
            const trf_slab_location at = trf_locate_slab(&shape, tile, s, view->header.raw_bits);
            const uint64_t begin = meta->data_offset + at.rans_streams;
            add_range(m, begin,
                      begin + TRF_RANS_FIXED_BYTES + 4 * (uint64_t)trf_rans_exception_count(tile + at.rans_streams));
        }
    }
}

blob_mutants blob_mutants_of(const void *blob, uint64_t bytes, const void *other, uint64_t other_bytes) {
    blob_mutants m = {.blob = blob, .other = other, .bytes = bytes, .room = bytes + 1};
    EXPECT(trf_blob_validate(blob, bytes, &m.view, NULL) == TRF_OK);
    if (other) {
        EXPECT(trf_blob_validate(other, other_bytes, &m.other_view, NULL) == TRF_OK);
        m.room += TRF_MAX_TILE_BYTES;
    }
    find_structure(&m);
    return m;
}

void blob_mutants_free(blob_mutants *m) {
    free(m->structure);
    m->structure = NULL;
}

/* ---- numbers ---- */

uint64_t blob_mutants_count(const blob_mutants *m, blob_mutant_kind kind) {
    const uint64_t tiles = m->view.num_tiles;
    switch (kind) {
    case BLOB_MUTANT_SET_BYTE:
        return m->bytes * OTHER_VALUES;
    case BLOB_MUTANT_FLIP_BIT:
        return m->bytes * 8;
    case BLOB_MUTANT_ADD_BYTE:
        return (m->bytes + 1) * ADDED_BYTES;
    case BLOB_MUTANT_TRUNCATE:
    case BLOB_MUTANT_REMOVE_BYTE:
        return m->bytes;
    case BLOB_MUTANT_FOREIGN_DATA:
    case BLOB_MUTANT_FOREIGN_TILE:
        return m->other ? tiles * m->other_view.num_tiles : 0;
    default:
        return tiles * (tiles - 1) / 2;
    }
}

/* The mutant of a byte whose last part is the byte's offset. */
static blob_mutant byte_mutant(const blob_mutants *m, blob_mutant_kind kind, uint64_t at, uint64_t number) {
    if (kind == BLOB_MUTANT_SET_BYTE)
        return (blob_mutant){kind, at, (uint8_t)(m->blob[at] + 1 + number)};
    return (blob_mutant){kind, at, number};
}

/* Pair `number` of tiles first < second, in the order of the second. */
static blob_mutant pair_mutant(blob_mutant_kind kind, uint64_t number) {
    uint64_t second = 1;
    while (number >= second)
        number -= second++;
    return (blob_mutant){kind, number, second};
}

/* How many mutants of a kind a byte has. */
static uint64_t mutants_of_byte(blob_mutant_kind kind) {
    return kind == BLOB_MUTANT_SET_BYTE   ? OTHER_VALUES
           : kind == BLOB_MUTANT_FLIP_BIT ? 8
           : kind == BLOB_MUTANT_ADD_BYTE ? ADDED_BYTES
                                          : 1;
}

blob_mutant blob_mutants_at(const blob_mutants *m, blob_mutant_kind kind, uint64_t number) {
    const uint64_t each = kind <= BLOB_MUTANT_REMOVE_BYTE ? mutants_of_byte(kind) : 1;
    if (kind <= BLOB_MUTANT_REMOVE_BYTE)
        return byte_mutant(m, kind, number / each, number % each);
    if (kind <= BLOB_MUTANT_SWAP_TILES)
        return pair_mutant(kind, number);
    return (blob_mutant){kind, number / m->other_view.num_tiles, number % m->other_view.num_tiles};
}

/* ---- a sample ---- */

static uint64_t below(test_rng *rng, uint64_t bound) { return test_random(rng) % bound; }

/* Draws the offset of a byte: any one, one of the head, one behind the frequencies, where tiles' metadata begin, or one
 * of the structure. */
static uint64_t draw_offset(const blob_mutants *m, test_rng *rng) {
    const uint64_t data = m->view.extension.data_offset;
    blob_range range = {0, m->bytes};
    switch (test_below(rng, 6)) {
    case 0:
        range.end = data;
        break;
    case 1:
        range = (blob_range){TRF_TILES_OFFSET, data};
        break;
    case 2:
    case 3:
        range = m->structure[below(rng, m->num_structure)];
        break;
    }
    return range.begin + below(rng, range.end - range.begin);
}

blob_mutant blob_mutants_draw(const blob_mutants *m, test_rng *rng) {
    static const uint32_t shares[BLOB_MUTANT_KINDS] = {36, 24, 8, 6, 6, 4, 4, 4, 4, 4}; /* of 100 */
    blob_mutant_kind kind;
    do {
        uint32_t share = test_below(rng, 100);
        for (kind = 0; share >= shares[kind]; kind++)
            share -= shares[kind];
    } while (blob_mutants_count(m, kind) == 0);
    if (kind > BLOB_MUTANT_REMOVE_BYTE)
        return blob_mutants_at(m, kind, below(rng, blob_mutants_count(m, kind)));
    const uint64_t at = draw_offset(m, rng);
    return byte_mutant(m, kind, at, below(rng, mutants_of_byte(kind)));
}

/* ---- making mutants ---- */

static trf_tile_meta meta_of(const trf_blob_view *view, uint64_t tile) {
    trf_tile_meta meta;
    memcpy(&meta, &view->tiles[tile], sizeof meta);
    return meta;
}

static void put_meta(uint8_t *blob, uint64_t tile, const trf_tile_meta *meta) {
    memcpy(blob + TRF_TILES_OFFSET + tile * sizeof *meta, meta, sizeof *meta);
}

static void put_blob_bytes(uint8_t *blob, uint64_t bytes) {
    memcpy(blob + offsetof(trf_header, blob_bytes), &bytes, sizeof bytes);
}

static uint64_t insert_byte(const blob_mutants *m, uint64_t at, uint64_t which, uint8_t *to) {
    memcpy(to, m->blob, at);
    to[at] = which == 0 ? 0 : which == 1 || at == 0 ? 0xFF : m->blob[at - 1];
    memcpy(to + at + 1, m->blob + at, m->bytes - at);
    return m->bytes + 1;
}

static uint64_t remove_byte(const blob_mutants *m, uint64_t at, uint8_t *to) {
    memcpy(to, m->blob, at);
    memcpy(to + at, m->blob + at + 1, m->bytes - at - 1);
    return m->bytes - 1;
}

/* Which tile's data are to lie in the place of a tile. from: the blob that has them. */
typedef struct tile_source {
    const uint8_t *from;
    trf_tile_meta meta;
} tile_source;

static tile_source source_of(const blob_mutants *m, const blob_mutant *mutant, uint64_t tile) {
    const int is_foreign = mutant->kind >= BLOB_MUTANT_FOREIGN_DATA;
    if (is_foreign && tile == mutant->at)
        return (tile_source){m->other, meta_of(&m->other_view, mutant->with)};
    if (!is_foreign && tile == mutant->at)
        tile = mutant->with;
    else if (!is_foreign && tile == mutant->with)
        tile = mutant->at;
    return (tile_source){m->blob, meta_of(&m->view, tile)};
}

/* Lays all tiles out anew. is_told: whether the metadata say so. */
static uint64_t move_tiles(const blob_mutants *m, const blob_mutant *mutant, int is_told, uint8_t *to) {
    uint64_t at = m->view.extension.data_offset;
    memcpy(to, m->blob, at);
    for (uint64_t t = 0; t < m->view.num_tiles; t++) {
        const tile_source source = source_of(m, mutant, t);
        trf_tile_meta meta = source.meta;
        memcpy(to + at, source.from + meta.data_offset, meta.data_size);
        meta.data_offset = at;
        if (is_told)
            put_meta(to, t, &meta);
        at += meta.data_size;
    }
    if (is_told)
        put_blob_bytes(to, at);
    return at;
}

static uint64_t swap_metadata(const blob_mutants *m, const blob_mutant *mutant, uint8_t *to) {
    const trf_tile_meta first = meta_of(&m->view, mutant->at), second = meta_of(&m->view, mutant->with);
    memcpy(to, m->blob, m->bytes);
    put_meta(to, mutant->at, &second);
    put_meta(to, mutant->with, &first);
    return m->bytes;
}

uint64_t blob_mutant_make(const blob_mutants *m, const blob_mutant *mutant, uint8_t *to) {
    switch (mutant->kind) {
    case BLOB_MUTANT_TRUNCATE:
        memcpy(to, m->blob, mutant->at);
        return mutant->at;
    case BLOB_MUTANT_ADD_BYTE:
        return insert_byte(m, mutant->at, mutant->with, to);
    case BLOB_MUTANT_REMOVE_BYTE:
        return remove_byte(m, mutant->at, to);
    case BLOB_MUTANT_SWAP_METADATA:
        return swap_metadata(m, mutant, to);
    case BLOB_MUTANT_SET_BYTE:
    case BLOB_MUTANT_FLIP_BIT:
        memcpy(to, m->blob, m->bytes);
        if (mutant->kind == BLOB_MUTANT_SET_BYTE)
            to[mutant->at] = (uint8_t)mutant->with;
        else
            to[mutant->at] ^= (uint8_t)(1u << mutant->with);
        return m->bytes;
    default:
        return move_tiles(m, mutant, mutant->kind == BLOB_MUTANT_SWAP_TILES || mutant->kind == BLOB_MUTANT_FOREIGN_TILE,
                          to);
    }
}

/* ---- forging ---- */

void blob_mutant_forge(uint8_t *blob, uint64_t bytes) {
    uint64_t head_bytes;
    trf_header header;
    trf_tile_meta meta;
    if (bytes < TRF_FREQUENCY_OFFSET)
        return;
    put_blob_bytes(blob, bytes);
    if (trf_blob_head_bytes(blob, bytes, bytes, &head_bytes, NULL) != TRF_OK || head_bytes > bytes)
        return;
    memcpy(&header, blob, sizeof header);
    const uint64_t tiles = (uint64_t)header.num_tile_rows * header.num_tile_cols;
    for (uint64_t t = 0; t < tiles; t++) {
        memcpy(&meta, blob + TRF_TILES_OFFSET + t * sizeof meta, sizeof meta);
        if (t + 1 == tiles && meta.data_offset < bytes && bytes - meta.data_offset <= UINT32_MAX)
            meta.data_size = (uint32_t)(bytes - meta.data_offset);
        if (meta.data_offset <= bytes && meta.data_size <= bytes - meta.data_offset)
            meta.checksum = trf_tile_checksum(blob + meta.data_offset, meta.data_size, t);
        put_meta(blob, t, &meta);
    }
    header.head_checksum = trf_head_checksum(blob, head_bytes);
    memcpy(blob, &header, sizeof header);
}

void blob_mutant_name(const blob_mutant *mutant, char name[96]) {
    static const char *const texts[BLOB_MUTANT_KINDS] = {"byte set",
                                                         "bit flipped",
                                                         "truncated",
                                                         "byte added",
                                                         "byte removed",
                                                         "data of tiles swapped",
                                                         "metadata of tiles swapped",
                                                         "tiles swapped",
                                                         "data of a foreign tile",
                                                         "foreign tile"};
    snprintf(name, 96, "%s: %llu, %llu", texts[mutant->kind], (unsigned long long)mutant->at,
             (unsigned long long)mutant->with);
}
