/* SPDX-License-Identifier: Apache-2.0 */
/* The FP8 weights of a checkpoint that its config.json says are quantized, and the tensors of scales beside them: its
 * side tables. FORMAT.md, section 10. */
#ifndef TRF_FP8_MODEL_H
#define TRF_FP8_MODEL_H

#include "trf_fp8_codes.h"
#include "trf_fp8_config.h"
#include "trf_model_config.h"

enum {
    TRF_OBSTACLE_BYTES = 640
};

/* What a tensor is in such a model. */
typedef enum trf_fp8_role {
    TRF_FP8_OTHER,
    TRF_FP8_WEIGHT,      /* codes, which become scaled FP8 */
    TRF_FP8_SCALE,       /* the scales of a weight */
    TRF_FP8_UNUSED_SCALE /* a scale that products do not need: of activations, or of a KV cache */
} trf_fp8_role;

typedef struct trf_fp8_tensor {
    trf_fp8_role role;
    /* The rest is set for weights: */
    const trf_checkpoint_file *scale_file;
    const trf_tensor *scale; /* has the scales of all its matrices, one after the other */
    trf_granularity granularity;
} trf_fp8_tensor;

/* is_fp8: the model is of FP8 with scales; all else is only set then. */
typedef struct trf_fp8_model {
    int is_fp8;
    trf_fp8_config config;
    json_t *modelopt; /* of hf_quant_config.json; or NULL */
    const trf_checkpoint *checkpoint;
    trf_fp8_tensor **tensors; /* [checkpoint->num_files][num_tensors] */
} trf_fp8_model;

/* Finds out whether a folder holds a model of FP8 weights with scales, and checks that every one of them, and every
 * scale, can be stored as scaled FP8. Reads the scales. text: a line that begins with a path and says why not, where
 * the config says that it is such a model; else "". source, checkpoint: must outlive *model. Release with
 * trf_fp8_model_free in every case. Errors: TRF_ERR_IO, TRF_ERR_MEMORY. */
trf_status trf_fp8_model_read(const trf_checkpoint *checkpoint, const trf_source_config *source, trf_fp8_model *model,
                              char text[TRF_OBSTACLE_BYTES], trf_error *err);
void trf_fp8_model_free(trf_fp8_model *model);

/* @return what a tensor is; NULL if it is nothing special. model: or NULL. */
const trf_fp8_tensor *trf_fp8_model_find(const trf_fp8_model *model, const trf_checkpoint_file *file,
                                         const trf_tensor *tensor);

/* Reads the scales of matrix number `number`, from 0 on, of a weight. weight: the tensor; fp8: what
 * trf_fp8_model_find says of it. scales: the caller's (trf_fp8_scales_free). Errors: TRF_ERR_IO, TRF_ERR_MEMORY. */
trf_status trf_fp8_model_load_scales(const trf_fp8_model *model, const trf_tensor *weight, const trf_fp8_tensor *fp8,
                                     uint64_t number, trf_fp8_scales *scales, trf_error *err);

#endif
