/* SPDX-License-Identifier: Apache-2.0 */
/* Copies rows of plain weights, by number or all of them, or widens them to F32.
 *
 * A block takes a row, and goes on in steps of the grid's size. A thread takes 8 neighbouring weights at a time, in one
 * load of 16 bytes and one store (two for F32), or single weights where rows are not aligned. There is no shared
 * memory. The limit is memory bandwidth, and for few rows the latency of two loads, of the id and of the weights. */
#include "trf_plain_rows.h"
#include "trf_row_reader.h"

namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kVector = 8; /* weights */
/* the most blocks of a multiprocessor; if there is more to do, blocks take several rows */
constexpr uint32_t kBlocksEach = 16;

/* Returns the two elements of a word as F32, the lower one first. */
__device__ __forceinline__ uint2 widen_two(uint32_t codec, uint32_t word) {
    return make_uint2(trf_f32_bits(trf_element_to_f32(codec, word & 0xFFFF)),
                      trf_f32_bits(trf_element_to_f32(codec, word >> 16)));
}

/* to: the place of 8 values, 16-byte aligned. */
template <int kBytes> __device__ __forceinline__ void put_vector(uint32_t codec, const uint4 &words, uint8_t *to) {
    if (kBytes == 2) {
        *(uint4 *)to = words;
    } else {
        const uint2 a = widen_two(codec, words.x), b = widen_two(codec, words.y), c = widen_two(codec, words.z),
                    d = widen_two(codec, words.w);
        ((uint4 *)to)[0] = make_uint4(a.x, a.y, b.x, b.y);
        ((uint4 *)to)[1] = make_uint4(c.x, c.y, d.x, d.y);
    }
}

template <int kBytes>
__device__ __forceinline__ void copy_row(const trf_plain_rows_request &rows, const uint16_t *from, uint8_t *to,
                                         bool vectors) {
    if (vectors) {
        for (uint32_t v = threadIdx.x; v < rows.cols / kVector; v += kThreads)
            put_vector<kBytes>(rows.codec, ((const uint4 *)from)[v], to + (size_t)v * kVector * kBytes);
        return;
    }
    for (uint32_t col = threadIdx.x; col < rows.cols; col += kThreads)
        trf_store_decoded_bits(to, kBytes, col,
                               kBytes == 2 ? from[col] : trf_f32_bits(trf_element_to_f32(rows.codec, from[col])));
}

template <int kBytes>
__global__ void __launch_bounds__(kThreads)
    copy_plain_rows(const __grid_constant__ trf_plain_rows_request rows, bool vectors) {
    for (uint64_t i = blockIdx.x; i < rows.count; i += gridDim.x) {
        const int64_t id = rows.ids ? trf_row_id(rows.ids, rows.id_bytes, i) : (int64_t)i;
        uint8_t *const to = (uint8_t *)rows.to + i * rows.cols * kBytes;
        if (id >= 0 && id < rows.rows)
            copy_row<kBytes>(rows, rows.weights + (uint64_t)id * rows.cols, to, vectors);
        else
            for (uint32_t col = threadIdx.x; col < rows.cols; col += kThreads)
                trf_store_decoded_bits(to, kBytes, col, rows.missing);
    }
}

} // namespace

int trf_launch_plain_rows(const trf_plain_rows_request *rows, trf_stream stream) {
    int device, multiprocessors;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess)
        return error;
    const uint32_t most = (uint32_t)multiprocessors * kBlocksEach, blocks = rows->count < most ? rows->count : most;
    const bool vectors = rows->cols % kVector == 0 && ((uintptr_t)rows->weights | (uintptr_t)rows->to) % 16 == 0;
    if (rows->weight_bytes == 2)
        copy_plain_rows<2><<<blocks, kThreads, 0, stream>>>(*rows, vectors);
    else
        copy_plain_rows<4><<<blocks, kThreads, 0, stream>>>(*rows, vectors);
    return cudaGetLastError();
}
