/* SPDX-License-Identifier: Apache-2.0 */
/* What compress, decompress and verify say about a checkpoint: notes while they work, then a summary or a JSON
 * object. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include "cli_device_check.h"
#include "cli_json.h"
#include "cli_progress.h"
#include "cli_terminal.h"

#include "transfuse/checkpoints.h"

/* A run over a checkpoint. */
typedef struct cli_run {
    const cli_options *options;
    const char *command;
    cli_progress progress;
    char **notes;
    size_t num_notes;
    int lost_a_note;   /* because there was no memory */
    trf_limits limits; /* library points to it */
    trf_checkpoint_options library;
    trf_checkpoint_report report;
    double seconds;
    const cli_device_check *device_check; /* of verify --device, or NULL */
} cli_run;

/* @return the limits of --max-output and --max-memory. */
trf_limits cli_limits(const cli_options *options);

/* Sets the fields of run->library that all commands have in common, and starts the progress. verb: such as
 * "compressing". */
void cli_run_begin(cli_run *run, const cli_options *options, const char *command, const char *verb);

/* Call this after the library's call. It ends the progress, and makes sure that all notes have been printed. */
void cli_run_end(cli_run *run, trf_status failed);

/* @return whether a summary is wanted: neither --quiet nor --json was given. */
int cli_run_wants_summary(const cli_run *run);

/* What verify cannot judge: tensors that are not compressed have no checksum. They count here unless they were compared
 * with the source's. */
typedef struct cli_unchecked {
    uint64_t tensors, bytes;
} cli_unchecked;

cli_unchecked cli_run_unchecked(const cli_run *run);

enum {
    CLI_COUNT_BYTES = 40
};

/* "1 tensor", "2 tensors". noun: of at most 16 letters. buffer: of CLI_COUNT_BYTES. @return buffer. */
const char *cli_count_text(uint64_t count, const char *noun, char *buffer);

/* Print lines that several summaries have, if the report has something to say. */
void cli_report_files(const trf_checkpoint_report *report);
void cli_report_left(const trf_checkpoint_report *report);

/* Prints which BF16 tensors are coded as FP8 times scales, if there are any. tensors: their numbers, by
 * trf_granularity; compressed: the number of all compressed tensors. */
void cli_report_fp8(const uint64_t tensors[TRF_GRANULARITY_SCALE_BLOCK + 1], uint64_t compressed);

/* What is told of FP8 weights that had scales beside them. Counts are tensors. */
typedef struct cli_source_fp8 {
    uint64_t weights[TRF_GRANULARITY_SCALE_BLOCK + 1]; /* by granularity */
    uint64_t block;                                    /* the side of scale blocks */
    uint64_t compressed, scales, unused_scales;
} cli_source_fp8;

/* Prints them; nothing if there are none. */
void cli_report_source_fp8(const cli_source_fp8 *fp8);

/* Prints an object that was made since cli_json_begin, and releases it; root is NULL if there was no memory for it.
 * @return CLI_OK, or the exit status after a message. */
cli_exit cli_report_object(json_t *root);

/* With --json, prints the report as an object on standard output. @return CLI_OK, also without --json. */
cli_exit cli_report_json(const cli_run *run);

void cli_run_free(cli_run *run);

/* Finds the part of a pipeline below path that a tensor's file belongs to, such as "vae" for
 * "pipeline/vae/model.safetensors". *part: the part's name in the file's path. @return the name's bytes; 0 if the
 * checkpoint has one model. */
int cli_find_part(const char *path, const trf_tensor_info *tensor, const char **part);

#endif
