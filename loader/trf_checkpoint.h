/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint as all commands see it: its files opened and checked against each other, before any of them is worked
 * on. */
#ifndef TRF_CHECKPOINT_H
#define TRF_CHECKPOINT_H

#include "trf_checkpoint_index.h"
#include "trf_job.h"

struct trf_checkpoint {
    char *root; /* the file, or the folder */
    int is_folder;
    trf_checkpoint_file *files; /* a file: one; a folder: its *.safetensors, in the order of their names */
    size_t num_files;
    trf_checkpoint_index *indexes; /* a folder's *.safetensors.index.json */
    size_t num_indexes;
};

/* @return bytes of all tensors, uncompressed. */
uint64_t trf_checkpoint_source_bytes(const trf_checkpoint *checkpoint);

/* @return whether a name in the folder is one of its files or indexes. */
int trf_checkpoint_has_file(const trf_checkpoint *checkpoint, const char *name);

/* A compressed matrix: a tensor, or one expert of an expert tensor. */
typedef struct trf_checkpoint_matrix {
    const trf_checkpoint_file *checkpoint_file;
    const trf_file_tensor *tensor;
    int is_expert;   /* the name gave one */
    uint64_t expert; /* its number; 0 of a matrix that is none */
} trf_checkpoint_matrix;

/* Finds one by its source's name, with or without the suffix of blobs; an expert is "name[3]". Errors:
 * TRF_ERR_NOT_FOUND, TRF_ERR_ARGUMENT (not compressed), TRF_ERR_MEMORY. */
trf_status trf_checkpoint_find(const trf_checkpoint *checkpoint, const char *name, trf_checkpoint_matrix *matrix,
                               trf_error *err);

/* Where its tensor's blobs lie; the matrix is blob matrix->expert. file: the matrix's. Errors: as trf_blob_list_read;
 * TRF_ERR_ARGUMENT (an expert tensor, and no expert named), TRF_ERR_NOT_FOUND (no such expert). */
trf_status trf_list_blobs(const trf_checkpoint_matrix *matrix, const trf_file *file, trf_blob_list *list,
                          trf_error *err);

/* Adds a tensor, as it is stored, to the report's totals. */
void trf_count_tensor(trf_job *job, const trf_file_tensor *tensor);

/* The way out of every public function: makes the message one line, whatever names it quotes. @return status. */
trf_status trf_sanitize_error(trf_status status, trf_error *err);

struct trf_model_config; /* trf_model_config.h */

/* Builds an output from a checkpoint: each file through `rewrite_file`, indexes rewritten, config.json as `config` has
 * it, other files copied; all of it published at once or not at all. Errors: those of rewrite_file; TRF_ERR_EXISTS,
 * _ARGUMENT, _IO, _MEMORY. */
typedef trf_status trf_rewrite_file_fn(void *context, const trf_checkpoint_file *checkpoint_file, const trf_file *out,
                                       trf_error *err);
trf_status trf_checkpoint_rewrite(const trf_checkpoint *checkpoint, const struct trf_model_config *config, trf_job *job,
                                  const char *out_path, trf_rewrite_file_fn *rewrite_file, void *context,
                                  trf_error *err);

/* Copies one entry of a folder and all below it. root: the checkpoint's folder; relative symbolic links that lead
 * to something in it, and ones that lead nowhere, are made anew; others are followed. Errors: TRF_ERR_IO, _UNSUPPORTED
 * (not a file, folder or link), _MEMORY. */
trf_status trf_copy_tree(trf_job *job, const char *root, const char *in_path, const char *out_path, trf_error *err);

#endif
