/* SPDX-License-Identifier: Apache-2.0 */
/* A model's config.json: what compressing adds, that nothing else changes, that decompressing gives it back byte for
 * byte, and what becomes of one that cannot be read. */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "trf_blob.h"
#include "trf_json.h"

#include <check.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static trf_error err;
static const char *source, *compressed, *back; /* folders */

/* A folder with one small model and this config.json, or none. */
static void make_model(const char *name, const void *config, size_t bytes) {
    static const fixture_tensor tensors[] = {{"model.embed_tokens.weight", "BF16", {256, 64}, 2, 0},
                                             {"a.weight", "BF16", {96, 300}, 2, 0},
                                             {"lm_head.weight", "BF16", {256, 64}, 2, 0}};
    source = fixture_path("%s", name);
    compressed = fixture_path("%s-compressed", name);
    back = fixture_path("%s-back", name);
    fixture_make_folder(source);
    fixture_write_safetensors(fixture_path("%s/model.safetensors", name), NULL, tensors, 3, 8, 5);
    if (config)
        fixture_write(fixture_path("%s/config.json", name), config, bytes);
}

static trf_checkpoint_report compress_model(const trf_checkpoint_options *options) {
    trf_checkpoint_report report;
    fixture_check_status(trf_compress_checkpoint(source, compressed, options, &report, &err), TRF_OK, &err);
    return report;
}

static trf_checkpoint_report decompress_model(void) {
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.overwrite = 1;
    trf_checkpoint_report report;
    fixture_check_status(trf_decompress_checkpoint(compressed, back, &options, &report, &err), TRF_OK, &err);
    return report;
}

/* Fails unless the report's warning is this one line: that nothing loads the folder, or none. */
static void check_note(const trf_checkpoint_report *report, int nothing_loads) {
    ck_assert_msg(nothing_loads ? strstr(report->warning, "nothing will load") != NULL : !report->warning[0], "%s",
                  report->warning);
    ck_assert_ptr_null(strchr(report->warning, '\n'));
}

static const char *config_of(const char *folder) { return fixture_path("%s/config.json", strrchr(folder, '/') + 1); }

static json_t *load_config(const char *folder) {
    size_t bytes;
    json_t *root;
    char *text = fixture_read(config_of(folder), &bytes);
    fixture_check_status(trf_json_parse_python(folder, text, bytes, &root, NULL, &err), TRF_OK, &err);
    free(text);
    return root;
}

/* Verifies, decompresses and compares all of the folder. */
static void check_comes_back(void) {
    trf_checkpoint_report report;
    fixture_check_status(trf_verify_checkpoint(compressed, source, NULL, &report, &err), TRF_OK, &err);
    ck_assert_str_eq(report.warning, "");
    decompress_model();
    fixture_check_same(source, back);
}

/* ---- what is added ---- */

#define ADDED                                                                                                          \
    "\"quantization_config\": {\"quant_method\": \"transfuse\", \"version\": 4, \"codec\": \"auto\", "                 \
    "\"layout\": \"coded\", \"source_config\": "

#define NEEDS                                                                                                          \
    "\"transformers_weights\": \"this folder is compressed by transfuse; install transfuse to load it, or run "        \
    "'transfuse decompress' to get the original files back\""

static const struct {
    const char *source, *compressed;
} kTexts[] = {
    {"{}", "{" ADDED "\"{}\"}}"},
    {"{\n}\n", "{\n  " ADDED "\"{\\n}\\n\"}\n}\n"},
    {"{\"a\":1}", "{\"a\":1, " ADDED "\"{\\\"a\\\":1}\"}}"},
    {" {\n  \"a\": 1e-05\n} \r\n", " {\n  \"a\": 1e-05,\n  " ADDED "\" {\\n  \\\"a\\\": 1e-05\\n} \\r\\n\"}\n} \r\n"},
    {"{\r\n\t\"a\": \"}\"\r\n}", "{\r\n\t\"a\": \"}\",\n  " ADDED "\"{\\r\\n\\t\\\"a\\\": \\\"}\\\"\\r\\n}\"}\r\n}"},
    {"{\"_class_name\":\"A\"}", "{\"_class_name\":\"A\", " ADDED "\"{\\\"_class_name\\\":\\\"A\\\"}\"}}"},
    /* a member that is null is replaced, along with one comma */
    {"{\"quantization_config\" : null}", "{" ADDED "\"{\\\"quantization_config\\\" : null}\"}}"},
    {"{\"quantization_config\":null, \"a\":1}",
     "{ \"a\":1, " ADDED "\"{\\\"quantization_config\\\":null, \\\"a\\\":1}\"}}"},
    {"{\"a\":[1,{\"b\":\"]\"}],\"quantization_config\":null }",
     "{\"a\":[1,{\"b\":\"]\"}], " ADDED
     "\"{\\\"a\\\":[1,{\\\"b\\\":\\\"]\\\"}],\\\"quantization_config\\\":null }\"} }"},
    {"{\"quantization\\u005fconfig\":null,\"quantization_config\":null,\"b\":1}",
     "{\"b\":1, " ADDED
     "\"{\\\"quantization\\\\u005fconfig\\\":null,\\\"quantization_config\\\":null,\\\"b\\\":1}\"}}"},
    /* what transformers reads */
    {"{\"model_type\":\"a\"}",
     "{\"model_type\":\"a\", \"dtype\": \"bfloat16\", " NEEDS ", " ADDED "\"{\\\"model_type\\\":\\\"a\\\"}\"}}"},
    {"{\n \"model_type\": NaN,\n \"dtype\": null\n}",
     "{\n \"model_type\": NaN,\n  \"dtype\": \"bfloat16\",\n  " NEEDS ",\n  " ADDED
     "\"{\\n \\\"model_type\\\": NaN,\\n \\\"dtype\\\": null\\n}\"}\n \n}"},
    {"{\"architectures\":[\"A\"],\"torch_dtype\":\"float32\"}",
     "{\"architectures\":[\"A\"],\"torch_dtype\":\"float32\", " NEEDS ", " ADDED
     "\"{\\\"architectures\\\":[\\\"A\\\"],\\\"torch_dtype\\\":\\\"float32\\\"}\"}}"},
    {"{\"transformers_weights\":\"model.safetensors\",\"model_type\":\"a\",\"dtype\":\"bfloat16\"}",
     "{\"model_type\":\"a\",\"dtype\":\"bfloat16\", " NEEDS ", " ADDED
     "\"{\\\"transformers_weights\\\":\\\"model.safetensors\\\","
     "\\\"model_type\\\":\\\"a\\\",\\\"dtype\\\":\\\"bfloat16\\\"}\"}}"},
    /* parts of a model have the sentence, too */
    {"{\"model_type\":\"a\",\"dtype\":\"bfloat16\",\"text\\u005f{\\\"\" :\n "
     "{\"model_type\":\"b\",\"x\":\"{\"},\"t\":{\"c\":1}}",
     "{\"model_type\":\"a\",\"dtype\":\"bfloat16\",\"text\\u005f{\\\"\" :\n {" NEEDS
     ", \"model_type\":\"b\",\"x\":\"{\"},\"t\":{\"c\":1}, " NEEDS ", " ADDED
     "\"{\\\"model_type\\\":\\\"a\\\",\\\"dtype\\\":\\\"bfloat16\\\",\\\"text\\\\u005f{\\\\\\\"\\\" :\\n "
     "{\\\"model_type\\\":\\\"b\\\",\\\"x\\\":\\\"{\\\"},\\\"t\\\":{\\\"c\\\":1}}\"}}"},
    /* a byte order mark is kept, but not written */
    {"\xef\xbb\xbf{\"a\":1}", "{\"a\":1, " ADDED "\"\xef\xbb\xbf{\\\"a\\\":1}\"}}"},
};

START_TEST(nothing_else_changes) {
    make_model("text", kTexts[_i].source, strlen(kTexts[_i].source));
    const trf_checkpoint_report report = compress_model(NULL);
    check_note(&report, !strstr(kTexts[_i].source, "model_type") && !strstr(kTexts[_i].source, "architectures") &&
                            !strstr(kTexts[_i].source, "_class_name"));
    size_t bytes;
    char *text = fixture_read(config_of(compressed), &bytes);
    ck_assert_str_eq(text, kTexts[_i].compressed);
    free(text);
    check_comes_back();
}
END_TEST

START_TEST(the_rate_is_told) {
    make_model("rate", "{}", 2);
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.codec = TRF_CODEC_INT;
    options.encode.bits = 5.7;
    compress_model(&options);
    size_t bytes;
    char *text = fixture_read(config_of(compressed), &bytes);
    ck_assert_msg(strstr(text, "\"codec\": \"int\", \"layout\": \"coded\", \"bits\": 5.7, ") != NULL, "%s", text);
    free(text);
    fixture_check_status(trf_verify_checkpoint(compressed, source, NULL, NULL, &err), TRF_OK, &err);
}
END_TEST

#define TEXT(text)                                                                                                     \
    { text, sizeof text - 1 }

static const struct {
    const char *text;
    size_t bytes;
} kHard[] = {
    TEXT("{\"a\": [1e-05, 1E+20, 1e20, 0.1, -0, -0.0, 123456789012345678901234567890, 9007199254740993, 1.0]}"),
    TEXT(
        "{\"\xe2\x80\xa8\": \"\xe2\x80\xa9\xf0\x9f\x98\x80\x7f\", \"b\": \"\\u2028\\ud83d\\ude00\\/\\u0000\\\"\\\\\"}"),
    TEXT("\t\r\n{ \"a\"\n:\n{ \"quantization_config\": null } ,\"b\":[ ] }\n\n\n"),
    TEXT("{\"text_config\": {\"quantization_config\": null},\r\n\"x\":\"source_config\"\r\n}\r\n"),
    /* what Python reads, too */
    TEXT("{\"a\": NaN, \"b\": [Infinity,-Infinity], \"NaN\": \"Infinity, NaN\"}"),
    TEXT("\xef\xbb\xbf\n{\"a\": 1}\n"),
    TEXT("{\"a\": 1, \"a\": 2, \"b\": {\"c\": 1, \"c\": 2}}"),
    TEXT("{\"a\": \"\\ud800\", \"\\udc00\": \"\\ud83d\\ude00\\ud83d\", \"b\": \"\\\\ud800\", \"c\\u0000\": 0}"),
    TEXT("{\"a\": 1e999, \"b\": -1E+4000, \"c\": [0.0001e313, 0e999, 1.7e308, 1e-999], \"d\": 1.8e308}"),
    TEXT("{\"tie_word_embeddings\": true, \"n\": 18446744073709551616}"),
};

START_TEST(hard_texts_come_back) {
    make_model("hard", kHard[_i].text, kHard[_i].bytes);
    const trf_checkpoint_report report = compress_model(NULL);
    check_note(&report, 1);
    json_t *root = load_config(compressed);
    const json_t *added = json_object_get(root, "quantization_config");
    ck_assert_double_eq(json_number_value(json_object_get(added, "version")), TRF_FORMAT_VERSION);
    const json_t *kept = json_object_get(added, "source_config");
    ck_assert_uint_eq(json_string_length(kept), kHard[_i].bytes);
    ck_assert_int_eq(memcmp(json_string_value(kept), kHard[_i].text, kHard[_i].bytes), 0);
    json_decref(root);
    check_comes_back();
}
END_TEST

/* ---- one that cannot be read ---- */

static const struct {
    const char *text;
    size_t bytes;
    const char *message;
} kUnreadable[] = {
    {"", 0, "not valid JSON"},
    {"[1]", 3, "not a JSON object"},
    {"\"{}\"", 4, "not valid JSON"},
    {"{\"a\": 1", 7, "not valid JSON"},
    {"{} {}", 5, "not valid JSON"},
    {"{\"a\": \"\xff\"}", 10, "not valid JSON"},
    {"\xff\xfe{\0}\0", 6, "not valid JSON"}, /* UTF-16 */
    {" \xef\xbb\xbf{}", 6, "not valid JSON"},
    {"{\"a\": nan}", 10, "not valid JSON"},
    {"{\"a\": +Infinity}", 16, "not valid JSON"},
    {"{\"a\": Infinityx}", 16, "not valid JSON"},
    {"{\"a\": 01e999}", 13, "not valid JSON"},
    {"{\"a\": 1.e999}", 13, "not valid JSON"},
    {"{\"a\": \"\t\"}", 10, "not valid JSON"},
};

START_TEST(what_cannot_be_read_is_refused) {
    make_model("unreadable", kUnreadable[_i].text, kUnreadable[_i].bytes);
    fixture_check_status(trf_compress_checkpoint(source, compressed, NULL, NULL, &err), TRF_ERR_FORMAT, &err);
    ck_assert_msg(strstr(err.message, kUnreadable[_i].message) && strstr(err.message, "config.json") &&
                      strstr(err.message, "--store-only"),
                  "%s", err.message);
    ck_assert_uint_ne(err.offset, TRF_NO_OFFSET);
    ck_assert(!fixture_exists(compressed));
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.store_only = 1;
    const trf_checkpoint_report report = compress_model(&options);
    ck_assert_msg(strstr(report.warning, kUnreadable[_i].message) && strstr(report.warning, "carried over"), "%s",
                  report.warning);
    ck_assert_uint_eq(report.compressed_tensors, 3);
    fixture_check_same(config_of(source), config_of(compressed));
    fixture_check_status(trf_verify_checkpoint(compressed, NULL, NULL, NULL, &err), TRF_OK, &err);
    check_comes_back();
}
END_TEST

/* A note is one line, and the callback gets it as it is in the report. */
static void append_line(void *context, const char *line) {
    strcat(strcat(context, *(char *)context ? "\n" : ""), line);
}

START_TEST(notes_reach_the_caller) {
    char lines[4096] = "";
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.store_only = 1;
    options.note = append_line;
    options.note_context = lines;
    make_model("no\ntes", "{", 1);
    const trf_checkpoint_report report = compress_model(&options);
    ck_assert_str_eq(lines, report.warning);
    ck_assert_ptr_nonnull(strstr(lines, "no?tes/config.json"));
    const char *line_end = strchr(lines, '\n');
    ck_assert(line_end && !strchr(line_end + 1, '\n'));
    ck_assert_ptr_nonnull(strstr(lines, "stored only"));
}
END_TEST

START_TEST(without_blobs_it_stays) {
    static const char *const nothing[] = {"*", NULL};
    static const char *const texts[] = {"{\"a\": 1}", "{\"quantization_config\": null}"};
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.exclude = nothing;
    make_model("plain", texts[_i], strlen(texts[_i]));
    ck_assert_str_eq(compress_model(&options).warning, "");
    fixture_check_same(source, compressed);
}
END_TEST

START_TEST(none_stays_none) {
    make_model("none", NULL, 0);
    const trf_checkpoint_report report = compress_model(NULL);
    check_note(&report, 1);
    ck_assert(!fixture_exists(config_of(compressed)));
    check_comes_back();
}
END_TEST

START_TEST(permissions_stay) {
    struct stat info;
    make_model("mode", "{}", 2);
    ck_assert_int_eq(chmod(config_of(source), 0440), 0);
    compress_model(NULL);
    decompress_model();
    ck_assert_int_eq(stat(config_of(compressed), &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0440);
    ck_assert_int_eq(stat(config_of(back), &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0440);
}
END_TEST

START_TEST(one_of_a_compressed_checkpoint_is_refused) {
    static const char text[] = "{\"quantization_config\": {\"quant_method\": \"transfuse\"}}";
    make_model("twice", text, sizeof text - 1);
    fixture_check_status(trf_compress_checkpoint(source, compressed, NULL, NULL, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert_msg(strstr(err.message, "config.json") != NULL, "%s", err.message);
    ck_assert(!fixture_exists(compressed));
}
END_TEST

/* ---- changed since ---- */

/* Compresses, and writes the compressed config in another layout and with a change. value: a new reference; NULL
 * deletes. */
static void change(const char *name, const char *object, const char *key, json_t *value) {
    static const char text[] =
        "{\"model_type\": \"llama\", \"b\": 1e-05, \"a\": [1, 2], \"n\": 12345678901234567890}\n";
    make_model(name, text, sizeof text - 1);
    compress_model(NULL);
    json_t *root = load_config(compressed), *changed = object ? json_object_get(root, object) : root;
    if (value)
        ck_assert_int_eq(json_object_set_new(changed, key, value), 0);
    else
        json_object_del(changed, key);
    char *out = json_dumps(root, JSON_INDENT(5) | JSON_SORT_KEYS | JSON_ENSURE_ASCII);
    fixture_write(config_of(compressed), out, strlen(out));
    free(out);
    json_decref(root);
}

START_TEST(laid_out_anew_it_comes_back) {
    change("anew", NULL, "none", NULL);
    check_comes_back();
    ck_assert_str_eq(decompress_model().warning, "");
}
END_TEST

START_TEST(changes_are_told_and_undone) {
    change("changed", NULL, _i ? "b" : "more", json_integer(3));
    trf_checkpoint_report report;
    for (int compares = 0; compares < 2; compares++) {
        fixture_check_status(trf_verify_checkpoint(compressed, compares ? source : NULL, NULL, &report, &err), TRF_OK,
                             &err);
        ck_assert_msg(strstr(report.warning, "was changed") != NULL, "%s", report.warning);
    }
    report = decompress_model();
    ck_assert_msg(strstr(report.warning, "was changed") != NULL, "%s", report.warning);
    fixture_check_same(source, back);
}
END_TEST

static const char *const kUseless[] = {NULL, "", "[1]", "{\"a\": 1", "{\"a\": 1}\n\n \"b\""};

/* Decompressing would not write the source's file; expects that neither command ignores that. */
static void check_lost(const char *what) {
    fixture_check_status(trf_verify_checkpoint(compressed, NULL, NULL, NULL, &err), TRF_ERR_FORMAT, &err);
    ck_assert_msg(strstr(err.message, "config.json: ") && strstr(err.message, what), "%s", err.message);
    fixture_check_status(trf_decompress_checkpoint(compressed, back, NULL, NULL, &err), TRF_ERR_FORMAT, &err);
    ck_assert_msg(strstr(err.message, "config.json: ") && strstr(err.message, what), "%s", err.message);
    ck_assert(!fixture_exists(back));
    fixture_check_status(trf_verify_checkpoint(compressed, source, NULL, NULL, &err), TRF_ERR_MISMATCH, &err);
    size_t bytes;
    char *text = fixture_read(config_of(source), &bytes); /* what the message advises */
    fixture_write(config_of(compressed), text, bytes);
    free(text);
    fixture_check_status(trf_verify_checkpoint(compressed, NULL, NULL, NULL, &err), TRF_OK, &err);
    check_comes_back();
}

START_TEST(a_text_that_is_of_no_use_is_an_error) {
    change("useless", "quantization_config", "source_config", kUseless[_i] ? json_string(kUseless[_i]) : NULL);
    check_lost("has no source_config that could be restored");
}
END_TEST

/* The sentence alone would come along, and nothing could load what was decompressed. */
START_TEST(a_lost_marker_is_an_error) {
    change("unmarked", NULL, "quantization_config", _i ? json_pack("{s: s}", "quant_method", "gptq") : NULL);
    check_lost("says that the folder is compressed, and there is no quantization_config of transfuse");
}
END_TEST

START_TEST(a_broken_config_is_an_error) {
    make_model("broken", "{\"a\": 1}", 8);
    compress_model(NULL);
    fixture_write(config_of(compressed), "{broken", 7);
    check_lost("not valid JSON");
}
END_TEST

START_TEST(a_config_that_is_a_folder_is_carried_over) {
    make_model("folder", NULL, 0);
    fixture_make_folder(config_of(source));
    fixture_write(fixture_path("folder/config.json/x"), "x", 1);
    compress_model(NULL);
    check_comes_back();
}
END_TEST

START_TEST(another_source_is_found) {
    make_model("other", "{\"a\": 1}", 8);
    compress_model(NULL);
    fixture_write(config_of(source), "{\"a\":  1}", 9);
    fixture_check_status(trf_verify_checkpoint(compressed, source, NULL, NULL, &err), TRF_ERR_MISMATCH, &err);
    ck_assert_uint_eq(err.offset, 6);
    ck_assert_int_eq(unlink(config_of(compressed)), 0);
    fixture_check_status(trf_verify_checkpoint(compressed, source, NULL, NULL, &err), TRF_ERR_NOT_FOUND, &err);
    ck_assert_int_eq(unlink(config_of(source)), 0);
    fixture_check_status(trf_verify_checkpoint(compressed, source, NULL, NULL, &err), TRF_OK, &err);
}
END_TEST

/* ---- failures ---- */

START_TEST(a_full_disk_leaves_nothing) { /* the config is the largest file */
    enum {
        BYTES = 600000
    };
    char *text = malloc(BYTES);
    ck_assert_ptr_nonnull(text);
    memset(text, ' ', BYTES);
    memcpy(text, "{\"a\":", 5);
    memcpy(text + BYTES - 2, "1}", 2);
    make_model("full", text, BYTES);
    free(text);
    const int entries = fixture_count_entries(fixture_path("."));
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, SIG_IGN);
    limit.rlim_cur = 400000;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const trf_status status = trf_compress_checkpoint(source, compressed, NULL, NULL, &err);
    limit.rlim_cur = limit.rlim_max; /* Check itself has something to write */
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    fixture_check_status(status, TRF_ERR_IO, &err);
    ck_assert_msg(strstr(err.message, "config.json") != NULL, "%s", err.message);
    ck_assert_int_eq(fixture_count_entries(fixture_path(".")), entries);
}
END_TEST

START_TEST(too_large_a_config_is_refused) {
    const size_t bytes = (16 << 20) + 1;
    char *text = calloc(bytes, 1);
    ck_assert_ptr_nonnull(text);
    memset(text, ' ', bytes);
    text[0] = '{', text[bytes - 1] = '}';
    make_model("large", text, bytes);
    free(text);
    fixture_check_status(trf_compress_checkpoint(source, compressed, NULL, NULL, &err), TRF_ERR_FORMAT, &err);
    ck_assert_msg(strstr(err.message, "--store-only") != NULL, "%s", err.message);
}
END_TEST

/* ---- embeddings ---- */

START_TEST(embeddings_on_request) {
    static const char tied[] = "{\"tie_word_embeddings\": true}";
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.embeddings = _i;
    make_model("embeddings", tied, sizeof tied - 1);
    ck_assert_uint_eq(compress_model(&options).compressed_tensors, _i ? 3 : 1);
    check_comes_back();
}
END_TEST

#define COUNT(array) (int)(sizeof array / sizeof array[0])

int main(void) {
    Suite *suite = suite_create("model_config");
    TCase *tests = tcase_create("model_config");
    tcase_add_checked_fixture(tests, fixture_begin, fixture_end);
    tcase_add_loop_test(tests, nothing_else_changes, 0, COUNT(kTexts));
    tcase_add_test(tests, the_rate_is_told);
    tcase_add_loop_test(tests, hard_texts_come_back, 0, COUNT(kHard));
    tcase_add_loop_test(tests, what_cannot_be_read_is_refused, 0, COUNT(kUnreadable));
    tcase_add_test(tests, notes_reach_the_caller);
    tcase_add_loop_test(tests, without_blobs_it_stays, 0, 2);
    tcase_add_test(tests, none_stays_none);
    tcase_add_test(tests, permissions_stay);
    tcase_add_test(tests, one_of_a_compressed_checkpoint_is_refused);
    tcase_add_test(tests, laid_out_anew_it_comes_back);
    tcase_add_loop_test(tests, changes_are_told_and_undone, 0, 2);
    tcase_add_loop_test(tests, a_text_that_is_of_no_use_is_an_error, 0, COUNT(kUseless));
    tcase_add_loop_test(tests, a_lost_marker_is_an_error, 0, 2);
    tcase_add_test(tests, a_broken_config_is_an_error);
    tcase_add_test(tests, a_config_that_is_a_folder_is_carried_over);
    tcase_add_test(tests, another_source_is_found);
    tcase_add_test(tests, a_full_disk_leaves_nothing);
    tcase_add_test(tests, too_large_a_config_is_refused);
    tcase_add_loop_test(tests, embeddings_on_request, 0, 2);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
