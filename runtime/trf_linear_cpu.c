/* Products on the CPU.
 * The workspace: x as F32 | y as F32, if that is not its type or an epilogue follows | what the workers need. Each part
 * begins at a multiple of 256 bytes. */
#include "trf_convert.h"
#include "trf_device_cpu.h"
#include "trf_layer_source.h"
#include "trf_matmul.h"

#include <time.h>

enum {
    PLAN_WORKERS = 0 /* word of a plan's choice */
};

typedef struct trf_cpu_workspace {
    uint64_t y, scratch, bytes; /* x is at 0; y = scratch if there is none */
} trf_cpu_workspace;

static trf_cpu_workspace workspace_of(const trf_device_layer *layer, const trf_linear_plan *plan, int has_epilogue) {
    const int wide = plan->y_dtype != TRF_DTYPE_F32 || has_epilogue;
    trf_cpu_workspace offsets;
    offsets.y = trf_device_align(4ull * plan->m * layer->view.cols);
    offsets.scratch = offsets.y + (wide ? trf_device_align(4ull * plan->m * layer->view.rows) : 0);
    offsets.bytes = offsets.scratch + trf_matmul_scratch_bytes((int)plan->choice[PLAN_WORKERS]);
    return offsets;
}

trf_status trf_cpu_plan(const trf_device_layer *layer, trf_path path, trf_linear_plan *plan, trf_error *err) {
    if (path == TRF_PATH_TWO_STEP || path == TRF_PATH_WIDE)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "the CPU has no %s path", trf_path_name(path));
    plan->path = TRF_PATH_FUSED;
    plan->choice[PLAN_WORKERS] = (uint32_t)trf_matmul_workers(layer->host, layer->context->threads);
    plan->workspace_bytes = workspace_of(layer, plan, 0).bytes;
    plan->epilogue_workspace_bytes = workspace_of(layer, plan, 1).bytes;
    return TRF_OK;
}

static void widen(const uint16_t *from, trf_dtype dtype, uint64_t count, float *to) {
    if (dtype == TRF_DTYPE_BF16)
        for (uint64_t i = 0; i < count; i++)
            to[i] = trf_bf16_to_f32(from[i]);
    else
        for (uint64_t i = 0; i < count; i++)
            to[i] = trf_f16_to_f32(from[i]);
}

static void narrow_words(const float *from, trf_dtype dtype, uint64_t count, uint16_t *to) {
    if (dtype == TRF_DTYPE_BF16)
        for (uint64_t i = 0; i < count; i++)
            to[i] = (uint16_t)trf_f32_to_bf16(from[i]);
    else
        for (uint64_t i = 0; i < count; i++)
            to[i] = (uint16_t)trf_f32_to_f16(from[i]);
}

trf_status trf_cpu_apply_epilogue(const trf_context *context, const trf_sums *sums, trf_dtype y_dtype, void *y,
                                  const trf_epilogue *epilogue, trf_stream stream, trf_error *err) {
    (void)context, (void)stream, (void)err;
    for (uint32_t n = 0; n < sums->m; n++)
        for (uint32_t row = 0; row < sums->rows; row++) {
            const uint64_t at = (uint64_t)n * sums->rows + row;
            const trf_operands operands = trf_operands_of(epilogue, y_dtype, at, row);
            trf_store_rounded(
                y, y_dtype, at,
                trf_apply_epilogue(epilogue->activation, &operands, y_dtype, sums->at[n * sums->stride + row]));
        }
    return TRF_OK;
}

trf_status trf_cpu_linear(const trf_device_layer *layer, const trf_linear_plan *plan, const void *x, void *y,
                          const trf_epilogue *epilogue, void *workspace, trf_stream stream, trf_error *err) {
    const trf_cpu_workspace offsets = workspace_of(layer, plan, epilogue != NULL);
    const uint64_t y_count = (uint64_t)plan->m * layer->view.rows;
    uint8_t *const base = workspace;
    float *const wide_x = (float *)base, *const wide_y = offsets.y == offsets.scratch ? y : (float *)(base + offsets.y);
    const trf_sums sums = {wide_y, layer->view.rows, plan->m, layer->view.rows};
    trf_error failure = {0};
    widen(x, plan->x_dtype, (uint64_t)plan->m * layer->view.cols, wide_x);
    trf_status status = trf_multiply_layer(layer->host, wide_x, plan->m, wide_y, (int)plan->choice[PLAN_WORKERS],
                                           base + offsets.scratch, &failure);
    for (uint64_t i = 0; status != TRF_OK && i < y_count; i++)
        wide_y[i] = trf_f32_from_bits(0x7FC00000u);
    if (epilogue)
        trf_cpu_apply_epilogue(layer->context, &sums, plan->y_dtype, y, epilogue, stream, NULL);
    else if (wide_y != y)
        narrow_words(wide_y, plan->y_dtype, y_count, y);
    return trf_cpu_note_fault(layer, status, &failure, err);
}

trf_status trf_cpu_time(const trf_timed_product *p, uint32_t repeats, double *microseconds, trf_error *err) {
    for (uint32_t repeat = 0; repeat < repeats; repeat++) {
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        trf_status status = trf_linear(p->layer, p->plan, p->x, p->y, p->workspace, NULL, err);
        clock_gettime(CLOCK_MONOTONIC, &end);
        if (status != TRF_OK)
            return status;
        microseconds[repeat] = 1e6 * (double)(end.tv_sec - begin.tv_sec) + 1e-3 * (double)(end.tv_nsec - begin.tv_nsec);
    }
    return TRF_OK;
}
