/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a file of weights back that has just been written, and compares it with its source. */
#ifndef TRF_VERIFY_H
#define TRF_VERIFY_H

#include "trf_checkpoint.h"

/* Validates and decodes every blob of a compressed file, and compares all of its tensors, side tables and the header
 * that it keeps with the source's. The codec int on floats is lossy: of its blobs only the checksums are looked at.
 * path: the file's; model: the source, to which source_file belongs. The job's progress is asked whether to stop.
 * Errors: TRF_ERR_MISMATCH for whatever is wrong with the file, _IO, _CANCELLED, _MEMORY. */
trf_status trf_verify_written(trf_job *job, const char *path, const trf_checkpoint *model,
                              const trf_checkpoint_file *source_file, trf_error *err);

#endif
