/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_walk_kernel.h"

warp_walk_kernel *warp_walk_kernel_of_fp16(const warp_walk *w) {
    if (w->product_config)
        return nullptr;
    return w->view->class_bits == 2 ? warp_walk_kernel_of<trf_codec_config<TRF_CODEC_FP16, 2>, false>(w)
                                    : warp_walk_kernel_of<trf_codec_config<TRF_CODEC_FP16, 4>, false>(w);
}
