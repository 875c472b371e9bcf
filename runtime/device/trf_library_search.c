/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* dladdr, asprintf */
#include "trf_library_search.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char kPackageFolder[] = "/transfuse/lib";

/* site-packages, malloc'd; NULL if own_path is not in the package. */
static char *find_site(const char *own_path) {
    const char *slash = strrchr(own_path, '/');
    char *folder = slash ? strndup(own_path, (size_t)(slash - own_path) + 1) : NULL;
    /* The folder is resolved, not the file: a package manager may link each file to its cache. */
    char *real = folder ? realpath(folder, NULL) : NULL;
    free(folder);
    const size_t length = real ? strlen(real) : 0, tail = sizeof kPackageFolder - 1;
    if (length <= tail || strcmp(real + length - tail, kPackageFolder) != 0) {
        free(real);
        return NULL;
    }
    real[length - tail] = 0;
    return real;
}

void *trf_open_library_beside(const char *own_path, const char *soname, const char *const *folders) {
    void *library = NULL;
    char *site = find_site(own_path);
    for (; site && *folders && !library; folders++) {
        char *path;
        if (asprintf(&path, "%s/%s/%s", site, *folders, soname) < 0)
            break;
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        free(path);
    }
    free(site);
    return library;
}

void *trf_open_library(const char *soname, const char *const *folders) {
    Dl_info own;
    void *library = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
    if (!library && dladdr(kPackageFolder, &own) && own.dli_fname)
        library = trf_open_library_beside(own.dli_fname, soname, folders);
    return library ? library : dlopen(soname, RTLD_NOW | RTLD_LOCAL); /* again, for dlerror */
}
