/* The choice among the fused kernels, which needs no device: for shapes of all kinds, on several devices, it comes to a plan or to a reason. */
#include "common/run_suite.h"
#include "trf_fused.h"

#include <check.h>
#include <string.h>

static const trf_device_limits kDevices[] = {{132, 232448, 90}, {108, 166912, 80}, {128, 101376, 89}, {1, 101376, 86}};
static const uint32_t kRows[] = {1, 31, 32, 33, 100, 1024, 4096, 8192, 65536, 151936, 1u << 24};
static const uint32_t kCols[] = {1, 48, 64, 100, 256, 300, 4096, 14336};
static const uint32_t kBatches[] = {1, 2, 8, 9, 16, 17, 32, 33, 64};
enum {
    NUM_ROWS = sizeof kRows / sizeof kRows[0],
    NUM_COLS = sizeof kCols / sizeof kCols[0],
    NUM_BATCHES = sizeof kBatches / sizeof kBatches[0]
};

static trf_device_view view_of(uint32_t rows, uint32_t cols, uint32_t class_bits, uint32_t probability_bits) {
    return (trf_device_view){.rows = rows,
                             .cols = cols,
                             .num_tiles_row = (rows + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE,
                             .num_tiles_col = (cols + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE,
                             .num_bands = (rows + TRF_SLAB_ROWS - 1) / TRF_SLAB_ROWS,
                             .codec = TRF_CODEC_BF16,
                             .class_bits = class_bits,
                             .raw_bits = class_bits == 2 ? 10 : 8,
                             .probability_bits = probability_bits,
                             .state_bits = probability_bits};
}

static void check_plan(const trf_device_view *view, const trf_device_facts *facts, const trf_device_limits *limits,
                       uint32_t m) {
    trf_linear_plan plan = {.m = m, .x_dtype = TRF_DTYPE_BF16, .y_dtype = TRF_DTYPE_BF16, .path = TRF_PATH_FUSED};
    const uint64_t sums = 4ull * m * view->rows, x = 2ull * m * (view->cols + 8),
                   blocks = (uint64_t)limits->multiprocessors;
    trf_fused_choose(view, facts, limits, &plan);
    ck_assert_uint_ge(plan.workspace_bytes, TRF_WORKSPACE_COUNTER_BYTES);
    /* Sums of at most 20 warps a block, 64 rows and 64 columns each, twice. */
    ck_assert_uint_le(plan.workspace_bytes,
                      TRF_WORKSPACE_COUNTER_BYTES + sums + x + blocks * 2 * 20 * 64 * 64 * 4 + 2048);
}

START_TEST(every_shape_has_a_plan_or_a_reason) {
    const uint32_t class_bits = _i & 1 ? 4 : 2, probability_bits = _i & 2 ? 12 : class_bits == 2 ? 9 : 10;
    const trf_device_limits *limits = &kDevices[_i / 4];
    const trf_device_facts facts = {.max_stream_bytes = class_bits == 2 ? 928 : 2832,
                                    .max_frequency = 240,
                                    .irregular_weights = 1,
                                    .exceptions_fit_fragments = 1};
    uint32_t plans = 0;
    for (uint32_t i = 0; i < NUM_ROWS * NUM_COLS * NUM_BATCHES; i++) {
        const uint32_t m = kBatches[i % NUM_BATCHES], cols = kCols[i / NUM_BATCHES % NUM_COLS],
                       rows = kRows[i / NUM_BATCHES / NUM_COLS];
        const trf_device_view view = view_of(rows, cols, class_bits, probability_bits);
        const char *reason = trf_fused_refuses(&view, &facts, limits, m, TRF_DTYPE_BF16);
        if (reason) {
            ck_assert_int_gt((int)strlen(reason), 0);
            ck_assert(m > 8 || limits->shared_bytes < 150000); /* batches to 8 fit the larger devices */
        } else {
            check_plan(&view, &facts, limits, m);
            plans++;
        }
        if (m > 8 && rows == 1u << 24)
            ck_assert_ptr_nonnull(reason); /* more units than counters */
    }
    if (limits->shared_bytes > 150000)
        ck_assert_uint_ge(plans, NUM_ROWS * NUM_COLS * 3);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("fused choice");
    TCase *tests = tcase_create("choice");
    tcase_add_loop_test(tests, every_shape_has_a_plan_or_a_reason, 0, 16);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
