/* SPDX-License-Identifier: Apache-2.0 */
/* Makes one checkpoint from another: the files of the output, whatever is done to the tensors. */
#include "trf_model_config.h"
#include "trf_output.h"
#include "trf_resume.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    TRF_NOTED_BYTES = 1000000 /* what .git and caches may hold without a note */
};

/* An output under construction. */
typedef struct trf_rewriting {
    const trf_rewrite *plan;
    trf_job *job;
    trf_tree tree; /* of a folder: what goes into the output */
    trf_output output;
    const char *folder; /* where the output is being built; NULL: only sizes are asked for */
} trf_rewriting;

/* One model of the output. Its files are opened again after they have been written, since the indexes describe what is
 * in them. */
typedef struct trf_rewriting_part {
    trf_rewriting *work;
    const trf_rewrite_part *part;
    trf_checkpoint_file *written; /* [checkpoint->num_files]; only if there are indexes */
    size_t num_written;
} trf_rewriting_part;

/* Counts bytes of the output. When decompressing, that field of the report has the input's size already. */
static void count_output(trf_rewriting *work, uint64_t bytes) {
    work->job->report.output_file_bytes += work->plan->compresses ? bytes : 0;
}

/* Makes the path of a model's entry below the whole checkpoint. @return malloc'd, or NULL without memory. */
static char *path_below(const trf_rewriting_part *at, const char *name) {
    const char *part = at->part->checkpoint->name;
    return trf_path_join(part ? part : "", name);
}

/* @return the permissions of the source's entry that the output's entry replaces. */
static unsigned mode_of(const trf_rewriting *work, const char *below) {
    const trf_tree_entry *entry = trf_tree_find(&work->tree, below);
    return entry && entry->kind != TRF_TREE_FOLDER ? entry->mode : 0600;
}

/* ---- one model ---- */

/* Compares a file that has been written with its source. What is wrong is not continued either. */
static trf_status read_back(trf_rewriting *work, const char *path, const trf_checkpoint *model,
                            const trf_checkpoint_file *file, trf_error *err) {
    if (!work->plan->read_back)
        return TRF_OK;
    trf_status status = work->plan->read_back(work->job, path, model, file, err);
    if (status == TRF_ERR_MISMATCH && work->job->resume)
        work->job->resume->is_unsound = 1;
    return status;
}

/* Rewrites one file as a new file of the folder. */
static trf_status rewrite_one_file(trf_rewriting_part *at, const trf_checkpoint_file *file, trf_error *err) {
    trf_rewriting *work = at->work;
    trf_rewrite_file_fn *rewrite_file = work->plan->rewrite_file;
    uint64_t bytes = 0;
    if (!work->folder) {
        trf_status status = rewrite_file(at->part->context, file, NULL, &bytes, err);
        count_output(work, bytes);
        return status;
    }
    char *below = path_below(at, file->name), *path = below ? trf_path_join(work->folder, below) : NULL;
    trf_file out = {.fd = -1};
    trf_resume *resume = work->job->resume;
    trf_status status = TRF_OK;
    if (!path)
        status = trf_fail_memory(err, strlen(file->name));
    else if (resume && resume->continues)
        status = trf_file_continue(path, mode_of(work, below), &out, err);
    else
        status = trf_file_create(path, mode_of(work, below), &out, err);
    out.quota = &work->job->quota;
    if (status == TRF_OK)
        status = rewrite_file(at->part->context, file, &out, &bytes, err);
    work->job->quota.done_bytes += bytes;
    if (status == TRF_OK)
        status = read_back(work, path, at->part->checkpoint, file, err);
    if (status == TRF_OK && (status = trf_file_sync(&out, err)) != TRF_OK && resume)
        resume->is_unsound = 1;
    trf_file_close(&out);
    count_output(work, bytes);
    if (status == TRF_OK && at->written &&
        (status = trf_checkpoint_file_open_counted(path, &work->job->budget, &at->written[at->num_written], err)) ==
            TRF_OK)
        at->num_written++;
    free(below);
    free(path);
    return status;
}

/* Writes a new file of the folder. */
static trf_status write_text(const trf_rewriting_part *at, const char *name, const char *text, size_t bytes,
                             trf_error *err) {
    trf_rewriting *work = at->work;
    count_output(work, bytes);
    if (!work->folder)
        return TRF_OK;
    char *below = path_below(at, name), *path = below ? trf_path_join(work->folder, below) : NULL;
    trf_file out = {.fd = -1};
    trf_status status =
        path ? trf_file_create(path, mode_of(work, below), &out, err) : trf_fail_memory(err, strlen(name));
    out.quota = &work->job->quota;
    if (status == TRF_OK)
        status = trf_file_write(&out, 0, text, bytes, err);
    work->job->quota.done_bytes += bytes;
    if (status == TRF_OK)
        status = trf_file_sync(&out, err);
    trf_file_close(&out);
    free(below);
    free(path);
    return status;
}

static trf_status rewrite_index(trf_rewriting_part *at, const trf_checkpoint_index *index, trf_error *err) {
    char *text = NULL;
    size_t bytes;
    trf_status status = trf_checkpoint_index_rewrite(index, at->part->checkpoint->files, at->written, at->num_written,
                                                     &text, &bytes, err);
    if (status == TRF_OK)
        status = write_text(at, index->name, text, bytes, err);
    free(text);
    return status;
}

/* Estimates the size of an index. One that keeps the source's index has its text twice, and an escape for each line;
 * names grow a little. */
static void estimate_index(const trf_rewriting_part *at, const trf_checkpoint_index *index, int compressed) {
    struct stat info;
    const uint64_t bytes = stat(index->path, &info) == 0 ? (uint64_t)info.st_size : 0;
    count_output(at->work, compressed ? bytes * 23 / 10 : bytes);
}

static trf_status copy_entry(trf_rewriting *work, const trf_tree_entry *entry, trf_error *err) {
    if (entry->kind == TRF_TREE_FILE)
        count_output(work, entry->bytes);
    return work->folder ? trf_tree_copy(&work->tree, entry, work->folder, work->job, err) : TRF_OK;
}

/* Writes config.json. This follows the tensors, since it is known only then whether there are blobs. */
static trf_status rewrite_config(trf_rewriting_part *at, int compressed, trf_error *err) {
    const trf_model_config *config = at->part->config;
    if (config->text && (compressed || !config->for_blobs_only))
        return write_text(at, TRF_MODEL_CONFIG_NAME, config->text, config->bytes, err);
    char *below = path_below(at, TRF_MODEL_CONFIG_NAME);
    if (!below)
        return trf_fail_memory(err, sizeof TRF_MODEL_CONFIG_NAME);
    const trf_tree_entry *entry = trf_tree_find(&at->work->tree, below);
    free(below);
    /* A folder of that name has been copied with the other entries. */
    return entry && entry->owner == TRF_TREE_REWRITTEN ? copy_entry(at->work, entry, err) : TRF_OK;
}

static trf_status rewrite_part(trf_rewriting *work, const trf_rewrite_part *part, trf_error *err) {
    const trf_checkpoint *checkpoint = part->checkpoint;
    const uint64_t before = work->job->report.compressed_tensors;
    trf_rewriting_part at = {.work = work, .part = part};
    if (checkpoint->num_indexes && work->folder && !(at.written = calloc(checkpoint->num_files, sizeof *at.written)))
        return trf_fail_memory(err, checkpoint->num_files * sizeof *at.written);
    trf_status status = TRF_OK;
    for (size_t i = 0; i < checkpoint->num_files && status == TRF_OK; i++)
        status = rewrite_one_file(&at, &checkpoint->files[i], err);
    const int compressed = work->job->report.compressed_tensors > before;
    for (size_t i = 0; i < checkpoint->num_indexes && status == TRF_OK; i++)
        if (work->folder)
            status = rewrite_index(&at, &checkpoint->indexes[i], err);
        else
            estimate_index(&at, &checkpoint->indexes[i], compressed);
    if (status == TRF_OK)
        status = rewrite_config(&at, compressed, err);
    for (size_t i = 0; i < at.num_written; i++)
        trf_checkpoint_file_free(&at.written[i]);
    free(at.written);
    return status;
}

/* Builds the folder, or counts what it would hold. */
static trf_status rewrite_folder(trf_rewriting *work, trf_error *err) {
    trf_status status = TRF_OK;
    /* Small files go first: one that cannot be carried over should show before hours of encoding. */
    for (int large = 0; large < 2; large++)
        for (size_t i = 0; i < work->tree.count && status == TRF_OK; i++) {
            const trf_tree_entry *entry = &work->tree.entries[i];
            if (entry->owner != TRF_TREE_REWRITTEN && trf_tree_holds_weights(entry) == large)
                status = copy_entry(work, entry, err);
        }
    for (size_t i = 0; i < work->plan->num_parts && status == TRF_OK; i++)
        status = rewrite_part(work, &work->plan->parts[i], err);
    if (status == TRF_OK && work->folder)
        status = trf_tree_finish_folders(&work->tree, work->folder, err);
    return status;
}

/* ---- before anything is written ---- */

/* Refuses a folder's output that is named like a file: a user who names an index means its folder, but would get a
 * folder of that name. */
static trf_status check_out_name(const trf_checkpoint *checkpoint, const char *out_path, trf_error *err) {
    if (checkpoint->is_folder && (trf_name_is_index(out_path) || trf_name_is_safetensors(out_path)))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "%s: the input is a directory, so the output has to be one; this is the name of a file",
                        out_path);
    return TRF_OK;
}

/* Names what is carried over as it is, and what is left out. */
static trf_status count_extra(trf_rewriting *work, trf_error *err) {
    trf_checkpoint_report *report = &work->job->report;
    trf_file_groups extra = {0};
    trf_status status = TRF_OK;
    for (size_t i = 0; i < work->tree.count && status == TRF_OK; i++) {
        const trf_tree_entry *entry = &work->tree.entries[i];
        if (entry->kind == TRF_TREE_FILE && entry->owner != TRF_TREE_REWRITTEN)
            work->job->total_bytes += entry->bytes;
        if (!trf_tree_holds_weights(entry))
            continue;
        const size_t top = strcspn(entry->path, "/");
        const trf_file_group file = {.is_folder = entry->path[top] == '/', .files = 1, .bytes = entry->bytes};
        status = trf_file_groups_add(&extra, entry->path, top, &file, err);
        report->extra_files++;
        report->extra_bytes += entry->bytes;
    }
    for (size_t i = 0; i < work->tree.skipped.count; i++) {
        report->skipped_files += work->tree.skipped.groups[i].files;
        report->skipped_bytes += work->tree.skipped.groups[i].bytes;
    }
    if (status == TRF_OK && work->plan->compresses)
        trf_file_groups_note(&extra, 0, 0, "carried over uncompressed", work->job);
    if (status == TRF_OK)
        trf_file_groups_note(&work->tree.skipped, 1, 0, "left out as asked", work->job);
    if (status == TRF_OK)
        trf_file_groups_note(&work->tree.skipped, 0, TRF_NOTED_BYTES, "not carried over", work->job);
    trf_file_groups_free(&extra);
    return status;
}

/* @return the bytes of a model's indexes and config.json, as they are in the source. */
static uint64_t source_text_bytes(const trf_tree *tree, const trf_rewrite_part *part, int compresses) {
    uint64_t total = 0;
    struct stat info;
    for (size_t i = 0; i < part->checkpoint->num_indexes; i++) {
        size_t kept;
        if (!compresses && trf_checkpoint_index_kept(&part->checkpoint->indexes[i], &kept))
            total += kept;
        else if (stat(part->checkpoint->indexes[i].path, &info) == 0)
            total += (uint64_t)info.st_size;
    }
    if (!compresses && part->config->text)
        return total + part->config->bytes;
    const char *name = part->checkpoint->name;
    const size_t length = name ? strlen(name) + 1 : 0;
    for (size_t i = 0; i < tree->count; i++) {
        const char *path = tree->entries[i].path;
        if ((!name || (strncmp(path, name, length - 1) == 0 && path[length - 1] == '/')) &&
            strcmp(path + length, TRF_MODEL_CONFIG_NAME) == 0)
            total += tree->entries[i].bytes;
    }
    return total;
}

void trf_count_whole_files(const trf_tree *tree, const trf_rewrite_part *parts, size_t num_parts, int compresses,
                           trf_checkpoint_report *report) {
    uint64_t source = 0, here = 0;
    for (size_t p = 0; p < num_parts; p++) {
        const trf_checkpoint *checkpoint = parts[p].checkpoint;
        for (size_t i = 0; i < checkpoint->num_files; i++) {
            source += trf_checkpoint_file_source_bytes(&checkpoint->files[i]);
            here += checkpoint->is_folder ? 0 : checkpoint->files[i].file_bytes;
        }
        if (checkpoint->is_folder)
            source += source_text_bytes(tree, &parts[p], compresses);
    }
    for (size_t i = 0; i < tree->count; i++) {
        const trf_tree_entry *entry = &tree->entries[i];
        source += entry->owner != TRF_TREE_REWRITTEN && entry->kind == TRF_TREE_FILE ? entry->bytes : 0;
        here += entry->kind == TRF_TREE_FILE ? entry->bytes : 0;
    }
    report->source_file_bytes = source;
    if (!compresses)
        report->output_file_bytes = here;
}

static void note_idle_indexes(const trf_rewriting *work) {
    for (size_t p = 0; p < work->plan->num_parts; p++) {
        const trf_checkpoint *checkpoint = work->plan->parts[p].checkpoint;
        for (size_t i = 0; i < checkpoint->num_idle_indexes; i++)
            trf_job_note(work->job, "%s/%s: %s; it is carried over as it is", checkpoint->root,
                         checkpoint->idle_indexes[i].name, checkpoint->idle_indexes[i].why);
    }
}

static trf_status survey(trf_rewriting *work, trf_error *err) {
    const trf_checkpoint *checkpoint = work->plan->checkpoint;
    const char *const *skip = work->job->options.skip_extra;
    trf_status status = TRF_OK;
    if (checkpoint->is_folder) {
        status = trf_tree_list(checkpoint->root, skip, trf_checkpoint_owner, checkpoint, &work->tree, err);
        if (status == TRF_ERR_UNSUPPORTED)
            trf_prefix_error(err, status, "cannot be carried over");
        if (status == TRF_OK)
            status = count_extra(work, err);
    } else if (skip && skip[0]) {
        status = trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET,
                          "%s: is one file; there is nothing beside it to leave out ('%s')", checkpoint->root, skip[0]);
    }
    if (status != TRF_OK)
        return status;
    trf_count_whole_files(&work->tree, work->plan->parts, work->plan->num_parts, work->plan->compresses,
                          &work->job->report);
    note_idle_indexes(work);
    return TRF_OK;
}

/* ---- what the caller's limit allows ---- */

/* Fails because of the file, or of its first tensor that does not fit after before_bytes of other files. */
static trf_status fail_quota(const trf_rewriting *work, const trf_checkpoint_file *file, uint64_t before_bytes,
                             trf_error *err) {
    const trf_safetensors *source = trf_checkpoint_file_source_header(file);
    const uint64_t max_bytes = work->job->quota.max_bytes, data = before_bytes + trf_safetensors_data_offset(source);
    for (size_t i = 0; i < file->num_tensors; i++) {
        const trf_tensor *tensor = file->tensors[i].source;
        if (data <= max_bytes && tensor->end <= max_bytes - data)
            continue;
        return trf_fail(err, TRF_ERR_LIMIT, file->tensors[i].file_offset,
                        "%s: tensor '%s': max_output_bytes is %" PRIu64 ", and its %" PRIu64
                        " bytes would end at byte %" PRIu64 " of the output",
                        file->path, tensor->name, max_bytes, trf_tensor_bytes(tensor), data + tensor->end);
    }
    return trf_fail(err, TRF_ERR_LIMIT, TRF_NO_OFFSET,
                    "%s: max_output_bytes is %" PRIu64 ", and the file would have %" PRIu64 " bytes, after %" PRIu64
                    " of other files",
                    file->path, max_bytes, trf_checkpoint_file_source_bytes(file), before_bytes);
}

/* Checks what is known of the output's size before anything is written: of files that are carried over, and, when
 * decompressing, of all. */
static trf_status check_quota(const trf_rewriting *work, trf_error *err) {
    const uint64_t max_bytes = work->job->quota.max_bytes;
    uint64_t total = 0;
    for (size_t i = 0; i < work->tree.count && max_bytes; i++) {
        const trf_tree_entry *entry = &work->tree.entries[i];
        if (entry->owner == TRF_TREE_REWRITTEN || entry->kind != TRF_TREE_FILE)
            continue;
        if (entry->bytes > max_bytes - total)
            return trf_fail(err, TRF_ERR_LIMIT, TRF_NO_OFFSET,
                            "%s/%s: max_output_bytes is %" PRIu64 ", and the file has %" PRIu64 " bytes, after %" PRIu64
                            " of other files that are carried over",
                            work->tree.root, entry->path, max_bytes, entry->bytes, total);
        total += entry->bytes;
    }
    for (size_t p = 0; p < work->plan->num_parts && max_bytes && !work->plan->compresses; p++) {
        const trf_checkpoint *model = work->plan->parts[p].checkpoint;
        for (size_t i = 0; i < model->num_files; i++) {
            const uint64_t bytes = trf_checkpoint_file_source_bytes(&model->files[i]);
            if (bytes > max_bytes - total)
                return fail_quota(work, &model->files[i], total, err);
            total += bytes;
        }
    }
    return TRF_OK;
}

/* Checks the sizes that a dry run has found. */
static trf_status check_estimate(const trf_rewriting *work, trf_error *err) {
    const trf_checkpoint_report *report = &work->job->report;
    const uint64_t max_bytes = work->job->quota.max_bytes,
                   bytes = work->plan->compresses ? report->output_file_bytes : report->source_file_bytes;
    if (!max_bytes || bytes <= max_bytes)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_LIMIT, TRF_NO_OFFSET,
                    "%s: max_output_bytes is %" PRIu64 ", and the output would have about %" PRIu64 " bytes",
                    work->plan->checkpoint->root, max_bytes, bytes);
}

/* Estimates the sizes, without writing anything. */
static trf_status estimate(trf_rewriting *work, trf_error *err) {
    const char *folder = work->folder;
    work->folder = NULL;
    trf_status status;
    if (work->plan->checkpoint->is_folder) {
        status = rewrite_folder(work, err);
    } else {
        uint64_t bytes = 0;
        status = work->plan->rewrite_file(work->plan->parts->context, work->plan->checkpoint->files, NULL, &bytes, err);
        count_output(work, bytes);
    }
    work->folder = folder;
    return status;
}

/* Checks that the disk has room, so that it is not full only after hours. If the source would fit, so does whatever it
 * becomes. */
static trf_status check_space(trf_rewriting *work, trf_error *err) {
    char *parent = trf_path_parent(work->output.path);
    if (!parent)
        return trf_fail_memory(err, strlen(work->output.path));
    uint64_t available = trf_free_bytes(parent);
    if (work->job->resume && available < UINT64_MAX)
        available += work->job->resume->held_bytes;
    free(parent);
    uint64_t needed = work->job->report.source_file_bytes;
    if (available >= needed)
        return TRF_OK;
    if (work->plan->compresses) {
        trf_job saved = *work->job;
        work->job->report.output_file_bytes = 0;
        work->job->options.note = NULL;
        work->job->options.progress = NULL;
        trf_status status = estimate(work, err);
        needed = work->job->report.output_file_bytes / 100 * 97; /* an estimate may be too high */
        *work->job = saved;
        if (status != TRF_OK || available >= needed)
            return status;
    }
    char needed_text[TRF_SIZE_TEXT_BYTES], free_text[TRF_SIZE_TEXT_BYTES];
    return trf_fail(err, TRF_ERR_IO, TRF_NO_OFFSET, "%s: needs about %s, and %s are free", work->plan->out_path,
                    trf_size_text(needed, needed_text), trf_size_text(available, free_text));
}

/* @return whether a file is equal to the source's, byte for byte. Such a file is one that an earlier run carried over
 * and this run leaves out. */
static int is_copy(const trf_rewriting *work, const char *below, const char *path) {
    enum {
        PART = TRF_COPY_BYTES / 2
    };
    const trf_checkpoint *checkpoint = work->plan->checkpoint;
    char *source_path = checkpoint->is_folder ? trf_path_join(checkpoint->root, below) : strdup(checkpoint->root);
    trf_file copy = {.fd = -1}, source = {.fd = -1};
    uint64_t bytes = 0, source_bytes = 0;
    int same = source_path
                   ? trf_file_open(path, &copy, &bytes, NULL) == TRF_OK &&
                         trf_file_open(source_path, &source, &source_bytes, NULL) == TRF_OK && bytes == source_bytes
                   : -1;
    for (uint64_t at = 0; same == 1 && at < bytes; at += PART) {
        const uint64_t part = bytes - at < PART ? bytes - at : PART;
        same = trf_file_read(&copy, at, work->job->buffer, part, NULL) == TRF_OK &&
               trf_file_read(&source, at, work->job->buffer + PART, part, NULL) == TRF_OK &&
               memcmp(work->job->buffer, work->job->buffer + PART, part) == 0;
    }
    trf_file_close(&copy);
    trf_file_close(&source);
    free(source_path);
    return same;
}

/* @return whether a file of weights holds only tensors that the file being decompressed has, too; -1 without memory. */
static int is_written_again(const trf_checkpoint_file *source, const char *path) {
    trf_checkpoint_file file;
    trf_error failure = {0};
    if (trf_checkpoint_file_open(path, &file, &failure) != TRF_OK)
        return failure.status == TRF_ERR_MEMORY ? -1 : 0;
    int found = 1;
    for (size_t i = 0; i < file.num_tensors && found; i++)
        found = trf_checkpoint_file_find(source, file.tensors[i].source->name) != NULL;
    trf_checkpoint_file_free(&file);
    return found;
}

/* Decides whether a single file that the user has named may be replaced: any file, except uncompressed weights that
 * would be lost. */
static int may_replace_file(const trf_rewriting *work, const char *name, const char *path) {
    const trf_file_sort sort = trf_file_sort_of(path);
    if (sort != TRF_FILE_WEIGHTS)
        return sort == TRF_FILE_UNKNOWN ? -1 : 1;
    const int again = work->plan->compresses ? 0 : is_written_again(work->plan->checkpoint->files, path);
    return again ? again : is_copy(work, name, path);
}

/* Decides what may be replaced in a folder: what this run would write, what transfuse wrote, and what the source has as
 * well. Compressing does not replace weights that are not compressed: they may be another model of the user's. */
static int may_replace(void *context, const char *below, const char *path, int is_folder) {
    const trf_rewriting *work = context;
    if (!work->plan->checkpoint->is_folder)
        return may_replace_file(work, below, path);
    const trf_tree_entry *entry = trf_tree_find(&work->tree, below);
    const trf_file_sort sort = is_folder ? TRF_FILE_OTHER : trf_file_sort_of(path);
    if (sort == TRF_FILE_UNKNOWN)
        return -1;
    const int is_written = entry && (entry->kind == TRF_TREE_FOLDER) == is_folder;
    if (sort == TRF_FILE_OURS || (is_written && !(work->plan->compresses && sort == TRF_FILE_WEIGHTS)))
        return 1;
    return is_folder ? 0 : is_copy(work, below, path);
}

/* ---- the whole ---- */

static trf_status make_place(trf_rewriting *work, trf_output_place *place, trf_error *err) {
    const trf_checkpoint *checkpoint = work->plan->checkpoint;
    struct stat info;
    if (stat(checkpoint->root, &info) != 0)
        return trf_fail_errno(err, checkpoint->root, TRF_NO_OFFSET, "cannot examine");
    *place = (trf_output_place){.path = work->plan->out_path,
                                .is_folder = checkpoint->is_folder,
                                .overwrite = work->job->options.overwrite,
                                .mode = info.st_mode & 0777,
                                .job = work->job,
                                .may_replace = may_replace,
                                .context = work};
    return TRF_OK;
}

/* Checks that the source was not written to meanwhile: the output might then belong to neither version. Other files,
 * such as a log that grows, may change; each is copied as it is at that time. */
static trf_status check_unchanged(const trf_rewriting *work, trf_error *err) {
    trf_status status = trf_checkpoint_check_unchanged(work->plan->checkpoint, err);
    for (size_t i = 0; i < work->tree.count && status == TRF_OK; i++) {
        const trf_tree_entry *entry = &work->tree.entries[i];
        if (entry->kind != TRF_TREE_FILE || !trf_name_is_weights(entry->path))
            continue;
        char *path = trf_path_join(work->tree.root, entry->path);
        status = path ? trf_path_check_stamp(path, &entry->stamp, err) : trf_fail_memory(err, strlen(entry->path));
        free(path);
    }
    return status;
}

/* Decides whether a file of a folder that is continued is one of weights, which has what was encoded before. context:
 * the plan. */
static int is_rewritten(const void *context, const char *below) {
    const trf_rewrite *plan = context;
    for (size_t p = 0; p < plan->num_parts; p++) {
        const trf_checkpoint *model = plan->parts[p].checkpoint;
        for (size_t i = 0; i < model->num_files; i++) {
            char *path = trf_path_join(model->name ? model->name : "", model->files[i].name);
            const int found = path ? strcmp(path, below) == 0 : -1;
            free(path);
            if (found)
                return found;
        }
    }
    return 0;
}

static trf_status write_output(trf_rewriting *work, const trf_output_place *place, trf_error *err) {
    trf_status status = trf_output_begin(&work->output, place, err);
    trf_resume *resume = work->job->resume;
    if (status == TRF_OK && place->is_folder && resume && resume->continues)
        status = trf_resume_clean(resume, work->output.temporary, is_rewritten, work->plan, err);
    if (status == TRF_OK)
        status = check_space(work, err);
    if (status != TRF_OK)
        return status;
    if (place->is_folder) {
        work->folder = work->output.temporary;
        status = rewrite_folder(work, err);
    } else {
        uint64_t bytes = 0;
        work->output.file.quota = &work->job->quota;
        status = work->plan->rewrite_file(work->plan->parts->context, work->plan->checkpoint->files, &work->output.file,
                                          &bytes, err);
        if (status == TRF_OK)
            status =
                read_back(work, work->output.temporary, work->plan->checkpoint, work->plan->checkpoint->files, err);
        count_output(work, bytes);
    }
    if (status == TRF_OK)
        status = check_unchanged(work, err);
    return status == TRF_OK ? trf_output_publish(&work->output, err) : status;
}

trf_status trf_checkpoint_rewrite(const trf_rewrite *plan, trf_error *err) {
    const char *out_path = plan->out_path;
    trf_rewriting work = {.plan = plan, .job = plan->job, .output = {.file = {.fd = -1}}};
    trf_output_place place;
    trf_status status = out_path ? check_out_name(plan->checkpoint, out_path, err) : TRF_OK;
    if (status == TRF_OK && out_path)
        status = trf_output_check_apart(plan->checkpoint->root, out_path, err);
    if (status == TRF_OK)
        status = survey(&work, err);
    if (status == TRF_OK)
        status = check_quota(&work, err);
    if (status == TRF_OK && out_path)
        status = make_place(&work, &place, err);
    if (status == TRF_OK && plan->job->options.dry_run && out_path)
        status = trf_output_check(&place, err);
    if (status == TRF_OK)
        status = plan->job->options.dry_run ? estimate(&work, err) : write_output(&work, &place, err);
    if (status == TRF_OK && plan->job->options.dry_run)
        status = check_estimate(&work, err);
    trf_output_end(&work.output);
    trf_tree_free(&work.tree);
    return status;
}
