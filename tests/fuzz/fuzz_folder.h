/* SPDX-License-Identifier: Apache-2.0 */
/* A folder in memory, where there is one, for functions that take a path. It is made at the first call, and removed at
 * the end of the process, if that ends by itself. Include it first: nftw is not in C11. */
#ifndef FUZZ_FOLDER_H
#define FUZZ_FOLDER_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char fuzz_folder_path[64];

static int fuzz_remove_entry(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

/* Removes a file, or a folder with all below it, if it is there. */
static void fuzz_remove(const char *path) { (void)nftw(path, fuzz_remove_entry, 16, FTW_DEPTH | FTW_PHYS); }

static void fuzz_folder_end(void) { fuzz_remove(fuzz_folder_path); }

static inline const char *fuzz_folder(void) {
    if (!fuzz_folder_path[0]) {
        snprintf(fuzz_folder_path, sizeof fuzz_folder_path, "%s/transfuse_fuzz_XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        if (!mkdtemp(fuzz_folder_path) || atexit(fuzz_folder_end) != 0)
            abort();
    }
    return fuzz_folder_path;
}

/* A path in the folder. */
typedef struct fuzz_path {
    char text[128];
} fuzz_path;

static inline fuzz_path fuzz_path_of(const char *name) {
    fuzz_path path;
    snprintf(path.text, sizeof path.text, "%s/%s", fuzz_folder(), name);
    return path;
}

static inline void fuzz_write(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, size, file) != size || fclose(file) != 0)
        abort();
}

#endif
