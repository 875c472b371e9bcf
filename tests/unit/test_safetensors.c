/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of safetensors files: which ones are accepted, the exact status of those that are not, what happens when
 * memory or the file fails meanwhile (TRF_TEST_WRAPS_ALLOCATIONS), and headers that the library makes. */
#include "common/checkpoint_fixture.h"
#include "common/failing_memory.h"
#include "common/run_suite.h"
#include "trf_safetensors.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct header_case {
    const char *header;
    uint64_t data_bytes;
    trf_status status;
    uint64_t offset; /* of the failure; 0: not checked */
} header_case;

#define ENTRY(dtype, shape, begin, end)                                                                                \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static const header_case kCases[] = {
    /* taken */
    {"{}", 0, TRF_OK, 0},
    {"{}       ", 0, TRF_OK, 0},
    {"\n {}\t", 0, TRF_OK, 0},
    {"{\"__metadata__\":{}}", 0, TRF_OK, 0},
    {"{\"__metadata__\":null}", 0, TRF_OK, 0},
    {"{\"__metadata__\":{\"format\":\"pt\"}}", 0, TRF_OK, 0},
    {"{\"a\":" ENTRY("F32", "[2,3]", 0, 24) "}", 24, TRF_OK, 0},
    {"{\"a\":" ENTRY("F32", "[]", 0, 4) "}", 4, TRF_OK, 0},
    {"{\"a\":" ENTRY("F32", "[0,7]", 0, 0) "}", 0, TRF_OK, 0},
    {"{\"\":" ENTRY("I64", "[1]", 0, 8) "}", 8, TRF_OK, 0},
    {"{\"b\":" ENTRY("U8", "[2]", 3, 5) ",\"a\":" ENTRY("BOOL", "[3]", 0, 3) "}", 5, TRF_OK, 0},
    {"{\"a\":" ENTRY("F4", "[3,2]", 0, 3) "}", 3, TRF_OK, 0},
    {"{\"a\":" ENTRY("F6_E2M3", "[4]", 0, 3) "}", 3, TRF_OK, 0},
    {"{\"a\":" ENTRY("C64", "[2]", 0, 16) "}", 16, TRF_OK, 0},
    {"{\"a\":" ENTRY("NEVER_HEARD", "[2,2]", 0, 5) "}", 5, TRF_OK, 0},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":{}}}", 1, TRF_OK, 0},
    {"{\"a\":" ENTRY("U8", "[0]", 0, 0) ",\"b\":" ENTRY("U8", "[2]", 0, 2) ",\"c\":" ENTRY("U8", "[0]", 2, 2) "}", 2,
     TRF_OK, 0},

    {"{\"b\":" ENTRY("U8", "[0]", 0, 0) ",\"a\":" ENTRY("U8", "[0]", 0, 0) ",\"c\":" ENTRY("U8", "[0,2]", 0, 0) "}", 0,
     TRF_OK, 0},

    /* not JSON, or other JSON */
    {"1", 0, TRF_ERR_FORMAT, 0},
    {"\"{}\"", 0, TRF_ERR_FORMAT, 0},
    {"null", 0, TRF_ERR_FORMAT, 0},
    {"{\"__metadata__\":\"a\"}", 0, TRF_ERR_FORMAT, 0},
    {"{\"__metadata__\":{\"a\":\"b\",\"c\":null}}", 0, TRF_ERR_FORMAT, 0},
    {"{\"a\":null}", 0, TRF_ERR_FORMAT, 0},
    {"{\"a\":[\"U8\",[1],[0,1]]}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":\"1\",\"data_offsets\":[0,1]}}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":{},\"data_offsets\":[0,1]}}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[null],\"data_offsets\":[0,1]}}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":{\"dtype\":null,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":{}}}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":\"01\"}}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[\"0\",1]}}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,-1]}}", 1, TRF_ERR_FORMAT, 0},
    {"", 0, TRF_ERR_FORMAT, 0},
    {"{", 0, TRF_ERR_FORMAT, 9},
    {"{}x", 0, TRF_ERR_FORMAT, 0},
    {"[]", 0, TRF_ERR_FORMAT, 8},
    {"{\"a\":1}", 0, TRF_ERR_FORMAT, 0},
    {"{\"\xff\":" ENTRY("U8", "[0]", 0, 0) "}", 0, TRF_ERR_FORMAT, 0},
    {"{\"a\\u0000b\":" ENTRY("U8", "[0]", 0, 0) "}", 0, TRF_ERR_FORMAT, 0},
    {"{\"a\":" ENTRY("U8", "[1]", 0, 1) ",\"a\":" ENTRY("U8", "[1]", 1, 2) "}", 2, TRF_ERR_FORMAT, 0},
    {"{\"__metadata__\":[]}", 0, TRF_ERR_FORMAT, 0},
    {"{\"__metadata__\":{\"a\":1}}", 0, TRF_ERR_FORMAT, 0},

    /* entries that are not valid */
    {"{\"a\":{}}", 0, TRF_ERR_FORMAT, 0},
    {"{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1.0]}}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":" ENTRY("U8", "[-1]", 0, 1) "}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":" ENTRY("U8", "[1.5]", 0, 1) "}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":" ENTRY("U8", "[\"1\"]", 0, 1) "}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":" ENTRY("U8", "[1]", -1, 0) "}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":" ENTRY("U8", "[0]", 1, 0) "}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":" ENTRY("U8", "[99999999999999999999]", 0, 1) "}", 1, TRF_ERR_FORMAT, 0},

    /* sizes that do not fit */
    {"{\"a\":" ENTRY("F32", "[2]", 0, 7) "}", 7, TRF_ERR_FORMAT, 0},
    {"{\"a\":" ENTRY("F32", "[2]", 0, 9) "}", 9, TRF_ERR_FORMAT, 0},
    {"{\"a\":" ENTRY("F4", "[3]", 0, 2) "}", 2, TRF_ERR_FORMAT, 0},
    {"{\"a\":" ENTRY("U8", "[4294967296,4294967296]", 0, 0) "}", 0, TRF_ERR_FORMAT, 0},
    {"{\"a\":" ENTRY("F64", "[1152921504606846976]", 0, 0) "}", 0, TRF_ERR_FORMAT, 0},

    /* places that do not fit; each header's length is in the offset */
    {"{\"a\":" ENTRY("U8", "[1]", 1, 2) "}", 2, TRF_ERR_FORMAT, 0},
    {"{\"a\":" ENTRY("U8", "[2]", 0, 2) ",\"b\":" ENTRY("U8", "[2]", 1, 3) "}", 3, TRF_ERR_FORMAT, 0},
    {"{\"a\":" ENTRY("U8", "[2]", 0, 2) ",\"b\":" ENTRY("U8", "[2]", 3, 5) "}", 5, TRF_ERR_FORMAT, 0},
    {"{\"a\":" ENTRY("U8", "[2]", 0, 2) "}", 3, TRF_ERR_FORMAT, 0},
    {"{}", 1, TRF_ERR_FORMAT, 10},
    {"{\"a\":" ENTRY("U8", "[2]", 0, 2) "}", 1, TRF_ERR_TRUNCATED, 0},
    {"{\"a\":" ENTRY("U8", "[9223372036854775807]", 0, 9223372036854775807) "}", 1, TRF_ERR_FORMAT, 0},
    {"{\"a\":" ENTRY("?", "[1]", 0, 9223372036854775807) "}", 1, TRF_ERR_TRUNCATED, 0},
};

START_TEST(headers_give_their_status) {
    const header_case *c = &kCases[_i];
    trf_safetensors header;
    trf_error err = {0};
    trf_status status = trf_safetensors_parse(strdup(c->header), strlen(c->header), c->data_bytes, &header, &err);
    ck_assert_msg(status == c->status, "%s: %s: %s", c->header, trf_status_name(status), err.message);
    if (c->offset)
        ck_assert_uint_eq(err.offset, c->offset);
    if (status == TRF_OK)
        trf_safetensors_free(&header);
    /* The caller may not want to know. */
    status = trf_safetensors_parse(strdup(c->header), strlen(c->header), c->data_bytes, &header, NULL);
    ck_assert_int_eq(status, c->status);
    if (status == TRF_OK)
        trf_safetensors_free(&header);
}
END_TEST

START_TEST(tensors_come_in_the_order_of_their_data) {
    static const char text[] = "{\"c\":" ENTRY("U8", "[2]", 4, 6) ",\"a\":" ENTRY("U8", "[0]", 4, 4) ",\"b\":" ENTRY(
        "F32", "[]", 0, 4) ",\"__metadata__\":{\"k\":\"v\"}}";
    trf_safetensors header;
    ck_assert_int_eq(trf_safetensors_parse(strdup(text), strlen(text), 6, &header, NULL), TRF_OK);
    ck_assert_uint_eq(header.num_tensors, 3);
    ck_assert_str_eq(header.tensors[0].name, "b");
    ck_assert_str_eq(header.tensors[1].name, "a");
    ck_assert_str_eq(header.tensors[2].name, "c");
    ck_assert_ptr_eq(trf_safetensors_find(&header, "c"), &header.tensors[2]);
    ck_assert_ptr_null(trf_safetensors_find(&header, "d"));
    ck_assert_str_eq(trf_safetensors_metadata(&header, "k"), "v");
    ck_assert_ptr_null(trf_safetensors_metadata(&header, "b"));
    ck_assert_str_eq(header.text, text);
    trf_safetensors_free(&header);
}
END_TEST

typedef struct file_case {
    const char *bytes;
    size_t size;
    trf_status status;
    const char *message; /* a part of it */
} file_case;

static const file_case kFiles[] = {
    {"", 0, TRF_ERR_TRUNCATED, "too few"},
    {"\2\0\0\0\0\0\0", 7, TRF_ERR_TRUNCATED, "too few"},
    {"\2\0\0\0\0\0\0\0{", 9, TRF_ERR_TRUNCATED, "byte 9"},
    {"\2\0\0\0\0\0\0\0{}", 10, TRF_OK, ""},
    {"\2\0\0\0\0\0\0\0{}\1", 11, TRF_ERR_FORMAT, "follow"},
    {"\1\xe1\xf5\5\0\0\0\0{}", 10, TRF_ERR_FORMAT, "100000001"},
    {"\0\xe1\xf5\5\0\0\0\0{}", 10, TRF_ERR_TRUNCATED, "100000000"},
    {"\2\0\0\0\0\0\0\x80{}", 10, TRF_ERR_FORMAT, "not a safetensors file"},
    {"\xff\xff\xff\xff\xff\xff\xff\xff", 8, TRF_ERR_FORMAT, "not a safetensors file"},
    {"version https://git-lfs.github.com/spec/v1\n", 43, TRF_ERR_FORMAT, "Git LFS"},
};

START_TEST(files_give_their_status) {
    const file_case *c = &kFiles[_i];
    const char *path = fixture_path("file.safetensors");
    trf_checkpoint *checkpoint;
    trf_error err = {0};
    fixture_write(path, c->bytes, c->size);
    trf_status status = trf_checkpoint_open(path, &checkpoint, &err);
    fixture_check_status(status, c->status, &err);
    if (status != TRF_OK) {
        ck_assert_msg(strstr(err.message, c->message) != NULL, "%s", err.message);
        ck_assert_msg(strstr(err.message, path) != NULL, "%s", err.message);
    }
    trf_checkpoint_close(checkpoint);
}
END_TEST

/* ---- failures meanwhile ---- */

static const char kSound[] = "{\"c\":" ENTRY("U8", "[2]", 4, 6) ",\"a\":" ENTRY("F32", "[1]", 0, 4) "}";

/* The header that is parsed, and the file that it is read from. */
typedef struct sound_file {
    trf_file file;
    uint64_t bytes;
    trf_error err;
} sound_file;

static sound_file open_sound_file(void) {
    const char *path = fixture_path("sound.safetensors");
    uint8_t bytes[8 + sizeof kSound - 1 + 6] = {sizeof kSound - 1};
    memcpy(bytes + 8, kSound, sizeof kSound - 1);
    fixture_write(path, bytes, sizeof bytes);
    sound_file sound = {.bytes = 0};
    ck_assert_int_eq(trf_file_open(path, &sound.file, &sound.bytes, &sound.err), TRF_OK);
    ck_assert_uint_eq(sound.bytes, sizeof bytes);
    return sound;
}

static trf_status read_sound_file(void *context) {
    sound_file *sound = context;
    trf_safetensors header;
    const trf_status status = trf_safetensors_read(&sound->file, sound->bytes, &header, &sound->err);
    if (status == TRF_OK)
        trf_safetensors_free(&header);
    return status;
}

START_TEST(every_allocation_fails_once) {
    sound_file sound = open_sound_file();
    const long allocations = fail_each_allocation(read_sound_file, &sound, TRF_ERR_MEMORY, &sound.err);
    ck_assert_int_gt(allocations, 9); /* the text, three lists, and three of each of the two tensors */
    trf_file_close(&sound.file);
}
END_TEST

static void *no_memory(size_t bytes) {
    (void)bytes;
    return NULL;
}

START_TEST(jansson_lacks_memory) {
    sound_file sound = open_sound_file();
    json_set_alloc_funcs(no_memory, free);
    const trf_status status = read_sound_file(&sound);
    json_set_alloc_funcs(__real_malloc, free);
    fixture_check_status(status, TRF_ERR_MEMORY, &sound.err);
    fixture_check_status(read_sound_file(&sound), TRF_OK, &sound.err);
    trf_file_close(&sound.file);
}
END_TEST

/* The file is cut after its size was asked for: before the length, in it, and in the header. */
START_TEST(the_file_becomes_shorter) {
    static const uint64_t kept[] = {0, 7, 8, 8 + sizeof kSound - 2};
    for (size_t i = 0; i < 4; i++) {
        sound_file sound = open_sound_file();
        const char *path = fixture_path("sound.safetensors");
        ck_assert_int_eq(truncate(path, (off_t)kept[i]), 0);
        fixture_check_status(read_sound_file(&sound), TRF_ERR_TRUNCATED, &sound.err);
        trf_file_close(&sound.file);
    }
}
END_TEST

START_TEST(names_of_dtypes) {
    static const struct {
        const char *name;
        uint32_t bits;
        trf_dtype dtype;
    } dtypes[] = {{"F32", 32, TRF_DTYPE_F32},
                  {"F16", 16, TRF_DTYPE_F16},
                  {"BF16", 16, TRF_DTYPE_BF16},
                  {"F8_E4M3", 8, TRF_DTYPE_F8_E4M3},
                  {"F8_E5M2", 8, TRF_DTYPE_F8_E5M2},
                  {"I8", 8, TRF_DTYPE_I8},
                  {"F6_E3M2", 6, TRF_DTYPE_NONE},
                  {"U64", 64, TRF_DTYPE_NONE},
                  {"F4", 4, TRF_DTYPE_NONE},
                  {"NEVER_HEARD", 0, TRF_DTYPE_NONE},
                  {"", 0, TRF_DTYPE_NONE}};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        ck_assert_uint_eq(trf_dtype_bits_of_name(dtypes[i].name), dtypes[i].bits);
        ck_assert_int_eq(trf_dtype_of_name(dtypes[i].name), dtypes[i].dtype);
    }
}
END_TEST

/* ---- writing ---- */

START_TEST(written_headers_can_be_read) {
    static const uint64_t shape[] = {3, 5};
    json_t *metadata = json_pack("{s:s}", "a\n\"b", "\xc3\xa9");
    trf_text text = {0};
    trf_safetensors_begin_header(&text, metadata);
    trf_safetensors_add_tensor(&text, "x\n\"\xc3\xa9", "_trf", "BF16", shape, 2, 0, 30);
    trf_safetensors_add_tensor(&text, "y", "", "F32", NULL, 0, 30, 34);
    trf_safetensors_end_header(&text, 16);
    ck_assert(!text.failed);
    ck_assert_uint_eq((8 + text.size) % 16, 0);
    trf_safetensors header;
    ck_assert_int_eq(trf_safetensors_parse(text.bytes, text.size, 34, &header, NULL), TRF_OK);
    ck_assert_str_eq(header.tensors[0].name, "x\n\"\xc3\xa9_trf");
    ck_assert_str_eq(trf_safetensors_metadata(&header, "a\n\"b"), "\xc3\xa9");
    trf_safetensors_free(&header);
    json_decref(metadata);
}
END_TEST

START_TEST(entries_stay_within_their_bound) {
    static uint64_t shape[] = {1, 18446744073709551615u, 12};
    trf_tensor tensor = {.name = "a\t\xc3\xa9", .dtype = "F8_E4M3", .shape = shape, .num_dims = 3};
    size_t bound = trf_safetensors_entry_bound(&tensor, "_trf");
    static const uint64_t kOffsets[] = {0, 9, 1000000007, UINT64_MAX};
    for (size_t i = 0; i < 4; i++) {
        trf_text plain = {0}, blob = {0};
        trf_safetensors_begin_header(&plain, NULL);
        trf_safetensors_begin_header(&blob, NULL);
        for (int n = 0; n < 2; n++) { /* the second one has a comma */
            size_t plain_before = plain.size, blob_before = blob.size;
            trf_safetensors_add_tensor(&plain, tensor.name, "", tensor.dtype, shape, 3, kOffsets[i], kOffsets[i]);
            trf_safetensors_add_tensor(&blob, tensor.name, "_trf", "U8", &kOffsets[i], 1, kOffsets[i], kOffsets[i]);
            ck_assert_uint_le(plain.size - plain_before, bound);
            ck_assert_uint_le(blob.size - blob_before, bound);
        }
        trf_text_free(&plain);
        trf_text_free(&blob);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("safetensors");
    TCase *tests = tcase_create("headers");
    tcase_add_unchecked_fixture(tests, fixture_begin, fixture_end);
    tcase_add_loop_test(tests, headers_give_their_status, 0, sizeof kCases / sizeof kCases[0]);
    tcase_add_loop_test(tests, files_give_their_status, 0, sizeof kFiles / sizeof kFiles[0]);
    tcase_add_test(tests, tensors_come_in_the_order_of_their_data);
    tcase_add_test(tests, every_allocation_fails_once);
    tcase_add_test(tests, jansson_lacks_memory);
    tcase_add_test(tests, the_file_becomes_shorter);
    tcase_add_test(tests, names_of_dtypes);
    tcase_add_test(tests, written_headers_can_be_read);
    tcase_add_test(tests, entries_stay_within_their_bound);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
