/* SPDX-License-Identifier: Apache-2.0 */
/* The list of grouped kernels, and how to get at them; as trf_fused_instances.cuh, for default p (trf_has_default_p),
 * without scale groups, and batches up to 8:
 *
 *   codec       type of x    slabs a warp
 *   bf16, fp16  its own      1, 2
 *   e4m3, e5m2  F16, BF16    quads 2, pairs 1
 *   int         F16, BF16    quads 2, pairs 1
 *
 * each with quads and pairs. Int has kernels for the raw bits that it mostly has, too. */
#ifndef TRF_GROUP_INSTANCES_CUH
#define TRF_GROUP_INSTANCES_CUH

#include "trf_fused_instances.cuh"
#include "trf_group_kernel.cuh"

typedef void (*trf_group_kernel)(trf_group_args);

template <class Codec, class Type, int kSlabs> static trf_group_kernel trf_group_pick() {
    return trf_grouped<Codec, Type, kSlabs, trf_group_warps(Codec::kClassBits, kSlabs)>;
}

/* One for each .cu. bf16_x: the type of x where the codec takes both. */
trf_group_kernel trf_group_bf16(uint32_t class_bits, uint32_t unit_slabs);
trf_group_kernel trf_group_fp16(uint32_t class_bits, uint32_t unit_slabs);
trf_group_kernel trf_group_fp8(bool e5m2, uint32_t class_bits, bool bf16_x);
trf_group_kernel trf_group_int(uint32_t class_bits, uint32_t raw_bits, bool bf16_x);

#endif
