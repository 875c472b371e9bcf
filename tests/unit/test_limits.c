/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's limits: what is counted is at least what is allocated, and what would be more is refused before it is
 * written or allocated. TRF_TEST_WRAPS_ALLOCATIONS
 * TRF_TEST_WRAPS: free */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "transfuse/checkpoints.h"
#include "transfuse/device_memory.h"
#include "trf_blob.h"
#include "trf_encode.h"
#include "trf_job.h"
#include "trf_json.h"
#include "trf_safetensors.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- counting what the library and Jansson allocate ---- */

enum {
    MALLOC_OVERHEAD = 8,
    UNCOUNTED = TRF_COPY_BYTES + (1 << 18) /* what trf_limits do not count: a buffer for copying, names, structs */
};

static atomic_llong live, most_live;

static void *count_up(void *memory) {
    if (!memory)
        return NULL;
    const long long now = atomic_fetch_add(&live, (long long)malloc_usable_size(memory) + MALLOC_OVERHEAD) +
                          (long long)malloc_usable_size(memory) + MALLOC_OVERHEAD;
    long long most = atomic_load(&most_live);
    while (now > most && !atomic_compare_exchange_weak(&most_live, &most, now))
        ;
    return memory;
}

static void count_down(void *memory) {
    if (memory)
        atomic_fetch_sub(&live, (long long)malloc_usable_size(memory) + MALLOC_OVERHEAD);
}

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes) { return count_up(__real_malloc(bytes)); }

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) { return count_up(__real_calloc(count, bytes)); }

void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes) { return count_up(__real_aligned_alloc(alignment, bytes)); }

void *__real_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes) {
    count_down(memory);
    return count_up(__real_realloc(memory, bytes));
}

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
char *__wrap_strdup(const char *text) { return count_up(__real_strdup(text)); }

char *__real_strndup(const char *text, size_t length);
char *__wrap_strndup(const char *text, size_t length);
char *__wrap_strndup(const char *text, size_t length) { return count_up(__real_strndup(text, length)); }

void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    return __real_mmap(at, bytes, protection, flags, fd, offset);
}

void __real_free(void *memory);
void __wrap_free(void *memory);
void __wrap_free(void *memory) {
    count_down(memory);
    __real_free(memory);
}

__attribute__((constructor)) static void count_jansson(void) { json_set_alloc_funcs(__wrap_malloc, __wrap_free); }

static long long counted_from;

static void begin_counting(void) {
    counted_from = atomic_load(&live);
    atomic_store(&most_live, counted_from);
}

/* @return the most that was allocated at a time since then. */
static uint64_t end_counting(void) { return (uint64_t)(atomic_load(&most_live) - counted_from); }

/* ---- bounds ---- */

static char *repeat(const char *begin, const char *part, size_t count, const char *end) {
    const size_t length = strlen(part);
    char *text = malloc(strlen(begin) + (length + 12) * count + strlen(end) + 1), *at = stpcpy(text, begin);
    for (size_t i = 0; i < count; i++)
        if (strstr(part, "%zu"))
            at += sprintf(at, part, i);
        else
            at = stpcpy(at, part);
    strcpy(at, end);
    return text;
}

typedef struct json_case {
    const char *begin, *part;
    size_t count;
    const char *end;
} json_case;

static const json_case kJson[] = {
    {"[", "0,", 50000, "0]"},
    {"[", "\"\",", 50000, "0]"},
    {"[", "[],", 50000, "0]"},
    {"[", "{},", 50000, "0]"},
    {"[", "[0],", 50000, "0]"},
    {"[", "{\"\":0},", 50000, "0]"},
    {"[", "{\"a\":\"b\"},", 50000, "0]"},
    {"{", "\"%zu\":0,", 50000, "\"\":0}"},
    {"{", "\"%zu\":\"\",", 50000, "\"\":0}"},
    {"{", "\"%zu\":[],", 30000, "\"\":0}"},
    {"{", "\"%zu\":{\"a\":{}},", 30000, "\"\":0}"},
    {"[\"", "abcdefgh", 50000, "\"]"},
    {"[\"", "\\n", 50000, "\"]"},
    {"[", "1.5,", 50000, "0]"},
    {"", "[", 2000, ""},
    {"{", "\"a%zu\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[0,4]},", 2000, "\"\":0}"},
    {"", "{\"weight_map\":{\"a\":\"b\"}}", 1, ""},
};

START_TEST(parsing_takes_no_more_than_is_said) {
    const json_case *c = &kJson[_i];
    char *text = repeat(c->begin, c->part, c->count, c->end);
    const size_t bytes = strlen(text);
    begin_counting();
    json_decref(json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL));
    const uint64_t taken = end_counting(), said = trf_json_bytes(text, bytes);
    ck_assert_msg(taken <= said, "%s: %" PRIu64 " bytes, and %" PRIu64 " are said", c->part, taken, said);
    free(text);
}
END_TEST

START_TEST(parsing_a_header_takes_no_more_than_is_said) {
    static const json_case cases[] = {
        {"{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,0],\"shape\":[", "0,", 50000, "0]}}"},
        {"{", "\"t%zu\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},", 5000,
         "\"w\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}"},
        {"{\"__metadata__\":{", "\"%zu\":\"\",", 20000, "\"a\":\"\"}}"},
        {"{", "\"%zu\":0,", 50000, "\"a\":0}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = repeat(cases[i].begin, cases[i].part, cases[i].count, cases[i].end);
        const size_t bytes = strlen(text);
        const uint64_t said = trf_safetensors_parse_bytes(text, bytes);
        trf_safetensors header;
        begin_counting();
        const trf_status status = trf_safetensors_parse(text, bytes, 0, &header, NULL);
        const uint64_t taken = end_counting();
        ck_assert_int_eq(status, i == 3 ? TRF_ERR_FORMAT : TRF_OK);
        ck_assert_msg(taken <= said, "%zu: %" PRIu64 " bytes, and %" PRIu64 " are said", i, taken, said);
        if (status != TRF_OK)
            continue;
        const uint64_t held = (uint64_t)(atomic_load(&live) - counted_from) + bytes;
        ck_assert_msg(held <= trf_safetensors_held_bytes(&header), "%zu: %" PRIu64 " bytes are held", i, held);
        trf_safetensors_free(&header);
    }
}
END_TEST

/* Makes up weights: BF16 that was FP8 with a scale for each row, or numbers of many sizes. */
static trf_status make_weights(void *context, uint32_t row, uint32_t num_rows, uint32_t col, uint32_t num_cols,
                               void *dst, trf_error *err) {
    const trf_dtype dtype = *(const trf_dtype *)context;
    (void)err;
    for (uint32_t r = 0; r < num_rows; r++)
        for (uint32_t c = 0; c < num_cols; c++) {
            const uint32_t hash = ((row + r) * 2654435761u ^ (col + c) * 40503u) * 2246822519u;
            const size_t at = (size_t)r * num_cols + c;
            const float value = (float)(int32_t)hash * 0x1p-31f;
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            if (dtype == TRF_DTYPE_F32)
                ((float *)dst)[at] = value;
            else /* three bits of the mantissa: FP8 times 1 */
                ((uint16_t *)dst)[at] = (uint16_t)(bits >> 16 & 0xFFF0);
        }
    return TRF_OK;
}

static trf_status pass_over(void *context, uint64_t offset, const void *bytes, size_t size, trf_error *err) {
    (void)context, (void)offset, (void)bytes, (void)size, (void)err;
    return TRF_OK;
}

typedef struct encode_case {
    trf_dtype dtype;
    uint32_t rows, cols;
    trf_codec codec;
    double bits;
    trf_granularity granularity;
    uint32_t size;
    int threads;
} encode_case;

static const encode_case kEncode[] = {
    {TRF_DTYPE_BF16, 600, 5000, TRF_CODEC_BF16, 0, 0, 0, 2},
    {TRF_DTYPE_BF16, 600, 1000, TRF_CODEC_AUTO, 0, 0, 0, 3},
    {TRF_DTYPE_BF16, 20000, 16, TRF_CODEC_AUTO, 0, 0, 0, 2},
    {TRF_DTYPE_BF16, 16, 270000, TRF_CODEC_BF16, 0, 0, 0, 1},
    {TRF_DTYPE_F32, 256, 2048, TRF_CODEC_INT, 4.25, TRF_GRANULARITY_SCALE_GROUP, 16, 2},
    {TRF_DTYPE_F32, 20000, 16, TRF_CODEC_INT, 0, TRF_GRANULARITY_CHANNEL, 0, 2},
    {TRF_DTYPE_F32, 300, 300, TRF_CODEC_INT, 3, TRF_GRANULARITY_SCALE_BLOCK, 16, 1},
    {TRF_DTYPE_F32, 17, 17, TRF_CODEC_BF16, 0, 0, 0, 1},
};

START_TEST(encoding_takes_no_more_than_is_said) {
    const encode_case *c = &kEncode[_i];
    trf_dtype dtype = c->dtype;
    const trf_source source = {dtype, c->rows, c->cols, &dtype, make_weights, NULL};
    const trf_sink sink = {NULL, pass_over};
    trf_encode_options options;
    trf_encoded encoded;
    trf_error err = {0};
    trf_encode_options_init(&options);
    options.codec = c->codec, options.bits = c->bits, options.threads = c->threads;
    options.granularity = c->granularity, options.scale_group_size = c->size;
    begin_counting();
    fixture_check_status(trf_encode_source(&source, &options, &sink, NULL, &encoded, NULL, &err), TRF_OK, &err);
    const uint64_t taken = end_counting(), said = trf_encode_bytes(&source, &options);
    ck_assert_msg(taken <= said, "%" PRIu64 " bytes, and %" PRIu64 " are said", taken, said);
}
END_TEST

/* ---- whole calls ---- */

static const fixture_tensor kTensors[] = {{"embed_tokens.weight", "BF16", {64, 64}, 2, 0},
                                          {"a.weight", "BF16", {300, 520}, 2, 0},
                                          {"experts", "F16", {3, 64, 80}, 3, 0},
                                          {"norm.weight", "F32", {300}, 1, 0}};
static const char *source, *compressed;
static trf_limits limits;
static trf_checkpoint_options checkpoint_options;
static trf_error err;

static void make_files(void) {
    fixture_begin();
    source = fixture_path("source.safetensors"), compressed = fixture_path("compressed.safetensors");
    fixture_write_safetensors(source, "{\"format\":\"pt\"}", kTensors, 4, 8, 1);
    fixture_check_status(trf_compress_checkpoint(source, compressed, NULL, NULL, &err), TRF_OK, &err);
    trf_limits_init(&limits);
    trf_checkpoint_options_init(&checkpoint_options);
    checkpoint_options.encode.threads = 2;
    checkpoint_options.limits = &limits;
}

static uint64_t size_of(const char *path) {
    size_t bytes;
    free(fixture_read(path, &bytes));
    return bytes;
}

enum {
    COMPRESS,
    DECOMPRESS,
    VERIFY,
    VERIFY_AGAINST,
    LIST,
    EXTRACT,
    LOAD_CODED,
    LOAD_PLAIN,
    LOAD_PACKED,
    NUM_CALLS
};

static trf_status list_tensors(void) {
    trf_checkpoint *checkpoint;
    trf_tensor_info info;
    trf_status status = trf_checkpoint_open_within(compressed, &limits, &checkpoint, &err);
    if (status != TRF_OK)
        return status;
    for (uint64_t i = 0; i < trf_checkpoint_num_tensors(checkpoint) && status == TRF_OK; i++)
        status = trf_checkpoint_tensor(checkpoint, i, &info, &err);
    trf_checkpoint_close(checkpoint);
    return status;
}

static trf_context *device;

/* The checkpoint is opened without limits, so that it is the options that count. */
static trf_status load(trf_layout layout) {
    trf_checkpoint *checkpoint;
    trf_device_layer *layer;
    trf_load_options options;
    fixture_check_status(trf_checkpoint_open(compressed, &checkpoint, &err), TRF_OK, &err);
    trf_load_options_init(&options);
    options.layout = layout, options.threads = 2, options.limits = &limits;
    trf_status status = trf_device_layer_load(device, checkpoint, "a.weight", &options, &layer, &err);
    if (status == TRF_OK)
        trf_device_layer_destroy(layer);
    trf_checkpoint_close(checkpoint);
    return status;
}

static trf_status call(int number) {
    const char *out = fixture_path("out");
    unlink(out);
    switch (number) {
    case COMPRESS:
        return trf_compress_checkpoint(source, out, &checkpoint_options, NULL, &err);
    case DECOMPRESS:
        return trf_decompress_checkpoint(compressed, out, &checkpoint_options, NULL, &err);
    case VERIFY:
        return trf_verify_checkpoint(compressed, NULL, &checkpoint_options, NULL, &err);
    case VERIFY_AGAINST:
        return trf_verify_checkpoint(compressed, source, &checkpoint_options, NULL, &err);
    case LIST:
        return list_tensors();
    case EXTRACT:
        return trf_extract_layer_within(compressed, "experts[1]", out, 0, &limits, &err);
    default:
        return load((trf_layout)(number - LOAD_CODED));
    }
}

/* Finds the least limit that a call passes with. Below it the call fails as it should, and with it the call takes no
 * more. */
START_TEST(no_call_takes_more_memory_than_its_limit) {
    uint64_t low = 1, high = 1 << 30;
    fixture_check_status(trf_context_create(TRF_DEVICE_CPU, &device, &err), TRF_OK, &err);
    while (low < high) {
        limits.max_memory_bytes = low + (high - low) / 2;
        const trf_status status = call(_i);
        if (status == TRF_OK) {
            high = limits.max_memory_bytes;
            continue;
        }
        fixture_check_status(status, TRF_ERR_LIMIT, &err);
        ck_assert_msg(strstr(err.message, "max_memory_bytes is ") && strstr(err.message, ".safetensors"), "%s",
                      err.message);
        ck_assert_int_eq(fixture_exists(fixture_path("out")), 0);
        low = limits.max_memory_bytes + 1;
    }
    limits.max_memory_bytes = high;
    begin_counting();
    fixture_check_status(call(_i), TRF_OK, &err);
    uint64_t taken = end_counting();
    if (_i >= LOAD_CODED) { /* the layer itself is device memory, and the checkpoint was opened without limits */
        trf_limits_init(&limits);
        limits.max_device_bytes = 1;
        fixture_check_status(call(_i), TRF_ERR_LIMIT, &err);
        ck_assert_ptr_nonnull(strstr(err.message, "tensor 'a.weight': max_device_bytes is 1"));
        taken = taken > (1 << 19) ? taken - (1 << 19) : 0;
    }
    ck_assert_msg(taken <= high + UNCOUNTED, "%" PRIu64 " bytes within a limit of %" PRIu64, taken, high);
    ck_assert_uint_gt(high, _i == LOAD_CODED ? 100 : 1000);
    trf_context_destroy(device);
}
END_TEST

START_TEST(no_call_writes_more_than_its_limit) {
    static const int calls[] = {COMPRESS, DECOMPRESS, EXTRACT};
    fixture_check_status(call(calls[_i]), TRF_OK, &err);
    const uint64_t bytes = size_of(fixture_path("out"));
    const uint64_t sizes[] = {1, bytes / 2, bytes - 1};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        limits.max_output_bytes = sizes[i];
        fixture_check_status(call(calls[_i]), TRF_ERR_LIMIT, &err);
        ck_assert_msg(strstr(err.message, "max_output_bytes is "), "%s", err.message);
        ck_assert_msg(strstr(err.message, fixture_path("%s", "")), "%s", err.message);
        ck_assert_int_eq(fixture_exists(fixture_path("out")), 0);
    }
    ck_assert_int_eq(fixture_count_entries(fixture_path("%s", "")), 2);
    /* A blob that is not worth keeping may reach further than the file that is left. */
    limits.max_output_bytes = calls[_i] == COMPRESS ? bytes + 65536 : bytes;
    fixture_check_status(call(calls[_i]), TRF_OK, &err);
}
END_TEST

START_TEST(decompressing_names_the_tensor_that_is_too_much) {
    limits.max_output_bytes = size_of(source) - 1;
    fixture_check_status(call(DECOMPRESS), TRF_ERR_LIMIT, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "compressed.safetensors: tensor 'norm.weight': max_output_bytes is "));
    checkpoint_options.dry_run = 1;
    fixture_check_status(trf_decompress_checkpoint(compressed, NULL, &checkpoint_options, NULL, &err), TRF_ERR_LIMIT,
                         &err);
    limits.max_output_bytes = 10000;
    fixture_check_status(trf_compress_checkpoint(source, NULL, &checkpoint_options, NULL, &err), TRF_ERR_LIMIT, &err);
}
END_TEST

/* Limits of opening hold for loads without their own. */
START_TEST(limits_stay_with_a_checkpoint) {
    trf_checkpoint *checkpoint;
    trf_device_layer *layer;
    trf_load_options options;
    fixture_check_status(trf_context_create(TRF_DEVICE_CPU, &device, &err), TRF_OK, &err);
    limits.max_device_bytes = 1000;
    fixture_check_status(trf_checkpoint_open_within(compressed, &limits, &checkpoint, &err), TRF_OK, &err);
    limits.max_device_bytes = 0;
    fixture_check_status(trf_device_layer_load(device, checkpoint, "a.weight", NULL, &layer, &err), TRF_ERR_LIMIT,
                         &err);
    trf_load_options_init(&options);
    options.limits = &limits;
    fixture_check_status(trf_device_layer_load(device, checkpoint, "a.weight", &options, &layer, &err), TRF_OK, &err);
    trf_device_layer_destroy(layer);
    trf_checkpoint_close(checkpoint);
    limits.struct_bytes = 3;
    fixture_check_status(trf_checkpoint_open_within(compressed, &limits, &checkpoint, &err), TRF_ERR_ARGUMENT, &err);
    trf_context_destroy(device);
}
END_TEST

/* Files that a folder has besides the model's count, too. */
START_TEST(carried_files_count) {
    const char *folder = fixture_path("model"), *out = fixture_path("folder-out");
    char text[4096] = {0};
    fixture_make_folder(folder);
    fixture_write_safetensors(fixture_path("model/model.safetensors"), NULL, kTensors, 2, 8, 1);
    fixture_write(fixture_path("model/config.json"), "{\"model_type\":\"llama\"}", 22);
    fixture_write(fixture_path("model/notes.txt"), text, sizeof text);
    limits.max_output_bytes = sizeof text - 1;
    fixture_check_status(trf_compress_checkpoint(folder, out, &checkpoint_options, NULL, &err), TRF_ERR_LIMIT, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "notes.txt: max_output_bytes is 4095"));
    ck_assert_int_eq(fixture_exists(out), 0);
    limits.max_output_bytes = 1 << 20;
    fixture_check_status(trf_compress_checkpoint(folder, out, &checkpoint_options, NULL, &err), TRF_OK, &err);
}
END_TEST

/* ---- files that promise more than they have ---- */

/* Writes `bytes` bytes at an offset of a file, and makes it as large as `size`, with a hole. @return 0 if the file
 * system does not take such a size. */
static int write_sparse(const char *path, const void *bytes, size_t count, uint64_t size) {
    fixture_write(path, bytes, count);
    return truncate(path, (off_t)size) == 0;
}

static trf_status open_and_list(const char *path) {
    trf_checkpoint *checkpoint;
    trf_tensor_info info;
    trf_status status = trf_checkpoint_open(path, &checkpoint, &err);
    if (status != TRF_OK)
        return status;
    status = trf_checkpoint_tensor(checkpoint, 0, &info, &err);
    trf_checkpoint_close(checkpoint);
    return status;
}

enum {
    LITTLE = 16 << 20
};

START_TEST(a_header_that_promises_2_to_the_60_weights) {
    static const char header[] = "{\"w\":{\"dtype\":\"I8\",\"shape\":[1073741824,1073741824],\"data_offsets\":[0,"
                                 "1152921504606846976]}}",
                      too_large[] = "{\"w\":{\"dtype\":\"BF16\",\"shape\":[1073741824,1073741824],\"data_offsets\":[0,"
                                    "2305843009213693952]}}";
    const char *path = fixture_path("huge.safetensors");
    fixture_write_header(path, too_large, 64);
    fixture_check_status(open_and_list(path), TRF_ERR_FORMAT, &err); /* 2^64 bits */
    fixture_write_header(path, header, 64);
    begin_counting();
    fixture_check_status(open_and_list(path), TRF_ERR_TRUNCATED, &err);
    fixture_check_status(trf_compress_checkpoint(path, fixture_path("out"), NULL, NULL, &err), TRF_ERR_TRUNCATED, &err);
    ck_assert_uint_lt(end_counting(), LITTLE);
    if (truncate(path, (off_t)(8 + strlen(header)) + ((off_t)1 << 60)) != 0)
        return; /* only some file systems take such a size */
    fixture_check_status(open_and_list(path), TRF_OK, &err);
    limits.max_memory_bytes = 1 << 30;
    fixture_check_status(call(COMPRESS), TRF_OK, &err); /* of a small file */
    fixture_check_status(trf_compress_checkpoint(path, fixture_path("out2"), &checkpoint_options, NULL, &err),
                         TRF_ERR_LIMIT, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "tensor 'w'"));
    ck_assert_uint_lt(end_counting(), 1 << 28);
}
END_TEST

START_TEST(a_blob_that_promises_2_to_the_60_weights) {
    const char *path = fixture_path("huge.trf");
    fixture_check_status(trf_extract_layer(compressed, "a.weight", path, 0, &err), TRF_OK, &err);
    size_t bytes;
    uint8_t *blob = fixture_read(path, &bytes);
    for (unsigned bits = 29; bits <= 30; bits++) { /* of rows and columns; 2^60 weights of BF16 are 2^64 bits */
        trf_header header;
        memcpy(&header, blob, sizeof header);
        header.rows = header.cols = 1u << bits;
        header.num_tile_rows = header.num_tile_cols = 1u << (bits - 8);
        memcpy(blob, &header, sizeof header);
        fixture_write(path, blob, bytes);
        begin_counting();
        fixture_check_status(open_and_list(path), bits == 29 ? TRF_ERR_HEADER : TRF_ERR_FORMAT, &err);
        ck_assert_uint_lt(end_counting(), LITTLE);
    }
    free(blob);
}
END_TEST

/* The head of a blob with many tiles, of which all that describes tiles is a hole. */
START_TEST(a_head_that_is_a_hole) {
    const char *path = fixture_path("hole.trf");
    fixture_check_status(trf_extract_layer(compressed, "a.weight", path, 0, &err), TRF_OK, &err);
    size_t bytes;
    uint8_t *blob = fixture_read(path, &bytes);
    trf_header header;
    trf_extension extension;
    memcpy(&header, blob, sizeof header);
    memcpy(&extension, blob + TRF_EXTENSION_OFFSET, sizeof extension);
    const uint64_t tiles = (uint64_t)1 << 23;
    header.num_tile_rows = 1 << 12, header.num_tile_cols = 1 << 11;
    header.rows = header.num_tile_rows * TRF_TILE_SIZE, header.cols = header.num_tile_cols * TRF_TILE_SIZE;
    header.predictor_modes = 0;
    extension.row_offsets_offset = extension.row_offsets_bytes = 0;
    extension.col_offsets_offset = extension.col_offsets_bytes = 0;
    extension.data_offset = (TRF_TILES_OFFSET + tiles * sizeof(trf_tile_meta) + 127) / 128 * 128;
    header.blob_bytes = extension.data_offset + 128 * tiles;
    memcpy(blob, &header, sizeof header);
    memcpy(blob + TRF_EXTENSION_OFFSET, &extension, sizeof extension);
    ck_assert(write_sparse(path, blob, TRF_TILES_OFFSET, header.blob_bytes));
    begin_counting();
    fixture_check_status(open_and_list(path), TRF_ERR_HEADER, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "zeros in the head"));
    ck_assert_uint_lt(end_counting(), LITTLE);
    free(blob);
}
END_TEST

/* A list of very many experts, which is a hole. */
START_TEST(an_expert_index_that_is_a_hole) {
    const uint64_t count = 1 << 28, tensor_bytes = 16 + 8 * count + 1024;
    const char *path = fixture_path("experts.safetensors");
    char header[512];
    const int length =
        snprintf(header + 8, sizeof header - 8,
                 "{\"w_trf\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64 "],\"data_offsets\":[0,%" PRIu64 "]}}",
                 tensor_bytes, tensor_bytes);
    const uint64_t text_bytes = (uint64_t)length;
    const uint32_t index[4] = {TRF_EXPERT_INDEX_MAGIC, (uint32_t)count, 0, 0};
    memcpy(header, &text_bytes, sizeof text_bytes);
    memcpy(header + 8 + length, index, sizeof index);
    ck_assert(write_sparse(path, header, 8 + (size_t)length + sizeof index, 8 + text_bytes + tensor_bytes));
    begin_counting();
    fixture_check_status(open_and_list(path), TRF_ERR_HEADER, &err);
    ck_assert_uint_lt(end_counting(), LITTLE);
}
END_TEST

/* A sound file of 16 GB that takes no room on the disk. */
START_TEST(a_sparse_checkpoint) {
    static const char header[] =
        "{\"w\":{\"dtype\":\"BF16\",\"shape\":[65536,131072],\"data_offsets\":[0,17179869184]}}";
    const char *path = fixture_path("sparse.safetensors");
    fixture_write_header(path, header, 64);
    ck_assert_int_eq(truncate(path, (off_t)(8 + strlen(header)) + ((off_t)1 << 34)), 0);
    trf_checkpoint_report report;
    checkpoint_options.dry_run = 1;
    limits.max_memory_bytes = 1 << 28;
    begin_counting();
    fixture_check_status(open_and_list(path), TRF_OK, &err);
    fixture_check_status(trf_compress_checkpoint(path, NULL, &checkpoint_options, &report, &err), TRF_OK, &err);
    ck_assert_uint_lt(end_counting(), 1 << 28);
    ck_assert_uint_eq(report.compressed_source_bytes, (uint64_t)1 << 34);
    fixture_check_status(trf_verify_checkpoint(path, NULL, &checkpoint_options, NULL, &err), TRF_OK, &err);
}
END_TEST

/* Nothing that can be coded in fewer bytes has more weights: zeros of F32, by a codec without raw bits. */
START_TEST(a_compression_bomb) {
    static const char header[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[4096,4096],\"data_offsets\":[0,67108864]}}";
    const char *zeros = fixture_path("zeros.safetensors"), *bomb = fixture_path("bomb.safetensors");
    fixture_write_header(zeros, header, 64);
    ck_assert_int_eq(truncate(zeros, (off_t)(8 + strlen(header)) + (1 << 26)), 0);
    checkpoint_options.encode.codec = TRF_CODEC_INT;
    fixture_check_status(trf_compress_checkpoint(zeros, bomb, &checkpoint_options, NULL, &err), TRF_OK, &err);
    checkpoint_options.encode.codec = TRF_CODEC_AUTO;
    const uint64_t bytes = size_of(bomb);
    ck_assert_msg((1 << 26) / bytes < 283, "a file of %" PRIu64 " bytes", bytes);
    limits.max_output_bytes = 1 << 25;
    begin_counting();
    fixture_check_status(trf_decompress_checkpoint(bomb, fixture_path("out"), &checkpoint_options, NULL, &err),
                         TRF_ERR_LIMIT, &err);
    ck_assert_uint_lt(end_counting(), LITTLE);
    ck_assert_ptr_nonnull(strstr(err.message, "bomb.safetensors: tensor 'w': max_output_bytes is 33554432, and its "
                                              "67108864 bytes"));
}
END_TEST

int main(void) {
    TCase *bounds = tcase_create("bounds"), *calls = tcase_create("calls"), *files = tcase_create("files");
    tcase_add_loop_test(bounds, parsing_takes_no_more_than_is_said, 0, sizeof kJson / sizeof kJson[0]);
    tcase_add_test(bounds, parsing_a_header_takes_no_more_than_is_said);
    tcase_add_loop_test(bounds, encoding_takes_no_more_than_is_said, 0, sizeof kEncode / sizeof kEncode[0]);
    tcase_add_unchecked_fixture(bounds, fixture_begin, fixture_end);
    tcase_add_unchecked_fixture(calls, make_files, fixture_end);
    tcase_add_loop_test(calls, no_call_takes_more_memory_than_its_limit, 0, NUM_CALLS);
    tcase_add_loop_test(calls, no_call_writes_more_than_its_limit, 0, 3);
    tcase_add_test(calls, decompressing_names_the_tensor_that_is_too_much);
    tcase_add_test(calls, limits_stay_with_a_checkpoint);
    tcase_add_test(calls, carried_files_count);
    tcase_add_unchecked_fixture(files, make_files, fixture_end);
    tcase_add_test(files, a_header_that_promises_2_to_the_60_weights);
    tcase_add_test(files, a_blob_that_promises_2_to_the_60_weights);
    tcase_add_test(files, a_head_that_is_a_hole);
    tcase_add_test(files, an_expert_index_that_is_a_hole);
    tcase_add_test(files, a_sparse_checkpoint);
    tcase_add_test(files, a_compression_bomb);
    tcase_set_timeout(bounds, 60);
    tcase_set_timeout(calls, 60);
    tcase_set_timeout(files, 60);
    TCase *const cases[] = {bounds, calls, files};
    Suite *suite = suite_create("limits");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        suite_add_tcase(suite, cases[i]);
    return run_suite(suite);
}
