/* SPDX-License-Identifier: Apache-2.0 */
/* A warp's walk through slabs as the fused, group, wide and decoding kernels have it (trf_slab_walk.cuh), in an
 * emulated block. It is compared with the elements from which the tests' own encoder made the slabs, with the reference
 * decoder's and, for corrupt rANS streams and directories, with trf_slab_reader.h. */
#include <stdio.h>

#ifndef TRF_HAVE_WARP_WALK
int main(void) {
    puts("skipped: kernels are not emulated in this build");
    return 77;
}
#else
#include "common/expect.h"
#include "common/host_view.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_tile.h"
#include "trf_decode.h"
#include "trf_decoded_bits.h"
#include "trf_layer.h"
#include "trf_slab_reader.h"
#include "warp/warp_walk.h"

#include <check.h>

/* ---- a layer, and what walks must make of it ---- */

typedef struct walked_layer {
    host_view *host;
    uint32_t max_rans_bytes, max_frequency;
    uint16_t *due, *elements; /* [rows][cols] */
    uint8_t *seen;            /* [rows][cols] */
    uint8_t *slabs, *verdict; /* [num_bands][num_panels]; verdict: each slab's own, by itself */
} walked_layer;

static uint32_t num_slabs(const trf_device_view *view) { return view->num_bands * view->num_panels; }

/* due: [rows][cols], copied, or NULL. */
static walked_layer begin_layer(host_view *host, const uint16_t *frequency, const uint16_t *due) {
    const size_t weights = (size_t)host->view.rows * host->view.cols;
    walked_layer t = {.host = host,
                      .due = malloc(weights * sizeof *t.due),
                      .elements = malloc(weights * sizeof *t.elements),
                      .seen = malloc(weights),
                      .slabs = malloc(num_slabs(&host->view)),
                      .verdict = calloc(num_slabs(&host->view), 1)};
    EXPECT(t.due && t.elements && t.seen && t.slabs && t.verdict);
    if (due)
        memcpy(t.due, due, weights * sizeof *due);
    for (uint32_t s = 0; s < num_slabs(&host->view); s++)
        if (16u * host->slabs[s].rans_size_16 > t.max_rans_bytes)
            t.max_rans_bytes = 16u * host->slabs[s].rans_size_16;
    for (uint32_t s = 0; s < TRF_ALPHABET; s++)
        if (frequency[s] > t.max_frequency)
            t.max_frequency = frequency[s];
    return t;
}

static void end_layer(walked_layer *t) {
    host_view_free(t->host);
    free(t->due);
    free(t->elements);
    free(t->seen);
    free(t->slabs);
    free(t->verdict);
}

static int is_regular(const trf_device_view *view, uint32_t band, uint32_t panel) {
    const uint32_t left = view->cols - panel * view->slab_cols;
    return (band + 1) * TRF_SLAB_ROWS <= view->rows && (left >= view->slab_cols || left / 16 % 4 == 0) && left >= 16;
}

/* Counts that lead beyond a slab's rANS streams. The validator accepts none. A walk bounds them, and may end well if
 * they belong to the last lane pair. */
enum {
    SLAB_EITHER = WARP_SLAB_GOOD + 1
};

/* The verdict on a slab by the functions that C and CUDA share. The slab must be regular; its entry cannot be
 * trusted. */
static uint8_t verdict_of(const trf_device_view *view, uint32_t band, uint32_t panel, uint32_t max_rans_bytes) {
    static uint16_t elements[TRF_SLAB_ROWS * TRF_MAX_SLAB_COLS];
    const trf_device_slab entry = view->slabs[(size_t)band * view->num_panels + panel];
    const uint32_t left = view->cols - panel * view->slab_cols, bytes = 16u * entry.rans_size_16;
    const trf_slab_shape shape = {2, (left < view->slab_cols ? left : view->slab_cols) / 16};
    const uint32_t weights = trf_lane_weights(shape);
    if (16u * entry.rans_offset_16 < trf_raw_bytes(view->raw_bits, weights) || bytes > max_rans_bytes || bytes < 84 ||
        trf_device_slab_rans_streams(entry) + bytes > view->buffer_bytes)
        return WARP_SLAB_PASSED_BY;
    trf_slab_reader slab;
    if (!trf_slab_reader_open(&slab, view->buffer + trf_device_slab_raw(entry),
                              view->buffer + trf_device_slab_rans_streams(entry), bytes, shape))
        return SLAB_EITHER;
    trf_lane_reader readers[TRF_LANES];
    int good = 1;
    for (uint32_t lane = 0; lane < TRF_LANES; lane++) {
        readers[lane] = trf_lane_reader_open(&slab, lane, view->state_bits);
        trf_lane_decode(view, view->class_value, &slab, &readers[lane], lane, (trf_slab_place){0, 0, 0}, 0, weights,
                        elements, TRF_MAX_SLAB_COLS, 0);
    }
    for (uint32_t lane = 0; lane < TRF_LANES; lane++)
        good &= trf_lane_reader_verdict(&readers[lane], &slab, lane, readers[lane ^ 16].taken, view->state_bits);
    return good ? WARP_SLAB_GOOD : WARP_SLAB_BAD;
}

static void find_verdicts(walked_layer *t) {
    const trf_device_view *view = &t->host->view;
    for (uint32_t band = 0; band < view->num_bands; band++)
        for (uint32_t panel = 0; panel < view->num_panels; panel++)
            t->verdict[band * view->num_panels + panel] =
                is_regular(view, band, panel) ? verdict_of(view, band, panel, t->max_rans_bytes) : WARP_SLAB_PASSED_BY;
}

/* ---- one walk ---- */

static const uint32_t kUntouched = 0xA5; /* bytes of elements before a walk */

static const char *const kVariantNames[] = {"store", "store, any", "one", "any", "two", "two, x copied", "wide"};

/* What a walk must say of a slab: its own verdict or, of two slabs at a time, the worse one. The second slab alone is
 * not walked, and does not count if it does not exist. */
static uint8_t due_of_slab(const walked_layer *t, const warp_walk *walk, uint32_t band, uint32_t panel) {
    const uint32_t panels = walk->view->num_panels, two = walk->variant >= WARP_WALK_TWO_SLABS,
                   first = two ? band / 2 * 2 : band;
    const uint8_t own = t->verdict[first * panels + panel], said = walk->slabs[band * panels + panel];
    const int alone = !two || (first + 2) * TRF_SLAB_ROWS > walk->view->rows || own == WARP_SLAB_PASSED_BY;
    const uint8_t other = alone ? own : t->verdict[(first + 1) * panels + panel];
    if (own == WARP_SLAB_BAD || other == WARP_SLAB_BAD)
        return WARP_SLAB_BAD;
    if (own == SLAB_EITHER || other == SLAB_EITHER)
        return said == WARP_SLAB_PASSED_BY ? WARP_SLAB_BAD : said;
    return own;
}

/* Expects NaNs, or codes 0, in place of a bad slab's weights. */
static void expect_corrupt_values(const warp_walk *walk, uint32_t band, uint32_t panel) {
    const trf_device_view *view = walk->view;
    const uint32_t left = view->cols - panel * view->slab_cols,
                   due = trf_decoded_corrupt_bits(view, TRF_DECODE_ELEMENTS);
    const uint16_t *slab = walk->elements + (size_t)(band * TRF_SLAB_ROWS) * view->cols + panel * view->slab_cols;
    for (uint32_t r = 0; r < TRF_SLAB_ROWS; r++)
        for (uint32_t c = 0; c < view->slab_cols && c < left / 16 * 16; c++)
            EXPECT(slab[(size_t)r * view->cols + c] == due);
}

static void check_slabs(const walked_layer *t, const warp_walk *walk) {
    const trf_device_view *view = walk->view;
    const uint64_t fault = t->host->fault.tile_low | (uint64_t)t->host->fault.tile_high << 32;
    uint64_t first_bad = UINT64_MAX;
    int bad = 0, fault_is_bad = 0;
    for (uint32_t band = 0; band < view->num_bands; band++)
        for (uint32_t panel = 0; panel < view->num_panels; panel++) {
            const uint8_t due = is_regular(view, band, panel) ? due_of_slab(t, walk, band, panel) : 0;
            const uint64_t tile = band / 8 * (uint64_t)view->num_tile_cols + panel * view->slab_cols / TRF_TILE_SIZE;
            if (walk->slabs[band * view->num_panels + panel] != due)
                ck_abort_msg("%s: codec %u, %u class bits: band %u column %u is %u, not %u",
                             kVariantNames[walk->variant], view->codec, view->class_bits, band, panel,
                             walk->slabs[band * view->num_panels + panel], due);
            if (due != WARP_SLAB_BAD)
                continue;
            if (walk->variant <= WARP_WALK_WRITE_GENERAL)
                expect_corrupt_values(walk, band, panel);
            first_bad = bad ? first_bad : tile;
            fault_is_bad |= fault == tile;
            bad = 1;
        }
    EXPECT(t->host->fault.set == (uint32_t)bad);
    EXPECT(!bad || fault_is_bad);
    EXPECT(!bad || walk->warps > 1 || fault == first_bad);
}

static void check_elements(const walked_layer *t, const warp_walk *walk) {
    const trf_device_view *view = walk->view;
    for (uint32_t row = 0; row < view->rows; row++)
        for (uint32_t col = 0; col < view->cols; col++) {
            const size_t at = (size_t)row * view->cols + col;
            const int stored =
                t->verdict[row / TRF_SLAB_ROWS * view->num_panels + col / view->slab_cols] == WARP_SLAB_GOOD &&
                is_regular(view, row / TRF_SLAB_ROWS, col / view->slab_cols) && col / 16 * 16 + 16 <= view->cols;
            if (t->seen[at] != stored || t->elements[at] != (stored ? t->due[at] : 0x0101 * kUntouched))
                ck_abort_msg("%s%s: codec %u c %u r %u p %u L %u %ux%u slabs of %u, %u warps, order %u: row %u column "
                             "%u seen %u times, is %04x, not %04x",
                             kVariantNames[walk->variant], walk->product_config ? ", of products" : "", view->codec,
                             view->class_bits, view->raw_bits, view->probability_bits, view->state_bits, view->rows,
                             view->cols, view->slab_cols, walk->warps, walk->order, row, col, t->seen[at],
                             t->elements[at], t->due[at]);
        }
}

/* Walks the layer by every kernel that takes it. intact: the elements must be those that are due. ran:
 * [2][WARP_WALK_VARIANTS], counts the walks. */
static void check_walks(test_rng *rng, walked_layer *t, int intact, uint32_t (*ran)[WARP_WALK_VARIANTS]) {
    static const uint32_t kWarps[] = {1, 1, 2, 3, 5, 8};
    const trf_device_view *view = &t->host->view;
    find_verdicts(t);
    for (uint32_t at = 0; at < 2 * WARP_WALK_VARIANTS; at++) {
        const uint32_t p = view->probability_bits;
        const warp_walk walk = {.view = view,
                                .max_rans_bytes = t->max_rans_bytes,
                                .max_frequency = t->max_frequency,
                                .variant = (warp_walk_variant)(at / 2),
                                .product_config = at % 2,
                                .warps = kWarps[test_below(rng, 6)],
                                .table_log = p + 4 + test_below(rng, 13 - p),
                                .order = test_below(rng, 64),
                                .elements = t->elements,
                                .seen = t->seen,
                                .slabs = t->slabs};
        memset(t->seen, 0, (size_t)view->rows * view->cols);
        memset(t->elements, kUntouched, (size_t)view->rows * view->cols * sizeof *t->elements);
        memset(t->slabs, WARP_SLAB_PASSED_BY, num_slabs(view));
        t->host->fault = (trf_device_fault){0, 0, 0};
        if (!warp_walk_layer(&walk))
            continue;
        ran[at % 2][at / 2]++;
        check_slabs(t, &walk);
        if (intact)
            check_elements(t, &walk);
    }
}

/* ---- single tiles ---- */

/* usual: p, L and frequencies are such as most kernels need. */
static test_tile *make_tile(test_rng *rng, test_tile_request *request, int usual) {
    request->rows = 32 * (1 + test_below(rng, test_below(rng, 3) ? 4 : 8)) + test_below(rng, 2) * test_below(rng, 32);
    request->cols = 64 * (1 + test_below(rng, 4)) + test_below(rng, 2) * test_below(rng, 64);
    request->rows = request->rows < 256 ? request->rows : 256;
    request->cols = request->cols < 256 ? request->cols : 256;
    request->stored = 0;
    if (usual)
        request->probability_bits = request->state_bits =
            request->class_bits == 2 ? TRF_QUADS_PROBABILITY_BITS : TRF_PAIRS_PROBABILITY_BITS;
    for (;;) {
        if (usual && request->symbols < 32)
            request->symbols = 32 + test_below(rng, 225);
        test_tile *tile = test_tile_make(rng, request);
        uint32_t most = 0;
        for (uint32_t s = 0; s < TRF_ALPHABET; s++)
            most = tile->frequency[s] > most ? tile->frequency[s] : most;
        if (!usual || most <= 255)
            return tile;
        test_tile_free(tile);
    }
}

static walked_layer layer_of_tile(const test_tile *tile) {
    return begin_layer(host_view_make(&tile->view, tile->bytes, tile->meta.data_size), tile->frequency, tile->elements);
}

static void check_tile(test_rng *rng, test_tile_request *request, int usual, uint32_t (*ran)[WARP_WALK_VARIANTS]) {
    test_tile *tile = make_tile(rng, request, usual);
    walked_layer t = layer_of_tile(tile);
    check_walks(rng, &t, 1, ran);
    end_layer(&t);
    test_tile_free(tile);
}

/* Expects that all walks of a codec have run: [product_config][variant]. */
static void expect_all_ran(const test_tile_request *request, uint32_t (*ran)[WARP_WALK_VARIANTS]) {
    const uint32_t codec = request->codec, class_bits = request->class_bits;
    const int halves = codec == TRF_CODEC_E4M3, copies = class_bits == 2 && codec != TRF_CODEC_INT;
    EXPECT(ran[0][WARP_WALK_WRITE] && ran[0][WARP_WALK_WRITE_GENERAL]);
    if (request->is_scaled_fp8) /* which no product walks */
        return;
    EXPECT(ran[halves][WARP_WALK_ONE_SLAB] && ran[halves][WARP_WALK_GENERAL]);
    EXPECT(ran[halves][WARP_WALK_TWO_SLABS] && ran[halves][WARP_WALK_WIDE]);
    EXPECT(!copies || ran[halves][WARP_WALK_TWO_SLABS_COPY]);
}

START_TEST(tiles) {
    test_rng rng = {8000 + (uint64_t)_i};
    uint32_t ran[2][WARP_WALK_VARIANTS] = {{0}};
    test_tile_request request;
    for (int round = 0; round < test_rounds(24); round++) {
        request = test_tile_random_request_of(&rng, (uint32_t)_i);
        if (request.codec == TRF_CODEC_INT)
            request.raw_bits = test_below(&rng, 9 - request.class_bits);
        check_tile(&rng, &request, round % 4 != 0, ran);
    }
    expect_all_ran(&request, ran);
}
END_TEST

/* The int codec with each number of raw bits that the kernels take, quads and pairs. */
START_TEST(int_widths) {
    test_rng rng = {8100 + (uint64_t)_i};
    for (uint32_t class_bits = 2; class_bits <= 4; class_bits += 2) {
        uint32_t ran[2][WARP_WALK_VARIANTS] = {{0}};
        test_tile_request request;
        if (class_bits + (uint32_t)_i > 8)
            continue;
        for (int round = 0; round < 3; round++) {
            request = test_tile_random_request(&rng, TRF_CODEC_INT, class_bits);
            request.raw_bits = (uint32_t)_i;
            check_tile(&rng, &request, 1, ran);
        }
        expect_all_ran(&request, ran);
        EXPECT(class_bits == 4 || (_i != 3 && _i != 6) ||
               (ran[1][WARP_WALK_TWO_SLABS] && ran[1][WARP_WALK_TWO_SLABS_COPY]));
    }
}
END_TEST

/* ---- layers of several tiles, as the encoder makes them ---- */

typedef struct layer_case {
    trf_dtype dtype;
    trf_codec codec;
    double bits;
    double sigma; /* of normally distributed weights; 0: see make_weights */
} layer_case;

static const layer_case kCases[] = {
    {TRF_DTYPE_BF16, TRF_CODEC_AUTO, 0, 0},    {TRF_DTYPE_F16, TRF_CODEC_AUTO, 0, 0},
    {TRF_DTYPE_F8_E4M3, TRF_CODEC_AUTO, 0, 0}, {TRF_DTYPE_F8_E4M3, TRF_CODEC_AUTO, 0, 85}, /* reaches 448 */
    {TRF_DTYPE_F8_E5M2, TRF_CODEC_AUTO, 0, 0}, {TRF_DTYPE_I8, TRF_CODEC_AUTO, 0, 0},
    {TRF_DTYPE_F32, TRF_CODEC_INT, 0, 0},      {TRF_DTYPE_BF16, TRF_CODEC_INT, 4.25, 0},
};
enum {
    NUM_KINDS = sizeof kCases / sizeof kCases[0]
};

/* Makes weights with heavy tails, so that there are exceptions, and some infinities and NaNs. The first tile has random
 * bits, so it is stored. */
static void *make_weights(test_rng *rng, const layer_case *tested, uint32_t rows, uint32_t cols) {
    const size_t bytes = trf_dtype_bytes(tested->dtype);
    uint8_t *weights = malloc((size_t)rows * cols * bytes);
    EXPECT(weights);
    if (tested->sigma > 0) {
        test_fill_normal(rng, weights, tested->dtype, (size_t)rows * cols, tested->sigma);
        return weights;
    }
    test_fill_student(rng, weights, tested->dtype, (size_t)rows * cols, 4, tested->dtype == TRF_DTYPE_I8 ? 8 : 0.05);
    if (tested->codec != TRF_CODEC_AUTO)
        return weights;
    for (int i = 0; i < 20 && tested->dtype != TRF_DTYPE_I8; i++)
        memset(weights + bytes * ((size_t)test_below(rng, rows) * cols + test_below(rng, cols)),
               test_below(rng, 2) ? 0x7F : 0xFF, bytes);
    for (uint32_t row = 0; row < rows && row < 256; row++)
        for (uint32_t at = 0; at < cols * bytes && at < 256 * bytes; at++)
            weights[row * cols * bytes + at] = (uint8_t)test_below(rng, 256);
    return weights;
}

static uint16_t *decode_all(const trf_layer *layer) {
    static trf_decode_table table;
    const trf_blob_view *view = &layer->view;
    const size_t cols = view->header.cols;
    uint16_t *elements = malloc(view->header.rows * cols * sizeof *elements);
    EXPECT(elements);
    trf_decode_table_init(&table, view);
    for (uint64_t tile = 0; tile < view->num_tiles; tile++) {
        trf_tile_shape shape = trf_tile_shape_of(&view->header, tile, view->tiles[tile].coding);
        ck_assert_int_eq(trf_decode_tile_ref(view, &table, tile, trf_layer_tile(layer, tile),
                                             elements + (size_t)shape.row * cols + shape.col, cols, NULL),
                         TRF_OK);
    }
    return elements;
}

static void check_layer(test_rng *rng, const layer_case *tested, uint32_t rows, uint32_t cols,
                        uint32_t (*ran)[WARP_WALK_VARIANTS]) {
    trf_encode_options options;
    trf_error err = {0};
    void *blob, *exact, *weights = make_weights(rng, tested, rows, cols);
    uint64_t blob_bytes;
    trf_layer *layer;
    trf_encode_options_init(&options);
    options.codec = tested->codec;
    options.bits = tested->bits;
    options.favor = test_below(rng, 2) ? TRF_FAVOR_SPEED : TRF_FAVOR_SIZE;
    options.slab_cols = test_below(rng, 2) ? 128 : 256;
    options.probability_bits = test_below(rng, 4) ? 0 : 9 + test_below(rng, 4);
    options.threads = 1;
    const trf_matrix matrix = test_matrix(weights, tested->dtype, rows, cols);
    ck_assert_msg(trf_encode_layer(&matrix, &options, &blob, &blob_bytes, NULL, &err) == TRF_OK, "%s", err.message);
    ck_assert_int_eq(posix_memalign(&exact, TRF_TILE_ALIGNMENT, blob_bytes), 0);
    memcpy(exact, blob, blob_bytes);
    ck_assert_msg(trf_layer_from_memory(blob, blob_bytes, &layer, &err) == TRF_OK, "%s", err.message);
    uint16_t *due = decode_all(layer);
    walked_layer t = begin_layer(host_view_make(&layer->view, exact, blob_bytes), layer->view.frequency, due);
    check_walks(rng, &t, 1, ran);
    end_layer(&t);
    trf_layer_free(layer);
    trf_free(blob);
    free(due);
    free(exact);
    free(weights);
}

START_TEST(layers) {
    static const uint32_t kShapes[][2] = {{288, 576}, {513, 320}, {32, 1088}, {352, 704}, {300, 592}, {64, 2048}};
    test_rng rng = {8200 + (uint64_t)_i};
    uint32_t ran[2][WARP_WALK_VARIANTS] = {{0}};
    for (uint32_t s = 0; s < sizeof kShapes / sizeof kShapes[0]; s++)
        if (!test_quick() || s < 3)
            check_layer(&rng, &kCases[_i], kShapes[s][0], kShapes[s][1], ran);
    EXPECT(ran[0][WARP_WALK_WRITE_GENERAL]);
}
END_TEST

/* ---- corrupt ones ---- */

static trf_device_slab *any_slab(test_rng *rng, walked_layer *t) {
    return &t->host->slabs[test_below(rng, num_slabs(&t->host->view))];
}

/* Changes a slab's states, counts, number of exceptions or words. */
static void corrupt_rans_stream(test_rng *rng, walked_layer *t, uint8_t *blob) {
    const trf_device_slab entry = *any_slab(rng, t);
    uint8_t *rans_streams = blob + trf_device_slab_rans_streams(entry);
    const uint32_t bytes = 16u * entry.rans_size_16;
    if (bytes == 0)
        return;
    switch (test_below(rng, 7)) {
    case 0:
        rans_streams[test_below(rng, 64)] ^= (uint8_t)(1u << test_below(rng, 8));
        break;
    case 1:
        rans_streams[64 + test_below(rng, 16)] ^= (uint8_t)(1u << test_below(rng, 8));
        break;
    case 2: /* rANS streams that reach as far as possible */
        memset(rans_streams + 64, 0xFF, 16);
        break;
    case 3:
        rans_streams[80 + test_below(rng, 2)] = (uint8_t)test_below(rng, 256);
        break;
    case 4: /* a word moves to another lane pair */
        rans_streams[64 + test_below(rng, 16)]++;
        rans_streams[64 + test_below(rng, 16)]--;
        break;
    case 5:
        for (uint32_t i = 0; i < bytes; i++)
            rans_streams[i] = (uint8_t)test_below(rng, 256);
        break;
    default:
        rans_streams[84 + test_below(rng, bytes - 84)] ^= (uint8_t)(1u << test_below(rng, 8));
        break;
    }
}

static void corrupt_entry(test_rng *rng, walked_layer *t) {
    trf_device_slab *entry = any_slab(rng, t);
    const uint32_t blob_size_128 = (uint32_t)(t->host->view.buffer_bytes / TRF_TILE_ALIGNMENT);
    switch (test_below(rng, 5)) {
    case 0:
        entry->raw_offset_128 = test_below(rng, 2) ? test_below(rng, blob_size_128 + 2) : (uint32_t)test_random(rng);
        break;
    case 1:
        entry->rans_offset_16 = (uint16_t)test_below(rng, test_below(rng, 2) ? 0x10000 : 1024);
        break;
    case 2:
        entry->rans_size_16 = (uint16_t)test_below(rng, test_below(rng, 2) ? 0x10000 : 64);
        break;
    case 3: /* the end of the blob, and one unit further */
        entry->raw_offset_128 = 0;
        entry->rans_offset_16 = (uint16_t)(t->host->view.buffer_bytes / 16 - entry->rans_size_16 + test_below(rng, 2));
        break;
    default:
        *entry = *any_slab(rng, t);
        break;
    }
}

START_TEST(corrupt) {
    test_rng rng = {8400 + (uint64_t)_i};
    const int rounds = test_rounds(24), fewest_bad = rounds / 8 + 1;
    uint32_t ran[2][WARP_WALK_VARIANTS] = {{0}};
    int bad = 0;
    for (int round = 0; round < rounds || (bad < fewest_bad && round < 4 * rounds); round++) {
        test_tile_request request = test_tile_random_request_of(&rng, (uint32_t)_i);
        if (request.codec == TRF_CODEC_INT)
            request.raw_bits = test_below(&rng, 9 - request.class_bits);
        request.unused_words = test_below(&rng, 8) == 0;
        test_tile *tile = make_tile(&rng, &request, round % 4 != 0);
        walked_layer t = layer_of_tile(tile);
        for (uint32_t i = 0, count = 1 + test_below(&rng, 3); i < count; i++)
            corrupt_rans_stream(&rng, &t, tile->bytes);
        for (uint32_t i = 0, count = test_below(&rng, 3); i < count; i++)
            corrupt_entry(&rng, &t);
        check_walks(&rng, &t, 0, ran);
        bad += memchr(t.verdict, WARP_SLAB_BAD, num_slabs(&t.host->view)) != NULL;
        end_layer(&t);
        test_tile_free(tile);
    }
    ck_assert_int_ge(bad, fewest_bad);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("warp_walk");
    TCase *whole = tcase_create("whole"), *broken = tcase_create("corrupt");
    tcase_set_timeout(whole, 240);
    tcase_set_timeout(broken, 240);
    tcase_add_loop_test(whole, tiles, 0, TEST_TILE_CODECS);
    tcase_add_loop_test(whole, int_widths, 0, 7);
    tcase_add_loop_test(whole, layers, 0, NUM_KINDS);
    tcase_add_loop_test(broken, corrupt, 0, TEST_TILE_CODECS);
    suite_add_tcase(suite, whole);
    suite_add_tcase(suite, broken);
    return run_suite(suite);
}
#endif
