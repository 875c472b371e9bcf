/* SPDX-License-Identifier: Apache-2.0 */
/* Compresses a checkpoint tensor by tensor, from the source file to the output. A blob's size is known only once it is
 * written. So blobs are written first, each where the last one that was worth keeping ended; then the other tensors;
 * and the header, for which room was left, last. */
#include "trf_bf16_numbers.h"
#include "trf_compress_check.h"
#include "trf_compress_models.h"
#include "trf_encode.h"
#include "trf_estimate.h"
#include "trf_find_fp8.h"
#include "trf_matrix_source.h"
#include "trf_output.h"
#include "trf_resume.h"
#include "trf_split.h"
#include "trf_tensor_selection.h"
#include "trf_verify.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What became of a tensor. */
typedef struct trf_compressed_tensor {
    const trf_tensor *source;
    trf_tensor_selection selection;
    trf_left_reason reason; /* why the tensor stays as it was, if it does */
    uint64_t begin, end;    /* in the output's data */
    int is_blob;
    const trf_fp8_tensor *fp8; /* of a model of FP8 with scales: what the tensor is there; else NULL */
} trf_compressed_tensor;

/* One file that is written to the output. */
typedef struct trf_file_compressor {
    trf_job *job;
    const trf_checkpoint_file *file;
    const trf_selection_rules *rules;
    const trf_fp8_model *fp8;
    trf_blob_counts *counts;
    trf_file in;
    const trf_file *out;            /* NULL: only sizes are asked for */
    trf_compressed_tensor *tensors; /* [file->num_tensors] */
    uint64_t data_offset;           /* of the output's data, which follows the room for the header */
    uint64_t end;                   /* of what has been placed in the data */
    size_t blobs, side_tables;
    int always;               /* whether one of the blobs is kept whatever its size */
    int config_is_unreadable; /* and so is carried over */
} trf_file_compressor;

typedef struct trf_matrix_sink {
    const trf_file *file;
    uint64_t offset;
} trf_matrix_sink;

typedef struct trf_matrix_progress {
    trf_job *job;
    const char *tensor;
    uint64_t weight_bytes;
} trf_matrix_progress;

static trf_status write_blob(void *context, uint64_t offset, const void *bytes, size_t size, trf_error *err) {
    const trf_matrix_sink *sink = context;
    return trf_file_write(sink->file, sink->offset + offset, bytes, size, err);
}

static int report_matrix_progress(void *context, uint64_t done_weights, uint64_t total_weights) {
    const trf_matrix_progress *progress = context;
    (void)total_weights;
    return trf_job_progress(progress->job, progress->tensor, done_weights * progress->weight_bytes);
}

/* Counts the buffers of a search that has found FP8. */
static void count_search(trf_job *job, const trf_tensor *tensor, uint64_t rows, const trf_encoded *encoded) {
    if (!trf_is_scaled_fp8(encoded->codec, trf_dtype_of_name(tensor->dtype)))
        return;
    const uint64_t bytes = trf_find_fp8_bytes((uint32_t)rows, job->options.encode.threads);
    trf_job_count_buffer(job, bytes);
    trf_job_uncount_buffer(job, bytes);
}

/* Encodes FP8 weights with their scales; or estimates the size by the codes alone. */
static trf_status encode_fp8(trf_file_compressor *compressor, const trf_compressed_tensor *compressed, uint64_t number,
                             const trf_matrix_source *codes, const trf_sampled_matrix *sampled, const trf_sink *sink,
                             const trf_progress *progress, trf_encoded *encoded, trf_error *err) {
    const trf_encode_options *options = &compressor->job->options.encode;
    trf_fp8_scales scales = {0};
    trf_status status =
        trf_fp8_model_load_scales(compressor->fp8, compressed->source, compressed->fp8, number, &scales, err);
    const uint64_t bytes = 3 * scales.count * sizeof *scales.values; /* also in encoder and head */
    if (status == TRF_OK && (status = trf_budget_take(&compressor->job->budget, bytes, "its scales", err)) != TRF_OK)
        trf_fp8_scales_free(&scales);
    if (status != TRF_OK)
        return status;
    trf_matrix_source matrix = *codes;
    matrix.scales = &scales;
    const trf_source source = {TRF_DTYPE_BF16, (uint32_t)sampled->rows, (uint32_t)sampled->cols,
                               &matrix,        trf_matrix_read_fp8,     NULL};
    if (compressor->out) {
        status = trf_encode_scaled_fp8(&source, &scales, options, sink, progress, encoded, NULL, err);
    } else {
        trf_encode_options as_codes = *options;
        as_codes.codec = TRF_CODEC_E4M3;
        status = trf_estimate_blob(sampled, &as_codes, encoded, NULL, err);
        encoded->blob_bytes += scales.count * sizeof *scales.values;
        encoded->granularity = scales.granularity;
        encoded->scale_group_size = scales.scale_group_size;
    }
    trf_budget_give(&compressor->job->budget, bytes);
    trf_fp8_scales_free(&scales);
    return status;
}

/* Encodes matrix number `number`, from 0 on, of a tensor, to byte out_offset of the output. codec: AUTO for what was
 * asked for. */
static trf_status compress_matrix(trf_file_compressor *compressor, const trf_compressed_tensor *compressed,
                                  uint64_t number, trf_codec codec, uint64_t out_offset, trf_encoded *encoded,
                                  trf_error *err) {
    const trf_tensor *tensor = compressed->source;
    trf_encode_options options;
    trf_dtype dtype = trf_dtype_of_name(tensor->dtype);
    trf_encode_options_for(&compressor->job->options.encode, dtype, &options);
    if (codec != TRF_CODEC_AUTO)
        options.codec = codec;
    uint64_t rows = tensor->shape[tensor->num_dims - 2], cols = tensor->shape[tensor->num_dims - 1];
    uint64_t weight_bytes = trf_dtype_bytes(dtype), matrix_bytes = rows * cols * weight_bytes;
    trf_matrix_source matrix = {&compressor->in, 0, cols * weight_bytes, weight_bytes, NULL};
    matrix.offset = trf_safetensors_data_offset(&compressor->file->own_header) + tensor->begin + number * matrix_bytes;
    trf_matrix_sink blob_sink = {compressor->out, out_offset};
    trf_matrix_progress matrix_progress = {compressor->job, tensor->name, weight_bytes};

    trf_source source = {dtype, (uint32_t)rows, (uint32_t)cols, &matrix, trf_matrix_read, NULL};
    trf_sink sink = {&blob_sink, write_blob};
    trf_progress progress = {&matrix_progress, report_matrix_progress};
    trf_layer_report layer = {0};
    const trf_sampled_matrix sampled = {&compressor->in, matrix.offset, dtype, rows, cols};
    trf_budget *budget = &compressor->job->budget;
    const uint64_t bytes = trf_encode_bytes(&source, &options);
    trf_status status = trf_budget_take(budget, bytes, "encoding a matrix", err);
    if (status != TRF_OK)
        return status;
    if (compressed->fp8)
        status = encode_fp8(compressor, compressed, number, &matrix, &sampled, &sink, &progress, encoded, err);
    else if (compressor->out)
        status = trf_encode_source(&source, &options, &sink, &progress, encoded, &layer, err);
    else
        status = trf_estimate_blob(&sampled, &options, encoded, &layer, err);
    trf_budget_give(budget, bytes);
    if (status == TRF_OK)
        count_search(compressor->job, tensor, rows, encoded);
    compressor->job->weight_energy += layer.weight_energy;
    compressor->job->error_energy += layer.weight_energy * layer.relative_rms_error * layer.relative_rms_error;
    if (status == TRF_OK)
        status = trf_job_advance(compressor->job, tensor->name, matrix_bytes, err);
    return status;
}

/* What the matrices of an expert tensor have in common. Products of experts take one codec, so a tensor is FP8 only if
 * all of its matrices are. */
typedef struct trf_expert_codec {
    trf_codec codec;   /* AUTO: what was asked for */
    trf_encoded first; /* of the first matrix */
} trf_expert_codec;

/* Notes how a matrix was encoded. @return whether all those before have to be encoded anew, with the codec that is set
 * now. */
static int note_expert(uint64_t number, const trf_encoded *expert, trf_expert_codec *common) {
    if (number == 0)
        common->first = *expert;
    const int differs = expert->codec != common->first.codec;
    if (differs || (number == 0 && expert->codec == TRF_CODEC_BF16))
        common->codec = TRF_CODEC_BF16;
    return differs;
}

/* Estimates the size of an expert tensor: a few of its matrices stand for all. */
static trf_status estimate_expert_tensor(trf_file_compressor *compressor, const trf_compressed_tensor *compressed,
                                         trf_encoded *encoded, trf_error *err) {
    const uint64_t count = compressed->source->shape[0],
                   most = count < TRF_SAMPLED_EXPERTS ? count : TRF_SAMPLED_EXPERTS;
    const uint64_t done = compressor->job->done_bytes;
    trf_status status = TRF_OK;
    trf_expert_codec common = {TRF_CODEC_AUTO, {0}};
    uint64_t bytes = trf_expert_index_bytes(count);
    for (uint64_t i = 0; i < most && status == TRF_OK; i++) {
        const uint64_t first = i * count / most, behind = (i + 1) * count / most;
        trf_encoded expert = {0};
        status = compress_matrix(compressor, compressed, first, common.codec, 0, &expert, err);
        bytes += expert.blob_bytes * (behind - first);
        if (status == TRF_OK && note_expert(i, &expert, &common)) { /* the loop begins again */
            bytes = trf_expert_index_bytes(count);
            compressor->job->done_bytes = done;
            i = UINT64_MAX;
        }
    }
    *encoded = common.first;
    encoded->blob_bytes = bytes;
    return status;
}

/* Encodes an expert tensor: an index, followed by its matrices. */
static trf_status compress_expert_tensor(trf_file_compressor *compressor, const trf_compressed_tensor *compressed,
                                         uint64_t out_offset, trf_encoded *encoded, trf_error *err) {
    if (!compressor->out)
        return estimate_expert_tensor(compressor, compressed, encoded, err);
    uint64_t count = compressed->source->shape[0], index_bytes = trf_expert_index_bytes(count), end = index_bytes;
    const uint64_t done = compressor->job->done_bytes;
    trf_status status = trf_budget_take(&compressor->job->budget, 2 * index_bytes, "the list of its matrices", err);
    if (status != TRF_OK)
        return status;
    uint64_t *offsets = calloc(count, sizeof *offsets);
    void *index = malloc(index_bytes);
    status = offsets && index ? TRF_OK : trf_fail_memory(err, 2 * index_bytes);
    trf_expert_codec common = {TRF_CODEC_AUTO, {0}};
    for (uint64_t number = 0; number < count && status == TRF_OK; number++) {
        trf_encoded expert = {0};
        status = compress_matrix(compressor, compressed, number, common.codec, out_offset + end, &expert, err);
        if (status != TRF_OK) {
            trf_prefix_error(err, status, "matrix %" PRIu64, number);
            break;
        }
        offsets[number] = end;
        end += expert.blob_bytes;
        if (note_expert(number, &expert, &common)) { /* the loop begins again */
            end = index_bytes;
            compressor->job->done_bytes = done;
            number = UINT64_MAX;
        }
    }
    if (status == TRF_OK) {
        trf_expert_index_write(offsets, count, index);
        status = trf_file_write(compressor->out, out_offset, index, index_bytes, err);
    }
    free(offsets);
    free(index);
    trf_budget_give(&compressor->job->budget, 2 * index_bytes);
    *encoded = common.first;
    encoded->blob_bytes = end;
    return status;
}

/* Sets *exact to whether an F32 tensor holds BF16 numbers alone. If it must but does not, it is no longer selected. */
static trf_status settle_f32(trf_file_compressor *compressor, trf_compressed_tensor *compressed, int *exact,
                             trf_error *err) {
    const trf_tensor *tensor = compressed->source;
    const trf_checkpoint_options *options = &compressor->job->options;
    *exact = 0;
    if (trf_dtype_of_name(tensor->dtype) != TRF_DTYPE_F32 || options->encode.codec == TRF_CODEC_INT)
        return TRF_OK;
    const uint64_t offset = trf_safetensors_data_offset(&compressor->file->own_header) + tensor->begin,
                   bytes = trf_tensor_bytes(tensor);
    trf_status status = compressor->out
                            ? trf_are_bf16_numbers(compressor->job, &compressor->in, offset, bytes, exact, err)
                            : trf_may_be_bf16_numbers(&compressor->in, offset, bytes, exact, err);
    if (status != TRF_OK || *exact || !trf_needs_bf16_numbers(options, TRF_DTYPE_F32))
        return status;
    if (trf_must_fit(compressor->rules, compressed->selection))
        return trf_fail_no_bf16_numbers(err);
    compressed->selection = TRF_SELECT_KEEP;
    compressed->reason = TRF_LEFT_F32;
    return TRF_OK;
}

/* Adds a blob to the report. */
static void count_blob(trf_file_compressor *compressor, const trf_compressed_tensor *compressed,
                       const trf_encoded *encoded, int exact) {
    trf_checkpoint_report *report = &compressor->job->report;
    const trf_tensor *tensor = compressed->source;
    const trf_dtype dtype = trf_dtype_of_name(tensor->dtype);
    const trf_codec codec = trf_element_codec(encoded->codec, compressed->fp8 ? TRF_DTYPE_BF16 : dtype);
    compressor->counts->all++;
    compressor->counts->widened += exact != 0;
    compressor->counts->bf16 += codec == TRF_CODEC_BF16;
    compressor->counts->fp16 += codec == TRF_CODEC_FP16;
    compressor->blobs++;
    report->compressed_tensors++;
    report->compressed_source_bytes += trf_tensor_bytes(tensor);
    report->compressed_bytes += encoded->blob_bytes;
    report->compressed_weights += trf_tensor_bytes(tensor) / trf_dtype_bytes(dtype);
    report->widened_tensors += exact != 0;
    report->rounded_tensors += dtype == TRF_DTYPE_F32 && codec == TRF_CODEC_BF16 && !exact;
    if (compressed->fp8) {
        report->source_fp8_tensors[encoded->granularity]++;
        if (encoded->scale_group_size)
            report->source_fp8_block = encoded->scale_group_size;
    } else if (trf_is_scaled_fp8(encoded->codec, dtype))
        report->scaled_fp8_tensors[encoded->granularity]++;
}

/* Encodes one tensor, or takes what an earlier run has made of it. */
static trf_status encode_tensor(trf_file_compressor *compressor, const trf_compressed_tensor *compressed,
                                uint64_t out_offset, trf_encoded *encoded, trf_error *err) {
    const trf_tensor *tensor = compressed->source;
    trf_job *job = compressor->job;
    trf_resume *resume = compressor->out ? job->resume : NULL;
    const trf_resume_place place = {trf_resume_key(compressor->rules->part, compressor->file->name, tensor->name),
                                    compressor->out, out_offset,
                                    compressed->selection == TRF_SELECT_ALWAYS ? UINT64_MAX : trf_tensor_bytes(tensor)};
    const trf_resume_record *done = NULL;
    trf_status status = resume ? trf_resume_take(resume, &place, job, &done, err) : TRF_OK;
    if (status == TRF_OK && done) {
        *encoded = (trf_encoded){done->blob_bytes, (trf_codec)done->codec, (trf_granularity)done->granularity,
                                 done->scale_group_size};
        job->error_energy += done->error_energy, job->weight_energy += done->weight_energy;
        return trf_job_advance(job, tensor->name, trf_tensor_bytes(tensor), err);
    }
    const double error_energy = job->error_energy, weight_energy = job->weight_energy;
    if (status == TRF_OK)
        status = tensor->num_dims == 2
                     ? compress_matrix(compressor, compressed, 0, TRF_CODEC_AUTO, out_offset, encoded, err)
                     : compress_expert_tensor(compressor, compressed, out_offset, encoded, err);
    if (status != TRF_OK || !resume)
        return status;
    trf_resume_record record = {.blob_bytes = encoded->blob_bytes,
                                .codec = (uint32_t)encoded->codec,
                                .granularity = (uint32_t)encoded->granularity,
                                .scale_group_size = encoded->scale_group_size,
                                .error_energy = job->error_energy - error_energy,
                                .weight_energy = job->weight_energy - weight_energy};
    return trf_resume_add_tensor(resume, &place, job, &record, err);
}

/* Encodes one tensor after the blobs before it, and keeps the result if it is worth it. */
static trf_status compress_tensor(trf_file_compressor *compressor, trf_compressed_tensor *compressed, trf_error *err) {
    const trf_tensor *tensor = compressed->source;
    double error_energy = compressor->job->error_energy, weight_energy = compressor->job->weight_energy;
    const uint64_t out_offset = compressor->data_offset + compressor->end;
    trf_encoded encoded = {0};
    int exact;
    trf_status status = settle_f32(compressor, compressed, &exact, err);
    if (status == TRF_OK && compressed->selection == TRF_SELECT_KEEP)
        return TRF_OK;
    if (status == TRF_OK)
        status = encode_tensor(compressor, compressed, out_offset, &encoded, err);
    if (status != TRF_OK)
        return trf_prefix_error(err, status, "%s: tensor '%s' at byte %" PRIu64, compressor->file->path, tensor->name,
                                trf_safetensors_data_offset(&compressor->file->own_header) + tensor->begin);
    compressed->is_blob = compressed->selection == TRF_SELECT_ALWAYS || encoded.blob_bytes < trf_tensor_bytes(tensor);
    if (!compressed->is_blob || exact) /* the sums are only about blobs of a lossy codec that do not come back bit for
                                        * bit */
        compressor->job->error_energy = error_energy, compressor->job->weight_energy = weight_energy;
    if (!compressed->is_blob) { /* the next blob overwrites it */
        compressed->reason = TRF_LEFT_NOT_SMALLER;
        return TRF_OK;
    }
    compressed->begin = compressor->end;
    compressed->end = compressor->end += encoded.blob_bytes;
    count_blob(compressor, compressed, &encoded, exact);
    compressor->always |= compressed->selection == TRF_SELECT_ALWAYS;
    return TRF_OK;
}

/* @return whether a tensor becomes metadata of the output. */
static int is_side_table(const trf_compressed_tensor *compressed) {
    return compressed->fp8 && compressed->fp8->role != TRF_FP8_WEIGHT;
}

/* Copies the tensors that stay, wide ones first, so that each is aligned to its elements. */
static trf_status copy_other_tensors(trf_file_compressor *compressor, trf_error *err) {
    static const uint32_t widths[] = {64, 32, 16, 0};
    uint64_t in_data = trf_safetensors_data_offset(&compressor->file->own_header);
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
        for (size_t i = 0; i < compressor->file->num_tensors; i++) {
            trf_compressed_tensor *compressed = &compressor->tensors[i];
            uint32_t bits = trf_dtype_bits_of_name(compressed->source->dtype);
            if (compressed->is_blob || is_side_table(compressed) || (bits < 16 ? 0 : bits) != widths[w])
                continue;
            uint64_t bytes = trf_tensor_bytes(compressed->source);
            if (!compressor->out) {
                compressor->end += bytes;
                continue;
            }
            /* Tensors that were encoded in vain have been counted as done already. */
            const char *counted = compressed->selection == TRF_SELECT_KEEP ? compressed->source->name : NULL;
            trf_status status =
                trf_job_copy(compressor->job, counted, &compressor->in, in_data + compressed->source->begin,
                             compressor->out, compressor->data_offset + compressor->end, bytes, err);
            if (status != TRF_OK)
                return status;
            compressed->begin = compressor->end;
            compressed->end = compressor->end += bytes;
        }
    return TRF_OK;
}

/* Puts the file's side tables into its metadata. */
static trf_status take_side_tables(trf_file_compressor *compressor, json_t *metadata, trf_error *err) {
    const uint64_t data = trf_safetensors_data_offset(&compressor->file->own_header);
    json_t *tables = json_object();
    trf_status status = tables ? TRF_OK : trf_fail_memory(err, 0);
    for (size_t i = 0; i < compressor->file->num_tensors && status == TRF_OK; i++) {
        const trf_compressed_tensor *compressed = &compressor->tensors[i];
        if (!is_side_table(compressed))
            continue;
        const int is_used = compressed->fp8->role == TRF_FP8_SCALE;
        status = trf_side_tables_add(tables, compressed->source, is_used, &compressor->in,
                                     data + compressed->source->begin, err);
        compressor->side_tables++, compressor->always = 1; /* loaders must not find them */
        trf_count_side_table(compressor->job, compressed->source, is_used);
        if (status == TRF_OK)
            status =
                trf_job_advance(compressor->job, compressed->source->name, trf_tensor_bytes(compressed->source), err);
    }
    if (status == TRF_OK)
        status = trf_side_tables_finish(tables, metadata, err);
    json_decref(tables);
    return status;
}

/* Sets data_offset so that the header fits, whatever the blobs' sizes will be. */
static trf_status reserve_header(trf_file_compressor *compressor, const json_t *metadata, trf_error *err) {
    trf_text text = {0};
    trf_safetensors_begin_header(&text, metadata);
    uint64_t bound = text.size + 1, failed = text.failed;
    trf_text_free(&text);
    for (size_t i = 0; i < compressor->file->num_tensors; i++) {
        size_t entry = trf_safetensors_entry_bound(compressor->tensors[i].source, TRF_BLOB_SUFFIX);
        failed |= entry == 0;
        bound += entry;
    }
    if (failed)
        return trf_fail_memory(err, bound);
    compressor->data_offset = trf_align(8 + bound);
    if (compressor->data_offset - 8 > TRF_MAX_SAFETENSORS_HEADER_BYTES)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "%s: with the source's header kept, the compressed file's header may take %" PRIu64
                        " bytes, and safetensors allows %u",
                        compressor->file->path, compressor->data_offset - 8, TRF_MAX_SAFETENSORS_HEADER_BYTES);
    return TRF_OK;
}

static trf_status write_header(trf_file_compressor *compressor, const json_t *metadata, trf_error *err) {
    trf_text text = {0};
    uint64_t room = compressor->data_offset - 8;
    trf_safetensors_begin_header(&text, metadata);
    for (int blobs = 1; blobs >= 0; blobs--)
        for (size_t i = 0; i < compressor->file->num_tensors; i++) {
            const trf_compressed_tensor *compressed = &compressor->tensors[i];
            const trf_tensor *source = compressed->source;
            uint64_t bytes = compressed->end - compressed->begin;
            if (compressed->is_blob != blobs || is_side_table(compressed))
                continue;
            if (blobs)
                trf_safetensors_add_tensor(&text, source->name, TRF_BLOB_SUFFIX, "U8", &bytes, 1, compressed->begin,
                                           compressed->end);
            else
                trf_safetensors_add_tensor(&text, source->name, "", source->dtype, source->shape, source->num_dims,
                                           compressed->begin, compressed->end);
        }
    trf_safetensors_end_header(&text, 1);
    while (text.size < room && !text.failed)
        trf_text_append(&text, "                ", room - text.size < 16 ? (size_t)(room - text.size) : 16);
    trf_status status = text.failed || text.size != room ? trf_fail_memory(err, room) : TRF_OK;
    if (status == TRF_OK)
        status = trf_file_write(compressor->out, 0, &room, sizeof room, err);
    if (status == TRF_OK)
        status = trf_file_write(compressor->out, 8, text.bytes, room, err);
    if (status == TRF_OK) /* a blob that was not worth keeping may reach further */
        status = trf_file_resize(compressor->out, compressor->data_offset + compressor->end, err);
    trf_text_free(&text);
    return status;
}

/* A file in which nothing is compressed stays as it is, byte for byte. */
static trf_status copy_file_unchanged(trf_file_compressor *compressor, uint64_t uncounted_bytes, trf_error *err) {
    if (!compressor->out)
        return TRF_OK;
    trf_status status = trf_file_resize(compressor->out, 0, err);
    if (status == TRF_OK)
        status = trf_job_copy(compressor->job, NULL, &compressor->in, 0, compressor->out, 0,
                              compressor->file->file_bytes, err);
    if (status == TRF_OK)
        status = trf_job_advance(compressor->job, compressor->file->name, uncounted_bytes, err);
    return status;
}

/* @return whether the file that is being made would be smaller than its source, header and all. */
static int file_is_smaller(const trf_file_compressor *compressor) {
    uint64_t bytes = compressor->data_offset + compressor->end;
    for (size_t i = 0; i < compressor->file->num_tensors; i++)
        bytes += compressor->tensors[i].is_blob ? 0 : trf_tensor_bytes(compressor->tensors[i].source);
    return bytes < compressor->file->file_bytes;
}

/* Takes the file's blobs out of the report, whose totals are those of `before` again. */
static void give_file_up(trf_file_compressor *compressor, const trf_job *before) {
    trf_job *job = compressor->job;
    for (size_t i = 0; i < compressor->file->num_tensors; i++)
        if (compressor->tensors[i].is_blob) {
            job->report.left[TRF_LEFT_NOT_SMALLER].tensors++;
            job->report.left[TRF_LEFT_NOT_SMALLER].bytes += trf_tensor_bytes(compressor->tensors[i].source);
        }
    job->report.compressed_tensors = before->report.compressed_tensors;
    job->report.compressed_source_bytes = before->report.compressed_source_bytes;
    job->report.compressed_bytes = before->report.compressed_bytes;
    job->report.compressed_weights = before->report.compressed_weights;
    job->report.rounded_tensors = before->report.rounded_tensors;
    job->report.widened_tensors = before->report.widened_tensors;
    job->error_energy = before->error_energy, job->weight_energy = before->weight_energy;
    compressor->blobs = 0;
}

/* Completes a file whose blobs have been written: writes the other tensors and the header; or copies the source's file
 * if nothing is gained. */
static trf_status finish_file(trf_file_compressor *compressor, const json_t *metadata, uint64_t kept_bytes,
                              uint64_t *bytes, trf_error *err) {
    const trf_checkpoint_file *file = compressor->file;
    trf_status status;
    if (compressor->blobs == 0 && compressor->side_tables == 0) {
        status = copy_file_unchanged(compressor, kept_bytes, err);
        compressor->end = file->own_header.data_bytes;
        *bytes = file->file_bytes;
    } else {
        status = copy_other_tensors(compressor, err);
        *bytes = compressor->data_offset + compressor->end;
        if (status == TRF_OK && compressor->out)
            status = write_header(compressor, metadata, err);
    }
    compressor->job->report.output_bytes += compressor->end;
    return status;
}

/* Adds the tensors that stay to the report. *kept_bytes: the bytes of those that were not even tried. */
static void count_left(trf_file_compressor *compressor, uint64_t *kept_bytes) {
    for (size_t i = 0; i < compressor->file->num_tensors; i++) {
        const trf_compressed_tensor *compressed = &compressor->tensors[i];
        if (!compressed->source || compressed->is_blob || is_side_table(compressed))
            continue;
        const uint64_t bytes = trf_tensor_bytes(compressed->source);
        trf_left_tensors *left = &compressor->job->report.left[compressed->reason];
        left->tensors++, left->bytes += bytes;
        *kept_bytes += compressed->selection == TRF_SELECT_KEEP ? bytes : 0;
    }
}

static trf_status compress_tensors(trf_file_compressor *compressor, uint64_t *bytes, trf_error *err) {
    const trf_checkpoint_file *file = compressor->file;
    const trf_job before = *compressor->job;
    const trf_blob_counts counts = *compressor->counts;
    uint64_t kept_bytes = 0;
    json_t *metadata = NULL;
    trf_status status = TRF_OK;
    for (size_t i = 0; i < file->num_tensors && status == TRF_OK; i++) {
        trf_compressed_tensor *compressed = &compressor->tensors[i];
        compressed->source = file->tensors[i].source;
        compressed->fp8 = trf_fp8_model_find(compressor->fp8, file, compressed->source);
        status = trf_select_fp8(compressor->rules, compressed->fp8, compressed->source, &compressed->selection,
                                &compressed->reason, err);
    }
    if (status == TRF_OK && !(metadata = trf_compressed_metadata(file, compressor->config_is_unreadable)))
        status = trf_fail_memory(err, file->own_header.text_bytes);
    if (status == TRF_OK)
        status = take_side_tables(compressor, metadata, err);
    if (status == TRF_OK)
        status = reserve_header(compressor, metadata, err);
    for (size_t i = 0; i < file->num_tensors && status == TRF_OK; i++)
        if (compressor->tensors[i].selection != TRF_SELECT_KEEP)
            status = compress_tensor(compressor, &compressor->tensors[i], err);
    count_left(compressor, &kept_bytes);
    if (status == TRF_OK && compressor->blobs && !compressor->always && !file_is_smaller(compressor)) {
        give_file_up(compressor, &before);
        *compressor->counts = counts;
    }
    if (status == TRF_OK)
        status = finish_file(compressor, metadata, kept_bytes, bytes, err);
    json_decref(metadata);
    return status;
}

static trf_status compress_file(void *context, const trf_checkpoint_file *file, const trf_file *out, uint64_t *bytes,
                                trf_error *err) {
    trf_compression *work = context;
    uint64_t file_bytes;
    const size_t number = (size_t)(file - work->model->files);
    const trf_selection_rules rules = trf_compression_rules(work, number);
    trf_file_compressor compressor = {.job = work->job,
                                      .file = file,
                                      .rules = &rules,
                                      .fp8 = &work->fp8,
                                      .counts = &work->counts[number],
                                      .out = out,
                                      .config_is_unreadable =
                                          work->model->is_folder && work->source.failure.status != TRF_OK};
    work->counts[number] = (trf_blob_counts){0}; /* an estimate may have filled it before */
    trf_status status = trf_file_open(file->path, &compressor.in, &file_bytes, err);
    if (status != TRF_OK)
        return status;
    const uint64_t taken = trf_compressed_header_bytes(file, &work->fp8);
    status = trf_budget_take(&work->job->budget, taken, "its new header", err);
    compressor.tensors = status == TRF_OK ? calloc(file->num_tensors + 1, sizeof *compressor.tensors) : NULL;
    if (compressor.tensors)
        status = compress_tensors(&compressor, bytes, err);
    else if (status == TRF_OK)
        status = trf_fail_memory(err, file->num_tensors * sizeof *compressor.tensors);
    else
        trf_prefix_error(err, status, "%s", file->path);
    if (status == TRF_OK)
        status = trf_file_check_stamp(&compressor.in, &file->stamp, err);
    if (compressor.tensors)
        trf_budget_give(&work->job->budget, taken);
    free(compressor.tensors);
    trf_file_close(&compressor.in);
    return status;
}

static trf_status compress_models(trf_checkpoint *checkpoint, const char *out_path, trf_job *job, trf_error *err) {
    const size_t count = checkpoint->num_parts ? checkpoint->num_parts : 1;
    trf_compression *works = calloc(count, sizeof *works);
    trf_rewrite_part *parts = calloc(count, sizeof *parts);
    size_t num_parts = 0;
    trf_status status = works && parts ? trf_compression_prepare(checkpoint, job, works, parts, &num_parts, err)
                                       : trf_fail_memory(err, count * sizeof *works);
    job->total_bytes = job->report.source_bytes = trf_checkpoint_source_bytes(checkpoint);
    job->report.tensors = trf_checkpoint_num_tensors(checkpoint);
    job->report.models = num_parts;
    const trf_rewrite rewrite = {
        checkpoint, parts,         num_parts,       job,
        out_path,   compress_file, .compresses = 1, .read_back = job->reads_back ? trf_verify_written : NULL};
    trf_resume resume = {.file = {.fd = -1}};
    if (status == TRF_OK && job->options.resume) {
        resume.fingerprint = trf_resume_fingerprint(checkpoint, &job->options);
        job->resume = &resume;
    }
    if (status == TRF_OK)
        status = trf_checkpoint_rewrite(&rewrite, err);
    if (status == TRF_OK && resume.taken)
        trf_job_note(job, "%zu tensors had been encoded by an earlier run", resume.taken);
    job->resume = NULL;
    trf_resume_end(&resume);
    for (size_t i = 0; i < num_parts && status == TRF_OK; i++) {
        const trf_compression *work = parts[i].context;
        trf_source_tell(work->model, &work->source, work->dtype, work->counts, work->rules.is_stored, job);
    }
    for (size_t i = 0; works && i < count; i++)
        trf_compression_free(&works[i]);
    free(works);
    free(parts);
    return status;
}

trf_status trf_compress_checkpoint(const char *in_path, const char *out_path, const trf_checkpoint_options *options,
                                   trf_checkpoint_report *report, trf_error *err) {
    trf_checkpoint *checkpoint = NULL;
    trf_job job;
    trf_status status = trf_job_begin(&job, options, err);
    if (status == TRF_OK && !out_path && !job.options.dry_run)
        status = trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "an output needs a path");
    if (status == TRF_OK) /* before a tensor is selected, which takes the codec to be one that there is */
        status = trf_check_encode_options(&job.options.encode, err);
    job.reads_back = job.options.encode.verify;
    if (job.options.encode.codec != TRF_CODEC_INT) /* what is read back and compared needs no other check */
        job.options.encode.verify = 0;
    if (status == TRF_OK && job.options.resume && job.options.dry_run)
        status =
            trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "resume does not go with dry_run, which writes nothing");
    if (status == TRF_OK)
        status = trf_checkpoint_open_counted(in_path, &job.budget, &checkpoint, err);
    if (status == TRF_OK)
        status = compress_models(checkpoint, out_path, &job, err);
    if (status == TRF_OK)
        trf_job_report(&job, report);
    trf_checkpoint_close(checkpoint);
    trf_job_end(&job);
    return trf_sanitize_error(status, err);
}
