/* SPDX-License-Identifier: Apache-2.0 */
/* Temporary files and folders that a run left behind when it was killed. A run locks its own as long as it lives, so
 * one that nobody locks is a leftover. */
#ifndef TRF_LEFTOVERS_H
#define TRF_LEFTOVERS_H

#include "trf_job.h"

/* These labels are appended to an output's path, with a dot before them and a dash and eight hexadecimal digits after
 * them: for what is being built, and for a folder that gives way to it. No file of a user has such a name by chance. */
#define TRF_TEMPORARY_LABEL "transfuse-tmp"
#define TRF_FORMER_LABEL "transfuse-old"

/* The label of the journal of a temporary that can be continued; it has the digits of the temporary (trf_resume.h). */
#define TRF_JOURNAL_LABEL "transfuse-resume"

enum {
    TRF_TEMPORARY_DIGITS = 8
};

/* Locks what is being built, for as long as fd is open. path: the path that fd was opened with. @return 0 if another
 * run took it for a leftover in the meantime. */
int trf_temporary_lock(int fd, const char *path);

/* @return whether `name` is `base`, a dot, the label, a dash and the digits, and nothing else. */
int trf_is_temporary_name(const char *name, const char *base, const char *label);

/* @return malloc'd: an output's path, a dot, the label, a dash and the digits; or NULL without memory. */
char *trf_temporary_path(const char *path, const char *label, const char *digits);

/* Looks for leftovers beside an output, and mentions each in a note; removes them with `overwrite`. A folder that gave
 * way stays as long as there is none under the output's own name, since it is the only one then. Errors:
 * TRF_ERR_MEMORY. */
trf_status trf_leftovers_clear(const char *path, int overwrite, trf_job *job, trf_error *err);

/* Removes a file, or a folder with all below it, as far as that can be done. Links are not followed. */
void trf_remove_tree(const char *path);

#endif
