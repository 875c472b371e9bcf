/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that pack and unpack. Emulated blocks (tests/warp) run them over whole small layers, with threads in any
 * order. The results must be byte for byte those of trf_pack, trf_unpack and trf_unpack8, and nothing may be written
 * beside them. */
#include <stdio.h>

#ifndef TRF_HAVE_WARP_WALK
int main(void) {
    puts("skipped: kernels are not emulated in this build");
    return 77;
}
#else
#include "common/expect.h"
#include "common/packed8_layer.h"
#include "common/packed_weight_kinds.h"
#include "common/run_suite.h"
#include "trf_decoded_bits.h"
#include "trf_packed_form.h"
#include "trf_unpack.h"
#include "trf_unpack8.h"
#include "warp/warp_pack.h"

#include <check.h>

static const uint32_t kShapes[][2] = {{65, 1025}, {1, 1},    {130, 2112}, {15, 33}, {64, 32},
                                      {3, 5000},  {700, 31}, {257, 696},  {64, 8},  {333, 1032}};
enum {
    SHAPES = sizeof kShapes / sizeof *kShapes,
    UNUSED = 0xA5
};

static warp_grid random_grid(test_rng *rng) {
    const warp_grid grid = {1 + test_below(rng, 12), (uint32_t)test_random(rng)};
    return grid;
}

/* ---- packing ---- */

/* Memory for a layer. All of it is UNUSED except for the row offsets. */
typedef struct target {
    trf_packed_head head;
    uint8_t *memory;
    trf_packed_view view;
} target;

static target target_make(const packed_layer *layer, trf_packed_window window, uint64_t room) {
    target to;
    const int has_offsets = layer->row_offsets != NULL;
    memset(&to, 0, sizeof to);
    ck_assert_int_eq(trf_size_packed(layer->rows, layer->cols, has_offsets, room, &to.head, NULL), TRF_OK);
    to.head.base = (uint8_t)window.base;
    to.head.flags = window.zeroing ? TRF_PACKED_ZEROING : 0;
    to.memory = aligned_alloc(TRF_PACKED_ALIGNMENT, to.head.common.buffer_bytes);
    ck_assert_ptr_nonnull(to.memory);
    memset(to.memory, UNUSED, to.head.common.buffer_bytes);
    if (has_offsets) {
        memset(to.memory + to.head.row_offsets_offset, 0, to.head.padded_rows);
        memcpy(to.memory + to.head.row_offsets_offset, layer->row_offsets, layer->rows);
    }
    to.view = trf_packed_view_of(&to.head, to.memory);
    return to;
}

/* Packs ranges of `rows` rows, or of any number if that is 0, each from memory of its own. */
static trf_pack_state pack_ranges(test_rng *rng, const packed_layer *layer, const target *to, uint32_t rows) {
    static const size_t kMore[] = {0, 0, 1, 8};
    trf_pack_state state = {0, 0, 0};
    for (uint32_t row = 0, count = 0; row < layer->rows; row += count) {
        const uint32_t left = layer->rows - row, wanted = rows ? rows : 64 * (1 + test_below(rng, 5));
        count = wanted < left ? wanted : left;
        dense_rows dense = dense_rows_copy(layer->weights + (size_t)row * layer->cols, count, layer->cols,
                                           test_below(rng, 3) * 4, kMore[test_below(rng, 4)]);
        const trf_rows_to_pack range = {dense.at, dense.stride, row, count, layer->cols};
        warp_pack(&to->view, &range, &state, random_grid(rng));
        dense_rows_free(&dense);
    }
    return state;
}

/* Checks that the parts of the layer are the reference's, and that what lies between them is unchanged. */
static void check_packed(const packed_layer *layer, const target *to) {
    const trf_packed_head *head = &layer->head;
    const uint64_t end[] = {head->lines_offset + head->num_lines * TRF_PACKED_LINE_BYTES,
                            head->tiles_offset + head->num_tiles * TRF_PACKED_TILE_BYTES,
                            head->stored_offset + (uint64_t)head->num_stored * TRF_PACKED_STORED_TILE_BYTES};
    const uint64_t begin[] = {head->lines_offset, head->tiles_offset, head->stored_offset,
                              to->head.common.buffer_bytes};
    for (int part = 0; part < 3; part++) {
        for (uint64_t at = begin[part]; at < end[part]; at++)
            if (to->memory[at] != layer->packed[at])
                ck_abort_msg("byte %llu of part %d is %02x, not %02x", (unsigned long long)(at - begin[part]), part,
                             to->memory[at], layer->packed[at]);
        for (uint64_t at = end[part]; at < begin[part + 1]; at++)
            EXPECT(to->memory[at] == UNUSED);
    }
}

START_TEST(packing_is_the_references) {
    const packed_weight_kind kind = (packed_weight_kind)(_i % PACKED_WEIGHT_KINDS);
    const uint32_t *shape = kShapes[_i / PACKED_WEIGHT_KINDS];
    test_rng rng = {1 + (uint64_t)_i};
    if (test_quick() && _i / PACKED_WEIGHT_KINDS > 4 && _i % 3)
        return;
    trf_packed_window window;
    packed_layer layer = packed_layer_of_kind(&rng, shape[0], shape[1], kind, &window);
    trf_error err;
    ck_assert_msg(packed_layer_pack(&layer, &window, &err) == TRF_OK, "%s", err.message);
    for (int way = 0; way < 2; way++) {
        target to = target_make(&layer, window, layer.head.num_stored);
        const trf_pack_state state = pack_ranges(&rng, &layer, &to, way == 0 ? shape[0] : 0);
        ck_assert_uint_eq(state.num_stored, layer.head.num_stored);
        ck_assert_uint_eq(state.num_records, layer.head.num_records);
        ck_assert_uint_eq(state.inexact, 0);
        check_packed(&layer, &to);
        free(to.memory);
    }
    packed_layer_free(&layer);
}
END_TEST

/* Stored tiles in lines with all kinds of counts: equal ones, just enough, and one record too many. */
START_TEST(stored_tiles_are_chosen_alike) {
    test_rng rng = {500 + (uint64_t)_i};
    const trf_packed_window window = {112, 0};
    packed_layer layer = packed_layer_make(64 * 3, 32 * 200, 0);
    for (size_t i = 0; i < (size_t)layer.rows * layer.cols; i++)
        layer.weights[i] = 0x3C00;
    for (uint32_t line = 0; line < 3 * 7; line++)
        for (uint32_t left = 28 + test_below(&rng, 4), each = 1 + test_below(&rng, 12); left > 0;) {
            const uint32_t count = each < left ? each : left, tile = line % 7 * 32 + test_below(&rng, 8);
            for (uint32_t i = 0; i < count; i++)
                layer.weights[(size_t)(line / 7 * 64 + test_below(&rng, 64)) * layer.cols + tile * 32 +
                              test_below(&rng, 32)] = (uint16_t)test_below(&rng, 0x8000);
            left -= count;
        }
    trf_error err;
    ck_assert_msg(packed_layer_pack(&layer, &window, &err) == TRF_OK, "%s", err.message);
    target to = target_make(&layer, window, layer.head.num_stored + 2);
    const trf_pack_state state = pack_ranges(&rng, &layer, &to, 64);
    ck_assert_uint_eq(state.num_stored, layer.head.num_stored);
    ck_assert_uint_eq(state.num_records, layer.head.num_records);
    check_packed(&layer, &to);
    free(to.memory);
    packed_layer_free(&layer);
}
END_TEST

/* This also holds for bands in which all tiles would be stored: the count goes on, and memory stays as it is. */
START_TEST(room_is_kept_to) {
    test_rng rng = {600 + (uint64_t)_i};
    const trf_packed_window window = {112, 0};
    const uint64_t room = (uint64_t)_i * 5;
    packed_layer layer = packed_layer_make(200, 32 * 37, 0);
    for (size_t i = 0; i < (size_t)layer.rows * layer.cols; i++)
        layer.weights[i] = (uint16_t)test_random(&rng);
    target to = target_make(&layer, window, room);
    const trf_pack_state state = pack_ranges(&rng, &layer, &to, 64);
    ck_assert_uint_eq(state.num_stored, 4 * 37);
    ck_assert_uint_eq(state.num_records, 0);
    /* what has room is there */
    for (uint64_t number = 0; number < room; number++) {
        const uint32_t band = (uint32_t)(number / 37), tile = (uint32_t)(number % 37);
        const uint32_t *line = to.view.lines + TRF_PACKED_LINE_WORDS * (uint64_t)(band * 2 + tile / 32);
        EXPECT(line[TRF_PACKED_FIRST_STORED_WORD] == number - tile % 32);
        EXPECT(((const uint16_t *)to.view.stored)[number * TRF_PACKED_TILE_WEIGHTS] ==
               layer.weights[(size_t)band * 64 * layer.cols + tile * 32]);
    }
    free(to.memory);
    packed_layer_free(&layer);
}
END_TEST

/* The first of several inexact weights is reported, whatever the order, as by the reference. */
START_TEST(first_inexact_weight_is_found) {
    test_rng rng = {700 + (uint64_t)_i};
    trf_packed_window window;
    packed_layer layer =
        packed_layer_of_kind(&rng, 200, 1300, _i % 2 ? PACKED_WEIGHTS_ROWS : PACKED_WEIGHTS_NORMAL, &window);
    for (int i = 0; i <= _i; i++)
        layer.weights[test_below(&rng, 200 * 1300)] = 0x7F00 | i;
    for (uint32_t row = 0; _i % 2 && row < layer.rows; row++)
        layer.row_offsets[row] = (int8_t)(layer.row_offsets[row] / 20); /* too large for all of them */
    trf_error err;
    ck_assert_int_eq(packed_layer_pack(&layer, &window, &err), TRF_ERR_UNSUPPORTED);
    if (!strstr(err.message, "is no BF16"))
        ck_abort_msg("%s", err.message);
    target to = target_make(&layer, window, 20);
    const trf_pack_state state = pack_ranges(&rng, &layer, &to, 0);
    uint32_t row, col;
    ck_assert(trf_pack_inexact(&state, to.view.lines_per_band, &row, &col));
    ck_assert_uint_eq(2 * ((uint64_t)row * layer.cols + col), err.offset);
    free(to.memory);
    packed_layer_free(&layer);
}
END_TEST

/* ---- unpacking ---- */

/* The view of a layer; fp8 is NULL for a BF16 layer. */
typedef struct layer_view {
    const trf_packed_view *bf16;
    const trf_packed8_view *fp8;
} layer_view;

static void unpack(layer_view of, uint32_t first, uint32_t count, const trf_unpack_target *target, warp_grid grid) {
    if (of.fp8)
        warp_unpack8(of.fp8, first, count, target, grid);
    else
        warp_unpack(of.bf16, first, count, target, grid);
}

static void unpack_rows(layer_view of, const trf_packed_lookup *lookup, const trf_unpack_target *target,
                        warp_grid grid) {
    if (of.fp8)
        warp_unpack8_rows(of.fp8, lookup, target, grid);
    else
        warp_unpack_rows(of.bf16, lookup, target, grid);
}

static void check_unpacked(test_rng *rng, layer_view of, const uint16_t *weights) {
    const trf_packed_view *view = of.fp8 ? &of.fp8->packed : of.bf16;
    const uint32_t bytes = test_below(rng, 2) ? 2 : 4, cols = view->cols;
    const uint32_t first = test_below(rng, 2) ? test_below(rng, view->rows) : 0;
    const uint32_t count = first ? 1 + test_below(rng, view->rows - first) : view->rows;
    dense_rows dense = dense_rows_make(count, cols, bytes, test_below(rng, 3) * 4, test_below(rng, 2) * 8);
    const trf_unpack_target target = {dense.at, dense.stride, bytes};
    unpack(of, first, count, &target, random_grid(rng));
    for (uint32_t row = 0; row < count; row++)
        if (!dense_row_is(&dense, row, weights + (size_t)(first + row) * cols))
            ck_abort_msg("row %u of %u columns differs", first + row, cols);
    EXPECT(dense_rows_gaps_untouched(&dense));
    dense_rows_free(&dense);
}

static void check_ids(test_rng *rng, layer_view of, const uint16_t *weights) {
    const trf_packed_view *view = of.fp8 ? &of.fp8->packed : of.bf16;
    enum {
        COUNT = 9
    };
    int64_t ids8[COUNT] = {0, -1, view->rows - 1, view->rows, INT64_MIN, (int64_t)1 << 32};
    int32_t ids4[COUNT] = {0, -1, (int32_t)view->rows - 1, (int32_t)view->rows, INT32_MIN, INT32_MAX};
    for (int i = 6; i < COUNT; i++)
        ids8[i] = ids4[i] = (int32_t)test_below(rng, view->rows);
    const uint32_t bytes = test_below(rng, 2) ? 2 : 4, wide = test_below(rng, 2);
    const trf_packed_lookup lookup = {wide ? (const void *)ids8 : ids4, wide ? 8 : 4, COUNT};
    dense_rows dense = dense_rows_make(COUNT, view->cols, bytes, test_below(rng, 3) * 4, test_below(rng, 2) * 8);
    const trf_unpack_target target = {dense.at, dense.stride, bytes};
    unpack_rows(of, &lookup, &target, random_grid(rng));
    for (uint32_t i = 0; i < COUNT; i++) {
        const int64_t id = wide ? ids8[i] : ids4[i];
        const int there = id >= 0 && id < view->rows;
        EXPECT(dense_row_is(&dense, i, there ? weights + (size_t)id * view->cols : NULL));
    }
    EXPECT(dense_rows_gaps_untouched(&dense));
    dense_rows_free(&dense);
}

static void check_both(test_rng *rng, layer_view of, const uint16_t *weights) {
    for (int round = 0; round < 3; round++) {
        check_unpacked(rng, of, weights);
        check_ids(rng, of, weights);
    }
}

START_TEST(unpacking_gives_the_weights_back) {
    const packed_weight_kind kind = (packed_weight_kind)(_i % PACKED_WEIGHT_KINDS);
    const uint32_t *shape = kShapes[_i / PACKED_WEIGHT_KINDS];
    test_rng rng = {2000 + (uint64_t)_i};
    if (test_quick() && _i / PACKED_WEIGHT_KINDS > 4 && _i % 3)
        return;
    trf_packed_window window;
    packed_layer layer = packed_layer_of_kind(&rng, shape[0], shape[1], kind, &window);
    ck_assert_int_eq(packed_layer_pack(&layer, &window, NULL), TRF_OK);
    const trf_packed_view view = trf_packed_view_of(&layer.head, layer.packed);
    check_both(&rng, (layer_view){&view, NULL}, layer.weights);
    packed_layer_free(&layer);
}
END_TEST

/* Whatever follows the head in the buffer, the result is what the reference reads there, and nothing outside is
 * read. */
START_TEST(garbage_is_read_from_within) {
    test_rng rng = {3000 + (uint64_t)_i};
    const packed_weight_kind kind = _i % 2 ? PACKED_WEIGHTS_ROWS_MIXED : PACKED_WEIGHTS_STORED;
    trf_packed_window window;
    packed_layer layer =
        packed_layer_of_kind(&rng, 100 + test_below(&rng, 100), 300 + test_below(&rng, 1500), kind, &window);
    ck_assert_int_eq(packed_layer_pack(&layer, &window, NULL), TRF_OK);
    window.zeroing = _i / 2 % 2;
    window.base = test_below(&rng, 3) ? window.base : 1 + test_below(&rng, 2) * 238;
    layer.head.base = (uint8_t)window.base;
    layer.head.flags = window.zeroing ? TRF_PACKED_ZEROING : 0;
    for (uint64_t at = sizeof(trf_packed_head); at < layer.head.common.buffer_bytes; at++)
        if (_i % 3 == 0 || test_below(&rng, 16) == 0)
            layer.packed[at] = (uint8_t)test_random(&rng);
    const trf_packed_view view = trf_packed_view_of(&layer.head, layer.packed);
    trf_unpack(&view, layer.weights, layer.cols);
    check_both(&rng, (layer_view){&view, NULL}, layer.weights);
    packed_layer_free(&layer);
}
END_TEST

/* ---- unpacking FP8 ---- */

/* Puts weights that are no code times a scale, Inf and NaN among them, into the layer: up to `most` in a line. */
static void add_misfits(test_rng *rng, packed8_layer *layer, uint32_t most) {
    static const uint16_t kinds[] = {0x7F80, 0xFFC1, 0x0001, 0x4F4F, 0x8000 | 0x0A55};
    for (uint32_t row = 0; row < layer->rows; row += 64)
        for (uint32_t col = 0; col < layer->cols; col += 1024)
            for (uint32_t left = test_below(rng, most + 1); left > 0; left--) {
                const uint32_t rows = layer->rows - row < 64 ? layer->rows - row : 64,
                               cols = layer->cols - col < 1024 ? layer->cols - col : 1024;
                const size_t at = (size_t)(row + test_below(rng, rows)) * layer->cols + col + test_below(rng, cols);
                layer->weights[at] = kinds[test_below(rng, sizeof kinds / sizeof *kinds)];
            }
}

static packed8_layer packed8_layer_draw(test_rng *rng, uint32_t rows, uint32_t cols, int i) {
    packed8_layer layer = packed8_layer_make(rng, rows, cols, i % 2 ? 64 : rows, 128 * (1 + (uint32_t)i % 3),
                                             i % 2 ? SCALES_F32 : SCALES_BF16);
    trf_error err;
    add_misfits(rng, &layer, i % 3 * TRF_PACKED8_MAX_RECORDS / 2);
    ck_assert_msg(packed8_layer_pack(&layer, 1, &err) == TRF_OK, "%s", err.message);
    return layer;
}

START_TEST(unpacking_fp8_gives_the_weights_back) {
    const uint32_t *shape = kShapes[_i / 6];
    test_rng rng = {5000 + (uint64_t)_i};
    if (test_quick() && _i / 6 > 4 && _i % 3)
        return;
    packed8_layer layer = packed8_layer_draw(&rng, shape[0], shape[1], _i % 6);
    const trf_packed8_view view = trf_packed8_view_of(&layer.head, layer.packed);
    check_both(&rng, (layer_view){NULL, &view}, layer.weights);
    packed8_layer_free(&layer);
}
END_TEST

START_TEST(garbage_of_fp8_is_read_from_within) {
    test_rng rng = {6000 + (uint64_t)_i};
    packed8_layer layer = packed8_layer_draw(&rng, 100 + test_below(&rng, 100), 300 + test_below(&rng, 1500), _i);
    for (uint64_t at = sizeof(trf_packed8_head); at < layer.head.common.buffer_bytes; at++)
        if (_i % 3 == 0 || test_below(&rng, 16) == 0)
            layer.packed[at] = (uint8_t)test_random(&rng);
    const trf_packed8_view view = trf_packed8_view_of(&layer.head, layer.packed);
    trf_unpack8(&view, layer.weights, layer.cols);
    check_both(&rng, (layer_view){NULL, &view}, layer.weights);
    packed8_layer_free(&layer);
}
END_TEST

/* ---- packing FP8 ---- */

/* Packs a layer of FP8 to memory that is UNUSED before, ranges one after the other. Its blocks are 128x128, or it is
 * one block. The table of scales has a row of blocks and two columns of them in front of it. */
static trf_pack8_state pack8_ranges(test_rng *rng, const packed8_layer *layer, uint8_t *memory) {
    const trf_packed8_view view = trf_packed8_view_of(&layer->head, memory);
    const uint32_t across = (layer->cols - 1) / layer->block_cols + 1, down = (layer->rows - 1) / layer->block_rows + 1;
    float *table = calloc((size_t)(across + 2) * (down + 1), sizeof *table);
    ck_assert_ptr_nonnull(table);
    for (uint32_t row = 0; row < down; row++)
        memcpy(table + (size_t)(row + 1) * (across + 2) + 2, layer->scales + (size_t)row * across,
               across * sizeof *table);
    const trf_pack8_scales blocks = {table, NULL, TRF_GRANULARITY_SCALE_BLOCK, 128, across + 2, 128, 256},
                           one = {layer->scales, NULL, TRF_GRANULARITY_TENSOR, 0, 1, 48, 16};
    const trf_pack8_scales *scales = layer->num_scales > 1 ? &blocks : &one;
    trf_pack8_state state = {0};
    warp_pack8_pairs(&view, scales, &state, random_grid(rng));
    for (uint32_t row = 0, count = 0; row < layer->rows; row += count) {
        const uint32_t left = layer->rows - row, wanted = 64 * (1 + test_below(rng, 5));
        count = wanted < left ? wanted : left;
        dense_rows dense = dense_rows_copy(layer->weights + (size_t)row * layer->cols, count, layer->cols,
                                           test_below(rng, 3) * 4, test_below(rng, 2) * 8);
        const trf_rows_to_pack range = {dense.at, dense.stride, row, count, layer->cols};
        warp_pack8(&view, scales, &range, &state, random_grid(rng));
        dense_rows_free(&dense);
    }
    free(table);
    return state;
}

static uint8_t *unused_memory(uint64_t bytes) {
    uint8_t *memory = aligned_alloc(TRF_PACKED_ALIGNMENT, bytes);
    ck_assert_ptr_nonnull(memory);
    memset(memory, UNUSED, bytes);
    return memory;
}

START_TEST(packing_fp8_is_the_references) {
    const uint32_t *shape = kShapes[_i / 6];
    test_rng rng = {7000 + (uint64_t)_i};
    const int has_blocks = _i % 2 && shape[1] > 128 && shape[0] > 128;
    if (test_quick() && _i / 6 > 4 && _i % 3)
        return;
    packed8_layer layer = packed8_layer_make(&rng, shape[0], shape[1], has_blocks ? 128 : shape[0],
                                             has_blocks ? 128 : shape[1], _i % 3 == 0);
    trf_error err;
    add_misfits(&rng, &layer, _i % 3 * TRF_PACKED8_MAX_RECORDS / 2);
    ck_assert_msg(packed8_layer_pack(&layer, 1, &err) == TRF_OK, "%s", err.message);
    const trf_packed8_head *head = &layer.head;
    uint8_t *memory = unused_memory(head->common.buffer_bytes);
    const trf_pack8_state state = pack8_ranges(&rng, &layer, memory);
    ck_assert_uint_eq(state.num_records, head->num_records);
    ck_assert_uint_eq(state.has_low, (head->flags & TRF_PACKED8_HAS_LOW) != 0);
    EXPECT(state.no_pair == 0 && state.full_line == 0);
    const uint64_t lines_end = head->lines_offset + head->num_lines * TRF_PACKED_LINE_BYTES;
    for (uint64_t at = 0; at < head->common.buffer_bytes; at++) {
        const int is_between = at < head->lines_offset || (at >= lines_end && at < head->tiles_offset);
        if (memory[at] != (is_between ? UNUSED : layer.packed[at]))
            ck_abort_msg("byte %llu is %02x, not %02x", (unsigned long long)at, memory[at], layer.packed[at]);
    }
    free(memory);
    packed8_layer_free(&layer);
}
END_TEST

/* The first scale without constants, and the first line with too many records, whatever the order of threads. */
START_TEST(what_cannot_be_packed_as_fp8) {
    test_rng rng = {8000 + (uint64_t)_i};
    packed8_layer layer = packed8_layer_make(&rng, 300, 2100, 128, 128, SCALES_F32); /* lines: 5 bands of 3 */
    trf_error err;
    ck_assert_msg(packed8_layer_pack(&layer, 1, &err) == TRF_OK, "%s", err.message);
    const uint32_t line = 4 + test_below(&rng, 6), more = test_below(&rng, 50), block = 17 + test_below(&rng, 17);
    for (uint32_t full = 0; full < 2; full++) {
        const uint32_t first = line + 5 * full;
        for (uint32_t i = 0; i < 24 + more + full && i < 52; i++)
            layer.weights[(size_t)(first / 3 * 64 + i % 44) * layer.cols + first % 3 * 1024 + i] = 0x7F80;
    }
    layer.scales[block] = 128;     /* its rows of blocks have 17 */
    layer.scales[block + 11] = -1; /* and so on */
    uint8_t *memory = unused_memory(layer.head.common.buffer_bytes);
    const trf_pack8_state state = pack8_ranges(&rng, &layer, memory);
    const uint64_t full = ~state.full_line, pair = ~state.no_pair;
    ck_assert(state.full_line && state.no_pair);
    ck_assert_uint_eq(pair / 8, block / 17 * 2 * 3 + block % 17 / 8);
    ck_assert_uint_eq(pair % 8, block % 17 % 8);
    ck_assert_uint_le(full >> TRF_PACK8_COUNT_BITS, line); /* weights of a scale without constants are records, too */
    EXPECT((full & ((1 << TRF_PACK8_COUNT_BITS) - 1)) >= 24);
    free(memory);
    packed8_layer_free(&layer);
}
END_TEST

/* Codes, NaNs among them, of a layer without scales, and what they are in other types: all rows, and some of them by
 * number, of which two are not there. */
START_TEST(decoding_codes) {
    test_rng rng = {9000 + (uint64_t)_i};
    const uint32_t rows = kShapes[_i][0], cols = kShapes[_i][1];
    const trf_device_view kind = {.codec = TRF_CODEC_E4M3, .source_dtype = TRF_DTYPE_F8_E4M3};
    const int64_t ids[] = {test_below(&rng, rows), rows, 0, -1, rows - 1, test_below(&rng, rows)};
    packed8_layer layer = packed8_layer_make(&rng, rows, cols, rows, cols, SCALES_BF16);
    layer.scales[0] = 1;
    layer.codes[0] = 0xFF;
    layer.codes[(size_t)rows * cols - 1] = 0x7F;
    packed8_layer_define_weights(&layer);
    trf_error err;
    ck_assert_msg(packed8_layer_pack(&layer, 0, &err) == TRF_OK, "%s", err.message);
    const trf_packed8_view view = trf_packed8_view_of(&layer.head, layer.packed);
    for (trf_decode_as as = TRF_DECODE_SOURCE; as <= TRF_DECODE_F16; as++)
        for (int by_id = 0; by_id < 2; by_id++) {
            const uint32_t count = by_id ? sizeof ids / sizeof *ids : rows, bytes = trf_decoded_weight_bytes(&kind, as);
            const trf_packed_lookup lookup = {by_id ? ids : NULL, sizeof *ids, count};
            const size_t written = (size_t)count * cols * bytes;
            uint8_t *to = unused_memory((written + 256) / 256 * 256), due[4];
            warp_unpack8_values(&view, &kind, as, &lookup, to, random_grid(&rng));
            for (size_t i = 0; i < (size_t)count * cols; i++) {
                const int64_t row = by_id ? ids[i / cols] : (int64_t)(i / cols);
                const int is_there = row >= 0 && row < rows;
                trf_store_decoded_bits(due, bytes, 0,
                                       is_there ? trf_decoded_bits(&kind, as, layer.codes[row * cols + i % cols], 0, 0)
                                                : trf_decoded_corrupt_bits(&kind, as));
                EXPECT(memcmp(to + i * bytes, due, bytes) == 0);
            }
            EXPECT(to[written] == UNUSED);
            free(to);
        }
    packed8_layer_free(&layer);
}
END_TEST

/* ---- the window ---- */

START_TEST(histograms_are_the_references) {
    const uint32_t *shape = kShapes[_i % SHAPES];
    test_rng rng = {4000 + (uint64_t)_i};
    trf_packed_window window;
    packed_layer layer =
        packed_layer_of_kind(&rng, shape[0], shape[1], (packed_weight_kind)(_i % PACKED_WEIGHT_KINDS), &window);
    if (_i % PACKED_WEIGHT_KINDS == PACKED_WEIGHTS_NORMAL) /* windows of such offsets leave 1 to 254 */
        test_fill_patterns(layer.weights, TRF_DTYPE_BF16, (size_t)layer.rows * layer.cols);
    trf_window_histogram found = {{0}, 0}, expected = {{0}, 0};
    for (size_t i = 0; i < (size_t)layer.rows * layer.cols; i++) {
        const int32_t exponent = layer.weights[i] >> 7 & 0xFF;
        const int32_t left = exponent - (layer.row_offsets ? layer.row_offsets[i / layer.cols] : 0);
        expected.zeros += (layer.weights[i] & 0x7FFF) == 0;
        if (exponent > 0 && exponent < 255 && left > 0 && left < 255)
            expected.exponents[left]++;
    }
    const uint32_t half = layer.rows / 2;
    for (int part = 0; part < 2; part++) {
        const uint32_t first = part ? half : 0, count = part ? layer.rows - half : half;
        dense_rows dense = dense_rows_copy(layer.weights + (size_t)first * layer.cols, count, layer.cols,
                                           test_below(&rng, 3) * 4, test_below(&rng, 2) * 8);
        const trf_rows_to_pack rows = {dense.at, dense.stride, first, count, layer.cols};
        warp_window_histogram(&rows, layer.row_offsets, &found, random_grid(&rng));
        dense_rows_free(&dense);
    }
    EXPECT(memcmp(&found, &expected, sizeof found) == 0);
    packed_layer_free(&layer);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("pack_warp");
    TCase *tcase = tcase_create("pack_warp");
    tcase_add_loop_test(tcase, packing_is_the_references, 0, SHAPES * PACKED_WEIGHT_KINDS);
    tcase_add_loop_test(tcase, stored_tiles_are_chosen_alike, 0, 6);
    tcase_add_loop_test(tcase, room_is_kept_to, 0, 3);
    tcase_add_loop_test(tcase, first_inexact_weight_is_found, 0, 6);
    tcase_add_loop_test(tcase, unpacking_gives_the_weights_back, 0, SHAPES * PACKED_WEIGHT_KINDS);
    tcase_add_loop_test(tcase, garbage_is_read_from_within, 0, 12);
    tcase_add_loop_test(tcase, unpacking_fp8_gives_the_weights_back, 0, SHAPES * 6);
    tcase_add_loop_test(tcase, garbage_of_fp8_is_read_from_within, 0, 12);
    tcase_add_loop_test(tcase, packing_fp8_is_the_references, 0, SHAPES * 6);
    tcase_add_loop_test(tcase, what_cannot_be_packed_as_fp8, 0, 6);
    tcase_add_loop_test(tcase, decoding_codes, 0, SHAPES);
    tcase_add_loop_test(tcase, histograms_are_the_references, 0, 2 * SHAPES);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
#endif
