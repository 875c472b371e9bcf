/* SPDX-License-Identifier: Apache-2.0 */
/* The validator of blobs, check by check: which heads it takes, compared with a table of what FORMAT.md allows; and
 * where it says that a golden head with one fault is wrong. The corrupt golden files fix the statuses, this the places;
 * unit.blob_tiles has tiles. Also the writer of heads, which must write those of the golden files again. */
#include "common/expect.h"
#include "common/golden_blob.h"
#include "common/run_suite.h"
#include "trf_head.h"
#include "trf_layout_head.h"
#include "trf_number_formats.h"
#include "trf_validate.h"

#include <check.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- which heads are taken ---- */

/* What a head says; the rest follows from it. */
typedef struct head_choice {
    uint32_t version, codec, dtype, class_bits, raw_bits, stored_element_bytes, modes, granularity, scale_dtype,
        scale_group_size;
    int32_t exponent_offset, scale_exponent;
    uint32_t rows, cols;
} head_choice;

static uint64_t round_up(uint64_t number, uint64_t multiple) { return (number + multiple - 1) / multiple * multiple; }

static uint64_t scales_of(const head_choice *c) {
    const uint64_t g = c->scale_group_size ? c->scale_group_size : 1;
    const uint64_t counts[5] = {0, 1, c->rows, c->rows * (round_up(c->cols, g) / g),
                                round_up(c->rows, g) / g * (round_up(c->cols, g) / g)};
    return c->granularity < 5 ? counts[c->granularity] : 0;
}

/* Writes the first 320 bytes of a blob. @return the size that it would have with one unit of tile data. */
static uint64_t make_head(const head_choice *c, uint8_t bytes[TRF_FREQUENCY_OFFSET]) {
    trf_header h = {.magic = 0x52414E53, .version = (uint16_t)c->version, .codec = (uint8_t)c->codec};
    trf_extension x = {.exponent_offset = c->exponent_offset, .scale_exponent = c->scale_exponent};
    h.source_dtype = (uint8_t)c->dtype, h.class_bits = (uint8_t)c->class_bits, h.raw_bits = (uint8_t)c->raw_bits;
    h.tile_size = 256, h.rows = c->rows, h.cols = c->cols;
    h.num_tile_rows = (uint32_t)(round_up(c->rows, 256) / 256),
    h.num_tile_cols = (uint32_t)(round_up(c->cols, 256) / 256);
    h.probability_bits = 12, h.state_bits = 16, h.slab_rows = 32, h.rans_streams_per_lane = 1, h.slab_cols = 128;
    h.stored_element_bytes = (uint8_t)c->stored_element_bytes, h.predictor_modes = (uint8_t)c->modes;
    h.extension_offset = 64, h.extension_bytes = 256;
    for (int k = 0; k < 1 << c->class_bits && k < 16; k++)
        x.class_value[k] = (int16_t)(c->codec == TRF_CODEC_INT ? (k << c->raw_bits) - 1024
                                     : c->class_bits == 2      ? 4 * k
                                                               : k);
    x.granularity = (uint8_t)c->granularity, x.scale_dtype = (uint8_t)c->scale_dtype;
    x.scale_group_size = c->scale_group_size, x.frequency_offset = 320, x.tiles_offset = 832;
    uint64_t end = 832 + 32ull * h.num_tile_rows * h.num_tile_cols;
    const uint64_t sizes[3] = {scales_of(c) * (c->scale_dtype == 1 ? 4 : 2), c->modes & 1 ? c->rows : 0,
                               c->modes & 2 ? c->cols : 0};
    for (int i = 0; i < 3; i++)
        if (sizes[i]) {
            (&x.scales_offset)[2 * i] = round_up(end, 16);
            (&x.scales_bytes)[2 * i] = sizes[i];
            end = round_up(end, 16) + sizes[i];
        }
    x.data_offset = round_up(end, 128);
    h.blob_bytes = x.data_offset + 128;
    memcpy(bytes, &h, sizeof h);
    memcpy(bytes + sizeof h, &x, sizeof x);
    return h.blob_bytes;
}

/* Raw bits of a float codec with quads or pairs: FORMAT.md section 5. */
static uint32_t raw_bits_of(uint32_t codec, uint32_t class_bits) {
    static const uint32_t pairs[6] = {0, 8, 11, 4, 3, 0};
    return pairs[codec] + (class_bits == 2 ? 2 : 0);
}

/* FORMAT.md sections 1 to 3, as far as the fields of a head_choice go. */
static int is_allowed(const head_choice *c) {
    const int scaled = c->codec == 3 && c->dtype == 3, is_int = c->codec == 5, scales = c->granularity != 0;
    const int blocks = c->granularity == 3 || c->granularity == 4;
    /* [codec][dtype]: 1 without scales, 2 with them */
    static const uint8_t combinations[6][7] = {{0},
                                               {0, 1, 0, 1, 0, 0, 0},
                                               {0, 0, 1, 0, 0, 0, 0},
                                               {0, 0, 0, 2, 1, 0, 0},
                                               {0, 0, 0, 0, 0, 1, 0},
                                               {0, 2, 2, 2, 0, 0, 1}};
    if (c->codec < 1 || c->codec > 5 || c->dtype < 1 || c->dtype > 6 || c->granularity > 4)
        return 0;
    if (combinations[c->codec][c->dtype] != 1 + scales || (scaled && c->granularity == 3))
        return 0;
    if (c->version != (scaled ? 5u : 4u) || (c->class_bits != 2 && c->class_bits != 4))
        return 0;
    if (is_int && c->class_bits == 4 && c->raw_bits == 8) /* 16 classes of 256 codes are too many */
        return 0;
    if (is_int ? c->raw_bits > 8 : c->raw_bits != raw_bits_of(c->codec, c->class_bits))
        return 0;
    const int is_fp8 = c->codec == 4 || (c->codec == 3 && !scaled);
    if (c->stored_element_bytes != 1 && c->stored_element_bytes != 2)
        return 0;
    if (!is_int && c->stored_element_bytes != (is_fp8 ? 1u : 2u))
        return 0;
    if (c->modes > (is_int ? 0 : 3) || c->exponent_offset < (is_int ? 0 : -254) ||
        c->exponent_offset > (is_int ? 0 : 254))
        return 0;
    const uint32_t scale_dtype = !scales ? 0 : is_int && blocks ? 2 : 1;
    if (c->scale_dtype != scale_dtype || abs(c->scale_exponent) > (scale_dtype == 2 ? 126 : 0))
        return 0;
    return blocks ? c->scale_group_size >= 16 && c->scale_group_size % 16 == 0 && c->scale_group_size <= 1u << 20
                  : c->scale_group_size == 0;
}

static void check_head(const head_choice *c) {
    _Alignas(16) uint8_t bytes[TRF_FREQUENCY_OFFSET];
    const uint64_t size = make_head(c, bytes);
    uint64_t head_bytes = 0;
    trf_error err = {0};
    const trf_status status = trf_blob_head_bytes(bytes, sizeof bytes, size, &head_bytes, &err);
    const int allowed = is_allowed(c);
    if ((status == TRF_OK) != allowed || (allowed && head_bytes != size - 128))
        ck_abort_msg("version %u codec %u dtype %u c %u r %u stored %u modes %u granularity %u scales %u of %u: %s",
                     c->version, c->codec, c->dtype, c->class_bits, c->raw_bits, c->stored_element_bytes, c->modes,
                     c->granularity, c->scale_dtype, c->scale_group_size, err.message);
}

/* loop: codecs 0 to 6. */
START_TEST(kinds_of_heads) {
    head_choice c = {.codec = (uint32_t)_i, .rows = 300, .cols = 37};
    for (c.version = test_quick() ? 4 : 3; c.version <= (test_quick() ? 5u : 6u); c.version++)
        for (c.dtype = 0; c.dtype <= 7; c.dtype++)
            for (c.granularity = 0; c.granularity <= 5; c.granularity++)
                for (c.class_bits = test_quick() ? 2 : 1; c.class_bits <= (test_quick() ? 4u : 5u); c.class_bits++)
                    for (c.stored_element_bytes = 0; c.stored_element_bytes <= 3; c.stored_element_bytes++)
                        for (c.raw_bits = 0; c.raw_bits <= 14; c.raw_bits++) {
                            const int blocks = c.granularity == 3 || c.granularity == 4;
                            c.scale_group_size = blocks ? 48 : 0;
                            c.scale_dtype = c.granularity == 0 ? 0 : blocks && c.codec == TRF_CODEC_INT ? 2 : 1;
                            check_head(&c);
                        }
}
END_TEST

/* loop: codecs 1 to 5. */
START_TEST(scales_and_offsets_of_heads) {
    static const uint32_t groups[] = {0, 1, 8, 15, 16, 17, 24, 32, 1 << 20, (1 << 20) + 1, (1 << 20) + 16};
    static const int32_t exponents[] = {-127, -126, -1, 0, 1, 126, 127}, offsets[] = {-255, -254, 0, 1, 254, 255};
    head_choice c = {.codec = (uint32_t)_i, .rows = 37, .cols = 300, .class_bits = 4};
    c.raw_bits = c.codec == TRF_CODEC_INT ? 3 : raw_bits_of(c.codec, 4);
    for (c.dtype = 1; c.dtype <= 6; c.dtype++)
        for (c.granularity = 0; c.granularity <= 5; c.granularity++)
            for (c.scale_dtype = 0; c.scale_dtype <= 3; c.scale_dtype++)
                for (c.modes = 0; c.modes <= 4; c.modes++)
                    for (uint32_t group = 0; group < 11; group += test_quick() ? 3 : 1)
                        for (uint32_t i = 0; i < 13; i++) {
                            const int scaled = c.codec == TRF_CODEC_E4M3 && c.dtype == TRF_DTYPE_BF16;
                            c.version = scaled ? 5 : 4;
                            c.stored_element_bytes = (c.codec == 3 && !scaled) || c.codec == 4 ? 1 : 2;
                            c.scale_group_size = groups[group];
                            c.scale_exponent = i < 7 ? exponents[i] : 0;
                            c.exponent_offset = i < 7 ? 0 : offsets[i - 7];
                            check_head(&c);
                        }
}
END_TEST

/* ---- where a head is wrong ---- */

typedef struct head_fault {
    const char *base;
    size_t at, bytes;
    uint64_t value;
    trf_status status;
    uint64_t offset;
} head_fault;

#define AT_CHECKSUM TRF_ERR_CHECKSUM, offsetof(trf_header, head_checksum) /* nothing else is wrong */
#define HEADER_FAULT(base, field, value)                                                                               \
    { base, HEADER_FIELD(field), (uint64_t)(value), TRF_ERR_HEADER, offsetof(trf_header, field) }
#define EXTENSION_FAULT(base, field, value)                                                                            \
    {                                                                                                                  \
        base, EXTENSION_FIELD(field), (uint64_t)(value), TRF_ERR_HEADER,                                               \
            TRF_EXTENSION_OFFSET + offsetof(trf_extension, field)                                                      \
    }
#define EXTENSION_AT(base, field, value, where)                                                                        \
    {                                                                                                                  \
        base, EXTENSION_FIELD(field), (uint64_t)(value), TRF_ERR_HEADER,                                               \
            TRF_EXTENSION_OFFSET + offsetof(trf_extension, where)                                                      \
    }
#define HEADER_AT(base, field, value, where)                                                                           \
    { base, HEADER_FIELD(field), (uint64_t)(value), TRF_ERR_HEADER, offsetof(trf_header, where) }
#define TAKEN(base, field, value)                                                                                      \
    { base, HEADER_FIELD(field), (uint64_t)(value), AT_CHECKSUM }
#define EXTENSION_TAKEN(base, field, value)                                                                            \
    { base, EXTENSION_FIELD(field), (uint64_t)(value), AT_CHECKSUM }

static const head_fault kHeadFaults[] = {
    {ONE, HEADER_FIELD(magic), 0x52414E54, TRF_ERR_MAGIC, 0},
    {ONE, HEADER_FIELD(magic), 0x4C465254, TRF_ERR_MAGIC, 0},
    {ONE, HEADER_FIELD(version), 3, TRF_ERR_VERSION, 4},
    {ONE, HEADER_FIELD(version), 5, TRF_ERR_VERSION, 4},
    HEADER_AT(SCALED, version, 4, source_dtype),
    HEADER_FAULT(ONE, codec, 0),
    HEADER_FAULT(ONE, codec, 6),
    HEADER_FAULT(ONE, source_dtype, 0),
    HEADER_FAULT(ONE, source_dtype, 7),
    HEADER_FAULT(ONE, source_dtype, TRF_DTYPE_I8),
    /* The first fault counts: with one of class_bits, which is the next byte, too. */
    {ONE, offsetof(trf_header, source_dtype), 2, 0x0300, TRF_ERR_HEADER, offsetof(trf_header, source_dtype)},
    {ONE, offsetof(trf_header, source_dtype), 2, 0x0307, TRF_ERR_HEADER, offsetof(trf_header, source_dtype)},
    {ONE, offsetof(trf_header, codec), 2, 0x0700, TRF_ERR_HEADER, offsetof(trf_header, codec)},
    {ONE, offsetof(trf_header, codec), 2, 0x0706, TRF_ERR_HEADER, offsetof(trf_header, codec)},
    HEADER_AT(ONE, codec, TRF_CODEC_FP16, raw_bits),
    HEADER_FAULT(ONE, class_bits, 3),
    HEADER_AT(ONE, class_bits, 2, raw_bits),
    HEADER_FAULT(ONE, raw_bits, 9),
    HEADER_FAULT(GROUP, raw_bits, 9),
    HEADER_FAULT(ONE, tile_size, 255),
    HEADER_FAULT(ONE, tile_size, 257),
    HEADER_FAULT(ONE, rows, 0),
    HEADER_FAULT(ONE, rows, 1u << 31),
    HEADER_AT(ONE, rows, INT32_MAX, num_tile_rows),
    HEADER_AT(ONE, rows, 257, num_tile_rows),
    TAKEN(ONE, rows, 256),
    HEADER_FAULT(ONE, cols, 0),
    HEADER_FAULT(ONE, cols, 1u << 31),
    HEADER_AT(ONE, cols, INT32_MAX, num_tile_cols),
    HEADER_AT(ONE, cols, 257, num_tile_cols),
    TAKEN(ONE, cols, 256),
    HEADER_FAULT(ONE, num_tile_rows, 2),
    HEADER_FAULT(ONE, num_tile_cols, 0),
    HEADER_FAULT(ONE, probability_bits, 8),
    TAKEN(ONE, probability_bits, 9),
    HEADER_FAULT(ONE, probability_bits, 13),
    HEADER_FAULT(ONE, state_bits, 11),
    TAKEN(ONE, state_bits, 12),
    HEADER_FAULT(ONE, state_bits, 17),
    HEADER_FAULT(ONE, slab_rows, 31),
    HEADER_FAULT(ONE, slab_rows, 33),
    HEADER_FAULT(ONE, rans_streams_per_lane, 0),
    HEADER_FAULT(ONE, rans_streams_per_lane, 2),
    TAKEN(ONE, slab_cols, 128),
    HEADER_FAULT(ONE, slab_cols, 127),
    HEADER_FAULT(ONE, slab_cols, 129),
    HEADER_FAULT(ONE, slab_cols, 255),
    HEADER_FAULT(ONE, slab_cols, 257),
    HEADER_FAULT(ONE, stored_element_bytes, 1),
    HEADER_FAULT(ONE, predictor_modes, 4),
    HEADER_FAULT(GROUP, predictor_modes, 1),
    HEADER_FAULT(ONE, extension_offset, 63),
    HEADER_FAULT(ONE, extension_offset, 65),
    HEADER_FAULT(ONE, extension_bytes, 255),
    HEADER_FAULT(ONE, extension_bytes, 257),
    HEADER_FAULT(ONE, flags, 1),
    HEADER_FAULT(ONE, flags, 1u << 31),
    HEADER_FAULT(ONE, blob_bytes, 896),
    HEADER_FAULT(ONE, blob_bytes, 0),
    HEADER_FAULT(ONE, blob_bytes, 1024 + 16),
    {ONE, HEADER_FIELD(blob_bytes), 1024 + 128, TRF_ERR_TRUNCATED, 1024},
    EXTENSION_FAULT(ONE, class_value[0], -1),
    EXTENSION_TAKEN(ONE, class_value[15], 255),
    EXTENSION_FAULT(ONE, class_value[15], 256),
    EXTENSION_FAULT(GROUP, class_value[15], 1024),
    EXTENSION_FAULT("bf16_quads_one_step", class_value[3], 3),
    EXTENSION_FAULT("bf16_quads_one_step", class_value[4], 4),
    EXTENSION_FAULT(ONE, exponent_offset, 255),
    EXTENSION_FAULT(ONE, exponent_offset, -255),
    EXTENSION_TAKEN(ONE, exponent_offset, 254),
    EXTENSION_TAKEN(ONE, exponent_offset, -254),
    EXTENSION_FAULT(GROUP, exponent_offset, 1),
    EXTENSION_FAULT(ONE, granularity, 1),
    EXTENSION_FAULT(GROUP, granularity, 5),
    EXTENSION_FAULT(SCALED, granularity, TRF_GRANULARITY_SCALE_GROUP),
    {SCALED, EXTENSION_FIELD(granularity), 0, TRF_ERR_HEADER, offsetof(trf_header, source_dtype)},
    EXTENSION_FAULT(GROUP, scale_dtype, TRF_SCALE_F32),
    EXTENSION_FAULT(ONE, scale_dtype, TRF_SCALE_F32),
    EXTENSION_FAULT(ONE, reserved0, 1),
    EXTENSION_FAULT(ONE, reserved0, 0x8000),
    EXTENSION_FAULT(ONE, scale_group_size, 16),
    EXTENSION_FAULT(GROUP, scale_group_size, 0),
    EXTENSION_FAULT(GROUP, scale_group_size, 24),
    EXTENSION_FAULT(GROUP, scale_group_size, (1 << 20) + 16),
    EXTENSION_AT(GROUP, scale_group_size, 1 << 20, scales_offset),
    EXTENSION_AT(GROUP, scale_group_size, 32, scales_offset),
    EXTENSION_FAULT(GROUP, scale_exponent, 127),
    EXTENSION_FAULT(GROUP, scale_exponent, -127),
    EXTENSION_TAKEN(GROUP, scale_exponent, -126),
    EXTENSION_TAKEN(GROUP, scale_exponent, 126),
    EXTENSION_FAULT(ONE, scale_exponent, 1),
    EXTENSION_FAULT(ONE, reserved1[0], 1),
    EXTENSION_FAULT(ONE, reserved1[1], 1),
    EXTENSION_FAULT(ONE, reserved1[127], 1),
    EXTENSION_FAULT(ONE, frequency_offset, 319),
    EXTENSION_FAULT(ONE, frequency_offset, 321),
    EXTENSION_FAULT(ONE, tiles_offset, 831),
    EXTENSION_FAULT(ONE, tiles_offset, 833),
    EXTENSION_FAULT(ONE, scales_offset, 864),
    EXTENSION_AT(ONE, scales_bytes, 4, scales_offset),
    EXTENSION_FAULT(GROUP, scales_offset, 865),
    EXTENSION_AT(GROUP, scales_bytes, 637, scales_offset),
    EXTENSION_FAULT(MODES, row_offsets_offset, 0),
    EXTENSION_AT(MODES, row_offsets_bytes, 21, row_offsets_offset),
    EXTENSION_FAULT(MODES, col_offsets_offset, 1040),
    EXTENSION_AT(MODES, col_offsets_bytes, 1179, col_offsets_offset),
    EXTENSION_FAULT(MODES, data_offset, 2303),
    EXTENSION_FAULT(MODES, data_offset, 2304 + 128),
};
enum {
    HEAD_FAULTS = sizeof kHeadFaults / sizeof *kHeadFaults
};

START_TEST(a_head_is_wrong_where_it_says) {
    const head_fault *f = &kHeadFaults[_i];
    blob b = read_golden(f->base);
    try_head(&b, f->at, f->bytes, f->value, 0, f->status, f->offset);
    expect_at(&b, TRF_OK, 0);
    free(b.bytes);
}
END_TEST

/* A buffer of another layout is no blob, and the message says what it is. */
START_TEST(layers_in_other_layouts) {
    blob b = read_golden(ONE);
    const uint32_t magic = TRF_LAYOUT_MAGIC;
    memcpy(b.bytes, &magic, sizeof magic);
    expect_at(&b, TRF_ERR_MAGIC, 0);
    ck_assert_msg(strstr(b.err.message, "another layout") != NULL, "%s", b.err.message);
    free(b.bytes);
}
END_TEST

/* Codes of int: 16 values in steps of 2^r, from -1024 to 1023. */
START_TEST(class_values_of_codes) {
    blob b = read_golden(GROUP); /* pairs, r = 2 */
    trf_extension *x = (trf_extension *)(b.bytes + TRF_EXTENSION_OFFSET);
    ((trf_header *)b.bytes)->head_checksum ^= 1;
    for (int first = -1030; first <= 970; first++) {
        for (int k = 0; k < 16; k++)
            x->class_value[k] = (int16_t)(first + 4 * k);
        const int low = first<-1024, high = first + 60> 1023, bad = low ? 0 : (1023 - first) / 4 + 1;
        if (low || high)
            expect_at(&b, TRF_ERR_HEADER, TRF_EXTENSION_OFFSET + 2 * (uint64_t)bad);
        else
            expect_at(&b, TRF_ERR_CHECKSUM, offsetof(trf_header, head_checksum));
    }
    for (int k = 0; k < 16; k++)
        x->class_value[k] = (int16_t)(4 * k);
    for (int k = 1; k < 16; k++)
        for (int step = -1; step <= 1; step += 2) {
            x->class_value[k] = (int16_t)(4 * k + step);
            expect_at(&b, TRF_ERR_HEADER, TRF_EXTENSION_OFFSET + 2 * (uint64_t)k);
            x->class_value[k] = (int16_t)(4 * k);
        }
    free(b.bytes);
}
END_TEST

/* loop: codecs of floats. No class of another one's value, whichever two they are. */
START_TEST(class_values_differ) {
    static const char *const names[] = {ONE, "fp16_1x1", "e4m3_1x1", "e5m2_1x1"};
    blob b = read_golden(names[_i]);
    for (uint32_t k = 1; k < 16; k++)
        for (uint32_t j = 0; j < k; j++) {
            const uint64_t at = TRF_EXTENSION_OFFSET + 2 * k;
            try_head(&b, at, 2, (uint64_t)b.view.extension.class_value[j], 1, TRF_ERR_HEADER, at);
        }
    free(b.bytes);
}
END_TEST

/* Sides that are a scale group's or block's size times a number, and one more or less. */
START_TEST(numbers_of_scales) {
    head_choice c = {.version = 4, .codec = TRF_CODEC_INT, .dtype = TRF_DTYPE_F32, .class_bits = 2, .raw_bits = 8};
    c.stored_element_bytes = 2, c.scale_dtype = TRF_SCALE_F16, c.scale_group_size = 48;
    for (c.granularity = 3; c.granularity <= 4; c.granularity++)
        for (c.rows = 47; c.rows <= 97; c.rows++)
            for (c.cols = 47; c.cols <= 97; c.cols++)
                check_head(&c);
    c.granularity = TRF_GRANULARITY_CHANNEL, c.scale_dtype = TRF_SCALE_F32, c.scale_group_size = 0;
    for (c.rows = 1; c.rows <= 97; c.rows++)
        check_head(&c);
}
END_TEST

/* A blob that ends with its head. */
START_TEST(no_tiles) {
    blob b = read_golden(ONE);
    uint64_t head_bytes = 0;
    ((trf_header *)b.bytes)->blob_bytes = 896;
    ck_assert_int_eq(trf_blob_head_bytes(b.bytes, 320, 896, &head_bytes, &b.err), TRF_ERR_HEADER);
    ck_assert_uint_eq(b.err.offset, offsetof(trf_header, blob_bytes));
    free(b.bytes);
}
END_TEST

START_TEST(bytes_that_are_there) {
    blob b = read_golden(GROUP);
    const uint64_t head_bytes = b.view.extension.data_offset;
    uint64_t found = 0;
    trf_blob_view view;
    for (uint64_t available = 0; available <= 320; available += available == 0 ? 63 : 1) {
        const trf_status status = trf_blob_head_bytes(b.bytes, available, b.size, &found, &b.err);
        ck_assert_int_eq(status, available < 320 ? TRF_ERR_TRUNCATED : TRF_OK);
        ck_assert(status == TRF_OK || b.err.offset == available);
    }
    ck_assert_uint_eq(found, head_bytes);
    ck_assert_int_eq(trf_blob_open(b.bytes, head_bytes - 1, b.size, &view, &b.err), TRF_ERR_TRUNCATED);
    ck_assert_uint_eq(b.err.offset, head_bytes - 1);
    ck_assert_int_eq(trf_blob_open(b.bytes, head_bytes, b.size, &view, &b.err), TRF_OK);
    ck_assert_int_eq(trf_blob_open(b.bytes, head_bytes, b.size - 1, &view, &b.err), TRF_ERR_TRUNCATED);
    ck_assert_uint_eq(b.err.offset, b.size - 1);
    ck_assert_int_eq(trf_blob_open(b.bytes, head_bytes, b.size + 1, &view, &b.err), TRF_ERR_HEADER);
    ck_assert_uint_eq(b.err.offset, offsetof(trf_header, blob_bytes));
    ck_assert_int_eq(trf_blob_open(b.bytes + 8, head_bytes, b.size, &view, &b.err), TRF_ERR_ARGUMENT);
    ck_assert_uint_eq(b.err.offset, TRF_NO_OFFSET);
    free(b.bytes);
}
END_TEST

/* ---- the table, scales, and what lies between sections ---- */

START_TEST(frequency_tables) {
    blob b = read_golden(ONE); /* stored: no symbol is decoded; p = 12 */
    uint16_t *f = (uint16_t *)(b.bytes + TRF_FREQUENCY_OFFSET);
    memset(f, 0, TRF_FREQUENCY_BYTES);
    f[7] = 4095;
    f[255] = 1;
    seal_head(&b);
    expect_at(&b, TRF_OK, 0);
    try_head(&b, TRF_FREQUENCY_OFFSET + 14, 2, 4096, 1, TRF_ERR_TABLE, TRF_FREQUENCY_OFFSET + 14);
    try_head(&b, TRF_FREQUENCY_OFFSET + 510, 2, 4096, 1, TRF_ERR_TABLE, TRF_FREQUENCY_OFFSET + 510);
    try_head(&b, TRF_FREQUENCY_OFFSET + 510, 2, 2, 1, TRF_ERR_TABLE, TRF_FREQUENCY_OFFSET);
    try_head(&b, TRF_FREQUENCY_OFFSET + 510, 2, 0, 1, TRF_ERR_TABLE, TRF_FREQUENCY_OFFSET);
    free(b.bytes);
}
END_TEST

static uint32_t bits_of(float value) { return trf_f32_bits(value); }

/* Puts each of two scales, the first and the last, to a value. */
static void try_scales(blob *b, uint64_t value, trf_status status) {
    const size_t bytes = b->view.extension.scale_dtype == TRF_SCALE_F32 ? 4 : 2;
    for (int last = 0; last < 2; last++) {
        const uint64_t at = b->view.extension.scales_offset + (last ? b->view.num_scales - 1 : 0) * bytes;
        try_head(b, at, bytes, value, 1, status, at);
    }
}

START_TEST(scales) {
    blob channel = read_golden("int_r6_channel_f32"), group = read_golden(GROUP), scaled = read_golden(SCALED);
    static const float bad[] = {0.0f, -0.0f, -1.0f, INFINITY, -INFINITY, NAN};
    for (uint32_t i = 0; i < 6; i++) {
        try_scales(&channel, bits_of(bad[i]), TRF_ERR_HEADER);
        try_scales(&scaled, bits_of(bad[i]), TRF_ERR_HEADER);
    }
    try_scales(&channel, 1, TRF_OK); /* denormal */
    try_scales(&channel, bits_of(3e38f), TRF_OK);
    try_scales(&scaled, bits_of(ldexpf(1, -100)), TRF_OK);
    try_scales(&scaled, bits_of(ldexpf(1, 100)), TRF_OK);
    try_scales(&scaled, bits_of(ldexpf(1, -100)) - 1, TRF_ERR_HEADER);
    try_scales(&scaled, bits_of(ldexpf(1, 100)) + 1, TRF_ERR_HEADER);
    static const uint16_t bad_halves[] = {0, 0x8000, 0x8001, 0xBC00, 0x7C00, 0x7C01, 0xFC00};
    for (uint32_t i = 0; i < 7; i++)
        try_scales(&group, bad_halves[i], TRF_ERR_HEADER);
    try_scales(&group, 1, TRF_OK);
    try_scales(&group, 0x7BFF, TRF_OK);
    ((trf_extension *)(group.bytes + TRF_EXTENSION_OFFSET))->scale_exponent = 126;
    for (uint64_t i = 0; i < group.view.num_scales; i++)
        ((uint16_t *)(group.bytes + group.view.extension.scales_offset))[i] = 0x3C00;
    seal_head(&group);
    try_scales(&group, 0x43FF, TRF_OK);         /* just below 4 */
    try_scales(&group, 0x4400, TRF_ERR_HEADER); /* 4 * 2^126 is infinite */
    free(channel.bytes);
    free(group.bytes);
    free(scaled.bytes);
}
END_TEST

START_TEST(bytes_between_sections) {
    static const char *const names[] = {ONE, MODES, GROUP, SCALED, "scaled_fp8_block_all_offsets", "e5m2_272x273_grid"};
    blob b = read_golden(names[_i]);
    const trf_extension *x = &b.view.extension;
    const uint64_t begins[4] = {x->scales_offset, x->row_offsets_offset, x->col_offsets_offset, x->data_offset};
    const uint64_t sizes[4] = {x->scales_bytes, x->row_offsets_bytes, x->col_offsets_bytes, 1};
    uint64_t end = TRF_TILES_OFFSET + 32 * b.view.num_tiles, between = 0;
    for (int i = 0; i < 4; i++) {
        for (uint64_t at = end; sizes[i] && at < begins[i]; at++, between++)
            try_head(&b, at, 1, 0x80, 1, TRF_ERR_HEADER, at);
        end = sizes[i] ? begins[i] + sizes[i] : end;
    }
    ck_assert_uint_gt(between, 0);
    free(b.bytes);
}
END_TEST

/* ---- writing heads ---- */

/* All sections are laid out, and the whole head is written, as an encoder of its own did. */
START_TEST(golden_heads_are_written_again) {
    glob_t files;
    ck_assert_int_eq(glob(TRF_TEST_DATA_DIR "/golden/*.trf", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        blob b = read_path(files.gl_pathv[i]);
        const trf_extension *x = &b.view.extension;
        trf_extension again = *x;
        again.frequency_offset = again.tiles_offset = again.scales_offset = again.scales_bytes = 99;
        again.row_offsets_offset = again.row_offsets_bytes = again.col_offsets_offset = again.col_offsets_bytes = 99;
        again.data_offset = 99;
        const trf_head_sections sections = {b.view.scales, x->scales_bytes, b.view.row_offsets, b.view.col_offsets};
        const uint64_t head_bytes = trf_lay_out_sections(&again, &b.view.header, &sections);
        ck_assert_uint_eq(head_bytes, x->data_offset);
        ck_assert_mem_eq(&again, x, sizeof again);
        uint8_t *head = malloc(head_bytes);
        memset(head, 0xA5, head_bytes);
        trf_header header = b.view.header;
        header.head_checksum = 0;
        uint16_t *frequency = malloc(TRF_FREQUENCY_BYTES); /* of exactly this size */
        memcpy(frequency, b.view.frequency, TRF_FREQUENCY_BYTES);
        trf_write_head(&header, &again, frequency, b.view.tiles, &sections, head);
        free(frequency);
        ck_assert_msg(memcmp(head, b.bytes, head_bytes) == 0, "%s", files.gl_pathv[i]);
        ck_assert_uint_eq(header.head_checksum, b.view.header.head_checksum);
        free(head);
        free(b.bytes);
    }
    globfree(&files);
}
END_TEST

START_TEST(widths_of_planes) {
    for (uint32_t raw_bits = 0; raw_bits <= TRF_MAX_RAW_BITS; raw_bits++) {
        uint32_t width[TRF_MAX_PLANES] = {0}, sum = 0;
        const uint32_t count = trf_plane_widths(raw_bits, width);
        for (uint32_t p = 0; p < count; p++) {
            ck_assert(width[p] == 8 || width[p] == 4 || width[p] == 2 || width[p] == 1);
            ck_assert(p == 0 || width[p] < width[p - 1]);
            sum += width[p];
        }
        ck_assert_uint_eq(sum, raw_bits);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("blob_validate");
    TCase *heads = tcase_create("heads");
    tcase_add_loop_test(heads, kinds_of_heads, 0, 7);
    tcase_add_loop_test(heads, scales_and_offsets_of_heads, 1, 6);
    tcase_add_loop_test(heads, a_head_is_wrong_where_it_says, 0, HEAD_FAULTS);
    tcase_add_test(heads, layers_in_other_layouts);
    tcase_add_test(heads, class_values_of_codes);
    tcase_add_loop_test(heads, class_values_differ, 0, 4);
    tcase_add_test(heads, numbers_of_scales);
    tcase_add_test(heads, no_tiles);
    tcase_add_test(heads, bytes_that_are_there);
    tcase_add_test(heads, frequency_tables);
    tcase_add_test(heads, scales);
    tcase_add_loop_test(heads, bytes_between_sections, 0, 6);
    tcase_add_test(heads, golden_heads_are_written_again);
    tcase_add_test(heads, widths_of_planes);
    suite_add_tcase(suite, heads);
    return run_suite(suite);
}
