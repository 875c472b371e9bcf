/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a source before anything is written, and what becomes of each of its tensors. */
#ifndef TRF_COMPRESS_CHECK_H
#define TRF_COMPRESS_CHECK_H

#include "trf_fp8_model.h"
#include "trf_tensor_selection.h"

/* Decides whether a tensor is compressed, as trf_select_tensor does, in a model that may be of FP8 with scales: its
 * weights always are. fp8: what trf_fp8_model_find says of the tensor. Errors: also TRF_ERR_ARGUMENT if such a weight
 * is excluded, or the codec does not take it. */
trf_status trf_select_fp8(const trf_selection_rules *rules, const trf_fp8_tensor *fp8, const trf_tensor *tensor,
                          trf_tensor_selection *selection, trf_left_reason *reason, trf_error *err);

/* Checks that a file can be compressed: that it is not compressed already, and that no tensor is in the way. fp8: the
 * model's. Errors: TRF_ERR_ARGUMENT, those of trf_select_fp8, TRF_ERR_FORMAT (a bare blob), _IO, _MEMORY. */
trf_status trf_check_compressible_file(const trf_checkpoint *checkpoint, const trf_checkpoint_file *file,
                                       const trf_selection_rules *rules, const trf_fp8_model *fp8, trf_error *err);

/* Checks that each name or glob in `include` or `exclude` matches a tensor. One that does not is a mistake, which the
 * user should hear of now. verb: such as "include". Errors: TRF_ERR_NOT_FOUND, TRF_ERR_MEMORY. */
trf_status trf_check_patterns(const trf_checkpoint *checkpoint, const char *const *patterns, const char *verb,
                              trf_error *err);

/* Joins the source's metadata and ours. @return a new reference, or NULL without memory. */
json_t *trf_compressed_metadata(const trf_checkpoint_file *file, int config_is_unreadable);

/* @return the most memory that the lists of a file's tensors, the metadata and the text of the new header take: this
 * keeps the old one, escaped, and side tables in base64. */
uint64_t trf_compressed_header_bytes(const trf_checkpoint_file *file, const trf_fp8_model *fp8_model);

#endif
