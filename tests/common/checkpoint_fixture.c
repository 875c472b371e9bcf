/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* nftw, asprintf */
#include "checkpoint_fixture.h"

#include "trf_number_formats.h"
#include "trf_safetensors.h"

#include <check.h>
#include <dirent.h>
#include <ftw.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[256];

void fixture_begin(void) {
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/trf-test-XXXXXX", parent ? parent : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)info, (void)kind, (void)place;
    return remove(path);
}

void fixture_end(void) { nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS); }

const char *fixture_path(const char *format, ...) {
    static char *paths[4096]; /* kept, so that nobody has to free them */
    static unsigned count;
    char path[1024];
    int length = snprintf(path, sizeof path, "%s/", folder);
    va_list args;
    va_start(args, format);
    vsnprintf(path + length, sizeof path - (size_t)length, format, args);
    va_end(args);
    ck_assert_uint_lt(count, sizeof paths / sizeof paths[0]);
    paths[count] = strdup(path);
    ck_assert_ptr_nonnull(paths[count]);
    return paths[count++];
}

void fixture_write(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    ck_assert_msg(file != NULL, "%s", path);
    ck_assert_uint_eq(fwrite(bytes, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
}

void *fixture_read(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s", path);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size + 1);
    ck_assert_ptr_nonnull(bytes);
    ck_assert_uint_eq(fread(bytes, 1, *size, file), *size);
    bytes[*size] = 0;
    fclose(file);
    return bytes;
}

void fixture_make_folder(const char *path) { ck_assert_int_eq(mkdir(path, 0777), 0); }

int fixture_exists(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0;
}

int fixture_count_entries(const char *path) {
    DIR *directory = opendir(path);
    ck_assert_msg(directory != NULL, "%s", path);
    int count = -2; /* . and .. */
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static void check_same_file(const char *a, const char *b) {
    size_t a_size, b_size;
    void *a_bytes = fixture_read(a, &a_size), *b_bytes = fixture_read(b, &b_size);
    ck_assert_msg(a_size == b_size && memcmp(a_bytes, b_bytes, a_size) == 0, "%s and %s differ", a, b);
    free(a_bytes);
    free(b_bytes);
}

static void check_same_link(const char *a, const char *b) {
    char a_text[1024] = "", b_text[1024] = "";
    ck_assert_int_ge(readlink(a, a_text, sizeof a_text - 1), 0);
    ck_assert_int_ge(readlink(b, b_text, sizeof b_text - 1), 0);
    ck_assert_str_eq(a_text, b_text);
}

void fixture_check_same(const char *a, const char *b) {
    struct stat a_info, b_info;
    ck_assert_msg(lstat(a, &a_info) == 0, "%s is missing", a);
    ck_assert_msg(lstat(b, &b_info) == 0, "%s is missing", b);
    ck_assert_msg((a_info.st_mode & S_IFMT) == (b_info.st_mode & S_IFMT), "%s and %s are of different kinds", a, b);
    if (S_ISLNK(a_info.st_mode)) {
        check_same_link(a, b);
    } else if (!S_ISDIR(a_info.st_mode)) {
        check_same_file(a, b);
    } else {
        ck_assert_msg(fixture_count_entries(a) == fixture_count_entries(b), "%s and %s differ in their entries", a, b);
        DIR *directory = opendir(a);
        ck_assert_ptr_nonnull(directory);
        for (struct dirent *entry; (entry = readdir(directory));) {
            char a_path[1200], b_path[1200];
            if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
                continue;
            snprintf(a_path, sizeof a_path, "%s/%s", a, entry->d_name);
            snprintf(b_path, sizeof b_path, "%s/%s", b, entry->d_name);
            fixture_check_same(a_path, b_path);
        }
        closedir(directory);
    }
}

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Draws from a nearly normal distribution with a variance of 1. */
static double next_normal(uint64_t *state) {
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += (double)(next_random(state) >> 11) * 0x1p-53;
    return sum;
}

static void fill_weights(trf_dtype dtype, void *bytes, uint64_t count, uint64_t *state) {
    for (uint64_t i = 0; i < count; i++) {
        float weight = (float)(0.02 * next_normal(state));
        switch (dtype) {
        case TRF_DTYPE_F32:
            ((float *)bytes)[i] = weight;
            break;
        case TRF_DTYPE_BF16:
            ((uint16_t *)bytes)[i] = trf_f32_to_bf16(weight);
            break;
        case TRF_DTYPE_F16:
            ((uint16_t *)bytes)[i] = trf_f32_to_f16(weight);
            break;
        case TRF_DTYPE_F8_E5M2:
            ((uint8_t *)bytes)[i] = (uint8_t)(trf_f32_to_f16(weight) >> 8);
            break;
        case TRF_DTYPE_F8_E4M3: /* only the exponents' distribution matters */
            ((uint8_t *)bytes)[i] =
                (uint8_t)((trf_f32_to_f16(weight) >> 8 & 0x80) | ((trf_f32_to_f16(weight) >> 7) & 0x7F));
            break;
        case TRF_DTYPE_I8:
            ((int8_t *)bytes)[i] = (int8_t)lrint(1000.0 * (double)weight);
            break;
        default:
            ((uint8_t *)bytes)[i] = (uint8_t)next_random(state);
        }
    }
}

static uint64_t tensor_bytes(const fixture_tensor *tensor) {
    if (tensor->bytes)
        return tensor->bytes;
    uint64_t bits = trf_dtype_bits_of_name(tensor->dtype);
    for (uint32_t i = 0; i < tensor->num_dims; i++)
        bits *= tensor->shape[i];
    return bits / 8;
}

void fixture_write_safetensors(const char *path, const char *metadata, const fixture_tensor *tensors, size_t count,
                               uint32_t pad_to, uint64_t seed) {
    trf_text text = {0};
    uint64_t end = 0;
    json_t *object = metadata ? json_loads(metadata, 0, NULL) : NULL;
    ck_assert(!metadata || object);
    trf_safetensors_begin_header(&text, object);
    for (size_t i = 0; i < count; i++) {
        uint64_t begin = end;
        end += tensor_bytes(&tensors[i]);
        trf_safetensors_add_tensor(&text, tensors[i].name, "", tensors[i].dtype, tensors[i].shape, tensors[i].num_dims,
                                   begin, end);
    }
    trf_safetensors_end_header(&text, pad_to);
    json_decref(object);

    uint8_t *data = malloc(end + 8);
    ck_assert_ptr_nonnull(data);
    uint64_t offset = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = tensor_bytes(&tensors[i]);
        trf_dtype dtype = trf_dtype_of_name(tensors[i].dtype);
        uint64_t values = dtype ? bytes / trf_dtype_bytes(dtype) : bytes;
        void *aligned = malloc(bytes + 1);
        ck_assert_ptr_nonnull(aligned);
        fill_weights(dtype, aligned, values, &seed);
        memcpy(data + offset, aligned, bytes);
        free(aligned);
        offset += bytes;
    }
    FILE *file = fopen(path, "wb");
    uint64_t text_bytes = text.size;
    ck_assert_msg(file != NULL, "%s", path);
    ck_assert_uint_eq(fwrite(&text_bytes, 1, 8, file), 8);
    ck_assert_uint_eq(fwrite(text.bytes, 1, text.size, file), text.size);
    ck_assert_uint_eq(fwrite(data, 1, end, file), end);
    ck_assert_int_eq(fclose(file), 0);
    trf_text_free(&text);
    free(data);
}

void fixture_write_header(const char *path, const char *header, uint64_t data_bytes) {
    uint64_t text_bytes = strlen(header);
    FILE *file = fopen(path, "wb");
    ck_assert_msg(file != NULL, "%s", path);
    ck_assert_uint_eq(fwrite(&text_bytes, 1, 8, file), 8);
    ck_assert_uint_eq(fwrite(header, 1, text_bytes, file), text_bytes);
    for (uint64_t i = 0; i < data_bytes; i++)
        fputc(0, file);
    ck_assert_int_eq(fclose(file), 0);
}

void fixture_check_status(trf_status status, trf_status expected, const trf_error *err) {
    ck_assert_msg(status == expected, "%s, not %s: %s", trf_status_name(status), trf_status_name(expected),
                  err->message);
    if (expected == TRF_OK)
        return;
    ck_assert_int_eq(err->status, expected);
    ck_assert_uint_gt(strlen(err->message), 0);
    ck_assert_ptr_null(strchr(err->message, '\n'));
}

trf_checkpoint *fixture_open_compressed(const fixture_tensor *tensors, size_t count) {
    const char *source = fixture_path("in.safetensors"), *compressed_path = fixture_path("compressed.safetensors");
    trf_checkpoint *checkpoint;
    trf_checkpoint_options options;
    trf_error err = {0};
    fixture_write_safetensors(source, NULL, tensors, count, 8, 1);
    trf_checkpoint_options_init(&options);
    fixture_check_status(trf_compress_checkpoint(source, compressed_path, &options, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_checkpoint_open(compressed_path, &checkpoint, &err), TRF_OK, &err);
    return checkpoint;
}
