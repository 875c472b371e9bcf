/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* renameat2 */
#endif
#include "trf_output.h"

#include "trf_checkpoint.h"
#include "trf_leftovers.h"
#include "trf_resume.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    TRF_TEMPORARY_TRIES = 100
};

/* Follows a link. A user who names a link as the output wants the output where it leads, often on another file system,
 * so the link stays. What it leads to is replaced if it is a file or a folder, which is checked later. */
static trf_status output_follow_link(trf_output *output, trf_error *err) {
    struct stat info;
    if (lstat(output->path, &info) != 0 || !S_ISLNK(info.st_mode))
        return TRF_OK;
    if (stat(output->path, &info) != 0)
        return trf_fail_errno(err, output->path, TRF_NO_OFFSET,
                              "is a symbolic link that cannot be followed; remove it, or make what it leads to");
    if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode))
        return TRF_OK;
    char *target = realpath(output->path, NULL);
    if (!target)
        return trf_fail_errno(err, output->path, TRF_NO_OFFSET, "cannot follow the link");
    free(output->path);
    output->path = target;
    return TRF_OK;
}

/* Sets the final path, without slashes at its end, so that a temporary name can be made by appending to it. */
static trf_status output_set_path(trf_output *output, const char *path, trf_error *err) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    if (length == 0)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the output's path is empty");
    if (!(output->path = strndup(path, length)))
        return trf_fail_memory(err, length);
    const char *name = trf_path_basename(output->path);
    if (!*name || !strcmp(name, ".") || !strcmp(name, ".."))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%s: the output's path does not end in a name", path);
    return output_follow_link(output, err);
}

/* Checks one entry of a folder that is to be replaced. A trf_folder_entry_fn; context: the trf_output_place. */
static trf_status check_entry(void *context, const char *path, const char *below, trf_error *err) {
    const trf_output_place *place = context;
    struct stat info;
    trf_folder folder;
    size_t count = 0;
    if (lstat(path, &info) != 0)
        return trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot examine");
    const int is_folder = S_ISDIR(info.st_mode);
    if (is_folder) {
        trf_status status = trf_folder_list(path, &folder, err);
        if (status != TRF_OK)
            return status;
        count = folder.count;
        trf_folder_free(&folder);
    }
    if (count)
        return trf_folder_each(path, below, check_entry, context, err);
    const int may = place->may_replace ? place->may_replace(place->context, below, path, is_folder) : 0;
    if (may < 0)
        return trf_fail_memory(err, strlen(path));
    if (may)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_EXISTS, TRF_NO_OFFSET,
                    "%s: exists, and is not replaced: it holds %s, which would be lost; move that away, or choose "
                    "another output",
                    place->path, below);
}

/* Refuses a folder on which another file system is mounted: it cannot be renamed. */
static trf_status check_no_mount_point(const char *path, const struct stat *info, trf_error *err) {
    struct stat outer;
    char *parent = trf_path_parent(path);
    if (!parent)
        return trf_fail_memory(err, strlen(path));
    const int is_mounted = stat(parent, &outer) == 0 && outer.st_dev != info->st_dev;
    free(parent);
    if (!is_mounted)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_EXISTS, TRF_NO_OFFSET,
                    "%s: exists and is a mount point, which cannot be replaced; name a directory in it", path);
}

/* Checks the file that the user has named: it is replaced unless it holds weights that would be lost. */
static trf_status check_file(const trf_output *output, trf_error *err) {
    const trf_output_place *place = &output->place;
    int may;
    if (place->may_replace) {
        may = place->may_replace(place->context, trf_path_basename(output->path), output->path, 0);
    } else {
        const trf_file_sort sort = trf_file_sort_of(output->path);
        may = sort == TRF_FILE_UNKNOWN ? -1 : sort == TRF_FILE_OTHER;
    }
    if (may < 0)
        return trf_fail_memory(err, strlen(output->path));
    if (may)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_EXISTS, TRF_NO_OFFSET,
                    "%s: exists, and is not replaced: it holds weights, which would be lost; move that away, or choose "
                    "another output",
                    output->path);
}

static trf_status output_check_existing(const trf_output *output, trf_error *err) {
    const trf_output_place *place = &output->place;
    struct stat info;
    if (lstat(output->path, &info) != 0) {
        if (errno == ENOENT)
            return TRF_OK;
        trf_fail_errno(err, output->path, TRF_NO_OFFSET, "cannot examine");
        return err ? err->status = TRF_ERR_IO : TRF_ERR_IO;
    }
    if (place->is_folder ? !S_ISDIR(info.st_mode) : !S_ISREG(info.st_mode))
        return trf_fail(err, TRF_ERR_EXISTS, TRF_NO_OFFSET, "%s: exists and is not a %s; it is not replaced",
                        output->path, place->is_folder ? "directory" : "regular file");
    trf_status status = place->is_folder ? check_no_mount_point(output->path, &info, err) : TRF_OK;
    if (status == TRF_OK && !place->overwrite)
        status = trf_fail(err, TRF_ERR_EXISTS, TRF_NO_OFFSET, "%s: exists already", output->path);
    if (status != TRF_OK)
        return status;
    return place->is_folder ? trf_folder_each(output->path, "", check_entry, (void *)place, err)
                            : check_file(output, err);
}

/* Makes a name beside the final one, on the same file system. @return malloc'd, or NULL without memory. */
static char *output_temporary_name(const trf_output *output, const char *label, unsigned attempt) {
    struct timespec now;
    char digits[17];
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long seed =
        (unsigned long long)now.tv_nsec * 1000003u + (unsigned long long)getpid() * 7919u + attempt;
    snprintf(digits, sizeof digits, "%0*llx", TRF_TEMPORARY_DIGITS, seed & 0xFFFFFFFFu);
    return trf_temporary_path(output->path, label, digits);
}

static trf_resume *output_resume(const trf_output *output) {
    return output->place.job ? output->place.job->resume : NULL;
}

static trf_status output_set_place(trf_output *output, const trf_output_place *place, trf_error *err) {
    *output = (trf_output){.place = *place, .file = {.fd = -1}};
    trf_status status = output_set_path(output, place->path, err);
    output->place.path = output->path;
    return status;
}

/* Makes the file or folder, and locks it. @return 0 with errno set if that cannot be done; EEXIST: try another name. */
static int output_make(trf_output *output, const char *name) {
    const int is_folder = output->place.is_folder;
    if (is_folder && mkdir(name, 0700) != 0)
        return 0;
    const mode_t mode = output->place.mode == TRF_MODE_OF_NEW_FILES ? 0666 : output->place.mode & 0700;
    const int fd = is_folder ? open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                             : open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0)
        return is_folder && errno == ENOENT ? errno = EEXIST, 0 : 0;
    if (!trf_temporary_lock(fd, name)) {
        close(fd);
        return errno = EEXIST, 0;
    }
    output->file = (trf_file){.fd = fd, .path = output->path};
    return 1;
}

/* Opens and locks the temporary of another run. @return whether it is this user's, and of the right kind. */
static int output_take(trf_output *output, const char *temporary) {
    const int is_folder = output->place.is_folder;
    struct stat info;
    if (lstat(temporary, &info) != 0 || info.st_uid != geteuid() ||
        !(is_folder ? S_ISDIR(info.st_mode) : S_ISREG(info.st_mode)) || chmod(temporary, is_folder ? 0700 : 0600) != 0)
        return 0;
    const int fd = open(temporary, (is_folder ? O_RDONLY | O_DIRECTORY : O_RDWR) | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && trf_temporary_lock(fd, temporary) && fstat(fd, &info) == 0) {
        output->file = (trf_file){.fd = fd, .path = output->path};
        if (!is_folder)
            output_resume(output)->held_bytes = (uint64_t)info.st_blocks * 512;
        return 1;
    }
    if (fd >= 0)
        close(fd);
    return 0;
}

/* Continues what the run has left to which a journal belongs, if this run would make the same. */
static trf_status output_try_journal(trf_output *output, const char *name, trf_error *err) {
    trf_resume *resume = output_resume(output);
    const char *digits = name + strlen(name) - TRF_TEMPORARY_DIGITS;
    int matches = 0;
    char *journal = trf_temporary_path(output->path, TRF_JOURNAL_LABEL, digits),
         *temporary = trf_temporary_path(output->path, TRF_TEMPORARY_LABEL, digits);
    struct stat info;
    trf_status status = journal && temporary ? TRF_OK : trf_fail_memory(err, strlen(output->path));
    const int has_temporary = status == TRF_OK && lstat(temporary, &info) == 0;
    if (has_temporary) /* else the temporary has become an output, and nothing is left but the journal */
        status = trf_resume_open(resume, journal, &matches, err);
    if (status == TRF_OK && matches && output_take(output, temporary)) {
        output->temporary = temporary;
        trf_job_note(output->place.job, "%s: continued", temporary);
        temporary = NULL;
    } else if (status == TRF_OK && has_temporary) {
        trf_job_note(output->place.job, "%s: not continued, but begun anew: %s", temporary,
                     matches ? "another run is at work on it, or it cannot be opened"
                             : "it is of another input, other options or another version, or its journal is damaged");
        if (matches)
            trf_resume_close(resume);
    }
    free(journal);
    free(temporary);
    return status;
}

/* Looks for what an earlier run has left for this one. */
static trf_status output_continue(trf_output *output, trf_error *err) {
    trf_folder folder;
    const char *base = trf_path_basename(output->path);
    char *parent = trf_path_parent(output->path);
    if (!parent)
        return trf_fail_memory(err, strlen(output->path));
    trf_status status = trf_folder_list(parent, &folder, NULL);
    free(parent);
    if (status != TRF_OK) /* as in trf_leftovers_clear */
        return status == TRF_ERR_MEMORY ? trf_fail_memory(err, strlen(output->path)) : TRF_OK;
    for (size_t i = 0; i < folder.count && status == TRF_OK && !output->temporary; i++)
        if (trf_is_temporary_name(folder.names[i], base, TRF_JOURNAL_LABEL))
            status = output_try_journal(output, folder.names[i], err);
    trf_folder_free(&folder);
    return status;
}

/* Begins the journal of a temporary that has just been made. */
static trf_status output_begin_journal(const trf_output *output, trf_error *err) {
    trf_resume *resume = output_resume(output);
    if (!resume)
        return TRF_OK;
    const char *digits = output->temporary + strlen(output->temporary) - TRF_TEMPORARY_DIGITS;
    char *journal = trf_temporary_path(output->path, TRF_JOURNAL_LABEL, digits);
    trf_status status = journal ? trf_resume_create(resume, journal, err) : trf_fail_memory(err, strlen(output->path));
    free(journal);
    return status;
}

trf_status trf_output_check(const trf_output_place *place, trf_error *err) {
    trf_output output;
    trf_status status = output_set_place(&output, place, err);
    if (status == TRF_OK)
        status = output_check_existing(&output, err);
    free(output.path);
    return status;
}

trf_status trf_output_begin(trf_output *output, const trf_output_place *place, trf_error *err) {
    trf_status status = output_set_place(output, place, err);
    if (status == TRF_OK)
        status = output_check_existing(output, err);
    if (status == TRF_OK && output_resume(output))
        status = output_continue(output, err);
    if (status == TRF_OK && place->job)
        status = trf_leftovers_clear(output->path, place->overwrite, place->job, err);
    if (status != TRF_OK || output->temporary)
        return status;
    for (unsigned attempt = 0; attempt < TRF_TEMPORARY_TRIES; attempt++) {
        char *name = output_temporary_name(output, TRF_TEMPORARY_LABEL, attempt);
        if (!name)
            return trf_fail_memory(err, strlen(output->path));
        if (output_make(output, name)) {
            output->temporary = name;
            return output_begin_journal(output, err);
        }
        free(name);
        if (errno != EEXIST)
            break;
    }
    trf_fail_errno(err, output->path, TRF_NO_OFFSET, "cannot create");
    return err ? err->status = TRF_ERR_IO : TRF_ERR_IO;
}

trf_status trf_output_begin_file(trf_output *output, const char *path, int overwrite, trf_error *err) {
    const trf_output_place place = {.path = path, .overwrite = overwrite, .mode = TRF_MODE_OF_NEW_FILES};
    return trf_output_begin(output, &place, err);
}

/* Renames to a name that must be free. */
static trf_status rename_exclusive(const trf_output *output, trf_error *err) {
#ifdef RENAME_NOREPLACE
    if (renameat2(AT_FDCWD, output->temporary, AT_FDCWD, output->path, RENAME_NOREPLACE) == 0)
        return TRF_OK;
    if (errno == EEXIST)
        return trf_fail(err, TRF_ERR_EXISTS, TRF_NO_OFFSET, "%s: exists already", output->path);
    if (errno != EINVAL && errno != ENOSYS)
        return trf_fail_errno(err, output->path, TRF_NO_OFFSET, "cannot rename to this");
#endif
    /* Not every file system can do that. A hard link, too, fails if the name exists, but a folder cannot have one. */
    if (!output->place.is_folder) {
        if (link(output->temporary, output->path) == 0) {
            unlink(output->temporary);
            return TRF_OK;
        }
        if (errno == EEXIST)
            return trf_fail(err, TRF_ERR_EXISTS, TRF_NO_OFFSET, "%s: exists already", output->path);
    }
    struct stat info;
    if (lstat(output->path, &info) == 0)
        return trf_fail(err, TRF_ERR_EXISTS, TRF_NO_OFFSET, "%s: exists already", output->path);
    if (rename(output->temporary, output->path) != 0)
        return trf_fail_errno(err, output->path, TRF_NO_OFFSET, "cannot rename to this");
    return TRF_OK;
}

/* Puts the new folder in place of one that exists. After that, output->temporary is the name of the old one. */
static trf_status exchange_folder(trf_output *output, trf_error *err) {
#ifdef RENAME_EXCHANGE
    if (renameat2(AT_FDCWD, output->temporary, AT_FDCWD, output->path, RENAME_EXCHANGE) == 0)
        return TRF_OK;
    if (errno != EINVAL && errno != ENOSYS)
        return trf_fail_errno(err, output->path, TRF_NO_OFFSET, "cannot replace");
#endif
    char *old = output_temporary_name(output, TRF_FORMER_LABEL, 0);
    if (!old)
        return trf_fail_memory(err, strlen(output->path));
    if (rename(output->path, old) != 0) {
        trf_status status = trf_fail_errno(err, output->path, TRF_NO_OFFSET, "cannot move aside");
        free(old);
        return status;
    }
    if (rename(output->temporary, output->path) != 0) {
        trf_status status = trf_fail_errno(err, output->path, TRF_NO_OFFSET, "cannot rename to this");
        if (rename(old, output->path) != 0)
            trf_prefix_error(err, status, "the former directory is now %s", old);
        free(old);
        return status;
    }
    free(output->temporary);
    output->temporary = old;
    return TRF_OK;
}

static trf_status output_rename(trf_output *output, trf_error *err) {
    struct stat info;
    if (!output->place.overwrite || lstat(output->path, &info) != 0)
        return rename_exclusive(output, err);
    trf_status status = output_check_existing(output, err); /* something else may exist there by now */
    if (status != TRF_OK)
        return status;
    if (output->place.is_folder)
        return exchange_folder(output, err);
    if (rename(output->temporary, output->path) != 0)
        return trf_fail_errno(err, output->path, TRF_NO_OFFSET, "cannot rename to this");
    return TRF_OK;
}

/* Syncs the folder in which the output has its name now. Only then a former folder is removed: if its entries were
 * gone from the disk before it had lost the output's name there, a power cut would leave half of it under that name. */
static trf_status output_settle(const trf_output *output, const char *parent, trf_error *err) {
    struct stat info;
    const int has_former = lstat(output->temporary, &info) == 0;
    trf_status status = trf_folder_sync(parent, err);
    if (status == TRF_OK && has_former)
        trf_remove_tree(output->temporary);
    if (status == TRF_OK)
        return TRF_OK;
    if (has_former)
        return trf_prefix_error(err, status,
                                "the output is whole, but may not outlast a power cut; the former one is %s",
                                output->temporary);
    return trf_prefix_error(err, status, "the output is whole, but may not outlast a power cut");
}

trf_status trf_output_publish(trf_output *output, trf_error *err) {
    trf_status status = TRF_OK;
    if (output->place.mode != TRF_MODE_OF_NEW_FILES)
        status = trf_file_set_mode(output->file.fd, output->path, output->place.mode, err);
    if (status == TRF_OK) {
        status = output->place.is_folder ? trf_folder_sync(output->temporary, err) : trf_file_sync(&output->file, err);
        if (status != TRF_OK && output_resume(output))
            output_resume(output)->is_unsound = 1;
    }
    if (status != TRF_OK)
        return status;
    char *parent = trf_path_parent(output->path); /* while it can still fail */
    if (!parent)
        return trf_fail_memory(err, strlen(output->path));
    status = output_rename(output, err);
    if (status == TRF_OK) {
        status = output_settle(output, parent, err);
        free(output->temporary);
        output->temporary = NULL;
    }
    free(parent);
    return status;
}

void trf_output_end(trf_output *output) {
    trf_resume *resume = output_resume(output);
    if (output->temporary && resume && trf_resume_is_worth_keeping(resume)) {
        trf_job_note(output->place.job, "%s: kept; with resume the same run goes on from there", output->temporary);
    } else {
        if (output->temporary)
            trf_remove_tree(output->temporary);
        if (resume)
            trf_resume_forget(resume);
    }
    trf_file_close(&output->file);
    free(output->temporary);
    free(output->path);
    *output = (trf_output){.file = {.fd = -1}};
}

/* Resolves all links in a path, except that the path itself may be a link. *resolved: malloc'd, or NULL if its folder
 * does not exist. */
static trf_status resolve_folder(const char *path, char **resolved, trf_error *err) {
    int lacks_memory = 0;
    *resolved = NULL;
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    char *plain = strndup(path, length), *parent = plain ? trf_path_parent(plain) : NULL;
    char *folder = parent ? realpath(parent, NULL) : NULL;
    lacks_memory |= !parent || (!folder && errno == ENOMEM);
    if (folder) {
        *resolved = trf_path_join(folder, trf_path_basename(plain));
        lacks_memory |= !*resolved;
    }
    free(plain);
    free(parent);
    free(folder);
    return lacks_memory ? trf_fail_memory(err, length) : TRF_OK;
}

/* Resolves all links in a path to something that need not exist. *resolved: malloc'd, or NULL if its folder does not
 * exist either. */
static trf_status resolve(const char *path, char **resolved, trf_error *err) {
    *resolved = realpath(path, NULL);
    if (*resolved)
        return TRF_OK;
    return errno == ENOMEM ? trf_fail_memory(err, strlen(path)) : resolve_folder(path, resolved, err);
}

static int path_holds(const char *outer, const char *inner) {
    size_t length = strlen(outer);
    if (strncmp(outer, inner, length) != 0)
        return 0;
    return inner[length] == 0 || inner[length] == '/' || (length == 1 && outer[0] == '/');
}

trf_status trf_output_check_apart(const char *in_path, const char *out_path, trf_error *err) {
    struct stat in_info = {0}, out_info = {0};
    char *in = NULL, *out = NULL, *link = NULL; /* a link in a folder belongs to the folder, wherever it leads */
    trf_status status = resolve(in_path, &in, err);
    if (status == TRF_OK)
        status = resolve(out_path, &out, err);
    if (status == TRF_OK)
        status = resolve_folder(out_path, &link, err);
    int same = stat(in_path, &in_info) == 0 && stat(out_path, &out_info) == 0 && in_info.st_dev == out_info.st_dev &&
               in_info.st_ino == out_info.st_ino;
    if (status == TRF_OK && (same || (in && out && strcmp(in, out) == 0)))
        status = trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%s: the output is the input", out_path);
    else if (in && ((out && path_holds(in, out)) || (link && path_holds(in, link))))
        status = trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%s: the output lies inside the input %s", out_path,
                          in_path);
    else if (in && out && S_ISDIR(in_info.st_mode) && path_holds(out, in))
        status = trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%s: the output holds the input %s", out_path, in_path);
    free(in);
    free(out);
    free(link);
    return status;
}
