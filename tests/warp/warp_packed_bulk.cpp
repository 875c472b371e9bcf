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
