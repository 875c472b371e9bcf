/* SPDX-License-Identifier: Apache-2.0 */
/* For fuzz targets whose input is a safetensors file: checksums of the blobs in it, and mutations that keep the file
 * whole while they change its header's text, or a blob in it. Include fuzz_file.h first: memmem is GNU's. */
#ifndef FUZZ_MUTATE_CHECKPOINT_H
#define FUZZ_MUTATE_CHECKPOINT_H

#include "fuzz_mutate_blob.h"

/* @return the place of the first blob in the file from `from` on; size if there is none. */
static size_t fuzz_find_blob(const uint8_t *file, size_t size, size_t from) {
    const uint32_t magic = TRF_MAGIC;
    const uint8_t *found = from < size ? memmem(file + from, size - from, &magic, sizeof magic) : NULL;
    return found ? (size_t)(found - file) : size;
}

/* Copies a blob, which ends where the next one begins or with the file, to aligned memory, where `change` may change
 * it, and back. */
typedef int fuzz_blob_change(uint8_t *blob, size_t size, unsigned int seed);

static int fuzz_change_blob(uint8_t *file, size_t begin, size_t end, fuzz_blob_change *change, unsigned int seed) {
    void *blob;
    if (posix_memalign(&blob, TRF_TILE_ALIGNMENT, end - begin))
        return 0;
    memcpy(blob, file + begin, end - begin);
    const int changed = change(blob, end - begin, seed);
    memcpy(file + begin, blob, end - begin);
    free(blob);
    return changed;
}

static int fuzz_mend_blob(uint8_t *blob, size_t size, unsigned int seed) {
    (void)seed;
    const uint64_t blob_bytes = size >= sizeof(trf_header) ? ((const trf_header *)blob)->blob_bytes : 0;
    fuzz_mend_checksums(blob, blob_bytes < size ? blob_bytes : size);
    return 1;
}

/* Makes the checksums of all blobs in a file right again. */
static inline void fuzz_mend_blobs(uint8_t *file, size_t size) {
    for (size_t at = fuzz_find_blob(file, size, 0); at < size;) {
        const size_t next = fuzz_find_blob(file, size, at + 1);
        fuzz_change_blob(file, at, next, fuzz_mend_blob, 0);
        at = next;
    }
}

/* Lets libFuzzer mutate the header's text, and moves the data behind it. @return the file's new size; 0: not done. */
static inline size_t fuzz_mutate_header(uint8_t *file, size_t size, size_t max_size) {
    uint64_t text_bytes;
    if (size < sizeof text_bytes || !LLVMFuzzerMutate)
        return 0;
    memcpy(&text_bytes, file, sizeof text_bytes);
    if (text_bytes == 0 || text_bytes > size - sizeof text_bytes)
        return 0;
    const size_t data_bytes = size - sizeof text_bytes - text_bytes, room = max_size - size;
    uint8_t *text = malloc(text_bytes + room), *data = malloc(data_bytes + 1);
    size_t result = 0;
    if (text && data) {
        memcpy(text, file + sizeof text_bytes, text_bytes);
        memcpy(data, file + sizeof text_bytes + text_bytes, data_bytes);
        const uint64_t mutated = LLVMFuzzerMutate(text, text_bytes, text_bytes + room);
        memcpy(file, &mutated, sizeof mutated);
        memcpy(file + sizeof mutated, text, mutated);
        memcpy(file + sizeof mutated + mutated, data, data_bytes);
        result = sizeof mutated + mutated + data_bytes;
    }
    free(text);
    free(data);
    return result;
}

/* A custom mutator. */
static inline size_t fuzz_mutate_checkpoint(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    fuzz_mutation m = {.random = seed * 0x9E3779B97F4A7C15 + 1};
    const uint64_t kind = fuzz_below(&m, 4);
    size_t begin = fuzz_find_blob(data, size, 0), mutated = 0;
    if (kind == 0)
        mutated = fuzz_mutate_header(data, size, max_size);
    if (kind >= 2 && begin < size) {
        if (fuzz_below(&m, 2) && fuzz_find_blob(data, size, begin + 1) < size)
            begin = fuzz_find_blob(data, size, begin + 1);
        const size_t end = fuzz_find_blob(data, size, begin + 1);
        mutated = fuzz_change_blob(data, begin, end, fuzz_mutate_blob, seed) ? size : 0;
    }
    if (mutated == 0)
        mutated = LLVMFuzzerMutate ? LLVMFuzzerMutate(data, size, max_size) : size;
    return mutated;
}

#endif
