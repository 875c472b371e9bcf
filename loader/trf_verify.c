/* SPDX-License-Identifier: Apache-2.0 */
/* Verifies a checkpoint: every tile of every blob is checked and decoded, and compared with the source if there is
 * one. */
#include "trf_verify.h"
#include "trf_fp8_weights.h"
#include "trf_model_config.h"
#include "trf_number_formats.h"
#include "trf_verify_extra.h"
#include "trf_weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    TRF_COMPARE_COUNT = 4096
};

/* How decoded weights must agree with the source's. */
typedef enum trf_agreement {
    TRF_AGREE_BITS,    /* lossless codecs */
    TRF_AGREE_ROUNDED, /* F32 weights through the bf16 codec: the source's, rounded to nearest even */
    TRF_AGREE_NEAR     /* int codec on floats: the error is measured */
} trf_agreement;

/* One matrix that is being verified. */
typedef struct trf_comparison {
    trf_job *job;
    const char *tensor;
    const trf_file *against; /* NULL: nothing to compare with */
    uint64_t offset;         /* of the source's matrix in `against` */
    uint64_t matrix;         /* its number within an expert tensor */
    uint64_t cols;
    trf_dtype dtype;
    size_t value_bytes;
    trf_agreement agreement;
    int differs;     /* a weight of the source differs from the decoded one, but agrees with it */
    uint8_t *source; /* one rectangle of the source's weights */
    uint64_t capacity;
    const trf_blob_view *fp8; /* of scaled FP8 whose source is codes; else NULL */
    trf_fp8_buffer buffer;
} trf_comparison;

static trf_status mismatch(const trf_comparison *comparison, uint64_t row, uint64_t col, trf_error *err) {
    uint64_t offset = comparison->offset + (row * comparison->cols + col) * comparison->value_bytes;
    return trf_fail(err, TRF_ERR_MISMATCH, offset,
                    "matrix %" PRIu64 ", row %" PRIu64 ", column %" PRIu64 " differs from byte %" PRIu64 " of %s",
                    comparison->matrix, row, col, offset, comparison->against->path);
}

static trf_status read_source_rectangle(trf_comparison *comparison, const trf_rectangle *rectangle, trf_error *err) {
    uint64_t row_bytes = (uint64_t)rectangle->cols * comparison->value_bytes, bytes = row_bytes * rectangle->rows;
    if (bytes > comparison->capacity) {
        trf_status taken =
            trf_job_take_growth(comparison->job, comparison->capacity, bytes, "the source's weights", err);
        if (taken != TRF_OK)
            return taken;
        free(comparison->source);
        comparison->capacity = 0;
        if (!(comparison->source = malloc(bytes)))
            return trf_fail_memory(err, bytes);
        comparison->capacity = bytes;
    }
    uint64_t stride = comparison->cols * comparison->value_bytes;
    uint64_t source_offset = comparison->offset + rectangle->row * stride + rectangle->col * comparison->value_bytes;
    if (row_bytes == stride)
        return trf_file_read(comparison->against, source_offset, comparison->source, bytes, err);
    trf_status status = TRF_OK;
    for (uint32_t r = 0; r < rectangle->rows && status == TRF_OK; r++)
        status = trf_file_read(comparison->against, source_offset + r * stride, comparison->source + r * row_bytes,
                               row_bytes, err);
    return status;
}

static int agrees(const trf_comparison *comparison, const uint8_t *source, const uint8_t *decoded) {
    if (comparison->agreement == TRF_AGREE_BITS)
        return memcmp(source, decoded, comparison->value_bytes) == 0;
    float weight, got;
    memcpy(&weight, source, sizeof weight);
    memcpy(&got, decoded, sizeof got);
    if (isnan(weight))
        return isnan(got);
    return trf_f32_bits(trf_bf16_to_f32(trf_f32_to_bf16(weight))) == trf_f32_bits(got);
}

/* Adds the rectangle to the sums of squares. @return the first weight that no lossy codec can have taken: one of the
 * codec int that is not finite in the source; count if there is none. */
static uint64_t measure_rectangle(trf_comparison *comparison, const uint8_t *decoded, uint64_t count) {
    float weights[TRF_COMPARE_COUNT], got[TRF_COMPARE_COUNT];
    double error_energy = 0, weight_energy = 0;
    for (uint64_t i = 0; i < count; i += TRF_COMPARE_COUNT) {
        size_t part = count - i < TRF_COMPARE_COUNT ? (size_t)(count - i) : TRF_COMPARE_COUNT;
        trf_weights_to_f32(comparison->dtype, comparison->source + i * comparison->value_bytes, part, weights);
        trf_weights_to_f32(comparison->dtype, decoded + i * comparison->value_bytes, part, got);
        for (size_t k = 0; k < part; k++) {
            if (!isfinite(weights[k])) {
                if (comparison->agreement == TRF_AGREE_NEAR)
                    return i + k;
                continue; /* it has been found to agree */
            }
            const double error = isfinite(got[k]) ? (double)weights[k] - got[k] : INFINITY;
            error_energy += error * error;
            weight_energy += (double)weights[k] * weights[k];
        }
    }
    comparison->job->error_energy += error_energy;
    comparison->job->weight_energy += weight_energy;
    return count;
}

static trf_status compare_rectangle(void *context, const trf_rectangle *rectangle, trf_error *err) {
    trf_comparison *comparison = context;
    uint64_t count = (uint64_t)rectangle->rows * rectangle->cols, bytes = count * comparison->value_bytes;
    trf_rectangle codes;
    if (comparison->fp8) {
        trf_status status = trf_job_take_growth(comparison->job, comparison->buffer.capacity,
                                                trf_fp8_buffer_bytes(rectangle), "FP8 codes", err);
        if (status == TRF_OK)
            status = trf_fp8_rectangle(comparison->fp8, rectangle, &comparison->buffer, &codes, err);
        if (status != TRF_OK)
            return status;
        rectangle = &codes;
    }
    if (comparison->against) {
        trf_status status = read_source_rectangle(comparison, rectangle, err);
        if (status != TRF_OK)
            return status;
        const int same = memcmp(comparison->source, rectangle->values, bytes) == 0;
        uint64_t agreeing = same || comparison->agreement == TRF_AGREE_NEAR ? count : 0;
        while (agreeing < count && agrees(comparison, comparison->source + agreeing * comparison->value_bytes,
                                          rectangle->values + agreeing * comparison->value_bytes))
            agreeing++;
        if (agreeing == count && comparison->agreement != TRF_AGREE_BITS)
            agreeing = measure_rectangle(comparison, rectangle->values, count);
        if (agreeing < count)
            return mismatch(comparison, rectangle->row + agreeing / rectangle->cols,
                            rectangle->col + agreeing % rectangle->cols, err);
        comparison->differs |= !same;
    }
    return trf_job_advance(comparison->job, comparison->tensor, bytes, err);
}

static int is_rounded(const trf_header *header) {
    return header->source_dtype == TRF_DTYPE_F32 && header->codec != TRF_CODEC_INT;
}

static trf_agreement agreement_of(const trf_job *job, const trf_header *header) {
    if (header->codec == TRF_CODEC_INT && header->source_dtype != TRF_DTYPE_I8)
        return TRF_AGREE_NEAR;
    return is_rounded(header) && !job->is_lossless ? TRF_AGREE_ROUNDED : TRF_AGREE_BITS;
}

/* Counts an F32 tensor of the codec bf16, which was rounded or held BF16 numbers alone. The blob does not say which of
 * the two; the source says it, or config.json. Without either it counts as rounded. No error is measured for exact
 * tensors. */
static void count_f32(trf_job *job, const trf_comparison *comparison, double weight_energy) {
    if (comparison->against ? comparison->differs : !job->is_lossless) {
        job->report.rounded_tensors++;
        return;
    }
    job->report.widened_tensors++;
    job->weight_energy = weight_energy;
}

/* Verifies the blobs of a tensor. against: the source's file, or NULL; offset: the tensor's in that file. */
static trf_status verify_blobs(trf_job *job, const trf_file *file, const trf_file_tensor *tensor,
                               const trf_file *against, uint64_t offset, trf_error *err) {
    trf_blob_list list;
    trf_comparison comparison = {.job = job, .tensor = tensor->source->name, .against = against, .offset = offset};
    const double weight_energy = job->weight_energy;
    int is_f32 = 0;
    trf_status status = trf_blob_list_read(file, tensor->file_offset, tensor->bytes, &list, err);
    if (status != TRF_OK)
        return status;
    for (uint64_t number = 0; number < list.count && status == TRF_OK; number++) {
        trf_blob_reader reader;
        uint64_t buffers = 0;
        if ((status = trf_file_tensor_open_blob(file, tensor, &list, number, &reader, err)) != TRF_OK)
            break;
        const trf_header *header = &reader.view.header;
        comparison.matrix = number;
        comparison.cols = header->cols;
        comparison.dtype = trf_dtype_of_name(tensor->source->dtype);
        comparison.fp8 = tensor->is_scaled_fp8 ? &reader.view : NULL;
        comparison.value_bytes = trf_dtype_bytes(comparison.dtype);
        comparison.agreement = agreement_of(job, header);
        is_f32 |= is_rounded(header);
        status =
            trf_blob_reader_decode(&reader, job->options.encode.threads, compare_rectangle, &comparison, &buffers, err);
        buffers += comparison.capacity + comparison.buffer.capacity;
        trf_job_count_buffer(job, buffers);
        trf_job_uncount_buffer(job, buffers);
        comparison.offset += (uint64_t)header->rows * header->cols * comparison.value_bytes;
        trf_blob_reader_close(&reader);
    }
    trf_budget_give(&job->budget, comparison.capacity + comparison.buffer.capacity);
    free(comparison.source);
    trf_fp8_buffer_free(&comparison.buffer);
    trf_blob_list_free(&list);
    if (is_f32 && status == TRF_OK)
        count_f32(job, &comparison, weight_energy);
    if (status == TRF_OK && comparison.differs)
        job->report.differing_tensors++;
    return status;
}

/* Compares a tensor that was not compressed. */
static trf_status compare_plain(trf_job *job, const trf_file *file, const trf_file_tensor *tensor,
                                const trf_file *against, uint64_t offset, trf_error *err) {
    uint8_t *ours = job->buffer, *theirs = job->buffer + TRF_COPY_BYTES / 2;
    for (uint64_t done = 0; done < tensor->bytes;) {
        uint64_t part = tensor->bytes - done < TRF_COPY_BYTES / 2 ? tensor->bytes - done : TRF_COPY_BYTES / 2;
        trf_status status = trf_file_read(file, tensor->file_offset + done, ours, part, err);
        if (status == TRF_OK)
            status = trf_file_read(against, offset + done, theirs, part, err);
        if (status != TRF_OK)
            return status;
        if (memcmp(ours, theirs, part) != 0) {
            uint64_t i = 0, cols = tensor->source->num_dims ? tensor->source->shape[tensor->source->num_dims - 1] : 1;
            while (ours[i] == theirs[i])
                i++;
            uint32_t bits = trf_dtype_bits_of_name(tensor->source->dtype);
            uint64_t element = (done + i) * 8 / (bits ? bits : 8);
            return trf_fail(err, TRF_ERR_MISMATCH, offset + done + i,
                            "row %" PRIu64 ", column %" PRIu64 " differs from byte %" PRIu64 " of %s", element / cols,
                            element % cols, offset + done + i, against->path);
        }
        if ((status = trf_job_advance(job, tensor->source->name, part, err)) != TRF_OK)
            return status;
        done += part;
    }
    return TRF_OK;
}

/* Finds the source of a tensor: in the file of the same name, else in any file. A .trf file does not know its tensor's
 * name, so if the source has only one tensor, that is taken. */
static const trf_checkpoint_file *find_source(const trf_checkpoint *against, const trf_checkpoint_file *checkpoint_file,
                                              const char *name, const trf_file_tensor **found) {
    const trf_checkpoint_file *fallback = NULL;
    for (size_t i = 0; i < against->num_files; i++) {
        const trf_file_tensor *tensor = trf_checkpoint_file_find(&against->files[i], name);
        int namesake = strcmp(against->files[i].name, checkpoint_file->name) == 0;
        if (tensor && (!fallback || namesake)) {
            *found = tensor;
            fallback = &against->files[i];
        }
        if (tensor && namesake)
            break;
    }
    if (!fallback && checkpoint_file->is_layer && trf_checkpoint_num_tensors(against) == 1) {
        *found = against->files[0].tensors;
        fallback = &against->files[0];
    }
    return fallback;
}

static trf_status check_counterpart(const trf_file_tensor *tensor, const trf_file_tensor *other, trf_error *err) {
    const trf_tensor *a = tensor->source, *b = other->source;
    if (strcmp(a->dtype, b->dtype) == 0 && a->num_dims == b->num_dims &&
        memcmp(a->shape, b->shape, a->num_dims * sizeof *a->shape) == 0 && trf_tensor_bytes(a) == trf_tensor_bytes(b))
        return TRF_OK;
    return trf_fail(err, TRF_ERR_MISMATCH, TRF_NO_OFFSET, "dtype or shape differ from the source's");
}

static trf_status verify_tensor(trf_job *job, const trf_file *file, const trf_checkpoint_file *checkpoint_file,
                                const trf_file_tensor *tensor, const trf_checkpoint *against, trf_error *err) {
    trf_file source = {.fd = -1};
    const trf_file_tensor *other = NULL;
    uint64_t source_bytes;
    trf_status status = trf_check_bare_blob(tensor, err);
    if (status != TRF_OK)
        return status;
    if (against) {
        const trf_checkpoint_file *from = find_source(against, checkpoint_file, tensor->source->name, &other);
        if (!from)
            return trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET, "is not in %s", against->root);
        if ((status = check_counterpart(tensor, other, err)) == TRF_OK)
            status = trf_file_open(from->path, &source, &source_bytes, err);
        if (status != TRF_OK)
            return status;
    }
    if (tensor->blobs)
        status = verify_blobs(job, file, tensor, against ? &source : NULL, other ? other->file_offset : 0, err);
    else if (against)
        status = compare_plain(job, file, tensor, &source, other->file_offset, err);
    else
        status = trf_job_advance(job, tensor->source->name, tensor->bytes, err);
    trf_file_close(&source);
    return status;
}

/* Notes that tensors lie in other places than in the source, if so: its file then does not come back byte for byte. */
static void compare_layout(trf_job *job, const trf_checkpoint_file *checkpoint_file, const trf_checkpoint *against) {
    const trf_safetensors *ours = trf_checkpoint_file_source_header(checkpoint_file);
    int same = checkpoint_file->is_layer;
    for (size_t i = 0; i < against->num_files && !same; i++) {
        const trf_safetensors *theirs = &against->files[i].own_header;
        same = (!against->is_folder || strcmp(against->files[i].name, checkpoint_file->name) == 0) &&
               theirs->text_bytes == ours->text_bytes && memcmp(theirs->text, ours->text, ours->text_bytes) == 0;
    }
    if (trf_checkpoint_file_lost_layout(checkpoint_file))
        trf_job_note(job, "%.700s: keeps no header of its source: tensors are compared, and not the file's layout",
                     checkpoint_file->path);
    else if (!same)
        trf_job_note(job, "%.700s: has not the header of the source's file: tensors are compared, and not their layout",
                     checkpoint_file->path);
}

/* Compares a side table with the source's tensor. */
static trf_status compare_side_table(const trf_checkpoint_file *checkpoint_file, const trf_side_table *table,
                                     const trf_checkpoint *against, const trf_budget *budget, trf_error *err) {
    const trf_file_tensor ours = {.source = table->source}, *theirs = NULL;
    const uint64_t bytes = trf_tensor_bytes(table->source);
    const trf_checkpoint_file *from = find_source(against, checkpoint_file, table->source->name, &theirs);
    trf_file file;
    uint64_t file_bytes, i = 0;
    if (!from)
        return trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET, "is not in %s", against->root);
    trf_status status = check_counterpart(&ours, theirs, err);
    if (status == TRF_OK)
        status = trf_budget_check(budget, bytes + 1, "a table of scales", err);
    uint8_t *data = status == TRF_OK ? malloc(bytes + 1) : NULL;
    if (status == TRF_OK && !data)
        status = trf_fail_memory(err, bytes);
    if (status == TRF_OK && (status = trf_file_open(from->path, &file, &file_bytes, err)) == TRF_OK) {
        status = trf_file_read(&file, theirs->file_offset, data, bytes, err);
        trf_file_close(&file);
    }
    while (status == TRF_OK && i < bytes && data[i] == table->data[i])
        i++;
    if (status == TRF_OK && i < bytes)
        status = trf_fail(err, TRF_ERR_MISMATCH, theirs->file_offset + i, "differs from byte %" PRIu64 " of %s",
                          theirs->file_offset + i, from->path);
    free(data);
    return status;
}

/* Verifies the scales that a file has in its metadata. against: or NULL. */
static trf_status verify_side_tables(trf_job *job, const trf_checkpoint_file *checkpoint_file,
                                     const trf_checkpoint *against, trf_error *err) {
    trf_status status = TRF_OK;
    trf_count_side_tables(job, checkpoint_file);
    if (checkpoint_file->side_tables.count && !checkpoint_file->side_tables.has_checksum && !against)
        trf_job_note(job,
                     "%.700s: its scales have no checksum, as an older version wrote them: nobody checked them; "
                     "comparing with the source does",
                     checkpoint_file->path);
    for (size_t i = 0; i < checkpoint_file->side_tables.count && status == TRF_OK; i++) {
        const trf_side_table *table = &checkpoint_file->side_tables.tables[i];
        if (against)
            status = compare_side_table(checkpoint_file, table, against, &job->budget, err);
        if (status != TRF_OK)
            return trf_prefix_error(err, status, "%s: tensor '%s'", checkpoint_file->path, table->source->name);
        status = trf_job_advance(job, table->source->name, trf_tensor_bytes(table->source), err);
    }
    return status;
}

static trf_status verify_file(trf_job *job, const trf_checkpoint_file *checkpoint_file, const trf_checkpoint *against,
                              trf_error *err) {
    trf_file file;
    uint64_t file_bytes;
    trf_status status = trf_file_open(checkpoint_file->path, &file, &file_bytes, err);
    if (status != TRF_OK)
        return status;
    file.budget = &job->budget;
    if (against)
        compare_layout(job, checkpoint_file, against);
    for (size_t i = 0; i < checkpoint_file->num_tensors && status == TRF_OK; i++) {
        status = verify_tensor(job, &file, checkpoint_file, &checkpoint_file->tensors[i], against, err);
        if (status != TRF_OK)
            trf_fail_in_tensor(checkpoint_file, &checkpoint_file->tensors[i], status, err);
        else
            trf_count_tensor(job, &checkpoint_file->tensors[i]);
    }
    trf_file_close(&file);
    return status == TRF_OK ? verify_side_tables(job, checkpoint_file, against, err) : status;
}

/* ---- what has just been written ---- */

/* Asks the job's caller whether to stop. It hears of nothing that it does not know: the source's bytes are done. */
static int ask_whether_to_stop(void *context, const char *tensor, uint64_t done_bytes, uint64_t total_bytes) {
    trf_job *job = context;
    (void)done_bytes, (void)total_bytes;
    return trf_job_progress(job, job->told ? job->told : tensor, 0);
}

static trf_status check_kept_header(const trf_checkpoint_file *written, const trf_checkpoint_file *source_file,
                                    trf_error *err) {
    const trf_safetensors *ours = trf_checkpoint_file_source_header(written), *theirs = &source_file->own_header;
    if (ours->text_bytes == theirs->text_bytes && memcmp(ours->text, theirs->text, ours->text_bytes) == 0)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_MISMATCH, TRF_NO_OFFSET, "%s: the header that it keeps is not that of %s",
                    written->path, source_file->path);
}

trf_status trf_verify_written(trf_job *job, const char *path, const trf_checkpoint *model,
                              const trf_checkpoint_file *source_file, trf_error *err) {
    trf_checkpoint_file written;
    trf_job check = {
        .options = job->options, .buffer = job->buffer, .held_bytes = job->held_bytes, .budget = job->budget};
    check.options.note = NULL;
    check.options.progress = ask_whether_to_stop;
    check.options.progress_context = job;
    trf_status status = trf_checkpoint_file_open_counted(path, &check.budget, &written, err);
    if (status == TRF_OK) {
        status = check_kept_header(&written, source_file, err);
        if (status == TRF_OK)
            status = verify_file(&check, &written, model, err);
        trf_checkpoint_file_free(&written);
    }
    if (check.report.peak_buffer_bytes > job->report.peak_buffer_bytes)
        job->report.peak_buffer_bytes = check.report.peak_buffer_bytes;
    if (status == TRF_OK || status == TRF_ERR_IO || status == TRF_ERR_CANCELLED || trf_lacks_memory(status))
        return status;
    return trf_prefix_error(err, TRF_ERR_MISMATCH, "what was written does not agree with the source");
}

/* @return whether a file of the checkpoint has a side table of this name. */
static int has_side_table(const trf_checkpoint *checkpoint, const char *name) {
    for (size_t i = 0; i < checkpoint->num_files; i++) {
        const trf_checkpoint_file *file = &checkpoint->files[i];
        const trf_tensor *tensor = trf_safetensors_find(trf_checkpoint_file_source_header(file), name);
        if (trf_side_tables_find(&file->side_tables, tensor))
            return 1;
    }
    return 0;
}

/* Checks that the source holds no tensor that the checkpoint lacks. */
static trf_status check_missing(const trf_checkpoint *checkpoint, const trf_checkpoint *against, trf_error *err) {
    int is_layer = checkpoint->files[0].is_layer; /* a .trf file is always one tensor of many */
    for (size_t i = 0; i < against->num_files && !is_layer; i++)
        for (size_t t = 0; t < against->files[i].num_tensors; t++) {
            const trf_file_tensor *found;
            const char *name = against->files[i].tensors[t].source->name;
            if (!find_source(checkpoint, &against->files[i], name, &found) && !has_side_table(checkpoint, name))
                return trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET, "%s: tensor '%s' of %s is missing",
                                checkpoint->root, name, against->files[i].path);
        }
    return TRF_OK;
}

static trf_status open_against(const char *path, trf_budget *budget, trf_checkpoint **against, trf_error *err) {
    trf_status status = trf_checkpoint_open_counted(path, budget, against, err);
    if (status != TRF_OK)
        return status;
    const trf_checkpoint *model;
    for (size_t m = 0; (model = trf_checkpoint_model(*against, m)); m++)
        for (size_t i = 0; i < model->num_files; i++)
            if (model->files[i].compressed)
                return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                                "%s: is compressed itself; the comparison needs the source", model->files[i].path);
    return TRF_OK;
}

/* ---- a pipeline's models ---- */

/* @return the model with that name, or NULL. A checkpoint that is no pipeline has one model, without a name. */
static const trf_checkpoint *find_model(const trf_checkpoint *checkpoint, const char *name) {
    const trf_checkpoint *model;
    for (size_t i = 0; (model = trf_checkpoint_model(checkpoint, i)); i++)
        if (model->name == name || (model->name && name && strcmp(model->name, name) == 0))
            return model;
    return NULL;
}

/* Fails with a message that names the missing model, or its config.json if only that is missing. */
static trf_status fail_model(const trf_checkpoint *checkpoint, const trf_checkpoint *against, const char *name,
                             trf_error *err) {
    struct stat info;
    char *folder = trf_path_join(checkpoint->root, name),
         *config = folder ? trf_path_join(folder, TRF_MODEL_CONFIG_NAME) : NULL;
    trf_status status;
    if (!config)
        status = trf_fail_memory(err, strlen(checkpoint->root));
    else
        status = trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET, "%s: %s%s of %s is missing", checkpoint->root, name,
                          stat(folder, &info) == 0 && stat(config, &info) != 0 ? "/" TRF_MODEL_CONFIG_NAME : "",
                          against->root);
    free(folder);
    free(config);
    return status;
}

/* Checks that both are pipelines or neither is, and that the source has no model that is missing here. */
static trf_status check_models(const trf_checkpoint *checkpoint, const trf_checkpoint *against, trf_error *err) {
    if (!checkpoint->num_parts != !against->num_parts)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%s is %s pipeline, and %s is %s", checkpoint->root,
                        checkpoint->num_parts ? "a" : "no", against->root, against->num_parts ? "one" : "none");
    const trf_checkpoint *model;
    for (size_t i = 0; (model = trf_checkpoint_model(against, i)); i++)
        if (!find_model(checkpoint, model->name))
            return fail_model(checkpoint, against, model->name, err);
    return TRF_OK;
}

/* Checks that what decompressing gives back besides tensors can be the source's. */
static trf_status check_kept(const trf_checkpoint *model, trf_job *job, trf_error *err) {
    trf_status status = trf_model_config_check_kept(model, job, err);
    for (size_t i = 0; i < model->num_indexes && status == TRF_OK; i++)
        status = trf_checkpoint_index_check_kept(&model->indexes[i], model->files, model->num_files, err);
    return status;
}

/* Checks what a model holds besides tensors. against: or NULL. */
static trf_status check_model(const trf_checkpoint *model, const trf_checkpoint *against, trf_job *job,
                              trf_error *err) {
    if (!against)
        return check_kept(model, job, err);
    trf_status status = check_missing(model, against, err);
    if (status == TRF_OK)
        status = trf_model_config_check(model, against, job, err);
    return status == TRF_OK ? trf_verify_indexes(model, against, err) : status;
}

static trf_status verify_models(trf_job *job, const trf_checkpoint *checkpoint, const trf_checkpoint *against,
                                trf_error *err) {
    const trf_checkpoint *model;
    trf_status status = TRF_OK;
    for (size_t i = 0; (model = trf_checkpoint_model(checkpoint, i)) && status == TRF_OK; i++)
        status = check_model(model, against ? find_model(against, model->name) : NULL, job, err);
    for (size_t i = 0; (model = trf_checkpoint_model(checkpoint, i)) && status == TRF_OK; i++) {
        const trf_checkpoint *source = against ? find_model(against, model->name) : NULL;
        job->report.models++;
        status = trf_model_config_is_lossless(model, &job->is_lossless, err);
        for (size_t f = 0; f < model->num_files && status == TRF_OK; f++)
            status = verify_file(job, &model->files[f], source, err);
    }
    return status;
}

trf_status trf_verify_checkpoint(const char *path, const char *against_path, const trf_checkpoint_options *options,
                                 trf_checkpoint_report *report, trf_error *err) {
    trf_checkpoint *checkpoint = NULL, *against = NULL;
    trf_extra_files extra = {0};
    trf_job job;
    trf_status status = trf_job_begin(&job, options, err);
    if (status == TRF_OK && job.options.resume)
        status = trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "resume is for compressing");
    if (status == TRF_OK)
        status = trf_checkpoint_open_counted(path, &job.budget, &checkpoint, err);
    if (status == TRF_OK && against_path)
        status = open_against(against_path, &job.budget, &against, err);
    if (status == TRF_OK && against)
        status = check_models(checkpoint, against, err);
    if (status != TRF_OK)
        goto done;
    job.total_bytes = job.report.source_bytes = trf_checkpoint_source_bytes(checkpoint);
    job.report.tensors = trf_checkpoint_num_tensors(checkpoint);
    status = trf_extra_files_list(checkpoint, against, &job, &extra, err);
    if (status == TRF_OK)
        status = verify_models(&job, checkpoint, against, err);
    if (status == TRF_OK)
        status = trf_extra_files_verify(&extra, &job, err);
    if (status == TRF_OK)
        trf_job_report(&job, report);
done:
    trf_extra_files_free(&extra);
    trf_checkpoint_close(checkpoint);
    trf_checkpoint_close(against);
    trf_job_end(&job);
    return trf_sanitize_error(status, err);
}
