/* SPDX-License-Identifier: Apache-2.0 */
/* Wide kernels of the fp16 codec. */
#include "trf_wide_instances.cuh"

trf_wide_kernel trf_wide_fp16(int class_bits, int max_x_rows, int decoding_blocks) {
    return class_bits == 2
               ? trf_wide_pick<trf_codec_config<TRF_CODEC_FP16, 2>, trf_f16_type>(max_x_rows, decoding_blocks)
               : trf_wide_pick<trf_codec_config<TRF_CODEC_FP16, 4>, trf_f16_type>(max_x_rows, decoding_blocks);
}
