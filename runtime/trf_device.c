/* Contexts, layers on devices and products: the public functions. They check arguments; the device's operations do the
 * rest. */
#include "trf_device.h"
#include "trf_decode_rows.h"
#include "trf_file_source.h"
#include "trf_tuning.h"
#include "trf_two_step.h"

#include <stdatomic.h>
#include <stdlib.h>

/* ---- contexts ---- */

trf_status trf_context_create(int device, trf_context **context, trf_error *err) {
    if (device == TRF_DEVICE_CPU)
        return trf_cpu_context_create(context, err);
    if (device != TRF_DEVICE_AUTO)
        return trf_cuda_context_create(device, context, err);
    trf_error failure;
    trf_status status = trf_cuda_context_create(0, context, &failure);
    if (status == TRF_ERR_DEVICE)
        return trf_cpu_context_create(context, err);
    if (status != TRF_OK && err)
        *err = failure; /* a GPU that is there and fails: the caller has to know */
    return status;
}

void trf_context_destroy(trf_context *context) {
    if (!context)
        return;
    context->ops->destroy(context);
    trf_tuning_free(context->tuning);
    free(context);
}

int trf_context_device(const trf_context *context) { return context->device; }

const char *trf_context_device_name(const trf_context *context) { return context->name; }

void trf_context_set_threads(trf_context *context, int threads) { context->threads = threads; }

/* ---- device memory ---- */

trf_status trf_device_allocate(const trf_context *context, uint64_t bytes, void **memory, trf_error *err) {
    *memory = NULL;
    return bytes ? context->ops->allocate(context, bytes, memory, err) : TRF_OK;
}

void trf_device_free(const trf_context *context, void *memory) {
    if (memory)
        context->ops->release(context, memory);
}

trf_status trf_device_upload(const trf_context *context, void *to, const void *from_host, uint64_t bytes,
                             trf_error *err) {
    return bytes ? context->ops->upload(context, to, from_host, bytes, err) : TRF_OK;
}

trf_status trf_device_download(const trf_context *context, void *to_host, const void *from, uint64_t bytes,
                               trf_error *err) {
    return bytes ? context->ops->download(context, to_host, from, bytes, err) : TRF_OK;
}

/* ---- layers ---- */

/* Whether a shard has tiles of which not all rows, or columns, are meant. */
static int shard_cuts_rows(const trf_device_layer *layer) { return layer->shard.rows != layer->view.rows; }
static int shard_cuts_cols(const trf_device_layer *layer) { return layer->shard.cols != layer->view.cols; }

trf_status trf_begin_device_layer(trf_context *context, const trf_layer_source *source, trf_device_layer **device_layer,
                                  trf_error *err) {
    static atomic_uint layers;
    trf_device_layer *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a layer");
    made->context = context;
    made->device = context->device;
    made->serial = atomic_fetch_add(&layers, 1) + 1; /* a plan of zeros is no layer's */
    trf_blob_describe(source->view, &made->info);
    made->shard = source->shard;
    made->info.rows = source->shard.rows;
    made->info.cols = source->shard.cols;
    *device_layer = made;
    return TRF_OK;
}

static trf_status make_device_layer(trf_context *context, const trf_layer_source *source,
                                    trf_device_layer **device_layer, trf_error *err) {
    trf_device_layer *made = NULL;
    trf_status status = trf_begin_device_layer(context, source, &made, err);
    if (status != TRF_OK)
        return status;
    status = context->ops->fill_layer(made, source, err);
    if (status != TRF_OK) {
        free(made);
        return status;
    }
    *device_layer = made;
    return TRF_OK;
}

trf_status trf_device_layer_create(trf_context *context, const trf_layer *layer, trf_device_layer **device_layer,
                                   trf_error *err) {
    if (!context || !layer)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a layer on a device needs a context and a layer");
    trf_layer *source_layer = (trf_layer *)layer;
    const trf_layer_source source = trf_source_of_layer(&source_layer, 0);
    return make_device_layer(context, &source, device_layer, err);
}

/* On the CPU: maps the file, or makes a shard in memory. */
static trf_status load_to_cpu(trf_context *context, const trf_checkpoint *checkpoint, const char *tensor,
                              const trf_load_options *options, trf_device_layer **device_layer, trf_error *err) {
    trf_layer *layer;
    trf_shard_range shard;
    trf_status status = trf_layer_open_tensor(checkpoint, tensor, options, &layer, &shard, err);
    if (status != TRF_OK)
        return status;
    trf_layer_source source = trf_source_of_layer(&layer, 1);
    source.shard = shard;
    status = make_device_layer(context, &source, device_layer, err);
    trf_layer_free(layer);
    return status == TRF_OK ? TRF_OK : trf_prefix_error(err, status, "tensor '%s'", tensor);
}

static trf_status load_to_gpu(trf_context *context, const trf_checkpoint *checkpoint, const char *tensor,
                              const trf_load_options *options, trf_device_layer **device_layer, trf_error *err) {
    trf_file_source source;
    trf_status status = trf_file_source_open(checkpoint, tensor, options, &source, err);
    if (status != TRF_OK)
        return status;
    status = make_device_layer(context, &source.source, device_layer, err);
    if (status != TRF_OK)
        trf_file_source_fail(&source, status, err);
    trf_file_source_close(&source);
    return status;
}

trf_status trf_device_layer_load(trf_context *context, trf_checkpoint *checkpoint, const char *tensor,
                                 const trf_load_options *options, trf_device_layer **device_layer, trf_error *err) {
    if (!context || !checkpoint || !tensor)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "loading a layer needs a context, a checkpoint and a name");
    if (context->device == TRF_DEVICE_CPU)
        return load_to_cpu(context, checkpoint, tensor, options, device_layer, err);
    return load_to_gpu(context, checkpoint, tensor, options, device_layer, err);
}

void trf_device_layer_destroy(trf_device_layer *device_layer) {
    if (!device_layer)
        return;
    device_layer->context->ops->destroy_layer(device_layer);
    free(device_layer);
}

void trf_device_layer_get_info(const trf_device_layer *device_layer, trf_layer_info *info) {
    *info = device_layer->info;
}

uint64_t trf_device_layer_bytes(const trf_device_layer *device_layer) { return device_layer->memory_bytes; }

trf_status trf_device_layer_check(const trf_device_layer *device_layer, trf_error *err) {
    return device_layer->context->ops->check_layer(device_layer, err);
}

/* ---- decoding ---- */

static trf_status check_decode_as(const trf_device_layer *layer, trf_decode_as as, trf_error *err) {
    if (!layer)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "no layer to decode");
    if (as < TRF_DECODE_SOURCE || as > TRF_DECODE_F16)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "weights cannot be decoded as %d", (int)as);
    return TRF_OK;
}

static uint64_t decoded_value_bytes(const trf_layer_info *info, trf_decode_as as) {
    return as == TRF_DECODE_SOURCE ? trf_dtype_bytes(info->dtype) : 2;
}

/* rows: that are decoded. alignment: of weights. */
static trf_status check_target(const trf_layer_info *info, trf_decode_as as, uint64_t rows, const void *weights,
                               uint64_t weights_bytes, uint64_t alignment, trf_error *err) {
    if (!weights || (uintptr_t)weights % alignment)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "decoded weights need %llu-byte aligned device memory",
                        (unsigned long long)alignment);
    if ((as == TRF_DECODE_BF16 && info->codec == TRF_CODEC_FP16) ||
        (as == TRF_DECODE_F16 && info->codec == TRF_CODEC_BF16))
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "weights of codec %s are not decoded as %s",
                        trf_codec_name(info->codec), as == TRF_DECODE_BF16 ? "BF16" : "F16");
    const uint64_t value_bytes = decoded_value_bytes(info, as);
    if (weights_bytes % value_bytes || weights_bytes / value_bytes != rows * info->cols)
        return trf_fail(err, TRF_ERR_SHAPE, TRF_NO_OFFSET, "a buffer of %llu bytes for %llux%u weights of %llu bytes",
                        (unsigned long long)weights_bytes, (unsigned long long)rows, info->cols,
                        (unsigned long long)value_bytes);
    return TRF_OK;
}

trf_status trf_device_layer_decode(const trf_device_layer *device_layer, trf_decode_as as, void *weights,
                                   uint64_t weights_bytes, trf_stream stream, trf_error *err) {
    trf_status status = check_decode_as(device_layer, as, err);
    if (status == TRF_OK)
        status = check_target(&device_layer->info, as, device_layer->info.rows, weights, weights_bytes, 16, err);
    if (status == TRF_OK && (shard_cuts_rows(device_layer) || shard_cuts_cols(device_layer)))
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "a shard that does not begin and end with tiles of %d is not decoded", TRF_TILE_SIZE);
    return status == TRF_OK ? device_layer->context->ops->decode(device_layer, as, weights, stream, err) : status;
}

trf_status trf_device_layer_decode_rows(const trf_device_layer *device_layer, const void *row_ids, uint32_t id_bytes,
                                        uint32_t count, trf_decode_as as, void *rows, uint64_t rows_bytes,
                                        trf_stream stream, trf_error *err) {
    trf_status status = check_decode_as(device_layer, as, err);
    if (status != TRF_OK)
        return status;
    if (id_bytes != 4 && id_bytes != 8)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "row ids of %u bytes, neither 4 nor 8", id_bytes);
    if (count == 0)
        return TRF_OK;
    if (!row_ids || (uintptr_t)row_ids % id_bytes)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "row ids need %u-byte aligned device memory", id_bytes);
    status = check_target(&device_layer->info, as, count, rows, rows_bytes,
                          decoded_value_bytes(&device_layer->info, as), err);
    if (status != TRF_OK)
        return status;
    const trf_row_request request = {row_ids, id_bytes, count, as, rows};
    return device_layer->context->ops->decode_rows(device_layer, &request, stream, err);
}

/* ---- products ---- */

trf_status trf_check_types(const trf_layer_info *info, uint32_t m, trf_dtype x_dtype, trf_dtype y_dtype,
                           trf_error *err) {
    if (m < 1)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a product needs one row of x at least");
    if ((x_dtype != TRF_DTYPE_BF16 && x_dtype != TRF_DTYPE_F16) ||
        (info->codec == TRF_CODEC_BF16 && x_dtype != TRF_DTYPE_BF16) ||
        (info->codec == TRF_CODEC_FP16 && x_dtype != TRF_DTYPE_F16))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "weights of codec %s do not multiply x of %s",
                        trf_codec_name(info->codec), trf_dtype_name(x_dtype));
    if (y_dtype != TRF_DTYPE_BF16 && y_dtype != TRF_DTYPE_F16 && y_dtype != TRF_DTYPE_F32)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "y cannot be %s", trf_dtype_name(y_dtype));
    return TRF_OK;
}

/* What the workspace of a shard's product begins with: x and y of its whole tiles, where that is not what the caller
 * has; y in F32 if an epilogue follows. Each part begins at a multiple of 256 bytes; the device's own workspace
 * follows. */
typedef struct trf_shard_workspace {
    uint64_t y, inner; /* x is at 0 */
} trf_shard_workspace;

static trf_shard_workspace shard_workspace_of(const trf_device_layer *layer, const trf_linear_plan *plan,
                                              int has_epilogue) {
    const uint64_t m = plan->m, y_bytes = trf_dtype_bytes(has_epilogue ? TRF_DTYPE_F32 : plan->y_dtype);
    trf_shard_workspace offsets;
    offsets.y = shard_cuts_cols(layer) ? trf_device_align(m * layer->view.cols * trf_dtype_bytes(plan->x_dtype)) : 0;
    offsets.inner = offsets.y + (shard_cuts_rows(layer) ? trf_device_align(m * layer->view.rows * y_bytes) : 0);
    return offsets;
}

/* The path that AUTO stands for, and why; TRF_PATH_AUTO: the device's plan operation knows. */
static trf_path path_for(const trf_device_layer *layer, uint32_t m, const char **reason) {
    const trf_context *context = layer->context;
    const trf_tuning_key key = trf_tuning_key_of(layer);
    const trf_path tuned = context->tuning ? trf_tuned_path(context->tuning, &key, m) : TRF_PATH_AUTO;
    *reason = tuned != TRF_PATH_AUTO ? "the context's tuning has another path for this batch"
                                     : "another path is faster for this batch, on GPUs of this generation";
    return tuned != TRF_PATH_AUTO ? tuned : trf_crossover_path(context->limits.capability, &key, m);
}

static trf_status plan_path(const trf_device_layer *layer, trf_path path, trf_linear_plan *plan, trf_error *err) {
    const trf_device_ops *ops = layer->context->ops;
    const char *reason = NULL;
    const trf_path found = path == TRF_PATH_AUTO ? path_for(layer, plan->m, &reason) : TRF_PATH_AUTO;
    trf_linear_plan made = *plan;
    /* What was found may be refused: for a layer that is like the one measured, not the same. */
    if (found == TRF_PATH_AUTO || ops->plan(layer, found, &made, NULL) != TRF_OK)
        return ops->plan(layer, path, plan, err);
    *plan = made;
    if (plan->path != TRF_PATH_FUSED)
        plan->reason = reason;
    return TRF_OK;
}

trf_status trf_linear_plan_init(const trf_device_layer *device_layer, uint32_t m, trf_dtype x_dtype, trf_dtype y_dtype,
                                trf_path path, trf_linear_plan *plan, trf_error *err) {
    if (!device_layer || !plan || path < TRF_PATH_AUTO || path > TRF_PATH_WIDE)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a plan needs a layer and a path");
    trf_linear_plan made = {.m = m, .x_dtype = x_dtype, .y_dtype = y_dtype};
    trf_status status = trf_check_types(&device_layer->info, m, x_dtype, y_dtype, err);
    if (status == TRF_OK)
        status = plan_path(device_layer, path, &made, err);
    if (status != TRF_OK)
        return status;
    made.workspace_bytes += shard_workspace_of(device_layer, &made, 0).inner;
    made.epilogue_workspace_bytes += shard_workspace_of(device_layer, &made, 1).inner;
    made.choice[TRF_PLAN_LAYER] = device_layer->serial;
    *plan = made;
    return TRF_OK;
}

static trf_status check_plan(const trf_device_layer *layer, const trf_linear_plan *plan, int has_epilogue,
                             const void *workspace, trf_error *err) {
    if (!layer || !plan)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a product needs a layer and a plan");
    if (plan->choice[TRF_PLAN_LAYER] != layer->serial)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the plan belongs to another layer");
    const uint64_t needed = has_epilogue ? plan->epilogue_workspace_bytes : plan->workspace_bytes;
    if (needed && (!workspace || (uintptr_t)workspace % TRF_DEVICE_ALIGNMENT))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "the plan needs a %d-byte aligned workspace of %llu bytes", TRF_DEVICE_ALIGNMENT,
                        (unsigned long long)needed);
    return TRF_OK;
}

static trf_status check_call(const trf_device_layer *layer, const trf_linear_plan *plan, const void *x, const void *y,
                             int has_epilogue, const void *workspace, trf_error *err) {
    if (!x || !y)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a product needs x and y");
    trf_status status = check_plan(layer, plan, has_epilogue, workspace, err);
    if (status != TRF_OK)
        return status;
    if ((uintptr_t)x % trf_dtype_bytes(plan->x_dtype) || (uintptr_t)y % trf_dtype_bytes(plan->y_dtype))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "x and y must be aligned to their elements");
    return TRF_OK;
}

/* Of an epilogue's operand. may_be_y: whether it may be all of y. */
static trf_status check_operand(const char *name, const void *operand, uint64_t bytes, const void *y, uint64_t y_bytes,
                                uint64_t element_bytes, int may_be_y, trf_error *err) {
    const uintptr_t at = (uintptr_t)operand, y_at = (uintptr_t)y;
    if (!operand || (may_be_y && operand == y))
        return TRF_OK;
    if (at % element_bytes)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the epilogue's %s must be aligned to its elements",
                        name);
    if (at < y_at + y_bytes && y_at < at + bytes)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the epilogue's %s overlaps y%s", name,
                        may_be_y ? " and is not y" : "");
    return TRF_OK;
}

static trf_status check_epilogue(const trf_device_layer *layer, const trf_linear_plan *plan,
                                 const trf_epilogue *epilogue, const void *y, trf_error *err) {
    const uint64_t element_bytes = trf_dtype_bytes(plan->y_dtype), row = element_bytes * layer->info.rows,
                   all = row * plan->m;
    if (epilogue->activation < TRF_ACTIVATION_NONE || epilogue->activation > TRF_ACTIVATION_GELU_TANH)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "there is no activation %d", (int)epilogue->activation);
    trf_status status = check_operand("bias", epilogue->bias, row, y, all, element_bytes, 0, err);
    if (status == TRF_OK)
        status = check_operand("multiplier", epilogue->multiplier, all, y, all, element_bytes, 1, err);
    if (status == TRF_OK)
        status = check_operand("residual", epilogue->residual, all, y, all, element_bytes, 1, err);
    return status;
}

/* x of whole tiles: zeros but for the shard's columns. */
static trf_status spread_x(const trf_device_layer *layer, const trf_linear_plan *plan, const void *x, void *wide_x,
                           trf_stream stream, trf_error *err) {
    const trf_device_ops *ops = layer->context->ops;
    const uint64_t element_bytes = trf_dtype_bytes(plan->x_dtype), width = element_bytes * layer->shard.cols,
                   pitch = element_bytes * layer->view.cols;
    trf_status status = ops->copy_rows(layer->context, wide_x, pitch, NULL, 0, pitch, plan->m, stream, err);
    if (status != TRF_OK)
        return status;
    return ops->copy_rows(layer->context, (uint8_t *)wide_x + element_bytes * layer->shard.col, pitch, x, width, width,
                          plan->m, stream, err);
}

/* The shard's rows of y out of those of its whole tiles, with the epilogue. */
static trf_status take_rows(const trf_device_layer *layer, const trf_linear_plan *plan, const void *tiles_y, void *y,
                            const trf_epilogue *epilogue, trf_stream stream, trf_error *err) {
    const trf_device_ops *ops = layer->context->ops;
    if (epilogue) {
        const trf_sums sums = {(const float *)tiles_y + layer->shard.row, layer->view.rows, plan->m, layer->shard.rows};
        return ops->apply_epilogue(layer->context, &sums, plan->y_dtype, y, epilogue, stream, err);
    }
    const uint64_t element_bytes = trf_dtype_bytes(plan->y_dtype), width = element_bytes * layer->shard.rows;
    return ops->copy_rows(layer->context, y, width, (const uint8_t *)tiles_y + element_bytes * layer->shard.row,
                          element_bytes * layer->view.rows, width, plan->m, stream, err);
}

static int is_empty_epilogue(const trf_epilogue *epilogue) {
    return !epilogue || (!epilogue->activation && !epilogue->bias && !epilogue->multiplier && !epilogue->residual);
}

/* decoded: whether trf_linear_decode has been called. */
static trf_status multiply_layer(const trf_device_layer *device_layer, const trf_linear_plan *plan, const void *x,
                                 void *y, const trf_epilogue *epilogue, int decoded, void *workspace, trf_stream stream,
                                 trf_error *err) {
    if (is_empty_epilogue(epilogue))
        epilogue = NULL;
    trf_status status = check_call(device_layer, plan, x, y, epilogue != NULL, workspace, err);
    if (status == TRF_OK && epilogue)
        status = check_epilogue(device_layer, plan, epilogue, y, err);
    if (status != TRF_OK)
        return status;
    const trf_device_layer *layer = device_layer;
    const trf_device_ops *ops = layer->context->ops;
    const trf_shard_workspace offsets = shard_workspace_of(layer, plan, epilogue != NULL);
    const int cuts_rows = shard_cuts_rows(layer);
    uint8_t *const base = workspace;
    trf_linear_plan inner = *plan;
    inner.workspace_bytes = (epilogue ? plan->epilogue_workspace_bytes : plan->workspace_bytes) - offsets.inner;
    if (cuts_rows && epilogue)
        inner.y_dtype = TRF_DTYPE_F32;
    if (plan->path == TRF_PATH_TWO_STEP)
        inner.choice[TRF_TWO_STEP_DECODED] = decoded != 0;
    if (shard_cuts_cols(layer)) {
        status = spread_x(layer, plan, x, base, stream, err);
        x = base;
    }
    if (status == TRF_OK)
        status = ops->linear(layer, &inner, x, cuts_rows ? base + offsets.y : y, cuts_rows ? NULL : epilogue,
                             offsets.inner ? base + offsets.inner : workspace, stream, err);
    if ((status == TRF_OK || status == TRF_ERR_RANS) && cuts_rows) { /* in the latter case y is NaN */
        trf_status taken = take_rows(layer, plan, base + offsets.y, y, epilogue, stream, status == TRF_OK ? err : NULL);
        status = status == TRF_OK ? taken : status;
    }
    return status;
}

trf_status trf_linear_with(const trf_device_layer *device_layer, const trf_linear_plan *plan, const void *x, void *y,
                           const trf_epilogue *epilogue, void *workspace, trf_stream stream, trf_error *err) {
    return multiply_layer(device_layer, plan, x, y, epilogue, 0, workspace, stream, err);
}

trf_status trf_linear_decoded(const trf_device_layer *device_layer, const trf_linear_plan *plan, const void *x, void *y,
                              const trf_epilogue *epilogue, void *workspace, trf_stream stream, trf_error *err) {
    return multiply_layer(device_layer, plan, x, y, epilogue, 1, workspace, stream, err);
}

trf_status trf_linear_decode(const trf_device_layer *device_layer, const trf_linear_plan *plan,
                             const trf_epilogue *epilogue, void *workspace, trf_stream stream, trf_error *err) {
    const int has_epilogue = !is_empty_epilogue(epilogue);
    trf_status status = check_plan(device_layer, plan, has_epilogue, workspace, err);
    if (status != TRF_OK)
        return status;
    const trf_device_ops *ops = device_layer->context->ops;
    const uint64_t inner = shard_workspace_of(device_layer, plan, has_epilogue).inner;
    return ops->decode_ahead
               ? ops->decode_ahead(device_layer, plan, inner ? (uint8_t *)workspace + inner : workspace, stream, err)
               : TRF_OK;
}

trf_status trf_linear(const trf_device_layer *device_layer, const trf_linear_plan *plan, const void *x, void *y,
                      void *workspace, trf_stream stream, trf_error *err) {
    return trf_linear_with(device_layer, plan, x, y, NULL, workspace, stream, err);
}
