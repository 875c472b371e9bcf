/* SPDX-License-Identifier: Apache-2.0 */
/* Mutants of files: of a .trf file, and of a compressed safetensors file with its header. Verifying a .trf file finds
 * every one. Of a safetensors file the blobs have checksums, and header and uncompressed tensors have none: what verify
 * does not find alone it finds with the source, or the tensors are the source's, bit for bit. Then the header alone can
 * differ when the file is decompressed: its metadata, and the order of tensors if the kept header is gone.
 *
 * A sample is tried. TRF_MUTANTS_ALL=1 in the environment tries all lengths, added and removed bytes, every bit, and
 * every value of the header's bytes, and the last lines say what came of them. */
#define _GNU_SOURCE /* memmem */
#include "common/checkpoint_fixture.h"
#include "common/coded_mutants.h"
#include "common/expect.h"
#include "common/run_suite.h"
#include "transfuse.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SAMPLE = 1200
};

typedef enum outcome {
    FOUND,             /* by verify alone */
    FOUND_WITH_SOURCE, /* by verify with the source, which decompressing does not have */
    SAME_TENSORS,      /* has the source's tensors, and decompresses to another header */
    RESTORED,          /* decompresses to the source */
    OUTCOMES
} outcome;

/* A file, its source, and the mutant at hand. */
typedef struct file {
    const char *path, *source, *restored;
    uint8_t *bytes, *source_bytes, *mutant;
    size_t num_bytes, num_source, header_bytes; /* header: with its length in front; 0 in a .trf file */
    uint64_t counts[OUTCOMES], in_header[OUTCOMES];
} file;

static file read_file(const char *compressed, const char *source) {
    file f = {.path = fixture_path("mutant%s", strrchr(compressed, '.')),
              .source = source,
              .restored = fixture_path("restored.safetensors")};
    f.bytes = fixture_read(compressed, &f.num_bytes);
    f.source_bytes = fixture_read(source, &f.num_source);
    f.mutant = malloc(f.num_bytes + 1);
    EXPECT(f.mutant != NULL);
    return f;
}

static void free_file(file *f) {
    free(f->bytes);
    free(f->source_bytes);
    free(f->mutant);
}

/* What becomes of a mutant whose tensors are the source's. */
static outcome restore(const file *f, const char *what) {
    trf_checkpoint_options options;
    size_t bytes;
    trf_error err = {0};
    trf_checkpoint_options_init(&options);
    options.encode.threads = 1;
    options.overwrite = 1;
    const trf_status status = trf_decompress_checkpoint(f->path, f->restored, &options, NULL, &err);
    ck_assert_msg(status == TRF_OK, "%s: verify takes it, and decompress does not: %s", what, err.message);
    uint8_t *restored = fixture_read(f->restored, &bytes);
    const int is_source = bytes == f->num_source && memcmp(restored, f->source_bytes, bytes) == 0;
    free(restored);
    return is_source ? RESTORED : SAME_TENSORS;
}

static outcome try_bytes(const file *f, size_t bytes, const char *what) {
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.threads = 1;
    fixture_write(f->path, f->mutant, bytes);
    if (trf_verify_checkpoint(f->path, NULL, &options, NULL, NULL) != TRF_OK)
        return FOUND;
    if (trf_verify_checkpoint(f->path, f->source, &options, NULL, NULL) != TRF_OK)
        return FOUND_WITH_SOURCE;
    return restore(f, what);
}

static void try_mutant(file *f, const blob_mutant *mutant) {
    size_t bytes = f->num_bytes;
    char what[96];
    memcpy(f->mutant, f->bytes, bytes);
    switch (mutant->kind) {
    case BLOB_MUTANT_SET_BYTE:
        f->mutant[mutant->at] = (uint8_t)mutant->with;
        break;
    case BLOB_MUTANT_FLIP_BIT:
        f->mutant[mutant->at] ^= (uint8_t)(1u << mutant->with);
        break;
    case BLOB_MUTANT_TRUNCATE:
        bytes = mutant->at;
        break;
    case BLOB_MUTANT_ADD_BYTE:
        memmove(f->mutant + mutant->at + 1, f->bytes + mutant->at, bytes - mutant->at);
        f->mutant[mutant->at] = (uint8_t)mutant->with;
        bytes++;
        break;
    default:
        memmove(f->mutant + mutant->at, f->bytes + mutant->at + 1, bytes - mutant->at - 1);
        bytes--;
    }
    blob_mutant_name(mutant, what);
    const outcome found = try_bytes(f, bytes, what);
    f->counts[found]++;
    f->in_header[found] += mutant->at < f->header_bytes;
    if (!f->header_bytes && bytes == f->num_bytes && memcmp(f->mutant, f->bytes, bytes) == 0)
        return;
    ck_assert_msg(found == FOUND || f->header_bytes, "%s: is not found", what);
    ck_assert_msg(found != SAME_TENSORS || mutant->at < f->header_bytes, "%s: another header", what);
}

/* Draws one that changes the file. */
static blob_mutant draw(const file *f, test_rng *rng) {
    static const blob_mutant_kind kinds[] = {BLOB_MUTANT_SET_BYTE, BLOB_MUTANT_FLIP_BIT,    BLOB_MUTANT_TRUNCATE,
                                             BLOB_MUTANT_ADD_BYTE, BLOB_MUTANT_REMOVE_BYTE, BLOB_MUTANT_FLIP_BIT};
    blob_mutant mutant = {kinds[test_below(rng, 6)], test_below(rng, (uint32_t)f->num_bytes), 0};
    if (f->header_bytes && test_below(rng, 2))
        mutant.at = test_below(rng, (uint32_t)f->header_bytes);
    if (mutant.kind == BLOB_MUTANT_FLIP_BIT)
        mutant.with = test_below(rng, 8);
    else
        mutant.with = (uint8_t)(f->bytes[mutant.at] + 1 + test_below(rng, 255));
    return mutant;
}

static void try_all(file *f) {
    for (uint64_t at = 0; at < f->num_bytes; at++) {
        for (uint64_t bit = 0; bit < 8; bit++)
            try_mutant(f, &(blob_mutant){BLOB_MUTANT_FLIP_BIT, at, bit});
        try_mutant(f, &(blob_mutant){BLOB_MUTANT_TRUNCATE, at, 0});
        try_mutant(f, &(blob_mutant){BLOB_MUTANT_REMOVE_BYTE, at, 0});
        try_mutant(f, &(blob_mutant){BLOB_MUTANT_ADD_BYTE, at, 0});
        try_mutant(f, &(blob_mutant){BLOB_MUTANT_ADD_BYTE, at, ' '});
        for (uint64_t other = 1; other < 256 && at < f->header_bytes; other++)
            try_mutant(f, &(blob_mutant){BLOB_MUTANT_SET_BYTE, at, (uint8_t)(f->bytes[at] + other)});
    }
    printf("%s: %llu found by verify, %llu (%llu in the header) with the source, %llu with another header, %llu (%llu) "
           "restored\n",
           f->header_bytes ? "safetensors" : "trf", (unsigned long long)f->counts[FOUND],
           (unsigned long long)f->counts[FOUND_WITH_SOURCE], (unsigned long long)f->in_header[FOUND_WITH_SOURCE],
           (unsigned long long)f->counts[SAME_TENSORS], (unsigned long long)f->counts[RESTORED],
           (unsigned long long)f->in_header[RESTORED]);
    fflush(stdout);
}

static void try_file(file *f) {
    const char *all = getenv("TRF_MUTANTS_ALL");
    test_rng rng = {mutants_number("TRF_MUTANT_SEED", 1)};
    if (all && *all == '1')
        try_all(f);
    for (int i = 0; i < test_rounds(SAMPLE); i++) {
        const blob_mutant mutant = draw(f, &rng);
        try_mutant(f, &mutant);
    }
    ck_assert_uint_ne(f->counts[FOUND], 0);
}

/* ---- files ---- */

static const fixture_tensor kTensors[] = {
    {"first.weight", "BF16", {64, 64}, 2, 0}, {"other.weight", "BF16", {64, 64}, 2, 0}, {"norm", "F32", {8}, 1, 0}};

/* Writes and compresses a safetensors file. */
static file make_safetensors(void) {
    trf_checkpoint_close(fixture_open_compressed(kTensors, sizeof kTensors / sizeof *kTensors));
    file f = read_file(fixture_path("compressed.safetensors"), fixture_path("in.safetensors"));
    uint64_t length;
    memcpy(&length, f.bytes, sizeof length);
    f.header_bytes = 8 + length;
    EXPECT(f.header_bytes < f.num_bytes);
    return f;
}

START_TEST(safetensors_files) {
    file f = make_safetensors();
    try_file(&f);
    free_file(&f);
}
END_TEST

START_TEST(trf_files) {
    uint64_t bytes;
    const char *compressed = fixture_path("intact.trf"), *source = fixture_path("source.safetensors");
    void *blob = blob_of_golden("f32_source_bf16_40x50", &bytes);
    trf_error err = {0};
    fixture_write(compressed, blob, bytes);
    free(blob);
    fixture_check_status(trf_decompress_checkpoint(compressed, source, NULL, NULL, &err), TRF_OK, &err);
    file f = read_file(compressed, source);
    try_file(&f);
    ck_assert_uint_eq(f.counts[FOUND_WITH_SOURCE] + f.counts[SAME_TENSORS] + f.counts[RESTORED], 0);
    free_file(&f);
}
END_TEST

/* The names of two tensors of one shape change places. A file does not say which blob was whose, so verify takes it;
 * with the source it does not. In the source's header that is kept, names say only where tensors lay. */
START_TEST(swapped_names) {
    file f = make_safetensors();
    char *header = (char *)f.mutant + 8;
    for (int kept = 0; kept <= 1; kept++) {
        memcpy(f.mutant, f.bytes, f.num_bytes);
        char *text = memmem(header, f.header_bytes - 8, "transfuse_source_header", 23);
        ck_assert_ptr_nonnull(text);
        const char *const names[] = {kept ? "first.weight\\\"" : "first.weight_trf\"",
                                     kept ? "other.weight\\\"" : "other.weight_trf\""};
        char *at[2];
        for (int i = 0; i < 2; i++) {
            char *from = kept ? text : header;
            at[i] = memmem(from, f.header_bytes - (size_t)(from - (char *)f.mutant), names[i], strlen(names[i]));
            ck_assert_ptr_nonnull(at[i]);
        }
        memcpy(at[0], "other", 5);
        memcpy(at[1], "first", 5);
        const outcome found = try_bytes(&f, f.num_bytes, "swapped names");
        ck_assert_msg(found == (kept ? SAME_TENSORS : FOUND_WITH_SOURCE), "names swapped in header %d: outcome %d",
                      kept, (int)found);
    }
    free_file(&f);
}
END_TEST

int main(void) {
    const struct {
        const char *name;
        const TTest *test;
    } kTests[] = {{"safetensors", safetensors_files}, {"trf", trf_files}, {"names", swapped_names}};
    Suite *suite = suite_create("file_mutants");
    for (size_t i = 0; i < sizeof kTests / sizeof *kTests; i++) {
        TCase *tcase = tcase_create(kTests[i].name);
        tcase_add_unchecked_fixture(tcase, fixture_begin, fixture_end);
        tcase_add_test(tcase, kTests[i].test);
        suite_add_tcase(suite, tcase);
    }
    return run_suite(suite);
}
