/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_packed_wgmma.h"

void warp_multiply_packed_wgmma(const warp_packed_product *product, const trf_packed_partition *partition) {
    if (product->view->zeroing)
        multiply_by_shape<trf_packed_wgmma_bf16<trf_packed_former<true>>>(product, partition, wgmma_shape_numbers());
    else
        multiply_by_shape<trf_packed_wgmma_bf16<trf_packed_former<false>>>(product, partition, wgmma_shape_numbers());
}
