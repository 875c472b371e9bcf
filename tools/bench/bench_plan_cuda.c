/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_plan_cuda.h"

#include "cli_messages.h"

static trf_status make(bench_plan *plan, trf_device_layer *layer, const trf_plan_options *options, trf_error *err) {
    const trf_status status = trf_plan_create(layer, options, &plan->plan, err);
    if (status == TRF_OK)
        trf_plan_get_info(plan->plan, &plan->info);
    return status;
}

trf_status bench_plan_make(bench_plan *plan, trf_device_layer *layer, uint32_t m, trf_dtype x_dtype, trf_dtype y_dtype,
                           trf_path path) {
    trf_plan_options options;
    trf_error err = {0};
    trf_plan_options_init(&options);
    options.m = m;
    options.x_dtype = x_dtype;
    options.y_dtype = y_dtype;
    options.path = path;
    const trf_status status = make(plan, layer, &options, &err);
    if (status != TRF_OK && status != TRF_ERR_UNSUPPORTED)
        cli_report_error(&err);
    return status;
}

int bench_plan_make_bf16(bench_plan *plan, trf_device_layer *layer, uint32_t m) {
    trf_plan_options options;
    trf_error err = {0};
    trf_plan_options_init(&options);
    options.m = m;
    options.x_dtype = options.y_dtype = TRF_DTYPE_BF16;
    if (make(plan, layer, &options, &err) == TRF_OK)
        return 0;
    cli_report_error(&err);
    return -1;
}

void bench_plan_free(bench_plan *plan) {
    trf_plan_destroy(plan->plan);
    *plan = (bench_plan){0};
}

int bench_plan_queue(const bench_plan *plan, const void *x, void *y, void *workspace, trf_stream stream) {
    trf_operands operands;
    trf_error err = {0};
    trf_operands_init(&operands);
    operands.x = x;
    operands.y = y;
    if (trf_linear(plan->plan, &operands, workspace, stream, &err) == TRF_OK)
        return 0;
    cli_report_error(&err);
    return -1;
}
