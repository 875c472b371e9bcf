/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped kernels of the bf16 codec. */
#include "trf_group_instances.cuh"

template <class Codec> static trf_group_kernel pick_unit_slabs(uint32_t unit_slabs) {
    return unit_slabs == 2 ? trf_group_pick<Codec, trf_bf16_type, 2>() : trf_group_pick<Codec, trf_bf16_type, 1>();
}

trf_group_kernel trf_group_bf16(uint32_t class_bits, uint32_t unit_slabs) {
    return class_bits == 2 ? pick_unit_slabs<trf_codec_config<TRF_CODEC_BF16, 2>>(unit_slabs)
                           : pick_unit_slabs<trf_codec_config<TRF_CODEC_BF16, 4>>(unit_slabs);
}
