/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t trf_checksum_avx2(const void *bytes, size_t size, uint64_t seed) {
    return XXH3_64bits_withSeed(bytes, size, seed);
}
