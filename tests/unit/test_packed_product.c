/* SPDX-License-Identifier: Apache-2.0 */
/* Products of packed layers: how they are cut. */
#include "common/expect.h"
#include "common/hopper_limits.h"
#include "common/run_suite.h"
#include "trf_packed_estimate.h"
#include "trf_packed_partition.h"
#include "trf_packed_wgmma_sizes.h"

#include <check.h>

START_TEST(partitions) {
    static const uint32_t sizes[] = {1, 64, 65, 1024, 4096, 28672, 65536, 152064};
    static const uint32_t batches[] = {1, 7, 8, 9, 16, 17, 32, 33, 64, 65, 200, 8192};
    static const int multiprocessors[] = {1, 108, 132};
    for (int r = 0; r < 8; r++)
        for (int c = 0; c < 8; c++)
            for (int b = 0; b < 12; b++)
                for (int d = 0; d < 3; d++) {
                    const trf_packed_view view = {.rows = sizes[r],
                                                  .cols = sizes[c],
                                                  .bands = (sizes[r] + 63) / 64,
                                                  .tiles_per_band = (sizes[c] + 31) / 32};
                    const trf_device_limits limits = {.multiprocessors = multiprocessors[d]};
                    trf_packed_partition made;
                    const uint32_t m = batches[b];
                    EXPECT(trf_packed_choose(&view, &limits, m, &made));
                    EXPECT(made.shape == TRF_PACKED_GENERAL); /* as there are no clusters */
                    EXPECT(made.x_tiles == (m <= 8 ? 1 : m <= 16 ? 2 : m <= 32 ? 4 : 8));
                    EXPECT(made.x_blocks == (m + 8 * made.x_tiles - 1) / (8 * made.x_tiles));
                    EXPECT(made.k_splits >= 1 && made.k_splits <= view.tiles_per_band);
                    EXPECT(made.blocks == (uint64_t)view.bands * made.x_blocks * made.k_splits);
                    EXPECT(made.workspace_bytes ==
                           (made.k_splits == 1 ? 0 : (uint64_t)made.k_splits * m * view.bands * 64 * sizeof(float)));
                    /* k splits serve to fill the device, and must not go far beyond it. */
                    EXPECT(made.k_splits == 1 || made.blocks <= 2u * (uint32_t)multiprocessors[d]);
                }
}
END_TEST

START_TEST(products_too_large_are_refused) {
    const trf_packed_view view = {.rows = 0x7FFFFFFF, .cols = 32, .bands = 1u << 25, .tiles_per_band = 1};
    const trf_device_limits limits = {.multiprocessors = 132};
    trf_packed_partition made;
    EXPECT(trf_packed_choose(&view, &limits, 64, &made));
    EXPECT(trf_packed_choose(&view, &limits, 63 * 64, &made));
    EXPECT(!trf_packed_choose(&view, &limits, 64 * 64, &made)); /* 2^31 blocks */
}
END_TEST

START_TEST(bulk_partitions) {
    static const uint32_t sizes[] = {1, 64, 65, 1024, 2048, 4096, 5632, 8192, 14336, 28672, 65536, 152064};
    static const uint32_t batches[] = {1, 8, 9, 16, 17, 32, 33, 64};
    const trf_device_limits limits = hopper_limits();
    for (int r = 0; r < 12; r++)
        for (int c = 0; c < 12; c++)
            for (int b = 0; b < 8; b++) {
                const trf_packed_view view = {.rows = sizes[r],
                                              .cols = sizes[c],
                                              .bands = (sizes[r] + 63) / 64,
                                              .tiles_per_band = (sizes[c] + 31) / 32};
                trf_packed_partition p;
                EXPECT(trf_packed_choose(&view, &limits, batches[b], &p));
                EXPECT(p.shape != TRF_PACKED_GENERAL);
                const trf_packed8_view fp8 = {.packed = view};
                for (int i = 0; i < 2 * TRF_PACKED_BULK_SHAPES * (TRF_MAX_CLUSTER + 1); i++) {
                    const int shape = i / 2 % TRF_PACKED_BULK_SHAPES;
                    const uint32_t cut = (uint32_t)i / 2 / TRF_PACKED_BULK_SHAPES,
                                   slab_bytes = i % 2 ? TRF_PACKED8_SLAB_BYTES : TRF_PACKED_SLAB_BYTES;
                    if (!(i % 2 ? trf_packed8_choose_shape(&fp8, &limits, batches[b], shape, cut, &p)
                                : trf_packed_choose_shape(&view, &limits, batches[b], shape, cut, &p)))
                        continue;
                    EXPECT(p.tiles * (uint64_t)trf_packed_bulk_rows(shape) >= view.rows);
                    EXPECT(p.k_blocks * trf_packed_bulk_k_tiles(shape, slab_bytes) >= view.tiles_per_band);
                    EXPECT(p.blocks >= 1 && p.blocks <= 132);
                    EXPECT(trf_packed_bulk_is_stream_k(shape) == (cut == TRF_PACKED_STREAM_K));
                    EXPECT(cut == TRF_PACKED_STREAM_K ? p.cluster_size == 1 : p.blocks == p.tiles * p.cluster_size);
                    EXPECT(p.handover_offset >= (uint64_t)batches[b] * view.cols * 2);
                    EXPECT(trf_packed_bulk_shared_bytes(shape, p.x_tiles, slab_bytes) <= 227 << 10);
                    EXPECT(trf_packed_bulk_stages(shape, p.x_tiles, slab_bytes) >= 2);
                }
            }
    /* Shapes of layers that matter fill the device. */
    static const struct {
        uint32_t rows, cols;
        uint64_t blocks;
    } full[] = {{65536, 8192, 132}, {28672, 8192, 132}, {8192, 8192, 128}, {14336, 4096, 112},
                {4096, 14336, 128}, {4096, 4096, 128},  {2048, 5632, 128}, {1024, 4096, 64}};
    for (int i = 0; i < 8; i++) {
        const trf_packed_view view = {.rows = full[i].rows,
                                      .cols = full[i].cols,
                                      .bands = full[i].rows / 64,
                                      .tiles_per_band = full[i].cols / 32};
        trf_packed_partition p;
        EXPECT(trf_packed_choose(&view, &limits, 8, &p));
        ck_assert_uint_ge(p.blocks, full[i].blocks);
    }
}
END_TEST

START_TEST(bulk_kernels_want_their_device) {
    const trf_packed_view view = {.rows = 4096, .cols = 4096, .bands = 64, .tiles_per_band = 128};
    trf_device_limits limits = hopper_limits();
    trf_packed_partition p;
    EXPECT(trf_packed_choose_shape(&view, &limits, 32, TRF_PACKED_BULK_128, 2, &p));
    EXPECT(!trf_packed_choose_shape(&view, &limits, 33, TRF_PACKED_BULK_128, 2, &p));
    EXPECT(!trf_packed_choose_shape(&view, &limits, 65, TRF_PACKED_BULK_32, 1, &p));
    EXPECT(!trf_packed_choose_shape(&view, &limits, 32, TRF_PACKED_BULK_128, TRF_PACKED_STREAM_K, &p));
    EXPECT(!trf_packed_choose_shape(&view, &limits, 32, TRF_PACKED_BULK_256, 1, &p));
    EXPECT(!trf_packed_choose_shape(&view, &limits, 32, TRF_PACKED_BULK_128, 5, &p)); /* 32 clusters: no room */
    limits.missing_kernels = TRF_KERNELS_SM_90A;
    EXPECT(!trf_packed_choose_shape(&view, &limits, 32, TRF_PACKED_BULK_128, 2, &p));
    limits = hopper_limits();
    limits.capability = 100;
    EXPECT(!trf_packed_choose_shape(&view, &limits, 32, TRF_PACKED_BULK_128, 2, &p));
    EXPECT(trf_packed_choose(&view, &limits, 64, &p) && p.shape == TRF_PACKED_GENERAL);
    limits = hopper_limits();
    limits.shared_bytes = 100 << 10;
    EXPECT(!trf_packed_choose_shape(&view, &limits, 32, TRF_PACKED_BULK_128, 2, &p));
}
END_TEST

static const uint32_t kCuts[] = {TRF_PACKED_STREAM_K, 1, 2, 3};

START_TEST(wgmma_partitions) {
    static const uint32_t sizes[] = {1, 64, 65, 1024, 2048, 4096, 5632, 8192, 14336, 28672, 65536, 152064};
    static const uint32_t batches[] = {1, 65, 96, 97, 128, 200, 256, 300, 512, 1000, 2048, 8192};
    const trf_device_limits limits = hopper_limits();
    int with_fronts = 0, without_fronts = 0;
    for (int r = 0; r < 12; r++)
        for (int c = 0; c < 12; c++)
            for (int b = 0; b < 12; b++) {
                const uint32_t m = batches[b];
                const trf_packed_view view = {.rows = sizes[r],
                                              .cols = sizes[c],
                                              .bands = (sizes[r] + 63) / 64,
                                              .tiles_per_band = (sizes[c] + 31) / 32};
                trf_packed_partition p;
                EXPECT(trf_packed_choose(&view, &limits, m, &p));
                EXPECT(trf_packed_is_wgmma(p.shape) || m <= 64);
                for (int i = 0; i < 4 * TRF_PACKED_WGMMA_SHAPES; i++) {
                    const int shape = TRF_PACKED_WGMMA_64 + i / 4;
                    if (!trf_packed_choose_shape(&view, &limits, m, shape, kCuts[i % 4], &p))
                        continue;
                    EXPECT(p.x_blocks * (uint64_t)trf_packed_wgmma_x_rows(shape) >= m);
                    EXPECT(p.tiles / p.x_blocks * (uint64_t)trf_packed_wgmma_rows(shape) >= view.rows);
                    EXPECT(p.tiles % p.x_blocks == 0 && p.k_blocks * 64ull >= view.cols);
                    EXPECT(p.blocks >= 1 && p.blocks <= 132);
                    EXPECT(p.cluster_size == 1 ? p.whole_tiles <= p.tiles
                                               : p.blocks == p.tiles * (uint64_t)p.cluster_size);
                    EXPECT((p.workspace_bytes > p.handover_offset) == (p.whole_tiles < p.tiles));
                    if (p.whole_tiles == p.tiles) {
                        EXPECT(p.front_k_blocks == p.k_blocks);
                        continue;
                    }
                    const uint32_t shared = p.tiles - p.whole_tiles;
                    EXPECT(shared < p.blocks && p.whole_tiles % p.blocks == 0 && p.front_k_blocks < p.k_blocks);
                    EXPECT(p.front_k_blocks == 0 || p.front_k_blocks * p.blocks >= (uint64_t)shared * p.k_blocks ||
                           p.front_k_blocks == p.k_blocks - 1);
                    with_fronts += p.front_k_blocks > 0;
                    without_fronts += p.front_k_blocks == 0;
                }
            }
    ck_assert(with_fronts > 100 && without_fronts > 100);
    for (int shape = TRF_PACKED_WGMMA_64; shape < TRF_PACKED_SHAPES; shape++) {
        EXPECT(trf_packed_wgmma_shared_bytes(shape, TRF_PACKED_SLAB_BYTES) + 1024 <= 227 << 10);
        EXPECT(trf_packed_wgmma_shared_bytes(shape, TRF_PACKED8_SLAB_BYTES) + 1024 <= 227 << 10);
        EXPECT(trf_packed_wgmma_stages(shape, TRF_PACKED_SLAB_BYTES) >= 4 &&
               trf_packed_wgmma_stages(shape, TRF_PACKED_SLAB_BYTES) <= 8);
        EXPECT(trf_packed_wgmma_stages(shape, TRF_PACKED8_SLAB_BYTES) >= 5 &&
               trf_packed_wgmma_stages(shape, TRF_PACKED8_SLAB_BYTES) <= 10);
    }
}
END_TEST

START_TEST(wgmma_kernels_want_their_device) {
    const trf_packed_view view = {.rows = 4096, .cols = 4096, .bands = 64, .tiles_per_band = 128};
    trf_device_limits limits = hopper_limits();
    trf_packed_partition p;
    EXPECT(trf_packed_choose_shape(&view, &limits, 96, TRF_PACKED_WGMMA_96, 2, &p));
    EXPECT(!trf_packed_choose_shape(&view, &limits, 1000, TRF_PACKED_WGMMA_96, 2, &p)); /* no room */
    limits.missing_kernels = TRF_KERNELS_SM_90A;
    EXPECT(!trf_packed_choose_shape(&view, &limits, 96, TRF_PACKED_WGMMA_96, 2, &p));
    EXPECT(trf_packed_choose(&view, &limits, 96, &p) && p.shape == TRF_PACKED_GENERAL);
    limits = hopper_limits();
    limits.capability = 100;
    EXPECT(trf_packed_choose(&view, &limits, 96, &p) && p.shape == TRF_PACKED_GENERAL);
    limits = hopper_limits();
    limits.shared_bytes = 100 << 10;
    EXPECT(!trf_packed_choose_shape(&view, &limits, 96, TRF_PACKED_WGMMA_96, 1, &p));
}
END_TEST

/* Candidates run, none occurs twice, and the first one is the one that is chosen. */
START_TEST(candidates) {
    static const uint32_t sizes[] = {1, 64, 1024, 4096, 14336, 65536};
    static const uint32_t batches[] = {1, 8, 33, 64, 65, 128, 200, 2048};
    const trf_device_limits limits = hopper_limits();
    int several = 0;
    for (int i = 0; i < 6 * 6 * 8; i++) {
        const uint32_t rows = sizes[i % 6], cols = sizes[i / 6 % 6], m = batches[i / 36];
        const trf_packed_view view = {
            .rows = rows, .cols = cols, .bands = (rows + 63) / 64, .tiles_per_band = (cols + 31) / 32};
        trf_packed_partition chosen, made, found[TRF_PACKED_MAX_CANDIDATES + 1];
        EXPECT(trf_packed_choose(&view, &limits, m, &chosen));
        const uint32_t count = trf_packed_candidates(&view, &limits, m, found, TRF_PACKED_MAX_CANDIDATES + 1);
        EXPECT(count >= 1 && count <= TRF_PACKED_MAX_CANDIDATES);
        EXPECT(found[0].shape == chosen.shape && found[0].cut == chosen.cut);
        several += count > 1;
        for (uint32_t a = 0; a < count; a++) {
            EXPECT(trf_packed_choose_shape(&view, &limits, m, found[a].shape, found[a].cut, &made));
            EXPECT(made.blocks == found[a].blocks && made.workspace_bytes == found[a].workspace_bytes);
            for (uint32_t b = 0; b < a; b++)
                EXPECT(found[a].shape != found[b].shape || found[a].cut != found[b].cut);
        }
        const uint32_t few = trf_packed_candidates(&view, &limits, m, found, 2);
        EXPECT(few == (count < 2 ? count : 2) && found[0].shape == chosen.shape && found[0].cut == chosen.cut);
    }
    EXPECT(several > 6 * 6 * 8 / 2);
    const trf_device_limits older = {.multiprocessors = 108, .shared_bytes = 160 << 10, .capability = 80};
    const trf_packed_view view = {.rows = 4096, .cols = 4096, .bands = 64, .tiles_per_band = 128};
    trf_packed_partition none;
    EXPECT(trf_packed_candidates(&view, &older, 8, &none, 1) == 0);
}
END_TEST

/* The same for packed FP8 layers of all flags; there is no kernel elsewhere. */
START_TEST(fp8_candidates) {
    static const uint32_t sizes[] = {1, 64, 1024, 4096, 14336, 65536};
    static const uint32_t batches[] = {1, 8, 33, 64, 65, 128, 200, 2048};
    const trf_device_limits limits = hopper_limits();
    trf_packed_partition chosen, made, found[TRF_PACKED_MAX_CANDIDATES + 1];
    for (uint32_t i = 0; i < 6 * 6 * 8 * 4; i++) {
        const uint32_t rows = sizes[i % 6], cols = sizes[i / 6 % 6], m = batches[i / 36 % 8];
        const trf_packed8_view view = {
            .packed = {.rows = rows, .cols = cols, .bands = (rows + 63) / 64, .tiles_per_band = (cols + 31) / 32},
            .flags = i / 288};
        EXPECT(trf_packed8_choose(&view, &limits, m, &chosen));
        const uint32_t count = trf_packed8_candidates(&view, &limits, m, found, TRF_PACKED_MAX_CANDIDATES + 1);
        EXPECT(count >= 1 && count <= TRF_PACKED_MAX_CANDIDATES);
        EXPECT(found[0].shape == chosen.shape && found[0].cut == chosen.cut);
        for (uint32_t a = 0; a < count; a++) {
            EXPECT(trf_packed8_choose_shape(&view, &limits, m, found[a].shape, found[a].cut, &made));
            EXPECT(made.blocks == found[a].blocks && made.workspace_bytes == found[a].workspace_bytes);
        }
    }
    const trf_device_limits older = {.multiprocessors = 108, .shared_bytes = 160 << 10, .capability = 80};
    const trf_packed8_view view = {.packed = {.rows = 4096, .cols = 4096, .bands = 64, .tiles_per_band = 128}};
    EXPECT(trf_packed8_candidates(&view, &older, 8, &made, 1) == 0);
    EXPECT(!trf_packed8_choose(&view, &older, 8, &made));
}
END_TEST

/* More work for each weight takes longer where forming is the limit, and never less long. */
START_TEST(fp8_flags_cost) {
    static const uint32_t flags[] = {0, TRF_PACKED8_HAS_LOW, TRF_PACKED8_ALL_FLAGS};
    trf_device_limits limits = hopper_limits();
    double ns[3];
    limits.memory_gb_per_second = 4800; /* an H200's */
    for (uint32_t m = 1; m <= 128; m *= 2) {
        for (int i = 0; i < 3; i++) {
            const trf_packed8_view view = {.packed = {.rows = 14336, .cols = 4096, .bands = 224, .tiles_per_band = 128},
                                           .flags = flags[i]};
            const trf_packed_costs costs = trf_packed8_sm_90_costs(flags[i]);
            trf_packed_partition p;
            EXPECT(trf_packed8_choose(&view, &limits, m, &p));
            ns[i] = trf_packed_estimate(&costs, TRF_PACKED8_SLAB_BYTES, &view.packed, &limits, m, &p);
        }
        EXPECT(ns[0] <= ns[1] && ns[1] <= ns[2] && (m < 32 || ns[0] < ns[2]));
        EXPECT(ns[2] > 10e3 && ns[2] < 60e3);
    }
}
END_TEST

START_TEST(names) {
    ck_assert_str_eq(trf_packed_kernel_name(TRF_PACKED_GENERAL), "general");
    ck_assert_str_eq(trf_packed_kernel_name(TRF_PACKED_BULK_32), "bulk-32");
    EXPECT(trf_packed_is_former_kernel("bulk-64-8-warps"));
    ck_assert_str_eq(trf_packed_kernel_name(TRF_PACKED_SHAPES), "?");
    ck_assert_str_eq(trf_packed_cut_name(TRF_PACKED_STREAM_K), "stream-k");
    ck_assert_str_eq(trf_packed_cut_name(TRF_MAX_CLUSTER + 1), "?");
    for (int shape = 0; shape < TRF_PACKED_SHAPES; shape++) {
        EXPECT(!trf_packed_is_former_kernel(trf_packed_kernel_name(shape)));
        for (int other = TRF_PACKED_GENERAL; other < shape; other++)
            ck_assert_str_ne(trf_packed_kernel_name(shape), trf_packed_kernel_name(other));
    }
    for (uint32_t cut = 1; cut <= TRF_MAX_CLUSTER; cut++)
        ck_assert_int_eq(trf_packed_cut_name(cut)[0], '0' + (int)cut);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("packed_product");
    TCase *tests = tcase_create("packed_product");
    tcase_add_test(tests, partitions);
    tcase_add_test(tests, products_too_large_are_refused);
    tcase_add_test(tests, bulk_partitions);
    tcase_add_test(tests, bulk_kernels_want_their_device);
    tcase_add_test(tests, wgmma_partitions);
    tcase_add_test(tests, wgmma_kernels_want_their_device);
    tcase_add_test(tests, candidates);
    tcase_add_test(tests, fp8_candidates);
    tcase_add_test(tests, fp8_flags_cost);
    tcase_add_test(tests, names);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
