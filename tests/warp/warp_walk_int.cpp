/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_walk_kernel.h"

/* Codes of more than 8 bits do not fit the bytes that weights are built in. */
warp_walk_kernel *warp_walk_kernel_of_int(const warp_walk *w) {
    const uint32_t class_bits = w->view->class_bits, raw_bits = w->view->raw_bits;
    if (class_bits + raw_bits > 8)
        return nullptr;
    if (w->product_config && class_bits == 2 && raw_bits == 3)
        return warp_walk_kernel_of<trf_codec_config<TRF_CODEC_INT, 2, 3>, true>(w);
    if (w->product_config && class_bits == 2 && raw_bits == 6)
        return warp_walk_kernel_of<trf_codec_config<TRF_CODEC_INT, 2, 6>, true>(w);
    if (w->product_config)
        return nullptr;
    return class_bits == 2 ? warp_walk_kernel_of<trf_codec_config<TRF_CODEC_INT, 2>, false>(w)
                           : warp_walk_kernel_of<trf_codec_config<TRF_CODEC_INT, 4>, false>(w);
}
