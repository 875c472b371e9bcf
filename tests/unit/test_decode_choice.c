/* SPDX-License-Identifier: Apache-2.0 */
/* Pins down how decoding to memory chooses to use a device, for layers and devices of all kinds. */
#include "common/run_suite.h"
#include "trf_decode_choice.h"

#include <check.h>

enum {
    REFUSED = -1,
    H200_BYTES = 232448, /* of shared memory that a block may have on request */
    A100_BYTES = 166912,
    L4_BYTES = 101376
};

/* A layer, with its default p unless p says otherwise; a device; and what is chosen. */
typedef struct pinned_choice {
    uint32_t codec, class_bits, raw_bits, p, slab_cols, max_rans_bytes, max_frequency;
    trf_write_format format;
    uint32_t num_slabs;
    int aligned;
    uint32_t multiprocessors;
    int shared_bytes;
    /* REFUSED, or a trf_write_method and the rest. */
    int method, default_p;
    uint32_t warps, table_log;
} pinned_choice;

static const pinned_choice kPinned[] = {
    {TRF_CODEC_BF16, 2, 10, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_METHOD_GATHERED, 1, 13,
     15},
    {TRF_CODEC_BF16, 2, 10, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 0, 132, H200_BYTES, TRF_METHOD_SCALAR, 1, 16,
     15},
    {TRF_CODEC_BF16, 2, 10, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 2048, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 1, 16,
     15},
    {TRF_CODEC_BF16, 2, 10, 0, 128, 512, 240, TRF_WRITE_F32, 1000, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 1, 16, 16},
    {TRF_CODEC_BF16, 2, 10, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 100000, 1, 132, H200_BYTES, TRF_METHOD_GATHERED, 1,
     11, 15},
    {TRF_CODEC_BF16, 2, 10, 0, 256, 912, 300, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 0, 16,
     16},
    {TRF_CODEC_BF16, 2, 10, 12, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 0, 16,
     16},
    {TRF_CODEC_BF16, 2, 10, 0, 256, 12000, 200, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 0, 8,
     14},
    {TRF_CODEC_BF16, 2, 10, 0, 256, 60000, 200, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, REFUSED, 0, 0, 0},
    {TRF_CODEC_BF16, 2, 10, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 108, A100_BYTES, TRF_METHOD_GATHERED, 1, 10,
     15},
    {TRF_CODEC_BF16, 2, 10, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 58, L4_BYTES, TRF_METHOD_VECTOR, 0, 16, 14},
    {TRF_CODEC_BF16, 4, 8, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_METHOD_GATHERED, 1, 16,
     15},
    {TRF_CODEC_BF16, 4, 8, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 2048, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 1, 16,
     15},
    {TRF_CODEC_BF16, 4, 8, 0, 128, 512, 240, TRF_WRITE_F32, 1000, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 1, 16, 16},
    {TRF_CODEC_BF16, 4, 8, 0, 256, 912, 300, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 0, 16,
     16},
    {TRF_CODEC_BF16, 4, 8, 0, 256, 12000, 200, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 0, 8,
     14},
    {TRF_CODEC_BF16, 4, 8, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 108, A100_BYTES, TRF_METHOD_GATHERED, 1, 10,
     15},
    {TRF_CODEC_BF16, 4, 8, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 58, L4_BYTES, TRF_METHOD_VECTOR, 1, 16, 15},
    {TRF_CODEC_FP16, 2, 13, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_METHOD_GATHERED, 1, 13,
     15},
    {TRF_CODEC_FP16, 2, 13, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 2048, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 1, 16,
     15},
    {TRF_CODEC_FP16, 2, 13, 0, 128, 512, 240, TRF_WRITE_ELEMENTS, 1000, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 1, 16,
     15},
    {TRF_CODEC_FP16, 2, 13, 0, 256, 912, 300, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 0, 16,
     16},
    {TRF_CODEC_FP16, 2, 13, 0, 256, 12000, 200, TRF_WRITE_ELEMENTS, 8192, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 0, 4,
     16},
    {TRF_CODEC_FP16, 2, 13, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 108, A100_BYTES, TRF_METHOD_VECTOR, 1, 16,
     15},
    {TRF_CODEC_FP16, 2, 13, 0, 256, 912, 200, TRF_WRITE_ELEMENTS, 8192, 1, 58, L4_BYTES, TRF_METHOD_VECTOR, 0, 8, 15},
    {TRF_CODEC_E4M3, 2, 6, 0, 256, 912, 200, TRF_WRITE_BYTES, 8192, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 1, 16, 16},
    {TRF_CODEC_E4M3, 2, 6, 0, 256, 912, 200, TRF_WRITE_BF16, 2048, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 1, 16, 16},
    {TRF_CODEC_E4M3, 2, 6, 0, 128, 512, 240, TRF_WRITE_BF16, 1000, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 1, 16, 16},
    {TRF_CODEC_E4M3, 2, 6, 0, 256, 912, 300, TRF_WRITE_BF16, 8192, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 0, 16, 16},
    {TRF_CODEC_E4M3, 2, 6, 0, 256, 12000, 200, TRF_WRITE_BF16, 8192, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 0, 8, 13},
    {TRF_CODEC_E4M3, 2, 6, 0, 256, 912, 200, TRF_WRITE_BF16, 8192, 1, 108, A100_BYTES, TRF_METHOD_VECTOR, 1, 16, 16},
    {TRF_CODEC_E4M3, 2, 6, 0, 256, 912, 200, TRF_WRITE_BF16, 8192, 1, 58, L4_BYTES, TRF_METHOD_VECTOR, 0, 16, 14},
    {TRF_CODEC_E5M2, 4, 3, 0, 256, 912, 200, TRF_WRITE_BYTES, 8192, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 1, 16, 16},
    {TRF_CODEC_E5M2, 4, 3, 0, 256, 912, 200, TRF_WRITE_BF16, 2048, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 1, 16, 16},
    {TRF_CODEC_E5M2, 4, 3, 0, 128, 512, 240, TRF_WRITE_BF16, 1000, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 1, 16, 16},
    {TRF_CODEC_E5M2, 4, 3, 0, 256, 912, 300, TRF_WRITE_BF16, 8192, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 0, 16, 16},
    {TRF_CODEC_E5M2, 4, 3, 0, 256, 12000, 200, TRF_WRITE_BF16, 8192, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 0, 8, 14},
    {TRF_CODEC_E5M2, 4, 3, 0, 256, 912, 200, TRF_WRITE_BF16, 8192, 1, 108, A100_BYTES, TRF_METHOD_VECTOR, 1, 16, 16},
    {TRF_CODEC_E5M2, 4, 3, 0, 256, 912, 200, TRF_WRITE_BF16, 8192, 1, 58, L4_BYTES, TRF_METHOD_VECTOR, 0, 16, 15},
    {TRF_CODEC_INT, 2, 6, 0, 256, 912, 200, TRF_WRITE_BYTES, 8192, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 1, 16, 16},
    {TRF_CODEC_INT, 2, 6, 0, 128, 512, 240, TRF_WRITE_BF16, 1000, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 1, 16, 16},
    {TRF_CODEC_INT, 2, 6, 12, 256, 912, 200, TRF_WRITE_BF16, 8192, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 0, 16, 16},
    {TRF_CODEC_INT, 2, 6, 0, 256, 912, 200, TRF_WRITE_BF16, 8192, 1, 108, A100_BYTES, TRF_METHOD_VECTOR, 1, 16, 16},
    {TRF_CODEC_INT, 4, 4, 0, 256, 912, 200, TRF_WRITE_BYTES, 8192, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 1, 16, 16},
    {TRF_CODEC_INT, 4, 4, 0, 128, 512, 240, TRF_WRITE_BF16, 1000, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 1, 16, 16},
    {TRF_CODEC_INT, 4, 4, 12, 256, 912, 200, TRF_WRITE_BF16, 8192, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 0, 16, 16},
    {TRF_CODEC_INT, 4, 4, 0, 256, 912, 200, TRF_WRITE_BF16, 8192, 1, 108, A100_BYTES, TRF_METHOD_VECTOR, 1, 16, 16},
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
    const trf_decode_request request = {.regular_slabs = pinned->num_slabs,
                                        .matrices = 1,
                                        .format = pinned->format,
                                        .aligned = pinned->aligned,
                                        .multiprocessors = pinned->multiprocessors,
                                        .shared_bytes = pinned->shared_bytes};
    return trf_choose_decode_kernel(&view, &traits, &request, chosen);
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

/* ---- experts ---- */

/* Experts with their default p, a device, and what is chosen. If method is REFUSED, no method takes all of them. */
typedef struct pinned_experts {
    uint32_t codec, class_bits, raw_bits, max_frequency;
    trf_write_format format;
    uint32_t num_slabs, matrices;
    int aligned;
    uint32_t multiprocessors;
    int shared_bytes;
    int method;
    uint32_t warps, pieces, blocks;
} pinned_experts;

static const pinned_experts kPinnedExperts[] = {
    {TRF_CODEC_BF16, 2, 10, 200, TRF_WRITE_ELEMENTS, 192, 128, 1, 132, H200_BYTES, TRF_METHOD_GATHERED, 12, 16, 132},
    {TRF_CODEC_BF16, 4, 8, 200, TRF_WRITE_ELEMENTS, 192, 128, 1, 132, H200_BYTES, TRF_METHOD_GATHERED, 16, 12, 132},
    {TRF_CODEC_FP16, 2, 13, 200, TRF_WRITE_ELEMENTS, 192, 128, 1, 132, H200_BYTES, TRF_METHOD_GATHERED, 12, 16, 132},
    {TRF_CODEC_BF16, 2, 10, 200, TRF_WRITE_ELEMENTS, 192, 128, 0, 132, H200_BYTES, TRF_METHOD_SCALAR, 16, 12, 132},
    {TRF_CODEC_BF16, 2, 10, 200, TRF_WRITE_ELEMENTS, 192, 8, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 16, 16, 128},
    {TRF_CODEC_BF16, 2, 10, 200, TRF_WRITE_ELEMENTS, 192, 1, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 16, 132, 132},
    {TRF_CODEC_BF16, 2, 10, 200, TRF_WRITE_ELEMENTS, 3, 1000, 1, 132, H200_BYTES, TRF_METHOD_VECTOR, 16, 1, 132},
    {TRF_CODEC_BF16, 2, 10, 200, TRF_WRITE_ELEMENTS, 192, 128, 1, 108, A100_BYTES, TRF_METHOD_GATHERED, 10, 20, 108},
    {TRF_CODEC_FP16, 2, 13, 200, TRF_WRITE_ELEMENTS, 192, 128, 1, 108, A100_BYTES, TRF_METHOD_VECTOR, 16, 12, 108},
    {TRF_CODEC_BF16, 4, 8, 200, TRF_WRITE_ELEMENTS, 192, 128, 1, 58, L4_BYTES, TRF_METHOD_VECTOR, 16, 12, 58},
    /* no kernel: no slabs; a frequent symbol; other outputs; other codecs; no space for this p */
    {TRF_CODEC_BF16, 2, 10, 200, TRF_WRITE_ELEMENTS, 0, 128, 1, 132, H200_BYTES, REFUSED, 0, 0, 0},
    {TRF_CODEC_BF16, 2, 10, 300, TRF_WRITE_ELEMENTS, 192, 128, 1, 132, H200_BYTES, REFUSED, 0, 0, 0},
    {TRF_CODEC_BF16, 2, 10, 200, TRF_WRITE_F32, 192, 128, 1, 132, H200_BYTES, REFUSED, 0, 0, 0},
    {TRF_CODEC_BF16, 2, 10, 200, TRF_WRITE_NONE, 192, 128, 1, 132, H200_BYTES, REFUSED, 0, 0, 0},
    {TRF_CODEC_E4M3, 2, 6, 200, TRF_WRITE_BYTES, 192, 128, 1, 132, H200_BYTES, REFUSED, 0, 0, 0},
    {TRF_CODEC_E5M2, 4, 3, 200, TRF_WRITE_ELEMENTS, 192, 128, 1, 132, H200_BYTES, REFUSED, 0, 0, 0},
    {TRF_CODEC_INT, 2, 6, 200, TRF_WRITE_ELEMENTS, 192, 128, 1, 132, H200_BYTES, REFUSED, 0, 0, 0},
    {TRF_CODEC_BF16, 2, 10, 200, TRF_WRITE_ELEMENTS, 192, 128, 1, 58, L4_BYTES, REFUSED, 0, 0, 0},
};

static int choose_experts(const pinned_experts *pinned, trf_expert_decode_choice *chosen) {
    const uint32_t p = pinned->class_bits == 2 ? TRF_QUADS_PROBABILITY_BITS : TRF_PAIRS_PROBABILITY_BITS;
    const trf_device_view view = {.codec = pinned->codec,
                                  .class_bits = pinned->class_bits,
                                  .raw_bits = pinned->raw_bits,
                                  .probability_bits = p,
                                  .state_bits = p,
                                  .slab_cols = 256};
    const trf_layer_traits traits = {.max_rans_bytes = 912, .max_frequency = pinned->max_frequency};
    const trf_decode_request request = {.regular_slabs = pinned->num_slabs,
                                        .matrices = pinned->matrices,
                                        .format = pinned->format,
                                        .aligned = pinned->aligned,
                                        .multiprocessors = pinned->multiprocessors,
                                        .shared_bytes = pinned->shared_bytes};
    return trf_choose_expert_decode(&view, &traits, &request, chosen);
}

START_TEST(choices_for_experts_are_pinned) {
    const pinned_experts *pinned = &kPinnedExperts[_i];
    trf_expert_decode_choice chosen;
    ck_assert_int_eq(choose_experts(pinned, &chosen), pinned->method != REFUSED);
    if (pinned->method == REFUSED)
        return;
    ck_assert_int_eq(chosen.kernel.method, pinned->method);
    ck_assert_uint_eq(chosen.kernel.warps, pinned->warps);
    ck_assert_uint_eq(chosen.pieces, pinned->pieces);
    ck_assert_uint_eq(chosen.blocks, pinned->blocks);
    ck_assert_uint_le(chosen.kernel.smem.total + TRF_STATIC_SMEM_BYTES, (uint32_t)pinned->shared_bytes);
}
END_TEST

/* Pieces follow one another, leave out no slab, and have at most one slab for each warp. */
START_TEST(pieces_of_experts) {
    for (uint32_t num_slabs = 1; num_slabs < 400; num_slabs += 7)
        for (uint32_t matrices = 1; matrices < 300; matrices += 23) {
            const pinned_experts any = {.codec = TRF_CODEC_BF16,
                                        .class_bits = 2,
                                        .raw_bits = 10,
                                        .max_frequency = 200,
                                        .format = TRF_WRITE_ELEMENTS,
                                        .num_slabs = num_slabs,
                                        .matrices = matrices,
                                        .aligned = 1,
                                        .multiprocessors = 132,
                                        .shared_bytes = H200_BYTES};
            trf_expert_decode_choice chosen;
            ck_assert(choose_experts(&any, &chosen));
            ck_assert(chosen.blocks >= 1 && chosen.blocks <= 132);
            ck_assert_uint_eq(trf_piece_begin(num_slabs, chosen.pieces, 0), 0);
            for (uint32_t piece = 0; piece < chosen.pieces; piece++) {
                const uint32_t begin = trf_piece_begin(num_slabs, chosen.pieces, piece),
                               end = trf_piece_begin(num_slabs, chosen.pieces, piece + 1);
                ck_assert(begin < end && end - begin <= chosen.kernel.warps);
            }
            ck_assert_uint_eq(trf_piece_begin(num_slabs, chosen.pieces, chosen.pieces), num_slabs);
        }
}
END_TEST

START_TEST(what_must_be_alike) {
    const trf_device_view view = {.codec = TRF_CODEC_BF16,
                                  .class_bits = 2,
                                  .raw_bits = 10,
                                  .rows = 64,
                                  .cols = 512,
                                  .slab_cols = 256,
                                  .probability_bits = 9,
                                  .state_bits = 9};
    trf_device_view others[8];
    for (int i = 0; i < 8; i++)
        others[i] = view;
    others[0].codec = TRF_CODEC_FP16;
    others[1].class_bits = 4;
    others[2].raw_bits = 8;
    others[3].rows = 96;
    others[4].cols = 256;
    others[5].slab_cols = 128;
    others[6].probability_bits = 10;
    others[7].state_bits = 10;
    for (int i = 0; i < 8; i++)
        ck_assert(!trf_decode_alike(&view, &others[i]));
    others[0] = view;
    others[0].exponent_offset = 3; /* and whatever else may differ between experts */
    ck_assert(trf_decode_alike(&view, &others[0]));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("decode_choice");
    TCase *tests = tcase_create("decode_choice");
    tcase_add_loop_test(tests, choices_are_pinned, 0, (int)(sizeof kPinned / sizeof kPinned[0]));
    tcase_add_loop_test(tests, choices_for_experts_are_pinned, 0,
                        (int)(sizeof kPinnedExperts / sizeof kPinnedExperts[0]));
    tcase_add_test(tests, pieces_of_experts);
    tcase_add_test(tests, what_must_be_alike);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
