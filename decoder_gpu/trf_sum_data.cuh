/* SPDX-License-Identifier: Apache-2.0 */
/* Adds up the mixed words of a layer's data (trf_data_checksum.h). This is the body of the kernel, which also runs on
 * the CPU in emulated warps.
 *
 *     page c, 4,096 bytes     thread 0   words 512 c, 512 c + 1
 *                              thread 1   words 512 c + 2, 512 c + 3
 *                              ...
 *                              thread 255 words 512 c + 510, 512 c + 511
 *
 * A thread block takes every gridDim.x-th page. A thread loads its words of four pages before it mixes them. In the
 * end the threads' sums are added up, and those of blocks by atomic additions, whose order does not matter.
 *
 * Shared memory: 128 bytes. A word takes some 27 instructions, half of what memory leaves time for. */
#ifndef TRF_SUM_DATA_CUH
#define TRF_SUM_DATA_CUH

#include "trf_data_checksum.h"
#include "trf_warp.cuh"

static constexpr uint32_t kSumWarps = 8, kSumThreads = kSumWarps * TRF_LANES;
static constexpr uint32_t kSumWords = TRF_DATA_PAGE_BYTES / TRF_DATA_WORD_BYTES / kSumThreads; /* of a thread */
static constexpr uint32_t kSumPages = 4; /* that are loaded at once: 64 bytes of each thread */
static_assert(kSumWords == 2, "a thread loads 16 bytes of a page");

struct trf_sum_data_args {
    const uint8_t *data;
    uint64_t bytes;
    trf_data_checksum *to;
};

struct trf_sum_data_shared {
    trf_data_checksum warps[kSumWarps];
};

/* Loads two words of the page behind the whole ones. Bytes behind the end are zeros. */
static __device__ __forceinline__ ulonglong2 trf_load_data_words(const trf_sum_data_args &args, uint64_t at) {
    if (at + 16 <= args.bytes)
        return __ldcs((const ulonglong2 *)(const void *)(args.data + at));
    ulonglong2 words = make_ulonglong2(0, 0);
    for (uint64_t i = at; i < args.bytes; i++) {
        const uint64_t byte = (uint64_t)args.data[i] << (i - at) % 8 * 8;
        words.x |= i - at < 8 ? byte : 0;
        words.y |= i - at < 8 ? 0 : byte;
    }
    return words;
}

/* Mixes two words, or one if the other is behind the end, and adds them. */
static __device__ __forceinline__ void trf_add_data_words(const trf_sum_data_args &args, uint64_t page, uint64_t at,
                                                          ulonglong2 words, trf_data_checksum *sum) {
    const uint64_t index = at / TRF_DATA_WORD_BYTES;
    if (at >= args.bytes)
        return;
    uint64_t mixed = trf_mix_data_word(words.x, index);
    if (at + TRF_DATA_WORD_BYTES < args.bytes)
        mixed += trf_mix_data_word(words.y, index + 1);
    trf_add_data_page(sum, page, mixed);
}

/* Adds up what the threads of a block have. */
static __device__ __forceinline__ void trf_add_up_block(const trf_sum_data_args &args, trf_data_checksum own,
                                                        trf_sum_data_shared &shared) {
    for (uint32_t reach = TRF_LANES / 2; reach; reach /= 2) {
        own.sum += trf_shuffle_xor64(own.sum, reach);
        own.places += trf_shuffle_xor64(own.places, reach);
    }
    if (threadIdx.x % TRF_LANES == 0)
        shared.warps[threadIdx.x / TRF_LANES] = own;
    __syncthreads();
    if (threadIdx.x)
        return;
    for (uint32_t w = 1; w < kSumWarps; w++) {
        own.sum += shared.warps[w].sum;
        own.places += shared.warps[w].places;
    }
    atomicAdd((unsigned long long *)&args.to->sum, (unsigned long long)own.sum);
    atomicAdd((unsigned long long *)&args.to->places, (unsigned long long)own.places);
}

/* Adds whole pages, every step-th one from `first` on. All loads are under way before the first one is waited for. */
static __device__ __forceinline__ void trf_sum_pages(const trf_sum_data_args &args, uint64_t first, uint64_t step,
                                                     trf_data_checksum *sum) {
    const uint64_t whole = args.bytes / TRF_DATA_PAGE_BYTES;
    ulonglong2 words[kSumPages];
#pragma unroll
    for (uint32_t i = 0; i < kSumPages; i++) {
        const uint8_t *const at = args.data + (first + i * step) * TRF_DATA_PAGE_BYTES + 16 * threadIdx.x;
        words[i] = first + i * step < whole ? __ldcs((const ulonglong2 *)(const void *)at) : make_ulonglong2(0, 0);
    }
#pragma unroll
    for (uint32_t i = 0; i < kSumPages; i++) {
        const uint64_t page = first + i * step,
                       index = page * (TRF_DATA_PAGE_BYTES / TRF_DATA_WORD_BYTES) + kSumWords * threadIdx.x,
                       mixed = trf_mix_data_word(words[i].x, index) + trf_mix_data_word(words[i].y, index + 1);
        trf_add_data_page(sum, page, page < whole ? mixed : 0);
    }
}

static __device__ __forceinline__ void trf_sum_data(const trf_sum_data_args &args, trf_sum_data_shared &shared) {
    const uint64_t whole = args.bytes / TRF_DATA_PAGE_BYTES, step = gridDim.x,
                   rest = whole * TRF_DATA_PAGE_BYTES + 16 * threadIdx.x;
    trf_data_checksum own = {0, 0};
    for (uint64_t first = blockIdx.x; first < whole; first += kSumPages * step)
        trf_sum_pages(args, first, step, &own);
    if (blockIdx.x == 0)
        trf_add_data_words(args, whole, rest, trf_load_data_words(args, rest), &own);
    trf_add_up_block(args, own, shared);
}

#endif
