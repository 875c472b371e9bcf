/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs that appear whole or not at all: built under a temporary name beside the final one, synced, then renamed. */
#ifndef TRF_OUTPUT_H
#define TRF_OUTPUT_H

#include "trf_job.h"

/* What may be replaced: an existing file, or an entry of an existing folder, which is a file, a link, or a folder
 * without entries. below: the entry's path below the folder, or the file's name; path: the whole of it.
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
    trf_job *job;                    /* for notes; NULL: leftovers are nobody's concern */
    trf_may_replace_fn *may_replace; /* NULL: nothing may be in a folder; a file may be no part of a checkpoint */
    void *context;
} trf_output_place;

typedef struct trf_output {
    trf_output_place place;
    char *path;      /* the final one, without slashes at its end; where a link leads */
    char *temporary; /* what is being built, until it is published */
    trf_file file;   /* what is being built, and locked: a file, open for writing, or the folder */
} trf_output;

/* Begins an output. With `overwrite` an existing file is replaced if it may be, an existing folder if each entry in it
 * may be (-f must not cost somebody work), anything else never. A symbolic link stays: the output is what it leads to.
 * What runs that were killed left beside it is told and, with `overwrite`, removed. place: copied; its path too. Call
 * trf_output_end in every case. Errors: TRF_ERR_EXISTS, _NOT_FOUND (a link leads nowhere), _IO, _ARGUMENT (empty path),
 * _MEMORY. */
trf_status trf_output_begin(trf_output *output, const trf_output_place *place, trf_error *err);

/* The same for a file, with the permissions that new files get. */
trf_status trf_output_begin_file(trf_output *output, const char *path, int overwrite, trf_error *err);

/* What trf_output_begin would say, but for leftovers; nothing is begun. */
trf_status trf_output_check(const trf_output_place *place, trf_error *err);

/* Syncs what was built and gives it its final name, atomically; without `overwrite` nothing is clobbered even by
 * something that came into being meanwhile. Files and folders inside a folder are the caller's to sync.
 * Errors: TRF_ERR_EXISTS, _IO. */
trf_status trf_output_publish(trf_output *output, trf_error *err);

/* Removes what was not published and releases the rest. */
void trf_output_end(trf_output *output);

/* Refuses an output that is the input, lies inside it or holds it. in_path exists. Errors: TRF_ERR_ARGUMENT, _MEMORY.
 */
trf_status trf_output_check_apart(const char *in_path, const char *out_path, trf_error *err);

#endif
