/* SPDX-License-Identifier: Apache-2.0 */
/* Decompresses a checkpoint: each source tensor goes back to the place that the source's header gives it. */
#include "trf_fp8_weights.h"
#include "trf_model_config.h"

#include <inttypes.h>
#include <stdio.h>

/* What all models share. */
typedef struct trf_decompression {
    trf_job *job;
    int rounds;                  /* F32 tensors may have been rounded, since no config.json says that all is lossless */
    uint64_t quantized, rounded; /* tensors that do not come back bit for bit, or may not */
} trf_decompression;

/* One matrix that is written to its place in the output. */
typedef struct trf_matrix_target {
    trf_job *job;
    const char *tensor;
    const trf_file *out;
    uint64_t offset; /* of the matrix in the output */
    uint64_t cols;
    size_t value_bytes;
    const trf_blob_view *fp8; /* of scaled FP8 that becomes codes again; else NULL */
    trf_fp8_buffer *buffer;
} trf_matrix_target;

static trf_status write_rectangle(void *context, const trf_rectangle *rectangle, trf_error *err) {
    const trf_matrix_target *target = context;
    trf_rectangle codes;
    if (target->fp8) {
        trf_status status = trf_job_take_growth(target->job, target->buffer->capacity, trf_fp8_buffer_bytes(rectangle),
                                                "FP8 codes", err);
        if (status == TRF_OK)
            status = trf_fp8_rectangle(target->fp8, rectangle, target->buffer, &codes, err);
        if (status != TRF_OK)
            return status;
        rectangle = &codes;
    }
    uint64_t out_offset =
        target->offset + ((uint64_t)rectangle->row * target->cols + rectangle->col) * target->value_bytes;
    uint64_t row_bytes = (uint64_t)rectangle->cols * target->value_bytes;
    trf_status status = TRF_OK;
    if (rectangle->cols == target->cols)
        status = trf_file_write(target->out, out_offset, rectangle->values, row_bytes * rectangle->rows, err);
    else
        for (uint32_t r = 0; r < rectangle->rows && status == TRF_OK; r++)
            status = trf_file_write(target->out, out_offset + r * target->cols * target->value_bytes,
                                    rectangle->values + r * row_bytes, row_bytes, err);
    return status == TRF_OK ? trf_job_advance(target->job, target->tensor, row_bytes * rectangle->rows, err) : status;
}

/* Counts a tensor, judging by its first blob, among those that are not the source's. */
static void count_lossy(trf_decompression *work, const trf_header *header) {
    work->quantized += header->codec == TRF_CODEC_INT && header->source_dtype != TRF_DTYPE_I8;
    work->rounded += work->rounds && header->codec != TRF_CODEC_INT && header->source_dtype == TRF_DTYPE_F32;
}

static trf_status decompress_blobs(trf_decompression *work, const trf_file *in, const trf_file_tensor *tensor,
                                   const trf_file *out, uint64_t out_offset, trf_error *err) {
    trf_job *job = work->job;
    trf_blob_list list;
    trf_fp8_buffer buffer = {0};
    trf_status status = trf_blob_list_read(in, tensor->file_offset, tensor->bytes, &list, err);
    if (status != TRF_OK)
        return status;
    for (uint64_t number = 0; number < list.count && status == TRF_OK; number++) {
        trf_blob_reader reader;
        uint64_t buffers = 0;
        if ((status = trf_file_tensor_open_blob(in, tensor, &list, number, &reader, err)) != TRF_OK)
            break;
        const trf_header *header = &reader.view.header;
        size_t value_bytes = trf_dtype_bytes(trf_dtype_of_name(tensor->source->dtype));
        if (number == 0)
            count_lossy(work, header);
        trf_matrix_target target = {job,
                                    tensor->source->name,
                                    out,
                                    out_offset,
                                    header->cols,
                                    value_bytes,
                                    tensor->is_scaled_fp8 ? &reader.view : NULL,
                                    &buffer};
        status = trf_blob_reader_decode(&reader, job->options.encode.threads, write_rectangle, &target, &buffers, err);
        buffers += buffer.capacity;
        trf_job_count_buffer(job, buffers);
        trf_job_uncount_buffer(job, buffers);
        out_offset += (uint64_t)header->rows * header->cols * value_bytes;
        trf_blob_reader_close(&reader);
    }
    trf_budget_give(&job->budget, buffer.capacity);
    trf_fp8_buffer_free(&buffer);
    trf_blob_list_free(&list);
    return status;
}

/* Writes the scales that the file has in its metadata. */
static trf_status decompress_side_tables(trf_decompression *work, const trf_checkpoint_file *file, const trf_file *out,
                                         trf_error *err) {
    const uint64_t data = trf_safetensors_data_offset(trf_checkpoint_file_source_header(file));
    trf_status status = TRF_OK;
    for (size_t i = 0; i < file->side_tables.count && status == TRF_OK; i++) {
        const trf_side_table *table = &file->side_tables.tables[i];
        const uint64_t bytes = trf_tensor_bytes(table->source);
        status = trf_file_write(out, data + table->source->begin, table->data, bytes, err);
        if (status == TRF_OK)
            status = trf_job_advance(work->job, table->source->name, bytes, err);
    }
    return status;
}

static trf_status decompress_tensors(trf_decompression *work, const trf_checkpoint_file *file, const trf_file *in,
                                     const trf_file *out, trf_error *err) {
    trf_job *job = work->job;
    const trf_safetensors *source = trf_checkpoint_file_source_header(file);
    uint64_t text_bytes = source->text_bytes, data = trf_safetensors_data_offset(source);
    trf_status status = trf_file_write(out, 0, &text_bytes, sizeof text_bytes, err);
    if (status == TRF_OK)
        status = trf_file_write(out, sizeof text_bytes, source->text, text_bytes, err);
    for (size_t i = 0; i < file->num_tensors && status == TRF_OK; i++) {
        const trf_file_tensor *tensor = &file->tensors[i];
        uint64_t out_offset = data + tensor->source->begin;
        if (tensor->blobs)
            status = decompress_blobs(work, in, tensor, out, out_offset, err);
        else
            status =
                trf_job_copy(job, tensor->source->name, in, tensor->file_offset, out, out_offset, tensor->bytes, err);
        if (status != TRF_OK)
            return trf_fail_in_tensor(file, tensor, status, err);
        trf_count_tensor(job, tensor);
    }
    return status == TRF_OK ? decompress_side_tables(work, file, out, err) : status;
}

/* Notes that the first bare blob of a file stays as it is. */
static void note_bare_blobs(trf_job *job, const trf_checkpoint_file *file) {
    trf_error failure;
    for (size_t i = 0; i < file->num_tensors; i++) {
        if (trf_check_bare_blob(&file->tensors[i], &failure) == TRF_OK)
            continue;
        trf_fail_in_tensor(file, &file->tensors[i], failure.status, &failure);
        trf_job_note(job, "%s; it stays as it is", failure.message);
        return;
    }
}

static trf_status decompress_file(void *context, const trf_checkpoint_file *file, const trf_file *out, uint64_t *bytes,
                                  trf_error *err) {
    trf_decompression *work = context;
    trf_file in;
    uint64_t file_bytes;
    *bytes = trf_checkpoint_file_source_bytes(file);
    if (trf_checkpoint_file_lost_layout(file))
        trf_job_note(work->job, "%.700s: keeps no header of its source: tensors come back, in an order of their own",
                     file->path);
    note_bare_blobs(work->job, file);
    if (!out) {
        for (size_t i = 0; i < file->num_tensors; i++)
            trf_count_tensor(work->job, &file->tensors[i]);
        trf_count_side_tables(work->job, file);
        return TRF_OK;
    }
    trf_status status = trf_file_open(file->path, &in, &file_bytes, err);
    if (status != TRF_OK)
        return status;
    in.budget = &work->job->budget;
    trf_count_side_tables(work->job, file);
    status = decompress_tensors(work, file, &in, out, err);
    if (status == TRF_OK)
        status = trf_file_check_stamp(&in, &file->stamp, err);
    trf_file_close(&in);
    return status;
}

static void tell_lossy(const trf_decompression *work) {
    char quantized[64] = "", rounded[80] = "";
    if (work->quantized)
        snprintf(quantized, sizeof quantized, "%" PRIu64 " tensor%s quantized", work->quantized,
                 work->quantized == 1 ? " that was" : "s that were");
    if (work->rounded)
        snprintf(rounded, sizeof rounded, "%s%" PRIu64 " F32 tensor%s that may have been rounded to BF16",
                 work->quantized ? ", " : "", work->rounded, work->rounded == 1 ? "" : "s");
    if (work->quantized || work->rounded)
        trf_job_note(work->job, "not the source's, bit for bit: %s%s", quantized, rounded);
}

/* Restores each model's config.json, and writes the output. */
static trf_status decompress_models(const trf_checkpoint *checkpoint, const char *out_path, trf_job *job,
                                    trf_error *err) {
    trf_decompression work = {.job = job};
    trf_restored_models models;
    trf_status status = trf_restored_models_read(checkpoint, &work, &models, err);
    for (size_t i = 0; i < models.count && status == TRF_OK; i++) {
        int lossless = 0;
        status = trf_model_config_tell(&models.configs[i], job, err);
        if (status == TRF_OK)
            status = trf_model_config_is_lossless(models.parts[i].checkpoint, &lossless, err);
        work.rounds |= !lossless;
    }
    job->report.models = models.count;
    const trf_rewrite rewrite = {checkpoint, models.parts,    models.count,   job,
                                 out_path,   decompress_file, .compresses = 0};
    if (status == TRF_OK)
        status = trf_checkpoint_rewrite(&rewrite, err);
    if (status == TRF_OK)
        tell_lossy(&work);
    trf_restored_models_free(&models);
    return status;
}

trf_status trf_decompress_checkpoint(const char *in_path, const char *out_path, const trf_checkpoint_options *options,
                                     trf_checkpoint_report *report, trf_error *err) {
    trf_checkpoint *checkpoint = NULL;
    trf_job job;
    trf_status status = trf_job_begin(&job, options, err);
    if (status == TRF_OK && job.options.resume)
        status = trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "resume is for compressing");
    if (status == TRF_OK && !out_path && !job.options.dry_run)
        status = trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "an output needs a path");
    if (status == TRF_OK)
        status = trf_checkpoint_open_counted(in_path, &job.budget, &checkpoint, err);
    if (status != TRF_OK)
        goto done;
    job.total_bytes = job.report.source_bytes = trf_checkpoint_source_bytes(checkpoint);
    job.report.tensors = trf_checkpoint_num_tensors(checkpoint);
    status = decompress_models(checkpoint, out_path, &job, err);
    if (status == TRF_OK)
        trf_job_report(&job, report);
done:
    trf_checkpoint_close(checkpoint);
    trf_job_end(&job);
    return trf_sanitize_error(status, err);
}
