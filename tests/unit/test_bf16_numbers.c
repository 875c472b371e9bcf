/* SPDX-License-Identifier: Apache-2.0 */
/* F32 tensors in which every weight is a BF16 number: they are found, compressed without loss, and given back bit for
 * bit. Also tensors in which one weight, wherever it is, is not a BF16 number. */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "trf_safetensors.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static trf_error err;
static const char *source, *compressed, *back;

#define COUNT(array) (int)(sizeof array / sizeof array[0])

enum {
    ROWS = 700, /* more than one piece of a megabyte */
    COLS = 520
};

/* Writes a file with the F32 tensors "a.weight", a matrix, and "e.up", experts, which both have BF16 numbers, and one
 * tensor that has others. */
static void write_source(void) {
    static const fixture_tensor tensors[] = {{"a.weight", "F32", {ROWS, COLS}, 2, 0},
                                             {"e.up", "F32", {3, 64, 96}, 3, 0},
                                             {"more.weight", "F32", {64, 64}, 2, 0},
                                             {"norm", "F32", {64}, 1, 0}};
    source = fixture_path("source.safetensors");
    compressed = fixture_path("compressed.safetensors");
    back = fixture_path("back.safetensors");
    fixture_write_safetensors(source, NULL, tensors, 4, 8, 7);
}

/* Offset of the first weight in the file. */
static size_t data_of(const uint8_t *bytes) {
    uint64_t header;
    memcpy(&header, bytes, sizeof header);
    return (size_t)(8 + header);
}

static void cut_low_bits(uint8_t *weights, size_t count) {
    for (size_t i = 0; i < count; i++)
        memset(weights + 4 * i, 0, 2);
}

/* Makes the first two tensors BF16 numbers, and sets one weight of the first. at: its number; SIZE_MAX: none. */
static void prepare(size_t at, uint32_t bits) {
    size_t bytes;
    write_source();
    uint8_t *file = fixture_read(source, &bytes), *weights = file + data_of(file);
    cut_low_bits(weights, ROWS * COLS + 3 * 64 * 96);
    if (at != SIZE_MAX)
        memcpy(weights + 4 * at, &bits, sizeof bits);
    fixture_write(source, file, bytes);
    free(file);
}

static trf_checkpoint_report compress_with(trf_codec codec) {
    trf_checkpoint_report report;
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.codec = codec;
    options.encode.threads = 3;
    fixture_check_status(trf_compress_checkpoint(source, compressed, &options, &report, &err), TRF_OK, &err);
    return report;
}

static trf_checkpoint_report verify(void) {
    trf_checkpoint_report report;
    fixture_check_status(trf_verify_checkpoint(compressed, source, NULL, &report, &err), TRF_OK, &err);
    return report;
}

static const uint32_t kExact[] = {0x00000000u, 0x80000000u, 0x00010000u, 0x807F0000u, 0x7F800000u,
                                  0xFF800000u, 0x7FC00000u, 0xFFC10000u, 0x7FFF0000u, 0x7F7F0000u};

START_TEST(bf16_numbers_are_compressed) {
    prepare(12345, kExact[_i]);
    trf_checkpoint_report report = compress_with(TRF_CODEC_AUTO);
    ck_assert_uint_eq(report.compressed_tensors, 2);
    ck_assert_uint_eq(report.widened_tensors, 2);
    ck_assert_uint_eq(report.rounded_tensors, 0);
    ck_assert_double_eq(report.relative_rms_error, 0);
    ck_assert_uint_eq(report.left[TRF_LEFT_F32].tensors, 1);
    ck_assert_msg(strstr(report.warning, "dtype=torch.bfloat16") != NULL, "%s", report.warning);
    report = verify();
    ck_assert_uint_eq(report.widened_tensors, 2);
    ck_assert_uint_eq(report.rounded_tensors, 0);
    ck_assert_double_eq(report.relative_rms_error, 0);
    fixture_check_status(trf_decompress_checkpoint(compressed, back, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_same(source, back);
}
END_TEST

static const struct {
    size_t at;
    uint32_t bits;
} kOthers[] = {
    {ROWS * COLS - 1, 0x3F800001u},
    {ROWS * COLS - 1, 0x3F808000u},
    {0, 0x00000001u},
    {262144, 0x3F800100u},
    {100 * COLS + 7, 0xBF80FFFFu},
    {5000, 0x7FC00001u},
    {5001, 0x7F810000u}, /* a NaN that the encoder would quieten */
};

START_TEST(one_other_weight_leaves_the_tensor) {
    prepare(kOthers[_i].at, kOthers[_i].bits);
    const trf_checkpoint_report report = compress_with(TRF_CODEC_AUTO);
    ck_assert_uint_eq(report.compressed_tensors, 1);
    ck_assert_uint_eq(report.widened_tensors, 1);
    ck_assert_uint_eq(report.left[TRF_LEFT_F32].tensors, 2);
    ck_assert_uint_eq(report.left[TRF_LEFT_F32].bytes, 4 * (ROWS * COLS + 64 * 64));
    verify();
    fixture_check_status(trf_decompress_checkpoint(compressed, back, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_same(source, back);
}
END_TEST

START_TEST(a_tensor_that_is_named_has_to_fit) {
    const char *const names[] = {"a.weight", NULL};
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.include = names;
    prepare(_i ? ROWS * COLS - 1 : SIZE_MAX, 0x3F800001u);
    const trf_status status = trf_compress_checkpoint(source, compressed, &options, NULL, &err);
    fixture_check_status(status, _i ? TRF_ERR_ARGUMENT : TRF_OK, &err);
    if (_i)
        ck_assert_msg(strstr(err.message, "'a.weight'") && strstr(err.message, "no lossless codec"), "%s", err.message);
    ck_assert_int_eq(fixture_exists(compressed), !_i);
}
END_TEST

/* With the codec bf16, tensors that stay equal count as equal, and only the others as rounded. */
START_TEST(only_what_is_rounded_is_called_so) {
    prepare(SIZE_MAX, 0);
    trf_checkpoint_report report = compress_with(TRF_CODEC_BF16);
    ck_assert_uint_eq(report.compressed_tensors, 3);
    ck_assert_uint_eq(report.widened_tensors, 2);
    ck_assert_uint_eq(report.rounded_tensors, 1);
    const double error = report.relative_rms_error;
    ck_assert_double_gt(error, 1e-4);
    report = verify();
    ck_assert_uint_eq(report.widened_tensors, 2);
    ck_assert_uint_eq(report.rounded_tensors, 1);
    ck_assert_double_eq_tol(report.relative_rms_error, error, 1e-9);
}
END_TEST

/* A folder whose config.json says "auto" is lossless, and verify requires that, with and without the source. */
START_TEST(a_folder_that_is_lossless_is_held_to_it) {
    static const char config[] = "{\"model_type\": \"a\", \"dtype\": \"float32\"}";
    prepare(SIZE_MAX, 0);
    const char *folder = fixture_path("folder"), *out = fixture_path("out");
    fixture_make_folder(folder);
    size_t bytes;
    uint8_t *file = fixture_read(source, &bytes);
    fixture_write(fixture_path("folder/model.safetensors"), file, bytes);
    fixture_write(fixture_path("folder/config.json"), config, sizeof config - 1);
    fixture_check_status(trf_compress_checkpoint(folder, out, NULL, NULL, &err), TRF_OK, &err);
    trf_checkpoint_report report;
    fixture_check_status(trf_verify_checkpoint(out, NULL, NULL, &report, &err), TRF_OK, &err);
    ck_assert_uint_eq(report.widened_tensors, 2);
    ck_assert_uint_eq(report.rounded_tensors, 0);
    file[data_of(file) + 4 * 77] ^= 1; /* it would still round to the stored weight */
    fixture_write(fixture_path("folder/model.safetensors"), file, bytes);
    free(file);
    fixture_check_status(trf_verify_checkpoint(out, folder, NULL, NULL, &err), TRF_ERR_MISMATCH, &err);
}
END_TEST

START_TEST(a_dry_run_says_the_same) {
    trf_checkpoint_report report;
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.dry_run = 1;
    prepare(SIZE_MAX, 0);
    fixture_check_status(trf_compress_checkpoint(source, compressed, &options, &report, &err), TRF_OK, &err);
    ck_assert(!fixture_exists(compressed));
    ck_assert_uint_eq(report.compressed_tensors, 2);
    ck_assert_uint_eq(report.widened_tensors, 2);
    ck_assert_uint_eq(report.left[TRF_LEFT_F32].tensors, 1);
    ck_assert_uint_eq(report.left[TRF_LEFT_NO_MATRIX].tensors, 1);
    ck_assert_msg(strstr(report.warning, "dtype=torch.bfloat16") != NULL, "%s", report.warning);
}
END_TEST

START_TEST(tensors_without_weights_stay) {
    static const fixture_tensor tensors[] = {{"a.weight", "F32", {0, 64}, 2, 0}, {"b.weight", "F32", {64, 64}, 2, 0}};
    source = fixture_path("empty.safetensors");
    compressed = fixture_path("empty-out.safetensors");
    fixture_write_safetensors(source, NULL, tensors, 2, 8, 7);
    const trf_checkpoint_report report = compress_with(TRF_CODEC_AUTO);
    ck_assert_uint_eq(report.compressed_tensors, 0);
    fixture_check_same(source, compressed);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("bf16_numbers");
    TCase *tests = tcase_create("bf16_numbers");
    tcase_add_checked_fixture(tests, fixture_begin, fixture_end);
    tcase_add_loop_test(tests, bf16_numbers_are_compressed, 0, COUNT(kExact));
    tcase_add_loop_test(tests, one_other_weight_leaves_the_tensor, 0, COUNT(kOthers));
    tcase_add_loop_test(tests, a_tensor_that_is_named_has_to_fit, 0, 2);
    tcase_add_test(tests, only_what_is_rounded_is_called_so);
    tcase_add_test(tests, a_folder_that_is_lossless_is_held_to_it);
    tcase_add_test(tests, a_dry_run_says_the_same);
    tcase_add_test(tests, tensors_without_weights_stay);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
