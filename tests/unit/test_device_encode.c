/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of any layout give their coded blob again: always with the same weights, and with the same bytes if the same
 * encoder made it. These tests run on the CPU; tests/gpu/ builds this file for a GPU, too. */
#include "common/any_device.h"
#include "common/checkpoint_fixture.h"
#include "common/device_layers.h"
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"

#include <check.h>

static trf_error err;
static trf_context *device;

static void begin(void) { fixture_check_status(trf_context_create(TRF_TEST_DEVICE, &device, &err), TRF_OK, &err); }
static void end(void) { trf_context_destroy(device); }

typedef struct coded_blob {
    void *at;
    uint64_t bytes;
} coded_blob;

static coded_blob encode(const void *weights, trf_dtype dtype, uint32_t rows, uint32_t cols,
                         const trf_encode_options *options) {
    const trf_matrix matrix = test_matrix(weights, dtype, rows, cols);
    coded_blob blob;
    fixture_check_status(trf_encode_layer(&matrix, options, &blob.at, &blob.bytes, NULL, &err), TRF_OK, &err);
    return blob;
}

static trf_device_layer *load(const coded_blob *blob, trf_load_options options, trf_layout layout) {
    trf_device_layer *layer = NULL;
    options.layout = layout;
    fixture_check_status(trf_device_layer_create(device, blob->at, blob->bytes, &options, &layer, &err), TRF_OK, &err);
    return layer;
}

static void check_encoded(const trf_device_layer *layer, const coded_blob *due) {
    for (int threads = 1; threads < 4; threads += 2) {
        coded_blob found = {0};
        fixture_check_status(trf_device_layer_encode(layer, threads, &found.at, &found.bytes, &err), TRF_OK, &err);
        EXPECT(found.bytes == due->bytes && memcmp(found.at, due->at, due->bytes) == 0);
        trf_free(found.at);
    }
}

/* Fills in rows of different magnitudes for row offsets; zeros, or every bit pattern now and then. */
static void fill(void *weights, trf_dtype dtype, uint32_t rows, uint32_t cols, int kind) {
    test_rng rng = {3 + (uint64_t)kind};
    test_fill_normal(&rng, weights, dtype, (size_t)rows * cols, 0.02);
    uint16_t *bits = weights;
    for (size_t i = 0; dtype == TRF_DTYPE_BF16 && i < (size_t)rows * cols; i++) {
        if (kind == 1 && (bits[i] & 0x7FFF) != 0)
            bits[i] = (uint16_t)(bits[i] + (((i / cols * 5 % 7) * 6) << 7));
        if (kind == 2 && test_below(&rng, 2))
            bits[i] &= 0x8000;
        if (kind == 3 && test_below(&rng, 4000) == 0)
            bits[i] = (uint16_t)(0x7F80 | test_random(&rng));
    }
}

static const uint32_t kShapes[][2] = {{1, 1}, {65, 33}, {333, 77}, {257, 513}, {600, 700}};
static const trf_dtype kDtypes[] = {TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_DTYPE_F16};
enum {
    SHAPES = sizeof kShapes / sizeof kShapes[0]
};

static trf_encode_options options_of(trf_dtype dtype, int variant) {
    trf_encode_options options;
    trf_encode_options_init(&options);
    options.codec = dtype == TRF_DTYPE_F16 ? TRF_CODEC_FP16 : TRF_CODEC_BF16;
    options.favor = variant % 2 ? TRF_FAVOR_SIZE : TRF_FAVOR_SPEED;
    options.probability_bits = variant / 2 % 2 ? 11 : 0;
    options.slab_cols = variant / 4 % 2 ? 128 : 0;
    return options;
}

START_TEST(the_same_bytes) {
    const trf_dtype dtype = kDtypes[_i % 3];
    trf_load_options whole;
    trf_load_options_init(&whole);
    for (int shape = 0; shape < SHAPES; shape++)
        for (int variant = 0; variant < 8; variant++) {
            if (!test_tries(shape + variant + _i))
                continue;
            const uint32_t rows = kShapes[shape][0], cols = kShapes[shape][1];
            const trf_encode_options options = options_of(dtype, variant);
            void *weights = malloc(4ull * rows * cols);
            fill(weights, dtype, rows, cols, _i / 3);
            const coded_blob blob = encode(weights, dtype, rows, cols, &options);
            for (trf_layout layout = TRF_LAYOUT_CODED; layout <= TRF_LAYOUT_PACKED; layout++) {
                if (layout == TRF_LAYOUT_PACKED && dtype == TRF_DTYPE_F16)
                    continue;
                trf_device_layer *layer = load(&blob, whole, layout);
                check_encoded(layer, &blob);
                trf_device_layer_destroy(layer);
            }
            trf_free(blob.at);
            free(weights);
        }
}
END_TEST

/* A shard gives a blob of its rows and columns, made with the whole matrix's options. */
START_TEST(shards) {
    static const uint32_t shards[][4] = {{256, 256, 0, 0}, {48, 416, 272, 400}, {0, 0, 512, 0}};
    const uint32_t rows = 600, cols = 700;
    uint16_t *weights = malloc(2ull * rows * cols);
    const trf_encode_options options = options_of(TRF_DTYPE_BF16, _i);
    fill(weights, TRF_DTYPE_BF16, rows, cols, 0);
    const coded_blob blob = encode(weights, TRF_DTYPE_BF16, rows, cols, &options);
    for (int s = 0; s < 3; s++) {
        const trf_load_options shard = test_shard(shards[s]);
        trf_device_layer *plain = load(&blob, shard, TRF_LAYOUT_PLAIN);
        const trf_layer_info info = test_layer_info(plain);
        uint8_t *part = device_decode(plain, TRF_DECODE_SOURCE);
        trf_encode_options kept = options;
        kept.probability_bits = info.probability_bits;
        kept.slab_cols = info.slab_cols;
        const coded_blob due = encode(part, TRF_DTYPE_BF16, info.rows, info.cols, &kept);
        check_encoded(plain, &due);
        trf_device_layer *packed = load(&blob, shard, TRF_LAYOUT_PACKED);
        check_encoded(packed, &due);
        trf_device_layer_destroy(packed);
        trf_free(due.at);
        free(part);
        trf_device_layer_destroy(plain);
    }
    trf_free(blob.at);
    free(weights);
}
END_TEST

/* A coded shard of whole tiles has a blob, which loads as the shard. */
START_TEST(coded_shards) {
    static const uint32_t good[4] = {256, 256, 0, 0}, bad[4] = {16, 32, 0, 0};
    const uint32_t rows = 600, cols = 300;
    uint16_t *weights = malloc(2ull * rows * cols);
    trf_load_options whole;
    coded_blob found = {0};
    fill(weights, TRF_DTYPE_BF16, rows, cols, 0);
    const coded_blob blob = encode(weights, TRF_DTYPE_BF16, rows, cols, NULL);
    trf_device_layer *layer = load(&blob, test_shard(good), TRF_LAYOUT_CODED);
    fixture_check_status(trf_device_layer_encode(layer, 0, &found.at, &found.bytes, &err), TRF_OK, &err);
    trf_load_options_init(&whole);
    trf_device_layer *again = load(&found, whole, TRF_LAYOUT_CODED);
    device_check_weights(layer, again, TRF_DECODE_SOURCE);
    trf_device_layer_destroy(layer);
    trf_device_layer_destroy(again);
    trf_free(found.at);
    found = (coded_blob){0};
    layer = load(&blob, test_shard(bad), TRF_LAYOUT_CODED);
    fixture_check_status(trf_device_layer_encode(layer, 0, &found.at, &found.bytes, &err), TRF_ERR_UNSUPPORTED, &err);
    ck_assert_ptr_null(found.at);
    fixture_check_status(trf_device_layer_encode(NULL, 0, &found.at, &found.bytes, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_device_layer_encode(layer, 0, NULL, &found.bytes, &err), TRF_ERR_ARGUMENT, &err);
    trf_device_layer_destroy(layer);
    trf_free(blob.at);
    free(weights);
}
END_TEST

/* A layer adopted from a buffer that was moved gives the same blob as the layer that was loaded. */
START_TEST(adopted_layers) {
    const trf_layout layout = _i ? TRF_LAYOUT_PACKED : TRF_LAYOUT_PLAIN;
    const uint32_t rows = 333, cols = 300;
    const trf_encode_options options = options_of(TRF_DTYPE_BF16, 7);
    uint16_t *weights = malloc(2ull * rows * cols);
    trf_load_options load_options;
    trf_layer_size size;
    fill(weights, TRF_DTYPE_BF16, rows, cols, 1);
    const coded_blob blob = encode(weights, TRF_DTYPE_BF16, rows, cols, &options);
    trf_load_options_init(&load_options);
    load_options.layout = layout;
    fixture_check_status(trf_device_layer_get_size(device, blob.at, blob.bytes, &load_options, &size, &err), TRF_OK,
                         &err);
    void *room;
    fixture_check_status(trf_device_allocate(device, size.buffer_bytes, &room, &err), TRF_OK, &err);
    load_options.memory = (trf_layer_memory){room, size.buffer_bytes, NULL, 0};
    trf_device_layer_destroy(load(&blob, load_options, layout));
    const coded_blob buffer = {room, size.buffer_bytes};
    load_options.memory = (trf_layer_memory){0};
    load_options.buffer_is_on_device = 1;
    trf_device_layer *layer = load(&buffer, load_options, layout);
    check_encoded(layer, &blob);
    trf_device_layer_destroy(layer);
    trf_device_free(device, room);
    trf_free(blob.at);
    free(weights);
}
END_TEST

int main(void) {
    if (test_device_missing("gpu.encode"))
        return 77;
    Suite *suite = suite_create("device_encode");
    TCase *tests = tcase_create("device_encode");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, the_same_bytes, 0, 12);
    tcase_add_loop_test(tests, shards, 0, 8);
    tcase_add_test(tests, coded_shards);
    tcase_add_loop_test(tests, adopted_layers, 0, 2);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
