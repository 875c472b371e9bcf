/* SPDX-License-Identifier: Apache-2.0 */
/* JSON output of the command is written completely or not at all. TRF_TEST_WRAPS_ALLOCATIONS */
#include "../../tools/cli_json.c"
#include "common/failing_memory.h"
#include "common/run_suite.h"

#include <stdio.h>

static const char kDue[] = "{\"path\": \"a?b\", \"list\": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}\n";
static char text[sizeof kDue + 100];
static size_t text_bytes;

/* Writes to `text`, and sets text_bytes. context: the trf_error. */
static trf_status write_text(void *context) {
    trf_error *err = context;
    memset(text, 0, sizeof text);
    FILE *file = tmpfile();
    if (!file)
        return err->status = TRF_ERR_MEMORY;
    cli_json_begin();
    json_t *root = json_object(), *list = json_array();
    json_object_set_new(root, "path",
                        cli_json_text("a\xFF"
                                      "b"));
    for (int i = 0; i < 10; i++)
        json_array_append_new(list, json_integer(i));
    json_object_set_new(root, "list", list);
    err->status = cli_json_write(root, 0, file);
    rewind(file);
    text_bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    return err->status;
}

static trf_status nothing_or_all(void *context) {
    const trf_status status = write_text(context);
    return status != TRF_OK && text_bytes ? TRF_ERR_IO : status;
}

START_TEST(each_allocation_fails) {
    trf_error err = {0};
    ck_assert_int_gt(fail_each_allocation(nothing_or_all, &err, TRF_ERR_MEMORY, &err), 20);
    ck_assert_str_eq(text, kDue);
}
END_TEST

START_TEST(a_full_disk) {
    FILE *file = fopen("/dev/full", "w");
    if (!file)
        return; /* Linux has one */
    setbuf(file, NULL);
    cli_json_begin();
    ck_assert_int_eq(cli_json_write(json_array(), 0, file), TRF_ERR_IO);
    fclose(file);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("cli_json");
    TCase *tests = tcase_create("cli_json");
    tcase_add_test(tests, each_allocation_fails);
    tcase_add_test(tests, a_full_disk);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
