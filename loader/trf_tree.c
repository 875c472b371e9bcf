/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* realpath, strdup */
#endif
#include "trf_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TRF_MOST_LEVELS = 64 /* a link that is followed may lead to a folder that contains the link */
};

typedef struct trf_tree_walk {
    trf_tree *tree;
    const char *const *skip;
    uint8_t *skip_used; /* [number of globs]: whether each has left something out */
    trf_tree_owner_fn *owner;
    const void *context;
} trf_tree_walk;

/* left_out: the outermost entry that a glob leaves out with all below it; or NULL. */
static trf_status walk_folder(trf_tree_walk *walk, const char *path, const char *below, int level, const char *left_out,
                              trf_error *err);

int trf_name_is_unwanted(const char *name) {
    static const char *const names[] = {".git", ".cache", ".huggingface", "__pycache__"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            return 1;
    return 0;
}

/* ---- globs ---- */

/* "original/" and "./original" mean "original". */
static int glob_matches(const char *glob, const char *path) {
    char plain[PATH_MAX];
    while (strncmp(glob, "./", 2) == 0)
        glob += 2;
    size_t length = strlen(glob);
    while (length > 1 && glob[length - 1] == '/')
        length--;
    if (length >= sizeof plain)
        return 0;
    memcpy(plain, glob, length);
    plain[length] = 0;
    return fnmatch(plain, path, 0) == 0;
}

int trf_globs_match(const char *const *globs, const char *path) {
    char part[PATH_MAX];
    const size_t length = strlen(path);
    for (size_t end = 1; globs && end <= length && end < sizeof part; end++) {
        if (path[end] && path[end] != '/')
            continue;
        memcpy(part, path, end);
        part[end] = 0;
        for (size_t i = 0; globs[i]; i++)
            if (glob_matches(globs[i], part))
                return 1;
    }
    return 0;
}

/* Marks the globs that leave an entry out. */
static void use_globs(trf_tree_walk *walk, const char *path) {
    for (size_t i = 0; walk->skip && walk->skip[i]; i++) {
        const char *const glob[] = {walk->skip[i], NULL};
        walk->skip_used[i] |= (uint8_t)trf_globs_match(glob, path);
    }
}

/* ---- listing ---- */

/* @return a new entry at the end, or NULL without memory. path, link: taken over in every case. */
static trf_tree_entry *add_entry(trf_tree *tree, trf_tree_kind kind, char *path, char *link) {
    if (path && tree->count == tree->capacity) {
        const size_t capacity = tree->capacity ? 2 * tree->capacity : 64;
        trf_tree_entry *entries = realloc(tree->entries, capacity * sizeof *entries);
        if (entries)
            tree->entries = entries, tree->capacity = capacity;
    }
    if (!path || tree->count == tree->capacity) {
        free(path);
        free(link);
        return NULL;
    }
    tree->entries[tree->count] = (trf_tree_entry){.path = path, .link = link, .kind = kind};
    return &tree->entries[tree->count++];
}

static void drop_last(trf_tree *tree) {
    trf_tree_entry *entry = &tree->entries[--tree->count];
    free(entry->path);
    free(entry->link);
}

static int path_is_under(const char *path, const char *folder) {
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && (path[length] == '/' || strcmp(folder, "/") == 0);
}

trf_link_action trf_link_classify(const char *root, const char *path) {
    struct stat info;
    char text[2];
    if (stat(path, &info) != 0 && errno == ENOENT)
        return TRF_LINK_REMAKE;
    char *target = realpath(path, NULL), *folder = realpath(root, NULL);
    const int is_relative = readlink(path, text, sizeof text) > 0 && text[0] != '/';
    trf_link_action action = TRF_LINK_FOLLOW;
    if (target && folder && (strcmp(target, folder) == 0 || path_is_under(folder, target)))
        action = TRF_LINK_LOOP;
    else if (target && folder && is_relative && path_is_under(target, folder))
        action = TRF_LINK_REMAKE;
    free(target);
    free(folder);
    return action;
}

/* Adds a link if it is one that is made anew, and sets *added. Otherwise the link has to be followed. */
static trf_status walk_link(trf_tree_walk *walk, const char *path, const char *below, int *added, trf_error *err) {
    char text[PATH_MAX];
    ssize_t length = readlink(path, text, sizeof text - 1);
    *added = 0;
    if (length < 0)
        return trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot read the link");
    text[length] = 0;
    trf_link_action action = trf_link_classify(walk->tree->root, path);
    if (action == TRF_LINK_LOOP)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "%s: links to a folder that it lies in", path);
    if (action == TRF_LINK_FOLLOW)
        return TRF_OK;
    char *copy = strdup(text);
    trf_tree_entry *entry = add_entry(walk->tree, TRF_TREE_LINK, strdup(below), copy);
    if (!entry || !copy)
        return trf_fail_memory(err, (uint64_t)length);
    struct stat info;
    entry->owner = walk->owner ? walk->owner(walk->context, below) : TRF_TREE_OTHERS;
    entry->mode = stat(path, &info) == 0 ? info.st_mode & 0777 : 0600;
    *added = 1;
    return TRF_OK;
}

/* Counts a file that is left out, in the group `name`. */
static trf_status count_left_out(trf_tree_walk *walk, const char *name, int is_folder, const struct stat *info,
                                 int asked, trf_error *err) {
    const trf_file_group file = {.is_folder = is_folder,
                                 .asked = asked,
                                 .files = 1,
                                 .bytes = S_ISREG(info->st_mode) ? (uint64_t)info->st_size : 0};
    return trf_file_groups_add(&walk->tree->skipped, name, strlen(name), &file, err);
}

/* Counts files that are never carried over, such as those in .git. No link is followed, and what cannot be read is not
 * counted. */
static trf_status count_unwanted(trf_tree_walk *walk, const char *path, const char *name, int level, trf_error *err) {
    struct stat info;
    trf_folder folder;
    if (lstat(path, &info) != 0 || level == TRF_MOST_LEVELS)
        return TRF_OK;
    if (!S_ISDIR(info.st_mode))
        return count_left_out(walk, name, level > 0, &info, 0, err);
    trf_status status = trf_folder_list(path, &folder, NULL);
    if (status != TRF_OK)
        return status == TRF_ERR_MEMORY ? trf_fail_memory(err, strlen(path)) : TRF_OK;
    for (size_t i = 0; i < folder.count && status == TRF_OK; i++) {
        char *entry = trf_path_join(path, folder.names[i]);
        status = entry ? count_unwanted(walk, entry, name, level + 1, err) : trf_fail_memory(err, strlen(path));
        free(entry);
    }
    trf_folder_free(&folder);
    return status;
}

static trf_status walk_subfolder(trf_tree_walk *walk, const char *path, const char *below, unsigned mode, int level,
                                 const char *left_out, trf_error *err) {
    const size_t count = walk->tree->count;
    trf_tree_entry *entry = add_entry(walk->tree, TRF_TREE_FOLDER, strdup(below), NULL);
    if (!entry)
        return trf_fail_memory(err, strlen(below));
    entry->mode = mode;
    trf_status status = walk_folder(walk, path, below, level + 1, left_out, err);
    if (status == TRF_OK && left_out && walk->tree->count == count + 1)
        drop_last(walk->tree);
    return status;
}

static trf_status walk_entry(trf_tree_walk *walk, const char *path, const char *below, int level, const char *left_out,
                             trf_error *err) {
    struct stat info;
    if (!left_out && trf_globs_match(walk->skip, below))
        left_out = below;
    if (trf_name_is_unwanted(trf_path_basename(below))) {
        use_globs(walk, below);
        return count_unwanted(walk, path, below, 0, err);
    }
    if (lstat(path, &info) != 0)
        return trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot examine");
    const trf_tree_owner owner = walk->owner ? walk->owner(walk->context, below) : TRF_TREE_OTHERS;
    if (owner != TRF_TREE_OTHERS)
        left_out = NULL;
    if (S_ISLNK(info.st_mode)) {
        int added = 0;
        trf_status status = left_out ? TRF_OK : walk_link(walk, path, below, &added, err);
        if (status != TRF_OK || added)
            return status;
        if (!left_out && stat(path, &info) != 0)
            return trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot follow the link");
    }
    if (S_ISDIR(info.st_mode))
        return walk_subfolder(walk, path, below, info.st_mode & 0777, level, left_out, err);
    if (left_out) {
        use_globs(walk, below);
        return count_left_out(walk, left_out, strcmp(left_out, below) != 0, &info, 1, err);
    }
    if (!S_ISREG(info.st_mode))
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "%s: neither a file nor a directory", path);
    trf_tree_entry *entry = add_entry(walk->tree, TRF_TREE_FILE, strdup(below), NULL);
    if (!entry)
        return trf_fail_memory(err, strlen(below));
    entry->owner = owner;
    entry->mode = info.st_mode & 0777;
    entry->bytes = (uint64_t)info.st_size;
    entry->stamp = trf_stamp_of(&info);
    return TRF_OK;
}

/* A folder that is being walked through. */
typedef struct trf_walked_folder {
    trf_tree_walk *walk;
    int level;
    const char *left_out;
} trf_walked_folder;

/* A trf_folder_entry_fn; context: the trf_walked_folder. */
static trf_status walk_entry_of(void *context, const char *path, const char *below, trf_error *err) {
    const trf_walked_folder *folder = context;
    return walk_entry(folder->walk, path, below, folder->level, folder->left_out, err);
}

static trf_status walk_folder(trf_tree_walk *walk, const char *path, const char *below, int level, const char *left_out,
                              trf_error *err) {
    trf_walked_folder folder = {walk, level, left_out};
    if (level == TRF_MOST_LEVELS)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "%s: more than %d folders deep", path,
                        TRF_MOST_LEVELS);
    return trf_folder_each(path, below, walk_entry_of, &folder, err);
}

trf_status trf_tree_list(const char *root, const char *const *skip, trf_tree_owner_fn *owner, const void *context,
                         trf_tree *tree, trf_error *err) {
    size_t globs = 0;
    while (skip && skip[globs])
        globs++;
    *tree = (trf_tree){.root = strdup(root)};
    trf_tree_walk walk = {tree, skip, calloc(globs + 1, 1), owner, context};
    trf_status status =
        tree->root && walk.skip_used ? walk_folder(&walk, root, "", 0, NULL, err) : trf_fail_memory(err, strlen(root));
    for (size_t i = 0; i < globs && status == TRF_OK; i++)
        if (!walk.skip_used[i])
            status = trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET, "%s: '%s' matches no file that could be left out",
                              root, skip[i]);
    free(walk.skip_used);
    return status;
}

void trf_tree_free(trf_tree *tree) {
    while (tree->count)
        drop_last(tree);
    free(tree->entries);
    free(tree->root);
    trf_file_groups_free(&tree->skipped);
    *tree = (trf_tree){0};
}

const trf_tree_entry *trf_tree_find(const trf_tree *tree, const char *path) {
    for (size_t i = 0; i < tree->count; i++)
        if (strcmp(tree->entries[i].path, path) == 0)
            return &tree->entries[i];
    return NULL;
}

/* ---- copying ---- */

static trf_status copy_file(const char *in_path, const char *out_path, const trf_tree_entry *entry, trf_job *job,
                            trf_error *err) {
    trf_file in, out = {.fd = -1};
    uint64_t bytes;
    trf_status status = trf_file_open(in_path, &in, &bytes, err);
    if (status != TRF_OK)
        return status;
    if ((status = trf_file_create(out_path, entry->mode, &out, err)) == TRF_OK) {
        out.quota = &job->quota;
        status = trf_job_copy(job, entry->path, &in, 0, &out, 0, bytes, err);
        job->quota.done_bytes += bytes;
    }
    if (status == TRF_OK)
        status = trf_file_sync(&out, err);
    if (status == TRF_OK && trf_job_progress(job, entry->path, 0))
        status = trf_fail_cancelled(entry->path, err);
    trf_file_close(&in);
    trf_file_close(&out);
    return status;
}

trf_status trf_tree_copy(const trf_tree *tree, const trf_tree_entry *entry, const char *folder, trf_job *job,
                         trf_error *err) {
    char *in = trf_path_join(tree->root, entry->path), *out = trf_path_join(folder, entry->path);
    trf_status status = TRF_OK;
    if (!in || !out)
        status = trf_fail_memory(err, strlen(entry->path));
    else if (entry->kind == TRF_TREE_FILE)
        status = copy_file(in, out, entry, job, err);
    else if (entry->kind == TRF_TREE_LINK ? symlink(entry->link, out) != 0
                                          : mkdir(out, 0700) != 0 && !(job->resume && errno == EEXIST))
        status = trf_fail_errno(err, out, TRF_NO_OFFSET, "cannot create");
    free(in);
    free(out);
    return status;
}

static trf_status finish_folder(const char *path, unsigned mode, trf_error *err) {
    trf_status status = trf_folder_sync(path, err);
    const int fd = status == TRF_OK ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (status == TRF_OK && fd < 0)
        return trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot open");
    if (status == TRF_OK)
        status = trf_file_set_mode(fd, path, mode, err);
    if (fd >= 0)
        close(fd);
    return status;
}

trf_status trf_tree_finish_folders(const trf_tree *tree, const char *folder, trf_error *err) {
    trf_status status = TRF_OK;
    for (size_t i = tree->count; i-- && status == TRF_OK;) {
        if (tree->entries[i].kind != TRF_TREE_FOLDER)
            continue;
        char *path = trf_path_join(folder, tree->entries[i].path);
        status = path ? finish_folder(path, tree->entries[i].mode, err) : trf_fail_memory(err, strlen(folder));
        free(path);
    }
    return status;
}
