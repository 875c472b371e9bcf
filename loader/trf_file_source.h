/* One compressed tensor of a checkpoint as a source of tiles, read from its file: nothing is mapped, so a file that is
 * cut meanwhile is TRF_ERR_TRUNCATED. */
#ifndef TRF_FILE_SOURCE_H
#define TRF_FILE_SOURCE_H

#include "trf_blob_reader.h"
#include "trf_layer_open.h"

typedef struct trf_file_source {
    trf_layer_source source; /* what is loaded: the whole tensor or a shard */
    /* What stands behind it. */
    trf_file file;
    trf_blob_reader reader;
    trf_slice slice; /* of a shard, with a head of its own */
    void *slice_head;
    trf_blob_view slice_view;
} trf_file_source;

/* Opens the blob of a tensor, named as in trf_device_layer_load, and checks its head. options: NULL for the defaults;
 * they, `tensor` and the checkpoint outlive the source, which must not be moved. Release with trf_file_source_close on
 * success only. Messages name file and tensor, offsets count from the file's first byte; reading tiles leaves both to
 * trf_file_source_fail. Errors: as trf_device_layer_load. */
trf_status trf_file_source_open(const trf_checkpoint *checkpoint, const char *tensor, const trf_load_options *options,
                                trf_file_source *source, trf_error *err);
void trf_file_source_close(trf_file_source *source);

/* Completes the failure of what has read the source: with file and tensor, and the offset from the file's first byte.
 * @return status. */
trf_status trf_file_source_fail(const trf_file_source *source, trf_status status, trf_error *err);

#endif
