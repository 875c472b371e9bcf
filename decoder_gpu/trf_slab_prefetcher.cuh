/* SPDX-License-Identifier: Apache-2.0 */
/* Which slabs a warp walks, and the copies of their bytes to shared memory, which are a step, a chunk or a slab ahead
 * of the decoding. trf_slab_walk.cuh has the picture.
 *
 * The prefetcher goes through the same sequence of slabs as the walk, only earlier. When it enters a slab, it starts
 * the copy of that slab's rANS streams; when it enters a chunk, the copy of the chunk's narrow planes; and with each
 * step, the copy of 512 bytes of the 8-bit plane. It leaves out slabs that are not there (stored tiles) and invalid
 * entries. */
#ifndef TRF_SLAB_PREFETCHER_CUH
#define TRF_SLAB_PREFETCHER_CUH

#include "trf_fault.cuh"
#include "trf_fragment.cuh"
#include "trf_smem_layout.h"

static constexpr int kRing = TRF_RING_STEPS, kShortRing = TRF_SHORT_RING_STEPS; /* places of a step each */
static constexpr uint32_t kStepBytes = TRF_STEP_BYTES;                          /* of the 8-bit plane */

/* ---- which slabs ---- */

/* A sequence of panels: those of a unit, then those of others. A warp walks all slabs that a unit has in a panel, one
 * or two, at the same time; "the slab" means all of them. */
struct trf_walk {
    uint32_t unit, panel; /* of the current slab; a unit is kSlabs bands */
    uint32_t stop;        /* the panel before which the walk leaves the unit */
    uint32_t left;        /* panels from this one on, of this unit and others */
};

/* Where a walk continues: here, with all panels of the next unit. Other unit orders have a function of this name,
 * too. */
struct trf_all_panels_order {
    uint32_t panels; /* regular ones */

    __device__ __forceinline__ void next_unit(trf_walk &walk) const {
        walk.unit++;
        walk.panel = 0;
    }
};

template <class UnitOrder>
static __device__ __forceinline__ void trf_walk_next(trf_walk &walk, const UnitOrder &unit_order) {
    if (--walk.left && ++walk.panel == walk.stop)
        unit_order.next_unit(walk);
}

/* The number of chunks of a regular slab; it is smaller in a narrow last panel. */
static __device__ __forceinline__ uint32_t trf_slab_chunks(const trf_device_view &view, uint32_t panel) {
    return min(view.cols - panel * view.slab_cols, view.slab_cols) / 64;
}

/* A slab as the kernels hold it, a trf_device_slab: x = raw_offset_128, y = rans_offset_16 | rans_size_16 << 16; y = 0:
 * there is none. */
static __device__ __forceinline__ uint2 trf_slab_at(const trf_device_view &view, const trf_walk &walk, uint32_t band) {
    if (!walk.left || band * TRF_SLAB_ROWS + TRF_SLAB_ROWS > view.rows)
        return make_uint2(0, 0);
    return __ldg(reinterpret_cast<const uint2 *>(view.slabs) + (uint64_t)band * view.num_panels + walk.panel);
}

/* The bytes of a slab's rANS streams, or 0 if the entry is invalid or there is no slab. raw_bytes: bytes of its raw
 * bits. limit: the most bytes of rANS streams. */
static __device__ __forceinline__ uint32_t trf_rans_bytes_of(const trf_device_view &view, uint2 slab,
                                                             uint32_t raw_bytes, uint32_t limit) {
    const uint32_t rans_streams = (slab.y & 0xFFFF) * TRF_ALIGNMENT, bytes = (slab.y >> 16) * TRF_ALIGNMENT;
    const uint64_t end = (uint64_t)slab.x * TRF_TILE_ALIGNMENT + rans_streams + bytes;
    return rans_streams >= raw_bytes && end <= view.buffer_bytes && bytes <= limit && bytes >= TRF_RANS_FIXED_BYTES
               ? bytes
               : 0;
}

/* ---- prefetching: a chunk or a slab ahead of the decoding, through the same walk ---- */

/* kSlabs: bands of a unit. kRingSteps: places in the ring of the 8-bit plane, kRing or kShortRing. */
template <int kSlabs, int kRingSteps = kRing> struct trf_prefetcher {
    static constexpr bool kRefillAfterRead =
        kRingSteps != kRing; /* whether a step's place is filled again only when it has been read */
    static constexpr int kAhead = kRefillAfterRead ? kRingSteps : kRingSteps - 1; /* steps */
    /* the step of a chunk at which the copies of the next chunk begin */
    static constexpr int kEnterStep = (4 - kAhead) % 4;
    trf_walk walk;                   /* the slabs to enter next */
    uint2 slab[kSlabs];              /* their entries, loaded ahead */
    const uint8_t *next_raw[kSlabs]; /* raw bits of the next chunk, plus 16 * lane */
    uint32_t chunks_left;            /* chunks of the slabs entered last, from that chunk on */
    uint32_t buffer;                 /* 0 or 1: where the rANS streams of the slabs to enter next go */
    uint32_t bytes[kSlabs]; /* bytes of the rANS streams of the slabs entered last; 0: there were no slabs left */
    trf_walk entered;       /* the slabs entered last */
    uint32_t narrow;        /* 0 or trf_narrow_stride: where the narrow planes of the next chunk go */
    uint32_t read_buffer;   /* where the rANS streams of the slabs to decode next are */
    uint32_t read_narrow;   /* where the narrow planes of the chunk to decode next are */
    uint32_t address;       /* shared address of the warp's buffers, plus 16 * lane */
};

/* Starts the copy of slab s's rANS streams. */
template <class Codec, int kSlabs, int kRingSteps>
static __device__ __forceinline__ void trf_copy_rans_streams(const trf_prefetcher<kSlabs, kRingSteps> &prefetcher,
                                                             const trf_smem_layout &smem, int s, uint32_t lane) {
    /* copies of a lane that are enough for most slabs' rANS streams; longer ones take a loop */
    constexpr uint32_t kCopies = Codec::kClassBits == 2 ? 2 : 3;
    const uint32_t to =
        prefetcher.address + s * smem.slab_bytes + smem.rans_streams + prefetcher.buffer * smem.rans_bytes;
    const uint8_t *from = prefetcher.next_raw[s] + (prefetcher.slab[s].y & 0xFFFF) * TRF_ALIGNMENT;
#pragma unroll
    for (uint32_t i = 0; i < kCopies; i++)
        if (16 * (i * TRF_LANES + lane) < prefetcher.bytes[s])
            trf_cp_async16(to + 16 * TRF_LANES * i, from + 16 * TRF_LANES * i);
#pragma unroll 1
    for (uint32_t i = 16 * TRF_LANES * kCopies; i + 16 * lane < prefetcher.bytes[s]; i += 16 * TRF_LANES)
        trf_cp_async16(to + i, from + i);
}

/* Goes on to the next slabs that are there, and starts the copies of their rANS streams. */
template <class Codec, int kSlabs, int kRingSteps, class UnitOrder>
static __device__ __forceinline__ void trf_enter_slab(trf_prefetcher<kSlabs, kRingSteps> &prefetcher,
                                                      const trf_device_view &view, const trf_smem_layout &smem,
                                                      const UnitOrder &unit_order, uint32_t lane) {
    const uint32_t chunk_bytes = trf_chunk_offset(Codec::raw(view.raw_bits), 1);
    prefetcher.bytes[0] = 0;
#pragma unroll 1
    while (prefetcher.walk.left && !prefetcher.bytes[0]) {
        const uint32_t chunks = trf_slab_chunks(view, prefetcher.walk.panel);
#pragma unroll
        for (int s = 0; s < kSlabs; s++) {
            prefetcher.bytes[s] = trf_rans_bytes_of(view, prefetcher.slab[s], chunks * chunk_bytes, smem.rans_bytes);
            if (s && !prefetcher.bytes[s]) { /* after an odd last band, the band itself is taken again, and not used */
                prefetcher.slab[s] = prefetcher.slab[0];
                prefetcher.bytes[s] = prefetcher.bytes[0];
            }
        }
        if (prefetcher.bytes[0]) {
            prefetcher.entered = prefetcher.walk;
            prefetcher.chunks_left = chunks;
#pragma unroll
            for (int s = 0; s < kSlabs; s++) {
                prefetcher.next_raw[s] = view.buffer + (uint64_t)prefetcher.slab[s].x * TRF_TILE_ALIGNMENT + 16 * lane;
                trf_copy_rans_streams<Codec>(prefetcher, smem, s, lane);
            }
            prefetcher.buffer ^= 1;
        }
        trf_walk_next(prefetcher.walk, unit_order);
#pragma unroll
        for (int s = 0; s < kSlabs; s++)
            prefetcher.slab[s] = trf_slab_at(view, prefetcher.walk, kSlabs * prefetcher.walk.unit + s);
    }
}

/* Goes on to the next chunk. After the last chunk of all it stays there: that chunk is loaded again, and not used. */
template <class Codec, int kSlabs, int kRingSteps, class UnitOrder>
static __device__ __forceinline__ void trf_enter_chunk(trf_prefetcher<kSlabs, kRingSteps> &prefetcher,
                                                       const trf_device_view &view, const trf_smem_layout &smem,
                                                       const UnitOrder &unit_order, uint32_t lane) {
    const uint32_t chunk_bytes = trf_chunk_offset(Codec::raw(view.raw_bits), 1);
    if (--prefetcher.chunks_left) {
#pragma unroll
        for (int s = 0; s < kSlabs; s++)
            prefetcher.next_raw[s] += chunk_bytes;
    } else {
        trf_enter_slab<Codec>(prefetcher, view, smem, unit_order, lane);
    }
}

/* Starts the copy of step k of the chunk that prefetcher.next_raw points to and, with step 0, of its narrow planes. */
template <class Codec, int kSlabs, int kRingSteps>
static __device__ __forceinline__ void trf_prefetch_step(trf_prefetcher<kSlabs, kRingSteps> &prefetcher,
                                                         const trf_smem_layout &smem, int k, uint32_t lane,
                                                         const trf_int_planes &planes) {
#pragma unroll
    for (int s = 0; s < kSlabs; s++) {
        const uint32_t address = prefetcher.address + s * smem.slab_bytes;
        if (Codec::kHasPlane8)
            trf_cp_async16(address + k % kRingSteps * kStepBytes, prefetcher.next_raw[s] + k * kStepBytes);
        if (k == 0)
            trf_prefetch_narrow<Codec>(address + (Codec::kHasPlane8 ? kRingSteps * kStepBytes : 0) + prefetcher.narrow,
                                       prefetcher.next_raw[s] + (Codec::kHasPlane8 ? 4 * kStepBytes : 0), lane, planes);
    }
    if (k == 0)
        prefetcher.narrow ^= trf_narrow_stride(Codec::raw(planes.raw_bits), kRingSteps);
    trf_cp_async_commit();
}

/* Begins a walk: starts the copies of the first slabs' rANS streams and first steps. memory: shared address of the
 * warp's buffers. */
template <class Codec, int kSlabs, int kRingSteps, class UnitOrder>
static __device__ __forceinline__ void trf_start_walk(trf_prefetcher<kSlabs, kRingSteps> &prefetcher,
                                                      const trf_device_view &view, const trf_smem_layout &smem,
                                                      const trf_int_planes &planes, const trf_walk &walk,
                                                      const UnitOrder &unit_order, uint32_t memory, uint32_t lane) {
    prefetcher.walk = walk;
    prefetcher.buffer = prefetcher.narrow = prefetcher.read_buffer = prefetcher.read_narrow = 0;
    prefetcher.address = memory + 16 * lane;
#pragma unroll
    for (int s = 0; s < kSlabs; s++)
        prefetcher.slab[s] = trf_slab_at(view, walk, kSlabs * walk.unit + s);
    trf_enter_slab<Codec>(prefetcher, view, smem, unit_order, lane);
    if (!prefetcher.bytes[0])
        return;
#pragma unroll
    for (int k = 0; k < (Codec::kHasPlane8 ? trf_prefetcher<kSlabs, kRingSteps>::kAhead : 1); k++)
        trf_prefetch_step<Codec>(prefetcher, smem, k, lane, planes);
}

/* Notes a slab's tile as corrupt. One lane calls it. */
static __device__ __forceinline__ void trf_note_slab_fault(const trf_device_view &view, uint32_t band, uint32_t panel) {
    const uint64_t tile =
        (uint64_t)(band / TRF_BANDS_PER_TILE) * view.num_tile_cols + panel * view.slab_cols / TRF_TILE_SIZE;
    trf_note_fault(view, tile);
}

#endif
