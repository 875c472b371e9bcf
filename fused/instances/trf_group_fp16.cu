/* Grouped kernels of the fp16 codec. */
#include "trf_group_variants.cuh"

template <class Form> static trf_group_kernel trf_pick_slabs(uint32_t slabs) {
    return slabs == 2 ? trf_pick_group<Form, trf_f16_type, 2>() : trf_pick_group<Form, trf_f16_type, 1>();
}

trf_group_kernel trf_group_fp16(uint32_t class_bits, uint32_t slabs) {
    return class_bits == 2 ? trf_pick_slabs<trf_form<TRF_CODEC_FP16, 2>>(slabs)
                           : trf_pick_slabs<trf_form<TRF_CODEC_FP16, 4>>(slabs);
}
