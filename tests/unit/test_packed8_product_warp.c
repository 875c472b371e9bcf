/* SPDX-License-Identifier: Apache-2.0 */
/* Products of packed FP8 layers: the kernels' own code in emulated warps, against sums that are exact. */
#include <stdio.h>

#ifndef TRF_HAVE_WARP_WALK
int main(void) {
    puts("skipped: kernels are not emulated in this build");
    return 77;
}
#else
#include "common/expect.h"
#include "common/hopper_limits.h"
#include "common/packed8_product.h"
#include "common/run_suite.h"
#include "trf_epilogue.h"
#include "trf_packed_bulk_sizes.h"
#include "trf_packed_partition.h"
#include "warp/warp_packed_product.h"

#include <check.h>

enum {
    MOST_WARPS = 48, /* of an emulated cluster */
    CASES = 6
};

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

/* Multiplies by the kernel of a shape, with so many blocks (stream-K) or clusters of so many, and checks y. @return 0
 * if there is no such kernel. flags: the kernel's. */
static int try_shape(const packed8_product *p, uint32_t flags, int shape, uint32_t blocks, trf_dtype dtype,
                     uint32_t order) {
    const trf_packed8_view view = trf_packed8_view_of(&p->layer.head, p->layer.packed);
    const trf_device_limits limits = hopper_limits();
    const int is_stream_k = trf_packed_bulk_is_stream_k(shape);
    const uint32_t warps = trf_packed_bulk_warps(shape) + TRF_PACKED_PRODUCER_WARPS, stride = p->layer.rows + 3;
    trf_packed_partition bulk;
    if (!trf_packed8_choose_shape(&view, &limits, p->m, shape, is_stream_k ? TRF_PACKED_STREAM_K : 1, &bulk))
        return 0;
    if (blocks > bulk.tiles * bulk.k_blocks || (!is_stream_k && warps * blocks > MOST_WARPS))
        return 0;
    const size_t count = (size_t)stride * p->m;
    uint8_t *y = allocate(4 * count);
    void *workspace = allocate(trf_packed_handover_bytes(blocks, trf_packed_bulk_acc_tiles(shape, bulk.x_tiles)));
    memset(y, 0xAB, 4 * count);
    const trf_epilogue epilogue = {.y = y, .y_stride = stride, .y_dtype = (uint32_t)dtype};
    const warp_packed_product product = {&view.packed, &bulk, p->m, p->x, 0, workspace, epilogue, order};
    char what[80];
    snprintf(what, sizeof what, "shape %d, %u blocks, flags %u", shape, blocks, flags);
    warp_multiply_packed8_bulk(&product, flags, shape, bulk.x_tiles, blocks);
    packed8_product_check(p, y, dtype, stride, what);
    const size_t bytes = dtype == TRF_DTYPE_F32 ? 4 : 2;
    for (uint32_t n = 0; n < p->m; n++)
        for (size_t i = (n * stride + p->layer.rows) * bytes; i < (n + 1) * stride * bytes; i++)
            EXPECT(y[i] == 0xAB);
    free(workspace);
    free(y);
    return 1;
}

/* Each shape with each number of x tiles and each kind of layer; stream-K with few blocks and with more blocks than
 * tiles, the others with clusters of one, two and three blocks. */
START_TEST(sums_are_exact) {
    static const uint32_t cases[CASES][3] = {{70, 100, 3},    {600, 97, 8},  {130, 1100, 13},
                                             {300, 2112, 30}, {64, 704, 64}, {520, 300, 50}};
    static const uint32_t blocks[] = {1, 2, 3, 7};
    const int shape = _i % TRF_PACKED_BULK_SHAPES, number = _i / TRF_PACKED_BULK_SHAPES % CASES,
              kind = _i / TRF_PACKED_BULK_SHAPES / CASES;
    const uint32_t *of = cases[number];
    if (!test_tries(_i))
        return;
    test_rng rng = {100 + (uint64_t)_i};
    packed8_product p = packed8_product_make(&rng, of[0], of[1], of[2], kind);
    ck_assert_uint_eq(p.layer.head.flags, kind == BY_ONE   ? 0
                                          : kind == BY_TWO ? TRF_PACKED8_HAS_LOW
                                                           : TRF_PACKED8_HAS_LOW | TRF_PACKED8_HAS_RECORDS);
    int tried = 0;
    for (int b = 0; b < (trf_packed_bulk_is_stream_k(shape) ? 4 : 3); b++)
        tried += try_shape(&p, p.layer.head.flags, shape, blocks[b],
                           b == 1   ? TRF_DTYPE_BF16
                           : b == 2 ? TRF_DTYPE_F16
                                    : TRF_DTYPE_F32,
                           (uint32_t)(_i + b));
    EXPECT((tried > 0) == (of[2] <= 32 || shape == TRF_PACKED_BULK_256 || shape == TRF_PACKED_BULK_32));
    packed8_product_free(&p);
}
END_TEST

/* Kernels that do more than a layer needs give the same sums. */
START_TEST(kernels_for_more_than_there_is) {
    test_rng rng = {5};
    packed8_product p = packed8_product_make(&rng, 130, 1100, 5, BY_ONE);
    for (uint32_t flags = 0; flags <= TRF_PACKED8_ALL_FLAGS; flags++)
        EXPECT(try_shape(&p, flags, TRF_PACKED_BULK_64, 1, TRF_DTYPE_F32, flags));
    packed8_product_free(&p);
}
END_TEST

/* Every code, with scales of classes in turn: products that pick single weights. _i: which classes, and the kernel. */
START_TEST(single_weights) {
    if (!test_tries(_i))
        return;
    test_rng rng = {40 + (uint64_t)_i};
    packed8_product p = packed8_product_make_classes(&rng, 128, 512, 32, (uint32_t)_i * 251);
    static const uint32_t flags[] = {TRF_PACKED8_HAS_LOW, TRF_PACKED8_ALL_FLAGS};
    for (uint32_t col = 0; col + p.m <= p.layer.cols; col += p.m) {
        packed8_product_pick(&p, col);
        EXPECT(try_shape(&p, flags[_i % 2], TRF_PACKED_BULK_256 + _i, 1, TRF_DTYPE_F32, col));
    }
    packed8_product_free(&p);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("packed8_product_warp");
    TCase *tcase = tcase_create("all");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, sums_are_exact, 0, TRF_PACKED_BULK_SHAPES * CASES * PACKED8_KINDS);
    tcase_add_test(tcase, kernels_for_more_than_there_is);
    tcase_add_loop_test(tcase, single_weights, 0, TRF_PACKED_BULK_SHAPES);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
#endif
