/* SPDX-License-Identifier: Apache-2.0 */
/* One lane's rANS stream, and a slab's exceptions, in shared memory: beginning, decoding a symbol, verdict. The decode
 * step is that of trf_lane.h, in the form that takes the fewest instructions. A corrupt rANS stream leads a lane no
 * farther than the guard bytes (TRF_GUARD_BYTES) around a block's buffers. */
#ifndef TRF_RANS_STREAM_CUH
#define TRF_RANS_STREAM_CUH

#include "trf_fragment.cuh"
#include "trf_lane.h"

/* ---- one lane's rANS stream ---- */

struct trf_rans_stream {
    uint32_t x;     /* rANS state */
    uint32_t next;  /* the word after those taken, loaded ahead, which keeps its latency off the chain of states */
    uint32_t at;    /* shared address of the word after that */
    int32_t stride; /* 2 or -2 */
};

/* What decode steps need and what never changes. kP: as for the table (trf_smem_table.cuh); kLog: its table_log, or 0
 * with kP = 0. */
template <int kP, int kLog> struct trf_rans_params {
    const uint8_t *table;     /* shared memory */
    uint32_t p, low;          /* probability bits; 2^L */
    uint32_t slot_shift;      /* slot -> byte offset in the table */
    uint32_t slot_mask, copy; /* (x << slot_shift & slot_mask) | copy is the entry's byte offset */
    /* With kP: the 1 above the quotient, which dp2a multiplies slot offsets by; and trf_class_palette. */
    uint32_t dot_one, palette;
};

/* constants: shared address of two copies of dot_one and palette. If each lane reads the copy that its number selects,
 * the values stay in vector registers, where the steps need them (kKeep), since the compiler cannot know that all lanes
 * get the same values. Otherwise it puts them into uniform registers, and copies them each time. */
template <int kP, int kLog, bool kKeep = true>
static __device__ __forceinline__ trf_rans_params<kP, kLog> trf_rans_params_of(const trf_device_view &view,
                                                                               const uint8_t *table, uint32_t table_log,
                                                                               uint32_t constants, uint32_t lane) {
    trf_rans_params<kP, kLog> params;
    params.table = table;
    params.p = kP ? kP : view.probability_bits;
    params.low = 1u << (kP ? kP : view.state_bits);
    params.slot_shift = (kP ? kLog : table_log) - params.p;
    params.slot_mask = ((1u << params.p) - 1) << params.slot_shift;
    params.copy = (kP ? 4 : 8) * lane & ((1u << params.slot_shift) - 1);
    if (kP) {
        const uint2 both = trf_lds64(constants + (kKeep ? 8 * (lane % 2) : 0));
        params.dot_one = both.x;
        params.palette = both.y;
    }
    return params;
}

template <int kP, int kLog>
static __device__ __forceinline__ void trf_lane_renormalize(trf_rans_stream &s,
                                                            const trf_rans_params<kP, kLog> &params) {
    if (s.x < params.low) {
        s.x = trf_state_renormalize(s.x, s.next);
        s.next = trf_lds16(s.at);
        s.at += s.stride;
    }
}

/* The state, shifted so that its slot is the byte offset in the table. With kP the quotient is right above the offset,
 * and params.dot_one above that if 32 bits have room for it. */
template <int kP, int kLog>
static __device__ __forceinline__ uint32_t trf_state_in_place(uint32_t x, const trf_rans_params<kP, kLog> &params) {
    return kLog == 15 ? x * (1u << (15 - kP)) + params.dot_one : x << params.slot_shift;
}

/* Returns the quotient with a 1 above its 16 bits. */
template <int kP, int kLog>
static __device__ __forceinline__ uint32_t trf_quotient_and_one(uint32_t in_place,
                                                                const trf_rans_params<kP, kLog> &params) {
    return kLog == 15 ? in_place >> 15 : trf_permute(in_place, params.dot_one, 0x5432);
}

/* Decodes a symbol. @return the entry's class part. With kP one dot product of two terms computes frequency * quotient
 * + slot_offset * 1. */
template <class Codec, int kP, int kLog>
static __device__ __forceinline__ uint32_t trf_lane_decode_step(trf_rans_stream &s,
                                                                const trf_rans_params<kP, kLog> &params) {
    const uint32_t in_place = trf_state_in_place(s.x, params);
    const uint8_t *const at = params.table + trf_and_or(in_place, params.slot_mask, params.copy);
    if (kP) {
        const uint32_t entry = *reinterpret_cast<const uint32_t *>(at);
        s.x = __dp2a_hi(trf_quotient_and_one(in_place, params), entry, 0u);
        trf_lane_renormalize(s, params);
        return trf_class_part_from_short<Codec>(entry, params.palette);
    }
    const uint2 entry = *reinterpret_cast<const uint2 *>(at);
    s.x = (entry.x & 0xFFFF) * (s.x >> params.p) + (entry.x >> 16);
    trf_lane_renormalize(s, params);
    return entry.y;
}

/* Begins the lane's rANS stream. rans_streams: shared address of the slab's rANS streams, which have `bytes` bytes.
 * exceptions: their number. If the counts of words lead beyond the end of the rANS streams, the lane begins at that
 * end; from there it cannot get farther than TRF_GUARD_BYTES. */
template <int kP, int kLog>
static __device__ __forceinline__ void trf_lane_begin(trf_rans_stream &s, const trf_rans_params<kP, kLog> &params,
                                                      uint32_t rans_streams, uint32_t bytes, uint32_t exceptions,
                                                      uint32_t masks, uint32_t lane) {
    const uint4 counts = trf_lds128(rans_streams + TRF_STATES_BYTES), mask = trf_lds128(masks + 16 * lane);
    uint32_t below = __dp4a(counts.x, mask.x, 0u);
    below = __dp4a(counts.y, mask.y, below);
    below = __dp4a(counts.z, mask.z, below);
    below = __dp4a(counts.w, mask.w, below);
    s.x = trf_lds16(rans_streams + 2 * lane);
    s.at =
        rans_streams + min(TRF_RANS_FIXED_BYTES + 4 * exceptions + 2 * below, bytes) - (lane < TRF_LANE_PAIRS ? 0 : 2);
    s.stride = lane < TRF_LANE_PAIRS ? 2 : -2;
    s.next = trf_lds16(s.at);
    s.at += s.stride;
    trf_lane_renormalize(s, params);
}

/* Whether the lane's rANS stream ends as it must: its state is 2^L, and it meets the other rANS stream of its lane
 * pair. All lanes of the warp call it. */
template <int kP, int kLog>
static __device__ __forceinline__ bool trf_lane_good(const trf_rans_stream &s,
                                                     const trf_rans_params<kP, kLog> &params) {
    const uint32_t behind = s.at - s.stride; /* the first word not taken, seen from this lane */
    const uint32_t partner = __shfl_xor_sync(0xFFFFFFFFu, behind, TRF_LANE_PAIRS);
    return s.x == params.low && (s.stride > 0 ? behind == partner + 2 : partner == behind + 2);
}

/* ---- exceptions: a cursor that all lanes share ---- */

struct trf_exceptions {
    uint32_t next;    /* the next exception, or ~0 after the last one */
    uint32_t at, end; /* shared addresses */
};

static __device__ __forceinline__ void trf_exceptions_begin(trf_exceptions &e, uint32_t rans_streams, uint32_t count) {
    e.at = rans_streams + TRF_RANS_FIXED_BYTES;
    e.end = e.at + 4 * count;
    e.next = count ? trf_lds32(e.at) : 0xFFFFFFFFu;
}

static __device__ __forceinline__ void trf_exceptions_advance(trf_exceptions &e) {
    e.at += 4;
    e.next = e.at < e.end ? trf_lds32(e.at) : 0xFFFFFFFFu;
}

/* Puts the lower half of value into a step's fragments reg[8] if the exception is this lane's. All lanes take the same
 * branches. */
static __device__ __forceinline__ void trf_patch_exception(uint32_t *reg, uint32_t exception, uint32_t value,
                                                           uint32_t lane) {
    const bool mine = ((exception ^ lane << 19) & (TRF_LANES - 1) << 19) == 0;
    const uint32_t pick = exception & 1u << 24 ? 0x5410 : 0x3254, which = mine ? 1u << (exception >> 25 & 7) : 0;
#pragma unroll
    for (int i = 0; i < 8; i++) /* the bits become predicates in one instruction */
        if (which & 1u << i)
            reg[i] = __byte_perm(reg[i], value, pick);
}

#endif
