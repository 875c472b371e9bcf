/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays in .npy files, the format that numpy.save writes: a magic, a version, a header that is a Python dict, the
 * values. */
#include "cli_npy.h"

#include "cli_file.h"
#include "cli_float.h"
#include "cli_messages.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    NPY_MAGIC_BYTES = 8, /* and the version */
    NPY_ALIGNMENT = 64,
    NPY_MOST_HEADER = 1 << 16,
    NPY_VALUES_AT_ONCE = 1 << 14, /* values converted at once */
};

static const uint8_t kMagic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

typedef struct npy_header {
    char text[NPY_MOST_HEADER + 1];
    uint64_t data_offset;
    uint64_t rows, cols;
    trf_dtype dtype;
} npy_header;

/* A file that is read from its first byte to its last. */
typedef struct npy_file {
    FILE *handle;
    const char *path;
    uint64_t bytes;
    trf_error *err; /* or NULL */
} npy_file;

/* @return status. */
__attribute__((format(printf, 4, 5))) static trf_status fail_npy(const npy_file *file, trf_status status,
                                                                 uint64_t offset, const char *format, ...) {
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (file->err) {
        *file->err = (trf_error){.status = status, .offset = offset};
        snprintf(file->err->message, sizeof file->err->message, "%s: %s", file->path, what);
    }
    return status;
}

/* Reads what follows in the file. */
static trf_status read_next(const npy_file *file, void *to, uint64_t bytes) {
    if (fread(to, 1, bytes, file->handle) == bytes)
        return TRF_OK;
    if (ferror(file->handle))
        return fail_npy(file, TRF_ERR_IO, TRF_NO_OFFSET, "cannot read: %s", strerror(errno));
    return fail_npy(file, TRF_ERR_TRUNCATED, TRF_NO_OFFSET, "is shorter than it was");
}

/* Reads magic, version and the header's text. */
static trf_status read_header_text(const npy_file *file, npy_header *header) {
    uint8_t start[NPY_MAGIC_BYTES], length[4] = {0};
    uint32_t text_bytes;
    if (file->bytes < NPY_MAGIC_BYTES + 2)
        return fail_npy(file, TRF_ERR_FORMAT, file->bytes, "too short for a .npy file");
    trf_status status = read_next(file, start, sizeof start);
    if (status != TRF_OK)
        return status;
    if (memcmp(start, kMagic, sizeof kMagic) != 0)
        return fail_npy(file, TRF_ERR_FORMAT, 0, "not a .npy file: its magic is missing");
    if (start[6] < 1 || start[6] > 3)
        return fail_npy(file, TRF_ERR_FORMAT, 6, ".npy version %u.%u, and this build reads 1 to 3", start[6], start[7]);
    const uint32_t length_bytes = start[6] == 1 ? 2 : 4;
    if (file->bytes < NPY_MAGIC_BYTES + length_bytes)
        return fail_npy(file, TRF_ERR_FORMAT, file->bytes, "too short for a .npy file");
    status = read_next(file, length, length_bytes);
    if (status != TRF_OK)
        return status;
    memcpy(&text_bytes, length, sizeof text_bytes);
    header->data_offset = NPY_MAGIC_BYTES + length_bytes + (uint64_t)text_bytes;
    if (text_bytes > NPY_MOST_HEADER || header->data_offset > file->bytes)
        return fail_npy(file, TRF_ERR_FORMAT, NPY_MAGIC_BYTES, "a header of %" PRIu32 " bytes does not fit",
                        text_bytes);
    header->text[text_bytes] = 0;
    return read_next(file, header->text, text_bytes);
}

static const char *skip_spaces(const char *at) { return at + strspn(at, " \t\r\n"); }

/* @return what follows the dict's `key`, with either kind of quotes; NULL if it is not there. */
static const char *find_value(const char *text, const char *key) {
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

static trf_status parse_shape(const npy_file *file, const char *at, npy_header *header) {
    uint64_t dims[2] = {1, 1};
    int count = 0;
    if (!at || *at != '(')
        return fail_npy(file, TRF_ERR_FORMAT, TRF_NO_OFFSET, "the header has no shape");
    at = skip_spaces(at + 1);
    while (*at != ')') {
        char *end;
        if (*at < '0' || *at > '9' || count == 2)
            return fail_npy(file, TRF_ERR_FORMAT, TRF_NO_OFFSET, "the shape is not that of a 1-D or 2-D array");
        dims[count++] = strtoull(at, &end, 10); /* too large a number becomes one that no file can hold */
        at = skip_spaces(end);
        if (*at == ',')
            at = skip_spaces(at + 1);
        else if (*at != ')')
            return fail_npy(file, TRF_ERR_FORMAT, TRF_NO_OFFSET, "the shape is not that of a 1-D or 2-D array");
    }
    if (count == 0)
        return fail_npy(file, TRF_ERR_FORMAT, TRF_NO_OFFSET, "the shape is not that of a 1-D or 2-D array");
    header->rows = count == 2 ? dims[0] : 1;
    header->cols = count == 2 ? dims[1] : dims[0];
    return TRF_OK;
}

/* Python takes the last of two values, and another reader the first. */
static trf_status refuse_double_keys(const npy_file *file, const char *text) {
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *value = find_value(text, keys[i]);
        if (value && find_value(value, keys[i]))
            return fail_npy(file, TRF_ERR_FORMAT, TRF_NO_OFFSET, "the header has '%s' twice", keys[i]);
    }
    return TRF_OK;
}

static trf_status parse_header(const npy_file *file, npy_header *header) {
    const trf_status doubled = refuse_double_keys(file, header->text);
    if (doubled != TRF_OK)
        return doubled;
    const char *descr = find_value(header->text, "descr"), *order = find_value(header->text, "fortran_order");
    if (!descr || (*descr != '\'' && *descr != '"'))
        return fail_npy(file, TRF_ERR_FORMAT, TRF_NO_OFFSET, "the header has no descr of a plain type");
    size_t length = strcspn(descr + 1, "'\"");
    if (length == 3 && memcmp(descr + 1, "<f4", 3) == 0)
        header->dtype = TRF_DTYPE_F32;
    else if (length == 3 && memcmp(descr + 1, "<f2", 3) == 0)
        header->dtype = TRF_DTYPE_F16;
    else
        return fail_npy(file, TRF_ERR_FORMAT, TRF_NO_OFFSET, "values of type '%.*s', where '<f4' or '<f2' was expected",
                        (int)(length < 32 ? length : 32), descr + 1);
    if (!order || strncmp(order, "False", 5) != 0)
        return fail_npy(file, TRF_ERR_FORMAT, TRF_NO_OFFSET,
                        "the array is not in C order (numpy.ascontiguousarray makes it so)");
    return parse_shape(file, find_value(header->text, "shape"), header);
}

static trf_status check_size(const npy_file *file, const npy_header *header) {
    uint64_t bytes, count;
    if (__builtin_mul_overflow(header->rows, header->cols, &count) ||
        __builtin_mul_overflow(count, trf_dtype_bytes(header->dtype), &bytes) || count > SIZE_MAX / sizeof(float) - 1)
        return fail_npy(file, TRF_ERR_FORMAT, TRF_NO_OFFSET, "the size of the array overflows");
    if (bytes != file->bytes - header->data_offset)
        return fail_npy(file, TRF_ERR_FORMAT, header->data_offset,
                        "%" PRIu64 " x %" PRIu64 " values take %" PRIu64 " bytes, and %" PRIu64 " follow the header",
                        header->rows, header->cols, bytes, file->bytes - header->data_offset);
    return TRF_OK;
}

static trf_status read_values(const npy_file *file, const npy_header *header, float *values) {
    const uint64_t count = header->rows * header->cols;
    if (header->dtype == TRF_DTYPE_F32)
        return read_next(file, values, count * sizeof *values);
    uint16_t halves[NPY_VALUES_AT_ONCE];
    for (uint64_t i = 0; i < count; i += NPY_VALUES_AT_ONCE) {
        const uint32_t part = (uint32_t)(count - i < NPY_VALUES_AT_ONCE ? count - i : NPY_VALUES_AT_ONCE);
        trf_status status = read_next(file, halves, part * sizeof *halves);
        if (status != TRF_OK)
            return status;
        if (cli_widen(halves, TRF_DTYPE_F16, part, values + i))
            return fail_npy(file, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot convert its values");
    }
    return TRF_OK;
}

/* O_NONBLOCK: opening a FIFO that nobody writes to must not hang. */
static trf_status open_npy(npy_file *file) {
    struct stat info;
    const int descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return fail_npy(file, errno == ENOENT || errno == ENOTDIR ? TRF_ERR_NOT_FOUND : TRF_ERR_IO, TRF_NO_OFFSET,
                        "cannot open: %s", strerror(errno));
    trf_status status = TRF_OK;
    if (fstat(descriptor, &info) != 0)
        status = fail_npy(file, TRF_ERR_IO, TRF_NO_OFFSET, "cannot examine: %s", strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = fail_npy(file, TRF_ERR_IO, TRF_NO_OFFSET, "not a regular file");
    else if (!(file->handle = fdopen(descriptor, "r")))
        status = fail_npy(file, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot open: %s", strerror(errno));
    if (status != TRF_OK) {
        close(descriptor);
        return status;
    }
    file->bytes = (uint64_t)info.st_size;
    return TRF_OK;
}

trf_status cli_read_npy(const char *path, float **values, uint64_t *rows, uint64_t *cols, trf_error *err) {
    npy_file file = {.path = path, .err = err};
    float *read = NULL;
    trf_status status = open_npy(&file);
    if (status != TRF_OK)
        return status;
    npy_header *header = calloc(1, sizeof *header);
    if (!header) {
        status = TRF_ERR_MEMORY;
        fail_npy(&file, status, TRF_NO_OFFSET, "out of memory");
    }
    if (status == TRF_OK)
        status = read_header_text(&file, header);
    if (status == TRF_OK)
        status = parse_header(&file, header);
    if (status == TRF_OK)
        status = check_size(&file, header);
    if (status == TRF_OK && !(read = malloc((header->rows * header->cols + 1) * sizeof *read)))
        status = fail_npy(&file, TRF_ERR_MEMORY, TRF_NO_OFFSET, "out of memory for %" PRIu64 " x %" PRIu64 " values",
                          header->rows, header->cols);
    if (status == TRF_OK)
        status = read_values(&file, header, read);
    if (status == TRF_OK)
        *values = read, *rows = header->rows, *cols = header->cols;
    else
        free(read);
    free(header);
    fclose(file.handle);
    return status;
}

/* Makes the magic, the version and the dict, padded so that the values after them are aligned. @return the header's
 * bytes. */
static size_t make_header(uint64_t rows, uint64_t cols, char header[2 * NPY_ALIGNMENT + 64]) {
    memcpy(header, kMagic, sizeof kMagic);
    header[6] = 1, header[7] = 0;
    const int length =
        sprintf(header + NPY_MAGIC_BYTES + 2,
                "{'descr': '<f4', 'fortran_order': False, 'shape': (%" PRIu64 ", %" PRIu64 "), }", rows, cols);
    const size_t used = NPY_MAGIC_BYTES + 2 + (size_t)length;
    const size_t total = (used + 1 + NPY_ALIGNMENT - 1) / NPY_ALIGNMENT * NPY_ALIGNMENT;
    memset(header + used, ' ', total - used);
    header[total - 1] = '\n';
    const uint16_t text_bytes = (uint16_t)(total - NPY_MAGIC_BYTES - 2);
    memcpy(header + NPY_MAGIC_BYTES, &text_bytes, sizeof text_bytes);
    return total;
}

cli_exit cli_write_npy(const char *path, const float *values, uint64_t rows, uint64_t cols, int force) {
    char header[2 * NPY_ALIGNMENT + 64];
    uint64_t count, bytes;
    cli_file file;
    if (__builtin_mul_overflow(rows, cols, &count) || __builtin_mul_overflow(count, sizeof *values, &bytes))
        return cli_fail(TRF_ERR_ARGUMENT, "%s: %" PRIu64 " x %" PRIu64 " values: the size overflows", path, rows, cols);
    cli_exit status = cli_file_begin(&file, path, force);
    if (status != CLI_OK)
        return status;
    const size_t header_bytes = make_header(rows, cols, header);
    fwrite(header, 1, header_bytes, file.handle);
    if (count)
        fwrite(values, sizeof *values, count, file.handle);
    return cli_file_commit(&file); /* it looks for failures of writing */
}
