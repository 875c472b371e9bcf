/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_packed_wgmma.h"

void warp_multiply_packed8_wgmma(const warp_packed_product *product, const trf_packed_partition *partition) {
    multiply_by_shape<trf_packed_wgmma_fp8<true, true>>(product, partition, wgmma_shape_numbers());
}
