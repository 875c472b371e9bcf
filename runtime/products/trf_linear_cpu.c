/* SPDX-License-Identifier: Apache-2.0 */
/* Products on the CPU.
 * The workspace: x as F32, with zeros up to whole packed tiles for packed layers | y as F32, if the caller's y has
 * another type | what the workers need. Each part begins at a multiple of 256 bytes. */
#include "trf_device_cpu.h"
#include "trf_epilogue.h"
#include "trf_layer.h"
#include "trf_layout_plans.h"
#include "trf_matmul.h"
#include "trf_number_formats.h"
#include "trf_packed_layer.h"
#include "trf_plain_layer.h"
#include "trf_plan.h"
#include "trf_unpack.h"

#include <string.h>
#include <time.h>

typedef struct trf_cpu_workspace {
    uint64_t y_offset, scratch_offset, bytes; /* x is at 0; the offsets are the same if there is no y */
} trf_cpu_workspace;

/* @return the view of a packed layer, BF16 or FP8; NULL for other layouts. */
static const trf_packed_view *packed_view_of(const trf_device_layer *layer) {
    switch (layer->layout->layout) {
    case TRF_LAYOUT_PACKED:
        return &layer->packed;
    case TRF_LAYOUT_PACKED8:
        return &layer->packed8.packed;
    default:
        return NULL;
    }
}

/* @return how many F32 values lie from one row of x to the next. */
static uint32_t x_stride_of(const trf_device_layer *layer) {
    const trf_packed_view *packed = packed_view_of(layer);
    return packed ? trf_packed_padded_cols(packed) : layer->view.cols;
}

static uint64_t scratch_bytes_of(const trf_plan *plan) {
    const trf_packed_view *packed = packed_view_of(plan->layer);
    return packed ? trf_packed_scratch_bytes(packed, plan->partition.cpu_workers)
                  : trf_matmul_scratch_bytes(plan->partition.cpu_workers);
}

static trf_cpu_workspace workspace_of(const trf_plan *plan) {
    const trf_product *product = &plan->tiles_product;
    const trf_device_view *view = &plan->layer->view;
    const int has_sums =
        product->y_dtype != TRF_DTYPE_F32 || trf_has_epilogue(product) || product->y_stride != view->rows;
    trf_cpu_workspace offsets;
    offsets.y_offset = trf_device_align(4ull * product->m * x_stride_of(plan->layer));
    offsets.scratch_offset = offsets.y_offset + (has_sums ? trf_device_align(4ull * product->m * view->rows) : 0);
    offsets.bytes = offsets.scratch_offset + scratch_bytes_of(plan);
    return offsets;
}

static void prepare_workers(trf_plan *plan) {
    plan->partition.cpu_workers = trf_matmul_workers(plan->layer->view.rows, plan->layer->context->threads);
    plan->device_workspace_bytes = workspace_of(plan).bytes;
}

trf_status trf_cpu_create_plan(trf_plan *plan, trf_path path, trf_error *err) {
    if (path != TRF_PATH_AUTO && path != TRF_PATH_FUSED)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "a coded layer has no %s path on the CPU",
                        trf_path_name(path));
    plan->path = TRF_PATH_FUSED;
    plan->reason = NULL;
    prepare_workers(plan);
    return TRF_OK;
}

trf_status trf_cpu_create_plain_plan(trf_plan *plan, trf_path path, trf_error *err) {
    trf_status status = trf_plain_take_path(plan, path, err);
    if (status == TRF_OK)
        prepare_workers(plan);
    return status;
}

trf_status trf_cpu_create_packed_plan(trf_plan *plan, trf_path path, trf_error *err) {
    trf_status status = trf_packed_take_path(plan, path, err);
    if (status != TRF_OK)
        return status;
    plan->partition.cpu_workers = trf_packed_workers(packed_view_of(plan->layer), plan->layer->context->threads);
    plan->device_workspace_bytes = workspace_of(plan).bytes;
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

/* Writes x in the form that the products take. */
static void widen_x(const trf_plan *plan, const uint16_t *x, float *to) {
    const size_t cols = plan->layer->view.cols, stride = x_stride_of(plan->layer);
    for (size_t n = 0; n < plan->tiles_product.m; n++, x += cols, to += stride) {
        widen(x, plan->tiles_product.x_dtype, cols, to);
        memset(to + cols, 0, (stride - cols) * sizeof *to);
    }
}

static void narrow_words(const float *from, trf_dtype dtype, uint64_t count, uint16_t *to) {
    if (dtype == TRF_DTYPE_BF16)
        for (uint64_t i = 0; i < count; i++)
            to[i] = (uint16_t)trf_f32_to_bf16(from[i]);
    else
        for (uint64_t i = 0; i < count; i++)
            to[i] = (uint16_t)trf_f32_to_f16(from[i]);
}

/* Rounds the sums to y. */
static void store_sums(const trf_sums *sums, const trf_product *product, void *y) {
    for (uint32_t n = 0; n < sums->m; n++) {
        const float *from = sums->at + n * sums->stride;
        const uint64_t at = n * product->y_stride;
        if (product->y_dtype == TRF_DTYPE_F32)
            memcpy((float *)y + at, from, sums->rows * sizeof *from);
        else
            narrow_words(from, product->y_dtype, sums->rows, (uint16_t *)y + at);
    }
}

trf_status trf_cpu_round_sums(const trf_context *context, const trf_sums *sums, const trf_epilogue *epilogue,
                              trf_stream stream, trf_error *err) {
    (void)context, (void)stream, (void)err;
    for (uint32_t n = 0; n < sums->m; n++)
        for (uint32_t row = 0; row < sums->rows; row++) {
            const trf_epilogue_inputs inputs = trf_epilogue_inputs_of(epilogue, n, row);
            const float value =
                trf_apply_epilogue(epilogue->activation, &inputs, epilogue->y_dtype, sums->at[n * sums->stride + row]);
            trf_write_rounded(epilogue->y, epilogue->y_dtype, n * epilogue->y_stride + row, value);
        }
    return TRF_OK;
}

/* Computes a layout's product: all of y, in F32. scratch: the workers'. */
typedef trf_status trf_cpu_multiply_fn(const trf_plan *plan, const float *x, float *y, void *scratch, trf_error *err);

static trf_status multiply_coded(const trf_plan *plan, const float *x, float *y, void *scratch, trf_error *err) {
    return trf_multiply_layer(plan->layer->host, x, plan->tiles_product.m, y, plan->partition.cpu_workers, scratch,
                              err);
}

static trf_status multiply_plain(const trf_plan *plan, const float *x, float *y, void *scratch, trf_error *err) {
    const trf_dense_weights dense = {trf_plain_weights(plan->layer), trf_plain_dtype(plan->layer->info.codec),
                                     plan->layer->view.rows, plan->layer->view.cols};
    return trf_multiply_dense(&dense, x, plan->tiles_product.m, y, plan->partition.cpu_workers, scratch, err);
}

static trf_status multiply_packed(const trf_plan *plan, const float *x, float *y, void *scratch, trf_error *err) {
    if (plan->layer->layout->layout == TRF_LAYOUT_PACKED8)
        return trf_multiply_packed8_padded(&plan->layer->packed8, x, plan->tiles_product.m, y,
                                           plan->partition.cpu_workers, scratch, err);
    return trf_multiply_packed_padded(&plan->layer->packed, x, plan->tiles_product.m, y, plan->partition.cpu_workers,
                                      scratch, err);
}

static trf_status compute_product(const trf_plan *plan, const trf_operands *operands, void *workspace,
                                  trf_cpu_multiply_fn *multiply, trf_error *err) {
    const trf_device_layer *layer = plan->layer;
    const trf_product *product = &plan->tiles_product;
    const trf_cpu_workspace offsets = workspace_of(plan);
    uint8_t *const base = workspace;
    float *const wide_x = (float *)base;
    float *const wide_y = offsets.y_offset == offsets.scratch_offset ? operands->y : (float *)(base + offsets.y_offset);
    const trf_sums sums = {wide_y, layer->view.rows, product->m, layer->view.rows};
    const trf_epilogue epilogue = trf_epilogue_of(product, operands);
    widen_x(plan, operands->x, wide_x);
    trf_status status = multiply(plan, wide_x, wide_y, base + offsets.scratch_offset, err);
    for (uint64_t i = 0; status != TRF_OK && i < (uint64_t)product->m * layer->view.rows; i++)
        wide_y[i] = trf_f32_from_bits(0x7FC00000u);
    if (trf_has_epilogue(product))
        trf_cpu_round_sums(layer->context, &sums, &epilogue, NULL, NULL);
    else if (wide_y != operands->y)
        store_sums(&sums, product, operands->y);
    return status;
}

trf_status trf_cpu_linear(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                          trf_error *err) {
    trf_error failure = {0};
    (void)stream;
    trf_status status = compute_product(plan, operands, workspace, multiply_coded, &failure);
    return trf_cpu_note_fault(plan->layer, status, &failure, err);
}

trf_status trf_cpu_linear_plain(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                                trf_error *err) {
    (void)stream;
    return compute_product(plan, operands, workspace, multiply_plain, err);
}

trf_status trf_cpu_linear_packed(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                                 trf_error *err) {
    (void)stream;
    return compute_product(plan, operands, workspace, multiply_packed, err);
}

trf_status trf_cpu_time(const trf_timed_product *product, uint32_t repeats, double *microseconds, trf_error *err) {
    for (uint32_t repeat = 0; repeat < repeats; repeat++) {
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        trf_status status = product->multiply(product->plan, product->operands, product->workspace, NULL, err);
        clock_gettime(CLOCK_MONOTONIC, &end);
        if (status != TRF_OK)
            return status;
        microseconds[repeat] = 1e6 * (double)(end.tv_sec - begin.tv_sec) + 1e-3 * (double)(end.tv_nsec - begin.tv_nsec);
    }
    return TRF_OK;
}
