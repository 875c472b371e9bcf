/* SPDX-License-Identifier: Apache-2.0 */
/* One file of a checkpoint, compressed or not: which source tensors it stands for, and where they lie in it. */
#ifndef TRF_CHECKPOINT_FILE_H
#define TRF_CHECKPOINT_FILE_H

#include "trf_blob_reader.h"
#include "trf_safetensors.h"

#define TRF_BLOB_SUFFIX "_trf"
#define TRF_METADATA_FORMAT "transfuse_format"
#define TRF_METADATA_HEADER "transfuse_source_header"
/* There, and "unreadable": the folder's config.json could not be read when it was compressed, and is the source's. */
#define TRF_METADATA_CONFIG "transfuse_source_config"

typedef struct trf_file_tensor {
    const trf_tensor *source;    /* as the source has it */
    uint64_t file_offset, bytes; /* where it is stored */
    uint64_t blobs;              /* 0: as it was; else their number */
    int is_bare_blob;            /* begins as blobs do, though neither its name nor the file says that it is one */
} trf_file_tensor;

typedef struct trf_checkpoint_file {
    char *path;
    char *name; /* of the file alone */
    uint64_t file_bytes;
    trf_file_stamp stamp;          /* when it was parsed */
    int is_layer;                  /* a .trf file */
    int compressed;                /* holds blobs, or says that it may */
    trf_safetensors own_header;    /* the file's header; empty for a .trf file */
    trf_safetensors source_header; /* of a compressed file: the header that decompressing gives back */
    trf_file_tensor *tensors;      /* in the source's order */
    size_t num_tensors;
} trf_checkpoint_file;

/* Opens, parses and closes a file. path: copied. Release with trf_checkpoint_file_free on success only.
 * Errors: TRF_ERR_NOT_FOUND, _IO, _TRUNCATED, _FORMAT, _VERSION, _MEMORY, and those of blobs' headers. Messages name
 * the file. */
trf_status trf_checkpoint_file_open(const char *path, trf_checkpoint_file *checkpoint_file, trf_error *err);
void trf_checkpoint_file_free(trf_checkpoint_file *checkpoint_file);

/* The header that the source has, or had. */
static inline const trf_safetensors *trf_checkpoint_file_source_header(const trf_checkpoint_file *checkpoint_file) {
    return checkpoint_file->compressed ? &checkpoint_file->source_header : &checkpoint_file->own_header;
}

/* @return whether it is compressed and does not say how its source was laid out (FORMAT.md, section 10): the tensors
 * come back then, and not necessarily the file, byte for byte. */
static inline int trf_checkpoint_file_lost_layout(const trf_checkpoint_file *checkpoint_file) {
    return checkpoint_file->compressed && !checkpoint_file->is_layer &&
           !trf_safetensors_metadata(&checkpoint_file->own_header, TRF_METADATA_HEADER);
}

/* @return the tensor of that source name, or NULL. */
const trf_file_tensor *trf_checkpoint_file_find(const trf_checkpoint_file *checkpoint_file, const char *name);

/* Opens the blob of a tensor that has a number, from 0 on; it has to have the tensor's dtype and the shape of its last
 * two dimensions. list: the tensor's.
 * Errors: as trf_blob_reader_open; TRF_ERR_HEADER. */
trf_status trf_file_tensor_open_blob(const trf_file *file, const trf_file_tensor *tensor, const trf_blob_list *list,
                                     uint64_t number, trf_blob_reader *reader, trf_error *err);

/* @return TRF_ERR_FORMAT if a tensor is a bare blob; the message says how it may have come to be. */
trf_status trf_check_bare_blob(const trf_file_tensor *tensor, trf_error *err);

/* Prefixes the failure of what was done to a tensor with file and tensor, and with its place unless it is a blob, whose
 * messages say where they are. @return status. */
trf_status trf_fail_in_tensor(const trf_checkpoint_file *checkpoint_file, const trf_file_tensor *tensor,
                              trf_status status, trf_error *err);

/* @return malloc'd name + "_trf", or NULL without memory. */
char *trf_blob_name(const char *name);

#endif
