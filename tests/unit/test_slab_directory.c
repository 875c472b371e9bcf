/* SPDX-License-Identifier: Apache-2.0 */
/* What the host finds out about a layer on its way to a device, compared weight by weight with the golden files'
 * elements. */
#include "common/run_suite.h"
#include "trf_decode_tile.h"
#include "trf_packed8_form.h"
#include "trf_slab_directory.h"

#include <check.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>

/* The traits, counted independently. */
typedef struct counts {
    trf_layer_traits traits;
    int modes[4];
} counts;

/* A float element's value from its fields; exponents are unbiased by `bias`. E4M3 has no infinity. @return 0 for Inf
 * and NaN. */
static int element_value(uint32_t codec, uint32_t element, double *value) {
    const trf_float_fields fields = trf_fields_of(codec);
    const int bias = codec == TRF_CODEC_E4M3 ? 7 : (int)(fields.max_exponent / 2);
    const uint32_t exponent = trf_element_exponent(fields, element),
                   mantissa = element & ((1u << fields.mantissa_bits) - 1);
    if (exponent == fields.max_exponent && (codec != TRF_CODEC_E4M3 || mantissa == 7))
        return 0;
    const int power = (exponent ? (int)exponent : 1) - bias - (int)fields.mantissa_bits;
    *value = ldexp((double)(mantissa + (exponent ? 1u << fields.mantissa_bits : 0)), power);
    return 1;
}

/* Whether a positive value is a multiple of the smallest step and has no more bits than the significand. */
static int is_exact_in(double value, int significand_bits, int smallest_exponent, int largest_exponent) {
    int exponent; /* value = fraction * 2^exponent, fraction in [0.5, 1) */
    double fraction = frexp(value, &exponent);
    if (fraction == 0)
        return 1;
    const int lowest =
        exponent - significand_bits > smallest_exponent ? exponent - significand_bits : smallest_exponent;
    const double steps = ldexp(value, -lowest);
    return exponent <= largest_exponent && steps >= 1 && steps == floor(steps);
}

static void count_exception(const trf_layer *layer, uint64_t tile, uint32_t row, uint32_t col, uint32_t element,
                            counts *c) {
    const trf_blob_view *view = &layer->view;
    const uint32_t codec = trf_element_codec(view->header.codec, view->header.source_dtype);
    double value;
    if (!trf_codec_is_float(codec) || !element_value(codec, element, &value))
        return;
    const trf_tile_shape shape = trf_tile_shape_of(&view->header, tile, TRF_TILE_CODED);
    const uint32_t mode = view->tiles[tile].predictor_mode;
    const int offset = view->extension.exponent_offset + (mode & 1 ? view->row_offsets[shape.row + row] : 0) +
                       (mode & 2 ? view->col_offsets[shape.col + col] : 0);
    value = ldexp(value, -offset - (view->header.codec == TRF_CODEC_E4M3 ? 8 : 0));
    if (!(codec == TRF_CODEC_BF16 ? is_exact_in(value, 8, -133, 128) : is_exact_in(value, 11, -24, 16)))
        c->traits.exceptions_fit_fragments = 0;
}

/* The shape of the slab at (row, col) of a tile's coded region. */
static trf_slab_shape shape_of(const trf_blob_view *view, const trf_tile_shape *tile, uint32_t row, uint32_t col) {
    const uint32_t left = tile->coded_cols - col, slab_cols = view->header.slab_cols;
    return (trf_slab_shape){tile->coded_rows - row < 32 ? 1 : 2, (left < slab_cols ? left : slab_cols) / 16};
}

static uint32_t raw_bytes(const trf_blob_view *view, trf_slab_shape shape) {
    return trf_raw_bytes(view->header.raw_bits, trf_lane_weights(shape));
}

/* Checks a tile's entries: raw bits of all slabs, then the table, then the rANS streams. elements: decoded. */
static void count_slabs(const trf_layer *layer, uint64_t tile, const uint16_t *elements, const trf_device_slab *slabs,
                        counts *c) {
    const trf_blob_view *view = &layer->view;
    const trf_tile_shape shape = trf_tile_shape_of(&view->header, tile, view->tiles[tile].coding);
    const uint32_t slab_cols = view->header.slab_cols, across = (view->header.cols + slab_cols - 1) / slab_cols;
    uint64_t raw = view->tiles[tile].data_offset, begin = raw;
    uint32_t table_bytes = 0, s = 0;
    for (uint32_t row = 0; row < shape.coded_rows; row += 32)
        for (uint32_t col = 0; col < shape.coded_cols; col += slab_cols) {
            begin += raw_bytes(view, shape_of(view, &shape, row, col));
            table_bytes += 2;
        }
    const uint16_t *ends = (const uint16_t *)(layer->blob + begin);
    begin += (table_bytes + 15) / 16 * 16;
    const uint64_t streams = begin;
    for (uint32_t row = 0; row < shape.rows; row += 32)
        for (uint32_t col = 0; col < shape.cols; col += slab_cols) {
            const trf_device_slab *entry =
                &slabs[(uint64_t)((shape.row + row) / 32) * across + (shape.col + col) / slab_cols];
            if (row >= shape.coded_rows || col >= shape.coded_cols) {
                ck_assert(!entry->raw_offset_128 && !entry->rans_offset_16 && !entry->rans_size_16);
                continue;
            }
            const trf_slab_shape slab_shape = shape_of(view, &shape, row, col);
            ck_assert_uint_eq(128ull * entry->raw_offset_128, raw);
            ck_assert_uint_eq(128ull * entry->raw_offset_128 + 16ull * entry->rans_offset_16, begin);
            ck_assert_uint_eq(begin + 16ull * entry->rans_size_16, streams + 16ull * ends[s]);
            const uint8_t *stream = layer->blob + begin;
            raw += raw_bytes(view, slab_shape);
            begin += 16ull * entry->rans_size_16;
            s++;
            c->traits.coded_slabs++;
            if (16u * entry->rans_size_16 > c->traits.max_rans_bytes)
                c->traits.max_rans_bytes = 16u * entry->rans_size_16;
            const uint32_t *exceptions = (const uint32_t *)(stream + 84);
            for (uint32_t k = 0; k < stream[80] + 256u * stream[81]; k++) {
                const uint32_t at = trf_exception_position(exceptions[k]);
                const uint32_t weight_row = row + trf_lane_row(slab_shape, at % 32, at / 32),
                               weight_col = col + trf_lane_col(slab_shape, at % 32, at / 32);
                count_exception(layer, tile, weight_row, weight_col, elements[weight_row * TRF_TILE_SIZE + weight_col],
                                c);
            }
        }
}

/* What a tile's weights add to the counts. elements: decoded. */
static void count_weights(const trf_layer *layer, uint64_t tile, const uint16_t *elements, counts *c) {
    const trf_blob_view *view = &layer->view;
    const trf_tile_shape shape = trf_tile_shape_of(&view->header, tile, view->tiles[tile].coding);
    const int coded = view->tiles[tile].coding == TRF_TILE_CODED;
    if (coded)
        c->modes[view->tiles[tile].predictor_mode] = 1;
    for (uint32_t row = 0; row < shape.rows; row++)
        for (uint32_t col = 0; col < shape.cols; col++) {
            const uint32_t slab_rows = row < shape.coded_rows / 32 * 32 ? 32 : 0;
            const uint32_t slab_cols = view->header.slab_cols, left = shape.coded_cols - col / slab_cols * slab_cols;
            const int regular_panels = left >= slab_cols || left % 64 == 0;
            c->traits.irregular_weights += !(slab_rows && col < shape.coded_cols && regular_panels);
            const int code = (int16_t)elements[row * TRF_TILE_SIZE + col];
            if (!trf_codec_is_float(view->header.codec) && (uint32_t)abs(code) > c->traits.max_abs_code)
                c->traits.max_abs_code = (uint32_t)abs(code);
            if (coded && row < shape.coded_rows && col < shape.coded_cols) {
                const int mode = view->tiles[tile].predictor_mode;
                const int offset =
                    abs(view->extension.exponent_offset + (mode & 1 ? view->row_offsets[shape.row + row] : 0) +
                        (mode & 2 ? view->col_offsets[shape.col + col] : 0));
                if ((uint32_t)offset > c->traits.max_abs_offset)
                    c->traits.max_abs_offset = (uint32_t)offset;
            }
        }
}

/* Expects of each scale pair that it gives all weights, times 2^-8, or that a scale is out of range. */
static void check_pairs(const trf_layer *layer, const trf_layer_traits *traits, const char *path) {
    const trf_blob_view *view = &layer->view;
    const int is_scaled = trf_is_scaled_fp8(view->header.codec, view->header.source_dtype);
    const float *scales = view->scales;
    int in_range = is_scaled;
    ck_assert_uint_eq(trf_count_scale_pairs(view), is_scaled ? view->extension.scales_bytes / 4 : 0);
    uint32_t *pairs = malloc(trf_count_scale_pairs(view) * sizeof *pairs + 1);
    ck_assert_ptr_nonnull(pairs);
    trf_write_scale_pairs(view, pairs);
    for (uint64_t i = 0; i < trf_count_scale_pairs(view); i++) {
        in_range &= scales[i] >= 0x1p-80f && scales[i] < 128;
        for (uint32_t code = 0; code < 256 && in_range; code++)
            if ((code & 0x7F) != 0x7F && trf_bf16_to_f32((uint16_t)trf_packed8_weight(code, pairs[i])) * 256 !=
                                             trf_bf16_to_f32((uint16_t)trf_scale_fp8(code, scales[i])))
                ck_abort_msg("%s: code 0x%02x times scale %a", path, code, (double)scales[i]);
    }
    ck_assert_msg(traits->scales_have_pairs == in_range, "%s", path);
    free(pairs);
}

static void check_layer(const char *path) {
    static uint16_t elements[TRF_TILE_SIZE * TRF_TILE_SIZE];
    trf_layer *layer;
    trf_error err;
    ck_assert_msg(trf_layer_open(path, &layer, &err) == TRF_OK, "%s", err.message);
    const trf_header *header = &layer->view.header;
    trf_device_slab *slabs = malloc(trf_count_device_slabs(header) * sizeof *slabs);
    trf_layer_traits traits;
    counts c = {.traits.exceptions_fit_fragments = 1};
    ck_assert_ptr_nonnull(slabs);
    trf_describe_layer(layer, slabs, &traits);
    for (uint64_t t = 0; t < layer->view.num_tiles; t++) {
        ck_assert_msg(trf_decode_tile_ref(&layer->view, &layer->table, t, trf_layer_tile(layer, t), elements,
                                          TRF_TILE_SIZE, &err) == TRF_OK,
                      "%s: %s", path, err.message);
        count_weights(layer, t, elements, &c);
        count_slabs(layer, t, elements, slabs, &c);
    }
    ck_assert_uint_eq(traits.irregular_weights, c.traits.irregular_weights);
    ck_assert_uint_eq(traits.coded_slabs, c.traits.coded_slabs);
    ck_assert_uint_eq(traits.max_rans_bytes, c.traits.max_rans_bytes);
    for (uint32_t slot = 0; slot < 1u << header->probability_bits; slot++)
        if ((layer->table.slots[slot] & 0xFFF) > c.traits.max_frequency)
            c.traits.max_frequency = layer->table.slots[slot] & 0xFFF;
    ck_assert_uint_eq(traits.max_frequency, c.traits.max_frequency);
    ck_assert_uint_eq(traits.predictor_modes, header->predictor_modes);
    ck_assert_int_eq(traits.mixed_predictor_modes, c.modes[0] + c.modes[1] + c.modes[2] + c.modes[3] > 1);
    ck_assert_uint_eq(traits.max_abs_offset, c.traits.max_abs_offset);
    ck_assert_uint_ge(traits.max_abs_code, c.traits.max_abs_code);
    ck_assert_msg(traits.exceptions_fit_fragments == c.traits.exceptions_fit_fragments, "%s", path);
    check_pairs(layer, &traits, path);
    free(slabs);
    trf_layer_free(layer);
}

START_TEST(golden_files) {
    glob_t files;
    ck_assert_int_eq(glob(TRF_TEST_DATA_DIR "/golden/*.trf", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++)
        check_layer(files.gl_pathv[i]);
    ck_assert_uint_gt(files.gl_pathc, 0);
    globfree(&files);
}
END_TEST

/* There is a context, or a message says why not; in either case nothing else happens. */
START_TEST(context) {
    trf_context *made = NULL;
    trf_error err = {0};
    trf_status status = trf_context_create(0, &made, &err);
    if (status == TRF_OK) {
        trf_context_info info;
        trf_context_get_info(made, &info);
        ck_assert_str_ne(info.name, "");
    } else {
        ck_assert_int_eq(status, TRF_ERR_DEVICE);
        ck_assert_int_eq(err.status, TRF_ERR_DEVICE);
        ck_assert_str_ne(err.message, "");
        ck_assert_ptr_null(made);
    }
    trf_context_destroy(made);
    ck_assert_int_eq(trf_context_create(-3, &made, &err), TRF_ERR_DEVICE);
    ck_assert_int_eq(trf_context_create(1 << 20, &made, &err), TRF_ERR_DEVICE);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("device_directory");
    TCase *tests = tcase_create("device_directory");
    tcase_add_test(tests, golden_files);
    tcase_add_test(tests, context);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
