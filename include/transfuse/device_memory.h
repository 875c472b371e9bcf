/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory without CUDA calls of one's own, for a command or a binding by FFI; loading checkpoints to memory of
 * one's own, for an engine; single rows of a compressed table, such as token embeddings; and other layouts of a layer,
 * and its blob. transfuse.h has the conventions. */
#ifndef TRANSFUSE_DEVICE_MEMORY_H
#define TRANSFUSE_DEVICE_MEMORY_H

#include "../transfuse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The device code that the library which runs was built with. */
typedef struct trf_build_info {
    /* Its compute capabilities, and those of the PTX that drivers compile for newer GPUs, such as "8.0 8.6 8.9 9.0a
     * 9.0+PTX". A build without device code has "". */
    const char *device_code;
    int cuda_version; /* the CUDA runtime's, 13000 for 13.0; 0 without device code */
} trf_build_info;

TRF_API void trf_get_build_info(trf_build_info *info);

/* @return "coded", "plain", "packed", "packed8" or "?". */
TRF_API const char *trf_layout_name(trf_layout layout);

/* Allocates device memory. *memory is 256-byte aligned, and NULL for no bytes. */
TRF_API trf_status trf_device_allocate(const trf_context *context, uint64_t bytes, void **memory, trf_error *err);
TRF_API void trf_device_free(const trf_context *context, void *memory);

/* Copy between host and device memory. They wait for all that the device was given before, and the copy is complete
 * when they return. */
TRF_API trf_status trf_device_upload(const trf_context *context, void *to, const void *from_host, uint64_t bytes,
                                     trf_error *err);
TRF_API trf_status trf_device_download(const trf_context *context, void *to_host, const void *from, uint64_t bytes,
                                       trf_error *err);

/* Says what memory trf_device_layer_load will take with these options (NULL: the defaults), so that the caller can pass
 * it as options->memory. It reads the head of the tensor's blob, and the tiles of a shard that cuts tiles of float
 * weights. Errors: those of trf_device_layer_load, except for what is wrong with other tiles. */
TRF_API trf_status trf_device_layer_get_load_size(const trf_context *context, trf_checkpoint *checkpoint,
                                                  const char *tensor, const trf_load_options *options,
                                                  trf_layer_size *size, trf_error *err);

/* Which rows, and where they go. Everything is in device memory. */
typedef struct trf_row_request {
    size_t struct_bytes;
    const void *row_ids; /* `count` signed integers of id_bytes each, aligned to that; any order, repeats allowed */
    uint32_t id_bytes;   /* 4 or 8 */
    uint32_t count;
    trf_decode_as as;
    void *rows; /* row-major [count][cols], aligned to its elements; apart from row_ids */
    uint64_t rows_bytes;
} trf_row_request;

TRF_API void trf_row_request_init(trf_row_request *request);

/* Decodes single rows. The ids of a shard, whatever its bounds, count from its first row, and its columns are written.
 * A row is what trf_device_layer_decode gives, bit for bit, except for which NaN it is where NaNs are converted. An id
 * that the layer does not have gives a row of NaN, or of zeros where integers are written; trf_device_layer_check does
 * not report it. Corrupt rANS words are found only in the lanes that are read. Errors: TRF_ERR_SHAPE for another size,
 * TRF_ERR_UNSUPPORTED for BF16 or F16 of the other 16-bit float codec, TRF_ERR_RANS on the CPU, where what has been
 * written is unspecified then. */
TRF_API trf_status trf_decode_rows(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                                   trf_error *err);

/* Compares a layer, as it lies in device memory, with checksums that were made with it, and so finds what has changed
 * in that memory since. Everything that the layer consists of is checked: of a coded layer the head and each tile, by
 * the blob's own checksums, and the directory; of other layouts the head, and the data behind it. On the GPU it takes
 * about as long as reading the layer from device memory, and 512 bytes of device memory; a layer that a stack has
 * offloaded is checked in host memory. It waits for the device, and must not be called while a stream captures a graph.
 * One bit that has flipped in the data of a layer that is not coded is always found; other changes pass with a
 * probability of 2^-64. Errors: TRF_ERR_CHECKSUM, whose message says what has changed: a coded layer's first such tile,
 * and its place in the blob as the offset; or, of other layouts, which 4,096 bytes of the buffer, if they are the only
 * ones, else TRF_NO_OFFSET. */
TRF_API trf_status trf_device_layer_verify(const trf_device_layer *layer, trf_error *err);

/* Says why a layer of FP8 weights that PACKED was asked for lies as packed BF16 and not as PACKED8, in one line without
 * its end; "" for every other layer. Dense weights count as FP8 where trf_device_layer_pack finds that they are. The
 * text is the layer's. */
TRF_API const char *trf_device_layer_get_layout_reason(const trf_device_layer *layer);

/* Says what memory trf_device_layer_convert takes for the new layer. It has the same errors. */
TRF_API trf_status trf_device_layer_get_converted_size(const trf_device_layer *layer, trf_layout layout,
                                                       trf_layer_size *size, trf_error *err);

/* Makes a PLAIN, PACKED or PACKED8 layer from one that is on the device. Use trf_device_layer_encode to get a coded
 * blob. Both layers exist afterwards: the old one stays as it is, with its plans, and may be in use meanwhile; the new
 * one has the same rows and columns, has no plan yet, and does not need the old one. memory is the caller's, as
 * trf_layer_memory has it, and does not overlap the old layer's; with NULL or zeros the library allocates. When the
 * call returns any stream may use the new layer. Of an old layer that is not coded the call waits for the device, whose
 * work may still be writing it. A GPU's layer does not pass the host, but takes some device memory while the call
 * lasts. Errors: TRF_ERR_ARGUMENT, also where the layer lies so already, or where memory is too small,
 * misaligned or the old layer's; TRF_ERR_UNSUPPORTED for a codec that the layout does not take, weights that cannot be
 * packed, CODED, and a stack's layer; TRF_ERR_RANS where a tile does not decode, which trf_device_layer_check of the
 * old layer says, too. The content of memory is unspecified after a failure. */
TRF_API trf_status trf_device_layer_convert(const trf_device_layer *layer, trf_layout layout,
                                            const trf_layer_memory *memory, trf_device_layer **converted,
                                            trf_error *err);

/* Says what memory trf_device_layer_join takes for the new layer. It has the same errors. */
TRF_API trf_status trf_device_layer_get_joined_size(const trf_device_layer *const *layers, uint32_t count,
                                                    trf_layer_size *size, trf_error *err);

/* Makes one PACKED8 layer of [count] of them, whose rows follow each other, such as those of q, k and v: products by it
 * take one launch. The layers are of one context, number of columns and dtype of the source, and all but the last have
 * a multiple of 64 rows; scales may differ. Bytes are copied on the device, and no weight is formed. The old layers
 * stay as they are, and may be destroyed when the call returns; any stream may use the new one then. Its
 * trf_layer_info has no blob's fields, as with trf_device_layer_pack. memory is the caller's, which overlaps none of
 * the layers, or NULL or zeros: the library allocates. Errors: TRF_ERR_ARGUMENT, also for layers that do not fit
 * together or memory that is too small or misaligned; TRF_ERR_UNSUPPORTED for other layouts and numbers of rows, and
 * for rows of gate and up in turns; TRF_ERR_MEMORY; TRF_ERR_CUDA. The content of memory is unspecified after a
 * failure. */
TRF_API trf_status trf_device_layer_join(const trf_device_layer *const *layers, uint32_t count,
                                         const trf_layer_memory *memory, trf_device_layer **joined, trf_error *err);

/* The caller's dense weights in device memory, row-major: row r begins at weights[r * ld]. They are only read. */
typedef struct trf_device_matrix {
    size_t struct_bytes;
    const void *weights; /* aligned to its elements; packing takes less time where rows are aligned to 16 bytes */
    trf_dtype dtype;     /* TRF_DTYPE_BF16 (the default) */
    uint32_t rows, cols;
    uint64_t ld; /* elements from one row to the next, at least cols; 0 is cols */
} trf_device_matrix;

TRF_API void trf_device_matrix_init(trf_device_matrix *matrix);

/* How to pack. By default the library allocates, and packing follows the work of the default stream. */
typedef struct trf_pack_options {
    size_t struct_bytes;
    trf_layer_memory memory; /* the caller's, which does not overlap the weights; with zeros the library allocates */
    trf_stream stream;       /* packing begins when the work that this stream has been given is done */
    /* For weights that change later: how many stored tiles there is to be room for beyond those that these weights
     * need, as far as packing still pays then. Each takes 4096 bytes; a layer of usual weights has hardly one, and a
     * PACKED8 layer has none. */
    uint64_t stored_room;
    /* A PACKED or PACKED8 layer of BF16 weights, of the same context, rows and columns, without row offsets and rows
     * of gate and up in turns, or NULL. The new layer takes its layout, and its window and number of stored tiles, so
     * that their buffers differ by the weights alone. Copy the new buffer over the old one, after all work that uses
     * the old weights, and the old layer's plans, and CUDA graphs that have captured them, multiply by the new weights.
     * Copy by cudaMemcpyAsync on the next product's stream, or wait for your own kernel that copies: products may read
     * weights before the kernel in front of them has ended. stored_room does not count then. */
    const trf_device_layer *like;
    int packed_bf16; /* 1: the layer is PACKED, of FP8 as well; as in trf_load_options */
} trf_pack_options;

TRF_API void trf_pack_options_init(trf_pack_options *options);

/* Says what memory trf_device_layer_pack takes for a layer of so many rows and columns: the most that one of its shape
 * can take. Errors: TRF_ERR_ARGUMENT, TRF_ERR_UNSUPPORTED for the shape or the dtype. */
TRF_API trf_status trf_device_layer_get_packed_size(const trf_context *context, const trf_device_matrix *matrix,
                                                    trf_layer_size *size, trf_error *err);

/* Makes a packed layer from dense weights, on their device, losslessly and without a blob. Where in each 128x128 of the
 * weights all but 0.4 % of them at most are FP8 E4M3 codes times one scale, the layer becomes PACKED8 if it fits that,
 * on the CPU and on GPUs of compute capability 9.0; all others become PACKED. The layer is what TRF_LAYOUT_PACKED makes
 * of a plain layer with these weights, byte for byte except for what its head says of a blob, and does not need them
 * any more. In its trf_layer_info class_bits, probability_bits, slab_cols, blob_bytes and the like are 0, since there
 * was no blob; trf_device_layer_encode makes one with the default options. options may be NULL for the defaults. When
 * the call returns any stream may use the layer. Errors: TRF_ERR_ARGUMENT, also for memory that is too small,
 * misaligned or overlaps the weights, and for a layer that it cannot be `like`; TRF_ERR_UNSUPPORTED for a dtype other
 * than BF16, weights that cannot be packed, and those that do not fit the form of `like`: they need more stored tiles,
 * or, if that is PACKED8, are no FP8, or need records or second constants, which it does without; TRF_ERR_MEMORY;
 * TRF_ERR_CUDA. The content of memory is unspecified after a failure. */
TRF_API trf_status trf_device_layer_pack(trf_context *context, const trf_device_matrix *matrix,
                                         const trf_pack_options *options, trf_device_layer **layer, trf_error *err);

/* Gives a layer back as a coded blob, which the caller releases with trf_free. A coded layer's blob is a copy of its
 * own. A plain or packed layer is decoded, and encoded with the options of the blob that it was made from (codec,
 * favor, probability bits, width of slabs), which it keeps, or with the default ones. The weights are the same, bit for
 * bit, and so are the bytes if this version's encoder had made the blob of these rows and columns. Of BF16 weights that
 * are FP8 times scales nothing is kept: PACKED8 encodes them as that where it finds the scales, PLAIN and PACKED as
 * bf16, with the default options. The call waits for the device, and needs host memory for the dense weights, and on a
 * GPU device memory as well. threads: 0 is one for each core. *blob and *blob_bytes are set on success only. Errors:
 * TRF_ERR_UNSUPPORTED for a coded shard that does not begin and end at multiples of 256 or with the matrix,
 * TRF_ERR_MEMORY. */
TRF_API trf_status trf_device_layer_encode(const trf_device_layer *layer, int threads, void **blob,
                                           uint64_t *blob_bytes, trf_error *err);

#ifdef __cplusplus
}
#endif
#endif
