/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor of x for TMA (compute capability 9.0), which copies x in boxes. */
#ifndef TRF_TENSOR_MAP_CUH
#define TRF_TENSOR_MAP_CUH

#include <stdint.h>

struct alignas(64) trf_tensor_map {
    uint8_t bytes[128];
};

#ifdef __CUDACC__

#include <cuda.h>
#include <cuda_runtime.h>

/* Describes x, which is in device memory: [m][cols] 16-bit floats, `stride` elements from row to row, rows that begin
 * at multiples of 16 bytes. TMA copies boxes of box_cols columns by box_rows rows, with zeros outside of x. The runtime
 * looks up the driver's function that makes the map. */
static inline cudaError_t trf_make_x_map(const void *x, uint32_t m, uint32_t cols, uint32_t stride, uint32_t box_rows,
                                         uint32_t box_cols, bool bf16, trf_tensor_map *map) {
    static_assert(sizeof(CUtensorMap) == sizeof(trf_tensor_map), "a tensor map has 128 bytes");
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    if (status != cudaSuccess || found != cudaDriverEntryPointSuccess)
        return status != cudaSuccess ? status : cudaErrorNotSupported;
    const cuuint64_t sizes[2] = {cols, m}, strides[1] = {2ull * stride};
    const cuuint32_t box[2] = {box_cols, box_rows}, steps[2] = {1, 1};
    const CUtensorMapSwizzle swizzle = box_cols == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
    CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
        reinterpret_cast<CUtensorMap *>(map), bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        2, const_cast<void *>(x), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

#endif

#endif
