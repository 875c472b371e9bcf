/* SPDX-License-Identifier: Apache-2.0 */
/* From one checkpoint to another: the files of the output, whatever is done to the tensors. */
#include "trf_model_config.h"
#include "trf_output.h"

#include <stdlib.h>
#include <string.h>

/* A folder under construction: its files are opened again once written, since the indexes tell what is in them. */
typedef struct trf_rewrite {
    const trf_checkpoint *checkpoint;
    const trf_model_config *config;
    trf_job *job;
    trf_rewrite_file_fn *rewrite_file;
    void *context;
    const char *folder;           /* where the output is being built */
    trf_checkpoint_file *written; /* [checkpoint->num_files]; only if there are indexes */
    size_t num_written;
} trf_rewrite;

/* Rewrites one file as a new file of the folder. */
static trf_status rewrite_one_file(trf_rewrite *work, const trf_checkpoint_file *file, trf_error *err) {
    char *path = trf_path_join(work->folder, file->name);
    trf_file out = {.fd = -1};
    if (!path)
        return trf_fail_memory(err, strlen(file->name));
    trf_status status = trf_file_create(path, 0666, &out, err);
    if (status == TRF_OK)
        status = work->rewrite_file(work->context, file, &out, err);
    if (status == TRF_OK)
        status = trf_file_sync(&out, err);
    trf_file_close(&out);
    if (status == TRF_OK && work->written &&
        (status = trf_checkpoint_file_open(path, &work->written[work->num_written], err)) == TRF_OK)
        work->num_written++;
    free(path);
    return status;
}

/* Writes a new file of the folder. */
static trf_status write_text(const trf_rewrite *work, const char *name, unsigned mode, const char *text, size_t bytes,
                             trf_error *err) {
    char *path = trf_path_join(work->folder, name);
    trf_file out = {.fd = -1};
    if (!path)
        return trf_fail_memory(err, strlen(name));
    trf_status status = trf_file_create(path, mode, &out, err);
    if (status == TRF_OK)
        status = trf_file_write(&out, 0, text, bytes, err);
    if (status == TRF_OK)
        status = trf_file_sync(&out, err);
    trf_file_close(&out);
    free(path);
    return status;
}

static trf_status rewrite_index(trf_rewrite *work, const trf_checkpoint_index *index, trf_error *err) {
    char *text = NULL;
    size_t bytes;
    trf_status status = trf_checkpoint_index_rewrite(index, work->checkpoint->files, work->written, work->num_written,
                                                     &text, &bytes, err);
    if (status == TRF_OK)
        status = write_text(work, index->name, 0666, text, bytes, err);
    free(text);
    return status;
}

static trf_status copy_other(trf_rewrite *work, const char *name, trf_error *err) {
    const char *root = work->checkpoint->root;
    char *in = trf_path_join(root, name), *out = trf_path_join(work->folder, name);
    trf_status status = in && out ? trf_copy_tree(work->job, root, in, out, err) : trf_fail_memory(err, strlen(root));
    free(in);
    free(out);
    return status;
}

static trf_status copy_others(trf_rewrite *work, trf_error *err) {
    const char *root = work->checkpoint->root;
    trf_folder folder;
    trf_status status = trf_folder_list(root, &folder, err);
    for (size_t i = 0; i < folder.count && status == TRF_OK; i++) {
        int is_config = work->config->text && strcmp(folder.names[i], TRF_MODEL_CONFIG_NAME) == 0;
        if (!is_config && !trf_checkpoint_has_file(work->checkpoint, folder.names[i]))
            status = copy_other(work, folder.names[i], err);
    }
    trf_folder_free(&folder);
    return status;
}

/* Comes behind the tensors: whether there are blobs is known by then. */
static trf_status rewrite_config(trf_rewrite *work, trf_error *err) {
    const trf_model_config *config = work->config;
    if (!config->text)
        return TRF_OK;
    if (config->for_blobs_only && work->job->report.compressed_tensors == 0)
        return copy_other(work, TRF_MODEL_CONFIG_NAME, err);
    return write_text(work, TRF_MODEL_CONFIG_NAME, config->mode, config->text, config->bytes, err);
}

static trf_status rewrite_folder(trf_rewrite *work, trf_error *err) {
    const trf_checkpoint *checkpoint = work->checkpoint;
    if (checkpoint->num_indexes && !(work->written = calloc(checkpoint->num_files, sizeof *work->written)))
        return trf_fail_memory(err, checkpoint->num_files * sizeof *work->written);
    /* The small files first: one that cannot be carried over should show before hours of encoding. */
    trf_status status = copy_others(work, err);
    for (size_t i = 0; i < checkpoint->num_files && status == TRF_OK; i++)
        status = rewrite_one_file(work, &checkpoint->files[i], err);
    for (size_t i = 0; i < checkpoint->num_indexes && status == TRF_OK; i++)
        status = rewrite_index(work, &checkpoint->indexes[i], err);
    if (status == TRF_OK)
        status = rewrite_config(work, err);
    for (size_t i = 0; i < work->num_written; i++)
        trf_checkpoint_file_free(&work->written[i]);
    free(work->written);
    return status;
}

/* Who names an index as the output means a folder, but would get one of that name. */
static trf_status check_out_name(const trf_checkpoint *checkpoint, const char *out_path, trf_error *err) {
    if (checkpoint->is_folder && (trf_name_is_index(out_path) || trf_name_is_safetensors(out_path)))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "%s: the input is a directory, so the output has to be one; this is the name of a file",
                        out_path);
    return TRF_OK;
}

trf_status trf_checkpoint_rewrite(const trf_checkpoint *checkpoint, const trf_model_config *config, trf_job *job,
                                  const char *out_path, trf_rewrite_file_fn *rewrite_file, void *context,
                                  trf_error *err) {
    trf_output output = {.file = {.fd = -1}};
    trf_rewrite work = {checkpoint, config, job, rewrite_file, context, .folder = NULL};
    trf_status status = check_out_name(checkpoint, out_path, err);
    if (status == TRF_OK)
        status = trf_output_check_apart(checkpoint->root, out_path, err);
    if (status != TRF_OK)
        return status;
    int overwrite = job->options.overwrite;
    if (checkpoint->is_folder) {
        status = trf_output_begin_folder(&output, out_path, overwrite, err);
        work.folder = output.temporary;
        if (status == TRF_OK)
            status = rewrite_folder(&work, err);
    } else {
        status = trf_output_begin_file(&output, out_path, overwrite, err);
        if (status == TRF_OK)
            status = rewrite_file(context, checkpoint->files, &output.file, err);
    }
    if (status == TRF_OK)
        status = trf_output_publish(&output, err);
    trf_output_end(&output);
    return status;
}
