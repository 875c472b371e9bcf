/* SPDX-License-Identifier: Apache-2.0 */
/* One row of a slab as device code decodes it, by a slab directory and with the four lanes one after the other. It is
 * compared with the elements of the reference decoder for the golden files. With corrupt rANS streams nothing outside
 * may be read (the address sanitizer's run checks it), and lanes that do not hold the row do not notice them. */
#include "common/expect.h"
#include "common/host_view.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "trf_decode.h"
#include "trf_layer.h"
#include "trf_row_reader.h"

#include <check.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

static trf_row_target target_of(uint16_t *to, uint32_t cols) {
    return (trf_row_target){
        .to = to, .cols = cols, .as = TRF_DECODE_ELEMENTS, .weight_bytes = 2, .aligned = (uintptr_t)to % 8 == 0};
}

/* Decodes a crossing as the kernel does. @return whether its four lanes found it good. */
static int decode_crossing(const trf_device_view *view, const trf_row_crossing *crossing,
                           const trf_row_target *target) {
    int good = 1;
    for (uint32_t quarter = TRF_ROW_LANES; quarter-- > 0;) /* in any order */
        good &= trf_row_decode(view, view->decode_table, view->class_value, crossing, quarter, target);
    for (uint32_t quarter = 0; !good && quarter < TRF_ROW_LANES; quarter++)
        trf_row_spoil_lane(view, crossing, quarter, target);
    return good;
}

static uint16_t *reference_elements(const trf_layer *layer) {
    const trf_header *header = &layer->view.header;
    uint16_t *elements = malloc(2ull * header->rows * header->cols);
    ck_assert_ptr_nonnull(elements);
    for (uint64_t t = 0; t < layer->view.num_tiles; t++) {
        const trf_tile_shape shape = trf_tile_shape_of(header, t, layer->view.tiles[t].coding);
        ck_assert_int_eq(trf_decode_tile_ref(&layer->view, &layer->table, t, trf_layer_tile(layer, t),
                                             elements + (size_t)shape.row * header->cols + shape.col, header->cols,
                                             NULL),
                         TRF_OK);
    }
    return elements;
}

enum { /* rows begin at any of so many weights, and as many stand after them */
    OFFSETS = 4,
    UNTOUCHED = 0xA5
};

/* Checks columns first to first + cols - 1 of all rows, and that nothing beside them is written. */
static void check_rows(const trf_layer *layer, uint32_t first, uint32_t cols, trf_decode_as as) {
    const trf_header *header = &layer->view.header;
    host_view *host = host_view_make(&layer->view, layer->blob, header->blob_bytes);
    const uint32_t weight_bytes = trf_decoded_weight_bytes(&host->view, as);
    const size_t bytes = ((size_t)cols + 2 * OFFSETS) * weight_bytes;
    uint16_t *elements = reference_elements(layer);
    uint8_t *is = aligned_alloc(16, (bytes + 15) / 16 * 16), *due = malloc(bytes);
    ck_assert(is && due);
    for (uint32_t r = 0; r < header->rows; r++) {
        const uint32_t offset = r % OFFSETS;
        const trf_row_target target = {.to = is + offset * weight_bytes,
                                       .col = first,
                                       .cols = cols,
                                       .as = as,
                                       .weight_bytes = weight_bytes,
                                       .aligned = offset == 0};
        memset(is, UNTOUCHED, bytes);
        memset(due, UNTOUCHED, bytes);
        for (uint32_t s = 0; s < host->view.num_panels; s++) {
            const trf_row_crossing crossing = trf_row_crossing_at(&host->view, r, s);
            EXPECT(decode_crossing(&host->view, &crossing, &target));
            const trf_row_crossing bare = trf_row_crossing_of(&host->view, crossing.tile, r, s);
            EXPECT(bare.coded_cols == crossing.coded_cols && bare.index == crossing.index);
            const uint32_t begin = s * header->slab_cols, left = header->cols - begin;
            EXPECT(bare.tile.col + bare.col == begin);
            EXPECT(bare.cols == (left < header->slab_cols ? left : header->slab_cols));
            EXPECT(trf_row_is_wanted(&bare, &target) == (begin < first + cols && begin + bare.cols > first));
            EXPECT(!bare.stored && !bare.raw && !bare.rans_streams && !bare.rans_bytes);
        }
        for (uint32_t c = 0; c < cols; c++)
            trf_store_decoded_bits(
                due, weight_bytes, offset + c,
                trf_decoded_bits(&host->view, as, elements[(size_t)r * header->cols + first + c], r, first + c));
        EXPECT(memcmp(is, due, bytes) == 0);
    }
    host_view_free(host);
    free(elements);
    free(is);
    free(due);
}

/* Rows that the layer does not have: NaNs, or zeros, in the columns of each panel. */
static void check_missing_rows(const trf_layer *layer, uint32_t first, uint32_t cols, trf_decode_as as) {
    host_view *host = host_view_make(&layer->view, layer->blob, layer->view.header.blob_bytes);
    const trf_device_view *view = &host->view;
    const uint32_t weight_bytes = trf_decoded_weight_bytes(view, as);
    const size_t bytes = (size_t)cols * weight_bytes;
    uint8_t *is = malloc(bytes), *due = malloc(bytes);
    ck_assert(is && due);
    const trf_row_target target = {.to = is, .col = first, .cols = cols, .as = as, .weight_bytes = weight_bytes};
    memset(due, UNTOUCHED, bytes);
    memset(is, UNTOUCHED, bytes);
    for (uint32_t panel = 0; panel < view->num_panels; panel++)
        for (uint32_t quarter = 0; quarter < TRF_ROW_LANES; quarter++) {
            trf_row_fill(view, panel, quarter, &target);
            for (uint32_t c = 0; c < cols; c++)
                if ((first + c) / view->slab_cols == panel && (first + c) % 4 == quarter)
                    trf_store_decoded_bits(due, weight_bytes, c, trf_decoded_corrupt_bits(view, as));
            EXPECT(memcmp(is, due, bytes) == 0);
        }
    host_view_free(host);
    free(is);
    free(due);
}

START_TEST(golden_files) {
    glob_t files;
    ck_assert_int_eq(glob(TRF_TEST_DATA_DIR "/golden/*.trf", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        trf_layer *layer;
        trf_error err;
        ck_assert_msg(trf_layer_open(files.gl_pathv[i], &layer, &err) == TRF_OK, "%s", err.message);
        const uint32_t cols = layer->view.header.cols;
        check_rows(layer, 0, cols, TRF_DECODE_ELEMENTS);
        if (cols > 48)
            check_rows(layer, 48, cols - 48, TRF_DECODE_ELEMENTS);
        for (uint32_t as = TRF_DECODE_SOURCE; as <= TRF_DECODE_F16; as++) {
            const uint32_t first = cols > 64 ? 16 : 0, some = cols > 64 ? (cols - 32) / 16 * 16 : cols;
            check_rows(layer, first, some, (trf_decode_as)as);
            check_missing_rows(layer, first, some, (trf_decode_as)as);
        }
        trf_layer_free(layer);
    }
    ck_assert_uint_gt(files.gl_pathc, 0);
    globfree(&files);
}
END_TEST

/* Any bytes in a tile whose directory is unchanged: each crossing of a row either decodes as before, or is found bad,
 * and then all its coded columns are NaN. */
START_TEST(corrupt_rans_streams) {
    enum {
        ROWS = 300,
        COLS = 530
    };
    test_rng rng = {5 + (uint64_t)_i};
    uint16_t *weights = malloc(2 * ROWS * COLS), row[COLS];
    trf_encode_options options;
    void *blob;
    uint64_t bytes;
    trf_layer *layer;
    trf_error err;
    test_fill_normal(&rng, weights, TRF_DTYPE_BF16, ROWS * COLS, 0.02);
    trf_encode_options_init(&options);
    options.favor = (trf_favor)(_i % 2);
    options.slab_cols = _i / 2 ? 256 : 128;
    const trf_matrix matrix = test_matrix(weights, TRF_DTYPE_BF16, ROWS, COLS);
    ck_assert_int_eq(trf_encode_layer(&matrix, &options, &blob, &bytes, NULL, &err), TRF_OK);
    ck_assert_int_eq(trf_layer_from_memory(blob, bytes, &layer, &err), TRF_OK);
    host_view *host = host_view_make(&layer->view, blob, bytes);
    int found = 0, unnoticed = 0;
    for (int i = 0; i < 3000; i++) {
        uint8_t *const data = (uint8_t *)blob + layer->view.extension.data_offset;
        const uint64_t size = bytes - layer->view.extension.data_offset;
        uint8_t kept[16];
        const uint64_t at = test_random(&rng) % (size - sizeof kept);
        memcpy(kept, data + at, sizeof kept);
        for (size_t k = 0; k < sizeof kept; k++)
            data[at + k] = (uint8_t)test_random(&rng);
        const uint32_t r = test_below(&rng, ROWS), s = test_below(&rng, host->view.num_panels);
        const trf_row_target target = target_of(row, COLS);
        const trf_row_crossing crossing = trf_row_crossing_at(&host->view, r, s);
        memset(row, 0xA5, sizeof row);
        if (decode_crossing(&host->view, &crossing, &target)) {
            unnoticed++;
        } else {
            found++;
            for (uint32_t c = 0; c < crossing.coded_cols; c++)
                EXPECT(row[crossing.tile.col + crossing.col + c] == 0x7FC0);
        }
        for (uint32_t c = 0; c < COLS; c++) /* nothing beside the crossing */
            if (c - (crossing.tile.col + crossing.col) >= crossing.cols)
                EXPECT(row[c] == 0xA5A5);
        memcpy(data + at, kept, sizeof kept);
    }
    ck_assert_int_gt(unnoticed, 1000); /* most bytes belong to other slabs */
    /* Corrupts the head of one slab's rANS streams at a time, which all of its rows read. */
    for (uint32_t band = 0; band < host->view.num_bands; band++) {
        const trf_device_slab slab = host->slabs[band * host->view.num_panels];
        uint8_t *const streams = (uint8_t *)blob + trf_device_slab_rans_streams(slab),
                       kept = streams[TRF_RANS_EXCEPTION_COUNT_OFFSET + 1];
        if (!slab.rans_size_16)
            continue;
        streams[TRF_RANS_EXCEPTION_COUNT_OFFSET + 1] = 0xFF; /* more exceptions than there is room for */
        const trf_row_target target = target_of(row, COLS);
        const trf_row_crossing crossing = trf_row_crossing_at(&host->view, TRF_SLAB_ROWS * band, 0);
        EXPECT(!decode_crossing(&host->view, &crossing, &target));
        for (uint32_t c = 0; c < crossing.coded_cols; c++)
            EXPECT(row[c] == 0x7FC0);
        streams[TRF_RANS_EXCEPTION_COUNT_OFFSET + 1] = kept;
        for (uint32_t lane = 0; lane < TRF_LANES; lane++) { /* a start state of another number */
            const uint32_t r = TRF_SLAB_ROWS * band + lane / 4;
            const trf_row_crossing own = trf_row_crossing_at(&host->view, r < ROWS ? r : ROWS - 1, 0);
            streams[2 * lane] ^= 0x15;
            if (r < ROWS && own.coded_cols && !decode_crossing(&host->view, &own, &target))
                found++;
            streams[2 * lane] ^= 0x15;
        }
    }
    ck_assert_int_gt(found, 100);
    host_view_free(host);
    trf_layer_free(layer);
    free(blob);
    free(weights);
}
END_TEST

/* A slab's raw bits end before its streams begin, and these in the layer's memory, unless nobody wants its columns. */
START_TEST(crossings_that_reach_too_far) {
    test_rng rng = {9};
    uint16_t *weights = malloc(2 * 64 * 256), row[256];
    trf_encode_options options;
    void *blob;
    uint64_t bytes;
    trf_layer *layer;
    trf_error err;
    test_fill_normal(&rng, weights, TRF_DTYPE_BF16, 64 * 256, 0.02);
    trf_encode_options_init(&options);
    options.slab_cols = 128;
    const trf_matrix matrix = test_matrix(weights, TRF_DTYPE_BF16, 64, 256);
    ck_assert_int_eq(trf_encode_layer(&matrix, &options, &blob, &bytes, NULL, &err), TRF_OK);
    ck_assert_int_eq(trf_layer_from_memory(blob, bytes, &layer, &err), TRF_OK);
    host_view *host = host_view_make(&layer->view, blob, bytes);
    const trf_row_target target = target_of(row, 256);
    const trf_row_crossing sound = trf_row_crossing_at(&host->view, 40, 0);
    ck_assert(sound.coded_cols == host->view.slab_cols && decode_crossing(&host->view, &sound, &target));
    const uint64_t raw_bytes =
        trf_raw_bytes(host->view.raw_bits, trf_lane_weights(trf_slab_shape_from(&sound.tile, 32, 0)));
    trf_row_crossing crossing = sound;
    crossing.raw = sound.rans_streams - raw_bytes; /* other raw bits, which no stream says anything of */
    EXPECT(decode_crossing(&host->view, &crossing, &target));
    crossing.raw += 16;
    EXPECT(!decode_crossing(&host->view, &crossing, &target));
    host->view.buffer_bytes = sound.rans_streams + sound.rans_bytes;
    EXPECT(decode_crossing(&host->view, &sound, &target));
    host->view.buffer_bytes--;
    EXPECT(!decode_crossing(&host->view, &sound, &target));
    const trf_row_target beside = {.to = row, .col = 128, .cols = 128, .as = TRF_DECODE_ELEMENTS, .weight_bytes = 2};
    memset(row, UNTOUCHED, sizeof row);
    EXPECT(!trf_row_is_wanted(&sound, &beside) && decode_crossing(&host->view, &sound, &beside));
    for (uint32_t col = 0; col < 256; col++)
        EXPECT(row[col] == 0x101 * UNTOUCHED);
    host_view_free(host);
    trf_layer_free(layer);
    free(blob);
    free(weights);
}
END_TEST

/* Two exceptions, and a word behind them that could be one. */
START_TEST(elements_of_exceptions) {
    uint32_t words[TRF_RANS_FIXED_BYTES / 4 + 3] = {0};
    uint32_t *const exceptions = words + TRF_RANS_FIXED_BYTES / 4;
    for (uint32_t e = 0; e < 3; e++)
        exceptions[e] = trf_make_exception(5 + 4 * e, 0x1000 + e);
    const trf_slab_reader slab = {.rans_streams = (const uint8_t *)words, .num_exceptions = 2};
    for (uint32_t first = 0; first < 16; first++) {
        uint32_t next = 0;
        for (uint32_t position = first; position < 16; position++) {
            const uint32_t is = trf_row_element(&slab, &next, position, position);
            EXPECT(is == (position == 5 ? 0x1000 : position == 9 ? 0x1001 : position));
            EXPECT(next == (position <= 5 ? 0u : position <= 9 ? 1u : 2u));
        }
    }
}
END_TEST

START_TEST(row_ids) {
    static const int64_t wide[] = {0, -1, 1ll << 40, INT64_MIN, 7};
    static const int32_t narrow[] = {0, -1, 1 << 30, INT32_MIN, 7};
    for (uint64_t i = 0; i < 5; i++) {
        EXPECT(trf_row_id(wide, 8, i) == wide[i]);
        EXPECT(trf_row_id(narrow, 4, i) == narrow[i]);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("row_reader");
    TCase *tests = tcase_create("row_reader");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, golden_files);
    tcase_add_loop_test(tests, corrupt_rans_streams, 0, 4);
    tcase_add_test(tests, crossings_that_reach_too_far);
    tcase_add_test(tests, elements_of_exceptions);
    tcase_add_test(tests, row_ids);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
