/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_layout_head.h"

#include "transfuse/device_memory.h"
#include "trf_checksum.h"

#include <inttypes.h>
#include <string.h>

uint64_t trf_layout_head_checksum(const trf_layout_head_common *head) {
    uint64_t bytes[TRF_LAYOUT_HEAD_BYTES / sizeof(uint64_t)];
    memcpy(bytes, head, sizeof bytes);
    bytes[offsetof(trf_layout_head_common, checksum) / sizeof(uint64_t)] = 0;
    *trf_layout_head_data(bytes) = (trf_data_checksum){0};
    return trf_checksum_best()(bytes, sizeof bytes, 0);
}

void trf_layout_head_finish(trf_layout_head_common *head, trf_layout layout, uint16_t version, uint64_t buffer_bytes) {
    head->magic = TRF_LAYOUT_MAGIC;
    head->layout = (uint16_t)layout;
    head->version = version;
    head->head_bytes = TRF_LAYOUT_HEAD_BYTES;
    head->reserved = 0;
    head->buffer_bytes = buffer_bytes;
    head->checksum = trf_layout_head_checksum(head);
}

trf_header trf_layout_bf16_header(uint32_t rows, uint32_t cols) {
    return (trf_header){.magic = TRF_MAGIC,
                        .version = TRF_FORMAT_VERSION,
                        .codec = TRF_CODEC_BF16,
                        .source_dtype = TRF_DTYPE_BF16,
                        .tile_size = TRF_TILE_SIZE,
                        .rows = rows,
                        .cols = cols,
                        .num_tile_rows = (rows - 1) / TRF_TILE_SIZE + 1,
                        .num_tile_cols = (cols - 1) / TRF_TILE_SIZE + 1};
}

trf_layer_info trf_layout_coded_info(const trf_header *coded, uint32_t rows, uint32_t cols) {
    return (trf_layer_info){
        .rows = rows,
        .cols = cols,
        .dtype = (trf_dtype)coded->source_dtype,
        .codec = (trf_codec)coded->codec,
        .class_bits = coded->class_bits,
        .raw_bits = coded->raw_bits,
        .probability_bits = coded->probability_bits,
        .state_bits = coded->state_bits,
        .slab_cols = coded->slab_cols,
        .predictor_modes = coded->predictor_modes,
        .blob_bytes = coded->blob_bytes,
        .tiles = (uint64_t)coded->num_tile_rows * coded->num_tile_cols,
    };
}

trf_status trf_layout_head_check_fields(const trf_layout_head_field *fields, size_t count, trf_error *err) {
    for (size_t i = 0; i < count; i++)
        if (fields[i].is != fields[i].should)
            return trf_fail(err, TRF_ERR_HEADER, fields[i].offset, "%s is %" PRIu64 ", not %" PRIu64, fields[i].name,
                            fields[i].is, fields[i].should);
    return TRF_OK;
}

trf_status trf_layout_head_check_reserved(const void *head, size_t first, size_t end, trf_error *err) {
    for (size_t at = first; at < end; at++)
        if (((const uint8_t *)head)[at])
            return trf_fail(err, TRF_ERR_HEADER, at, "a reserved byte is not zero");
    return TRF_OK;
}

trf_status trf_layout_head_check(const trf_layout_head_common *head, trf_layout layout, uint16_t version,
                                 uint64_t buffer_bytes, trf_error *err) {
    if (buffer_bytes < TRF_LAYOUT_HEAD_BYTES)
        return trf_fail(err, TRF_ERR_TRUNCATED, buffer_bytes, "a buffer of %" PRIu64 " bytes, with a head of %d",
                        buffer_bytes, TRF_LAYOUT_HEAD_BYTES);
    if (!trf_is_layout_head(head))
        return trf_fail(err, TRF_ERR_MAGIC, 0, "not the buffer of a layer: magic is 0x%08" PRIX32, head->magic);
    const uint64_t checksum = trf_layout_head_checksum(head);
    if (checksum != head->checksum)
        return trf_fail(err, TRF_ERR_CHECKSUM, offsetof(trf_layout_head_common, checksum),
                        "the head's checksum is 0x%016" PRIX64 ", computed 0x%016" PRIX64, head->checksum, checksum);
    if (head->layout != layout)
        return trf_fail(err, TRF_ERR_HEADER, offsetof(trf_layout_head_common, layout),
                        "the buffer is of layout '%s', not '%s'", trf_layout_name((trf_layout)head->layout),
                        trf_layout_name(layout));
    if (head->version != version)
        return trf_fail(err, TRF_ERR_VERSION, offsetof(trf_layout_head_common, version),
                        "a buffer of layout '%s' of version %d, and this build reads %d", trf_layout_name(layout),
                        head->version, version);
    if (head->head_bytes != TRF_LAYOUT_HEAD_BYTES || head->reserved || head->buffer_bytes < TRF_LAYOUT_HEAD_BYTES)
        return trf_fail(err, TRF_ERR_HEADER, offsetof(trf_layout_head_common, head_bytes),
                        "a head of %" PRIu32 " bytes in a buffer of %" PRIu64, head->head_bytes, head->buffer_bytes);
    if (head->buffer_bytes > buffer_bytes)
        return trf_fail(err, TRF_ERR_TRUNCATED, buffer_bytes, "the buffer ends after %" PRIu64 " of %" PRIu64 " bytes",
                        buffer_bytes, head->buffer_bytes);
    return TRF_OK;
}
