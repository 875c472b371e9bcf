/* SPDX-License-Identifier: Apache-2.0 */
/* One pass over a checkpoint: the caller's options, the progress, and the totals. */
#ifndef TRF_JOB_H
#define TRF_JOB_H

#include "trf_file.h"

typedef struct trf_job {
    trf_checkpoint_options options;
    trf_checkpoint_report report;
    uint64_t done_bytes, total_bytes; /* of the source checkpoint */
    uint64_t held_bytes;              /* buffers in use */
    uint8_t *buffer;                  /* TRF_COPY_BYTES, for copying */
    /* Sums of squares of errors and of weights, over the tensors whose codec is not lossless. report.relative_rms_error
     * is about these. */
    double error_energy, weight_energy;
    int is_lossless;   /* verify: config.json says that every tensor has its own lossless codec */
    const char *told;  /* the tensor of the last progress; it outlives the job */
    int reads_back;    /* compress: each file is read back and compared with its source before it gets its name */
    trf_budget budget; /* of memory ... */
    trf_quota quota;   /* ... and of the output, as options.limits say */
    struct trf_resume *resume; /* compress: what a run that is stopped leaves, trf_resume.h; NULL: nothing */
} trf_job;

enum {
    TRF_COPY_BYTES = 4 << 20
};

/* Begins a job. options may be NULL. Call trf_job_end in every case. Errors: TRF_ERR_MEMORY. */
trf_status trf_job_begin(trf_job *job, const trf_checkpoint_options *options, trf_error *err);

/* Completes the report with what follows from the sums, and copies it out (report may be NULL). */
void trf_job_report(trf_job *job, trf_checkpoint_report *report);
void trf_job_end(trf_job *job);

/* Tells the caller that `bytes` more of the source are done. Errors: TRF_ERR_CANCELLED. */
trf_status trf_job_advance(trf_job *job, const char *tensor, uint64_t bytes, trf_error *err);

/* Tells the caller that `bytes` beyond done_bytes are done. @return nonzero if the caller asks to stop. */
int trf_job_progress(trf_job *job, const char *tensor, uint64_t bytes);
trf_status trf_fail_cancelled(const char *tensor, trf_error *err);

/* Gives the user a line: to options.note, and to report.warning as long as it fits. Control characters become '?'. */
__attribute__((format(printf, 2, 3))) void trf_job_note(trf_job *job, const char *format, ...);

enum {
    TRF_SIZE_TEXT_BYTES = 32
};

/* Writes a number of bytes as "47.1 GB". @return text. */
const char *trf_size_text(uint64_t bytes, char text[TRF_SIZE_TEXT_BYTES]);

/* These count the bytes of buffers for report.peak_buffer_bytes. */
void trf_job_count_buffer(trf_job *job, uint64_t bytes);
void trf_job_uncount_buffer(trf_job *job, uint64_t bytes);

/* Takes what a buffer of held_bytes, which the job's budget has given, grows by to have needed_bytes. Errors:
 * TRF_ERR_LIMIT. */
trf_status trf_job_take_growth(trf_job *job, uint64_t held_bytes, uint64_t needed_bytes, const char *what,
                               trf_error *err);

/* Copies bytes from file to file. tensor: the name under which the caller is told of them; NULL: it is not told.
 * Errors: TRF_ERR_IO, _TRUNCATED, _CANCELLED. */
trf_status trf_job_copy(trf_job *job, const char *tensor, const trf_file *in, uint64_t in_offset, const trf_file *out,
                        uint64_t out_offset, uint64_t bytes, trf_error *err);

#endif
