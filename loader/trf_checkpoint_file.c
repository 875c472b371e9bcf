/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_checkpoint_file.h"

#include "trf_json.h"
#include "trf_split.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What the header of a stored tensor's first blob says. */
typedef struct trf_blob_shape {
    trf_dtype dtype;
    int is_scaled_fp8;
    uint64_t shape[3]; /* [blobs][rows][cols] for an expert tensor, else [rows][cols] */
    uint32_t num_dims;
    uint64_t blobs;
} trf_blob_shape;

char *trf_blob_name(const char *name) {
    char *whole = malloc(strlen(name) + sizeof TRF_BLOB_SUFFIX);
    if (whole)
        strcpy(stpcpy(whole, name), TRF_BLOB_SUFFIX);
    return whole;
}

static uint64_t tensor_file_offset(const trf_checkpoint_file *checkpoint_file, const trf_tensor *tensor) {
    return trf_safetensors_data_offset(&checkpoint_file->own_header) + tensor->begin;
}

static trf_status read_blob_shape(const trf_file *file, uint64_t offset, uint64_t bytes, trf_blob_shape *blob_shape,
                                  trf_error *err) {
    trf_blob_list list;
    trf_header header = {0};
    trf_status status = trf_blob_list_read(file, offset, bytes, &list, err);
    if (status != TRF_OK)
        return status;
    uint64_t at = offset + list.offsets[0], room = list.offsets[1] - list.offsets[0];
    *blob_shape = (trf_blob_shape){.blobs = list.is_expert_tensor ? list.count : 1};
    if (room < sizeof header)
        status = trf_fail(err, TRF_ERR_TRUNCATED, at, "%" PRIu64 " bytes at byte %" PRIu64 " are too few for a blob",
                          room, at);
    else
        status = trf_file_read(file, at, &header, sizeof header, err);
    if (status == TRF_OK && header.magic != TRF_MAGIC)
        status = trf_fail(err, TRF_ERR_MAGIC, at, "no blob at byte %" PRIu64 ": magic 0x%08" PRIx32, at, header.magic);
    if (status == TRF_OK && !trf_is_known_version(header.version))
        status = trf_fail(err, TRF_ERR_VERSION, at + 4,
                          "blob at byte %" PRIu64 ": format version %u, and this build reads %d to %d", at,
                          header.version, TRF_FORMAT_VERSION, TRF_SCALED_FP8_VERSION);
    if (status == TRF_OK && (!trf_dtype_bytes((trf_dtype)header.source_dtype) || !header.rows || !header.cols))
        status = trf_fail(err, TRF_ERR_HEADER, at,
                          "blob at byte %" PRIu64 ": dtype %u, %" PRIu32 " rows, %" PRIu32 " columns", at,
                          header.source_dtype, header.rows, header.cols);
    if (status == TRF_OK) {
        blob_shape->dtype = (trf_dtype)header.source_dtype;
        blob_shape->is_scaled_fp8 = trf_is_scaled_fp8(header.codec, header.source_dtype);
        if (list.is_expert_tensor)
            blob_shape->shape[blob_shape->num_dims++] = list.count;
        blob_shape->shape[blob_shape->num_dims++] = header.rows;
        blob_shape->shape[blob_shape->num_dims++] = header.cols;
    }
    trf_blob_list_free(&list);
    return status;
}

/* Sets *begins to whether a tensor of the file begins as blobs do, judging by type and magic. */
static trf_status begins_as_blob(const trf_file *file, const trf_checkpoint_file *checkpoint_file,
                                 const trf_tensor *tensor, int *begins, trf_error *err) {
    uint32_t magic = 0;
    *begins = 0;
    if (strcmp(tensor->dtype, "U8") != 0 || tensor->num_dims != 1 || trf_tensor_bytes(tensor) < TRF_ALIGNMENT)
        return TRF_OK;
    trf_status status = trf_file_read(file, tensor_file_offset(checkpoint_file, tensor), &magic, sizeof magic, err);
    *begins = magic == TRF_MAGIC || magic == TRF_EXPERT_INDEX_MAGIC;
    return status;
}

/* Sets *is_blob to whether a tensor of the file is stored as blobs, judging by suffix, type and magic. */
static trf_status is_blob_tensor(const trf_file *file, const trf_checkpoint_file *checkpoint_file,
                                 const trf_tensor *tensor, int *is_blob, trf_error *err) {
    size_t length = strlen(tensor->name), suffix = strlen(TRF_BLOB_SUFFIX);
    *is_blob = 0;
    if (length < suffix || strcmp(tensor->name + length - suffix, TRF_BLOB_SUFFIX) != 0)
        return TRF_OK;
    return begins_as_blob(file, checkpoint_file, tensor, is_blob, err);
}

/* Finds out what a tensor was before, in a compressed file that keeps no source header. The blobs of a tensor say it;
 * another tensor is what it was (blobs = 0). */
static trf_status read_source_shape(const trf_file *file, const trf_checkpoint_file *checkpoint_file,
                                    const trf_tensor *tensor, trf_blob_shape *blob_shape, trf_error *err) {
    int is_blob;
    *blob_shape = (trf_blob_shape){0};
    trf_status status = is_blob_tensor(file, checkpoint_file, tensor, &is_blob, err);
    if (status != TRF_OK || !is_blob)
        return status;
    status =
        read_blob_shape(file, tensor_file_offset(checkpoint_file, tensor), trf_tensor_bytes(tensor), blob_shape, err);
    return status == TRF_OK ? TRF_OK : trf_prefix_error(err, status, "tensor '%s'", tensor->name);
}

/* Adds a tensor to a header that is being rebuilt. Its data follows that of the tensors before, which ends at *end. */
static trf_status add_source_tensor(trf_text *text, const char *name, const trf_tensor *own,
                                    const trf_blob_shape *blob_shape, uint64_t *end, trf_error *err) {
    uint64_t begin = *end, bytes = own ? trf_tensor_bytes(own) : 0;
    if (blob_shape->blobs) {
        bytes = trf_dtype_bytes(blob_shape->dtype);
        for (uint32_t i = 0; i < blob_shape->num_dims; i++)
            if (__builtin_mul_overflow(bytes, blob_shape->shape[i], &bytes))
                bytes = UINT64_MAX;
    }
    if (__builtin_add_overflow(begin, bytes, end) || *end > INT64_MAX)
        return trf_fail(err, TRF_ERR_HEADER, TRF_NO_OFFSET, "tensor '%s': its decompressed size overflows", name);
    if (blob_shape->blobs)
        trf_safetensors_add_tensor(text, name, "", trf_dtype_name(blob_shape->dtype), blob_shape->shape,
                                   blob_shape->num_dims, begin, *end);
    else if (own)
        trf_safetensors_add_tensor(text, name, "", own->dtype, own->shape, own->num_dims, begin, *end);
    return TRF_OK;
}

/* Adds the tensors whose elements are `bits` wide. */
static trf_status add_source_tensors_of_width(const trf_checkpoint_file *checkpoint_file,
                                              const trf_blob_shape *blob_shape, uint32_t bits, trf_text *text,
                                              uint64_t *end, trf_error *err) {
    for (size_t i = 0; i < checkpoint_file->own_header.num_tensors; i++) {
        const trf_tensor *own = &checkpoint_file->own_header.tensors[i];
        uint32_t width = blob_shape[i].blobs ? 8 * (uint32_t)trf_dtype_bytes(blob_shape[i].dtype)
                                             : trf_dtype_bits_of_name(own->dtype);
        if ((width < 8 ? 0 : width) != bits)
            continue;
        size_t length = strlen(own->name) - (blob_shape[i].blobs ? strlen(TRF_BLOB_SUFFIX) : 0);
        char *name = strndup(own->name, length);
        if (!name)
            return trf_fail_memory(err, length);
        trf_status status = add_source_tensor(text, name, own, &blob_shape[i], end, err);
        free(name);
        if (status != TRF_OK)
            return status;
    }
    return TRF_OK;
}

/* Makes a source header for a compressed file that keeps none. */
static trf_status rebuild_header(const trf_file *file, trf_checkpoint_file *checkpoint_file, trf_error *err) {
    static const uint32_t widths[] = {64, 32, 16, 8, 0}; /* wide types first, so that all are aligned */
    size_t count = checkpoint_file->is_layer ? 1 : checkpoint_file->own_header.num_tensors;
    trf_text text = {0};
    uint64_t end = 0;
    trf_status status = TRF_OK;
    json_t *metadata =
        checkpoint_file->own_header.metadata ? trf_json_copy(checkpoint_file->own_header.metadata) : NULL;
    trf_blob_shape *blob_shape = calloc(count + 1, sizeof *blob_shape);
    if (!blob_shape || (checkpoint_file->own_header.metadata && !metadata)) {
        status = trf_fail_memory(err, count * sizeof *blob_shape);
        goto done;
    }
    if (metadata)
        json_object_del(metadata, TRF_METADATA_FORMAT);
    trf_safetensors_begin_header(&text, metadata);
    if (checkpoint_file->is_layer) {
        status = read_blob_shape(file, 0, checkpoint_file->file_bytes, blob_shape, err);
        if (status == TRF_OK)
            status = add_source_tensor(&text, "weight", NULL, blob_shape, &end, err);
    } else {
        for (size_t i = 0; i < count && status == TRF_OK; i++)
            status =
                read_source_shape(file, checkpoint_file, &checkpoint_file->own_header.tensors[i], &blob_shape[i], err);
        for (size_t w = 0; w < sizeof widths / sizeof widths[0] && status == TRF_OK; w++)
            status = add_source_tensors_of_width(checkpoint_file, blob_shape, widths[w], &text, &end, err);
    }
    trf_safetensors_end_header(&text, 8);
    if (status == TRF_OK && text.failed)
        status = trf_fail_memory(err, text.size);
done:
    free(blob_shape);
    json_decref(metadata);
    if (status == TRF_OK)
        return trf_safetensors_parse_counted(file->budget, text.bytes, text.size, UINT64_MAX,
                                             &checkpoint_file->source_header, err);
    trf_text_free(&text);
    return status;
}

/* Reads the source header that the compressor kept, or rebuilds it. */
static trf_status read_source_header(const trf_file *file, trf_checkpoint_file *checkpoint_file, trf_error *err) {
    const char *kept = trf_safetensors_metadata(&checkpoint_file->own_header, TRF_METADATA_HEADER);
    if (!kept)
        return rebuild_header(file, checkpoint_file, err);
    trf_status status = trf_budget_check(file->budget, strlen(kept) + 1, "the kept source header", err);
    if (status != TRF_OK)
        return status;
    char *text = strdup(kept);
    if (!text)
        return trf_fail_memory(err, strlen(kept));
    status = trf_safetensors_parse_counted(file->budget, text, strlen(kept), UINT64_MAX,
                                           &checkpoint_file->source_header, err);
    if (status == TRF_OK)
        return TRF_OK;
    if (err)
        err->offset = TRF_NO_OFFSET; /* the offset is one in the source */
    return trf_prefix_error(err, status, "the kept source header");
}

static trf_status source_header_mismatch(const trf_tensor *source, const char *what, trf_error *err) {
    return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "tensor '%s': the kept source header does not fit: %s",
                    source->name, what);
}

static int same_shape(const trf_tensor *tensor, const uint64_t *shape, uint32_t num_dims) {
    return tensor->num_dims == num_dims && memcmp(tensor->shape, shape, num_dims * sizeof *shape) == 0;
}

static trf_status map_plain_tensor(const trf_file *file, const trf_checkpoint_file *checkpoint_file,
                                   const trf_tensor *own, trf_file_tensor *tensor, trf_error *err) {
    tensor->file_offset = tensor_file_offset(checkpoint_file, own), tensor->bytes = trf_tensor_bytes(own);
    return begins_as_blob(file, checkpoint_file, own, &tensor->is_bare_blob, err);
}

/* Finds where a source tensor is stored in a compressed safetensors file. */
static trf_status map_tensor(const trf_file *file, const trf_checkpoint_file *checkpoint_file, const trf_tensor *source,
                             trf_file_tensor *tensor, trf_error *err) {
    const trf_tensor *own = trf_safetensors_find(&checkpoint_file->own_header, source->name);
    if (own) {
        if (strcmp(own->dtype, source->dtype) != 0 || !same_shape(own, source->shape, source->num_dims) ||
            trf_tensor_bytes(own) != trf_tensor_bytes(source))
            return source_header_mismatch(source, "dtype, shape or size differ", err);
        return map_plain_tensor(file, checkpoint_file, own, tensor, err);
    }
    char *name = trf_blob_name(source->name);
    if (!name)
        return trf_fail_memory(err, strlen(source->name));
    own = trf_safetensors_find(&checkpoint_file->own_header, name);
    /* Or one tensor of the file would stand for two, and another one for none. */
    const int is_other = trf_safetensors_find(trf_checkpoint_file_source_header(checkpoint_file), name) != NULL;
    free(name);
    if (is_other)
        return source_header_mismatch(source, "another tensor has its blob's name", err);
    if (!own)
        return source_header_mismatch(source, "the file does not hold this tensor", err);
    if (strcmp(own->dtype, "U8") != 0 || own->num_dims != 1)
        return source_header_mismatch(source, "what should be its blob is not a row of U8", err);
    trf_blob_shape blob_shape;
    tensor->file_offset = tensor_file_offset(checkpoint_file, own), tensor->bytes = trf_tensor_bytes(own);
    trf_status status = read_blob_shape(file, tensor->file_offset, tensor->bytes, &blob_shape, err);
    if (status != TRF_OK)
        return trf_prefix_error(err, status, "tensor '%s'", own->name);
    const trf_dtype dtype = trf_dtype_of_name(source->dtype);
    tensor->is_scaled_fp8 = blob_shape.is_scaled_fp8 && dtype == TRF_DTYPE_F8_E4M3;
    if ((blob_shape.dtype != dtype && !tensor->is_scaled_fp8) ||
        !same_shape(source, blob_shape.shape, blob_shape.num_dims))
        return source_header_mismatch(source, "the blob has another dtype or shape", err);
    tensor->blobs = blob_shape.blobs;
    return TRF_OK;
}

static trf_status map_tensors(const trf_file *file, trf_checkpoint_file *checkpoint_file, trf_error *err) {
    const trf_safetensors *source = trf_checkpoint_file_source_header(checkpoint_file);
    if (!(checkpoint_file->tensors = calloc(source->num_tensors + 1, sizeof *checkpoint_file->tensors)))
        return trf_fail_memory(err, source->num_tensors * sizeof *checkpoint_file->tensors);
    if (checkpoint_file->is_layer) {
        checkpoint_file->tensors[0] =
            (trf_file_tensor){.source = &source->tensors[0], .bytes = checkpoint_file->file_bytes, .blobs = 1};
        checkpoint_file->num_tensors = 1;
        return TRF_OK;
    }
    const size_t stored = checkpoint_file->own_header.num_tensors + checkpoint_file->side_tables.count;
    if (checkpoint_file->compressed && stored != source->num_tensors)
        return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET,
                        "the kept source header lists %zu tensors, but the file holds %zu", source->num_tensors,
                        stored);
    for (size_t i = 0; i < source->num_tensors; i++) {
        const trf_tensor *source_tensor = &source->tensors[i];
        if (trf_side_tables_find(&checkpoint_file->side_tables, source_tensor))
            continue;
        trf_file_tensor *tensor = &checkpoint_file->tensors[checkpoint_file->num_tensors++];
        tensor->source = source_tensor;
        trf_status status = checkpoint_file->compressed
                                ? map_tensor(file, checkpoint_file, source_tensor, tensor, err)
                                : map_plain_tensor(file, checkpoint_file, source_tensor, tensor, err);
        if (status != TRF_OK)
            return status;
    }
    return TRF_OK;
}

/* Decides whether a safetensors file is compressed: it says so, or one of its tensors is a blob. */
static trf_status detect_compressed(const trf_file *file, trf_checkpoint_file *checkpoint_file, trf_error *err) {
    const char *format = trf_safetensors_metadata(&checkpoint_file->own_header, TRF_METADATA_FORMAT);
    if (format && strcmp(format, "1") != 0)
        return trf_fail(err, TRF_ERR_VERSION, TRF_NO_OFFSET,
                        "__metadata__ has " TRF_METADATA_FORMAT " '%s', and this build reads '1'", format);
    checkpoint_file->compressed = format != NULL;
    for (size_t i = 0; i < checkpoint_file->own_header.num_tensors && !checkpoint_file->compressed; i++) {
        trf_status status = is_blob_tensor(file, checkpoint_file, &checkpoint_file->own_header.tensors[i],
                                           &checkpoint_file->compressed, err);
        if (status != TRF_OK)
            return status;
    }
    return TRF_OK;
}

/* Takes what the list of tensors and the side tables need; of these what was encoded is in the metadata, too. */
static trf_status count_lists(const trf_file *file, const trf_checkpoint_file *checkpoint_file, trf_error *err) {
    const trf_safetensors *own = &checkpoint_file->own_header;
    const char *tables = trf_safetensors_metadata(own, TRF_METADATA_SIDE_TABLES);
    const uint64_t tensors = trf_checkpoint_file_source_header(checkpoint_file)->num_tensors,
                   tables_bytes = tables ? trf_json_bytes(tables, strlen(tables)) : 0;
    return trf_budget_take(file->budget,
                           (tensors + 1) * (sizeof(trf_file_tensor) + sizeof(trf_side_table)) + tables_bytes,
                           "its list of tensors", err);
}

static trf_status parse_checkpoint_file(const trf_file *file, trf_checkpoint_file *checkpoint_file, trf_error *err) {
    uint32_t magic = 0;
    trf_status status = TRF_OK;
    if (checkpoint_file->file_bytes >= sizeof magic)
        status = trf_file_read(file, 0, &magic, sizeof magic, err);
    if (status != TRF_OK)
        return status;
    /* The magic, if it were read as the first bytes of a safetensors file, would be a header size far above the limit.
     * A .trf file without the magic is a broken blob. */
    size_t length = strlen(checkpoint_file->path);
    int named_trf = length > 4 && strcmp(checkpoint_file->path + length - 4, ".trf") == 0;
    checkpoint_file->is_layer = checkpoint_file->compressed = magic == TRF_MAGIC || named_trf;
    if (named_trf && magic == TRF_EXPERT_INDEX_MAGIC)
        return trf_fail(err, TRF_ERR_MAGIC, 0, "an expert tensor; a .trf file holds one");
    if (!checkpoint_file->is_layer) {
        if ((status = trf_safetensors_read(file, checkpoint_file->file_bytes, &checkpoint_file->own_header, err)) !=
            TRF_OK)
            return status;
        if ((status = detect_compressed(file, checkpoint_file, err)) != TRF_OK)
            return status;
    }
    if (checkpoint_file->compressed && (status = read_source_header(file, checkpoint_file, err)) != TRF_OK)
        return status;
    if ((status = count_lists(file, checkpoint_file, err)) != TRF_OK)
        return status;
    if (checkpoint_file->compressed &&
        (status = trf_side_tables_read(&checkpoint_file->own_header, &checkpoint_file->source_header,
                                       &checkpoint_file->side_tables, err)) != TRF_OK)
        return status;
    return map_tensors(file, checkpoint_file, err);
}

trf_status trf_checkpoint_file_open(const char *path, trf_checkpoint_file *checkpoint_file, trf_error *err) {
    return trf_checkpoint_file_open_counted(path, NULL, checkpoint_file, err);
}

trf_status trf_checkpoint_file_open_counted(const char *path, trf_budget *budget, trf_checkpoint_file *checkpoint_file,
                                            trf_error *err) {
    trf_file file;
    const uint64_t held_before = budget ? budget->held_bytes : 0;
    *checkpoint_file =
        (trf_checkpoint_file){.path = strdup(path), .name = strdup(trf_path_basename(path)), .budget = budget};
    trf_status status;
    if (!checkpoint_file->path || !checkpoint_file->name) {
        status = trf_fail_memory(err, strlen(path));
    } else if ((status = trf_file_open(path, &file, &checkpoint_file->file_bytes, err)) == TRF_OK) {
        file.budget = budget;
        status = trf_file_take_stamp(&file, &checkpoint_file->stamp, err);
        if (status == TRF_OK)
            status = parse_checkpoint_file(&file, checkpoint_file, err);
        /* Messages about failures of the system name the file already. */
        if (status != TRF_OK && status != TRF_ERR_IO)
            trf_prefix_error(err, status, "%s", path);
        trf_file_close(&file);
    }
    checkpoint_file->counted_bytes = budget ? budget->held_bytes - held_before : 0;
    if (status != TRF_OK)
        trf_checkpoint_file_free(checkpoint_file);
    return status;
}

void trf_checkpoint_file_free(trf_checkpoint_file *checkpoint_file) {
    free(checkpoint_file->path);
    free(checkpoint_file->name);
    free(checkpoint_file->tensors);
    trf_side_tables_free(&checkpoint_file->side_tables);
    trf_safetensors_free(&checkpoint_file->own_header);
    trf_safetensors_free(&checkpoint_file->source_header);
    trf_budget_give(checkpoint_file->budget, checkpoint_file->counted_bytes);
    *checkpoint_file = (trf_checkpoint_file){0};
}

const trf_file_tensor *trf_checkpoint_file_find(const trf_checkpoint_file *checkpoint_file, const char *name) {
    const trf_safetensors *source = trf_checkpoint_file_source_header(checkpoint_file);
    const trf_tensor *found = trf_safetensors_find(source, name);
    size_t begin = 0, end = checkpoint_file->num_tensors;
    while (found && begin < end) {
        const size_t middle = (begin + end) / 2;
        if (checkpoint_file->tensors[middle].source == found)
            return &checkpoint_file->tensors[middle];
        if (checkpoint_file->tensors[middle].source < found)
            begin = middle + 1;
        else
            end = middle;
    }
    return NULL;
}

trf_status trf_file_tensor_open_blob(const trf_file *file, const trf_file_tensor *tensor, const trf_blob_list *list,
                                     uint64_t number, trf_blob_reader *reader, trf_error *err) {
    const trf_tensor *source = tensor->source;
    uint64_t offset = tensor->file_offset + list->offsets[number];
    trf_status status =
        trf_blob_reader_open(file, offset, list->offsets[number + 1] - list->offsets[number], reader, err);
    if (status != TRF_OK)
        return status;
    const trf_header *header = &reader->view.header;
    const int has_dtype = tensor->is_scaled_fp8 ? trf_is_scaled_fp8(header->codec, header->source_dtype)
                                                : header->source_dtype == trf_dtype_of_name(source->dtype);
    uint32_t dims = source->num_dims;
    if (list->count == tensor->blobs && dims >= 2 && header->rows == source->shape[dims - 2] &&
        header->cols == source->shape[dims - 1] && has_dtype)
        return TRF_OK;
    trf_blob_reader_close(reader);
    return trf_fail(err, TRF_ERR_HEADER, offset,
                    "blob %" PRIu64 " of %" PRIu64 " at byte %" PRIu64 ": dtype or shape differ from the tensor's",
                    number, list->count, offset);
}

trf_status trf_check_bare_blob(const trf_file_tensor *tensor, trf_error *err) {
    if (!tensor->is_bare_blob)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_FORMAT, tensor->file_offset,
                    "begins as a compressed tensor, but neither its name nor the file says that it is one, as where a "
                    "compressed model's state dict was written to a file; save the model with save_pretrained instead");
}

trf_status trf_fail_in_tensor(const trf_checkpoint_file *checkpoint_file, const trf_file_tensor *tensor,
                              trf_status status, trf_error *err) {
    const char *path = checkpoint_file->path, *name = tensor->source->name;
    if (tensor->blobs)
        return trf_prefix_error(err, status, "%s: tensor '%s'", path, name);
    return trf_prefix_error(err, status, "%s: tensor '%s' at byte %" PRIu64, path, name, tensor->file_offset);
}
