/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that pack coded layers straight from their slabs. Emulated blocks (tests/warp) run them over whole small
 * layers, and over rows of tiles in turns with the kernels that pack dense rows. The result must be byte for byte what
 * trf_pack makes of the layer's weights, and nothing may be written beside it. */
#include <stdio.h>

#ifndef TRF_HAVE_WARP_WALK
int main(void) {
    puts("skipped: kernels are not emulated in this build");
    return 77;
}
#else
#include "common/coded_layer.h"
#include "common/expect.h"
#include "common/packed_layer.h"
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "trf_packed_reader.h"
#include "warp/warp_pack_coded.h"

#include <check.h>
#include <string.h>

static trf_error err;

/* ---- layers ---- */

typedef enum weight_kind {
    NORMAL,
    ZEROS,       /* half of them: zeroing */
    OUTLIERS,    /* NaNs with payloads, Inf, denormals, zeros and large ones: few, and the very first weight */
    MORE,        /* so many of them that some lines would have stored tiles, or too many records in a half */
    ZEROS_MORE,  /* both */
    SCALED_COLS, /* columns differ in magnitude: the encoder takes column offsets */
    KINDS
} weight_kind;

static packed_layer make_layer(test_rng *rng, weight_kind kind, uint32_t rows, uint32_t cols) {
    static const uint16_t kOdd[] = {0x7F80, 0xFF80, 0x7FC1, 0xFF95, 0x0000, 0x8000, 0x0013, 0x4480};
    const int many = kind == MORE || kind == ZEROS_MORE;
    packed_layer layer = packed_layer_make(rows, cols, 0);
    test_fill_normal(rng, layer.weights, TRF_DTYPE_BF16, (size_t)rows * cols, 0.02);
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        const uint32_t row = (uint32_t)(i / cols), col = (uint32_t)(i % cols);
        const int dense = many && row / 64 % 3 == 1 && col / 32 % 32 == 7;
        uint16_t *weight = &layer.weights[i];
        if ((kind == ZEROS || kind == ZEROS_MORE) && test_below(rng, 2))
            *weight &= 0x8000;
        if (kind == SCALED_COLS && (*weight & 0x7FFF) != 0)
            *weight = (uint16_t)(*weight + ((col / 8 % 3) << 7));
        if ((kind == OUTLIERS || many) && (i == 0 || test_below(rng, dense ? 130 : 4000) == 0))
            *weight = kOdd[test_below(rng, 8)];
    }
    return layer;
}

static coded_layer encode(const packed_layer *source, trf_favor favor, uint32_t slab_cols) {
    const coded_layer coded = coded_layer_encode(source->weights, source->rows, source->cols, favor, slab_cols);
    ck_assert(!coded.host->view.row_offsets);
    return coded;
}

/* ---- packing a coded layer ---- */

enum {
    UNUSED = 0xA5
};

typedef struct target {
    trf_packed_head head;
    uint8_t *memory;
    trf_packed_view view;
} target;

/* room: for how many stored tiles. All memory is UNUSED at first. */
static target target_make(uint32_t rows, uint32_t cols, trf_packed_window window, uint64_t room) {
    target to;
    memset(&to, 0, sizeof to);
    ck_assert_int_eq(trf_size_packed(rows, cols, 0, room, &to.head, NULL), TRF_OK);
    trf_packed_head_set_window(&to.head, window);
    to.memory = aligned_alloc(TRF_PACKED_ALIGNMENT, to.head.common.buffer_bytes);
    ck_assert_ptr_nonnull(to.memory);
    memset(to.memory, UNUSED, to.head.common.buffer_bytes);
    to.view = trf_packed_view_of(&to.head, to.memory);
    return to;
}

/* Packs rows of a layer from first_row on. */
static trf_pack_coded_counts pack_coded(test_rng *rng, const coded_layer *coded, const trf_device_view *rows,
                                        const target *to, uint32_t first_row, trf_pack_state *state) {
    const uint64_t scratch_bytes = warp_pack_coded_scratch_bytes(rows->rows, rows->cols);
    trf_pack_coded_counts counts = {0, 0};
    void *scratch = malloc(scratch_bytes);
    const warp_coded_packing packing = {.view = rows,
                                        .max_rans_bytes = coded->max_rans_bytes,
                                        .packed = &to->view,
                                        .first_row = first_row,
                                        .memory = {scratch, &counts, state},
                                        .warps = 1 + test_below(rng, 16)};
    const warp_grid grid = {1 + test_below(rng, 5), (uint32_t)test_random(rng)};
    memset(scratch, UNUSED, scratch_bytes);
    warp_pack_coded(&packing, grid);
    free(scratch);
    return counts;
}

/* ---- against the reference ---- */

static const uint32_t *line_of(const packed_layer *layer, uint64_t line) {
    return (const uint32_t *)(layer->packed + layer->head.lines_offset) + line * TRF_PACKED_LINE_WORDS;
}

/* Whether the kernels leave a line to others: it has stored tiles, or more than 15 records in half a tile. */
static int is_left(const packed_layer *layer, uint64_t line) {
    const uint32_t *words = line_of(layer, line);
    uint32_t halves[2 * TRF_PACKED_LINE_TILES] = {0};
    int left = words[TRF_PACKED_STORED_WORD] != 0;
    for (uint32_t i = 0; i < words[TRF_PACKED_COUNT_WORD]; i++)
        left |= ++halves[2 * trf_packed_record_tile(words[i]) + trf_packed_record_slab(words[i]) / 2] > 15;
    return left;
}

/* Checks lines that are not left (except for the number of their first stored tile, if some are left), tiles that are
 * not stored, and that nothing is written beside them. @return how many lines are left. */
static uint64_t check_packed(const packed_layer *layer, const target *to) {
    const trf_packed_head *head = &layer->head;
    const uint64_t lines_per_band = to->view.lines_per_band;
    uint64_t left = 0;
    for (uint64_t line = 0; line < head->num_lines; line++) {
        const uint64_t at = head->lines_offset + line * TRF_PACKED_LINE_BYTES;
        const int is_own = !is_left(layer, line);
        left += !is_own;
        if (is_own)
            ck_assert_mem_eq(to->memory + at, layer->packed + at, sizeof(uint32_t) * TRF_PACKED_FIRST_STORED_WORD);
        if (is_own && head->num_stored == 0)
            ck_assert_uint_eq(((uint32_t *)(to->memory + at))[TRF_PACKED_FIRST_STORED_WORD], 0);
    }
    for (uint32_t band = 0; band < to->view.bands; band++)
        for (uint32_t tile = 0; tile < to->view.tiles_per_band; tile++) {
            const uint64_t at =
                head->tiles_offset + TRF_PACKED_TILE_BYTES * trf_packed_tile_number(&to->view, band, tile);
            const uint32_t stored =
                line_of(layer, band * lines_per_band + tile / TRF_PACKED_LINE_TILES)[TRF_PACKED_STORED_WORD];
            if (!(stored >> tile % TRF_PACKED_LINE_TILES & 1))
                ck_assert_mem_eq(to->memory + at, layer->packed + at, TRF_PACKED_TILE_BYTES);
        }
    for (uint64_t at = 0; at < head->lines_offset; at++)
        ck_assert_uint_eq(to->memory[at], UNUSED);
    for (uint64_t at = head->lines_offset + head->num_lines * TRF_PACKED_LINE_BYTES; at < head->tiles_offset; at++)
        ck_assert_uint_eq(to->memory[at], UNUSED);
    return left;
}

static const uint32_t kShapes[][2] = {{64, 64}, {64, 1088}, {128, 256}, {320, 1408}, {256, 2112}, {576, 192}};
enum {
    SHAPES = sizeof kShapes / sizeof kShapes[0]
};

/* loop: shape and kind. */
START_TEST(what_the_reference_packs) {
    const uint32_t rows = kShapes[_i / KINDS][0], cols = kShapes[_i / KINDS][1];
    const weight_kind kind = (weight_kind)(_i % KINDS);
    test_rng rng = {1 + (uint64_t)_i};
    if (test_quick() && (_i / KINDS + _i) % 2)
        return;
    packed_layer layer = make_layer(&rng, kind, rows, cols);
    const trf_pack_input input = packed_layer_input(&layer);
    const trf_packed_window window = trf_pack_window(&input);
    if (packed_layer_pack(&layer, &window, &err) != TRF_OK) { /* small, with many outliers */
        ck_assert(kind == MORE || kind == ZEROS_MORE);
        packed_layer_free(&layer);
        return;
    }
    ck_assert(window.zeroing || (kind != ZEROS && kind != ZEROS_MORE));
    for (int way = 0; way < 4; way++) {
        coded_layer coded = encode(&layer, way % 2 ? TRF_FAVOR_SIZE : TRF_FAVOR_SPEED, way / 2 ? 128 : 256);
        if (!coded_layer_is_packable(&coded)) {
            coded_layer_free(&coded);
            continue;
        }
        target to = target_make(rows, cols, window, 0);
        trf_pack_state state = {0, 0, 0};
        const trf_pack_coded_counts counts = pack_coded(&rng, &coded, &coded.host->view, &to, 0, &state);
        const uint64_t left = check_packed(&layer, &to);
        ck_assert_uint_eq(counts.num_left, left);
        ck_assert(state.inexact == 0 && state.num_stored == 0 && state.num_records == 0);
        if (left == 0)
            ck_assert_uint_eq(counts.num_records, layer.head.num_records);
        ck_assert_uint_eq(coded.host->fault.set, 0);
        free(to.memory);
        coded_layer_free(&coded);
    }
    packed_layer_free(&layer);
}
END_TEST

/* Rows of tiles as a layer of their own. */
static trf_device_view tile_rows_of(const coded_layer *coded, uint32_t first, uint32_t count) {
    trf_device_view view = coded->host->view;
    const uint32_t left = view.rows - first * TRF_TILE_SIZE, rows = count * TRF_TILE_SIZE;
    view.rows = left < rows ? left : rows;
    view.num_tile_rows = (view.rows + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE;
    view.num_bands = (view.rows + TRF_SLAB_ROWS - 1) / TRF_SLAB_ROWS;
    view.slabs += (uint64_t)(first * TRF_BANDS_PER_TILE) * view.num_panels;
    view.tiles += (uint64_t)first * view.num_tile_cols;
    return view;
}

/* Packs as a load does: some rows of tiles at a time, and again from dense rows if lines are left, or at random. */
static trf_pack_state pack_in_parts(test_rng *rng, const packed_layer *layer, const coded_layer *coded,
                                    const target *to) {
    trf_pack_state state = {0, 0, 0};
    uint64_t records = 0;
    uint32_t count;
    for (uint32_t first = 0; first < coded->host->view.num_tile_rows; first += count) {
        count = 1 + test_below(rng, 2);
        const trf_device_view rows = tile_rows_of(coded, first, count);
        const uint32_t row = first * TRF_TILE_SIZE;
        const trf_pack_coded_counts counts = pack_coded(rng, coded, &rows, to, row, &state);
        if (counts.num_left || test_below(rng, 4) == 0) {
            const trf_rows_to_pack dense = {layer->weights + (size_t)row * layer->cols, layer->cols, row, rows.rows,
                                            layer->cols};
            const warp_grid grid = {1 + test_below(rng, 5), (uint32_t)test_random(rng)};
            warp_pack(&to->view, &dense, &state, grid);
        } else {
            records += counts.num_records;
        }
    }
    state.num_records += records;
    return state;
}

START_TEST(parts_of_layers) {
    const weight_kind kind = (weight_kind)(_i % KINDS);
    test_rng rng = {600 + (uint64_t)_i};
    const uint32_t rows = 64 * (5 + test_below(&rng, 8)), cols = 64 * (1 + test_below(&rng, 20));
    packed_layer layer = make_layer(&rng, kind, rows, cols);
    const trf_pack_input input = packed_layer_input(&layer);
    const trf_packed_window window = trf_pack_window(&input);
    coded_layer coded = encode(&layer, (trf_favor)(_i / KINDS % 2), 256);
    if (packed_layer_pack(&layer, &window, &err) == TRF_OK && coded_layer_is_packable(&coded)) {
        const trf_packed_head *head = &layer.head;
        target to = target_make(rows, cols, window, head->num_stored);
        const trf_pack_state state = pack_in_parts(&rng, &layer, &coded, &to);
        ck_assert(state.num_records == head->num_records && state.num_stored == head->num_stored && !state.inexact);
        ck_assert_mem_eq(to.memory + head->lines_offset, layer.packed + head->lines_offset,
                         head->num_lines * TRF_PACKED_LINE_BYTES);
        ck_assert_mem_eq(to.memory + head->tiles_offset, layer.packed + head->tiles_offset,
                         head->common.buffer_bytes - head->tiles_offset);
        ck_assert_uint_eq(coded.host->fault.set, 0);
        free(to.memory);
    } else {
        ck_assert(kind != NORMAL && kind != ZEROS);
    }
    coded_layer_free(&coded);
    packed_layer_free(&layer);
}
END_TEST

START_TEST(first_inexact_weight_is_found) {
    test_rng rng = {300 + (uint64_t)_i};
    packed_layer layer = make_layer(&rng, NORMAL, 320, 1280);
    const trf_pack_input input = packed_layer_input(&layer);
    const trf_packed_window window = trf_pack_window(&input);
    for (int i = 0; i <= _i; i++)
        layer.weights[test_below(&rng, 320 * 1280)] = (uint16_t)(0x7F00 + i);
    ck_assert_int_eq(packed_layer_pack(&layer, &window, &err), TRF_ERR_UNSUPPORTED);
    const uint64_t due = err.offset;
    coded_layer coded = encode(&layer, (trf_favor)(_i % 2), 0);
    target to = target_make(320, 1280, window, 0);
    trf_pack_state state = {0, 0, 0};
    for (uint32_t t = 0; t < 2; t++) {
        const trf_device_view rows_of = tile_rows_of(&coded, t, 1);
        pack_coded(&rng, &coded, &rows_of, &to, t * TRF_TILE_SIZE, &state);
    }
    uint32_t row = 0, col = 0;
    ck_assert(trf_pack_inexact(&state, to.view.lines_per_band, &row, &col));
    ck_assert_uint_eq(2 * ((uint64_t)row * 1280 + col), due);
    free(to.memory);
    coded_layer_free(&coded);
    packed_layer_free(&layer);
}
END_TEST

/* Corrupt rANS streams are found, and nothing is written beside (the address sanitizer checks). */
START_TEST(corrupt_slabs) {
    test_rng rng = {400 + (uint64_t)_i};
    packed_layer layer = make_layer(&rng, OUTLIERS, 128, 512);
    coded_layer coded = encode(&layer, (trf_favor)(_i % 2), _i / 2 % 2 ? 128 : 256);
    const trf_packed_window window = {112, (uint32_t)_i % 3 == 0};
    int found = 0;
    for (int round = 0; round < test_rounds(40); round++) {
        const trf_tile_meta *tile = &coded.layer->view.tiles[0]; /* its rANS words are the last third */
        const uint64_t at = tile->data_offset + tile->data_size / 3 * 2 + test_below(&rng, tile->data_size / 3);
        const uint8_t was = ((uint8_t *)coded.blob)[at];
        target to = target_make(128, 512, window, 0);
        trf_pack_state state = {0, 0, 0};
        ((uint8_t *)coded.blob)[at] = (uint8_t)test_random(&rng);
        coded.host->fault.set = 0;
        pack_coded(&rng, &coded, &coded.host->view, &to, 0, &state);
        found += coded.host->fault.set != 0;
        for (uint64_t i = 0; i < to.head.lines_offset; i++)
            ck_assert_uint_eq(to.memory[i], UNUSED);
        ((uint8_t *)coded.blob)[at] = was;
        free(to.memory);
    }
    ck_assert_int_gt(found, 0);
    coded_layer_free(&coded);
    packed_layer_free(&layer);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("pack_coded_warp");
    TCase *tests = tcase_create("pack_coded_warp");
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, what_the_reference_packs, 0, SHAPES * KINDS);
    tcase_add_loop_test(tests, parts_of_layers, 0, 4 * KINDS);
    tcase_add_loop_test(tests, first_inexact_weight_is_found, 0, 6);
    tcase_add_loop_test(tests, corrupt_slabs, 0, 6);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
#endif
