/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries of the CUDA toolkit that the bench opens at run time, by their names. cuBLASLt is the one that the context
 * has opened before. Messages name the library. */
#ifndef BENCH_LIBRARY_CUDA_H
#define BENCH_LIBRARY_CUDA_H

#include <stddef.h>

/* A pointer to a function of the library, and what it is called there. */
typedef struct bench_library_function {
    void *pointer;
    const char *name;
} bench_library_function;

/* Sets all pointers. @return 0, or -1 after a message if the library lacks a function. */
int bench_library_find(void *library, const char *name, const bench_library_function *functions, size_t count);

#endif
