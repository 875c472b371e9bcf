/* SPDX-License-Identifier: Apache-2.0 */
#include "device_layers.h"

#include "checkpoint_fixture.h"
#include "expect.h"
#include "guarded_memory.h"
#include "test_calls.h"
#include "trf_device_layer.h"

static trf_error err;

void *device_upload(const trf_context *context, const void *from, uint64_t bytes) {
    void *to;
    fixture_check_status(trf_device_allocate(context, bytes, &to, &err), TRF_OK, &err);
    fixture_check_status(trf_device_upload(context, to, from, bytes, &err), TRF_OK, &err);
    return to;
}

/* ---- weights ---- */

uint64_t decoded_weight_bytes(const trf_layer_info *info, trf_decode_as as) {
    return as == TRF_DECODE_SOURCE ? trf_dtype_bytes(info->dtype) : 2;
}

uint8_t *device_decode(const trf_device_layer *layer, trf_decode_as as) {
    const trf_layer_info info = test_layer_info(layer);
    guarded_memory weights =
        guarded_allocate(layer->context, (uint64_t)info.rows * info.cols * decoded_weight_bytes(&info, as));
    fixture_check_status(trf_device_layer_decode(layer, as, weights.at, weights.bytes, NULL, &err), TRF_OK, &err);
    uint8_t *found = guarded_read(&weights);
    guarded_free(&weights);
    return found;
}

uint8_t *device_look_up(const trf_device_layer *layer, trf_decode_as as, uint32_t id_bytes) {
    const trf_layer_info info = test_layer_info(layer);
    const uint32_t count = info.rows + 3;
    const uint64_t bytes = (uint64_t)count * info.cols * decoded_weight_bytes(&info, as);
    int64_t *wide = malloc(count * sizeof *wide);
    int32_t *narrow = malloc(count * sizeof *narrow);
    for (uint32_t i = 0; i < count; i++) { /* 7919 is prime: each once */
        wide[i] = i < info.rows ? (int64_t)((uint64_t)i * 7919 % info.rows) : i == info.rows ? -1 : (int64_t)i;
        narrow[i] = (int32_t)wide[i];
    }
    void *ids = id_bytes == 8 ? device_upload(layer->context, wide, count * sizeof *wide)
                              : device_upload(layer->context, narrow, count * sizeof *narrow);
    guarded_memory rows = guarded_allocate(layer->context, bytes);
    const trf_status status =
        test_decode_rows(layer, test_row_request(ids, id_bytes, count, as, rows.at, bytes), NULL, &err);
    uint8_t *found = status == TRF_OK ? guarded_read(&rows) : NULL;
    if (!found)
        fixture_check_status(status, TRF_ERR_UNSUPPORTED, &err);
    trf_device_free(layer->context, ids);
    guarded_free(&rows);
    free(wide);
    free(narrow);
    return found;
}

void device_check_weights(const trf_device_layer *a, const trf_device_layer *b, trf_decode_as as) {
    const trf_layer_info info = test_layer_info(b);
    const uint64_t row_bytes = info.cols * decoded_weight_bytes(&info, as);
    uint8_t *due = device_look_up(a, as, 8), *found = device_look_up(b, as, 8), *narrow = device_look_up(b, as, 4);
    ck_assert_int_eq(due != NULL, found != NULL);
    if (due) {
        uint8_t *all = device_decode(b, as);
        EXPECT(memcmp(due, found, (info.rows + 3) * row_bytes) == 0);
        EXPECT(memcmp(due, narrow, (info.rows + 3) * row_bytes) == 0);
        for (uint32_t i = 0; i < info.rows; i++)
            EXPECT(memcmp(all + (uint64_t)i * 7919 % info.rows * row_bytes, due + i * row_bytes, row_bytes) == 0);
        free(all);
    }
    free(due);
    free(found);
    free(narrow);
}

/* ---- products ---- */

uint16_t *device_make_x(uint32_t m, uint32_t cols) {
    uint16_t *x = malloc(2ull * m * cols);
    for (uint64_t i = 0; i < (uint64_t)m * cols; i++)
        x[i] = (uint16_t)((i % 2 ? 0xB800 : 0x3800) + i * 37 % 0x400);
    return x;
}

/* @return the bytes of rows that lie `stride` elements apart. */
static uint64_t count_bytes(uint32_t m, uint64_t stride, uint32_t rows, trf_dtype dtype) {
    return ((m - 1) * (stride ? stride : rows) + rows) * trf_dtype_bytes(dtype);
}

uint8_t *device_multiply(trf_device_layer *layer, const trf_plan_options *options, const uint16_t *x) {
    const trf_layer_info info = test_layer_info(layer);
    const trf_context *context = layer->context;
    const uint64_t y_bytes = count_bytes(options->m, options->y_stride, info.rows, options->y_dtype),
                   more = count_bytes(options->m, options->multiplier_stride, info.rows, options->y_dtype);
    trf_plan *plan;
    trf_operands operands;
    guarded_memory y = guarded_allocate(context, y_bytes);
    uint16_t *numbers = device_make_x(1, (uint32_t)((y_bytes > more ? y_bytes : more) / 2 + 2));
    fixture_check_status(trf_plan_create(layer, options, &plan, &err), TRF_OK, &err);
    guarded_memory workspace = guarded_allocate(context, test_plan_info(plan).workspace_bytes);
    trf_operands_init(&operands);
    operands.x = device_upload(context, x, 2ull * options->m * info.cols);
    operands.y = y.at;
    fixture_check_status(trf_device_upload(context, y.at, numbers, y_bytes, &err), TRF_OK, &err);
    if (options->has_bias)
        operands.bias = device_upload(context, numbers, info.rows * trf_dtype_bytes(options->y_dtype));
    if (options->has_multiplier)
        operands.multiplier = device_upload(context, numbers, more);
    if (options->has_residual)
        operands.residual = y.at;
    fixture_check_status(
        trf_linear(plan, &operands, test_plan_info(plan).workspace_bytes ? workspace.at : NULL, NULL, &err), TRF_OK,
        &err);
    uint8_t *found = guarded_read(&y);
    free(guarded_read(&workspace));
    trf_plan_destroy(plan);
    trf_device_free(context, (void *)operands.x);
    trf_device_free(context, (void *)operands.bias);
    trf_device_free(context, (void *)operands.multiplier);
    guarded_free(&y);
    guarded_free(&workspace);
    free(numbers);
    return found;
}

trf_checkpoint *device_layers_open_f32_as_bf16(uint32_t rows, uint32_t cols) {
    static const char *const all[] = {"*", NULL};
    const fixture_tensor f32 = {"f32", "F32", {rows, cols}, 2, 0};
    const char *source = fixture_path("f32.safetensors"), *made = fixture_path("f32_bf16.safetensors");
    trf_checkpoint_options options;
    trf_checkpoint *checkpoint = NULL;
    trf_error err;
    trf_checkpoint_options_init(&options);
    options.encode.codec = TRF_CODEC_BF16;
    options.include = all;
    fixture_write_safetensors(source, NULL, &f32, 1, 8, 6);
    fixture_check_status(trf_compress_checkpoint(source, made, &options, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_checkpoint_open(made, &checkpoint, &err), TRF_OK, &err);
    return checkpoint;
}
