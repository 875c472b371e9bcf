/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_packed_bulk.h"

void warp_multiply_packed8_bulk(const warp_packed_product *product, uint32_t flags, int shape, uint32_t x_tiles,
                                uint32_t blocks) {
    (flags & TRF_PACKED8_HAS_RECORDS ? multiply_by_kernel<trf_packed_bulk_fp8<true, true>>
     : flags & TRF_PACKED8_HAS_LOW
         ? multiply_by_kernel<trf_packed_bulk_fp8<true, false>>
         : multiply_by_kernel<trf_packed_bulk_fp8<false, false>>)(product, shape, x_tiles, blocks);
}
