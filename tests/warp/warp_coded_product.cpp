/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_coded_product.h"

#include "warp_halves.h"

#include "trf_warp_product.cuh"

struct warp_coded_args {
    const warp_coded_product *product;
    trf_product_args args;
    trf_smem_layout smem;
    uint32_t panels; /* that are regular */
};

typedef void warp_coded_kernel(void *args);

/* Every warps-th unit, and all panels of it. */
struct warp_unit_order {
    uint32_t warps, panels;

    void next_unit(trf_walk &walk) const {
        walk.unit += warps;
        walk.panel = 0;
        walk.stop = panels;
    }
};

template <class Codec, int kSlabs, int kP> static void multiply(void *args) {
    constexpr int kLog = kP == 0 ? 0 : trf_fused_table_log(Codec::kClassBits, kSlabs);
    const warp_coded_args &c = *(const warp_coded_args *)args;
    const trf_device_view &view = c.args.view;
    const uint32_t warps = blockDim.x / TRF_LANES, warp = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    const uint32_t units = (view.rows / TRF_SLAB_ROWS + kSlabs - 1) / kSlabs;
    uint8_t *const shared_memory = warp_shared_memory();
    uint2 *const constants = (uint2 *)warp_static_shared_memory();
    const uint32_t shared = trf_shared_address(shared_memory);
    const trf_table_slots<kP> table_source(view);
    const trf_int_planes planes = trf_int_planes_of(view.raw_bits);
    const warp_unit_order unit_order = {warps, c.panels};
    const uint32_t own = warp < units ? (units - warp + warps - 1) / warps : 0;
    trf_prefetcher<kSlabs> prefetcher;
    trf_start_walk<Codec>(prefetcher, view, c.smem, planes, {warp, 0, c.panels, own * c.panels}, unit_order,
                          shared + c.smem.first_warp + warp * c.smem.warp_bytes, lane);
    trf_build_constants<Codec, kP, kLog>(view, table_source, shared, c.smem, constants);
    __syncthreads();

    trf_warp_product<Codec, trf_bf16_type, kSlabs, 1, false, kP == 0> product(c.args, lane);
    const trf_rans_params<kP, kLog> params =
        trf_rans_params_of<kP, kLog>(view, shared_memory, c.smem.table_log, trf_shared_address(constants), lane);
    if (prefetcher.bytes[0])
        product.prefetch_slab(prefetcher.entered);
    for (uint32_t unit = warp; unit < units; unit += warps) {
        trf_walk_slabs<Codec>(view, c.smem, planes, prefetcher, params, shared + c.smem.lane_pair_masks, unit_order,
                              unit, lane, product);
        product.finish(unit);
        product.clear();
    }
    trf_cp_async_wait<0>();
}

template <int kClassBits> static warp_coded_kernel *kernel_of(const warp_coded_product *product) {
    using Codec = trf_codec_config<TRF_CODEC_E4M3, kClassBits, 0, true, true>;
    return product->general     ? multiply<Codec, 1, 0>
           : product->two_slabs ? multiply<Codec, 2, kDefaultP<Codec>>
                                : multiply<Codec, 1, kDefaultP<Codec>>;
}

void warp_multiply_coded(const warp_coded_product *product) {
    const trf_device_view *view = product->view;
    const uint32_t unit_slabs = product->two_slabs ? 2 : 1;
    warp_coded_args args = {product, {}, {}, trf_regular_panels(view)};
    args.args.view = *view;
    args.args.x = product->x;
    args.args.y = product->y;
    args.args.x_stride = product->x_stride;
    args.args.y_stride = view->rows;
    args.args.m = 8;
    args.args.y_dtype = TRF_DTYPE_F32;
    args.args.whole_rows = view->rows / TRF_SLAB_ROWS * TRF_SLAB_ROWS;
    args.args.use_row_offsets = (uint32_t)product->use_row_offsets;
    args.smem = trf_smem_layout_of(view->raw_bits, product->max_rans_bytes, product->warps, unit_slabs,
                                   product->general ? view->probability_bits + 4
                                                    : trf_fused_table_log((int)view->class_bits, (int)unit_slabs),
                                   0, 0, kRing);
    warp_run_block({product->warps, args.smem.total, product->order},
                   view->class_bits == 2 ? kernel_of<2>(product) : kernel_of<4>(product), &args);
}
