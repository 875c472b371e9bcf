/* SPDX-License-Identifier: Apache-2.0 */
/* Compares a coded layer's head and tiles with their checksums, XXH3-64 (trf_xxh3.h). This is the body of the kernel,
 * which also runs on the CPU in emulated warps.
 *
 * A thread block takes a tile, or the head. Its warps add up what the tile's blocks of 1,024 bytes add to the eight
 * accumulators, four blocks of XXH3 at a time; then eight threads go from block to block:
 *
 *     block of XXH3 b, half h     lane 4 s + j   stripe 8 h + s, accumulators 2 j and 2 j + 1
 *     sums of four blocks         lanes 16 apart exchange two blocks, those 8 apart one, those 4 apart add up
 *     accumulator i               thread i: for each block, add its sum, scramble
 *
 * The last part takes some 30 cycles a block of XXH3, 2 us for a tile of BF16, while other thread blocks load theirs. A
 * head goes to one thread block, too: one of 29 MB, which takes scales for each 16 weights of int, takes some 0.8 ms.
 *
 * Shared memory: 8 KiB. */
#ifndef TRF_CHECK_TILES_CUH
#define TRF_CHECK_TILES_CUH

#include "trf_integrity_launch.h"
#include "trf_warp.cuh"
#include "trf_xxh3.h"

#include <stddef.h>

static constexpr uint32_t kCheckWarps = 8, kCheckThreads = kCheckWarps * TRF_LANES;
static constexpr uint32_t kCheckRound = 128; /* blocks of XXH3 whose sums are in shared memory: 128 KiB of a tile */
static constexpr uint32_t kCheckAtOnce = 4;  /* that a warp loads at once: 128 bytes of each lane */
static constexpr uint32_t kCheckHalves = 2;  /* of a block; a warp loads one by an instruction */
static constexpr uint32_t kHalfStripes = TRF_XXH3_BLOCK_STRIPES / kCheckHalves;
static_assert(kHalfStripes * 4 == TRF_LANES, "four lanes have a stripe");

struct trf_check_blob_args {
    trf_blob_to_check blob;
    trf_xxh3_secret secret;
    unsigned long long *wrong;
};

struct trf_check_shared {
    uint64_t sums[kCheckRound][TRF_XXH3_ACCUMULATORS];
    uint64_t accumulators[TRF_XXH3_ACCUMULATORS];
};

/* Bytes whose checksum is computed. */
struct trf_checked_bytes {
    const uint8_t *at;
    uint64_t bytes, seed;
    bool is_head; /* its own checksum, in the header, counts as zero */
};

/* The keys of a lane's two accumulators. */
struct trf_check_keys {
    uint64_t half[kCheckHalves][2], last[2];
};

static __device__ __forceinline__ trf_check_keys trf_find_check_keys(const trf_xxh3_secret &secret, uint64_t seed) {
    const uint32_t lane = threadIdx.x % TRF_LANES, first = lane % 4 * 2;
    trf_check_keys keys;
    for (uint32_t a = 0; a < 2; a++) {
        for (uint32_t h = 0; h < kCheckHalves; h++)
            keys.half[h][a] = trf_xxh3_stripe_key(&secret, seed, h * kHalfStripes + lane / 4, first + a);
        keys.last[a] = trf_xxh3_last_key(&secret, seed, first + a);
    }
    return keys;
}

/* Adds up the lanes' sums of four blocks of XXH3, and writes them to shared memory. */
static __device__ __forceinline__ void trf_put_block_sums(uint64_t (&sums)[kCheckAtOnce][2],
                                                          uint64_t (*to)[TRF_XXH3_ACCUMULATORS]) {
    const uint32_t lane = threadIdx.x % TRF_LANES;
    const bool upper = lane & 16, middle = lane & 8;
    uint64_t own[2];
#pragma unroll
    for (uint32_t a = 0; a < 2; a++) {
        uint64_t two[2];
#pragma unroll
        for (uint32_t b = 0; b < 2; b++)
            two[b] = (upper ? sums[b + 2][a] : sums[b][a]) + trf_shuffle_xor64(upper ? sums[b][a] : sums[b + 2][a], 16);
        own[a] = (middle ? two[1] : two[0]) + trf_shuffle_xor64(middle ? two[0] : two[1], 8);
        own[a] += trf_shuffle_xor64(own[a], 4);
    }
    if (lane & 4)
        return;
    uint64_t *const accumulators = to[(upper ? 2 : 0) + (middle ? 1 : 0)];
    accumulators[lane % 4 * 2] = own[0];
    accumulators[lane % 4 * 2 + 1] = own[1];
}

/* Adds up four blocks of XXH3 from number `block` on. Behind the end there is nothing to add. */
static __device__ __forceinline__ void trf_sum_xxh3_blocks(const trf_checked_bytes &checked, const trf_check_keys &keys,
                                                           uint64_t block, uint64_t (*to)[TRF_XXH3_ACCUMULATORS]) {
    const uint32_t lane = threadIdx.x % TRF_LANES;
    const uint64_t first = block * TRF_XXH3_BLOCK_BYTES + 16 * lane, end = checked.bytes,
                   last_stripe = end - TRF_XXH3_STRIPE_BYTES;
    constexpr uint32_t kHalfBytes = TRF_XXH3_BLOCK_BYTES / kCheckHalves;
    ulonglong2 words[kCheckAtOnce][kCheckHalves];
    uint64_t sums[kCheckAtOnce][2];
#pragma unroll
    for (uint32_t i = 0; i < kCheckAtOnce * kCheckHalves; i++) {
        const uint64_t at = first + i * kHalfBytes;
        words[i / kCheckHalves][i % kCheckHalves] =
            at < end ? __ldcs((const ulonglong2 *)(const void *)(checked.at + at)) : make_ulonglong2(0, 0);
    }
    if (checked.is_head && block == 0 && lane == offsetof(trf_header, head_checksum) / 16)
        words[0][0].y = 0;
#pragma unroll
    for (uint32_t b = 0; b < kCheckAtOnce; b++) {
        sums[b][0] = sums[b][1] = 0;
#pragma unroll
        for (uint32_t h = 0; h < kCheckHalves; h++) {
            const uint64_t at = first + (b * kCheckHalves + h) * kHalfBytes;
            const uint64_t(&key)[2] = at >= last_stripe ? keys.last : keys.half[h];
            if (at < end)
                trf_xxh3_add_words(sums[b], words[b][h].x, words[b][h].y, key[0], key[1]);
        }
    }
    trf_put_block_sums(sums, to);
}
static_assert(offsetof(trf_header, head_checksum) % 16 == 8, "it is a lane's second word");

/* All threads of the block call it. @return the checksum, in thread 0. */
static __device__ __forceinline__ uint64_t trf_checksum_of(const trf_checked_bytes &checked,
                                                           const trf_xxh3_secret &secret, trf_check_shared &shared) {
    const uint32_t warp = threadIdx.x / TRF_LANES, i = threadIdx.x % TRF_XXH3_ACCUMULATORS;
    const uint64_t blocks = (checked.bytes - 1) / TRF_XXH3_BLOCK_BYTES + 1,
                   scramble_key = trf_xxh3_scramble_key(&secret, checked.seed, i);
    const trf_check_keys keys = trf_find_check_keys(secret, checked.seed);
    uint64_t accumulator = trf_xxh3_start(i);
    for (uint64_t first = 0; first < blocks; first += kCheckRound) {
        const uint32_t count = blocks - first < kCheckRound ? (uint32_t)(blocks - first) : kCheckRound;
        for (uint32_t b = warp * kCheckAtOnce; b < count; b += kCheckWarps * kCheckAtOnce)
            trf_sum_xxh3_blocks(checked, keys, first + b, &shared.sums[b]);
        __syncthreads();
        for (uint32_t b = 0; threadIdx.x < TRF_XXH3_ACCUMULATORS && b < count; b++) {
            accumulator += shared.sums[b][i];
            if (first + b + 1 < blocks)
                accumulator = trf_xxh3_scramble(accumulator, scramble_key);
        }
        __syncthreads();
    }
    if (threadIdx.x < TRF_XXH3_ACCUMULATORS)
        shared.accumulators[i] = accumulator;
    __syncthreads();
    return threadIdx.x ? 0 : trf_xxh3_finish(shared.accumulators, &secret, checked.seed, checked.bytes);
}

/* The checksum of a tile that is too small for that. */
static __device__ __forceinline__ uint64_t trf_checksum_of_short(const trf_checked_bytes &checked,
                                                                 const trf_xxh3_secret &secret) {
    uint64_t words[TRF_XXH3_SHORT_BYTES / 8];
    for (uint32_t i = 0; i < TRF_XXH3_SHORT_BYTES / 8; i++)
        words[i] = __ldcs((const uint2 *)(const void *)(checked.at + 8 * i)).x |
                   (uint64_t)__ldcs((const uint2 *)(const void *)(checked.at + 8 * i)).y << 32;
    return trf_xxh3_short(words, &secret, checked.seed);
}

/* What a corrupt head says of a tile may be anything. */
static __device__ __forceinline__ bool trf_is_tile_in_blob(const trf_blob_to_check &blob, const trf_tile_meta &meta) {
    return meta.data_offset % TRF_TILE_ALIGNMENT == 0 && meta.data_size % TRF_TILE_ALIGNMENT == 0 && meta.data_size &&
           meta.data_offset <= blob.blob_bytes && meta.data_size <= blob.blob_bytes - meta.data_offset;
}

/* Checks number `number` of a blob: 0 is the head, 1 + t tile t. */
static __device__ __forceinline__ void trf_check_part(const trf_check_blob_args &args, uint64_t number,
                                                      trf_check_shared &shared) {
    const trf_blob_to_check &blob = args.blob;
    trf_checked_bytes checked = {blob.blob, blob.head_bytes, 0, true};
    uint64_t expected, found;
    bool sound = true;
    if (number == 0) {
        expected = ((const trf_header *)(const void *)blob.blob)->head_checksum;
    } else {
        const trf_tile_meta meta = blob.tiles[number - 1];
        sound = trf_is_tile_in_blob(blob, meta);
        checked = {blob.blob + (sound ? meta.data_offset : 0), meta.data_size, number - 1, false};
        expected = meta.checksum;
    }
    if (sound) {
        if (checked.bytes == TRF_XXH3_SHORT_BYTES)
            found = threadIdx.x ? 0 : trf_checksum_of_short(checked, args.secret);
        else
            found = trf_checksum_of(checked, args.secret, shared);
        sound = found == expected;
    }
    if (threadIdx.x == 0 && !sound)
        atomicMax(args.wrong, ~(unsigned long long)number);
}

static __device__ __forceinline__ void trf_check_blob(const trf_check_blob_args &args, trf_check_shared &shared) {
    for (uint64_t number = blockIdx.x; number <= args.blob.num_tiles; number += gridDim.x)
        trf_check_part(args, number, shared);
}

static inline trf_check_blob_args trf_check_blob_args_of(const trf_blob_to_check *blob, uint64_t *wrong) {
    return {*blob, trf_xxh3_default_secret(), (unsigned long long *)wrong};
}

#endif
