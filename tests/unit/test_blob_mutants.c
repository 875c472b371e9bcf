/* SPDX-License-Identifier: Apache-2.0 */
/* Mutants of sound blobs. As they are the validator refuses every one of them, but those that are the blob itself. With
 * sizes and checksums forged it refuses them, decoding finds them, or they decode to some weights: nobody who does not
 * know the source can tell that these are not the right ones. Mutants that decode to the intact weights change only
 * what the format says is of no account (may_not_matter). Blobs lie in memory of exactly their size, for sanitizers.
 *
 * A sample is tried. TRF_MUTANTS_ALL=1 in the environment tries all: of small blobs of each codec every byte set to
 * every value; of larger ones every bit; and every length, added or removed byte, swap and foreign tile. The last lines
 * then say what came of them. TRF_MUTANT_PART (coded_mutants.h) shares the files out among processes. */
#include "common/blob_mutants.h"
#include "common/coded_mutants.h"
#include "common/expect.h"
#include "common/run_suite.h"
#include "transfuse.h"
#include "trf_decode.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SAMPLE = 400 /* mutants of a blob */
};

/* Files of which every byte is set to every value. The others are of several tiles. */
static const char *const kFiles[] = {"bf16_1x1",
                                     "fp16_1x1",
                                     "e4m3_1x1",
                                     "e5m2_1x1",
                                     "int_i8_1x1",
                                     "scaled_fp8_1x1",
                                     "bf16_16x16",
                                     "bf16_pairs_one_step",
                                     "bf16_quads_one_step",
                                     "fp16_pairs_one_step",
                                     "fp16_quads_one_step",
                                     "e4m3_pairs_one_step",
                                     "e4m3_quads_one_step",
                                     "e5m2_pairs_one_step",
                                     "e5m2_16x16_quads",
                                     "int_pairs_r7_one_step",
                                     "int_quads_r0_scale_block16_f16",
                                     "e4m3_1x1300_stored",
                                     "e5m2_layer_offset_only",
                                     "bf16_extreme_offsets",
                                     "scaled_fp8_tensor_pairs",
                                     "fp16_257x33",
                                     "e4m3_20x1040_stored_amid_coded",
                                     "int_quads_slabs128_50x407",
                                     "bf16_slabs128_modes_0123_and_stored",
                                     "e5m2_272x273_grid",
                                     "scaled_fp8_block128_pairs"};
enum {
    SMALL_FILES = 21, /* the first ones */
    FILES = sizeof kFiles / sizeof kFiles[0]
};

/* ---- what a byte is ---- */

typedef enum part {
    PART_HEADER,
    PART_STATE_BITS,
    PART_STORED_BYTES,
    PART_GRANULARITY,
    PART_CLASS_LIST,
    PART_EXPONENT_OFFSET,
    PART_EXTENSION,
    PART_FREQUENCIES,
    PART_METADATA,
    PART_SCALES,
    PART_OFFSETS,
    PART_HEAD_GAPS,
    PART_RAW_BITS,
    PART_SLAB_TABLE,
    PART_STATES,
    PART_COUNTS,
    PART_EXCEPTIONS,
    PART_WORDS,
    PART_WORDS_BESIDE_EXCEPTIONS,
    PART_STORED,
    PARTS
} part;

static const char *const kPartNames[PARTS] = {"header",
                                              "state bits",
                                              "bytes of stored elements",
                                              "granularity",
                                              "class list",
                                              "layer's exponent offset",
                                              "rest of the extension",
                                              "frequencies",
                                              "metadata",
                                              "scales",
                                              "exponent offsets of rows and columns",
                                              "gaps of the head",
                                              "raw bits",
                                              "slab table",
                                              "start states",
                                              "counts of words and exceptions",
                                              "exceptions",
                                              "rANS words",
                                              "rANS words beside exceptions",
                                              "slivers, stored tiles and padding"};

/* Whether a byte may decode to the same weights when it has changed: it holds what no weight needs, such as classes and
 * slots of symbols that do not occur, scales and offsets of weights that are all exceptions or stored, raw bits in the
 * place of an exception, a word by which just the symbol in such a place becomes another, and the bits of states if no
 * tile is coded; or says the same in another way: a stored code in one byte or two of which the second is padding, a
 * single scale as that of the tensor or of a row; or is a code whose product with its scale is rounded. */
static int may_not_matter(const trf_layer_info *info, part p) {
    const int is_rounded = info->codec == TRF_CODEC_INT && info->granularity != TRF_GRANULARITY_NONE,
              is_stored = info->stored_tiles == info->tiles;
    return p == PART_CLASS_LIST || p == PART_EXPONENT_OFFSET || p == PART_FREQUENCIES || p == PART_SCALES ||
           p == PART_OFFSETS || p == PART_RAW_BITS || p == PART_WORDS_BESIDE_EXCEPTIONS ||
           (is_rounded && p > PART_RAW_BITS) || (is_stored && p == PART_STATE_BITS) ||
           (info->codec == TRF_CODEC_INT && p == PART_STORED_BYTES) ||
           (info->granularity != TRF_GRANULARITY_NONE && p == PART_GRANULARITY);
}

static part part_of_head(const trf_blob_view *view, uint64_t at) {
    const trf_extension *x = &view->extension;
    if (at < TRF_EXTENSION_OFFSET)
        return at == offsetof(trf_header, state_bits)             ? PART_STATE_BITS
               : at == offsetof(trf_header, stored_element_bytes) ? PART_STORED_BYTES
                                                                  : PART_HEADER;
    if (at < TRF_FREQUENCY_OFFSET) {
        const uint64_t in = at - TRF_EXTENSION_OFFSET;
        return in < sizeof x->class_value                   ? PART_CLASS_LIST
               : in < offsetof(trf_extension, granularity)  ? PART_EXPONENT_OFFSET
               : in == offsetof(trf_extension, granularity) ? PART_GRANULARITY
                                                            : PART_EXTENSION;
    }
    if (at < TRF_TILES_OFFSET)
        return PART_FREQUENCIES;
    if (at < TRF_TILES_OFFSET + view->num_tiles * sizeof(trf_tile_meta))
        return PART_METADATA;
    if (at - x->scales_offset < x->scales_bytes)
        return PART_SCALES;
    if (at - x->row_offsets_offset < x->row_offsets_bytes || at - x->col_offsets_offset < x->col_offsets_bytes)
        return PART_OFFSETS;
    return PART_HEAD_GAPS;
}

static part part_of_slab(const uint8_t *rans_streams, uint64_t at) {
    if (at < TRF_STATES_BYTES)
        return PART_STATES;
    if (at < TRF_RANS_FIXED_BYTES)
        return PART_COUNTS;
    const uint64_t exceptions = trf_rans_exception_count(rans_streams);
    if (at < TRF_RANS_FIXED_BYTES + 4 * exceptions)
        return PART_EXCEPTIONS;
    return exceptions ? PART_WORDS_BESIDE_EXCEPTIONS : PART_WORDS;
}

/* at: below the blob's bytes. */
static part part_of(const blob_mutants *m, uint64_t at) {
    const trf_blob_view *view = &m->view;
    uint64_t t = 0;
    if (at < view->extension.data_offset)
        return part_of_head(view, at);
    while (at - view->tiles[t].data_offset >= view->tiles[t].data_size)
        t++;
    const trf_tile_shape shape = trf_tile_shape_of(&view->header, t, view->tiles[t].coding);
    const trf_tile_sections sections = trf_find_tile_sections(&shape, view->header.raw_bits);
    const uint8_t *tile = m->blob + view->tiles[t].data_offset;
    const uint64_t in = at - view->tiles[t].data_offset;
    if (in < sections.slab_table)
        return PART_RAW_BITS;
    if (in < sections.rans_streams)
        return PART_SLAB_TABLE;
    for (uint32_t s = 0; s < shape.num_slabs; s++) {
        const trf_slab_location slab = trf_locate_slab(&shape, tile, s, view->header.raw_bits);
        if (in < slab.end)
            return part_of_slab(tile + slab.rans_streams, in - slab.rans_streams);
    }
    return PART_STORED;
}

/* ---- what becomes of a mutant ---- */

typedef enum outcome {
    REFUSED,   /* by the validator */
    FOUND,     /* by decoding: it ends in a wrong state */
    DIFFERENT, /* it decodes to other weights, or to another type or shape */
    THE_SAME,  /* it decodes to the intact weights */
    OUTCOMES
} outcome;

/* A blob, its mutants, and its weights. */
typedef struct bench {
    const char *name;
    uint8_t *blob, *bytes;
    blob_mutants mutants;
    trf_layer_info info;
    uint8_t *weights;
} bench;

static uint64_t counts[2][OUTCOMES]; /* of mutants that are not forged, and of forged ones */
static uint64_t same_parts[PARTS];   /* forged ones that decode to the same weights, by the byte's part */
static uint64_t num_mended;          /* forged ones that are the blob itself */

static uint64_t weight_bytes_of(const trf_layer_info *info) {
    return trf_dtype_bytes(info->dtype) * (uint64_t)info->rows * info->cols;
}

static void *allocate(uint64_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    EXPECT(memory != NULL);
    return memory;
}

/* Decodes a layer. @return NULL if decoding finds it corrupt. */
static uint8_t *decode(const trf_layer *layer, trf_layer_info *info, const char *what) {
    trf_layer_get_info(layer, info);
    const uint64_t bytes = weight_bytes_of(info);
    uint8_t *weights = allocate(bytes);
    const trf_status status = trf_layer_decode(layer, weights, bytes, 1, NULL);
    ck_assert_msg(status == TRF_OK || status == TRF_ERR_RANS, "%s: %s", what, trf_status_name(status));
    if (status == TRF_OK)
        return weights;
    free(weights);
    return NULL;
}

/* blob: of exactly so many bytes. */
static outcome outcome_of(const bench *b, const uint8_t *blob, uint64_t bytes, const char *what) {
    trf_layer *layer;
    trf_layer_info info;
    if (trf_layer_from_memory(blob, bytes, &layer, NULL) != TRF_OK)
        return REFUSED;
    uint8_t *weights = decode(layer, &info, what);
    trf_layer_free(layer);
    if (!weights)
        return FOUND;
    const int is_same = info.dtype == b->info.dtype && info.rows == b->info.rows && info.cols == b->info.cols &&
                        memcmp(weights, b->weights, weight_bytes_of(&info)) == 0;
    free(weights);
    return is_same ? THE_SAME : DIFFERENT;
}

/* Expects that the decoders agree on each tile of a blob that the validator takes. */
static void compare_decoders(const uint8_t *blob, uint64_t bytes, const char *what) {
    trf_blob_view view;
    if (trf_blob_validate(blob, bytes, &view, NULL) != TRF_OK)
        return;
    trf_decode_table *table = allocate(sizeof *table);
    uint16_t *elements[2] = {allocate(2 * TRF_TILE_SIZE * TRF_TILE_SIZE), allocate(2 * TRF_TILE_SIZE * TRF_TILE_SIZE)};
    trf_decode_table_init(table, &view);
    for (uint64_t t = 0; t < view.num_tiles; t++) {
        const trf_tile_shape shape = trf_tile_shape_of(&view.header, t, view.tiles[t].coding);
        const uint8_t *tile = blob + view.tiles[t].data_offset;
        const trf_status expected = trf_decode_tile_ref(&view, table, t, tile, elements[0], shape.cols, NULL),
                         found = trf_decode_tile_best()(&view, table, t, tile, elements[1], shape.cols, NULL);
        ck_assert_msg(expected == found, "%s: tile %u: %s and %s", what, (unsigned)t, trf_status_name(expected),
                      trf_status_name(found));
        if (expected == TRF_OK)
            ck_assert_msg(memcmp(elements[0], elements[1], 2 * (size_t)shape.rows * shape.cols) == 0,
                          "%s: decoders differ in tile %u", what, (unsigned)t);
    }
    free(table);
    free(elements[0]);
    free(elements[1]);
}

/* Copies the bytes at hand to memory of their size, and tries them. */
static outcome try_bytes(const bench *b, uint64_t bytes, int compare, const char *what) {
    void *blob;
    EXPECT(posix_memalign(&blob, TRF_ALIGNMENT, bytes ? bytes : 1) == 0);
    memcpy(blob, b->bytes, bytes);
    const outcome found = outcome_of(b, blob, bytes, what);
    if (compare)
        compare_decoders(blob, bytes, what);
    free(blob);
    return found;
}

static void try_mutant(bench *b, const blob_mutant *mutant, int compare) {
    const int is_byte = mutant->kind == BLOB_MUTANT_SET_BYTE || mutant->kind == BLOB_MUTANT_FLIP_BIT;
    char name[96], what[192];
    uint64_t bytes = blob_mutant_make(&b->mutants, mutant, b->bytes);
    const int is_intact = bytes == b->mutants.bytes && memcmp(b->bytes, b->blob, bytes) == 0;
    blob_mutant_name(mutant, name);
    snprintf(what, sizeof what, "%s, %s", b->name, name);
    const outcome found = try_bytes(b, bytes, 0, what);
    ck_assert_msg(found == (is_intact ? THE_SAME : REFUSED), "%s: is not refused", what);
    counts[0][found]++;
    blob_mutant_forge(b->bytes, bytes);
    const int is_mended = bytes == b->mutants.bytes && memcmp(b->bytes, b->blob, bytes) == 0;
    const outcome forged = try_bytes(b, bytes, compare, what);
    counts[1][forged]++;
    num_mended += is_mended;
    if (forged != THE_SAME || is_mended)
        return;
    if (!is_byte) /* tiles with the same weights, such as a foreign one that is the blob's own */
        ck_assert_msg(mutant->kind >= BLOB_MUTANT_SWAP_DATA, "%s: decodes to the same weights", what);
    else {
        const part p = part_of(&b->mutants, mutant->at);
        same_parts[p]++;
        ck_assert_msg(may_not_matter(&b->info, p), "%s: in the %s, and decodes to the same weights", what,
                      kPartNames[p]);
    }
}

/* ---- tests ---- */

static bench make_bench(int file) {
    bench b = {.name = kFiles[file]};
    uint64_t bytes;
    trf_layer *layer;
    b.blob = blob_of_golden(b.name, &bytes);
    b.mutants = blob_mutants_of(b.blob, bytes, b.blob, bytes);
    void *room;
    EXPECT(posix_memalign(&room, TRF_ALIGNMENT, b.mutants.room) == 0);
    b.bytes = room;
    EXPECT(trf_layer_from_memory(b.blob, bytes, &layer, NULL) == TRF_OK);
    b.weights = decode(layer, &b.info, b.name);
    EXPECT(b.weights != NULL);
    trf_layer_free(layer);
    return b;
}

static void free_bench(bench *b) {
    blob_mutants_free(&b->mutants);
    free(b->blob);
    free(b->bytes);
    free(b->weights);
}

static void try_all(bench *b, int is_small) {
    for (int k = 0; k < BLOB_MUTANT_KINDS; k++) {
        const blob_mutant_kind kind = (blob_mutant_kind)k;
        const uint64_t count = blob_mutants_count(&b->mutants, kind);
        for (uint64_t i = 0; i < count && (is_small || kind != BLOB_MUTANT_SET_BYTE); i++) {
            const blob_mutant mutant = blob_mutants_at(&b->mutants, kind, i);
            try_mutant(b, &mutant, 0);
        }
    }
}

static void print_counts(const char *name) {
    printf("%s: %llu mutants: %llu refused, %llu intact; forged: %llu refused, %llu found by decoding, %llu other "
           "weights, %llu the same ones (%llu are undone by forging):",
           name, (unsigned long long)(counts[0][REFUSED] + counts[0][THE_SAME]), (unsigned long long)counts[0][REFUSED],
           (unsigned long long)counts[0][THE_SAME], (unsigned long long)counts[1][REFUSED],
           (unsigned long long)counts[1][FOUND], (unsigned long long)counts[1][DIFFERENT],
           (unsigned long long)counts[1][THE_SAME], (unsigned long long)num_mended);
    for (int p = 0; p < PARTS; p++)
        if (same_parts[p])
            printf(" %llu in %s", (unsigned long long)same_parts[p], kPartNames[p]);
    printf("\n");
    fflush(stdout);
}

/* loop: files. Each runs in a process of its own, unless CK_FORK is no. */
START_TEST(mutants_are_found) {
    const char *all = getenv("TRF_MUTANTS_ALL");
    test_rng rng = {mutants_number("TRF_MUTANT_SEED", 1) * 1000 + (uint64_t)_i};
    if (!mutants_has_part(_i))
        return;
    bench b = make_bench(_i);
    memset(counts, 0, sizeof counts);
    memset(same_parts, 0, sizeof same_parts);
    num_mended = 0;
    if (all && *all == '1') {
        try_all(&b, _i < SMALL_FILES);
        print_counts(b.name);
    }
    for (int i = 0; i < test_rounds(SAMPLE); i++) {
        const blob_mutant mutant = blob_mutants_draw(&b.mutants, &rng);
        try_mutant(&b, &mutant, 1);
    }
    free_bench(&b);
}
END_TEST

/* Every number of a kind is another mutant, and none is the intact blob. */
START_TEST(numbers_are_mutants) {
    bench b = make_bench(0);
    uint64_t bytes_set = 0;
    for (uint64_t i = 0; i < blob_mutants_count(&b.mutants, BLOB_MUTANT_SET_BYTE); i++) {
        const blob_mutant mutant = blob_mutants_at(&b.mutants, BLOB_MUTANT_SET_BYTE, i);
        EXPECT(mutant.at == i / 255 && mutant.with < 256 && mutant.with != b.blob[mutant.at]);
        bytes_set += mutant.with;
    }
    uint64_t expected = b.mutants.bytes * (255 * 256 / 2);
    for (uint64_t i = 0; i < b.mutants.bytes; i++)
        expected -= b.blob[i];
    ck_assert_uint_eq(bytes_set, expected);
    free_bench(&b);
    b = make_bench(FILES - 2); /* four tiles */
    EXPECT(b.mutants.view.num_tiles == 4 && blob_mutants_count(&b.mutants, BLOB_MUTANT_SWAP_DATA) == 6);
    for (uint64_t i = 0; i < 6; i++) {
        const blob_mutant mutant = blob_mutants_at(&b.mutants, BLOB_MUTANT_SWAP_DATA, i);
        EXPECT(mutant.at < mutant.with && mutant.with < 4);
        EXPECT(blob_mutant_make(&b.mutants, &mutant, b.bytes) == b.mutants.bytes);
        EXPECT(memcmp(b.bytes, b.blob, b.mutants.bytes) != 0);
    }
    free_bench(&b);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("blob_mutants");
    TCase *tcase = tcase_create("blob_mutants");
    tcase_add_test(tcase, numbers_are_mutants);
    tcase_add_loop_test(tcase, mutants_are_found, 0, FILES);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
