/* SPDX-License-Identifier: Apache-2.0 */
/* Carrying over the files of a checkpoint's folder that are none of our business. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* realpath */
#endif
#include "trf_checkpoint.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A link that is followed may lead to a folder that holds it. */
enum {
    TRF_MOST_LEVELS = 64
};

static trf_status copy_entry(trf_job *job, const char *root, const char *in_path, const char *out_path, int level,
                             trf_error *err);

static trf_status copy_file(trf_job *job, const char *in_path, const char *out_path, unsigned mode, trf_error *err) {
    trf_file in, out = {.fd = -1};
    uint64_t bytes;
    trf_status status = trf_file_open(in_path, &in, &bytes, err);
    if (status != TRF_OK)
        return status;
    if ((status = trf_file_create(out_path, mode, &out, err)) == TRF_OK)
        status = trf_job_copy(job, NULL, &in, 0, &out, 0, bytes, err);
    if (status == TRF_OK)
        status = trf_file_sync(&out, err);
    if (status == TRF_OK && trf_job_progress(job, trf_path_basename(in_path), 0))
        status = trf_fail_cancelled(trf_path_basename(in_path), err);
    trf_file_close(&in);
    trf_file_close(&out);
    return status;
}

static trf_status copy_folder(trf_job *job, const char *root, const char *in_path, const char *out_path, int level,
                              trf_error *err) {
    trf_folder folder;
    if (level == TRF_MOST_LEVELS)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "%s: more than %d folders deep", in_path,
                        TRF_MOST_LEVELS);
    trf_status status = trf_folder_list(in_path, &folder, err);
    if (status != TRF_OK)
        return status;
    if (mkdir(out_path, 0777) != 0)
        status = trf_fail_errno(err, out_path, TRF_NO_OFFSET, "cannot create");
    for (size_t i = 0; i < folder.count && status == TRF_OK; i++) {
        char *in = trf_path_join(in_path, folder.names[i]), *out = trf_path_join(out_path, folder.names[i]);
        status = in && out ? copy_entry(job, root, in, out, level + 1, err) : trf_fail_memory(err, PATH_MAX);
        free(in);
        free(out);
    }
    trf_folder_free(&folder);
    return status == TRF_OK ? trf_folder_sync(out_path, err) : status;
}

/* What is to become of a symbolic link. */
typedef enum trf_link_action {
    TRF_LINK_REMAKE, /* it leads nowhere, or is relative and leads to something under root */
    TRF_LINK_FOLLOW, /* it leads out of the folder, or would lead back to it from the copy */
    TRF_LINK_LOOP    /* it leads to root or a folder around it, so that following it would not end */
} trf_link_action;

static int path_is_under(const char *path, const char *folder) {
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && (path[length] == '/' || strcmp(folder, "/") == 0);
}

static trf_link_action classify_link(const char *root, const char *path, const char *text) {
    struct stat info;
    if (stat(path, &info) != 0 && errno == ENOENT)
        return TRF_LINK_REMAKE;
    char *target = realpath(path, NULL), *folder = realpath(root, NULL);
    trf_link_action action = TRF_LINK_FOLLOW;
    if (target && folder && (strcmp(target, folder) == 0 || path_is_under(folder, target)))
        action = TRF_LINK_LOOP;
    else if (target && folder && text[0] != '/' && path_is_under(target, folder))
        action = TRF_LINK_REMAKE;
    free(target);
    free(folder);
    return action;
}

static trf_status copy_link(const char *root, const char *in_path, const char *out_path, int *copied, trf_error *err) {
    char text[PATH_MAX];
    ssize_t length = readlink(in_path, text, sizeof text - 1);
    *copied = 0;
    if (length < 0)
        return trf_fail_errno(err, in_path, TRF_NO_OFFSET, "cannot read the link");
    text[length] = 0;
    trf_link_action action = classify_link(root, in_path, text);
    if (action == TRF_LINK_LOOP)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "%s: links to a folder that it lies in; it cannot be carried over", in_path);
    if (action == TRF_LINK_FOLLOW)
        return TRF_OK;
    if (symlink(text, out_path) != 0)
        return trf_fail_errno(err, out_path, TRF_NO_OFFSET, "cannot create");
    *copied = 1;
    return TRF_OK;
}

static trf_status copy_entry(trf_job *job, const char *root, const char *in_path, const char *out_path, int level,
                             trf_error *err) {
    struct stat info;
    int copied = 0;
    if (lstat(in_path, &info) != 0)
        return trf_fail_errno(err, in_path, TRF_NO_OFFSET, "cannot examine");
    if (S_ISLNK(info.st_mode)) {
        trf_status status = copy_link(root, in_path, out_path, &copied, err);
        if (status != TRF_OK || copied)
            return status;
        if (stat(in_path, &info) != 0)
            return trf_fail_errno(err, in_path, TRF_NO_OFFSET, "cannot follow the link");
    }
    if (S_ISDIR(info.st_mode))
        return copy_folder(job, root, in_path, out_path, level, err);
    if (S_ISREG(info.st_mode))
        return copy_file(job, in_path, out_path, info.st_mode & 0777, err);
    return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                    "%s: neither a file nor a directory; it cannot be carried over", in_path);
}

trf_status trf_copy_tree(trf_job *job, const char *root, const char *in_path, const char *out_path, trf_error *err) {
    return copy_entry(job, root, in_path, out_path, 0, err);
}
