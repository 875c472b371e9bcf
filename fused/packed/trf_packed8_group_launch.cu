/* SPDX-License-Identifier: Apache-2.0 */
/* The bulk kernels that multiply by several packed FP8 layers: all use second constants, which few layers do without.
 */
#include "trf_packed_group_kernels.cuh"
#include "trf_packed_group_launch.h"

int trf_packed8_group_launch(const trf_packed8_view *const *views, const trf_product *const *products, uint32_t count,
                             const trf_packed_group_partition *partition, const void *const *x, void *const *y,
                             void *workspace, trf_stream stream) {
    const trf_packed_view *parts[TRF_PACKED_GROUP_MAX_LAYERS];
    uint32_t flags = 0;
    if (count > TRF_PACKED_GROUP_MAX_LAYERS)
        return cudaErrorInvalidValue;
    for (uint32_t i = 0; i < count; i++) {
        parts[i] = &views[i]->packed;
        flags |= views[i]->flags;
    }
    return (flags & TRF_PACKED8_HAS_RECORDS
                ? trf_packed_group_launch_as<trf_packed_bulk_fp8<true, true>>
                : trf_packed_group_launch_as<trf_packed_bulk_fp8<true, false>>)(parts, products, count, partition, x, y,
                                                                                workspace, stream);
}
