#include "trf_run.h"

#include <math.h>
#include <stdlib.h>

void trf_checkpoint_options_init(trf_checkpoint_options *options) {
    *options = (trf_checkpoint_options){0};
    trf_encode_options_init(&options->encode);
}

trf_status trf_run_begin(trf_run *run, const trf_checkpoint_options *options, trf_error *err) {
    *run = (trf_run){0};
    if (options)
        run->options = *options;
    else
        trf_checkpoint_options_init(&run->options);
    if (!(run->buffer = malloc(TRF_COPY_BYTES)))
        return trf_fail_memory(err, TRF_COPY_BYTES);
    trf_run_hold(run, TRF_COPY_BYTES);
    return TRF_OK;
}

void trf_run_report(trf_run *run, trf_checkpoint_report *report) {
    if (run->weight_energy > 0)
        run->report.relative_rms_error = sqrt(run->error_energy / run->weight_energy);
    if (report)
        *report = run->report;
}

void trf_run_end(trf_run *run) {
    free(run->buffer);
    run->buffer = NULL;
}

trf_status trf_run_cancelled(const char *tensor, trf_error *err) {
    return trf_fail(err, TRF_ERR_CANCELLED, TRF_NO_OFFSET, "cancelled at tensor '%s'", tensor);
}

int trf_run_tick(trf_run *run, const char *tensor, uint64_t bytes) {
    if (!run->options.progress)
        return 0;
    uint64_t done = run->done_bytes + bytes;
    return run->options.progress(run->options.progress_context, tensor,
                                 done < run->total_bytes ? done : run->total_bytes, run->total_bytes);
}

trf_status trf_run_advance(trf_run *run, const char *tensor, uint64_t bytes, trf_error *err) {
    run->done_bytes += bytes;
    return trf_run_tick(run, tensor, 0) ? trf_run_cancelled(tensor, err) : TRF_OK;
}

void trf_run_hold(trf_run *run, uint64_t bytes) {
    run->held_bytes += bytes;
    if (run->held_bytes > run->report.peak_buffer_bytes)
        run->report.peak_buffer_bytes = run->held_bytes;
}

void trf_run_release(trf_run *run, uint64_t bytes) { run->held_bytes -= bytes; }

trf_status trf_run_copy(trf_run *run, const char *tensor, const trf_file *in, uint64_t in_offset, const trf_file *out,
                        uint64_t out_offset, uint64_t bytes, trf_error *err) {
    while (bytes) {
        uint64_t part = bytes < TRF_COPY_BYTES ? bytes : TRF_COPY_BYTES;
        trf_status status = trf_file_read(in, in_offset, run->buffer, part, err);
        if (status == TRF_OK)
            status = trf_file_write(out, out_offset, run->buffer, part, err);
        if (status == TRF_OK && tensor)
            status = trf_run_advance(run, tensor, part, err);
        if (status != TRF_OK)
            return status;
        in_offset += part, out_offset += part, bytes -= part;
    }
    return TRF_OK;
}
