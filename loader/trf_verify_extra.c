/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_verify_extra.h"

#include "trf_model_config.h"
#include "trf_output.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TRF_MOST_INDEX_BYTES (4ull * TRF_MAX_SAFETENSORS_HEADER_BYTES)

enum {
    TRF_NAMES_BYTES = 300,
    TRF_MORE_BYTES = 32, /* " and 12 more" */
    TRF_COMPARED_BYTES = TRF_COPY_BYTES / 2
};

/* Names of files for one line, as many as fit. */
typedef struct trf_name_list {
    char text[TRF_NAMES_BYTES];
    size_t length, count, listed;
} trf_name_list;

static void add_name(trf_name_list *list, const char *name) {
    const size_t length = strlen(name), room = sizeof list->text - list->length;
    list->count++;
    if (list->listed + 1 < list->count || length + 2 + TRF_MORE_BYTES > room)
        return;
    list->length += (size_t)snprintf(list->text + list->length, room, "%s%s", list->length ? ", " : "", name);
    list->listed++;
}

/* Ends the list; no name can be added after that. @return the names. */
static const char *end_names(trf_name_list *list) {
    if (list->listed < list->count)
        snprintf(list->text + list->length, sizeof list->text - list->length, " and %zu more",
                 list->count - list->listed);
    return list->text;
}

/* Fills in what the report says of whole files. The source's sizes are those that decompressing would give. */
static trf_status count_whole(const trf_checkpoint *checkpoint, const trf_tree *ours, trf_job *job, trf_error *err) {
    trf_restored_models models;
    trf_status status = trf_restored_models_read(checkpoint, NULL, &models, err);
    if (status == TRF_OK)
        trf_count_whole_files(ours, models.parts, models.count, 0, &job->report);
    trf_restored_models_free(&models);
    return status;
}

static int is_compared(const trf_tree_entry *entry) {
    return entry->owner != TRF_TREE_REWRITTEN && entry->kind != TRF_TREE_FOLDER;
}

trf_status trf_extra_files_list(const trf_checkpoint *checkpoint, const trf_checkpoint *against, trf_job *job,
                                trf_extra_files *files, trf_error *err) {
    trf_status status = TRF_OK;
    files->compares = against && against->is_folder && checkpoint->is_folder;
    trf_error failure = {0};
    if (checkpoint->is_folder)
        status = trf_tree_list(checkpoint->root, NULL, trf_checkpoint_owner, checkpoint, &files->ours, &failure);
    if (status == TRF_ERR_UNSUPPORTED && !against) { /* it could not be carried over, but that does not matter here */
        trf_job_note(job, "%s: not counted, nor what comes behind it", failure.message);
        status = TRF_OK;
    }
    if (status != TRF_OK && err)
        *err = failure;
    if (status == TRF_OK)
        status = count_whole(checkpoint, &files->ours, job, err);
    for (size_t i = 0; i < files->ours.count && status == TRF_OK; i++)
        if (trf_tree_holds_weights(&files->ours.entries[i])) {
            job->report.extra_files++;
            job->report.extra_bytes += files->ours.entries[i].bytes;
        }
    if (status == TRF_OK && against && checkpoint->is_folder && !files->compares)
        trf_job_note(job, "%.700s: is a file: its tensors are compared, and none of the other files of %.200s",
                     against->root, checkpoint->root);
    if (status == TRF_OK && against && files->compares)
        status =
            trf_tree_list(against->root, job->options.skip_extra, trf_checkpoint_owner, against, &files->source, err);
    for (size_t i = 0; i < files->source.count && status == TRF_OK; i++)
        if (is_compared(&files->source.entries[i]) && trf_tree_find(&files->ours, files->source.entries[i].path))
            job->total_bytes += files->source.entries[i].bytes;
    return status;
}

void trf_extra_files_free(trf_extra_files *files) {
    trf_tree_free(&files->ours);
    trf_tree_free(&files->source);
}

/* Compares two files. *offset: the first byte that differs, or UINT64_MAX. */
static trf_status compare_files(const char *ours_path, const char *source_path, const char *name, trf_job *job,
                                uint64_t *offset, trf_error *err) {
    trf_file ours, source;
    uint64_t ours_bytes, source_bytes, at = 0;
    uint8_t *a = job->buffer, *b = job->buffer + TRF_COMPARED_BYTES;
    *offset = UINT64_MAX;
    trf_status status = trf_file_open(ours_path, &ours, &ours_bytes, err);
    if (status != TRF_OK)
        return status;
    if ((status = trf_file_open(source_path, &source, &source_bytes, err)) != TRF_OK) {
        trf_file_close(&ours);
        return status;
    }
    const uint64_t common = ours_bytes < source_bytes ? ours_bytes : source_bytes;
    while (at < common && status == TRF_OK && *offset == UINT64_MAX) {
        const uint64_t part = common - at < TRF_COMPARED_BYTES ? common - at : TRF_COMPARED_BYTES;
        status = trf_file_read(&ours, at, a, part, err);
        if (status == TRF_OK)
            status = trf_file_read(&source, at, b, part, err);
        if (status == TRF_OK && memcmp(a, b, part) != 0)
            for (*offset = at; a[*offset - at] == b[*offset - at];)
                ++*offset;
        at += part;
        if (status == TRF_OK)
            status = trf_job_advance(job, name, part, err);
    }
    if (*offset == UINT64_MAX && ours_bytes != source_bytes)
        *offset = common;
    trf_file_close(&ours);
    trf_file_close(&source);
    return status;
}

/* The differences from the source's files. */
typedef struct trf_findings {
    trf_name_list differing, missing, added;
    uint64_t offset; /* of the first byte that differs, in the first file that does */
} trf_findings;

static int is_regular(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* Compares one entry. A link agrees with a link of the same text, and with a copy of what it leads to. */
static trf_status verify_one(const trf_extra_files *files, const trf_tree_entry *ours, const trf_tree_entry *source,
                             trf_job *job, trf_findings *findings, trf_error *err) {
    uint64_t offset = ours->link && source->link && strcmp(ours->link, source->link) == 0 ? UINT64_MAX : 0;
    char *ours_path = trf_path_join(files->ours.root, source->path),
         *source_path = trf_path_join(files->source.root, source->path);
    trf_status status = TRF_OK;
    if (!ours_path || !source_path)
        status = trf_fail_memory(err, strlen(source->path));
    else if (offset == 0 && is_regular(ours_path) && is_regular(source_path))
        status = compare_files(ours_path, source_path, source->path, job, &offset, err);
    free(ours_path);
    free(source_path);
    if (status != TRF_OK)
        return status;
    if (offset == UINT64_MAX) {
        job->report.compared_files++;
        return TRF_OK;
    }
    if (!findings->differing.count)
        findings->offset = offset;
    add_name(&findings->differing, source->path);
    return TRF_OK;
}

/* @return whether the source of a file's tensors is known, because the source has the model. */
static int is_known_model(const trf_extra_files *files, const trf_tree_entry *ours) {
    char top[PATH_MAX];
    const size_t length = strcspn(ours->path, "/");
    if (ours->owner != TRF_TREE_REWRITTEN || !trf_name_is_safetensors(ours->path))
        return 0;
    if (!ours->path[length])
        return 1;
    snprintf(top, sizeof top, "%.*s", (int)length, ours->path);
    return trf_tree_find(&files->source, top) != NULL;
}

/* Finds files that decompressing would give back, but that the source does not have. */
static void find_added(const trf_extra_files *files, trf_job *job, trf_findings *findings) {
    for (size_t i = 0; i < files->ours.count && files->compares; i++) {
        const trf_tree_entry *ours = &files->ours.entries[i];
        const int is_skipped =
            ours->owner != TRF_TREE_REWRITTEN && trf_globs_match(job->options.skip_extra, ours->path);
        if (ours->kind == TRF_TREE_FOLDER || is_skipped || is_known_model(files, ours) ||
            trf_tree_find(&files->source, ours->path))
            continue;
        job->report.added_files++;
        add_name(&findings->added, ours->path);
    }
}

static trf_status judge_findings(const trf_extra_files *files, trf_findings *findings, trf_error *err) {
    const size_t differing = findings->differing.count, missing = findings->missing.count;
    char where[64] = "";
    if (!differing && !missing)
        return TRF_OK;
    if (differing)
        snprintf(where, sizeof where, " (the first at byte %" PRIu64 ")", findings->offset);
    return trf_fail(err, differing ? TRF_ERR_MISMATCH : TRF_ERR_NOT_FOUND, findings->offset,
                    "%.300s: %s%s%s%s%s%s; the tensors passed", files->ours.root,
                    differing ? "differ from the source's: " : "", end_names(&findings->differing), where,
                    differing && missing ? "; " : "", missing ? "in the source, and missing here: " : "",
                    end_names(&findings->missing));
}

trf_status trf_extra_files_verify(const trf_extra_files *files, trf_job *job, trf_error *err) {
    trf_findings findings = {.offset = TRF_NO_OFFSET};
    trf_status status = TRF_OK;
    for (size_t i = 0; i < files->source.count && status == TRF_OK; i++) {
        const trf_tree_entry *source = &files->source.entries[i];
        const trf_tree_entry *ours = trf_tree_find(&files->ours, source->path);
        if (source->kind == TRF_TREE_FOLDER && ours && ours->kind == TRF_TREE_FILE) {
            findings.offset = findings.differing.count ? findings.offset : 0;
            add_name(&findings.differing, source->path);
        }
        if (!is_compared(source))
            continue;
        if (!ours || ours->kind == TRF_TREE_FOLDER)
            add_name(&findings.missing, source->path);
        else if (ours->owner != TRF_TREE_REWRITTEN)
            status = verify_one(files, ours, source, job, &findings, err);
    }
    if (status != TRF_OK)
        return status;
    find_added(files, job, &findings);
    if (findings.added.count)
        trf_job_note(job, "not in the source: %s", end_names(&findings.added));
    trf_file_groups_note(&files->source.skipped, 1, 0, "not compared, as asked", job);
    return judge_findings(files, &findings, err);
}

/* ---- indexes ---- */

/* Makes the index's text that decompressing would give back. *text: malloc'd if *owned. */
static trf_status restored_index(const trf_checkpoint_index *index, char **owned, const char **text, size_t *bytes,
                                 trf_error *err) {
    *owned = NULL;
    if ((*text = trf_checkpoint_index_kept(index, bytes)))
        return TRF_OK;
    trf_status status = trf_file_load_within(index->budget, index->path, TRF_MOST_INDEX_BYTES, owned, bytes, err);
    *text = *owned;
    return status;
}

static trf_status verify_index(const trf_checkpoint_index *ours, const trf_checkpoint_index *source, trf_error *err) {
    char *owned = NULL, *theirs = NULL;
    const char *text;
    size_t bytes, source_bytes = 0, at = 0;
    trf_status status = restored_index(ours, &owned, &text, &bytes, err);
    if (status == TRF_OK)
        status = trf_file_load_within(source->budget, source->path, TRF_MOST_INDEX_BYTES, &theirs, &source_bytes, err);
    while (status == TRF_OK && at < bytes && at < source_bytes && text[at] == theirs[at])
        at++;
    if (status == TRF_OK && (at < bytes || at < source_bytes))
        status = trf_fail(err, TRF_ERR_MISMATCH, at, "%s: %s differs from %s at byte %zu", ours->path,
                          owned ? "it" : "the source's index that it keeps", source->path, at);
    free(owned);
    free(theirs);
    return status;
}

/* @return the index with that name, or NULL. */
static const trf_checkpoint_index *find_index(const trf_checkpoint *checkpoint, const char *name) {
    for (size_t i = 0; i < checkpoint->num_indexes; i++)
        if (strcmp(checkpoint->indexes[i].name, name) == 0)
            return &checkpoint->indexes[i];
    return NULL;
}

trf_status trf_verify_indexes(const trf_checkpoint *checkpoint, const trf_checkpoint *against, trf_error *err) {
    trf_status status = TRF_OK;
    for (size_t i = 0; i < against->num_indexes && checkpoint->is_folder && status == TRF_OK; i++) {
        const trf_checkpoint_index *source = &against->indexes[i], *ours = find_index(checkpoint, source->name);
        if (ours)
            status = verify_index(ours, source, err);
        else if (!trf_checkpoint_index_why_idle(source, checkpoint->files, checkpoint->num_files))
            status = trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET, "%s: index %s of %s is missing", checkpoint->root,
                              source->name, against->root);
    }
    return status;
}
