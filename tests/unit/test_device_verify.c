/* SPDX-License-Identifier: Apache-2.0 */
/* What has changed in the memory of a layer is found, whatever its layout: each bit of small layers, bits of larger
 * ones, directories. Layers verify as sound whichever way they were made. These tests run on the CPU; tests/gpu/ builds
 * this file for a GPU, too, with its ordinal as TRF_TEST_DEVICE. */
#include "common/any_device.h"
#include "common/checkpoint_fixture.h"
#include "common/device_layers.h"
#include "common/expect.h"
#include "common/packed8_layer.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "transfuse/experts.h"
#include "transfuse/stacks.h"
#include "trf_device_layer.h"
#include "trf_layer.h"
#include "trf_layout_head.h"

#include <check.h>
#include <string.h>

static trf_error err;
static trf_context *device;

static void begin(void) {
    fixture_begin();
    fixture_check_status(trf_context_create(TRF_TEST_DEVICE, &device, &err), TRF_OK, &err);
}

static void end(void) {
    trf_context_destroy(device);
    fixture_end();
}

/* ---- layers ---- */

typedef struct made_blob {
    void *at;
    uint64_t bytes;
} made_blob;

static made_blob encode(const void *weights, trf_dtype dtype, trf_codec codec, uint32_t rows, uint32_t cols) {
    const trf_matrix matrix = test_matrix(weights, dtype, rows, cols);
    trf_encode_options options;
    made_blob blob;
    trf_encode_options_init(&options);
    options.codec = codec;
    fixture_check_status(trf_encode_layer(&matrix, &options, &blob.at, &blob.bytes, NULL, &err), TRF_OK, &err);
    return blob;
}

/* BF16 weights, of which some are exceptions. */
static uint16_t *make_weights(uint64_t seed, uint32_t rows, uint32_t cols) {
    test_rng rng = {seed};
    const size_t count = (size_t)rows * cols;
    uint16_t *weights = malloc(count * sizeof *weights);
    test_fill_normal(&rng, weights, TRF_DTYPE_BF16, count, 0.02);
    for (size_t i = 0; i < 1 + count / 20000; i++)
        weights[test_below(&rng, (uint32_t)count)] = 0x7F81;
    return weights;
}

static made_blob make_bf16(uint64_t seed, uint32_t rows, uint32_t cols) {
    uint16_t *weights = make_weights(seed, rows, cols);
    const made_blob blob = encode(weights, TRF_DTYPE_BF16, TRF_CODEC_BF16, rows, cols);
    free(weights);
    return blob;
}

static made_blob make_fp8(uint64_t seed, uint32_t rows, uint32_t cols) {
    test_rng rng = {seed};
    packed8_layer made = packed8_layer_make(&rng, rows, cols, 128, 128, SCALES_F32);
    made.weights[(size_t)rows * cols / 2] = 0x7F81; /* a record */
    const made_blob blob = encode(made.weights, TRF_DTYPE_BF16, TRF_CODEC_E4M3, rows, cols);
    packed8_layer_free(&made);
    return blob;
}

static trf_device_layer *load(const made_blob *blob, trf_layout layout, const uint32_t *shard) {
    trf_load_options options;
    trf_device_layer *layer = NULL;
    trf_load_options_init(&options);
    if (shard)
        options = test_shard(shard);
    options.layout = layout;
    fixture_check_status(trf_device_layer_create(device, blob->at, blob->bytes, &options, &layer, &err), TRF_OK, &err);
    return layer;
}

static trf_device_layer *load_once(made_blob blob, trf_layout layout) {
    trf_device_layer *layer = load(&blob, layout, NULL);
    free(blob.at);
    return layer;
}

/* ---- verifying ---- */

static void expect_sound(const trf_device_layer *layer) {
    fixture_check_status(trf_device_layer_verify(layer, &err), TRF_OK, &err);
}

static void expect_changed(const trf_device_layer *layer) {
    fixture_check_status(trf_device_layer_verify(layer, &err), TRF_ERR_CHECKSUM, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "changed in memory"));
}

static uint8_t *read_memory(const void *from, uint64_t bytes) {
    uint8_t *copy = malloc(bytes);
    fixture_check_status(trf_device_download(device, copy, from, bytes, &err), TRF_OK, &err);
    return copy;
}

static void put_byte(const void *at, uint64_t offset, uint8_t byte) {
    fixture_check_status(trf_device_upload(device, (uint8_t *)at + offset, &byte, 1, &err), TRF_OK, &err);
}

/* The place that an error has to name for a byte that has changed: the tile, or the page of 4,096 bytes, or the place
 * of the head's checksum. UINT64_MAX if it has to name none. */
static uint64_t place_of(const trf_device_layer *layer, const uint8_t *buffer, uint64_t at) {
    if (layer->layout->layout != TRF_LAYOUT_CODED)
        return at >= TRF_LAYOUT_HEAD_BYTES
                   ? TRF_LAYOUT_HEAD_BYTES + (at - TRF_LAYOUT_HEAD_BYTES) / TRF_DATA_PAGE_BYTES * TRF_DATA_PAGE_BYTES
               : at < TRF_DATA_CHECKSUM_OFFSET ? offsetof(trf_layout_head_common, checksum)
                                               : TRF_NO_OFFSET;
    const trf_tile_meta *tiles = (const trf_tile_meta *)(buffer + TRF_TILES_OFFSET);
    uint64_t tile = (uint64_t)layer->view.num_tile_rows * layer->view.num_tile_cols;
    while (tile && at < tiles[tile - 1].data_offset)
        tile--;
    return tile ? tiles[tile - 1].data_offset : offsetof(trf_header, head_checksum);
}

/* Flips bits of the layer's buffer, one after the other: all of them, or on average one of `stride`. */
static void flip_bits(trf_device_layer *layer, uint32_t stride) {
    const uint64_t bytes = layer->view.buffer_bytes;
    uint8_t *buffer = read_memory(layer->view.buffer, bytes);
    test_rng rng = {bytes};
    expect_sound(layer);
    for (uint64_t bit = 0; bit < 8 * bytes; bit += stride == 1 ? 1 : 1 + test_below(&rng, 2 * stride - 1)) {
        put_byte(layer->view.buffer, bit / 8, (uint8_t)(buffer[bit / 8] ^ 1 << bit % 8));
        expect_changed(layer);
        ck_assert_uint_eq(err.offset, place_of(layer, buffer, bit / 8));
        put_byte(layer->view.buffer, bit / 8, buffer[bit / 8]);
    }
    expect_sound(layer);
    free(buffer);
}

static const struct {
    uint32_t rows, cols, stride, quick_stride;
} kSmall[] = {{20, 24, 1, 5}, {70, 90, 23, 211}, {300, 520, 15013, 60013}};

START_TEST(bits_of_each_layout) {
    static const trf_layout layouts[] = {TRF_LAYOUT_CODED, TRF_LAYOUT_PLAIN, TRF_LAYOUT_PACKED};
    for (size_t i = 0; i < sizeof kSmall / sizeof *kSmall; i++)
        for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
            trf_device_layer *layer = load_once(make_bf16(i, kSmall[i].rows, kSmall[i].cols), layouts[l]);
            ck_assert_int_eq(test_device_layer_info(layer).layout, layouts[l]);
            flip_bits(layer, test_quick() ? kSmall[i].quick_stride : kSmall[i].stride);
            trf_device_layer_destroy(layer);
        }
}
END_TEST

START_TEST(bits_of_fp8) {
    for (size_t i = 0; i < sizeof kSmall / sizeof *kSmall; i++)
        for (int packed = 0; packed < 2; packed++) {
            trf_device_layer *layer =
                load_once(make_fp8(i, kSmall[i].rows, kSmall[i].cols), packed ? TRF_LAYOUT_PACKED8 : TRF_LAYOUT_CODED);
            flip_bits(layer, (test_quick() ? 4 : 1) * (i ? kSmall[i].stride : 7));
            trf_device_layer_destroy(layer);
        }
}
END_TEST

/* Runs that become zeros or random bytes, in any layout. */
START_TEST(larger_damage) {
    static const trf_layout layouts[] = {TRF_LAYOUT_CODED, TRF_LAYOUT_PLAIN, TRF_LAYOUT_PACKED, TRF_LAYOUT_PACKED8};
    test_rng rng = {11};
    for (int l = 0; l < 4; l++) {
        trf_device_layer *layer = load_once(l == 3 ? make_fp8(5, 600, 900) : make_bf16(5, 600, 900), layouts[l]);
        const uint64_t bytes = layer->view.buffer_bytes;
        uint8_t *buffer = read_memory(layer->view.buffer, bytes), *damage = malloc(1 << 16);
        for (int i = 0; i < test_rounds(100); i++) {
            const uint32_t count = 2 + test_below(&rng, 1 << (1 + test_below(&rng, 16))) % ((1 << 16) - 2);
            const uint64_t at = test_below(&rng, (uint32_t)(bytes - count));
            for (uint32_t k = 0; k < count; k++)
                damage[k] = i % 2 ? (uint8_t)test_random(&rng) : 0;
            if (memcmp(damage, buffer + at, count) == 0)
                continue;
            void *const there = (uint8_t *)layer->view.buffer + at;
            fixture_check_status(trf_device_upload(device, there, damage, count, &err), TRF_OK, &err);
            expect_changed(layer);
            fixture_check_status(trf_device_upload(device, there, buffer + at, count, &err), TRF_OK, &err);
        }
        expect_sound(layer);
        free(buffer);
        free(damage);
        trf_device_layer_destroy(layer);
    }
}
END_TEST

/* What a coded layer is decoded by beside its blob: the directory on a GPU, a table on the CPU. */
START_TEST(directories) {
    for (int fp8 = 0; fp8 < 2; fp8++) {
        trf_device_layer *layer = load_once(fp8 ? make_fp8(3, 300, 300) : make_bf16(3, 300, 300), TRF_LAYOUT_CODED);
        const uint64_t bytes = layer->kept.directory_bytes;
        if (TRF_TEST_DEVICE == TRF_DEVICE_CPU) {
            layer->host->table.slots[5] ^= 1 << 9;
            expect_changed(layer);
            layer->host->table.slots[5] ^= 1 << 9;
            expect_sound(layer);
        } else {
            uint8_t *directory = read_memory(layer->view.slabs, bytes);
            ck_assert_uint_gt(bytes, 0);
            for (uint64_t at = 0; at < bytes; at++) {
                put_byte(layer->view.slabs, at, directory[at] ^ (uint8_t)(1 << at % 8));
                expect_changed(layer);
                put_byte(layer->view.slabs, at, directory[at]);
            }
            expect_sound(layer);
            free(directory);
        }
        trf_device_layer_destroy(layer);
    }
}
END_TEST

/* ---- ways to make layers ---- */

static void check_and_destroy(trf_device_layer *layer) {
    expect_sound(layer);
    flip_bits(layer, (uint32_t)(layer->view.buffer_bytes * 8 / 16));
    trf_device_layer_destroy(layer);
}

START_TEST(shards) {
    static const uint32_t kShards[][4] = {{256, 256, 0, 0}, {16, 32, 48, 304}, {0, 0, 256, 0}};
    const made_blob blob = make_bf16(4, 600, 520);
    for (int s = 0; s < 3; s++)
        for (int layout = TRF_LAYOUT_CODED; layout <= TRF_LAYOUT_PACKED; layout++)
            check_and_destroy(load(&blob, (trf_layout)layout, kShards[s]));
    free(blob.at);
}
END_TEST

START_TEST(converted) {
    for (int fp8 = 0; fp8 < 2; fp8++) {
        trf_device_layer *coded = load_once(fp8 ? make_fp8(6, 256, 384) : make_bf16(6, 333, 384), TRF_LAYOUT_CODED),
                         *plain, *packed;
        fixture_check_status(trf_device_layer_convert(coded, TRF_LAYOUT_PLAIN, NULL, &plain, &err), TRF_OK, &err);
        fixture_check_status(trf_device_layer_convert(coded, TRF_LAYOUT_PACKED, NULL, &packed, &err), TRF_OK, &err);
        ck_assert_int_eq(test_device_layer_info(packed).layout, fp8 ? TRF_LAYOUT_PACKED8 : TRF_LAYOUT_PACKED);
        check_and_destroy(packed);
        fixture_check_status(trf_device_layer_convert(plain, TRF_LAYOUT_PACKED, NULL, &packed, &err), TRF_OK, &err);
        check_and_destroy(packed);
        check_and_destroy(plain);
        check_and_destroy(coded);
    }
}
END_TEST

typedef struct dense_on_device {
    void *memory;
    trf_device_matrix matrix;
} dense_on_device;

static dense_on_device upload_dense(uint64_t seed, uint32_t rows, uint32_t cols) {
    dense_on_device dense;
    uint16_t *weights = make_weights(seed, rows, cols);
    dense.memory = device_upload(device, weights, 2ull * rows * cols);
    free(weights);
    trf_device_matrix_init(&dense.matrix);
    dense.matrix.weights = dense.memory;
    dense.matrix.rows = rows;
    dense.matrix.cols = cols;
    return dense;
}

/* A layer that is packed like another one, whose bytes take the other's place. */
START_TEST(packed_like) {
    dense_on_device first = upload_dense(7, 300, 500), second = upload_dense(8, 300, 500);
    trf_device_layer *layer, *made;
    trf_pack_options options;
    trf_pack_options_init(&options);
    options.stored_room = 2;
    fixture_check_status(trf_device_layer_pack(device, &first.matrix, &options, &layer, &err), TRF_OK, &err);
    expect_sound(layer);
    options.stored_room = 0;
    options.like = layer;
    fixture_check_status(trf_device_layer_pack(device, &second.matrix, &options, &made, &err), TRF_OK, &err);
    expect_sound(made);
    uint8_t *bytes = read_memory(made->view.buffer, made->view.buffer_bytes);
    ck_assert_uint_eq(made->view.buffer_bytes, layer->view.buffer_bytes);
    fixture_check_status(
        trf_device_upload(device, (void *)layer->view.buffer, bytes, layer->view.buffer_bytes / 2, &err), TRF_OK, &err);
    expect_changed(layer); /* half way */
    fixture_check_status(trf_device_upload(device, (void *)layer->view.buffer, bytes, layer->view.buffer_bytes, &err),
                         TRF_OK, &err);
    free(bytes);
    check_and_destroy(layer);
    check_and_destroy(made);
    trf_device_free(device, first.memory);
    trf_device_free(device, second.memory);
}
END_TEST

START_TEST(joined) {
    trf_device_layer *layers[] = {load_once(make_fp8(9, 192, 300), TRF_LAYOUT_PACKED8),
                                  load_once(make_fp8(10, 100, 300), TRF_LAYOUT_PACKED8)},
                     *joined;
    fixture_check_status(trf_device_layer_join((const trf_device_layer *const *)layers, 2, NULL, &joined, &err), TRF_OK,
                         &err);
    check_and_destroy(joined);
    trf_device_layer_destroy(layers[0]);
    trf_device_layer_destroy(layers[1]);
}
END_TEST

START_TEST(gate_and_up) {
    trf_device_layer *gate = load_once(make_fp8(12, 256, 384), TRF_LAYOUT_CODED),
                     *up = load_once(make_fp8(13, 256, 384), TRF_LAYOUT_CODED), *both;
    fixture_check_status(trf_gate_up_convert(gate, up, NULL, &both, &err), TRF_OK, &err);
    check_and_destroy(both);
    trf_device_layer_destroy(gate);
    trf_device_layer_destroy(up);
}
END_TEST

/* A copy of a buffer is adopted. What had changed in the copy's data before is found, too. */
START_TEST(adopted) {
    static const trf_layout layouts[] = {TRF_LAYOUT_CODED, TRF_LAYOUT_PLAIN, TRF_LAYOUT_PACKED};
    for (int l = 0; l < 3; l++) {
        trf_device_layer *from = load_once(make_bf16(14, 260, 100), layouts[l]), *layer;
        uint8_t *bytes = read_memory(from->view.buffer, from->view.buffer_bytes);
        void *copy = device_upload(device, bytes, from->view.buffer_bytes);
        trf_load_options options;
        trf_load_options_init(&options);
        options.layout = layouts[l];
        options.buffer_is_on_device = 1;
        fixture_check_status(trf_device_layer_create(device, copy, from->view.buffer_bytes, &options, &layer, &err),
                             TRF_OK, &err);
        check_and_destroy(layer);
        if (layouts[l] == TRF_LAYOUT_PLAIN) {
            put_byte(copy, 1000, (uint8_t)~bytes[1000]);
            fixture_check_status(trf_device_layer_create(device, copy, from->view.buffer_bytes, &options, &layer, &err),
                                 TRF_OK, &err);
            expect_changed(layer);
            trf_device_layer_destroy(layer);
        }
        free(bytes);
        trf_device_layer_destroy(from);
        trf_device_free(device, copy);
    }
}
END_TEST

START_TEST(experts) {
    static const fixture_tensor tensor = {"e.weight", "BF16", {3, 128, 64}, 3, 0};
    trf_checkpoint *checkpoint = fixture_open_compressed(&tensor, 1);
    for (int layout = TRF_LAYOUT_CODED; layout <= TRF_LAYOUT_PACKED; layout += TRF_LAYOUT_PACKED) {
        trf_load_options options;
        trf_experts *loaded, *packed;
        trf_load_options_init(&options);
        options.layout = (trf_layout)layout;
        fixture_check_status(trf_experts_load(device, checkpoint, "e.weight", &options, &loaded, &err), TRF_OK, &err);
        fixture_check_status(trf_experts_convert(loaded, NULL, NULL, &packed, &err), TRF_OK, &err);
        for (uint32_t e = 0; e < 3; e++) {
            if (TRF_TEST_DEVICE != TRF_DEVICE_CPU || layout == TRF_LAYOUT_PACKED) /* a file that is mapped, else */
                flip_bits(trf_experts_layer(loaded, e), 50021);
            expect_sound(trf_experts_layer(loaded, e));
            flip_bits(trf_experts_layer(packed, e), 50021);
        }
        trf_experts_destroy(packed);
        trf_experts_destroy(loaded);
    }
    trf_checkpoint_close(checkpoint);
}
END_TEST

/* Layers of a stack, some of which a GPU keeps in host memory. */
START_TEST(stacks) {
    static const fixture_tensor tensors[] = {{"a.weight", "BF16", {300, 520}, 2, 0},
                                             {"b.weight", "BF16", {300, 520}, 2, 0},
                                             {"c.weight", "BF16", {300, 520}, 2, 0},
                                             {"d.weight", "BF16", {300, 520}, 2, 0}};
    trf_checkpoint *checkpoint = fixture_open_compressed(tensors, 4);
    for (int all = 0; all < 2; all++) {
        trf_stack *stack;
        trf_stack_info info;
        fixture_check_status(trf_stack_create(device, &stack, &err), TRF_OK, &err);
        for (int i = 0; i < 4; i++)
            fixture_check_status(trf_stack_load(stack, checkpoint, tensors[i].name, NULL, &err), TRF_OK, &err);
        trf_stack_get_info(stack, &info);
        fixture_check_status(trf_stack_prepare(stack, all ? UINT64_MAX : info.least_bytes, &err), TRF_OK, &err);
        trf_stack_get_info(stack, &info);
        ck_assert_int_eq(info.resident == 4, all || TRF_TEST_DEVICE == TRF_DEVICE_CPU);
        for (uint32_t i = 0; i < 4; i++) {
            trf_device_layer *layer = trf_stack_layer(stack, i);
            expect_sound(layer);
            if (TRF_TEST_DEVICE != TRF_DEVICE_CPU && !layer->host)
                flip_bits(layer, 200003);
            if (TRF_TEST_DEVICE != TRF_DEVICE_CPU && layer->host) {
                ((uint8_t *)layer->host->blob)[layer->view.buffer_bytes / 2] ^= 16;
                expect_changed(layer);
                ((uint8_t *)layer->host->blob)[layer->view.buffer_bytes / 2] ^= 16;
                expect_sound(layer);
            }
        }
        trf_stack_destroy(stack);
    }
    trf_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(arguments) { ck_assert_int_eq(trf_device_layer_verify(NULL, &err), TRF_ERR_ARGUMENT); }
END_TEST

int main(void) {
    const int missing = test_device_missing("device_verify");
    if (missing)
        return missing;
    Suite *suite = suite_create("device_verify");
    TCase *tests = tcase_create("device_verify");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, begin, end);
    tcase_add_test(tests, bits_of_each_layout);
    tcase_add_test(tests, bits_of_fp8);
    tcase_add_test(tests, larger_damage);
    tcase_add_test(tests, directories);
    tcase_add_test(tests, shards);
    tcase_add_test(tests, converted);
    tcase_add_test(tests, packed_like);
    tcase_add_test(tests, joined);
    tcase_add_test(tests, gate_and_up);
    tcase_add_test(tests, adopted);
    tcase_add_test(tests, experts);
    tcase_add_test(tests, stacks);
    tcase_add_test(tests, arguments);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
