/* SPDX-License-Identifier: Apache-2.0 */
/* A model.safetensors.index.json, or model.safetensors.index.fp16.json: which file holds which tensor. */
#ifndef TRF_CHECKPOINT_INDEX_H
#define TRF_CHECKPOINT_INDEX_H

#include "trf_checkpoint_file.h"

/* The member of "metadata" in which the index of a compressed checkpoint keeps the source's index. */
#define TRF_METADATA_INDEX "transfuse_source_index"

typedef struct trf_checkpoint_index {
    char *path;
    char *name;           /* of the file alone */
    trf_file_stamp stamp; /* when it was read */
    json_t *root;
    json_t *weight_map;     /* within root */
    int has_mark;           /* it begins with a byte order mark, and is not parsed: programs that load by it raise an
                             * error */
    trf_budget *budget;     /* or NULL */
    uint64_t counted_bytes; /* what it has taken of the budget */
} trf_checkpoint_index;

/* Reads and parses an index. Release with trf_checkpoint_index_free on success only. Errors: TRF_ERR_NOT_FOUND, _IO,
 * _FORMAT (also a map that is empty, unless the index keeps the source's), _MEMORY. */
trf_status trf_checkpoint_index_open(const char *path, trf_checkpoint_index *index, trf_error *err);

/* Does the same within a budget, which must outlive the index. Errors: also TRF_ERR_LIMIT. */
trf_status trf_checkpoint_index_open_counted(const char *path, trf_budget *budget, trf_checkpoint_index *index,
                                             trf_error *err);
void trf_checkpoint_index_free(trf_checkpoint_index *index);

/* Checks that every tensor of the map is in its file, and every tensor of those files in the map.
 * Errors: TRF_ERR_NOT_FOUND (no such file), TRF_ERR_FORMAT. */
trf_status trf_checkpoint_index_check(const trf_checkpoint_index *index, const trf_checkpoint_file *files,
                                      size_t num_files, trf_error *err);

/* @return a static string that says why nothing is loaded by the index: none of the files that it names exists, or
 * nobody can read it; or NULL. */
const char *trf_checkpoint_index_why_idle(const trf_checkpoint_index *index, const trf_checkpoint_file *files,
                                          size_t num_files);

/* @return the text of the source's index that the index keeps, with its *bytes; NULL if it keeps none. */
const char *trf_checkpoint_index_kept(const trf_checkpoint_index *index, size_t *bytes);

/* Checks that the source's index, if the index keeps one, fits the source's tensors. files: those of the folder.
 * Errors: TRF_ERR_FORMAT, _MEMORY. */
trf_status trf_checkpoint_index_check_kept(const trf_checkpoint_index *index, const trf_checkpoint_file *files,
                                           size_t num_files, trf_error *err);

/* Makes the text of the index for `out`, the files that those of `in` became (same names, same order). Compressing
 * keeps the text of this index in it, and decompressing gives that text back. The index must have passed
 * trf_checkpoint_index_check with `in`. *text is malloc'd.
 * Errors: TRF_ERR_FORMAT (a kept index that does not fit), _IO, _MEMORY. */
trf_status trf_checkpoint_index_rewrite(const trf_checkpoint_index *index, const trf_checkpoint_file *in,
                                        const trf_checkpoint_file *out, size_t num_files, char **text, size_t *bytes,
                                        trf_error *err);

#endif
