/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out what a source checkpoint is, as far as it matters to programs that will load the compressed one: a model of
 * transformers or diffusers, a model that is quantized already, an adapter, or nothing that is known. FORMAT.md,
 * section 10. */
#ifndef TRF_SOURCE_KIND_H
#define TRF_SOURCE_KIND_H

#include "trf_fp8_model.h"

/* Finds out why no program could load the checkpoint's model once it is compressed: it is an adapter, or a model that
 * is quantized already. For a single file that is named as a model's are, the other files of its folder count, too.
 * fp8: what trf_fp8_model_read found; FP8 weights with scales and their side tables are no obstacle; NULL: they are
 * one. text: a line that begins with a path; or "" if there is no obstacle. Errors: TRF_ERR_MEMORY. */
trf_status trf_source_find_obstacle(const trf_checkpoint *checkpoint, const trf_source_config *source,
                                    const trf_fp8_model *fp8, char text[TRF_OBSTACLE_BYTES], trf_error *err);

/* Checks whether a checkpoint may be compressed with these options, and notes what only store_only allows. obstacle: as
 * trf_source_find_obstacle gives it. Errors: TRF_ERR_UNSUPPORTED (there is an obstacle), TRF_ERR_FORMAT, _IO (a
 * folder's config.json that cannot be read), both unless store_only is set; TRF_ERR_MEMORY. */
trf_status trf_source_check(const trf_checkpoint *checkpoint, const trf_source_config *source, const char *obstacle,
                            trf_job *job, trf_error *err);

/* Notes that nobody can read a pipeline's model_index.json, if so. Errors: TRF_ERR_MEMORY. */
trf_status trf_source_check_pipeline(const trf_checkpoint *checkpoint, trf_job *job, trf_error *err);

/* @return the dtype, such as "bfloat16", that transformers finds in the files of a folder whose config.json has none;
 * or NULL if it finds none, or if it depends on the variant that is asked for. */
const char *trf_source_find_dtype(const trf_checkpoint *checkpoint, const trf_source_config *source);

/* Numbers of a file's tensors that became blobs, by what a program that loads them has to know. */
typedef struct trf_blob_counts {
    uint64_t all;
    uint64_t bf16, fp16; /* of these codecs */
    uint64_t widened;    /* F32 tensors that hold BF16 numbers alone */
} trf_blob_counts;

/* Notes what will happen when a model, which is compressed now, is loaded; nothing if it has no blobs. dtype: as
 * trf_source_find_dtype gives it; blobs: [checkpoint->num_files]; stored: whether it is stored only. */
void trf_source_tell(const trf_checkpoint *checkpoint, const trf_source_config *source, const char *dtype,
                     const trf_blob_counts *blobs, int stored, trf_job *job);

#endif
