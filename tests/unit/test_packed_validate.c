/* SPDX-License-Identifier: Apache-2.0 */
/* The validator of packed layers: what it refuses and where; and readers stay inside buffers that it has not
 * checked. */
#include "common/expect.h"
#include "common/packed_layer.h"
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "trf_packed_reader.h"
#include "trf_packed_validate.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* 80x1100 weights: two bands of two lines, of 32 and 3 tiles; records in all of them, and two stored tiles. */
static packed_layer make_layer(int zeroing) {
    test_rng rng = {1 + (uint64_t)zeroing};
    packed_layer layer = packed_layer_make(80, 1100, 1);
    for (size_t i = 0; i < 80 * 1100; i++)
        layer.weights[i] = (uint16_t)(0x3C80 | (test_random(&rng) & 0x80FF));
    for (uint32_t row = 0; row < 80; row += 3)
        layer.weights[row * 1100 + row * 13] = (uint16_t)(0x4480 + row);
    for (uint32_t i = 0; i < 40; i++) {
        layer.weights[(i + 2) * 1100 + 64 + i % 32] = 0x7F80;
        layer.weights[(64 + i % 16) * 1100 + 1088 + i / 16] = (uint16_t)(0x7FC0 + i);
    }
    for (uint32_t i = 0; zeroing && i < 1000; i++)
        layer.weights[i * 87] = (uint16_t)(i << 15);
    ck_assert_int_eq(packed_layer_pack(&layer, NULL, NULL), TRF_OK);
    ck_assert(packed_layer_is_right(&layer));
    ck_assert_uint_eq(layer.head.flags, zeroing);
    ck_assert_uint_eq(layer.head.num_stored, 2);
    return layer;
}

static trf_status validate(const packed_layer *layer, trf_error *err) {
    trf_packed_view view;
    return trf_validate_packed(layer->packed, layer->head.common.buffer_bytes, &view, err);
}

static void seal(packed_layer *layer) {
    trf_packed_head *head = (trf_packed_head *)layer->packed;
    head->common.checksum = trf_layout_head_checksum(&head->common);
}

/* ---- the head ---- */

/* But for the data checksum, which trf_device_layer_verify compares. */
START_TEST(every_bit_of_a_head_matters) {
    packed_layer layer = make_layer(0);
    for (uint32_t bit = 0; bit < 8 * TRF_DATA_CHECKSUM_OFFSET; bit++) {
        layer.packed[bit / 8] ^= (uint8_t)(1 << bit % 8);
        EXPECT(validate(&layer, NULL) != TRF_OK);
        layer.packed[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    ck_assert_int_eq(validate(&layer, NULL), TRF_OK);
    packed_layer_free(&layer);
}
END_TEST

typedef struct head_case {
    size_t offset, bytes;
    uint64_t value;
    trf_status status;
} head_case;

#define FIELD(name) offsetof(trf_packed_head, name), sizeof((trf_packed_head *)0)->name
static const head_case kHeads[] = {
    {FIELD(common.magic), 0x52414E53, TRF_ERR_MAGIC},
    {FIELD(common.layout), TRF_LAYOUT_PLAIN, TRF_ERR_HEADER},
    {FIELD(common.version), 3, TRF_ERR_VERSION},
    {FIELD(common.head_bytes), 128, TRF_ERR_HEADER},
    {FIELD(codec), TRF_CODEC_FP16, TRF_ERR_HEADER},
    {FIELD(base), 0, TRF_ERR_HEADER},
    {FIELD(base), TRF_PACKED_MAX_BASE + 1, TRF_ERR_HEADER},
    {FIELD(rows), 0, TRF_ERR_HEADER},
    {FIELD(cols), 0x80000000, TRF_ERR_HEADER},
    {FIELD(padded_rows), 64, TRF_ERR_HEADER},
    {FIELD(padded_cols), 1100, TRF_ERR_HEADER},
    {FIELD(flags), 2, TRF_ERR_HEADER},
    {FIELD(num_stored), 71, TRF_ERR_HEADER},
    {FIELD(num_lines), 5, TRF_ERR_HEADER},
    {FIELD(num_tiles), UINT64_MAX, TRF_ERR_HEADER},
    {FIELD(num_records), 4 * 29 + 1, TRF_ERR_HEADER},
    {FIELD(num_records), 3, TRF_ERR_TILE},
    {FIELD(row_offsets_offset), 512, TRF_ERR_HEADER},
    {FIELD(lines_offset), 256, TRF_ERR_HEADER},
    {FIELD(tiles_offset), 1 << 30, TRF_ERR_HEADER},
    {FIELD(stored_offset), 0, TRF_ERR_HEADER},
    {FIELD(common.buffer_bytes), 256, TRF_ERR_HEADER},
    {FIELD(common.buffer_bytes), 1 << 30, TRF_ERR_TRUNCATED},
    {FIELD(reserved0), 1, TRF_ERR_HEADER},
    {FIELD(reserved1), 1, TRF_ERR_HEADER},
    {offsetof(trf_packed_head, reserved2) + 39, 1, 1, TRF_ERR_HEADER},
    {FIELD(rows), 0x80000000, TRF_ERR_HEADER},
    {FIELD(cols), 0, TRF_ERR_HEADER},
    {FIELD(padded_rows), 127, TRF_ERR_HEADER},
    {FIELD(padded_rows), 129, TRF_ERR_HEADER},
    {FIELD(padded_cols), 1119, TRF_ERR_HEADER},
    {FIELD(padded_cols), 1121, TRF_ERR_HEADER},
    {FIELD(num_lines), 3, TRF_ERR_HEADER},
    {FIELD(num_tiles), 69, TRF_ERR_HEADER},
    {FIELD(num_tiles), 71, TRF_ERR_HEADER},
    {FIELD(num_records), 4 * 29, TRF_ERR_TILE},
    {FIELD(num_records), 0, TRF_ERR_TILE},
    {FIELD(row_offsets_offset), 255, TRF_ERR_HEADER},
    {FIELD(row_offsets_offset), 257, TRF_ERR_HEADER},
    {FIELD(lines_offset), 511, TRF_ERR_HEADER},
    {FIELD(lines_offset), 768, TRF_ERR_HEADER},
    {FIELD(tiles_offset), 768, TRF_ERR_HEADER},
    {FIELD(tiles_offset), 1280, TRF_ERR_HEADER},
    {FIELD(stored_offset), 1024 + 70 * 3072 - 256, TRF_ERR_HEADER},
    {FIELD(stored_offset), 1024 + 70 * 3072 + 256, TRF_ERR_HEADER},
    {FIELD(common.buffer_bytes), 1024 + 70 * 3072 + 2 * 4096 - 1, TRF_ERR_HEADER},
    {FIELD(flags), 1u << 31, TRF_ERR_HEADER},
    {offsetof(trf_packed_head, reserved0) + 1, 1, 1, TRF_ERR_HEADER},
    {offsetof(trf_packed_head, reserved1) + 3, 1, 1, TRF_ERR_HEADER},
    {offsetof(trf_packed_head, reserved2), 1, 1, TRF_ERR_HEADER},
};
enum {
    HEADS = sizeof kHeads / sizeof *kHeads
};

/* The checksum is made to fit, so that each field is checked by itself. */
START_TEST(fields_are_checked) {
    const head_case *c = &kHeads[_i];
    packed_layer layer = make_layer(0);
    trf_error err;
    memcpy(layer.packed + c->offset, &c->value, c->bytes);
    seal(&layer);
    ck_assert_int_eq(validate(&layer, &err), c->status);
    ck_assert_uint_eq(err.offset, c->status == TRF_ERR_TRUNCATED ? layer.head.common.buffer_bytes : c->offset);
    packed_layer_free(&layer);
}
END_TEST

/* A side that is the largest is not what is wrong. */
START_TEST(the_wrong_side_is_named) {
    packed_layer layer = make_layer(0);
    trf_packed_head *head = (trf_packed_head *)layer.packed;
    trf_error err;
    head->rows = TRF_PACKED_MAX_SIDE, head->cols = 0;
    seal(&layer);
    ck_assert_int_eq(validate(&layer, &err), TRF_ERR_HEADER);
    ck_assert_uint_eq(err.offset, offsetof(trf_packed_head, cols));
    head->rows = 64, head->cols = TRF_PACKED_MAX_SIDE, head->num_stored = UINT32_MAX;
    seal(&layer);
    ck_assert_int_eq(validate(&layer, &err), TRF_ERR_HEADER);
    ck_assert_uint_eq(err.offset, offsetof(trf_packed_head, num_stored));
    head->rows = TRF_PACKED_MAX_SIDE, head->cols = 32;
    seal(&layer);
    ck_assert_int_eq(validate(&layer, &err), TRF_ERR_HEADER);
    ck_assert_uint_eq(err.offset, offsetof(trf_packed_head, num_stored));
    packed_layer_free(&layer);
}
END_TEST

START_TEST(sizes_are_checked) {
    packed_layer layer = make_layer(0);
    trf_packed_view view;
    trf_error err;
    const uint64_t bytes = layer.head.common.buffer_bytes;
    ck_assert_int_eq(trf_validate_packed(layer.packed, 255, &view, &err), TRF_ERR_TRUNCATED);
    ck_assert_int_eq(trf_validate_packed(layer.packed, bytes - 1, &view, &err), TRF_ERR_TRUNCATED);
    ck_assert_uint_eq(err.offset, bytes - 1);
    ck_assert_int_eq(trf_validate_packed(layer.packed, bytes + 256, &view, &err), TRF_OK); /* room after it */
    ck_assert_int_eq(trf_validate_packed(layer.packed + 8, bytes, &view, &err), TRF_ERR_ARGUMENT);
    packed_layer_free(&layer);
}
END_TEST

/* PACKED.md: tiles of 64x32, lines of 32 tiles of 128 bytes, offsets of rows before them, packed tiles of 3 KiB, stored
 * ones of 4 KiB, all from multiples of 256. */
START_TEST(sizes_of_layers) {
    static const uint64_t sides[] = {1, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025, 100000, TRF_PACKED_MAX_SIDE};
    for (uint32_t i = 0; i < 288; i++) {
        const uint64_t rows = sides[i / 12 % 12], cols = sides[i % 12], bands = (rows + 63) / 64;
        const uint64_t across = (cols + 31) / 32, lines = bands * ((across + 31) / 32), stored = i % 3 ? 1 : 0;
        const uint64_t at = 256 + (i >= 144 ? (64 * bands + 255) / 256 * 256 : 0);
        const uint64_t tiles = (at + 128 * lines + 255) / 256 * 256;
        trf_packed_head head = {.num_records = 9};
        EXPECT(trf_size_packed(rows, cols, i >= 144, stored, &head, NULL) == TRF_OK);
        EXPECT(head.rows == rows && head.cols == cols && head.num_stored == stored && head.num_records == 9);
        EXPECT(head.padded_rows == 64 * bands && head.padded_cols == 32 * across);
        EXPECT(head.num_lines == lines && head.num_tiles == bands * across);
        EXPECT(head.row_offsets_offset == (i >= 144 ? 256 : 0) && head.lines_offset == at);
        EXPECT(head.tiles_offset == tiles && head.stored_offset == tiles + 3072 * bands * across);
        EXPECT(head.common.buffer_bytes == head.stored_offset + 4096 * stored);
    }
    static const uint64_t bad[][3] = {{0, 1, 0},
                                      {1, 0, 0},
                                      {1ull + TRF_PACKED_MAX_SIDE, 1, 0},
                                      {1, 1ull + TRF_PACKED_MAX_SIDE, 0},
                                      {64, 32, 2},
                                      {65, 33, 5},
                                      {TRF_PACKED_MAX_SIDE, TRF_PACKED_MAX_SIDE, 1ull << 32}};
    for (uint32_t i = 0; i < 7; i++) {
        trf_packed_head head = {0};
        ck_assert_int_eq(trf_size_packed(bad[i][0], bad[i][1], 0, bad[i][2], &head, NULL), TRF_ERR_ARGUMENT);
        ck_assert_uint_eq(head.rows, 0);
    }
    trf_packed_head head = {0};
    ck_assert_int_eq(trf_size_packed(65, 33, 0, 4, &head, NULL), TRF_OK);
    ck_assert_int_eq(trf_size_packed(TRF_PACKED_MAX_SIDE, TRF_PACKED_MAX_SIDE, 0, UINT32_MAX, &head, NULL), TRF_OK);
}
END_TEST

START_TEST(what_it_was_packed_from) {
    packed_layer layer = make_layer(0);
    trf_header coded = {.magic = TRF_MAGIC, .version = TRF_FORMAT_VERSION, .rows = 9, .cols = 8, .num_tile_rows = 1};
    coded.num_tile_cols = 1;
    const trf_layer_info from = {.stored_tiles = 77, .exceptions = 88};
    trf_error err;
    trf_layer_info info;
    for (uint32_t codec = 1; codec <= 5; codec++)
        for (uint32_t dtype = 1; dtype <= 6; dtype++) {
            coded.codec = (uint8_t)codec, coded.source_dtype = (uint8_t)dtype;
            trf_packed_head_set_coded(&layer.head, &coded, &from);
            const int good = codec == TRF_CODEC_BF16 && (dtype == TRF_DTYPE_BF16 || dtype == TRF_DTYPE_F32);
            EXPECT(trf_check_packed_head(&layer.head, layer.head.common.buffer_bytes, &err) == TRF_OK);
            EXPECT(trf_packed_head_get_info(&layer.head, &info, &err) == (good ? TRF_OK : TRF_ERR_HEADER));
            EXPECT(good ? info.rows == 80 && info.cols == 1100 && info.stored_tiles == 77 && info.exceptions == 88
                        : err.offset == offsetof(trf_packed_head, coded_header));
        }
    coded.codec = TRF_CODEC_BF16, coded.source_dtype = TRF_DTYPE_BF16, coded.version++;
    trf_packed_head_set_coded(&layer.head, &coded, &from);
    ck_assert_int_eq(trf_packed_head_get_info(&layer.head, &info, &err), TRF_ERR_HEADER);
    coded.version--, coded.magic++;
    trf_packed_head_set_coded(&layer.head, &coded, &from);
    ck_assert_int_eq(trf_packed_head_get_info(&layer.head, &info, &err), TRF_ERR_HEADER);
    packed_layer_free(&layer);
}
END_TEST

/* A layer with room for two more stored tiles than it has: zeros lie there. */
START_TEST(room_for_stored_tiles) {
    packed_layer layer = make_layer(0);
    const uint64_t bytes = layer.head.common.buffer_bytes, more = bytes + 2 * TRF_PACKED_STORED_TILE_BYTES;
    uint8_t *larger;
    ck_assert_int_eq(posix_memalign((void **)&larger, 256, more), 0);
    memset(larger, 0, more);
    memcpy(larger, layer.packed, bytes);
    trf_packed_head *head = (trf_packed_head *)larger;
    head->num_stored += 2;
    head->common.buffer_bytes = more;
    head->common.checksum = trf_layout_head_checksum(&head->common);
    trf_packed_view view;
    trf_error err;
    ck_assert_msg(trf_validate_packed(larger, more, &view, &err) == TRF_OK, "%s", err.message);
    static const uint64_t places[] = {0, 1, TRF_PACKED_STORED_TILE_BYTES, 2 * TRF_PACKED_STORED_TILE_BYTES - 1};
    for (uint32_t i = 0; i < 4; i++) {
        larger[bytes + places[i]] = 1;
        ck_assert_int_eq(trf_validate_packed(larger, more, &view, &err), TRF_ERR_TILE);
        ck_assert_uint_eq(err.offset, bytes + places[i]);
        larger[bytes + places[i]] = 0;
    }
    free(larger);
    packed_layer_free(&layer);
}
END_TEST

/* ---- the rest ---- */

/* Changes a 32-bit word, expects the validator to say so there (or at a byte of it), and changes it back. */
static void expect_refusal(packed_layer *layer, uint64_t at, uint32_t value, uint64_t offset) {
    trf_error err = {.offset = 0};
    uint32_t before;
    memcpy(&before, layer->packed + at, 4);
    memcpy(layer->packed + at, &value, 4);
    const trf_status status = validate(layer, &err);
    ck_assert_msg(status == TRF_ERR_TILE && err.offset == offset, "%s: byte %llu, not %llu: %s",
                  trf_status_name(status), (unsigned long long)err.offset, (unsigned long long)offset, err.message);
    memcpy(layer->packed + at, &before, 4);
}

START_TEST(lines_are_checked) {
    packed_layer layer = make_layer(0);
    const uint64_t lines = layer.head.lines_offset;
    const uint32_t *line = (const uint32_t *)(layer.packed + lines); /* 3 lines follow */
    const uint64_t count = 4 * TRF_PACKED_COUNT_WORD, stored = 4 * TRF_PACKED_STORED_WORD;
    const uint32_t records = line[TRF_PACKED_COUNT_WORD];
    ck_assert(records > 3 && records < TRF_PACKED_MAX_RECORDS - 2 && line[TRF_PACKED_STORED_WORD] == 1 << 2);
    expect_refusal(&layer, lines + count, 30, lines + count);
    expect_refusal(&layer, lines + count, UINT32_MAX, lines + count);
    expect_refusal(&layer, lines + count, records + 1, lines + 4 * records);    /* it does not ascend */
    expect_refusal(&layer, lines + 4, line[0], lines + 4);                      /* the same place twice */
    expect_refusal(&layer, lines + 8, line[2] | 31u << 27, lines + 12);         /* the next one is below */
    expect_refusal(&layer, lines + 4 * records, 1, lines + 4 * records);        /* unused */
    expect_refusal(&layer, lines + stored, 1 << 2 | 1 << 5, lines + 128 + 124); /* one more than counted on */
    expect_refusal(&layer, lines + stored, 7, lines + stored);                  /* more than there are */
    expect_refusal(&layer, lines + stored + 4, 1, lines + stored + 4);          /* another first one */
    expect_refusal(&layer, lines + 128 + stored, 1 << 3, lines + 128 + stored); /* after the last column */
    uint32_t before = 0; /* records of the tiles before the stored one, number 2 */
    while (trf_packed_record_tile(line[before]) < 2)
        before++;
    ck_assert(before > 0 && before < records);
    expect_refusal(&layer, lines + 4 * (before - 1), (line[before - 1] & 0x7FFFFFF) | 2u << 27,
                   lines + 4 * (before - 1));
    packed_layer_free(&layer);
}
END_TEST

/* A line's only record, in other places. */
START_TEST(records_are_checked) {
    packed_layer layer = packed_layer_make(80, 1100, 0);
    for (size_t i = 0; i < 80 * 1100; i++)
        layer.weights[i] = 0x3D00;
    layer.weights[70 * 1100 + 1099] = 0x7F00; /* last band, last line, its last tile: columns 1088 to 1099 */
    const trf_packed_window window = {112, 0};
    ck_assert_int_eq(packed_layer_pack(&layer, &window, NULL), TRF_OK);
    ck_assert(packed_layer_is_right(&layer));
    const uint64_t at = layer.head.lines_offset + 3 * TRF_PACKED_LINE_BYTES;
    const trf_packed_place place = trf_packed_place_of(70, 1099);
    const uint32_t record = trf_packed_record(place.tile, place.slab, place.step, place.lane, place.reg, place.half, 0);
    ck_assert_uint_eq(*(const uint32_t *)(layer.packed + at) >> 16, record >> 16);
    expect_refusal(&layer, at, record + (1u << 27), at);                          /* tile 35 of 35 */
    expect_refusal(&layer, at, record | 1 << 25, at);                             /* row 86 */
    expect_refusal(&layer, at, trf_packed_record(34, 0, 1, 0, 0, 0, 0x3D00), at); /* column 1104 */
    expect_refusal(&layer, at, trf_packed_record(34, 0, 0, 2, 2, 0, 0x3D00), at); /* column 1100 */
    packed_layer_free(&layer);
}
END_TEST

START_TEST(tiles_and_padding_are_checked) {
    packed_layer layer = make_layer(1);
    const trf_packed_head *head = &layer.head;
    expect_refusal(&layer, head->row_offsets_offset + 80, 1 << 8, head->row_offsets_offset + 81);
    expect_refusal(&layer, head->tiles_offset + 2 * TRF_PACKED_TILE_BYTES + 4, 1 << 16,
                   head->tiles_offset + 2 * TRF_PACKED_TILE_BYTES + 6); /* a stored tile's place */
    const trf_packed_place place = trf_packed_place_of(79, 1100);       /* after the last column, in a stored tile */
    const uint64_t stored = head->stored_offset + TRF_PACKED_STORED_TILE_BYTES +
                            2 * trf_packed_stored_half(place.slab, place.lane, place.step, place.reg, place.half);
    expect_refusal(&layer, stored, 1, stored);
    const trf_packed_place padded = trf_packed_place_of(80, 5); /* below the last row: index 0 */
    const uint64_t raw = head->tiles_offset + (35 + padded.tile) * (uint64_t)TRF_PACKED_TILE_BYTES +
                         trf_packed_raw_offset(padded.slab, padded.lane, padded.step, padded.reg);
    const uint32_t byte = trf_packed_mantissa_byte(padded.reg, padded.half);
    expect_refusal(&layer, raw, 5u << 8 * byte, raw + byte);
    packed_layer_free(&layer);

    packed_layer narrow = packed_layer_make(30, 10, 0); /* one line, with 128 bytes after it */
    for (size_t i = 0; i < 300; i++)
        narrow.weights[i] = 0x3D00;
    ck_assert_int_eq(packed_layer_pack(&narrow, NULL, NULL), TRF_OK);
    expect_refusal(&narrow, narrow.head.lines_offset + 128, 1u << 31, narrow.head.lines_offset + 131);
    packed_layer_free(&narrow);
}
END_TEST

/* ---- each place ---- */

/* Turns bits of a byte over, and back. @return what the validator says meanwhile, and in *offset where. */
static trf_status try_bit(packed_layer *layer, uint64_t at, uint8_t bit, uint64_t *offset) {
    trf_error err = {.offset = 0};
    layer->packed[at] ^= bit;
    const trf_status status = validate(layer, &err);
    layer->packed[at] ^= bit;
    *offset = err.offset;
    return status;
}

/* The packed place of a stored tile is all zeros. */
START_TEST(places_of_stored_tiles) {
    packed_layer layer = make_layer(0);
    static const uint32_t tiles[] = {2, 35 + 34};
    for (uint32_t i = 0; i < 2 * TRF_PACKED_TILE_BYTES; i++) {
        const uint32_t byte = i % TRF_PACKED_TILE_BYTES;
        const uint64_t at =
            layer.head.tiles_offset + (uint64_t)tiles[i / TRF_PACKED_TILE_BYTES] * TRF_PACKED_TILE_BYTES + byte;
        uint64_t offset;
        if (test_quick() && byte % 5 && byte + 1 != TRF_PACKED_TILE_BYTES)
            continue;
        ck_assert_int_eq(try_bit(&layer, at, 1, &offset), TRF_ERR_TILE);
        ck_assert_uint_eq(offset, at);
    }
    packed_layer_free(&layer);
}
END_TEST

/* A stored tile of 64 rows and 32 columns, of which 13 and 11 are the layer's. */
START_TEST(weights_of_stored_tiles) {
    packed_layer layer = packed_layer_make(77, 1099, 0);
    for (uint32_t i = 0; i < 77 * 1099; i++)
        layer.weights[i] = (uint16_t)(i / 1099 >= 64 && i % 1099 >= 1088 ? 0x7F01 : 0x3D00);
    const trf_packed_window window = {112, 0};
    ck_assert_int_eq(packed_layer_pack(&layer, &window, NULL), TRF_OK);
    ck_assert_uint_eq(layer.head.num_stored, 1);
    for (uint32_t row = 64; row < 128; row++)
        for (uint32_t col = 1088; col < 1120; col++) {
            const trf_packed_place place = trf_packed_place_of(row, col);
            const uint64_t at = layer.head.stored_offset +
                                2 * trf_packed_stored_half(place.slab, place.lane, place.step, place.reg, place.half);
            const int is_padding = row >= 77 || col >= 1099;
            for (uint32_t byte = 0; byte < 2; byte++) {
                uint64_t offset;
                ck_assert_int_eq(try_bit(&layer, at + byte, 4, &offset), is_padding ? TRF_ERR_TILE : TRF_OK);
                ck_assert(!is_padding || offset == at);
            }
        }
    packed_layer_free(&layer);
}
END_TEST

/* In a zeroing layer a weight with index 0 has no mantissa, and those with indexes 1 to 15 have any. */
START_TEST(weights_of_a_zeroing_tile) {
    packed_layer layer = packed_layer_make(64, 64, 0);
    uint32_t zeros = 0;
    for (uint32_t i = 0; i < 64 * 64; i++) {
        const uint32_t mixed = i * 0x9E3779B1u;
        layer.weights[i] = (uint16_t)((mixed >> 16 & 0x807F) | (113 + (mixed >> 12) % 15) << 7);
        if (i % 7 == 4) /* row 0, column 32 is one: the first place of tile 1 */
            layer.weights[i] &= 0x8000;
    }
    const trf_packed_window window = {112, 1};
    ck_assert_int_eq(packed_layer_pack(&layer, &window, NULL), TRF_OK);
    for (uint32_t row = 0; row < 64; row++)
        for (uint32_t col = 32; col < 64; col++) {
            const trf_packed_place place = trf_packed_place_of(row, col);
            const uint64_t tile = layer.head.tiles_offset + TRF_PACKED_TILE_BYTES;
            const uint64_t at = tile + trf_packed_raw_offset(place.slab, place.lane, place.step, place.reg) +
                                trf_packed_mantissa_byte(place.reg, place.half);
            const int is_zero = (layer.weights[row * 64 + col] & 0x7FFF) == 0;
            uint64_t offset;
            ck_assert_int_eq(try_bit(&layer, at, (uint8_t)(1 << (row + col) % 7), &offset),
                             is_zero ? TRF_ERR_TILE : TRF_OK);
            ck_assert(!is_zero || offset == at);
            ck_assert_int_eq(try_bit(&layer, at, 0x80, &offset), TRF_OK); /* a sign */
            zeros += (uint32_t)is_zero;
        }
    ck_assert(zeros > 200 && zeros < 400 && (layer.weights[32] & 0x7FFF) == 0);
    packed_layer_free(&layer);
}
END_TEST

/* A line holds 29 records, and no unused word is left then. */
START_TEST(a_full_line) {
    packed_layer layer = packed_layer_make(64, 1024, 0);
    for (size_t i = 0; i < 64 * 1024; i++)
        layer.weights[i] = 0x3D00;
    for (uint32_t i = 0; i < TRF_PACKED_MAX_RECORDS; i++)
        layer.weights[(2 * i) * 1024 + 35 * i] = 0x7F00;
    const trf_packed_window window = {112, 0};
    ck_assert_int_eq(packed_layer_pack(&layer, &window, NULL), TRF_OK);
    ck_assert(packed_layer_is_right(&layer));
    const uint32_t *line = (const uint32_t *)(layer.packed + layer.head.lines_offset);
    ck_assert_uint_eq(line[TRF_PACKED_COUNT_WORD], TRF_PACKED_MAX_RECORDS);
    const uint64_t last = layer.head.lines_offset + 4 * (TRF_PACKED_MAX_RECORDS - 1);
    expect_refusal(&layer, last, line[TRF_PACKED_MAX_RECORDS - 2], last);
    /* one record fewer than the head says, whose word is as unused ones are */
    trf_error err;
    uint32_t *const words = (uint32_t *)(layer.packed + layer.head.lines_offset);
    words[TRF_PACKED_COUNT_WORD]--;
    ck_assert_int_eq(validate(&layer, &err), TRF_ERR_TILE);
    ck_assert_uint_eq(err.offset, last);
    words[TRF_PACKED_MAX_RECORDS - 1] = 0x7F00; /* the line's first weight */
    ck_assert_int_eq(validate(&layer, &err), TRF_ERR_TILE);
    ck_assert_uint_eq(err.offset, offsetof(trf_packed_head, num_records));
    packed_layer_free(&layer);
}
END_TEST

/* Anything may follow a valid head: readers stay inside the buffer (the sanitizer checks). */
START_TEST(readers_stay_inside) {
    test_rng rng = {2000 + (uint64_t)_i};
    packed_layer layer = make_layer(_i % 2);
    for (int round = 0; round < test_rounds(20); round++) {
        for (uint64_t at = layer.head.row_offsets_offset; at < layer.head.common.buffer_bytes; at++)
            if (round == 0 || test_below(&rng, 3) == 0)
                layer.packed[at] = (uint8_t)test_random(&rng);
        (void)validate(&layer, NULL);
        packed_layer_read_all(layer.packed);
    }
    packed_layer_free(&layer);
}
END_TEST

/* A wrong bit anywhere after the head is refused, or the layer is valid with it. */
START_TEST(any_bit_is_refused_or_harmless) {
    test_rng rng = {3000 + (uint64_t)_i};
    packed_layer layer = make_layer(_i % 2);
    for (int round = 0; round < test_rounds(400); round++) {
        const uint64_t from = round % 2 ? layer.head.lines_offset : layer.head.row_offsets_offset;
        const uint64_t to = round % 2 ? layer.head.tiles_offset : layer.head.common.buffer_bytes;
        const uint64_t at = from + test_random(&rng) % (to - from);
        const uint8_t bit = (uint8_t)(1 << test_below(&rng, 8));
        layer.packed[at] ^= bit;
        if (validate(&layer, NULL) == TRF_OK)
            packed_layer_read_all(layer.packed);
        layer.packed[at] ^= bit;
    }
    ck_assert_int_eq(validate(&layer, NULL), TRF_OK);
    packed_layer_free(&layer);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("packed_validate");
    TCase *tcase = tcase_create("packed_validate");
    tcase_add_test(tcase, every_bit_of_a_head_matters);
    tcase_add_loop_test(tcase, fields_are_checked, 0, HEADS);
    tcase_add_test(tcase, the_wrong_side_is_named);
    tcase_add_test(tcase, sizes_are_checked);
    tcase_add_test(tcase, sizes_of_layers);
    tcase_add_test(tcase, what_it_was_packed_from);
    tcase_add_test(tcase, room_for_stored_tiles);
    tcase_add_test(tcase, lines_are_checked);
    tcase_add_test(tcase, records_are_checked);
    tcase_add_test(tcase, tiles_and_padding_are_checked);
    tcase_add_test(tcase, places_of_stored_tiles);
    tcase_add_test(tcase, weights_of_stored_tiles);
    tcase_add_test(tcase, weights_of_a_zeroing_tile);
    tcase_add_test(tcase, a_full_line);
    tcase_add_loop_test(tcase, readers_stay_inside, 0, 2);
    tcase_add_loop_test(tcase, any_bit_is_refused_or_harmless, 0, 2);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
