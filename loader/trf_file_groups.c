/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of files that hold weights, or are left out. The user is told of them by the entry at the top of the
 * folder. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* strndup */
#endif
#include "trf_tree.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define TRF_LARGE_FILE_BYTES (16ull << 20)

int trf_name_is_weights(const char *path) {
    static const char *const endings[] = {".safetensors", ".bin",     ".pt", ".pth", ".ckpt", ".gguf", ".onnx",
                                          ".onnx_data",   ".msgpack", ".h5", ".npz", ".pkl",  ".ot",   ".tflite"};
    const char *dot = strrchr(trf_path_basename(path), '.');
    for (size_t i = 0; dot && i < sizeof endings / sizeof endings[0]; i++)
        if (strcasecmp(dot, endings[i]) == 0)
            return 1;
    return 0;
}

int trf_tree_holds_weights(const trf_tree_entry *entry) {
    return entry->kind == TRF_TREE_FILE && entry->owner != TRF_TREE_REWRITTEN &&
           (trf_name_is_weights(entry->path) || entry->bytes >= TRF_LARGE_FILE_BYTES);
}

trf_status trf_file_groups_add(trf_file_groups *groups, const char *name, size_t length, const trf_file_group *file,
                               trf_error *err) {
    trf_file_group *group = NULL;
    for (size_t i = 0; i < groups->count && !group; i++) {
        trf_file_group *other = &groups->groups[i];
        const int same_name = strncmp(other->name, name, length) == 0 && !other->name[length];
        if (other->asked == file->asked && other->is_folder == file->is_folder && (same_name || !file->is_folder))
            group = other;
    }
    if (!group) {
        trf_file_group *grown = realloc(groups->groups, (groups->count + 1) * sizeof *grown);
        char *copy = strndup(name, length);
        if (grown)
            groups->groups = grown;
        if (!grown || !copy) {
            free(copy);
            return trf_fail_memory(err, length);
        }
        group = &grown[groups->count++];
        *group = (trf_file_group){.name = copy, .is_folder = file->is_folder, .asked = file->asked};
    }
    group->files += file->files;
    group->bytes += file->bytes;
    return TRF_OK;
}

void trf_file_groups_free(trf_file_groups *groups) {
    for (size_t i = 0; i < groups->count; i++)
        free(groups->groups[i].name);
    free(groups->groups);
    *groups = (trf_file_groups){0};
}

void trf_file_groups_note(const trf_file_groups *groups, int asked, uint64_t least_bytes, const char *what,
                          trf_job *job) {
    char size[TRF_SIZE_TEXT_BYTES];
    for (size_t i = 0; i < groups->count; i++) {
        const trf_file_group *group = &groups->groups[i];
        if (group->asked != asked || group->bytes < least_bytes)
            continue;
        trf_size_text(group->bytes, size);
        if (group->is_folder)
            trf_job_note(job, "%s: %s in %" PRIu64 " file%s under %s/", what, size, group->files,
                         group->files == 1 ? "" : "s", group->name);
        else if (group->files > 1)
            trf_job_note(job, "%s: %s in %s and %" PRIu64 " more file%s", what, size, group->name, group->files - 1,
                         group->files == 2 ? "" : "s");
        else
            trf_job_note(job, "%s: %s in %s", what, size, group->name);
    }
}
