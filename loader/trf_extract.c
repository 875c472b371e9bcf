/* SPDX-License-Identifier: Apache-2.0 */
/* Copies one blob out of a checkpoint to a .trf file. */
#include "trf_checkpoint.h"
#include "trf_output.h"

#include <inttypes.h>
#include <sys/stat.h>

/* Validates the blob, tiles and all, then writes it. */
static trf_status extract_blob(const trf_file *file, const trf_file_tensor *tensor, const trf_blob_list *list,
                               uint64_t matrix, const char *out_path, int overwrite, trf_job *job, trf_error *err) {
    trf_blob_reader reader;
    trf_output output = {.file = {.fd = -1}};
    struct stat info;
    const unsigned mode = fstat(file->fd, &info) == 0 ? info.st_mode & 0777 : TRF_MODE_OF_NEW_FILES;
    const trf_output_place place = {.path = out_path, .overwrite = overwrite, .mode = mode};
    trf_status status = trf_file_tensor_open_blob(file, tensor, list, matrix, &reader, err);
    if (status != TRF_OK)
        return status;
    status = trf_quota_check(&job->quota, reader.bytes, out_path, err);
    if (status == TRF_OK)
        status = trf_blob_reader_decode(&reader, 0, NULL, NULL, NULL, err);
    if (status == TRF_OK)
        status = trf_output_begin(&output, &place, err);
    output.file.quota = &job->quota;
    if (status == TRF_OK)
        status = trf_job_copy(job, NULL, file, reader.offset, &output.file, 0, reader.bytes, err);
    if (status == TRF_OK)
        status = trf_output_publish(&output, err);
    trf_output_end(&output);
    trf_blob_reader_close(&reader);
    return status;
}

static trf_status extract_from(const trf_checkpoint_matrix *matrix, const char *out_path, int overwrite, trf_job *job,
                               trf_error *err) {
    trf_file file;
    uint64_t file_bytes;
    trf_blob_list list;
    trf_status status = trf_file_open(matrix->checkpoint_file->path, &file, &file_bytes, err);
    if (status != TRF_OK)
        return status;
    file.budget = &job->budget;
    status = trf_list_blobs(matrix, &file, &list, err);
    if (status == TRF_OK) {
        status = extract_blob(&file, matrix->tensor, &list, matrix->expert, out_path, overwrite, job, err);
        trf_blob_list_free(&list);
    }
    trf_file_close(&file);
    return status;
}

/* Checks that the output replaces nothing of the checkpoint: neither what is in its folder, nor its files if these lie
 * elsewhere. */
static trf_status check_apart(const trf_checkpoint *checkpoint, const char *out_path, trf_error *err) {
    const trf_checkpoint *model;
    struct stat info;
    if (lstat(out_path, &info) != 0)
        return TRF_OK;
    trf_status status = trf_output_check_apart(checkpoint->root, out_path, err);
    for (size_t m = 0; (model = trf_checkpoint_model(checkpoint, m)); m++)
        for (size_t i = 0; i < model->num_files && status == TRF_OK; i++)
            status = trf_output_check_apart(model->files[i].path, out_path, err);
    return status;
}

static trf_status extract_layer(const char *in_path, const char *tensor, const char *out_path, int overwrite,
                                trf_job *job, trf_error *err) {
    trf_checkpoint *checkpoint;
    trf_checkpoint_matrix matrix;
    trf_status status = trf_checkpoint_open_counted(in_path, &job->budget, &checkpoint, err);
    if (status != TRF_OK)
        return status;
    status = trf_checkpoint_find(checkpoint, tensor, &matrix, err);
    if (status == TRF_OK)
        status = check_apart(checkpoint, out_path, err);
    if (status == TRF_OK) {
        status = extract_from(&matrix, out_path, overwrite, job, err);
        if (status != TRF_OK)
            trf_prefix_error(err, status, "%s: tensor '%s'", matrix.checkpoint_file->path, tensor);
    }
    trf_checkpoint_close(checkpoint);
    return trf_sanitize_error(status, err);
}

trf_status trf_extract_layer_within(const char *in_path, const char *tensor, const char *out_path, int overwrite,
                                    const trf_limits *limits, trf_error *err) {
    trf_checkpoint_options options;
    trf_job job;
    if (!tensor || !out_path)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "extracting a layer needs its name, and a path to write to");
    trf_checkpoint_options_init(&options);
    options.limits = limits;
    trf_status status = trf_job_begin(&job, &options, err);
    if (status == TRF_OK)
        status = extract_layer(in_path, tensor, out_path, overwrite, &job, err);
    trf_job_end(&job);
    return status;
}

trf_status trf_extract_layer(const char *in_path, const char *tensor, const char *out_path, int overwrite,
                             trf_error *err) {
    return trf_extract_layer_within(in_path, tensor, out_path, overwrite, NULL, err);
}
