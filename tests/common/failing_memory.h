/* SPDX-License-Identifier: Apache-2.0 */
/* Lets allocations of the library fail when a test says so. One file of a test that mentions TRF_TEST_WRAPS_ALLOCATIONS
 * includes this; the linker then sends the library's allocations here (tests/unit/CMakeLists.txt). */
#ifndef FAILING_MEMORY_H
#define FAILING_MEMORY_H

#include "checkpoint_fixture.h"

#include <check.h>
#include <errno.h>
#include <jansson.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

static atomic_long allocations_made;     /* since they were last counted */
static atomic_long allocation_fails_at;  /* which one fails, from 1; 0: none */
static atomic_int allocation_has_failed; /* whether it has */
static atomic_int allocations_fail_on;   /* whether all later ones fail, too */

static int allocation_fails(void) {
    const long number = atomic_fetch_add(&allocations_made, 1) + 1;
    const long fails_at = atomic_load(&allocation_fails_at);
    if (number != fails_at && (number < fails_at || !fails_at || !atomic_load(&allocations_fail_on)))
        return 0;
    atomic_store(&allocation_has_failed, 1);
    errno = ENOMEM;
    return 1;
}

static void count_allocations_from_here(long fail_at) {
    atomic_store(&allocations_made, 0);
    atomic_store(&allocation_has_failed, 0);
    atomic_store(&allocation_fails_at, fail_at);
}

/* Attempts something again and again, each time with an allocation failing that comes `step` after the one before,
 * until none is left. Expects TRF_ERR_MEMORY or `also` each time, in err, too, and TRF_OK the last time. attempt must
 * make no assertions, since Check allocates as well. @return how often it was attempted. */
static inline long fail_allocations(trf_status (*attempt)(void *context), void *context, trf_status also, long step,
                                    const trf_error *err) {
    for (long number = 1;; number += step) {
        count_allocations_from_here(number);
        const trf_status status = attempt(context);
        const int failed = atomic_load(&allocation_has_failed);
        count_allocations_from_here(0);
        if (!failed) {
            fixture_check_status(status, TRF_OK, err);
            return number;
        }
        ck_assert_msg(status == TRF_ERR_MEMORY || status == also, "allocation %ld: %s: %s", number,
                      trf_status_name(status), err->message);
        ck_assert_int_eq(err->status, status);
    }
}

/* Does that with each allocation failing once, then with all failing from each fifth one on: memory that stays short.
 */
static inline long fail_each_allocation(trf_status (*attempt)(void *context), void *context, trf_status also,
                                        const trf_error *err) {
    const long number = fail_allocations(attempt, context, also, 1, err);
    atomic_store(&allocations_fail_on, 1);
    fail_allocations(attempt, context, also, 5, err);
    atomic_store(&allocations_fail_on, 0);
    return number;
}

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes) { return allocation_fails() ? NULL : __real_malloc(bytes); }

/* Jansson's allocations do not count, wherever it is linked from, because it reports some that fail as bad syntax. */
__attribute__((constructor)) static void leave_out_jansson(void) { json_set_alloc_funcs(__real_malloc, free); }

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) { return allocation_fails() ? NULL : __real_calloc(count, bytes); }

void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    return allocation_fails() ? NULL : __real_aligned_alloc(alignment, bytes);
}

void *__real_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes) { return allocation_fails() ? NULL : __real_realloc(memory, bytes); }

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text) { return allocation_fails() ? NULL : __real_strdup(text); }

char *__real_strndup(const char *text, size_t length);
char *__wrap_strndup(const char *text, size_t length);
char *__wrap_strndup(const char *text, size_t length) {
    return allocation_fails() ? NULL : __real_strndup(text, length);
}

void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    return allocation_fails() ? MAP_FAILED : __real_mmap(at, bytes, protection, flags, fd, offset);
}

#endif
