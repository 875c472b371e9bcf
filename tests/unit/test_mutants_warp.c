/* SPDX-License-Identifier: Apache-2.0 */
/* Mutants of coded layers past the validator, as tests/gpu/test_gpu_mutants.c has them on a GPU, under device headers
 * on the CPU: edges and rows by loops over 32 lanes, the walks of all kernels, products and packing in emulated blocks
 * (tests/warp). Blob and directory are exactly as large as they are, so that a sanitizer sees what reads beside them.
 * What the validator takes of forged mutants must give the reference decoder's elements, or bad slabs where that finds
 * a tile corrupt.
 *
 * In the environment: TRF_MUTANTS is the number of mutants, and TRF_MUTANT_SEED the seed. */
#include <stdio.h>

#ifndef TRF_HAVE_WARP_WALK
int main(void) {
    puts("skipped: kernels are not emulated in this build");
    return 77;
}
#else
#include "common/coded_mutants.h"
#include "common/expect.h"
#include "common/run_suite.h"
#include "trf_decode.h"
#include "trf_edges.h"
#include "trf_product_request.h"
#include "trf_row_reader.h"
#include "trf_smem_layout.h"
#include "warp/warp_coded_product.h"
#include "warp/warp_pack_coded.h"
#include "warp/warp_walk.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum {
    MUTANTS = 160,
    X_ROWS = 8
};

static const char *const kGolden[] = {
    "bf16_modes_0123_and_layer_offset",
    "bf16_slabs128_modes_0123_and_stored",
    "bf16_pairs_p12_L16",
    "bf16_quads_exceptions_T5",
    "bf16_no_words",
    "bf16_1x1",
    "bf16_quads_full_chunks",
    "fp16_257x33",
    "fp16_modes_0123_and_layer_offset",
    "fp16_row_offsets_on_one_tile",
    "fp16_pairs_slabs128_53x144",
    "fp16_quads_full_chunks",
    "e4m3_20x1040_stored_amid_coded",
    "e4m3_slabs128_all_exceptions",
    "e5m2_272x273_grid",
    "e5m2_most_words",
    "int_quads_slabs128_50x407",
    "int_r2_scale_group16_f16",
    "int_all_exceptions",
    "int_i8_pairs_slabs128_31x200",
    "int_quads_r8_T16",
    "scaled_fp8_block128_pairs",
    "scaled_fp8_block48_quads_stored",
    "scaled_fp8_all_codes",
};
enum {
    GOLDEN = sizeof kGolden / sizeof kGolden[0],
    ENCODED = 1, /* a layer that is packed straight from its slabs */
    LAYERS = GOLDEN + ENCODED
};

/* The mutant at hand, in memory of exactly its size, and what is decoded of it. */
typedef struct run {
    const coded_mutants *mutants;
    uint8_t *blob, *directory;
    trf_device_view view;
    uint16_t *elements; /* [rows][cols] */
    uint8_t *seen, *slabs;
    uint32_t order;
} run;

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    EXPECT(memory != NULL);
    return memory;
}

/* ---- edges and rows ---- */

/* Decodes an edge, or a regular slab as if it were one. @return its verdict. */
static int decode_edge(const run *r, trf_edge edges[TRF_LANES], uint16_t *decoded) {
    int verdict = 1;
    for (uint32_t segment = 0; segment < trf_edge_segments(&edges[0]); segment++) {
        const trf_edge_segment at = trf_edge_segment_at(&edges[0], segment);
        for (uint32_t lane = 0; lane < TRF_LANES; lane++)
            trf_edge_decode_segment(&r->view, r->view.class_value, &edges[lane], segment, lane, decoded);
        for (uint32_t lane = 0; lane < TRF_LANES; lane++)
            trf_edge_put_exceptions(&edges[lane], segment, lane, decoded);
        for (uint32_t row = at.row0; row < at.row1; row++)
            memcpy(r->elements + (size_t)(edges[0].tile.row + edges[0].band_row + row) * r->view.cols +
                       edges[0].tile.col + at.col,
                   decoded + row * at.pitch, at.cols * sizeof *decoded);
    }
    for (uint32_t lane = 0; lane < TRF_LANES; lane++)
        verdict &= trf_edge_verdict(&r->view, &edges[lane], lane, edges[lane ^ TRF_LANE_PAIRS].reader.taken);
    return verdict;
}

/* Decodes the whole layer so. good: [tiles], whether all slabs of a tile are good. */
static void decode_edges(const run *r, uint8_t *good) {
    const trf_device_view *view = &r->view;
    uint16_t *decoded = allocate(TRF_EDGE_SEGMENT_ELEMENTS * sizeof *decoded);
    trf_edge edges[TRF_LANES];
    memset(decoded, 0, TRF_EDGE_SEGMENT_ELEMENTS * sizeof *decoded); /* slabs that are not intact leave it */
    memset(good, 1, (size_t)view->num_tile_rows * view->num_tile_cols);
    for (uint32_t band = 0; band < view->num_bands; band++)
        for (uint32_t tile_col = 0; tile_col < view->num_tile_cols; tile_col++)
            for (uint32_t edge_id = 0; edge_id < TRF_REGULAR_AS_EDGE_END; edge_id++) {
                uint32_t opened = 0;
                for (uint32_t lane = 0; lane < TRF_LANES; lane++)
                    opened += (uint32_t)trf_edge_open(&edges[lane], view, band, tile_col, edge_id, lane);
                EXPECT(opened == 0 || opened == TRF_LANES);
                if (opened && !decode_edge(r, edges, decoded))
                    good[edges[0].index] = 0;
            }
    free(decoded);
}

/* Reads rows as they are looked up, each to memory of its size. */
static void read_rows(const run *r) {
    const trf_device_view *view = &r->view;
    for (uint32_t row = r->order % 5; row < view->rows; row += 1 + view->rows / 7)
        for (int as = TRF_DECODE_SOURCE; as <= TRF_DECODE_ELEMENTS; as++) {
            const uint32_t bytes = trf_decoded_weight_bytes(view, (trf_decode_as)as);
            const trf_row_target target = {
                allocate((size_t)view->cols * bytes), 0, view->cols, (trf_decode_as)as, bytes, 1};
            for (uint32_t panel = 0; panel < view->num_panels; panel++)
                for (uint32_t lane = 0; lane < TRF_ROW_LANES; lane++) {
                    const trf_row_crossing crossing = trf_row_crossing_at(view, row, panel);
                    if (!trf_row_decode(view, view->decode_table, view->class_value, &crossing, lane, &target))
                        trf_row_spoil_lane(view, &crossing, lane, &target);
                }
            free(target.to);
        }
}

/* ---- regular slabs ---- */

/* Whether the walk's slabs of a good tile are good, and have its elements. */
static void compare_walk(const run *r, const warp_walk *walk, const uint8_t *good) {
    const trf_device_view *view = &r->view;
    for (uint32_t row = 0; row < view->rows; row++)
        for (uint32_t col = 0; col < view->cols; col++) {
            const size_t at = (size_t)row * view->cols + col;
            const uint64_t tile = row / TRF_TILE_SIZE * (uint64_t)view->num_tile_cols + col / TRF_TILE_SIZE;
            const uint8_t slab = walk->slabs[row / TRF_SLAB_ROWS * (size_t)view->num_panels + col / view->slab_cols];
            if (walk->seen[at] && good[tile])
                ck_assert_msg(slab == WARP_SLAB_GOOD && walk->elements[at] == r->elements[at], "%s: weight %u, %u",
                              r->mutants->what, row, col);
        }
}

static void walk_all(const run *r, const uint8_t *good) {
    const trf_device_view *view = &r->view;
    const size_t weights = (size_t)view->rows * view->cols, slabs = (size_t)view->num_bands * view->num_panels;
    void *elements;
    EXPECT(posix_memalign(&elements, 16, weights * sizeof(uint16_t)) == 0);
    warp_walk walk = {.view = view,
                      .max_rans_bytes = r->mutants->traits.max_rans_bytes,
                      .max_frequency = r->mutants->traits.max_frequency,
                      .warps = 1 + r->order % 3,
                      .table_log = 16,
                      .order = r->order,
                      .elements = elements,
                      .seen = r->seen,
                      .slabs = r->slabs};
    for (int variant = 0; variant < WARP_WALK_VARIANTS; variant++) {
        walk.variant = (warp_walk_variant)variant;
        walk.product_config = (int)(r->order >> variant & 1);
        memset(walk.seen, 0, weights);
        memset(walk.slabs, WARP_SLAB_PASSED_BY, slabs);
        if (warp_walk_layer(&walk) && r->mutants->way == MUTANT_FORGED)
            compare_walk(r, &walk, good);
    }
    free(elements);
}

/* Multiplies by layers of scaled FP8, whose scale pairs products alone read. */
static void multiply(const run *r) {
    const trf_device_view *view = &r->view;
    const trf_layer_traits *traits = &r->mutants->traits;
    if (!trf_is_scaled_fp8(view->codec, view->source_dtype) || trf_regular_panels(view) == 0 ||
        view->rows < TRF_SLAB_ROWS || trf_fragment_refusal(view, traits, TRF_DTYPE_BF16))
        return;
    warp_coded_product product = {.view = view,
                                  .max_rans_bytes = traits->max_rans_bytes,
                                  .use_row_offsets = (traits->predictor_modes & TRF_PREDICT_ROW) != 0,
                                  .x_stride = (view->cols + 63) / 64 * 64,
                                  .y = allocate(sizeof(float) * X_ROWS * view->rows),
                                  .warps = 1 + r->order % 3,
                                  .order = r->order};
    const size_t x_bytes = sizeof(uint16_t) * X_ROWS * product.x_stride;
    void *x;
    EXPECT(posix_memalign(&x, 16, x_bytes) == 0);
    memset(x, 0x3F, x_bytes);
    product.x = x;
    for (uint32_t kind = 0; kind < 3; kind++) { /* one slab, two, general */
        product.two_slabs = kind == 1;
        product.general = kind == 2;
        if (product.general || (trf_has_default_p(view, traits->max_frequency) && !product.use_row_offsets))
            warp_multiply_coded(&product);
    }
    free(x);
    free(product.y);
}

/* Packs a layer straight from its slabs if it lies in regular ones alone, to memory of the packed layer's size. */
static void pack(const run *r) {
    const trf_device_view *view = &r->view;
    const trf_layer_traits *traits = &r->mutants->traits;
    trf_packed_head head;
    trf_pack_coded_counts counts = {0};
    trf_pack_state state = {0};
    if (view->codec != TRF_CODEC_BF16 || traits->irregular_weights || view->rows % TRF_PACKED_TILE_ROWS ||
        view->row_offsets || !trf_has_default_p(view, traits->max_frequency))
        return;
    ck_assert_int_eq(trf_size_packed(view->rows, view->cols, 0, 0, &head, NULL), TRF_OK);
    trf_packed_head_set_window(&head, (trf_packed_window){.base = 112});
    uint8_t *const memory = aligned_alloc(TRF_PACKED_ALIGNMENT, head.common.buffer_bytes);
    EXPECT(memory != NULL);
    const trf_packed_view packed = trf_packed_view_of(&head, memory);
    const warp_coded_packing packing = {
        .view = view,
        .max_rans_bytes = traits->max_rans_bytes,
        .packed = &packed,
        .memory = {allocate(warp_pack_coded_scratch_bytes(view->rows, view->cols)), &counts, &state},
        .warps = 1 + r->order % 4};
    warp_pack_coded(&packing, (warp_grid){1 + r->order % 3, r->order});
    free(packing.memory.scratch);
    free(memory);
}

/* ---- mutants ---- */

/* Expects of a mutant that the validator takes what the reference decoder makes of it. */
static void check_forged(const run *r, const uint8_t *good) {
    const trf_blob_view *view = &r->mutants->view;
    const size_t cols = view->header.cols;
    trf_decode_table *table = allocate(sizeof *table);
    uint16_t *expected = allocate(view->header.rows * cols * sizeof *expected);
    trf_decode_table_init(table, view);
    for (uint64_t t = 0; t < view->num_tiles; t++) {
        const trf_tile_shape shape = trf_tile_shape_of(&view->header, t, view->tiles[t].coding);
        const size_t first = shape.row * cols + shape.col;
        const int is_good = trf_decode_tile_ref(view, table, t, r->mutants->bytes + view->tiles[t].data_offset,
                                                expected + first, cols, NULL) == TRF_OK;
        ck_assert_msg(is_good == good[t], "%s: tile %u is %s", r->mutants->what, (unsigned)t, good[t] ? "good" : "bad");
        for (uint32_t row = 0; is_good && row < shape.rows; row++)
            ck_assert_msg(memcmp(expected + first + row * cols, r->elements + first + row * cols,
                                 shape.cols * sizeof *expected) == 0,
                          "%s: row %u of tile %u", r->mutants->what, row, (unsigned)t);
    }
    free(table);
    free(expected);
}

static void try_mutant(const coded_mutants *c, uint32_t order) {
    const trf_header *header = &c->view.header;
    const size_t weights = (size_t)header->rows * header->cols;
    uint8_t *good = allocate(c->view.num_tiles);
    run r = {.mutants = c, .order = order, .seen = allocate(weights), .elements = allocate(2 * weights)};
    void *blob, *directory;
    EXPECT(posix_memalign(&blob, TRF_DEVICE_ALIGNMENT, c->num_bytes) == 0);
    EXPECT(posix_memalign(&directory, TRF_DEVICE_ALIGNMENT, c->offsets.directory_bytes) == 0);
    memcpy(blob, c->bytes, c->num_bytes);
    memcpy(directory, c->directory, c->offsets.directory_bytes);
    r.blob = blob;
    r.directory = directory;
    r.view = coded_mutants_view(c, r.blob, r.directory);
    r.slabs = allocate((size_t)r.view.num_bands * r.view.num_panels);
    decode_edges(&r, good);
    if (c->way == MUTANT_FORGED)
        check_forged(&r, good);
    read_rows(&r);
    walk_all(&r, good);
    multiply(&r);
    pack(&r);
    free(blob);
    free(directory);
    free(r.seen);
    free(r.elements);
    free(r.slabs);
    free(good);
}

/* Encodes a layer of regular slabs alone. */
static void *encode(test_rng *rng, uint64_t *bytes) {
    static const uint32_t rows = 64, cols = 512;
    uint16_t *weights = allocate(sizeof *weights * rows * cols);
    trf_matrix matrix;
    trf_encode_options options;
    void *blob;
    test_fill_normal(rng, weights, TRF_DTYPE_BF16, (size_t)rows * cols, 0.02);
    trf_matrix_init(&matrix);
    trf_encode_options_init(&options);
    matrix.weights = weights;
    matrix.dtype = TRF_DTYPE_BF16;
    matrix.rows = rows;
    matrix.cols = cols;
    options.probability_bits = TRF_QUADS_PROBABILITY_BITS;
    ck_assert_int_eq(trf_encode_layer(&matrix, &options, &blob, bytes, NULL, NULL), TRF_OK);
    free(weights);
    return blob;
}

/* loop: layers. */
START_TEST(mutants_past_the_validator) {
    const uint64_t count = (mutants_number("TRF_MUTANTS", (uint64_t)test_rounds(MUTANTS)) + LAYERS - 1) / LAYERS;
    test_rng rng = {mutants_number("TRF_MUTANT_SEED", 1) * 1000 + (uint64_t)_i};
    const char *name = _i < GOLDEN ? kGolden[_i] : "encoded";
    uint64_t bytes;
    void *blob = _i < GOLDEN ? blob_of_golden(name, &bytes) : encode(&rng, &bytes);
    coded_mutants c = coded_mutants_of(blob, bytes, blob, bytes);
    for (uint64_t i = 0; i < count; i++) {
        coded_mutants_draw(&c, &rng, name, i);
        try_mutant(&c, (uint32_t)test_random(&rng));
    }
    coded_mutants_free(&c);
    free(blob);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("mutants_warp");
    TCase *tcase = tcase_create("mutants_warp");
    tcase_add_loop_test(tcase, mutants_past_the_validator, 0, LAYERS);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
#endif
