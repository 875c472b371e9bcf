/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint's folder holds besides tensors, and where its output goes: files that are carried over, left out or
 * compared, permissions, folders that may be replaced, what a killed run has left, free space, dry runs.
 * TRF_TEST_WRAPS: trf_free_bytes */
#define _GNU_SOURCE /* flock */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "trf_file.h"

#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static trf_error err;
static uint64_t free_bytes = UINT64_MAX;

uint64_t __wrap_trf_free_bytes(const char *folder);
uint64_t __wrap_trf_free_bytes(const char *folder) {
    struct stat info;
    ck_assert_msg(stat(folder, &info) == 0 && S_ISDIR(info.st_mode), "%s", folder);
    return free_bytes;
}

static char notes[8192];
static int num_notes;

static void take_note(void *context, const char *line) {
    (void)context;
    snprintf(notes + strlen(notes), sizeof notes - strlen(notes), "%s\n", line);
    num_notes++;
}

static trf_checkpoint_options make_options(void) {
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.threads = 1;
    options.note = take_note;
    notes[0] = 0, num_notes = 0;
    return options;
}

static void check_noted(const char *text) { ck_assert_msg(strstr(notes, text) != NULL, "no '%s': %s", text, notes); }

/* A folder of one small model. */
static const char *make_model(const char *name) {
    static const fixture_tensor tensors[] = {{"a.weight", "BF16", {128, 300}, 2, 0}, {"n", "F32", {7}, 1, 0}};
    fixture_make_folder(fixture_path("%s", name));
    fixture_write_safetensors(fixture_path("%s/model.safetensors", name), NULL, tensors, 2, 8, 5);
    fixture_write(fixture_path("%s/config.json", name), "{\"model_type\": \"x\"}", 19);
    return fixture_path("%s", name);
}

static void write_zeros(const char *path, size_t bytes) {
    void *zeros = calloc(bytes + 1, 1);
    ck_assert_ptr_nonnull(zeros);
    fixture_write(path, zeros, bytes);
    free(zeros);
}

static uint64_t file_bytes(const char *path) {
    struct stat info;
    ck_assert_int_eq(stat(path, &info), 0);
    return (uint64_t)info.st_size;
}

static trf_checkpoint_report compress(const char *in, const char *out, const trf_checkpoint_options *options) {
    trf_checkpoint_report report;
    fixture_check_status(trf_compress_checkpoint(in, out, options, &report, &err), TRF_OK, &err);
    return report;
}

static void check_fails(trf_status status, trf_status expected, const char *word) {
    fixture_check_status(status, expected, &err);
    ck_assert_msg(strstr(err.message, word) != NULL, "no '%s': %s", word, err.message);
}

/* ---- files that are carried over, and left out ---- */

/* Makes a folder with weights in folders below it, caches and small files. */
static const char *make_wide(const char *name) {
    make_model(name);
    fixture_make_folder(fixture_path("%s/original", name));
    write_zeros(fixture_path("%s/original/consolidated.00.pth", name), 3000000);
    write_zeros(fixture_path("%s/original/params.json", name), 10);
    write_zeros(fixture_path("%s/pytorch_model.bin", name), 5000);
    write_zeros(fixture_path("%s/README.md", name), 100);
    fixture_make_folder(fixture_path("%s/.git", name));
    fixture_make_folder(fixture_path("%s/.git/lfs", name));
    write_zeros(fixture_path("%s/.git/lfs/object", name), 2000000);
    fixture_make_folder(fixture_path("%s/original/__pycache__", name));
    write_zeros(fixture_path("%s/original/__pycache__/x.pyc", name), 10);
    return fixture_path("%s", name);
}

START_TEST(weights_below_are_told) {
    const char *in = make_wide("wide"), *out = fixture_path("wide-out"), *back = fixture_path("wide-back");
    trf_checkpoint_options options = make_options();
    const trf_checkpoint_report report = compress(in, out, &options);
    ck_assert_uint_eq(report.extra_files, 2);
    ck_assert_uint_eq(report.extra_bytes, 3005000);
    ck_assert_uint_eq(report.skipped_files, 2);
    ck_assert_uint_eq(report.skipped_bytes, 2000010);
    ck_assert_uint_eq(report.models, 1);
    check_noted("carried over uncompressed: 3.00 MB in 1 file under original/");
    check_noted("carried over uncompressed: 5.00 kB in pytorch_model.bin");
    check_noted("not carried over: 2.00 MB in 1 file under .git/");
    ck_assert_msg(!strstr(notes, "pycache"), "%s", notes);
    ck_assert_msg(strstr(report.warning, "original/\n") != NULL, "%s", report.warning);
    ck_assert(!fixture_exists(fixture_path("wide-out/.git")));
    ck_assert(!fixture_exists(fixture_path("wide-out/original/__pycache__")));
    const uint64_t others = 3000000 + 10 + 5000 + 100;
    ck_assert_uint_eq(report.source_file_bytes, others + file_bytes(fixture_path("wide/model.safetensors")) + 19);
    ck_assert_uint_eq(report.output_file_bytes, others + file_bytes(fixture_path("wide-out/model.safetensors")) +
                                                    file_bytes(fixture_path("wide-out/config.json")));
    trf_checkpoint_report later;
    fixture_check_status(trf_decompress_checkpoint(out, back, NULL, &later, &err), TRF_OK, &err);
    ck_assert_uint_eq(later.source_file_bytes, report.source_file_bytes);
    ck_assert_uint_eq(later.output_file_bytes, report.output_file_bytes);
    fixture_check_status(trf_verify_checkpoint(out, in, NULL, &later, &err), TRF_OK, &err);
    ck_assert_uint_eq(later.source_file_bytes, report.source_file_bytes);
    ck_assert_uint_eq(later.output_file_bytes, report.output_file_bytes);
    ck_assert_uint_eq(later.extra_files, 2);
    fixture_check_same(fixture_path("wide/original/consolidated.00.pth"),
                       fixture_path("wide-back/original/consolidated.00.pth"));
}
END_TEST

START_TEST(files_are_left_out) {
    static const char *const globs[][3] = {{"original", NULL},
                                           {"original/", NULL},
                                           {"./original", "*.bin", NULL},
                                           {"*.pth", NULL},
                                           {"orig*/cons*[!x]", NULL}};
    static const int left[] = {2, 2, 3, 1, 1};
    const char *in = make_wide("skip"), *out = fixture_path("skip-out");
    for (size_t g = 0; g < sizeof globs / sizeof globs[0]; g++) {
        trf_checkpoint_options options = make_options();
        options.skip_extra = globs[g];
        options.overwrite = 1; /* what an earlier turn carried over belongs to the source */
        const trf_checkpoint_report report = compress(in, out, &options);
        ck_assert_uint_eq(report.skipped_files, (uint64_t)left[g] + 2);
        check_noted("left out as asked: ");
        ck_assert_int_eq(fixture_exists(fixture_path("skip-out/original")), g > 2);
        ck_assert(fixture_exists(fixture_path("skip-out/model.safetensors")));
        fixture_check_status(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_OK, &err);
        options.skip_extra = NULL;
        check_fails(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_ERR_NOT_FOUND, "consolidated.00.pth");
    }
}
END_TEST

START_TEST(globs_that_leave_nothing_out) {
    static const char *const globs[] = {"none", "model.safetensors", "config.json", "wide"};
    const char *const list[] = {globs[_i], NULL};
    if (_i == 0)
        make_wide("glob");
    trf_checkpoint_options options = make_options();
    options.skip_extra = list;
    check_fails(trf_compress_checkpoint(fixture_path("glob"), fixture_path("glob-out"), &options, NULL, &err),
                TRF_ERR_NOT_FOUND, globs[_i]);
    check_fails(
        trf_compress_checkpoint(fixture_path("glob/model.safetensors"), fixture_path("glob-out"), &options, NULL, &err),
        TRF_ERR_NOT_FOUND, globs[_i]);
    ck_assert(!fixture_exists(fixture_path("glob-out")));
    /* A pattern that matches everything still leaves the checkpoint. */
    const char *const all[] = {"*", NULL};
    options.skip_extra = all;
    if (_i)
        return;
    compress(fixture_path("glob"), fixture_path("glob-all"), &options);
    ck_assert_int_eq(fixture_count_entries(fixture_path("glob-all")), 2);
}
END_TEST

static void damage(const char *path, long offset) {
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    fseek(file, offset, SEEK_SET);
    fputc(7, file);
    fclose(file);
}

START_TEST(carried_files_are_compared) {
    const char *in = make_wide("compare"), *out = fixture_path("compare-out");
    trf_checkpoint_options options = make_options();
    compress(in, out, &options);
    trf_checkpoint_report report;
    fixture_check_status(trf_verify_checkpoint(out, in, &options, &report, &err), TRF_OK, &err);
    ck_assert_uint_eq(report.compared_files, 4);
    ck_assert_uint_eq(report.added_files, 0);
    ck_assert_int_eq(unlink(fixture_path("compare-out/original/params.json")), 0);
    check_fails(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_ERR_NOT_FOUND,
                "compare-out: in the source, and missing here: original/params.json; the tensors passed");
    damage(fixture_path("compare-out/README.md"), 50);
    check_fails(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_ERR_MISMATCH,
                "compare-out: differ from the source's: README.md (the first at byte 50); in the source, and missing "
                "here: original/params.json; the tensors passed");
    ck_assert_uint_eq(err.offset, 50);
    damage(fixture_path("compare-out/original/consolidated.00.pth"), 2999999);
    check_fails(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_ERR_MISMATCH,
                "README.md, original/consolidated.00.pth");
    static const char *const skip[] = {"README.md", "original/params.json", NULL};
    options = make_options();
    options.skip_extra = skip;
    check_fails(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_ERR_MISMATCH,
                "source's: original/consolidated.00.pth (the first at byte 2999999); the tensors passed");
    check_noted("not compared, as asked: 110 bytes in README.md and 1 more file");
    write_zeros(fixture_path("compare-out/original/consolidated.00.pth"), 2999998);
    check_fails(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_ERR_MISMATCH, "at byte 2999998");
}
END_TEST

START_TEST(added_files_are_told) {
    const char *in = make_wide("added"), *out = fixture_path("added-out");
    trf_checkpoint_options options = make_options();
    ck_assert_int_eq(unlink(fixture_path("added/config.json")), 0);
    compress(in, out, &options);
    fixture_write(fixture_path("added-out/original/mine.txt"), "x", 1);
    fixture_write(fixture_path("added-out/config.json"), "{}", 2);
    trf_checkpoint_report report;
    options = make_options();
    fixture_check_status(trf_verify_checkpoint(out, in, &options, &report, &err), TRF_OK, &err);
    check_noted("not in the source: config.json, original/mine.txt\n");
    ck_assert_uint_eq(report.added_files, 2);
    ck_assert_uint_eq(report.compared_files, 4);
}
END_TEST

START_TEST(a_file_in_the_place_of_a_folder_differs) {
    const char *in = make_model("place"), *out = fixture_path("place-out");
    trf_checkpoint_options options = make_options();
    fixture_make_folder(fixture_path("place/README.md"));
    compress(in, out, &options);
    fixture_check_status(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_OK, &err);
    ck_assert_int_eq(rmdir(fixture_path("place-out/README.md")), 0);
    fixture_write(fixture_path("place-out/README.md"), "x", 1);
    check_fails(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_ERR_MISMATCH,
                "place-out: differ from the source's: README.md");
}
END_TEST

/* More files than a message has room for: all are counted. */
START_TEST(many_differing_files_are_counted) {
    const char *in = make_model("many"), *out = fixture_path("many-out");
    trf_checkpoint_options options = make_options();
    compress(in, out, &options);
    for (int i = 0; i < 40; i++)
        fixture_write(fixture_path("many/vocabulary-of-%02d.txt", i), "x", 1);
    check_fails(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_ERR_NOT_FOUND, "vocabulary-of-00.txt, voc");
    int named = 0, others = 0;
    for (const char *at = err.message; (at = strstr(at, "vocabulary")); at++)
        named++;
    ck_assert_int_eq(sscanf(strstr(err.message, ".txt and ") + 9, "%d more; the tensors", &others), 1);
    ck_assert_int_eq(named + others, 40);
}
END_TEST

START_TEST(links_are_compared) {
    const char *in = make_wide("links"), *out = fixture_path("links-out"), *link = fixture_path("links-out/link");
    ck_assert_int_eq(symlink("README.md", fixture_path("links/link")), 0);
    ck_assert_int_eq(symlink("nowhere", fixture_path("links/dangling")), 0);
    trf_checkpoint_options options = make_options();
    compress(in, out, &options);
    fixture_check_status(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_OK, &err);
    ck_assert_int_eq(unlink(link), 0);
    check_fails(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_ERR_NOT_FOUND, "missing here: link;");
    ck_assert_int_eq(symlink("original/params.json", link), 0);
    check_fails(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_ERR_MISMATCH, "source's: link (");
    ck_assert_int_eq(unlink(link), 0); /* a copy of what the link leads to is accepted */
    write_zeros(link, 100);
    fixture_check_status(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_OK, &err);
    ck_assert_int_eq(unlink(fixture_path("links-out/dangling")), 0);
    ck_assert_int_eq(symlink("elsewhere", fixture_path("links-out/dangling")), 0);
    check_fails(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_ERR_MISMATCH, "source's: dangling (");
}
END_TEST

/* Tensors may be equal although their files are not. */
START_TEST(another_layout_is_noted) {
    static const fixture_tensor tensors[] = {{"a.weight", "BF16", {128, 300}, 2, 0}, {"n", "F32", {7}, 1, 0}};
    const char *in = make_model("layout"), *out = fixture_path("layout-out");
    trf_checkpoint_options options = make_options();
    compress(in, out, &options);
    options = make_options();
    fixture_check_status(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_OK, &err);
    ck_assert_int_eq(num_notes, 0);
    fixture_write_safetensors(fixture_path("layout/model.safetensors"), "{\"other\": \"y\"}", tensors, 2, 8, 5);
    fixture_check_status(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_OK, &err);
    check_noted("model.safetensors: has not the header of the source's file");
}
END_TEST

START_TEST(what_lies_about_does_not_fail_a_check) {
    const char *in = make_model("about"), *out = fixture_path("about-out");
    trf_checkpoint_options options = make_options();
    compress(in, out, &options);
    ck_assert_int_eq(mkfifo(fixture_path("about-out/pipe"), 0666), 0);
    fixture_check_status(trf_verify_checkpoint(out, NULL, &options, NULL, &err), TRF_OK, &err);
    check_noted("pipe: neither a file nor a directory: not counted");
    check_fails(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_ERR_UNSUPPORTED, "pipe");
    static const char *const skip[] = {"pipe", NULL};
    ck_assert_int_eq(rename(fixture_path("about-out/pipe"), fixture_path("about/pipe")), 0);
    check_fails(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_ERR_UNSUPPORTED, "pipe");
    options.skip_extra = skip;
    fixture_check_status(trf_verify_checkpoint(out, in, &options, NULL, &err), TRF_OK, &err);
}
END_TEST

/* ---- indexes of variants ---- */

START_TEST(indexes_by_any_name) {
    static const char index[] = "{\"weight_map\": {\"a.weight\": \"model.safetensors\", \"n\": \"model.safetensors\"}}",
                      idle[] = "{\"weight_map\": {\"a.weight\": \"model.fp16.safetensors\"}}",
                      reordered[] =
                          "{\"weight_map\": {\"n\": \"model.safetensors\", \"a.weight\": \"model.safetensors\"}}";
    const char *in = make_model("variant"), *out = fixture_path("variant-out"), *back = fixture_path("variant-back");
    fixture_write(fixture_path("variant/model.safetensors.index.bf16.json"), index, sizeof index - 1);
    fixture_write(fixture_path("variant/model.safetensors.index.fp16.json"), idle, sizeof idle - 1);
    trf_checkpoint_options options = make_options();
    compress(in, out, &options);
    check_noted("index.fp16.json: none of the files that it names is there");
    size_t bytes;
    char *text = fixture_read(fixture_path("variant-out/model.safetensors.index.bf16.json"), &bytes);
    ck_assert_msg(strstr(text, "\"a.weight_trf\"") && strstr(text, "transfuse_source_index"), "%s", text);
    free(text);
    fixture_check_status(trf_verify_checkpoint(out, in, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_decompress_checkpoint(out, back, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_same(in, back);
    fixture_write(fixture_path("variant/model.safetensors.index.bf16.json"), reordered, sizeof reordered - 1);
    check_fails(trf_verify_checkpoint(out, in, NULL, NULL, &err), TRF_ERR_MISMATCH, "index.bf16.json");
    fixture_write(fixture_path("variant/model.safetensors.index.bf16.json"), index, sizeof index - 1);
    ck_assert_int_eq(unlink(fixture_path("variant-out/model.safetensors.index.bf16.json")), 0);
    check_fails(trf_verify_checkpoint(out, in, NULL, NULL, &err), TRF_ERR_NOT_FOUND, "index.bf16.json");
}
END_TEST

/* Python writes and reads it, here and in config.json. */
START_TEST(an_index_with_numbers_that_json_lacks) {
    static const char index[] = "{\"metadata\": {\"loss\": NaN, \"steps\": 7, \"best\": -Infinity}, \"weight_map\": "
                                "{\"a.weight\": \"model.safetensors\", \"n\": \"model.safetensors\"}}";
    const char *in = make_model("nan"), *out = fixture_path("nan-out"), *back = fixture_path("nan-back");
    size_t bytes;
    fixture_write(fixture_path("nan/model.safetensors.index.json"), index, sizeof index - 1);
    fixture_check_status(trf_compress_checkpoint(in, out, NULL, NULL, &err), TRF_OK, &err);
    char *text = fixture_read(fixture_path("nan-out/model.safetensors.index.json"), &bytes);
    ck_assert_msg(strstr(text, "\"a.weight_trf\"") && strstr(text, "\"steps\": 7,"), "%s", text);
    free(text);
    fixture_check_status(trf_verify_checkpoint(out, in, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_decompress_checkpoint(out, back, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_same(in, back);
}
END_TEST

START_TEST(an_index_that_nobody_can_read) { /* Python's json module raises an error at the mark */
    static const char index[] =
        "\xEF\xBB\xBF{\"weight_map\": {\"a.weight\": \"model.safetensors\", \"n\": \"model.safetensors\"}}";
    const char *in = make_model("marked"), *out = fixture_path("marked-out"), *back = fixture_path("marked-back");
    trf_checkpoint_options options = make_options();
    trf_checkpoint_report report;
    fixture_write(fixture_path("marked/model.safetensors.index.json"), index, sizeof index - 1);
    fixture_check_status(trf_compress_checkpoint(in, out, &options, &report, &err), TRF_OK, &err);
    check_noted(
        "index.json: begins with a byte order mark, with which transformers and diffusers cannot read it; it is "
        "carried over");
    ck_assert_uint_ge(report.compressed_tensors, 1);
    fixture_check_status(trf_verify_checkpoint(out, in, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_decompress_checkpoint(out, back, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_same(in, back);
}
END_TEST

START_TEST(an_index_that_lacks_some_files) {
    static const char index[] = "{\"weight_map\": {\"a.weight\": \"model.safetensors\", \"n\": \"model.safetensors\", "
                                "\"z\": \"other.safetensors\"}}";
    const char *in = make_model("lacks");
    fixture_write(fixture_path("lacks/model.safetensors.index.fp16.json"), index, sizeof index - 1);
    check_fails(trf_compress_checkpoint(in, fixture_path("lacks-out"), NULL, NULL, &err), TRF_ERR_NOT_FOUND,
                "other.safetensors");
    fixture_make_folder(fixture_path("lacks-all"));
    fixture_write(fixture_path("lacks-all/model.safetensors.index.json"), index, sizeof index - 1);
    check_fails(trf_compress_checkpoint(fixture_path("lacks-all"), fixture_path("lacks-out"), NULL, NULL, &err),
                TRF_ERR_NOT_FOUND, "safetensors");
}
END_TEST

/* ---- nothing grows ---- */

START_TEST(a_file_that_would_grow_stays) {
    static const fixture_tensor tensors[] = {{"a.weight", "BF16", {64, 64}, 2, 0},
                                             {"b.weight", "BF16", {64, 64}, 2, 0}};
    static const char *const named[] = {"a.weight", NULL};
    const size_t length = 200000;
    char *metadata = malloc(length + 64);
    ck_assert_ptr_nonnull(metadata);
    sprintf(metadata, "{\"tags\":\"%0*d\"}", (int)length, 7);
    const char *in = fixture_path("grows"), *out = fixture_path("grows-out%d", _i);
    if (_i == 0) {
        fixture_make_folder(in);
        fixture_write_safetensors(fixture_path("grows/model.safetensors"), metadata, tensors, 2, 8, 5);
        fixture_write(fixture_path("grows/config.json"), "{\"model_type\": \"x\"}", 19);
        static const char index[] =
            "{\"weight_map\": {\"a.weight\": \"model.safetensors\", \"b.weight\": \"model.safetensors\"}}";
        fixture_write(fixture_path("grows/model.safetensors.index.json"), index, sizeof index - 1);
    }
    free(metadata);
    trf_checkpoint_options options = make_options();
    options.include = _i ? named : NULL;
    options.dry_run = 1;
    const trf_checkpoint_report expected = compress(in, NULL, &options);
    options.dry_run = 0;
    const trf_checkpoint_report report = compress(in, out, &options);
    ck_assert_uint_eq(report.compressed_tensors, (uint64_t)_i);
    ck_assert_uint_eq(expected.compressed_tensors, (uint64_t)_i);
    if (_i)
        return;
    fixture_check_same(in, out);
    ck_assert_uint_eq(report.output_bytes, report.source_bytes);
    ck_assert_uint_eq(report.output_file_bytes, report.source_file_bytes);
    ck_assert_uint_eq(report.compressed_bytes + report.compressed_weights + report.compressed_source_bytes, 0);
    ck_assert_uint_eq(report.left[TRF_LEFT_NOT_SMALLER].tensors, 2);
    ck_assert_uint_eq(report.left[TRF_LEFT_NOT_SMALLER].bytes, 2 * 64 * 64 * 2);
}
END_TEST

/* ---- -f ---- */

static const struct {
    const char *path; /* added to the folder that is to be replaced */
    int is_folder;
} kForeign[] = {{"mine.txt", 0},          {"loras", 1},   {"loras/mine.txt", 0},
                {"other.safetensors", 0}, {".hidden", 0}, {"original/notes", 0},
                {"config.json.bak", 0},   {".git", 1},    {"README.md/", 1}};

static void make_parents(const char *out, const char *below) {
    char path[1024];
    for (const char *slash = strchr(below, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(path, sizeof path, "%s/%.*s", out, (int)(slash - below), below);
        mkdir(path, 0777);
    }
}

START_TEST(nothing_foreign_is_replaced) {
    const char *in = make_wide("force"), *out = fixture_path("force-out");
    trf_checkpoint_options options = make_options();
    compress(in, out, &options);
    options.overwrite = 1;
    for (size_t i = 0; i < sizeof kForeign / sizeof kForeign[0]; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", out, kForeign[i].path);
        if (strcmp(kForeign[i].path, "README.md/") == 0)
            ck_assert_int_eq(unlink(fixture_path("force-out/README.md")), 0);
        make_parents(out, kForeign[i].path);
        if (kForeign[i].is_folder)
            mkdir(path, 0777);
        else
            fixture_write(path, "work", 4);
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(kForeign[i].path, "/") + (i == 2 || i == 5 ? 5 : 0),
                 kForeign[i].path);
        check_fails(trf_compress_checkpoint(in, out, &options, NULL, &err), TRF_ERR_EXISTS, name);
        ck_assert(fixture_exists(path));
        char command[1200];
        snprintf(command, sizeof command, "rm -rf '%s'", path);
        ck_assert_int_eq(system(command), 0);
        if (strcmp(kForeign[i].path, "loras/mine.txt") == 0)
            ck_assert_int_eq(rmdir(fixture_path("force-out/loras")), 0);
        compress(in, out, &options);
    }
}
END_TEST

START_TEST(what_transfuse_wrote_is_replaced) {
    static const char index[] = "{\"weight_map\": {\"a.weight\": \"shard.safetensors\", \"n\": \"shard.safetensors\"}}";
    const char *former = make_model("former"), *in = make_model("latter"), *out = fixture_path("former-out");
    ck_assert_int_eq(rename(fixture_path("former/model.safetensors"), fixture_path("former/shard.safetensors")), 0);
    fixture_write(fixture_path("former/model.safetensors.index.json"), index, sizeof index - 1);
    ck_assert_int_eq(unlink(fixture_path("latter/config.json")), 0);
    trf_checkpoint_options options = make_options();
    compress(former, out, &options);
    check_fails(trf_compress_checkpoint(in, out, &options, NULL, &err), TRF_ERR_EXISTS, "exists already");
    options.overwrite = 1;
    compress(in, out, &options);
    ck_assert_int_eq(fixture_count_entries(out), 1);
}
END_TEST

/* What appears in the folder during the run counts, too. */
static int add_work(void *context, const char *tensor, uint64_t done, uint64_t total) {
    (void)tensor, (void)done, (void)total;
    fixture_write(context, "work", 4);
    return 0;
}

START_TEST(what_came_meanwhile_stays) {
    const char *in = make_model("meanwhile"), *out = fixture_path("meanwhile-out");
    trf_checkpoint_options options = make_options();
    compress(in, out, &options);
    options.overwrite = 1;
    options.progress = add_work;
    options.progress_context = (void *)fixture_path("meanwhile-out/work");
    check_fails(trf_compress_checkpoint(in, out, &options, NULL, &err), TRF_ERR_EXISTS, "work");
    ck_assert(fixture_exists(fixture_path("meanwhile-out/work")));
}
END_TEST

/* ---- permissions ---- */

static unsigned mode_of(const char *path) {
    struct stat info;
    ck_assert_int_eq(stat(path, &info), 0);
    return info.st_mode & 07777;
}

START_TEST(permissions_stay) {
    static const struct {
        const char *name;
        unsigned mode;
    } modes[] = {{"model.safetensors", 0600},
                 {"config.json", 0664},
                 {"README.md", 0444},
                 {"original", 0550},
                 {"pytorch_model.bin", 0640},
                 {"original/params.json", 0755},
                 {"", 0750},
                 {"original/consolidated.00.pth", 0606}};
    const char *in = make_wide("modes");
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        ck_assert_int_eq(chmod(fixture_path("modes/%s", modes[i].name), modes[i].mode), 0);
    const mode_t mask = umask(0077);
    trf_checkpoint_options options = make_options();
    compress(in, fixture_path("modes-out"), &options);
    options.overwrite = 1;
    compress(in, fixture_path("modes-out"), &options); /* a folder without write permission goes, too */
    fixture_check_status(
        trf_decompress_checkpoint(fixture_path("modes-out"), fixture_path("modes-back"), NULL, NULL, &err), TRF_OK,
        &err);
    compress(fixture_path("modes/model.safetensors"), fixture_path("modes-file"), &options);
    fixture_check_status(
        trf_extract_layer(fixture_path("modes-file"), "a.weight", fixture_path("modes-layer"), 0, &err), TRF_OK, &err);
    umask(mask);
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        ck_assert_uint_eq(mode_of(fixture_path("modes-out/%s", modes[i].name)), modes[i].mode);
        ck_assert_uint_eq(mode_of(fixture_path("modes-back/%s", modes[i].name)), modes[i].mode);
    }
    ck_assert_uint_eq(mode_of(fixture_path("modes-file")), 0600);
    ck_assert_uint_eq(mode_of(fixture_path("modes-layer")), 0600);
    chmod(fixture_path("modes/original"), 0755);
    chmod(fixture_path("modes-out/original"), 0755);
    chmod(fixture_path("modes-back/original"), 0755);
}
END_TEST

/* ---- runs that were killed ---- */

static int kill_self(void *context, const char *tensor, uint64_t done, uint64_t total) {
    (void)context, (void)tensor, (void)total;
    if (done)
        raise(SIGKILL);
    return 0;
}

static void leave_something(const char *in, const char *out) {
    const pid_t child = fork();
    if (child == 0) {
        trf_checkpoint_options options;
        trf_checkpoint_options_init(&options);
        options.progress = kill_self;
        options.overwrite = 1;
        trf_compress_checkpoint(in, out, &options, NULL, NULL);
        _exit(0);
    }
    int how;
    ck_assert_int_eq(waitpid(child, &how, 0), child);
    ck_assert(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
}

START_TEST(leftovers_are_told_and_removed) {
    const char *model = make_model(_i ? "killed-file" : "killed");
    const char *in = _i ? fixture_path("killed-file/model.safetensors") : model;
    const char *place = _i ? "killed-place1" : "killed-place0", *out = fixture_path("%s/out", place);
    fixture_make_folder(fixture_path("%s", place));
    leave_something(in, out);
    ck_assert_int_eq(fixture_count_entries(fixture_path("%s", place)), 1);
    /* Names that are only almost those of temporaries belong to somebody. */
    fixture_make_folder(fixture_path("%s/out.transfuse-tmp-0123456", place));
    fixture_make_folder(fixture_path("%s/out.transfuse-tmp-0123456g", place));
    fixture_make_folder(fixture_path("%s/out.transfuse-tmp-012345678", place));
    fixture_make_folder(fixture_path("%s/outer.transfuse-tmp-01234567", place));
    trf_checkpoint_options options = make_options();
    compress(in, out, &options);
    check_noted("left by a run that was killed");
    ck_assert_int_eq(fixture_count_entries(fixture_path("%s", place)), 6);
    /* The temporary of a run that is still at work is not a leftover. */
    const char *busy = fixture_path("%s/out.transfuse-tmp-abcdef01", place);
    fixture_make_folder(busy);
    const int fd = open(busy, O_RDONLY | O_DIRECTORY);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    options = make_options();
    options.overwrite = 1;
    compress(in, out, &options);
    check_noted("removed; a run that was killed had left it");
    ck_assert_int_eq(num_notes, 1);
    ck_assert_int_eq(fixture_count_entries(fixture_path("%s", place)), 6);
    ck_assert(fixture_exists(busy));
    close(fd);
    compress(in, out, &options);
    ck_assert(!fixture_exists(busy));
}
END_TEST

START_TEST(a_former_folder_is_kept) {
    const char *in = make_model("moved"), *out = fixture_path("moved-out");
    const char *former = fixture_path("moved-out.transfuse-old-00c0ffee");
    fixture_make_folder(former);
    fixture_write(fixture_path("moved-out.transfuse-old-00c0ffee/work"), "work", 4);
    trf_checkpoint_options options = make_options();
    options.overwrite = 1;
    compress(in, out, &options);
    check_noted("this is the former one, and it is kept");
    ck_assert(fixture_exists(fixture_path("moved-out.transfuse-old-00c0ffee/work")));
}
END_TEST

/* ---- space, and dry runs ---- */

START_TEST(too_little_space_is_told_first) {
    const char *in = make_model("space"), *out = fixture_path("space-out"), *back = fixture_path("space-back");
    trf_checkpoint_options options = make_options();
    const trf_checkpoint_report report = compress(in, fixture_path("space-first"), &options);
    ck_assert_uint_lt(report.output_file_bytes, report.source_file_bytes);
    free_bytes = report.output_file_bytes + 100; /* less than the source's size, yet enough */
    const trf_checkpoint_report again = compress(in, out, &options);
    ck_assert_uint_eq(again.output_file_bytes, report.output_file_bytes);
    ck_assert_uint_eq(again.compressed_bytes, report.compressed_bytes);
    check_fails(trf_decompress_checkpoint(out, back, NULL, NULL, &err), TRF_ERR_IO, "are free");
    free_bytes = report.output_file_bytes / 2;
    const int entries = fixture_count_entries(fixture_path("."));
    check_fails(trf_compress_checkpoint(in, fixture_path("space-no/"), &options, NULL, &err), TRF_ERR_IO,
                "needs about");
    ck_assert_int_eq(fixture_count_entries(fixture_path(".")), entries);
    free_bytes = UINT64_MAX;
}
END_TEST

static const struct {
    fixture_tensor tensor;
    trf_favor favor;
    double bits;
    double within;
} kEstimated[] = {
    {{"a.weight", "BF16", {2048, 1024}, 2, 0}, TRF_FAVOR_SPEED, 0, 0.02},
    {{"a.weight", "BF16", {1000, 1100}, 2, 0}, TRF_FAVOR_SIZE, 0, 0.02},
    {{"a.weight", "BF16", {3000, 3000}, 2, 0}, TRF_FAVOR_SPEED, 0, 0.02},
    {{"a.weight", "BF16", {64, 8192}, 2, 0}, TRF_FAVOR_SPEED, 0, 0.02},
    {{"a.weight", "BF16", {8192, 48}, 2, 0}, TRF_FAVOR_SPEED, 0, 0.02},
    {{"a.weight", "F16", {512, 2048}, 2, 0}, TRF_FAVOR_SPEED, 0, 0.02},
    {{"a.weight", "F8_E4M3", {1024, 1024}, 2, 0}, TRF_FAVOR_SPEED, 0, 0.02},
    {{"a.weight", "BF16", {40, 96, 512}, 3, 0}, TRF_FAVOR_SPEED, 0, 0.02},
    {{"a.weight", "BF16", {1024, 1024}, 2, 0}, TRF_FAVOR_SPEED, 4.25, 0.02},
    {{"a.weight", "BF16", {3000, 1000}, 2, 0}, TRF_FAVOR_SIZE, 6.5, 0.02},
};

START_TEST(a_dry_run_tells_the_size) {
    const char *name = fixture_path("dry%d", _i);
    fixture_make_folder(name);
    fixture_write_safetensors(fixture_path("dry%d/model.safetensors", _i), NULL, &kEstimated[_i].tensor, 1, 8, 5);
    fixture_write(fixture_path("dry%d/config.json", _i), "{\"model_type\": \"x\"}", 19);
    fixture_write(fixture_path("dry%d/extra.bin", _i), "123", 3);
    trf_checkpoint_options options = make_options();
    options.encode.favor = kEstimated[_i].favor;
    if (kEstimated[_i].bits > 0) {
        options.encode.codec = TRF_CODEC_INT;
        options.encode.bits = kEstimated[_i].bits;
        options.encode.granularity = TRF_GRANULARITY_SCALE_GROUP;
        options.encode.scale_group_size = 64;
    }
    options.dry_run = 1;
    const int entries = fixture_count_entries(fixture_path("."));
    trf_checkpoint_report estimate = compress(name, NULL, &options);
    check_noted("carried over uncompressed: 3 bytes in extra.bin");
    compress(name, fixture_path("dry-out"), &options);
    ck_assert_int_eq(fixture_count_entries(fixture_path(".")), entries);
    check_fails(trf_compress_checkpoint(name, name, &options, NULL, &err), TRF_ERR_ARGUMENT, "is the input");
    options.dry_run = 0;
    const char *out = fixture_path("dry-out%d", _i);
    const trf_checkpoint_report report = compress(name, out, &options);
    options.dry_run = 1;
    check_fails(trf_compress_checkpoint(name, out, &options, NULL, &err), TRF_ERR_EXISTS, "exists already");
    ck_assert_uint_eq(estimate.compressed_tensors, 1);
    ck_assert_uint_eq(estimate.compressed_weights, report.compressed_weights);
    ck_assert_uint_eq(estimate.source_file_bytes, report.source_file_bytes);
    ck_assert_int_eq(estimate.relative_rms_error > 0, report.relative_rms_error > 0);
    const double real = (double)report.output_file_bytes, guess = (double)estimate.output_file_bytes;
    printf("%.0f, estimated %.0f: %+.2f %%\n", real, guess, 100 * (guess / real - 1));
    ck_assert_double_eq_tol(guess / real, 1, kEstimated[_i].within);
}
END_TEST

enum {
    UNLIKE_ROWS = 1536,
    UNLIKE_COLS = 2048
};

/* Whether a matrix has noise in place of a weight. */
static int is_noise(int pattern, size_t row, size_t col) {
    const int lower = row >= UNLIKE_ROWS / 2, right = col >= UNLIKE_COLS / 2;
    switch (pattern) {
    case 0:
        return lower;
    case 1:
        return right;
    case 2:
        return lower && right;
    case 3:
        return lower != right;
    case 4:
        return row / (UNLIKE_ROWS / 4) % 2;
    default:
        return row % 2 && lower;
    }
}

START_TEST(a_dry_run_sees_parts_that_are_unlike) {
    static const fixture_tensor tensor = {"a.weight", "BF16", {UNLIKE_ROWS, UNLIKE_COLS}, 2, 0};
    const char *path = fixture_path("unlike%d", _i);
    fixture_write_safetensors(path, NULL, &tensor, 1, 8, 5);
    size_t size;
    uint8_t *file = fixture_read(path, &size), *weights = file + size - 2 * UNLIKE_ROWS * UNLIKE_COLS;
    uint32_t state = 1;
    for (size_t i = 0; i < UNLIKE_ROWS * UNLIKE_COLS; i++) {
        state = state * 1664525 + 1013904223;
        if (is_noise(_i, i / UNLIKE_COLS, i % UNLIKE_COLS))
            memcpy(weights + 2 * i, (uint8_t *)&state + 2, 2);
    }
    fixture_write(path, file, size);
    free(file);
    trf_checkpoint_options options = make_options();
    options.dry_run = 1;
    const trf_checkpoint_report estimate = compress(path, NULL, &options);
    options.dry_run = 0;
    const trf_checkpoint_report report = compress(path, fixture_path("unlike-out%d", _i), &options);
    const double real = (double)report.output_file_bytes, guess = (double)estimate.output_file_bytes;
    printf("%.0f, estimated %.0f: %+.2f %%\n", real, guess, 100 * (guess / real - 1));
    ck_assert_double_eq_tol(guess / real, 1, 0.03);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("checkpoint_folder");
    TCase *tests = tcase_create("folder");
    tcase_add_unchecked_fixture(tests, fixture_begin, fixture_end);
    tcase_add_test(tests, weights_below_are_told);
    tcase_add_test(tests, files_are_left_out);
    tcase_add_loop_test(tests, globs_that_leave_nothing_out, 0, 4);
    tcase_add_test(tests, carried_files_are_compared);
    tcase_add_test(tests, added_files_are_told);
    tcase_add_test(tests, a_file_in_the_place_of_a_folder_differs);
    tcase_add_test(tests, many_differing_files_are_counted);
    tcase_add_test(tests, links_are_compared);
    tcase_add_test(tests, another_layout_is_noted);
    tcase_add_test(tests, what_lies_about_does_not_fail_a_check);
    tcase_add_test(tests, indexes_by_any_name);
    tcase_add_test(tests, an_index_with_numbers_that_json_lacks);
    tcase_add_test(tests, an_index_that_nobody_can_read);
    tcase_add_test(tests, an_index_that_lacks_some_files);
    tcase_add_loop_test(tests, a_file_that_would_grow_stays, 0, 2);
    tcase_add_test(tests, nothing_foreign_is_replaced);
    tcase_add_test(tests, what_transfuse_wrote_is_replaced);
    tcase_add_test(tests, what_came_meanwhile_stays);
    tcase_add_test(tests, permissions_stay);
    tcase_add_loop_test(tests, leftovers_are_told_and_removed, 0, 2);
    tcase_add_test(tests, a_former_folder_is_kept);
    tcase_add_test(tests, too_little_space_is_told_first);
    tcase_add_loop_test(tests, a_dry_run_tells_the_size, 0, sizeof kEstimated / sizeof kEstimated[0]);
    tcase_add_loop_test(tests, a_dry_run_sees_parts_that_are_unlike, 0, 6);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
