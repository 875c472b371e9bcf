/* SPDX-License-Identifier: Apache-2.0 */
#include "same_products.h"

#include "checkpoint_fixture.h"
#include "expect.h"
#include "test_calls.h"

#include <stdlib.h>
#include <string.h>

/* @return y[m][rows], F32, malloc'd; NULL if the device has no such path. x: on the device. */
static float *multiply(const trf_context *context, trf_device_layer *layer, const void *x, uint32_t m, trf_path path) {
    const trf_layer_info info = test_layer_info(layer);
    const uint64_t y_bytes = 4ull * m * info.rows;
    const trf_dtype x_dtype = info.codec == TRF_CODEC_FP16 ? TRF_DTYPE_F16 : TRF_DTYPE_BF16;
    trf_error err;
    trf_plan *plan;
    void *y, *workspace;
    trf_status status = test_make_plan(layer, m, x_dtype, TRF_DTYPE_F32, path, &plan, &err);
    if (path != TRF_PATH_AUTO && status == TRF_ERR_UNSUPPORTED)
        return NULL;
    fixture_check_status(status, TRF_OK, &err);
    float *found = malloc(y_bytes);
    const uint64_t workspace_bytes = test_plan_info(plan).workspace_bytes;
    fixture_check_status(trf_device_allocate(context, y_bytes, &y, &err), TRF_OK, &err);
    fixture_check_status(trf_device_allocate(context, workspace_bytes, &workspace, &err), TRF_OK, &err);
    fixture_check_status(test_multiply(plan, x, y, workspace, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_device_download(context, found, y, y_bytes, &err), TRF_OK, &err);
    trf_device_free(context, y);
    trf_device_free(context, workspace);
    trf_plan_destroy(plan);
    return found;
}

void check_same_products(const trf_context *context, trf_device_layer *a, trf_device_layer *b, uint32_t m) {
    static const trf_path paths[] = {TRF_PATH_AUTO, TRF_PATH_FUSED, TRF_PATH_TWO_STEP, TRF_PATH_WIDE};
    const trf_layer_info info = test_layer_info(a);
    const uint64_t count = (uint64_t)m * info.cols;
    uint16_t *numbers = malloc(2 * count);
    trf_error err;
    void *x;
    for (uint64_t i = 0; i < count; i++) /* small numbers as BF16, and F16 */
        numbers[i] = (uint16_t)((i % 2 ? 0xB800 : 0x3800) + i * 37 % 0x400);
    fixture_check_status(trf_device_allocate(context, 2 * count, &x, &err), TRF_OK, &err);
    fixture_check_status(trf_device_upload(context, x, numbers, 2 * count, &err), TRF_OK, &err);
    for (size_t p = 0; p < sizeof paths / sizeof paths[0]; p++) {
        float *first = multiply(context, a, x, m, paths[p]), *second = multiply(context, b, x, m, paths[p]);
        EXPECT(!first == !second);
        EXPECT(!first || memcmp(first, second, 4ull * m * info.rows) == 0);
        free(first);
        free(second);
    }
    trf_device_free(context, x);
    free(numbers);
}
