/* SPDX-License-Identifier: Apache-2.0 */
/* The library's product of one device layer, prepared. */
#ifndef BENCH_PLAN_CUDA_H
#define BENCH_PLAN_CUDA_H

#include "transfuse.h"

typedef struct bench_plan {
    trf_plan *plan;
    trf_plan_info info;
} bench_plan;

/* Plans a product with these types of x and y. Release with bench_plan_free, before the layer. @return TRF_OK;
 * TRF_ERR_UNSUPPORTED without a message; or another status after a message. */
trf_status bench_plan_make(bench_plan *plan, trf_device_layer *layer, uint32_t m, trf_dtype x_dtype, trf_dtype y_dtype,
                           trf_path path);

/* The same for a product that every layer must have: x and y are BF16, and the path is AUTO. @return 0, or -1 after a
 * message. */
int bench_plan_make_bf16(bench_plan *plan, trf_device_layer *layer, uint32_t m);
void bench_plan_free(bench_plan *plan);

/* Queues the product. @return 0, or -1 after a message. */
int bench_plan_queue(const bench_plan *plan, const void *x, void *y, void *workspace, trf_stream stream);

#endif
