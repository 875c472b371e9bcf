/* SPDX-License-Identifier: Apache-2.0 */
/* Files of tunings that are written and read back, and files that are not tunings. */
#include "common/made_tuning.h"
#include "common/run_suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

static trf_error err;

START_TEST(files_there_and_back) {
    trf_tuning *made = make_tuning(), *read;
    const char *path = fixture_path("tuning.json");
    fixture_check_status(trf_tuning_write(made, path, 0, &err), TRF_OK, &err);
    fixture_check_status(trf_tuning_write(made, path, 0, &err), TRF_ERR_EXISTS, &err);
    fixture_check_status(trf_tuning_write(made, path, 1, &err), TRF_OK, &err);
    fixture_check_status(trf_tuning_read(path, &read, &err), TRF_OK, &err);
    ck_assert_mem_eq(&read->card, &made->card, sizeof read->card);
    ck_assert_uint_eq(read->num_layers, made->num_layers);
    for (uint32_t l = 0; l < made->num_layers; l++) {
        const trf_tuned_layer *a = &read->layers[l], *b = &made->layers[l];
        ck_assert_mem_eq(&a->key, &b->key, sizeof a->key);
        ck_assert_uint_eq(a->num_points, b->num_points);
        for (uint32_t i = 0; i < a->num_points; i++) {
            ck_assert_uint_eq(a->points[i].m, b->points[i].m);
            ck_assert_int_eq(a->points[i].path, b->points[i].path);
            ck_assert_int_eq(a->points[i].has_packed, b->points[i].has_packed);
            ck_assert_int_eq(a->points[i].packed.shape, b->points[i].packed.shape);
            ck_assert_uint_eq(a->points[i].packed.cut, b->points[i].packed.cut);
            for (int p = 0; p < TRF_TUNED_PATHS; p++)
                ck_assert(a->points[i].microseconds[p] == b->points[i].microseconds[p]);
        }
    }
    trf_tuning_free(read);
    trf_tuning_free(made);
    fixture_check_status(trf_tuning_read(fixture_path("none.json"), &read, &err), TRF_ERR_NOT_FOUND, &err);
    fixture_check_status(trf_tuning_write(NULL, path, 1, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_tuning_read(NULL, &read, &err), TRF_ERR_ARGUMENT, &err);
}
END_TEST

#define HEAD "{\"format\": \"transfuse tuning\", \"version\": 2, \"device\": \"CPU\", \"layers\": "
#define FORM "\"codec\": \"int\", \"class_bits\": 2, \"raw_bits\": 3, \"scale_groups\": false, \"rows\": 5, \"cols\": 6"
#define OTHER_FORM                                                                                                     \
    "\"codec\": \"int\", \"class_bits\": 2, \"raw_bits\": 3, \"scale_groups\": true, \"rows\": 5, \"cols\": 6"
#define PACKED_POINT                                                                                                   \
    HEAD "[{\"layout\": \"packed\", " FORM ", \"batches\": [{\"to\": 4, \"path\": \"packed\", \"packed\": "
static const struct {
    const char *text;
    trf_status due;
    const char *says;
} kFiles[] = {
    {HEAD "[]}", TRF_OK, NULL},
    {HEAD "[{" FORM ", \"batches\": []}]}", TRF_OK, NULL},
    {HEAD "[{" FORM ", \"batches\": [{\"to\": 4, \"path\": \"wide\"}]}]}", TRF_OK, NULL},
    {HEAD "[{" FORM ", \"batches\": [{\"to\": 4, \"path\": \"fused\", \"microseconds\": {\"fused\": 3}}]}]}", TRF_OK,
     NULL},
    {"", TRF_ERR_FORMAT, "not valid JSON"},
    {"[]", TRF_ERR_FORMAT, "'format'"},
    {HEAD, TRF_ERR_FORMAT, "not valid JSON"},
    {HEAD "[], \"layers\": []}", TRF_ERR_FORMAT, "not valid JSON"},
    {"{\"format\": \"transfuse\"}", TRF_ERR_FORMAT, "'format'"},
    {"{\"format\": \"transfuse tuning\", \"version\": 1}", TRF_ERR_VERSION,
     "version 1, and this version of transfuse reads 2"},
    {"{\"format\": \"transfuse tuning\", \"version\": 1}", TRF_ERR_VERSION, "run 'transfuse tune' again"},
    {"{\"format\": \"transfuse tuning\", \"version\": 3}", TRF_ERR_VERSION, "'version'"},
    {"{\"format\": \"transfuse tuning\", \"version\": 0}", TRF_ERR_VERSION, "'version'"},
    {"{\"format\": \"transfuse tuning\", \"version\": 2.0}", TRF_ERR_VERSION, "'version'"},
    {"{\"format\": \"transfuse tuning\"}", TRF_ERR_VERSION, "'version'"},
    {"{\"format\": \"transfuse tuning\", \"version\": 2, \"layers\": []}", TRF_ERR_FORMAT, "'device'"},
    {HEAD "[], \"capability\": 90, \"multiprocessors\": 132, \"memory_gb_per_second\": 4917}", TRF_OK, NULL},
    {HEAD "[], \"capability\": -1}", TRF_ERR_FORMAT, "'capability'"},
    {HEAD "[], \"multiprocessors\": \"132\"}", TRF_ERR_FORMAT, "'multiprocessors'"},
    {HEAD "[], \"memory_gb_per_second\": 4.8}", TRF_ERR_FORMAT, "'memory_gb_per_second'"},
    {HEAD "{}}", TRF_ERR_FORMAT, "'layers'"},
    {HEAD "[3]}", TRF_ERR_FORMAT, "layers[0]: 'codec'"},
    {HEAD "[{" FORM "}]}", TRF_ERR_FORMAT, "layers[0]: 'batches'"},
    {HEAD "[{\"codec\": \"auto\"}]}", TRF_ERR_FORMAT, "layers[0]: 'codec'"},
    {HEAD "[{\"codec\": \"bf16\", \"class_bits\": 0}]}", TRF_ERR_FORMAT, "'class_bits'"},
    {HEAD "[{\"codec\": \"bf16\", \"class_bits\": 2, \"raw_bits\": 1e3}]}", TRF_ERR_FORMAT, "'raw_bits'"},
    {HEAD "[{\"codec\": \"bf16\", \"class_bits\": 2, \"raw_bits\": 8, \"scale_groups\": 0}]}", TRF_ERR_FORMAT,
     "'scale_groups'"},
    {HEAD "[{\"codec\": \"bf16\", \"class_bits\": 2, \"raw_bits\": 8, \"scale_groups\": true, \"rows\": 4294967296}]}",
     TRF_ERR_FORMAT, "'rows'"},
    {HEAD "[{" FORM ", \"batches\": []}, {" FORM ", \"batches\": [{\"to\": 0, \"path\": \"wide\"}]}]}", TRF_ERR_FORMAT,
     "layers[1].batches[0]: 'to'"},
    {HEAD "[{" FORM ", \"batches\": []}, {" OTHER_FORM ", \"batches\": []}]}", TRF_OK, NULL},
    {HEAD "[{" FORM ", \"batches\": []}, {\"layout\": \"plain\", " FORM
          ", \"batches\": [{\"to\": 4, \"path\": \"dense\", \"microseconds\": {\"dense\": 3}}]}]}",
     TRF_OK, NULL},
    {HEAD "[{" FORM ", \"batches\": []}, {\"layout\": \"coded\", " FORM ", \"batches\": []}]}", TRF_ERR_FORMAT,
     "layers[1]: the same as layers[0]"},
    {PACKED_POINT "{\"kernel\": \"wgmma-128\", \"cut\": \"stream-k\"}}]}]}", TRF_OK, NULL},
    {PACKED_POINT "{\"kernel\": \"bulk-64-8-warps\", \"cut\": 8}}]}]}", TRF_OK, NULL},
    {PACKED_POINT "{\"kernel\": \"wgmma-192x128\", \"cut\": 2}}]}]}", TRF_OK, NULL},
    {PACKED_POINT "{\"kernel\": \"wgmma-512\", \"cut\": 2}}]}]}", TRF_ERR_FORMAT,
     "layers[0].batches[0]: the 'kernel' of 'packed'"},
    {PACKED_POINT "{\"kernel\": \"general\", \"cut\": 1}}]}]}", TRF_ERR_FORMAT, "the 'kernel' of 'packed'"},
    {PACKED_POINT "\"wgmma-128\"}]}]}", TRF_ERR_FORMAT, "the 'kernel' of 'packed'"},
    {PACKED_POINT "{\"kernel\": \"wgmma-128\"}}]}]}", TRF_ERR_FORMAT, "the 'cut' of 'packed'"},
    {PACKED_POINT "{\"kernel\": \"wgmma-128\", \"cut\": 0}}]}]}", TRF_ERR_FORMAT, "the 'cut' of 'packed'"},
    {PACKED_POINT "{\"kernel\": \"wgmma-128\", \"cut\": 9}}]}]}", TRF_ERR_FORMAT, "the 'cut' of 'packed'"},
    {PACKED_POINT "{\"kernel\": \"wgmma-128\", \"cut\": \"2\"}}]}]}", TRF_ERR_FORMAT, "the 'cut' of 'packed'"},
    {HEAD "[{\"layout\": \"woven\", " FORM ", \"batches\": []}]}", TRF_ERR_FORMAT, "layers[0]: 'layout'"},
    {HEAD "[{\"layout\": 1, " FORM ", \"batches\": []}]}", TRF_ERR_FORMAT, "layers[0]: 'layout'"},
    {HEAD "[{" FORM ", \"batches\": []}, {" OTHER_FORM ", \"batches\": []}, {" FORM ", \"batches\": []}]}",
     TRF_ERR_FORMAT, "layers[2]: the same as layers[0]"},
    {HEAD "[{" FORM ", \"batches\": [{\"to\": 4, \"path\": \"auto\"}]}]}", TRF_ERR_FORMAT, "batches[0]: 'path'"},
    {HEAD "[{" FORM ", \"batches\": [{\"to\": 4}]}]}", TRF_ERR_FORMAT, "batches[0]: 'path'"},
    {HEAD "[{" FORM ", \"batches\": [{\"to\": 4, \"path\": \"wide\"}, {\"to\": 4, \"path\": \"wide\"}]}]}",
     TRF_ERR_FORMAT, "batches[1]: batches do not ascend"},
    {HEAD "[{" FORM ", \"batches\": [{\"to\": 4, \"path\": \"wide\", \"microseconds\": {\"wide\": -1}}]}]}",
     TRF_ERR_FORMAT, "a time"},
    {HEAD "[{" FORM ", \"batches\": [{\"to\": 4, \"path\": \"wide\", \"microseconds\": {\"wide\": 1e308}}]}]}",
     TRF_ERR_FORMAT, "batches[0]: a time is not a positive number of at most 1e12"},
    {HEAD "[{" FORM ", \"batches\": [{\"to\": 4, \"path\": \"wide\", \"microseconds\": [1]}]}]}", TRF_ERR_FORMAT,
     "batches[0]: 'microseconds' is not an object"},
    {HEAD "[{" FORM ", \"batches\": [{\"to\": 4, \"path\": \"wide\", \"microseconds\": {\"wide\": \"1\"}}]}]}",
     TRF_ERR_FORMAT, "a time"},
};

START_TEST(files_give_their_status) {
    trf_tuning *read = NULL;
    const char *path = fixture_path("tuning.json");
    fixture_write(path, kFiles[_i].text, strlen(kFiles[_i].text));
    fixture_check_status(trf_tuning_read(path, &read, &err), kFiles[_i].due, &err);
    ck_assert_int_eq(read != NULL, kFiles[_i].due == TRF_OK);
    if (kFiles[_i].says) {
        ck_assert_msg(strstr(err.message, kFiles[_i].says), "%s", err.message);
        ck_assert_msg(strstr(err.message, "tuning.json"), "%s", err.message);
    }
    trf_tuning_free(read);
}
END_TEST

/* A kernel that the library once had can be read, and plans choose one of those that it has now. */
START_TEST(former_kernels) {
    static const char *const names[] = {"bulk-64", "bulk-64-8-warps"};
    const char *path = fixture_path("tuning.json");
    for (int is_former = 0; is_former < 2; is_former++) {
        trf_tuning *read = NULL;
        char text[1024];
        snprintf(text, sizeof text, PACKED_POINT "{\"kernel\": \"%s\", \"cut\": 8}}]}]}", names[is_former]);
        fixture_write(path, text, strlen(text));
        fixture_check_status(trf_tuning_read(path, &read, &err), TRF_OK, &err);
        ck_assert_int_eq(read->layers[0].points[0].path, TRF_PATH_PACKED);
        ck_assert_int_eq(read->layers[0].points[0].has_packed, !is_former);
        trf_tuning_free(read);
    }
}
END_TEST

START_TEST(too_long_files) {
    trf_tuning *read = NULL;
    const char *path = fixture_path("tuning.json");
    char text[8192];
    size_t used = (size_t)sprintf(text, HEAD "[{" FORM ", \"batches\": [");
    for (int i = 1; i <= TRF_TUNING_MAX_POINTS + 1; i++)
        used += (size_t)sprintf(text + used, "%s{\"to\": %d, \"path\": \"wide\"}", i > 1 ? ", " : "", i);
    used += (size_t)sprintf(text + used, "]}]}");
    fixture_write(path, text, used);
    fixture_check_status(trf_tuning_read(path, &read, &err), TRF_ERR_FORMAT, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "too long"));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("tuning_files");
    TCase *tests = tcase_create("tuning_files");
    tcase_add_unchecked_fixture(tests, fixture_begin, fixture_end);
    tcase_add_test(tests, files_there_and_back);
    tcase_add_loop_test(tests, files_give_their_status, 0, sizeof kFiles / sizeof kFiles[0]);
    tcase_add_test(tests, former_kernels);
    tcase_add_test(tests, too_long_files);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
