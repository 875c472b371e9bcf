/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a fuzzer's bytes a file, for functions that take a path. Include it first: memfd_create is GNU's. */
#ifndef FUZZ_FILE_H
#define FUZZ_FILE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct fuzz_file {
    int fd; /* close it */
    char path[64];
} fuzz_file;

static inline fuzz_file fuzz_file_of(const uint8_t *data, size_t size) {
    fuzz_file file = {.fd = memfd_create("fuzz", MFD_CLOEXEC)};
    if (file.fd < 0 || write(file.fd, data, size) != (ssize_t)size)
        abort();
    snprintf(file.path, sizeof file.path, "/proc/self/fd/%d", file.fd);
    return file;
}

#endif
