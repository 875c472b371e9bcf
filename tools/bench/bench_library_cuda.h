/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries of the CUDA toolkit that the bench opens at run time. Messages name the library. */
#ifndef BENCH_LIBRARY_CUDA_H
#define BENCH_LIBRARY_CUDA_H

#include <stddef.h>

/* A pointer to a function of the library, and what it is called there. */
typedef struct bench_library_function {
    void *pointer;
    const char *name;
} bench_library_function;

/* Opens it by its name, or in the toolkit's folder. @return NULL: dlerror says why. */
void *bench_library_open(const char *name);

/* Fills all pointers. @return 0, or -1 after a message: it lacks one. */
int bench_library_find(void *library, const char *name, const bench_library_function *functions, size_t count);

#endif
