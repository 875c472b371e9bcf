/* SPDX-License-Identifier: Apache-2.0 */
/* The functions for a layer's edges that device code shares. A loop over 32 lanes runs them as a warp does: slabs of
 * every codec and shape against the elements from which the tests' own encoder made them, the edges of whole layers,
 * their values and products, and corrupt slabs. */
#include "common/expect.h"
#include "common/host_view.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_tile.h"
#include "common/was_fp8.h"
#include "trf_decode.h"
#include "trf_edge_product.h"
#include "trf_layer.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- a warp ---- */

/* An edge as each lane sees it, and the warp's part of shared memory, which is exactly as large as in the kernels. */
typedef struct warp {
    const trf_device_view *view;
    trf_edge edge[TRF_LANES];
    uint16_t *decoded;
} warp;

static void warp_init(warp *w, const trf_device_view *view) {
    w->view = view;
    w->decoded = malloc(TRF_EDGE_SEGMENT_ELEMENTS * sizeof *w->decoded);
    ck_assert_ptr_nonnull(w->decoded);
}

static void decode(warp *w, uint32_t segment) {
    memset(w->decoded, 0xA5, TRF_EDGE_SEGMENT_ELEMENTS * sizeof *w->decoded);
    for (uint32_t lane = 0; lane < TRF_LANES; lane++)
        trf_edge_decode_segment(w->view, w->view->class_value, &w->edge[lane], segment, lane, w->decoded);
    for (uint32_t lane = TRF_LANES; lane-- > 0;) /* in any order */
        trf_edge_put_exceptions(&w->edge[lane], segment, lane, w->decoded);
}

static int verdict(const warp *w) {
    int good = 1;
    for (uint32_t lane = 0; lane < TRF_LANES; lane++)
        good &= trf_edge_verdict(w->view, &w->edge[lane], lane, w->edge[lane ^ 16].reader.taken);
    return good;
}

static int open_edge(warp *w, uint32_t band, uint32_t tile_col, uint32_t edge_id) {
    int found = 0;
    memset(w->edge, 0xA5, sizeof w->edge);
    for (uint32_t lane = 0; lane < TRF_LANES; lane++)
        found += trf_edge_open(&w->edge[lane], w->view, band, tile_col, edge_id, lane);
    EXPECT(found == 0 || found == TRF_LANES);
    return found != 0;
}

/* Copies of a slab's raw bits and rANS streams, of exactly their sizes. */
typedef struct slab_copy {
    uint8_t *raw, *rans_streams;
    uint32_t size; /* of the rANS streams */
} slab_copy;

/* Entry of slab `slab` of a layer of one tile. */
static trf_device_slab entry_of(const host_view *host, const trf_tile_shape *tile, uint32_t slab) {
    return host->slabs[slab / tile->slabs_across * host->view.num_panels + slab % tile->slabs_across];
}

static slab_copy copy_slab(const host_view *host, const trf_tile_shape *tile, uint32_t slab) {
    const trf_device_slab entry = entry_of(host, tile, slab);
    const uint32_t raw_bytes = trf_raw_bytes(host->view.raw_bits, trf_lane_weights(trf_slab_shape_at(tile, slab)));
    slab_copy copy = {.size = 16u * entry.rans_size_16};
    ck_assert_int_eq(posix_memalign((void **)&copy.raw, 16, raw_bytes ? raw_bytes : 1), 0);
    ck_assert_int_eq(posix_memalign((void **)&copy.rans_streams, 16, copy.size), 0);
    memcpy(copy.raw, host->view.buffer + trf_device_slab_raw(entry), raw_bytes);
    memcpy(copy.rans_streams, host->view.buffer + trf_device_slab_rans_streams(entry), copy.size);
    return copy;
}

static void free_slab(slab_copy *copy) {
    free(copy->raw);
    free(copy->rans_streams);
}

/* Makes any slab an edge, regular ones too. */
static void open_slab(warp *w, const trf_tile_shape *tile, uint32_t slab, const slab_copy *copy,
                      uint32_t predictor_mode) {
    for (uint32_t lane = 0; lane < TRF_LANES; lane++) {
        trf_edge *edge = &w->edge[lane];
        edge->tile = *tile;
        edge->edge_id = TRF_EDGE_SLAB + slab % tile->slabs_across;
        edge->band_row = trf_slab_row(tile, slab);
        edge->predictor_mode = predictor_mode;
        const trf_slab_shape shape = trf_slab_shape_at(tile, slab);
        const uint32_t col = trf_slab_col(tile, slab);
        edge->region = (trf_edge_region){0, 16 * shape.row_blocks, col, col + 16 * shape.steps};
        edge->intact = trf_slab_reader_open(&edge->slab, copy->raw, copy->rans_streams, copy->size, shape);
        if (edge->intact)
            edge->reader = trf_lane_reader_open(&edge->slab, lane, w->view->state_bits);
    }
}

/* Copies a segment's elements to their places in the layer's [rows][cols]; seen counts each weight. */
static void take_segment(const warp *w, uint32_t segment, uint16_t *elements, uint8_t *seen) {
    const trf_edge *edge = &w->edge[0];
    const trf_edge_segment at = trf_edge_segment_at(edge, segment);
    EXPECT(at.cols > 0 && at.cols <= at.width && at.col % 16 == 0 && at.row1 * at.pitch <= TRF_EDGE_SEGMENT_ELEMENTS);
    for (uint32_t r = at.row0; r < at.row1; r++)
        for (uint32_t c = 0; c < at.cols; c++) {
            size_t row = edge->tile.row + edge->band_row + r, col = edge->tile.col + at.col + c;
            EXPECT(row < w->view->rows && col < w->view->cols);
            elements[row * w->view->cols + col] = w->decoded[r * at.pitch + c];
            if (seen)
                seen[row * w->view->cols + col]++;
        }
}

/* Decodes every slab of a tile by open_slab, from copies of exactly their size. @return whether all are good. */
static int decode_slabs(const host_view *host, const test_tile *tile, uint16_t *elements) {
    const trf_tile_shape shape = trf_tile_shape_of(&tile->view.header, 0, tile->meta.coding);
    int good = 1;
    warp w;
    warp_init(&w, &host->view);
    for (uint32_t s = 0; s < shape.num_slabs; s++) {
        slab_copy copy = copy_slab(host, &shape, s);
        open_slab(&w, &shape, s, &copy, tile->meta.predictor_mode);
        EXPECT(w.edge[0].intact);
        for (uint32_t segment = 0; segment < trf_edge_segments(&w.edge[0]); segment++) {
            decode(&w, segment);
            take_segment(&w, segment, elements, NULL);
        }
        good &= verdict(&w);
        free_slab(&copy);
    }
    free(w.decoded);
    return good;
}

/* ---- single tiles ---- */

/* Decodes edges first to end - 1 of a layer into elements; seen: as in take_segment. @return whether all are good. */
static int decode_edges_in(const trf_device_view *view, uint32_t first, uint32_t end, uint16_t *elements,
                           uint8_t *seen) {
    int good = 1;
    warp w;
    warp_init(&w, view);
    for (uint32_t band = 0; band < view->num_bands; band++)
        for (uint32_t j = 0; j < view->num_tile_cols; j++) {
            int found = 0;
            for (uint32_t edge_id = first; edge_id < end; edge_id++) {
                if (!open_edge(&w, band, j, edge_id))
                    continue;
                found = 1;
                EXPECT(w.edge[0].index == band / 8 * (uint64_t)view->num_tile_cols + j);
                for (uint32_t segment = 0; segment < trf_edge_segments(&w.edge[0]); segment++) {
                    decode(&w, segment);
                    take_segment(&w, segment, elements, seen);
                }
                good &= verdict(&w);
            }
            EXPECT(found == trf_band_has_edges_in(view, band, j, first, end));
        }
    free(w.decoded);
    return good;
}

static int decode_edges(const trf_device_view *view, uint16_t *elements, uint8_t *seen) {
    return decode_edges_in(view, 0, TRF_EDGE_COUNT, elements, seen);
}

static int in_regular_slab(const trf_tile_shape *tile, uint32_t row, uint32_t col) {
    const uint32_t left = tile->coded_cols - col / tile->slab_cols * tile->slab_cols; /* from the slab's first column */
    return row < tile->coded_rows && col < tile->coded_cols && (left >= tile->slab_cols || left % 64 == 0) &&
           tile->coded_rows - row / 32 * 32 >= 32;
}

static void check_tile(test_rng *rng, const test_tile_request *request) {
    test_tile *tile = test_tile_make(rng, request);
    host_view *host = host_view_make(&tile->view, tile->bytes, tile->meta.data_size);
    const trf_tile_shape shape = trf_tile_shape_of(&tile->view.header, 0, tile->meta.coding);
    const size_t weights = (size_t)request->rows * request->cols;
    uint16_t *by_slabs = calloc(weights, sizeof *by_slabs), *by_edges = calloc(weights, sizeof *by_edges);
    uint8_t *seen = calloc(weights, 1);
    EXPECT(by_slabs && by_edges && seen);
    EXPECT(decode_slabs(host, tile, by_slabs));
    EXPECT(decode_edges(&host->view, by_edges, seen));
    for (uint32_t row = 0; row < request->rows; row++)
        for (uint32_t col = 0; col < request->cols; col++) {
            const size_t at = (size_t)row * request->cols + col;
            const int regular = in_regular_slab(&shape, row, col);
            if (seen[at] != !regular)
                ck_abort_msg("%ux%u: row %u column %u seen %u times", request->rows, request->cols, row, col, seen[at]);
            if ((row < shape.coded_rows && col < shape.coded_cols && by_slabs[at] != tile->elements[at]) ||
                (!regular && by_edges[at] != tile->elements[at]))
                ck_abort_msg("codec %u c %u r %u %ux%u slabs of %u mode %u stored %d: row %u column %u is %04x and "
                             "%04x, not %04x",
                             request->codec, request->class_bits, request->raw_bits, request->rows, request->cols,
                             request->slab_cols, request->predictor_mode, request->stored, row, col, by_slabs[at],
                             by_edges[at], tile->elements[at]);
        }
    EXPECT(decode_edges_in(&host->view, TRF_REGULAR_AS_EDGE, TRF_REGULAR_AS_EDGE_END, by_edges, seen));
    for (size_t at = 0; at < weights; at++)
        EXPECT(seen[at] == 1 && by_edges[at] == tile->elements[at]);
    free(by_slabs);
    free(by_edges);
    free(seen);
    host_view_free(host);
    test_tile_free(tile);
}

START_TEST(random_tiles) { test_tiles_at_random((uint32_t)_i, 100, check_tile); }
END_TEST

START_TEST(every_shape) { test_tiles_of_every_shape((uint32_t)_i, check_tile); }
END_TEST

START_TEST(every_int_width) { test_tiles_of_int((uint32_t)_i, check_tile); }
END_TEST

/* ---- corrupt slabs ---- */

/* Changes start states, counts or words of a slab. */
static void corrupt_rans_stream(test_rng *rng, const host_view *host, test_tile *tile, const trf_tile_shape *shape) {
    const uint32_t s = test_below(rng, shape->num_slabs);
    const trf_device_slab entry = entry_of(host, shape, s);
    uint8_t *states = tile->bytes + trf_device_slab_rans_streams(entry), *lane_pair_words = states + 64;
    const uint32_t end = entry.rans_size_16 * 16u, words = 84 + 4 * trf_rans_exception_count(states);
    uint32_t one = test_below(rng, 16), other = test_below(rng, 16);
    switch (test_below(rng, 4)) {
    case 0:
        states[test_below(rng, 64)] ^= (uint8_t)(1u << test_below(rng, 8));
        break;
    case 1: /* long rANS streams that overrun */
        for (uint32_t i = 0; i < 64; i++)
            states[i] = (uint8_t)(1 + test_below(rng, 255));
        break;
    case 2:
        while (lane_pair_words[one] && lane_pair_words[other] < 255 && test_below(rng, 8)) {
            lane_pair_words[one]--;
            lane_pair_words[other]++;
        }
        break;
    default:
        if (words < end)
            states[words + test_below(rng, end - words)] ^= (uint8_t)(1u << test_below(rng, 8));
        break;
    }
    test_tile_seal(tile);
}

/* A tile in which only the rANS streams are corrupt gets the reference decoder's verdict. */
START_TEST(corrupt_rans_streams) {
    static trf_decode_table table;
    static uint16_t elements[TRF_TILE_SIZE * TRF_TILE_SIZE], due[TRF_TILE_SIZE * TRF_TILE_SIZE];
    uint32_t rejected = 0;
    test_rng rng = {4000 + (uint64_t)_i};
    for (int round = 0; round < test_rounds(60); round++) {
        test_tile_request request = test_tile_random_request_of(&rng, (uint32_t)_i);
        if (request.stored)
            continue;
        request.unused_words = test_below(&rng, 8) == 0;
        test_tile *tile = test_tile_make(&rng, &request);
        host_view *host = host_view_make(&tile->view, tile->bytes, tile->meta.data_size);
        const trf_tile_shape shape = trf_tile_shape_of(&tile->view.header, 0, tile->meta.coding);
        trf_decode_table_init(&table, &tile->view);
        for (int k = 0; k < 6; k++) {
            corrupt_rans_stream(&rng, host, tile, &shape);
            if (trf_blob_check_tile(&tile->view, 0, tile->bytes, NULL) != TRF_OK)
                break; /* a start state of 0, padding that is not 0 */
            trf_status status = trf_decode_tile_ref(&tile->view, &table, 0, tile->bytes, due, request.cols, NULL);
            ck_assert_int_eq(decode_slabs(host, tile, elements), status == TRF_OK);
            rejected += status != TRF_OK;
        }
        host_view_free(host);
        test_tile_free(tile);
    }
    ck_assert_int_gt((int)rejected, test_rounds(40));
}
END_TEST

/* Slabs that the validator would never accept, with rANS streams of any size and content and any raw bits: nothing
 * outside them is read, and nothing outside a segment is written. */
START_TEST(anything_at_all) {
    test_rng rng = {5000 + (uint64_t)_i};
    uint32_t opened = 0;
    for (int round = 0; round < test_rounds(200); round++) {
        test_tile_request request = test_tile_random_request_of(&rng, (uint32_t)_i);
        request.rows = request.rows < 16 ? 16 : request.rows > 64 ? 48 : request.rows;
        request.cols = request.cols < 16 ? 16 : request.cols;
        request.stored = 0;
        test_tile *tile = test_tile_make(&rng, &request);
        host_view *host = host_view_make(&tile->view, tile->bytes, tile->meta.data_size);
        const trf_tile_shape shape = trf_tile_shape_of(&tile->view.header, 0, tile->meta.coding);
        const uint32_t slab = test_below(&rng, shape.num_slabs);
        slab_copy copy = copy_slab(host, &shape, slab);
        const uint32_t whole = copy.size, size = test_below(&rng, 3) ? whole : 16 * test_below(&rng, 2 + whole / 8);
        uint8_t *bytes;
        ck_assert_int_eq(posix_memalign((void **)&bytes, 16, size ? size : 1), 0);
        memcpy(bytes, copy.rans_streams, size < whole ? size : whole);
        for (uint32_t i = size < whole ? size : whole; i < size; i++)
            bytes[i] = 0;
        for (uint32_t i = 0, noise = test_below(&rng, 3) ? 20 : size; i < noise && size; i++)
            bytes[test_below(&rng, size)] = (uint8_t)test_below(&rng, test_below(&rng, 2) ? 8 : 256);
        if (size >= 84 && test_below(&rng, 2)) { /* the number of exceptions */
            bytes[80] = (uint8_t)test_below(&rng, 200);
            bytes[81] = (uint8_t)(test_below(&rng, 8) ? 0 : test_below(&rng, 256));
        }
        free(copy.rans_streams);
        copy.rans_streams = bytes;
        copy.size = size;
        warp w;
        warp_init(&w, &host->view);
        open_slab(&w, &shape, slab, &copy, tile->meta.predictor_mode);
        opened += w.edge[0].intact != 0;
        for (uint32_t segment = 0; segment < trf_edge_segments(&w.edge[0]); segment++)
            decode(&w, segment);
        EXPECT(w.edge[0].intact || !verdict(&w));
        free(w.decoded);
        free_slab(&copy);
        host_view_free(host);
        test_tile_free(tile);
    }
    ck_assert_int_gt((int)opened, test_rounds(20));
}
END_TEST

/* ---- whole layers: directory, stored elements, values, products ---- */

typedef struct layer_case {
    trf_dtype dtype;
    trf_codec codec;
    trf_granularity granularity;
    uint32_t scale_group_size;
} layer_case;

static const layer_case kCases[] = {
    {TRF_DTYPE_BF16, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0},
    {TRF_DTYPE_F16, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0},
    {TRF_DTYPE_F8_E4M3, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0},
    {TRF_DTYPE_F8_E5M2, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0},
    {TRF_DTYPE_I8, TRF_CODEC_AUTO, TRF_GRANULARITY_NONE, 0},
    {TRF_DTYPE_F32, TRF_CODEC_BF16, TRF_GRANULARITY_NONE, 0},
    {TRF_DTYPE_F32, TRF_CODEC_INT, TRF_GRANULARITY_TENSOR, 0},
    {TRF_DTYPE_BF16, TRF_CODEC_INT, TRF_GRANULARITY_CHANNEL, 0},
    {TRF_DTYPE_F16, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_GROUP, 48},
    {TRF_DTYPE_BF16, TRF_CODEC_INT, TRF_GRANULARITY_SCALE_BLOCK, 32},
    {TRF_DTYPE_BF16, TRF_CODEC_E4M3, TRF_GRANULARITY_TENSOR, 0}, /* scaled FP8 */
    {TRF_DTYPE_BF16, TRF_CODEC_E4M3, TRF_GRANULARITY_CHANNEL, 0},
    {TRF_DTYPE_BF16, TRF_CODEC_E4M3, TRF_GRANULARITY_SCALE_BLOCK, 0},
};
enum {
    NUM_KINDS = sizeof kCases / sizeof kCases[0]
};

/* A layer that the encoder made, what the CPU decodes from it, and the kernels' view. */
typedef struct test_layer {
    void *blob;
    trf_layer *layer;
    host_view *host;
    uint8_t *values;    /* of the source's dtype */
    uint16_t *elements; /* [rows][cols] */
    float *f32;         /* [rows][cols] */
} test_layer;

/* Fills in normal weights, except in a tile of random bit patterns, which is stored. patterns: all weights are random
 * bit patterns, including NaNs. */
static void fill_weights(test_rng *rng, void *weights, trf_dtype dtype, uint32_t rows, uint32_t cols, int patterns) {
    const size_t bytes = trf_dtype_bytes(dtype);
    if (patterns)
        test_fill_patterns(weights, dtype, (size_t)rows * cols);
    else
        test_fill_normal(rng, weights, dtype, (size_t)rows * cols, dtype == TRF_DTYPE_I8 ? 10 : 0.05);
    for (uint32_t row = 0; row < rows && row < 256 && !patterns; row++)
        for (uint32_t col = 0; col < cols && col < 256; col++)
            if (bytes == 2) { /* finite: the exponents from 0 to half of them, either sign */
                uint16_t bits = (uint16_t)test_below(rng, 0x10000);
                ((uint16_t *)weights)[(size_t)row * cols + col] = bits & 0xBFFF;
            }
}

static void decode_on_cpu(test_layer *t) {
    static trf_decode_table table;
    const trf_blob_view *view = &t->layer->view;
    const size_t rows = view->header.rows, cols = view->header.cols, weights = rows * cols;
    const size_t bytes = trf_dtype_bytes((trf_dtype)view->header.source_dtype);
    t->values = malloc(weights * bytes);
    t->elements = malloc(weights * sizeof *t->elements);
    t->f32 = malloc(weights * sizeof *t->f32);
    EXPECT(t->values && t->elements && t->f32);
    ck_assert_int_eq(trf_layer_decode(t->layer, t->values, weights * bytes, 1, NULL), TRF_OK);
    trf_decode_table_init(&table, view);
    for (uint64_t tile = 0; tile < view->num_tiles; tile++) {
        trf_tile_shape shape = trf_tile_shape_of(&view->header, tile, view->tiles[tile].coding);
        const size_t at = (size_t)shape.row * cols + shape.col;
        ck_assert_int_eq(
            trf_decode_tile_ref(view, &table, tile, trf_layer_tile(t->layer, tile), t->elements + at, cols, NULL),
            TRF_OK);
        trf_elements_to_f32(view, tile, t->elements + at, cols, t->f32 + at, cols, 0);
    }
}

static test_layer make_layer(test_rng *rng, const layer_case *layer, uint32_t rows, uint32_t cols, int patterns) {
    test_layer t;
    trf_encode_options options;
    trf_error err = {0};
    uint64_t blob_bytes;
    const int scaled_fp8 = trf_is_scaled_fp8(layer->codec, layer->dtype);
    void *weights = scaled_fp8 ? (void *)was_fp8_make(rng, layer->granularity, rows, cols)
                               : malloc((size_t)rows * cols * trf_dtype_bytes(layer->dtype));
    EXPECT(weights);
    if (!scaled_fp8)
        fill_weights(rng, weights, layer->dtype, rows, cols, patterns);
    trf_encode_options_init(&options);
    options.codec = layer->codec;
    options.granularity = scaled_fp8 ? TRF_GRANULARITY_NONE : layer->granularity; /* which the encoder finds */
    options.scale_group_size = layer->scale_group_size;
    options.favor = test_below(rng, 2) ? TRF_FAVOR_SPEED : TRF_FAVOR_SIZE;
    options.slab_cols = test_below(rng, 2) ? 128 : 256;
    options.threads = 1;
    const trf_matrix matrix = test_matrix(weights, layer->dtype, rows, cols);
    ck_assert_msg(trf_encode_layer(&matrix, &options, &t.blob, &blob_bytes, NULL, &err) == TRF_OK, "%s", err.message);
    ck_assert_msg(trf_layer_from_memory(t.blob, blob_bytes, &t.layer, &err) == TRF_OK, "%s", err.message);
    t.host = host_view_make(&t.layer->view, t.blob, blob_bytes);
    decode_on_cpu(&t);
    free(weights);
    return t;
}

static void free_layer(test_layer *t) {
    host_view_free(t->host);
    trf_layer_free(t->layer);
    trf_free(t->blob);
    free(t->values);
    free(t->elements);
    free(t->f32);
}

static uint32_t load_value(const void *values, uint32_t bytes, size_t at) {
    uint32_t value = 0;
    memcpy(&value, (const uint8_t *)values + at * bytes, bytes);
    return value;
}

/* @return what decoding to a 16-bit type must give, computed from the exact value. */
static uint32_t due_rounded(const test_layer *t, trf_decode_as as, size_t at) {
    const trf_device_view *view = &t->host->view;
    const uint32_t own = as == TRF_DECODE_BF16 ? TRF_CODEC_BF16 : TRF_CODEC_FP16;
    if (trf_element_codec(view->codec, view->source_dtype) == own)
        return t->elements[at];
    double value = (double)t->f32[at];
    if (view->codec == TRF_CODEC_INT && view->scale_dtype != TRF_SCALE_NONE) {
        const uint64_t scale = trf_scale_index(&t->layer->view, at / view->cols, at % view->cols);
        value = (double)(int16_t)t->elements[at];
        value *= view->scale_dtype == TRF_SCALE_F32
                     ? ((const float *)view->scales)[scale]
                     : ldexpf(trf_f16_to_f32(((const uint16_t *)view->scales)[scale]), view->scale_exponent);
    }
    return as == TRF_DECODE_BF16 ? trf_f64_to_bf16(value) : trf_f64_to_f16(value);
}

static void check_values(const test_layer *t, trf_decode_as as, size_t at, uint16_t element) {
    const trf_device_view *view = &t->host->view;
    const uint32_t bytes = trf_decoded_weight_bytes(view, as);
    const uint32_t bits = trf_decoded_bits(view, as, element, (uint32_t)(at / view->cols), (uint32_t)(at % view->cols));
    uint32_t stored = 0;
    uint32_t due = as == TRF_DECODE_SOURCE     ? load_value(t->values, bytes, at)
                   : as == TRF_DECODE_ELEMENTS ? t->elements[at]
                                               : due_rounded(t, as, at);
    trf_store_decoded_bits(&stored, bytes, 0, bits);
    if (stored != due)
        ck_abort_msg("codec %u dtype %u granularity %u, as %d: element %04x is %08x, not %08x", view->codec,
                     view->source_dtype, view->granularity, as, element, stored, due);
}

/* Edges of layers of several tiles, and their values as each type. */
START_TEST(layers) {
    static const uint32_t kShapes[][2] = {{300, 592}, {513, 272}, {64, 700}, {272, 256}, {33, 1025}, {7, 300}};
    test_rng rng = {6000 + (uint64_t)_i};
    const layer_case *layer = &kCases[_i];
    for (uint32_t s = 0; s < 2 * sizeof kShapes / sizeof kShapes[0]; s++) {
        const uint32_t rows = kShapes[s / 2][0], cols = kShapes[s / 2][1];
        if (s % 2 && layer->codec == TRF_CODEC_INT) /* does not take infinities */
            continue;
        test_layer t = make_layer(&rng, layer, rows, cols, s % 2);
        const size_t weights = (size_t)rows * cols;
        uint16_t *elements = calloc(weights, sizeof *elements);
        uint8_t *seen = calloc(weights, 1);
        EXPECT(elements && seen);
        ck_assert(decode_edges(&t.host->view, elements, seen));
        for (size_t at = 0; at < weights; at++) {
            const uint32_t row = (uint32_t)(at / cols), col = (uint32_t)(at % cols);
            const uint64_t tile = row / 256 * (uint64_t)t.host->view.num_tile_cols + col / 256;
            const trf_tile_shape shape =
                trf_tile_shape_of(&t.layer->view.header, tile, t.layer->view.tiles[tile].coding);
            EXPECT(seen[at] == !in_regular_slab(&shape, row % 256, col % 256));
            EXPECT(!seen[at] || elements[at] == t.elements[at]);
            for (int as = TRF_DECODE_SOURCE; as <= TRF_DECODE_F16; as++)
                check_values(&t, (trf_decode_as)as, at, t.elements[at]);
        }
        free(elements);
        free(seen);
        free_layer(&t);
    }
}
END_TEST

/* Computes what the kernel adds up for one row of x, by band and lane: float[num_bands * 32]. */
static void multiply_edges(const trf_device_view *view, const uint16_t *x, int bf16, float *sums) {
    warp w;
    warp_init(&w, view);
    for (uint32_t band = 0; band < view->num_bands; band++)
        for (uint32_t at = 0; at < view->num_tile_cols * TRF_EDGE_COUNT; at++) {
            if (!open_edge(&w, band, at / TRF_EDGE_COUNT, at % TRF_EDGE_COUNT))
                continue;
            for (uint32_t p = 0; p < trf_edge_segments(&w.edge[0]); p++) {
                const trf_edge_segment segment = trf_edge_segment_at(&w.edge[0], p);
                float product[TRF_LANES];
                decode(&w, p);
                for (uint32_t lane = 0; lane < TRF_LANES; lane++) {
                    trf_edge_weights weights;
                    trf_edge_weights_load(&weights, view, &segment, TRF_SLAB_ROWS * band, w.edge[0].tile.col, lane,
                                          w.decoded);
                    EXPECT(weights.col % TRF_EDGE_VECTOR_COLS == 0);
                    product[lane] = trf_edge_weights_multiply(&weights, x, bf16, 0);
                }
                for (uint32_t lane = 0; lane < TRF_LANES; lane++)
                    if (!trf_edge_segment_has_halves(&segment))
                        sums[TRF_SLAB_ROWS * band + lane] += product[lane];
                    else if (lane < 16)
                        sums[TRF_SLAB_ROWS * band + lane] += product[lane] + product[lane + 16];
            }
        }
    free(w.decoded);
}

START_TEST(products) {
    static const uint32_t kShapes[][2] = {{300, 592}, {49, 700}, {7, 300}, {272, 1041}};
    test_rng rng = {7000 + (uint64_t)_i};
    for (uint32_t s = 0; s < sizeof kShapes / sizeof kShapes[0]; s++) {
        const uint32_t rows = kShapes[s][0], cols = kShapes[s][1], bf16 = test_below(&rng, 2);
        test_layer t = make_layer(&rng, &kCases[_i], rows, cols, 0);
        uint16_t *x = malloc(cols * sizeof *x); /* exactly as large, since nothing after it may be read */
        float *sums = calloc(t.host->view.num_bands, 32 * sizeof *sums);
        EXPECT(x && sums);
        for (uint32_t col = 0; col < cols; col++)
            x[col] = bf16 ? trf_f32_to_bf16((float)test_normal(&rng)) : trf_f32_to_f16((float)test_normal(&rng));
        multiply_edges(&t.host->view, x, (int)bf16, sums);
        for (uint32_t row = 0; row < rows; row++) {
            double due = 0, size = 0;
            for (uint32_t col = 0; col < cols; col++) {
                const uint64_t tile = row / 256 * (uint64_t)t.host->view.num_tile_cols + col / 256;
                const trf_tile_shape shape =
                    trf_tile_shape_of(&t.layer->view.header, tile, t.layer->view.tiles[tile].coding);
                const double product = (double)t.f32[(size_t)row * cols + col] *
                                       (double)(bf16 ? trf_bf16_to_f32(x[col]) : trf_f16_to_f32(x[col]));
                if (!in_regular_slab(&shape, row % 256, col % 256))
                    due += product, size += fabs(product);
            }
            if (!(fabs((double)sums[row] - due) <= 2e-6 * size))
                ck_abort_msg("case %d %ux%u: row %u is %g, not %g", _i, rows, cols, row, (double)sums[row], due);
        }
        free(x);
        free(sums);
        free_layer(&t);
    }
}
END_TEST

/* What each decoding writes for corrupt weights is a NaN of its type, or code 0. */
START_TEST(corrupt_values) {
    static const struct {
        uint32_t codec, dtype, scales;
        uint32_t due[4]; /* SOURCE, ELEMENTS, BF16, F16 */
    } kCases[] = {
        {TRF_CODEC_BF16, TRF_DTYPE_BF16, 0, {0x7FC0, 0x7FC0, 0x7FC0, 0x7E00}},
        {TRF_CODEC_BF16, TRF_DTYPE_F32, 0, {0x7FC00000, 0x7FC0, 0x7FC0, 0x7E00}},
        {TRF_CODEC_FP16, TRF_DTYPE_F16, 0, {0x7E00, 0x7E00, 0x7FC0, 0x7E00}},
        {TRF_CODEC_E4M3, TRF_DTYPE_F8_E4M3, 0, {0x7F, 0x7F, 0x7FC0, 0x7E00}},
        {TRF_CODEC_E5M2, TRF_DTYPE_F8_E5M2, 0, {0x7E, 0x7E, 0x7FC0, 0x7E00}},
        {TRF_CODEC_INT, TRF_DTYPE_I8, 0, {0, 0, 0x7FC0, 0x7E00}},
        {TRF_CODEC_INT, TRF_DTYPE_F32, 1, {0x7FC00000, 0, 0x7FC0, 0x7E00}},
        {TRF_CODEC_INT, TRF_DTYPE_BF16, 1, {0x7FC0, 0, 0x7FC0, 0x7E00}},
        {TRF_CODEC_INT, TRF_DTYPE_F16, 1, {0x7E00, 0, 0x7FC0, 0x7E00}},
    };
    for (size_t k = 0; k < sizeof kCases / sizeof kCases[0]; k++) {
        trf_device_view view = {.codec = kCases[k].codec,
                                .source_dtype = kCases[k].dtype,
                                .scale_dtype = kCases[k].scales ? TRF_SCALE_F32 : TRF_SCALE_NONE};
        for (int as = TRF_DECODE_SOURCE; as <= TRF_DECODE_F16; as++)
            ck_assert_uint_eq(trf_decoded_corrupt_bits(&view, (trf_decode_as)as), kCases[k].due[as]);
    }
}
END_TEST

/* Scales that make ties, denormals and zero, and products that are infinite. Infinite scales are not valid. */
START_TEST(extreme_scales) {
    static const uint16_t kScales[] = {0x0001, 0x03FF, 0x0400, 0x3C00, 0x3C01, 0x5A5B, 0x7BFF};
    static const int32_t kExponents[] = {-126, -125, -24, -1, 0, 1, 110, 111, 112, 126};
    for (size_t s = 0; s < sizeof kScales / sizeof kScales[0]; s++)
        for (size_t e = 0; e < sizeof kExponents / sizeof kExponents[0]; e++) {
            trf_device_view view = {.codec = TRF_CODEC_INT,
                                    .source_dtype = TRF_DTYPE_F32,
                                    .granularity = TRF_GRANULARITY_SCALE_GROUP,
                                    .scale_dtype = TRF_SCALE_F16,
                                    .scale_group_size = 16,
                                    .scale_cols = 1,
                                    .scale_exponent = kExponents[e],
                                    .scales = &kScales[s]};
            const float scale = ldexpf(trf_f16_to_f32(kScales[s]), kExponents[e]);
            EXPECT(trf_f32_bits(trf_device_scale(&view, 0, 5)) == trf_f32_bits(scale));
            if (!isfinite(scale))
                continue;
            for (int code = -1023; code <= 1023; code++) {
                const double due = (double)code * (double)scale;
                const uint16_t element = (uint16_t)code;
                EXPECT(trf_decoded_bits(&view, TRF_DECODE_SOURCE, element, 0, 5) == trf_f32_bits((float)due));
                EXPECT(trf_decoded_bits(&view, TRF_DECODE_BF16, element, 0, 5) == trf_f64_to_bf16(due));
                EXPECT(trf_decoded_bits(&view, TRF_DECODE_F16, element, 0, 5) == trf_f64_to_f16(due));
            }
        }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("slab_warp");
    TCase *tiles = tcase_create("tiles"), *layers_case = tcase_create("layers");
    tcase_set_timeout(tiles, 240);
    tcase_set_timeout(layers_case, 240);
    tcase_add_loop_test(tiles, random_tiles, 0, TEST_TILE_CODECS);
    tcase_add_loop_test(tiles, every_shape, 0, TEST_TILE_CODECS);
    tcase_add_loop_test(tiles, every_int_width, 0, TRF_MAX_INT_RAW_BITS + 1);
    tcase_add_loop_test(tiles, corrupt_rans_streams, 0, TEST_TILE_CODECS);
    tcase_add_loop_test(tiles, anything_at_all, 0, TEST_TILE_CODECS);
    tcase_add_loop_test(layers_case, layers, 0, NUM_KINDS);
    tcase_add_loop_test(layers_case, products, 0, NUM_KINDS);
    tcase_add_test(layers_case, corrupt_values);
    tcase_add_test(layers_case, extreme_scales);
    suite_add_tcase(suite, tiles);
    suite_add_tcase(suite, layers_case);
    return run_suite(suite);
}
