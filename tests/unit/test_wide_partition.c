/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a wide product's partition, which needs no device. It gives a partition that the device has room for,
 * or a reason. */
#include "common/planned_devices.h"
#include "common/run_suite.h"
#include "trf_fused_partition.h"
#include "trf_group_partition.h"
#include "trf_wide_partition.h"

#include <check.h>
#include <string.h>

static const trf_device_limits kDevices[] = {
    PLANNED_HOPPER(132, 66, 32, 16),
    PLANNED_HOPPER(132, 66, 0, 0),
    PLANNED_HOPPER(114, 0, 0, 0),
};
static const uint32_t kRows[] = {32, 96, 128, 160, 2048, 8192, 14336, 151936},
                      kCols[] = {64, 128, 512, 1344, 4096, 14336},
                      kBatches[] = {1, 48, 49, 64, 65, 80, 81, 128, 129, 192, 193, 300, 513, 1024, 8192};
enum {
    NUM_DEVICES = sizeof kDevices / sizeof kDevices[0],
    NUM_ROWS = sizeof kRows / sizeof kRows[0],
    NUM_COLS = sizeof kCols / sizeof kCols[0],
    NUM_BATCHES = sizeof kBatches / sizeof kBatches[0]
};

static trf_device_view view_of(int pairs, uint32_t slab_cols, uint32_t rows, uint32_t cols) {
    return (trf_device_view){.rows = rows,
                             .cols = cols,
                             .slab_cols = slab_cols,
                             .num_panels = (cols + slab_cols - 1) / slab_cols,
                             .num_bands = rows / TRF_SLAB_ROWS,
                             .codec = TRF_CODEC_FP16,
                             .class_bits = pairs ? 4 : 2,
                             .raw_bits = pairs ? 11 : 13,
                             .probability_bits = pairs ? 10 : 9,
                             .state_bits = pairs ? 10 : 9};
}

static const trf_layer_traits kTraits = {.max_rans_bytes = 1100, .max_frequency = 240, .exceptions_fit_fragments = 1};

static trf_wide_partition choose(const trf_device_view *view, const trf_layer_traits *traits,
                                 const trf_device_limits *limits, uint32_t m, int has_bias) {
    const trf_product product = {
        .m = m, .x_dtype = TRF_DTYPE_F16, .y_dtype = TRF_DTYPE_F16, .has_bias = has_bias, .y_stride = view->rows};
    trf_wide_partition partition;
    memset(&partition, 0xA5, sizeof partition); /* choosing must fill all of it */
    trf_wide_choose(view, traits, limits, &product, &partition);
    return partition;
}

static void check_plan(const trf_device_view *view, const trf_device_limits *limits, uint32_t m) {
    const trf_wide_partition c = choose(view, &kTraits, limits, m, 0), with_bias = choose(view, &kTraits, limits, m, 1);
    const uint32_t blocks = c.decoding_blocks * c.k_splits, log_blocks = blocks < 4 ? blocks - 1 : blocks / 4 + 1,
                   row_blocks = (view->rows / TRF_SLAB_ROWS + 3) / 4,
                   x_ranges = (m + 128 * c.decoding_blocks - 1) / (128 * c.decoding_blocks);
    ck_assert_uint_eq(c.x_rows % 16, 0); /* there are loops for these */
    ck_assert(m <= 64 ? c.x_rows == (m <= 48 ? 48 : 64) : c.x_rows >= 80 && c.x_rows <= 128);
    ck_assert_uint_ge(x_ranges * c.decoding_blocks * c.x_rows, m);
    if (m > 64) /* no more than it takes */
        ck_assert_uint_lt(x_ranges * c.decoding_blocks * (c.x_rows - 16), m);
    ck_assert(c.decoding_blocks == 1 || (c.decoding_blocks == 2 && m > 128));
    ck_assert(c.k_splits == 1 || ((c.k_splits == 2 || c.k_splits == 4 || c.k_splits == 8) && c.decoding_blocks == 1));
    ck_assert_uint_ge(c.clusters, 1);
    ck_assert_uint_le(c.clusters, limits->clusters_of[1u << log_blocks]);
    ck_assert_uint_le(c.clusters, row_blocks * x_ranges); /* none without a work item */
    if (c.k_splits > 1)
        ck_assert_uint_eq(c.clusters, row_blocks * x_ranges); /* one work item each */
    ck_assert_uint_ge(c.producers, 1);
    ck_assert_uint_le(c.producers, c.x_rows <= 64 ? 6 : c.decoding_blocks == 1 ? 4 : 8);
    ck_assert_uint_le(c.producers * c.k_splits,
                      (view->num_panels + c.k_splits - 1) / c.k_splits * c.k_splits); /* none idle */
    ck_assert_uint_eq(c.workspace_bytes, (2ull * m * view->cols + 255) / 256 * 256);  /* an aligned copy of x */
    ck_assert_uint_eq(with_bias.workspace_bytes, c.workspace_bytes + (4ull * m * view->rows + 255) / 256 * 256);
    ck_assert_mem_eq(&c, &with_bias, offsetof(trf_wide_partition, workspace_bytes));
}

/* Usual layers with quads; pairs have longer rANS streams, and other slabs. */
START_TEST(usual_layers_have_plans) {
    const trf_device_limits *limits = &kDevices[_i / 4];
    for (int i = 0; i < NUM_ROWS * NUM_COLS * NUM_BATCHES; i++) {
        const trf_device_view view = view_of(_i % 2, _i / 2 % 2 ? 128 : 256, kRows[i / NUM_BATCHES / NUM_COLS],
                                             kCols[i / NUM_BATCHES % NUM_COLS]);
        const uint32_t m = kBatches[i % NUM_BATCHES];
        const char *reason = trf_wide_refusal(&view, &kTraits, limits, m, TRF_DTYPE_F16);
        if (reason)
            ck_abort_msg("%u x %u, m %u: %s", view.rows, view.cols, m, reason);
        check_plan(&view, limits, m);
    }
}
END_TEST

/* If rANS streams are long, there is room for fewer decoders. */
START_TEST(long_streams_leave_fewer_decoders) {
    const trf_device_view view = view_of(0, 256, 8192, 8192);
    trf_layer_traits traits = kTraits;
    uint32_t before = UINT32_MAX;
    for (traits.max_rans_bytes = 1000; traits.max_rans_bytes <= 16000; traits.max_rans_bytes += 1000) {
        ck_assert_ptr_null(trf_wide_refusal(&view, &traits, &kDevices[0], 64, TRF_DTYPE_F16));
        const trf_wide_partition c = choose(&view, &traits, &kDevices[0], 64, 0);
        ck_assert_uint_le(c.producers, before);
        before = c.producers;
    }
    ck_assert_uint_eq(before, 1);
}
END_TEST

/* Scaled FP8 with a scale for each 128x128 weights. */
START_TEST(scaled_fp8_has_reasons_of_its_own) {
    trf_device_view usual = view_of(0, 256, 4096, 4096), view;
    trf_layer_traits traits = kTraits;
    usual.codec = TRF_CODEC_E4M3;
    usual.source_dtype = TRF_DTYPE_BF16;
    usual.raw_bits = 6;
    usual.granularity = TRF_GRANULARITY_SCALE_BLOCK;
    usual.scale_group_size = 128;
    usual.scale_cols = 32;
    traits.scales_have_pairs = 1;
    view = usual;
    ck_assert_ptr_null(trf_wide_refusal(&view, &traits, &kDevices[0], 64, TRF_DTYPE_BF16));
    ck_assert_ptr_null(trf_group_refusal(&view, &traits, &kDevices[0], 8, TRF_DTYPE_BF16));
    ck_assert_ptr_null(trf_fused_refusal(&view, &traits, &kDevices[0], 8, TRF_DTYPE_BF16));
    trf_device_view unscaled = view;
    unscaled.source_dtype = TRF_DTYPE_F8_E4M3;
    ck_assert(trf_group_fits(&view, &view) && !trf_group_fits(&view, &unscaled));
    ck_assert_ptr_nonnull(strstr(trf_fused_refusal(&view, &traits, &kDevices[0], 8, TRF_DTYPE_F16), "x is not BF16"));
    view.scale_group_size = 192;
    ck_assert_ptr_nonnull(strstr(trf_fused_refusal(&view, &traits, &kDevices[0], 8, TRF_DTYPE_BF16), "of 128"));
    view.granularity = TRF_GRANULARITY_CHANNEL;
    ck_assert_ptr_null(trf_wide_refusal(&view, &traits, &kDevices[0], 64, TRF_DTYPE_BF16));
    traits.scales_have_pairs = 0;
    ck_assert_ptr_nonnull(strstr(trf_fused_refusal(&view, &traits, &kDevices[0], 8, TRF_DTYPE_BF16), "2^-80"));
    traits.scales_have_pairs = 1;
    traits.exceptions_fit_fragments = 0;
    ck_assert_ptr_nonnull(strstr(trf_fused_refusal(&view, &traits, &kDevices[0], 8, TRF_DTYPE_BF16), "exception"));
}
END_TEST

START_TEST(others_have_reasons) {
    const trf_device_view usual = view_of(0, 256, 4096, 4096);
    trf_device_view view = usual;
    trf_layer_traits traits = kTraits;
    trf_device_limits limits = kDevices[0];
    ck_assert_ptr_null(trf_wide_refusal(&view, &traits, &limits, 64, TRF_DTYPE_F16));
    traits.irregular_weights = 1;
    ck_assert_ptr_nonnull(trf_wide_refusal(&view, &traits, &limits, 64, TRF_DTYPE_F16));
    traits = kTraits;
    traits.predictor_modes = TRF_PREDICT_ROW;
    ck_assert_ptr_nonnull(trf_wide_refusal(&view, &traits, &limits, 64, TRF_DTYPE_F16));
    traits = kTraits;
    traits.max_frequency = 256;
    ck_assert_ptr_nonnull(trf_wide_refusal(&view, &traits, &limits, 64, TRF_DTYPE_F16));
    traits = kTraits;
    traits.max_rans_bytes = 40000; /* two decoders' buffers */
    ck_assert_ptr_nonnull(trf_wide_refusal(&view, &traits, &limits, 64, TRF_DTYPE_F16));
    traits = kTraits;
    view.probability_bits = 12;
    ck_assert_ptr_nonnull(trf_wide_refusal(&view, &traits, &limits, 64, TRF_DTYPE_F16));
    view = usual;
    view.granularity = TRF_GRANULARITY_SCALE_GROUP;
    ck_assert_ptr_nonnull(trf_wide_refusal(&view, &traits, &limits, 64, TRF_DTYPE_F16));
    view = usual;
    view.codec = TRF_CODEC_BF16;
    ck_assert_ptr_nonnull(strstr(trf_wide_refusal(&view, &traits, &limits, 64, TRF_DTYPE_BF16), "bf16"));
    view = usual;
    limits.missing_kernels = TRF_KERNELS_SM_90A;
    ck_assert_ptr_nonnull(strstr(trf_wide_refusal(&view, &traits, &limits, 64, TRF_DTYPE_F16), "9.0a"));
    limits.missing_kernels = 0;
    limits.capability = 100; /* its warpgroups are others */
    ck_assert_ptr_nonnull(trf_wide_refusal(&view, &traits, &limits, 64, TRF_DTYPE_F16));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("wide partition");
    TCase *tests = tcase_create("wide_partition");
    tcase_add_loop_test(tests, usual_layers_have_plans, 0, 4 * NUM_DEVICES);
    tcase_add_test(tests, long_streams_leave_fewer_decoders);
    tcase_add_test(tests, scaled_fp8_has_reasons_of_its_own);
    tcase_add_test(tests, others_have_reasons);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
