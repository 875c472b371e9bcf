/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_walk_kernel.h"

static warp_walk_kernel *kernel_of_scaled_fp8(const warp_walk *w) {
    if (w->product_config)
        return nullptr;
    return w->view->class_bits == 2
               ? warp_walk_kernel_of<trf_codec_config<TRF_CODEC_E4M3, 2, 0, false, true>, false>(w)
               : warp_walk_kernel_of<trf_codec_config<TRF_CODEC_E4M3, 4, 0, false, true>, false>(w);
}

warp_walk_kernel *warp_walk_kernel_of_e4m3(const warp_walk *w) {
    if (trf_is_scaled_fp8(w->view->codec, w->view->source_dtype))
        return kernel_of_scaled_fp8(w);
    if (w->product_config)
        return w->view->class_bits == 2 ? warp_walk_kernel_of<trf_codec_config<TRF_CODEC_E4M3, 2, 0, true>, true>(w)
                                        : warp_walk_kernel_of<trf_codec_config<TRF_CODEC_E4M3, 4, 0, true>, true>(w);
    return w->view->class_bits == 2 ? warp_walk_kernel_of<trf_codec_config<TRF_CODEC_E4M3, 2>, false>(w)
                                    : warp_walk_kernel_of<trf_codec_config<TRF_CODEC_E4M3, 4>, false>(w);
}
