/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded before Python (LD_PRELOAD), it lets allocations and threads that libtransfuse asks for fail. Nothing fails
 * until memory_faults_begin is called; only what is called from the library counts, and not what Python, NumPy or
 * Jansson ask for. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static atomic_uintptr_t first, behind; /* the library's code */
static atomic_long calls, fails_at, fails_on;

static int take_range(struct dl_phdr_info *info, size_t size, void *found) {
    (void)size;
    if (!strstr(info->dlpi_name, "libtransfuse.so"))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X)) {
            atomic_store(&first, info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
            atomic_store(&behind, atomic_load(&first) + info->dlpi_phdr[i].p_memsz);
            *(int *)found = 1;
        }
    return 1;
}

/* Lets the call with this number, from 1 on, fail, and with `on` all later ones. 0: none. @return 0 if libtransfuse is
 * not loaded. */
int memory_faults_begin(long at, int on);
int memory_faults_begin(long at, int on) {
    int found = 0;
    dl_iterate_phdr(take_range, &found);
    atomic_store(&calls, 0);
    atomic_store(&fails_on, on);
    atomic_store(&fails_at, at);
    return found;
}

/* Lets nothing fail any more. @return how many calls there were. */
long memory_faults_end(void);
long memory_faults_end(void) {
    atomic_store(&fails_at, 0);
    return atomic_load(&calls);
}

static int fails(const void *caller) {
    const uintptr_t at = (uintptr_t)caller;
    const long wanted = atomic_load(&fails_at);
    if (!wanted || at < atomic_load(&first) || at >= atomic_load(&behind))
        return 0;
    const long number = atomic_fetch_add(&calls, 1) + 1;
    return number == wanted || (number > wanted && atomic_load(&fails_on));
}

#define FAILS() fails(__builtin_return_address(0))

/* glibc's own names: dlsym allocates. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static void *none(void) { return errno = ENOMEM, NULL; }

void *malloc(size_t bytes) { return FAILS() ? none() : __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { return FAILS() ? none() : __libc_calloc(count, bytes); }
void *realloc(void *memory, size_t bytes) { return FAILS() ? none() : __libc_realloc(memory, bytes); }
void *aligned_alloc(size_t alignment, size_t bytes) { return FAILS() ? none() : __libc_memalign(alignment, bytes); }

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    if (FAILS())
        return EAGAIN;
    return ((__typeof__(&pthread_create))dlsym(RTLD_NEXT, "pthread_create"))(thread, attributes, start, argument);
}
