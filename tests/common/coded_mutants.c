/* SPDX-License-Identifier: Apache-2.0 */
#include "coded_mutants.h"

#include "expect.h"
#include "trf_slab_directory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *allocate(uint64_t bytes) {
    void *memory = NULL;
    EXPECT(posix_memalign(&memory, TRF_DEVICE_ALIGNMENT, bytes) == 0);
    return memory;
}

/* Writes the directory of a blob, and its traits. Tiles that the validator refuses are described as those of the intact
 * blob, which lie where they lay. */
static void describe(const coded_mutants *c, const trf_blob_view *view, const uint8_t *bytes, uint8_t *directory,
                     trf_layer_traits *traits) {
    const trf_blob_view *intact = &c->mutants.view;
    memset(directory, 0, c->offsets.directory_bytes);
    trf_write_head_directory(view, directory);
    trf_describe_head(view, traits);
    for (uint64_t t = 0; t < view->num_tiles; t++) {
        const uint8_t *tile = bytes + view->tiles[t].data_offset;
        const int is_sound = trf_blob_check_tile(view, t, tile, NULL) == TRF_OK;
        trf_describe_tile(is_sound ? view : intact, t, is_sound ? tile : c->mutants.blob + intact->tiles[t].data_offset,
                          (trf_device_slab *)(void *)directory, traits);
    }
}

coded_mutants coded_mutants_of(const void *blob, uint64_t bytes, const void *other, uint64_t other_bytes) {
    coded_mutants c = {.mutants = blob_mutants_of(blob, bytes, other, other_bytes)};
    c.offsets = trf_layer_directory_offsets_of(&c.mutants.view);
    c.intact_directory = allocate(c.offsets.directory_bytes);
    c.directory = allocate(c.offsets.directory_bytes);
    c.bytes = allocate(c.mutants.room);
    describe(&c, &c.mutants.view, blob, c.intact_directory, &c.intact_traits);
    return c;
}

void coded_mutants_free(coded_mutants *c) {
    blob_mutants_free(&c->mutants);
    free(c->intact_directory);
    free(c->directory);
    free(c->bytes);
}

/* Changes some bytes of the directory, half of them where slabs lie. */
static void spoil_directory(coded_mutants *c, test_rng *rng) {
    const uint64_t slabs = trf_count_device_slabs(&c->mutants.view.header) * sizeof(trf_device_slab);
    for (uint32_t left = 1 + test_below(rng, 4); left > 0; left--) {
        const uint64_t bytes = test_below(rng, 2) ? slabs : c->offsets.fault_offset;
        c->directory[test_below(rng, (uint32_t)bytes)] = (uint8_t)test_random(rng);
    }
}

/* Whether a mutant's outputs and directory are as large as the intact layer's. */
static int is_alike(const trf_blob_view *a, const trf_blob_view *b) {
    return a->header.rows == b->header.rows && a->header.cols == b->header.cols && a->header.codec == b->header.codec &&
           a->header.source_dtype == b->header.source_dtype && a->header.slab_cols == b->header.slab_cols &&
           a->header.probability_bits == b->header.probability_bits &&
           trf_count_scale_pairs(a) == trf_count_scale_pairs(b);
}

static void forge(coded_mutants *c) {
    trf_blob_view view;
    c->way = MUTANT_FORGED_REFUSED;
    blob_mutant_forge(c->bytes, c->num_bytes);
    if (trf_blob_open(c->bytes, c->num_bytes, c->num_bytes, &view, NULL) != TRF_OK ||
        !is_alike(&view, &c->mutants.view))
        return;
    c->way = trf_blob_validate(c->bytes, c->num_bytes, &view, NULL) == TRF_OK ? MUTANT_FORGED : MUTANT_FORGED_HEAD;
    c->view = view;
    describe(c, &view, c->bytes, c->directory, &c->traits);
}

void coded_mutants_draw(coded_mutants *c, test_rng *rng, const char *name, uint64_t number) {
    blob_mutant mutant;
    char text[96];
    do {
        mutant = blob_mutants_draw(&c->mutants, rng);
        c->num_bytes = blob_mutant_make(&c->mutants, &mutant, c->bytes);
    } while (c->num_bytes < c->mutants.view.extension.data_offset);
    blob_mutant_name(&mutant, text);
    snprintf(c->what, sizeof c->what, "%s, mutant %llu (%s)", name, (unsigned long long)number, text);
    c->view = c->mutants.view;
    c->traits = c->intact_traits;
    memcpy(c->directory, c->intact_directory, c->offsets.directory_bytes);
    const uint32_t draw = test_below(rng, 10);
    c->way = draw < 4 ? MUTANT_BYPASSED : MUTANT_DIRECTORY;
    if (draw >= 6)
        forge(c);
    else if (c->way == MUTANT_DIRECTORY)
        spoil_directory(c, rng);
}

int coded_mutants_is_intact(const coded_mutants *c) {
    return c->num_bytes == c->mutants.bytes && memcmp(c->bytes, c->mutants.blob, c->num_bytes) == 0 &&
           memcmp(c->directory, c->intact_directory, c->offsets.directory_bytes) == 0;
}

trf_device_view coded_mutants_view(const coded_mutants *c, const uint8_t *blob, uint8_t *directory) {
    trf_device_view view = trf_device_view_of_layer(&c->view, blob, directory,
                                                    (trf_device_fault *)(void *)(directory + c->offsets.fault_offset));
    view.buffer_bytes = c->num_bytes;
    return view;
}

uint64_t mutants_number(const char *variable, uint64_t by_default) {
    const char *text = getenv(variable);
    return text && *text ? strtoull(text, NULL, 10) : by_default;
}

int mutants_has_part(int i) {
    const char *text = getenv("TRF_MUTANT_PART");
    unsigned part, parts;
    if (!text || !*text)
        return 1;
    if (sscanf(text, "%u/%u", &part, &parts) != 2 || part >= parts)
        ck_abort_msg("TRF_MUTANT_PART is %s, not such as 0/4", text);
    return (unsigned)i % parts == part;
}
