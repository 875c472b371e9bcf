/* SPDX-License-Identifier: Apache-2.0 */
/* The bulk kernels that multiply by several packed BF16 layers. */
#include "trf_packed_group_launch.h"

#include "trf_packed_group_kernels.cuh"

int trf_packed_group_launch(const trf_packed_view *const *views, const trf_product *const *products, uint32_t count,
                            const trf_packed_group_partition *partition, const void *const *x, void *const *y,
                            void *workspace, trf_stream stream) {
    return (views[0]->zeroing ? trf_packed_group_launch_as<trf_packed_bulk_bf16<true>>
                              : trf_packed_group_launch_as<trf_packed_bulk_bf16<false>>)(views, products, count,
                                                                                         partition, x, y, workspace,
                                                                                         stream);
}
