/* SPDX-License-Identifier: Apache-2.0 */
/* Where a library that is opened at run time is found, in a folder that looks like site-packages. */
#define _GNU_SOURCE /* dlinfo */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "trf_library_search.h"

#include <check.h>
#include <dlfcn.h>
#include <link.h>
#include <string.h>
#include <unistd.h>

static const char *const kFolders[] = {"nvidia/cu13/lib", "nvidia/cublas/lib", NULL};
static const char kName[] = "libtrf-test.so.13";

static const char *own_path;
static void *maths; /* a library that is on every machine */

static void begin(void) {
    fixture_begin();
    static const char *const folders[] = {"site",
                                          "site/transfuse",
                                          "site/transfuse/lib",
                                          "site/transfuse/bin",
                                          "site/nvidia",
                                          "site/nvidia/cu13",
                                          "site/nvidia/cu13/lib",
                                          "site/nvidia/cublas",
                                          "site/nvidia/cublas/lib",
                                          "site/other"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        fixture_make_folder(fixture_path("%s", folders[i]));
    own_path = fixture_path("site/transfuse/lib/libtransfuse.so.0.2");
    maths = dlopen("libm.so.6", RTLD_NOW);
    ck_assert_ptr_nonnull(maths);
}

/* Puts a link there, through which the linker finds the library that it has already loaded. */
static void put_library(const char *folder) {
    struct link_map *map;
    ck_assert_int_eq(dlinfo(maths, RTLD_DI_LINKMAP, &map), 0);
    ck_assert_int_eq(symlink(map->l_name, fixture_path("site/%s/%s", folder, kName)), 0);
}

static void remove_library(const char *folder) {
    ck_assert_int_eq(unlink(fixture_path("site/%s/%s", folder, kName)), 0);
}

START_TEST(beside_the_package) {
    ck_assert_ptr_null(trf_open_library_beside(own_path, kName, kFolders));
    for (int i = 0; i < 2; i++) {
        put_library(kFolders[i]);
        ck_assert_ptr_eq(trf_open_library_beside(own_path, kName, kFolders), maths);
        /* The way from the command to the library, as the linker writes it. */
        ck_assert_ptr_eq(
            trf_open_library_beside(fixture_path("site/transfuse/bin/../lib/libtransfuse.so.0.2"), kName, kFolders),
            maths);
        ck_assert_ptr_null(trf_open_library_beside(own_path, "libtrf-other.so.13", kFolders));
        remove_library(kFolders[i]);
    }
}
END_TEST

/* If the first folder has no such package, the second one is searched. */
START_TEST(first_that_opens) {
    fixture_write(fixture_path("site/%s/%s", kFolders[0], kName), "no library", 10);
    ck_assert_ptr_null(trf_open_library_beside(own_path, kName, kFolders));
    put_library(kFolders[1]);
    ck_assert_ptr_eq(trf_open_library_beside(own_path, kName, kFolders), maths);
    remove_library(kFolders[0]);
    remove_library(kFolders[1]);
}
END_TEST

/* A library or program that lies elsewhere does not search the folders near it. */
START_TEST(not_in_the_package) {
    static const char *const paths[] = {"site/transfuse/libtransfuse.so", "site/transfuse/bin/transfuse",
                                        "site/other/libtransfuse.so", "site/none/lib/libtransfuse.so"};
    put_library(kFolders[0]);
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        ck_assert_ptr_null(trf_open_library_beside(fixture_path("%s", paths[i]), kName, kFolders));
    ck_assert_ptr_null(trf_open_library_beside("libtransfuse.so", kName, kFolders));
    ck_assert_ptr_null(trf_open_library_beside("/lib/libtransfuse.so", kName, kFolders));
    ck_assert_ptr_null(trf_open_library_beside("", kName, kFolders));
    remove_library(kFolders[0]);
}
END_TEST

START_TEST(by_the_name) {
    ck_assert_ptr_eq(trf_open_library("libm.so.6", kFolders), maths);
    ck_assert_ptr_null(trf_open_library(kName, kFolders));
    const char *why = dlerror();
    ck_assert_msg(why && strstr(why, kName), "%s", why ? why : "nothing is said");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("library_search");
    TCase *tests = tcase_create("library_search");
    tcase_add_unchecked_fixture(tests, begin, fixture_end);
    tcase_add_test(tests, beside_the_package);
    tcase_add_test(tests, first_that_opens);
    tcase_add_test(tests, not_in_the_package);
    tcase_add_test(tests, by_the_name);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
