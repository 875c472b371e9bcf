/* SPDX-License-Identifier: Apache-2.0 */
/* One file of a checkpoint, compressed or not: which source tensors it stands for, and where they lie in it. */
#ifndef TRF_CHECKPOINT_FILE_H
#define TRF_CHECKPOINT_FILE_H

#include "trf_blob_reader.h"
#include "trf_safetensors.h"
#include "trf_side_tables.h"

#define TRF_BLOB_SUFFIX "_trf"
#define TRF_METADATA_FORMAT "transfuse_format"
#define TRF_METADATA_HEADER "transfuse_source_header"
/* Has the value "unreadable", if it is there: the folder's config.json could not be read when the file was compressed,
 * and is the source's. */
#define TRF_METADATA_CONFIG "transfuse_source_config"

typedef struct trf_file_tensor {
    const trf_tensor *source;    /* as the source has it */
    uint64_t file_offset, bytes; /* where it is stored */
    uint64_t blobs;              /* number of blobs; 0: it is stored as it was */
    int is_scaled_fp8;           /* its blobs are of BF16, and the source's weights are their codes */
    int is_bare_blob;            /* it begins as a blob does, though neither its name nor the file says that it is
                                  * one */
} trf_file_tensor;

typedef struct trf_checkpoint_file {
    char *path;
    char *name; /* of the file alone */
    uint64_t file_bytes;
    trf_file_stamp stamp;          /* when it was parsed */
    int is_layer;                  /* a .trf file */
    int compressed;                /* it holds blobs, or says that it may */
    trf_safetensors own_header;    /* the file's header; empty for a .trf file */
    trf_safetensors source_header; /* of a compressed file: the header that decompressing gives back */
    trf_file_tensor *tensors;      /* in the source's order; side tables are not among them */
    size_t num_tensors;
    trf_side_tables side_tables; /* tensors of the source that the file has in its metadata */
    trf_budget *budget;          /* or NULL */
    uint64_t counted_bytes;      /* what it has taken of the budget */
} trf_checkpoint_file;

/* Opens, parses and closes a file. path: copied. Release with trf_checkpoint_file_free on success only.
 * Errors: TRF_ERR_NOT_FOUND, _IO, _TRUNCATED, _FORMAT, _VERSION, _MEMORY, and those of blobs' headers. Messages name
 * the file. */
trf_status trf_checkpoint_file_open(const char *path, trf_checkpoint_file *checkpoint_file, trf_error *err);

/* Does the same within a budget, which must outlive the file. Errors: also TRF_ERR_LIMIT. */
trf_status trf_checkpoint_file_open_counted(const char *path, trf_budget *budget, trf_checkpoint_file *checkpoint_file,
                                            trf_error *err);
void trf_checkpoint_file_free(trf_checkpoint_file *checkpoint_file);

/* @return the header that the source has, or had. */
static inline const trf_safetensors *trf_checkpoint_file_source_header(const trf_checkpoint_file *checkpoint_file) {
    return checkpoint_file->compressed ? &checkpoint_file->source_header : &checkpoint_file->own_header;
}

/* @return whether the file is compressed and does not say how its source was laid out (FORMAT.md, section 10). Then the
 * tensors come back, but not necessarily the file, byte for byte. */
static inline int trf_checkpoint_file_lost_layout(const trf_checkpoint_file *checkpoint_file) {
    return checkpoint_file->compressed && !checkpoint_file->is_layer &&
           !trf_safetensors_metadata(&checkpoint_file->own_header, TRF_METADATA_HEADER);
}

/* @return the tensor with that name in the source, or NULL; also NULL for side tables. */
const trf_file_tensor *trf_checkpoint_file_find(const trf_checkpoint_file *checkpoint_file, const char *name);

/* Opens the blob number `number`, from 0 on, of a tensor. The blob must have the tensor's dtype, and the shape of its
 * last two dimensions. list: the tensor's.
 * Errors: as trf_blob_reader_open; TRF_ERR_HEADER. */
trf_status trf_file_tensor_open_blob(const trf_file *file, const trf_file_tensor *tensor, const trf_blob_list *list,
                                     uint64_t number, trf_blob_reader *reader, trf_error *err);

/* @return TRF_ERR_FORMAT if a tensor is a bare blob. The message says how that may have happened. */
trf_status trf_check_bare_blob(const trf_file_tensor *tensor, trf_error *err);

/* Puts file and tensor in front of the message of a failure, and also the tensor's place, unless it is a blob: messages
 * about blobs say where they are. @return status. */
trf_status trf_fail_in_tensor(const trf_checkpoint_file *checkpoint_file, const trf_file_tensor *tensor,
                              trf_status status, trf_error *err);

/* @return malloc'd name + "_trf", or NULL without memory. */
char *trf_blob_name(const char *name);

#endif
