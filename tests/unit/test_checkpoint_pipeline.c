/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines: a folder with a model_index.json, whose models lie in folders of their own. */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MODELS = 20
};

static trf_error err;
static char notes[8192];

static void take_note(void *context, const char *line) {
    (void)context;
    snprintf(notes + strlen(notes), sizeof notes - strlen(notes), "%s\n", line);
}

static trf_checkpoint_options make_options(void) {
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.threads = 1;
    options.note = take_note;
    notes[0] = 0;
    return options;
}

static void check_noted(const char *text) { ck_assert_msg(strstr(notes, text) != NULL, "no '%s': %s", text, notes); }

static void check_fails(trf_status status, trf_status expected, const char *word) {
    fixture_check_status(status, expected, &err);
    ck_assert_msg(strstr(err.message, word) != NULL, "no '%s': %s", word, err.message);
}

static void make_part(const char *root, const char *part, const char *config, const char *own, uint64_t seed) {
    const fixture_tensor tensors[] = {{"common.weight", "BF16", {64, 256}, 2, 0}, {own, "BF16", {64, 272}, 2, 0}};
    fixture_make_folder(fixture_path("%s/%s", root, part));
    fixture_write_safetensors(fixture_path("%s/%s/model.fp16.safetensors", root, part), NULL, tensors, 2, 8, seed);
    fixture_write(fixture_path("%s/%s/config.json", root, part), config, strlen(config));
    char index[256];
    snprintf(index, sizeof index,
             "{\"weight_map\": {\"common.weight\": \"model.fp16.safetensors\", \"%s\": \"model.fp16.safetensors\"}}",
             own);
    fixture_write(fixture_path("%s/%s/model.safetensors.index.fp16.json", root, part), index, strlen(index));
}

/* Twenty models, a scheduler, and a large file at the top. */
static const char *make_root(const char *root) {
    static const fixture_tensor whole[] = {{"w", "BF16", {64, 256}, 2, 0}};
    fixture_make_folder(fixture_path("%s", root));
    fixture_write(fixture_path("%s/model_index.json", root), "{\"_class_name\": \"P\"}", 21);
    for (int i = 0; i < MODELS; i++) {
        char part[32], own[32];
        snprintf(part, sizeof part, "part_%02d", i);
        snprintf(own, sizeof own, "own%d.weight", i);
        make_part(root, part, "{\n  \"_class_name\": \"X\"\n}\n", own, (uint64_t)i + 1);
    }
    fixture_make_folder(fixture_path("%s/scheduler", root));
    fixture_write(fixture_path("%s/scheduler/scheduler_config.json", root), "{}", 2);
    fixture_write_safetensors(fixture_path("%s/flux1-dev.safetensors", root), NULL, whole, 1, 8, 99);
    return fixture_path("%s", root);
}

START_TEST(a_root_comes_back) {
    const char *in = make_root("root"), *out = fixture_path("root-out"), *back = fixture_path("root-back");
    trf_checkpoint_options options = make_options();
    trf_checkpoint_report report, later;
    fixture_check_status(trf_compress_checkpoint(in, out, &options, &report, &err), TRF_OK, &err);
    ck_assert_uint_eq(report.models, MODELS);
    ck_assert_uint_eq(report.tensors, 2 * MODELS);
    ck_assert_uint_eq(report.compressed_tensors, 2 * MODELS);
    ck_assert_uint_eq(report.extra_files, 1);
    ck_assert_uint_lt(report.output_file_bytes, report.source_file_bytes);
    check_noted("carried over uncompressed: 32.8 kB in flux1-dev.safetensors");
    fixture_check_same(fixture_path("root/flux1-dev.safetensors"), fixture_path("root-out/flux1-dev.safetensors"));
    size_t bytes;
    char *text = fixture_read(fixture_path("root-out/part_07/config.json"), &bytes);
    ck_assert_msg(strstr(text, "\"quant_method\": \"transfuse\"") != NULL, "%s", text);
    free(text);
    options = make_options();
    fixture_check_status(trf_verify_checkpoint(out, in, &options, &later, &err), TRF_OK, &err);
    ck_assert_str_eq(notes, "");
    ck_assert_uint_eq(later.compressed_bytes, report.compressed_bytes);
    ck_assert_uint_eq(later.output_file_bytes, report.output_file_bytes);
    ck_assert_uint_eq(later.source_file_bytes, report.source_file_bytes);
    ck_assert_uint_eq(later.models, MODELS);
    fixture_check_status(trf_decompress_checkpoint(out, back, &options, &later, &err), TRF_OK, &err);
    fixture_check_same(in, back);
    ck_assert_uint_eq(later.models, MODELS);
    options.overwrite = 1;
    fixture_check_status(trf_compress_checkpoint(in, out, &options, NULL, &err), TRF_OK, &err);
}
END_TEST

START_TEST(a_root_is_listed) {
    trf_checkpoint *checkpoint;
    trf_tensor_info info;
    fixture_check_status(trf_checkpoint_open(fixture_path("root-out"), &checkpoint, &err), TRF_OK, &err);
    ck_assert_uint_eq(trf_checkpoint_num_tensors(checkpoint), 2 * MODELS);
    for (uint64_t i = 0; i < 2 * MODELS; i++) {
        char part[32];
        snprintf(part, sizeof part, "/part_%02d/", (int)i / 2);
        fixture_check_status(trf_checkpoint_tensor(checkpoint, i, &info, &err), TRF_OK, &err);
        ck_assert_msg(strstr(info.file, part) != NULL, "%s: %s", info.file, part);
        ck_assert(info.compressed && info.blobs == 1);
    }
    check_fails(trf_checkpoint_tensor(checkpoint, 2 * MODELS, &info, &err), TRF_ERR_ARGUMENT, "40");
    trf_checkpoint_close(checkpoint);
    const char *out = fixture_path("layer.trf");
    fixture_check_status(trf_extract_layer(fixture_path("root-out"), "own3.weight", out, 0, &err), TRF_OK, &err);
    check_fails(trf_extract_layer(fixture_path("root-out"), "common.weight", out, 1, &err), TRF_ERR_ARGUMENT,
                "open the folder of one of them");
    check_fails(trf_extract_layer(fixture_path("root-out"), "none", out, 1, &err), TRF_ERR_NOT_FOUND, "none");
}
END_TEST

static void damage(const char *path, long from_end) {
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    fseek(file, -from_end, SEEK_END);
    const int byte = fgetc(file);
    fseek(file, -from_end, SEEK_END);
    fputc(byte ^ 0x55, file);
    fclose(file);
}

START_TEST(differences_name_the_part) {
    const char *in = make_root("differs"), *out = fixture_path("differs-out");
    fixture_check_status(trf_compress_checkpoint(in, out, NULL, NULL, &err), TRF_OK, &err);
    damage(fixture_path("differs/part_11/model.fp16.safetensors"), 2);
    check_fails(trf_verify_checkpoint(out, in, NULL, NULL, &err), TRF_ERR_MISMATCH, "part_11/model.fp16.safetensors");
    ck_assert_msg(strstr(err.message, "own11.weight") != NULL, "%s", err.message);
    damage(fixture_path("differs/part_11/model.fp16.safetensors"), 2);
    damage(fixture_path("differs-out/flux1-dev.safetensors"), 1);
    check_fails(trf_verify_checkpoint(out, in, NULL, NULL, &err), TRF_ERR_MISMATCH, "flux1-dev.safetensors");
    damage(fixture_path("differs-out/flux1-dev.safetensors"), 1);
    fixture_write(fixture_path("differs/part_05/config.json"), "{}", 2);
    check_fails(trf_verify_checkpoint(out, in, NULL, NULL, &err), TRF_ERR_MISMATCH, "part_05/config.json");
    ck_assert_int_eq(unlink(fixture_path("differs-out/part_02/model.fp16.safetensors")), 0);
    check_fails(trf_verify_checkpoint(out, in, NULL, NULL, &err), TRF_ERR_NOT_FOUND, "part_02");
    ck_assert_int_eq(unlink(fixture_path("differs-out/part_01/config.json")), 0);
    check_fails(trf_verify_checkpoint(out, in, NULL, NULL, &err), TRF_ERR_NOT_FOUND,
                "differs-out: part_01/config.json of ");
    check_fails(trf_verify_checkpoint(fixture_path("root-out/part_01"), in, NULL, NULL, &err), TRF_ERR_ARGUMENT,
                "pipeline");
}
END_TEST

START_TEST(files_of_a_part_that_was_added_are_named) {
    trf_checkpoint_options options = make_options();
    trf_checkpoint_report report;
    const char *in = make_root("fewer"), *out = fixture_path("fewer-out");
    fixture_check_status(trf_compress_checkpoint(in, out, NULL, NULL, &err), TRF_OK, &err);
    make_part("fewer-out", "part_99", "{}", "own99.weight", 99);
    fixture_check_status(trf_verify_checkpoint(out, in, &options, &report, &err), TRF_OK, &err);
    check_noted("not in the source: part_99/config.json, part_99/model.fp16.safetensors, "
                "part_99/model.safetensors.index.fp16.json\n");
    ck_assert_uint_eq(report.added_files, 3);
}
END_TEST

START_TEST(parts_that_stay) {
    const char *in = fixture_path("stay"), *out = fixture_path("stay-out"), *back = fixture_path("stay-back");
    fixture_make_folder(in);
    fixture_write(fixture_path("stay/model_index.json"), "{}", 2);
    make_part("stay", "unet", "{}", "a.weight", 1);
    make_part("stay", "text_encoder", "{\"quantization_config\": {\"quant_method\": \"other\"}}", "b.weight", 2);
    fixture_make_folder(fixture_path("stay/vae"));
    fixture_write(fixture_path("stay/vae/config.json"), "{}", 2);
    fixture_write(fixture_path("stay/vae/diffusion_pytorch_model.bin"), "12345", 5);
    ck_assert_int_eq(symlink("unet", fixture_path("stay/unet_2")), 0);
    trf_checkpoint_options options = make_options();
    trf_checkpoint_report report;
    fixture_check_status(trf_compress_checkpoint(in, out, &options, &report, &err), TRF_OK, &err);
    ck_assert_uint_eq(report.models, 1);
    ck_assert_uint_eq(report.compressed_tensors, 2);
    ck_assert_uint_eq(report.extra_files, 2);
    check_noted("text_encoder/ is carried over as it is: ");
    check_noted("in 1 file under text_encoder/");
    check_noted("5 bytes in 1 file under vae/");
    fixture_check_same(fixture_path("stay/text_encoder"), fixture_path("stay-out/text_encoder"));
    fixture_check_status(trf_verify_checkpoint(out, in, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_decompress_checkpoint(out, back, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_same(in, back);
    check_fails(trf_compress_checkpoint(out, fixture_path("stay-twice"), NULL, NULL, &err), TRF_ERR_ARGUMENT,
                "is compressed already");
}
END_TEST

static int has_text(const char *path, const char *text) {
    size_t bytes;
    char *whole = fixture_read(path, &bytes);
    const int has = strstr(whole, text) != NULL;
    free(whole);
    return has;
}

START_TEST(only_parts_that_need_it_are_stored) {
    const char *in = fixture_path("store"), *out = fixture_path("store-out"), *back = fixture_path("store-back");
    fixture_make_folder(in);
    fixture_write(fixture_path("store/model_index.json"), "{}", 2);
    make_part("store", "unet", "{}", "embed_tokens.weight", 1);
    make_part("store", "text_encoder", "{\"quantization_config\": {\"quant_method\": \"other\"}}",
              "embed_tokens.weight", 2);
    trf_checkpoint_options options = make_options();
    trf_checkpoint_report report;
    options.store_only = 1;
    fixture_check_status(trf_compress_checkpoint(in, out, &options, &report, &err), TRF_OK, &err);
    check_noted("text_encoder: is stored only");
    ck_assert_msg(!strstr(notes, "unet: is stored only"), "%s", notes);
    ck_assert(has_text(fixture_path("store-out/text_encoder/config.json"), "\"stored\": true"));
    ck_assert(!has_text(fixture_path("store-out/unet/config.json"), "\"stored\""));
    ck_assert(has_text(fixture_path("store-out/unet/config.json"), "\"quant_method\": \"transfuse\""));
    ck_assert_uint_eq(report.compressed_tensors, 3);
    ck_assert_uint_eq(report.left[TRF_LEFT_EMBEDDING].tensors, 1); /* the embedding of the part that can be loaded */
    fixture_check_status(trf_verify_checkpoint(out, in, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_decompress_checkpoint(out, back, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_same(in, back);
}
END_TEST

START_TEST(what_diffusers_cannot_read_is_told) {
    static const char *const indexes[] = {"{\"_class_name\"", "[]", "\xEF\xBB\xBF{}", "{}"};
    const char *in = fixture_path("unread"), *out = fixture_path("unread-out");
    fixture_make_folder(in);
    make_part("unread", "unet", "{\"_class_name\"", "a.weight", 1);
    make_part("unread", "vae", "{}", "b.weight", 2);
    for (int i = 0; i < 4; i++) {
        fixture_write(fixture_path("unread/model_index.json"), indexes[i], strlen(indexes[i]));
        trf_checkpoint_options options = make_options();
        trf_checkpoint_report report;
        options.overwrite = 1;
        fixture_check_status(trf_compress_checkpoint(in, out, &options, &report, &err), TRF_OK, &err);
        ck_assert_msg(!strstr(notes, "model_index.json") == (i == 3), "%s: %s", indexes[i], notes);
        check_noted("unet/ is carried over as it is: ");
        check_noted("unet/config.json: not valid JSON");
        ck_assert_uint_eq(report.models, 1);
        ck_assert_uint_eq(report.compressed_tensors, 2);
        fixture_check_same(fixture_path("unread/unet"), fixture_path("unread-out/unet"));
        fixture_check_status(trf_verify_checkpoint(out, in, NULL, NULL, &err), TRF_OK, &err);
    }
}
END_TEST

START_TEST(links_out_of_the_root_are_followed) { /* as in the cache of the Hugging Face hub */
    const char *in = fixture_path("hub"), *out = fixture_path("hub-out"), *back = fixture_path("hub-back");
    fixture_make_folder(in);
    fixture_make_folder(fixture_path("hub/snapshot"));
    fixture_make_folder(fixture_path("hub/snapshot/unet"));
    make_part("hub", "blobs", "{}", "a.weight", 1);
    static const char *const names[] = {"model.fp16.safetensors", "config.json", "model.safetensors.index.fp16.json"};
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(
            symlink(fixture_path("hub/blobs/%s", names[i]), fixture_path("hub/snapshot/unet/%s", names[i])), 0);
    fixture_write(fixture_path("hub/index"), "{}", 2);
    ck_assert_int_eq(symlink("../index", fixture_path("hub/snapshot/model_index.json")), 0);
    trf_checkpoint_report report;
    fixture_check_status(trf_compress_checkpoint(fixture_path("hub/snapshot"), out, NULL, &report, &err), TRF_OK, &err);
    ck_assert_uint_eq(report.compressed_tensors, 2);
    fixture_check_status(trf_decompress_checkpoint(out, back, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_same(fixture_path("hub/blobs"), fixture_path("hub-back/unet"));
}
END_TEST

START_TEST(what_is_no_pipeline) {
    fixture_make_folder(fixture_path("hollow"));
    fixture_write(fixture_path("hollow/model_index.json"), "{}", 2);
    check_fails(trf_compress_checkpoint(fixture_path("hollow"), fixture_path("hollow-out"), NULL, NULL, &err),
                TRF_ERR_NOT_FOUND, "pipeline");
    /* The message names a part that cannot be read. */
    make_part("hollow", "unet", "{}", "a.weight", 1);
    fixture_write(fixture_path("hollow/unet/model.fp16.safetensors"), "123", 3);
    check_fails(trf_compress_checkpoint(fixture_path("hollow"), fixture_path("hollow-out"), NULL, NULL, &err),
                TRF_ERR_TRUNCATED, "unet/model.fp16.safetensors");
    ck_assert(!fixture_exists(fixture_path("hollow-out")));
}
END_TEST

START_TEST(a_part_in_which_nothing_shrinks) {
    static const char *const only[] = {"own0.weight", NULL};
    const char *in = make_root("one"), *out = fixture_path("one-out");
    trf_checkpoint_options options = make_options();
    options.include = only;
    trf_checkpoint_report report;
    fixture_check_status(trf_compress_checkpoint(in, out, &options, &report, &err), TRF_OK, &err);
    ck_assert_uint_eq(report.compressed_tensors, 1);
    for (int i = 1; i < MODELS; i++)
        fixture_check_same(fixture_path("one/part_%02d", i), fixture_path("one-out/part_%02d", i));
    fixture_check_status(trf_verify_checkpoint(out, in, NULL, NULL, &err), TRF_OK, &err);
}
END_TEST

/* A pattern with a slash may begin with the part; all models have the tensor common.weight. */
START_TEST(patterns_may_name_the_part) {
    static const struct {
        const char *include, *exclude;
        uint64_t compressed; /* 0: nothing matches */
    } cases[] = {
        {"part_03/*", NULL, 2},
        {"part_03/common.weight", NULL, 1},
        {"*/common.weight", NULL, MODELS},
        {"part_03/own*", "part_0?/*", 0},
        {NULL, "part_1*/*", 20},
        {NULL, "part_07/common.weight", 2 * MODELS - 1},
        {"part_3/*", NULL, 0},
        {"part_0*", NULL, 0},
        {NULL, "part_07/own8.weight", 0},
    };
    const char *in = make_root("patterns"), *out = fixture_path("patterns-out");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const include[] = {cases[i].include, NULL}, *const exclude[] = {cases[i].exclude, NULL};
        trf_checkpoint_options options = make_options();
        trf_checkpoint_report report;
        options.include = include;
        options.exclude = exclude;
        options.overwrite = 1;
        const int matches = cases[i].compressed || (cases[i].include && cases[i].exclude);
        fixture_check_status(trf_compress_checkpoint(in, out, &options, &report, &err),
                             matches ? TRF_OK : TRF_ERR_NOT_FOUND, &err);
        if (matches)
            ck_assert_uint_eq(report.compressed_tensors, cases[i].compressed);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("checkpoint_pipeline");
    TCase *tests = tcase_create("pipeline");
    tcase_add_unchecked_fixture(tests, fixture_begin, fixture_end);
    tcase_add_test(tests, a_root_comes_back);
    tcase_add_test(tests, a_root_is_listed);
    tcase_add_test(tests, files_of_a_part_that_was_added_are_named);
    tcase_add_test(tests, differences_name_the_part);
    tcase_add_test(tests, parts_that_stay);
    tcase_add_test(tests, only_parts_that_need_it_are_stored);
    tcase_add_test(tests, what_diffusers_cannot_read_is_told);
    tcase_add_test(tests, links_out_of_the_root_are_followed);
    tcase_add_test(tests, what_is_no_pipeline);
    tcase_add_test(tests, a_part_in_which_nothing_shrinks);
    tcase_add_test(tests, patterns_may_name_the_part);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
