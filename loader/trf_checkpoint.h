/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint as all commands see it. Its files are opened and checked against each other before any of them is worked
 * on. */
#ifndef TRF_CHECKPOINT_H
#define TRF_CHECKPOINT_H

#include "trf_checkpoint_index.h"
#include "trf_tree.h"

typedef struct trf_idle_index {
    char *name;
    const char *why; /* trf_checkpoint_index_why_idle */
} trf_idle_index;

struct trf_checkpoint {
    char *root; /* the file, or the folder */
    int is_folder;
    trf_checkpoint_file *files; /* of a file: the one; of a folder: its *.safetensors, in the order of their names */
    size_t num_files;
    trf_checkpoint_index *indexes; /* a folder's indexes */
    size_t num_indexes;
    trf_idle_index *idle_indexes; /* indexes by which nothing is loaded; they are carried over */
    size_t num_idle_indexes;
    trf_checkpoint **parts; /* of a pipeline: its models, in the order of their names; it has no files of its own
                             * then */
    size_t num_parts;
    char *name;                  /* of a part: its folder's, in the pipeline */
    int has_config;              /* a folder with a config.json ... */
    trf_file_stamp config_stamp; /* ... when it was opened */
    int carried_over;            /* the part is left as it is; set by the code that works on the pipeline */
    trf_limits limits;           /* of the calls on it ... */
    trf_budget *budget;          /* ... and what the open files take: the caller's, or `own`; a part's is the whole's */
    trf_budget own;
};

/* Opens a checkpoint as trf_checkpoint_open does. What its files take in memory is taken from the budget, which must
 * outlive it, and given back when it is closed. */
trf_status trf_checkpoint_open_counted(const char *path, trf_budget *budget, trf_checkpoint **checkpoint,
                                       trf_error *err);

/* The file that makes a folder a pipeline's. */
#define TRF_PIPELINE_INDEX_NAME "model_index.json"

/* @return the model with this number: a part, or the checkpoint itself if it is the only model; NULL if there are no
 * more. */
const trf_checkpoint *trf_checkpoint_model(const trf_checkpoint *checkpoint, size_t number);

/* Checks that every *.safetensors file, index and config.json is as it was when the checkpoint was opened. Errors:
 * TRF_ERR_IO (the message names the first one that is not), _NOT_FOUND, _MEMORY. */
trf_status trf_checkpoint_check_unchanged(const trf_checkpoint *checkpoint, trf_error *err);

/* @return bytes of all tensors, uncompressed. */
uint64_t trf_checkpoint_source_bytes(const trf_checkpoint *checkpoint);

/* @return bytes of a whole file, as it is in the source. */
uint64_t trf_checkpoint_file_source_bytes(const trf_checkpoint_file *file);

/* @return to whom an entry of the checkpoint's folder belongs. context: the checkpoint. */
trf_tree_owner trf_checkpoint_owner(const void *context, const char *path);

/* A compressed matrix: a tensor, or one expert of an expert tensor. */
typedef struct trf_checkpoint_matrix {
    const trf_checkpoint_file *checkpoint_file;
    const trf_file_tensor *tensor;
    int is_expert;   /* the name asks for one expert */
    uint64_t expert; /* its number; 0 if the matrix is no expert */
} trf_checkpoint_matrix;

/* Finds a matrix by its source's name, with or without the suffix of blobs; an expert is "name[3]". Errors:
 * TRF_ERR_NOT_FOUND, TRF_ERR_ARGUMENT (not compressed), TRF_ERR_MEMORY. */
trf_status trf_checkpoint_find(const trf_checkpoint *checkpoint, const char *name, trf_checkpoint_matrix *matrix,
                               trf_error *err);

/* Lists where the blobs of a matrix's tensor lie; the matrix is blob number matrix->expert. file: the matrix's. Errors:
 * as trf_blob_list_read; TRF_ERR_ARGUMENT (an expert tensor, and no expert named), TRF_ERR_NOT_FOUND (no such
 * expert). */
trf_status trf_list_blobs(const trf_checkpoint_matrix *matrix, const trf_file *file, trf_blob_list *list,
                          trf_error *err);

/* Adds a tensor, as it is stored, to the report's totals. */
void trf_count_tensor(trf_job *job, const trf_file_tensor *tensor);

/* Adds a side table, or all of a compressed file, to the report's totals. tensor: as the source's header has it. */
void trf_count_side_table(trf_job *job, const trf_tensor *tensor, int is_used);
void trf_count_side_tables(trf_job *job, const trf_checkpoint_file *file);

/* Is handed each blob of a tensor, whose head is checked. */
typedef void trf_look_at_blob_fn(void *context, const struct trf_blob_view *view);

/* Does what trf_checkpoint_tensor does, and lets `look`, which may be NULL, see the blobs of a compressed tensor. */
trf_status trf_checkpoint_look(trf_checkpoint *checkpoint, uint64_t index, trf_look_at_blob_fn *look, void *context,
                               trf_tensor_info *info, trf_error *err);

struct trf_model_config; /* trf_model_config.h */

/* A model that is written to an output. */
typedef struct trf_rewrite_part {
    const trf_checkpoint *checkpoint;
    const struct trf_model_config *config;
    void *context; /* for rewrite_file */
} trf_rewrite_part;

/* Makes a file of the output. out: NULL if only its size is asked for. *bytes: of the whole file; an estimate if out is
 * NULL. */
typedef trf_status trf_rewrite_file_fn(void *context, const trf_checkpoint_file *checkpoint_file, const trf_file *out,
                                       uint64_t *bytes, trf_error *err);

/* Compares a file that has just been written with its source, as trf_verify_written does. */
typedef trf_status trf_read_back_fn(trf_job *job, const char *path, const trf_checkpoint *model,
                                    const trf_checkpoint_file *source_file, trf_error *err);

/* An output that is made from a checkpoint. Each file of each model goes through `rewrite_file`, indexes are rewritten,
 * config.json becomes what `config` says, and other files are copied. */
typedef struct trf_rewrite {
    const trf_checkpoint *checkpoint;
    const trf_rewrite_part *parts; /* those that are not carried over */
    size_t num_parts;
    trf_job *job;
    const char *out_path; /* NULL: only with job->options.dry_run */
    trf_rewrite_file_fn *rewrite_file;
    int compresses;
    trf_read_back_fn *read_back; /* called for each file of weights; or NULL */
} trf_rewrite;

/* Makes the output and publishes all of it at once, or nothing. Fills in what the report says of whole files. With
 * dry_run nothing is written. Errors: those of rewrite_file; TRF_ERR_EXISTS, _NOT_FOUND (skip_extra), _ARGUMENT, _IO
 * (also too little space), _MEMORY. */
trf_status trf_checkpoint_rewrite(const trf_rewrite *rewrite, trf_error *err);

/* Sums up whole files in the report: the source's, and the compressed checkpoint's unless it is being made. */
void trf_count_whole_files(const trf_tree *tree, const trf_rewrite_part *parts, size_t num_parts, int compresses,
                           trf_checkpoint_report *report);

/* @return whether a file of this name is part of a checkpoint: *.safetensors or *.safetensors.index.*json, such as
 * model.safetensors.index.fp16.json. */
int trf_name_is_safetensors(const char *name);
int trf_name_is_index(const char *name);

/* What is already at the place of an output. A file is ours if it has transfuse's marker: a compressed safetensors
 * file, the index of one, or a config.json that says so. */
typedef enum trf_file_sort {
    TRF_FILE_UNKNOWN, /* there was no memory to find out */
    TRF_FILE_OTHER,
    TRF_FILE_WEIGHTS, /* a safetensors file, by any name, that has tensors and is not ours */
    TRF_FILE_OURS
} trf_file_sort;

trf_file_sort trf_file_sort_of(const char *path);

#endif
