/* SPDX-License-Identifier: Apache-2.0 */
/* F32 tensors that were BF16 once: models that were saved in float32, as many are, without having been trained in it.
 */
#ifndef TRF_BF16_NUMBERS_H
#define TRF_BF16_NUMBERS_H

#include "trf_job.h"

/* Looks whether the codec bf16 gives back every bit of F32 weights: their low 16 bits are zero. Of NaNs it has to be a
 * quiet one, since the encoder makes all of them that. offset, bytes: of the weights in the file. A few are read first,
 * then, unless one of those is none, all of them, by the threads of the job's options. Errors: TRF_ERR_IO, _TRUNCATED,
 * _MEMORY. */
trf_status trf_are_bf16_numbers(trf_job *job, const trf_file *file, uint64_t offset, uint64_t bytes, int *yes,
                                trf_error *err);

/* The same of the few alone. *yes: none of them is another number. */
trf_status trf_may_be_bf16_numbers(const trf_file *file, uint64_t offset, uint64_t bytes, int *yes, trf_error *err);

#endif
