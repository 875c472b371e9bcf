/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding one layer from a source of rows into a sink of bytes, in memory bounded by a few tile spans. */
#ifndef TRF_ENCODE_H
#define TRF_ENCODE_H

#include "trf_error.h"
#include "trf_fp8_codes.h"

/* Where a layer's weights come from. read fills dst (host, row-major [num_rows][num_cols] of dtype) with the
 * rectangle of weights whose first one is (row, col), which lies inside the matrix. It may be called several times for
 * the same rectangle and from several threads at once. */
typedef struct trf_source {
    trf_dtype dtype;
    uint32_t rows, cols;
    void *context;
    trf_status (*read)(void *context, uint32_t row, uint32_t num_rows, uint32_t col, uint32_t num_cols, void *dst,
                       trf_error *err);
    const void *weights; /* the whole matrix where it is in memory, host, row-major [rows][cols], aligned for dtype; or
                          * NULL. Spares the encoder a copy; read must work all the same. */
} trf_source;

/* Where the blob goes. write puts size bytes at `offset` from the blob's first byte; it may be called from several
 * threads at once, for ranges that do not overlap. Tile data comes first, the head last. */
typedef struct trf_sink {
    void *context;
    trf_status (*write)(void *context, uint64_t offset, const void *bytes, size_t size, trf_error *err);
} trf_sink;

/* tick is called now and then with the number of weights that are done and the total. If it returns nonzero, the
 * encoding stops with TRF_ERR_CANCELLED. One thread calls it at a time. */
typedef struct trf_progress {
    void *context;
    int (*tick)(void *context, uint64_t done_weights, uint64_t total_weights);
} trf_progress;

/* What a layer has been encoded as. */
typedef struct trf_encoded {
    uint64_t blob_bytes;
    trf_codec codec;
    trf_granularity granularity;
    uint32_t scale_group_size;
} trf_encoded;

/* Translates the caller's options, of whatever version, into this version's; NULL means the defaults. Errors: as
 * trf_take_struct. */
trf_status trf_take_encode_options(const trf_encode_options *options, trf_encode_options *taken, trf_error *err);

/* Checks options by themselves, whatever is encoded. Errors: TRF_ERR_ARGUMENT. */
trf_status trf_check_encode_options(const trf_encode_options *options, trf_error *err);

/* Encodes a layer. progress may be NULL; report may be NULL. The codec AUTO looks whether BF16 weights are FP8 times
 * scales (trf_find_fp8.h), and E4M3 demands it of them. The bytes written depend only on the weights and the options.
 * If rate control has to encode more than once, tiles are written again from the first one on; the last write of each
 * byte counts, and encoded->blob_bytes. Errors: as trf_encode_layer (transfuse.h), TRF_ERR_CANCELLED, and whatever
 * source and sink return. */
trf_status trf_encode_source(const trf_source *source, const trf_encode_options *options, const trf_sink *sink,
                             const trf_progress *progress, trf_encoded *encoded, trf_layer_report *report,
                             trf_error *err);

/* Encodes a layer of BF16 weights as scaled FP8 with these scales, as trf_encode_source does otherwise. A weight that
 * is no code times its scale is an exception. scales: all of trf_is_fp8_scale, in the number and order of the layer's
 * scale table; the caller's. options: the codec is not looked at. */
trf_status trf_encode_scaled_fp8(const trf_source *source, const trf_fp8_scales *scales,
                                 const trf_encode_options *options, const trf_sink *sink, const trf_progress *progress,
                                 trf_encoded *encoded, trf_layer_report *report, trf_error *err);

/* @return the most memory that trf_encode_source takes at a time for a layer of this dtype and shape, besides what
 * source and sink take. options: with its codec. */
uint64_t trf_encode_bytes(const trf_source *source, const trf_encode_options *options);

/* @return the codec that gives every weight of a dtype back, or TRF_CODEC_AUTO for F32, which has none. */
trf_codec trf_lossless_codec(trf_dtype dtype);

/* @return the columns of a slab that a layer gets if the options do not say. codec: not AUTO. class_bits: 4 with
 * TRF_FAVOR_SIZE, else 2. */
uint32_t trf_choose_slab_cols(trf_codec codec, uint32_t class_bits, uint32_t rows, uint32_t cols);

#endif
