/* The choice of a wide product's cut, which needs no device: it comes to a plan that the device has room for, or to a reason. */
#include "common/run_suite.h"
#include "trf_wide.h"

#include <check.h>
#include <string.h>

/* Of plan->choice, as trf_wide.cu has them. */
enum {
    X_ROWS, /* of a block */
    SHARE,  /* blocks that decode for each other */
    SPLITS, /* blocks that cut an item's columns among them */
    CLUSTERS,
    STREAMS /* of decoders */
};

static const trf_device_limits kDevices[] = {{132, 232448, 90, {132, 66, 32, 16}, 0},
                                             {132, 232448, 90, {132, 66, 0, 0}, 0},
                                             {114, 232448, 90, {114, 0, 0, 0}, 0}};
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
                             .num_slab_cols = (cols + slab_cols - 1) / slab_cols,
                             .num_bands = rows / TRF_SLAB_ROWS,
                             .codec = TRF_CODEC_BF16,
                             .class_bits = pairs ? 4 : 2,
                             .raw_bits = pairs ? 8 : 10,
                             .probability_bits = pairs ? 10 : 9,
                             .state_bits = pairs ? 10 : 9};
}

static const trf_device_facts kFacts = {.max_stream_bytes = 1100, .max_frequency = 240, .exceptions_fit_fragments = 1};

static void check_plan(const trf_device_view *view, const trf_device_limits *limits, uint32_t m) {
    trf_linear_plan plan = {.m = m, .x_dtype = TRF_DTYPE_BF16, .y_dtype = TRF_DTYPE_BF16, .path = TRF_PATH_WIDE};
    plan.choice[TRF_PLAN_LAYER] = 77;
    trf_wide_choose(view, &kFacts, limits, &plan);
    const uint32_t *c = plan.choice, blocks = c[SHARE] * c[SPLITS],
                   log_blocks = blocks < 4 ? blocks - 1 : blocks / 4 + 1,
                   row_blocks = (view->rows / TRF_SLAB_ROWS + 3) / 4,
                   x_groups = (m + 128 * c[SHARE] - 1) / (128 * c[SHARE]);
    ck_assert_uint_eq(c[X_ROWS] % 16, 0); /* there are loops for these */
    ck_assert(m <= 64 ? c[X_ROWS] == (m <= 48 ? 48 : 64) : c[X_ROWS] >= 80 && c[X_ROWS] <= 128);
    ck_assert_uint_ge(x_groups * c[SHARE] * c[X_ROWS], m);
    if (m > 64) /* no more than it takes */
        ck_assert_uint_lt(x_groups * c[SHARE] * (c[X_ROWS] - 16), m);
    ck_assert(c[SHARE] == 1 || (c[SHARE] == 2 && m > 128));
    ck_assert(c[SPLITS] == 1 || ((c[SPLITS] == 2 || c[SPLITS] == 4 || c[SPLITS] == 8) && c[SHARE] == 1));
    ck_assert_uint_ge(c[CLUSTERS], 1);
    ck_assert_uint_le(c[CLUSTERS], limits->clusters[log_blocks]);
    ck_assert_uint_le(c[CLUSTERS], row_blocks * x_groups); /* none without an item */
    if (c[SPLITS] > 1)
        ck_assert_uint_eq(c[CLUSTERS], row_blocks * x_groups); /* one item each */
    ck_assert_uint_ge(c[STREAMS], 1);
    ck_assert_uint_le(c[STREAMS], c[X_ROWS] <= 64 ? 6 : c[SHARE] == 1 ? 4 : 8);
    ck_assert_uint_le(c[STREAMS] * c[SPLITS],
                      (view->num_slab_cols + c[SPLITS] - 1) / c[SPLITS] * c[SPLITS]);   /* none idle */
    ck_assert_uint_eq(plan.choice[TRF_PLAN_LAYER], 77);                                 /* not the choice's */
    ck_assert_uint_eq(plan.workspace_bytes, (2ull * m * view->cols + 255) / 256 * 256); /* an aligned copy of x */
    ck_assert_uint_eq(plan.epilogue_workspace_bytes, plan.workspace_bytes + (4ull * m * view->rows + 255) / 256 * 256);
}

/* Quads; pairs have longer streams, and other slabs. */
START_TEST(usual_layers_have_plans) {
    const trf_device_limits *limits = &kDevices[_i / 4];
    for (int i = 0; i < NUM_ROWS * NUM_COLS * NUM_BATCHES; i++) {
        const trf_device_view view = view_of(_i % 2, _i / 2 % 2 ? 128 : 256, kRows[i / NUM_BATCHES / NUM_COLS],
                                             kCols[i / NUM_BATCHES % NUM_COLS]);
        const uint32_t m = kBatches[i % NUM_BATCHES];
        const char *reason = trf_wide_refuses(&view, &kFacts, limits, m, TRF_DTYPE_BF16);
        if (reason)
            ck_abort_msg("%u x %u, m %u: %s", view.rows, view.cols, m, reason);
        check_plan(&view, limits, m);
    }
}
END_TEST

/* Where streams are long, there is room for fewer decoders. */
START_TEST(long_streams_leave_fewer_decoders) {
    const trf_device_view view = view_of(0, 256, 8192, 8192);
    trf_device_facts facts = kFacts;
    uint32_t before = UINT32_MAX;
    for (facts.max_stream_bytes = 1000; facts.max_stream_bytes <= 16000; facts.max_stream_bytes += 1000) {
        trf_linear_plan plan = {.m = 64, .x_dtype = TRF_DTYPE_BF16, .y_dtype = TRF_DTYPE_BF16, .path = TRF_PATH_WIDE};
        ck_assert_ptr_null(trf_wide_refuses(&view, &facts, &kDevices[0], 64, TRF_DTYPE_BF16));
        trf_wide_choose(&view, &facts, &kDevices[0], &plan);
        ck_assert_uint_le(plan.choice[STREAMS], before);
        before = plan.choice[STREAMS];
    }
    ck_assert_uint_eq(before, 1);
}
END_TEST

START_TEST(others_have_reasons) {
    const trf_device_view usual = view_of(0, 256, 4096, 4096);
    trf_device_view view = usual;
    trf_device_facts facts = kFacts;
    trf_device_limits limits = kDevices[0];
    ck_assert_ptr_null(trf_wide_refuses(&view, &facts, &limits, 64, TRF_DTYPE_BF16));
    facts.irregular_weights = 1;
    ck_assert_ptr_nonnull(trf_wide_refuses(&view, &facts, &limits, 64, TRF_DTYPE_BF16));
    facts = kFacts;
    facts.predictor_modes = TRF_PREDICT_ROW;
    ck_assert_ptr_nonnull(trf_wide_refuses(&view, &facts, &limits, 64, TRF_DTYPE_BF16));
    facts = kFacts;
    facts.max_frequency = 256;
    ck_assert_ptr_nonnull(trf_wide_refuses(&view, &facts, &limits, 64, TRF_DTYPE_BF16));
    facts = kFacts;
    facts.max_stream_bytes = 40000; /* two decoders' buffers */
    ck_assert_ptr_nonnull(trf_wide_refuses(&view, &facts, &limits, 64, TRF_DTYPE_BF16));
    facts = kFacts;
    view.probability_bits = 12;
    ck_assert_ptr_nonnull(trf_wide_refuses(&view, &facts, &limits, 64, TRF_DTYPE_BF16));
    view = usual;
    view.granularity = TRF_GRANULARITY_GROUP;
    ck_assert_ptr_nonnull(trf_wide_refuses(&view, &facts, &limits, 64, TRF_DTYPE_BF16));
    view = usual;
    limits.missing_code = TRF_CODE_WIDE;
    ck_assert_ptr_nonnull(strstr(trf_wide_refuses(&view, &facts, &limits, 64, TRF_DTYPE_BF16), "9.0a"));
    limits.missing_code = 0;
    limits.capability = 100; /* its warpgroups are others */
    ck_assert_ptr_nonnull(trf_wide_refuses(&view, &facts, &limits, 64, TRF_DTYPE_BF16));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("wide choice");
    TCase *tests = tcase_create("wide_choice");
    tcase_add_loop_test(tests, usual_layers_have_plans, 0, 4 * NUM_DEVICES);
    tcase_add_test(tests, long_streams_leave_fewer_decoders);
    tcase_add_test(tests, others_have_reasons);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
