/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_job.h"

#include "trf_encode.h"
#include "trf_struct.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void trf_checkpoint_options_init(trf_checkpoint_options *options) {
    *options = (trf_checkpoint_options){.struct_bytes = sizeof *options};
    trf_encode_options_init(&options->encode);
}

/* Reads the caller's options. The fields after `encode` begin where the caller's encode options end, which have a size
 * of their own. */
static trf_status take_options(const trf_checkpoint_options *options, trf_checkpoint_options *taken, trf_error *err) {
    const size_t encode_at = offsetof(trf_checkpoint_options, encode);
    trf_checkpoint_options_init(taken);
    const trf_struct_type outer = {"trf_checkpoint_options", SIZE_MAX, encode_at + sizeof options->encode.struct_bytes};
    trf_status status = trf_check_struct(&outer, options, err);
    if (status == TRF_OK && options->encode.struct_bytes > options->struct_bytes - encode_at)
        status = trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                          "a trf_checkpoint_options of %zu bytes with a trf_encode_options of %zu in it; "
                          "trf_checkpoint_options_init sets both",
                          options->struct_bytes, options->encode.struct_bytes);
    if (status == TRF_OK)
        status = trf_take_encode_options(&options->encode, &taken->encode, err);
    if (status != TRF_OK)
        return status;
    const size_t encode_bytes = options->encode.struct_bytes,
                 most = sizeof *taken - sizeof taken->encode + encode_bytes, behind = encode_at + encode_bytes;
    const trf_struct_type type = {"trf_checkpoint_options", most,
                                  behind + TRF_STRUCT_BYTES(trf_checkpoint_options, progress_context) -
                                      offsetof(trf_checkpoint_options, include)};
    status = trf_check_struct(&type, options, err);
    if (status == TRF_OK)
        memcpy(&taken->include, (const uint8_t *)options + behind,
               (options->struct_bytes < most ? options->struct_bytes : most) - behind);
    return status;
}

trf_status trf_job_begin(trf_job *job, const trf_checkpoint_options *options, trf_error *err) {
    trf_status status = TRF_OK;
    trf_limits limits;
    *job = (trf_job){0};
    if (options)
        status = take_options(options, &job->options, err);
    else
        trf_checkpoint_options_init(&job->options);
    if (status == TRF_OK)
        status = trf_take_limits(job->options.limits, &limits, err);
    if (status != TRF_OK)
        return status;
    job->budget.max_bytes = limits.max_memory_bytes;
    job->quota.max_bytes = limits.max_output_bytes;
    if (!(job->buffer = malloc(TRF_COPY_BYTES)))
        return trf_fail_memory(err, TRF_COPY_BYTES);
    trf_job_count_buffer(job, TRF_COPY_BYTES);
    return TRF_OK;
}

void trf_job_report(trf_job *job, trf_checkpoint_report *report) {
    if (job->error_energy > 0)
        job->report.relative_rms_error =
            job->weight_energy > 0 ? sqrt(job->error_energy / job->weight_energy) : INFINITY;
    if (report)
        *report = job->report;
}

void trf_job_end(trf_job *job) {
    free(job->buffer);
    job->buffer = NULL;
}

trf_status trf_fail_cancelled(const char *tensor, trf_error *err) {
    return trf_fail(err, TRF_ERR_CANCELLED, TRF_NO_OFFSET, "cancelled at tensor '%s'", tensor);
}

int trf_job_progress(trf_job *job, const char *tensor, uint64_t bytes) {
    job->told = tensor;
    if (!job->options.progress)
        return 0;
    uint64_t done = job->done_bytes + bytes;
    return job->options.progress(job->options.progress_context, tensor,
                                 done < job->total_bytes ? done : job->total_bytes, job->total_bytes);
}

trf_status trf_job_advance(trf_job *job, const char *tensor, uint64_t bytes, trf_error *err) {
    job->done_bytes += bytes;
    return trf_job_progress(job, tensor, 0) ? trf_fail_cancelled(tensor, err) : TRF_OK;
}

void trf_job_note(trf_job *job, const char *format, ...) {
    char line[sizeof job->report.warning];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    trf_make_printable(line);
    if (job->options.note)
        job->options.note(job->options.note_context, line);
    char *warning = job->report.warning;
    const size_t used = strlen(warning), room = sizeof job->report.warning - used;
    if (strlen(line) + 1 < room)
        snprintf(warning + used, room, "%s%s", used ? "\n" : "", line);
}

const char *trf_size_text(uint64_t bytes, char text[TRF_SIZE_TEXT_BYTES]) {
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
    double value = (double)bytes / 1000;
    size_t unit = 0;
    while (value >= 999.5 && unit + 1 < sizeof units / sizeof units[0])
        value /= 1000, unit++;
    if (bytes < 1000)
        snprintf(text, TRF_SIZE_TEXT_BYTES, "%" PRIu64 " bytes", bytes);
    else
        snprintf(text, TRF_SIZE_TEXT_BYTES, "%.*f %s", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value, units[unit]);
    return text;
}

void trf_job_count_buffer(trf_job *job, uint64_t bytes) {
    job->held_bytes += bytes;
    if (job->held_bytes > job->report.peak_buffer_bytes)
        job->report.peak_buffer_bytes = job->held_bytes;
}

void trf_job_uncount_buffer(trf_job *job, uint64_t bytes) { job->held_bytes -= bytes; }

trf_status trf_job_take_growth(trf_job *job, uint64_t held_bytes, uint64_t needed_bytes, const char *what,
                               trf_error *err) {
    if (needed_bytes <= held_bytes)
        return TRF_OK;
    return trf_budget_take(&job->budget, needed_bytes - held_bytes, what, err);
}

trf_status trf_job_copy(trf_job *job, const char *tensor, const trf_file *in, uint64_t in_offset, const trf_file *out,
                        uint64_t out_offset, uint64_t bytes, trf_error *err) {
    while (bytes) {
        uint64_t part = bytes < TRF_COPY_BYTES ? bytes : TRF_COPY_BYTES;
        trf_status status = trf_file_read(in, in_offset, job->buffer, part, err);
        if (status == TRF_OK)
            status = trf_file_write(out, out_offset, job->buffer, part, err);
        if (status == TRF_OK && tensor)
            status = trf_job_advance(job, tensor, part, err);
        if (status != TRF_OK)
            return status;
        in_offset += part, out_offset += part, bytes -= part;
    }
    return TRF_OK;
}
