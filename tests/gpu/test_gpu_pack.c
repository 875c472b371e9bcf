/* SPDX-License-Identifier: Apache-2.0 */
/* Packing and unpacking on the device give byte for byte what the CPU's reference gives, for whole layers and range by
 * range, from rows of any alignment; and nothing is written beside. */
#include "common/packed8_layer.h"
#include "common/packed_weight_kinds.h"
#include "gpu_fixture.h"
#include "trf_unpack.h"
#include "trf_unpack8.h"
#include "trf_unpack8_launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t kShapes[][2] = {{65, 1025},   {130, 2112}, {1, 1},      {333, 1032},  {15, 33},
                                      {64, 32},     {257, 696},  {700, 31},   {64, 8},      {3, 5000},
                                      {1000, 3000}, {63, 1024},  {64, 1056},  {128, 31},    {2000, 100},
                                      {1, 40000},   {513, 4096}, {4097, 520}, {320, 10240}, {96, 2047}};
enum {
    SHAPES = sizeof kShapes / sizeof kShapes[0],
    QUICK_SHAPES = 4, /* the first ones */
    UNUSED = 0xFF     /* gpu_memory_make's */
};

static int shapes(void) { return test_quick() ? QUICK_SHAPES : SHAPES; }

static void check_launch(int error, const char *what) {
    if (error)
        ck_abort_msg("%s: %s", what, cudaGetErrorString((cudaError_t)error));
}

/* ---- layers and rows on the device ---- */

/* A packed layer's memory. At first all of it is UNUSED except for the row offsets. */
typedef struct packed_memory {
    trf_packed_head head;
    gpu_memory memory;
    trf_packed_view view;
} packed_memory;

/* room: for how many stored tiles, or for all that the layer has. */
static packed_memory packed_memory_make(const packed_layer *layer, trf_packed_window window, uint64_t room) {
    packed_memory to;
    memset(&to, 0, sizeof to);
    const int has_offsets = layer->row_offsets != NULL;
    ck_assert_int_eq(trf_size_packed(layer->rows, layer->cols, has_offsets, 0, &to.head, NULL), TRF_OK);
    if (room > to.head.num_tiles)
        room = to.head.num_tiles;
    ck_assert_int_eq(trf_size_packed(layer->rows, layer->cols, has_offsets, room, &to.head, NULL), TRF_OK);
    to.head.base = (uint8_t)window.base;
    to.head.flags = window.zeroing ? TRF_PACKED_ZEROING : 0;
    to.memory = gpu_memory_make(to.head.common.buffer_bytes);
    to.view = trf_packed_view_of(&to.head, to.memory.at);
    if (has_offsets) {
        uint8_t *offsets = (uint8_t *)to.memory.at + to.head.row_offsets_offset;
        CUDA(cudaMemset(offsets, 0, to.head.padded_rows));
        CUDA(cudaMemcpy(offsets, layer->row_offsets, layer->rows, cudaMemcpyHostToDevice));
    }
    return to;
}

/* Dense rows: the host's memory and its copy. */
typedef struct dense_memory {
    dense_rows host;
    gpu_memory device;
} dense_memory;

static dense_memory dense_memory_of(dense_rows host) {
    const dense_memory dense = {host, gpu_memory_copy_of(host.memory, host.bytes)};
    return dense;
}

static void *dense_row(const dense_memory *dense, uint32_t row) {
    return (uint8_t *)dense->device.at + dense->host.weight_bytes * (dense->host.shift + row * dense->host.stride);
}

static void dense_memory_free(dense_memory *dense) {
    dense_rows_free(&dense->host);
    gpu_memory_free(&dense->device);
}

/* The layer's weights, aligned or not. */
static dense_memory dense_memory_make(test_rng *rng, const packed_layer *layer) {
    static const size_t kShift[] = {0, 8, 0, 3}, kMore[] = {0, 8, 1, 0};
    const uint32_t way = test_below(rng, 4), more = way == 3 ? (8 - layer->cols % 8) % 8 : 0;
    return dense_memory_of(
        dense_rows_copy(layer->weights, layer->rows, layer->cols, way == 3 ? 0 : kShift[way], more + kMore[way]));
}

/* ---- packing ---- */

/* Packs one range of `rows` rows after the other; 0 means all rows at once. */
static trf_pack_state pack(const packed_memory *to, const dense_memory *dense, uint32_t rows, trf_stream stream) {
    const uint32_t all = to->view.rows, each = rows ? rows : all;
    gpu_memory memory = gpu_memory_make(sizeof(trf_pack_state));
    trf_pack_state state;
    CUDA(cudaMemsetAsync(memory.at, 0, sizeof state, stream));
    for (uint32_t row = 0; row < all; row += each) {
        const trf_rows_to_pack range = {dense_row(dense, row), dense->host.stride, row,
                                        all - row < each ? all - row : each, to->view.cols};
        check_launch(trf_launch_pack(&to->view, &range, memory.at, stream), "packing");
    }
    gpu_memory_read(&memory, &state);
    gpu_memory_free(&memory);
    return state;
}

static void check_packed(const packed_layer *layer, const packed_memory *to, const char *what) {
    const trf_packed_head *head = &layer->head;
    const uint64_t begin[] = {head->lines_offset, head->tiles_offset, head->stored_offset,
                              to->head.common.buffer_bytes};
    const uint64_t end[] = {begin[0] + head->num_lines * TRF_PACKED_LINE_BYTES,
                            begin[1] + head->num_tiles * TRF_PACKED_TILE_BYTES,
                            begin[2] + (uint64_t)head->num_stored * TRF_PACKED_STORED_TILE_BYTES};
    uint8_t *found = gpu_malloc(to->head.common.buffer_bytes);
    gpu_memory_read(&to->memory, found);
    for (int part = 0; part < 3; part++) {
        for (uint64_t at = begin[part]; at < end[part]; at++)
            if (found[at] != layer->packed[at])
                ck_abort_msg("%ux%u, %s: byte %llu of part %d is %02x, not %02x", layer->rows, layer->cols, what,
                             (unsigned long long)(at - begin[part]), part, found[at], layer->packed[at]);
        for (uint64_t at = end[part]; at < begin[part + 1]; at++)
            EXPECT(found[at] == UNUSED);
    }
    free(found);
}

static void check_state(trf_pack_state state, const packed_layer *layer) {
    EXPECT(state.num_records == layer->head.num_records);
    EXPECT(state.num_stored == layer->head.num_stored);
    EXPECT(state.inexact == 0);
}

/* The layer on the CPU, packed. */
static packed_layer make_layer(test_rng *rng, const uint32_t shape[2], packed_weight_kind kind,
                               trf_packed_window *window) {
    packed_layer layer = packed_layer_of_kind(rng, shape[0], shape[1], kind, window);
    trf_error err;
    ck_assert_msg(packed_layer_pack(&layer, window, &err) == TRF_OK, "%s", err.message);
    return layer;
}

START_TEST(packing_is_the_references) {
    static const uint32_t kRanges[] = {0, 64, 256, 192};
    test_rng rng = {1 + (uint64_t)_i};
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    int refused = 0;
    for (int s = 0; s < shapes(); s++) {
        trf_packed_window window;
        packed_layer layer = packed_layer_of_kind(&rng, kShapes[s][0], kShapes[s][1], (packed_weight_kind)_i, &window);
        if (packed_layer_pack(&layer, &window, NULL) != TRF_OK) { /* a small one with outliers may take too many bits */
            refused++;
            packed_layer_free(&layer);
            continue;
        }
        for (int way = 0; way < 4; way++) {
            packed_memory to = packed_memory_make(&layer, window, layer.head.num_stored + (way == 3 ? 3 : 0));
            dense_memory dense = dense_memory_make(&rng, &layer);
            check_state(pack(&to, &dense, kRanges[way], way % 2 ? stream : NULL), &layer);
            check_packed(&layer, &to, way ? "range by range" : "whole");
            dense_memory_free(&dense);
            gpu_memory_free(&to.memory);
        }
        packed_layer_free(&layer);
    }
    EXPECT(refused * 4 <= shapes());
    CUDA(cudaStreamDestroy(stream));
}
END_TEST

/* Enough lines for every multiprocessor give the same bytes each time. */
START_TEST(large_layers) {
    static const uint32_t kShape[] = {4096, 5632}, kSmall[] = {600, 1400};
    test_rng rng = {100 + (uint64_t)_i};
    trf_packed_window window;
    packed_layer layer = make_layer(&rng, test_quick() ? kSmall : kShape, (packed_weight_kind)_i, &window);
    dense_memory dense = dense_memory_make(&rng, &layer);
    for (int round = 0; round < 8; round++) {
        packed_memory to = packed_memory_make(&layer, window, layer.head.num_stored);
        check_state(pack(&to, &dense, round % 2 ? 256 : 0, NULL), &layer);
        check_packed(&layer, &to, "large");
        gpu_memory_free(&to.memory);
    }
    dense_memory_free(&dense);
    packed_layer_free(&layer);
}
END_TEST

START_TEST(room_is_kept_to) {
    static const uint32_t kShape[] = {300, 3001};
    test_rng rng = {200 + (uint64_t)_i};
    const trf_packed_window window = {112, 0};
    packed_layer layer = packed_layer_make(kShape[0], kShape[1], 0);
    for (size_t i = 0; i < (size_t)layer.rows * layer.cols; i++)
        layer.weights[i] = (uint16_t)(0x7F81 | test_random(&rng)); /* all would be stored */
    packed_memory to = packed_memory_make(&layer, window, (uint64_t)_i * 30);
    dense_memory dense = dense_memory_make(&rng, &layer);
    const trf_pack_state state = pack(&to, &dense, 128, NULL); /* the guard is checked after it */
    ck_assert_uint_eq(state.num_stored, to.head.num_tiles);
    uint8_t *found = gpu_malloc(to.head.common.buffer_bytes);
    gpu_memory_read(&to.memory, found);
    free(found);
    dense_memory_free(&dense);
    gpu_memory_free(&to.memory);
    packed_layer_free(&layer);
}
END_TEST

START_TEST(first_inexact_weight_is_found) {
    test_rng rng = {300 + (uint64_t)_i};
    trf_packed_window window;
    packed_layer layer = packed_layer_of_kind(&rng, 500, 3000, PACKED_WEIGHTS_NORMAL, &window);
    for (int i = 0; i <= _i; i++)
        layer.weights[test_below(&rng, 500 * 3000)] = (uint16_t)(0x7F00 + i);
    trf_error err;
    ck_assert_int_eq(packed_layer_pack(&layer, &window, &err), TRF_ERR_UNSUPPORTED);
    packed_memory to = packed_memory_make(&layer, window, 100);
    dense_memory dense = dense_memory_make(&rng, &layer);
    const trf_pack_state state = pack(&to, &dense, _i % 2 ? 64 : 0, NULL);
    uint32_t row = 0, col = 0;
    ck_assert(trf_pack_inexact(&state, to.view.lines_per_band, &row, &col));
    ck_assert_uint_eq(2 * ((uint64_t)row * layer.cols + col), err.offset);
    dense_memory_free(&dense);
    gpu_memory_free(&to.memory);
    packed_layer_free(&layer);
}
END_TEST

/* ---- unpacking ---- */

/* The view of a layer; fp8 is NULL for a BF16 layer. */
typedef struct layer_view {
    const trf_packed_view *bf16;
    const trf_packed8_view *fp8;
} layer_view;

/* Unpacks some rows, or all of them. weights: the expected ones, from the layer's first row on. */
static void check_unpacked(test_rng *rng, layer_view of, const uint16_t *weights) {
    const trf_packed_view *view = of.fp8 ? &of.fp8->packed : of.bf16;
    const uint32_t bytes = test_below(rng, 2) ? 2 : 4;
    const uint32_t first = test_below(rng, 2) ? test_below(rng, view->rows) : 0;
    const uint32_t count = first ? 1 + test_below(rng, view->rows - first) : view->rows;
    dense_memory dense =
        dense_memory_of(dense_rows_make(count, view->cols, bytes, test_below(rng, 3) * 4, test_below(rng, 2) * 8));
    const trf_unpack_target target = {dense_row(&dense, 0), dense.host.stride, bytes};
    check_launch(of.fp8 ? trf_launch_unpack8(of.fp8, first, count, &target, NULL)
                        : trf_launch_unpack(of.bf16, first, count, &target, NULL),
                 "unpacking");
    gpu_memory_read(&dense.device, dense.host.memory);
    for (uint32_t row = 0; row < count; row++)
        if (!dense_row_is(&dense.host, row, weights + (size_t)(first + row) * view->cols))
            ck_abort_msg("row %u of %ux%u differs", first + row, view->rows, view->cols);
    EXPECT(dense_rows_gaps_untouched(&dense.host));
    dense_memory_free(&dense);
}

static void check_ids(test_rng *rng, layer_view of, const uint16_t *weights) {
    const trf_packed_view *view = of.fp8 ? &of.fp8->packed : of.bf16;
    enum {
        COUNT = 50
    };
    int64_t ids8[COUNT] = {0, -1, view->rows - 1, view->rows, INT64_MIN, (int64_t)1 << 32};
    int32_t ids4[COUNT] = {0, -1, (int32_t)view->rows - 1, (int32_t)view->rows, INT32_MIN, INT32_MAX};
    for (int i = 6; i < COUNT; i++)
        ids8[i] = ids4[i] = (int32_t)test_below(rng, view->rows);
    const uint32_t bytes = test_below(rng, 2) ? 2 : 4, wide = test_below(rng, 2);
    gpu_memory ids = wide ? gpu_memory_copy_of(ids8, sizeof ids8) : gpu_memory_copy_of(ids4, sizeof ids4);
    const trf_packed_lookup lookup = {ids.at, wide ? 8 : 4, COUNT};
    dense_memory dense =
        dense_memory_of(dense_rows_make(COUNT, view->cols, bytes, test_below(rng, 3) * 4, test_below(rng, 2) * 8));
    const trf_unpack_target target = {dense_row(&dense, 0), dense.host.stride, bytes};
    check_launch(of.fp8 ? trf_launch_unpack8_rows(of.fp8, &lookup, &target, NULL)
                        : trf_launch_unpack_rows(of.bf16, &lookup, &target, NULL),
                 "unpacking rows");
    gpu_memory_read(&dense.device, dense.host.memory);
    for (uint32_t i = 0; i < COUNT; i++) {
        const int64_t id = wide ? ids8[i] : ids4[i];
        const int there = id >= 0 && id < view->rows;
        EXPECT(dense_row_is(&dense.host, i, there ? weights + (size_t)id * view->cols : NULL));
    }
    EXPECT(dense_rows_gaps_untouched(&dense.host));
    dense_memory_free(&dense);
    gpu_memory_free(&ids);
}

static void check_both(test_rng *rng, layer_view of, const uint16_t *weights) {
    for (int round = 0; round < 3; round++) {
        check_unpacked(rng, of, weights);
        check_ids(rng, of, weights);
    }
}

/* layer: head, packed layer and weights on the host. */
static void check_layer(test_rng *rng, const packed_layer *layer) {
    gpu_memory memory = gpu_memory_copy_of(layer->packed, layer->head.common.buffer_bytes);
    const trf_packed_view view = trf_packed_view_of(&layer->head, memory.at);
    check_both(rng, (layer_view){&view, NULL}, layer->weights);
    gpu_memory_free(&memory);
}

START_TEST(unpacking_gives_the_weights_back) {
    test_rng rng = {400 + (uint64_t)_i};
    for (int s = 0; s < shapes(); s++) {
        trf_packed_window window;
        packed_layer layer = make_layer(&rng, kShapes[s], (packed_weight_kind)_i, &window);
        check_layer(&rng, &layer);
        packed_layer_free(&layer);
    }
}
END_TEST

/* More rows than a grid has, by ids of which some have no row; the same bits on every run. */
START_TEST(many_rows_are_looked_up) {
    enum {
        COUNT = 70000,
        RUNS = 3
    };
    const uint32_t shape[] = {1000, _i % 2 ? 520 : 77};
    test_rng rng = {450 + (uint64_t)_i};
    trf_packed_window window;
    packed_layer layer = make_layer(&rng, shape, (packed_weight_kind)(_i % PACKED_WEIGHT_KINDS), &window);
    gpu_memory memory = gpu_memory_copy_of(layer.packed, layer.head.common.buffer_bytes);
    const trf_packed_view view = trf_packed_view_of(&layer.head, memory.at);
    int32_t *ids = gpu_malloc(COUNT * sizeof *ids);
    for (uint32_t i = 0; i < COUNT; i++)
        ids[i] = (int32_t)test_below(&rng, shape[0] + 10) - 5;
    gpu_memory ids_memory = gpu_memory_copy_of(ids, COUNT * sizeof *ids);
    const trf_packed_lookup lookup = {ids_memory.at, sizeof *ids, COUNT};
    for (int run = 0; run < RUNS; run++) {
        dense_memory dense = dense_memory_of(dense_rows_make(COUNT, shape[1], 2, 0, 0));
        const trf_unpack_target target = {dense_row(&dense, 0), dense.host.stride, 2};
        check_launch(trf_launch_unpack_rows(&view, &lookup, &target, NULL), "unpacking many rows");
        gpu_memory_read(&dense.device, dense.host.memory);
        for (uint32_t i = 0; i < COUNT; i++) {
            const int there = ids[i] >= 0 && ids[i] < (int32_t)shape[0];
            EXPECT(dense_row_is(&dense.host, i, there ? layer.weights + (size_t)ids[i] * shape[1] : NULL));
        }
        EXPECT(dense_rows_gaps_untouched(&dense.host));
        dense_memory_free(&dense);
    }
    gpu_memory_free(&ids_memory);
    gpu_memory_free(&memory);
    free(ids);
    packed_layer_free(&layer);
}
END_TEST

START_TEST(garbage_is_read_from_within) {
    test_rng rng = {500 + (uint64_t)_i};
    const uint32_t shape[] = {100 + test_below(&rng, 900), 300 + test_below(&rng, 1500)};
    trf_packed_window window;
    packed_layer layer = make_layer(&rng, shape, _i % 2 ? PACKED_WEIGHTS_ROWS_MIXED : PACKED_WEIGHTS_STORED, &window);
    layer.head.flags = _i / 2 % 2 ? TRF_PACKED_ZEROING : 0;
    layer.head.base = (uint8_t)(1 + test_below(&rng, TRF_PACKED_MAX_BASE));
    for (uint64_t at = sizeof(trf_packed_head); at < layer.head.common.buffer_bytes; at++)
        if (_i % 3 == 0 || test_below(&rng, 16) == 0)
            layer.packed[at] = (uint8_t)test_random(&rng);
    const trf_packed_view view = trf_packed_view_of(&layer.head, layer.packed);
    trf_unpack(&view, layer.weights, layer.cols);
    check_layer(&rng, &layer);
    packed_layer_free(&layer);
}
END_TEST

/* ---- unpacking FP8 ---- */

/* Weights that are no code times a scale, Inf and NaN among them: up to a line's records in each line. i: which scales
 * and how many misfits. */
static packed8_layer make_fp8_layer(test_rng *rng, const uint32_t shape[2], int i) {
    static const uint16_t kMisfits[] = {0x7F80, 0xFFC1, 0x0001, 0x4F4F, 0x8A55};
    packed8_layer layer = packed8_layer_make(rng, shape[0], shape[1], i % 2 ? 64 : shape[0],
                                             128 * (1 + (uint32_t)i % 3), i % 2 ? SCALES_F32 : SCALES_BF16);
    trf_error err;
    for (uint32_t row = 0; row < layer.rows; row += 64)
        for (uint32_t col = 0; col < layer.cols; col += 1024)
            for (uint32_t left = i % 3 * TRF_PACKED8_MAX_RECORDS / 2; left > 0; left--) {
                const uint32_t rows = layer.rows - row < 64 ? layer.rows - row : 64,
                               cols = layer.cols - col < 1024 ? layer.cols - col : 1024;
                layer.weights[(size_t)(row + test_below(rng, rows)) * layer.cols + col + test_below(rng, cols)] =
                    kMisfits[test_below(rng, sizeof kMisfits / sizeof *kMisfits)];
            }
    ck_assert_msg(packed8_layer_pack(&layer, 1, &err) == TRF_OK, "%s", err.message);
    return layer;
}

static void check_fp8_layer(test_rng *rng, const packed8_layer *layer) {
    gpu_memory memory = gpu_memory_copy_of(layer->packed, layer->head.common.buffer_bytes);
    const trf_packed8_view view = trf_packed8_view_of(&layer->head, memory.at);
    check_both(rng, (layer_view){NULL, &view}, layer->weights);
    gpu_memory_free(&memory);
}

START_TEST(unpacking_fp8_gives_the_weights_back) {
    test_rng rng = {700 + (uint64_t)_i};
    for (int s = 0; s < shapes(); s++) {
        packed8_layer layer = make_fp8_layer(&rng, kShapes[s], _i);
        check_fp8_layer(&rng, &layer);
        packed8_layer_free(&layer);
    }
}
END_TEST

/* Codes, records and masks are garbage, but not the pairs of constants: a NaN of the GPU's has other bits than the
 * CPU's. */
START_TEST(garbage_of_fp8_is_read_from_within) {
    test_rng rng = {800 + (uint64_t)_i};
    const uint32_t shape[] = {100 + test_below(&rng, 900), 300 + test_below(&rng, 1500)};
    packed8_layer layer = make_fp8_layer(&rng, shape, _i);
    for (uint64_t at = layer.head.lines_offset; at < layer.head.common.buffer_bytes; at++) {
        const uint64_t word = at < layer.head.tiles_offset ? at % TRF_PACKED_LINE_BYTES / 4 : 0;
        if (word < TRF_PACKED8_PAIRS_WORD && (_i % 3 == 0 || test_below(&rng, 16) == 0))
            layer.packed[at] = (uint8_t)test_random(&rng);
    }
    const trf_packed8_view view = trf_packed8_view_of(&layer.head, layer.packed);
    trf_unpack8(&view, layer.weights, layer.cols);
    check_fp8_layer(&rng, &layer);
    packed8_layer_free(&layer);
}
END_TEST

/* ---- the window ---- */

/* Counts a histogram of all rows by its definition. */
static trf_window_histogram count_exponents(const packed_layer *layer) {
    trf_window_histogram counts = {{0}, 0};
    for (uint32_t row = 0; row < layer->rows; row++)
        for (uint32_t col = 0; col < layer->cols; col++) {
            const uint32_t weight = layer->weights[(size_t)row * layer->cols + col];
            const int32_t exponent = weight >> 7 & 0xFF;
            const int32_t left = exponent - (layer->row_offsets ? layer->row_offsets[row] : 0);
            counts.zeros += (weight & 0x7FFF) == 0;
            if (exponent > 0 && exponent < 255 && left > 0 && left < 255)
                counts.exponents[left]++;
        }
    return counts;
}

START_TEST(histograms_are_the_references) {
    test_rng rng = {600 + (uint64_t)_i};
    for (int s = 0; s < shapes(); s++) {
        trf_packed_window window;
        packed_layer layer = packed_layer_of_kind(&rng, kShapes[s][0], kShapes[s][1], (packed_weight_kind)_i, &window);
        const trf_window_histogram due = count_exponents(&layer);
        dense_memory dense = dense_memory_make(&rng, &layer);
        gpu_memory memory = gpu_memory_make(sizeof(trf_window_histogram)), offsets = {NULL, 0, 0};
        trf_window_histogram found;
        if (layer.row_offsets)
            offsets = gpu_memory_copy_of(layer.row_offsets, layer.rows);
        CUDA(cudaMemset(memory.at, 0, sizeof found));
        for (uint32_t row = 0; row < layer.rows; row += 100) { /* any ranges */
            const uint32_t left = layer.rows - row;
            const trf_rows_to_pack rows = {dense_row(&dense, row), dense.host.stride, row, left < 100 ? left : 100,
                                           layer.cols};
            check_launch(trf_launch_window_histogram(&rows, offsets.at, memory.at, NULL), "a histogram");
        }
        gpu_memory_read(&memory, &found);
        EXPECT(memcmp(&found, &due, sizeof due) == 0);
        dense_memory_free(&dense);
        gpu_memory_free(&memory);
        gpu_memory_free(&offsets);
        packed_layer_free(&layer);
    }
}
END_TEST

int main(void) {
    const gpu_test tests[] = {{packing_is_the_references, PACKED_WEIGHT_KINDS},
                              {large_layers, PACKED_WEIGHT_KINDS},
                              {room_is_kept_to, 3},
                              {first_inexact_weight_is_found, 6},
                              {unpacking_gives_the_weights_back, PACKED_WEIGHT_KINDS},
                              {many_rows_are_looked_up, 2 * PACKED_WEIGHT_KINDS},
                              {garbage_is_read_from_within, 12},
                              {unpacking_fp8_gives_the_weights_back, 6},
                              {garbage_of_fp8_is_read_from_within, 6},
                              {histograms_are_the_references, PACKED_WEIGHT_KINDS}};
    return gpu_main("packed", tests, sizeof tests / sizeof tests[0]);
}
