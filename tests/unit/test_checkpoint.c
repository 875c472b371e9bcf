/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints that are compressed and decompressed: files, directories, indexes, tensors of experts; listing,
 * verifying, extracting. Tiles are decoded in parallel. */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "trf_checkpoint_file.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const fixture_tensor kTensors[] = {
    {"a.weight", "BF16", {300, 520}, 2, 0},
    {"odd", "U8", {3}, 1, 0},
    {"scalar", "F32", {0}, 0, 0},
    {"empty.weight", "BF16", {0, 64}, 2, 0},
    {"half.weight", "F16", {64, 272}, 2, 0},
    {"x.embed_tokens.weight", "BF16", {512, 64}, 2, 0},
    {"experts.up_proj", "BF16", {5, 48, 320}, 3, 0},
    {"single.weight", "F32", {128, 128}, 2, 0},
    {"unheard\"of", "Q7", {2, 2}, 2, 5},
    {"e4.weight", "F8_E4M3", {256, 300}, 2, 0},
    {"e5.weight", "F8_E5M2", {256, 300}, 2, 0},
    {"i8\xc3\xa9\n.weight", "I8", {100, 256}, 2, 0},
    {"long", "I64", {2}, 1, 0},
};
enum {
    NUM_TENSORS = sizeof kTensors / sizeof kTensors[0],
    NUM_COMPRESSED = 6
};

static trf_error err;

static trf_checkpoint_options make_options(void) {
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.threads = 2;
    return options;
}

/* Compresses, verifies with and without the source, decompresses to `back`. */
static trf_checkpoint_report go_there_and_back(const char *in, const char *compressed_path, const char *back,
                                               const trf_checkpoint_options *options) {
    trf_checkpoint_report report, verified;
    fixture_check_status(trf_compress_checkpoint(in, compressed_path, options, &report, &err), TRF_OK, &err);
    fixture_check_status(trf_verify_checkpoint(compressed_path, NULL, options, &verified, &err), TRF_OK, &err);
    ck_assert_uint_eq(verified.compressed_bytes, report.compressed_bytes);
    fixture_check_status(trf_verify_checkpoint(compressed_path, in, options, &verified, &err), TRF_OK, &err);
    ck_assert_uint_eq(verified.tensors, report.tensors);
    ck_assert_uint_eq(verified.compressed_tensors, report.compressed_tensors);
    ck_assert_uint_eq(verified.output_bytes, report.output_bytes);
    ck_assert_uint_eq(verified.compressed_weights, report.compressed_weights);
    ck_assert_double_eq_tol(verified.relative_rms_error, report.relative_rms_error, 1e-6);
    fixture_check_status(trf_decompress_checkpoint(compressed_path, back, options, NULL, &err), TRF_OK, &err);
    return report;
}

START_TEST(file_comes_back_byte_for_byte) {
    static const char *const kMetadata[] = {NULL, "{}", "{\"format\":\"pt\",\"k\\n\":\"v\\\"\"}"};
    static const uint32_t kPadding[] = {1, 8, 4096};
    const char *in = fixture_path("in%d.safetensors", _i), *compressed_path = fixture_path("packed%d.safetensors", _i);
    const char *back = fixture_path("back%d.safetensors", _i);
    trf_checkpoint_options options = make_options();
    options.encode.favor = _i % 2 ? TRF_FAVOR_SIZE : TRF_FAVOR_SPEED;
    fixture_write_safetensors(in, kMetadata[_i], kTensors, NUM_TENSORS, kPadding[_i], 1);
    trf_checkpoint_report report = go_there_and_back(in, compressed_path, back, &options);
    fixture_check_same(in, back);
    ck_assert_uint_eq(report.tensors, NUM_TENSORS);
    ck_assert_uint_eq(report.compressed_tensors, NUM_COMPRESSED);
    ck_assert_uint_lt(report.output_bytes, report.source_bytes);
    ck_assert_uint_lt(report.compressed_bytes, report.compressed_source_bytes);
    ck_assert_double_eq(report.relative_rms_error, 0);
    ck_assert_uint_eq(report.rounded_tensors, 0);
}
END_TEST

START_TEST(compressed_file_is_laid_out_as_promised) {
    const char *in = fixture_path("l.safetensors"), *compressed_path = fixture_path("l.packed");
    trf_checkpoint_file checkpoint_file;
    trf_checkpoint_options options = make_options();
    fixture_write_safetensors(in, "{\"format\":\"pt\"}", kTensors, NUM_TENSORS, 8, 2);
    fixture_check_status(trf_compress_checkpoint(in, compressed_path, &options, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_checkpoint_file_open(compressed_path, &checkpoint_file, &err), TRF_OK, &err);
    ck_assert(checkpoint_file.compressed && !checkpoint_file.is_layer);
    uint64_t data = trf_safetensors_data_offset(&checkpoint_file.own_header);
    ck_assert_uint_eq(data % 16, 0);
    ck_assert_str_eq(trf_safetensors_metadata(&checkpoint_file.own_header, "format"), "pt");
    ck_assert_str_eq(trf_safetensors_metadata(&checkpoint_file.own_header, "transfuse_format"), "1");
    int others = 0;
    for (size_t i = 0; i < checkpoint_file.own_header.num_tensors; i++) {
        const trf_tensor *tensor = &checkpoint_file.own_header.tensors[i];
        uint32_t bits = trf_dtype_bits_of_name(tensor->dtype);
        int is_blob = strstr(tensor->name, "_trf") != NULL;
        ck_assert_msg(!is_blob || !others, "%s comes after other tensors", tensor->name);
        ck_assert_msg(!is_blob || (data + tensor->begin) % 16 == 0, "%s is not aligned", tensor->name);
        ck_assert_msg(bits < 8 || (data + tensor->begin) % (bits / 8) == 0, "%s is not aligned", tensor->name);
        others |= !is_blob;
    }
    ck_assert_ptr_nonnull(trf_safetensors_find(&checkpoint_file.own_header, "a.weight_trf"));
    ck_assert_ptr_nonnull(trf_safetensors_find(&checkpoint_file.own_header, "experts.up_proj_trf"));
    ck_assert_ptr_null(trf_safetensors_find(&checkpoint_file.own_header, "a.weight"));
    trf_checkpoint_file_free(&checkpoint_file);
}
END_TEST

START_TEST(listing_tells_the_source) {
    const char *in = fixture_path("list.safetensors"), *compressed_path = fixture_path("list.packed");
    trf_checkpoint_options options = make_options();
    fixture_write_safetensors(in, NULL, kTensors, NUM_TENSORS, 8, 3);
    fixture_check_status(trf_compress_checkpoint(in, compressed_path, &options, NULL, &err), TRF_OK, &err);
    for (int compressed = 0; compressed < 2; compressed++) {
        trf_checkpoint *checkpoint;
        trf_tensor_info info;
        fixture_check_status(trf_checkpoint_open(compressed ? compressed_path : in, &checkpoint, &err), TRF_OK, &err);
        ck_assert_uint_eq(trf_checkpoint_num_tensors(checkpoint), NUM_TENSORS);
        for (uint64_t i = 0; i < NUM_TENSORS; i++) {
            fixture_check_status(trf_checkpoint_tensor(checkpoint, i, &info, &err), TRF_OK, &err);
            ck_assert_str_eq(info.name, kTensors[i].name);
            ck_assert_str_eq(info.dtype, kTensors[i].dtype);
            ck_assert_uint_eq(info.num_dims, kTensors[i].num_dims);
            ck_assert_int_eq(memcmp(info.shape, kTensors[i].shape, info.num_dims * sizeof *info.shape), 0);
            ck_assert_str_eq(info.file, compressed ? compressed_path : in);
            int is_expert_tensor = compressed && i == 6;
            ck_assert_uint_eq(info.blobs, is_expert_tensor ? 5 : (uint64_t)info.compressed);
            if (is_expert_tensor) {
                ck_assert_uint_eq(info.layer.rows, 48);
                ck_assert_uint_eq(info.layer.cols, 320);
                ck_assert_uint_eq(info.layer.tiles, 10);
                ck_assert_uint_eq(info.layer.blob_bytes + 64, info.bytes);
            }
        }
        fixture_check_status(trf_checkpoint_tensor(checkpoint, NUM_TENSORS, &info, &err), TRF_ERR_ARGUMENT, &err);
        trf_checkpoint_close(checkpoint);
    }
}
END_TEST

START_TEST(single_floats_are_compressed_on_request) {
    const char *in = fixture_path("f32.safetensors");
    for (int lossy = 0; lossy < 2; lossy++) {
        const char *compressed_path = fixture_path("f32.packed%d", lossy), *back = fixture_path("f32.back%d", lossy);
        trf_checkpoint_options options = make_options();
        options.encode.codec = lossy ? TRF_CODEC_INT : TRF_CODEC_BF16;
        options.encode.bits = lossy ? 5 : 0;
        fixture_write_safetensors(in, NULL, kTensors, NUM_TENSORS, 8, 4);
        trf_checkpoint_report report = go_there_and_back(in, compressed_path, back, &options);
        ck_assert_uint_eq(report.rounded_tensors, lossy ? 0 : 1);
        ck_assert_double_gt(report.relative_rms_error, lossy ? 0.01 : 0.0005);
        ck_assert_double_lt(report.relative_rms_error, lossy ? 0.1 : 0.003);
        trf_checkpoint *checkpoint;
        fixture_check_status(trf_checkpoint_open(back, &checkpoint, &err), TRF_OK, &err);
        ck_assert_uint_eq(trf_checkpoint_num_tensors(checkpoint), NUM_TENSORS);
        trf_checkpoint_close(checkpoint);
    }
}
END_TEST

/* A directory with two files, an index, and other things. */
static const char *make_directory(const char *name, int with_index) {
    static const fixture_tensor kSecond[] = {{"b.weight", "BF16", {256, 256}, 2, 0},
                                             {"lm_head.weight", "BF16", {512, 64}, 2, 0},
                                             {"b.bias", "F32", {7}, 1, 0}};
    static const fixture_tensor kThird[] = {{"norm.weight", "BF16", {64}, 1, 0}};
    static const char config[] = "{\"tie_word_embeddings\": true}";
    const char *directory = fixture_path("%s", name);
    fixture_make_folder(directory);
    fixture_write_safetensors(fixture_path("%s/m-1.safetensors", name), NULL, kTensors, NUM_TENSORS, 8, 5);
    fixture_write_safetensors(fixture_path("%s/m-2.safetensors", name), NULL, kSecond, 3, 8, 6);
    fixture_write_safetensors(fixture_path("%s/m-3.safetensors", name), NULL, kThird, 1, 8, 7);
    fixture_write(fixture_path("%s/config.json", name), config, sizeof config - 1);
    fixture_make_folder(fixture_path("%s/sub", name));
    fixture_make_folder(fixture_path("%s/sub/empty", name));
    fixture_write(fixture_path("%s/sub/vocabulary.txt", name), "a b c", 5);
    fixture_write_safetensors(fixture_path("%s/sub/other.safetensors", name), NULL, kSecond, 3, 8, 8);
    ck_assert_int_eq(symlink("sub/vocabulary.txt", fixture_path("%s/link", name)), 0);
    ck_assert_int_eq(symlink("no/where", fixture_path("%s/dangling", name)), 0);
    ck_assert_int_eq(symlink("m-2.safetensors", fixture_path("%s/alias.safetensors", name)), 0);
    if (!with_index)
        return directory;
    json_t *map = json_object();
    for (size_t i = 0; i < NUM_TENSORS; i++)
        json_object_set_new(map, kTensors[i].name, json_string("m-1.safetensors"));
    for (size_t i = 0; i < 3; i++)
        json_object_set_new(map, kSecond[i].name, json_string("m-2.safetensors"));
    json_object_set_new(map, kThird[0].name, json_string("m-3.safetensors"));
    json_t *index =
        json_pack("{s:{s:i,s:f},s:o,s:[]}", "metadata", "total_size", 1, "kept", 0.5, "weight_map", map, "more");
    /* The text has a layout that no library would give back. */
    char *text = json_dumps(index, JSON_INDENT(7));
    fixture_write(fixture_path("%s/model.safetensors.index.json", name), text, strlen(text));
    free(text);
    json_decref(index);
    return directory;
}

START_TEST(directory_comes_back_whole) {
    const char *in = make_directory(_i ? "dir-index" : "dir", _i);
    const char *compressed_path = fixture_path("dir-packed%d", _i), *back = fixture_path("dir-back%d", _i);
    const char *index = "model.safetensors.index.json";
    trf_checkpoint_options options = make_options();
    /* An index stands for its directory. */
    trf_checkpoint_report report =
        go_there_and_back(_i ? fixture_path("dir-index/%s", index) : in, compressed_path, back, &options);
    fixture_check_same(in, back);
    ck_assert_uint_eq(report.tensors, NUM_TENSORS + 4);
    ck_assert_uint_eq(report.compressed_tensors, NUM_COMPRESSED + 1); /* lm_head is tied */
    fixture_check_same(fixture_path("%s/m-3.safetensors", _i ? "dir-index" : "dir"),
                       fixture_path("dir-packed%d/m-3.safetensors", _i));
    fixture_check_same(fixture_path("%s/sub", _i ? "dir-index" : "dir"), fixture_path("dir-packed%d/sub", _i));
    if (!_i)
        return;
    json_t *written = json_load_file(fixture_path("dir-packed1/%s", index), 0, NULL);
    json_t *map = json_object_get(written, "weight_map"), *metadata = json_object_get(written, "metadata");
    ck_assert_uint_eq((uint64_t)json_integer_value(json_object_get(metadata, "total_size")), report.output_bytes);
    ck_assert_double_eq(json_real_value(json_object_get(metadata, "kept")), 0.5);
    ck_assert(json_is_array(json_object_get(written, "more")));
    ck_assert_str_eq(json_string_value(json_object_get(map, "a.weight_trf")), "m-1.safetensors");
    ck_assert_str_eq(json_string_value(json_object_get(map, "lm_head.weight")), "m-2.safetensors");
    ck_assert_ptr_null(json_object_get(map, "a.weight"));
    ck_assert_uint_eq(json_object_size(map), NUM_TENSORS + 4);
    json_decref(written);
}
END_TEST

START_TEST(links_out_of_the_directory_are_followed) { /* as in the cache of the Hugging Face hub */
    static const fixture_tensor tensor = {"a.weight", "BF16", {64, 256}, 2, 0};
    fixture_make_folder(fixture_path("blobs"));
    fixture_make_folder(fixture_path("snapshot"));
    fixture_write_safetensors(fixture_path("blobs/123"), NULL, &tensor, 1, 8, 9);
    fixture_write(fixture_path("blobs/456"), "{}", 2);
    ck_assert_int_eq(symlink("../blobs/123", fixture_path("snapshot/model.safetensors")), 0);
    ck_assert_int_eq(symlink("../blobs/456", fixture_path("snapshot/config.json")), 0);
    trf_checkpoint_options options = make_options();
    trf_checkpoint_report report = go_there_and_back(fixture_path("snapshot"), fixture_path("snapshot.packed"),
                                                     fixture_path("snapshot.back"), &options);
    ck_assert_uint_eq(report.compressed_tensors, 1);
    fixture_check_same(fixture_path("blobs/123"), fixture_path("snapshot.back/model.safetensors"));
    fixture_check_same(fixture_path("blobs/456"), fixture_path("snapshot.back/config.json"));
}
END_TEST

START_TEST(file_without_anything_to_compress_is_copied) {
    static const fixture_tensor kPlain[] = {{"a", "F32", {3, 3}, 2, 0}, {"norm.weight", "BF16", {64}, 1, 0}};
    const char *in = fixture_path("plain.safetensors"), *compressed_path = fixture_path("plain.packed"),
               *back = fixture_path("plain.back");
    fixture_write_safetensors(in, NULL, kPlain, 2, 8, 10);
    trf_checkpoint_options options = make_options();
    trf_checkpoint_report report = go_there_and_back(in, compressed_path, back, &options);
    ck_assert_uint_eq(report.compressed_tensors, 0);
    fixture_check_same(in, compressed_path);
    fixture_check_same(in, back);
}
END_TEST

/* Weights that do not shrink. */
static void write_noise(const char *path) {
    static const char header[] = "{\"n.weight\":{\"dtype\":\"I8\",\"shape\":[64,64],\"data_offsets\":[0,4096]}}";
    fixture_write_header(path, header, 4096);
    size_t size;
    uint8_t *bytes = fixture_read(path, &size);
    uint32_t state = 1;
    for (size_t i = size - 4096; i < size; i++) {
        state = state * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(state >> 24);
    }
    fixture_write(path, bytes, size);
    free(bytes);
}

START_TEST(what_does_not_shrink_stays_unless_named) {
    const char *in = fixture_path("noise.safetensors");
    const char *const wildcard[] = {"n.*", NULL}, *const name[] = {"n.weight", NULL};
    const char *const *const kIncludes[] = {NULL, wildcard, name};
    write_noise(in);
    for (int i = 0; i < 3; i++) {
        trf_checkpoint_options options = make_options();
        options.include = kIncludes[i];
        const char *compressed_path = fixture_path("noise.packed%d", i), *back = fixture_path("noise.back%d", i);
        trf_checkpoint_report report = go_there_and_back(in, compressed_path, back, &options);
        ck_assert_uint_eq(report.compressed_tensors, i == 2);
        fixture_check_same(in, back);
        if (i < 2)
            fixture_check_same(in, compressed_path);
    }
}
END_TEST

START_TEST(output_does_not_depend_on_threads) {
    const char *in = fixture_path("threads.safetensors");
    fixture_write_safetensors(in, NULL, kTensors, NUM_TENSORS, 8, 11);
    for (int threads = 1; threads <= 3; threads++) {
        trf_checkpoint_options options = make_options();
        options.encode.threads = threads;
        const char *compressed_path = fixture_path("threads.packed%d", threads);
        fixture_check_status(trf_compress_checkpoint(in, compressed_path, &options, NULL, &err), TRF_OK, &err);
        fixture_check_same(fixture_path("threads.packed1"), compressed_path);
    }
}
END_TEST

START_TEST(layers_are_extracted) {
    const char *in = fixture_path("x.safetensors"), *compressed_path = fixture_path("x.packed");
    trf_checkpoint_options options = make_options();
    fixture_write_safetensors(in, NULL, kTensors, NUM_TENSORS, 8, 12);
    fixture_check_status(trf_compress_checkpoint(in, compressed_path, &options, NULL, &err), TRF_OK, &err);
    const char *one = fixture_path("one.trf"), *same = fixture_path("same.trf"), *expert = fixture_path("expert.trf");
    fixture_check_status(trf_extract_layer(compressed_path, "a.weight", one, 0, &err), TRF_OK, &err);
    fixture_check_status(trf_extract_layer(compressed_path, "a.weight_trf", same, 0, &err), TRF_OK, &err);
    fixture_check_same(one, same);
    fixture_check_status(trf_extract_layer(compressed_path, "experts.up_proj[4]", expert, 0, &err), TRF_OK, &err);
    fixture_check_status(trf_verify_checkpoint(expert, NULL, &options, NULL, &err), TRF_OK, &err);

    fixture_check_status(trf_extract_layer(compressed_path, "a.weight", one, 0, &err), TRF_ERR_EXISTS, &err);
    fixture_check_status(trf_extract_layer(compressed_path, "a.weight", one, 1, &err), TRF_OK, &err);
    fixture_check_same(one, same);
    const char *none = fixture_path("none.trf");
    fixture_check_status(trf_extract_layer(compressed_path, "experts.up_proj", none, 0, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_extract_layer(compressed_path, "experts.up_proj[5]", none, 0, &err), TRF_ERR_NOT_FOUND,
                         &err);
    fixture_check_status(trf_extract_layer(compressed_path, "experts.up_proj[x]", none, 0, &err), TRF_ERR_NOT_FOUND,
                         &err);
    fixture_check_status(trf_extract_layer(compressed_path, "a.weight[0]", none, 0, &err), TRF_ERR_NOT_FOUND, &err);
    fixture_check_status(trf_extract_layer(compressed_path, "nobody", none, 0, &err), TRF_ERR_NOT_FOUND, &err);
    fixture_check_status(trf_extract_layer(compressed_path, "odd", none, 0, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_extract_layer(in, "a.weight", none, 0, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_extract_layer(compressed_path, "a.weight", compressed_path, 1, &err), TRF_ERR_ARGUMENT,
                         &err);
    ck_assert(!fixture_exists(none));

    /* A .trf file is a checkpoint of one tensor. */
    const char *lone = fixture_path("lone.safetensors"), *back = fixture_path("lone.back");
    fixture_write_safetensors(lone, NULL, &kTensors[0], 1, 8, 12); /* equal seeds: the same weights as in `in` */
    fixture_check_status(trf_verify_checkpoint(one, lone, &options, NULL, &err), TRF_OK, &err);
    trf_checkpoint_report report;
    fixture_check_status(trf_decompress_checkpoint(one, back, &options, &report, &err), TRF_OK, &err);
    ck_assert_uint_eq(report.compressed_tensors, 1);
    trf_checkpoint *checkpoint;
    trf_tensor_info info;
    fixture_check_status(trf_checkpoint_open(back, &checkpoint, &err), TRF_OK, &err);
    fixture_check_status(trf_checkpoint_tensor(checkpoint, 0, &info, &err), TRF_OK, &err);
    ck_assert_str_eq(info.name, "weight");
    ck_assert_uint_eq(info.shape[0], 300);
    trf_checkpoint_close(checkpoint);
    fixture_check_status(trf_extract_layer(one, "weight", fixture_path("again.trf"), 0, &err), TRF_OK, &err);
    fixture_check_same(one, fixture_path("again.trf"));
    fixture_check_status(trf_compress_checkpoint(one, none, &options, NULL, &err), TRF_ERR_ARGUMENT, &err);
}
END_TEST

/* Options, and the encode options inside them, for which no _init has been called. */
START_TEST(options_of_no_size) {
    const char *in = fixture_path("sized.safetensors"), *out = fixture_path("sized.packed");
    static const fixture_tensor tensor = {"a.weight", "BF16", {32, 64}, 2, 0};
    trf_error err = {0};
    fixture_write_safetensors(in, NULL, &tensor, 1, 8, 3);
    trf_checkpoint_options options = make_options();
    if (_i)
        options.encode.struct_bytes = 0;
    else
        options.struct_bytes = 0;
    fixture_check_status(trf_compress_checkpoint(in, out, &options, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_decompress_checkpoint(in, out, &options, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_verify_checkpoint(in, NULL, &options, NULL, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert(!fixture_exists(out));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("checkpoint");
    TCase *tests = tcase_create("checkpoint");
    tcase_set_tags(tests, "threads");
    tcase_add_unchecked_fixture(tests, fixture_begin, fixture_end);
    tcase_add_loop_test(tests, file_comes_back_byte_for_byte, 0, 3);
    tcase_add_test(tests, compressed_file_is_laid_out_as_promised);
    tcase_add_test(tests, listing_tells_the_source);
    tcase_add_test(tests, single_floats_are_compressed_on_request);
    tcase_add_loop_test(tests, directory_comes_back_whole, 0, 2);
    tcase_add_test(tests, links_out_of_the_directory_are_followed);
    tcase_add_test(tests, file_without_anything_to_compress_is_copied);
    tcase_add_test(tests, what_does_not_shrink_stays_unless_named);
    tcase_add_test(tests, output_does_not_depend_on_threads);
    tcase_add_test(tests, layers_are_extracted);
    tcase_add_loop_test(tests, options_of_no_size, 0, 2);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
