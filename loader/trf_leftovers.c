/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* nftw */
#endif
#include "trf_leftovers.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TRF_WALK_DESCRIPTORS = 16
};

int trf_temporary_lock(int fd, const char *path) {
    struct stat opened, named;
    /* Some file systems have no locks. Without locks, no run takes the file for a leftover either. */
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return 0;
    return fstat(fd, &opened) == 0 && stat(path, &named) == 0 && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

static int open_entry(const char *path, const struct stat *info, int type, struct FTW *place) {
    (void)place;
    if ((type == FTW_D || type == FTW_DNR) && (info->st_mode & 0700) != 0700)
        return chmod(path, info->st_mode | 0700), 0;
    return 0;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place) {
    (void)info, (void)type, (void)place;
    return remove(path);
}

void trf_remove_tree(const char *path) {
    nftw(path, open_entry, TRF_WALK_DESCRIPTORS, FTW_PHYS); /* a folder must be writable to lose its entries */
    nftw(path, remove_entry, TRF_WALK_DESCRIPTORS, FTW_DEPTH | FTW_PHYS);
}

char *trf_temporary_path(const char *path, const char *label, const char *digits) {
    char *name = malloc(strlen(path) + strlen(label) + strlen(digits) + 3);
    if (name)
        sprintf(name, "%s.%s-%s", path, label, digits);
    return name;
}

int trf_is_temporary_name(const char *name, const char *base, const char *label) {
    const size_t stem = strlen(base), length = strlen(label);
    if (strlen(name) != stem + 1 + length + 1 + TRF_TEMPORARY_DIGITS || strncmp(name, base, stem) != 0 ||
        name[stem] != '.' || strncmp(name + stem + 1, label, length) != 0 || name[stem + 1 + length] != '-')
        return 0;
    return strspn(name + stem + 1 + length + 1, "0123456789abcdef") == TRF_TEMPORARY_DIGITS;
}

/* @return whether nobody locks it. If so, and if `removes` is set, it is removed. */
static int clear_one(const char *path, int removes) {
    struct stat info;
    if (lstat(path, &info) != 0 || !(S_ISDIR(info.st_mode) || S_ISREG(info.st_mode)))
        return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return 0;
    const int is_free = flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (is_free && removes)
        trf_remove_tree(path);
    close(fd);
    return is_free;
}

/* What is known of a leftover. */
typedef struct trf_leftover {
    char *path;
    char *journal; /* of a temporary: its journal's path, whether or not there is one */
    int is_former;
    int exists; /* whether something has the output's own name */
} trf_leftover;

static void clear_and_tell(const trf_leftover *left, int overwrite, trf_job *job) {
    struct stat info;
    const int removes = overwrite && (!left->is_former || left->exists);
    const int has_journal = left->journal && lstat(left->journal, &info) == 0;
    if (!clear_one(left->path, removes))
        return;
    const int removed = removes && lstat(left->path, &info) != 0;
    if (removed && has_journal)
        unlink(left->journal);
    if (left->is_former && !left->exists)
        trf_job_note(job, "%s: a run was killed while it replaced a directory; this is the former one, and it is kept",
                     left->path);
    else if (removed)
        trf_job_note(job, "%s: removed; a run that was killed had left it", left->path);
    else if (has_journal)
        trf_job_note(job,
                     "%s: left by a run that was stopped; with resume the same run goes on from there, and one that "
                     "may overwrite the output removes it",
                     left->path);
    else
        trf_job_note(job, "%s: left by a run that was killed; a run that may overwrite the output removes it",
                     left->path);
}

/* Removes a journal whose temporary has become the output, or is gone. A run that is at work has both. */
static trf_status clear_journal(const char *path, const char *entry, const char *digits, trf_error *err) {
    struct stat info;
    char *temporary = trf_temporary_path(path, TRF_TEMPORARY_LABEL, digits);
    if (!temporary)
        return trf_fail_memory(err, strlen(path));
    if (lstat(temporary, &info) != 0 && errno == ENOENT && lstat(entry, &info) == 0 && S_ISREG(info.st_mode))
        unlink(entry);
    free(temporary);
    return TRF_OK;
}

/* Deals with one name beside the output. */
static trf_status clear_name(const char *path, const char *parent, const char *name, int overwrite, trf_job *job,
                             trf_error *err) {
    struct stat info;
    const char *base = trf_path_basename(path);
    const int is_former = trf_is_temporary_name(name, base, TRF_FORMER_LABEL),
              is_journal = trf_is_temporary_name(name, base, TRF_JOURNAL_LABEL);
    if (!is_former && !is_journal && !trf_is_temporary_name(name, base, TRF_TEMPORARY_LABEL))
        return TRF_OK;
    const char *digits = name + strlen(name) - TRF_TEMPORARY_DIGITS;
    trf_leftover left = {trf_path_join(parent, name), NULL, is_former, lstat(path, &info) == 0};
    trf_status status = left.path ? TRF_OK : trf_fail_memory(err, strlen(parent));
    if (status == TRF_OK && !is_former && !is_journal &&
        !(left.journal = trf_temporary_path(path, TRF_JOURNAL_LABEL, digits)))
        status = trf_fail_memory(err, strlen(path));
    if (status == TRF_OK && is_journal)
        status = clear_journal(path, left.path, digits, err);
    else if (status == TRF_OK)
        clear_and_tell(&left, overwrite, job);
    free(left.path);
    free(left.journal);
    return status;
}

trf_status trf_leftovers_clear(const char *path, int overwrite, trf_job *job, trf_error *err) {
    trf_folder folder;
    char *parent = trf_path_parent(path);
    if (!parent)
        return trf_fail_memory(err, strlen(path));
    trf_status status = trf_folder_list(parent, &folder, NULL);
    if (status != TRF_OK) { /* the code that makes something there reports whether that is possible */
        free(parent);
        return status == TRF_ERR_MEMORY ? trf_fail_memory(err, strlen(path)) : TRF_OK;
    }
    for (size_t i = 0; i < folder.count && status == TRF_OK; i++)
        status = clear_name(path, parent, folder.names[i], overwrite, job, err);
    trf_folder_free(&folder);
    free(parent);
    return status;
}
