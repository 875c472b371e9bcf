/* SPDX-License-Identifier: Apache-2.0 */
/* Reads blobs where they lie in a file. The head is read at once and tiles are read in spans, so that memory does not
 * grow with the layer. */
#ifndef TRF_BLOB_READER_H
#define TRF_BLOB_READER_H

#include "trf_file.h"
#include "trf_validate.h"

/* A blob whose head has been read and validated. */
typedef struct trf_blob_reader {
    const trf_file *file;
    uint64_t offset;     /* of the blob's first byte in the file */
    uint64_t bytes;      /* of the blob */
    void *head;          /* aligned; view points into it */
    uint64_t head_bytes; /* taken of the file's budget */
    trf_blob_view view;
} trf_blob_reader;

/* Opens the blob in `bytes` bytes at `offset`; file must outlive the reader. Release with trf_blob_reader_close on
 * success only. Errors: those of a malformed head, with offsets in the file; TRF_ERR_IO, _MEMORY, _LIMIT. */
trf_status trf_blob_reader_open(const trf_file *file, uint64_t offset, uint64_t bytes, trf_blob_reader *reader,
                                trf_error *err);
void trf_blob_reader_close(trf_blob_reader *reader);

/* A decoded rectangle of the layer. */
typedef struct trf_rectangle {
    uint32_t row, col, rows, cols;
    const uint8_t *values; /* row-major, of the layer's dtype, without gaps between rows */
} trf_rectangle;

typedef trf_status trf_rectangle_fn(void *context, const trf_rectangle *rectangle, trf_error *err);

/* Checks and decodes every tile, and hands the weights to fn: from left to right, then downwards, each weight once, one
 * call at a time. If fn is NULL the tiles are only checked and decoded. threads: as trf_thread_count takes it.
 * *buffer_bytes, if not NULL: the bytes that were allocated.
 * Errors: those of tiles, with offsets in the file; whatever fn returns; TRF_ERR_IO, _MEMORY, _LIMIT. */
trf_status trf_blob_reader_decode(const trf_blob_reader *reader, int threads, trf_rectangle_fn *fn, void *context,
                                  uint64_t *buffer_bytes, trf_error *err);

/* Where the blobs of a stored tensor lie: it is one blob, or an expert tensor's index and the blobs after it (FORMAT.md
 * section 10). */
typedef struct trf_blob_list {
    uint64_t count;
    uint64_t *offsets; /* [count + 1] from the tensor's first byte; the last is its size */
    int is_expert_tensor;
    trf_budget *budget; /* the file's, which has given the memory */
} trf_blob_list;

/* Reads and checks the index if there is one. Release with trf_blob_list_free on success only.
 * Errors: TRF_ERR_MAGIC (neither blob nor expert index), TRF_ERR_HEADER, TRF_ERR_TRUNCATED, TRF_ERR_IO,
 * TRF_ERR_MEMORY, TRF_ERR_LIMIT. */
trf_status trf_blob_list_read(const trf_file *file, uint64_t offset, uint64_t bytes, trf_blob_list *list,
                              trf_error *err);
void trf_blob_list_free(trf_blob_list *list);

/* @return the bytes of the index in front of `count` blobs. count is at most 2^31 - 1. */
static inline uint64_t trf_expert_index_bytes(uint64_t count) { return trf_align(16 + 8 * count); }

/* Fills an index: offsets[count]; index: trf_expert_index_bytes(count) bytes. */
void trf_expert_index_write(const uint64_t *offsets, uint64_t count, void *index);

#endif
