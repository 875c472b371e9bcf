/* SPDX-License-Identifier: Apache-2.0 */
/* The models of a checkpoint that is to be compressed: what the choice of their tensors depends on is read, and they
 * are checked, before anything is written. */
#ifndef TRF_COMPRESS_MODELS_H
#define TRF_COMPRESS_MODELS_H

#include "trf_fp8_model.h"
#include "trf_model_config.h"
#include "trf_source_kind.h"
#include "trf_tensor_selection.h"

/* What all files of a model share. */
typedef struct trf_compression {
    trf_job *job;
    trf_selection_rules rules;
    trf_source_config source;
    trf_fp8_model fp8;
    trf_model_config config;
    const trf_checkpoint *model;
    trf_blob_counts *counts; /* [model->num_files] */
    uint8_t *is_adapter;     /* [model->num_files] */
    const char *dtype;       /* trf_source_find_dtype */
    char obstacle[TRF_OBSTACLE_BYTES];
} trf_compression;

/* @return the rules for the tensors of one file. */
trf_selection_rules trf_compression_rules(const trf_compression *work, size_t file);

/* Prepares the models. Models of a pipeline that cannot be compressed are carried over. parts: [number of models], of
 * which *num_parts are to be written; works: their contexts, [number of models] of zeros, each of which is to be
 * released with trf_compression_free in every case. Errors: TRF_ERR_UNSUPPORTED if no program could load a model once
 * it is compressed, TRF_ERR_NOT_FOUND for a pattern that matches no tensor, and those of reading. */
trf_status trf_compression_prepare(trf_checkpoint *checkpoint, trf_job *job, trf_compression *works,
                                   trf_rewrite_part *parts, size_t *num_parts, trf_error *err);
void trf_compression_free(trf_compression *work);

#endif
