/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a checkpoint and listing what is in it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* realpath */
#endif
#include "trf_checkpoint.h"

#include "trf_layer.h"
#include "trf_output.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

trf_status trf_sanitize_error(trf_status status, trf_error *err) {
    if (status != TRF_OK && err)
        for (char *c = err->message; *c; c++)
            if ((unsigned char)*c < ' ' || *c == 0x7F)
                *c = '?';
    return status;
}

uint64_t trf_checkpoint_source_bytes(const trf_checkpoint *checkpoint) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < checkpoint->num_files; i++)
        bytes += trf_checkpoint_file_source_header(&checkpoint->files[i])->data_bytes;
    return bytes;
}

int trf_checkpoint_has_file(const trf_checkpoint *checkpoint, const char *name) {
    for (size_t i = 0; i < checkpoint->num_files; i++)
        if (strcmp(checkpoint->files[i].name, name) == 0)
            return 1;
    for (size_t i = 0; i < checkpoint->num_indexes; i++)
        if (strcmp(checkpoint->indexes[i].name, name) == 0)
            return 1;
    return 0;
}

/* @return whether a path is a symbolic link to another file of the same folder, which then stands for both. */
static int is_alias(const char *root, const char *path) {
    struct stat info;
    if (lstat(path, &info) != 0 || !S_ISLNK(info.st_mode))
        return 0;
    char *target = realpath(path, NULL), *folder = realpath(root, NULL),
         *parent = target ? trf_path_parent(target) : NULL;
    int alias = parent && folder && strcmp(parent, folder) == 0 && trf_name_is_safetensors(target);
    free(target);
    free(folder);
    free(parent);
    return alias;
}

static trf_status checkpoint_add(trf_checkpoint *checkpoint, const char *name, trf_error *err) {
    struct stat info;
    int is_index = trf_name_is_index(name);
    if (!is_index && !trf_name_is_safetensors(name))
        return TRF_OK;
    char *path = trf_path_join(checkpoint->root, name);
    if (!path)
        return trf_fail_memory(err, strlen(name));
    trf_status status = TRF_OK;
    if (stat(path, &info) != 0)
        status = trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot examine");
    else if (S_ISDIR(info.st_mode) || (!is_index && is_alias(checkpoint->root, path)))
        ; /* copied with the other entries */
    else if (is_index &&
             (status = trf_checkpoint_index_open(path, &checkpoint->indexes[checkpoint->num_indexes], err)) == TRF_OK)
        checkpoint->num_indexes++;
    else if (!is_index &&
             (status = trf_checkpoint_file_open(path, &checkpoint->files[checkpoint->num_files], err)) == TRF_OK)
        checkpoint->num_files++;
    free(path);
    return status;
}

static trf_status checkpoint_open_folder(trf_checkpoint *checkpoint, trf_error *err) {
    trf_folder folder;
    trf_status status = trf_folder_list(checkpoint->root, &folder, err);
    if (status != TRF_OK)
        return status;
    checkpoint->files = calloc(folder.count + 1, sizeof *checkpoint->files);
    checkpoint->indexes = calloc(folder.count + 1, sizeof *checkpoint->indexes);
    if (!checkpoint->files || !checkpoint->indexes)
        status = trf_fail_memory(err, folder.count * sizeof *checkpoint->files);
    for (size_t i = 0; i < folder.count && status == TRF_OK; i++)
        status = checkpoint_add(checkpoint, folder.names[i], err);
    trf_folder_free(&folder);
    for (size_t i = 0; i < checkpoint->num_indexes && status == TRF_OK; i++)
        status = trf_checkpoint_index_check(&checkpoint->indexes[i], checkpoint->files, checkpoint->num_files, err);
    if (status == TRF_OK && checkpoint->num_files == 0)
        status = trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET, "%s: this directory holds no .safetensors file",
                          checkpoint->root);
    return status;
}

static trf_status checkpoint_open_file(trf_checkpoint *checkpoint, trf_error *err) {
    if (!(checkpoint->files = calloc(1, sizeof *checkpoint->files)))
        return trf_fail_memory(err, sizeof *checkpoint->files);
    trf_status status = trf_checkpoint_file_open(checkpoint->root, checkpoint->files, err);
    checkpoint->num_files = status == TRF_OK;
    return status;
}

trf_status trf_checkpoint_open(const char *path, trf_checkpoint **checkpoint, trf_error *err) {
    struct stat info;
    if (!path || !checkpoint)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "opening a checkpoint needs a path, and a place for it");
    *checkpoint = NULL;
    if (stat(path, &info) != 0)
        return trf_sanitize_error(trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot open"), err);
    trf_checkpoint *opened = calloc(1, sizeof *opened);
    if (!opened)
        return trf_fail_memory(err, sizeof *opened);
    int is_index = !S_ISDIR(info.st_mode) && trf_name_is_index(path);
    opened->is_folder = S_ISDIR(info.st_mode) || is_index;
    opened->root = is_index ? trf_path_parent(path) : strdup(path);
    trf_status status;
    if (!opened->root)
        status = trf_fail_memory(err, strlen(path));
    else
        status = opened->is_folder ? checkpoint_open_folder(opened, err) : checkpoint_open_file(opened, err);
    if (status != TRF_OK) {
        trf_checkpoint_close(opened);
        return trf_sanitize_error(status, err);
    }
    *checkpoint = opened;
    return TRF_OK;
}

void trf_checkpoint_close(trf_checkpoint *checkpoint) {
    if (!checkpoint)
        return;
    for (size_t i = 0; i < checkpoint->num_files; i++)
        trf_checkpoint_file_free(&checkpoint->files[i]);
    for (size_t i = 0; i < checkpoint->num_indexes; i++)
        trf_checkpoint_index_free(&checkpoint->indexes[i]);
    free(checkpoint->files);
    free(checkpoint->indexes);
    free(checkpoint->root);
    free(checkpoint);
}

uint64_t trf_checkpoint_num_tensors(const trf_checkpoint *checkpoint) {
    uint64_t count = 0;
    for (size_t i = 0; i < checkpoint->num_files; i++)
        count += checkpoint->files[i].num_tensors;
    return count;
}

/* ---- one matrix ---- */

/* Splits "name[3]". @return the length of the name, with *matrix set; 0 if there is no such ending. */
static size_t split_expert_name(const char *tensor, uint64_t *matrix) {
    const char *bracket = strrchr(tensor, '[');
    char *end;
    if (!bracket || bracket == tensor || bracket[1] < '0' || bracket[1] > '9')
        return 0;
    errno = 0;
    *matrix = strtoull(bracket + 1, &end, 10);
    return errno == 0 && strcmp(end, "]") == 0 ? (size_t)(bracket - tensor) : 0;
}

/* Finds a tensor by its source's name, with or without the suffix of blobs: matrix->checkpoint_file stays NULL if there
 * is none. */
static trf_status find_named(const trf_checkpoint *checkpoint, const char *name, size_t length,
                             trf_checkpoint_matrix *matrix, trf_error *err) {
    size_t suffix = strlen(TRF_BLOB_SUFFIX);
    char *copy = strndup(name, length);
    if (!copy)
        return trf_fail_memory(err, length);
    for (int stripped = 0; stripped < 2 && !matrix->checkpoint_file; stripped++) {
        if (stripped && (length < suffix || strcmp(copy + length - suffix, TRF_BLOB_SUFFIX) != 0))
            break;
        if (stripped)
            copy[length - suffix] = 0;
        for (size_t i = 0; i < checkpoint->num_files && !matrix->checkpoint_file; i++)
            if ((matrix->tensor = trf_checkpoint_file_find(&checkpoint->files[i], copy)))
                matrix->checkpoint_file = &checkpoint->files[i];
    }
    free(copy);
    return TRF_OK;
}

trf_status trf_checkpoint_find(const trf_checkpoint *checkpoint, const char *name, trf_checkpoint_matrix *matrix,
                               trf_error *err) {
    *matrix = (trf_checkpoint_matrix){0};
    /* A name may end in brackets of its own. */
    trf_status status = find_named(checkpoint, name, strlen(name), matrix, err);
    if (status == TRF_OK && !matrix->checkpoint_file) {
        const size_t stem = split_expert_name(name, &matrix->expert);
        matrix->is_expert = stem > 0;
        if (stem)
            status = find_named(checkpoint, name, stem, matrix, err);
    }
    if (status != TRF_OK)
        return status;
    if (!matrix->checkpoint_file)
        return trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET, "%s: there is no tensor '%s'", checkpoint->root, name);
    if (!matrix->tensor->blobs)
        return trf_fail(err, TRF_ERR_ARGUMENT, matrix->tensor->file_offset, "%s: tensor '%s' is not compressed",
                        matrix->checkpoint_file->path, name);
    return TRF_OK;
}

trf_status trf_list_blobs(const trf_checkpoint_matrix *matrix, const trf_file *file, trf_blob_list *list,
                          trf_error *err) {
    const trf_file_tensor *tensor = matrix->tensor;
    trf_status status = trf_blob_list_read(file, tensor->file_offset, tensor->bytes, list, err);
    if (status != TRF_OK)
        return status;
    if (list->is_expert_tensor && !matrix->is_expert)
        status = trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                          "is an expert tensor of %" PRIu64 " matrices; ask for one, as '%s[0]'", list->count,
                          tensor->source->name);
    else if (matrix->is_expert && (!list->is_expert_tensor || matrix->expert >= list->count))
        status =
            trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET, "there is no matrix %" PRIu64 " in it", matrix->expert);
    if (status != TRF_OK)
        trf_blob_list_free(list);
    return status;
}

/* ---- listing ---- */

void trf_count_tensor(trf_job *job, const trf_file_tensor *tensor) {
    trf_checkpoint_report *report = &job->report;
    report->output_bytes += tensor->bytes;
    if (!tensor->blobs)
        return;
    uint64_t bytes = trf_tensor_bytes(tensor->source);
    report->compressed_tensors++;
    report->compressed_source_bytes += bytes;
    report->compressed_bytes += tensor->bytes;
    report->compressed_weights += bytes / trf_dtype_bytes(trf_dtype_of_name(tensor->source->dtype));
}

/* Opens every blob of a tensor and sums what they say. */
static trf_status describe_blobs(const trf_checkpoint_file *checkpoint_file, const trf_file_tensor *tensor,
                                 trf_layer_info *info, trf_error *err) {
    trf_file file;
    uint64_t file_bytes;
    trf_blob_list list;
    trf_status status = trf_file_open(checkpoint_file->path, &file, &file_bytes, err);
    if (status != TRF_OK)
        return status;
    if ((status = trf_blob_list_read(&file, tensor->file_offset, tensor->bytes, &list, err)) != TRF_OK)
        goto done;
    for (uint64_t number = 0; number < list.count && status == TRF_OK; number++) {
        trf_blob_reader reader;
        trf_layer_info part;
        if ((status = trf_file_tensor_open_blob(&file, tensor, &list, number, &reader, err)) != TRF_OK)
            break;
        trf_blob_get_info(&reader.view, &part);
        trf_blob_reader_close(&reader);
        if (number == 0) {
            *info = part;
            continue;
        }
        info->blob_bytes += part.blob_bytes, info->tiles += part.tiles;
        info->stored_tiles += part.stored_tiles, info->exceptions += part.exceptions;
    }
    trf_blob_list_free(&list);
done:
    trf_file_close(&file);
    if (status != TRF_OK)
        trf_prefix_error(err, status, "%s: tensor '%s'", checkpoint_file->path, tensor->source->name);
    return status;
}

trf_status trf_checkpoint_tensor(trf_checkpoint *checkpoint, uint64_t index, trf_tensor_info *info, trf_error *err) {
    size_t s = 0;
    uint64_t i = index;
    if (!checkpoint || !info)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "what a tensor is needs a checkpoint, and a place for it");
    while (s < checkpoint->num_files && i >= checkpoint->files[s].num_tensors)
        i -= checkpoint->files[s++].num_tensors;
    if (s == checkpoint->num_files)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "tensor %" PRIu64 " of %" PRIu64, index,
                        trf_checkpoint_num_tensors(checkpoint));
    const trf_checkpoint_file *checkpoint_file = &checkpoint->files[s];
    const trf_file_tensor *tensor = &checkpoint_file->tensors[i];
    *info = (trf_tensor_info){
        .name = tensor->source->name,
        .file = checkpoint_file->path,
        .dtype = tensor->source->dtype,
        .shape = tensor->source->shape,
        .num_dims = tensor->source->num_dims,
        .compressed = tensor->blobs > 0,
        .source_bytes = trf_tensor_bytes(tensor->source),
        .bytes = tensor->bytes,
        .file_offset = tensor->file_offset,
        .blobs = tensor->blobs,
    };
    if (!tensor->blobs)
        return TRF_OK;
    return trf_sanitize_error(describe_blobs(checkpoint_file, tensor, &info->layer, err), err);
}
