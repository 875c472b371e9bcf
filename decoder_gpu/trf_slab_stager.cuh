/* Which slabs a warp walks, and the copies of their bytes to shared memory: of a step, a chunk or a slab ahead of the
 * decoding. trf_slab_walk.cuh has the picture.
 *
 * The stager goes through the same sequence of slabs as the walk does, only earlier: when it enters a slab, the copy of
 * that slab's rANS streams starts; when it enters a chunk, that of its narrow planes; and with each step that of the
 * 8-bit plane's 512 bytes. Slabs that are not there (stored tiles) and entries that make no sense it leaves out. */
#ifndef TRF_SLAB_STAGER_CUH
#define TRF_SLAB_STAGER_CUH

#include "trf_fault.cuh"
#include "trf_fragment.cuh"
#include "trf_smem_layout.h"

static constexpr int kRing = TRF_RING_STEPS, kShortRing = TRF_SHORT_RING_STEPS; /* places of a step each */
static constexpr uint32_t kStepBytes = TRF_STEP_BYTES;                          /* of the 8-bit plane */

/* ---- which slabs ---- */

/* A sequence of slabs: columns within a band, then in other bands. */
struct trf_walk {
    uint32_t band, col; /* of the slab at hand */
    uint32_t stop;      /* column of slabs where the walk leaves the band */
    uint32_t left;      /* slabs from here on, it included */
};

/* Where a walk goes on: all columns of the next band. Other grids have a function of this name, too. */
struct trf_all_bands {
    uint32_t cols; /* regular ones */

    __device__ __forceinline__ void next_band(trf_walk &walk) const {
        walk.band++;
        walk.col = 0;
    }
};

template <class BandOrder>
static __device__ __forceinline__ void trf_walk_next(trf_walk &walk, const BandOrder &band_order) {
    if (--walk.left && ++walk.col == walk.stop)
        band_order.next_band(walk);
}

/* Chunks of a regular slab: fewer in the last column. */
static __device__ __forceinline__ uint32_t trf_slab_chunks(const trf_device_view &view, uint32_t col) {
    return min(view.cols - col * view.slab_cols, view.slab_cols) / 64;
}

/* A slab as the kernels hold it, a trf_device_slab: x = raw_units, y = rans_units | size_units << 16; y = 0: there is
 * none. */
static __device__ __forceinline__ uint2 trf_slab_at(const trf_device_view &view, const trf_walk &walk, uint32_t band) {
    if (!walk.left || band * TRF_SLAB_ROWS + TRF_SLAB_ROWS > view.rows)
        return make_uint2(0, 0);
    return __ldg(reinterpret_cast<const uint2 *>(view.slabs) + (uint64_t)band * view.num_slab_cols + walk.col);
}

/* Bytes of a slab's rANS streams, or 0 if the entry makes no sense or there is no slab. raw_bytes: of its raw bits.
 * limit: of the streams. */
static __device__ __forceinline__ uint32_t trf_rans_bytes_of(const trf_device_view &view, uint2 slab,
                                                             uint32_t raw_bytes, uint32_t limit) {
    const uint32_t rans_streams = (slab.y & 0xFFFF) * TRF_ALIGNMENT, bytes = (slab.y >> 16) * TRF_ALIGNMENT;
    const uint64_t end = (uint64_t)slab.x * TRF_TILE_ALIGNMENT + rans_streams + bytes;
    return rans_streams >= raw_bytes && end <= view.blob_bytes && bytes <= limit && bytes >= TRF_RANS_HEAD_BYTES ? bytes
                                                                                                                 : 0;
}

/* ---- staging: a chunk or a slab ahead of the decoding, through the same walk ---- */

template <int kSlabs, int kSteps = kRing> struct trf_stager {
    static constexpr bool kRefillAfterRead = kSteps != kRing; /* a step's place is filled again once it has been read */
    static constexpr int kAhead = kRefillAfterRead ? kSteps : kSteps - 1; /* steps */
    static constexpr int kEnterStep = (4 - kAhead) % 4; /* of a chunk: where the copies of the next chunk begin */
    trf_walk walk;                                      /* of the slabs to enter next; band: counted in kSlabs */
    uint2 slab[kSlabs];                                 /* their entries, loaded ahead */
    const uint8_t *source[kSlabs];                      /* raw bits of the chunk that comes next, plus 16 * lane */
    uint32_t chunks_left;                               /* of the slabs entered last, from that chunk on */
    uint32_t buffer;        /* 0 or 1: where the rANS streams of the slabs to enter next go */
    uint32_t bytes[kSlabs]; /* of the rANS streams of the slabs entered last; 0: there were no slabs left */
    trf_walk entered;       /* the slabs entered last */
    uint32_t narrow;        /* 0 or trf_narrow_stride: where the next chunk's narrow planes go */
    uint32_t read_buffer;   /* where the slabs to decode next have their rANS streams */
    uint32_t read_narrow;   /* and the chunk to decode next its narrow planes */
    uint32_t place;         /* shared address of the warp's buffers, plus 16 * lane */
};

/* Starts the copy of slab s's rANS streams. */
template <class Traits, int kSlabs, int kSteps>
static __device__ __forceinline__ void trf_copy_rans_stream(const trf_stager<kSlabs, kSteps> &stager,
                                                            const trf_smem_layout &smem, int s, uint32_t lane) {
    /* of a lane, which most slabs' streams need; longer ones take a loop */
    constexpr uint32_t kCopies = Traits::kClassBits == 2 ? 2 : 3;
    const uint32_t to = stager.place + s * smem.slab_bytes + smem.rans_streams + stager.buffer * smem.rans_bytes;
    const uint8_t *from = stager.source[s] + (stager.slab[s].y & 0xFFFF) * TRF_ALIGNMENT;
#pragma unroll
    for (uint32_t i = 0; i < kCopies; i++)
        if (16 * (i * TRF_LANES + lane) < stager.bytes[s])
            trf_cp_async16(to + 16 * TRF_LANES * i, from + 16 * TRF_LANES * i);
#pragma unroll 1
    for (uint32_t i = 16 * TRF_LANES * kCopies; i + 16 * lane < stager.bytes[s]; i += 16 * TRF_LANES)
        trf_cp_async16(to + i, from + i);
}

/* Moves on to the next slabs that are there, and starts the copy of their rANS streams. */
template <class Traits, int kSlabs, int kSteps, class BandOrder>
static __device__ __forceinline__ void trf_enter_slab(trf_stager<kSlabs, kSteps> &stager, const trf_device_view &view,
                                                      const trf_smem_layout &smem, const BandOrder &band_order,
                                                      uint32_t lane) {
    const uint32_t chunk_bytes = trf_chunk_offset(Traits::raw(view.raw_bits), 1);
    stager.bytes[0] = 0;
#pragma unroll 1
    while (stager.walk.left && !stager.bytes[0]) {
        const uint32_t chunks = trf_slab_chunks(view, stager.walk.col);
#pragma unroll
        for (int s = 0; s < kSlabs; s++) {
            stager.bytes[s] = trf_rans_bytes_of(view, stager.slab[s], chunks * chunk_bytes, smem.rans_bytes);
            if (s && !stager.bytes[s]) { /* an odd last band: its neighbour once more, unused */
                stager.slab[s] = stager.slab[0];
                stager.bytes[s] = stager.bytes[0];
            }
        }
        if (stager.bytes[0]) {
            stager.entered = stager.walk;
            stager.chunks_left = chunks;
#pragma unroll
            for (int s = 0; s < kSlabs; s++) {
                stager.source[s] = view.blob + (uint64_t)stager.slab[s].x * TRF_TILE_ALIGNMENT + 16 * lane;
                trf_copy_rans_stream<Traits>(stager, smem, s, lane);
            }
            stager.buffer ^= 1;
        }
        trf_walk_next(stager.walk, band_order);
#pragma unroll
        for (int s = 0; s < kSlabs; s++)
            stager.slab[s] = trf_slab_at(view, stager.walk, kSlabs * stager.walk.band + s);
    }
}

/* Moves on to the next chunk. At the last one of all it stays: that chunk is loaded again, unused. */
template <class Traits, int kSlabs, int kSteps, class BandOrder>
static __device__ __forceinline__ void trf_enter_chunk(trf_stager<kSlabs, kSteps> &stager, const trf_device_view &view,
                                                       const trf_smem_layout &smem, const BandOrder &band_order,
                                                       uint32_t lane) {
    const uint32_t chunk_bytes = trf_chunk_offset(Traits::raw(view.raw_bits), 1);
    if (--stager.chunks_left) {
#pragma unroll
        for (int s = 0; s < kSlabs; s++)
            stager.source[s] += chunk_bytes;
    } else {
        trf_enter_slab<Traits>(stager, view, smem, band_order, lane);
    }
}

/* Starts the copy of step k of the chunk that stager.source points to; with step 0, of its narrow planes. */
template <class Traits, int kSlabs, int kSteps>
static __device__ __forceinline__ void trf_stage_step(trf_stager<kSlabs, kSteps> &stager, const trf_smem_layout &smem,
                                                      int k, uint32_t lane, const trf_int_planes &planes) {
#pragma unroll
    for (int s = 0; s < kSlabs; s++) {
        const uint32_t place = stager.place + s * smem.slab_bytes;
        if (Traits::kHasPlane8)
            trf_cp_async16(place + k % kSteps * kStepBytes, stager.source[s] + k * kStepBytes);
        if (k == 0)
            trf_stage_narrow<Traits>(place + (Traits::kHasPlane8 ? kSteps * kStepBytes : 0) + stager.narrow,
                                     stager.source[s] + (Traits::kHasPlane8 ? 4 * kStepBytes : 0), lane, planes);
    }
    if (k == 0)
        stager.narrow ^= trf_narrow_stride(Traits::raw(planes.raw_bits), kSteps);
    trf_cp_async_commit();
}

/* Begins a walk: starts the copies of the first slabs' rANS streams and first steps. memory: shared address of the
 * warp's buffers. */
template <class Traits, int kSlabs, int kSteps, class BandOrder>
static __device__ __forceinline__ void trf_start(trf_stager<kSlabs, kSteps> &stager, const trf_device_view &view,
                                                 const trf_smem_layout &smem, const trf_int_planes &planes,
                                                 const trf_walk &walk, const BandOrder &band_order, uint32_t memory,
                                                 uint32_t lane) {
    stager.walk = walk;
    stager.buffer = stager.narrow = stager.read_buffer = stager.read_narrow = 0;
    stager.place = memory + 16 * lane;
#pragma unroll
    for (int s = 0; s < kSlabs; s++)
        stager.slab[s] = trf_slab_at(view, walk, kSlabs * walk.band + s);
    trf_enter_slab<Traits>(stager, view, smem, band_order, lane);
    if (!stager.bytes[0])
        return;
#pragma unroll
    for (int k = 0; k < (Traits::kHasPlane8 ? trf_stager<kSlabs, kSteps>::kAhead : 1); k++)
        trf_stage_step<Traits>(stager, smem, k, lane, planes);
}

/* Records a slab's tile as corrupt. One lane calls it. */
static __device__ __forceinline__ void trf_report_fault(const trf_device_view &view, uint32_t band, uint32_t col) {
    const uint64_t tile =
        (uint64_t)(band / TRF_BANDS_PER_TILE) * view.num_tile_cols + col * view.slab_cols / TRF_TILE_SIZE;
    trf_record_fault(view, tile);
}

#endif
