/* SPDX-License-Identifier: Apache-2.0 */
/* Bits flip in the encoder's memory and in what it writes while a checkpoint is compressed. Whatever comes of it, no
 * output may appear that does not decompress to its source: reading back what was written has to catch it. Each trial
 * is a process of its own, since a flipped bit may also crash or hang it. TRF_TEST_TRIALS in the environment is the
 * number of trials. TRF_TEST_WRAPS: trf_encode_tile
 * TRF_TEST_WRAPS_TOO: trf_file_write */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "common/was_fp8.h"
#include "trf_encode_tile.h"
#include "trf_file.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Where a bit flips. */
typedef enum flip_place {
    FLIP_ELEMENTS,  /* a tile's elements, before they are encoded */
    FLIP_MODEL,     /* frequencies and replacements */
    FLIP_SYMBOLS,   /* what rANS encodes by */
    FLIP_EXTENSION, /* the layer's head, in part */
    FLIP_RULE,      /* how elements are split */
    FLIP_OFFSETS,   /* exponent offsets of rows */
    FLIP_SCALES,    /* of scaled FP8 */
    FLIP_TILE,      /* a tile that has been encoded */
    FLIP_META,      /* its entry in the head */
    FLIP_WRITTEN,   /* bytes on their way to the file */
    FLIP_PLACES
} flip_place;

static const char *const kPlaces[FLIP_PLACES] = {"elements", "model",  "symbols", "extension", "rule",
                                                 "offsets",  "scales", "tile",    "meta",      "written"};

/* What the process of a trial ends with. */
enum {
    TRIAL_HARMLESS = 0, /* the output is there, and right */
    TRIAL_CAUGHT = 1,
    TRIAL_WRONG = 2, /* the output is there, and wrong */
    TRIAL_UNTOUCHED = 3,
    TRIAL_LEFT = 4 /* a failure left something */
};

static flip_place place;
static long countdown; /* calls of the place's function until the bit flips */
static unsigned long where;
static int has_flipped;

static void flip(const void *memory, size_t bytes) {
    if (has_flipped || countdown-- > 0 || bytes == 0 || !memory)
        return;
    uint8_t *at = (uint8_t *)(uintptr_t)memory; /* the encoder only reads it; cosmic rays do not ask */
    at[where / 8 % bytes] ^= (uint8_t)(1 << where % 8);
    has_flipped = 1;
}

void __real_trf_encode_tile(const trf_tile_encoder *encoder, uint64_t tile, const uint16_t *elements, size_t stride,
                            trf_tile_scratch *scratch, uint8_t *out, trf_tile_meta *meta);
void __wrap_trf_encode_tile(const trf_tile_encoder *encoder, uint64_t tile, const uint16_t *elements, size_t stride,
                            trf_tile_scratch *scratch, uint8_t *out, trf_tile_meta *meta);
void __wrap_trf_encode_tile(const trf_tile_encoder *encoder, uint64_t tile, const uint16_t *elements, size_t stride,
                            trf_tile_scratch *scratch, uint8_t *out, trf_tile_meta *meta) {
    const trf_tile_shape shape = trf_tile_shape_of(&encoder->header, tile, TRF_TILE_STORED);
    if (place == FLIP_ELEMENTS)
        flip(elements + (where / 8 % shape.rows) * stride, shape.cols * sizeof *elements);
    if (place == FLIP_MODEL)
        flip(&encoder->model, sizeof encoder->model);
    if (place == FLIP_SYMBOLS)
        flip(encoder->symbols, sizeof encoder->symbols);
    if (place == FLIP_EXTENSION)
        flip(&encoder->extension, sizeof encoder->extension);
    if (place == FLIP_RULE)
        flip(&encoder->rule, sizeof encoder->rule);
    if (place == FLIP_OFFSETS)
        flip(encoder->row_offsets, encoder->row_offsets ? encoder->header.rows : 0);
    if (place == FLIP_SCALES && encoder->scales)
        flip(encoder->scales->values, encoder->scales->count * sizeof *encoder->scales->values);
    __real_trf_encode_tile(encoder, tile, elements, stride, scratch, out, meta);
    if (place == FLIP_TILE)
        flip(out, meta->data_size);
    if (place == FLIP_META)
        flip(meta, sizeof *meta);
}

trf_status __real_trf_file_write(const trf_file *file, uint64_t offset, const void *src, uint64_t size, trf_error *err);
trf_status __wrap_trf_file_write(const trf_file *file, uint64_t offset, const void *src, uint64_t size, trf_error *err);
trf_status __wrap_trf_file_write(const trf_file *file, uint64_t offset, const void *src, uint64_t size,
                                 trf_error *err) {
    if (place == FLIP_WRITTEN)
        flip(src, size);
    return __real_trf_file_write(file, offset, src, size, err);
}

/* ---- trials ---- */

static const char *source, *back;
static char out[512];

/* A source with a tensor for each kind of codec. */
static void make_source(void) {
    enum {
        ROWS = 384,
        COLS = 512
    };
    static const fixture_tensor tensors[] = {{"was.weight", "BF16", {ROWS, COLS}, 2, 0},
                                             {"a.weight", "BF16", {300, 520}, 2, 0},
                                             {"e.weight", "F8_E4M3", {256, 300}, 2, 0},
                                             {"f.weight", "F16", {2, 64, 256}, 3, 0},
                                             {"n", "F32", {7}, 1, 0}};
    test_rng rng = {11};
    size_t bytes;
    source = fixture_path("source.safetensors"), back = fixture_path("back.safetensors");
    fixture_write_safetensors(source, NULL, tensors, 5, 8, 9);
    uint8_t *file = fixture_read(source, &bytes);
    uint16_t *weights = was_fp8_make(&rng, TRF_GRANULARITY_SCALE_BLOCK, ROWS, COLS);
    uint64_t header;
    memcpy(&header, file, sizeof header);
    memcpy(file + 8 + header, weights, (size_t)ROWS * COLS * sizeof *weights);
    for (size_t i = 0; i < 300 * 520; i++) { /* rows of different sizes, so that they have exponent offsets */
        uint16_t bits;
        uint8_t *at = file + 8 + header + ((size_t)ROWS * COLS + i) * sizeof bits;
        memcpy(&bits, at, sizeof bits);
        bits = (uint16_t)(bits + ((i / 520 * 5 % 9) << 7));
        memcpy(at, &bits, sizeof bits);
    }
    fixture_write(source, file, bytes);
    free(weights);
    free(file);
}

static void begin(void) {
    fixture_begin();
    make_source();
}

static int holds_source(void) {
    size_t bytes, source_bytes;
    unlink(back);
    if (trf_decompress_checkpoint(out, back, NULL, NULL, NULL) != TRF_OK)
        return 0;
    uint8_t *ours = fixture_read(back, &bytes), *theirs = fixture_read(source, &source_bytes);
    const int same = bytes == source_bytes && memcmp(ours, theirs, bytes) == 0;
    free(ours);
    free(theirs);
    return same;
}

/* @return what the process ends with. */
static int attempt(int resume, const char *folder) {
    trf_checkpoint_options options;
    trf_error err = {0};
    trf_checkpoint_options_init(&options);
    options.encode.threads = 1;
    options.resume = resume;
    const int entries = fixture_count_entries(folder);
    const trf_status status = trf_compress_checkpoint(source, out, &options, NULL, &err);
    countdown = 1000000; /* the rest is the test's */
    if (!has_flipped)
        return TRIAL_UNTOUCHED;
    if (status == TRF_OK) {
        const int is_right = holds_source();
        unlink(out);
        return is_right ? TRIAL_HARMLESS : TRIAL_WRONG;
    }
    return fixture_count_entries(folder) == entries ? TRIAL_CAUGHT : TRIAL_LEFT;
}

/* Runs a trial in a process of its own. @return what it ended with; -1 if it crashed or hung. */
static int run_trial(int resume, const char *folder) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        alarm(60);
        _exit(attempt(resume, folder));
    }
    int ended = 0;
    ck_assert_int_eq(waitpid(child, &ended, 0), child);
    return WIFEXITED(ended) && WEXITSTATUS(ended) <= TRIAL_LEFT ? WEXITSTATUS(ended) : -1;
}

START_TEST(no_flipped_bit_reaches_an_output) {
    const char *text = getenv("TRF_TEST_TRIALS"), *folder = fixture_path(".");
    const long trials = text ? strtol(text, NULL, 10) : 12 * FLIP_PLACES;
    long counts[FLIP_PLACES][6] = {{0}};
    test_rng rng = {5};
    for (long trial = 0; trial < trials; trial++) {
        place = (flip_place)(trial % FLIP_PLACES);
        countdown = (long)(test_random(&rng) % 12);
        where = (unsigned long)test_random(&rng) >> 8;
        has_flipped = 0;
        snprintf(out, sizeof out, "%s/out%ld.safetensors", folder, trial); /* what a crash leaves is not the next's */
        const int ended = run_trial(trial % 4 == 3, folder);
        ck_assert_msg(ended != TRIAL_WRONG, "trial %ld, %s: an output that is wrong", trial, kPlaces[place]);
        ck_assert_msg(ended != TRIAL_LEFT, "trial %ld, %s: a failure left something", trial, kPlaces[place]);
        if (ended < 0) { /* nothing may have the output's name; what it was building may be left */
            ck_assert_msg(!fixture_exists(out), "trial %ld, %s: a crash left an output", trial, kPlaces[place]);
        }
        counts[place][ended < 0 ? 5 : ended]++;
    }
    for (int p = 0; p < FLIP_PLACES; p++) {
        printf("%s: %ld caught, %ld harmless, %ld crashed, %ld not reached\n", kPlaces[p], counts[p][TRIAL_CAUGHT],
               counts[p][TRIAL_HARMLESS], counts[p][5], counts[p][TRIAL_UNTOUCHED]);
    }
    ck_assert_int_gt(counts[FLIP_ELEMENTS][TRIAL_CAUGHT], 0);
    ck_assert_int_gt(counts[FLIP_TILE][TRIAL_CAUGHT], 0);
    ck_assert_int_gt(counts[FLIP_WRITTEN][TRIAL_CAUGHT], 0);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("encoder_faults");
    TCase *tests = tcase_create("encoder_faults");
    tcase_add_unchecked_fixture(tests, begin, fixture_end);
    tcase_set_timeout(tests, 3600);
    tcase_add_test(tests, no_flipped_bit_reaches_an_output);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
