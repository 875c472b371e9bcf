/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_packed_group.h"

void warp_multiply_packed8_group(const warp_packed_product *products, uint32_t count, uint32_t flags, int shape,
                                 uint32_t x_tiles, uint32_t cluster_size) {
    (flags & TRF_PACKED8_HAS_RECORDS
         ? multiply_group<trf_packed_bulk_fp8<true, true>>
         : multiply_group<trf_packed_bulk_fp8<true, false>>)(products, count, shape, x_tiles, cluster_size);
}
