/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out from the names, types and shapes of a source's tensors whether the model is quantized already, or a file
 * holds an adapter. FORMAT.md, section 10. */
#ifndef TRF_SOURCE_TENSORS_H
#define TRF_SOURCE_TENSORS_H

#include "trf_fp8_model.h"

/* Finds a tensor that only quantized models have, apart from those that fp8 knows of. fp8: or NULL. *file, *tensor: the
 * tensor and its file, which are the checkpoint's; or NULL. Errors: TRF_ERR_MEMORY. */
trf_status trf_find_quantized_tensor(const trf_checkpoint *checkpoint, const trf_fp8_model *fp8,
                                     const trf_checkpoint_file **file, const trf_tensor **tensor, trf_error *err);

/* Finds out whether a file of the checkpoint holds an adapter: at least half of its tensors are updates, such as
 * LoRA's, of weights that the checkpoint does not have. *tensor: one of these tensors, which is the file's; or NULL.
 * Errors: TRF_ERR_MEMORY. */
trf_status trf_find_adapter_tensor(const trf_checkpoint *checkpoint, const trf_checkpoint_file *file,
                                   const trf_tensor **tensor, trf_error *err);

#endif
