/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_file.h"

#include "cli_messages.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static cli_exit fail_exists(const char *path) {
    return cli_fail(TRF_ERR_EXISTS, "%s: exists already; -f replaces it", path);
}

/* what: such as "cannot write". Takes the reason from errno. */
static cli_exit fail_io(const char *path, const char *what) {
    return cli_fail(TRF_ERR_IO, "%s: %s: %s", path, what, strerror(errno));
}

/* Decides as the library's outputs do. */
static int holds_weights(const char *path) {
    static const char end[] = ".safetensors";
    const size_t length = strlen(path), tail = strlen(end);
    trf_checkpoint *checkpoint;
    if (length < tail || strcmp(path + length - tail, end) != 0 || trf_checkpoint_open(path, &checkpoint, NULL))
        return 0;
    const int found = trf_checkpoint_num_tensors(checkpoint) > 0;
    trf_checkpoint_close(checkpoint);
    return found;
}

/* Finds where the file goes. As with the library's outputs, -f replaces files, but not folders and not devices such as
 * /dev/null; a link stays, and what it leads to is replaced. *place: malloc'd. */
static cli_exit find_place(const char *path, int force, char **place) {
    struct stat info;
    const int exists = lstat(path, &info) == 0;
    const int is_link = exists && S_ISLNK(info.st_mode);
    *place = NULL;
    if (is_link && stat(path, &info) != 0)
        return cli_fail(TRF_ERR_NOT_FOUND,
                        "%s: is a symbolic link that cannot be followed; remove it, or make what it leads to", path);
    if (exists && !S_ISREG(info.st_mode))
        return cli_fail(TRF_ERR_EXISTS, "%s: exists and is %s; it is not replaced", path,
                        S_ISDIR(info.st_mode) ? "a directory" : "not a regular file");
    if (exists && !force)
        return fail_exists(path);
    if (exists && holds_weights(path))
        return cli_fail(TRF_ERR_EXISTS,
                        "%s: exists, and is not replaced: it holds weights, which would be lost; move that away, or "
                        "choose another output",
                        path);
    *place = is_link ? realpath(path, NULL) : strdup(path);
    return *place ? CLI_OK : cli_fail(TRF_ERR_MEMORY, "out of memory");
}

static void release(cli_file *file) {
    free(file->temporary);
    free(file->path);
    file->temporary = file->path = NULL;
}

cli_exit cli_file_begin(cli_file *file, const char *path, int force) {
    *file = (cli_file){.force = force};
    cli_exit path_status = find_place(path, force, &file->path);
    if (path_status != CLI_OK)
        return path_status;

    size_t bytes = strlen(file->path) + sizeof ".XXXXXX";
    file->temporary = malloc(bytes);
    if (!file->temporary) {
        release(file);
        return cli_fail(TRF_ERR_MEMORY, "out of memory");
    }
    snprintf(file->temporary, bytes, "%s.XXXXXX", file->path);
    int descriptor = mkstemp(file->temporary);
    if (descriptor >= 0)
        file->handle = fdopen(descriptor, "w");
    if (!file->handle) {
        cli_exit status = fail_io(path, "cannot create a file beside it");
        if (descriptor >= 0) {
            close(descriptor);
            unlink(file->temporary);
        }
        release(file);
        return status;
    }
    mode_t mask = umask(0);
    umask(mask);
    fchmod(descriptor, 0666 & ~mask);
    return CLI_OK;
}

/* Without force it links rather than renames, because a link fails if the name was taken meanwhile. @return 0 or -1
 * with errno. */
static int publish(const cli_file *file) {
    if (!file->force) {
        if (link(file->temporary, file->path) == 0)
            return unlink(file->temporary);
        if (errno == EEXIST)
            return -1;
        /* This file system has no hard links. */
    }
    return rename(file->temporary, file->path);
}

cli_exit cli_file_commit(cli_file *file) {
    int failed = ferror(file->handle) || fflush(file->handle) || fsync(fileno(file->handle));
    failed |= fclose(file->handle) != 0;
    file->handle = NULL;
    cli_exit status = CLI_OK;
    if (failed || publish(file)) {
        status = errno == EEXIST && !file->force ? fail_exists(file->path) : fail_io(file->path, "cannot write");
        unlink(file->temporary);
    }
    release(file);
    return status;
}

void cli_file_abandon(cli_file *file) {
    fclose(file->handle);
    unlink(file->temporary);
    release(file);
}

cli_exit cli_file_check(const char *path, int force) {
    cli_file file;
    cli_exit status = cli_file_begin(&file, path, force);
    if (status == CLI_OK)
        cli_file_abandon(&file);
    return status;
}
