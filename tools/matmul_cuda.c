/* SPDX-License-Identifier: Apache-2.0 */
#include "matmul_cuda.h"

#include "cli_cuda.h"
#include "cli_float.h"
#include "cli_messages.h"

#include <math.h>
#include <stdlib.h>

/* The most rows of x in one product. */
static const uint64_t kMaxRows = 4096;

/* Products of info.m rows each, one after the other. If the last one has fewer rows, it computes rows that nobody
 * reads. */
typedef struct product {
    trf_device_layer *layer;
    trf_layer_info shape;
    trf_plan *plan;
    trf_plan_info info;
    uint16_t *x_host; /* [info.m][cols] */
    void *x, *workspace;
    float *y;
} product;

/* The bits of a value of type F16 or BF16. @return 0, or -1 for a finite value that rounds to infinity. */
static int narrow(float value, trf_dtype dtype, uint16_t *bits) {
    const float limit = dtype == TRF_DTYPE_BF16 ? 0x1.FFp127f : 65520.0f; /* halfway between the largest and the next */
    const uint32_t infinity = dtype == TRF_DTYPE_BF16 ? 0x7F80 : 0x7C00, sign = signbit(value) ? 0x8000 : 0;
    if (isnan(value))
        *bits = 0x7FFF;
    else if (isinf(value))
        *bits = (uint16_t)(sign | infinity);
    else
        *bits = (uint16_t)cli_float_to_bits(value, dtype);
    return isfinite(value) && fabsf(value) >= limit ? -1 : 0;
}

/* Narrows rows first ... of x to what the device takes, with zeros after the last one. */
static int narrow_rows(const product *p, const char *x_path, const float *x, uint64_t first, uint64_t count) {
    const uint64_t cols = p->shape.cols;
    for (uint64_t i = 0; i < p->info.m * cols; i++) {
        float value = i < count * cols ? x[first * cols + i] : 0;
        if (narrow(value, p->info.x_dtype, &p->x_host[i])) {
            cli_fail(TRF_ERR_ARGUMENT, "%s: %g at row %llu, column %llu is too large for %s, which %s weights multiply",
                     x_path, (double)value, (unsigned long long)(first + i / cols), (unsigned long long)(i % cols),
                     trf_dtype_name(p->info.x_dtype), trf_codec_name(p->shape.codec));
            return -1;
        }
    }
    return 0;
}

/* Plans products of as many rows as one call should take. */
static trf_status plan_product(const cli_options *options, product *p, uint64_t m, trf_error *err) {
    const uint64_t max_rows = options->path == TRF_PATH_FUSED ? TRF_FUSED_MAX_M : kMaxRows;
    trf_plan_options plan;
    trf_plan_options_init(&plan);
    plan.m = (uint32_t)(m < max_rows ? m : max_rows);
    plan.x_dtype = p->shape.codec == TRF_CODEC_BF16 ? TRF_DTYPE_BF16 : TRF_DTYPE_F16;
    plan.y_dtype = TRF_DTYPE_F32;
    plan.path = options->path;
    trf_status status = trf_plan_create(p->layer, &plan, &p->plan, err);
    if (status == TRF_OK)
        trf_plan_get_info(p->plan, &p->info);
    return status;
}

/* @return 0, or -1 after a message. */
static int allocate(product *p) {
    uint64_t x_bytes = (uint64_t)p->info.m * p->shape.cols * sizeof *p->x_host;
    p->x_host = malloc(x_bytes);
    if (!p->x_host) {
        cli_fail(TRF_ERR_MEMORY, "out of memory for %u rows of x", p->info.m);
        return -1;
    }
    p->x = cli_cuda_alloc(x_bytes);
    p->y = p->x ? cli_cuda_alloc((uint64_t)p->info.m * p->shape.rows * sizeof *p->y) : NULL;
    p->workspace = p->y ? cli_cuda_alloc(p->info.workspace_bytes) : NULL;
    return p->workspace ? 0 : -1;
}

/* Computes rows first ... first + count - 1 of y. @return 0, or -1 after a message. */
static int multiply_rows(product *p, const char *x_path, const float *x, uint64_t first, uint64_t count, float *y) {
    const uint64_t cols = p->shape.cols, rows = p->shape.rows;
    trf_operands operands;
    trf_error err = {0};
    if (narrow_rows(p, x_path, x, first, count) ||
        cli_cuda_check(cudaMemcpy(p->x, p->x_host, p->info.m * cols * sizeof *p->x_host, cudaMemcpyHostToDevice),
                       "copying x to the device"))
        return -1;
    trf_operands_init(&operands);
    operands.x = p->x;
    operands.y = p->y;
    if (trf_linear(p->plan, &operands, p->workspace, NULL, &err)) {
        cli_report_error(&err);
        return -1;
    }
    return cli_cuda_check(cudaMemcpy(y + first * rows, p->y, count * rows * sizeof *y, cudaMemcpyDeviceToHost),
                          "multiplying");
}

static cli_exit multiply(const cli_options *options, product *p, const float *x, uint64_t m, float *y,
                         matmul_report *report) {
    trf_error err = {0};
    if (plan_product(options, p, m, &err))
        return cli_report_error(&err);
    report->path = p->info.path;
    report->reason = options->path == TRF_PATH_AUTO ? p->info.reason : NULL;
    if (allocate(p))
        return CLI_FAILED;
    double start = cli_now();
    for (uint64_t first = 0; first < m; first += p->info.m) {
        uint64_t count = m - first < p->info.m ? m - first : p->info.m;
        if (multiply_rows(p, options->arguments[1], x, first, count, y))
            return CLI_FAILED;
    }
    report->seconds = cli_now() - start;
    return trf_device_layer_check(p->layer, &err) ? cli_report_error(&err) : CLI_OK;
}

/* The layer of a .trf file, whose name among a checkpoint's tensors is "weight". */
static trf_status load_layer(trf_context *context, const cli_options *options, trf_device_layer **layer,
                             trf_error *err) {
    trf_checkpoint *checkpoint;
    trf_load_options load;
    trf_status status = trf_checkpoint_open(options->arguments[0], &checkpoint, err);
    if (status != TRF_OK)
        return status;
    trf_load_options_init(&load);
    load.layout = options->layout;
    status = trf_device_layer_load(context, checkpoint, "weight", &load, layer, err);
    trf_checkpoint_close(checkpoint);
    return status;
}

cli_exit matmul_on_device(const cli_options *options, trf_context *context, const float *x, uint64_t m, float *y,
                          matmul_report *report) {
    product p = {0};
    trf_context_info device;
    trf_device_layer_info layer;
    trf_error err = {0};
    if (load_layer(context, options, &p.layer, &err))
        return cli_report_error(&err);
    trf_device_layer_get_info(p.layer, &layer);
    p.shape = layer.layer;
    trf_context_get_info(context, &device);
    cli_printable(device.name, report->device, sizeof report->device);
    cli_exit status = multiply(options, &p, x, m, y, report);
    cudaFree(p.x);
    cudaFree(p.y);
    cudaFree(p.workspace);
    trf_plan_destroy(p.plan);
    trf_device_layer_destroy(p.layer);
    free(p.x_host);
    return status;
}
