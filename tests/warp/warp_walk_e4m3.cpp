/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_walk_kernel.h"

warp_walk_kernel *warp_walk_kernel_of_e4m3(const warp_walk *w) {
    if (w->product_config)
        return w->view->class_bits == 2 ? warp_walk_kernel_of<trf_codec_config<TRF_CODEC_E4M3, 2, 0, true>, true>(w)
                                        : warp_walk_kernel_of<trf_codec_config<TRF_CODEC_E4M3, 4, 0, true>, true>(w);
    return w->view->class_bits == 2 ? warp_walk_kernel_of<trf_codec_config<TRF_CODEC_E4M3, 2>, false>(w)
                                    : warp_walk_kernel_of<trf_codec_config<TRF_CODEC_E4M3, 4>, false>(w);
}
