/* The workspace: dense weights [rows][cols] of x's type | F32 sums [m][rows], if there is an epilogue or y's type is
 * not one that cuBLASLt writes for x's | cuBLASLt's own. Each part begins at a multiple of 256 bytes. */
#include "trf_two_step.h"

#include "trf_cuda_call.h"
#include "trf_decode_cuda.h"
#include "trf_device_layer.h"
#include "trf_nvtx.h"

typedef struct trf_two_step_workspace {
    trf_gemm_shape shape;
    uint64_t sums, gemm; /* offsets; the weights are at 0; sums = gemm if there are none */
} trf_two_step_workspace;

/* Sizes were bounded when the plan was made. */
static trf_two_step_workspace workspace_of(const trf_device_layer *layer, const trf_linear_plan *plan,
                                           int has_epilogue) {
    const uint64_t rows = layer->view.rows, cols = layer->view.cols;
    const int rounds = has_epilogue || (plan->y_dtype != plan->x_dtype && plan->y_dtype != TRF_DTYPE_F32);
    trf_two_step_workspace offsets;
    offsets.shape = (trf_gemm_shape){plan->m, layer->view.rows, layer->view.cols, plan->x_dtype,
                                     rounds ? TRF_DTYPE_F32 : plan->y_dtype};
    offsets.sums = trf_device_align(2 * rows * cols);
    offsets.gemm = offsets.sums + (rounds ? trf_device_align(4 * plan->m * rows) : 0);
    return offsets;
}

static trf_status needed_bytes(const trf_device_layer *layer, const trf_linear_plan *plan, int has_epilogue,
                               uint64_t *bytes, trf_error *err) {
    const trf_two_step_workspace offsets = workspace_of(layer, plan, has_epilogue);
    trf_status status = trf_gemm_workspace(layer->context->gemm, &offsets.shape, bytes, err);
    *bytes += offsets.gemm;
    return status;
}

trf_status trf_two_step_plan(const trf_device_layer *layer, trf_linear_plan *plan, trf_error *err) {
    const uint64_t limit = 1ull << 48;
    if (plan->m > INT32_MAX || (uint64_t)plan->m * layer->view.rows > limit ||
        (uint64_t)layer->view.rows * layer->view.cols > limit)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "a product of %ux%u weights and %u rows of x is too large", layer->view.rows, layer->view.cols,
                        plan->m);
    uint64_t without_epilogue, with_epilogue;
    trf_status status = needed_bytes(layer, plan, 0, &without_epilogue, err);
    if (status == TRF_OK)
        status = needed_bytes(layer, plan, 1, &with_epilogue, err);
    if (status == TRF_OK) {
        plan->workspace_bytes = without_epilogue;
        plan->epilogue_workspace_bytes = with_epilogue > without_epilogue ? with_epilogue : without_epilogue;
    }
    return status;
}

trf_status trf_two_step_decode(const trf_device_layer *layer, const trf_linear_plan *plan, void *workspace,
                               trf_stream stream, trf_error *err) {
    const trf_decode_as as = plan->x_dtype == TRF_DTYPE_BF16 ? TRF_DECODE_BF16 : TRF_DECODE_F16;
    return trf_cuda_decode(layer, as, workspace, stream, err); /* weights are at 0 */
}

trf_status trf_two_step_multiply(const trf_device_layer *layer, const trf_linear_plan *plan, const void *x, void *y,
                                 const trf_epilogue *epilogue, void *workspace, trf_stream stream, trf_error *err) {
    const trf_two_step_workspace offsets = workspace_of(layer, plan, epilogue != NULL);
    uint8_t *const base = workspace;
    void *const weights = base;
    const trf_sums sums = {(const float *)(base + offsets.sums), layer->view.rows, plan->m, layer->view.rows};
    const int rounds = offsets.sums != offsets.gemm;
    trf_status status =
        plan->choice[TRF_TWO_STEP_DECODED] ? TRF_OK : trf_two_step_decode(layer, plan, workspace, stream, err);
    trf_nvtx_push("GEMM");
    if (status == TRF_OK)
        status = trf_gemm_multiply(layer->context->gemm, &offsets.shape, weights, x, rounds ? base + offsets.sums : y,
                                   base + offsets.gemm, plan->workspace_bytes - offsets.gemm, stream, err);
    trf_nvtx_pop();
    if (status == TRF_OK && rounds)
        status = trf_check_cuda(trf_launch_round_sums(&sums, plan->y_dtype, y, epilogue, stream), "rounding y", err);
    return status;
}
