/* SPDX-License-Identifier: Apache-2.0 */
/* The command's .npy files: files that are written and read back, headers of other writers, and the status of malformed
 * files. */
#include "../../tools/cli_file.c"
#include "../../tools/cli_float.c"
#include "../../tools/cli_messages.c"
#include "../../tools/cli_npy.c"
#include "../../tools/cli_signals.c"
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"

#include <check.h>

static const float kValues[6] = {0, -1.5f, 3.25f, 1e30f, -0.0f, 0x1p-149f};

/* The status that a message on stderr names. */
static trf_status status_in(FILE *messages) {
    char line[2048] = "";
    rewind(messages);
    ck_assert_ptr_nonnull(fgets(line, sizeof line, messages));
    for (int status = TRF_OK; status < TRF_STATUS_COUNT; status++) {
        char name[64];
        snprintf(name, sizeof name, "[%s]\n", trf_status_name((trf_status)status));
        if (strstr(line, name))
            return (trf_status)status;
    }
    ck_abort_msg("no status in: %s", line);
}

/* cli_write_npy, whose failures are messages. */
static trf_status write_npy(const char *path, const float *values, uint64_t rows, uint64_t cols, int force) {
    FILE *messages = tmpfile();
    ck_assert_ptr_nonnull(messages);
    fflush(stderr);
    const int kept = dup(STDERR_FILENO);
    ck_assert_int_ge(dup2(fileno(messages), STDERR_FILENO), 0);
    const cli_exit exit_status = cli_write_npy(path, values, rows, cols, force);
    fflush(stderr);
    ck_assert_int_ge(dup2(kept, STDERR_FILENO), 0);
    close(kept);
    const trf_status status = exit_status == CLI_OK ? TRF_OK : status_in(messages);
    fclose(messages);
    return status;
}

START_TEST(what_is_written_is_read) {
    const char *path = fixture_path("a.npy");
    trf_error err = {0};
    float *values;
    uint64_t rows, cols;
    ck_assert_int_eq(write_npy(path, kValues, 2, 3, 0), TRF_OK);
    fixture_check_status(cli_read_npy(path, &values, &rows, &cols, &err), TRF_OK, &err);
    ck_assert_uint_eq(rows, 2);
    ck_assert_uint_eq(cols, 3);
    ck_assert_int_eq(memcmp(values, kValues, sizeof kValues), 0);
    free(values);

    size_t size;
    char *bytes = fixture_read(path, &size);
    ck_assert_uint_eq(size, 128 + sizeof kValues); /* the data is aligned to 64 bytes, as numpy does it */
    ck_assert_int_eq(bytes[127], '\n');
    free(bytes);
}
END_TEST

START_TEST(an_existing_file_is_replaced_only_on_request) {
    const char *path = fixture_path("b.npy");
    fixture_write(path, "old", 3);
    ck_assert_int_eq(write_npy(path, kValues, 1, 6, 0), TRF_ERR_EXISTS);
    ck_assert_int_eq(write_npy(path, kValues, 1, 6, 1), TRF_OK);
    ck_assert_int_eq(write_npy(fixture_path("no/b.npy"), kValues, 1, 6, 1), TRF_ERR_IO);
    ck_assert_int_eq(write_npy(fixture_path("c.npy"), kValues, UINT64_MAX, 2, 1), TRF_ERR_ARGUMENT);
}
END_TEST

START_TEST(an_array_without_values_is_one) {
    const char *path = fixture_path("empty.npy");
    trf_error err = {0};
    float *values;
    uint64_t rows, cols;
    ck_assert_int_eq(write_npy(path, NULL, 0, 3, 0), TRF_OK);
    fixture_check_status(cli_read_npy(path, &values, &rows, &cols, &err), TRF_OK, &err);
    ck_assert_uint_eq(rows, 0);
    ck_assert_uint_eq(cols, 3);
    free(values);
}
END_TEST

typedef struct npy_case {
    const char *version; /* two bytes */
    const char *header;
    size_t data_bytes;
    trf_status status;
    uint64_t rows, cols;
} npy_case;

#define F4_2X3 "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n"

static const npy_case kCases[] = {
    {"\1\0", F4_2X3, 24, TRF_OK, 2, 3},
    {"\2\0", F4_2X3, 24, TRF_OK, 2, 3},
    {"\3\0", F4_2X3, 24, TRF_OK, 2, 3},
    {"\1\0", "{\"shape\":(2,3),\"fortran_order\":False,\"descr\":\"<f4\"}", 24, TRF_OK, 2, 3},
    {"\1\0", "{'descr': '<f2', 'fortran_order': False, 'shape': (5,), }\n", 10, TRF_OK, 1, 5},
    {"\1\0", "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 7), }\n", 0, TRF_OK, 0, 7},
    {"\1\0", F4_2X3, 23, TRF_ERR_FORMAT, 0, 0},
    {"\1\0", F4_2X3, 25, TRF_ERR_FORMAT, 0, 0},
    {"\4\0", F4_2X3, 24, TRF_ERR_FORMAT, 0, 0},
    {"\0\0", F4_2X3, 24, TRF_ERR_FORMAT, 0, 0},
    {"\1\0", "{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }\n", 24, TRF_ERR_FORMAT, 0, 0},
    {"\1\0", "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n", 48, TRF_ERR_FORMAT, 0, 0},
    {"\1\0", "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 3), }\n", 24, TRF_ERR_FORMAT, 0, 0},
    {"\1\0", "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }\n", 24, TRF_ERR_FORMAT, 0, 0},
    {"\1\0", "{'descr': '<f4', 'shape': (2, 3), }\n", 24, TRF_ERR_FORMAT, 0, 0},
    {"\1\0", "{'descr': '<f4', 'fortran_order': False, }\n", 24, TRF_ERR_FORMAT, 0, 0},
    {"\1\0", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'shape': (1, 6)}\n", 24, TRF_ERR_FORMAT, 0, 0},
    {"\1\0", "{'descr': '<f4', 'descr': '<f2', 'fortran_order': False, 'shape': (2, 3)}\n", 24, TRF_ERR_FORMAT, 0, 0},
    {"\1\0", "{'descr': '<f4', 'fortran_order': False, 'shape': (), }\n", 4, TRF_ERR_FORMAT, 0, 0},
    {"\1\0", "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 3), }\n", 24, TRF_ERR_FORMAT, 0, 0},
    {"\1\0", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, x), }\n", 24, TRF_ERR_FORMAT, 0, 0},
    {"\1\0", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, -3), }\n", 24, TRF_ERR_FORMAT, 0, 0},
    {"\1\0", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3", 24, TRF_ERR_FORMAT, 0, 0},
    {"\1\0", "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }\n", 0, TRF_ERR_FORMAT, 0,
     0},
    {"\1\0", "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 1), }\n", 0, TRF_ERR_FORMAT, 0,
     0},
    {"\1\0", "", 0, TRF_ERR_FORMAT, 0, 0},
};

START_TEST(headers_give_their_status) {
    const npy_case *c = &kCases[_i];
    const char *path = fixture_path("case.npy");
    uint8_t bytes[512] = "\x93NUMPY";
    uint32_t length = (uint32_t)strlen(c->header), length_bytes = c->version[0] == 1 ? 2 : 4;
    memcpy(bytes + 6, c->version, 2);
    memcpy(bytes + 8, &length, length_bytes);
    memcpy(bytes + 8 + length_bytes, c->header, length);
    fixture_write(path, bytes, 8 + length_bytes + length + c->data_bytes);
    float *values;
    uint64_t rows, cols;
    trf_error err = {0};
    trf_status status = cli_read_npy(path, &values, &rows, &cols, &err);
    fixture_check_status(status, c->status, &err);
    if (status != TRF_OK)
        return;
    ck_assert_uint_eq(rows, c->rows);
    ck_assert_uint_eq(cols, c->cols);
    free(values);
}
END_TEST

START_TEST(halves_are_widened) {
    const char *path = fixture_path("half.npy");
    static const char header[] = "{'descr': '<f2', 'fortran_order': False, 'shape': (4,), }\n";
    static const uint16_t halves[4] = {0x3C00, 0xC000, 0x0001, 0x7C00};
    uint8_t bytes[128] = "\x93NUMPY\1";
    bytes[8] = sizeof header - 1;
    memcpy(bytes + 10, header, sizeof header - 1);
    memcpy(bytes + 10 + sizeof header - 1, halves, sizeof halves);
    fixture_write(path, bytes, 10 + sizeof header - 1 + sizeof halves);
    float *values;
    uint64_t rows, cols;
    ck_assert_int_eq(cli_read_npy(path, &values, &rows, &cols, NULL), TRF_OK);
    ck_assert(values[0] == 1 && values[1] == -2 && values[2] == 0x1p-24f && values[3] > 1e38f);
    free(values);
}
END_TEST

START_TEST(files_that_are_none) {
    float *values;
    uint64_t rows, cols;
    trf_error err = {0};
    const char *path = fixture_path("short.npy");
    fixture_check_status(cli_read_npy(fixture_path("missing.npy"), &values, &rows, &cols, &err), TRF_ERR_NOT_FOUND,
                         &err);
    fixture_check_status(cli_read_npy(fixture_path("."), &values, &rows, &cols, &err), TRF_ERR_IO, &err);
    for (size_t size = 0; size < 12; size++) {
        fixture_write(path, "\x93NUMPY\2\0\xff\0\0\0", size);
        fixture_check_status(cli_read_npy(path, &values, &rows, &cols, &err), TRF_ERR_FORMAT, &err);
    }
    fixture_write(path, "something else", 14);
    fixture_check_status(cli_read_npy(path, &values, &rows, &cols, &err), TRF_ERR_FORMAT, &err);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("cli_npy");
    TCase *tests = tcase_create("npy");
    tcase_add_unchecked_fixture(tests, fixture_begin, fixture_end);
    tcase_add_test(tests, what_is_written_is_read);
    tcase_add_test(tests, an_existing_file_is_replaced_only_on_request);
    tcase_add_test(tests, an_array_without_values_is_one);
    tcase_add_loop_test(tests, headers_give_their_status, 0, sizeof kCases / sizeof kCases[0]);
    tcase_add_test(tests, halves_are_widened);
    tcase_add_test(tests, files_that_are_none);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
