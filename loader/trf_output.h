/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs that appear whole or not at all: they are built under a temporary name beside the final one, synced, then
 * renamed. */
#ifndef TRF_OUTPUT_H
#define TRF_OUTPUT_H

#include "trf_job.h"

/* Decides what may be replaced: an existing file, or an entry of an existing folder, which is a file, a link, or a
 * folder without entries. below: the entry's path below the folder, or the file's name; path: the whole path.
 * @return 1 if it may be replaced, 0 if not, -1 without memory. */
typedef int trf_may_replace_fn(void *context, const char *below, const char *path, int is_folder);

enum {
    TRF_MODE_OF_NEW_FILES = 07777 /* 0666, cut by the umask */
};

/* Where an output goes. */
typedef struct trf_output_place {
    const char *path;
    int is_folder;
    int overwrite;
    unsigned mode;                   /* permissions that it gets, exactly; or TRF_MODE_OF_NEW_FILES */
    trf_job *job;                    /* for notes; NULL: leftovers are ignored */
    trf_may_replace_fn *may_replace; /* NULL: a folder must be empty, and a file must not be part of a checkpoint */
    void *context;
} trf_output_place;

typedef struct trf_output {
    trf_output_place place;
    char *path;      /* the final one, without slashes at its end and with links followed */
    char *temporary; /* what is being built, until it is published */
    trf_file file;   /* what is being built, which is locked: a file, open for writing, or the folder */
} trf_output;

/* Begins an output. With `overwrite` an existing file is replaced if it may be, and an existing folder if each entry in
 * it may be (-f must not destroy anybody's work); nothing else is ever replaced. A symbolic link stays: the output is
 * what it leads to. What killed runs left beside it is mentioned in notes and, with `overwrite`, removed. place:
 * copied, and so is its path. With job->resume an earlier run's temporary is continued if
 * there is one that fits, and a journal begun else. Call trf_output_end in every case. Errors: TRF_ERR_EXISTS,
 * _NOT_FOUND (a link leads nowhere), _IO, _ARGUMENT (empty path), _MEMORY. */
trf_status trf_output_begin(trf_output *output, const trf_output_place *place, trf_error *err);

/* Does the same for a file, with the permissions that new files get. */
trf_status trf_output_begin_file(trf_output *output, const char *path, int overwrite, trf_error *err);

/* Returns what trf_output_begin would return, apart from leftovers. Nothing is begun. */
trf_status trf_output_check(const trf_output_place *place, trf_error *err);

/* Syncs what was built and gives it its final name, atomically. Without `overwrite` nothing is replaced, not even
 * something that was created meanwhile. The caller must sync files and folders inside a folder.
 * Errors: TRF_ERR_EXISTS, _IO; the output is there, whole, if only the sync of the folder around it failed. */
trf_status trf_output_publish(trf_output *output, trf_error *err);

/* Removes what was not published, unless job->resume has something of it to continue, and releases the rest. */
void trf_output_end(trf_output *output);

/* Refuses an output that is the input, lies inside it or holds it. in_path exists. Errors: TRF_ERR_ARGUMENT, _MEMORY.
 */
trf_status trf_output_check_apart(const char *in_path, const char *out_path, trf_error *err);

#endif
