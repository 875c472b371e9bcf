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
#include "trf_packed_wgmma_sizes.h"
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

/* Room for y, with more than the product's rows, and what is checked of it. */
typedef struct y_room {
    uint8_t *at;
    uint32_t stride;
    trf_dtype dtype;
} y_room;

static y_room y_make(const packed8_product *p, uint32_t stride, trf_dtype dtype) {
    const size_t bytes = 4 * (size_t)stride * p->m;
    y_room y = {allocate(bytes), stride, dtype};
    memset(y.at, 0xAB, bytes);
    return y;
}

static void y_check(const packed8_product *p, y_room y, const char *what) {
    const size_t bytes = y.dtype == TRF_DTYPE_F32 ? 4 : 2;
    packed8_product_check(p, y.at, y.dtype, y.stride, what);
    for (uint32_t n = 0; n < p->m; n++)
        for (size_t i = ((size_t)n * y.stride + p->layer.rows) * bytes; i < (size_t)(n + 1) * y.stride * bytes; i++)
            EXPECT(y.at[i] == 0xAB);
    free(y.at);
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
    const y_room y = y_make(p, stride, dtype);
    void *workspace = allocate(trf_packed_handover_bytes(blocks, trf_packed_bulk_acc_tiles(shape, bulk.x_tiles)));
    const trf_epilogue epilogue = {.y = y.at, .y_stride = stride, .y_dtype = (uint32_t)dtype};
    const warp_packed_product product = {&view.packed, &bulk, p->m, p->x, 0, workspace, epilogue, order};
    char what[80];
    snprintf(what, sizeof what, "shape %d, %u blocks, flags %u", shape, blocks, flags);
    warp_multiply_packed8_bulk(&product, flags, shape, bulk.x_tiles, blocks);
    y_check(p, y, what);
    free(workspace);
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

/* ---- groups ---- */

/* Three layers that differ in rows, columns, batch, type of y and kind, in one launch of each kernel with clusters of
 * one and two blocks. */
START_TEST(group_sums_are_exact) {
    enum {
        COUNT = 3
    };
    static const uint32_t cases[][COUNT][3] = {{{70, 1100, 3}, {300, 97, 8}, {33, 704, 1}},
                                               {{64, 2112, 13}, {2, 9, 2}, {130, 300, 16}},
                                               {{300, 1056, 30}, {65, 40, 1}, {64, 520, 32}}};
    static const trf_dtype dtypes[COUNT] = {TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16};
    const int number = _i % 3, shape = TRF_PACKED_BULK_128 + _i / 3 % 3;
    const uint32_t cluster_size = 1 + (uint32_t)_i / 9;
    if (!test_tries(_i))
        return;
    test_rng rng = {4000 + (uint64_t)_i};
    packed8_product of[COUNT];
    trf_packed8_view views[COUNT];
    y_room y[COUNT];
    warp_packed_product products[COUNT];
    uint32_t flags = 0;
    for (int i = 0; i < COUNT; i++) {
        of[i] = packed8_product_make(&rng, cases[number][i][0], cases[number][i][1], cases[number][i][2],
                                     _i % 2 ? (i + _i) % PACKED8_KINDS : BY_ONE + i % 2);
        views[i] = trf_packed8_view_of(&of[i].layer.head, of[i].layer.packed);
        y[i] = y_make(&of[i], of[i].layer.rows, dtypes[i]);
        flags |= views[i].flags;
        const trf_epilogue epilogue = {.y = y[i].at, .y_stride = y[i].stride, .y_dtype = (uint32_t)y[i].dtype};
        products[i] = (warp_packed_product){&views[i].packed, NULL, of[i].m, of[i].x, 0, NULL, epilogue, (uint32_t)_i};
    }
    EXPECT(((flags & TRF_PACKED8_HAS_RECORDS) != 0) == _i % 2);
    warp_multiply_packed8_group(products, COUNT, flags, shape, 1u << number, cluster_size);
    for (int i = 0; i < COUNT; i++) {
        y_check(&of[i], y[i], "a group");
        packed8_product_free(&of[i]);
    }
}
END_TEST

/* ---- wgmma ---- */

/* rows, columns, rows of x, and multiprocessors: so few that blocks have several tiles and share others, with fronts
 * and without. y is written 16 bytes at a time if rows are a multiple of 8. */
static const uint32_t kWgmmaCases[][4] = {
    {70, 100, 65, 3},  {136, 608, 100, 2}, {300, 97, 130, 5},   {64, 2112, 96, 2},  {200, 1100, 3, 3},
    {130, 70, 300, 7}, {270, 2000, 40, 8}, {270, 2000, 40, 12}, {264, 328, 200, 2}, {392, 200, 150, 3}};
enum {
    WGMMA_CASES = sizeof kWgmmaCases / sizeof *kWgmmaCases
};

/* Multiplies by a wgmma kernel in a cut, and checks y. @return 0 if there is no such cut. */
static int try_wgmma(const packed8_product *p, int shape, uint32_t cut, uint32_t multiprocessors, trf_dtype dtype,
                     uint32_t order) {
    const trf_packed8_view view = trf_packed8_view_of(&p->layer.head, p->layer.packed);
    trf_device_limits limits = hopper_limits();
    trf_packed_partition partition;
    limits.multiprocessors = (int)multiprocessors;
    if (!trf_packed8_choose_shape(&view, &limits, p->m, shape, cut, &partition))
        return 0;
    const y_room y = y_make(p, p->layer.rows + 8, dtype);
    void *workspace = allocate(partition.workspace_bytes - partition.handover_offset);
    const trf_epilogue epilogue = {.y = y.at, .y_stride = y.stride, .y_dtype = (uint32_t)dtype};
    const warp_packed_product product = {&view.packed, &partition, p->m, p->x, 0, workspace, epilogue, order};
    char what[80];
    snprintf(what, sizeof what, "%s, cut %s", trf_packed_kernel_name(shape), trf_packed_cut_name(cut));
    warp_multiply_packed8_wgmma(&product, &partition);
    y_check(p, y, what);
    free(workspace);
    return 1;
}

START_TEST(wgmma_sums_are_exact) {
    static const uint32_t cuts[] = {TRF_PACKED_STREAM_K, 1, 2, 3};
    const int shape = TRF_PACKED_WGMMA_64 + _i % TRF_PACKED_WGMMA_SHAPES, round = _i / TRF_PACKED_WGMMA_SHAPES;
    const uint32_t *of = kWgmmaCases[(_i + round) % WGMMA_CASES];
    if (!test_tries(_i))
        return;
    test_rng rng = {3000 + (uint64_t)_i};
    packed8_product p = packed8_product_make(&rng, of[0], of[1], of[2], (_i + _i / 3) % PACKED8_KINDS);
    int tried = 0;
    for (int i = 0; i < 4; i++)
        tried +=
            try_wgmma(&p, shape, cuts[i], of[3], (_i + i) % 2 ? TRF_DTYPE_BF16 : TRF_DTYPE_F32, (uint32_t)(_i + i));
    EXPECT(tried > 0);
    packed8_product_free(&p);
}
END_TEST

/* Every code with scales of classes in turn, by products that pick single weights, 64 at a time. */
START_TEST(wgmma_single_weights) {
    if (!test_tries(_i))
        return;
    test_rng rng = {60 + (uint64_t)_i};
    packed8_product p = packed8_product_make_classes(&rng, 128, 512, 64, (uint32_t)_i * 251);
    for (uint32_t col = 0; col + p.m <= p.layer.cols; col += p.m) {
        packed8_product_pick(&p, col);
        EXPECT(try_wgmma(&p, TRF_PACKED_WGMMA_64 + 3 * _i, 1, 2, TRF_DTYPE_F32, col));
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
    tcase_add_loop_test(tcase, group_sums_are_exact, 0, 18);
    tcase_add_loop_test(tcase, wgmma_sums_are_exact, 0, TRF_PACKED_WGMMA_SHAPES * 2);
    tcase_add_loop_test(tcase, wgmma_single_weights, 0, 4);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
#endif
