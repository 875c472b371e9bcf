/* SPDX-License-Identifier: Apache-2.0 */
/* Verifies what a checkpoint's folder holds besides tensors: files that are carried over, and indexes. */
#ifndef TRF_VERIFY_EXTRA_H
#define TRF_VERIFY_EXTRA_H

#include "trf_checkpoint.h"

/* The folders of a checkpoint and, if there is one to compare with, of its source. */
typedef struct trf_extra_files {
    trf_tree ours, source;
    int compares;
} trf_extra_files;

/* Lists both, fills in what the report says of whole files, and adds what will be compared to the job's total.
 * against: or NULL. Release with trf_extra_files_free in every case. Errors: as trf_tree_list. */
trf_status trf_extra_files_list(const trf_checkpoint *checkpoint, const trf_checkpoint *against, trf_job *job,
                                trf_extra_files *files, trf_error *err);

/* Compares every file that is carried over, except those that options.skip_extra matches, and counts those that are
 * equal. A note names files that were not compared, and files that the source does not have. Errors: TRF_ERR_MISMATCH,
 * _NOT_FOUND (the message names all files that differ or are missing, as many as fit), _IO, _CANCELLED, _MEMORY. */
trf_status trf_extra_files_verify(const trf_extra_files *files, trf_job *job, trf_error *err);

void trf_extra_files_free(trf_extra_files *files);

/* Checks that the indexes, once restored, are the source's. A missing index counts only if its files are here. Errors:
 * TRF_ERR_MISMATCH, _NOT_FOUND, _IO, _MEMORY. */
trf_status trf_verify_indexes(const trf_checkpoint *checkpoint, const trf_checkpoint *against, trf_error *err);

#endif
