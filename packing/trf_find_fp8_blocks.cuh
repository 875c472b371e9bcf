/* SPDX-License-Identifier: Apache-2.0 */
/* Looks for the scales of dense BF16 weights that are FP8 codes times scales (trf_find_fp8_launch.h). This is the body
 * of the kernel, which also runs on the CPU in emulated warps.
 *
 * A thread block takes a scale block of 128x128 weights, eight octets in each thread. Octet 0 stays in registers; the
 * others are read for their largest magnitude, and once more where all weights count:
 *
 *     thread 0 .. 15      rows 0 .. 7, one octet each           count mantissas of a sample: octet 0 of every thread
 *     thread 16 .. 31     rows 8 .. 15                          choose the set of 8 mantissas with the most of them
 *     ...                                                       count (exponent, mantissa of the set) of the sample
 *     thread 240 .. 255   rows 120 .. 127                       choose the exponent of the scale
 *                                                               end here if the sample is trusted; else
 *                                                               check all weights; if too few fit, sample them all
 *
 * Whether a weight is a code depends on its mantissa, which must be one of the set's, and on its exponent, which must
 * lie in a range that this mantissa and the scale give. Most blocks of true BF16 end at the first choice, since no set
 * has more than a fourth of their weights. The first block that ends so ends the search.
 *
 * A sample is trusted if it is large enough and if the scale that most of it fits reaches the largest weight of the
 * block: where several scales fit alike, this chooses among them. What does not fit after all is found when the weights
 * are packed, and then the search is repeated with all weights.
 *
 * Shared memory: 10 KiB. Registers: 32, and 52 bytes spilled, so that eight blocks are resident; with six of 40
 * registers it takes 6 % longer. 28672x8192 take 192 us on an H200, where memory would take 110: a block waits for its
 * counters and its warps most of the time.
 */
#ifndef TRF_FIND_FP8_BLOCKS_CUH
#define TRF_FIND_FP8_BLOCKS_CUH

#include "trf_find_fp8_launch.h"
#include "trf_number_formats.h"
#include "trf_pack_lane.h"
#include "trf_warp.cuh"

static constexpr uint32_t kFindSide = TRF_FOUND_FP8_BLOCK;
static constexpr uint32_t kFindRowOctets = kFindSide / TRF_OCTET_WEIGHTS;
static constexpr uint32_t kFindWarps = 8, kFindThreads = kFindWarps * TRF_LANES;
static constexpr uint32_t kFindOctets = kFindSide * kFindRowOctets / kFindThreads; /* of a thread */
static constexpr uint32_t kFindMantissas = TRF_FIND_MANTISSAS, kFindExponents = TRF_FIND_EXPONENTS,
                          kLargestNormal = TRF_FIND_LARGEST_NORMAL;
/* Exponent fields of scales that have a pair of constants. */
static constexpr uint32_t kLeastUnit = TRF_PACKED8_MIN_SCALE_EXPONENT, kLargestUnit = TRF_PACKED8_MAX_SCALE_EXPONENT;
static constexpr uint32_t kNoWeight = 1u << 15; /* an exponent that no weight has */
static constexpr uint32_t kAskEvery = 8; /* blocks after which a thread block asks whether the search has ended */

/* What warps combine their results for. Each has a place of its own, which is free again when the next one is done. */
enum trf_find_use {
    kFindLargest,
    kFindSet,
    kFindUnit,
    kFindCodes,
    kFindOthers,
    kFindUses
};

struct trf_find_fp8_args {
    trf_dense_rows dense;
    const trf_find_fp8_set *sets;
    trf_found_scales to;
    trf_found_fp8 *found;
    int checks_all;
    uint32_t block_cols;
    uint64_t blocks;
};

static inline trf_find_fp8_args trf_find_fp8_args_of(const trf_rows_to_pack *rows, const trf_find_fp8_set *sets,
                                                     const trf_found_scales *to, trf_found_fp8 *found, int checks_all) {
    return {trf_dense_rows_of(rows->weights, rows->stride, rows->first_row, rows->num_rows, rows->cols, 2),
            sets,
            *to,
            found,
            checks_all,
            (rows->cols + kFindSide - 1) / kFindSide,
            trf_found_fp8_blocks(rows->num_rows, rows->cols)};
}

struct trf_find_fp8_shared {
    uint32_t mantissas[kFindMantissas];                     /* counts of the sample */
    uint32_t exponents[TRF_E4M3_MANTISSAS][kFindExponents]; /* the same, of each mantissa of the set */
    uint32_t codes[kFindMantissas];                         /* trf_find_codes of the scale that is tried */
    uint32_t results[kFindUses][kFindWarps];                /* of each warp */
};

/* Eight bytes of a set, as they lie. */
struct trf_find_set {
    uint32_t low, high;
    __device__ __forceinline__ uint32_t operator[](uint32_t k) const {
        return (k < 4 ? low >> 8 * k : high >> 8 * (k - 4)) & 0xFF;
    }
};

static __device__ __forceinline__ trf_find_set trf_load_find_set(const uint8_t *from) {
    return {__ldg((const uint32_t *)(const void *)from), __ldg((const uint32_t *)(const void *)(from + 4))};
}

/* What all threads have chosen. */
struct trf_find_choice {
    trf_find_set mantissa, carry;
    uint32_t set;            /* its number */
    uint32_t normal, in_set; /* normal numbers of the sample, and those with mantissas of the set */
    uint32_t unit;           /* the scale's exponent field */
    bool reaches_all;        /* no weight of the block is larger than the largest code */
};

/* ---- what all threads of the block do together ---- */

/* Gives the largest value, or the sum, of all threads. Whatever a thread wrote to shared memory before, all have it
 * then. */
template <bool kAdds>
static __device__ __forceinline__ uint32_t trf_block_combine(trf_find_fp8_shared &shared, trf_find_use use,
                                                             uint32_t value) {
    value = kAdds ? __reduce_add_sync(kAllLanes, value) : __reduce_max_sync(kAllLanes, value);
    if (threadIdx.x % TRF_LANES == 0)
        shared.results[use][threadIdx.x / TRF_LANES] = value;
    __syncthreads();
    uint32_t all = 0;
#pragma unroll
    for (uint32_t w = 0; w < kFindWarps; w++)
        all = kAdds ? all + shared.results[use][w] : max(all, shared.results[use][w]);
    return all;
}
static __device__ __forceinline__ uint32_t trf_block_sum(trf_find_fp8_shared &shared, trf_find_use use,
                                                         uint32_t value) {
    return trf_block_combine<true>(shared, use, value);
}
static __device__ __forceinline__ uint32_t trf_block_max(trf_find_fp8_shared &shared, trf_find_use use,
                                                         uint32_t value) {
    return trf_block_combine<false>(shared, use, value);
}

/* ---- weights ---- */

/* A thread's weights. */
struct trf_find_weights {
    const trf_dense_rows *dense;
    uint32_t row, col; /* of octet 0; octet i is i rows below */
    trf_words4 octet_0;

    __device__ __forceinline__ trf_find_weights(const trf_dense_rows &rows, uint32_t first_row, uint32_t first_col)
        : dense(&rows), row(first_row), col(first_col), octet_0(trf_load_octet(&rows, first_row, first_col)) {}

    __device__ __forceinline__ trf_words4 octet(uint32_t i) const {
        return i == 0 ? octet_0 : trf_load_octet(dense, row + i, col);
    }
};

/* Calls use(exponent, mantissa) for the weights of the first kCount octets, zeros left out. */
template <uint32_t kCount, class Use>
static __device__ __forceinline__ void trf_for_numbers(const trf_find_weights &weights, Use use) {
#pragma unroll 1
    for (uint32_t i = 0; i < kCount; i++) {
        const trf_words4 octet = weights.octet(i);
#pragma unroll
        for (uint32_t w = 0; w < TRF_OCTET_WEIGHTS; w++) {
            const uint32_t magnitude = octet.word[w / 2] >> 16 * (w % 2) & 0x7FFF;
            if (magnitude)
                use(magnitude >> 7, magnitude & 127);
        }
    }
}

static __device__ __forceinline__ bool trf_find_is_normal(uint32_t exponent) { return exponent - 1 < kLargestNormal; }

/* ---- the scale ---- */

/* Sets all counters to 0. Nobody may count before all threads have met. */
static __device__ __forceinline__ void trf_clear_counts(trf_find_fp8_shared &shared) {
    if (threadIdx.x < kFindMantissas)
        shared.mantissas[threadIdx.x] = 0;
#pragma unroll
    for (uint32_t k = 0; k < TRF_E4M3_MANTISSAS; k++)
        shared.exponents[k][threadIdx.x] = 0;
}

/* Counts the mantissas of the sample. @return how many normal numbers it has. */
template <uint32_t kCount>
static __device__ __forceinline__ uint32_t trf_count_mantissas(trf_find_fp8_shared &shared,
                                                               const trf_find_weights &weights) {
    trf_for_numbers<kCount>(weights, [&](uint32_t exponent, uint32_t mantissa) {
        if (trf_find_is_normal(exponent))
            atomicAdd(&shared.mantissas[mantissa], 1u);
    });
    __syncthreads();
    static_assert(kFindMantissas == 4 * TRF_LANES, "each lane adds four");
    const uint32_t *const own = &shared.mantissas[4 * (threadIdx.x % TRF_LANES)];
    return __reduce_add_sync(kAllLanes, own[0] + own[1] + own[2] + own[3]);
}

/* Chooses the set that has the most of the sample's mantissas, of equal ones the first. */
static __device__ __forceinline__ void trf_choose_set(const trf_find_fp8_args &args, trf_find_fp8_shared &shared,
                                                      trf_find_choice *choice) {
    uint32_t best = 0;
    for (uint32_t s = threadIdx.x; s < TRF_MANTISSA_SETS; s += kFindThreads) {
        const trf_find_set mantissa = trf_load_find_set(args.sets[s].mantissa);
        uint32_t sum = 0;
#pragma unroll
        for (uint32_t k = 0; k < TRF_E4M3_MANTISSAS; k++)
            sum += shared.mantissas[mantissa[k]];
        best = max(best, sum << 10 | (1023 - s));
    }
    static_assert(TRF_MANTISSA_SETS <= 1024 && kFindSide * kFindSide < 1 << 22, "a sum and a number fit a word");
    best = trf_block_max(shared, kFindSet, best);
    const trf_find_fp8_set *const set = &args.sets[1023 - best % 1024];
    choice->mantissa = trf_load_find_set(set->mantissa);
    choice->carry = trf_load_find_set(set->carry);
    choice->set = 1023 - best % 1024;
    choice->in_set = best / 1024;
}

/* Makes shared.codes: for each mantissa its number in the set, or none. */
static __device__ __forceinline__ void trf_number_mantissas(trf_find_fp8_shared &shared,
                                                            const trf_find_choice &choice) {
    if (threadIdx.x < kFindMantissas) {
        uint32_t number = TRF_E4M3_MANTISSAS;
        for (uint32_t k = 0; k < TRF_E4M3_MANTISSAS; k++)
            if (choice.mantissa[k] == threadIdx.x)
                number = k;
        shared.codes[threadIdx.x] = number;
    }
    __syncthreads();
}

/* Makes shared.exponents[k][e] the count of exponents up to e. Each warp takes a mantissa. */
static __device__ __forceinline__ void trf_sum_exponents(trf_find_fp8_shared &shared) {
    static_assert(kFindWarps == TRF_E4M3_MANTISSAS, "a warp for each mantissa of the set");
    constexpr uint32_t kEach = kFindExponents / TRF_LANES; /* neighbouring exponents of a lane */
    const uint32_t lane = threadIdx.x % TRF_LANES;
    uint32_t *const own = &shared.exponents[threadIdx.x / TRF_LANES][kEach * lane];
    uint32_t sum[kEach];
#pragma unroll
    for (uint32_t i = 0; i < kEach; i++)
        sum[i] = own[i] + (i ? sum[i - 1] : 0);
    const uint32_t before = trf_warp_scan(sum[kEach - 1], lane) - sum[kEach - 1];
#pragma unroll
    for (uint32_t i = 0; i < kEach; i++)
        own[i] = before + sum[i];
    __syncthreads();
}

/* The larger one of each two halves. */
TRF_HD uint32_t trf_larger_halves(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
    return __vmaxu2(a, b);
#else
    const uint32_t low = max(a & 0xFFFF, b & 0xFFFF), high = max(a >> 16, b >> 16);
    return low | high << 16;
#endif
}

/* @return the largest magnitude of the thread's weights. */
static __device__ __forceinline__ uint32_t trf_largest_magnitude(const trf_find_weights &weights) {
    uint32_t halves = 0;
#pragma unroll 4
    for (uint32_t i = 0; i < kFindOctets; i++) {
        const trf_words4 octet = weights.octet(i);
#pragma unroll
        for (uint32_t w = 0; w < TRF_OCTET_WEIGHTS / 2; w++)
            halves = trf_larger_halves(halves, octet.word[w] & 0x7FFF7FFF);
    }
    return max(halves & 0xFFFF, halves >> 16);
}

/* Chooses the exponent field of the weight that code 1 gives, so that the most of the sample are codes; of equal ones
 * one that reaches the largest weight, and of these the least, which has the largest codes. */
template <uint32_t kCount>
static __device__ __forceinline__ void trf_choose_unit(trf_find_fp8_shared &shared, const trf_find_weights &weights,
                                                       uint32_t largest, trf_find_choice *choice) {
    trf_for_numbers<kCount>(weights, [&](uint32_t exponent, uint32_t mantissa) {
        const uint32_t k = shared.codes[mantissa];
        if (trf_find_is_normal(exponent) && k < TRF_E4M3_MANTISSAS)
            atomicAdd(&shared.exponents[k][exponent], 1u);
    });
    __syncthreads();
    trf_sum_exponents(shared);
    const uint32_t unit = threadIdx.x;
    uint32_t rank = 0;
    if (unit >= kLeastUnit && unit <= kLargestUnit) {
        uint32_t sum = 0;
#pragma unroll 2
        for (uint32_t k = 0; k < TRF_E4M3_MANTISSAS; k++) {
            const uint32_t at = unit + choice->carry[k];
            sum += shared.exponents[k][at + trf_find_largest_code(k)] -
                   shared.exponents[k][at + trf_find_least_code(k) - 1];
        }
        const uint32_t top = (unit + choice->carry[TRF_FIND_TOP_MANTISSA] + TRF_FIND_TOP_EXPONENT) << 7 |
                             choice->mantissa[TRF_FIND_TOP_MANTISSA];
        rank = sum << 9 | (uint32_t)(largest <= top) << 8 | (255 - unit);
    }
    /* Also where no weight of the sample is a code, it is one of these. */
    rank = trf_block_max(shared, kFindUnit, rank);
    choice->unit = 255 - rank % 256;
    choice->reaches_all = rank >> 8 & 1;
}

/* Counts the weights that are no codes with a scale, and those that are codes other than zeros. */
static __device__ __forceinline__ uint32_t trf_count_misfits(trf_find_fp8_shared &shared, const trf_find_choice &choice,
                                                             uint32_t unit, const trf_find_weights &weights,
                                                             uint32_t *numbers) {
    if (threadIdx.x < kFindMantissas) {
        uint32_t least = kNoWeight, more = 0; /* exponents of its codes: from `least` on, and so many more */
        for (uint32_t k = 0; k < TRF_E4M3_MANTISSAS; k++)
            if (choice.mantissa[k] == threadIdx.x) {
                const int at = (int)(unit + choice.carry[k]), first = at + trf_find_least_code(k),
                          last = at + trf_find_largest_code(k);
                least = first < 1 ? 1 : (uint32_t)first;
                more = (last > (int)kLargestNormal ? kLargestNormal : (uint32_t)last) - least;
            }
        shared.codes[threadIdx.x] = least | more << 16;
    }
    __syncthreads();
    uint32_t codes = 0, others = 0;
    trf_for_numbers<kFindOctets>(weights, [&](uint32_t exponent, uint32_t mantissa) {
        const uint32_t range = shared.codes[mantissa];
        const bool is_code = exponent - (range & 0xFFFF) <= range >> 16;
        codes += is_code;
        others += !is_code;
    });
    *numbers = trf_block_sum(shared, kFindCodes, codes);
    return trf_block_sum(shared, kFindOthers, others);
}

/* ---- blocks ---- */

/* Makes the pair of a scale of an exponent field of that of the same mantissa in [1, 2). */
static __device__ __forceinline__ uint32_t trf_move_pair(uint32_t pair, uint32_t unit) {
    const uint32_t hi = pair & 0xFFFF, lo = pair >> 16, move = (unit - 127) << 7; /* modulo 2^32 */
    return ((hi + move) & 0xFFFF) | (lo ? lo + move : 0) << 16;
}

struct trf_find_outcome {
    uint32_t pair, scale; /* the scale's bits */
    uint32_t misfits, numbers;
};

/* Tries what a sample of kCount octets of each thread suggests. All counters are 0. trusts: whether to trust it if it
 * can be. most: misfits that a scale may have. largest: magnitude of a weight. *outcome: set if there is a scale.
 * @return 1: there is; 0: there is none for these weights; -1: there is none for the sample. */
template <uint32_t kCount>
static __device__ __forceinline__ int trf_try_sample(const trf_find_fp8_args &args, trf_find_fp8_shared &shared,
                                                     const trf_find_weights &weights, bool trusts, uint32_t most,
                                                     uint32_t largest, trf_find_outcome *outcome) {
    trf_find_choice choice;
    choice.normal = trf_count_mantissas<kCount>(shared, weights);
    trf_choose_set(args, shared, &choice);
    if (10 * choice.in_set < TRF_FOUND_SAMPLE_FITS_IN_10 * choice.normal)
        return -1;
    trf_number_mantissas(shared, choice);
    trf_choose_unit<kCount>(shared, weights, largest, &choice);
    outcome->misfits = 0;
    outcome->numbers = choice.in_set;
    if (!trusts || !choice.reaches_all || choice.normal < TRF_FOUND_LEAST_SAMPLE)
        outcome->misfits = trf_count_misfits(shared, choice, choice.unit, weights, &outcome->numbers);
    /* Where all weights are zeros or no codes, any scale would do. */
    const trf_find_fp8_set *const set = &args.sets[choice.set];
    outcome->pair = outcome->numbers ? trf_move_pair(__ldg(&set->pair), choice.unit) : (127 + TRF_PACKED8_BIAS) << 7;
    outcome->scale = outcome->numbers ? choice.unit << 23 | __ldg(&set->scale_mantissa) : 127u << 23;
    return outcome->misfits <= most;
}

/* Finds the scale of a block. asks: whether to look if the search has ended. *outcome: set if the block has a scale.
 * @return 0 if the search ends, because this block has none or another has none. */
static __device__ __forceinline__ bool trf_find_scale(const trf_find_fp8_args &args, trf_find_fp8_shared &shared,
                                                      uint64_t block, bool asks, trf_find_outcome *outcome) {
    const uint32_t block_row = (uint32_t)(block / args.block_cols) * kFindSide,
                   block_col = (uint32_t)(block % args.block_cols) * kFindSide;
    const uint32_t rows = min(args.dense.num_rows - block_row, kFindSide),
                   cols = min(args.dense.cols - block_col, kFindSide);
    const uint32_t most = rows * cols * TRF_FOUND_MISFITS_IN_1000 / 1000;
    const trf_find_weights weights(args.dense,
                                   args.dense.first_row + block_row + threadIdx.x / kFindRowOctets * kFindOctets,
                                   block_col + threadIdx.x % kFindRowOctets * TRF_OCTET_WEIGHTS);
    trf_clear_counts(shared);
    /* All threads must go the same way, so one looks for all. */
    const uint32_t refused = asks && threadIdx.x == 0 ? *(const volatile uint32_t *)&args.found->refused : 0,
                   largest = trf_block_max(shared, kFindLargest, trf_largest_magnitude(weights) | refused << 31);
    if (largest >> 31)
        return false;
    int found = trf_try_sample<1>(args, shared, weights, !args.checks_all, most, largest, outcome);
    if (found == 0) {
        trf_clear_counts(shared);
        __syncthreads();
        found = trf_try_sample<kFindOctets>(args, shared, weights, false, most, largest, outcome);
    }
    if (found != 1 && threadIdx.x == 0)
        args.found->refused = 1;
    return found == 1;
}

/* What a thread block writes to args.found lies in one sector of the L2 cache. If each of its threads asked for that
 * before each scale block, and wrote to it after each, this would take four times as long as all the rest. */
static __device__ __forceinline__ void trf_find_scales(const trf_find_fp8_args &args, trf_find_fp8_shared &shared) {
    unsigned long long misfits = 0, numbers = 0;
    uint32_t low = 0, number = 0;
    for (uint64_t block = blockIdx.x; block < args.blocks; block += gridDim.x) {
        trf_find_outcome outcome;
        if (!trf_find_scale(args, shared, block, ++number % kAskEvery == 0, &outcome))
            return;
        if (threadIdx.x == 0) {
            args.to.pairs[block] = outcome.pair;
            args.to.scales[block] = trf_f32_from_bits(outcome.scale);
        }
        misfits += outcome.misfits;
        numbers += outcome.numbers;
        low |= outcome.pair >> 16;
    }
    if (threadIdx.x != 0)
        return;
    if (low)
        args.found->has_low = 1;
    atomicAdd((unsigned long long *)&args.found->misfits, misfits);
    atomicAdd((unsigned long long *)&args.found->numbers, numbers);
}

#endif
