/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory and rows: for programs that have no CUDA calls of their own (a command, a binding by FFI) or that load
 * checkpoints to memory of their own (an engine), and for the look-up of single rows, such as token embeddings, in a
 * compressed table; and for those that change a layer's layout, or give its blob back, to write it to a file.
 * Conventions: transfuse.h. */
#ifndef TRANSFUSE_DEVICE_MEMORY_H
#define TRANSFUSE_DEVICE_MEMORY_H

#include "../transfuse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The device code that the library which runs was built with. */
typedef struct trf_build_info {
    /* Compute capabilities, and those of the PTX that drivers compile for newer GPUs: "8.0 8.6 8.9 9.0a 9.0+PTX"; "" in
     * a build without device code. */
    const char *device_code;
    int cuda_version; /* of its CUDA runtime, 13000 for 13.0; 0 without device code */
} trf_build_info;

TRF_API void trf_get_build_info(trf_build_info *info);

/* @return "coded", "plain", "packed" or "?". */
TRF_API const char *trf_layout_name(trf_layout layout);

/* *memory is 256-byte aligned, and NULL for no bytes. */
TRF_API trf_status trf_device_allocate(const trf_context *context, uint64_t bytes, void **memory, trf_error *err);
TRF_API void trf_device_free(const trf_context *context, void *memory);

/* Copies between host and device memory: wait for all that the device was given before, and are complete when they
 * return. */
TRF_API trf_status trf_device_upload(const trf_context *context, void *to, const void *from_host, uint64_t bytes,
                                     trf_error *err);
TRF_API trf_status trf_device_download(const trf_context *context, void *to_host, const void *from, uint64_t bytes,
                                       trf_error *err);

/* The memory that trf_device_layer_load will take with these options (NULL: the defaults), in order to pass it as
 * options->memory. Reads the head of the tensor's blob; of a shard that cuts tiles of float weights, tiles are read and
 * checked. Errors: as trf_device_layer_load, but for what is wrong with tiles. */
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

/* Decodes single rows. Of a shard, whatever its bounds, ids count from its first row, and its columns are written. A
 * row is what trf_device_layer_decode gives, bit for bit (but for which NaN it is where NaNs are converted). An id that
 * the layer does not have gives a row of NaN, or of zeros where integers are written; trf_device_layer_check does not
 * report it. Corrupt rANS words are found only in the lanes that are read. Errors: TRF_ERR_SHAPE (size),
 * TRF_ERR_UNSUPPORTED (BF16 or F16 of the other 16-bit float codec); on the CPU TRF_ERR_RANS. */
TRF_API trf_status trf_decode_rows(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                                   trf_error *err);

/* The memory that trf_device_layer_convert takes for the new layer. Errors: as there. */
TRF_API trf_status trf_device_layer_get_converted_size(const trf_device_layer *layer, trf_layout layout,
                                                       trf_layer_size *size, trf_error *err);

/* Makes a layer in another layout of one that is on the device, there: PLAIN or PACKED (to a coded one leads
 * trf_device_layer_encode). Both are there then. The old one stays as it is, with its plans; the new one is of the same
 * rows and columns, has no plan yet, and does not need the old one any more. memory: the caller's, apart from the old
 * layer's, as trf_layer_memory has it; NULL or zeros: the library allocates. Synchronous: any stream may use the new
 * layer then; the old one may be in use meanwhile. A GPU's layer does not pass the host, but takes some device memory
 * while the call lasts.
 * Errors: TRF_ERR_ARGUMENT (also: it lies so already; memory that is too small, misaligned or the old layer's);
 * TRF_ERR_UNSUPPORTED (a codec that the layout does not take; weights that cannot be packed; CODED; a stack's layer);
 * TRF_ERR_RANS (a tile does not decode: trf_device_layer_check of the old layer says so, too). The content of memory
 * is unspecified after a failure. */
TRF_API trf_status trf_device_layer_convert(const trf_device_layer *layer, trf_layout layout,
                                            const trf_layer_memory *memory, trf_device_layer **converted,
                                            trf_error *err);

/* Dense weights in the device's memory (the CPU's: host memory), row-major: row r begins at weights[r * ld]. The
 * caller's; only read. */
typedef struct trf_device_matrix {
    size_t struct_bytes;
    const void *weights; /* aligned to its elements; packing takes less time where rows are aligned to 16 bytes */
    trf_dtype dtype;     /* TRF_DTYPE_BF16 (the default) */
    uint32_t rows, cols;
    uint64_t ld; /* elements from one row to the next, `cols` at least; 0: cols */
} trf_device_matrix;

TRF_API void trf_device_matrix_init(trf_device_matrix *matrix);

/* How to pack. Defaults: memory of the library's, behind the work of the default stream. */
typedef struct trf_pack_options {
    size_t struct_bytes;
    trf_layer_memory memory; /* the caller's, apart from the weights; zeros: the library allocates */
    trf_stream stream;       /* packing begins when what this one has been given is done: what writes the weights */
    /* For weights that change later: stored tiles for which there is room beyond those that these weights need, so far
     * as packing still pays then. 4096 bytes each, zeros; a layer of usual weights has hardly one. */
    uint64_t stored_room;
    /* A packed layer of the same context, rows and columns without row offsets, or NULL. The new layer takes its window
     * and its number of stored tiles, so that both have the same bytes but for what the weights make of them. Whoever
     * copies the new one's buffer over the old one's, behind all work that uses the old weights, has the old one's
     * plans, and CUDA graphs that have captured them, multiply by the new weights. stored_room does not count then. */
    const trf_device_layer *like;
} trf_pack_options;

TRF_API void trf_pack_options_init(trf_pack_options *options);

/* The memory that trf_device_layer_pack takes for a layer of so many rows and columns: the most that one of its shape
 * can take. Errors: TRF_ERR_ARGUMENT, TRF_ERR_UNSUPPORTED (shape, dtype). */
TRF_API trf_status trf_device_layer_get_packed_size(const trf_context *context, const trf_device_matrix *matrix,
                                                    trf_layer_size *size, trf_error *err);

/* Makes a packed layer of dense weights, on their device, losslessly, without a blob: for programs that have a model's
 * weights there already. The layer is what TRF_LAYOUT_PACKED makes of a plain layer with these weights, byte for byte
 * but for what its head says of a blob, and does not need them any more. Of its trf_layer_info class_bits,
 * probability_bits, slab_cols, blob_bytes and the like are 0: there was no blob; trf_device_layer_encode makes one with
 * the default options. options: NULL for the defaults. Synchronous: any stream may use the layer then.
 * Errors: TRF_ERR_ARGUMENT (also: memory that is too small, misaligned or overlaps the weights; a layer that it cannot
 * be `like`); TRF_ERR_UNSUPPORTED (a dtype other than BF16; weights that cannot be packed; more stored tiles than those
 * of `like`); TRF_ERR_MEMORY; TRF_ERR_CUDA. The content of memory is
 * unspecified after a failure. */
TRF_API trf_status trf_device_layer_pack(trf_context *context, const trf_device_matrix *matrix,
                                         const trf_pack_options *options, trf_device_layer **layer, trf_error *err);

/* Gives a layer back as a coded blob. *blob is malloc'd (release with trf_free). A coded layer's is a copy of its own.
 * Of another layout the layer is decoded, and encoded with the options that its blob was encoded with, which it keeps
 * (codec, favor, probability bits, width of slabs), or the default ones if it had none: the weights are the same, bit
 * for bit; so are the bytes, if this version's encoder had made the blob of these rows and columns. Waits for the
 * device; needs host memory for the dense weights, and on a GPU device memory as well. threads: 0 = one for each core.
 * *blob and *blob_bytes are set on success only. Errors: TRF_ERR_UNSUPPORTED (a coded shard that does not begin and end
 * at multiples of 256 or with the matrix), TRF_ERR_MEMORY. */
TRF_API trf_status trf_device_layer_encode(const trf_device_layer *layer, int threads, void **blob,
                                           uint64_t *blob_bytes, trf_error *err);

#ifdef __cplusplus
}
#endif
#endif
