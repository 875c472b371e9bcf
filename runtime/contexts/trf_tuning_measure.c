/* SPDX-License-Identifier: Apache-2.0 */
/* Makes tunings by measuring every path that takes a layer, batch by batch, and for packed layers the kernels and cuts
 * that may be the fastest. The device times the calls. */
#include "trf_context.h"
#include "trf_layout_plans.h"
#include "trf_number_formats.h"
#include "trf_plan.h"
#include "trf_struct.h"
#include "trf_tuning.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_M = 1 << 20
};

void trf_tune_options_init(trf_tune_options *options) {
    *options = (trf_tune_options){.struct_bytes = sizeof *options, .max_m = 8192, .x_dtype = TRF_DTYPE_BF16};
}

/* ---- what is to be measured ---- */

/* @return the next batch in the sequence 1, 2, 3, 4, 6, 8, 12 ... */
static uint32_t next_batch(uint32_t m) {
    if (m < 2)
        return m + 1;
    return (m & (m - 1)) == 0 ? m + m / 2 : m / 3 * 4;
}

static uint32_t count_batches(uint32_t max_m) {
    uint32_t count = 0;
    for (uint32_t m = 1; m <= max_m; m = next_batch(m))
        count++;
    return count;
}

/* Whether an earlier layer has the same key. Only the first layer of a key is measured. */
static int is_repeated(trf_device_layer *const *layers, uint32_t i) {
    const trf_tuning_key key = trf_tuning_key_of(layers[i]);
    for (uint32_t k = 0; k < i; k++) {
        const trf_tuning_key other = trf_tuning_key_of(layers[k]);
        if (memcmp(&key, &other, sizeof key) == 0)
            return 1;
    }
    return 0;
}

static trf_status check_tune(trf_device_layer *const *layers, uint32_t num_layers, const trf_tune_options *options,
                             trf_error *err) {
    if (!layers || !num_layers || num_layers > TRF_TUNING_MAX_LAYERS)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "tuning takes 1 to %d layers", TRF_TUNING_MAX_LAYERS);
    if (options->max_m < 1 || options->max_m > MOST_M)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "batches up to %u cannot be measured; 1 to %d can",
                        options->max_m, MOST_M);
    if (options->x_dtype != TRF_DTYPE_BF16 && options->x_dtype != TRF_DTYPE_F16)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "x is BF16 or F16 when products are measured");
    for (uint32_t i = 0; i < num_layers; i++) {
        if (!layers[i] || layers[i]->context != layers[0]->context)
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "layer %u is none, or one of another context", i);
        if (layers[i]->device != TRF_DEVICE_CPU && layers[i]->is_of_stack)
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "layer %u is of a stack, which need not be there", i);
    }
    return TRF_OK;
}

/* ---- one layer ---- */

typedef struct trf_measurement {
    trf_device_layer *layer;
    trf_context *context;
    trf_dtype dtype; /* of x and y */
    uint32_t max_m;  /* the largest batch for which there is memory */
    void *x, *y;     /* [max_m][cols], [max_m][rows] */
    void *copies;    /* of the layer; they evict each other from the cache */
} trf_measurement;

static void measurement_end(trf_measurement *measurement) {
    trf_device_free(measurement->context, measurement->x);
    trf_device_free(measurement->context, measurement->y);
    trf_device_free(measurement->context, measurement->copies);
}

/* Fills x with values between -1 and 1, like activations: the power that a GPU takes, and so its clock, depends on
 * them. */
static trf_status upload_x(const trf_measurement *measurement, trf_error *err) {
    const uint64_t count = (uint64_t)measurement->max_m * measurement->layer->info.cols;
    uint16_t *x = malloc(count * sizeof *x);
    if (!x)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate %u rows of x", measurement->max_m);
    uint32_t state = 1;
    for (uint64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        const float value = (float)(int32_t)state * 0x1p-31f;
        x[i] = (uint16_t)(measurement->dtype == TRF_DTYPE_BF16 ? trf_f32_to_bf16(value) : trf_f32_to_f16(value));
    }
    trf_status status = trf_device_upload(measurement->context, measurement->x, x, count * sizeof *x, err);
    free(x);
    return status;
}

static trf_status measurement_begin(trf_measurement *measurement, trf_device_layer *layer,
                                    const trf_tune_options *options, trf_error *err) {
    trf_context *const context = layer->context;
    *measurement =
        (trf_measurement){.layer = layer, .context = context, .dtype = options->x_dtype, .max_m = options->max_m};
    if (layer->info.codec == TRF_CODEC_BF16 || layer->info.codec == TRF_CODEC_FP16)
        measurement->dtype = layer->info.codec == TRF_CODEC_BF16 ? TRF_DTYPE_BF16 : TRF_DTYPE_F16;
    trf_status status =
        trf_device_allocate(context, 2ull * measurement->max_m * layer->info.cols, &measurement->x, err);
    if (status == TRF_OK)
        status = trf_device_allocate(context, 2ull * measurement->max_m * layer->info.rows, &measurement->y, err);
    if (status == TRF_OK)
        status = trf_device_allocate(context, 2 * context->cache_bytes, &measurement->copies, err);
    if (status == TRF_OK)
        status = upload_x(measurement, err);
    return status;
}

static int compare_times(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* *microseconds is the median time of a call. */
static trf_status time_plan(const trf_measurement *measurement, const trf_plan *plan, double *microseconds,
                            trf_error *err) {
    const trf_device_ops *ops = measurement->context->ops;
    const trf_operands operands = {.struct_bytes = sizeof operands, .x = measurement->x, .y = measurement->y};
    trf_timed_product product = {
        .plan = plan, .operands = &operands, .copies = measurement->copies, .multiply = trf_linear};
    double times[TRF_MAX_TIMED_REPEATS];
    trf_status status = trf_device_allocate(measurement->context, plan->workspace_bytes, &product.workspace, err);
    if (status == TRF_OK)
        status = ops->time(&product, ops->timed_repeats, times, err);
    trf_device_free(measurement->context, product.workspace);
    if (status != TRF_OK)
        return status;
    qsort(times, ops->timed_repeats, sizeof times[0], compare_times);
    *microseconds = times[ops->timed_repeats / 2];
    return TRF_OK;
}

/* Times a plan with the packed path with one kernel and cut after the other, whatever the context's tuning has. */
static trf_status time_packed(const trf_measurement *measurement, trf_plan *plan, trf_tuned_point *point,
                              trf_error *err) {
    trf_packed_partition candidates[TRF_PACKED_MAX_CANDIDATES];
    double times[TRF_PACKED_MAX_CANDIDATES];
    const trf_device_layer *layer = plan->layer;
    const trf_device_limits *limits = &measurement->context->limits;
    const uint32_t m = plan->tiles_product.m;
    double *const microseconds = &point->microseconds[TRF_PATH_PACKED - 1];
    const uint32_t count =
        layer->layout->layout == TRF_LAYOUT_PACKED8
            ? trf_packed8_candidates(&layer->packed8, limits, m, candidates, TRF_PACKED_MAX_CANDIDATES)
            : trf_packed_candidates(&layer->packed, limits, m, candidates, TRF_PACKED_MAX_CANDIDATES);
    if (!count)
        return time_plan(measurement, plan, microseconds, err);
    for (uint32_t i = 0; i < count; i++) {
        trf_packed_set_partition(plan, &candidates[i]);
        trf_status status = time_plan(measurement, plan, &times[i], err);
        if (status != TRF_OK)
            return trf_prefix_error(err, status, "the kernel %s, cut %s", plan->kernel, plan->cut);
    }
    const uint32_t fastest = trf_fastest_candidate(times, count);
    *microseconds = times[fastest];
    point->has_packed = 1;
    point->packed = (trf_tuned_kernel){candidates[fastest].shape, candidates[fastest].cut};
    return TRF_OK;
}

/* Times a path. Its time stays 0 if it does not take the product. */
static trf_status time_path(const trf_measurement *measurement, trf_tuned_point *point, trf_path path, trf_error *err) {
    trf_plan_options options;
    trf_plan *plan;
    trf_plan_options_init(&options);
    options.m = point->m;
    options.x_dtype = options.y_dtype = measurement->dtype;
    options.path = path;
    trf_status status = trf_plan_create(measurement->layer, &options, &plan, err);
    if (status == TRF_ERR_UNSUPPORTED)
        return TRF_OK;
    if (status != TRF_OK)
        return status;
    status = plan->path == TRF_PATH_PACKED ? time_packed(measurement, plan, point, err)
                                           : time_plan(measurement, plan, &point->microseconds[path - 1], err);
    trf_plan_destroy(plan);
    return status;
}

static trf_status measure_point(const trf_measurement *measurement, trf_tuned_point *point, trf_error *err) {
    for (int p = 0; p < TRF_TUNED_PATHS; p++) {
        trf_status status = time_path(measurement, point, (trf_path)(p + 1), err);
        if (status != TRF_OK)
            return trf_prefix_error(err, status, "measuring the %s path at %u rows of x",
                                    trf_path_name((trf_path)(p + 1)), point->m);
    }
    point->path = trf_fastest_path(point->microseconds);
    return TRF_OK;
}

/* ---- all layers ---- */

typedef struct trf_tune_progress {
    const trf_tune_options *options;
    uint32_t done, total;
} trf_tune_progress;

static trf_status measure_layer(trf_device_layer *layer, trf_tune_progress *progress, trf_tuned_layer *tuned,
                                trf_error *err) {
    const trf_tune_options *options = progress->options;
    trf_measurement measurement;
    trf_status status = measurement_begin(&measurement, layer, options, err);
    tuned->key = trf_tuning_key_of(layer);
    for (uint32_t m = 1; status == TRF_OK && m <= options->max_m; m = next_batch(m)) {
        if (options->progress && options->progress(options->progress_context, progress->done, progress->total)) {
            status = trf_fail(err, TRF_ERR_CANCELLED, TRF_NO_OFFSET, "tuning was cancelled");
            break;
        }
        trf_tuned_point *point = &tuned->points[tuned->num_points];
        point->m = m;
        status = measure_point(&measurement, point, err);
        progress->done++;
        if (status == TRF_OK && point->path != TRF_PATH_AUTO) /* no path may take the batch */
            tuned->num_points++;
    }
    measurement_end(&measurement);
    return status;
}

trf_status trf_tuning_measure(trf_device_layer *const *layers, uint32_t num_layers, const trf_tune_options *options,
                              trf_tuning **tuning, trf_error *err) {
    static const trf_struct_type type = {"trf_tune_options", sizeof *options,
                                         TRF_STRUCT_BYTES(trf_tune_options, progress_context)};
    trf_tune_options taken;
    trf_tune_options_init(&taken);
    trf_tune_progress progress = {&taken, 0, 0};
    if (!tuning)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "no place for a tuning");
    trf_status status = options ? trf_take_struct(&type, &taken, options, err) : TRF_OK;
    if (status == TRF_OK)
        status = check_tune(layers, num_layers, &taken, err);
    if (status != TRF_OK)
        return status;
    uint32_t keys = 0;
    for (uint32_t i = 0; i < num_layers; i++)
        keys += !is_repeated(layers, i);
    progress.total = keys * count_batches(progress.options->max_m);
    const trf_card card = trf_card_of(layers[0]->context);
    trf_tuning *made;
    status = trf_tuning_create(&card, keys, &made, err);
    if (status != TRF_OK)
        return status;
    trf_tuned_layer *next = made->layers;
    for (uint32_t i = 0; status == TRF_OK && i < num_layers; i++)
        if (!is_repeated(layers, i))
            status = measure_layer(layers[i], &progress, next++, err);
    if (status != TRF_OK) {
        trf_tuning_free(made);
        return status;
    }
    *tuning = made;
    return TRF_OK;
}
