/* SPDX-License-Identifier: Apache-2.0 */
/* Indexes of checkpoints: what strangers' ones give, what a budget holds of one, how they are checked against files,
 * and the text of those that compressing and decompressing write. */
#include "common/checkpoint_fixture.h"
#include "common/expect.h"
#include "common/run_suite.h"
#include "trf_checkpoint_index.h"
#include "trf_json.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static trf_error err;

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))
#define INDEX "model.safetensors.index.json"
#define MAP(entries) ("{\"weight_map\":{" entries "}}")

static const char *write_index(const char *text) {
    const char *path = fixture_path(INDEX);
    fixture_write(path, text, strlen(text));
    return path;
}

static trf_checkpoint_index open_index(const char *path) {
    trf_checkpoint_index index;
    fixture_check_status(trf_checkpoint_index_open(path, &index, &err), TRF_OK, &err);
    ck_assert(strcmp(index.path, path) == 0 && strcmp(index.name, INDEX) == 0);
    return index;
}

/* Expects a failure's status, and its message, which is `path`, where it is not NULL, and then what is said. */
static void check_fails(trf_status status, trf_status expected, const char *path, const char *said) {
    fixture_check_status(status, expected, &err);
    const size_t length = path ? strlen(path) : 0;
    ck_assert_msg(strncmp(err.message, path ? path : "", length) == 0 &&
                      strncmp(err.message + length, said, strlen(said)) == 0,
                  "%s", err.message);
}

/* ---- opening ---- */

static const struct {
    const char *text, *said;
} kStrange[] = {
#define NO_FILE_NAME ": weight_map: what stands for tensor 'x' is not the name of a file beside the index"
    {"", ": not valid JSON: "},
    {"\xEF\xBB", ": not valid JSON: "}, /* no whole byte order mark */
    {"{\"weight_map\":{\"x\":\"s\"}", ": not valid JSON: "},
    {"{\"weight_map\":{\"x\":\"s\",\"x\":\"s\"}}", ": not valid JSON: duplicate object key"},
    {"{\"weight_map\":{\"x\":\"s\\u0000\"}}", ": not valid JSON: "},
    {"[]", ": weight_map is missing or not an object"},
    {"{\"weight_map\":[]}", ": weight_map is missing or not an object"},
    {"{\"weight_map\":{}}", ": weight_map is empty: it names no tensor"},
    {"{\"metadata\":[],\"weight_map\":{}}", ": weight_map is empty: it names no tensor"},
    {"{\"metadata\":{\"transfuse_source_index\":7},\"weight_map\":{}}", ": weight_map is empty: it names no tensor"},
    {"{\"weight_map\":{\"x\":1}}", NO_FILE_NAME},
    {"{\"weight_map\":{\"x\":\"\"}}", NO_FILE_NAME},
    {"{\"weight_map\":{\"x\":\"../s\"}}", NO_FILE_NAME},
};

START_TEST(strange_texts_say_what_is_wrong) {
    trf_checkpoint_index index;
    const char *path = write_index(kStrange[_i].text);
    check_fails(trf_checkpoint_index_open(path, &index, &err), TRF_ERR_FORMAT, path, kStrange[_i].said);
    ck_assert_int_eq(trf_checkpoint_index_open(path, &index, NULL), TRF_ERR_FORMAT);
}
END_TEST

START_TEST(what_is_no_file_is_named) {
    trf_checkpoint_index index;
    const char *gone = fixture_path("gone.safetensors.index.json"), *folder = fixture_path("folder");
    check_fails(trf_checkpoint_index_open(gone, &index, &err), TRF_ERR_NOT_FOUND, NULL, gone);
    fixture_make_folder(folder);
    check_fails(trf_checkpoint_index_open(folder, &index, &err), TRF_ERR_IO, NULL, folder);
}
END_TEST

START_TEST(what_an_index_keeps) {
    static const struct {
        const char *text, *kept;
    } cases[] = {
        {MAP("\"x\":\"s\""), NULL},
        {"{\"metadata\":7,\"weight_map\":{\"x\":\"s\"}}", NULL},
        {"{\"metadata\":{\"transfuse_source_index\":[\"s\"]},\"weight_map\":{\"x\":\"s\"}}", NULL},
        {"{\"metadata\":{\"transfuse_source_index\":\" {}\"},\"weight_map\":{\"x\":\"s\"}}", " {}"},
        {"{\"metadata\":{\"transfuse_source_index\":\"\"},\"weight_map\":{}}", ""}, /* the source names side tables */
        {"\xEF\xBB\xBF{\"metadata\":{\"transfuse_source_index\":\"\"},\"weight_map\":{}}", NULL},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        trf_checkpoint_index index = open_index(write_index(cases[i].text));
        size_t bytes;
        const char *kept = trf_checkpoint_index_kept(&index, &bytes);
        ck_assert_int_eq(index.has_mark, cases[i].text[0] != '{');
        ck_assert_uint_eq(bytes, cases[i].kept ? strlen(cases[i].kept) : 0);
        ck_assert_msg(kept ? cases[i].kept && strcmp(kept, cases[i].kept) == 0 : !cases[i].kept, "case %d", i);
        trf_checkpoint_index_free(&index);
    }
}
END_TEST

START_TEST(an_index_is_held_within_the_budget) {
    static const char text[] = "{\"metadata\": {\"total_size\": 4}, \"weight_map\": {\"x\": \"s\", \"y\": \"s\"}}";
    const char *path = write_index(text);
    const uint64_t bytes = sizeof text - 1, tree = trf_json_bytes(text, bytes), needed = 2 * (tree + bytes);
    trf_checkpoint_index index;
    for (int limited = 0; limited < 2; limited++) {
        trf_budget budget = {.max_bytes = limited ? needed + 5 : 0, .held_bytes = 5};
        fixture_check_status(trf_checkpoint_index_open_counted(path, &budget, &index, &err), TRF_OK, &err);
        ck_assert_uint_eq(budget.held_bytes, limited ? 5 + tree : 5);
        trf_checkpoint_index_free(&index);
        ck_assert_uint_eq(budget.held_bytes, 5);
    }
    for (int parses = 0; parses < 2; parses++) {
        trf_budget budget = {.max_bytes = parses ? needed + 4 : bytes + 5, .held_bytes = 5};
        check_fails(trf_checkpoint_index_open_counted(path, &budget, &index, &err), TRF_ERR_LIMIT, path,
                    ": max_memory_bytes is ");
        ck_assert_msg(strstr(err.message, parses ? "its JSON may take" : "its text may take") != NULL, "%s",
                      err.message);
        ck_assert_uint_eq(budget.held_bytes, 5);
    }
}
END_TEST

/* ---- files ---- */

enum {
    MOST_FILES = 4
};

typedef struct file_list {
    trf_checkpoint_file files[MOST_FILES];
    size_t count;
} file_list;

static file_list open_files(const char *folder, const char *const names[MOST_FILES]) {
    file_list list = {.count = 0};
    for (; list.count < MOST_FILES && names[list.count]; list.count++)
        fixture_check_status(trf_checkpoint_file_open(fixture_path("%s/%s.safetensors", folder, names[list.count]),
                                                      &list.files[list.count], &err),
                             TRF_OK, &err);
    return list;
}

static void close_files(file_list *list) {
    for (size_t i = 0; i < list->count; i++)
        trf_checkpoint_file_free(&list->files[i]);
}

static uint64_t data_bytes(const file_list *list) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < list->count; i++)
        bytes += list->files[i].own_header.data_bytes;
    return bytes;
}

/* Files s (tensors x and y), t (t), u (u) and v (another y). */
static file_list make_four_files(void) {
    static const fixture_tensor s[] = {{"x", "U8", {3}, 1, 0}, {"y", "U8", {3}, 1, 0}}, t[] = {{"t", "U8", {3}, 1, 0}},
                                u[] = {{"u", "U8", {3}, 1, 0}}, v[] = {{"y", "U8", {3}, 1, 0}};
    static const char *const names[MOST_FILES] = {"s", "t", "u", "v"};
    fixture_write_safetensors(fixture_path("s.safetensors"), NULL, s, 2, 8, 1);
    fixture_write_safetensors(fixture_path("t.safetensors"), NULL, t, 1, 8, 1);
    fixture_write_safetensors(fixture_path("u.safetensors"), NULL, u, 1, 8, 1);
    fixture_write_safetensors(fixture_path("v.safetensors"), NULL, v, 1, 8, 1);
    return open_files(".", names);
}

#define IN(name, file) "\"" name "\":\"" file ".safetensors\""

START_TEST(maps_and_files_agree) {
    static const struct {
        const char *text;
        trf_status status;
        const char *said;
    } cases[] = {
        {MAP(IN("x", "s") "," IN("y", "s")), TRF_OK, NULL},
        {MAP(IN("u", "u") "," IN("y", "s") "," IN("t", "t") "," IN("x", "s")), TRF_OK, NULL},
        {MAP(IN("x", "s")), TRF_ERR_FORMAT, ": tensor 'y' of file s.safetensors is not in weight_map"},
        {MAP(IN("x", "s") "," IN("y", "t")), TRF_ERR_FORMAT, ": tensor 'y' is not in file t.safetensors"},
        {MAP(IN("x", "s") "," IN("y", "v")), TRF_ERR_FORMAT,
         ": tensor 'y' is in file s.safetensors, but weight_map says v.safetensors"},
        {MAP(IN("x", "a")), TRF_ERR_NOT_FOUND, ": tensor 'x': there is no file a.safetensors"},
        {MAP(IN("t", "t") "," IN("x", "z")), TRF_ERR_NOT_FOUND, ": tensor 'x': there is no file z.safetensors"},
        {MAP(IN("t", "t") "," IN("x", "tt")), TRF_ERR_NOT_FOUND, ": tensor 'x': there is no file tt.safetensors"},
    };
    file_list files = make_four_files();
    for (int i = 0; i < COUNT(cases); i++) {
        const char *path = write_index(cases[i].text);
        trf_checkpoint_index index = open_index(path);
        const trf_status status = trf_checkpoint_index_check(&index, files.files, files.count, &err);
        if (cases[i].said)
            check_fails(status, cases[i].status, path, cases[i].said);
        else
            fixture_check_status(status, TRF_OK, &err);
        ck_assert_int_eq(trf_checkpoint_index_check(&index, files.files, files.count, NULL), cases[i].status);
        trf_checkpoint_index_free(&index);
    }
    close_files(&files);
}
END_TEST

START_TEST(why_an_index_is_idle) {
    static const struct {
        const char *text, *why;
    } cases[] = {
        {MAP(IN("x", "a")), "none of the files that it names is there"},
        {MAP(IN("x", "a") "," IN("y", "a") "," IN("z", "w")), "none of the files that it names is there"},
        {MAP(IN("x", "a") "," IN("y", "a") "," IN("u", "u")), NULL},
        {"{\"metadata\":{\"transfuse_source_index\":\"\"},\"weight_map\":{}}", NULL},
        {"\xEF\xBB\xBF", "begins with a byte order mark, with which transformers and diffusers cannot read it"},
    };
    file_list files = make_four_files();
    for (int i = 0; i < COUNT(cases); i++) {
        trf_checkpoint_index index = open_index(write_index(cases[i].text));
        const char *why = trf_checkpoint_index_why_idle(&index, files.files, files.count);
        ck_assert_msg(why ? cases[i].why && strcmp(why, cases[i].why) == 0 : !cases[i].why, "case %d: %s", i, why);
        trf_checkpoint_index_free(&index);
    }
    close_files(&files);
}
END_TEST

/* ---- what is written ---- */

#define SOURCE_TEXT                                                                                                    \
    "{\"metadata\":{\"total_size\":1,\"by\":\"me\"},\n \"weight_map\":{" IN("a.weight", "m-1") "," IN(                 \
        "n", "m-1") "," IN("b", "m-2") "}}"
/* The same as a value of JSON. */
#define ESCAPED(name, file) "\\\"" name "\\\":\\\"" file ".safetensors\\\""
#define SOURCE_TEXT_ESCAPED                                                                                            \
    "{\\\"metadata\\\":{\\\"total_size\\\":1,\\\"by\\\":\\\"me\\\"},\\n \\\"weight_map\\\":{" ESCAPED(                 \
        "a.weight", "m-1") "," ESCAPED("n", "m-1") "," ESCAPED("b", "m-2") "}}"

static const char *const kShards[MOST_FILES] = {"m-1", "m-2"};

/* A folder "in" of two files, of which the first holds a matrix, and "out", in which it is compressed. */
static void make_two_files(void) {
    static const fixture_tensor first[] = {{"a.weight", "BF16", {64, 256}, 2, 0}, {"n", "F32", {7}, 1, 0}};
    static const fixture_tensor second[] = {{"b", "U8", {9}, 1, 0}};
    fixture_make_folder(fixture_path("in"));
    fixture_write_safetensors(fixture_path("in/m-1.safetensors"), NULL, first, 2, 8, 5);
    fixture_write_safetensors(fixture_path("in/m-2.safetensors"), NULL, second, 1, 8, 6);
    fixture_write(fixture_path("in/" INDEX), SOURCE_TEXT, strlen(SOURCE_TEXT));
    fixture_check_status(trf_compress_checkpoint(fixture_path("in"), fixture_path("out"), NULL, NULL, &err), TRF_OK,
                         &err);
}

static void check_rewritten(const trf_checkpoint_index *index, const file_list *in, const file_list *out,
                            const char *expected) {
    char *text;
    size_t bytes;
    fixture_check_status(trf_checkpoint_index_rewrite(index, in->files, out->files, in->count, &text, &bytes, &err),
                         TRF_OK, &err);
    ck_assert_uint_eq(bytes, strlen(text));
    ck_assert_str_eq(text, expected);
    free(text);
}

START_TEST(the_text_of_a_compressed_index) {
    char expected[1024];
    make_two_files();
    file_list in = open_files("in", kShards), out = open_files("out", kShards);
    snprintf(expected, sizeof expected,
             "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 ",\n    \"by\": \"me\",\n"
             "    \"transfuse_source_index\": \"" SOURCE_TEXT_ESCAPED "\"\n  },\n"
             "  \"weight_map\": {\n    \"a.weight_trf\": \"m-1.safetensors\",\n    \"n\": \"m-1.safetensors\",\n"
             "    \"b\": \"m-2.safetensors\"\n  }\n}",
             data_bytes(&out));
    trf_checkpoint_index source = open_index(fixture_path("in/" INDEX)),
                         compressed = open_index(fixture_path("out/" INDEX));
    check_rewritten(&source, &in, &out, expected);
    check_rewritten(&compressed, &out, &in, SOURCE_TEXT);
    check_rewritten(&source, &in, &in, SOURCE_TEXT);
    size_t bytes;
    char *written = fixture_read(fixture_path("out/" INDEX), &bytes);
    ck_assert_str_eq(written, expected);
    free(written);
    trf_checkpoint_index_free(&source);
    trf_checkpoint_index_free(&compressed);
    close_files(&in);
    close_files(&out);
}
END_TEST

/* What a compressed checkpoint's index is restored to if it has lost the source's. */
START_TEST(an_index_that_keeps_none_is_written_anew) {
    static const char *const metadata[][2] = {
        {"", ""}, {"\"metadata\": 7, ", ""}, {"\"metadata\": {\"by\": \"me\"}, ", "    \"by\": \"me\",\n"}};
    char text[512], expected[512];
    make_two_files();
    file_list in = open_files("in", kShards), out = open_files("out", kShards);
    for (int i = 0; i < COUNT(metadata); i++) {
        const char *map =
            "  \"weight_map\": {\n    \"a.weight\": \"m-1.safetensors\",\n    \"b\": \"m-2.safetensors\",\n"
            "    \"n\": \"m-1.safetensors\"\n  }";
        snprintf(text, sizeof text, "{%s\"weight_map\": {%s, %s, %s}}", metadata[i][0], IN("a.weight_trf", "m-1"),
                 IN("b", "m-2"), IN("n", "m-1"));
        char own[160];
        snprintf(own, sizeof own, "  \"metadata\": {\n%s    \"total_size\": %" PRIu64 "\n  }", metadata[i][1],
                 data_bytes(&in));
        snprintf(expected, sizeof expected, "{\n%s,\n%s\n}", i ? own : map, i ? map : own);
        trf_checkpoint_index index = open_index(write_index(text));
        fixture_check_status(trf_checkpoint_index_check(&index, out.files, out.count, &err), TRF_OK, &err);
        fixture_check_status(trf_checkpoint_index_check_kept(&index, out.files, out.count, &err), TRF_OK, &err);
        check_rewritten(&index, &out, &in, expected);
        trf_checkpoint_index_free(&index);
    }
    close_files(&in);
    close_files(&out);
}
END_TEST

/* Side tables are no tensors of a compressed file, and are tensors again without a kept index, too. */
START_TEST(side_tables_come_back_to_the_map) {
    static const fixture_tensor tensors[] = {{"a.weight", "F8_E4M3", {64, 64}, 2, 0},
                                             {"a.weight_scale", "F32", {1}, 1, 0}};
    static const char config[] = "{\"model_type\": \"a\", \"dtype\": \"bfloat16\", \"quantization_config\": "
                                 "{\"quant_method\": \"fp8\"}}",
                      text[] = MAP(IN("a.weight", "m-1") "," IN("a.weight_scale", "m-1")),
                      compressed_text[] = MAP(IN("a.weight_trf", "m-1"));
    static const char *const names[MOST_FILES] = {"m-1"};
    static const float scale = 0.01f;
    const char *path = fixture_path("in/m-1.safetensors");
    char expected[512];
    size_t bytes;
    fixture_make_folder(fixture_path("in"));
    fixture_write(fixture_path("in/config.json"), config, strlen(config));
    fixture_write(fixture_path("in/" INDEX), text, strlen(text));
    fixture_write_safetensors(path, NULL, tensors, 2, 8, 5);
    uint8_t *file = fixture_read(path, &bytes);
    memcpy(file + bytes - sizeof scale, &scale, sizeof scale);
    fixture_write(path, file, bytes);
    free(file);
    fixture_check_status(trf_compress_checkpoint(fixture_path("in"), fixture_path("out"), NULL, NULL, &err), TRF_OK,
                         &err);
    file_list in = open_files("in", names), out = open_files("out", names);
    ck_assert_uint_eq(out.files[0].side_tables.count, 1);
    trf_checkpoint_index index = open_index(write_index(compressed_text));
    snprintf(expected, sizeof expected,
             "{\n  \"weight_map\": {\n    \"a.weight_scale\": \"m-1.safetensors\",\n    \"a.weight\": "
             "\"m-1.safetensors\"\n  },\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  }\n}",
             data_bytes(&in));
    check_rewritten(&index, &out, &in, expected);
    trf_checkpoint_index_free(&index);
    index = open_index(fixture_path("out/" INDEX));
    ck_assert_uint_eq(json_object_size(index.weight_map), 1);
    check_rewritten(&index, &out, &in, text);
    trf_checkpoint_index_free(&index);
    close_files(&in);
    close_files(&out);
}
END_TEST

START_TEST(a_kept_index_must_fit_the_files) {
    static const struct {
        const char *kept, *said;
    } cases[] = {
        {"", "not valid JSON: "},
        {"{}", "weight_map is missing or not an object"},
        {"{\\\"weight_map\\\":{}}", "weight_map is empty: it names no tensor"},
        {"{\\\"weight_map\\\":{" ESCAPED("a.weight", "m-1") "}}",
         "tensor 'n' of file m-1.safetensors is not in weight_map"},
        {"{\\\"weight_map\\\":{" ESCAPED("a.weight_trf", "m-1") "}}",
         "tensor 'a.weight_trf' is not in file m-1.safetensors"},
        {"{\\\"weight_map\\\":{" ESCAPED("b", "m-3") "}}", "tensor 'b': there is no file m-3.safetensors"},
    };
    char text[512], said[1200], *written;
    size_t bytes;
    make_two_files();
    file_list in = open_files("in", kShards), out = open_files("out", kShards);
    for (int i = 0; i < COUNT(cases); i++) {
        snprintf(text, sizeof text, "{\"metadata\":{\"transfuse_source_index\":\"%s\"},\"weight_map\":{%s, %s, %s}}",
                 cases[i].kept, IN("a.weight_trf", "m-1"), IN("n", "m-1"), IN("b", "m-2"));
        const char *path = write_index(text);
        trf_checkpoint_index index = open_index(path);
        snprintf(said, sizeof said, "the kept source index does not fit: %s: %s", path, cases[i].said);
        check_fails(trf_checkpoint_index_check_kept(&index, out.files, out.count, &err), TRF_ERR_FORMAT, NULL, said);
        check_fails(trf_checkpoint_index_rewrite(&index, out.files, in.files, in.count, &written, &bytes, &err),
                    TRF_ERR_FORMAT, NULL, said);
        trf_checkpoint_index_free(&index);
    }
    close_files(&in);
    close_files(&out);
}
END_TEST

START_TEST(rewriting_keeps_to_the_budget) {
    char *text;
    size_t bytes;
    make_two_files();
    file_list in = open_files("in", kShards), out = open_files("out", kShards);
    trf_budget budget = {.max_bytes = 1 << 20};
    const char *path = fixture_path("in/" INDEX), *compressed_path = fixture_path("out/" INDEX);
    trf_checkpoint_index index, compressed;
    fixture_check_status(trf_checkpoint_index_open_counted(path, &budget, &index, &err), TRF_OK, &err);
    fixture_check_status(trf_checkpoint_index_open_counted(compressed_path, &budget, &compressed, &err), TRF_OK, &err);
    const uint64_t held = budget.held_bytes, tree = trf_json_bytes(SOURCE_TEXT, strlen(SOURCE_TEXT));
    const uint64_t needed = tree + 8 * strlen(SOURCE_TEXT);
    for (int enough = 0; enough < 2; enough++) {
        budget.max_bytes = held + needed - 1 + (uint64_t)enough;
        trf_status status = trf_checkpoint_index_rewrite(&index, in.files, out.files, in.count, &text, &bytes, &err);
        if (enough)
            fixture_check_status(status, TRF_OK, &err), free(text);
        else
            check_fails(status, TRF_ERR_LIMIT, path, ": max_memory_bytes is ");
        ck_assert_uint_eq(budget.held_bytes, held);
    }
    budget.max_bytes = held + strlen(SOURCE_TEXT); /* no room for the text and a NUL */
    check_fails(trf_checkpoint_index_rewrite(&index, in.files, in.files, in.count, &text, &bytes, &err), TRF_ERR_LIMIT,
                path, ": max_memory_bytes is ");
    budget.max_bytes = held + 2 * tree; /* nor for both trees and copies of the kept text: a limit is no fault of it */
    check_fails(trf_checkpoint_index_rewrite(&compressed, out.files, in.files, in.count, &text, &bytes, &err),
                TRF_ERR_LIMIT, NULL, "the kept source index does not fit: ");
    ck_assert_int_eq(unlink(path), 0);
    check_fails(trf_checkpoint_index_rewrite(&index, in.files, in.files, in.count, &text, &bytes, &err),
                TRF_ERR_NOT_FOUND, NULL, path);
    trf_checkpoint_index_free(&index);
    trf_checkpoint_index_free(&compressed);
    ck_assert_uint_eq(budget.held_bytes, 0);
    close_files(&in);
    close_files(&out);
}
END_TEST

/* ---- Jansson's memory, which test_checkpoint_no_memory.c leaves out ---- */

static long allocations_left; /* until one fails */

static void *allocate(size_t bytes) { return allocations_left-- == 0 ? NULL : malloc(bytes); }

START_TEST(no_memory_for_json) {
    char *text;
    size_t bytes;
    make_two_files();
    file_list in = open_files("in", kShards), out = open_files("out", kShards);
    static const char anew[] = "{\"weight_map\":{" IN("a.weight_trf", "m-1") "," IN("n", "m-1") "," IN("b", "m-2") "}}";
    trf_checkpoint_index source = open_index(fixture_path("in/" INDEX)), compressed = open_index(write_index(anew));
    json_malloc_t usual_malloc;
    json_free_t usual_free;
    json_get_alloc_funcs(&usual_malloc, &usual_free);
    for (int decompresses = 0; decompresses < 2; decompresses++) {
        trf_status status = TRF_ERR_MEMORY;
        long number = 0;
        for (; status == TRF_ERR_MEMORY; number++) {
            allocations_left = number;
            json_set_alloc_funcs(allocate, free);
            status = decompresses
                         ? trf_checkpoint_index_rewrite(&compressed, out.files, in.files, 2, &text, &bytes, &err)
                         : trf_checkpoint_index_rewrite(&source, in.files, out.files, 2, &text, &bytes, &err);
            json_set_alloc_funcs(usual_malloc, usual_free);
            EXPECT(status == TRF_OK || err.status == status);
        }
        fixture_check_status(status, TRF_OK, &err);
        /* Jansson has lost nothing without saying so. */
        ck_assert_msg(allocations_left >= 0 && number > 8, "%ld, %ld: %s", number, allocations_left, text);
        free(text);
    }
    trf_checkpoint_index_free(&source);
    trf_checkpoint_index_free(&compressed);
    close_files(&in);
    close_files(&out);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("checkpoint_index");
    TCase *tests = tcase_create("index");
    tcase_add_checked_fixture(tests, fixture_begin, fixture_end);
    tcase_add_loop_test(tests, strange_texts_say_what_is_wrong, 0, COUNT(kStrange));
    tcase_add_test(tests, what_is_no_file_is_named);
    tcase_add_test(tests, what_an_index_keeps);
    tcase_add_test(tests, an_index_is_held_within_the_budget);
    tcase_add_test(tests, maps_and_files_agree);
    tcase_add_test(tests, why_an_index_is_idle);
    tcase_add_test(tests, the_text_of_a_compressed_index);
    tcase_add_test(tests, an_index_that_keeps_none_is_written_anew);
    tcase_add_test(tests, side_tables_come_back_to_the_map);
    tcase_add_test(tests, a_kept_index_must_fit_the_files);
    tcase_add_test(tests, rewriting_keeps_to_the_budget);
    tcase_add_test(tests, no_memory_for_json);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
