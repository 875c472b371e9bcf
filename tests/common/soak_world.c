/* SPDX-License-Identifier: Apache-2.0 */
/* A soak's files, and what is due of every call, which a single thread finds out before the others begin. */
#include "checkpoint_fixture.h"
#include "soak_work.h"
#include "was_fp8.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- files ---- */

/* The shapes for the CPU, and for a device that has large layers. */
typedef struct world_tensor {
    const char *name, *dtype;
    uint64_t small[3], large[3];
    uint32_t num_dims;
} world_tensor;

static const world_tensor kFirstFile[] = {
    {"a", "BF16", {300, 530}, {2320, 3000}, 2},
    {"b", "BF16", {256, 512}, {1024, 2048}, 2},
    {"experts.gate_up", "BF16", {4, 64, 128}, {4, 1024, 512}, 3},
};
static const world_tensor kSecondFile[] = {
    {"experts.down", "BF16", {4, 128, 32}, {4, 512, 512}, 3},
    {"f16", "F16", {140, 512}, {1024, 1024}, 2},
    {"e4m3", "F8_E4M3", {192, 256}, {1024, 2048}, 2},
    {"e5m2", "F8_E5M2", {128, 256}, {512, 1024}, 2},
    {"i8", "I8", {64, 512}, {512, 1024}, 2},
};
static const world_tensor kPair[] = {
    {"first", "BF16", {128, 512}, {128, 512}, 2},
    {"second", "F16", {64, 256}, {64, 256}, 2},
};

static uint64_t write_file(const soak *soak, const char *path, const world_tensor *tensors, size_t count) {
    fixture_tensor made[8];
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        const uint64_t *shape = soak->device->has_large_layers ? tensors[i].large : tensors[i].small;
        made[i] = (fixture_tensor){tensors[i].name, tensors[i].dtype, {0}, tensors[i].num_dims, 0};
        memcpy(made[i].shape, shape, tensors[i].num_dims * sizeof *shape);
        uint64_t each = tensors[i].dtype[1] == '8' ? 1 : 2;
        for (uint32_t d = 0; d < tensors[i].num_dims; d++)
            each *= shape[d];
        bytes += each;
    }
    fixture_write_safetensors(path, NULL, made, count, 8, soak->seed + count);
    return bytes;
}

static void write_folder(const soak *soak) {
    static const char *const first = "model-00001-of-00002.safetensors", *const second =
                                                                             "model-00002-of-00002.safetensors";
    const size_t num_first = sizeof kFirstFile / sizeof kFirstFile[0],
                 num_second = sizeof kSecondFile / sizeof kSecondFile[0];
    char index[2048];
    fixture_make_folder(soak->source_folder);
    uint64_t bytes = write_file(soak, fixture_path("source/%s", first), kFirstFile, num_first);
    bytes += write_file(soak, fixture_path("source/%s", second), kSecondFile, num_second);
    int length = snprintf(index, sizeof index, "{\"metadata\": {\"total_size\": %llu}, \"weight_map\": {",
                          (unsigned long long)bytes);
    for (size_t i = 0; i < num_first + num_second; i++)
        length += snprintf(index + length, sizeof index - (size_t)length, "%s\"%s\": \"%s\"", i ? ", " : "",
                           i < num_first ? kFirstFile[i].name : kSecondFile[i - num_first].name,
                           i < num_first ? first : second);
    length += snprintf(index + length, sizeof index - (size_t)length, "}}");
    fixture_write(fixture_path("source/model.safetensors.index.json"), index, (size_t)length);
}

static void compress(const char *from, const char *to) {
    trf_checkpoint_options options;
    trf_error err = {0};
    trf_checkpoint_options_init(&options);
    fixture_check_status(trf_compress_checkpoint(from, to, &options, NULL, &err), TRF_OK, &err);
}

static soak_bytes read_bytes(const char *path) {
    soak_bytes bytes;
    bytes.at = fixture_read(path, &bytes.size);
    return bytes;
}

/* Writes blobs with scales: BF16 that was FP8, and quantized F32. */
static void write_blobs(const soak *soak) {
    const int large = soak->device->has_large_layers;
    const uint32_t rows = large ? 1024 : 256, cols = large ? 1024 : 384;
    test_rng rng = {soak->seed + 7};
    trf_encode_options options;
    trf_error err = {0};
    void *blob;
    uint64_t bytes;
    uint16_t *weights = was_fp8_make(&rng, TRF_GRANULARITY_SCALE_BLOCK, rows, cols);
    was_fp8_encode(weights, TRF_FAVOR_SPEED, rows, cols, &blob, &bytes);
    fixture_write(soak->paths[SOAK_WAS_FP8], blob, bytes);
    ((uint8_t *)blob)[bytes / 2] ^= 1;
    fixture_write(soak->paths[SOAK_DAMAGED], blob, bytes);
    trf_free(blob);
    free(weights);
    float *floats = malloc(4ull * rows * cols);
    ck_assert_ptr_nonnull(floats);
    test_fill_normal(&rng, floats, TRF_DTYPE_F32, (size_t)rows * cols, 0.02);
    const trf_matrix matrix = test_matrix(floats, TRF_DTYPE_F32, rows, cols);
    trf_encode_options_init(&options);
    options.codec = TRF_CODEC_INT;
    options.bits = 4.25;
    fixture_check_status(trf_encode_layer(&matrix, &options, &blob, &bytes, NULL, &err), TRF_OK, &err);
    fixture_write(soak->paths[SOAK_INT], blob, bytes);
    trf_free(blob);
    free(floats);
}

static void write_pair(soak *soak) {
    const char *again = fixture_path("again.safetensors");
    trf_checkpoint_options options;
    trf_error err = {0};
    trf_layer *layer;
    trf_layer_info info;
    write_file(soak, soak->source_pair, kPair, sizeof kPair / sizeof kPair[0]);
    compress(soak->source_pair, soak->paths[SOAK_PAIR]);
    trf_checkpoint_options_init(&options);
    fixture_check_status(trf_decompress_checkpoint(soak->paths[SOAK_PAIR], again, &options, NULL, &err), TRF_OK, &err);
    fixture_check_same(soak->source_pair, again);
    soak->pair = read_bytes(soak->paths[SOAK_PAIR]);
    soak->pair_source = read_bytes(again);
    const char *extracted = fixture_path("first.trf");
    fixture_check_status(trf_extract_layer(soak->paths[SOAK_PAIR], "first", extracted, 0, &err), TRF_OK, &err);
    soak->pair_matrix = read_bytes(extracted);
    fixture_check_status(trf_layer_open(extracted, &layer, &err), TRF_OK, &err);
    trf_layer_get_info(layer, &info);
    soak->pair_rows = info.rows;
    soak->pair_cols = info.cols;
    soak->pair_weights = malloc(2ull * info.rows * info.cols);
    fixture_check_status(trf_layer_decode(layer, soak->pair_weights, 2ull * info.rows * info.cols, 1, &err), TRF_OK,
                         &err);
    trf_layer_free(layer);
}

/* ---- what layers are due to give ---- */

static const struct {
    soak_file file;
    const char *tensor;
    trf_layout layout;
    uint32_t shard[4];
    int packed_bf16;
} kSubjects[] = {
    {SOAK_FOLDER, "a", TRF_LAYOUT_CODED, {0}, 0},
    {SOAK_FOLDER, "a", TRF_LAYOUT_PACKED, {0}, 0},
    {SOAK_FOLDER, "a", TRF_LAYOUT_PLAIN, {0}, 0},
    {SOAK_FOLDER, "a", TRF_LAYOUT_CODED, {32, 208, 16, 384}, 0},
    {SOAK_FOLDER, "a", TRF_LAYOUT_PACKED, {64, 128, 128, 256}, 0},
    {SOAK_FOLDER, "b", TRF_LAYOUT_CODED, {0}, 0},
    {SOAK_FOLDER, "b", TRF_LAYOUT_PACKED, {0}, 0},
    {SOAK_FOLDER, "f16", TRF_LAYOUT_CODED, {0}, 0},
    {SOAK_FOLDER, "f16", TRF_LAYOUT_PLAIN, {0}, 0},
    {SOAK_FOLDER, "e4m3", TRF_LAYOUT_CODED, {0}, 0},
    {SOAK_FOLDER, "e4m3", TRF_LAYOUT_PACKED, {0}, 0},
    {SOAK_FOLDER, "e5m2", TRF_LAYOUT_CODED, {0}, 0},
    {SOAK_FOLDER, "i8", TRF_LAYOUT_CODED, {0}, 0},
    {SOAK_PAIR, "first", TRF_LAYOUT_CODED, {0}, 0},
    {SOAK_WAS_FP8, "weight", TRF_LAYOUT_CODED, {0}, 0},
    {SOAK_WAS_FP8, "weight", TRF_LAYOUT_PACKED, {0}, 0},
    {SOAK_WAS_FP8, "weight", TRF_LAYOUT_PACKED8, {0}, 0},
    {SOAK_WAS_FP8, "weight", TRF_LAYOUT_PACKED, {0}, 1},
    {SOAK_WAS_FP8, "weight", TRF_LAYOUT_PLAIN, {0}, 0},
    {SOAK_INT, "weight", TRF_LAYOUT_CODED, {0}, 0},
};

static void *copy_of(const void *bytes, uint64_t size) {
    void *copy = malloc(size ? size : 1);
    ck_assert_ptr_nonnull(copy);
    return memcpy(copy, bytes, size);
}

static void check_no_failure(const soak *soak) {
    if (soak->failures)
        ck_abort_msg("by a single thread: %s", soak->first_failure);
}

/* Adds a product if the layer has it. */
static void add_product(soak_thread *thread, trf_device_layer *layer, soak_subject *subject,
                        const trf_plan_options *options) {
    trf_plan *plan;
    soak_product *product = &subject->products[subject->num_products];
    const trf_status status = trf_plan_create(layer, options, &plan, &thread->err);
    if (status == TRF_ERR_UNSUPPORTED)
        return;
    fixture_check_status(status, TRF_OK, &thread->err);
    ck_assert_uint_lt(subject->num_products, SOAK_MOST_PRODUCTS);
    product->options = *options;
    product->y_bytes = (uint64_t)options->m * subject->rows * trf_dtype_bytes(options->y_dtype);
    const void *y = soak_queue_product(thread, plan, product);
    const uint8_t *found = y ? soak_read(thread, y, product->y_bytes) : NULL;
    check_no_failure(thread->soak);
    product->y = copy_of(found, product->y_bytes);
    subject->num_products++;
    trf_plan_destroy(plan);
}

static void add_products(soak_thread *thread, trf_device_layer *layer, soak_subject *subject) {
    static const trf_path paths[] = {TRF_PATH_FUSED, TRF_PATH_TWO_STEP, TRF_PATH_WIDE, TRF_PATH_DENSE, TRF_PATH_PACKED};
    static const trf_dtype y_dtypes[] = {TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16};
    static const uint32_t small[] = {1, 3, 0}, large[] = {1, 7, 33, 130, 0};
    const uint32_t *const batches = thread->soak->device->has_large_layers ? large : small;
    const trf_codec codec = test_layer_info(layer).codec;
    const trf_dtype x_dtype = codec == TRF_CODEC_FP16 ? TRF_DTYPE_F16 : TRF_DTYPE_BF16;
    uint32_t number = 0;
    for (size_t p = 0; p < sizeof paths / sizeof paths[0]; p++)
        for (const uint32_t *m = batches; *m; m++, number++) {
            trf_plan_options options = test_plan_options(*m, x_dtype, y_dtypes[number % 3], paths[p]);
            add_product(thread, layer, subject, &options);
        }
    trf_plan_options options = test_plan_options(batches[1], x_dtype, TRF_DTYPE_F32, TRF_PATH_AUTO);
    options.has_bias = options.has_residual = 1;
    options.activation = TRF_ACTIVATION_SILU;
    add_product(thread, layer, subject, &options);
}

static void add_weights(soak_thread *thread, const trf_device_layer *layer, soak_subject *subject) {
    const uint64_t bytes = (uint64_t)subject->rows * subject->cols * trf_dtype_bytes(test_layer_info(layer).dtype);
    void *to = soak_reserve(thread, SOAK_WEIGHTS, bytes);
    check_no_failure(thread->soak);
    trf_status status = trf_device_layer_decode(layer, TRF_DECODE_SOURCE, to, bytes, thread->stream, &thread->err);
    if (status == TRF_ERR_UNSUPPORTED) /* a shard that cuts tiles */
        return;
    fixture_check_status(status, TRF_OK, &thread->err);
    const uint8_t *found = soak_read(thread, to, bytes);
    check_no_failure(thread->soak);
    subject->weights = copy_of(found, bytes);
    subject->weights_bytes = bytes;
    status = trf_device_layer_encode(layer, 1, &subject->blob, &subject->blob_bytes, &thread->err);
    fixture_check_status(status, TRF_OK, &thread->err);
}

static void add_subject(soak_thread *thread, const soak_context *context, size_t number) {
    soak_subject *subject = &thread->soak->subjects[thread->soak->num_subjects];
    *subject = (soak_subject){.file = kSubjects[number].file,
                              .tensor = kSubjects[number].tensor,
                              .layout = kSubjects[number].layout,
                              .packed_bf16 = kSubjects[number].packed_bf16};
    memcpy(subject->shard, kSubjects[number].shard, sizeof subject->shard);
    const trf_load_options options = soak_load_options(subject);
    soak_checkpoint *checkpoint = soak_open(thread, subject->file);
    trf_device_layer *layer;
    check_no_failure(thread->soak);
    const trf_status status = trf_device_layer_load(context->context, checkpoint->checkpoint, subject->tensor, &options,
                                                    &layer, &thread->err);
    soak_let_go(&checkpoint->shared);
    if (status == TRF_ERR_UNSUPPORTED) {
        printf("soak: no %s of %s: %s\n", trf_layout_name(subject->layout), subject->tensor, thread->err.message);
        return;
    }
    fixture_check_status(status, TRF_OK, &thread->err);
    const trf_device_layer_info info = test_device_layer_info(layer);
    subject->rows = info.layer.rows;
    subject->cols = info.layer.cols;
    subject->found_layout = info.layout;
    add_products(thread, layer, subject);
    if (subject->num_products) {
        add_weights(thread, layer, subject);
        thread->soak->num_subjects++;
    } else { /* plain layers where there is no cuBLASLt */
        printf("soak: no products of %s, %s: %s\n", subject->tensor, trf_layout_name(subject->layout),
               thread->err.message);
    }
    trf_device_layer_destroy(layer);
}

static void add_mixture(soak_thread *thread, soak_context *context, trf_layout layout, soak_mixture *mixture) {
    mixture->layout = layout;
    soak_experts *experts = soak_load_experts(thread, context, mixture);
    char why[sizeof thread->err.message];
    memcpy(why, thread->err.message, sizeof why);
    check_no_failure(thread->soak);
    if (!experts) {
        printf("soak: no %s experts: %s\n", trf_layout_name(layout), why);
        return;
    }
    const void *y = soak_queue_experts(thread, experts, &mixture->experts_y_bytes);
    const uint8_t *found = y ? soak_read(thread, y, mixture->experts_y_bytes) : NULL;
    check_no_failure(thread->soak);
    mixture->experts_y = copy_of(found, mixture->experts_y_bytes);
    mixture->is_there = 1;
    if (experts->moe) {
        y = soak_queue_mixture(thread, experts, &mixture->mixture_y_bytes);
        found = y ? soak_read(thread, y, mixture->mixture_y_bytes) : NULL;
        check_no_failure(thread->soak);
        mixture->mixture_y = copy_of(found, mixture->mixture_y_bytes);
    } else {
        printf("soak: no mixtures of %s experts: %s\n", trf_layout_name(layout), why);
    }
    soak_let_go(&experts->shared);
}

static void add_mistakes(soak_thread *thread, const soak_context *context) {
    char text[64];
    for (uint32_t kind = 0; kind < SOAK_MISTAKES; kind++) {
        soak_mistake *mistake = &thread->soak->mistakes[kind];
        mistake->status = soak_make_mistake(thread, context->context, kind, text);
        mistake->err = thread->err;
        ck_assert_int_ne(mistake->status, TRF_OK);
        ck_assert_ptr_nonnull(strstr(mistake->err.message, text));
    }
}

/* ---- the whole ---- */

void soak_make_world(soak *soak, const soak_device *device) {
    static const char *const names[] = {"compressed", "pair.safetensors", "was_fp8.trf", "int.trf", "damaged.trf"};
    const char *seed = getenv("TRF_TEST_SEED");
    soak_thread thread;
    memset(soak, 0, sizeof *soak);
    soak->device = device;
    soak->seed = seed ? strtoull(seed, NULL, 10) : 44;
    ck_assert_int_eq(pthread_mutex_init(&soak->lock, NULL), 0);
    for (int f = 0; f < SOAK_FILES; f++)
        soak->paths[f] = fixture_path("%s", names[f]);
    soak->source_folder = fixture_path("source");
    soak->source_pair = fixture_path("source_pair.safetensors");
    soak->output = fixture_path("output");
    write_folder(soak);
    compress(soak->source_folder, soak->paths[SOAK_FOLDER]);
    write_pair(soak);
    write_blobs(soak);

    soak_open_shared(soak);
    soak_thread_begin(soak, -1, soak->seed, &thread);
    soak_context *context = soak_make_context(&thread, 1);
    check_no_failure(soak);
    for (size_t i = 0; i < sizeof kSubjects / sizeof kSubjects[0]; i++)
        add_subject(&thread, context, i);
    add_mixture(&thread, context, TRF_LAYOUT_CODED, &soak->mixtures[0]);
    add_mixture(&thread, context, TRF_LAYOUT_PACKED, &soak->mixtures[1]);
    add_mistakes(&thread, context);
    soak_check_group(&thread, context, &soak->group_y);
    check_no_failure(soak);
    soak_thread_end(&thread);
    soak_let_go(&context->shared);
    soak_close_shared(soak);
}

void soak_free_world(soak *soak) {
    for (uint32_t s = 0; s < soak->num_subjects; s++) {
        for (uint32_t p = 0; p < soak->subjects[s].num_products; p++)
            free(soak->subjects[s].products[p].y);
        free(soak->subjects[s].weights);
        trf_free(soak->subjects[s].blob);
    }
    for (int i = 0; i < 2; i++) {
        free(soak->mixtures[i].experts_y);
        free(soak->mixtures[i].mixture_y);
    }
    free(soak->group_y.at);
    free(soak->pair.at);
    free(soak->pair_source.at);
    free(soak->pair_matrix.at);
    free(soak->pair_weights);
    pthread_mutex_destroy(&soak->lock);
}
