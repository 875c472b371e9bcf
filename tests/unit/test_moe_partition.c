/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel multiplies by packed experts, and that the parts of its workspace lie apart. */
#include "common/expect.h"
#include "common/hopper_limits.h"
#include "common/run_suite.h"
#include "trf_moe_partition.h"

#include <check.h>

/* A part of a workspace. */
typedef struct part {
    uint64_t at, bytes;
} part;

static void expect_apart(const part *parts, int count, uint64_t workspace_bytes) {
    for (int i = 0; i < count; i++) {
        ck_assert_uint_eq(parts[i].at % 256, 0);
        ck_assert_uint_le(parts[i].at + parts[i].bytes, workspace_bytes);
        for (int j = 0; j < i; j++)
            EXPECT(parts[i].at + parts[i].bytes <= parts[j].at || parts[j].at + parts[j].bytes <= parts[i].at);
    }
}

START_TEST(parts_of_mixtures) {
    static const trf_moe_shape shapes[] = {
        {128, 128, 8, 2048, 1536}, {8, 8, 2, 4096, 28672}, {32, 256, 8, 7168, 4096}, {1, 1, 1, 16, 16}};
    static const uint32_t tokens[] = {1, 64, 1000, 16384};
    const trf_device_limits limits = hopper_limits();
    const trf_moe_shape *shape = &shapes[_i % 4];
    uint64_t before = 0;
    for (int i = 0; i < 4; i++)
        for (int kernel = -1; kernel < TRF_MOE_KERNELS; kernel++) {
            trf_moe_partition p;
            ck_assert(trf_moe_choose(shape, &limits, tokens[i], kernel, &p));
            const uint64_t routes = (uint64_t)tokens[i] * shape->top_k,
                           handover = trf_packed_handover_bytes(p.blocks, trf_moe_acc_tiles(p.kernel)),
                           slot_bytes = p.slot_dtype == TRF_DTYPE_F32 ? 4 : 2;
            const part parts[] = {
                {p.counts, (routes + TRF_MOE_BLOCK_ROUTES - 1) / TRF_MOE_BLOCK_ROUTES * shape->experts * 4},
                {p.first_slots, 4 * (shape->experts + 1)},
                {p.slot_routes, 4 * routes},
                {p.route_slots, 4 * routes},
                {p.hidden, routes * shape->gate_up_rows},
                {p.slot_y, routes * shape->hidden * slot_bytes},
                {p.gate_up_handover, handover},
                {p.down_handover, handover},
                {p.slot_x, trf_moe_gathers_x(p.kernel) ? 0 : 2 * routes * shape->hidden}};
            expect_apart(parts, sizeof parts / sizeof parts[0], p.workspace_bytes);
            ck_assert(kernel < 0 || p.kernel == kernel);
            if (kernel < 0) { /* more tokens never need less */
                ck_assert_uint_ge(p.workspace_bytes, before);
                before = p.workspace_bytes;
            }
        }
}
END_TEST

START_TEST(parts_of_products) {
    static const uint32_t shapes[][3] = {{7, 300, 515}, {128, 768, 2048}, {3, 33, 131}}, tokens[] = {1, 200, 30000};
    const trf_device_limits limits = hopper_limits();
    for (int i = 0; i < 9; i++) {
        const uint32_t *const shape = shapes[i % 3], most = tokens[i / 3];
        trf_packed_experts_partition p;
        ck_assert(trf_packed_experts_choose(shape[0], shape[1], shape[2], &limits, most, -1, &p));
        ck_assert_uint_ge(p.x_stride, shape[2]);
        ck_assert_uint_eq(p.x_stride % 8, 0);
        const part parts[] = {{0, 2ull * most * p.x_stride},
                              {p.handover_offset, trf_packed_handover_bytes(p.blocks, trf_moe_acc_tiles(p.kernel))}};
        expect_apart(parts, 2, p.workspace_bytes);
    }
}
END_TEST

START_TEST(what_is_not_chosen) {
    const trf_moe_shape shape = {128, 128, 8, 2048, 1536}, many = {513, 513, 8, 2048, 1536};
    trf_device_limits limits = hopper_limits();
    trf_moe_partition mixture;
    trf_packed_experts_partition product;
    ck_assert(!trf_moe_choose(&many, &limits, 1, -1, &mixture));
    ck_assert(!trf_packed_experts_choose(513, 64, 64, &limits, 1, -1, &product));
    ck_assert(!trf_packed_experts_choose(8, 64, 64, &limits, 1u << 26, -1, &product)); /* too many token blocks */
    ck_assert(trf_packed_experts_choose(8, 64, 64, &limits, 1u << 23, -1, &product));
    ck_assert(!trf_packed_experts_choose(8, 1u << 20, 1u << 20, &limits, 1u << 23, -1, &product)); /* k blocks */
    limits.capability = 89;
    ck_assert(!trf_moe_choose(&shape, &limits, 1, -1, &mixture));
    limits.capability = 100;
    ck_assert(!trf_moe_choose(&shape, &limits, 1, -1, &mixture));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("moe_partition");
    TCase *tests = tcase_create("moe_partition");
    tcase_add_loop_test(tests, parts_of_mixtures, 0, 4);
    tcase_add_test(tests, parts_of_products);
    tcase_add_test(tests, what_is_not_chosen);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
