/* SPDX-License-Identifier: Apache-2.0 */
/* Makes each of the public API's structs in one line, and wraps the calls that tests make most. The latter return the
 * library's status and make no assertions, since Check allocates. */
#ifndef TEST_CALLS_H
#define TEST_CALLS_H

#include "transfuse/device_memory.h"
#include "transfuse/groups.h"

static inline trf_matrix test_matrix(const void *weights, trf_dtype dtype, uint32_t rows, uint32_t cols) {
    trf_matrix matrix;
    trf_matrix_init(&matrix);
    matrix.weights = weights;
    matrix.dtype = dtype;
    matrix.rows = rows;
    matrix.cols = cols;
    return matrix;
}

/* shard: first_row, num_rows, first_col, num_cols; a number of 0 means to the end. */
static inline trf_load_options test_shard(const uint32_t shard[4]) {
    trf_load_options options;
    trf_load_options_init(&options);
    options.first_row = shard[0];
    options.num_rows = shard[1];
    options.first_col = shard[2];
    options.num_cols = shard[3];
    return options;
}

/* Options without an epilogue, with rows one after the other. */
static inline trf_plan_options test_plan_options(uint32_t m, trf_dtype x_dtype, trf_dtype y_dtype, trf_path path) {
    trf_plan_options options;
    trf_plan_options_init(&options);
    options.m = m;
    options.x_dtype = x_dtype;
    options.y_dtype = y_dtype;
    options.path = path;
    return options;
}

static inline trf_status test_make_plan(trf_device_layer *layer, uint32_t m, trf_dtype x_dtype, trf_dtype y_dtype,
                                        trf_path path, trf_plan **plan, trf_error *err) {
    const trf_plan_options options = test_plan_options(m, x_dtype, y_dtype, path);
    return trf_plan_create(layer, &options, plan, err);
}

static inline trf_plan_info test_plan_info(const trf_plan *plan) {
    trf_plan_info info;
    trf_plan_get_info(plan, &info);
    return info;
}

static inline trf_operands test_operands(const void *x, void *y) {
    trf_operands operands;
    trf_operands_init(&operands);
    operands.x = x;
    operands.y = y;
    return operands;
}

/* A product without an epilogue. */
static inline trf_status test_multiply(const trf_plan *plan, const void *x, void *y, void *workspace, trf_stream stream,
                                       trf_error *err) {
    const trf_operands operands = test_operands(x, y);
    return trf_linear(plan, &operands, workspace, stream, err);
}

static inline trf_device_layer_info test_device_layer_info(const trf_device_layer *layer) {
    trf_device_layer_info info;
    trf_device_layer_get_info(layer, &info);
    return info;
}

static inline trf_layer_info test_layer_info(const trf_device_layer *layer) {
    return test_device_layer_info(layer).layer;
}

static inline trf_group_member test_group_member(trf_device_layer *layer, uint32_t m, trf_dtype x_dtype,
                                                 trf_dtype y_dtype) {
    trf_group_member member;
    trf_group_member_init(&member);
    member.layer = layer;
    member.m = m;
    member.x_dtype = x_dtype;
    member.y_dtype = y_dtype;
    return member;
}

static inline trf_layer_group_info test_group_info(const trf_layer_group *group) {
    trf_layer_group_info info;
    trf_layer_group_get_info(group, &info);
    return info;
}

static inline trf_row_request test_row_request(const void *row_ids, uint32_t id_bytes, uint32_t count, trf_decode_as as,
                                               void *rows, uint64_t rows_bytes) {
    trf_row_request request;
    trf_row_request_init(&request);
    request.row_ids = row_ids;
    request.id_bytes = id_bytes;
    request.count = count;
    request.as = as;
    request.rows = rows;
    request.rows_bytes = rows_bytes;
    return request;
}

static inline trf_status test_decode_rows(const trf_device_layer *layer, trf_row_request request, trf_stream stream,
                                          trf_error *err) {
    return trf_decode_rows(layer, &request, stream, err);
}

#endif
