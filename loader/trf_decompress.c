/* Decompressing a checkpoint: each source tensor goes back to where the source's header says it was. */
#include "trf_checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>

/* One matrix on its way to its place in the output. */
typedef struct trf_matrix_target {
    trf_run *run;
    const char *tensor;
    const trf_file *out;
    uint64_t offset; /* of the matrix in the output */
    uint64_t cols;
    size_t value_bytes;
} trf_matrix_target;

static trf_status trf_write_block(void *context, const trf_block *block, trf_error *err) {
    const trf_matrix_target *target = context;
    uint64_t place = target->offset + ((uint64_t)block->row * target->cols + block->col) * target->value_bytes;
    uint64_t row_bytes = (uint64_t)block->cols * target->value_bytes;
    trf_status status = TRF_OK;
    if (block->cols == target->cols)
        status = trf_file_write(target->out, place, block->values, row_bytes * block->rows, err);
    else
        for (uint32_t r = 0; r < block->rows && status == TRF_OK; r++)
            status = trf_file_write(target->out, place + r * target->cols * target->value_bytes,
                                    block->values + r * row_bytes, row_bytes, err);
    return status == TRF_OK ? trf_run_advance(target->run, target->tensor, row_bytes * block->rows, err) : status;
}

static trf_status trf_unpack_blobs(trf_run *run, const trf_file *in, const trf_shard_tensor *tensor,
                                   const trf_file *out, uint64_t out_offset, trf_error *err) {
    trf_blob_list list;
    trf_status status = trf_blob_list_read(in, tensor->file_offset, tensor->bytes, &list, err);
    if (status != TRF_OK)
        return status;
    for (uint64_t x = 0; x < list.count && status == TRF_OK; x++) {
        trf_blob_reader reader;
        uint64_t buffers = 0;
        if ((status = trf_shard_open_blob(in, tensor, &list, x, &reader, err)) != TRF_OK)
            break;
        const trf_header *header = &reader.view.header;
        size_t value_bytes = trf_dtype_bytes((trf_dtype)header->source_dtype);
        trf_matrix_target target = {run, tensor->source->name, out, out_offset, header->cols, value_bytes};
        status = trf_blob_reader_decode(&reader, run->options.encode.threads, trf_write_block, &target, &buffers, err);
        trf_run_hold(run, buffers);
        trf_run_release(run, buffers);
        out_offset += (uint64_t)header->rows * header->cols * value_bytes;
        trf_blob_reader_close(&reader);
    }
    trf_blob_list_free(&list);
    return status;
}

static trf_status trf_unpack_shard(trf_run *run, const trf_shard *shard, const trf_file *in, const trf_file *out,
                                   trf_error *err) {
    const trf_safetensors *source = trf_shard_source(shard);
    uint64_t text_bytes = source->text_bytes, data = trf_safetensors_data_offset(source);
    trf_status status = trf_file_write(out, 0, &text_bytes, sizeof text_bytes, err);
    if (status == TRF_OK)
        status = trf_file_write(out, sizeof text_bytes, source->text, text_bytes, err);
    for (size_t i = 0; i < shard->num_tensors && status == TRF_OK; i++) {
        const trf_shard_tensor *tensor = &shard->tensors[i];
        uint64_t place = data + tensor->source->begin;
        if (tensor->blobs)
            status = trf_unpack_blobs(run, in, tensor, out, place, err);
        else
            status = trf_run_copy(run, tensor->source->name, in, tensor->file_offset, out, place, tensor->bytes, err);
        if (status != TRF_OK)
            return trf_fail_in(err, status, "%s: tensor '%s' at byte %" PRIu64, shard->path, tensor->source->name,
                               tensor->file_offset);
        trf_count_tensor(run, tensor);
    }
    return status;
}

static trf_status trf_decompress_shard(void *context, const trf_shard *shard, const trf_file *out, trf_error *err) {
    trf_file in;
    uint64_t file_bytes;
    trf_status status = trf_file_open(shard->path, &in, &file_bytes, err);
    if (status != TRF_OK)
        return status;
    status = trf_unpack_shard(context, shard, &in, out, err);
    trf_file_close(&in);
    return status;
}

trf_status trf_decompress_checkpoint(const char *in_path, const char *out_path, const trf_checkpoint_options *options,
                                     trf_checkpoint_report *report, trf_error *err) {
    trf_checkpoint *checkpoint = NULL;
    trf_run run;
    trf_status status = trf_run_begin(&run, options, err);
    if (status == TRF_OK)
        status = trf_checkpoint_open(in_path, &checkpoint, err);
    if (status != TRF_OK)
        goto done;
    run.total_bytes = run.report.source_bytes = trf_checkpoint_source_bytes(checkpoint);
    run.report.tensors = trf_checkpoint_num_tensors(checkpoint);
    status = trf_checkpoint_convert(checkpoint, &run, out_path, trf_decompress_shard, &run, err);
    if (status == TRF_OK)
        trf_run_report(&run, report);
done:
    trf_checkpoint_close(checkpoint);
    trf_run_end(&run);
    return trf_leave(status, err);
}
