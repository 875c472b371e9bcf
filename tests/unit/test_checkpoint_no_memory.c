/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of compressing, decompressing, verifying and extracting fails once. Each time there is a status and
 * nothing is left under any name; in the end, when nothing fails any more, the output is the same as without failures.
 * (The address sanitizer's run looks for leaks.) TRF_TEST_WRAPS_ALLOCATIONS. */
#include "common/checkpoint_fixture.h"
#include "common/expect.h"
#include "common/failing_memory.h"
#include "common/run_suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static trf_error err;
static const char *folder, *source, *compressed_path, *quantized; /* the last three in the first */
static const char *pipeline, *compressed_pipeline, *replaced;     /* these, too */

/* Turns the last F32 weights of a file into BF16 numbers. */
static void cut_low_bits(const char *path, size_t weights) {
    size_t bytes;
    uint8_t *file = fixture_read(path, &bytes);
    for (size_t at = bytes - 4 * weights; at < bytes; at += 4)
        memset(file + at, 0, 2);
    fixture_write(path, file, bytes);
    free(file);
}

/* Two files, an index and a config, which says that the last matrix is the embedding. */
static void make_source(void) {
    static const fixture_tensor first[] = {{"a.weight", "BF16", {96, 300}, 2, 0},
                                           {"n", "F32", {7}, 1, 0},
                                           {"norm.scale", "BF16", {64}, 1, 0},
                                           {"w.weight", "F32", {32, 128}, 2, 0}};
    static const fixture_tensor second[] = {{"model.embed_tokens.weight", "BF16", {128, 64}, 2, 0},
                                            {"experts.weight", "F16", {2, 64, 128}, 3, 0},
                                            {"lm_head.weight", "BF16", {128, 64}, 2, 0}};
    static const char config[] = "{\"model_type\": \"a\", \"tie_word_embeddings\": true, "
                                 "\"quantization_config\": null, \"dtype\": null}",
                      index[] =
                          "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {\"a.weight\": \"m-1.safetensors\", "
                          "\"n\": \"m-1.safetensors\", \"norm.scale\": \"m-1.safetensors\", "
                          "\"w.weight\": \"m-1.safetensors\", \"model.embed_tokens.weight\": \"m-2.safetensors\", "
                          "\"experts.weight\": \"m-2.safetensors\", \"lm_head.weight\": \"m-2.safetensors\"}}";
    fixture_make_folder(source);
    fixture_write_safetensors(fixture_path("in/m-1.safetensors"), "{\"format\": \"pt\"}", first, 4, 8, 5);
    cut_low_bits(fixture_path("in/m-1.safetensors"), 32 * 128);
    fixture_write_safetensors(fixture_path("in/m-2.safetensors"), NULL, second, 3, 8, 6);
    fixture_write(fixture_path("in/config.json"), config, sizeof config - 1);
    fixture_write(fixture_path("in/model.safetensors.index.json"), index, sizeof index - 1);
}

/* Makes a pipeline of two models, one of which is quantized, with weights and other files below them, and files that
 * are not carried over. */
static void make_pipeline(void) {
    static const fixture_tensor tensors[] = {{"a.weight", "BF16", {64, 256}, 2, 0}};
    static const char config[] = "{\"_class_name\": \"X\"}", other[] = "{\"quantization_config\": {\"a\": 1}}";
    static const char *const folders[] = {"", "/unet", "/text", "/text/original", "/.git", "/scheduler"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        fixture_make_folder(fixture_path("pipeline%s", folders[i]));
    fixture_write_safetensors(fixture_path("pipeline/unet/model.safetensors"), NULL, tensors, 1, 8, 5);
    fixture_write_safetensors(fixture_path("pipeline/text/model.safetensors"), NULL, tensors, 1, 8, 6);
    fixture_write(fixture_path("pipeline/model_index.json"), "{}", 2);
    fixture_write(fixture_path("pipeline/unet/config.json"), config, sizeof config - 1);
    fixture_write(fixture_path("pipeline/text/config.json"), other, sizeof other - 1);
    fixture_write(fixture_path("pipeline/text/original/x.pth"), "x", 1);
    fixture_write(fixture_path("pipeline/text/original/y.pth"), "y", 1);
    fixture_write(fixture_path("pipeline/.git/head"), "z", 1);
    fixture_write(fixture_path("pipeline/scheduler/scheduler_config.json"), "{}", 2);
}

static trf_checkpoint_options options_of(int threads) {
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.threads = threads;
    return options;
}

static trf_status compress_to(const char *path, double bits, int threads) {
    trf_checkpoint_options options = options_of(threads);
    if (bits > 0) {
        options.encode.codec = TRF_CODEC_INT;
        options.encode.bits = bits;
        options.encode.granularity = TRF_GRANULARITY_SCALE_GROUP;
        options.encode.scale_group_size = 64;
    }
    return trf_compress_checkpoint(source, path, &options, NULL, &err);
}

static void begin(void) {
    fixture_begin();
    source = fixture_path("in");
    compressed_path = fixture_path("packed");
    quantized = fixture_path("quantized");
    pipeline = fixture_path("pipeline");
    compressed_pipeline = fixture_path("packed-pipeline");
    replaced = fixture_path("replaced");
    folder = fixture_path(".");
    make_source();
    make_pipeline();
    fixture_check_status(trf_compress_checkpoint(pipeline, compressed_pipeline, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_compress_checkpoint(pipeline, replaced, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_status(compress_to(compressed_path, 0, 1), TRF_OK, &err);
    fixture_check_status(compress_to(quantized, 4.25, 1), TRF_OK, &err);
}

/* ---- what is done ---- */

static trf_status compress_lossless(const char *out, int threads) { return compress_to(out, 0, threads); }
static trf_status compress_to_rate(const char *out, int threads) { return compress_to(out, 4.25, threads); }

static trf_status decompress(const char *out, int threads) {
    const trf_checkpoint_options options = options_of(threads);
    return trf_decompress_checkpoint(compressed_path, out, &options, NULL, &err);
}

static trf_status verify(const char *out, int threads) {
    (void)out;
    const trf_checkpoint_options options = options_of(threads);
    return trf_verify_checkpoint(compressed_path, source, &options, NULL, &err);
}

static trf_status extract(const char *out, int threads) {
    (void)threads;
    return trf_extract_layer(compressed_path, "experts.weight[1]", out, 0, &err);
}

static const char *const kSkip[] = {"text/original/y.pth", NULL};

/* Writes a pipeline that lacks one of the carried files over a result that has it. */
static trf_status replace_pipeline(const char *out, int threads) {
    (void)out;
    trf_checkpoint_options options = options_of(threads);
    options.overwrite = 1;
    options.skip_extra = kSkip;
    return trf_compress_checkpoint(pipeline, replaced, &options, NULL, &err);
}

static trf_status try_pipeline(const char *out, int threads) {
    trf_checkpoint_options options = options_of(threads);
    options.dry_run = 1;
    return trf_compress_checkpoint(pipeline, out, &options, NULL, &err);
}

static trf_status decompress_pipeline(const char *out, int threads) {
    const trf_checkpoint_options options = options_of(threads);
    return trf_decompress_checkpoint(compressed_pipeline, out, &options, NULL, &err);
}

static trf_status verify_pipeline(const char *out, int threads) {
    (void)out;
    trf_checkpoint_options options = options_of(threads);
    options.skip_extra = kSkip;
    return trf_verify_checkpoint(replaced, pipeline, &options, NULL, &err);
}

static const struct {
    const char *name;
    trf_status (*act)(const char *out, int threads);
    int leaves; /* whether something under `out` */
} kActs[] = {{"compress", compress_lossless, 1},
             {"to rate", compress_to_rate, 1},
             {"decompress", decompress, 1},
             {"verify", verify, 0},
             {"extract", extract, 1},
             {"dry run", try_pipeline, 0},
             {"decompress a pipeline", decompress_pipeline, 1},
             {"replace a pipeline", replace_pipeline, 0},
             {"verify a pipeline", verify_pipeline, 0}};
enum {
    ACTS = sizeof kActs / sizeof kActs[0]
};

/* ---- and fails ---- */

static int act_number, attempts, entries_before;
static char out[512];

/* Writes to another output each time, so that anything that a failure has left is seen; the status is then TRF_ERR_IO.
 * context: the number of threads. */
static trf_status attempt(void *context) {
    snprintf(out, sizeof out, "%s/out%d", folder, ++attempts);
    const trf_status status = kActs[act_number].act(out, *(const int *)context);
    atomic_store(&allocation_fails_at, 0); /* from here on allocations are the test's */
    const int entries = fixture_count_entries(folder);
    if (entries != entries_before + (status == TRF_OK && kActs[act_number].leaves))
        return err.status = TRF_ERR_IO;
    entries_before = entries;
    return status;
}

START_TEST(every_allocation_fails_once) {
    act_number = _i;
    for (int threads = test_quick() ? 2 : 1; threads <= 2; threads++) {
        attempts = 10000 * (2 * _i + threads);
        entries_before = fixture_count_entries(folder);
        const long failures = fail_each_allocation(attempt, &threads, TRF_ERR_MEMORY, &err);
        ck_assert_msg(failures > 5, "%s: %ld allocations", kActs[_i].name, failures);
        if (_i <= 2)
            fixture_check_same(out, _i == 0 ? compressed_path : _i == 1 ? quantized : source);
        printf("%s, %d threads: %ld allocations\n", kActs[_i].name, threads, failures);
    }
}
END_TEST

/* With resume each attempt goes on from what the one before has left, and the last one comes to the same bytes. */
START_TEST(failures_are_continued) {
    trf_checkpoint_options options = options_of(1);
    options.resume = 1;
    long number = 1;
    int failed = 1;
    snprintf(out, sizeof out, "%s/resumed", folder);
    entries_before = fixture_count_entries(folder);
    for (; failed; number += 3) {
        count_allocations_from_here(number);
        const trf_status status = trf_compress_checkpoint(source, out, &options, NULL, &err);
        failed = atomic_load(&allocation_has_failed);
        count_allocations_from_here(0);
        fixture_check_status(status, failed ? TRF_ERR_MEMORY : TRF_OK, &err);
        ck_assert_int_eq(fixture_exists(out), !failed);
        const int more = fixture_count_entries(folder) - entries_before;
        ck_assert_msg(failed ? more == 0 || more == 2 : more == 1, "%d more entries", more);
    }
    ck_assert_int_gt(number, 30);
    fixture_check_same(out, compressed_path);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("checkpoint_no_memory");
    TCase *tests = tcase_create("checkpoint_no_memory");
    tcase_add_unchecked_fixture(tests, begin, fixture_end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, every_allocation_fails_once, 0, ACTS);
    tcase_add_test(tests, failures_are_continued);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
