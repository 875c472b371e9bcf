/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the exponents of dense rows on the device, as trf_pack_window does, to choose a packed layer's window where no
 * blob's head says it. This is the body of the kernel, which also runs on the CPU in emulated warps.
 *
 * Warps take 1,024 columns of a row at a time, and go on in steps of the grid's size. Each lane number has counters of
 * its own, in a bank of its own, which a block's warps share: the weights of a layer have few exponents, and 32 lanes
 * would collide at the same counter.
 *
 * Shared memory: 32 KiB of counters. Registers: 36 (sm_80: 39). The limit is about 12 instructions and one shared
 * atomic for each weight: 28672x8192, 470 MB, take 0.22 to 0.27 ms on an H100. */
#ifndef TRF_WINDOW_HISTOGRAM_CUH
#define TRF_WINDOW_HISTOGRAM_CUH

#include "trf_pack_lane.h"
#include "trf_pack_launch.h"
#include "trf_warp.cuh"

static constexpr uint32_t kHistogramWarps = 16, kHistogramThreads = kHistogramWarps * TRF_LANES;
static constexpr uint32_t kExponents = 256;
static constexpr uint32_t kLaneOctets = 4; /* octets of a lane at a time */
static constexpr uint32_t kCols = kLaneOctets * TRF_LANES * TRF_OCTET_WEIGHTS;

struct trf_histogram_args {
    trf_dense_rows dense;
    const int8_t *row_offsets;
    trf_window_histogram *histogram;
};

static inline trf_histogram_args trf_histogram_args_of(const trf_rows_to_pack *rows, const int8_t *row_offsets,
                                                       trf_window_histogram *histogram) {
    return {trf_dense_rows_of(rows->weights, rows->stride, rows->first_row, rows->num_rows, rows->cols, 2), row_offsets,
            histogram};
}

struct trf_histogram_shared {
    uint32_t counts[kExponents][TRF_LANES];
};

/* Whether an exponent field is that of a normal number. */
static __device__ __forceinline__ bool trf_is_normal(uint32_t exponent) { return exponent - 1 < 254; }

/* Counts the exponents of an octet. @return the number of zeros among the weights that exist. */
static __device__ __forceinline__ uint32_t trf_count_octet(trf_histogram_shared &shared, const trf_words4 &octet,
                                                           int32_t offset, uint32_t there, uint32_t lane) {
    uint32_t zeros = 0;
    for (uint32_t i = 0; i < TRF_OCTET_WEIGHTS; i++) {
        const uint32_t bits = octet.word[i / 2] >> 16 * (i % 2), exponent = bits >> 7 & 0xFF;
        const uint32_t left = exponent - (uint32_t)offset;
        if (trf_is_normal(exponent) && trf_is_normal(left))
            atomicAdd(&shared.counts[left][lane], 1u);
        zeros += i < there && (bits & 0x7FFF) == 0;
    }
    return zeros;
}

static __device__ __forceinline__ void trf_count_exponents(const trf_histogram_args &args,
                                                           trf_histogram_shared &shared) {
    const trf_dense_rows &dense = args.dense;
    const uint32_t warp = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    for (uint32_t exponent = warp; exponent < kExponents; exponent += kHistogramWarps)
        shared.counts[exponent][lane] = 0;
    __syncthreads();

    const uint32_t parts = (dense.cols + kCols - 1) / kCols;
    const uint64_t work = (uint64_t)dense.num_rows * parts;
    uint32_t zeros = 0;
    for (uint64_t w = (uint64_t)blockIdx.x * kHistogramWarps + warp; w < work;
         w += (uint64_t)gridDim.x * kHistogramWarps) {
        const uint32_t row = dense.first_row + (uint32_t)(w / parts);
        const uint32_t col = (uint32_t)(w % parts) * kCols + TRF_OCTET_WEIGHTS * lane;
        const int32_t offset = args.row_offsets ? args.row_offsets[row] : 0;
        trf_words4 octets[kLaneOctets];
        for (uint32_t i = 0; i < kLaneOctets; i++)
            octets[i] = trf_load_octet(&dense, row, col + i * (kCols / kLaneOctets));
        for (uint32_t i = 0; i < kLaneOctets; i++) {
            const uint32_t at = col + i * (kCols / kLaneOctets), there = at < dense.cols ? dense.cols - at : 0;
            zeros += trf_count_octet(shared, octets[i], offset, there, lane);
        }
    }
    __syncthreads();

    for (uint32_t exponent = warp; exponent < kExponents; exponent += kHistogramWarps) {
        const uint32_t count = __reduce_add_sync(kAllLanes, shared.counts[exponent][lane]);
        if (lane == 0 && count)
            atomicAdd((unsigned long long *)&args.histogram->exponents[exponent], (unsigned long long)count);
    }
    zeros = __reduce_add_sync(kAllLanes, zeros);
    if (lane == 0 && zeros)
        atomicAdd((unsigned long long *)&args.histogram->zeros, (unsigned long long)zeros);
}

#endif
