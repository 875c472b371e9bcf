/* SPDX-License-Identifier: Apache-2.0 */
/* Plans and products: the public functions. They check arguments; the operations of the layer's layout do
 * the rest. */
#include "trf_plan.h"

#include "trf_context.h"
#include "trf_struct.h"
#include "trf_tuning.h"

#include <stdatomic.h>
#include <stdlib.h>

/* ---- plans ---- */

void trf_plan_options_init(trf_plan_options *options) {
    *options = (trf_plan_options){.struct_bytes = sizeof *options, .m = 1};
}

trf_status trf_check_types(const trf_layer_info *info, uint32_t m, trf_dtype x_dtype, trf_dtype y_dtype,
                           trf_error *err) {
    if (m < 1)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a product needs one row of x at least");
    if ((x_dtype != TRF_DTYPE_BF16 && x_dtype != TRF_DTYPE_F16) ||
        (trf_element_codec(info->codec, info->dtype) == TRF_CODEC_BF16 && x_dtype != TRF_DTYPE_BF16) ||
        (info->codec == TRF_CODEC_FP16 && x_dtype != TRF_DTYPE_F16))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "weights of codec %s do not multiply x of %s",
                        trf_codec_name(info->codec), trf_dtype_name(x_dtype));
    if (y_dtype != TRF_DTYPE_BF16 && y_dtype != TRF_DTYPE_F16 && y_dtype != TRF_DTYPE_F32)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "y cannot be %s", trf_dtype_name(y_dtype));
    return TRF_OK;
}

/* *stride is the caller's value before the call, and the number of elements from row to row after it. */
static trf_status take_stride(const char *of, uint32_t m, uint32_t rows, uint64_t *stride, trf_error *err) {
    const uint64_t addressable = (UINT64_MAX >> 4) / m;                        /* so that no address overflows */
    const uint64_t most = addressable < UINT32_MAX ? addressable : UINT32_MAX; /* the most that kernels take */
    if (*stride == 0)
        *stride = rows;
    if (*stride < rows || *stride > most)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%s has rows of %u elements, which cannot be %llu apart",
                        of, rows, (unsigned long long)*stride);
    return TRF_OK;
}

/* Fills *product from the options. */
static trf_status take_product(const trf_layer_info *info, const trf_plan_options *options, trf_product *product,
                               trf_error *err) {
    trf_status status = trf_check_types(info, options->m, options->x_dtype, options->y_dtype, err);
    if (status != TRF_OK)
        return status;
    if (options->activation < TRF_ACTIVATION_NONE || options->activation > TRF_ACTIVATION_GELU_TANH)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "there is no activation %d", (int)options->activation);
    *product = (trf_product){
        .m = options->m,
        .x_dtype = options->x_dtype,
        .y_dtype = options->y_dtype,
        .activation = options->activation,
        .has_bias = options->has_bias != 0,
        .has_multiplier = options->has_multiplier != 0,
        .has_residual = options->has_residual != 0,
        .y_stride = options->y_stride,
        .multiplier_stride = options->has_multiplier ? options->multiplier_stride : 0,
        .residual_stride = options->has_residual ? options->residual_stride : 0,
    };
    status = take_stride("y", options->m, info->rows, &product->y_stride, err);
    if (status == TRF_OK)
        status = take_stride("the multiplier", options->m, info->rows, &product->multiplier_stride, err);
    if (status == TRF_OK)
        status = take_stride("the residual", options->m, info->rows, &product->residual_stride, err);
    return status;
}

/* Sets tiles_product, and where in the workspace its x and y are. */
static void set_tiles_product(trf_plan *plan) {
    const trf_device_layer *layer = plan->layer;
    trf_product *const tiles = &plan->tiles_product;
    *tiles = plan->product;
    if (trf_shard_cuts_cols(layer))
        plan->tiles_y_offset =
            trf_device_align((uint64_t)tiles->m * layer->view.cols * trf_dtype_bytes(tiles->x_dtype));
    plan->device_workspace_offset = plan->tiles_y_offset;
    if (!trf_shard_cuts_rows(layer))
        return;
    if (trf_has_epilogue(&plan->product))
        tiles->y_dtype = TRF_DTYPE_F32;
    tiles->activation = TRF_ACTIVATION_NONE;
    tiles->has_bias = tiles->has_multiplier = tiles->has_residual = 0;
    tiles->y_stride = tiles->multiplier_stride = tiles->residual_stride = layer->view.rows;
    plan->device_workspace_offset +=
        trf_device_align((uint64_t)tiles->m * layer->view.rows * trf_dtype_bytes(tiles->y_dtype));
}

static trf_status choose_path(trf_plan *plan, trf_path path, trf_error *err) {
    const trf_layout_ops *layout = plan->layer->layout;
    /* Tunings and tables were measured without an epilogue. Packed kernels apply it to the sums that they hold, while
     * the two-step path writes and reads all sums once more. By bytes and FLOPs that takes 8 % of the time at 8,192
     * columns, which is more than that path gains. */
    const int is_packed = layout->layout == TRF_LAYOUT_PACKED || layout->layout == TRF_LAYOUT_PACKED8;
    const int measured = !is_packed || !trf_dense_product_has_sums(&plan->product);
    const char *reason = NULL;
    const trf_path found = path == TRF_PATH_AUTO && layout->has_several_paths && measured
                               ? trf_path_for_batch(plan->layer, plan->product.m, &reason)
                               : TRF_PATH_AUTO;
    trf_plan made = *plan;
    /* The path that was found may be refused, since the layer that was measured is only like this one, and not the
     * same. */
    if (found == TRF_PATH_AUTO || layout->create_plan(&made, found, NULL) != TRF_OK)
        return layout->create_plan(plan, path, err);
    *plan = made;
    if (plan->path != TRF_PATH_FUSED && plan->path != TRF_PATH_PACKED)
        plan->reason = reason;
    return TRF_OK;
}

trf_status trf_plan_create(trf_device_layer *layer, const trf_plan_options *options, trf_plan **plan, trf_error *err) {
    static const trf_struct_type type = {"trf_plan_options", sizeof *options,
                                         TRF_STRUCT_BYTES(trf_plan_options, residual_stride)};
    trf_plan_options taken;
    if (!layer || !options || !plan)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a plan needs a layer and options");
    trf_plan_options_init(&taken);
    trf_status status = trf_take_struct(&type, &taken, options, err);
    if (status != TRF_OK)
        return status;
    if (taken.path < TRF_PATH_AUTO || taken.path > TRF_PATH_PACKED)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "there is no path %d", (int)taken.path);
    trf_plan *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a plan");
    made->layer = layer;
    status = take_product(&layer->info, &taken, &made->product, err);
    if (status == TRF_OK) {
        set_tiles_product(made);
        status = choose_path(made, taken.path, err);
    }
    if (status != TRF_OK) {
        free(made);
        return status;
    }
    made->workspace_bytes = made->device_workspace_offset + made->device_workspace_bytes;
    atomic_fetch_add(&layer->num_plans, 1);
    *plan = made;
    return TRF_OK;
}

void trf_plan_destroy(trf_plan *plan) {
    if (!plan)
        return;
    atomic_fetch_sub(&plan->layer->num_plans, 1);
    free(plan);
}

void trf_plan_get_info(const trf_plan *plan, trf_plan_info *info) {
    *info = (trf_plan_info){
        .m = plan->product.m,
        .x_dtype = plan->product.x_dtype,
        .y_dtype = plan->product.y_dtype,
        .path = plan->path,
        .path_name = trf_path_name(plan->path),
        .reason = plan->reason,
        .workspace_bytes = plan->workspace_bytes,
    };
}

void trf_plan_get_kernel(const trf_plan *plan, const char **kernel, const char **cut) {
    *kernel = plan->kernel;
    *cut = plan->cut;
}

/* ---- operands ---- */

void trf_operands_init(trf_operands *operands) { *operands = (trf_operands){.struct_bytes = sizeof *operands}; }

/* Whether an operand shares bytes with y. Rows that have y's stride may lie between y's rows, and so may a single row:
 * they are the operand of a layer that writes beside y, into the same wider rows. */
static int overlaps(const trf_operand_rows *operand, const trf_operand_rows *y) {
    const uintptr_t at = (uintptr_t)operand->at, y_at = (uintptr_t)y->at;
    const uint64_t bytes = (operand->count - 1) * operand->stride + operand->row_bytes,
                   y_bytes = (y->count - 1) * y->stride + y->row_bytes;
    if (at >= y_at + y_bytes || y_at >= at + bytes)
        return 0;
    if (operand->count > 1 && operand->stride != y->stride)
        return 1;
    const uint64_t from_row = at >= y_at ? (at - y_at) % y->stride : y->stride - 1 - (y_at - at - 1) % y->stride;
    return from_row < y->row_bytes || operand->row_bytes > y->stride - from_row;
}

int trf_operands_overlap(const trf_operand_rows *a, const trf_operand_rows *b) {
    if (a->count > b->count) {
        const trf_operand_rows *fewer = b;
        b = a;
        a = fewer;
    }
    if (a->count == 1 || a->stride == b->stride)
        return overlaps(a, b);
    const uint64_t bytes = (a->count - 1) * a->stride + a->row_bytes;
    const trf_operand_rows all = {a->at, 1, bytes, bytes};
    int found = 0;
    for (uint64_t row = 0; row < a->count && !found && overlaps(&all, b); row++) {
        const trf_operand_rows one = {(const uint8_t *)a->at + row * a->stride, 1, a->row_bytes, a->row_bytes};
        found = overlaps(&one, b);
    }
    return found;
}

trf_operand_rows trf_x_rows_of(const trf_plan *plan, const void *x) {
    const uint64_t bytes = (uint64_t)trf_dtype_bytes(plan->product.x_dtype) * plan->product.m * plan->layer->info.cols;
    return (trf_operand_rows){x, 1, bytes, bytes};
}

trf_operand_rows trf_y_rows_of(const trf_plan *plan, const void *y) {
    const uint64_t y_bytes = trf_dtype_bytes(plan->product.y_dtype);
    return (trf_operand_rows){y, plan->product.m, y_bytes * plan->layer->info.rows, y_bytes * plan->product.y_stride};
}

/* Checks an epilogue's operand. is_there: whether the plan has it. may_be_y: whether it may be the whole of y. */
static trf_status check_operand(const char *name, int is_there, const trf_operand_rows *operand,
                                const trf_operand_rows *y, int may_be_y, trf_error *err) {
    if (!is_there != !operand->at)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the plan has %s %s, the call has %s",
                        is_there ? "a" : "no", name, is_there ? "none" : "one");
    if (!is_there || (may_be_y && operand->at == y->at && operand->stride == y->stride))
        return TRF_OK;
    if (overlaps(operand, y))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the %s overlaps y%s", name,
                        may_be_y ? " and is not y, with its stride" : "");
    return TRF_OK;
}

static trf_status check_epilogue(const trf_plan *plan, const trf_operands *operands, const trf_operand_rows *y,
                                 trf_error *err) {
    const trf_product *product = &plan->product;
    const uint64_t element_bytes = trf_dtype_bytes(product->y_dtype);
    const trf_operand_rows bias = {operands->bias, 1, y->row_bytes, y->row_bytes},
                           multiplier = {operands->multiplier, y->count, y->row_bytes,
                                         element_bytes * product->multiplier_stride},
                           residual = {operands->residual, y->count, y->row_bytes,
                                       element_bytes * product->residual_stride};
    if (((uintptr_t)operands->bias | (uintptr_t)operands->multiplier | (uintptr_t)operands->residual) % element_bytes)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "bias, multiplier and residual must be aligned to their elements");
    trf_status status = check_operand("bias", product->has_bias, &bias, y, 0, err);
    if (status == TRF_OK)
        status = check_operand("multiplier", product->has_multiplier, &multiplier, y, 1, err);
    if (status == TRF_OK)
        status = check_operand("residual", product->has_residual, &residual, y, 1, err);
    return status;
}

trf_status trf_check_workspace(const char *whose, const void *workspace, uint64_t workspace_bytes, trf_error *err) {
    if (workspace_bytes && (!workspace || (uintptr_t)workspace % TRF_DEVICE_ALIGNMENT))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%s needs a %d-byte aligned workspace of %llu bytes",
                        whose, TRF_DEVICE_ALIGNMENT, (unsigned long long)workspace_bytes);
    return TRF_OK;
}

static trf_status check_call(const trf_plan *plan, const trf_operands *operands, const void *workspace,
                             trf_error *err) {
    const trf_product *product = &plan->product;
    const uint64_t x_bytes = trf_dtype_bytes(product->x_dtype), y_bytes = trf_dtype_bytes(product->y_dtype);
    if (!operands->x || !operands->y)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a product needs x and y");
    if ((uintptr_t)operands->x % x_bytes || (uintptr_t)operands->y % y_bytes)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "x and y must be aligned to their elements");
    const trf_operand_rows x = trf_x_rows_of(plan, operands->x), y = trf_y_rows_of(plan, operands->y);
    if (overlaps(&x, &y))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "x overlaps y");
    trf_status status = check_epilogue(plan, operands, &y, err);
    return status == TRF_OK ? trf_check_workspace("the plan", workspace, plan->workspace_bytes, err) : status;
}

/* ---- products ---- */

/* Writes x for whole tiles: zeros except in the shard's columns. */
static trf_status spread_x(const trf_plan *plan, const void *x, void *tiles_x, trf_stream stream, trf_error *err) {
    const trf_device_layer *layer = plan->layer;
    const trf_device_ops *ops = layer->context->ops;
    const uint64_t element_bytes = trf_dtype_bytes(plan->product.x_dtype), width = element_bytes * layer->shard.cols,
                   pitch = element_bytes * layer->view.cols;
    trf_row_copy copy = {tiles_x, pitch, NULL, 0, pitch, plan->product.m};
    trf_status status = ops->copy_rows(layer->context, &copy, stream, err);
    if (status != TRF_OK)
        return status;
    copy =
        (trf_row_copy){(uint8_t *)tiles_x + element_bytes * layer->shard.col, pitch, x, width, width, plan->product.m};
    return ops->copy_rows(layer->context, &copy, stream, err);
}

/* Copies the shard's rows of y out of those of its whole tiles, and applies the epilogue. */
static trf_status take_rows(const trf_plan *plan, const trf_operands *operands, const void *tiles_y, trf_stream stream,
                            trf_error *err) {
    const trf_device_layer *layer = plan->layer;
    const trf_device_ops *ops = layer->context->ops;
    if (trf_has_epilogue(&plan->product)) {
        const trf_sums sums = {(const float *)tiles_y + layer->shard.row, layer->view.rows, plan->product.m,
                               layer->shard.rows};
        const trf_epilogue epilogue = trf_epilogue_of(&plan->product, operands);
        return ops->round_sums(layer->context, &sums, &epilogue, stream, err);
    }
    const uint64_t element_bytes = trf_dtype_bytes(plan->product.y_dtype);
    const trf_row_copy copy = {operands->y,
                               element_bytes * plan->product.y_stride,
                               (const uint8_t *)tiles_y + element_bytes * layer->shard.row,
                               element_bytes * layer->view.rows,
                               element_bytes * layer->shard.rows,
                               plan->product.m};
    return ops->copy_rows(layer->context, &copy, stream, err);
}

/* Multiplies by a shard that cuts tiles. */
static trf_status multiply_shard(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                                 trf_error *err) {
    const trf_device_layer *layer = plan->layer;
    uint8_t *const base = workspace, *const tiles_y = base + plan->tiles_y_offset;
    const int cuts_rows = trf_shard_cuts_rows(layer);
    trf_operands tiles = *operands;
    trf_status status = TRF_OK;
    if (trf_shard_cuts_cols(layer)) {
        status = spread_x(plan, operands->x, base, stream, err);
        tiles.x = base;
    }
    if (cuts_rows)
        tiles = (trf_operands){.struct_bytes = sizeof tiles, .x = tiles.x, .y = tiles_y};
    if (status == TRF_OK)
        status = layer->layout->linear(plan, &tiles, base + plan->device_workspace_offset, stream, err);
    if ((status == TRF_OK || status == TRF_ERR_RANS) && cuts_rows) { /* with TRF_ERR_RANS y is NaN */
        trf_status taken = take_rows(plan, operands, tiles_y, stream, status == TRF_OK ? err : NULL);
        status = status == TRF_OK ? taken : status;
    }
    return status;
}

trf_status trf_linear(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                      trf_error *err) {
    static const trf_struct_type type = {"trf_operands", sizeof *operands, TRF_STRUCT_BYTES(trf_operands, residual)};
    trf_operands taken;
    trf_status status = TRF_OK;
    if (!plan || !operands)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a product needs a plan and operands");
    if (operands->struct_bytes != sizeof taken) { /* from a program of another version */
        trf_operands_init(&taken);
        status = trf_take_struct(&type, &taken, operands, err);
        operands = &taken;
    }
    if (status == TRF_OK)
        status = check_call(plan, operands, workspace, err);
    if (status != TRF_OK)
        return status;
    if (trf_shard_cuts_rows(plan->layer) || trf_shard_cuts_cols(plan->layer))
        return multiply_shard(plan, operands, workspace, stream, err);
    return plan->layer->layout->linear(plan, operands, workspace, stream, err);
}
