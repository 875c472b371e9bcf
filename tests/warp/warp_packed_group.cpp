/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_packed_group.h"

void warp_multiply_packed_group(const warp_packed_product *products, uint32_t count, int shape, uint32_t x_tiles,
                                uint32_t cluster_size) {
    (products[0].view->zeroing
         ? multiply_group<trf_packed_bulk_bf16<true>>
         : multiply_group<trf_packed_bulk_bf16<false>>)(products, count, shape, x_tiles, cluster_size);
}
