/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a checkpoint and lists what is in it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* realpath */
#endif
#include "trf_checkpoint.h"

#include "trf_layer.h"
#include "trf_output.h"

#include "transfuse/checkpoints.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const trf_checkpoint *trf_checkpoint_model(const trf_checkpoint *checkpoint, size_t number) {
    if (checkpoint->num_parts)
        return number < checkpoint->num_parts ? checkpoint->parts[number] : NULL;
    return number == 0 ? checkpoint : NULL;
}

uint64_t trf_checkpoint_source_bytes(const trf_checkpoint *checkpoint) {
    uint64_t bytes = 0;
    for (size_t p = 0; p < checkpoint->num_parts; p++)
        if (!checkpoint->parts[p]->carried_over)
            bytes += trf_checkpoint_source_bytes(checkpoint->parts[p]);
    for (size_t i = 0; i < checkpoint->num_files; i++)
        bytes += trf_checkpoint_file_source_header(&checkpoint->files[i])->data_bytes;
    return bytes;
}

uint64_t trf_checkpoint_file_source_bytes(const trf_checkpoint_file *file) {
    const trf_safetensors *header = trf_checkpoint_file_source_header(file);
    return file->compressed || file->is_layer ? 8 + header->text_bytes + header->data_bytes : file->file_bytes;
}

static int has_file(const trf_checkpoint *checkpoint, const char *name) {
    for (size_t i = 0; i < checkpoint->num_files; i++)
        if (strcmp(checkpoint->files[i].name, name) == 0)
            return 1;
    for (size_t i = 0; i < checkpoint->num_indexes; i++)
        if (strcmp(checkpoint->indexes[i].name, name) == 0)
            return 1;
    return strcmp(name, "config.json") == 0;
}

trf_tree_owner trf_checkpoint_owner(const void *context, const char *path) {
    const trf_checkpoint *checkpoint = context;
    if (!checkpoint->num_parts)
        return has_file(checkpoint, path) ? TRF_TREE_REWRITTEN : TRF_TREE_OTHERS;
    if (strcmp(path, TRF_PIPELINE_INDEX_NAME) == 0)
        return TRF_TREE_KEPT;
    for (size_t p = 0; p < checkpoint->num_parts; p++) {
        const trf_checkpoint *part = checkpoint->parts[p];
        const size_t length = strlen(part->name);
        if (strncmp(path, part->name, length) == 0 && path[length] == '/' && has_file(part, path + length + 1))
            return part->carried_over ? TRF_TREE_KEPT : TRF_TREE_REWRITTEN;
    }
    return TRF_TREE_OTHERS;
}

/* @return whether a path is a symbolic link to another file of the same folder. That file then stands for both. */
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
        status = trf_fail_errno(err, path, TRF_NO_OFFSET,
                                lstat(path, &info) == 0 ? "cannot follow the link" : "cannot examine");
    else if (S_ISDIR(info.st_mode) || (!is_index && is_alias(checkpoint->root, path)))
        ; /* it is copied with the other entries */
    else if (is_index && (status = trf_checkpoint_index_open_counted(
                              path, checkpoint->budget, &checkpoint->indexes[checkpoint->num_indexes], err)) == TRF_OK)
        checkpoint->num_indexes++;
    else if (!is_index && (status = trf_checkpoint_file_open_counted(
                               path, checkpoint->budget, &checkpoint->files[checkpoint->num_files], err)) == TRF_OK)
        checkpoint->num_files++;
    free(path);
    return status;
}

/* Puts aside the indexes by which nothing is loaded, as after a download of one variant alone. */
static trf_status put_idle_indexes_aside(trf_checkpoint *checkpoint, trf_error *err) {
    size_t kept = 0;
    trf_status status = TRF_OK;
    if (!(checkpoint->idle_indexes = calloc(checkpoint->num_indexes + 1, sizeof *checkpoint->idle_indexes)))
        return trf_fail_memory(err, checkpoint->num_indexes);
    for (size_t i = 0; i < checkpoint->num_indexes; i++) {
        trf_checkpoint_index index = checkpoint->indexes[i];
        trf_idle_index idle = {
            NULL,
            status == TRF_OK ? trf_checkpoint_index_why_idle(&index, checkpoint->files, checkpoint->num_files) : NULL};
        if (idle.why && !(idle.name = strdup(index.name)))
            status = trf_fail_memory(err, strlen(index.name));
        if (idle.name) {
            checkpoint->idle_indexes[checkpoint->num_idle_indexes++] = idle;
            trf_checkpoint_index_free(&index);
        } else {
            checkpoint->indexes[kept++] = index;
        }
    }
    checkpoint->num_indexes = kept;
    return status;
}

/* Takes the stamp of config.json, which must not have been read yet. */
static trf_status take_config_stamp(trf_checkpoint *checkpoint, trf_error *err) {
    char *path = trf_path_join(checkpoint->root, "config.json");
    if (!path)
        return trf_fail_memory(err, strlen(checkpoint->root));
    checkpoint->has_config = trf_path_take_stamp(path, &checkpoint->config_stamp, NULL) == TRF_OK;
    free(path);
    return TRF_OK;
}

static trf_status check_config_stamp(const trf_checkpoint *checkpoint, trf_error *err) {
    char *path = trf_path_join(checkpoint->root, "config.json");
    trf_status status =
        path ? trf_path_check_stamp(path, &checkpoint->config_stamp, err) : trf_fail_memory(err, strlen("config.json"));
    free(path);
    return status;
}

trf_status trf_checkpoint_check_unchanged(const trf_checkpoint *checkpoint, trf_error *err) {
    const trf_checkpoint *model;
    trf_status status = TRF_OK;
    for (size_t m = 0; (model = trf_checkpoint_model(checkpoint, m)) && status == TRF_OK; m++) {
        for (size_t i = 0; i < model->num_files && status == TRF_OK; i++)
            status = trf_path_check_stamp(model->files[i].path, &model->files[i].stamp, err);
        for (size_t i = 0; i < model->num_indexes && status == TRF_OK; i++)
            status = trf_path_check_stamp(model->indexes[i].path, &model->indexes[i].stamp, err);
        if (status == TRF_OK && model->has_config)
            status = check_config_stamp(model, err);
    }
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
    if (status == TRF_OK && checkpoint->num_files) /* if there is no file at all, an index that names some is an
                                                    * error */
        status = put_idle_indexes_aside(checkpoint, err);
    for (size_t i = 0; i < checkpoint->num_indexes && status == TRF_OK; i++)
        status = trf_checkpoint_index_check(&checkpoint->indexes[i], checkpoint->files, checkpoint->num_files, err);
    if (status == TRF_OK && checkpoint->num_files == 0)
        status = trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET, "%s: this directory holds no .safetensors file",
                          checkpoint->root);
    return status == TRF_OK ? take_config_stamp(checkpoint, err) : status;
}

/* Sets *is to whether a folder holds a config.json and a *.safetensors file. A link to another folder of the pipeline
 * is no part, since that folder stands for both. */
static trf_status is_part(const char *root, const char *path, int *is, trf_error *err) {
    struct stat info;
    trf_folder folder;
    int has_config = 0, has_weights = 0;
    *is = 0;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode) || trf_name_is_unwanted(trf_path_basename(path)))
        return TRF_OK;
    trf_link_action action = TRF_LINK_FOLLOW;
    if (lstat(path, &info) == 0 && S_ISLNK(info.st_mode))
        action = trf_link_classify(root, path);
    if (action != TRF_LINK_FOLLOW)
        return TRF_OK;
    trf_status status = trf_folder_list(path, &folder, err);
    for (size_t i = 0; status == TRF_OK && i < folder.count; i++) {
        has_config |= strcmp(folder.names[i], "config.json") == 0;
        has_weights |= trf_name_is_safetensors(folder.names[i]);
    }
    if (status == TRF_OK)
        trf_folder_free(&folder);
    *is = has_config && has_weights;
    return status;
}

static trf_status checkpoint_add_part(trf_checkpoint *checkpoint, const char *name, trf_error *err) {
    char *path = trf_path_join(checkpoint->root, name);
    int is = 0;
    trf_status status = path ? is_part(checkpoint->root, path, &is, err) : trf_fail_memory(err, strlen(name));
    trf_checkpoint *part = is ? calloc(1, sizeof *part) : NULL;
    if (part) {
        part->is_folder = 1;
        part->limits = checkpoint->limits;
        part->budget = checkpoint->budget;
        part->root = path;
        part->name = strdup(name);
        checkpoint->parts[checkpoint->num_parts++] = part;
        return part->name ? checkpoint_open_folder(part, err) : trf_fail_memory(err, strlen(name));
    }
    free(path);
    return is ? trf_fail_memory(err, sizeof *part) : status;
}

static trf_status checkpoint_open_pipeline(trf_checkpoint *checkpoint, trf_error *err) {
    trf_folder folder;
    trf_status status = trf_folder_list(checkpoint->root, &folder, err);
    if (status != TRF_OK)
        return status;
    if (!(checkpoint->parts = calloc(folder.count + 1, sizeof *checkpoint->parts)))
        status = trf_fail_memory(err, folder.count * sizeof *checkpoint->parts);
    for (size_t i = 0; i < folder.count && status == TRF_OK; i++)
        status = checkpoint_add_part(checkpoint, folder.names[i], err);
    trf_folder_free(&folder);
    if (status == TRF_OK && checkpoint->num_parts == 0)
        status = trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET,
                          "%s: this is a pipeline (" TRF_PIPELINE_INDEX_NAME
                          "), and none of its folders holds a config.json and a .safetensors file",
                          checkpoint->root);
    return status;
}

/* @return whether the folder is a pipeline; -1 without memory. */
static int is_pipeline(const trf_checkpoint *checkpoint) {
    struct stat info;
    char *path = trf_path_join(checkpoint->root, TRF_PIPELINE_INDEX_NAME);
    const int is = path ? stat(path, &info) == 0 && S_ISREG(info.st_mode) : -1;
    free(path);
    return is;
}

static trf_status checkpoint_open_files(trf_checkpoint *checkpoint, trf_error *err) {
    const int pipeline = is_pipeline(checkpoint);
    if (pipeline < 0)
        return trf_fail_memory(err, strlen(checkpoint->root));
    return pipeline ? checkpoint_open_pipeline(checkpoint, err) : checkpoint_open_folder(checkpoint, err);
}

static trf_status checkpoint_open_file(trf_checkpoint *checkpoint, trf_error *err) {
    if (!(checkpoint->files = calloc(1, sizeof *checkpoint->files)))
        return trf_fail_memory(err, sizeof *checkpoint->files);
    trf_status status = trf_checkpoint_file_open_counted(checkpoint->root, checkpoint->budget, checkpoint->files, err);
    checkpoint->num_files = status == TRF_OK;
    return status;
}

/* budget: NULL: the checkpoint's own, of its limits. */
static trf_status checkpoint_open(const char *path, const trf_limits *limits, trf_budget *budget,
                                  trf_checkpoint **checkpoint, trf_error *err) {
    struct stat info;
    if (!path || !checkpoint)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "opening a checkpoint needs a path, and a place for it");
    *checkpoint = NULL;
    if (stat(path, &info) != 0)
        return trf_sanitize_error(trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot open"), err);
    trf_checkpoint *opened = calloc(1, sizeof *opened);
    if (!opened)
        return trf_fail_memory(err, sizeof *opened);
    opened->limits = *limits;
    opened->own.max_bytes = limits->max_memory_bytes;
    opened->budget = budget ? budget : &opened->own;
    int is_index = !S_ISDIR(info.st_mode) && trf_name_is_index(path);
    opened->is_folder = S_ISDIR(info.st_mode) || is_index;
    opened->root = is_index ? trf_path_parent(path) : strdup(path);
    trf_status status;
    if (!opened->root)
        status = trf_fail_memory(err, strlen(path));
    else
        status = opened->is_folder ? checkpoint_open_files(opened, err) : checkpoint_open_file(opened, err);
    if (status != TRF_OK) {
        trf_checkpoint_close(opened);
        return trf_sanitize_error(status, err);
    }
    *checkpoint = opened;
    return TRF_OK;
}

trf_status trf_checkpoint_open_counted(const char *path, trf_budget *budget, trf_checkpoint **checkpoint,
                                       trf_error *err) {
    const trf_limits none = {.struct_bytes = sizeof none};
    return checkpoint_open(path, &none, budget, checkpoint, err);
}

trf_status trf_checkpoint_open_within(const char *path, const trf_limits *limits, trf_checkpoint **checkpoint,
                                      trf_error *err) {
    trf_limits taken;
    trf_status status = trf_take_limits(limits, &taken, err);
    return status == TRF_OK ? checkpoint_open(path, &taken, NULL, checkpoint, err) : status;
}

trf_status trf_checkpoint_open(const char *path, trf_checkpoint **checkpoint, trf_error *err) {
    return trf_checkpoint_open_within(path, NULL, checkpoint, err);
}

void trf_checkpoint_close(trf_checkpoint *checkpoint) {
    if (!checkpoint)
        return;
    for (size_t i = 0; i < checkpoint->num_files; i++)
        trf_checkpoint_file_free(&checkpoint->files[i]);
    for (size_t i = 0; i < checkpoint->num_indexes; i++)
        trf_checkpoint_index_free(&checkpoint->indexes[i]);
    for (size_t i = 0; i < checkpoint->num_idle_indexes; i++)
        free(checkpoint->idle_indexes[i].name);
    for (size_t i = 0; i < checkpoint->num_parts; i++)
        trf_checkpoint_close(checkpoint->parts[i]);
    free(checkpoint->files);
    free(checkpoint->indexes);
    free(checkpoint->idle_indexes);
    free(checkpoint->parts);
    free(checkpoint->name);
    free(checkpoint->root);
    free(checkpoint);
}

void trf_checkpoint_count_side_tables(const trf_checkpoint *checkpoint, uint64_t *all, uint64_t *unused) {
    const trf_checkpoint *model;
    *all = *unused = 0;
    for (size_t m = 0; (model = trf_checkpoint_model(checkpoint, m)); m++)
        for (size_t f = 0; f < model->num_files; f++) {
            const trf_side_tables *tables = &model->files[f].side_tables;
            *all += tables->count;
            for (size_t i = 0; i < tables->count; i++)
                *unused += !tables->tables[i].is_used;
        }
}

uint64_t trf_checkpoint_num_tensors(const trf_checkpoint *checkpoint) {
    uint64_t count = 0;
    for (size_t p = 0; p < checkpoint->num_parts; p++)
        count += checkpoint->parts[p]->carried_over ? 0 : trf_checkpoint_num_tensors(checkpoint->parts[p]);
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

/* Finds a tensor by its source's name, with or without the suffix of blobs. matrix->checkpoint_file stays NULL if there
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

/* Finds a name in one model. matrix->checkpoint_file stays NULL if the model does not have it. */
static trf_status find_in_model(const trf_checkpoint *model, const char *name, trf_checkpoint_matrix *matrix,
                                trf_error *err) {
    *matrix = (trf_checkpoint_matrix){0};
    /* The whole name is tried first, since a name may end in brackets of its own. */
    trf_status status = find_named(model, name, strlen(name), matrix, err);
    if (status == TRF_OK && !matrix->checkpoint_file) {
        const size_t stem = split_expert_name(name, &matrix->expert);
        matrix->is_expert = stem > 0;
        if (stem)
            status = find_named(model, name, stem, matrix, err);
    }
    return status;
}

/* Does what find_in_model does. In a pipeline's part a name may also begin with the part's name. */
static trf_status find_in_part(const trf_checkpoint *part, const char *name, trf_checkpoint_matrix *matrix,
                               trf_error *err) {
    const size_t length = part->name ? strlen(part->name) : 0;
    trf_status status = find_in_model(part, name, matrix, err);
    if (status == TRF_OK && !matrix->checkpoint_file && length && strncmp(name, part->name, length) == 0 &&
        name[length] == '/')
        status = find_in_model(part, name + length + 1, matrix, err);
    return status;
}

trf_status trf_checkpoint_find(const trf_checkpoint *checkpoint, const char *name, trf_checkpoint_matrix *matrix,
                               trf_error *err) {
    const trf_checkpoint *model, *holder = NULL;
    *matrix = (trf_checkpoint_matrix){0};
    for (size_t i = 0; (model = trf_checkpoint_model(checkpoint, i)); i++) {
        trf_checkpoint_matrix found;
        trf_status status = find_in_part(model, name, &found, err);
        if (status != TRF_OK)
            return status;
        if (found.checkpoint_file && holder)
            return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                            "%s: both %s and %s have a tensor '%s'; open the folder of one of them, or say '%s/%s'",
                            checkpoint->root, holder->name, model->name, name, holder->name, name);
        if (found.checkpoint_file)
            *matrix = found, holder = model;
    }
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

void trf_count_side_table(trf_job *job, const trf_tensor *tensor, int is_used) {
    job->report.side_tables++;
    job->report.unused_side_tables += !is_used;
    job->report.side_table_bytes += trf_tensor_bytes(tensor);
}

void trf_count_side_tables(trf_job *job, const trf_checkpoint_file *file) {
    for (size_t i = 0; i < file->side_tables.count; i++)
        trf_count_side_table(job, file->side_tables.tables[i].source, file->side_tables.tables[i].is_used);
}

/* Opens every blob of a tensor, and sums up what their headers say. look: or NULL. */
static trf_status describe_blobs(const trf_checkpoint_file *checkpoint_file, const trf_file_tensor *tensor,
                                 trf_budget *budget, trf_look_at_blob_fn *look, void *context, trf_layer_info *info,
                                 trf_error *err) {
    trf_file file;
    uint64_t file_bytes;
    trf_blob_list list;
    trf_status status = trf_file_open(checkpoint_file->path, &file, &file_bytes, err);
    if (status != TRF_OK)
        return status;
    file.budget = budget;
    if ((status = trf_blob_list_read(&file, tensor->file_offset, tensor->bytes, &list, err)) != TRF_OK)
        goto done;
    for (uint64_t number = 0; number < list.count && status == TRF_OK; number++) {
        trf_blob_reader reader;
        trf_layer_info part;
        if ((status = trf_file_tensor_open_blob(&file, tensor, &list, number, &reader, err)) != TRF_OK)
            break;
        trf_blob_get_info(&reader.view, &part);
        if (look)
            look(context, &reader.view);
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

trf_status trf_checkpoint_look(trf_checkpoint *checkpoint, uint64_t index, trf_look_at_blob_fn *look, void *context,
                               trf_tensor_info *info, trf_error *err) {
    const trf_checkpoint_file *checkpoint_file = NULL;
    uint64_t i = index;
    if (!checkpoint || !info)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "what a tensor is needs a checkpoint, and a place for it");
    const trf_checkpoint *model;
    const uint64_t count = trf_checkpoint_num_tensors(checkpoint);
    for (size_t m = 0; !checkpoint_file && (model = trf_checkpoint_model(checkpoint, m)); m++)
        for (size_t f = 0; f < model->num_files && !checkpoint_file; f++) {
            if (i < model->files[f].num_tensors)
                checkpoint_file = &model->files[f];
            else
                i -= model->files[f].num_tensors;
        }
    if (!checkpoint_file)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "tensor %" PRIu64 " of %" PRIu64, index, count);
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
        .is_bare_blob = tensor->is_bare_blob,
    };
    if (!tensor->blobs)
        return TRF_OK;
    trf_budget budget = *checkpoint->budget; /* several threads may ask */
    return trf_sanitize_error(describe_blobs(checkpoint_file, tensor, &budget, look, context, &info->layer, err), err);
}

trf_status trf_checkpoint_tensor(trf_checkpoint *checkpoint, uint64_t index, trf_tensor_info *info, trf_error *err) {
    return trf_checkpoint_look(checkpoint, index, NULL, NULL, info, err);
}
