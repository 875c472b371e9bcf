/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the kernel that walks a layer, and gives it its shared memory and, if it copies x, an x. */
#include "warp_walk_kernel.h"

#include <vector>

static warp_walk_kernel *kernel_of(const warp_walk *w) {
    switch (w->view->codec) {
    case TRF_CODEC_BF16:
        return warp_walk_kernel_of_bf16(w);
    case TRF_CODEC_FP16:
        return warp_walk_kernel_of_fp16(w);
    case TRF_CODEC_E4M3:
        return warp_walk_kernel_of_e4m3(w);
    case TRF_CODEC_E5M2:
        return warp_walk_kernel_of_e5m2(w);
    default:
        return warp_walk_kernel_of_int(w);
    }
}

static uint32_t table_log_of(const warp_walk *w) {
    switch (w->variant) {
    case WARP_WALK_WRITE:
        return trf_write_table_log(w->view->codec, 2);
    case WARP_WALK_ONE_SLAB:
        return kTableLog;
    case WARP_WALK_WRITE_GENERAL:
    case WARP_WALK_GENERAL:
        return w->table_log;
    case WARP_WALK_TWO_SLABS:
    case WARP_WALK_TWO_SLABS_COPY:
        return w->view->class_bits == 2 ? kSmallTableLog : kTableLog;
    default:
        return kSmallTableLog;
    }
}

static trf_write_method store_method_of(const warp_walk *w) {
    if (w->view->cols % 8 != 0)
        return TRF_METHOD_SCALAR;
    const bool gathers = w->variant == WARP_WALK_WRITE && trf_may_gather(w->view->codec, 2);
    return gathers && w->order % 4 ? TRF_METHOD_GATHERED : TRF_METHOD_VECTOR;
}

int warp_walk_layer(const warp_walk *w) {
    const trf_device_view *view = w->view;
    warp_walk_kernel *const kernel = kernel_of(w);
    warp_walk_args args = {};
    args.panels = trf_regular_panels(view);
    if (!kernel || args.panels == 0 || view->rows < TRF_SLAB_ROWS)
        return 0;
    const bool two =
        w->variant == WARP_WALK_TWO_SLABS || w->variant == WARP_WALK_TWO_SLABS_COPY || w->variant == WARP_WALK_WIDE;
    args.walk = w;
    const trf_write_method method = store_method_of(w);
    const uint32_t behind = w->variant == WARP_WALK_TWO_SLABS_COPY ? kXBytes
                            : method == TRF_METHOD_GATHERED        ? TRF_GATHER_BYTES
                                                                   : 0;
    args.smem = trf_smem_layout_of(view->raw_bits, w->max_rans_bytes, w->warps, two ? 2 : 1, table_log_of(w), 0, behind,
                                   w->variant == WARP_WALK_WIDE ? kShortRing : kRing);
    args.store = {*view,
                  {args.smem, args.panels, trf_regular_slabs(view), TRF_DECODE_ELEMENTS, TRF_WRITE_ELEMENTS, method},
                  w->elements};
    args.x_stride = (view->cols + 7) / 8 * 8; /* rows are aligned */
    std::vector<uint16_t> x(8 * args.x_stride);
    for (uint32_t i = 0; i < x.size(); i++)
        x[i] = (uint16_t)(i * 0x9E37u >> 3);
    args.x = x.data();
    warp_run_block({w->warps, args.smem.total, w->order}, kernel, &args);
    return 1;
}
