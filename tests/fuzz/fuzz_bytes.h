/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of an input, which a fuzz target takes one after the other; zeros follow them. */
#ifndef FUZZ_BYTES_H
#define FUZZ_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct fuzz_bytes {
    const uint8_t *at;
    size_t left;
} fuzz_bytes;

static inline uint32_t fuzz_take(fuzz_bytes *bytes) {
    if (bytes->left == 0)
        return 0;
    bytes->left--;
    return *bytes->at++;
}

static inline uint32_t fuzz_take_two(fuzz_bytes *bytes) {
    const uint32_t low = fuzz_take(bytes);
    return low | fuzz_take(bytes) << 8;
}

/* Copies `size` bytes. */
static inline void fuzz_take_many(fuzz_bytes *bytes, void *to, size_t size) {
    const size_t own = bytes->left < size ? bytes->left : size;
    memset(to, 0, size);
    if (own > 0)
        memcpy(to, bytes->at, own);
    bytes->at += own;
    bytes->left -= own;
}

#endif
