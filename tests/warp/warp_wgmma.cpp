/* SPDX-License-Identifier: Apache-2.0 */
/* wgmma.m64nNk16 with operand A in registers, as the PTX ISA defines it. Each warp holds 16 of the 64 rows.
 *
 * A product that was started is computed in the wait that ends it, from what registers and shared memory hold then. So
 * code that overwrites them earlier gets wrong sums, and copies that go where a product reads end the program. Sums are
 * NaN while a product of them is under way. At a commit the four warps of a warpgroup meet; they must have started the
 * same products. This orders no memory. */
#include "warp_sm90.h"

#include <math.h>

#include <vector>

namespace {

constexpr uint32_t kLanes = 32, kMostThreads = 48 * kLanes, kMostRows = 256, kDepth = 16;

struct product {
    float *sums;
    const uint32_t *a;
    uint64_t b;
    uint32_t b_rows;
};

struct thread_products {
    std::vector<product> open;                /* not committed */
    std::vector<std::vector<product>> groups; /* not waited for */
    std::vector<float> sums;                  /* those of the products under way, which all share */
    bool fenced;                              /* since the last commit */
    uint64_t computed;                        /* products; the same number in all lanes of a warp */
};

thread_products threads[kMostThreads];
/* [lane % 4][k][row / 8 * 2 + row % 2]: a lane has 2 of each 8 rows. */
float operand_b[4][kDepth][kMostRows / 4];

thread_products &own() { return threads[warp_thread()]; }

size_t under_way(const thread_products &t) {
    size_t count = t.open.size();
    for (const std::vector<product> &group : t.groups)
        count += group.size();
    return count;
}

/* @return where operand B begins. The descriptor's fields must be those that these tests know: K-major, the swizzle of
 * 128 bytes, atoms of 8 rows 1024 bytes apart. */
uint32_t address_of(uint64_t b) {
    if (b >> 62 != 1 || (b >> 32 & 0x3FFF) != 1024 >> 4 || (b >> 49 & 7) != 0)
        warp_fail("has a product by descriptor %llx", (unsigned long long)b);
    const uint32_t at = (uint32_t)(b & 0x3FFF) << 4;
    if (at % 1024 > 96 || at % 32 != 0)
        warp_fail("has a product by what lies at shared address %u", at);
    return at;
}

/* The swizzle applies to addresses: bits 7 to 9 are xor-ed into bits 4 to 6. */
void load_b(const product &p) {
    const uint32_t at = address_of(p.b);
    for (uint32_t row = 0; row < p.b_rows; row++)
        for (uint32_t piece = 0; piece < 2; piece++) {
            const uint32_t linear = at + row / 8 * 1024 + row % 8 * 128 + 16 * piece;
            uint32_t words[4];
            warp_async_read(linear ^ (linear >> 7 & 7) << 4, words, 16);
            for (uint32_t i = 0; i < 8; i++)
                operand_b[row % 8 / 2][8 * piece + i][row / 8 * 2 + row % 2] = warp_bf16(words[i / 2], i % 2);
        }
}

/* Computes a product. All lanes of a warp call this. */
void compute(const product &p, float *sums) {
    const uint32_t lane = threadIdx.x % kLanes;
    const warp_exchanged *const lanes = warp_exchange(p.a, 4);
    static uint32_t loaded_by;
    static uint64_t loaded_for;
    const uint64_t number = ++own().computed;
    if (loaded_for != number || loaded_by != warp_thread() / kLanes) { /* once a warp, whose lanes run in a row */
        load_b(p);
        loaded_for = number;
        loaded_by = warp_thread() / kLanes;
    }
    for (uint32_t half = 0; half < 2; half++) {
        float a[kDepth];
        for (uint32_t k = 0; k < kDepth; k++)
            a[k] = warp_bf16(lanes[lane / 4 * 4 + k % 8 / 2][half + k / 8 * 2], k % 2);
        const uint32_t cols = p.b_rows / 4;
        float side_by_side[kMostRows / 4];
        for (uint32_t col = 0; col < cols; col++)
            side_by_side[col] = sums[col / 2 * 4 + 2 * half + col % 2];
        for (uint32_t k = 0; k < kDepth; k++)
            for (uint32_t col = 0; col < cols; col++)
                side_by_side[col] += a[k] * operand_b[lane % 4][k][col];
        for (uint32_t col = 0; col < cols; col++)
            sums[col / 2 * 4 + 2 * half + col % 2] = side_by_side[col];
    }
}

void keep(const product &p, int change) {
    if (threadIdx.x % kLanes == 0)
        warp_async_keep(address_of(p.b) & ~127u, p.b_rows * 128, change);
}

} // namespace

void warp_wgmma_fence() { own().fenced = true; }

void warp_wgmma_start(float *sums, const uint32_t *a, uint64_t b, uint32_t b_rows) {
    thread_products &t = own();
    if (!t.fenced)
        warp_fail("starts a product without a fence");
    const product p = {sums, a, b, b_rows};
    if (under_way(t) == 0) {
        t.sums.assign(sums, sums + b_rows / 2);
        for (uint32_t i = 0; i < b_rows / 2; i++)
            sums[i] = NAN;
    }
    keep(p, 1);
    t.open.push_back(p);
}

void warp_wgmma_commit() {
    thread_products &t = own();
    uint32_t products = 1;
    for (const product &p : t.open)
        products = products * 31 + (uint32_t)p.b;
    warp_meet_warpgroup(products);
    t.groups.push_back(t.open);
    t.open.clear();
    t.fenced = false;
}

void warp_wgmma_wait(uint32_t pending) {
    thread_products &t = own();
    if (!t.open.empty())
        warp_fail("waits for products that it has not committed");
    while (t.groups.size() > pending) {
        float *sums = nullptr;
        for (const product &p : t.groups[0]) {
            compute(p, t.sums.data());
            keep(p, -1);
            sums = p.sums;
        }
        t.groups.erase(t.groups.begin());
        if (sums && under_way(t) == 0)
            memcpy(sums, t.sums.data(), t.sums.size() * sizeof *sums);
    }
}

void warp_wgmma_expect_settled(const float *) {
    if (under_way(own()) != 0)
        warp_fail("reads sums of products that are under way");
}
