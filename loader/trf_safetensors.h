/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a safetensors file. Reading is as strict as in the reference implementation. The second half of this
 * file is for writing one.
 *
 * A file is a u64 length, that many bytes of JSON, and the tensors' data without holes. */
#ifndef TRF_SAFETENSORS_H
#define TRF_SAFETENSORS_H

#include "trf_file.h"

#include <jansson.h>

/* The reference implementation has the same limit. */
#define TRF_MAX_SAFETENSORS_HEADER_BYTES 100000000u

typedef struct trf_tensor {
    char *name;
    char *dtype;     /* as the file spells it; types that we do not know are treated as bytes */
    uint64_t *shape; /* [num_dims] */
    uint32_t num_dims;
    uint64_t begin, end; /* in the data */
} trf_tensor;

typedef struct trf_safetensors {
    char *text; /* the header, byte for byte, and a NUL */
    size_t text_bytes;
    uint64_t data_bytes;
    json_t *metadata;    /* "__metadata__", an object of strings; or NULL */
    trf_tensor *tensors; /* in the order of their data */
    size_t num_tensors;
    trf_tensor **by_name; /* the same, in the order of strcmp */
} trf_safetensors;

/* @return the most memory that parsing a header takes at a time, and what is held afterwards: the text and what was
 * parsed from it. */
uint64_t trf_safetensors_parse_bytes(const char *text, size_t text_bytes);
uint64_t trf_safetensors_held_bytes(const trf_safetensors *header);

/* Parses a header. text: malloc'd, text_bytes long; it is taken over on success and on failure. data_bytes: the bytes
 * after it in the file, or UINT64_MAX if there is no file to compare with. Release with trf_safetensors_free on success
 * only. Errors: TRF_ERR_FORMAT, TRF_ERR_TRUNCATED (a tensor ends after the data); their offsets count from the file's
 * first byte; TRF_ERR_MEMORY. */
trf_status trf_safetensors_parse(char *text, size_t text_bytes, uint64_t data_bytes, trf_safetensors *header,
                                 trf_error *err);

/* Does the same if the budget has room for it; what is held afterwards stays taken. Errors: also TRF_ERR_LIMIT. */
trf_status trf_safetensors_parse_counted(trf_budget *budget, char *text, size_t text_bytes, uint64_t data_bytes,
                                         trf_safetensors *header, trf_error *err);

/* Reads and parses a file's header; file_bytes: its size. What is held of it afterwards stays taken of the file's
 * budget. Errors: also TRF_ERR_TRUNCATED, TRF_ERR_IO, TRF_ERR_LIMIT. Messages do not name the file. */
trf_status trf_safetensors_read(const trf_file *file, uint64_t file_bytes, trf_safetensors *header, trf_error *err);

void trf_safetensors_free(trf_safetensors *header);

/* @return the tensor with that name, or NULL. */
const trf_tensor *trf_safetensors_find(const trf_safetensors *header, const char *name);

/* @return a metadata string, or NULL. */
const char *trf_safetensors_metadata(const trf_safetensors *header, const char *key);

/* @return where the data begins in the file. */
static inline uint64_t trf_safetensors_data_offset(const trf_safetensors *header) {
    return 8 + (uint64_t)header->text_bytes;
}

static inline uint64_t trf_tensor_bytes(const trf_tensor *tensor) { return tensor->end - tensor->begin; }

/* @return the weights' type for a safetensors dtype; TRF_DTYPE_NONE if no codec takes it. */
trf_dtype trf_dtype_of_name(const char *name);

/* @return bits of an element of a safetensors dtype; 0 for one that is not known. */
uint32_t trf_dtype_bits_of_name(const char *name);

/* ---- writing ---- */

/* A text that grows. `failed` remembers that an allocation failed, so that it can be checked once at the end. */
typedef struct trf_text {
    char *bytes;
    size_t size, capacity;
    int failed;
} trf_text;

void trf_text_append(trf_text *text, const char *bytes, size_t size);
void trf_text_append_json(trf_text *text, const json_t *value); /* compact */
void trf_text_append_json_string(trf_text *text, const char *string);
void trf_text_free(trf_text *text);

/* Begins a header: the brace, and "__metadata__" unless metadata is NULL or empty. */
void trf_safetensors_begin_header(trf_text *text, const json_t *metadata);

/* Adds a tensor named name + suffix. */
void trf_safetensors_add_tensor(trf_text *text, const char *name, const char *suffix, const char *dtype,
                                const uint64_t *shape, uint32_t num_dims, uint64_t begin, uint64_t end);

/* Ends a header and pads it with spaces until 8 + size is a multiple of `alignment`. */
void trf_safetensors_end_header(trf_text *text, uint32_t alignment);

/* @return the largest size that trf_safetensors_add_tensor can add for this tensor, whatever its offsets, as itself or
 * as U8 with `suffix` after its name; 0 without memory. */
size_t trf_safetensors_entry_bound(const trf_tensor *tensor, const char *suffix);

#endif
