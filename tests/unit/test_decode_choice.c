/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of how decoding to memory uses a device: pinned, for layers and devices of all sorts. */
#include "common/run_suite.h"
#include "trf_decode_choice.h"

#include <check.h>

enum {
    REFUSED = -1,
    H200_BYTES = 232448, /* of shared memory that a block may opt in to */
    A100_BYTES = 166912,
    L4_BYTES = 101376
};

/* A layer with its default p unless p says otherwise, a device, and what is chosen. */
typedef struct pinned_choice {
    uint32_t codec, class_bits, raw_bits, p, slab_cols, max_rans_bytes, max_frequency;
    trf_write_format format;
    uint32_t slabs;
    int aligned;
    uint32_t multiprocessors;
    int shared_bytes;
    /* REFUSED, or trf_write_method; then the rest. */
    int method, default_p;
    uint32_t warps, table_log;
} pinned_choice;

static const pinned_choice kPinned[] = {
    {TRF_CODEC_BF16, 2, 10, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_WRITE_GATHERED, 1, 13,
     15},
    {TRF_CODEC_BF16, 2, 10, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 0, 132, H200_BYTES, TRF_WRITE_SCALAR, 1, 16,
     15},
    {TRF_CODEC_BF16, 2, 10, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 2048, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 1, 16,
     15},
    {TRF_CODEC_BF16, 2, 10, 0, 128, 512, 240, TRF_WRITE_F32, 1000, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 1, 16, 16},
    {TRF_CODEC_BF16, 2, 10, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 100000, 1, 132, H200_BYTES, TRF_WRITE_GATHERED, 1, 11,
     15},
    {TRF_CODEC_BF16, 2, 10, 0, 256, 912, 300, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 0, 16,
     16},
    {TRF_CODEC_BF16, 2, 10, 12, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 0, 16,
     16},
    {TRF_CODEC_BF16, 2, 10, 0, 256, 12000, 200, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 0, 8,
     14},
    {TRF_CODEC_BF16, 2, 10, 0, 256, 60000, 200, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, REFUSED, 0, 0, 0},
    {TRF_CODEC_BF16, 2, 10, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 108, A100_BYTES, TRF_WRITE_GATHERED, 1, 10,
     15},
    {TRF_CODEC_BF16, 2, 10, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 58, L4_BYTES, TRF_WRITE_VECTOR, 0, 16, 14},
    {TRF_CODEC_BF16, 4, 8, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_WRITE_GATHERED, 1, 16,
     15},
    {TRF_CODEC_BF16, 4, 8, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 2048, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 1, 16, 15},
    {TRF_CODEC_BF16, 4, 8, 0, 128, 512, 240, TRF_WRITE_F32, 1000, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 1, 16, 16},
    {TRF_CODEC_BF16, 4, 8, 0, 256, 912, 300, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 0, 16, 16},
    {TRF_CODEC_BF16, 4, 8, 0, 256, 12000, 200, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 0, 8,
     14},
    {TRF_CODEC_BF16, 4, 8, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 108, A100_BYTES, TRF_WRITE_GATHERED, 1, 10,
     15},
    {TRF_CODEC_BF16, 4, 8, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 58, L4_BYTES, TRF_WRITE_VECTOR, 1, 16, 15},
    {TRF_CODEC_FP16, 2, 13, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_WRITE_GATHERED, 1, 13,
     15},
    {TRF_CODEC_FP16, 2, 13, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 2048, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 1, 16,
     15},
    {TRF_CODEC_FP16, 2, 13, 0, 128, 512, 240, TRF_WRITE_ELEMENTS, 1000, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 1, 16,
     15},
    {TRF_CODEC_FP16, 2, 13, 0, 256, 912, 300, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 0, 16,
     16},
    {TRF_CODEC_FP16, 2, 13, 0, 256, 12000, 200, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 0, 4,
     16},
    {TRF_CODEC_FP16, 2, 13, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 108, A100_BYTES, TRF_WRITE_VECTOR, 1, 16,
     15},
    {TRF_CODEC_FP16, 2, 13, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 58, L4_BYTES, TRF_WRITE_VECTOR, 0, 8, 15},
    {TRF_CODEC_E4M3, 2, 6, 0, 256, 912, 200, TRF_WRITE_BYTES, 8192, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 1, 16, 16},
    {TRF_CODEC_E4M3, 2, 6, 0, 256, 912, 200, TRF_WRITE_BF16, 2048, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 1, 16, 16},
    {TRF_CODEC_E4M3, 2, 6, 0, 128, 512, 240, TRF_WRITE_BF16, 1000, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 1, 16, 16},
    {TRF_CODEC_E4M3, 2, 6, 0, 256, 912, 300, TRF_WRITE_BF16, 8192, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 0, 16, 16},
    {TRF_CODEC_E4M3, 2, 6, 0, 256, 12000, 200, TRF_WRITE_BF16, 8192, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 0, 8, 13},
    {TRF_CODEC_E4M3, 2, 6, 0, 256, 912, 200, TRF_WRITE_BF16, 8192, 1, 108, A100_BYTES, TRF_WRITE_VECTOR, 1, 16, 16},
    {TRF_CODEC_E4M3, 2, 6, 0, 256, 912, 200, TRF_WRITE_BF16, 8192, 1, 58, L4_BYTES, TRF_WRITE_VECTOR, 0, 16, 14},
    {TRF_CODEC_E5M2, 4, 3, 0, 256, 912, 200, TRF_WRITE_BYTES, 8192, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 1, 16, 16},
    {TRF_CODEC_E5M2, 4, 3, 0, 256, 912, 200, TRF_WRITE_BF16, 2048, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 1, 16, 16},
    {TRF_CODEC_E5M2, 4, 3, 0, 128, 512, 240, TRF_WRITE_BF16, 1000, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 1, 16, 16},
    {TRF_CODEC_E5M2, 4, 3, 0, 256, 912, 300, TRF_WRITE_BF16, 8192, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 0, 16, 16},
    {TRF_CODEC_E5M2, 4, 3, 0, 256, 12000, 200, TRF_WRITE_BF16, 8192, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 0, 8, 14},
    {TRF_CODEC_E5M2, 4, 3, 0, 256, 912, 200, TRF_WRITE_BF16, 8192, 1, 108, A100_BYTES, TRF_WRITE_VECTOR, 1, 16, 16},
    {TRF_CODEC_E5M2, 4, 3, 0, 256, 912, 200, TRF_WRITE_BF16, 8192, 1, 58, L4_BYTES, TRF_WRITE_VECTOR, 0, 16, 15},
    {TRF_CODEC_INT, 2, 6, 0, 256, 912, 200, TRF_WRITE_BYTES, 8192, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 1, 16, 16},
    {TRF_CODEC_INT, 2, 6, 0, 128, 512, 240, TRF_WRITE_BF16, 1000, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 1, 16, 16},
    {TRF_CODEC_INT, 2, 6, 12, 256, 912, 200, TRF_WRITE_BF16, 8192, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 0, 16, 16},
    {TRF_CODEC_INT, 2, 6, 0, 256, 912, 200, TRF_WRITE_BF16, 8192, 1, 108, A100_BYTES, TRF_WRITE_VECTOR, 1, 16, 16},
    {TRF_CODEC_INT, 4, 4, 0, 256, 912, 200, TRF_WRITE_BYTES, 8192, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 1, 16, 16},
    {TRF_CODEC_INT, 4, 4, 0, 128, 512, 240, TRF_WRITE_BF16, 1000, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 1, 16, 16},
    {TRF_CODEC_INT, 4, 4, 12, 256, 912, 200, TRF_WRITE_BF16, 8192, 1, 132, H200_BYTES, TRF_WRITE_VECTOR, 0, 16, 16},
    {TRF_CODEC_INT, 4, 4, 0, 256, 912, 200, TRF_WRITE_BF16, 8192, 1, 108, A100_BYTES, TRF_WRITE_VECTOR, 1, 16, 16},
    {TRF_CODEC_INT, 2, 8, 0, 256, 912, 200, TRF_WRITE_BYTES, 8192, 1, 132, H200_BYTES, REFUSED, 0, 0, 0},
    {TRF_CODEC_INT, 2, 8, 0, 128, 512, 240, TRF_WRITE_BF16, 1000, 1, 132, H200_BYTES, REFUSED, 0, 0, 0},
    {TRF_CODEC_INT, 2, 8, 12, 256, 912, 200, TRF_WRITE_BF16, 8192, 1, 132, H200_BYTES, REFUSED, 0, 0, 0},
    {TRF_CODEC_INT, 2, 8, 0, 256, 912, 200, TRF_WRITE_BF16, 8192, 1, 108, A100_BYTES, REFUSED, 0, 0, 0},
};

static int choose(const pinned_choice *pinned, trf_decode_choice *chosen) {
    const uint32_t usual = pinned->class_bits == 2 ? TRF_QUADS_PROBABILITY_BITS : TRF_PAIRS_PROBABILITY_BITS;
    const trf_device_view view = {.codec = pinned->codec,
                                  .class_bits = pinned->class_bits,
                                  .raw_bits = pinned->raw_bits,
                                  .probability_bits = pinned->p ? pinned->p : usual,
                                  .state_bits = pinned->p ? pinned->p : usual,
                                  .slab_cols = pinned->slab_cols};
    const trf_layer_traits traits = {.max_rans_bytes = pinned->max_rans_bytes, .max_frequency = pinned->max_frequency};
    return trf_choose_decode_kernel(&view, &traits, pinned->format, pinned->slabs, pinned->aligned,
                                    pinned->multiprocessors, pinned->shared_bytes, chosen);
}

START_TEST(choices_are_pinned) {
    const pinned_choice *pinned = &kPinned[_i];
    trf_decode_choice chosen;
    ck_assert_int_eq(choose(pinned, &chosen), pinned->method != REFUSED);
    if (pinned->method == REFUSED)
        return;
    ck_assert_int_eq(chosen.method, pinned->method);
    ck_assert_int_eq(chosen.default_p, pinned->default_p);
    ck_assert_uint_eq(chosen.warps, pinned->warps);
    ck_assert_uint_eq(chosen.smem.table_log, pinned->table_log);
    ck_assert_uint_le(chosen.smem.total + TRF_STATIC_SMEM_BYTES, (uint32_t)pinned->shared_bytes);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("decode_choice");
    TCase *tests = tcase_create("decode_choice");
    tcase_add_loop_test(tests, choices_are_pinned, 0, (int)(sizeof kPinned / sizeof kPinned[0]));
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
