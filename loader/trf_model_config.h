/* SPDX-License-Identifier: Apache-2.0 */
/* The config.json of a model of Hugging Face transformers, at the top of a checkpoint's folder. In a compressed
 * checkpoint it has a "quantization_config", without which transformers would find weights missing. That contains the
 * source's text, which decompressing gives back. FORMAT.md, section 10. */
#ifndef TRF_MODEL_CONFIG_H
#define TRF_MODEL_CONFIG_H

#include "trf_checkpoint.h"

#include <jansson.h>

#define TRF_MODEL_CONFIG_NAME "config.json"

enum {
    TRF_MAX_MODEL_CONFIG_BYTES = 16 << 20
};

/* A config.json as it is in a folder. */
typedef struct trf_config_file {
    char *path, *text;
    size_t bytes;
    char *strict; /* the text as it was parsed: trf_json_parse_python */
    unsigned mode;
    json_t *root; /* NULL: there is none, or none that can be read */
} trf_config_file;

/* The config.json of the source checkpoint, which is to be compressed. It is in the checkpoint's folder, or beside its
 * file. */
typedef struct trf_source_config {
    trf_config_file file;
    trf_error failure; /* status: not TRF_OK if the file exists and cannot be read; the message says why */
} trf_source_config;

/* What a config.json becomes. Without `text` it is carried over as other files are. */
typedef struct trf_model_config {
    char *text; /* malloc'd; or NULL */
    size_t bytes;
    unsigned mode;      /* the file's permissions */
    int for_blobs_only; /* `text` is only used if a tensor is compressed */
    char note[640];     /* a line for the report; or "" */
    trf_error failure;  /* decompressing: not TRF_OK if the file that is there cannot be the source's; says why */
} trf_model_config;

/* Whose model a config.json describes. */
typedef enum trf_framework {
    TRF_FRAMEWORK_NONE,         /* none that is known */
    TRF_FRAMEWORK_TRANSFORMERS, /* "model_type" or "architectures", and no "_class_name" */
    TRF_FRAMEWORK_DIFFUSERS     /* "_class_name" */
} trf_framework;

/* Reads the config.json. Release with trf_source_config_free in every case. Errors: TRF_ERR_MEMORY. */
trf_status trf_source_config_read(const trf_checkpoint *checkpoint, trf_source_config *source, trf_error *err);
void trf_source_config_free(trf_source_config *source);

/* @return whether it says that the output layer shares the embeddings' memory. */
int trf_source_config_is_tied(const trf_source_config *source);

trf_framework trf_source_config_framework(const trf_source_config *source);

/* @return the dtype that it gives the model, such as "bfloat16", under either name; or NULL. */
const char *trf_source_config_dtype(const trf_source_config *source);

/* @return the file of weights that it names ("transformers_weights"), or NULL. */
const char *trf_source_config_weights(const trf_source_config *source);

/* @return its "quantization_config" if that belongs to a compressed checkpoint, or NULL. */
const json_t *trf_source_config_find_ours(const trf_source_config *source);

/* For compressing a folder: makes the source's text with further members at its end (FORMAT.md, section 10). stored:
 * whether the checkpoint is stored only. dtype: the one to write if the config has none; or NULL. A config.json that
 * cannot be read is carried over. Release with trf_model_config_free in every case. Errors: TRF_ERR_ARGUMENT (its
 * quantization_config belongs to a compressed checkpoint), _MEMORY. */
trf_status trf_model_config_compress(const trf_source_config *source, const trf_encode_options *encode, int stored,
                                     const char *dtype, trf_model_config *config, trf_error *err);

/* For decompressing: gives the source's text back, if one is kept. There is a note if other keys are no longer the
 * source's, and a failure if files are compressed and the text that belongs to them is lost. Release with
 * trf_model_config_free in every case. Errors: TRF_ERR_MEMORY. */
trf_status trf_model_config_restore(const trf_checkpoint *checkpoint, trf_model_config *config, trf_error *err);

/* The models of a checkpoint, each with its config.json restored, as decompressing writes them. */
typedef struct trf_restored_models {
    trf_rewrite_part *parts; /* [count] */
    trf_model_config *configs;
    size_t count;
} trf_restored_models;

/* Reads the models. context: of each part. Release with trf_restored_models_free in every case. Errors:
 * TRF_ERR_MEMORY. */
trf_status trf_restored_models_read(const trf_checkpoint *checkpoint, void *context, trf_restored_models *models,
                                    trf_error *err);
void trf_restored_models_free(trf_restored_models *models);

void trf_model_config_free(trf_model_config *config);

/* Sets *lossless to whether the checkpoint is a folder whose config.json says that every tensor has its own lossless
 * codec. Errors: TRF_ERR_MEMORY. */
trf_status trf_model_config_is_lossless(const trf_checkpoint *checkpoint, int *lossless, trf_error *err);

/* Passes the config's note to the user. Errors: the config's failure. */
trf_status trf_model_config_tell(const trf_model_config *config, trf_job *job, trf_error *err);

/* Checks that decompressing a checkpoint would give back a config.json of its source, as far as that can be known
 * without the source. There is a note if other keys are no longer the source's. Errors: that failure,
 * TRF_ERR_MEMORY. */
trf_status trf_model_config_check_kept(const trf_checkpoint *checkpoint, trf_job *job, trf_error *err);

/* Checks that a folder's config.json, once restored, is that of its source, byte for byte. A checkpoint that is no
 * folder, or a source without config.json, passes. Errors: TRF_ERR_MISMATCH, _NOT_FOUND (it is missing), _IO,
 * _MEMORY. */
trf_status trf_model_config_check(const trf_checkpoint *checkpoint, const trf_checkpoint *against, trf_job *job,
                                  trf_error *err);

#endif
