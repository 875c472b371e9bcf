/* SPDX-License-Identifier: Apache-2.0 */
/* What is told of checkpoints besides their tensors: texts for what a trf_checkpoint_report counts, and side tables.
 * Conventions: transfuse.h. */
#ifndef TRANSFUSE_CHECKPOINTS_H
#define TRANSFUSE_CHECKPOINTS_H

#include "../transfuse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* @return why a tensor stayed as it was, such as "F32 without a lossless codec"; "?" for a value that is none. Never
 * NULL. */
TRF_API const char *trf_left_reason_text(trf_left_reason reason);

/* Counts the side tables of a compressed checkpoint: tensors of scales beside FP8 weights, which loaders do not see and
 * decompressing writes again. *unused: those of them that are not of weights, but of activations or of a KV cache.
 * checkpoint: may be used by other threads at the same time. all, unused: may not be NULL. */
TRF_API void trf_checkpoint_count_side_tables(const trf_checkpoint *checkpoint, uint64_t *all, uint64_t *unused);

#ifdef __cplusplus
}
#endif
#endif
