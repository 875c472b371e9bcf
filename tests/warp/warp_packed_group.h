/* SPDX-License-Identifier: Apache-2.0 */
/* Runs bulk kernels that multiply by several layers in emulated blocks, for any kind of weights. */
#ifndef WARP_PACKED_GROUP_H
#define WARP_PACKED_GROUP_H

#include "warp_packed_bulk.h"

template <class Config> static void run_group_block(void *args) {
    trf_packed_bulk_block<Config>(trf_packed_bulk_member_of(*(const trf_packed_bulk_group_args *)args),
                                  trf_shared_address(warp_shared_memory()));
}

template <int kShape, uint32_t kXTiles, class Weights>
static void multiply_group_as(const warp_packed_product *products, uint32_t count, uint32_t cluster_size) {
    typedef trf_packed_bulk_config<kShape, kXTiles, Weights, true> Config;
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

template <int kShape, class Weights>
static void multiply_group_of_shape(const warp_packed_product *products, uint32_t count, uint32_t x_tiles,
                                    uint32_t cluster_size) {
    if (x_tiles == 1)
        multiply_group_as<kShape, 1, Weights>(products, count, cluster_size);
    else if (x_tiles == 2)
        multiply_group_as<kShape, 2, Weights>(products, count, cluster_size);
    else
        multiply_group_as<kShape, 4, Weights>(products, count, cluster_size);
}

/* Multiplies by the kernel of a shape, all products in one launch. */
template <class Weights>
static void multiply_group(const warp_packed_product *products, uint32_t count, int shape, uint32_t x_tiles,
                           uint32_t cluster_size) {
    if (shape == TRF_PACKED_BULK_128)
        multiply_group_of_shape<TRF_PACKED_BULK_128, Weights>(products, count, x_tiles, cluster_size);
    else if (shape == TRF_PACKED_BULK_64)
        multiply_group_of_shape<TRF_PACKED_BULK_64, Weights>(products, count, x_tiles, cluster_size);
    else
        multiply_group_of_shape<TRF_PACKED_BULK_32, Weights>(products, count, x_tiles, cluster_size);
}

#endif
