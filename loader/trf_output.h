/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs that appear whole or not at all: built under a temporary name beside the final one, synced, then renamed. */
#ifndef TRF_OUTPUT_H
#define TRF_OUTPUT_H

#include "trf_file.h"

typedef struct trf_output {
    char *path;      /* the final one, without slashes at its end */
    char *temporary; /* what is being built, until it is published */
    trf_file file;   /* of a file output, open for writing; else fd is -1 */
    int is_folder;
    int overwrite;
} trf_output;

/* Begins an output. An existing file or symbolic link is replaced with `overwrite`, an existing folder if besides it
 * is empty or holds a checkpoint (a mistyped path must not cost somebody a folder), anything else never.
 * Call trf_output_end in every case. Errors: TRF_ERR_EXISTS, _IO, _ARGUMENT (empty path), _MEMORY. */
trf_status trf_output_begin_file(trf_output *output, const char *path, int overwrite, trf_error *err);
trf_status trf_output_begin_folder(trf_output *output, const char *path, int overwrite, trf_error *err);

/* Syncs what was built and gives it its final name, atomically; without `overwrite` nothing is clobbered even by
 * something that came into being meanwhile. Files and folders inside a folder are the caller's to sync.
 * Errors: TRF_ERR_EXISTS, _IO. */
trf_status trf_output_publish(trf_output *output, trf_error *err);

/* Removes what was not published and releases the rest. */
void trf_output_end(trf_output *output);

/* Refuses an output that is the input, lies inside it or holds it. in_path exists. Errors: TRF_ERR_ARGUMENT, _MEMORY.
 */
trf_status trf_output_check_apart(const char *in_path, const char *out_path, trf_error *err);

/* @return whether a file of this name is part of a checkpoint: *.safetensors or *.safetensors.index.json. */
int trf_name_is_safetensors(const char *name);
int trf_name_is_index(const char *name);

#endif
