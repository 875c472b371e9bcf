/* Taking one blob out of a checkpoint, as a .trf file. */
#include "trf_checkpoint.h"
#include "trf_output.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Splits "name[3]". @return the length of the name, with *matrix set; 0 if there is no such ending. */
static size_t trf_split_matrix(const char *tensor, uint64_t *matrix) {
    const char *bracket = strrchr(tensor, '[');
    char *end;
    if (!bracket || bracket == tensor || bracket[1] < '0' || bracket[1] > '9')
        return 0;
    errno = 0;
    *matrix = strtoull(bracket + 1, &end, 10);
    return errno == 0 && strcmp(end, "]") == 0 ? (size_t)(bracket - tensor) : 0;
}

/* Finds a tensor by its source's name, with or without the suffix of blobs. */
static const trf_shard *trf_find_named(const trf_checkpoint *checkpoint, const char *name, size_t length,
                                       const trf_shard_tensor **found) {
    size_t suffix = strlen(TRF_BLOB_SUFFIX);
    char *copy = strndup(name, length);
    const trf_shard *shard = NULL;
    for (int stripped = 0; stripped < 2 && copy && !shard; stripped++) {
        if (stripped && (length < suffix || strcmp(copy + length - suffix, TRF_BLOB_SUFFIX) != 0))
            break;
        if (stripped)
            copy[length - suffix] = 0;
        for (size_t i = 0; i < checkpoint->num_shards && !shard; i++)
            if ((*found = trf_shard_find(&checkpoint->shards[i], copy)))
                shard = &checkpoint->shards[i];
    }
    free(copy);
    return shard;
}

/* Validates the blob, tiles and all, then writes it. */
static trf_status trf_extract_blob(const trf_file *file, const trf_shard_tensor *tensor, const trf_blob_list *list,
                                   uint64_t matrix, const char *out_path, int overwrite, trf_error *err) {
    trf_blob_reader reader;
    trf_output output = {.file = {.fd = -1}};
    trf_run run;
    trf_status status = trf_run_begin(&run, NULL, err);
    if (status != TRF_OK)
        return status;
    if ((status = trf_shard_open_blob(file, tensor, list, matrix, &reader, err)) != TRF_OK)
        goto done;
    status = trf_blob_reader_decode(&reader, 0, NULL, NULL, NULL, err);
    if (status == TRF_OK)
        status = trf_output_begin_file(&output, out_path, overwrite, err);
    if (status == TRF_OK)
        status = trf_run_copy(&run, NULL, file, reader.offset, &output.file, 0, reader.bytes, err);
    if (status == TRF_OK)
        status = trf_output_publish(&output, err);
    trf_output_end(&output);
    trf_blob_reader_close(&reader);
done:
    trf_run_end(&run);
    return status;
}

static trf_status trf_extract_from(const trf_shard *shard, const trf_shard_tensor *tensor, int has_matrix,
                                   uint64_t matrix, const char *out_path, int overwrite, trf_error *err) {
    trf_file file;
    uint64_t file_bytes;
    trf_blob_list list;
    trf_status status = trf_file_open(shard->path, &file, &file_bytes, err);
    if (status != TRF_OK)
        return status;
    if ((status = trf_blob_list_read(&file, tensor->file_offset, tensor->bytes, &list, err)) != TRF_OK)
        goto done;
    if (list.is_stack && !has_matrix)
        status =
            trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                     "is a stack of %" PRIu64 " matrices; ask for one, as '%s[0]'", list.count, tensor->source->name);
    else if (has_matrix && (!list.is_stack || matrix >= list.count))
        status = trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET, "there is no matrix %" PRIu64 " in it", matrix);
    else
        status = trf_extract_blob(&file, tensor, &list, matrix, out_path, overwrite, err);
    trf_blob_list_free(&list);
done:
    trf_file_close(&file);
    return status;
}

trf_status trf_extract_layer(const char *in_path, const char *tensor, const char *out_path, int overwrite,
                             trf_error *err) {
    trf_checkpoint *checkpoint;
    const trf_shard_tensor *found = NULL;
    uint64_t matrix = 0;
    trf_status status = trf_checkpoint_open(in_path, &checkpoint, err);
    if (status != TRF_OK)
        return status;
    size_t stem = 0;
    /* A name may end in brackets of its own. */
    const trf_shard *shard = trf_find_named(checkpoint, tensor, strlen(tensor), &found);
    if (!shard && (stem = trf_split_matrix(tensor, &matrix)))
        shard = trf_find_named(checkpoint, tensor, stem, &found);
    if (!shard)
        status = trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET, "%s: there is no tensor '%s'", in_path, tensor);
    else if (!found->blobs)
        status = trf_fail(err, TRF_ERR_ARGUMENT, found->file_offset, "%s: tensor '%s' is not compressed", shard->path,
                          tensor);
    else if ((status = trf_output_check_apart(shard->path, out_path, err)) == TRF_OK) {
        status = trf_extract_from(shard, found, stem > 0, matrix, out_path, overwrite, err);
        if (status != TRF_OK)
            trf_fail_in(err, status, "%s: tensor '%s' at byte %" PRIu64, shard->path, tensor, found->file_offset);
    }
    trf_checkpoint_close(checkpoint);
    return trf_leave(status, err);
}
