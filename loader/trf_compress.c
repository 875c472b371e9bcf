/* Compressing a checkpoint: tensor by tensor, from the source file into the output, where a blob's size is known only
 * once it is written. So blobs come first, each where the last one that was worth keeping ended; then the other
 * tensors; and the header, for which room was left, last. */
#include "trf_encode.h"
#include "trf_output.h"
#include "trf_select.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What became of a tensor. */
typedef struct trf_packed_tensor {
    const trf_tensor *source;
    trf_choice choice;
    uint64_t begin, end; /* in the output's data */
    int is_blob;
} trf_packed_tensor;

/* One shard on its way into the output. */
typedef struct trf_packer {
    trf_run *run;
    const trf_shard *shard;
    const trf_choice_rules *rules;
    trf_file in;
    const trf_file *out;
    trf_packed_tensor *tensors; /* [shard->num_tensors] */
    uint64_t data_offset;       /* of the output's data: the room for its header */
    uint64_t end;               /* of what has been placed in the data */
    size_t blobs;
} trf_packer;

/* The weights of one matrix, in the source file. */
typedef struct trf_matrix_source {
    const trf_file *file;
    uint64_t offset;
    uint64_t row_bytes, weight_bytes;
} trf_matrix_source;

typedef struct trf_matrix_sink {
    const trf_file *file;
    uint64_t offset;
} trf_matrix_sink;

typedef struct trf_matrix_progress {
    trf_run *run;
    const char *tensor;
    uint64_t weight_bytes;
} trf_matrix_progress;

static trf_status trf_read_matrix(void *context, uint32_t row, uint32_t num_rows, uint32_t col, uint32_t num_cols,
                                  void *dst, trf_error *err) {
    const trf_matrix_source *matrix = context;
    uint64_t line = num_cols * matrix->weight_bytes;
    uint64_t offset = matrix->offset + row * matrix->row_bytes + col * matrix->weight_bytes;
    if (line == matrix->row_bytes)
        return trf_file_read(matrix->file, offset, dst, num_rows * line, err);
    trf_status status = TRF_OK;
    for (uint32_t r = 0; r < num_rows && status == TRF_OK; r++)
        status = trf_file_read(matrix->file, offset + r * matrix->row_bytes, (uint8_t *)dst + r * line, line, err);
    return status;
}

static trf_status trf_write_blob(void *context, uint64_t offset, const void *bytes, size_t size, trf_error *err) {
    const trf_matrix_sink *sink = context;
    return trf_file_write(sink->file, sink->offset + offset, bytes, size, err);
}

static int trf_tick_matrix(void *context, uint64_t done_weights, uint64_t total_weights) {
    const trf_matrix_progress *progress = context;
    (void)total_weights;
    return trf_run_tick(progress->run, progress->tensor, done_weights * progress->weight_bytes);
}

/* Encodes matrix x of a tensor to byte `place` of the output. */
static trf_status trf_pack_matrix(trf_packer *packer, const trf_tensor *tensor, uint64_t x, uint64_t place,
                                  uint64_t *blob_bytes, trf_error *err) {
    trf_encode_options options;
    trf_dtype dtype = trf_dtype_of_name(tensor->dtype);
    trf_encode_options_for(&packer->run->options.encode, dtype, &options);
    uint64_t rows = tensor->shape[tensor->num_dims - 2], cols = tensor->shape[tensor->num_dims - 1];
    uint64_t weight_bytes = trf_dtype_bytes(dtype), matrix_bytes = rows * cols * weight_bytes;
    trf_matrix_source matrix = {&packer->in, 0, cols * weight_bytes, weight_bytes};
    matrix.offset = trf_safetensors_data_offset(&packer->shard->own) + tensor->begin + x * matrix_bytes;
    trf_matrix_sink place_in_file = {packer->out, place};
    trf_matrix_progress ticks = {packer->run, tensor->name, weight_bytes};

    trf_source source = {dtype, (uint32_t)rows, (uint32_t)cols, &matrix, trf_read_matrix, NULL};
    trf_sink sink = {&place_in_file, trf_write_blob};
    trf_progress progress = {&ticks, trf_tick_matrix};
    trf_layer_report layer = {0};
    trf_status status = trf_encode_stream(&source, &options, &sink, &progress, blob_bytes, &layer, err);
    packer->run->weight_energy += layer.weight_energy;
    packer->run->error_energy += layer.weight_energy * layer.relative_rms_error * layer.relative_rms_error;
    if (status == TRF_OK)
        status = trf_run_advance(packer->run, tensor->name, matrix_bytes, err);
    return status;
}

/* Encodes a 3-D tensor: an index, and its matrices behind it. */
static trf_status trf_pack_stack(trf_packer *packer, const trf_tensor *tensor, uint64_t place, uint64_t *bytes,
                                 trf_error *err) {
    uint64_t count = tensor->shape[0], index_bytes = trf_stack_index_bytes(count), end = index_bytes;
    uint64_t *offsets = calloc(count, sizeof *offsets);
    void *index = malloc(index_bytes);
    trf_status status = offsets && index ? TRF_OK : trf_fail_memory(err, 2 * index_bytes);
    for (uint64_t x = 0; x < count && status == TRF_OK; x++) {
        uint64_t blob_bytes;
        status = trf_pack_matrix(packer, tensor, x, place + end, &blob_bytes, err);
        if (status != TRF_OK) {
            trf_fail_in(err, status, "matrix %" PRIu64, x);
            break;
        }
        offsets[x] = end;
        end += blob_bytes;
    }
    if (status == TRF_OK) {
        trf_stack_index_write(offsets, count, index);
        status = trf_file_write(packer->out, place, index, index_bytes, err);
    }
    free(offsets);
    free(index);
    *bytes = end;
    return status;
}

/* Encodes one tensor behind the blobs before it, and keeps the result if it is worth it. */
static trf_status trf_pack_tensor(trf_packer *packer, trf_packed_tensor *packed, trf_error *err) {
    const trf_tensor *tensor = packed->source;
    trf_checkpoint_report *report = &packer->run->report;
    double error_energy = packer->run->error_energy, weight_energy = packer->run->weight_energy;
    uint64_t place = packer->data_offset + packer->end, bytes;
    trf_status status = tensor->num_dims == 2 ? trf_pack_matrix(packer, tensor, 0, place, &bytes, err)
                                              : trf_pack_stack(packer, tensor, place, &bytes, err);
    if (status != TRF_OK)
        return trf_fail_in(err, status, "%s: tensor '%s' at byte %" PRIu64, packer->shard->path, tensor->name,
                           trf_safetensors_data_offset(&packer->shard->own) + tensor->begin);
    packed->is_blob = packed->choice == TRF_CHOICE_ALWAYS || bytes < trf_tensor_bytes(tensor);
    if (!packed->is_blob) { /* the next one is written over it */
        packer->run->error_energy = error_energy, packer->run->weight_energy = weight_energy;
        return TRF_OK;
    }
    packed->begin = packer->end;
    packed->end = packer->end += bytes;
    packer->blobs++;
    report->compressed_tensors++;
    report->compressed_source_bytes += trf_tensor_bytes(tensor);
    report->compressed_bytes += bytes;
    trf_dtype dtype = trf_dtype_of_name(tensor->dtype);
    report->compressed_weights += trf_tensor_bytes(tensor) / trf_dtype_bytes(dtype);
    report->rounded_tensors += dtype == TRF_DTYPE_F32 && packer->run->options.encode.codec == TRF_CODEC_BF16;
    return TRF_OK;
}

/* Copies the tensors that stay, wide ones first, so that each is aligned to its elements. */
static trf_status trf_pack_others(trf_packer *packer, trf_error *err) {
    static const uint32_t widths[] = {64, 32, 16, 0};
    uint64_t in_data = trf_safetensors_data_offset(&packer->shard->own);
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
        for (size_t i = 0; i < packer->shard->num_tensors; i++) {
            trf_packed_tensor *packed = &packer->tensors[i];
            uint32_t bits = trf_dtype_bits_of_name(packed->source->dtype);
            if (packed->is_blob || (bits < 16 ? 0 : bits) != widths[w])
                continue;
            uint64_t bytes = trf_tensor_bytes(packed->source);
            /* Those that were encoded in vain have been counted as done. */
            const char *counted = packed->choice == TRF_CHOICE_KEEP ? packed->source->name : NULL;
            trf_status status = trf_run_copy(packer->run, counted, &packer->in, in_data + packed->source->begin,
                                             packer->out, packer->data_offset + packer->end, bytes, err);
            if (status != TRF_OK)
                return status;
            packed->begin = packer->end;
            packed->end = packer->end += bytes;
        }
    return TRF_OK;
}

/* The source's metadata and ours. @return a new reference, or NULL without memory. */
static json_t *trf_packed_metadata(const trf_shard *shard) {
    json_t *metadata = shard->own.metadata ? json_copy(shard->own.metadata) : json_object();
    json_t *kept = json_stringn(shard->own.text, shard->own.text_bytes);
    int failed = !metadata || !kept || json_object_set_new(metadata, TRF_METADATA_FORMAT, json_string("1")) ||
                 json_object_set(metadata, TRF_METADATA_HEADER, kept);
    json_decref(kept);
    if (!failed)
        return metadata;
    json_decref(metadata);
    return NULL;
}

/* Sets data_offset so that the header fits, whatever the blobs' sizes will be. */
static trf_status trf_reserve_header(trf_packer *packer, const json_t *metadata, trf_error *err) {
    trf_text text = {0};
    trf_header_begin(&text, metadata);
    uint64_t bound = text.size + 1, failed = text.failed;
    trf_text_free(&text);
    for (size_t i = 0; i < packer->shard->num_tensors; i++) {
        size_t entry = trf_header_entry_bound(packer->tensors[i].source, TRF_BLOB_SUFFIX);
        failed |= entry == 0;
        bound += entry;
    }
    if (failed)
        return trf_fail_memory(err, bound);
    packer->data_offset = trf_align(8 + bound);
    if (packer->data_offset - 8 > TRF_MAX_HEADER_BYTES)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "%s: with the source's header kept, the compressed file's header may take %" PRIu64
                        " bytes, and safetensors allows %u",
                        packer->shard->path, packer->data_offset - 8, TRF_MAX_HEADER_BYTES);
    return TRF_OK;
}

static trf_status trf_write_header(trf_packer *packer, const json_t *metadata, trf_error *err) {
    trf_text text = {0};
    uint64_t room = packer->data_offset - 8;
    trf_header_begin(&text, metadata);
    for (int blobs = 1; blobs >= 0; blobs--)
        for (size_t i = 0; i < packer->shard->num_tensors; i++) {
            const trf_packed_tensor *packed = &packer->tensors[i];
            const trf_tensor *source = packed->source;
            uint64_t bytes = packed->end - packed->begin;
            if (packed->is_blob != blobs)
                continue;
            if (blobs)
                trf_header_add(&text, source->name, TRF_BLOB_SUFFIX, "U8", &bytes, 1, packed->begin, packed->end);
            else
                trf_header_add(&text, source->name, "", source->dtype, source->shape, source->num_dims, packed->begin,
                               packed->end);
        }
    trf_header_end(&text, 1);
    while (text.size < room && !text.failed)
        trf_text_append(&text, "                ", room - text.size < 16 ? (size_t)(room - text.size) : 16);
    trf_status status = text.failed || text.size != room ? trf_fail_memory(err, room) : TRF_OK;
    if (status == TRF_OK)
        status = trf_file_write(packer->out, 0, &room, sizeof room, err);
    if (status == TRF_OK)
        status = trf_file_write(packer->out, 8, text.bytes, room, err);
    if (status == TRF_OK) /* a blob that was not worth keeping may reach further */
        status = trf_file_resize(packer->out, packer->data_offset + packer->end, err);
    trf_text_free(&text);
    return status;
}

/* A shard in which nothing is compressed stays as it is, byte for byte. */
static trf_status trf_copy_shard(trf_packer *packer, uint64_t uncounted_bytes, trf_error *err) {
    trf_status status = trf_file_resize(packer->out, 0, err);
    if (status == TRF_OK)
        status = trf_run_copy(packer->run, NULL, &packer->in, 0, packer->out, 0, packer->shard->file_bytes, err);
    if (status == TRF_OK)
        status = trf_run_advance(packer->run, packer->shard->name, uncounted_bytes, err);
    return status;
}

static trf_status trf_pack_shard(trf_packer *packer, trf_error *err) {
    const trf_shard *shard = packer->shard;
    uint64_t kept_bytes = 0;
    json_t *metadata = NULL;
    trf_status status = TRF_OK;
    for (size_t i = 0; i < shard->num_tensors && status == TRF_OK; i++) {
        trf_packed_tensor *packed = &packer->tensors[i];
        packed->source = shard->tensors[i].source;
        status = trf_choose(packer->rules, packed->source, &packed->choice, err);
        kept_bytes += packed->choice == TRF_CHOICE_KEEP ? trf_tensor_bytes(packed->source) : 0;
    }
    if (status == TRF_OK && !(metadata = trf_packed_metadata(shard)))
        status = trf_fail_memory(err, shard->own.text_bytes);
    if (status == TRF_OK)
        status = trf_reserve_header(packer, metadata, err);
    for (size_t i = 0; i < shard->num_tensors && status == TRF_OK; i++)
        if (packer->tensors[i].choice != TRF_CHOICE_KEEP)
            status = trf_pack_tensor(packer, &packer->tensors[i], err);
    if (status == TRF_OK && packer->blobs == 0) {
        status = trf_copy_shard(packer, kept_bytes, err);
        packer->end = shard->own.data_bytes;
    } else if (status == TRF_OK) {
        status = trf_pack_others(packer, err);
        if (status == TRF_OK)
            status = trf_write_header(packer, metadata, err);
    }
    packer->run->report.output_bytes += packer->end;
    json_decref(metadata);
    return status;
}

/* What all shards share. */
typedef struct trf_compression {
    trf_run run;
    trf_choice_rules rules;
} trf_compression;

static trf_status trf_compress_shard(void *context, const trf_shard *shard, const trf_file *out, trf_error *err) {
    trf_compression *work = context;
    uint64_t file_bytes;
    trf_packer packer = {.run = &work->run, .shard = shard, .rules = &work->rules, .out = out};
    trf_status status = trf_file_open(shard->path, &packer.in, &file_bytes, err);
    if (status != TRF_OK)
        return status;
    packer.tensors = calloc(shard->num_tensors + 1, sizeof *packer.tensors);
    status = packer.tensors ? trf_pack_shard(&packer, err)
                            : trf_fail_memory(err, shard->num_tensors * sizeof *packer.tensors);
    free(packer.tensors);
    trf_file_close(&packer.in);
    return status;
}

/* ---- before anything is written ---- */

static trf_status trf_check_collision(const trf_checkpoint *checkpoint, const trf_shard *shard,
                                      const trf_tensor *tensor, trf_error *err) {
    char *name = trf_blob_name(tensor->name);
    if (!name)
        return trf_fail_memory(err, strlen(tensor->name));
    const char *where = trf_safetensors_find(&shard->own, name) ? shard->path : NULL;
    for (size_t i = 0; i < checkpoint->num_indexes && !where; i++)
        if (json_object_get(checkpoint->indexes[i].weight_map, name))
            where = checkpoint->indexes[i].path;
    free(name);
    if (!where)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                    "%s: tensor '%s' would become '%s" TRF_BLOB_SUFFIX "', which exists already; exclude it", where,
                    tensor->name, tensor->name);
}

static trf_status trf_check_shard(const trf_checkpoint *checkpoint, const trf_shard *shard,
                                  const trf_choice_rules *rules, trf_error *err) {
    if (shard->compressed)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%s: is compressed already", shard->path);
    if (trf_safetensors_metadata(&shard->own, TRF_METADATA_HEADER))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%s: __metadata__ has '" TRF_METADATA_HEADER "' already",
                        shard->path);
    for (size_t i = 0; i < shard->num_tensors; i++) {
        trf_choice choice;
        const trf_tensor *tensor = shard->tensors[i].source;
        trf_status status = trf_choose(rules, tensor, &choice, err);
        if (status != TRF_OK)
            return trf_fail_in(err, status, "%s", shard->path);
        if (choice != TRF_CHOICE_KEEP && (status = trf_check_collision(checkpoint, shard, tensor, err)) != TRF_OK)
            return status;
    }
    return TRF_OK;
}

/* A name in `include` that is no tensor's is a mistake; better to hear of it now. */
static trf_status trf_check_include(const trf_checkpoint *checkpoint, const trf_checkpoint_options *options,
                                    trf_error *err) {
    for (size_t p = 0; options->include && options->include[p]; p++) {
        int found = !trf_pattern_is_name(options->include[p]);
        for (size_t i = 0; i < checkpoint->num_shards && !found; i++)
            found = trf_shard_find(&checkpoint->shards[i], options->include[p]) != NULL;
        if (!found)
            return trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET, "%s: there is no tensor '%s' to include",
                            checkpoint->root, options->include[p]);
    }
    return TRF_OK;
}

static trf_status trf_check_compressible(const trf_checkpoint *checkpoint, const trf_choice_rules *rules,
                                         trf_error *err) {
    trf_status status = trf_check_include(checkpoint, rules->options, err);
    for (size_t i = 0; i < checkpoint->num_shards && status == TRF_OK; i++)
        status = trf_check_shard(checkpoint, &checkpoint->shards[i], rules, err);
    for (size_t i = 0; i < checkpoint->num_indexes && status == TRF_OK; i++)
        if (json_object_get(json_object_get(checkpoint->indexes[i].root, "metadata"), TRF_METADATA_INDEX))
            status = trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%s: is the index of a compressed checkpoint",
                              checkpoint->indexes[i].path);
    return status;
}

trf_status trf_compress_checkpoint(const char *in_path, const char *out_path, const trf_checkpoint_options *options,
                                   trf_checkpoint_report *report, trf_error *err) {
    trf_checkpoint *checkpoint = NULL;
    trf_compression work = {0};
    trf_status status = trf_run_begin(&work.run, options, err);
    if (status == TRF_OK)
        status = trf_checkpoint_open(in_path, &checkpoint, err);
    if (status != TRF_OK)
        goto done;
    status = trf_choice_rules_for(checkpoint, &work.run.options, &work.rules, work.run.report.warning,
                                  sizeof work.run.report.warning, err);
    if (status != TRF_OK)
        goto done;
    work.run.total_bytes = work.run.report.source_bytes = trf_checkpoint_source_bytes(checkpoint);
    work.run.report.tensors = trf_checkpoint_num_tensors(checkpoint);
    status = trf_check_compressible(checkpoint, &work.rules, err);
    if (status == TRF_OK)
        status = trf_checkpoint_convert(checkpoint, &work.run, out_path, trf_compress_shard, &work, err);
    if (status == TRF_OK)
        trf_run_report(&work.run, report);
done:
    trf_checkpoint_close(checkpoint);
    trf_run_end(&work.run);
    return trf_leave(status, err);
}
