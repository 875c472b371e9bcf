/* SPDX-License-Identifier: Apache-2.0 */
/* A layer on its way to a device, wherever its blob is: in a file of a checkpoint, in host memory, or in a device's
 * memory. Opening a feed finds the blob, checks its head and lays out the shard. After that all feeds are alike: a
 * head, and tiles that are read and checked span by span. */
#ifndef TRF_LAYER_FEED_H
#define TRF_LAYER_FEED_H

#include "trf_blob_reader.h"
#include "trf_checkpoint.h"
#include "trf_layer_slice.h"

/* Copies device memory to host memory, and returns when the bytes have arrived. Thread-safe. */
typedef trf_status trf_copy_back_fn(void *context, void *to_host, const void *from, uint64_t bytes, trf_error *err);

/* Copies a program's options to this library's struct; NULL stands for the defaults. Errors: TRF_ERR_ARGUMENT (a layout
 * that does not exist; as trf_take_struct), TRF_ERR_UNSUPPORTED. */
trf_status trf_take_load_options(const trf_load_options *options, trf_load_options *taken, trf_error *err);

/* Whether a program supplies memory for a layer, whether or not it is enough. */
static inline int trf_has_memory(const trf_layer_memory *memory) {
    return memory->buffer || memory->buffer_bytes || memory->directory || memory->directory_bytes;
}

/* A feed must not be moved while it is open. */
typedef struct trf_layer_feed {
    /* What is loaded: all of the blob, or a slice of it. view->head is extension.data_offset bytes. No tile is larger
     * than TRF_MAX_TILE_BYTES. A slice's head lacks checksums until trf_layer_feed_complete_head. */
    const trf_blob_view *view;
    int is_whole;
    trf_shard_range shard; /* the part of it that is wanted */
    trf_read_tiles_fn *read;
    void *read_context;
    int threads;              /* that read; as trf_thread_count takes it */
    trf_progress_fn progress; /* or NULL; called by the caller's thread */
    void *progress_context;
    const char *tensor;        /* its name; "" for a blob in memory */
    trf_budget budget;         /* of host memory, while it is open */
    uint64_t max_device_bytes; /* 0: no limit */

    /* The source of the feed: the blob, whose place is in file, host or dev ... */
    trf_file file; /* fd < 0: none */
    uint64_t file_bytes;
    const uint8_t *host, *dev;
    trf_copy_back_fn *copy_back;
    void *copy_context;
    trf_blob_reader blob; /* the blob's head; offset is in the file, and 0 in memory */
    /* ... and the slice, if there is one. */
    trf_tile_selection selection;
    trf_slice slice;
    void *slice_head;
    trf_blob_view slice_view;
} trf_layer_feed;

/* Checks that the layer that is made of the feed may take so much device memory. Errors: TRF_ERR_LIMIT. */
trf_status trf_layer_feed_check_device(const trf_layer_feed *feed, uint64_t bytes, trf_error *err);

/* Opens the blob of a checkpoint's tensor, named as in trf_device_layer_load. options: with all fields that this build
 * knows. What they point to, `tensor` and the checkpoint must outlive the feed. Release with trf_layer_feed_close on
 * success only. Messages name file and tensor, and offsets count from the file's first byte; later calls leave both to
 * trf_layer_feed_fail. Errors: as trf_device_layer_load. */
trf_status trf_layer_feed_open_tensor(const trf_checkpoint *checkpoint, const char *tensor,
                                      const trf_load_options *options, trf_layer_feed *feed, trf_error *err);

/* Does the same for a blob in host memory, 16-byte aligned, which must outlive the feed. Errors: as
 * trf_device_layer_create. */
trf_status trf_layer_feed_open_memory(const void *blob, uint64_t blob_bytes, const trf_load_options *options,
                                      trf_layer_feed *feed, trf_error *err);

/* Does the same for a blob in device memory. copy_context: copy_back's. */
trf_status trf_layer_feed_open_device(const void *blob_dev, uint64_t blob_bytes, trf_copy_back_fn *copy_back,
                                      void *copy_context, const trf_load_options *options, trf_layer_feed *feed,
                                      trf_error *err);

void trf_layer_feed_close(trf_layer_feed *feed);

/* Makes a slice's head that of a valid blob. Each tile has been read before. The head of a whole blob is valid anyway.
 * Errors: those of a malformed head, if the feed was changed meanwhile. */
trf_status trf_layer_feed_complete_head(trf_layer_feed *feed, trf_error *err);

/* Completes the failure of code that has read the feed: adds file and tensor, and makes the offset count from the first
 * byte of the file or of the blob in memory. @return status. */
trf_status trf_layer_feed_fail(const trf_layer_feed *feed, trf_status status, trf_error *err);

/* Reports a tile of what is loaded that reading found to be good, and that then did not decode. The offset is the
 * tile's in the feed's blob, for trf_layer_feed_fail. @return TRF_ERR_RANS. */
trf_status trf_layer_feed_fail_tile(const trf_layer_feed *feed, uint64_t tile, trf_error *err);

/* Tells the feed's progress how many bytes of its tiles are done. Errors: TRF_ERR_CANCELLED. */
trf_status trf_layer_feed_progress(const trf_layer_feed *feed, uint64_t done_bytes, trf_error *err);

#endif
