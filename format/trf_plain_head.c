/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_plain_head.h"

#include <inttypes.h>
#include <string.h>

trf_dtype trf_plain_dtype(uint32_t codec) {
    return codec == TRF_CODEC_BF16 ? TRF_DTYPE_BF16 : codec == TRF_CODEC_FP16 ? TRF_DTYPE_F16 : TRF_DTYPE_NONE;
}

void trf_plain_head_write(const trf_header *coded, const trf_layer_info *info, trf_plain_head *head) {
    memset(head, 0, sizeof *head);
    head->rows = info->rows;
    head->cols = info->cols;
    head->weight_dtype = (uint8_t)trf_plain_dtype(coded->codec);
    head->coded_stored_tiles = info->stored_tiles;
    head->coded_exceptions = info->exceptions;
    head->coded_header = *coded;
    trf_layout_head_finish(&head->common, TRF_LAYOUT_PLAIN, TRF_PLAIN_VERSION,
                           trf_plain_buffer_bytes(info->rows, info->cols));
}

/* Checks the layout's own fields. */
static trf_status check_fields(const trf_plain_head *head, trf_error *err) {
    const uint64_t limit = (UINT64_MAX - TRF_PLAIN_WEIGHTS_OFFSET) / TRF_PLAIN_WEIGHT_BYTES;
    const trf_header *coded = &head->coded_header;
    if (!head->rows || !head->cols || (uint64_t)head->rows * head->cols > limit ||
        head->common.buffer_bytes != trf_plain_buffer_bytes(head->rows, head->cols))
        return trf_fail(err, TRF_ERR_HEADER, offsetof(trf_plain_head, rows),
                        "a plain layer of %" PRIu32 "x%" PRIu32 " weights in a buffer of %" PRIu64 " bytes", head->rows,
                        head->cols, head->common.buffer_bytes);
    if (head->weight_dtype == TRF_DTYPE_NONE || head->weight_dtype != trf_plain_dtype(coded->codec) ||
        (coded->source_dtype != head->weight_dtype &&
         (coded->source_dtype != TRF_DTYPE_F32 || coded->codec != TRF_CODEC_BF16)))
        return trf_fail(err, TRF_ERR_HEADER, offsetof(trf_plain_head, weight_dtype),
                        "a plain layer of codec %d and dtypes %d and %d", coded->codec, head->weight_dtype,
                        coded->source_dtype);
    if (coded->magic != TRF_MAGIC || coded->version != TRF_FORMAT_VERSION)
        return trf_fail(err, TRF_ERR_HEADER, offsetof(trf_plain_head, coded_header),
                        "a plain layer that was loaded from no blob of this version");
    const trf_status status = trf_layout_head_check_reserved(head, offsetof(trf_plain_head, reserved0),
                                                             offsetof(trf_plain_head, coded_stored_tiles), err);
    return status == TRF_OK ? trf_layout_head_check_reserved(head, offsetof(trf_plain_head, reserved1),
                                                             offsetof(trf_plain_head, data), err)
                            : status;
}

trf_status trf_plain_head_read(const trf_plain_head *head, uint64_t buffer_bytes, trf_layer_info *info,
                               trf_error *err) {
    const trf_header *coded = &head->coded_header;
    trf_status status = trf_layout_head_check(&head->common, TRF_LAYOUT_PLAIN, TRF_PLAIN_VERSION, buffer_bytes, err);
    if (status == TRF_OK)
        status = check_fields(head, err);
    if (status != TRF_OK)
        return status;
    *info = trf_layout_coded_info(coded, head->rows, head->cols);
    info->stored_tiles = head->coded_stored_tiles;
    info->exceptions = head->coded_exceptions;
    return TRF_OK;
}
