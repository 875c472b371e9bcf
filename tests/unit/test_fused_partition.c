/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a fused product's partition, which needs no device. For all kinds of shapes and several devices it
 * gives a partition that the device has room for, or a reason. */
#include "common/expect.h"
#include "common/planned_devices.h"
#include "common/run_suite.h"
#include "trf_fused_partition.h"

#include <check.h>
#include <string.h>

static const trf_device_limits kDevices[] = {
    PLANNED_HOPPER(132, 66, 32, 16), PLANNED_HOPPER(132, 66, 0, 0),   PLANNED_HOPPER(132, 0, 0, 0),
    PLANNED_HOPPER(16, 7, 3, 1),     PLANNED_AMPERE(108, 166912, 80), PLANNED_AMPERE(128, 101376, 89),
    PLANNED_AMPERE(1, 101376, 86),
};
static const uint32_t kRows[] = {1, 31, 32, 33, 100, 1024, 2080, 4096, 8192, 65536, 151936, 1u << 24};
static const uint32_t kCols[] = {1, 48, 64, 100, 128, 256, 300, 1024, 4096, 14336};
static const uint32_t kBatches[] = {1, 2, 8, 9, 16, 17, 32, 33, 64};
enum {
    NUM_DEVICES = sizeof kDevices / sizeof kDevices[0],
    NUM_ROWS = sizeof kRows / sizeof kRows[0],
    NUM_COLS = sizeof kCols / sizeof kCols[0],
    NUM_BATCHES = sizeof kBatches / sizeof kBatches[0],
    NUM_CASES = NUM_ROWS * NUM_COLS * NUM_BATCHES,
    NUM_KINDS = 8 /* of layers, which differ in symbols, p and slabs */
};

static trf_device_view view_of(uint32_t kind, uint32_t rows, uint32_t cols) {
    const uint32_t class_bits = kind & 1 ? 4 : 2, usual_p = class_bits == 2 ? 9 : 10,
                   probability_bits = kind & 2 ? 12 : usual_p, slab_cols = kind & 4 ? 128 : 256;
    return (trf_device_view){.rows = rows,
                             .cols = cols,
                             .num_tile_rows = (rows + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE,
                             .num_tile_cols = (cols + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE,
                             .slab_cols = slab_cols,
                             .num_panels = (cols + slab_cols - 1) / slab_cols,
                             .num_bands = (rows + TRF_SLAB_ROWS - 1) / TRF_SLAB_ROWS,
                             .codec = TRF_CODEC_BF16,
                             .class_bits = class_bits,
                             .raw_bits = class_bits == 2 ? 10 : 8,
                             .probability_bits = probability_bits,
                             .state_bits = probability_bits};
}

static trf_layer_traits traits_of(uint32_t kind) {
    return (trf_layer_traits){.max_rans_bytes = (kind & 1 ? 2832u : 928u) / (kind & 4 ? 2 : 1),
                              .max_frequency = 240,
                              .irregular_weights = 1,
                              .exceptions_fit_fragments = 1};
}

/* Makes one of NUM_CASES. @return the batch. */
static uint32_t case_of(uint32_t kind, uint32_t i, trf_device_view *view) {
    *view = view_of(kind, kRows[i / NUM_BATCHES / NUM_COLS], kCols[i / NUM_BATCHES % NUM_COLS]);
    return kBatches[i % NUM_BATCHES];
}

static trf_fused_partition choose(const trf_device_view *view, const trf_layer_traits *traits,
                                  const trf_device_limits *limits, uint32_t m, int has_bias) {
    const trf_product product = {
        .m = m, .x_dtype = TRF_DTYPE_BF16, .y_dtype = TRF_DTYPE_F16, .has_bias = has_bias, .y_stride = view->rows};
    trf_fused_partition partition;
    memset(&partition, 0xA5, sizeof partition); /* choosing must fill all of it */
    trf_fused_choose(view, traits, limits, &product, &partition);
    return partition;
}

/* Whether two partitions are the same except for their workspaces. */
static int have_one_launch(const trf_fused_partition *a, const trf_fused_partition *b) {
    return memcmp(a, b, offsetof(trf_fused_partition, shared_bytes) + sizeof a->shared_bytes) == 0;
}

/* The workspace holds the edges' sums, if there are edges; x with rows of whole 16 bytes; and what blocks share. The
 * latter is for two groups of each block, with up to 20 warps' units of 64 rows for 8 rows of x, or of 32 rows for up
 * to 64. Each part is a multiple of 256 bytes. */
static void check_plan(const trf_device_view *view, const trf_layer_traits *traits, const trf_device_limits *limits,
                       uint32_t m) {
    const uint64_t edges = 4ull * m * view->rows, x = 2ull * m * view->cols, padded_x = 2ull * m * (view->cols + 8),
                   shared = (uint64_t)limits->multiprocessors * 2 * (m > 8 ? 16 * 32 * 64 * 4 : 20 * 64 * 8 * 4);
    trf_layer_traits whole = *traits;
    whole.irregular_weights = 0;
    const trf_fused_partition plan = choose(view, traits, limits, m, 0), with_bias = choose(view, traits, limits, m, 1),
                              without_edges = choose(view, &whole, limits, m, 0);
    ck_assert_uint_ge(plan.workspace_bytes, edges + x);
    ck_assert_uint_le(plan.workspace_bytes, edges + padded_x + shared + 2 * 256);
    ck_assert_uint_ge(without_edges.workspace_bytes, x);
    ck_assert_uint_le(without_edges.workspace_bytes, padded_x + shared + 256);
    ck_assert_uint_eq(with_bias.workspace_bytes, plan.workspace_bytes + (edges + 255) / 256 * 256); /* the sums */
    ck_assert(plan.shared_bytes + 1024 <= (uint32_t)limits->shared_bytes);
    ck_assert(have_one_launch(&plan, &without_edges) && have_one_launch(&plan, &with_bias));
}

START_TEST(every_shape_has_a_plan_or_a_reason) {
    const uint32_t kind = (uint32_t)_i % NUM_KINDS;
    const trf_device_limits *limits = &kDevices[_i / NUM_KINDS];
    const trf_layer_traits traits = traits_of(kind);
    uint32_t plans = 0;
    for (uint32_t i = 0; i < NUM_CASES; i++) {
        trf_device_view view;
        const uint32_t m = case_of(kind, i, &view);
        const char *reason = trf_fused_refusal(&view, &traits, limits, m, TRF_DTYPE_BF16);
        if (reason) {
            ck_assert_int_gt((int)strlen(reason), 0);
            ck_assert(m > 8 || limits->shared_bytes < 150000); /* batches to 8 fit the larger devices */
        } else {
            check_plan(&view, &traits, limits, m);
            plans++;
        }
    }
    if (limits->shared_bytes > 150000)
        ck_assert_uint_ge(plans, NUM_ROWS * NUM_COLS * 3);
}
END_TEST

/* Clusters are not needed: a device without them takes every product that it would take with them. */
START_TEST(clusters_are_not_needed) {
    const uint32_t kind = (uint32_t)_i;
    const trf_layer_traits traits = traits_of(kind);
    trf_device_limits without = kDevices[0];
    memset(without.clusters_of + 2, 0, sizeof without.clusters_of - 2 * sizeof without.clusters_of[0]);
    for (uint32_t i = 0; i < NUM_CASES; i++) {
        trf_device_view view;
        const uint32_t m = case_of(kind, i, &view);
        const char *reason = trf_fused_refusal(&view, &traits, &kDevices[0], m, TRF_DTYPE_BF16),
                   *reason_without = trf_fused_refusal(&view, &traits, &without, m, TRF_DTYPE_BF16);
        ck_assert_int_eq(!reason, !reason_without);
        if (!reason)
            check_plan(&view, &traits, &without, m);
    }
}
END_TEST

/* A large device takes layers with the default p, whatever their size. */
START_TEST(large_devices_take_usual_layers) {
    const uint32_t kind = (uint32_t)(_i & 1) | (_i & 2 ? 4 : 0);
    const trf_layer_traits traits = traits_of(kind);
    for (uint32_t i = 0; i < NUM_CASES; i++) {
        trf_device_view view;
        const uint32_t m = case_of(kind, i, &view);
        const char *reason = trf_fused_refusal(&view, &traits, &kDevices[0], m, TRF_DTYPE_BF16);
        if (reason)
            ck_abort_msg("%u x %u, slabs of %u, m %u: %s", view.rows, view.cols, view.slab_cols, m, reason);
    }
}
END_TEST

/* A build for other devices may lack kernels that this device could run; they are not chosen. */
START_TEST(missing_code_is_not_chosen) {
    const trf_layer_traits traits = traits_of(0);
    trf_device_limits limits = kDevices[0];
    limits.missing_kernels = TRF_KERNELS_LARGE_SMEM;
    uint32_t plans = 0;
    for (uint32_t i = 0; i < NUM_CASES; i++) {
        trf_device_view view;
        const uint32_t m = case_of(0, i, &view);
        if (trf_fused_refusal(&view, &traits, &limits, m, TRF_DTYPE_BF16))
            continue;
        const trf_fused_partition plan = choose(&view, &traits, &limits, m, 0),
                                  usual = choose(&view, &traits, &kDevices[0], m, 0);
        check_plan(&view, &traits, &limits, m);
        EXPECT(!have_one_launch(&plan, &usual));
        plans++;
    }
    ck_assert_uint_gt(plans, 0);
}
END_TEST

/* Warps take two slabs only if there are kernels for the batch: for up to 32 rows of x with quads, but for up to 8 with
 * pairs and the rarer raw bits of int. */
START_TEST(two_slabs_a_warp_have_kernels) {
    static const struct {
        uint32_t codec, class_bits, raw_bits, most;
    } kinds[] = {{TRF_CODEC_BF16, 2, 10, 32}, {TRF_CODEC_BF16, 4, 8, 8}, {TRF_CODEC_FP16, 2, 13, 32},
                 {TRF_CODEC_E4M3, 2, 6, 32},  {TRF_CODEC_E4M3, 4, 4, 8}, {TRF_CODEC_E5M2, 2, 5, 32},
                 {TRF_CODEC_INT, 2, 6, 32},   {TRF_CODEC_INT, 2, 3, 32}, {TRF_CODEC_INT, 2, 4, 8},
                 {TRF_CODEC_INT, 4, 4, 8}};
    trf_device_view view = view_of(kinds[_i].class_bits == 4, 8192, 8192);
    view.codec = kinds[_i].codec;
    view.raw_bits = kinds[_i].raw_bits;
    const trf_layer_traits traits = traits_of(kinds[_i].class_bits == 4);
    uint32_t taken = 0;
    for (uint32_t m = 1; m <= TRF_FUSED_MAX_M; m++) {
        const trf_dtype x_dtype = view.codec == TRF_CODEC_BF16 ? TRF_DTYPE_BF16 : TRF_DTYPE_F16;
        ck_assert_ptr_null(trf_fused_refusal(&view, &traits, &kDevices[0], m, x_dtype));
        const trf_fused_partition plan = choose(&view, &traits, &kDevices[0], m, 0);
        if (plan.variant == TRF_VARIANT_TWO_SLABS) {
            ck_assert_uint_le(m, kinds[_i].most);
            taken = m;
        }
    }
    if (kinds[_i].most > 8)
        ck_assert_uint_eq(taken, kinds[_i].most);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("fused partition");
    TCase *tests = tcase_create("fused_partition");
    tcase_add_loop_test(tests, every_shape_has_a_plan_or_a_reason, 0, NUM_DEVICES * NUM_KINDS);
    tcase_add_loop_test(tests, clusters_are_not_needed, 0, NUM_KINDS);
    tcase_add_test(tests, missing_code_is_not_chosen);
    tcase_add_loop_test(tests, large_devices_take_usual_layers, 0, 4);
    tcase_add_loop_test(tests, two_slabs_a_warp_have_kernels, 0, 10);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
