/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE /* usleep */
#include "soak_measure.h"

#include <check.h>
#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAS_OWN_MALLOC 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_OWN_MALLOC 1
#endif

static uint32_t count_entries(const char *path) {
    DIR *directory = opendir(path);
    ck_assert_msg(directory != NULL, "%s", path);
    uint32_t count = 0;
    for (const struct dirent *entry; (entry = readdir(directory));)
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

static uint64_t count_resident_bytes(void) {
    unsigned long long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%llu %llu", &all, &resident), 2);
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

void soak_measure_begin(void) {
#if defined(__GLIBC__) && !defined(HAS_OWN_MALLOC)
    enum {
        THRESHOLD = 128 << 10 /* as at a program's start; that it is set keeps it there */
    };
    ck_assert(mallopt(M_MMAP_THRESHOLD, THRESHOLD) && mallopt(M_TRIM_THRESHOLD, THRESHOLD));
#endif
}

soak_measure soak_measure_now(const soak_device *device) {
    soak_measure now = {0};
    usleep(20000); /* the system may count a thread a little longer than pthread_join waits for it */
#ifdef __GLIBC__
    malloc_trim(0);
#if __GLIBC_PREREQ(2, 33) && !defined(HAS_OWN_MALLOC)
    const struct mallinfo2 heap = mallinfo2();
    now.heap_bytes = heap.uordblks + heap.hblkhd;
#endif
#endif
    now.resident_bytes = count_resident_bytes();
    now.device_bytes = device->used_bytes ? device->used_bytes() : 0;
    now.descriptors = count_entries("/proc/self/fd");
    now.threads = count_entries("/proc/self/task");
    return now;
}

void soak_measure_print(const char *when, const soak_measure *measure) {
    printf("%-32s host %8.2f MiB resident, %8.2f MiB from malloc; device %8.2f MiB; %u descriptors, %u threads\n", when,
           (double)measure->resident_bytes / (1 << 20), (double)measure->heap_bytes / (1 << 20),
           (double)measure->device_bytes / (1 << 20), measure->descriptors, measure->threads);
    fflush(stdout);
}

static void check_bytes(const char *when, const char *what, uint64_t before, uint64_t now, uint64_t slack) {
    if (now > before + slack)
        ck_abort_msg("%s: %s has grown from %llu to %llu bytes", when, what, (unsigned long long)before,
                     (unsigned long long)now);
}

void soak_measure_check(const char *when, const soak_measure *before, const soak_measure *now,
                        const soak_slack *slack) {
    check_bytes(when, "what malloc has handed out", before->heap_bytes, now->heap_bytes, slack->heap_bytes);
    check_bytes(when, "device memory", before->device_bytes, now->device_bytes, slack->device_bytes);
#ifndef HAS_OWN_MALLOC /* a sanitizer keeps what is freed */
    check_bytes(when, "resident memory", before->resident_bytes, now->resident_bytes, slack->resident_bytes);
#endif
    if (now->descriptors > before->descriptors + slack->descriptors || now->threads > before->threads + slack->threads)
        ck_abort_msg("%s: %u file descriptors and %u threads, not %u and %u", when, now->descriptors, now->threads,
                     before->descriptors, before->threads);
}
