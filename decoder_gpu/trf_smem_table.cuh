/* SPDX-License-Identifier: Apache-2.0 */
/* The decode table in shared memory, and what else a block's warps share there. It is built once, before the walk.
 *
 * Lanes read different copies of an entry, to have as few bank conflicts as the space allows. Copy c of slot s is at
 * table + bytes * (s * copies + c); there are as many copies as the table's size allows.
 *
 *   kP > 0   a kernel made for p = L = kP and frequencies up to 255. An entry has 4 bytes:
 *            [31:24] slot - start  [23:16] frequency  [15:0] trf_short_class_part_of
 *            With p = 9 and 64 KiB there are 32 copies, a bank for each lane; with 32 KiB there are 16.
 *   kP = 0   any p and L. An entry has 8 bytes: first [31:16] slot - start  [15:0] frequency, then the class part of a
 *            byte word (trf_class_part_of). There are at least two copies. */
#ifndef TRF_SMEM_TABLE_CUH
#define TRF_SMEM_TABLE_CUH

#include "trf_fragment.cuh"
#include "trf_smem_layout.h"

static constexpr uint32_t kTableLog = TRF_TABLE_LOG, kSmallTableLog = TRF_SMALL_TABLE_LOG;

/* p of the kernels that are made for one p: what encoders choose. */
template <class Codec>
constexpr int kDefaultP = Codec::kClassBits == 2 ? (int)TRF_QUADS_PROBABILITY_BITS : (int)TRF_PAIRS_PROBABILITY_BITS;

/* A thread's slots of the table, which are loaded from the start of a kernel on: all of them if the block has 8 warps.
 * With kP = 0 there are none. */
template <int kP> struct trf_table_slots {
    static constexpr uint32_t kAhead = kP ? (1u << kP) / 256 : 1;
    uint32_t entry[kAhead];

    __device__ __forceinline__ explicit trf_table_slots(const trf_device_view &view) {
#pragma unroll
        for (uint32_t i = 0; kP && i < kAhead; i++)
            entry[i] = trf_ldg32(view.decode_table + min(threadIdx.x + i * blockDim.x, (1u << kP) - 1));
    }
};

template <class Codec, int kP>
static __device__ __forceinline__ void trf_build_slot(const trf_device_view &view, uint32_t table, uint32_t vectors,
                                                      uint32_t slot, uint32_t entry) {
    const uint32_t symbol = trf_entry_symbol(entry), frequency = trf_entry_frequency(entry),
                   slot_offset = trf_entry_slot_offset(entry);
    uint4 copies;
    if (kP) {
        copies.x = copies.y = trf_short_class_part_of<Codec>(view, symbol) | frequency << 16 | slot_offset << 24;
    } else {
        copies.x = frequency | slot_offset << 16;
        copies.y = trf_class_part_of<Codec>(view, symbol);
    }
    copies.z = copies.x;
    copies.w = copies.y;
    for (uint32_t c = 0; c < vectors; c++) /* rotated by lane, so that a warp's stores use all banks */
        trf_sts128(table + 16 * (slot * vectors + (c + threadIdx.x) % vectors), copies);
}

template <class Codec, int kP>
static __device__ __forceinline__ void trf_build_table(const trf_device_view &view, const trf_table_slots<kP> &source,
                                                       uint32_t table, uint32_t table_log) {
    const uint32_t p = kP ? kP : view.probability_bits, vectors = 1u << (table_log - 4 - p); /* of 16 bytes */
    uint32_t slot = threadIdx.x;
#pragma unroll
    for (uint32_t i = 0; kP && i < source.kAhead; i++, slot += blockDim.x)
        if (slot < 1u << p)
            trf_build_slot<Codec, kP>(view, table, vectors, slot, source.entry[i]);
    for (; slot < 1u << p; slot += blockDim.x)
        trf_build_slot<Codec, kP>(view, table, vectors, slot, __ldg(view.decode_table + slot));
}

/* Builds the masks. Lane l's mask, 16 bytes of 0 or 1, selects the lane pairs whose words lie before the lane's first
 * word. */
static __device__ __forceinline__ void trf_build_lane_pair_masks(uint32_t masks) {
    if (threadIdx.x < TRF_LANES) {
        const uint32_t lane = threadIdx.x, below = lane % TRF_LANE_PAIRS + lane / TRF_LANE_PAIRS;
        uint32_t m[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int n = (int)below - 4 * i;
            m[i] = n >= 4 ? 0x01010101u : n <= 0 ? 0 : 0x01010101u & ((1u << (8 * n)) - 1);
        }
        trf_sts128(masks + 16 * lane, make_uint4(m[0], m[1], m[2], m[3]));
    }
}

/* Builds all of these; the block needs a barrier afterwards. constants: two copies of dot_one and palette of
 * trf_rans_params. */
template <class Codec, int kP, int kLog>
static __device__ __forceinline__ void trf_build_constants(const trf_device_view &view,
                                                           const trf_table_slots<kP> &source, uint32_t shared,
                                                           const trf_smem_layout &smem, uint2 *constants) {
    trf_build_table<Codec>(view, source, shared, smem.table_log);
    trf_build_lane_pair_masks(shared + smem.lane_pair_masks);
    if (threadIdx.x < 2)
        constants[threadIdx.x] = make_uint2(kLog == 15 ? 1u << 31 : 1, trf_class_palette<Codec>(view));
}

#endif
