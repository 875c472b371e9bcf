#include "trf_shard.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What the first header among a stored tensor's blobs says. */
typedef struct trf_stored_shape {
    trf_dtype dtype;
    uint64_t shape[3]; /* [blobs][rows][cols] for a stack, else [rows][cols] */
    uint32_t num_dims;
    uint64_t blobs;
} trf_stored_shape;

char *trf_blob_name(const char *name) {
    char *whole = malloc(strlen(name) + sizeof TRF_BLOB_SUFFIX);
    if (whole)
        strcpy(stpcpy(whole, name), TRF_BLOB_SUFFIX);
    return whole;
}

static uint64_t trf_own_offset(const trf_shard *shard, const trf_tensor *tensor) {
    return trf_safetensors_data_offset(&shard->own) + tensor->begin;
}

static trf_status trf_read_stored_shape(const trf_file *file, uint64_t offset, uint64_t bytes, trf_stored_shape *stored,
                                        trf_error *err) {
    trf_blob_list list;
    trf_header header = {0};
    trf_status status = trf_blob_list_read(file, offset, bytes, &list, err);
    if (status != TRF_OK)
        return status;
    uint64_t at = offset + list.offsets[0], room = list.offsets[1] - list.offsets[0];
    *stored = (trf_stored_shape){.blobs = list.is_stack ? list.count : 1};
    if (room < sizeof header)
        status = trf_fail(err, TRF_ERR_TRUNCATED, at, "%" PRIu64 " bytes at byte %" PRIu64 " are too few for a blob",
                          room, at);
    else
        status = trf_file_read(file, at, &header, sizeof header, err);
    if (status == TRF_OK && header.magic != TRF_MAGIC)
        status = trf_fail(err, TRF_ERR_MAGIC, at, "no blob at byte %" PRIu64 ": magic 0x%08" PRIx32, at, header.magic);
    if (status == TRF_OK && header.version != TRF_FORMAT_VERSION)
        status = trf_fail(err, TRF_ERR_VERSION, at + 4,
                          "blob at byte %" PRIu64 ": format version %u, and this build reads %d", at, header.version,
                          TRF_FORMAT_VERSION);
    if (status == TRF_OK && (!trf_dtype_bytes((trf_dtype)header.source_dtype) || !header.rows || !header.cols))
        status = trf_fail(err, TRF_ERR_HEADER, at,
                          "blob at byte %" PRIu64 ": dtype %u, %" PRIu32 " rows, %" PRIu32 " columns", at,
                          header.source_dtype, header.rows, header.cols);
    if (status == TRF_OK) {
        stored->dtype = (trf_dtype)header.source_dtype;
        if (list.is_stack)
            stored->shape[stored->num_dims++] = list.count;
        stored->shape[stored->num_dims++] = header.rows;
        stored->shape[stored->num_dims++] = header.cols;
    }
    trf_blob_list_free(&list);
    return status;
}

/* @return whether a tensor of the file is stored as blobs, going by suffix, type and magic. */
static trf_status trf_is_blob_tensor(const trf_file *file, const trf_shard *shard, const trf_tensor *tensor,
                                     int *is_blob, trf_error *err) {
    size_t length = strlen(tensor->name), suffix = strlen(TRF_BLOB_SUFFIX);
    uint32_t magic = 0;
    *is_blob = 0;
    if (length < suffix || strcmp(tensor->name + length - suffix, TRF_BLOB_SUFFIX) != 0 ||
        strcmp(tensor->dtype, "U8") != 0 || tensor->num_dims != 1 || trf_tensor_bytes(tensor) < TRF_ALIGNMENT)
        return TRF_OK;
    trf_status status = trf_file_read(file, trf_own_offset(shard, tensor), &magic, sizeof magic, err);
    *is_blob = magic == TRF_MAGIC || magic == TRF_STACK_MAGIC;
    return status;
}

/* What a tensor of a compressed file without a kept header was: of blobs what they say, else what it is (blobs = 0). */
static trf_status trf_read_former_shape(const trf_file *file, const trf_shard *shard, const trf_tensor *tensor,
                                        trf_stored_shape *stored, trf_error *err) {
    int is_blob;
    *stored = (trf_stored_shape){0};
    trf_status status = trf_is_blob_tensor(file, shard, tensor, &is_blob, err);
    if (status != TRF_OK || !is_blob)
        return status;
    status = trf_read_stored_shape(file, trf_own_offset(shard, tensor), trf_tensor_bytes(tensor), stored, err);
    return status == TRF_OK ? TRF_OK : trf_fail_in(err, status, "tensor '%s'", tensor->name);
}

/* Adds a tensor to a header that is being made up, behind those that end at *end. */
static trf_status trf_add_former(trf_text *text, const char *name, const trf_tensor *own,
                                 const trf_stored_shape *stored, uint64_t *end, trf_error *err) {
    uint64_t begin = *end, bytes = own ? trf_tensor_bytes(own) : 0;
    if (stored->blobs) {
        bytes = trf_dtype_bytes(stored->dtype);
        for (uint32_t i = 0; i < stored->num_dims; i++)
            if (__builtin_mul_overflow(bytes, stored->shape[i], &bytes))
                bytes = UINT64_MAX;
    }
    if (__builtin_add_overflow(begin, bytes, end) || *end > INT64_MAX)
        return trf_fail(err, TRF_ERR_HEADER, TRF_NO_OFFSET, "tensor '%s': its decompressed size overflows", name);
    if (stored->blobs)
        trf_header_add(text, name, "", trf_dtype_name(stored->dtype), stored->shape, stored->num_dims, begin, *end);
    else if (own)
        trf_header_add(text, name, "", own->dtype, own->shape, own->num_dims, begin, *end);
    return TRF_OK;
}

/* Adds the tensors whose elements are `bits` wide. */
static trf_status trf_add_formers_of_width(const trf_shard *shard, const trf_stored_shape *stored, uint32_t bits,
                                           trf_text *text, uint64_t *end, trf_error *err) {
    for (size_t i = 0; i < shard->own.num_tensors; i++) {
        const trf_tensor *own = &shard->own.tensors[i];
        uint32_t width =
            stored[i].blobs ? 8 * (uint32_t)trf_dtype_bytes(stored[i].dtype) : trf_dtype_bits_of_name(own->dtype);
        if ((width < 8 ? 0 : width) != bits)
            continue;
        size_t length = strlen(own->name) - (stored[i].blobs ? strlen(TRF_BLOB_SUFFIX) : 0);
        char *name = strndup(own->name, length);
        if (!name)
            return trf_fail_memory(err, length);
        trf_status status = trf_add_former(text, name, own, &stored[i], end, err);
        free(name);
        if (status != TRF_OK)
            return status;
    }
    return TRF_OK;
}

/* Makes a source header for a compressed file that keeps none. */
static trf_status trf_rebuild_header(const trf_file *file, trf_shard *shard, trf_error *err) {
    static const uint32_t widths[] = {64, 32, 16, 8, 0}; /* wide types first, so that all are aligned */
    size_t count = shard->is_layer ? 1 : shard->own.num_tensors;
    trf_text text = {0};
    uint64_t end = 0;
    trf_status status = TRF_OK;
    json_t *metadata = shard->own.metadata ? json_copy(shard->own.metadata) : NULL;
    trf_stored_shape *stored = calloc(count + 1, sizeof *stored);
    if (!stored || (shard->own.metadata && !metadata)) {
        status = trf_fail_memory(err, count * sizeof *stored);
        goto done;
    }
    if (metadata)
        json_object_del(metadata, TRF_METADATA_FORMAT);
    trf_header_begin(&text, metadata);
    if (shard->is_layer) {
        status = trf_read_stored_shape(file, 0, shard->file_bytes, stored, err);
        if (status == TRF_OK)
            status = trf_add_former(&text, "weight", NULL, stored, &end, err);
    } else {
        for (size_t i = 0; i < count && status == TRF_OK; i++)
            status = trf_read_former_shape(file, shard, &shard->own.tensors[i], &stored[i], err);
        for (size_t w = 0; w < sizeof widths / sizeof widths[0] && status == TRF_OK; w++)
            status = trf_add_formers_of_width(shard, stored, widths[w], &text, &end, err);
    }
    trf_header_end(&text, 8);
    if (status == TRF_OK && text.failed)
        status = trf_fail_memory(err, text.size);
done:
    free(stored);
    json_decref(metadata);
    if (status == TRF_OK)
        return trf_safetensors_parse(text.bytes, text.size, UINT64_MAX, &shard->former, err);
    trf_text_free(&text);
    return status;
}

/* Takes the source header that the compressor kept, if it did. */
static trf_status trf_read_former_header(const trf_file *file, trf_shard *shard, trf_error *err) {
    const char *kept = trf_safetensors_metadata(&shard->own, TRF_METADATA_HEADER);
    if (!kept)
        return trf_rebuild_header(file, shard, err);
    char *text = strdup(kept);
    if (!text)
        return trf_fail_memory(err, strlen(kept));
    trf_status status = trf_safetensors_parse(text, strlen(kept), UINT64_MAX, &shard->former, err);
    if (status == TRF_OK)
        return TRF_OK;
    if (err)
        err->offset = TRF_NO_OFFSET; /* it counted in the source */
    return trf_fail_in(err, status, "the kept source header");
}

static trf_status trf_former_mismatch(const trf_tensor *source, const char *what, trf_error *err) {
    return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "tensor '%s': the kept source header does not fit: %s",
                    source->name, what);
}

static int trf_same_shape(const trf_tensor *tensor, const uint64_t *shape, uint32_t num_dims) {
    return tensor->num_dims == num_dims && memcmp(tensor->shape, shape, num_dims * sizeof *shape) == 0;
}

/* Finds where a source tensor is stored in a compressed safetensors file. */
static trf_status trf_map_tensor(const trf_file *file, const trf_shard *shard, const trf_tensor *source,
                                 trf_shard_tensor *tensor, trf_error *err) {
    const trf_tensor *own = trf_safetensors_find(&shard->own, source->name);
    tensor->source = source;
    if (own) {
        if (strcmp(own->dtype, source->dtype) != 0 || !trf_same_shape(own, source->shape, source->num_dims) ||
            trf_tensor_bytes(own) != trf_tensor_bytes(source))
            return trf_former_mismatch(source, "dtype, shape or size differ", err);
        tensor->file_offset = trf_own_offset(shard, own), tensor->bytes = trf_tensor_bytes(own);
        return TRF_OK;
    }
    char *name = trf_blob_name(source->name);
    if (!name)
        return trf_fail_memory(err, strlen(source->name));
    own = trf_safetensors_find(&shard->own, name);
    free(name);
    if (!own)
        return trf_former_mismatch(source, "the file does not hold this tensor", err);
    if (strcmp(own->dtype, "U8") != 0 || own->num_dims != 1)
        return trf_former_mismatch(source, "what should be its blob is not a row of U8", err);
    trf_stored_shape stored;
    tensor->file_offset = trf_own_offset(shard, own), tensor->bytes = trf_tensor_bytes(own);
    trf_status status = trf_read_stored_shape(file, tensor->file_offset, tensor->bytes, &stored, err);
    if (status != TRF_OK)
        return trf_fail_in(err, status, "tensor '%s'", own->name);
    if (stored.dtype != trf_dtype_of_name(source->dtype) || !trf_same_shape(source, stored.shape, stored.num_dims))
        return trf_former_mismatch(source, "the blob has another dtype or shape", err);
    tensor->blobs = stored.blobs;
    return TRF_OK;
}

static trf_status trf_map_tensors(const trf_file *file, trf_shard *shard, trf_error *err) {
    const trf_safetensors *source = trf_shard_source(shard);
    shard->num_tensors = source->num_tensors;
    if (!(shard->tensors = calloc(shard->num_tensors + 1, sizeof *shard->tensors)))
        return trf_fail_memory(err, shard->num_tensors * sizeof *shard->tensors);
    if (shard->is_layer) {
        shard->tensors[0] = (trf_shard_tensor){&source->tensors[0], 0, shard->file_bytes, 1};
        return TRF_OK;
    }
    if (shard->compressed && shard->own.num_tensors != source->num_tensors)
        return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET,
                        "the kept source header lists %zu tensors, but the file holds %zu", source->num_tensors,
                        shard->own.num_tensors);
    for (size_t i = 0; i < shard->num_tensors; i++) {
        const trf_tensor *tensor = &source->tensors[i];
        if (shard->compressed) {
            trf_status status = trf_map_tensor(file, shard, tensor, &shard->tensors[i], err);
            if (status != TRF_OK)
                return status;
        } else {
            shard->tensors[i] = (trf_shard_tensor){tensor, trf_own_offset(shard, tensor), trf_tensor_bytes(tensor), 0};
        }
    }
    return TRF_OK;
}

/* Decides whether a safetensors file is a compressed one: it says so, or one of its tensors is a blob. */
static trf_status trf_detect_compressed(const trf_file *file, trf_shard *shard, trf_error *err) {
    const char *format = trf_safetensors_metadata(&shard->own, TRF_METADATA_FORMAT);
    if (format && strcmp(format, "1") != 0)
        return trf_fail(err, TRF_ERR_VERSION, TRF_NO_OFFSET,
                        "__metadata__ has " TRF_METADATA_FORMAT " '%s', and this build reads '1'", format);
    shard->compressed = format != NULL;
    for (size_t i = 0; i < shard->own.num_tensors && !shard->compressed; i++) {
        trf_status status = trf_is_blob_tensor(file, shard, &shard->own.tensors[i], &shard->compressed, err);
        if (status != TRF_OK)
            return status;
    }
    return TRF_OK;
}

static trf_status trf_shard_parse(const trf_file *file, trf_shard *shard, trf_error *err) {
    uint32_t magic = 0;
    trf_status status = TRF_OK;
    if (shard->file_bytes >= sizeof magic)
        status = trf_file_read(file, 0, &magic, sizeof magic, err);
    if (status != TRF_OK)
        return status;
    /* As a safetensors file's first bytes the magic would be a header far above the limit. A .trf file without it is a broken blob. */
    size_t length = strlen(shard->path);
    int named_trf = length > 4 && strcmp(shard->path + length - 4, ".trf") == 0;
    shard->is_layer = shard->compressed = magic == TRF_MAGIC || named_trf;
    if (named_trf && magic == TRF_STACK_MAGIC)
        return trf_fail(err, TRF_ERR_MAGIC, 0, "a stack of blobs; a .trf file holds one");
    if (!shard->is_layer) {
        if ((status = trf_safetensors_read(file, shard->file_bytes, &shard->own, err)) != TRF_OK)
            return status;
        if ((status = trf_detect_compressed(file, shard, err)) != TRF_OK)
            return status;
    }
    if (shard->compressed && (status = trf_read_former_header(file, shard, err)) != TRF_OK)
        return status;
    return trf_map_tensors(file, shard, err);
}

trf_status trf_shard_open(const char *path, trf_shard *shard, trf_error *err) {
    trf_file file;
    *shard = (trf_shard){.path = strdup(path), .name = strdup(trf_path_basename(path))};
    trf_status status;
    if (!shard->path || !shard->name) {
        status = trf_fail_memory(err, strlen(path));
    } else if ((status = trf_file_open(path, &file, &shard->file_bytes, err)) == TRF_OK) {
        status = trf_shard_parse(&file, shard, err);
        /* Failures of the system name the file already. */
        if (status != TRF_OK && status != TRF_ERR_IO)
            trf_fail_in(err, status, "%s", path);
        trf_file_close(&file);
    }
    if (status != TRF_OK)
        trf_shard_free(shard);
    return status;
}

void trf_shard_free(trf_shard *shard) {
    free(shard->path);
    free(shard->name);
    free(shard->tensors);
    trf_safetensors_free(&shard->own);
    trf_safetensors_free(&shard->former);
    *shard = (trf_shard){0};
}

const trf_shard_tensor *trf_shard_find(const trf_shard *shard, const char *name) {
    const trf_safetensors *source = trf_shard_source(shard);
    const trf_tensor *found = trf_safetensors_find(source, name);
    return found ? &shard->tensors[found - source->tensors] : NULL;
}

trf_status trf_shard_open_blob(const trf_file *file, const trf_shard_tensor *tensor, const trf_blob_list *list,
                               uint64_t x, trf_blob_reader *reader, trf_error *err) {
    const trf_tensor *source = tensor->source;
    uint64_t offset = tensor->file_offset + list->offsets[x];
    trf_status status = trf_blob_reader_open(file, offset, list->offsets[x + 1] - list->offsets[x], reader, err);
    if (status != TRF_OK)
        return status;
    const trf_header *header = &reader->view.header;
    uint32_t dims = source->num_dims;
    if (list->count == tensor->blobs && dims >= 2 && header->rows == source->shape[dims - 2] &&
        header->cols == source->shape[dims - 1] && header->source_dtype == trf_dtype_of_name(source->dtype))
        return TRF_OK;
    trf_blob_reader_close(reader);
    return trf_fail(err, TRF_ERR_HEADER, offset,
                    "blob %" PRIu64 " of %" PRIu64 " at byte %" PRIu64 ": dtype or shape differ from the tensor's", x,
                    list->count, offset);
}
