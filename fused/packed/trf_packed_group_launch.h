/* SPDX-License-Identifier: Apache-2.0 */
/* Launches products of several packed layers together. */
#ifndef TRF_PACKED_GROUP_LAUNCH_H
#define TRF_PACKED_GROUP_LAUNCH_H

#include "trf_packed_group_partition.h"
#include "trf_product.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues y[i] = x[i] . W^T for each product. views: as for trf_packed_launch. products: have x of BF16, and no
 * epilogue but rounding to y. partition: the one that trf_packed_group_choose made for them. x, y: device, aligned to
 * their elements. workspace: device, 256-byte aligned, partition->workspace_bytes. @return a cudaError_t. */
int trf_packed_group_launch(const trf_packed_view *const *views, const trf_product *const *products, uint32_t count,
                            const trf_packed_group_partition *partition, const void *const *x, void *const *y,
                            void *workspace, trf_stream stream);

/* The same for packed FP8 layers. Records are looked for in all of them if one has some. */
int trf_packed8_group_launch(const trf_packed8_view *const *views, const trf_product *const *products, uint32_t count,
                             const trf_packed_group_partition *partition, const void *const *x, void *const *y,
                             void *workspace, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
