/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the place of trf_ptx_sm90.cuh when device headers run on the CPU (warp_emulation.h). */
#ifndef WARP_SM90_H
#define WARP_SM90_H

#include "warp_emulation.h"

#include "trf_tensor_map.cuh"

#define TRF_PTX_SM90_CUH
#define TRF_HAS_SM_90A 1

/* ---- barriers ---- */

static inline void trf_mbarrier_init(uint32_t at, uint32_t arrivals) { warp_barrier_init(at, arrivals); }
static inline void trf_mbarrier_publish() {}
static inline void trf_fence_async_proxy() { warp_fence_for_engine(); }
static inline void trf_mbarrier_arrive(uint32_t at) { warp_barrier_arrive(at, 0); }
static inline void trf_mbarrier_arrive_expect_tx(uint32_t at, uint32_t bytes) { warp_barrier_arrive(at, bytes); }
static inline void trf_mbarrier_wait(uint32_t at, uint32_t parity) { warp_barrier_wait(at, parity); }

/* ---- copies ---- */

static inline uint64_t trf_policy_read_once() { return 0; }
static inline uint64_t trf_policy_read_again() { return 0; }
static inline uint64_t trf_policy_keep() { return 0; }
static inline void trf_prefetch_map(const void *) {}
static inline void trf_bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier, uint64_t) {
    warp_async_load(to, from, bytes, barrier);
}

/* Takes the place of a tensor map: boxes of 64 columns with the swizzle of 128 bytes. Shared memory has room for
 * room_rows rows; after a box anything may lie, here NaNs, which must not reach y. */
struct warp_x_map {
    const uint16_t *x;
    uint32_t m, cols, box_rows, room_rows;
};
static inline trf_tensor_map warp_make_x_map(const uint16_t *x, uint32_t m, uint32_t cols, uint32_t box_rows,
                                             uint32_t room_rows) {
    trf_tensor_map map = {};
    const warp_x_map own = {x, m, cols, box_rows, room_rows};
    memcpy(map.bytes, &own, sizeof own);
    return map;
}
static inline void trf_tma_load_box(uint32_t to, const void *map, uint32_t col, uint32_t row, uint32_t barrier,
                                    uint64_t) {
    warp_x_map x;
    memcpy(&x, map, sizeof x);
    if (to % 1024 != 0)
        warp_fail("has a box copied to shared address %u", to);
    for (uint32_t r = 0; r < x.room_rows; r++)
        for (uint32_t octet = 0; octet < 8; octet++) {
            const uint32_t at = to + 128 * r + 16 * (octet ^ r % 8);
            alignas(16) uint16_t values[8];
            if (r >= x.box_rows) {
                memset(values, 0xFF, sizeof values);
                warp_async_put(at, values, sizeof values);
                continue;
            }
            for (uint32_t i = 0; i < 8; i++) {
                const uint32_t from_col = col + 8 * octet + i;
                values[i] = row + r < x.m && from_col < x.cols ? x.x[(uint64_t)(row + r) * x.cols + from_col] : 0;
            }
            warp_async_load(at, values, sizeof values, barrier);
        }
}

/* ---- what blocks hand to each other; they run one after the other ---- */

static inline void trf_publish(uint64_t *flag, uint64_t value) { *flag = value; }
static inline void trf_await(const uint64_t *flag, uint64_t value) {
    if (*flag != value)
        warp_fail("waits for a block that has not run yet");
}
static inline void trf_store_relaxed(ulonglong2 *at, ulonglong2 v) { *at = v; }
static inline ulonglong2 trf_load_relaxed(const ulonglong2 *at) { return *at; }
static inline float4 trf_ldg128f_of_others(const float4 *at) { return __ldg(at); }

/* ---- shared memory ---- */

static inline uint4 trf_ldmatrix4(uint32_t at) {
    const uint32_t lane = threadIdx.x % 32;
    const uint4 row = trf_lds128(at);
    const uint32_t own[4] = {row.x, row.y, row.z, row.w};
    const warp_exchanged *const rows = warp_exchange(own, 4);
    uint32_t of_lane[4];
    for (uint32_t matrix = 0; matrix < 4; matrix++)
        of_lane[matrix] = rows[8 * matrix + lane / 4][lane % 4];
    return make_uint4(of_lane[0], of_lane[1], of_lane[2], of_lane[3]);
}
static inline void trf_stmatrix4_transposed(uint32_t at, uint4 v) {
    const uint32_t lane = threadIdx.x % 32, matrix = lane / 8, col = lane % 8;
    const uint32_t own[4] = {v.x, v.y, v.z, v.w};
    const warp_exchanged *const lanes = warp_exchange(own, 4);
    alignas(16) uint16_t values[8];
    for (uint32_t row = 0; row < 8; row++)
        values[row] = (uint16_t)(lanes[4 * row + col / 2][matrix] >> 16 * (col % 2));
    warp_write(at, values, sizeof values);
}
static inline void trf_sts128f(uint32_t at, float4 v) { warp_write(at, &v, sizeof v); }
static inline float4 trf_lds128f_of_others(uint32_t at) { return warp_load<float4>(at); }
static inline uint4 trf_lds128_of_others(uint32_t at) { return warp_load<uint4>(at); }
static inline float trf_lds32f_of_others(uint32_t at) { return warp_load<float>(at); }
static inline void trf_st_async128f(uint32_t at, uint32_t barrier, uint32_t rank, float4 v) {
    warp_async_store(rank, at, &v, sizeof v, barrier);
}

/* A warp that arrives waits for all others here, though on a device it could go on. */
static inline void trf_named_barrier_arrive(uint32_t barrier, uint32_t warps) { warp_meet_warps(barrier, warps); }

/* Does the same as trf_cluster_arrive, since all threads meet in the wait. */
static inline void trf_cluster_arrive_relaxed(uint32_t) {}

template <int kRegisters> static inline void trf_take_registers() {}
template <int kRegisters> static inline void trf_give_registers() {}

/* ---- products of warpgroups: they read their operands and write sums as late as may be, in the wait for them; until
 * then sums are NaN (warp_wgmma.cpp) ---- */

void warp_wgmma_fence();
void warp_wgmma_start(float *sums, const uint32_t *a, uint64_t b, uint32_t b_rows);
void warp_wgmma_commit();
void warp_wgmma_wait(uint32_t pending);
void warp_wgmma_expect_settled(const float *sums);

static inline void trf_wgmma_fence() { warp_wgmma_fence(); }
static inline void trf_wgmma_commit() { warp_wgmma_commit(); }
template <int kPending> static inline void trf_wgmma_wait() { warp_wgmma_wait(kPending); }
template <int kRows>
static inline void trf_wgmma_of_registers(float (&d)[kRows / 2], const uint32_t (&a)[4], uint64_t b) {
    warp_wgmma_start(d, a, b, kRows);
}
template <int kSums> static inline void trf_wgmma_settle_sums(float (&d)[kSums]) { warp_wgmma_expect_settled(d); }

#endif
