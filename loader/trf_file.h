/* SPDX-License-Identifier: Apache-2.0 */
/* Files and paths: reads and writes at an offset that are complete or fail. Messages name the file and the byte. */
#ifndef TRF_FILE_H
#define TRF_FILE_H

#include "trf_budget.h"

/* An open file, and the path that messages give it: for an output the final name, although the file still has a
 * temporary one. path is not owned. */
typedef struct trf_file {
    int fd;
    const char *path;
    trf_budget *budget;     /* of what is allocated to read it, or NULL */
    const trf_quota *quota; /* of an output: how far it may grow, or NULL */
} trf_file;

/* Opens a regular file for reading. Errors: TRF_ERR_NOT_FOUND, _IO (also for what is not a regular file). */
trf_status trf_file_open(const char *path, trf_file *file, uint64_t *size, trf_error *err);

/* The stamp of a file, which shows whether it was written to. */
typedef struct trf_file_stamp {
    uint64_t bytes;
    int64_t seconds, nanoseconds; /* when it was changed last */
} trf_file_stamp;

struct stat;
trf_file_stamp trf_stamp_of(const struct stat *info);

/* Takes or checks the stamp of a path; links are followed. Errors: TRF_ERR_NOT_FOUND, _IO. */
trf_status trf_path_take_stamp(const char *path, trf_file_stamp *stamp, trf_error *err);
trf_status trf_path_check_stamp(const char *path, const trf_file_stamp *stamp, trf_error *err);

/* Errors: TRF_ERR_IO. */
trf_status trf_file_take_stamp(const trf_file *file, trf_file_stamp *stamp, trf_error *err);

/* Checks that a file, which may have been opened again, is what it was. Errors: TRF_ERR_IO. */
trf_status trf_file_check_stamp(const trf_file *file, const trf_file_stamp *stamp, trf_error *err);

/* Creates a file that must not exist yet, for writing and reading back. It has exactly this mode from the beginning,
 * and never a more open one. */
trf_status trf_file_create(const char *path, unsigned mode, trf_file *file, trf_error *err);

/* Opens a file of a temporary folder that is continued, or creates it, for writing and reading back. Errors:
 * TRF_ERR_IO.
 */
trf_status trf_file_continue(const char *path, unsigned mode, trf_file *file, trf_error *err);

/* Closes a file; fd < 0 (not open) is allowed. Call trf_file_sync first where the contents matter. */
void trf_file_close(trf_file *file);

/* Makes contents and size durable. */
trf_status trf_file_sync(const trf_file *file, trf_error *err);

/* These read and write `size` bytes, and change a file's size. Errors: TRF_ERR_TRUNCATED if the file ends before offset
 * + size, TRF_ERR_IO, and TRF_ERR_LIMIT where the quota does not allow it. Thread-safe. */
trf_status trf_file_read(const trf_file *file, uint64_t offset, void *dst, uint64_t size, trf_error *err);
trf_status trf_file_write(const trf_file *file, uint64_t offset, const void *src, uint64_t size, trf_error *err);
trf_status trf_file_resize(const trf_file *file, uint64_t size, trf_error *err);

/* Reads a whole file of at most max_bytes. *text is malloc'd and ends with a NUL after its *bytes bytes. Errors: also
 * TRF_ERR_FORMAT if it is larger. */
trf_status trf_file_load(const char *path, uint64_t max_bytes, char **text, size_t *bytes, trf_error *err);

/* Does the same if the budget has room for the text. Errors: also TRF_ERR_LIMIT. */
trf_status trf_file_load_within(const trf_budget *budget, const char *path, uint64_t max_bytes, char **text,
                                size_t *bytes, trf_error *err);

/* Gives a file or folder exactly these permissions. The rest of its mode stays. */
trf_status trf_file_set_mode(int fd, const char *path, unsigned mode, trf_error *err);

/* @return bytes that may still be written to the file system of a folder; UINT64_MAX if that is not known, as on a file
 * system without a size. */
uint64_t trf_free_bytes(const char *folder);

/* Makes the entries of a folder durable. */
trf_status trf_folder_sync(const char *path, trf_error *err);

/* The names in a folder except "." and "..", in byte order. Release with trf_folder_free. */
typedef struct trf_folder {
    char **names;
    size_t count;
} trf_folder;

trf_status trf_folder_list(const char *path, trf_folder *folder, trf_error *err);
void trf_folder_free(trf_folder *folder);

/* Is handed an entry of a folder. path: the entry's; below: its path in the folder where a walk began. */
typedef trf_status trf_folder_entry_fn(void *context, const char *path, const char *below, trf_error *err);

/* Calls `use` for each entry of a folder, in byte order, until one fails. below: the folder's path in the one where the
 * walk began; "" for that. Errors: TRF_ERR_IO, _MEMORY, those of `use`. */
trf_status trf_folder_each(const char *path, const char *below, trf_folder_entry_fn *use, void *context,
                           trf_error *err);

/* @return a malloc'd path, or NULL without memory. */
char *trf_path_join(const char *folder, const char *name);
char *trf_path_parent(const char *path);

/* @return the part after the last slash. */
const char *trf_path_basename(const char *path);

/* @return TRF_ERR_NOT_FOUND or _IO after a system call failed, with errno's text. what: such as "cannot open". */
trf_status trf_fail_errno(trf_error *err, const char *path, uint64_t offset, const char *what);

trf_status trf_fail_memory(trf_error *err, uint64_t bytes);

#ifdef __clang_analyzer__ /* as in trf_error.h */
#define trf_fail_errno(...) trf_not_ok(trf_fail_errno(__VA_ARGS__))
#define trf_fail_memory(...) trf_not_ok(trf_fail_memory(__VA_ARGS__))
#endif

#endif
