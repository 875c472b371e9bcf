/* SPDX-License-Identifier: Apache-2.0 */
/* The list of grouped kernels, and functions that choose one, like trf_fused_instances.cuh. They are for default p
 * (trf_has_default_p), without scale groups, and for batches up to 8:
 *
 *   codec       type of x    slabs a warp
 *   bf16, fp16  its own      1, 2
 *   e4m3, e5m2  F16, BF16    quads 2, pairs 1
 *   scaled FP8  BF16         quads 2, pairs 1
 *   int         F16, BF16    quads 2, pairs 1
 *
 * There are kernels for quads and for pairs. int also has kernels made for the raw bits that it mostly has. */
#ifndef TRF_GROUP_INSTANCES_CUH
#define TRF_GROUP_INSTANCES_CUH

#include "trf_fused_instances.cuh"
#include "trf_group_kernel.cuh"

typedef void (*trf_group_kernel)(trf_group_args);

template <class Codec, class Type, int kSlabs> static trf_group_kernel trf_group_pick() {
    return trf_grouped<Codec, Type, kSlabs, trf_group_warps(Codec::kClassBits, kSlabs)>;
}

/* One function for each .cu. bf16_x: whether x is BF16, for codecs that take both types. */
trf_group_kernel trf_group_bf16(uint32_t class_bits, uint32_t unit_slabs);
trf_group_kernel trf_group_fp16(uint32_t class_bits, uint32_t unit_slabs);
trf_group_kernel trf_group_fp8(bool e5m2, uint32_t class_bits, bool bf16_x);
trf_group_kernel trf_group_scaled_fp8(uint32_t class_bits);
trf_group_kernel trf_group_int(uint32_t class_bits, uint32_t raw_bits, bool bf16_x);

#endif
