/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors are compressed, and with which codec. */
#ifndef TRF_TENSOR_SELECTION_H
#define TRF_TENSOR_SELECTION_H

#include "trf_checkpoint.h"

typedef enum trf_tensor_selection {
    TRF_SELECT_KEEP = 0,
    TRF_SELECT_COMPRESS = 1, /* unless its blob comes out larger than it is */
    TRF_SELECT_ALWAYS = 2    /* `include` names it, without a wildcard */
} trf_tensor_selection;

/* What a choice rests on, besides the tensor itself. */
typedef struct trf_selection_rules {
    const trf_checkpoint_options *options;
    const char *part;    /* of a model in a pipeline: its name there; or NULL */
    int tied_embeddings; /* config.json says so */
    int is_stored;       /* it has to be decompressed before it is loaded, so that no table has to be read at once */
    int is_adapter;      /* of a file of a model's folder: it holds an adapter, not the model */
} trf_selection_rules;

/* reason: why the tensor stays as it is, where it does. A tensor that is selected and for which
 * trf_needs_bf16_numbers holds is compressed only if its weights are such. Errors: TRF_ERR_ARGUMENT if `include` names
 * a tensor that cannot be compressed, or store_only is asked for with a codec that is not lossless for it; _MEMORY. */
trf_status trf_select_tensor(const trf_selection_rules *rules, const trf_tensor *tensor,
                             trf_tensor_selection *selection, trf_left_reason *reason, trf_error *err);

/* The encoder's options for a tensor of this dtype. @return 0 if the codec that was asked for does not take it. */
int trf_encode_options_for(const trf_encode_options *asked, trf_dtype dtype, trf_encode_options *options);

/* @return whether a tensor of this dtype may be compressed only if every weight is a BF16 number: what is to be
 * lossless, of F32 (trf_bf16_numbers.h). */
int trf_needs_bf16_numbers(const trf_checkpoint_options *options, trf_dtype dtype);

/* What becomes of one that has other weights. @return whether that is an error, not a reason to leave the tensor. */
int trf_must_fit(const trf_selection_rules *rules, trf_tensor_selection selection);
trf_status trf_fail_no_bf16_numbers(trf_error *err);

/* @return whether a pattern is a name: it has no wildcard. */
int trf_pattern_is_name(const char *pattern);

/* part_name: in a pipeline, "PART/NAME", which a pattern with a slash may also mean; or NULL. @return whether a pattern
 * of `include` or `exclude` stands for the tensor. */
int trf_pattern_matches(const char *pattern, const char *name, const char *part_name);

#endif
