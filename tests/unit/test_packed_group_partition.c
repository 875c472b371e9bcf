/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of packed layers: which share a launch, and how that is cut. */
#include "common/expect.h"
#include "common/hopper_limits.h"
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "trf_packed_estimate.h"
#include "trf_packed_group_partition.h"

#include <check.h>

static trf_packed_view view_of(uint32_t rows, uint32_t cols) {
    return (trf_packed_view){
        .rows = rows, .cols = cols, .bands = (rows + 63) / 64, .tiles_per_band = (cols + 31) / 32, .base = 110};
}

/* Products with the partitions that they have alone. */
typedef struct products {
    uint32_t count;
    trf_packed_view views[TRF_PACKED_GROUP_MAX_LAYERS];
    trf_packed_partition alone[TRF_PACKED_GROUP_MAX_LAYERS];
    trf_packed_group_product list[TRF_PACKED_GROUP_MAX_LAYERS];
} products;

static void add(products *p, const trf_device_limits *limits, uint32_t rows, uint32_t cols, uint32_t m) {
    const uint32_t i = p->count++;
    p->views[i] = view_of(rows, cols);
    EXPECT(trf_packed_choose(&p->views[i], limits, m, &p->alone[i]));
    p->list[i] = (trf_packed_group_product){.view = &p->views[i], .m = m, .alone = &p->alone[i]};
    EXPECT(trf_packed_group_takes(&p->list[i]) == (m <= TRF_PACKED_GROUP_MAX_M && limits->capability == 90));
}

static void check_partition(const products *p, const trf_device_limits *limits, const trf_packed_group_partition *g) {
    uint64_t blocks = 0, workspace = 0;
    EXPECT(g->shape == TRF_PACKED_BULK_128 || g->shape == TRF_PACKED_BULK_64 || g->shape == TRF_PACKED_BULK_32);
    EXPECT(g->cluster_size >= 1 && g->cluster_size <= TRF_MAX_CLUSTER);
    EXPECT(g->x_tiles == 1 || g->x_tiles == 2 || g->x_tiles == 4);
    for (uint32_t i = 0; i < p->count; i++) {
        const trf_packed_partition *member = &g->members[i];
        EXPECT(member->shape == g->shape && member->x_tiles == g->x_tiles && member->cluster_size == g->cluster_size);
        EXPECT(8 * g->x_tiles >= p->list[i].m);
        EXPECT(member->tiles * (uint64_t)trf_packed_bulk_rows(g->shape) >= p->views[i].rows);
        EXPECT(member->k_blocks * trf_packed_bulk_col_warps(g->shape) >= p->views[i].tiles_per_band);
        EXPECT(member->blocks == (uint64_t)member->tiles * g->cluster_size);
        EXPECT(g->x_offset[i] == workspace && workspace % 256 == 0);
        workspace += (2ull * p->list[i].m * ((p->views[i].cols + 7) / 8 * 8) + 255) / 256 * 256;
        blocks += member->blocks;
    }
    EXPECT(g->blocks == blocks && blocks / g->cluster_size <= limits->clusters_of[g->cluster_size]);
    EXPECT(g->workspace_bytes == workspace);
    EXPECT(g->group_ns > 0 && g->group_ns < g->alone_ns);
}

/* q, k and v of an 8B model, of which k and v do not fill a device. */
START_TEST(small_layers_share_a_launch) {
    static const uint32_t batches[] = {1, 8, 9, 16, 32};
    const trf_device_limits limits = hopper_limits();
    products p = {0};
    trf_packed_group_partition g;
    add(&p, &limits, 4096, 4096, batches[_i]);
    add(&p, &limits, 1024, 4096, batches[_i]);
    add(&p, &limits, 1024, 4096, batches[_i]);
    ck_assert(trf_packed_group_choose(p.list, p.count, &limits, &g));
    check_partition(&p, &limits, &g);
    /* Early launches in a row hide no more than a start of each. */
    double all = 0;
    for (uint32_t i = 0; i < p.count; i++)
        all += trf_packed_estimate(&trf_packed_sm_90_costs, TRF_PACKED_SLAB_BYTES, &p.views[i], &limits, batches[_i],
                                   &p.alone[i]);
    EXPECT(g.alone_ns < all && g.alone_ns > all - 2 * trf_packed_sm_90_costs.bulk_start - 1);
}
END_TEST

/* The same of packed FP8 layers, with and without records. The group takes less time than that of BF16 layers, and more
 * if a layer has records. */
START_TEST(small_fp8_layers_share_a_launch) {
    static const uint32_t shapes[][2] = {{4096, 4096}, {1024, 4096}, {1024, 4096}}, batches[] = {1, 8, 16, 32};
    trf_device_limits limits = hopper_limits();
    double ns[2];
    limits.memory_gb_per_second = 4800; /* an H200's: forming counts */
    for (uint32_t records = 0; records < 2; records++) {
        trf_packed8_view views[3];
        trf_packed_partition alone[3];
        trf_packed_group_product list[3];
        trf_packed_group_partition g;
        for (int i = 0; i < 3; i++) {
            views[i] = (trf_packed8_view){view_of(shapes[i][0], shapes[i][1]),
                                          i == 2 && records ? TRF_PACKED8_ALL_FLAGS : TRF_PACKED8_HAS_LOW};
            EXPECT(trf_packed8_choose(&views[i], &limits, batches[_i], &alone[i]));
            list[i] = (trf_packed_group_product){&views[i].packed, batches[_i], &alone[i], &views[i]};
            EXPECT(trf_packed_group_takes(&list[i]));
        }
        ck_assert(trf_packed_group_choose(list, 3, &limits, &g));
        ns[records] = g.group_ns;
        for (int i = 0; i < 3; i++) {
            EXPECT(g.members[i].k_blocks * trf_packed_bulk_k_tiles(g.shape, TRF_PACKED8_SLAB_BYTES) >= 128);
            EXPECT(g.members[i].tiles * (uint64_t)trf_packed_bulk_rows(g.shape) >= shapes[i][0]);
        }
    }
    products p = {0};
    trf_packed_group_partition bf16;
    for (int i = 0; i < 3; i++)
        add(&p, &limits, shapes[i][0], shapes[i][1], batches[_i]);
    ck_assert(trf_packed_group_choose(p.list, p.count, &limits, &bf16));
    EXPECT(ns[0] <= ns[1] && ns[1] < bf16.group_ns);
}
END_TEST

/* gate and up of an 8B model: each fills the device, so that nothing is gained. */
START_TEST(large_layers_stay_alone) {
    const trf_device_limits limits = hopper_limits();
    products p = {0};
    trf_packed_group_partition g;
    add(&p, &limits, 14336, 4096, 1u << _i);
    add(&p, &limits, 14336, 4096, 1u << _i);
    EXPECT(!trf_packed_group_choose(p.list, p.count, &limits, &g));
}
END_TEST

START_TEST(what_is_no_group) {
    const trf_device_limits limits = hopper_limits();
    trf_device_limits older = hopper_limits();
    products p = {0}, large = {0}, on_older = {0};
    trf_packed_group_partition g;
    add(&p, &limits, 1024, 1024, 1);
    EXPECT(!trf_packed_group_choose(p.list, 0, &limits, &g) && !trf_packed_group_choose(p.list, 1, &limits, &g));
    add(&p, &limits, 1024, 1024, 1);
    EXPECT(trf_packed_group_choose(p.list, 2, &limits, &g));
    trf_packed_view zeroing_view = p.views[1];
    const trf_packed8_view fp8_view = {.packed = p.views[1]};
    const trf_packed_group_product zeroing = {.view = &zeroing_view},
                                   fp8 = {.view = &fp8_view.packed, .fp8 = &fp8_view};
    zeroing_view.zeroing = 1;
    EXPECT(trf_packed_group_fits(&p.list[0], &p.list[1]) && trf_packed_group_fits(&zeroing, &zeroing));
    EXPECT(trf_packed_group_fits(&fp8, &fp8) && !trf_packed_group_fits(&fp8, &p.list[0]));
    EXPECT(!trf_packed_group_fits(&p.list[0], &zeroing) && !trf_packed_group_fits(&p.list[0], &fp8));
    add(&large, &limits, 1024, 1024, 33); /* not taken */
    older.capability = 80;
    add(&on_older, &older, 1024, 1024, 1); /* likewise: the general kernel has it */
    older.capability = 90;
    older.missing_kernels = TRF_KERNELS_SM_90A;
    EXPECT(!trf_packed_group_choose(p.list, 2, &older, &g));
}
END_TEST

START_TEST(any_layers) {
    const trf_device_limits limits = hopper_limits();
    test_rng rng = {1 + (uint64_t)_i};
    int chosen = 0;
    for (int round = 0; round < 300; round++) {
        products p = {0};
        trf_packed_group_partition g;
        const uint32_t count = 2 + test_below(&rng, TRF_PACKED_GROUP_MAX_LAYERS - 1),
                       most = 1u << (5 + test_below(&rng, 9));
        for (uint32_t i = 0; i < count; i++)
            add(&p, &limits, 1 + test_below(&rng, most), 1 + test_below(&rng, 8192),
                1 + test_below(&rng, TRF_PACKED_GROUP_MAX_M));
        if (!trf_packed_group_choose(p.list, p.count, &limits, &g))
            continue;
        check_partition(&p, &limits, &g);
        chosen++;
    }
    ck_assert_int_gt(chosen, 100);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("packed_group_partition");
    TCase *tcase = tcase_create("packed_group_partition");
    tcase_add_loop_test(tcase, small_layers_share_a_launch, 0, 5);
    tcase_add_loop_test(tcase, small_fp8_layers_share_a_launch, 0, 4);
    tcase_add_loop_test(tcase, large_layers_stay_alone, 0, 6);
    tcase_add_test(tcase, what_is_no_group);
    tcase_add_loop_test(tcase, any_layers, 0, 4);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
