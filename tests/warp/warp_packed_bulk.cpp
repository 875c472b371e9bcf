/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_packed_bulk.h"

void warp_expect_taken_over(const trf_packed_handover &handover, uint32_t blocks) {
    for (uint32_t i = 0; i < blocks * TRF_PACKED_HANDOVER_WARPS; i++)
        if (handover.flags[i] == handover.launch_id)
            warp_fail("has left sums that nobody took over");
}

void warp_multiply_packed_bulk(const warp_packed_product *product, int shape, uint32_t x_tiles, uint32_t blocks) {
    (product->view->zeroing ? multiply_by_kernel<trf_packed_bulk_bf16<true>>
                            : multiply_by_kernel<trf_packed_bulk_bf16<false>>)(product, shape, x_tiles, blocks);
}

/* ---- groups ---- */

template <class Config> static void run_group_block(void *args) {
    trf_packed_bulk_block<Config>(trf_packed_bulk_member_of(*(const trf_packed_bulk_group_args *)args),
                                  trf_shared_address(warp_shared_memory()));
}

template <int kShape, uint32_t kXTiles, bool kZeroing>
static void multiply_group_as(const warp_packed_product *products, uint32_t count, uint32_t cluster_size) {
    typedef trf_packed_bulk_config<kShape, kXTiles, trf_packed_bulk_bf16<kZeroing>, true> Config;
    trf_packed_bulk_group_args group = {};
    uint32_t blocks = 0;
    for (group.count = 0; group.count < count; group.count++) {
        trf_packed_bulk_member *const member = &group.members[group.count];
        member->first_block = blocks;
        blocks += set_args<Config>(member, &products[group.count], cluster_size);
    }
    run_blocks<Config>(run_group_block<Config>, &group,
                       trf_packed_bulk_shared_bytes(kShape, kXTiles, Config::kSlabBytes), blocks, cluster_size,
                       products[0].order);
}

template <int kShape, uint32_t kXTiles>
static void multiply_group(const warp_packed_product *products, uint32_t count, uint32_t cluster_size) {
    (products[0].view->zeroing ? multiply_group_as<kShape, kXTiles, true>
                               : multiply_group_as<kShape, kXTiles, false>)(products, count, cluster_size);
}

template <int kShape>
static void multiply_group_of_shape(const warp_packed_product *products, uint32_t count, uint32_t x_tiles,
                                    uint32_t cluster_size) {
    if (x_tiles == 1)
        multiply_group<kShape, 1>(products, count, cluster_size);
    else if (x_tiles == 2)
        multiply_group<kShape, 2>(products, count, cluster_size);
    else
        multiply_group<kShape, 4>(products, count, cluster_size);
}

void warp_multiply_packed_group(const warp_packed_product *products, uint32_t count, int shape, uint32_t x_tiles,
                                uint32_t cluster_size) {
    if (shape == TRF_PACKED_BULK_128)
        multiply_group_of_shape<TRF_PACKED_BULK_128>(products, count, x_tiles, cluster_size);
    else if (shape == TRF_PACKED_BULK_64)
        multiply_group_of_shape<TRF_PACKED_BULK_64>(products, count, x_tiles, cluster_size);
    else
        multiply_group_of_shape<TRF_PACKED_BULK_32>(products, count, x_tiles, cluster_size);
}
