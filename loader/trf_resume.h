/* SPDX-License-Identifier: Apache-2.0 */
/* The journal of a run that may be continued: which tensors are encoded in its temporary, and as what. It lies beside
 * the temporary, under the same digits. A tensor counts as done only if its blob, read back, has the checksum that the
 * journal gives it, so neither the journal nor the temporary has to be synced on the way. */
#ifndef TRF_RESUME_H
#define TRF_RESUME_H

#include "trf_checkpoint.h"

/* What became of one tensor. On disk as it is here: a journal is continued on the machine that wrote it. */
typedef struct trf_resume_record {
    uint64_t key;        /* trf_resume_key */
    uint64_t blob_bytes; /* of all of the tensor's blobs; with the next three: trf_encoded */
    uint32_t codec, granularity, scale_group_size;
    uint32_t reserved; /* 0 */
    double error_energy, weight_energy;
    uint64_t blob_checksum;
    uint64_t checksum; /* of the record up to here */
} trf_resume_record;

typedef struct trf_resume {
    uint64_t fingerprint;
    char *path; /* of the journal; NULL: none is open */
    trf_file file;
    trf_resume_record *records; /* [count]; those of the run that is continued come first */
    size_t count, capacity;
    size_t taken;        /* records that were used */
    uint64_t held_bytes; /* disk space that the temporary has already */
    int continues;       /* whether the temporary is another run's */
    int is_unsound;      /* what was written may not have reached the disk */
} trf_resume;

/* @return a number for all that the bytes of an output depend on: this version, the options, and each file of weights,
 * index and config.json by name, size, time and header. options: those of the job. */
uint64_t trf_resume_fingerprint(const trf_checkpoint *checkpoint, const trf_checkpoint_options *options);

/* @return the key of a tensor in a file. part: the model's name in a pipeline, or NULL; file: its name alone. */
uint64_t trf_resume_key(const char *part, const char *file, const char *tensor);

/* Opens the journal of an earlier run, and reads its records up to the first that is not whole. path: copied on
 * success. *matches: whether it is a journal of the caller's with resume->fingerprint; if not, it is not opened.
 * Errors: TRF_ERR_MEMORY. */
trf_status trf_resume_open(trf_resume *resume, const char *path, int *matches, trf_error *err);

/* Makes a new journal. path: copied. Errors: TRF_ERR_IO, _MEMORY. */
trf_status trf_resume_create(trf_resume *resume, const char *path, trf_error *err);

/* A tensor's blob, or the place where it goes. */
typedef struct trf_resume_place {
    uint64_t key;
    const trf_file *file;
    uint64_t offset;
    uint64_t kept_below; /* a blob of so many bytes or more was not worth keeping; others are written over it */
} trf_resume_place;

/* Looks whether a tensor is done. *done: its record, if there is one and the blob has its checksum, which is valid
 * until the next call; else NULL. Errors: TRF_ERR_IO. */
trf_status trf_resume_take(trf_resume *resume, const trf_resume_place *place, trf_job *job,
                           const trf_resume_record **done, trf_error *err);

/* Notes that a tensor has been encoded. record: with codec, granularity, scale_group_size, blob_bytes and the energies;
 * the rest is filled in. Errors: TRF_ERR_IO, _MEMORY. */
trf_status trf_resume_add_tensor(trf_resume *resume, const trf_resume_place *place, trf_job *job,
                                 trf_resume_record *record, trf_error *err);

/* @return whether there is something to continue. */
int trf_resume_is_worth_keeping(const trf_resume *resume);

/* Decides what stays in a folder that is continued. below: a file's path in it. @return 1, 0, or -1 without memory. */
typedef int trf_resume_keeps_fn(const void *context, const char *below);

/* Removes everything from a folder that is continued, except the files that `keeps` names and the folders around them,
 * and counts the space that these files have. Errors: TRF_ERR_IO, _MEMORY. */
trf_status trf_resume_clean(trf_resume *resume, const char *folder, trf_resume_keeps_fn *keeps, const void *context,
                            trf_error *err);

/* Removes the journal, if there is one. */
void trf_resume_forget(trf_resume *resume);

/* Closes a journal that is not continued after all. */
void trf_resume_close(trf_resume *resume);

/* Closes the journal, and releases memory. */
void trf_resume_end(trf_resume *resume);

#endif
