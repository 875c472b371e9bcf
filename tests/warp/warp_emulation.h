/* SPDX-License-Identifier: Apache-2.0 */
/* Emulates a block of warps on the CPU, so that device headers run under sanitizers unchanged. This header takes the
 * place of CUDA's own names and of trf_ptx.cuh.
 *
 * Each thread is a fiber that runs until it meets the others of its warp or block. Shared memory is as large as the
 * kernel asked for; each access that goes through trf_ptx.cuh's functions is checked: where it lies, its alignment, and
 *   - what a cp.async writes reads as garbage until the lane that started it has waited for its group;
 *   - another lane may read what was written when both have met at a __syncwarp, or __syncthreads, since;
 *   - likewise, nothing may be written over what another lane has read since they met.
 * Whatever breaks this ends the program with a message. Words of 16 bits are the exception: lanes fetch them ahead, and
 * pass by the ones that are not theirs; so reading one too early gives garbage, which shows in what is decoded. The
 * decode table is read through a pointer: the address sanitizer alone sees where. */
#ifndef WARP_EMULATION_H
#define WARP_EMULATION_H

#include <stdint.h>
#include <string.h>

/* ---- the block ---- */

typedef struct warp_block_shape {
    uint32_t warps;        /* 1 to 20; up to 48 in all blocks of a cluster together */
    uint32_t shared_bytes; /* dynamic shared memory */
    uint32_t order;        /* selects the order in which threads run between meetings; any number */
    uint32_t blocks = 1;   /* of a cluster: 1 to 4 */
} warp_block_shape;

/* Runs the kernel in all threads of a block, or of a cluster whose first block is blockIdx.x. */
void warp_run_block(const warp_block_shape &shape, void (*kernel)(void *args), void *args);

/* The same for a grid of so many blocks, which run one after the other, from the last one on if the order is odd. */
void warp_run_grid(const warp_block_shape &shape, uint32_t blocks, void (*kernel)(void *args), void *args);

/* The dynamic shared memory of the block that runs, and its static shared memory, which is 32 bytes. */
uint8_t *warp_shared_memory();
void *warp_static_shared_memory();
uint32_t warp_shared_address(const void *p);

void warp_read(uint32_t at, void *to, uint32_t bytes);
uint16_t warp_read_word(uint32_t at);
void warp_write(uint32_t at, const void *from, uint32_t bytes);
/* cp.async of a lane. There is garbage at `to` until the lane has waited for its group. */
void warp_cp_async(uint32_t to, const void *from, uint32_t bytes);
void warp_cp_async_commit();
void warp_cp_async_wait(uint32_t pending);
void warp_fence_for_engine(); /* products may read what the thread's copies have brought */

void warp_meet();       /* __syncwarp */
void warp_meet_block(); /* __syncthreads of the threads that have not left */
void warp_meet_cluster();
/* wgmma.commit_group. products_hash: a hash of the wgmma that the warp has started; it must be the same in all four
 * warps. Orders no memory. */
void warp_meet_warpgroup(uint32_t products_hash);
void warp_meet_warps(uint32_t barrier, uint32_t warps);        /* barrier.sync of so many warps */
uint32_t warp_shuffle_xor(uint32_t value, uint32_t lane_mask); /* __shfl_xor_sync; orders no memory */
bool warp_all(bool value);                                     /* __all_sync; likewise */
uint32_t warp_ballot(bool value);                              /* __ballot_sync; likewise */
uint32_t warp_shuffle(uint32_t value, uint32_t lane); /* __shfl_sync; likewise, and each lane has a lane of its own */
uint32_t warp_sum(uint32_t value);                    /* __reduce_add_sync; likewise */

/* Exchanges `count` words of each lane, at most WARP_EXCHANGED_WORDS. @return what each lane of the warp has given;
 * valid until the warp exchanges words again. Orders no memory. */
enum {
    WARP_EXCHANGED_WORDS = 8
};
typedef uint32_t warp_exchanged[WARP_EXCHANGED_WORDS];
const warp_exchanged *warp_exchange(const uint32_t *words, uint32_t count);

/* Barriers in shared memory (mbarrier), and bulk copies and st.async, which count at them. Unlike a cp.async, such a
 * copy arrives at once, the earliest possible time: a user of a ring who waits loses nothing by that, and one who does
 * not wait is caught. */
void warp_barrier_init(uint32_t at, uint32_t arrivals);
void warp_barrier_arrive(uint32_t at, uint32_t bytes); /* bytes: what the phase waits for, too */
void warp_barrier_wait(uint32_t at, uint32_t parity);
void warp_async_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier);
void warp_async_put(uint32_t to, const void *from, uint32_t bytes); /* the same, but no barrier counts it */
/* A thread's store to block `rank` of the cluster, which counts at the barrier there (st.async). */
void warp_async_store(uint32_t rank, uint32_t to, const void *from, uint32_t bytes, uint32_t barrier);

/* Products of warpgroups (warp_wgmma.cpp) read shared memory, too, but only what copies have brought. While they read,
 * no copy may write there. */
void warp_async_read(uint32_t at, void *to, uint32_t bytes);
void warp_async_keep(uint32_t at, uint32_t bytes, int change); /* change: 1: it is read from now on; -1: no more */
uint32_t warp_thread();                                        /* counted through the cluster's blocks */

/* Ends the program, and says which thread it was. */
[[noreturn]] void warp_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- CUDA's words ---- */

#define __device__
#define __host__
#define __forceinline__ inline

/* Nobody calls kernels here, so declarations are enough. */
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__
#define __align__(bytes)

struct warp_index {
    uint32_t x, y; /* y: of blocks and grids; warp_run_grid leaves it as it is */
};
extern warp_index threadIdx, blockDim, blockIdx, gridDim;

struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
static inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
struct alignas(8) float2 {
    float x, y;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }
struct alignas(16) ulonglong2 {
    uint64_t x, y;
};
static inline ulonglong2 make_ulonglong2(uint64_t x, uint64_t y) { return {x, y}; }
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

static inline uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }

template <class T> static inline T __ldg(const T *at) {
    if ((uintptr_t)at % sizeof(T) != 0)
        warp_fail("a load of %zu bytes from %p", sizeof(T), (const void *)at);
    T v;
    memcpy(&v, at, sizeof v);
    return v;
}

template <class T> static inline T __ldcs(const T *at) { return __ldg(at); }

static inline uint32_t atomicCAS(uint32_t *at, uint32_t compare, uint32_t value) {
    const uint32_t old = *at;
    if (old == compare)
        *at = value;
    return old;
}

static inline uint32_t atomicAdd(uint32_t *at, uint32_t value) {
    const uint32_t old = *at;
    *at = old + value;
    return old;
}
static inline unsigned long long atomicAdd(unsigned long long *at, unsigned long long value) {
    const unsigned long long old = *at;
    *at = old + value;
    return old;
}
static inline unsigned long long atomicMax(unsigned long long *at, unsigned long long value) {
    const unsigned long long old = *at;
    *at = old > value ? old : value;
    return old;
}

static inline int __ffs(int word) { return __builtin_ffs(word); }
static inline int __popc(uint32_t word) { return __builtin_popcount(word); }

static inline void __syncwarp() { warp_meet(); }
static inline void __syncthreads() { warp_meet_block(); }

static inline void warp_expect_all_lanes(uint32_t mask) {
    if (mask != 0xFFFFFFFF)
        warp_fail("not all lanes are meant: mask %08x", mask);
}
static inline uint32_t __shfl_xor_sync(uint32_t mask, uint32_t value, uint32_t lane_mask) {
    warp_expect_all_lanes(mask);
    return warp_shuffle_xor(value, lane_mask);
}
static inline uint32_t __shfl_sync(uint32_t mask, uint32_t value, int lane) {
    warp_expect_all_lanes(mask);
    return warp_shuffle(value, (uint32_t)lane % 32);
}
/* Among `width` neighbouring lanes, a power of two. */
static inline uint32_t __shfl_sync(uint32_t mask, uint32_t value, int lane, int width) {
    warp_expect_all_lanes(mask);
    const uint32_t own = threadIdx.x % 32, first = own & ~((uint32_t)width - 1);
    return warp_shuffle(value, first + (uint32_t)lane % (uint32_t)width);
}
static inline float __shfl_sync(uint32_t mask, float value, int lane) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = __shfl_sync(mask, bits, lane);
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline uint32_t __shfl_up_sync(uint32_t mask, uint32_t value, uint32_t reach) {
    warp_expect_all_lanes(mask);
    const uint32_t lane = threadIdx.x % 32;
    return warp_shuffle(value, lane >= reach ? lane - reach : lane);
}
static inline uint32_t __ballot_sync(uint32_t mask, int predicate) {
    warp_expect_all_lanes(mask);
    return warp_ballot(predicate != 0);
}
static inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t value) {
    warp_expect_all_lanes(mask);
    return warp_sum(value);
}
static inline int __all_sync(uint32_t mask, int predicate) {
    warp_expect_all_lanes(mask);
    return warp_all(predicate != 0);
}
/* The lanes that have the same value. */
static inline uint32_t __match_any_sync(uint32_t mask, uint32_t value) {
    warp_expect_all_lanes(mask);
    const warp_exchanged *const lanes = warp_exchange(&value, 1);
    uint32_t same = 0;
    for (uint32_t i = 0; i < 32; i++)
        same |= (uint32_t)(lanes[i][0] == value) << i;
    return same;
}
static inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value) {
    warp_expect_all_lanes(mask);
    const warp_exchanged *const lanes = warp_exchange(&value, 1);
    uint32_t largest = 0;
    for (uint32_t i = 0; i < 32; i++)
        largest = largest > lanes[i][0] ? largest : lanes[i][0];
    return largest;
}
static inline uint32_t __reduce_or_sync(uint32_t mask, uint32_t value) {
    warp_expect_all_lanes(mask);
    const warp_exchanged *const lanes = warp_exchange(&value, 1);
    uint32_t all = 0;
    for (uint32_t i = 0; i < 32; i++)
        all |= lanes[i][0];
    return all;
}

/* ---- instructions, as the PTX ISA has them ---- */

/* prmt: byte n of d is the byte of {b, a} that nibble n of the selector names. Bit 3 of the nibble asks for the byte's
 * sign in all eight bits. */
static __forceinline__ uint32_t warp_prmt(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t d = 0;
    for (int n = 0; n < 4; n++) {
        const uint32_t nibble = selector >> (4 * n) & 15, byte = (uint32_t)(bytes >> (8 * (nibble & 7))) & 0xFF;
        d |= (nibble & 8 ? (byte & 0x80 ? 0xFFu : 0) : byte) << (8 * n);
    }
    return d;
}

/* lop3: each bit of d is the bit of the table that the three bits (a, b, c) name. */
static __forceinline__ uint32_t warp_lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t d = 0;
    for (uint32_t row = 0; row < 8; row++)
        if (table >> row & 1)
            d |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
    return d;
}

/* shf.l.wrap: the upper word of {hi, lo} << (n % 32). */
static __forceinline__ uint32_t __funnelshift_l(uint32_t lo, uint32_t hi, uint32_t n) {
    return (uint32_t)(((uint64_t)hi << 32 | lo) << (n & 31) >> 32);
}

/* Only three bits of each nibble count here. */
static __forceinline__ uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    return warp_prmt(a, b, selector & 0x7777);
}

/* dp2a.hi.u32.u32: halves of a by bytes 2 and 3 of b. */
static __forceinline__ uint32_t __dp2a_hi(uint32_t a, uint32_t b, uint32_t c) {
    return c + (a & 0xFFFF) * (b >> 16 & 0xFF) + (a >> 16) * (b >> 24);
}

/* dp4a.u32.u32 */
static __forceinline__ uint32_t __dp4a(uint32_t a, uint32_t b, uint32_t c) {
    for (int n = 0; n < 4; n++)
        c += (a >> (8 * n) & 0xFF) * (b >> (8 * n) & 0xFF);
    return c;
}

/* ---- the functions of trf_ptx.cuh that the headers under test call ---- */

#define TRF_PTX_CUH

static inline uint32_t trf_shared_address(const void *p) { return warp_shared_address(p); }

template <class T> static inline T warp_load(uint32_t at) {
    T v;
    warp_read(at, &v, sizeof v);
    return v;
}
static inline uint32_t trf_lds16(uint32_t at) { return warp_read_word(at); }
static inline uint32_t trf_lds32(uint32_t at) { return warp_load<uint32_t>(at); }
static inline uint2 trf_lds64(uint32_t at) { return warp_load<uint2>(at); }
static inline uint4 trf_lds128(uint32_t at) { return warp_load<uint4>(at); }
static inline void trf_sts128(uint32_t at, uint4 v) { warp_write(at, &v, sizeof v); }

static inline uint32_t trf_ldg32(const uint32_t *at) { return __ldg(at); }

static inline void trf_named_barrier_sync(uint32_t barrier, uint32_t warps) { warp_meet_warps(barrier, warps); }

/* Arriving does nothing, since all threads meet in the wait. So nobody goes on before all wait; on a device they may go
 * on as soon as all have arrived. */
static inline void trf_cluster_arrive(uint32_t) {}
static inline void trf_cluster_wait(uint32_t blocks) {
    if (blocks > 1)
        warp_meet_cluster();
    else
        warp_meet_block();
}

/* There is no predecessor: the kernel is alone in its stream. */
static inline void trf_wait_for_predecessor() {}
static inline void trf_allow_successor() {}

/* mma.m16n8k16 by the PTX ISA's tables of fragments; the order of additions is the test's own. */
struct trf_bf16_type {};
static inline float warp_bf16(uint32_t word, uint32_t half) {
    const uint32_t bits = word >> (16 * half) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline void trf_mma(trf_bf16_type, float *d, const uint32_t *a, uint32_t b0, uint32_t b1) {
    const uint32_t own[6] = {a[0], a[1], a[2], a[3], b0, b1}, lane = threadIdx.x % 32;
    const warp_exchanged *const lanes = warp_exchange(own, 6);
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t row = lane / 4 + 8 * (i / 2), col = 2 * (lane % 4) + i % 2;
        for (uint32_t k = 0; k < 16; k++)
            d[i] += warp_bf16(lanes[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2) *
                    warp_bf16(lanes[col * 4 + k % 8 / 2][4 + k / 8], k % 2);
    }
}

static inline void trf_cp_async16(uint32_t to, const void *from) { warp_cp_async(to, from, 16); }
static inline void trf_cp_async16_or_zeros(bool here, uint32_t to, const void *from) {
    alignas(16) static const uint8_t zeros[16] = {};
    warp_cp_async(to, here ? from : zeros, 16);
}
static inline void trf_cp_async8(uint32_t to, const void *from) { warp_cp_async(to, from, 8); }
static inline void trf_cp_async_commit() { warp_cp_async_commit(); }
template <int kPending> static inline void trf_cp_async_wait() { warp_cp_async_wait(kPending); }

static __forceinline__ uint32_t trf_select(uint32_t mask, uint32_t a, uint32_t b) {
    return warp_lop3(mask, a, b, 0xCA);
}
static __forceinline__ uint32_t trf_and_or(uint32_t a, uint32_t mask, uint32_t b) {
    return warp_lop3(a, mask, b, 0xEA);
}
static __forceinline__ uint32_t trf_permute(uint32_t a, uint32_t b, uint32_t pick) { return warp_prmt(a, b, pick); }
static __forceinline__ uint32_t trf_rotate_left(uint32_t a, int n) {
    return (n & 31) ? __funnelshift_l(a, a, n & 31) : a;
}

#endif
