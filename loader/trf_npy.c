/* Arrays in .npy files, the format that numpy.save writes: a magic, a version, a header that is a Python dict, the
 * values. */
#include "trf_checkpoint.h"
#include "trf_convert.h"
#include "trf_output.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRF_NPY_MAGIC_BYTES = 8, /* and the version */
    TRF_NPY_ALIGNMENT = 64,
    TRF_NPY_MOST_HEADER = 1 << 16,
    TRF_NPY_CHUNK = 1 << 14, /* values converted at once */
};

static const uint8_t kMagic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

typedef struct trf_npy_header {
    char text[TRF_NPY_MOST_HEADER + 1];
    uint64_t data_offset;
    uint64_t rows, cols;
    trf_dtype dtype;
} trf_npy_header;

static trf_status bad_npy(trf_error *err, const char *path, uint64_t offset, const char *what) {
    return trf_fail(err, TRF_ERR_FORMAT, offset, "%s: %s", path, what);
}

/* Reads magic, version and the header's text. */
static trf_status npy_read_text(const trf_file *file, uint64_t file_bytes, trf_npy_header *header, trf_error *err) {
    uint8_t start[TRF_NPY_MAGIC_BYTES + 4] = {0};
    uint32_t text_bytes = 0;
    if (file_bytes < TRF_NPY_MAGIC_BYTES + 2)
        return bad_npy(err, file->path, file_bytes, "too short for a .npy file");
    uint64_t available = file_bytes < sizeof start ? file_bytes : sizeof start;
    trf_status status = trf_file_read(file, 0, start, available, err);
    if (status != TRF_OK)
        return status;
    if (memcmp(start, kMagic, sizeof kMagic) != 0)
        return bad_npy(err, file->path, 0, "not a .npy file: its magic is missing");
    if (start[6] < 1 || start[6] > 3)
        return trf_fail(err, TRF_ERR_FORMAT, 6, "%s: .npy version %u.%u, and this build reads 1 to 3", file->path,
                        start[6], start[7]);
    uint32_t length_bytes = start[6] == 1 ? 2 : 4;
    memcpy(&text_bytes, start + TRF_NPY_MAGIC_BYTES, length_bytes);
    header->data_offset = TRF_NPY_MAGIC_BYTES + length_bytes + (uint64_t)text_bytes;
    if (text_bytes > TRF_NPY_MOST_HEADER || header->data_offset > file_bytes)
        return trf_fail(err, TRF_ERR_FORMAT, TRF_NPY_MAGIC_BYTES, "%s: a header of %" PRIu32 " bytes does not fit",
                        file->path, text_bytes);
    status = trf_file_read(file, TRF_NPY_MAGIC_BYTES + length_bytes, header->text, text_bytes, err);
    header->text[text_bytes] = 0;
    return status;
}

static const char *skip_spaces(const char *at) { return at + strspn(at, " \t\r\n"); }

/* @return what follows the dict's `key`, with either kind of quotes; NULL if it is not there. */
static const char *npy_value(const char *text, const char *key) {
    size_t length = strlen(key);
    for (const char *at = text; (at = strstr(at, key)); at += length) {
        if (at == text || (at[-1] != '\'' && at[-1] != '"') || at[length] != at[-1])
            continue;
        const char *colon = skip_spaces(at + length + 1);
        if (*colon == ':')
            return skip_spaces(colon + 1);
    }
    return NULL;
}

static trf_status npy_parse_shape(const char *path, const char *at, trf_npy_header *header, trf_error *err) {
    uint64_t dims[2] = {1, 1};
    int count = 0;
    if (!at || *at != '(')
        return bad_npy(err, path, TRF_NO_OFFSET, "the header has no shape");
    at = skip_spaces(at + 1);
    while (*at != ')') {
        char *end;
        if (*at < '0' || *at > '9' || count == 2)
            return bad_npy(err, path, TRF_NO_OFFSET, "the shape is not that of a 1-D or 2-D array");
        dims[count++] = strtoull(at, &end, 10); /* too large a number becomes one that no file can hold */
        at = skip_spaces(end);
        if (*at == ',')
            at = skip_spaces(at + 1);
        else if (*at != ')')
            return bad_npy(err, path, TRF_NO_OFFSET, "the shape is not that of a 1-D or 2-D array");
    }
    if (count == 0)
        return bad_npy(err, path, TRF_NO_OFFSET, "the shape is not that of a 1-D or 2-D array");
    header->rows = count == 2 ? dims[0] : 1;
    header->cols = count == 2 ? dims[1] : dims[0];
    return TRF_OK;
}

static trf_status npy_parse(const char *path, trf_npy_header *header, trf_error *err) {
    const char *descr = npy_value(header->text, "descr"), *order = npy_value(header->text, "fortran_order");
    if (!descr || (*descr != '\'' && *descr != '"'))
        return bad_npy(err, path, TRF_NO_OFFSET, "the header has no descr of a plain type");
    size_t length = strcspn(descr + 1, "'\"");
    if (length == 3 && memcmp(descr + 1, "<f4", 3) == 0)
        header->dtype = TRF_DTYPE_F32;
    else if (length == 3 && memcmp(descr + 1, "<f2", 3) == 0)
        header->dtype = TRF_DTYPE_F16;
    else
        return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET,
                        "%s: values of type '%.*s', where '<f4' or '<f2' was expected", path,
                        (int)(length < 32 ? length : 32), descr + 1);
    if (!order || strncmp(order, "False", 5) != 0)
        return bad_npy(err, path, TRF_NO_OFFSET, "the array is not in C order (numpy.ascontiguousarray makes it so)");
    return npy_parse_shape(path, npy_value(header->text, "shape"), header, err);
}

static trf_status npy_check_size(const char *path, uint64_t file_bytes, const trf_npy_header *header, trf_error *err) {
    uint64_t bytes, count;
    if (__builtin_mul_overflow(header->rows, header->cols, &count) ||
        __builtin_mul_overflow(count, trf_dtype_bytes(header->dtype), &bytes) || count > SIZE_MAX / sizeof(float) - 1)
        return bad_npy(err, path, TRF_NO_OFFSET, "the size of the array overflows");
    if (bytes != file_bytes - header->data_offset)
        return trf_fail(err, TRF_ERR_FORMAT, header->data_offset,
                        "%s: %" PRIu64 " x %" PRIu64 " values take %" PRIu64 " bytes, and %" PRIu64
                        " follow the header",
                        path, header->rows, header->cols, bytes, file_bytes - header->data_offset);
    return TRF_OK;
}

static trf_status npy_read_values(const trf_file *file, const trf_npy_header *header, float *values, trf_error *err) {
    uint64_t count = header->rows * header->cols;
    if (header->dtype == TRF_DTYPE_F32)
        return trf_file_read(file, header->data_offset, values, count * sizeof *values, err);
    uint16_t halves[TRF_NPY_CHUNK];
    for (uint64_t i = 0; i < count; i += TRF_NPY_CHUNK) {
        uint64_t part = count - i < TRF_NPY_CHUNK ? count - i : TRF_NPY_CHUNK;
        trf_status status =
            trf_file_read(file, header->data_offset + i * sizeof *halves, halves, part * sizeof *halves, err);
        if (status != TRF_OK)
            return status;
        for (uint64_t k = 0; k < part; k++)
            values[i + k] = trf_f16_to_f32(halves[k]);
    }
    return TRF_OK;
}

trf_status trf_read_npy(const char *path, float **values, uint64_t *rows, uint64_t *cols, trf_error *err) {
    trf_file file;
    uint64_t file_bytes;
    float *read = NULL;
    trf_status status = trf_file_open(path, &file, &file_bytes, err);
    if (status != TRF_OK)
        return trf_sanitize_error(status, err);
    trf_npy_header *header = calloc(1, sizeof *header);
    if (!header) {
        status = trf_fail_memory(err, sizeof *header);
        goto done;
    }
    if ((status = npy_read_text(&file, file_bytes, header, err)) != TRF_OK ||
        (status = npy_parse(path, header, err)) != TRF_OK ||
        (status = npy_check_size(path, file_bytes, header, err)) != TRF_OK)
        goto done;
    uint64_t bytes = (header->rows * header->cols + 1) * sizeof *read;
    if (!(read = malloc(bytes)))
        status = trf_fail_memory(err, bytes);
    else
        status = npy_read_values(&file, header, read, err);
    if (status != TRF_OK)
        goto done;
    *values = read, *rows = header->rows, *cols = header->cols;
    read = NULL;
done:
    free(read);
    free(header);
    trf_file_close(&file);
    return trf_sanitize_error(status, err);
}

trf_status trf_write_npy(const char *path, const float *values, uint64_t rows, uint64_t cols, int overwrite,
                         trf_error *err) {
    char header[2 * TRF_NPY_ALIGNMENT + 64];
    uint64_t bytes;
    trf_output output = {.file = {.fd = -1}};
    if (__builtin_mul_overflow(rows, cols, &bytes) || __builtin_mul_overflow(bytes, sizeof *values, &bytes))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%" PRIu64 " x %" PRIu64 " values: the size overflows",
                        rows, cols);
    memcpy(header, kMagic, sizeof kMagic);
    header[6] = 1, header[7] = 0;
    char *text = header + TRF_NPY_MAGIC_BYTES + 2;
    int length =
        sprintf(text, "{'descr': '<f4', 'fortran_order': False, 'shape': (%" PRIu64 ", %" PRIu64 "), }", rows, cols);
    size_t used = TRF_NPY_MAGIC_BYTES + 2 + (size_t)length;
    size_t total = (used + 1 + TRF_NPY_ALIGNMENT - 1) / TRF_NPY_ALIGNMENT * TRF_NPY_ALIGNMENT;
    memset(header + used, ' ', total - used);
    header[total - 1] = '\n';
    uint16_t text_bytes = (uint16_t)(total - TRF_NPY_MAGIC_BYTES - 2);
    memcpy(header + TRF_NPY_MAGIC_BYTES, &text_bytes, sizeof text_bytes);

    trf_status status = trf_output_begin_file(&output, path, overwrite, err);
    if (status == TRF_OK)
        status = trf_file_write(&output.file, 0, header, total, err);
    if (status == TRF_OK)
        status = trf_file_write(&output.file, total, values, bytes, err);
    if (status == TRF_OK)
        status = trf_output_publish(&output, err);
    trf_output_end(&output);
    return trf_sanitize_error(status, err);
}
