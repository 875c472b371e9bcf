/* SPDX-License-Identifier: Apache-2.0 */
/* The workspace: first_bytes for the caller of this file | F32 sums [m][rows], if there is an epilogue or cuBLASLt does
 * not write y's type for x's type | cuBLASLt's own workspace. Each part begins at a multiple of 256 bytes. */
#include "trf_dense_product_cuda.h"

#include "trf_cuda_call.h"
#include "trf_device_layer.h"
#include "trf_nvtx.h"
#include "trf_round_sums.h"

/* No sum here overflows, since sizes are bounded. */
static trf_dense_workspace workspace_of(const trf_plan *plan, uint64_t first_bytes) {
    const trf_product *product = &plan->tiles_product;
    const uint64_t rows = plan->layer->view.rows;
    const int has_sums = trf_dense_product_has_sums(product);
    trf_dense_workspace dense;
    dense.shape = (trf_gemm_shape){product->m, plan->layer->view.rows, plan->layer->view.cols, product->x_dtype,
                                   has_sums ? TRF_DTYPE_F32 : product->y_dtype};
    dense.sums_offset = trf_device_align(first_bytes);
    dense.gemm_offset = dense.sums_offset + (has_sums ? trf_device_align(4 * product->m * rows) : 0);
    return dense;
}

trf_status trf_plan_dense_product(trf_plan *plan, uint64_t first_bytes, trf_error *err) {
    const uint64_t limit = 1ull << 48;
    const trf_device_view *view = &plan->layer->view;
    const uint32_t m = plan->tiles_product.m;
    uint64_t gemm_bytes;
    if (m > INT32_MAX || (uint64_t)m * view->rows > limit || (uint64_t)view->rows * view->cols > limit)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "a product of %ux%u weights and %u rows of x is too large", view->rows, view->cols, m);
    const trf_dense_workspace dense = workspace_of(plan, first_bytes);
    trf_status status = trf_gemm_workspace(plan->layer->context->gemm, &dense.shape, &gemm_bytes, err);
    if (status != TRF_OK)
        return status;
    plan->partition.dense = dense;
    plan->device_workspace_bytes = dense.gemm_offset + gemm_bytes;
    return TRF_OK;
}

trf_status trf_multiply_by_dense(const trf_plan *plan, const void *weights, const trf_operands *operands,
                                 void *workspace, trf_stream stream, trf_error *err) {
    const trf_dense_workspace *dense = &plan->partition.dense;
    const trf_product *product = &plan->tiles_product;
    const trf_device_layer *layer = plan->layer;
    uint8_t *const base = workspace;
    const int has_sums = dense->sums_offset != dense->gemm_offset;
    const trf_sums sums = {(const float *)(base + dense->sums_offset), layer->view.rows, product->m, layer->view.rows};
    const trf_epilogue epilogue = trf_epilogue_of(product, operands);
    const trf_gemm_operands gemm = {
        .w = weights,
        .x = operands->x,
        .y = has_sums ? base + dense->sums_offset : operands->y,
        .y_stride = has_sums ? layer->view.rows : product->y_stride,
        .workspace = base + dense->gemm_offset,
        .workspace_bytes = plan->device_workspace_bytes - dense->gemm_offset,
    };
    trf_nvtx_push("GEMM");
    trf_status status = trf_gemm_multiply(layer->context->gemm, &dense->shape, &gemm, stream, err);
    trf_nvtx_pop();
    if (status == TRF_OK && has_sums)
        status = trf_check_cuda(trf_launch_round_sums(&sums, &epilogue, stream), "rounding y", err);
    return status;
}
