/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_safetensors.h"

#include "trf_json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A tensor during parsing, and its place in the header, which breaks ties among tensors without data. */
typedef struct trf_parsed_tensor {
    trf_tensor tensor;
    size_t place;
} trf_parsed_tensor;

typedef struct trf_dtype_entry {
    const char *name;
    uint32_t bits;
    trf_dtype dtype;
} trf_dtype_entry;

enum {
    MALLOC_BYTES = 32,      /* what an allocation takes beside its content */
    PAGES_BYTES = 2 * 4096, /* large allocations are whole pages */
    METADATA_BYTES = 320,   /* what an entry of the metadata takes beside its strings */
};

static const trf_dtype_entry kDtypes[] = {
    {"BOOL", 8, TRF_DTYPE_NONE},       {"F4", 4, TRF_DTYPE_NONE},         {"F6_E2M3", 6, TRF_DTYPE_NONE},
    {"F6_E3M2", 6, TRF_DTYPE_NONE},    {"U8", 8, TRF_DTYPE_NONE},         {"I8", 8, TRF_DTYPE_I8},
    {"F8_E5M2", 8, TRF_DTYPE_F8_E5M2}, {"F8_E4M3", 8, TRF_DTYPE_F8_E4M3}, {"F8_E8M0", 8, TRF_DTYPE_NONE},
    {"I16", 16, TRF_DTYPE_NONE},       {"U16", 16, TRF_DTYPE_NONE},       {"F16", 16, TRF_DTYPE_F16},
    {"BF16", 16, TRF_DTYPE_BF16},      {"I32", 32, TRF_DTYPE_NONE},       {"U32", 32, TRF_DTYPE_NONE},
    {"F32", 32, TRF_DTYPE_F32},        {"C64", 64, TRF_DTYPE_NONE},       {"F64", 64, TRF_DTYPE_NONE},
    {"I64", 64, TRF_DTYPE_NONE},       {"U64", 64, TRF_DTYPE_NONE},
};

static const trf_dtype_entry *find_dtype(const char *name) {
    for (size_t i = 0; i < sizeof kDtypes / sizeof kDtypes[0]; i++)
        if (strcmp(kDtypes[i].name, name) == 0)
            return &kDtypes[i];
    return NULL;
}

trf_dtype trf_dtype_of_name(const char *name) {
    const trf_dtype_entry *entry = find_dtype(name);
    return entry ? entry->dtype : TRF_DTYPE_NONE;
}

uint32_t trf_dtype_bits_of_name(const char *name) {
    const trf_dtype_entry *entry = find_dtype(name);
    return entry ? entry->bits : 0;
}

static trf_status bad_tensor(trf_error *err, const char *name, const char *what) {
    return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "tensor '%s': %s", name, what);
}

/* @return whether a value is an integer of at least 0. */
static int json_natural(const json_t *value, uint64_t *number) {
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return 0;
    *number = (uint64_t)json_integer_value(value);
    return 1;
}

static trf_status parse_shape(const json_t *shape, trf_tensor *tensor, uint64_t *elements, trf_error *err) {
    if (!json_is_array(shape) || json_array_size(shape) > UINT32_MAX)
        return bad_tensor(err, tensor->name, "shape is not an array");
    tensor->num_dims = (uint32_t)json_array_size(shape);
    tensor->shape = calloc(tensor->num_dims + 1u, sizeof *tensor->shape);
    if (!tensor->shape)
        return trf_fail_memory(err, (uint64_t)tensor->num_dims * sizeof *tensor->shape);
    *elements = 1;
    for (uint32_t i = 0; i < tensor->num_dims; i++) {
        if (!json_natural(json_array_get(shape, i), &tensor->shape[i]))
            return bad_tensor(err, tensor->name, "shape holds something else than integers of at least 0");
        if (__builtin_mul_overflow(*elements, tensor->shape[i], elements))
            return bad_tensor(err, tensor->name, "the number of elements overflows 64 bits");
    }
    return TRF_OK;
}

/* Checks the size that the offsets give against dtype and shape, where the dtype is known. */
static trf_status check_size(const trf_tensor *tensor, uint64_t elements, trf_error *err) {
    uint32_t bits = trf_dtype_bits_of_name(tensor->dtype);
    uint64_t total_bits;
    if (!bits)
        return TRF_OK;
    if (__builtin_mul_overflow(elements, (uint64_t)bits, &total_bits))
        return bad_tensor(err, tensor->name, "its size overflows 64 bits");
    if (total_bits % 8)
        return bad_tensor(err, tensor->name, "its elements do not fill whole bytes");
    if (total_bits / 8 != trf_tensor_bytes(tensor))
        return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET,
                        "tensor '%s': data_offsets span %" PRIu64 " bytes, but dtype %s and shape need %" PRIu64,
                        tensor->name, trf_tensor_bytes(tensor), tensor->dtype, total_bits / 8);
    return TRF_OK;
}

/* Parses one tensor. On failure the caller frees what has been set. */
static trf_status parse_tensor(const char *name, const json_t *value, trf_tensor *tensor, trf_error *err) {
    if (!(tensor->name = strdup(name)))
        return trf_fail_memory(err, strlen(name));
    if (!json_is_object(value))
        return bad_tensor(err, name, "its entry is not an object");
    const json_t *dtype = json_object_get(value, "dtype"), *offsets = json_object_get(value, "data_offsets");
    if (!json_is_string(dtype))
        return bad_tensor(err, name, "dtype is not a string");
    if (!(tensor->dtype = strdup(json_string_value(dtype))))
        return trf_fail_memory(err, json_string_length(dtype));
    uint64_t elements = 0;
    trf_status status = parse_shape(json_object_get(value, "shape"), tensor, &elements, err);
    if (status != TRF_OK)
        return status;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !json_natural(json_array_get(offsets, 0), &tensor->begin) ||
        !json_natural(json_array_get(offsets, 1), &tensor->end) || tensor->begin > tensor->end)
        return bad_tensor(err, name, "data_offsets are not two ascending integers of at least 0");
    return check_size(tensor, elements, err);
}

static trf_status parse_metadata(const json_t *value, trf_safetensors *header, trf_error *err) {
    if (json_is_null(value)) /* the reference implementation treats it as missing */
        return TRF_OK;
    if (!json_is_object(value))
        return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "__metadata__ is not an object");
    const char *key;
    json_t *entry_text;
    json_object_foreach((json_t *)value, key, entry_text) if (!json_is_string(entry_text)) return trf_fail(
        err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "__metadata__: '%s' is not a string", key);
    header->metadata = json_incref((json_t *)value);
    return TRF_OK;
}

static int compare_places(const void *a, const void *b) {
    const trf_parsed_tensor *first = a, *second = b;
    if (first->tensor.begin != second->tensor.begin)
        return first->tensor.begin < second->tensor.begin ? -1 : 1;
    if (first->tensor.end != second->tensor.end)
        return first->tensor.end < second->tensor.end ? -1 : 1;
    return first->place < second->place ? -1 : first->place > second->place;
}

static int compare_names(const void *a, const void *b) {
    return strcmp((*(trf_tensor *const *)a)->name, (*(trf_tensor *const *)b)->name);
}

/* Sorts the tensors by their data, and checks that they cover it without holes. */
static trf_status order_tensors(trf_parsed_tensor *parsed, trf_safetensors *header, trf_error *err) {
    qsort(parsed, header->num_tensors, sizeof *parsed, compare_places);
    for (size_t i = 0; i < header->num_tensors; i++)
        header->tensors[i] = parsed[i].tensor;
    uint64_t covered = 0, base = trf_safetensors_data_offset(header);
    for (size_t i = 0; i < header->num_tensors; i++) {
        const trf_tensor *tensor = &header->tensors[i];
        if (tensor->begin != covered)
            return trf_fail(
                err, TRF_ERR_FORMAT, base + tensor->begin,
                "tensor '%s' begins at byte %" PRIu64 " of the data, %s byte %" PRIu64 ", where the one before it ends",
                tensor->name, tensor->begin, tensor->begin < covered ? "overlapping" : "leaving a hole from", covered);
        covered = tensor->end;
        if (header->data_bytes != UINT64_MAX && covered > header->data_bytes)
            return trf_fail(err, TRF_ERR_TRUNCATED, base + header->data_bytes,
                            "tensor '%s' ends at byte %" PRIu64 " of the data, of which the file has %" PRIu64 " bytes",
                            tensor->name, covered, header->data_bytes);
    }
    if (header->data_bytes == UINT64_MAX)
        header->data_bytes = covered;
    if (covered != header->data_bytes)
        return trf_fail(err, TRF_ERR_FORMAT, base + covered,
                        "%" PRIu64 " bytes follow the last tensor, which ends at byte %" PRIu64 " of the data",
                        header->data_bytes - covered, covered);
    for (size_t i = 0; i < header->num_tensors; i++)
        header->by_name[i] = &header->tensors[i];
    qsort(header->by_name, header->num_tensors, sizeof *header->by_name, compare_names);
    return TRF_OK;
}

static trf_status parse_object(json_t *root, trf_safetensors *header, trf_error *err) {
    size_t capacity = json_object_size(root);
    trf_parsed_tensor *parsed = calloc(capacity + 1, sizeof *parsed);
    header->tensors = calloc(capacity + 1, sizeof *header->tensors);
    header->by_name = calloc(capacity + 1, sizeof *header->by_name);
    trf_status status = TRF_OK;
    size_t count = 0;
    const char *name;
    json_t *value;
    if (!parsed || !header->tensors || !header->by_name) {
        status = trf_fail_memory(err, capacity * sizeof *parsed);
        goto done;
    }
    json_object_foreach(root, name, value) {
        if (strcmp(name, "__metadata__") == 0) {
            status = parse_metadata(value, header, err);
        } else {
            parsed[count].place = count;
            status = parse_tensor(name, value, &parsed[count].tensor, err);
            count++;
        }
        if (status != TRF_OK)
            break;
    }
    if (status == TRF_OK) {
        header->num_tensors = count;
        status = order_tensors(parsed, header, err);
    } else { /* moves the tensors to the header, so that freeing it frees them */
        for (header->num_tensors = 0; header->num_tensors < count; header->num_tensors++)
            header->tensors[header->num_tensors] = parsed[header->num_tensors].tensor;
    }
done:
    free(parsed);
    return status;
}

uint64_t trf_safetensors_parse_bytes(const char *text, size_t text_bytes) {
    uint64_t members = 0, commas = 0;
    for (size_t i = 0; i < text_bytes; i++)
        members += text[i] == ':', commas += text[i] == ',';
    /* Three lists have room for each member, two numbers stand at least for each tensor; strings are copied. */
    return text_bytes + 1 + trf_json_bytes(text, text_bytes) + text_bytes + commas * sizeof(uint64_t) +
           (members + 1) * (sizeof(trf_parsed_tensor) + sizeof(trf_tensor) + sizeof(trf_tensor *) + 3 * MALLOC_BYTES);
}

uint64_t trf_safetensors_held_bytes(const trf_safetensors *header) {
    const char *key;
    json_t *value;
    uint64_t total = header->text_bytes + 1 + PAGES_BYTES;
    for (size_t i = 0; i < header->num_tensors; i++) {
        const trf_tensor *tensor = &header->tensors[i];
        total += sizeof *tensor + sizeof tensor + 3 * MALLOC_BYTES + strlen(tensor->name) + strlen(tensor->dtype) +
                 tensor->num_dims * sizeof *tensor->shape;
    }
    json_object_foreach(header->metadata, key, value) total += METADATA_BYTES + strlen(key) + json_string_length(value);
    return total;
}

trf_status trf_safetensors_parse(char *text, size_t text_bytes, uint64_t data_bytes, trf_safetensors *header,
                                 trf_error *err) {
    *header = (trf_safetensors){.text = text, .text_bytes = text_bytes, .data_bytes = data_bytes};
    json_error_t json_error;
    trf_status status;
    json_t *root = trf_json_load(text, text_bytes, JSON_REJECT_DUPLICATES, &json_error);
    if (!root && trf_json_lacked_memory(&json_error))
        status = trf_fail_memory(err, text_bytes);
    else if (!root)
        status = trf_fail(err, TRF_ERR_FORMAT, 8 + (uint64_t)json_error.position,
                          "header is not valid JSON: %s at byte %d", json_error.text, json_error.position + 8);
    else if (!json_is_object(root))
        status = trf_fail(err, TRF_ERR_FORMAT, 8, "header is not a JSON object");
    else
        status = parse_object(root, header, err);
    json_decref(root);
    if (status != TRF_OK)
        trf_safetensors_free(header);
    return status;
}

trf_status trf_safetensors_parse_counted(trf_budget *budget, char *text, size_t text_bytes, uint64_t data_bytes,
                                         trf_safetensors *header, trf_error *err) {
    const int is_limited = budget && budget->max_bytes;
    trf_status status = TRF_OK;
    if (is_limited) /* else the text need not be looked through */
        status = trf_budget_check(budget, trf_safetensors_parse_bytes(text, text_bytes), "its header", err);
    if (status != TRF_OK) {
        free(text);
        return status;
    }
    status = trf_safetensors_parse(text, text_bytes, data_bytes, header, err);
    return status == TRF_OK && is_limited
               ? trf_budget_take(budget, trf_safetensors_held_bytes(header), "its header", err)
               : status;
}

/* Whether a file that begins so is a pointer of Git LFS, which a user who cloned a model without Git LFS has instead of
 * the file. */
static int is_lfs_pointer(uint64_t first_8_bytes) { return memcmp(&first_8_bytes, "version ", 8) == 0; }

trf_status trf_safetensors_read(const trf_file *file, uint64_t file_bytes, trf_safetensors *header, trf_error *err) {
    uint64_t text_bytes;
    if (file_bytes < sizeof text_bytes)
        return trf_fail(err, TRF_ERR_TRUNCATED, file_bytes, "%" PRIu64 " bytes are too few for a safetensors file",
                        file_bytes);
    trf_status status = trf_file_read(file, 0, &text_bytes, sizeof text_bytes, err);
    if (status != TRF_OK)
        return status;
    if (text_bytes > TRF_MAX_SAFETENSORS_HEADER_BYTES)
        return trf_fail(err, TRF_ERR_FORMAT, 0,
                        "not a safetensors file: its first 8 bytes promise a header of %" PRIu64
                        " bytes, of which %u are allowed%s",
                        text_bytes, TRF_MAX_SAFETENSORS_HEADER_BYTES,
                        is_lfs_pointer(text_bytes)
                            ? " (this looks like a Git LFS pointer; the file itself has not been fetched)"
                            : "");
    if (text_bytes > file_bytes - sizeof text_bytes)
        return trf_fail(err, TRF_ERR_TRUNCATED, file_bytes,
                        "the header should be %" PRIu64 " bytes long, but the file ends at byte %" PRIu64, text_bytes,
                        file_bytes);
    if ((status = trf_budget_check(file->budget, text_bytes + 1, "the text of its header", err)) != TRF_OK)
        return status;
    char *text = malloc((size_t)text_bytes + 1);
    if (!text)
        return trf_fail_memory(err, text_bytes + 1);
    status = trf_file_read(file, sizeof text_bytes, text, text_bytes, err);
    if (status != TRF_OK) {
        free(text);
        return status;
    }
    text[text_bytes] = 0;
    return trf_safetensors_parse_counted(file->budget, text, (size_t)text_bytes,
                                         file_bytes - sizeof text_bytes - text_bytes, header, err);
}

void trf_safetensors_free(trf_safetensors *header) {
    for (size_t i = 0; i < header->num_tensors; i++) {
        free(header->tensors[i].name);
        free(header->tensors[i].dtype);
        free(header->tensors[i].shape);
    }
    free(header->tensors);
    free(header->by_name);
    free(header->text);
    json_decref(header->metadata);
    *header = (trf_safetensors){0};
}

const trf_tensor *trf_safetensors_find(const trf_safetensors *header, const char *name) {
    size_t low = 0, high = header->num_tensors;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, header->by_name[middle]->name);
        if (order == 0)
            return header->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *trf_safetensors_metadata(const trf_safetensors *header, const char *key) {
    return header->metadata ? json_string_value(json_object_get(header->metadata, key)) : NULL;
}
