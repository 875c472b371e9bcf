/* SPDX-License-Identifier: Apache-2.0 */
/* Finds F32 tensors that hold BF16 numbers alone, as in models that were saved in float32 without having been trained
 * in it. There are many of these. */
#ifndef TRF_BF16_NUMBERS_H
#define TRF_BF16_NUMBERS_H

#include "trf_job.h"

/* Checks whether the codec bf16 gives back every bit of F32 weights, that is, whether their low 16 bits are zero. A NaN
 * has to be a quiet one, since the encoder makes all NaNs quiet. offset, bytes: of the weights in the file. A few
 * weights are read first; unless one of these is no BF16 number, the threads of the job's options then read all of
 * them. Errors: TRF_ERR_IO, _TRUNCATED, _MEMORY. */
trf_status trf_are_bf16_numbers(trf_job *job, const trf_file *file, uint64_t offset, uint64_t bytes, int *yes,
                                trf_error *err);

/* Does the same with the few weights alone. *yes: all of them are BF16 numbers. */
trf_status trf_may_be_bf16_numbers(const trf_file *file, uint64_t offset, uint64_t bytes, int *yes, trf_error *err);

#endif
