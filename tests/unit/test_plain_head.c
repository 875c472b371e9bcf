/* SPDX-License-Identifier: Apache-2.0 */
/* Heads of plain layers, and what heads of all layouts have in common: what is written is read again, and every field
 * is checked, with the status and the place of what is wrong. */
#include "common/expect.h"
#include "common/run_suite.h"
#include "trf_plain_head.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    ROWS = 300,
    COLS = 77,
    BUFFER_BYTES = 256 + 2 * ROWS * COLS
};

static const trf_layer_info kInfo = {.rows = ROWS, .cols = COLS, .stored_tiles = 3, .exceptions = 1234567};

static trf_header coded_header(uint32_t codec, uint32_t dtype) {
    return (trf_header){.magic = TRF_MAGIC,
                        .version = TRF_FORMAT_VERSION,
                        .codec = (uint8_t)codec,
                        .source_dtype = (uint8_t)dtype,
                        .class_bits = 2,
                        .raw_bits = 10,
                        .rows = 999,
                        .cols = 888,
                        .num_tile_rows = 4,
                        .num_tile_cols = 5,
                        .probability_bits = 9,
                        .state_bits = 15,
                        .slab_cols = 128,
                        .predictor_modes = 3,
                        .blob_bytes = 123456};
}

static trf_plain_head make_head(uint32_t codec, uint32_t dtype) {
    const trf_header coded = coded_header(codec, dtype);
    trf_plain_head head;
    memset(&head, 0xA5, sizeof head);
    trf_plain_head_write(&coded, &kInfo, &head);
    return head;
}

static trf_status read_head(const trf_plain_head *head, uint64_t bytes, trf_error *err) {
    trf_layer_info info;
    return trf_plain_head_read(head, bytes, &info, err);
}

START_TEST(what_is_written_is_read) {
    static const uint32_t kinds[][2] = {
        {TRF_CODEC_BF16, TRF_DTYPE_BF16}, {TRF_CODEC_BF16, TRF_DTYPE_F32}, {TRF_CODEC_FP16, TRF_DTYPE_F16}};
    const trf_plain_head head = make_head(kinds[_i][0], kinds[_i][1]);
    trf_layer_info info;
    trf_error err;
    memset(&info, 0xA5, sizeof info);
    ck_assert_msg(trf_plain_head_read(&head, BUFFER_BYTES, &info, &err) == TRF_OK, "%s", err.message);
    ck_assert_int_eq(trf_plain_head_read(&head, BUFFER_BYTES + 1, &info, &err), TRF_OK); /* room after it */
    ck_assert(info.rows == ROWS && info.cols == COLS && info.stored_tiles == 3 && info.exceptions == 1234567);
    ck_assert(info.codec == kinds[_i][0] && info.dtype == kinds[_i][1] && info.class_bits == 2 && info.raw_bits == 10);
    ck_assert(info.probability_bits == 9 && info.state_bits == 15 && info.slab_cols == 128);
    ck_assert(info.predictor_modes == 3 && info.blob_bytes == 123456 && info.tiles == 20);
    ck_assert(head.common.magic == TRF_LAYOUT_MAGIC && head.common.layout == TRF_LAYOUT_PLAIN);
    ck_assert(head.common.version == TRF_PLAIN_VERSION && head.common.head_bytes == 256 && head.common.reserved == 0);
    ck_assert(head.common.buffer_bytes == BUFFER_BYTES && head.weight_dtype == trf_plain_dtype(kinds[_i][0]));
}
END_TEST

START_TEST(dtypes_of_codecs) {
    static const trf_dtype dtypes[] = {TRF_DTYPE_NONE, TRF_DTYPE_BF16, TRF_DTYPE_F16,
                                       TRF_DTYPE_NONE, TRF_DTYPE_NONE, TRF_DTYPE_NONE};
    for (uint32_t codec = 0; codec <= 5; codec++)
        ck_assert_int_eq(trf_plain_dtype(codec), dtypes[codec]);
}
END_TEST

/* But for the data checksum, which trf_device_layer_verify compares. */
START_TEST(every_bit_of_a_head_matters) {
    trf_plain_head head = make_head(TRF_CODEC_BF16, TRF_DTYPE_BF16);
    uint8_t *bytes = (uint8_t *)&head;
    for (uint32_t bit = 0; bit < 8 * TRF_DATA_CHECKSUM_OFFSET; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        trf_error err;
        const trf_status status = read_head(&head, BUFFER_BYTES, &err);
        EXPECT(bit < 32 ? status == TRF_ERR_MAGIC && err.offset == 0
                        : status == TRF_ERR_CHECKSUM && err.offset == offsetof(trf_layout_head_common, checksum));
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (uint32_t at = TRF_DATA_CHECKSUM_OFFSET; at < sizeof head; at++)
        bytes[at] ^= 0xFF;
    ck_assert_int_eq(read_head(&head, BUFFER_BYTES, NULL), TRF_OK);
}
END_TEST

typedef struct head_fault {
    size_t at, bytes;
    uint64_t value;
    trf_status status;
    uint64_t offset;
} head_fault;

#define FIELD(name) offsetof(trf_plain_head, name), sizeof((trf_plain_head *)0)->name
#define IN(name) TRF_ERR_HEADER, offsetof(trf_plain_head, name)
#define CODED(name) offsetof(trf_plain_head, coded_header) + offsetof(trf_header, name), sizeof((trf_header *)0)->name
static const head_fault kFaults[] = {
    {FIELD(common.layout), TRF_LAYOUT_PACKED, IN(common.layout)},
    {FIELD(common.version), TRF_PLAIN_VERSION + 1, TRF_ERR_VERSION, offsetof(trf_plain_head, common.version)},
    {FIELD(common.version), TRF_PLAIN_VERSION - 1, TRF_ERR_VERSION, offsetof(trf_plain_head, common.version)},
    {FIELD(common.head_bytes), 255, IN(common.head_bytes)},
    {FIELD(common.head_bytes), 257, IN(common.head_bytes)},
    {FIELD(common.reserved), 1, IN(common.head_bytes)},
    {FIELD(common.buffer_bytes), 255, IN(common.head_bytes)},
    {FIELD(common.buffer_bytes), 256, IN(rows)},
    {FIELD(common.buffer_bytes), BUFFER_BYTES - 2, IN(rows)},
    {FIELD(common.buffer_bytes), BUFFER_BYTES + 1, TRF_ERR_TRUNCATED, BUFFER_BYTES},
    {FIELD(rows), 0, IN(rows)},
    {FIELD(cols), 0, IN(rows)},
    {FIELD(rows), ROWS + 1, IN(rows)},
    {FIELD(cols), COLS - 1, IN(rows)},
    {FIELD(weight_dtype), TRF_DTYPE_NONE, IN(weight_dtype)},
    {FIELD(weight_dtype), TRF_DTYPE_F16, IN(weight_dtype)},
    {CODED(codec), TRF_CODEC_FP16, IN(weight_dtype)},
    {CODED(codec), TRF_CODEC_INT, IN(weight_dtype)},
    {CODED(source_dtype), TRF_DTYPE_F16, IN(weight_dtype)},
    {CODED(magic), TRF_MAGIC + 1, IN(coded_header)},
    {CODED(version), TRF_FORMAT_VERSION + 1, IN(coded_header)},
    {FIELD(reserved0[0]), 1, IN(reserved0[0])},
    {FIELD(reserved0[6]), 0x80, IN(reserved0[6])},
    {FIELD(reserved1[0]), 1, IN(reserved1[0])},
    {FIELD(reserved1[111]), 0x80, IN(reserved1[111])},
};
enum {
    FAULTS = sizeof kFaults / sizeof *kFaults
};

/* The checksum is made to fit, so that each field is checked by itself. */
START_TEST(fields_are_checked) {
    const head_fault *f = &kFaults[_i];
    trf_plain_head head = make_head(TRF_CODEC_BF16, TRF_DTYPE_BF16);
    trf_error err;
    memcpy((uint8_t *)&head + f->at, &f->value, f->bytes);
    head.common.checksum = trf_layout_head_checksum(&head.common);
    ck_assert_int_eq(read_head(&head, BUFFER_BYTES, &err), f->status);
    ck_assert_uint_eq(err.offset, f->offset);
}
END_TEST

/* Where two fields are wrong and agree. */
START_TEST(nothing_at_all) {
    trf_error err;
    for (int columns = 0; columns < 2; columns++) {
        trf_plain_head head = make_head(TRF_CODEC_BF16, TRF_DTYPE_BF16);
        *(columns ? &head.cols : &head.rows) = 0;
        head.common.buffer_bytes = 256;
        head.common.checksum = trf_layout_head_checksum(&head.common);
        ck_assert_int_eq(read_head(&head, BUFFER_BYTES, &err), TRF_ERR_HEADER);
        ck_assert_uint_eq(err.offset, offsetof(trf_plain_head, rows));
    }
    trf_plain_head head = make_head(TRF_CODEC_INT, TRF_DTYPE_NONE); /* of a codec without a plain layout */
    ck_assert_uint_eq(head.weight_dtype, TRF_DTYPE_NONE);
    ck_assert_int_eq(read_head(&head, BUFFER_BYTES, &err), TRF_ERR_HEADER);
    ck_assert_uint_eq(err.offset, offsetof(trf_plain_head, weight_dtype));
}
END_TEST

/* F16 weights are of F16 tensors alone. */
START_TEST(sources_of_f16) {
    trf_plain_head head = make_head(TRF_CODEC_FP16, TRF_DTYPE_F32);
    trf_error err;
    ck_assert_int_eq(read_head(&head, BUFFER_BYTES, &err), TRF_ERR_HEADER);
    ck_assert_uint_eq(err.offset, offsetof(trf_plain_head, weight_dtype));
}
END_TEST

START_TEST(sizes_are_checked) {
    const trf_plain_head head = make_head(TRF_CODEC_BF16, TRF_DTYPE_BF16);
    trf_error err;
    for (uint64_t bytes = 0; bytes < BUFFER_BYTES; bytes += bytes < 257 ? 1 : 229) {
        trf_plain_head *part = malloc(bytes < sizeof head ? bytes + !bytes : sizeof head); /* no more can be read */
        memcpy(part, &head, bytes < sizeof head ? bytes : sizeof head);
        ck_assert_int_eq(read_head(part, bytes, &err), TRF_ERR_TRUNCATED);
        free(part);
        ck_assert_uint_eq(err.offset, bytes);
    }
    trf_plain_head largest = head; /* 4 bytes less than 2^64 */
    largest.rows = 2611277386, largest.cols = 3532130323;
    largest.common.buffer_bytes = UINT64_MAX - 3;
    largest.common.checksum = trf_layout_head_checksum(&largest.common);
    ck_assert_int_eq(read_head(&largest, UINT64_MAX - 3, &err), TRF_OK);
    trf_plain_head large = head; /* rows * cols * 2 + 256 is more than 64 bits hold, and wraps around to 258 */
    large.rows = large.cols = UINT32_MAX;
    large.common.buffer_bytes = trf_plain_buffer_bytes(large.rows, large.cols);
    large.common.checksum = trf_layout_head_checksum(&large.common);
    ck_assert_int_eq(read_head(&large, UINT64_MAX, &err), TRF_ERR_HEADER);
    ck_assert_uint_eq(err.offset, offsetof(trf_plain_head, rows));
}
END_TEST

/* The head's checksum: XXH3-64, seed 0, of its 256 bytes, it and the data's checksum taken as zeros. */
START_TEST(checksums_of_heads) {
    trf_plain_head head;
    memset(&head, 0xA5, sizeof head);
    trf_layout_head_finish(&head.common, TRF_LAYOUT_PACKED, 7, 123456789012345);
    ck_assert(head.common.magic == TRF_LAYOUT_MAGIC && head.common.layout == TRF_LAYOUT_PACKED);
    ck_assert(head.common.version == 7 && head.common.head_bytes == 256 && head.common.reserved == 0);
    ck_assert_uint_eq(head.common.buffer_bytes, 123456789012345);
    uint8_t bytes[256];
    memcpy(bytes, &head, sizeof bytes);
    memset(bytes + offsetof(trf_layout_head_common, checksum), 0, 8);
    memset(bytes + TRF_DATA_CHECKSUM_OFFSET, 0, sizeof(trf_data_checksum));
    ck_assert_uint_eq(head.common.checksum, XXH3_64bits(bytes, sizeof bytes));
}
END_TEST

START_TEST(headers_of_bf16_weights) {
    for (uint32_t rows = 1; rows < 2000; rows++) {
        const trf_header header = trf_layout_bf16_header(rows, rows + 1);
        EXPECT(header.magic == TRF_MAGIC && header.version == TRF_FORMAT_VERSION && header.codec == TRF_CODEC_BF16);
        EXPECT(header.source_dtype == TRF_DTYPE_BF16 && header.tile_size == 256);
        EXPECT(header.rows == rows && header.cols == rows + 1);
        EXPECT(header.num_tile_rows == (rows + 255) / 256 && header.num_tile_cols == (rows + 256) / 256);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("plain_head");
    TCase *tests = tcase_create("plain_head");
    tcase_add_loop_test(tests, what_is_written_is_read, 0, 3);
    tcase_add_test(tests, dtypes_of_codecs);
    tcase_add_test(tests, every_bit_of_a_head_matters);
    tcase_add_loop_test(tests, fields_are_checked, 0, FAULTS);
    tcase_add_test(tests, nothing_at_all);
    tcase_add_test(tests, sources_of_f16);
    tcase_add_test(tests, sizes_are_checked);
    tcase_add_test(tests, checksums_of_heads);
    tcase_add_test(tests, headers_of_bf16_weights);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
