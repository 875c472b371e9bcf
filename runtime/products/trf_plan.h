/* SPDX-License-Identifier: Apache-2.0 */
/* A product of one layer, prepared: the handle of that name in transfuse.h. */
#ifndef TRF_PLAN_H
#define TRF_PLAN_H

#include "trf_device_layer.h"
#include "trf_fused_partition.h"
#include "trf_gemm_cuda.h"
#include "trf_packed_partition.h"
#include "trf_wide_partition.h"

/* Where a dense product has what in its workspace (trf_dense_product_cuda.h). */
typedef struct trf_dense_workspace {
    trf_gemm_shape shape;
    uint64_t sums_offset, gemm_offset; /* gemm: cuBLASLt's own; equal if there are no sums */
} trf_dense_workspace;

/* Whether the dense product of cuBLASLt leaves F32 sums in the workspace, which a pass of its own rounds. */
static inline int trf_dense_product_has_sums(const trf_product *product) {
    return trf_has_epilogue(product) || (product->y_dtype != product->x_dtype && product->y_dtype != TRF_DTYPE_F32);
}

/* Fused kernels take TRF_FUSED_MAX_M rows of x. Where nothing takes more at once they run in passes. */
typedef struct trf_fused_passes {
    trf_fused_partition last; /* of the last pass, mostly the only one */
    trf_fused_partition full; /* of each pass in front of it, of TRF_FUSED_MAX_M rows; not set if there is none */
} trf_fused_passes;

/* How a plan of one device and path cuts its product, and what that needs, beyond what all plans have. */
typedef union trf_plan_partition {
    trf_fused_passes fused;
    trf_wide_partition wide;
    trf_dense_workspace dense; /* of TWO_STEP and DENSE */
    trf_packed_partition packed;
    int cpu_workers;
} trf_plan_partition;

/* Never changes once it is made. */
struct trf_plan {
    trf_device_layer *layer;
    trf_product product; /* as the caller's operands have it */
    /* What the device computes: the product of whole tiles. The same, but for a shard that cuts rows of tiles: y is one
     * of all their rows in the workspace, in F32 and without an epilogue if `product` has one. */
    trf_product tiles_product;
    trf_path path;
    const char *reason;       /* as in trf_plan_info */
    const char *kernel, *cut; /* as trf_plan_get_kernel says */
    /* The workspace: x of whole tiles, at 0 | y of whole tiles | what the device wants. The first two are there for
     * shards that cut tiles only. */
    uint64_t tiles_y_offset, device_workspace_offset;
    uint64_t device_workspace_bytes, workspace_bytes; /* of the last part; of all */
    trf_plan_partition partition;
};

/* Whether a layer multiplies m rows of x of one type to y of another. Errors: TRF_ERR_ARGUMENT. */
trf_status trf_check_types(const trf_layer_info *info, uint32_t m, trf_dtype x_dtype, trf_dtype y_dtype,
                           trf_error *err);

/* Whether a workspace is one of so many bytes, as far as a pointer tells. whose: for the message. Errors:
 * TRF_ERR_ARGUMENT. */
trf_status trf_check_workspace(const char *whose, const void *workspace, uint64_t workspace_bytes, trf_error *err);

#endif
