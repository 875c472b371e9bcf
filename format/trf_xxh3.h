/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3-64 (xxHash 0.8) of tiles and heads, cut so that a block of warps computes it at the speed of memory. Sizes are
 * multiples of 128 bytes, 128 itself or from 256 on, as FORMAT.md has them: XXH3 treats sizes between in other ways.
 *
 *   data       | block of 1,024 bytes | block | ... | last block, 64 to 1,024 bytes |
 *   a block    16 stripes of 64 bytes, of which each has 8 words of 64 bits, one for each of 8 accumulators
 *
 * What a block adds to the accumulators does not depend on what they are, so that all blocks can be added up at once.
 * Only what follows a block, the scramble, has to go from block to block; it keeps the accumulators apart. The last 64
 * bytes are added once more, with a key of their own. C and CUDA. */
#ifndef TRF_XXH3_H
#define TRF_XXH3_H

#include "trf_blob.h"

enum {
    TRF_XXH3_ACCUMULATORS = 8,
    TRF_XXH3_STRIPE_BYTES = 64,
    TRF_XXH3_BLOCK_STRIPES = 16,
    TRF_XXH3_BLOCK_BYTES = TRF_XXH3_BLOCK_STRIPES * TRF_XXH3_STRIPE_BYTES,
    TRF_XXH3_SECRET_WORDS = 24,
    TRF_XXH3_SHORT_BYTES = 128, /* the only size of up to 240 bytes */
};

/* The secret of xxHash, as words. */
typedef struct trf_xxh3_secret {
    uint64_t words[TRF_XXH3_SECRET_WORDS];
} trf_xxh3_secret;

static inline trf_xxh3_secret trf_xxh3_default_secret(void) {
    const trf_xxh3_secret secret = {{
        0xBE4BA423396CFEB8u, 0x1CAD21F72C81017Cu, 0xDB979083E96DD4DEu, 0x1F67B3B7A4A44072u, 0x78E5C0CC4EE679CBu,
        0x2172FFCC7DD05A82u, 0x8E2443F7744608B8u, 0x4C263A81E69035E0u, 0xCB00C391BB52283Cu, 0xA32E531B8B65D088u,
        0x4EF90DA297486471u, 0xD8ACDEA946EF1938u, 0x3F349CE33F76FAA8u, 0x1D4F0BC7C7BBDCF9u, 0x3159B4CD4BE0518Au,
        0x647378D9C97E9FC8u, 0xC3EBD33483ACC5EAu, 0xEB6313FAFFA081C5u, 0x49DAF0B751DD0D17u, 0x9E68D429265516D3u,
        0xFCA1477D58BE162Bu, 0xCE31D07AD1B8F88Fu, 0x280416958F3ACB45u, 0x7E404BBBCAFBD7AFu,
    }};
    return secret;
}

/* Word i of the secret that a seed makes of the default one. It is that itself for the seed 0. */
TRF_HD uint64_t trf_xxh3_key(const trf_xxh3_secret *secret, uint64_t seed, uint32_t i) {
    return i % 2 ? secret->words[i] - seed : secret->words[i] + seed;
}

/* The 8 bytes of that secret from a byte on that is no multiple of 8. */
TRF_HD uint64_t trf_xxh3_key_at(const trf_xxh3_secret *secret, uint64_t seed, uint32_t byte) {
    const uint32_t shift = byte % 8 * 8;
    return trf_xxh3_key(secret, seed, byte / 8) >> shift | trf_xxh3_key(secret, seed, byte / 8 + 1) << (64 - shift);
}

/* The key of accumulator i for a stripe of a block, for the last 64 bytes, and after a block. */
TRF_HD uint64_t trf_xxh3_stripe_key(const trf_xxh3_secret *secret, uint64_t seed, uint32_t stripe, uint32_t i) {
    return trf_xxh3_key(secret, seed, stripe + i);
}
TRF_HD uint64_t trf_xxh3_last_key(const trf_xxh3_secret *secret, uint64_t seed, uint32_t i) {
    return trf_xxh3_key_at(secret, seed, 8 * TRF_XXH3_SECRET_WORDS - TRF_XXH3_STRIPE_BYTES - 7 + 8 * i);
}
TRF_HD uint64_t trf_xxh3_scramble_key(const trf_xxh3_secret *secret, uint64_t seed, uint32_t i) {
    return trf_xxh3_key(secret, seed, TRF_XXH3_SECRET_WORDS - TRF_XXH3_ACCUMULATORS + i);
}

TRF_HD uint64_t trf_xxh3_start(uint32_t i) {
    switch (i) {
    case 0:
        return 0xC2B2AE3Du;
    case 1:
        return 0x9E3779B185EBCA87u;
    case 2:
        return 0xC2B2AE3D27D4EB4Fu;
    case 3:
        return 0x165667B19E3779F9u;
    case 4:
        return 0x85EBCA77C2B2AE63u;
    case 5:
        return 0x85EBCA77u;
    case 6:
        return 0x27D4EB2F165667C5u;
    default:
        return 0x9E3779B1u;
    }
}

/* What two neighbouring words of a stripe, those of an even accumulator and of the next one, add to these two. */
TRF_HD void trf_xxh3_add_words(uint64_t sums[2], uint64_t word0, uint64_t word1, uint64_t key0, uint64_t key1) {
    const uint64_t mixed0 = word0 ^ key0, mixed1 = word1 ^ key1;
    sums[0] += word1 + (uint64_t)(uint32_t)mixed0 * (mixed0 >> 32);
    sums[1] += word0 + (uint64_t)(uint32_t)mixed1 * (mixed1 >> 32);
}

TRF_HD uint64_t trf_xxh3_scramble(uint64_t accumulator, uint64_t key) {
    return (accumulator ^ accumulator >> 47 ^ key) * 0x9E3779B1u;
}

/* The product of two words in 128 bits, its halves put together. */
TRF_HD uint64_t trf_xxh3_fold(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
    return a * b ^ __umul64hi(a, b);
#else
    const uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    const uint64_t low = a0 * b0, middle = a1 * b0 + (low >> 32), cross = a0 * b1 + (uint32_t)middle;
    return a * b ^ (a1 * b1 + (middle >> 32) + (cross >> 32));
#endif
}

TRF_HD uint64_t trf_xxh3_avalanche(uint64_t hash) {
    hash = (hash ^ hash >> 37) * 0x165667919E3779F9u;
    return hash ^ hash >> 32;
}

/* The checksum of so many bytes, more than 240, whose accumulators have come to these. */
TRF_HD uint64_t trf_xxh3_finish(const uint64_t accumulators[TRF_XXH3_ACCUMULATORS], const trf_xxh3_secret *secret,
                                uint64_t seed, uint64_t bytes) {
    uint64_t hash = bytes * 0x9E3779B185EBCA87u;
    for (uint32_t i = 0; i < TRF_XXH3_ACCUMULATORS; i += 2)
        hash += trf_xxh3_fold(accumulators[i] ^ trf_xxh3_key_at(secret, seed, 11 + 8 * i),
                              accumulators[i + 1] ^ trf_xxh3_key_at(secret, seed, 19 + 8 * i));
    return trf_xxh3_avalanche(hash);
}

/* The checksum of 128 bytes. For sizes up to 240 the secret is the default one, and the seed is added to its words. */
TRF_HD uint64_t trf_xxh3_short(const uint64_t words[TRF_XXH3_SHORT_BYTES / 8], const trf_xxh3_secret *secret,
                               uint64_t seed) {
    uint64_t hash = TRF_XXH3_SHORT_BYTES * 0x9E3779B185EBCA87u;
    for (uint32_t i = 0; i < 8; i++) { /* 16 bytes from the front and from the back take turns with the key's */
        const uint32_t at = i < 4 ? 2 * i : 14 - 2 * (i - 4), key = i < 4 ? 4 * i : 4 * (i - 4) + 2;
        hash += trf_xxh3_fold(words[at] ^ trf_xxh3_key(secret, seed, key),
                              words[at + 1] ^ trf_xxh3_key(secret, seed, key + 1));
    }
    return trf_xxh3_avalanche(hash);
}

#endif
