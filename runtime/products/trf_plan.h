/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of trf_plan (transfuse.h): one layer's product, prepared. */
#ifndef TRF_PLAN_H
#define TRF_PLAN_H

#include "trf_device_layer.h"
#include "trf_fused_partition.h"
#include "trf_gemm_cuda.h"
#include "trf_packed_partition.h"
#include "trf_wide_partition.h"

/* Where the parts of a dense product's workspace are (trf_dense_product_cuda.h). */
typedef struct trf_dense_workspace {
    trf_gemm_shape shape;
    uint64_t sums_offset, gemm_offset; /* gemm is cuBLASLt's own part; the offsets are equal if there are no sums */
} trf_dense_workspace;

/* Whether cuBLASLt leaves F32 sums in the workspace, which a pass of its own then rounds. */
static inline int trf_dense_product_has_sums(const trf_product *product) {
    return trf_has_epilogue(product) || (product->y_dtype != product->x_dtype && product->y_dtype != TRF_DTYPE_F32);
}

/* A fused kernel takes up to TRF_FUSED_MAX_M rows of x. Where no path takes more at once, it runs in passes. */
typedef struct trf_fused_passes {
    trf_fused_partition last; /* of the last pass, which mostly is the only one */
    trf_fused_partition full; /* of each earlier pass, of TRF_FUSED_MAX_M rows; not set if there is none */
} trf_fused_passes;

/* How a plan cuts its product, and what that needs beyond what all plans have. The device and the path decide which
 * member is set. */
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
    trf_product product; /* with the caller's operands */
    /* What the device computes: the product of whole tiles. It equals `product` unless a shard cuts rows of tiles. Then
     * y has all rows of these tiles and lies in the workspace, in F32 and without an epilogue if `product` has one. */
    trf_product tiles_product;
    trf_path path;
    const char *reason;       /* as in trf_plan_info */
    const char *kernel, *cut; /* what trf_plan_get_kernel gives */
    /* The workspace: x of whole tiles, at 0 | y of whole tiles | the device's part. The first two exist only for shards
     * that cut tiles. */
    uint64_t tiles_y_offset, device_workspace_offset;
    uint64_t device_workspace_bytes, workspace_bytes; /* of the last part, and of all parts */
    trf_plan_partition partition;
};

/* Checks that a layer can multiply m rows of x, and that it takes these types of x and y. Errors: TRF_ERR_ARGUMENT. */
trf_status trf_check_types(const trf_layer_info *info, uint32_t m, trf_dtype x_dtype, trf_dtype y_dtype,
                           trf_error *err);

/* The rows of one operand in memory. Sizes are in bytes. */
typedef struct trf_operand_rows {
    const void *at;
    uint64_t count, row_bytes, stride;
} trf_operand_rows;

/* @return where a plan's product has its x, which is one row here, and its y. */
trf_operand_rows trf_x_rows_of(const trf_plan *plan, const void *x);
trf_operand_rows trf_y_rows_of(const trf_plan *plan, const void *y);

/* @return whether two operands share a byte; what lies between the rows of one may be the other's. */
int trf_operands_overlap(const trf_operand_rows *a, const trf_operand_rows *b);

/* Checks a pointer to a workspace of so many bytes: that it is not NULL, and its alignment. whose: for the message.
 * Errors: TRF_ERR_ARGUMENT. */
trf_status trf_check_workspace(const char *whose, const void *workspace, uint64_t workspace_bytes, trf_error *err);

#endif
