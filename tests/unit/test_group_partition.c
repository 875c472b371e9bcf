/* SPDX-License-Identifier: Apache-2.0 */
/* How grouped launches and experts are cut, which needs no device. */
#include "common/expect.h"
#include "common/planned_devices.h"
#include "common/run_suite.h"
#include "trf_group_partition.h"

#include <check.h>
#include <string.h>

static const trf_device_limits kDevices[] = {
    PLANNED_HOPPER(132, 66, 32, 16),
    PLANNED_HOPPER(132, 66, 0, 0),
    PLANNED_HOPPER(16, 7, 3, 1),
    PLANNED_AMPERE(108, 166912, 80),
};
static const uint32_t kRows[] = {1, 31, 32, 33, 100, 1024, 2048, 4096, 14336, 65536};
static const uint32_t kCols[] = {1, 48, 64, 100, 128, 256, 1024, 1536, 4096, 5632};
enum {
    NUM_DEVICES = sizeof kDevices / sizeof kDevices[0],
    NUM_ROWS = sizeof kRows / sizeof kRows[0],
    NUM_COLS = sizeof kCols / sizeof kCols[0],
    NUM_SHAPES = NUM_ROWS * NUM_COLS,
    NUM_KINDS = 8 /* codec, symbols, slabs */
};

static trf_device_view view_of(uint32_t kind, uint32_t rows, uint32_t cols) {
    const uint32_t class_bits = kind & 1 ? 4 : 2, usual_p = class_bits == 2 ? 9 : 10, slab_cols = kind & 2 ? 128 : 256;
    return (trf_device_view){.rows = rows,
                             .cols = cols,
                             .num_tile_rows = (rows + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE,
                             .num_tile_cols = (cols + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE,
                             .slab_cols = slab_cols,
                             .num_panels = (cols + slab_cols - 1) / slab_cols,
                             .num_bands = (rows + TRF_SLAB_ROWS - 1) / TRF_SLAB_ROWS,
                             .codec = kind & 4 ? TRF_CODEC_E4M3 : TRF_CODEC_BF16,
                             .class_bits = class_bits,
                             .raw_bits = (kind & 4 ? 4 : 8) + (class_bits == 2 ? 2 : 0),
                             .probability_bits = usual_p,
                             .state_bits = usual_p};
}

static trf_layer_traits traits_of(uint32_t kind) {
    return (trf_layer_traits){.max_rans_bytes = (kind & 1 ? 2832u : 928u) / (kind & 2 ? 2 : 1),
                              .max_frequency = 240,
                              .exceptions_fit_fragments = 1};
}

/* Bands of the layer whose slabs are regular, and panels. */
static uint32_t units_of(const trf_device_view *view, uint32_t unit_slabs) {
    const uint32_t steps = view->cols % view->slab_cols / TRF_FRAGMENT_SIZE,
                   panels = view->cols / view->slab_cols + (steps && steps % 4 == 0 ? 1 : 0);
    return panels ? (view->rows / TRF_SLAB_ROWS + unit_slabs - 1) / unit_slabs : 0;
}

static void check_partition(const trf_group_partition *partition, const trf_group_product *products, uint32_t count,
                            const trf_device_limits *limits) {
    uint32_t clusters = 0, log = 0;
    uint64_t workspace = 0;
    while (1u << log < partition->cluster_size)
        log++;
    EXPECT(partition->unit_slabs == 1 || partition->unit_slabs == 2);
    EXPECT(partition->warps >= 8 && partition->warps <= 20 && log < TRF_CLUSTER_SIZES &&
           limits->clusters_of[1u << log] > 0);
    for (uint32_t i = 0; i < count; i++) {
        const trf_group_layer_partition *layer = &partition->layers[i];
        const trf_device_view *view = products[i].view;
        const uint32_t units = units_of(view, partition->unit_slabs);
        EXPECT(layer->clusters >= 1 && layer->clusters <= (units ? units : 1)); /* without units only for edges */
        EXPECT(layer->k_splits >= 1 && layer->wave_units >= 1 &&
               layer->k_splits * layer->wave_units <= partition->warps);
        EXPECT(partition->max_rans_bytes >= products[i].traits->max_rans_bytes);
        EXPECT(layer->edge_sums_offset >= workspace && layer->padded_x_offset >= layer->edge_sums_offset &&
               layer->padded_x_offset % 256 == 0);
        workspace = layer->padded_x_offset + 2ull * products[i].m * view->cols;
        clusters += layer->clusters;
    }
    EXPECT(clusters <= limits->clusters_of[1u << log]);
    EXPECT(partition->workspace_bytes >= workspace && partition->microseconds >= 0);
}

/* Layers of all shapes, 1 to 8 at once. */
START_TEST(every_group_has_a_cut) {
    const uint32_t kind = (uint32_t)_i % NUM_KINDS;
    const trf_device_limits *limits = &kDevices[_i / NUM_KINDS];
    const trf_layer_traits traits = traits_of(kind);
    for (uint32_t first = 0; first < NUM_SHAPES; first += 3) {
        const uint32_t count = 1 + first % TRF_GROUP_MAX_LAYERS;
        trf_device_view views[TRF_GROUP_MAX_LAYERS];
        trf_group_product products[TRF_GROUP_MAX_LAYERS];
        trf_group_partition partition;
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t shape = (first + 37 * i) % NUM_SHAPES;
            views[i] = view_of(kind, kRows[shape / NUM_COLS], kCols[shape % NUM_COLS]);
            products[i] = (trf_group_product){&views[i],      &traits,       1 + (first + i) % 8,
                                              TRF_DTYPE_BF16, TRF_DTYPE_F32, views[i].rows};
            const char *reason = trf_group_refusal(&views[i], &traits, limits, products[i].m, TRF_DTYPE_BF16);
            if (reason)
                ck_abort_msg("%ux%u: %s", views[i].rows, views[i].cols, reason);
            EXPECT(trf_group_fits(&views[i], &views[0]));
        }
        if (!trf_group_choose(products, count, limits, &partition)) {
            EXPECT(limits->shared_bytes < 200000 && kind == 5); /* long streams */
            continue;
        }
        check_partition(&partition, products, count, limits);
    }
}
END_TEST

/* Five layers that are bound only by latency take together less than four times as long as one of them. */
START_TEST(small_layers_overlap) {
    const trf_device_view view = view_of(2, 2048, 5632);
    const trf_layer_traits traits = traits_of(2);
    const trf_group_product product = {&view, &traits, 1, TRF_DTYPE_BF16, TRF_DTYPE_BF16, view.rows};
    const trf_group_product products[5] = {product, product, product, product, product};
    trf_group_partition one, five;
    EXPECT(trf_group_choose(products, 1, &kDevices[0], &one) && trf_group_choose(products, 5, &kDevices[0], &five));
    ck_assert_double_lt(five.microseconds, 4 * one.microseconds);
    for (int i = 1; i < 5; i++)
        ck_assert_uint_eq(five.layers[i].clusters, five.layers[0].clusters);
}
END_TEST

START_TEST(refused_layers) {
    trf_device_view view = view_of(0, 256, 256);
    trf_layer_traits traits = traits_of(0);
    const trf_device_limits small = {
        .multiprocessors = 128, .shared_bytes = 101376, .capability = 89, .clusters_of = {[1] = 128}};
    ck_assert_ptr_null(trf_group_refusal(&view, &traits, &kDevices[0], 8, TRF_DTYPE_BF16));
    ck_assert_ptr_nonnull(trf_group_refusal(&view, &traits, &kDevices[0], 9, TRF_DTYPE_BF16));
    ck_assert_ptr_nonnull(trf_group_refusal(&view, &traits, &small, 1, TRF_DTYPE_BF16));
    trf_device_limits other_build = kDevices[0];
    other_build.missing_kernels = TRF_KERNELS_LARGE_SMEM;
    ck_assert_ptr_nonnull(trf_group_refusal(&view, &traits, &other_build, 1, TRF_DTYPE_BF16));
    view.granularity = TRF_GRANULARITY_SCALE_GROUP;
    ck_assert_ptr_nonnull(trf_group_refusal(&view, &traits, &kDevices[0], 1, TRF_DTYPE_BF16));
    view.granularity = TRF_GRANULARITY_NONE;
    traits.max_frequency = 256;
    ck_assert_ptr_nonnull(trf_group_refusal(&view, &traits, &kDevices[0], 1, TRF_DTYPE_BF16));
    traits.max_frequency = 255;
    traits.predictor_modes = 1; /* row offsets */
    ck_assert_ptr_nonnull(trf_group_refusal(&view, &traits, &kDevices[0], 1, TRF_DTYPE_BF16));
}
END_TEST

/* How blocks see experts, whatever the number of tokens. */
START_TEST(every_expert_has_a_partition) {
    static const uint32_t tokens[] = {1, 8, 128, 10000};
    const uint32_t kind = (uint32_t)_i % NUM_KINDS;
    const trf_device_limits *limits = &kDevices[_i / NUM_KINDS];
    for (uint32_t i = 0; i < 4 * NUM_SHAPES; i++) {
        const uint32_t shape = i / 4, most = tokens[i % 4];
        const trf_device_view view = view_of(kind, kRows[shape / NUM_COLS], kCols[shape % NUM_COLS]);
        trf_experts_partition partition = {.max_rans_bytes = traits_of(kind).max_rans_bytes};
        if (!trf_experts_choose(&view, 64, most, limits, &partition)) {
            EXPECT(limits->shared_bytes < 200000 && kind == 5);
            continue;
        }
        const uint32_t units = units_of(&view, partition.unit_slabs);
        EXPECT(partition.unit_slabs == 1 || partition.unit_slabs == 2);
        EXPECT(partition.warps >= 8 && partition.warps <= 20 && partition.cost_model.warps == partition.warps);
        EXPECT(partition.cost_model.units == (units ? units : 1) && partition.cost_model.panels >= 1 &&
               partition.cost_model.step_ns > 0);
        const uint64_t bytes = trf_experts_workspace_bytes(&view, &partition, most);
        EXPECT(bytes >= 2ull * most * view.cols && bytes <= 2ull * most * (view.cols + 8) + 256);
        partition.has_edges = 1;
        EXPECT(trf_experts_workspace_bytes(&view, &partition, most) >= bytes + 4ull * most * view.rows);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("group_partition");
    TCase *tests = tcase_create("group_partition");
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, every_group_has_a_cut, 0, NUM_KINDS * NUM_DEVICES);
    tcase_add_test(tests, small_layers_overlap);
    tcase_add_test(tests, refused_layers);
    tcase_add_loop_test(tests, every_expert_has_a_partition, 0, NUM_KINDS * NUM_DEVICES);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
