/* SPDX-License-Identifier: Apache-2.0 */
/* From one checkpoint to another: the files of the output, whatever is done to the tensors. */
#include "trf_checkpoint.h"
#include "trf_output.h"

#include <stdlib.h>
#include <string.h>

/* A folder under construction: its files are opened again once written, since the indexes tell what is in them. */
typedef struct trf_conversion {
    const trf_checkpoint *checkpoint;
    trf_job *job;
    trf_convert_fn *convert;
    void *context;
    const char *folder;           /* where the output is being built */
    trf_checkpoint_file *written; /* [checkpoint->num_files]; only if there are indexes */
    size_t num_written;
} trf_conversion;

/* Converts one file into a new file of the folder. */
static trf_status convert_file(trf_conversion *work, const trf_checkpoint_file *file, trf_error *err) {
    char *path = trf_path_join(work->folder, file->name);
    trf_file out = {.fd = -1};
    if (!path)
        return trf_fail_memory(err, strlen(file->name));
    trf_status status = trf_file_create(path, 0666, &out, err);
    if (status == TRF_OK)
        status = work->convert(work->context, file, &out, err);
    if (status == TRF_OK)
        status = trf_file_sync(&out, err);
    trf_file_close(&out);
    if (status == TRF_OK && work->written &&
        (status = trf_checkpoint_file_open(path, &work->written[work->num_written], err)) == TRF_OK)
        work->num_written++;
    free(path);
    return status;
}

static trf_status convert_index(trf_conversion *work, const trf_checkpoint_index *index, trf_error *err) {
    char *path = trf_path_join(work->folder, index->name), *text = NULL;
    size_t bytes;
    trf_file out = {.fd = -1};
    if (!path)
        return trf_fail_memory(err, strlen(index->name));
    trf_status status = trf_checkpoint_index_convert(index, work->checkpoint->files, work->written, work->num_written,
                                                     &text, &bytes, err);
    if (status == TRF_OK)
        status = trf_file_create(path, 0666, &out, err);
    if (status == TRF_OK)
        status = trf_file_write(&out, 0, text, bytes, err);
    if (status == TRF_OK)
        status = trf_file_sync(&out, err);
    trf_file_close(&out);
    free(text);
    free(path);
    return status;
}

static trf_status copy_others(trf_conversion *work, trf_error *err) {
    const char *root = work->checkpoint->root;
    trf_folder folder;
    trf_status status = trf_folder_list(root, &folder, err);
    for (size_t i = 0; i < folder.count && status == TRF_OK; i++) {
        if (trf_checkpoint_has_file(work->checkpoint, folder.names[i]))
            continue;
        char *in = trf_path_join(root, folder.names[i]), *out = trf_path_join(work->folder, folder.names[i]);
        status = in && out ? trf_copy_tree(work->job, root, in, out, err) : trf_fail_memory(err, strlen(root));
        free(in);
        free(out);
    }
    trf_folder_free(&folder);
    return status;
}

static trf_status convert_folder(trf_conversion *work, trf_error *err) {
    const trf_checkpoint *checkpoint = work->checkpoint;
    if (checkpoint->num_indexes && !(work->written = calloc(checkpoint->num_files, sizeof *work->written)))
        return trf_fail_memory(err, checkpoint->num_files * sizeof *work->written);
    /* The small files first: one that cannot be carried over should show before hours of encoding. */
    trf_status status = copy_others(work, err);
    for (size_t i = 0; i < checkpoint->num_files && status == TRF_OK; i++)
        status = convert_file(work, &checkpoint->files[i], err);
    for (size_t i = 0; i < checkpoint->num_indexes && status == TRF_OK; i++)
        status = convert_index(work, &checkpoint->indexes[i], err);
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

trf_status trf_checkpoint_convert(const trf_checkpoint *checkpoint, trf_job *job, const char *out_path,
                                  trf_convert_fn *convert, void *context, trf_error *err) {
    trf_output output = {.file = {.fd = -1}};
    trf_conversion work = {.checkpoint = checkpoint, .job = job, .convert = convert, .context = context};
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
            status = convert_folder(&work, err);
    } else {
        status = trf_output_begin_file(&output, out_path, overwrite, err);
        if (status == TRF_OK)
            status = convert(context, checkpoint->files, &output.file, err);
    }
    if (status == TRF_OK)
        status = trf_output_publish(&output, err);
    trf_output_end(&output);
    return status;
}
