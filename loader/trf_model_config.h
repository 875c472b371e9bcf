/* SPDX-License-Identifier: Apache-2.0 */
/* The config.json of a model of Hugging Face transformers, at the top of a checkpoint's folder. In a compressed
 * checkpoint it has a "quantization_config", without which transformers would take the weights for missing ones; within
 * that stands the source's text, which decompressing gives back. FORMAT.md, section 10. */
#ifndef TRF_MODEL_CONFIG_H
#define TRF_MODEL_CONFIG_H

#include "trf_checkpoint.h"

#include <jansson.h>

#define TRF_MODEL_CONFIG_NAME "config.json"

enum {
    TRF_MAX_MODEL_CONFIG_BYTES = 16 << 20
};

/* A config.json as it stands in a folder. */
typedef struct trf_config_file {
    char *path, *text;
    size_t bytes;
    unsigned mode;
    json_t *root; /* NULL: there is none, or none that can be read */
} trf_config_file;

/* That of the source checkpoint, which is to be compressed: in its folder, or beside its file. */
typedef struct trf_source_config {
    trf_config_file file;
    trf_error failure; /* status: not TRF_OK if it is there and cannot be read; the message says why */
} trf_source_config;

/* What becomes of it. Without `text` it is carried over as other files are. */
typedef struct trf_model_config {
    char *text; /* malloc'd; or NULL */
    size_t bytes;
    unsigned mode;       /* the file's permissions */
    int for_blobs_only;  /* `text` counts if a tensor is compressed */
    const char *failure; /* why the file cannot be read, before the warning; not owned, or NULL */
    char warning[640];   /* a line for the report, which begins with the file's path if `failure` does not; or "" */
} trf_model_config;

/* Release with trf_source_config_free in every case. Errors: TRF_ERR_MEMORY. */
trf_status trf_source_config_read(const trf_checkpoint *checkpoint, trf_source_config *source, trf_error *err);
void trf_source_config_free(trf_source_config *source);

/* @return whether it says that the output layer shares the embeddings' memory. */
int trf_source_config_is_tied(const trf_source_config *source);

/* Compressing a folder: the source's text with a quantization_config at its end. One that cannot be read, or has a
 * quantization_config, is carried over, with a warning. source: outlives *config. Release with trf_model_config_free in
 * every case. Errors: TRF_ERR_ARGUMENT (its quantization_config is of a compressed checkpoint), _MEMORY. */
trf_status trf_model_config_compress(const trf_source_config *source, const trf_encode_options *encode,
                                     trf_model_config *config, trf_error *err);

/* Decompressing: the source's text, where one is kept; with a warning if other keys are not the source's any more.
 * Release with trf_model_config_free in every case. Errors: TRF_ERR_MEMORY. */
trf_status trf_model_config_restore(const trf_checkpoint *checkpoint, trf_model_config *config, trf_error *err);

void trf_model_config_free(trf_model_config *config);

/* Adds the config's warning to the report's. */
void trf_model_config_warn(const trf_model_config *config, trf_checkpoint_report *report);

/* Whether a folder's config.json, restored, is that of its source, byte for byte. What is no folder, or a source
 * without config.json, agrees. Errors: TRF_ERR_MISMATCH, _NOT_FOUND (it is missing), _IO, _MEMORY. */
trf_status trf_model_config_check(const trf_checkpoint *checkpoint, const trf_checkpoint *against,
                                  trf_checkpoint_report *report, trf_error *err);

#endif
