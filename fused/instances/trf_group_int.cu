/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped kernels of the int codec. */
#include "trf_group_instances.cuh"

template <class Type> static trf_group_kernel pick_raw(uint32_t class_bits, uint32_t raw_bits) {
    if (class_bits == 4)
        return trf_group_pick<trf_codec_config<TRF_CODEC_INT, 4>, Type, 1>();
    if (!trf_has_known_planes(TRF_CODEC_INT, (int)class_bits, raw_bits))
        return trf_group_pick<trf_codec_config<TRF_CODEC_INT, 2>, Type, 2>();
    return raw_bits == 3 ? trf_group_pick<trf_codec_config<TRF_CODEC_INT, 2, 3>, Type, 2>()
                         : trf_group_pick<trf_codec_config<TRF_CODEC_INT, 2, 6>, Type, 2>();
}

trf_group_kernel trf_group_int(uint32_t class_bits, uint32_t raw_bits, bool bf16_x) {
    return bf16_x ? pick_raw<trf_bf16_type>(class_bits, raw_bits) : pick_raw<trf_f16_type>(class_bits, raw_bits);
}
