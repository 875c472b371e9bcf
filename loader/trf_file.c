/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* scandir, strdup */
#endif
#include "trf_file.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#undef trf_fail_errno
#undef trf_fail_memory

/* A system call that moves data takes no more than SSIZE_MAX bytes. */
enum {
    TRF_MAX_TRANSFER = 1 << 30
};

trf_status trf_fail_errno(trf_error *err, const char *path, uint64_t offset, const char *what) {
    int code = errno;
    trf_status status = code == ENOENT || code == ENOTDIR ? TRF_ERR_NOT_FOUND : TRF_ERR_IO;
    if (offset == TRF_NO_OFFSET)
        return trf_fail(err, status, offset, "%s: %s: %s", path, what, strerror(code));
    return trf_fail(err, status, offset, "%s: %s at byte %" PRIu64 ": %s", path, what, offset, strerror(code));
}

trf_status trf_fail_memory(trf_error *err, uint64_t bytes) {
    return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate %" PRIu64 " bytes", bytes);
}

trf_status trf_file_open(const char *path, trf_file *file, uint64_t *size, trf_error *err) {
    struct stat info;
    /* O_NONBLOCK: opening a FIFO that nobody writes to must not hang. */
    *file = (trf_file){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), .path = path};
    if (file->fd < 0)
        return trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot open");
    if (fstat(file->fd, &info) != 0) {
        trf_status status = trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot examine");
        trf_file_close(file);
        return status;
    }
    if (!S_ISREG(info.st_mode)) {
        trf_file_close(file);
        return trf_fail(err, TRF_ERR_IO, TRF_NO_OFFSET, "%s: not a regular file", path);
    }
    *size = (uint64_t)info.st_size;
    return TRF_OK;
}

trf_file_stamp trf_stamp_of(const struct stat *info) {
    return (trf_file_stamp){(uint64_t)info->st_size, info->st_mtim.tv_sec, info->st_mtim.tv_nsec};
}

trf_status trf_file_take_stamp(const trf_file *file, trf_file_stamp *stamp, trf_error *err) {
    struct stat info;
    if (fstat(file->fd, &info) != 0)
        return trf_fail_errno(err, file->path, TRF_NO_OFFSET, "cannot examine");
    *stamp = trf_stamp_of(&info);
    return TRF_OK;
}

trf_status trf_path_take_stamp(const char *path, trf_file_stamp *stamp, trf_error *err) {
    struct stat info;
    if (stat(path, &info) != 0)
        return trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot examine");
    *stamp = trf_stamp_of(&info);
    return TRF_OK;
}

static trf_status compare_stamps(const char *path, const trf_file_stamp *now, const trf_file_stamp *before,
                                 trf_error *err) {
    if (now->bytes == before->bytes && now->seconds == before->seconds && now->nanoseconds == before->nanoseconds)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_IO, TRF_NO_OFFSET, "%s: was changed while it was read", path);
}

trf_status trf_path_check_stamp(const char *path, const trf_file_stamp *stamp, trf_error *err) {
    trf_file_stamp now;
    trf_status status = trf_path_take_stamp(path, &now, err);
    return status == TRF_OK ? compare_stamps(path, &now, stamp, err) : status;
}

trf_status trf_file_check_stamp(const trf_file *file, const trf_file_stamp *stamp, trf_error *err) {
    trf_file_stamp now;
    trf_status status = trf_file_take_stamp(file, &now, err);
    return status == TRF_OK ? compare_stamps(file->path, &now, stamp, err) : status;
}

trf_status trf_file_create(const char *path, unsigned mode, trf_file *file, trf_error *err) {
    *file = (trf_file){.fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, (mode_t)(mode & 0700)), .path = path};
    if (file->fd >= 0) {
        trf_status status = trf_file_set_mode(file->fd, path, mode, err);
        if (status != TRF_OK)
            trf_file_close(file);
        return status;
    }
    trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot create");
    if (err)
        err->status = TRF_ERR_IO; /* a missing folder of an output must not look like a missing input */
    return TRF_ERR_IO;
}

trf_status trf_file_continue(const char *path, unsigned mode, trf_file *file, trf_error *err) {
    if (chmod(path, 0600) != 0) /* it may have the mode of a file that nobody may write to */
        return trf_file_create(path, mode, file, err);
    *file = (trf_file){.fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW), .path = path};
    if (file->fd < 0) {
        trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot open again");
        return err ? err->status = TRF_ERR_IO : TRF_ERR_IO;
    }
    trf_status status = trf_file_set_mode(file->fd, path, mode, err);
    if (status != TRF_OK)
        trf_file_close(file);
    return status;
}

trf_status trf_file_set_mode(int fd, const char *path, unsigned mode, trf_error *err) {
    struct stat info;
    if (fstat(fd, &info) != 0)
        return trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot examine");
    const mode_t wanted = (info.st_mode & 07000) | (mode & 0777);
    /* A file system without permissions refuses; there is nothing to keep then. */
    if ((info.st_mode & 07777) != wanted && fchmod(fd, wanted) != 0 && errno != EPERM && errno != ENOTSUP)
        return trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot set the permissions");
    return TRF_OK;
}

uint64_t trf_free_bytes(const char *folder) {
    struct statvfs info;
    const int is_known = statvfs(folder, &info) == 0 && info.f_blocks > 0;
    return is_known ? (uint64_t)info.f_bavail * info.f_frsize : UINT64_MAX;
}

void trf_file_close(trf_file *file) {
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}

trf_status trf_file_sync(const trf_file *file, trf_error *err) {
    while (fsync(file->fd) != 0)
        if (errno != EINTR)
            return trf_fail_errno(err, file->path, TRF_NO_OFFSET, "cannot sync");
    return TRF_OK;
}

trf_status trf_file_read(const trf_file *file, uint64_t offset, void *dst, uint64_t size, trf_error *err) {
    uint8_t *at = dst;
    while (size) {
        size_t part = size < TRF_MAX_TRANSFER ? (size_t)size : TRF_MAX_TRANSFER;
        ssize_t got = offset <= INT64_MAX ? pread(file->fd, at, part, (off_t)offset) : 0;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return trf_fail_errno(err, file->path, offset, "cannot read");
        if (got == 0)
            return trf_fail(err, TRF_ERR_TRUNCATED, offset,
                            "%s: ends at byte %" PRIu64 ", where %" PRIu64 " more bytes were expected", file->path,
                            offset, size);
        at += got, offset += (uint64_t)got, size -= (uint64_t)got;
    }
    return TRF_OK;
}

trf_status trf_file_write(const trf_file *file, uint64_t offset, const void *src, uint64_t size, trf_error *err) {
    const uint8_t *at = src;
    trf_status status = trf_quota_check(file->quota, offset + size, file->path, err);
    if (status != TRF_OK)
        return status;
    while (size) {
        size_t part = size < TRF_MAX_TRANSFER ? (size_t)size : TRF_MAX_TRANSFER;
        ssize_t put = pwrite(file->fd, at, part, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return trf_fail_errno(err, file->path, offset, "cannot write");
        if (put == 0)
            return trf_fail(err, TRF_ERR_IO, offset, "%s: cannot write at byte %" PRIu64, file->path, offset);
        at += put, offset += (uint64_t)put, size -= (uint64_t)put;
    }
    return TRF_OK;
}

trf_status trf_file_resize(const trf_file *file, uint64_t size, trf_error *err) {
    while (ftruncate(file->fd, (off_t)size) != 0)
        if (errno != EINTR)
            return trf_fail_errno(err, file->path, TRF_NO_OFFSET, "cannot set the size");
    return TRF_OK;
}

trf_status trf_file_load(const char *path, uint64_t max_bytes, char **text, size_t *bytes, trf_error *err) {
    return trf_file_load_within(NULL, path, max_bytes, text, bytes, err);
}

trf_status trf_file_load_within(const trf_budget *budget, const char *path, uint64_t max_bytes, char **text,
                                size_t *bytes, trf_error *err) {
    trf_file file;
    uint64_t size = 0;
    char *buffer = NULL;
    trf_status status = trf_file_open(path, &file, &size, err);
    if (status != TRF_OK)
        return status;
    if (size > max_bytes) {
        status = trf_fail(err, TRF_ERR_FORMAT, max_bytes,
                          "%s: %" PRIu64 " bytes, of which at most %" PRIu64 " were expected", path, size, max_bytes);
        goto done;
    }
    if ((status = trf_budget_check(budget, size + 1, "its text", err)) != TRF_OK) {
        trf_prefix_error(err, status, "%s", path);
        goto done;
    }
    if (!(buffer = malloc((size_t)size + 1))) {
        status = trf_fail_memory(err, size + 1);
        goto done;
    }
    if ((status = trf_file_read(&file, 0, buffer, size, err)) != TRF_OK)
        goto done;
    buffer[size] = 0;
    *text = buffer, *bytes = (size_t)size;
    buffer = NULL;
done:
    free(buffer);
    trf_file_close(&file);
    return status;
}

trf_status trf_folder_sync(const char *path, trf_error *err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot open");
    trf_status status = TRF_OK;
    /* Some file systems cannot sync a folder, and say so with EINVAL. */
    if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        status = trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot sync");
    close(fd);
    return status;
}

static int is_entry(const struct dirent *entry) {
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

/* Compares byte by byte. The order of alphasort would depend on the locale. */
static int compare_entries(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

trf_status trf_folder_list(const char *path, trf_folder *folder, trf_error *err) {
    *folder = (trf_folder){0};
    struct dirent **entries = NULL;
    int count = scandir(path, &entries, is_entry, compare_entries);
    if (count < 0)
        return trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot list");
    trf_status status = TRF_OK;
    folder->names = calloc((size_t)count + 1, sizeof *folder->names);
    for (int i = 0; i < count; i++) {
        if (folder->names && (folder->names[folder->count] = strdup(entries[i]->d_name)))
            folder->count++;
        else
            status = TRF_ERR_MEMORY;
        free(entries[i]);
    }
    free(entries);
    if (status == TRF_OK && folder->names)
        return TRF_OK;
    trf_folder_free(folder);
    return trf_fail_memory(err, (uint64_t)count * sizeof(char *));
}

void trf_folder_free(trf_folder *folder) {
    assert(folder->names || folder->count == 0);
    for (size_t i = 0; i < folder->count; i++)
        free(folder->names[i]);
    free(folder->names);
    *folder = (trf_folder){0};
}

trf_status trf_folder_each(const char *path, const char *below, trf_folder_entry_fn *use, void *context,
                           trf_error *err) {
    trf_folder folder;
    trf_status status = trf_folder_list(path, &folder, err);
    if (status != TRF_OK)
        return status;
    for (size_t i = 0; i < folder.count && status == TRF_OK; i++) {
        char *entry = trf_path_join(path, folder.names[i]), *name = trf_path_join(below, folder.names[i]);
        status = entry && name ? use(context, entry, name, err) : trf_fail_memory(err, strlen(path));
        free(entry);
        free(name);
    }
    trf_folder_free(&folder);
    return status;
}

char *trf_path_join(const char *folder, const char *name) {
    size_t length = strlen(folder), slash = length && folder[length - 1] != '/';
    char *path = malloc(length + slash + strlen(name) + 1);
    if (path)
        sprintf(path, "%s%s%s", folder, slash ? "/" : "", name);
    return path;
}

char *trf_path_parent(const char *path) {
    size_t length = (size_t)(trf_path_basename(path) - path);
    if (length == 0)
        return strdup(".");
    while (length > 1 && path[length - 1] == '/')
        length--;
    return strndup(path, length);
}

const char *trf_path_basename(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}
