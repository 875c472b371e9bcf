/* SPDX-License-Identifier: Apache-2.0 */
/* Products of packed layers: the kernels' own code in emulated warps. Weights and x are such small integers that every
 * sum is exact, whatever its order, so y must have the right bits. */
#include <stdio.h>

#ifndef TRF_HAVE_WARP_WALK
int main(void) {
    puts("skipped: kernels are not emulated in this build");
    return 77;
}
#else
#include "common/expect.h"
#include "common/hopper_limits.h"
#include "common/packed_integers.h"
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "trf_epilogue.h"
#include "trf_number_formats.h"
#include "trf_packed_partition.h"
#include "trf_packed_wgmma_sizes.h"
#include "warp/warp_packed_product.h"

#include <check.h>
#include <math.h>

static const uint32_t kCuts[] = {TRF_PACKED_STREAM_K, 1, 2, 3};

typedef struct product_case {
    uint32_t rows, cols, m;
    int multiprocessors; /* few: one k split; many: several */
} product_case;

static const product_case kCases[] = {{1, 1, 1, 132},    {65, 40, 3, 132},   {64, 2100, 8, 132}, {130, 1100, 9, 132},
                                      {70, 2112, 17, 1}, {200, 97, 40, 132}, {66, 3100, 33, 8},  {128, 64, 70, 132}};

static uint16_t bf16_of(double value) { return trf_f32_to_bf16((float)value); }

typedef struct product_run {
    packed_layer layer;
    trf_packed_view view;
    trf_packed_partition partition;
    uint32_t m;
    uint16_t *x;     /* [m][cols] */
    float *exact;    /* [m][rows] */
    void *workspace; /* exactly as large as it must be */
} product_run;

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

static void multiply_exactly(product_run *run) {
    const packed_layer *layer = &run->layer;
    for (uint32_t n = 0; n < run->m; n++)
        for (uint32_t row = 0; row < layer->rows; row++) {
            double sum = 0;
            for (uint32_t col = 0; col < layer->cols; col++)
                sum += (double)trf_bf16_to_f32(layer->weights[(size_t)row * layer->cols + col]) *
                       (double)trf_bf16_to_f32(run->x[(size_t)n * layer->cols + col]);
            run->exact[(size_t)n * layer->rows + row] = (float)sum;
            EXPECT((double)run->exact[(size_t)n * layer->rows + row] == sum);
        }
}

static product_run run_begin(const product_case *of, int kind) {
    test_rng rng = {1000 + of->rows * 7 + (uint64_t)kind};
    product_run run = {.m = of->m};
    run.layer = packed_integers_make(&rng, of->rows, of->cols, kind);
    run.view = trf_packed_view_of(&run.layer.head, run.layer.packed);
    const trf_device_limits limits = {.multiprocessors = of->multiprocessors};
    ck_assert(trf_packed_choose(&run.view, &limits, of->m, &run.partition));
    run.x = allocate(sizeof *run.x * of->m * of->cols);
    run.exact = allocate(sizeof *run.exact * of->m * of->rows);
    run.workspace = allocate(run.partition.workspace_bytes);
    for (size_t i = 0; i < (size_t)of->m * of->cols; i++)
        run.x[i] = bf16_of((double)test_below(&rng, 9) - 4);
    multiply_exactly(&run);
    return run;
}

static void run_end(product_run *run) {
    packed_layer_free(&run->layer);
    free(run->x);
    free(run->exact);
    free(run->workspace);
}

static void multiply(const product_run *run, const trf_epilogue *epilogue, int two_at_once, uint32_t order) {
    const warp_packed_product product = {&run->view,  &run->partition, run->m,    run->x,
                                         two_at_once, run->workspace,  *epilogue, order};
    warp_multiply_packed(&product);
}

/* F32, with a leading dimension: the right bits, and nothing between the rows. */
START_TEST(sums_are_exact) {
    const product_case *of = &kCases[_i / KINDS];
    const int kind = _i % KINDS;
    if (!test_tries(_i / KINDS + kind))
        return;
    product_run run = run_begin(of, kind);
    if (kind & WITH_STORED && of->cols > 1000)
        ck_assert_uint_gt(run.view.num_stored, 0);
    if (of->rows > 1)
        ck_assert_uint_eq(run.view.zeroing, (kind & WITH_ZEROS) != 0);
    if (of->multiprocessors > 1 && of->cols > 2000)
        ck_assert_uint_gt(run.partition.k_splits, 1);
    const uint32_t stride = of->rows + 3;
    float *y = allocate(sizeof *y * stride * of->m);
    const trf_epilogue epilogue = {.y = y, .y_stride = stride, .y_dtype = TRF_DTYPE_F32};
    for (int two_at_once = 0; two_at_once <= (of->cols % 2 == 0); two_at_once++) {
        memset(y, 0xAB, sizeof *y * stride * of->m);
        multiply(&run, &epilogue, two_at_once, (uint32_t)(_i + two_at_once));
        for (uint32_t n = 0; n < of->m; n++)
            for (uint32_t row = 0; row < stride; row++) {
                uint32_t found = trf_f32_bits(y[(size_t)n * stride + row]);
                if (row >= of->rows)
                    EXPECT(found == 0xABABABAB);
                else if (y[(size_t)n * stride + row] != run.exact[(size_t)n * of->rows + row])
                    ck_abort_msg("kind %d, %ux%u, y[%u][%u]: %g instead of %g", kind, of->rows, of->cols, n, row,
                                 (double)y[(size_t)n * stride + row], (double)run.exact[(size_t)n * of->rows + row]);
            }
    }
    free(y);
    run_end(&run);
}
END_TEST

static uint32_t bits_of(float value, trf_dtype dtype) {
    return dtype == TRF_DTYPE_F32    ? trf_f32_bits(value)
           : dtype == TRF_DTYPE_BF16 ? trf_f32_to_bf16(value)
                                     : (uint32_t)trf_f32_to_f16(value);
}

enum {
    MOST_WARPS = 48
}; /* of an emulated cluster */

/* Bulk kernels: each shape with each number of x tiles; stream-K with few blocks and with more blocks than tiles, the
 * others with clusters of one, two and three blocks. */
START_TEST(bulk_sums_are_exact) {
    static const product_case cases[] = {{70, 100, 3, 132},    {600, 97, 8, 132},  {130, 1100, 13, 132},
                                         {300, 2112, 30, 132}, {64, 704, 64, 132}, {520, 300, 50, 132}};
    const int shape = _i % TRF_PACKED_BULK_SHAPES, number = _i / TRF_PACKED_BULK_SHAPES % 6,
              kind = _i * 7 / TRF_PACKED_BULK_SHAPES % KINDS;
    const product_case *of = &cases[number];
    if (!test_tries(_i))
        return;
    product_run run = run_begin(of, kind);
    trf_packed_partition bulk;
    const trf_device_limits limits = hopper_limits();
    if (!trf_packed_choose_shape(&run.view, &limits, of->m, shape,
                                 shape == TRF_PACKED_BULK_256 ? TRF_PACKED_STREAM_K : 1, &bulk)) {
        run_end(&run);
        return;
    }
    float *y = allocate(sizeof *y * of->rows * of->m);
    const uint32_t all = bulk.tiles * bulk.k_blocks, blocks[] = {1, 2, 3, all < 7 ? all : 7};
    for (int b = 0; b < (trf_packed_bulk_is_stream_k(shape) ? 4 : 3); b++) {
        const uint32_t warps = trf_packed_bulk_warps(shape) + TRF_PACKED_PRODUCER_WARPS;
        if (blocks[b] > all || (!trf_packed_bulk_is_stream_k(shape) && warps * blocks[b] > MOST_WARPS))
            continue;
        void *workspace =
            allocate(trf_packed_handover_bytes(blocks[b], trf_packed_bulk_acc_tiles(shape, bulk.x_tiles)));
        memset(y, 0xAB, sizeof *y * of->rows * of->m);
        const trf_epilogue epilogue = {.y = y, .y_stride = of->rows, .y_dtype = TRF_DTYPE_F32};
        const warp_packed_product product = {&run.view, &bulk,     run.m,    run.x,
                                             0,         workspace, epilogue, (uint32_t)(_i + b)};
        warp_multiply_packed_bulk(&product, shape, bulk.x_tiles, blocks[b]);
        for (size_t i = 0; i < (size_t)of->m * of->rows; i++)
            if (y[i] != run.exact[i])
                ck_abort_msg("shape %d, %u blocks, kind %d, %ux%u, y[%zu][%zu]: %g instead of %g", shape, blocks[b],
                             kind, of->rows, of->cols, i / of->rows, i % of->rows, (double)y[i], (double)run.exact[i]);
        free(workspace);
    }
    free(y);
    run_end(&run);
}
END_TEST

/* Groups: three layers that differ in rows, columns, batch and type of y, in one launch of each kernel with clusters of
 * one, two and three blocks. */
START_TEST(group_sums_are_exact) {
    enum {
        COUNT = 3
    };
    static const product_case cases[][COUNT] = {{{70, 1100, 3, 132}, {300, 97, 8, 132}, {33, 704, 1, 132}},
                                                {{64, 2112, 13, 132}, {2, 9, 2, 132}, {130, 300, 16, 132}},
                                                {{300, 1056, 30, 132}, {65, 40, 1, 132}, {64, 520, 32, 132}}};
    static const trf_dtype y_dtypes[COUNT] = {TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16};
    const uint32_t cluster_size = 1 + (uint32_t)_i / 9;
    const int number = _i % 3, shape = TRF_PACKED_BULK_128 + _i / 3 % 3, kind = _i * 5 % KINDS;
    if (!test_tries(_i) ||
        (trf_packed_bulk_warps(shape) + TRF_PACKED_PRODUCER_WARPS) * cluster_size > (uint32_t)MOST_WARPS)
        return;
    product_run runs[COUNT];
    warp_packed_product products[COUNT];
    uint32_t *y[COUNT];
    for (int i = 0; i < COUNT; i++) {
        const product_case *of = &cases[number][i];
        runs[i] = run_begin(of, kind);
        ck_assert_uint_eq(runs[i].view.zeroing, (kind & WITH_ZEROS) != 0); /* one kernel takes all of them */
        const size_t bytes = sizeof **y * of->rows * of->m;
        y[i] = allocate(bytes);
        memset(y[i], 0xAB, bytes);
        const trf_epilogue epilogue = {.y = y[i], .y_stride = of->rows, .y_dtype = (uint32_t)y_dtypes[i]};
        products[i] = (warp_packed_product){&runs[i].view, NULL, of->m, runs[i].x, 0, NULL, epilogue, (uint32_t)_i};
    }
    warp_multiply_packed_group(products, COUNT, shape, 1u << number, cluster_size);
    for (int i = 0; i < COUNT; i++) {
        const product_case *of = &cases[number][i];
        for (size_t at = 0; at < (size_t)of->m * of->rows; at++) {
            const uint32_t found = y_dtypes[i] == TRF_DTYPE_F32 ? y[i][at] : ((const uint16_t *)y[i])[at];
            if (found != bits_of(runs[i].exact[at], y_dtypes[i]))
                ck_abort_msg("shape %d, clusters of %u, kind %d, layer %d, y[%zu][%zu]: %x instead of %x", shape,
                             cluster_size, kind, i, at / of->rows, at % of->rows, found,
                             bits_of(runs[i].exact[at], y_dtypes[i]));
        }
        free(y[i]);
        run_end(&runs[i]);
    }
}
END_TEST

/* wgmma kernels: each shape, cut in each way, on devices with so few multiprocessors that blocks have several tiles and
 * share others, with fronts (one block may have the backs of several) and without. y is F32 and BF16 in turns; it is
 * written 16 bytes at a time if rows are a multiple of 8, and in the last two layers blocks write several whole tiles
 * so. */
static const product_case kWgmmaCases[] = {{70, 100, 65, 3},   {136, 608, 100, 2}, {300, 97, 130, 5},
                                           {64, 2112, 96, 2},  {200, 1100, 3, 3},  {130, 70, 300, 7},
                                           {200, 900, 70, 5},  {270, 2000, 40, 8}, {270, 2000, 40, 12},
                                           {264, 328, 200, 2}, {392, 200, 150, 3}};
enum {
    NUM_WGMMA_CASES = sizeof kWgmmaCases / sizeof *kWgmmaCases
};

static void expect_exact(const product_run *run, const void *y, uint32_t stride, int is_bf16, const char *what) {
    for (uint32_t n = 0; n < run->m; n++)
        for (uint32_t row = 0; row < stride; row++) {
            const size_t at = (size_t)n * stride + row;
            const float sum = row < run->layer.rows ? run->exact[(size_t)n * run->layer.rows + row] : 0;
            const uint32_t found = is_bf16 ? ((const uint16_t *)y)[at] : ((const uint32_t *)y)[at],
                           guard = is_bf16 ? 0xABAB : 0xABABABAB, zero = is_bf16 ? 0x8000 : 0x80000000;
            uint32_t expected = row >= run->layer.rows ? guard : is_bf16 ? trf_f32_to_bf16(sum) : trf_f32_bits(sum);
            if (found != expected && (found | zero) != (expected | zero))
                ck_abort_msg("%s, %ux%u, y[%u][%u]: %08x instead of %08x", what, run->layer.rows, run->layer.cols, n,
                             row, found, expected);
        }
}

START_TEST(wgmma_sums_are_exact) {
    const int shape = TRF_PACKED_WGMMA_64 + _i % TRF_PACKED_WGMMA_SHAPES, round = _i / TRF_PACKED_WGMMA_SHAPES,
              number = round % NUM_WGMMA_CASES, kind = (_i + 7 * round) % KINDS;
    const product_case *of = &kWgmmaCases[number];
    if (!test_tries(_i))
        return;
    product_run run = run_begin(of, kind);
    const uint32_t stride = of->rows + 8;
    void *y = allocate(4 * (size_t)stride * of->m);
    for (int i = 0; i < 4; i++) {
        trf_device_limits limits = hopper_limits();
        trf_packed_partition partition;
        limits.multiprocessors = of->multiprocessors;
        if (!trf_packed_choose_shape(&run.view, &limits, of->m, shape, kCuts[i], &partition))
            continue;
        const int is_bf16 = (i + number) % 2;
        void *workspace = allocate(partition.workspace_bytes - partition.handover_offset);
        const trf_epilogue epilogue = {.y = y, .y_stride = stride, .y_dtype = is_bf16 ? TRF_DTYPE_BF16 : TRF_DTYPE_F32};
        const warp_packed_product product = {&run.view, &partition, run.m,    run.x,
                                             0,         workspace,  epilogue, (uint32_t)(_i + i)};
        char what[80];
        memset(y, 0xAB, 4 * (size_t)stride * of->m);
        warp_multiply_packed_wgmma(&product, &partition);
        snprintf(what, sizeof what, "shape %d, cut %d, kind %d, m %u", shape, (int)kCuts[i], kind, of->m);
        expect_exact(&run, y, stride, is_bf16, what);
        free(workspace);
    }
    free(y);
    run_end(&run);
}
END_TEST

/* Multiplies by the general kernel (way 0 and 1), or by a wgmma kernel, cut in each way. */
static void multiply_in_way(const product_run *run, const trf_epilogue *epilogue, int way, uint32_t order) {
    trf_device_limits limits = hopper_limits();
    trf_packed_partition partition;
    limits.multiprocessors = 3;
    if (way < 2) {
        multiply(run, epilogue, 0, order);
        return;
    }
    ck_assert(trf_packed_choose_shape(&run->view, &limits, run->m,
                                      TRF_PACKED_WGMMA_64 + 5 * way % TRF_PACKED_WGMMA_SHAPES, kCuts[way - 2],
                                      &partition));
    void *workspace = allocate(partition.workspace_bytes - partition.handover_offset);
    const warp_packed_product product = {&run->view, &partition, run->m, run->x, 0, workspace, *epilogue, order};
    warp_multiply_packed_wgmma(&product, &partition);
    free(workspace);
}

/* Everything that may follow a sum, with one k split and with several. The multiplier is y. */
START_TEST(epilogues) {
    static const trf_dtype dtypes[] = {TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16};
    const int way = _i / 3;
    const product_case *of = way == 2 ? &kWgmmaCases[1] : &kCases[way ? 3 : 2];
    const trf_dtype dtype = dtypes[_i % 3];
    const size_t value_bytes = trf_dtype_bytes(dtype), count = (size_t)of->m * of->rows;
    product_run run = run_begin(of, WITH_OUTLIERS);
    uint8_t *y = allocate(value_bytes * count), *before = allocate(value_bytes * count),
            *bias = allocate(value_bytes * of->rows);
    for (size_t i = 0; i < count; i++) {
        const uint32_t bits = bits_of((float)(i % 13) / 4 - 1, dtype);
        memcpy(before + i * value_bytes, &bits, value_bytes);
    }
    for (size_t i = 0; i < of->rows; i++) {
        const uint32_t bits = bits_of((float)(i % 5) - 2, dtype);
        memcpy(bias + i * value_bytes, &bits, value_bytes);
    }
    memcpy(y, before, value_bytes * count);
    const trf_epilogue epilogue = {.y = y,
                                   .bias = bias,
                                   .multiplier = y,
                                   .residual = before,
                                   .y_stride = of->rows,
                                   .multiplier_stride = of->rows,
                                   .residual_stride = of->rows,
                                   .activation = TRF_ACTIVATION_SILU,
                                   .y_dtype = (uint32_t)dtype};
    multiply_in_way(&run, &epilogue, way, (uint32_t)_i);
    trf_epilogue reference = epilogue;
    reference.multiplier = before;
    for (uint32_t n = 0; n < of->m; n++)
        for (uint32_t row = 0; row < of->rows; row++) {
            const size_t at = (size_t)n * of->rows + row;
            const trf_epilogue_inputs inputs = trf_epilogue_inputs_of(&reference, n, row);
            const uint32_t expected =
                bits_of(trf_apply_epilogue(TRF_ACTIVATION_SILU, &inputs, (uint32_t)dtype, run.exact[at]), dtype);
            uint32_t found = 0;
            memcpy(&found, y + at * value_bytes, value_bytes);
            EXPECT(found == expected);
        }
    free(y);
    free(before);
    free(bias);
    run_end(&run);
}
END_TEST

/* Infinities and NaNs of W and of x reach the sums that have them, and no others. */
START_TEST(specials) {
    const product_case of = {70, 100, 9, 132};
    product_run run = run_begin(&of, 0);
    packed_layer *layer = &run.layer;
    trf_error err;
    layer->weights[5 * 100 + 99] = 0x7F80;
    layer->weights[69 * 100 + 3] = 0xFFC1;
    ck_assert(packed_layer_pack(layer, NULL, &err) == TRF_OK);
    run.view = trf_packed_view_of(&layer->head, layer->packed);
    for (uint32_t col = 0; col < 100; col++)
        run.x[7 * 100 + col] = bf16_of(1);
    run.x[8 * 100 + 40] = 0x7FC0;
    float *y = allocate(sizeof *y * 70 * 9);
    const trf_epilogue epilogue = {.y = y, .y_stride = 70, .y_dtype = TRF_DTYPE_F32};
    multiply(&run, &epilogue, 1, 3);
    for (uint32_t n = 0; n < 9; n++)
        for (uint32_t row = 0; row < 70; row++) {
            const float value = y[n * 70 + row];
            if (n == 8 || row == 69 || (row == 5 && trf_bf16_to_f32(run.x[n * 100 + 99]) == 0))
                EXPECT(isnan(value));
            else if (row == 5)
                EXPECT(isinf(value) && (value > 0) == (trf_bf16_to_f32(run.x[n * 100 + 99]) > 0));
            else
                EXPECT(n == 7 || value == run.exact[n * 70 + row]);
        }
    free(y);
    run_end(&run);
}
END_TEST

/* Whatever lies in lines, tiles and stored tiles, nothing outside the buffer is read (the address sanitizer checks),
 * and products end. */
START_TEST(garbage_stays_inside) {
    product_run run = run_begin(&kCases[3], WITH_OUTLIERS | WITH_STORED | (_i % 2 ? WITH_ZEROS : 0));
    test_rng rng = {77 + (uint64_t)_i};
    const trf_packed_head head = run.layer.head;
    for (uint64_t at = head.lines_offset; at < head.common.buffer_bytes; at++)
        if (_i / 2 % 3 == 0 || test_below(&rng, 16) == 0)
            run.layer.packed[at] = (uint8_t)test_random(&rng);
    float *y = allocate(sizeof *y * run.m * run.layer.rows);
    const trf_epilogue epilogue = {.y = y, .y_stride = run.layer.rows, .y_dtype = TRF_DTYPE_F32};
    multiply_in_way(&run, &epilogue, _i < 6 ? 0 : _i < 8 ? 3 : 4, (uint32_t)_i);
    free(y);
    run_end(&run);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("packed_product_warp");
    TCase *tests = tcase_create("packed_product_warp");
    tcase_add_loop_test(tests, sums_are_exact, 0, KINDS * (int)(sizeof kCases / sizeof *kCases));
    tcase_add_loop_test(tests, bulk_sums_are_exact, 0, TRF_PACKED_BULK_SHAPES * 12);
    tcase_add_loop_test(tests, group_sums_are_exact, 0, 27);
    tcase_add_loop_test(tests, wgmma_sums_are_exact, 0, TRF_PACKED_WGMMA_SHAPES * NUM_WGMMA_CASES);
    tcase_add_loop_test(tests, epilogues, 0, 18);
    tcase_add_test(tests, specials);
    tcase_add_loop_test(tests, garbage_stays_inside, 0, 12);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
#endif
