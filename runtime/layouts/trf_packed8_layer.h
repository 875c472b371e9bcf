/* SPDX-License-Identifier: Apache-2.0 */
/* What packed FP8 layers have in common on every kind of device. Such a layer is a buffer that the second half of
 * format/PACKED.md describes, and has no directory. It is made where the layout 'packed8' is asked for, and where
 * 'packed' is and the layer is FP8 that fits it; other layers become packed BF16 (trf_packed_layer.h) then. */
#ifndef TRF_PACKED8_LAYER_H
#define TRF_PACKED8_LAYER_H

#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_find_fp8_launch.h"
#include "trf_layer_feed.h"
#include "trf_packed8_head.h"

/* What is to be packed, a shard of a blob, a layer or dense weights, and the scales of its weights. */
typedef struct trf_pack8_request {
    uint32_t codec, dtype; /* of the coded layer, whose layout `lies` is CODED */
    trf_layout lies;
    uint32_t rows, cols;
    uint32_t row, col; /* of the table's layer, where the first weight is */
    uint32_t granularity, scale_group_size, scale_cols;
    const float *scales;          /* the table, where the layer is; not of E4M3 without scales */
    const uint32_t *pairs;        /* the constants of the scales, where they are; or NULL: they are still to be found */
    const trf_device_layer *like; /* as trf_pack_options has it, a packed FP8 layer; or NULL */
} trf_pack8_request;

trf_pack8_request trf_pack8_request_of_shard(const struct trf_blob_view *view, const trf_shard_range *shard);
trf_pack8_request trf_pack8_request_of_layer(const trf_device_layer *from);

/* Dense weights, [rows][cols], that are FP8 with these scales of 128x128 weights: to packing they are what a coded
 * layer of scaled FP8 decodes to. */
trf_pack8_request trf_pack8_request_of_dense(uint32_t rows, uint32_t cols, const float *scales,
                                             const trf_device_layer *like);

/* Whether the weights are FP8, so that 'packed' tries to pack them so. */
int trf_pack8_is_fp8(const trf_pack8_request *request);

/* Whether a layer is coded, and FP8 with scales. */
int trf_is_coded_scaled_fp8(const trf_device_layer *layer);

/* Checks what can be known without the weights and the scales. Errors: TRF_ERR_UNSUPPORTED with the reason: no FP8,
 * scales of rows, blocks that do not fit, shape. */
trf_status trf_pack8_check(const trf_pack8_request *request, trf_error *err);

/* Makes the size of a layer of gate and up in turns, with its flag. requests: of as many rows each; checked as
 * trf_pack8_check does, but that 32 rows of each have the same constants. Errors: likewise. */
trf_status trf_pack8_size_turns(const trf_pack8_request requests[2], trf_packed8_head *head, trf_error *err);

/* Says what memory the packed FP8 layer takes, whatever its weights are. Errors: those of trf_pack8_check. */
trf_status trf_pack8_get_size(const trf_pack8_request *request, trf_layer_size *size, trf_error *err);

/* Whether `made` becomes a packed FP8 layer, or at least may: its layout, which is what was asked for, is PACKED8, or
 * it is PACKED and the request fits. If it is PACKED, and the weights are FP8 that does not fit, the layer notes why.
 */
int trf_pack8_is_due(trf_device_layer *made, const trf_pack8_request *request);

/* Whether to look for FP8 in dense weights that become `made`: PACKED8 was asked for, or PACKED, but not packed BF16.
 * like: as trf_pack_options has it. */
int trf_pack8_looks(const trf_device_layer *made, const trf_device_layer *like);

/* Says what a search that was read back means. *is_fp8: whether the weights are FP8. Errors: TRF_ERR_UNSUPPORTED (they
 * are not, and `made` must be PACKED8). */
trf_status trf_pack8_judge_search(const trf_device_layer *made, const trf_found_fp8 *found, int *is_fp8,
                                  trf_error *err);

/* Checks that a packed layer with these flags of its head may take the place of the one that it is packed like: plans
 * of that one run kernels for its flags. Errors: TRF_ERR_UNSUPPORTED. */
trf_status trf_pack8_check_like(const trf_pack8_request *request, uint32_t flags, trf_error *err);

/* Decides what follows from the outcome of packing FP8. @return whether the layer is to be packed as BF16 after all: it
 * was asked for as 'packed', and cannot be packed as FP8. Then it notes the reason, which err has. */
int trf_pack8_falls_back(trf_device_layer *made, trf_status status, const trf_error *err);

/* Members of trf_layout_ops. The size is that of every layer of the shape. Adopting reads the head alone. */
trf_status trf_packed8_get_size(const struct trf_blob_view *view, const trf_shard_range *shard, trf_layer_size *size,
                                trf_error *err);
trf_status trf_packed8_get_converted_size(const trf_device_layer *from, trf_layer_size *size, trf_error *err);
trf_status trf_packed8_adopt(trf_device_layer *made, const void *buffer, uint64_t buffer_bytes, trf_error *err);

/* Completes a layer that has been packed: sets its table and the fields that describe its buffer, for all of its
 * matrix. info is set, and the head is checked or made. Errors: none but that of trf_find_layout. */
trf_status trf_packed8_set_buffer(trf_device_layer *layer, const trf_packed8_head *head, const void *buffer,
                                  trf_error *err);

/* Packs decoded elements, [rows][stride] in host memory, as FP8: to the caller's memory `at`, or, if that is NULL, to
 * made->memory. The request's scales are in host memory, too. Errors: TRF_ERR_UNSUPPORTED (the layer cannot be packed
 * so; made is as before), TRF_ERR_MEMORY. */
trf_status trf_cpu_pack8(trf_device_layer *made, const trf_pack8_request *request, const uint16_t *elements,
                         size_t stride, uint8_t *at, trf_error *err);

/* Looks for FP8 in dense weights in host memory, and packs them so if they are FP8 that fits. at: as in trf_cpu_pack8.
 * *done: whether the layer is made; if not, and TRF_OK is returned, it is to be packed as BF16. Errors: those of
 * trf_cpu_pack8 and trf_pack8_judge_search. */
trf_status trf_cpu_pack8_dense(trf_device_layer *made, const trf_rows_to_pack *rows, const trf_device_layer *like,
                               uint8_t *at, int *done, trf_error *err);

/* Members of trf_layout_ops, on the CPU and on a GPU. */
trf_status trf_cpu_pack8_turns(trf_device_layer *made, const trf_pack8_request requests[2], const uint16_t *weights,
                               const trf_layer_memory *memory, trf_error *err);
trf_status trf_cuda_pack8_turns(trf_device_layer *made, const trf_pack8_request requests[2], const uint16_t *weights,
                                const trf_layer_memory *memory, trf_error *err);
trf_status trf_cpu_find_fp8(trf_context *context, const trf_rows_to_pack *rows, trf_stream stream, int checks_all,
                            float *scales, trf_found_fp8 *found, trf_error *err);
trf_status trf_cuda_find_fp8(trf_context *context, const trf_rows_to_pack *rows, trf_stream stream, int checks_all,
                             float *scales, trf_found_fp8 *found, trf_error *err);

#endif
