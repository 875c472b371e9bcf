/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that are converted to another layout on the device: their weights, rows and information are those of the old
 * layer, which stays as it is; whose memory they take; and what is refused. These tests run on the CPU; tests/gpu/
 * builds this file for a GPU, too, with its ordinal as TRF_TEST_DEVICE. */
#include "common/any_device.h"
#include "common/checkpoint_fixture.h"
#include "common/device_layers.h"
#include "common/expect.h"
#include "common/guarded_memory.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "common/weight_kinds.h"
#include "transfuse/stacks.h"
#include "trf_device_layer.h"

#include <check.h>
#include <string.h>

enum {
    MISALIGNED = TRF_TEST_DEVICE == TRF_DEVICE_CPU ? 8 : 128 /* bytes, half of what is asked for */
};

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

enum {
    KINDS = EXACT /* those in front of it */
};

typedef struct coded_blob {
    void *at;
    uint64_t bytes;
} coded_blob;

static coded_blob encode_as(const void *weights, trf_dtype dtype, trf_codec codec, uint32_t rows, uint32_t cols,
                            trf_favor favor) {
    const trf_matrix matrix = test_matrix(weights, dtype, rows, cols);
    trf_encode_options options;
    coded_blob blob;
    trf_encode_options_init(&options);
    options.favor = favor;
    options.codec = codec;
    fixture_check_status(trf_encode_layer(&matrix, &options, &blob.at, &blob.bytes, NULL, &err), TRF_OK, &err);
    return blob;
}

static coded_blob encode(weight_kind kind, uint32_t rows, uint32_t cols, trf_favor favor) {
    uint16_t *weights = weight_kind_make(kind, rows, cols);
    const coded_blob blob = encode_as(weights, TRF_DTYPE_BF16, TRF_CODEC_BF16, rows, cols, favor);
    free(weights);
    return blob;
}

static trf_device_layer *load(const coded_blob *blob, const trf_load_options *shard, trf_layout layout) {
    trf_load_options options;
    trf_device_layer *layer = NULL;
    trf_load_options_init(&options);
    if (shard)
        options = *shard;
    options.layout = layout;
    fixture_check_status(trf_device_layer_create(device, blob->at, blob->bytes, &options, &layer, &err), TRF_OK, &err);
    return layer;
}

static trf_device_layer *convert(const trf_device_layer *layer, trf_layout layout) {
    trf_device_layer *made = NULL;
    fixture_check_status(trf_device_layer_convert(layer, layout, NULL, &made, &err), TRF_OK, &err);
    return made;
}

static uint64_t measure(const trf_device_layer *layer, trf_layout layout) {
    trf_layer_size size = {0, 7};
    fixture_check_status(trf_device_layer_get_converted_size(layer, layout, &size, &err), TRF_OK, &err);
    ck_assert_uint_eq(size.directory_bytes, 0);
    return size.buffer_bytes;
}

/* ---- what comes of it ---- */

/* Expects that a layer has the layout that it says it has, and gives what `due` gives. */
static void check_layer(const trf_device_layer *made, const trf_device_layer *due, trf_layout layout) {
    const trf_device_layer_info info = test_device_layer_info(made);
    const trf_layer_info due_info = test_layer_info(due);
    ck_assert_int_eq(info.layout, layout);
    ck_assert_mem_eq(&info.layer, &due_info, sizeof due_info);
    ck_assert_uint_eq(info.plans, 0);
    for (trf_decode_as as = TRF_DECODE_SOURCE; as <= TRF_DECODE_F16; as++)
        device_check_weights(due, made, as);
    fixture_check_status(trf_device_layer_check(made, &err), TRF_OK, &err);
}

/* A plain layer does not know the row offsets of its blob. Without them, rows of very different magnitudes cannot be
 * packed. @return NULL for such a layer. */
static trf_device_layer *convert_plain(const trf_device_layer *plain) {
    trf_device_layer *made = NULL;
    if (!(test_layer_info(plain).predictor_modes & TRF_PREDICT_ROW))
        return convert(plain, TRF_LAYOUT_PACKED);
    const trf_status status = trf_device_layer_convert(plain, TRF_LAYOUT_PACKED, NULL, &made, &err);
    ck_assert((status == TRF_OK && made) || (status == TRF_ERR_UNSUPPORTED && !made));
    return made;
}

/* Converts to plain and to packed, and from each of them to the other. The old layers are gone whenever a new one is
 * checked. */
static void check_conversions(const coded_blob *blob, const trf_load_options *shard, int can_pack) {
    trf_device_layer *due = load(blob, shard, TRF_LAYOUT_CODED), *coded = load(blob, shard, TRF_LAYOUT_CODED);
    const uint64_t plain_bytes = measure(coded, TRF_LAYOUT_PLAIN);
    trf_device_layer *plain = convert(coded, TRF_LAYOUT_PLAIN), *packed = NULL, *again;
    ck_assert_uint_eq(test_device_layer_info(plain).memory_bytes, plain_bytes);
    if (can_pack) {
        const uint64_t most = measure(coded, TRF_LAYOUT_PACKED);
        packed = convert(coded, TRF_LAYOUT_PACKED);
        ck_assert_uint_le(test_device_layer_info(packed).memory_bytes, most);
    }
    if (!trf_shard_cuts_rows(coded) && !trf_shard_cuts_cols(coded))
        check_layer(coded, due, TRF_LAYOUT_CODED);
    trf_device_layer_destroy(coded);
    check_layer(plain, due, TRF_LAYOUT_PLAIN);
    if (can_pack) {
        trf_device_layer_destroy(due);
        due = load(blob, shard, TRF_LAYOUT_PLAIN); /* its rows need no decoding */
        check_layer(packed, due, TRF_LAYOUT_PACKED);
        again = convert_plain(plain);
        trf_device_layer_destroy(plain);
        if (again)
            check_layer(again, due, TRF_LAYOUT_PACKED);
        trf_device_layer_destroy(again);
        ck_assert_uint_eq(measure(packed, TRF_LAYOUT_PLAIN), plain_bytes);
        plain = convert(packed, TRF_LAYOUT_PLAIN);
        trf_device_layer_destroy(packed);
        check_layer(plain, due, TRF_LAYOUT_PLAIN);
    }
    trf_device_layer_destroy(plain);
    trf_device_layer_destroy(due);
}

static const uint32_t kShapes[][2] = {{1, 1},     {64, 32},   {65, 33},   {333, 77},  {16, 1100},
                                      {257, 513}, {600, 520}, {256, 512}, {192, 1536}};
enum {
    SHAPES = sizeof kShapes / sizeof kShapes[0]
};

START_TEST(the_weights_of_the_layer) {
    for (int shape = 0; shape < SHAPES; shape++)
        for (trf_favor favor = TRF_FAVOR_SPEED; favor <= TRF_FAVOR_SIZE; favor++) {
            if (!test_tries(shape + (int)favor + _i))
                continue;
            const coded_blob blob = encode((weight_kind)_i, kShapes[shape][0], kShapes[shape][1], favor);
            check_conversions(&blob, NULL, 1);
            trf_free(blob.at);
        }
}
END_TEST

/* first_row, num_rows, first_col, num_cols; a number of 0 means to the end. */
static const uint32_t kShards[][4] = {
    {256, 256, 0, 0}, {0, 0, 256, 0}, {16, 32, 0, 0}, {48, 416, 272, 144},
    {512, 0, 0, 416}, {0, 64, 0, 32}, {208, 0, 0, 0},
};
static const trf_row_range kRanges[] = {{256, 256}, {0, 256}, {512, 88}};
enum {
    NUM_SHARDS = sizeof kShards / sizeof kShards[0]
};

/* Also shards that have no whole tile, and row ranges. */
START_TEST(shards) {
    const coded_blob blob = encode(_i ? SCALED_ROWS : OUTLIERS, 600, 430, (trf_favor)_i);
    for (int s = 0; s <= NUM_SHARDS; s++) {
        trf_load_options shard = test_shard(kShards[s % NUM_SHARDS]);
        if (s == NUM_SHARDS) {
            shard = (trf_load_options){.struct_bytes = sizeof shard};
            shard.row_ranges = kRanges;
            shard.num_row_ranges = 3;
            shard.first_col = 16;
        }
        check_conversions(&blob, &shard, 1);
    }
    trf_free(blob.at);
}
END_TEST

/* These layers are larger than what is converted at a time. GPUs pack whole layers straight from the slabs. They pack
 * by dense rows layers that have stored tiles or row offsets, and shards that begin and end anywhere. */
START_TEST(large_layers) {
    static const uint32_t shard[4] = {144, 0, 256, 0};
    static const weight_kind kinds[] = {OUTLIERS, ZEROS, BURSTS, SCALED_ROWS};
    const int whole = TRF_TEST_DEVICE == TRF_DEVICE_CPU; /* which converts a layer at once */
    const uint32_t rows = whole ? 544 : test_quick() ? 1088 : 7744, cols = whole ? 1104 : 4416;
    const coded_blob blob = encode(kinds[_i], rows, cols, (trf_favor)(_i % 2));
    const trf_load_options cut = test_shard(shard);
    check_conversions(&blob, NULL, 1);
    check_conversions(&blob, &cut, 1);
    trf_free(blob.at);
}
END_TEST

/* Sources in F32 and F16. */
START_TEST(other_dtypes) {
    const uint32_t rows = 300, cols = 290;
    test_rng rng = {9};
    float *weights = malloc(sizeof *weights * rows * cols);
    test_fill_normal(&rng, weights, TRF_DTYPE_F32, (size_t)rows * cols, 0.02);
    const coded_blob f32 = encode_as(weights, TRF_DTYPE_F32, TRF_CODEC_BF16, rows, cols, (trf_favor)_i);
    check_conversions(&f32, NULL, 1);
    test_fill_normal(&rng, weights, TRF_DTYPE_F16, (size_t)rows * cols, 0.02);
    const coded_blob f16 = encode_as(weights, TRF_DTYPE_F16, TRF_CODEC_AUTO, rows, cols, (trf_favor)_i);
    check_conversions(&f16, NULL, 0);
    trf_free(f32.at);
    trf_free(f16.at);
    free(weights);
}
END_TEST

/* A layer that was converted and converted back encodes to its former blob, also if that was in a file. */
START_TEST(the_same_blob) {
    const coded_blob blob = encode((weight_kind)_i, 333, 300, TRF_FAVOR_SIZE);
    trf_device_layer *coded = load(&blob, NULL, TRF_LAYOUT_CODED);
    trf_device_layer *made[3] = {convert(coded, TRF_LAYOUT_PLAIN)};
    made[1] = convert(coded, TRF_LAYOUT_PACKED);
    made[2] = convert(made[1], TRF_LAYOUT_PLAIN);
    for (int i = 0; i < 3 && made[i]; i++) {
        coded_blob found;
        fixture_check_status(trf_device_layer_encode(made[i], 0, &found.at, &found.bytes, &err), TRF_OK, &err);
        EXPECT(found.bytes == blob.bytes && memcmp(found.at, blob.at, blob.bytes) == 0);
        trf_free(found.at);
        trf_device_layer_destroy(made[i]);
    }
    trf_device_layer_destroy(coded);
    trf_free(blob.at);
}
END_TEST

/* The old layer's plans stay valid, and multiply as before. */
START_TEST(plans_of_the_old_layer) {
    const coded_blob blob = encode(NORMAL, 300, 520, TRF_FAVOR_SPEED);
    trf_device_layer *coded = load(&blob, NULL, TRF_LAYOUT_CODED);
    const trf_plan_options options = test_plan_options(3, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO);
    uint16_t *x = device_make_x(3, 520);
    trf_plan *plan;
    fixture_check_status(trf_plan_create(coded, &options, &plan, &err), TRF_OK, &err);
    uint8_t *due = device_multiply(coded, &options, x);
    trf_device_layer *plain = convert(coded, TRF_LAYOUT_PLAIN);
    ck_assert_uint_eq(test_device_layer_info(coded).plans, 1);
    ck_assert_uint_eq(test_device_layer_info(plain).plans, 0);
    uint8_t *found = device_multiply(coded, &options, x);
    EXPECT(memcmp(found, due, sizeof(float) * 3 * 300) == 0);
    trf_plan_destroy(plan);
    trf_device_layer_destroy(plain);
    trf_device_layer_destroy(coded);
    trf_free(blob.at);
    free(found);
    free(due);
    free(x);
}
END_TEST

/* ---- memory ---- */

static void check_refused(const trf_device_layer *layer, trf_layout layout, const trf_layer_memory *memory,
                          trf_status status, const char *message) {
    trf_device_layer *made = NULL;
    fixture_check_status(trf_device_layer_convert(layer, layout, memory, &made, &err), status, &err);
    ck_assert_msg(strstr(err.message, message) != NULL, "%s", err.message);
    ck_assert_ptr_null(made);
}

/* A layer in the caller's memory, which can be adopted where it lies. */
START_TEST(in_the_callers_memory) {
    const trf_layout layout = _i % 2 ? TRF_LAYOUT_PACKED : TRF_LAYOUT_PLAIN;
    const coded_blob blob = encode(_i / 2 ? SCALED_ROWS : BURSTS, 600, 430, TRF_FAVOR_SPEED);
    trf_device_layer *coded = load(&blob, NULL, TRF_LAYOUT_CODED), *made = NULL, *again = NULL;
    guarded_memory room = guarded_allocate(device, measure(coded, layout));
    const trf_layer_memory right = {room.at, room.bytes, NULL, 0};
    trf_layer_memory wrong[] = {right, right, right, right};
    trf_load_options options;
    wrong[0].buffer_bytes--;
    wrong[1].buffer = NULL;
    wrong[2].buffer = room.at + MISALIGNED;
    wrong[2].buffer_bytes += MISALIGNED;
    wrong[3].buffer = (void *)coded->view.buffer;
    for (int i = 0; i < 4; i++)
        check_refused(coded, layout, &wrong[i], TRF_ERR_ARGUMENT, i == 3 ? "overlaps" : "memory for a layer");
    guarded_check_untouched(&room);
    fixture_check_status(trf_device_layer_convert(coded, layout, &right, &made, &err), TRF_OK, &err);
    EXPECT(made->view.buffer == room.at && !made->memory);
    check_layer(made, coded, layout);
    trf_device_layer_destroy(made);
    trf_load_options_init(&options);
    options.layout = layout;
    options.buffer_is_on_device = 1;
    fixture_check_status(trf_device_layer_create(device, room.at, room.bytes, &options, &again, &err), TRF_OK, &err);
    check_layer(again, coded, layout);
    trf_device_layer_destroy(again);
    free(guarded_read(&room));
    guarded_free(&room);
    trf_device_layer_destroy(coded);
    trf_free(blob.at);
}
END_TEST

/* ---- what is refused ---- */

START_TEST(what_there_is_not) {
    const coded_blob blob = encode(NORMAL, 80, 64, TRF_FAVOR_SPEED);
    trf_device_layer *layer = load(&blob, NULL, TRF_LAYOUT_CODED), *plain = convert(layer, TRF_LAYOUT_PLAIN);
    trf_layer_size size = {7, 7};
    check_refused(layer, TRF_LAYOUT_CODED, NULL, TRF_ERR_ARGUMENT, "coded already");
    check_refused(plain, TRF_LAYOUT_PLAIN, NULL, TRF_ERR_ARGUMENT, "plain already");
    check_refused(plain, TRF_LAYOUT_CODED, NULL, TRF_ERR_UNSUPPORTED, "trf_device_layer_encode");
    check_refused(plain, (trf_layout)4, NULL, TRF_ERR_UNSUPPORTED, "no layout 4");
    check_refused(plain, (trf_layout)-1, NULL, TRF_ERR_UNSUPPORTED, "no layout -1");
    check_refused(NULL, TRF_LAYOUT_PLAIN, NULL, TRF_ERR_ARGUMENT, "needs a layer");
    fixture_check_status(trf_device_layer_convert(layer, TRF_LAYOUT_PLAIN, NULL, NULL, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_device_layer_get_converted_size(NULL, TRF_LAYOUT_PLAIN, &size, &err), TRF_ERR_ARGUMENT,
                         &err);
    fixture_check_status(trf_device_layer_get_converted_size(layer, TRF_LAYOUT_PLAIN, NULL, &err), TRF_ERR_ARGUMENT,
                         &err);
    fixture_check_status(trf_device_layer_get_converted_size(plain, TRF_LAYOUT_CODED, &size, &err), TRF_ERR_UNSUPPORTED,
                         &err);
    ck_assert(size.buffer_bytes == 7 && size.directory_bytes == 7);
    trf_device_layer_destroy(plain);
    trf_device_layer_destroy(layer);
    trf_free(blob.at);
}
END_TEST

START_TEST(codecs_and_weights) {
    int8_t codes[64 * 64] = {1, 2, 3};
    uint16_t halves[64 * 64] = {0x3C00};
    const coded_blob integers = encode_as(codes, TRF_DTYPE_I8, TRF_CODEC_INT, 64, 64, TRF_FAVOR_SPEED),
                     f16 = encode_as(halves, TRF_DTYPE_F16, TRF_CODEC_FP16, 64, 64, TRF_FAVOR_SPEED),
                     wild = encode(WILD, 300, 300, TRF_FAVOR_SPEED);
    trf_device_layer *of_integers = load(&integers, NULL, TRF_LAYOUT_CODED),
                     *of_f16 = load(&f16, NULL, TRF_LAYOUT_CODED), *of_wild = load(&wild, NULL, TRF_LAYOUT_CODED);
    check_refused(of_integers, TRF_LAYOUT_PLAIN, NULL, TRF_ERR_UNSUPPORTED, "the layout 'plain' does not take");
    trf_device_layer *plain = convert(of_wild, TRF_LAYOUT_PLAIN);
    check_layer(plain, of_wild, TRF_LAYOUT_PLAIN);
    check_refused(of_integers, TRF_LAYOUT_PACKED, NULL, TRF_ERR_UNSUPPORTED, "the codec int");
    check_refused(of_f16, TRF_LAYOUT_PACKED, NULL, TRF_ERR_UNSUPPORTED, "the codec fp16");
    check_refused(of_wild, TRF_LAYOUT_PACKED, NULL, TRF_ERR_UNSUPPORTED, "the layer cannot be packed: ");
    check_refused(plain, TRF_LAYOUT_PACKED, NULL, TRF_ERR_UNSUPPORTED, "the layer cannot be packed: ");
    ck_assert_uint_eq(err.offset, TRF_NO_OFFSET);
    trf_device_layer_destroy(plain);
    trf_device_layer_destroy(of_integers);
    trf_device_layer_destroy(of_f16);
    trf_device_layer_destroy(of_wild);
    trf_free(integers.at);
    trf_free(f16.at);
    trf_free(wild.at);
}
END_TEST

START_TEST(layers_of_stacks) {
    const coded_blob blob = encode(NORMAL, 80, 64, TRF_FAVOR_SPEED);
    trf_layer *host;
    trf_stack *stack;
    fixture_check_status(trf_layer_from_memory(blob.at, blob.bytes, &host, &err), TRF_OK, &err);
    fixture_check_status(trf_stack_create(device, &stack, &err), TRF_OK, &err);
    fixture_check_status(trf_stack_add(stack, host, &err), TRF_OK, &err);
    fixture_check_status(trf_stack_prepare(stack, 1 << 20, &err), TRF_OK, &err);
    check_refused(trf_stack_layer(stack, 0), TRF_LAYOUT_PLAIN, NULL, TRF_ERR_UNSUPPORTED, "a stack's layer");
    trf_stack_destroy(stack);
    trf_layer_free(host);
    trf_free(blob.at);
}
END_TEST

/* Corrects the checksums of a tile and of the blob. */
static void seal(uint8_t *blob, uint64_t tile) {
    trf_header *header = (trf_header *)blob;
    const trf_extension *extension = (const trf_extension *)(blob + TRF_EXTENSION_OFFSET);
    trf_tile_meta *meta = (trf_tile_meta *)(blob + TRF_TILES_OFFSET) + tile;
    meta->checksum = trf_tile_checksum(blob + meta->data_offset, meta->data_size, tile);
    header->head_checksum = trf_head_checksum(blob, extension->data_offset);
}

/* Flips a bit of a tile so that only decoding can detect it. */
static void break_tile(const coded_blob *blob, uint64_t tile, uint32_t rows, uint32_t cols) {
    const trf_tile_meta meta = ((const trf_tile_meta *)((const uint8_t *)blob->at + TRF_TILES_OFFSET))[tile];
    uint8_t *const bytes = (uint8_t *)blob->at + meta.data_offset;
    void *weights = malloc(2ull * rows * cols);
    trf_status status = TRF_OK;
    for (uint32_t back = 40; status != TRF_ERR_RANS && back < meta.data_size;
         back++) { /* words stand at a tile's end */
        trf_layer *host = NULL;
        bytes[meta.data_size - back] ^= 4;
        seal(blob->at, tile);
        status = trf_layer_from_memory(blob->at, blob->bytes, &host, NULL);
        status = status == TRF_OK ? trf_layer_decode(host, weights, 2ull * rows * cols, 1, NULL) : TRF_ERR_TILE;
        trf_layer_free(host);
        if (status != TRF_ERR_RANS)
            bytes[meta.data_size - back] ^= 4;
    }
    ck_assert_int_eq(status, TRF_ERR_RANS);
    free(weights);
}

/* Expects that neither a corrupt blob nor a shard that has the corrupt tile can be loaded. The tile's number and place
 * in the error are the blob's. */
static void check_corrupt_loads(const coded_blob *blob, trf_layout layout, uint64_t tile, const char *name) {
    static const uint32_t shards[][4] = {{0, 0, 0, 0}, {256, 0, 0, 0}};
    const trf_tile_meta *metas = (const trf_tile_meta *)((const uint8_t *)blob->at + TRF_TILES_OFFSET);
    for (int s = 0; s < 2; s++) {
        trf_load_options options = test_shard(shards[s]);
        trf_device_layer *layer = NULL;
        options.layout = layout;
        const trf_status status = trf_device_layer_create(device, blob->at, blob->bytes, &options, &layer, &err);
        if (s && tile < 3) { /* in the first row of tiles */
            fixture_check_status(status, TRF_OK, &err);
            trf_device_layer_destroy(layer);
            continue;
        }
        fixture_check_status(status, TRF_ERR_RANS, &err);
        ck_assert_ptr_null(layer);
        ck_assert_msg(strstr(err.message, name) != NULL, "%s", err.message);
        ck_assert_uint_eq(err.offset, metas[tile].data_offset);
    }
}

/* A corrupt layer can neither be converted, and it remembers the fault, nor loaded. The corrupt tile is in a row of
 * tiles of its own. On a GPU there are layers that are packed in parts, and in one launch. loop: which layer, and to
 * which layout. */
START_TEST(corrupt_layers) {
    static const uint32_t shapes[][2] = {{600, 530}, {640, 576}};
    const trf_layout layout = _i % 2 ? TRF_LAYOUT_PACKED : TRF_LAYOUT_PLAIN;
    const uint64_t tile = (const uint64_t[]){0, 4, 7}[_i / 2];
    char name[32];
    snprintf(name, sizeof name, "tile %d", (int)tile);
    for (int shape = 0; shape < 2; shape++) {
        const uint32_t rows = shapes[shape][0], cols = shapes[shape][1];
        const coded_blob blob = encode(NORMAL, rows, cols, TRF_FAVOR_SPEED);
        break_tile(&blob, tile, rows, cols);
        trf_device_layer *layer = load(&blob, NULL, TRF_LAYOUT_CODED);
        fixture_check_status(trf_device_layer_check(layer, &err), TRF_OK, &err);
        check_refused(layer, layout, NULL, TRF_ERR_RANS, "tile ");
        fixture_check_status(trf_device_layer_check(layer, &err), TRF_ERR_RANS, &err);
        ck_assert_msg(strstr(err.message, name) != NULL, "%s", err.message);
        check_corrupt_loads(&blob, layout, tile, name);
        trf_device_layer_destroy(layer);
        trf_free(blob.at);
    }
}
END_TEST

int main(void) {
    if (test_device_missing("gpu.convert"))
        return 77;
    Suite *suite = suite_create("device_convert");
    TCase *tests = tcase_create("device_convert");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, the_weights_of_the_layer, 0, KINDS);
    tcase_add_loop_test(tests, shards, 0, 2);
    tcase_add_loop_test(tests, large_layers, 0, 4);
    tcase_add_loop_test(tests, other_dtypes, 0, 2);
    tcase_add_loop_test(tests, the_same_blob, 0, KINDS);
    tcase_add_test(tests, plans_of_the_old_layer);
    tcase_add_loop_test(tests, in_the_callers_memory, 0, 4);
    tcase_add_test(tests, what_there_is_not);
    tcase_add_test(tests, codecs_and_weights);
    tcase_add_test(tests, layers_of_stacks);
    tcase_add_loop_test(tests, corrupt_layers, 0, 6);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
