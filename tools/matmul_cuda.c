#include "matmul_cuda.h"

#include "cli_cuda.h"
#include "cli_float.h"
#include "cli_report.h"

#include <math.h>
#include <stdlib.h>

/* Rows of x in one product at most. */
static const uint64_t kMaxRows = 4096;

/* One product after the other, of plan.m rows each; a last one that is shorter computes rows that nobody reads. */
typedef struct product {
    trf_device_layer *layer;
    trf_layer_info info;
    trf_linear_plan plan;
    uint16_t *x_host; /* [plan.m][cols] */
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
        *bits = (uint16_t)cli_float_to_code(value, dtype);
    return isfinite(value) && fabsf(value) >= limit ? -1 : 0;
}

/* Rows first ... of x as the device takes them; zeros behind the last one. */
static int narrow_rows(const product *p, const char *x_path, const float *x, uint64_t first, uint64_t count) {
    const uint64_t cols = p->info.cols;
    for (uint64_t i = 0; i < p->plan.m * cols; i++) {
        float value = i < count * cols ? x[first * cols + i] : 0;
        if (narrow(value, p->plan.x_dtype, &p->x_host[i])) {
            cli_fail(TRF_ERR_ARGUMENT, "%s: %g at row %llu, column %llu is too large for %s, which %s weights multiply",
                     x_path, (double)value, (unsigned long long)(first + i / cols), (unsigned long long)(i % cols),
                     trf_dtype_name(p->plan.x_dtype), trf_codec_name(p->info.codec));
            return -1;
        }
    }
    return 0;
}

/* Plans products of as many rows as one call should take. Where large ones cannot be, small ones are fused. */
static trf_status plan_product(const cli_options *options, product *p, uint64_t m, trf_error *err) {
    trf_dtype x_dtype = p->info.codec == TRF_CODEC_BF16 ? TRF_DTYPE_BF16 : TRF_DTYPE_F16;
    const trf_path path = options->path;
    const uint64_t max_rows = path == TRF_PATH_FUSED ? TRF_FUSED_MAX_M : kMaxRows;
    trf_status status = trf_linear_plan_init(p->layer, (uint32_t)(m < max_rows ? m : max_rows), x_dtype, TRF_DTYPE_F32,
                                             path, &p->plan, err);
    if (status != TRF_OK && path == TRF_PATH_AUTO && m > TRF_FUSED_MAX_M)
        status = trf_linear_plan_init(p->layer, TRF_FUSED_MAX_M, x_dtype, TRF_DTYPE_F32, path, &p->plan, err);
    return status;
}

/* @return 0, or -1 after a message. */
static int allocate(product *p) {
    uint64_t x_bytes = (uint64_t)p->plan.m * p->info.cols * sizeof *p->x_host;
    p->x_host = malloc(x_bytes);
    if (!p->x_host) {
        cli_fail(TRF_ERR_MEMORY, "out of memory for %u rows of x", p->plan.m);
        return -1;
    }
    p->x = cli_cuda_alloc(x_bytes);
    p->y = p->x ? cli_cuda_alloc((uint64_t)p->plan.m * p->info.rows * sizeof *p->y) : NULL;
    p->workspace = p->y ? cli_cuda_alloc(p->plan.workspace_bytes) : NULL;
    return p->workspace ? 0 : -1;
}

/* Rows first ... first + count - 1 of y. @return 0, or -1 after a message. */
static int multiply_rows(product *p, const char *x_path, const float *x, uint64_t first, uint64_t count, float *y) {
    const uint64_t cols = p->info.cols, rows = p->info.rows;
    trf_error err = {0};
    if (narrow_rows(p, x_path, x, first, count) ||
        cli_cuda_check(cudaMemcpy(p->x, p->x_host, p->plan.m * cols * sizeof *p->x_host, cudaMemcpyHostToDevice),
                       "copying x to the device"))
        return -1;
    if (trf_linear(p->layer, &p->plan, p->x, p->y, p->workspace, NULL, &err)) {
        cli_report_error(&err);
        return -1;
    }
    return cli_cuda_check(cudaMemcpy(y + first * rows, p->y, count * rows * sizeof *y, cudaMemcpyDeviceToHost),
                          "multiplying");
}

static cli_exit multiply(const cli_options *options, product *p, const float *x, uint64_t m, float *y,
                         matmul_cuda_report *report) {
    trf_error err = {0};
    if (plan_product(options, p, m, &err))
        return cli_report_error(&err);
    report->path = p->plan.path;
    report->reason = options->path == TRF_PATH_AUTO ? p->plan.reason : NULL;
    if (allocate(p))
        return CLI_FAILED;
    double start = cli_now();
    for (uint64_t first = 0; first < m; first += p->plan.m) {
        uint64_t count = m - first < p->plan.m ? m - first : p->plan.m;
        if (multiply_rows(p, options->arguments[1], x, first, count, y))
            return CLI_FAILED;
    }
    report->seconds = cli_now() - start;
    return trf_device_layer_check(p->layer, &err) ? cli_report_error(&err) : CLI_OK;
}

cli_exit matmul_on_device(const cli_options *options, trf_context *context, const trf_layer *layer, const float *x,
                          uint64_t m, float *y, matmul_cuda_report *report) {
    product p = {0};
    trf_error err = {0};
    if (trf_device_layer_create(context, layer, &p.layer, &err))
        return cli_report_error(&err);
    trf_device_layer_get_info(p.layer, &p.info);
    cli_printable(trf_context_device_name(context), report->device, sizeof report->device);
    cli_exit status = multiply(options, &p, x, m, y, report);
    cudaFree(p.x);
    cudaFree(p.y);
    cudaFree(p.workspace);
    trf_device_layer_destroy(p.layer);
    free(p.x_host);
    return status;
}
