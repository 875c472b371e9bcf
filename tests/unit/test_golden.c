/* SPDX-License-Identifier: Apache-2.0 */
/* Golden files: blobs that every build must decode to the recorded bytes, and corrupt blobs, each of which must give an
 * exact status. They were written by an encoder of their own (tests/python), so this also checks that two
 * implementations agree. */
#include "common/decoders.h"
#include "common/run_suite.h"

#include <check.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static decoder decoders[3];
static uint32_t num_decoders;

/* The whole file, 16-byte aligned and of exactly its size, so that the address sanitizer sees any step beyond. */
static uint8_t *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s", path);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    void *bytes;
    ck_assert_int_eq(posix_memalign(&bytes, 16, *size ? *size : 1), 0);
    ck_assert_uint_eq(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

/* Decodes the elements of all tiles, row-major. @return the status of the first tile that fails. */
static trf_status decode_all(const trf_blob_view *view, const uint8_t *blob, trf_decode_tile_fn *decode,
                             uint16_t *elements, trf_error *err) {
    static trf_decode_table table;
    trf_decode_table_init(&table, view);
    for (uint64_t t = 0; t < view->num_tiles; t++) {
        trf_tile_shape shape = trf_tile_shape_of(&view->header, t, view->tiles[t].coding);
        trf_status status =
            decode(view, &table, t, blob + view->tiles[t].data_offset,
                   elements + (size_t)shape.row * view->header.cols + shape.col, view->header.cols, err);
        if (status != TRF_OK)
            return status;
    }
    return TRF_OK;
}

static json_t *load_list(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/golden/%s", TRF_TEST_DATA_DIR, name);
    json_error_t error;
    json_t *list = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    ck_assert_msg(list != NULL, "%s: %s", path, error.text);
    ck_assert_uint_gt(json_object_size(list), 0);
    return list;
}

static void check_hash(const char *name, json_t *entry, const char *size_key, const char *hash_key, const void *bytes,
                       size_t size) {
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)XXH3_64bits(bytes, size));
    ck_assert_msg((json_int_t)size == json_integer_value(json_object_get(entry, size_key)), "%s: %zu bytes", name,
                  size);
    ck_assert_msg(strcmp(hash, json_string_value(json_object_get(entry, hash_key))) == 0, "%s: %s is %s", name,
                  hash_key, hash);
}

START_TEST(golden_files_decode) {
    json_t *list = load_list("golden.json"), *entry;
    const char *name;
    json_object_foreach(list, name, entry) {
        char path[512];
        snprintf(path, sizeof path, "%s/golden/%s", TRF_TEST_DATA_DIR, name);
        size_t size;
        uint8_t *blob = read_file(path, &size);
        trf_error err = {0};
        trf_blob_view view;
        ck_assert_msg(trf_blob_validate(blob, size, &view, &err) == TRF_OK, "%s: %s", name, err.message);
        size_t weights = (size_t)view.header.rows * view.header.cols;
        uint16_t *elements = malloc(weights * 2), *again = malloc(weights * 2);
        for (uint32_t d = 0; d < num_decoders; d++) {
            ck_assert_msg(decode_all(&view, blob, decoders[d].decode, d ? again : elements, &err) == TRF_OK,
                          "%s: %s: %s", name, decoders[d].name, err.message);
            ck_assert_msg(d == 0 || memcmp(elements, again, weights * 2) == 0, "%s: reference and %s decoder differ",
                          name, decoders[d].name);
        }
        trf_layer *layer;
        ck_assert_int_eq(trf_layer_open(path, &layer, &err), TRF_OK);
        size_t bytes = weights * trf_dtype_bytes((trf_dtype)view.header.source_dtype);
        void *values = malloc(bytes);
        ck_assert_int_eq(trf_layer_decode(layer, values, bytes, 2, &err), TRF_OK);
        check_hash(name, entry, "bytes", "xxh3", values, bytes);
        trf_layer_free(layer);
        free(values);
        free(elements);
        free(again);
        free(blob);
    }
    json_decref(list);
}
END_TEST

START_TEST(corrupt_files_give_their_status) {
    json_t *list = load_list("corrupt.json"), *entry;
    const char *name;
    json_object_foreach(list, name, entry) {
        char path[512];
        snprintf(path, sizeof path, "%s/golden/corrupt/%s", TRF_TEST_DATA_DIR, name);
        size_t size;
        uint8_t *blob = read_file(path, &size);
        const char *expected = json_string_value(json_object_get(entry, "status"));
        for (uint32_t d = 0; d < num_decoders; d++) {
            trf_error err = {0};
            trf_blob_view view;
            trf_status status = trf_blob_validate(blob, size, &view, &err);
            if (status == TRF_OK) { /* only decoding can tell */
                uint16_t *elements = malloc((size_t)view.header.rows * view.header.cols * 2);
                status = decode_all(&view, blob, decoders[d].decode, elements, &err);
                free(elements);
            }
            ck_assert_msg(strcmp(trf_status_name(status), expected) == 0, "%s: %s, not %s (%s)", name,
                          trf_status_name(status), expected, err.message);
            ck_assert_msg(err.status == status && err.message[0], "%s: an error without a message", name);
        }
        free(blob);
    }
    json_decref(list);
}
END_TEST

int main(void) {
    num_decoders = find_decoders(decoders);
    Suite *suite = suite_create("golden");
    TCase *tests = tcase_create("files");
    tcase_add_test(tests, golden_files_decode);
    tcase_add_test(tests, corrupt_files_give_their_status);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
