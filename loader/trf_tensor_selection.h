/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses which tensors are compressed, and with which codec. */
#ifndef TRF_TENSOR_SELECTION_H
#define TRF_TENSOR_SELECTION_H

#include "trf_checkpoint.h"

typedef enum trf_tensor_selection {
    TRF_SELECT_KEEP = 0,
    TRF_SELECT_COMPRESS = 1, /* unless its blob would be larger than the tensor */
    TRF_SELECT_ALWAYS = 2    /* always: `include` names it, without a wildcard */
} trf_tensor_selection;

/* What a choice depends on, besides the tensor itself. */
typedef struct trf_selection_rules {
    const trf_checkpoint_options *options;
    const char *part;    /* the name of a pipeline's model in the pipeline; or NULL */
    int tied_embeddings; /* config.json says so */
    int is_stored;       /* the checkpoint has to be decompressed before it is loaded, so that no table has to be read
                          * at once */
    int is_adapter;      /* the file is in a model's folder and holds an adapter, not the model */
} trf_selection_rules;

/* Decides whether a tensor is compressed. reason: why the tensor stays as it is, if it does. A selected tensor for
 * which trf_needs_bf16_numbers holds is compressed only if its weights are BF16 numbers. Errors: TRF_ERR_ARGUMENT if
 * `include` names a tensor that cannot be compressed, or store_only is asked for with a codec that is not lossless for
 * the tensor; _MEMORY. */
trf_status trf_select_tensor(const trf_selection_rules *rules, const trf_tensor *tensor,
                             trf_tensor_selection *selection, trf_left_reason *reason, trf_error *err);

/* Sets the encoder's options for a tensor of this dtype. @return 0 if the codec that was asked for does not take it. */
int trf_encode_options_for(const trf_encode_options *asked, trf_dtype dtype, trf_encode_options *options);

/* @return whether a tensor of this dtype may be compressed only if every weight is a BF16 number. This holds for F32
 * where compression must be lossless (trf_bf16_numbers.h). */
int trf_needs_bf16_numbers(const trf_checkpoint_options *options, trf_dtype dtype);

/* @return whether it is an error if such a tensor has other weights, and not just a reason to leave it as it is. */
int trf_must_fit(const trf_selection_rules *rules, trf_tensor_selection selection);
trf_status trf_fail_no_bf16_numbers(trf_error *err);

/* @return whether the last part of a tensor's name, without ".weight", is that of a table that is looked up by row. */
int trf_last_part_is_embedding(const char *last);

/* @return whether a pattern is a name: it has no wildcard. */
int trf_pattern_is_name(const char *pattern);

/* @return whether a pattern of `include` or `exclude` matches the tensor. part_name: in a pipeline "PART/NAME", which a
 * pattern with a slash may also match; or NULL. */
int trf_pattern_matches(const char *pattern, const char *name, const char *part_name);

#endif
