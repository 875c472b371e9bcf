/* SPDX-License-Identifier: Apache-2.0 */
/* Makes packed layers from dense weights that are on the device: the public functions. */
#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_layer_feed.h"
#include "trf_packed_layer.h"
#include "trf_struct.h"

#include <stdlib.h>

void trf_device_matrix_init(trf_device_matrix *matrix) {
    *matrix = (trf_device_matrix){.struct_bytes = sizeof *matrix, .dtype = TRF_DTYPE_BF16};
}

void trf_pack_options_init(trf_pack_options *options) {
    *options = (trf_pack_options){.struct_bytes = sizeof *options};
}

trf_status trf_take_device_matrix(const trf_device_matrix *matrix, trf_device_matrix *taken, trf_error *err) {
    static const trf_struct_type type = {"trf_device_matrix", sizeof *matrix, TRF_STRUCT_BYTES(trf_device_matrix, ld)};
    if (!matrix)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "packing needs a matrix");
    trf_device_matrix_init(taken);
    trf_status status = trf_take_struct(&type, taken, matrix, err);
    if (status != TRF_OK)
        return status;
    if (taken->ld == 0)
        taken->ld = taken->cols;
    if (taken->dtype != TRF_DTYPE_BF16)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "weights of %s are not packed, but BF16",
                        trf_dtype_name(taken->dtype));
    if (taken->ld < taken->cols || taken->ld > UINT32_MAX)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "rows of %u weights, %llu apart", taken->cols,
                        (unsigned long long)taken->ld);
    return TRF_OK;
}

trf_status trf_device_layer_get_packed_size(const trf_context *context, const trf_device_matrix *matrix,
                                            trf_layer_size *size, trf_error *err) {
    trf_device_matrix taken;
    if (!context || !size)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a layer's size needs a context");
    trf_status status = trf_take_device_matrix(matrix, &taken, err);
    return status == TRF_OK ? trf_packed_get_matrix_size(&taken, size, err) : status;
}

static trf_status take_options(const trf_pack_options *options, trf_pack_options *taken, trf_error *err) {
    static const trf_struct_type type = {"trf_pack_options", sizeof *options,
                                         TRF_STRUCT_BYTES(trf_pack_options, stream)};
    trf_pack_options_init(taken);
    return options ? trf_take_struct(&type, taken, options, err) : TRF_OK;
}

/* Checks that a layer can be packed like another one. */
static trf_status check_like(const trf_context *context, const trf_device_matrix *matrix,
                             const trf_pack_options *options, trf_error *err) {
    const trf_device_layer *like = options->like;
    if (!like)
        return TRF_OK;
    const int is_bf16 = like->layout->layout == TRF_LAYOUT_PACKED && !like->packed.row_offsets,
              is_fp8 = like->layout->layout == TRF_LAYOUT_PACKED8 && like->info.codec == TRF_CODEC_BF16 &&
                       !(like->packed8.flags & TRF_PACKED8_IN_TURNS);
    if (like->context != context || !(is_bf16 || is_fp8))
        return trf_fail(
            err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
            "a layer is packed like a packed one of its context that has BF16 weights and no row offsets, and "
            "not rows of gate and up in turns");
    if (is_fp8 && options->packed_bf16)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "a layer that is to be packed as BF16 cannot be packed like one of FP8");
    if (like->info.rows != matrix->rows || like->info.cols != matrix->cols)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%ux%u weights cannot be packed like %ux%u", matrix->rows,
                        matrix->cols, like->info.rows, like->info.cols);
    return TRF_OK;
}

trf_status trf_check_dense_weights(const trf_device_matrix *matrix, trf_layer_size *size, trf_error *err) {
    if (matrix->rows == 0 || matrix->cols == 0)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a layer of %ux%u weights cannot be packed", matrix->rows,
                        matrix->cols);
    if (!matrix->weights || (uintptr_t)matrix->weights % sizeof(uint16_t))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "packing needs weights in device memory, aligned to 2 bytes");
    return trf_packed_get_matrix_size(matrix, size, err);
}

/* Checks that the weights are given, and the layer's memory, if the caller supplies it. */
static trf_status check_memory(const trf_context *context, const trf_device_matrix *matrix,
                               const trf_layer_memory *memory, trf_error *err) {
    trf_layer_size size;
    trf_status status = trf_check_dense_weights(matrix, &size, err);
    if (status != TRF_OK || !trf_has_memory(memory))
        return status;
    const uint64_t weights = (uint64_t)(matrix->rows - 1) * matrix->ld + matrix->cols;
    const trf_given_buffer given = {matrix->weights, weights * sizeof(uint16_t)};
    return trf_check_layer_memory(memory, &size, &given, context->ops->alignment, 0, err);
}

static trf_status make_layer(trf_context *context, const trf_device_matrix *matrix, const trf_pack_options *options,
                             trf_device_layer **layer, trf_error *err) {
    const trf_layout_ops *ops;
    trf_device_layer *made;
    const trf_layout layout = options->like ? options->like->layout->layout : TRF_LAYOUT_PACKED;
    trf_status status = trf_find_layout(context, layout, &ops, err);
    if (status == TRF_OK)
        status = trf_begin_device_layer(context, ops, &made, err);
    if (status != TRF_OK)
        return status;
    made->header = trf_layout_bf16_header(matrix->rows, matrix->cols);
    made->info = trf_layout_coded_info(&made->header, matrix->rows, matrix->cols);
    made->is_to_be_bf16 = options->packed_bf16;
    status = ops->pack(made, matrix, options, err);
    if (status == TRF_OK)
        *layer = made;
    else
        free(made);
    return status;
}

trf_status trf_device_layer_pack(trf_context *context, const trf_device_matrix *matrix, const trf_pack_options *options,
                                 trf_device_layer **layer, trf_error *err) {
    trf_device_matrix dense;
    trf_pack_options taken;
    if (!context || !layer)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "packing needs a context, and a place for the layer");
    trf_status status = trf_take_device_matrix(matrix, &dense, err);
    if (status == TRF_OK)
        status = take_options(options, &taken, err);
    if (status == TRF_OK)
        status = check_memory(context, &dense, &taken.memory, err);
    if (status == TRF_OK)
        status = check_like(context, &dense, &taken, err);
    return status == TRF_OK ? make_layer(context, &dense, &taken, layer, err) : status;
}
