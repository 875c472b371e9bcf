/* A warp's way through a sequence of slabs: staging, the lanes' rANS streams, exceptions, the verdict.
 *
 * Each warp works alone, on one slab or on two side by side (rows 64u and 64u + 32: two chains of states hide each
 * other's latency, and share x). For each slab it has a ring of four steps of the 8-bit plane, one buffer for a chunk's
 * narrow planes or two, and two for streams (start states, pair_words, exceptions, words of a whole slab: a lane walks
 * its words from either end of a pair's run, so all of them must be there). Copies are cp.async of 16 bytes: three
 * steps, a chunk and a slab ahead. Where space is short, the ring has two steps, and there is one narrow buffer: both
 * are filled again once they have been read. In the planes each lane copies what it reads itself, so that waiting for
 * its own copies is enough. */
#ifndef TRF_SLAB_WALK_CUH
#define TRF_SLAB_WALK_CUH

#include "trf_fault.cuh"
#include "trf_fragment.cuh"
#include "trf_lane.h"

static constexpr int kRing = 4, kShortRing = 2; /* steps; the unrolling is a multiple, so that slots are constants */
static constexpr uint32_t kStepBytes = 512;     /* of the 8-bit plane, one step of 16 columns */
static constexpr uint32_t kGuardBytes =
    544; /* in front of and behind all buffers: as far as a corrupt stream can lead a lane */

/* Shared memory of one block, in bytes from the start of its dynamic part. */
struct trf_smem_layout {
    uint32_t table_log;    /* bytes of the table at 0, [2^p][copies]: 1 << table_log */
    uint32_t pair_masks;   /* uint4[32] */
    uint32_t warps;        /* of warp 0; warp_bytes from warp to warp */
    uint32_t warp_bytes;   /* each slab's buffers and others, or a unit's sums at the end of a run if that is more */
    uint32_t slab_bytes;   /* ring, narrow buffers, two streams */
    uint32_t narrow_bytes; /* of one buffer */
    uint32_t rans_streams; /* from the slab's first byte */
    uint32_t rans_bytes;   /* of one buffer */
    uint32_t total;
};

/* The table's size. 32 KiB hold half of the copies of each entry: lanes meet in banks more often, and there is more
 * space for buffers. */
static constexpr uint32_t kTableLog = 16, kSmallTableLog = 15;

/* From one chunk's narrow planes to the next one's, 0 where one buffer does: with a short ring, and without a plane of
 * 4, since the next ones are copied from step 1 on, and those of 2 and 1 have been read by then. */
__host__ __device__ constexpr uint32_t trf_narrow_stride(uint32_t raw_bits, int ring) {
    return ring == kRing && raw_bits & 4 ? trf_narrow_bytes(raw_bits) : 0;
}

/* slabs: that a warp walks side by side. other_bytes: behind their buffers, for each warp. sum_bytes: that a warp
 * leaves at the end. ring: steps. */
__host__ __device__ inline trf_smem_layout trf_smem_layout_of(uint32_t raw_bits, uint32_t max_rans_bytes,
                                                              uint32_t warps, uint32_t slabs, uint32_t table_log,
                                                              uint32_t sum_bytes, uint32_t other_bytes = 0,
                                                              int ring = kRing) {
    trf_smem_layout smem;
    smem.table_log = table_log;
    smem.pair_masks = 1u << table_log;
    smem.warps = smem.pair_masks + 32 * 16 + kGuardBytes;
    smem.narrow_bytes = trf_narrow_bytes(raw_bits);
    smem.rans_streams = (raw_bits & 8 ? ring * kStepBytes : 0) + smem.narrow_bytes + trf_narrow_stride(raw_bits, ring);
    smem.rans_bytes = (max_rans_bytes + 15) / 16 * 16;
    smem.slab_bytes = smem.rans_streams + 2 * smem.rans_bytes;
    smem.warp_bytes = slabs * smem.slab_bytes + other_bytes;
    if (smem.warp_bytes < sum_bytes)
        smem.warp_bytes = sum_bytes;
    smem.total = smem.warps + warps * smem.warp_bytes + kGuardBytes;
    return smem;
}

/* ---- the decode table ----
 * Lanes read different copies of an entry, so that they meet in banks as little as the space allows. Entry s, copy c at
 * table + bytes * (s * copies + c), with as many copies as the table's size allows. kP: p = L = kP, frequencies up to
 * 255. Entries of 4 bytes: class code [15:0] (trf_class_code_of), frequency [23:16], slot - start [31:24]. With p = 9
 * and 64 KiB there is a bank for each lane.
 * kP = 0: entries of 8 bytes: frequency [15:0], slot - start [31:16]; class bits of X. At least two copies. */

/* p of the kernels made for one: what encoders choose. */
template <class Traits>
constexpr int kDefaultP = Traits::kClassBits == 2 ? (int)TRF_QUADS_PROBABILITY_BITS : (int)TRF_PAIRS_PROBABILITY_BITS;

/* Whether a layer can have the kernels made for its usual p. */
__host__ __device__ inline bool trf_has_default_p(const trf_device_view &view, uint32_t max_frequency) {
    const uint32_t p = view.class_bits == 2 ? TRF_QUADS_PROBABILITY_BITS : TRF_PAIRS_PROBABILITY_BITS;
    return view.probability_bits == p && view.state_bits == p && max_frequency <= 255;
}

/* A thread's slots of the table, on their way from the start of a kernel on; all of them if the block has 8 warps. kP =
 * 0: none. */
template <int kP> struct trf_table_source {
    static constexpr uint32_t kAhead = kP ? (1u << kP) / 256 : 1;
    uint32_t entry[kAhead];

    __device__ __forceinline__ explicit trf_table_source(const trf_device_view &view) {
#pragma unroll
        for (uint32_t i = 0; kP && i < kAhead; i++)
            entry[i] = trf_ldg32(view.slots + min(threadIdx.x + i * blockDim.x, (1u << kP) - 1));
    }
};

template <class Traits, int kP>
static __device__ __forceinline__ void trf_build_slot(const trf_device_view &view, uint32_t table, uint32_t vectors,
                                                      uint32_t slot, uint32_t entry) {
    const uint32_t symbol = trf_entry_symbol(entry), frequency = trf_entry_frequency(entry),
                   bias = trf_entry_bias(entry);
    uint4 copies;
    if (kP) {
        copies.x = copies.y = trf_class_code_of<Traits>(view, symbol) | frequency << 16 | bias << 24;
    } else {
        copies.x = frequency | bias << 16;
        copies.y = trf_class_bits_of<Traits>(view, symbol);
    }
    copies.z = copies.x;
    copies.w = copies.y;
    for (uint32_t c = 0; c < vectors; c++) /* turned by lane, so that a warp's stores fall on all banks */
        trf_sts128(table + 16 * (slot * vectors + (c + threadIdx.x) % vectors), copies);
}

template <class Traits, int kP>
static __device__ __forceinline__ void trf_build_table(const trf_device_view &view, const trf_table_source<kP> &source,
                                                       uint32_t table, uint32_t table_log) {
    const uint32_t p = kP ? kP : view.probability_bits, vectors = 1u << (table_log - 4 - p); /* of 16 bytes */
    uint32_t slot = threadIdx.x;
#pragma unroll
    for (uint32_t i = 0; kP && i < source.kAhead; i++, slot += blockDim.x)
        if (slot < 1u << p)
            trf_build_slot<Traits, kP>(view, table, vectors, slot, source.entry[i]);
    for (; slot < 1u << p; slot += blockDim.x)
        trf_build_slot<Traits, kP>(view, table, vectors, slot, __ldg(view.slots + slot));
}

/* Lane l's mask, 16 bytes of 0 or 1, picks the pairs whose words lie below its own first word. */
static __device__ __forceinline__ void trf_build_pair_masks(uint32_t masks) {
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

/* What a block's warps share, before they meet: the table, the masks, and trf_rans_params's mark and palette. */
template <class Traits, int kP, int kLog>
static __device__ __forceinline__ void trf_build_constants(const trf_device_view &view,
                                                           const trf_table_source<kP> &source, uint32_t shared,
                                                           const trf_smem_layout &smem, uint2 *constants) {
    trf_build_table<Traits>(view, source, shared, smem.table_log);
    trf_build_pair_masks(shared + smem.pair_masks);
    if (threadIdx.x == 0)
        *constants = make_uint2(kLog == 15 ? 1u << 31 : 1, trf_class_palette<Traits>(view));
}

/* ---- one lane's stream ---- */

struct trf_rans_stream {
    uint32_t x;     /* rANS state */
    uint32_t next;  /* the word behind the ones taken, fetched ahead: its latency stays off the chain of states */
    uint32_t at;    /* shared address of the word after that */
    int32_t stride; /* 2 or -2 */
};

/* What the steps need and never changes. kP: as the table; kLog: its table_log, or 0 with kP = 0. */
template <int kP, int kLog> struct trf_rans_params {
    const uint8_t *table;     /* shared memory */
    uint32_t p, low;          /* probability bits; 2^L */
    uint32_t slot_shift;      /* slot -> byte offset in the table */
    uint32_t slot_mask, copy; /* (x << slot_shift & slot_mask) | copy is the entry's byte offset */
    uint32_t mark, palette;   /* kP: a 1 for above the quotient; trf_class_palette */
};

/* constants: shared address of mark and palette. Read from there they stand in vector registers, where the steps want
 * them; the compiler would keep them in uniform ones, and copy them each time. */
template <int kP, int kLog>
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
        const uint2 both = trf_lds64(constants);
        params.mark = both.x;
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

/* The state, with its slot as the byte offset in the table that it is; kP: and with its quotient right above the
 * offset, and rule.mark above that where 32 bits have room for it. */
template <int kP, int kLog>
static __device__ __forceinline__ uint32_t trf_state_in_place(uint32_t x, const trf_rans_params<kP, kLog> &params) {
    return kLog == 15 ? x * (1u << (15 - kP)) + params.mark : x << params.slot_shift;
}

/* The quotient with a 1 above its 16 bits. */
template <int kP, int kLog>
static __device__ __forceinline__ uint32_t trf_marked_quotient(uint32_t in_place,
                                                               const trf_rans_params<kP, kLog> &params) {
    return kLog == 15 ? in_place >> 15 : trf_permute(in_place, params.mark, 0x5432);
}

/* @return the entry's class bits.
 * With kP one dot product of two is frequency * quotient + bias * 1. */
template <class Traits, int kP, int kLog>
static __device__ __forceinline__ uint32_t trf_lane_step(trf_rans_stream &s, const trf_rans_params<kP, kLog> &params) {
    const uint32_t in_place = trf_state_in_place(s.x, params);
    const uint8_t *const at = params.table + trf_and_or(in_place, params.slot_mask, params.copy);
    if (kP) {
        const uint32_t entry = *reinterpret_cast<const uint32_t *>(at);
        s.x = __dp2a_hi(trf_marked_quotient(in_place, params), entry, 0u);
        trf_lane_renormalize(s, params);
        return trf_class_bits_from<Traits>(entry, params.palette);
    }
    const uint2 entry = *reinterpret_cast<const uint2 *>(at);
    s.x = (entry.x & 0xFFFF) * (s.x >> params.p) + (entry.x >> 16);
    trf_lane_renormalize(s, params);
    return entry.y;
}

/* stream: shared address of a slab's streams, bytes of them. Counts that lead further begin at their end; from there a
 * lane cannot get farther than kGuardBytes. */
template <int kP, int kLog>
static __device__ __forceinline__ void trf_lane_begin(trf_rans_stream &s, const trf_rans_params<kP, kLog> &params,
                                                      uint32_t rans_stream, uint32_t bytes, uint32_t exceptions,
                                                      uint32_t masks, uint32_t lane) {
    const uint4 counts = trf_lds128(rans_stream + TRF_STATES_BYTES), mask = trf_lds128(masks + 16 * lane);
    uint32_t below = __dp4a(counts.x, mask.x, 0u);
    below = __dp4a(counts.y, mask.y, below);
    below = __dp4a(counts.z, mask.z, below);
    below = __dp4a(counts.w, mask.w, below);
    s.x = trf_lds16(rans_stream + 2 * lane);
    s.at = rans_stream + min(TRF_RANS_HEAD_BYTES + 4 * exceptions + 2 * below, bytes) - (lane < TRF_LANE_PAIRS ? 0 : 2);
    s.stride = lane < TRF_LANE_PAIRS ? 2 : -2;
    s.next = trf_lds16(s.at);
    s.at += s.stride;
    trf_lane_renormalize(s, params);
}

/* Whether the lane's stream ends where it must: state 2^L, and pairs meet. All lanes call it. */
template <int kP, int kLog>
static __device__ __forceinline__ bool trf_lane_good(const trf_rans_stream &s,
                                                     const trf_rans_params<kP, kLog> &params) {
    const uint32_t behind = s.at - s.stride; /* the first word not taken, seen from this lane */
    const uint32_t partner = __shfl_xor_sync(0xFFFFFFFFu, behind, TRF_LANE_PAIRS);
    return s.x == params.low && (s.stride > 0 ? behind == partner + 2 : partner == behind + 2);
}

/* ---- exceptions: a cursor that all lanes share ---- */

struct trf_exceptions {
    uint32_t next;    /* the record, or ~0 behind the last one */
    uint32_t at, end; /* shared addresses */
};

static __device__ __forceinline__ void trf_exceptions_begin(trf_exceptions &e, uint32_t rans_stream, uint32_t count) {
    e.at = rans_stream + TRF_RANS_HEAD_BYTES;
    e.end = e.at + 4 * count;
    e.next = count ? trf_lds32(e.at) : 0xFFFFFFFFu;
}

static __device__ __forceinline__ void trf_exceptions_advance(trf_exceptions &e) {
    e.at += 4;
    e.next = e.at < e.end ? trf_lds32(e.at) : 0xFFFFFFFFu;
}

/* Puts the lower half of value into a step's fragments reg[8] if the record is this lane's. All lanes take the same
 * way. */
static __device__ __forceinline__ void trf_patch_exception(uint32_t *reg, uint32_t record, uint32_t value,
                                                           uint32_t lane) {
    const bool mine = ((record ^ lane << 19) & (TRF_LANES - 1) << 19) == 0;
    const uint32_t pick = record & 1u << 24 ? 0x5410 : 0x3254, which = mine ? 1u << (record >> 25 & 7) : 0;
#pragma unroll
    for (int i = 0; i < 8; i++) /* the bits become predicates in one instruction */
        if (which & 1u << i)
            reg[i] = __byte_perm(reg[i], value, pick);
}

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

/* Columns of slabs that are regular. The last one may be too narrow. */
__host__ __device__ inline uint32_t trf_regular_slab_cols(const trf_device_view &view) {
    const uint32_t steps = view.cols % view.slab_cols / TRF_FRAGMENT_SIZE; /* beside the full columns */
    return view.cols / view.slab_cols + (steps > 0 && steps % 4 == 0);
}

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

/* Bytes of a slab's streams, or 0 if the entry makes no sense (or there is no slab). raw_bytes: of its raw bits. */
static __device__ __forceinline__ uint32_t trf_rans_bytes_of(const trf_device_view &view, uint2 slab,
                                                             uint32_t raw_bytes, uint32_t limit) {
    const uint32_t rans_streams = (slab.y & 0xFFFF) * TRF_ALIGNMENT, bytes = (slab.y >> 16) * TRF_ALIGNMENT;
    const uint64_t end = (uint64_t)slab.x * TRF_TILE_ALIGNMENT + rans_streams + bytes;
    return rans_streams >= raw_bytes && end <= view.blob_bytes && bytes <= limit && bytes >= TRF_RANS_HEAD_BYTES ? bytes
                                                                                                                 : 0;
}

/* ---- staging: a chunk or a slab ahead of the decoding, through the same walk ---- */

template <int kSlabs, int kSteps = kRing> struct trf_stager {
    static constexpr bool kRefillAfterRead =
        kSteps != kRing; /* a step's place is filled again as soon as it has been read */
    static constexpr int kAhead = kRefillAfterRead ? kSteps : kSteps - 1; /* steps */
    static constexpr int kEnterStep =
        (4 - kAhead) % 4;          /* the step of a chunk at which the copies of the next one begin */
    trf_walk walk;                 /* of the slabs to enter next; band: counted in kSlabs */
    uint2 slab[kSlabs];            /* their entries, loaded ahead */
    const uint8_t *source[kSlabs]; /* of the chunk that comes next; plus 16 * lane */
    uint32_t chunks_left;          /* of these slabs, from that chunk on */
    uint32_t buffer;               /* 0 or 1: where the streams of the slabs to enter next go */
    uint32_t bytes[kSlabs];        /* streams of the slabs entered last; 0: there were none left */
    trf_walk entered;
    uint32_t narrow; /* 0 or trf_narrow_stride: where the next chunk's narrow planes go */
    uint32_t read_buffer,
        read_narrow; /* where the slab to decode next has its streams, and its first chunk's narrow planes */
    uint32_t place;  /* shared address of the warp's buffers, plus 16 * lane */
};

/* Starts the copy of slab s's rANS streams. */
template <class Traits, int kSlabs, int kSteps>
static __device__ __forceinline__ void trf_copy_rans_stream(const trf_stager<kSlabs, kSteps> &st,
                                                            const trf_smem_layout &smem, int s, uint32_t lane) {
    /* of a lane, for most streams; longer ones take a loop */
    constexpr uint32_t kCopies = Traits::kClassBits == 2 ? 2 : 3;
    const uint32_t to = st.place + s * smem.slab_bytes + smem.rans_streams + st.buffer * smem.rans_bytes;
    const uint8_t *from = st.source[s] + (st.slab[s].y & 0xFFFF) * TRF_ALIGNMENT;
#pragma unroll
    for (uint32_t i = 0; i < kCopies; i++)
        if (16 * (i * TRF_LANES + lane) < st.bytes[s])
            trf_cp_async16(to + 16 * TRF_LANES * i, from + 16 * TRF_LANES * i);
#pragma unroll 1
    for (uint32_t i = 16 * TRF_LANES * kCopies; i + 16 * lane < st.bytes[s]; i += 16 * TRF_LANES)
        trf_cp_async16(to + i, from + i);
}

/* Moves on to the next slabs that are there, and starts the copy of their streams. */
template <class Traits, int kSlabs, int kSteps, class BandOrder>
static __device__ __forceinline__ void trf_enter_slab(trf_stager<kSlabs, kSteps> &st, const trf_device_view &view,
                                                      const trf_smem_layout &smem, const BandOrder &band_order,
                                                      uint32_t lane) {
    const uint32_t chunk_bytes = trf_chunk_offset(Traits::raw(view.raw_bits), 1);
    st.bytes[0] = 0;
#pragma unroll 1
    while (st.walk.left && !st.bytes[0]) {
        const uint32_t chunks = trf_slab_chunks(view, st.walk.col);
#pragma unroll
        for (int s = 0; s < kSlabs; s++) {
            st.bytes[s] = trf_rans_bytes_of(view, st.slab[s], chunks * chunk_bytes, smem.rans_bytes);
            if (s && !st.bytes[s]) { /* an odd last band: its neighbour once more, unused */
                st.slab[s] = st.slab[0];
                st.bytes[s] = st.bytes[0];
            }
        }
        if (st.bytes[0]) {
            st.entered = st.walk;
            st.chunks_left = chunks;
#pragma unroll
            for (int s = 0; s < kSlabs; s++) {
                st.source[s] = view.blob + (uint64_t)st.slab[s].x * TRF_TILE_ALIGNMENT + 16 * lane;
                trf_copy_rans_stream<Traits>(st, smem, s, lane);
            }
            st.buffer ^= 1;
        }
        trf_walk_next(st.walk, band_order);
#pragma unroll
        for (int s = 0; s < kSlabs; s++)
            st.slab[s] = trf_slab_at(view, st.walk, kSlabs * st.walk.band + s);
    }
}

/* Moves on to the next chunk. Behind the last one of all it stays: that chunk is loaded again, unused. */
template <class Traits, int kSlabs, int kSteps, class BandOrder>
static __device__ __forceinline__ void trf_enter_chunk(trf_stager<kSlabs, kSteps> &st, const trf_device_view &view,
                                                       const trf_smem_layout &smem, const BandOrder &band_order,
                                                       uint32_t lane) {
    const uint32_t chunk_bytes = trf_chunk_offset(Traits::raw(view.raw_bits), 1);
    if (--st.chunks_left) {
#pragma unroll
        for (int s = 0; s < kSlabs; s++)
            st.source[s] += chunk_bytes;
    } else {
        trf_enter_slab<Traits>(st, view, smem, band_order, lane);
    }
}

/* Starts the copy of step k of the chunk that st.source points to; with step 0, of its narrow planes. */
template <class Traits, int kSlabs, int kSteps>
static __device__ __forceinline__ void trf_stage_step(trf_stager<kSlabs, kSteps> &st, const trf_smem_layout &smem,
                                                      int k, uint32_t lane, const trf_int_planes &planes) {
#pragma unroll
    for (int s = 0; s < kSlabs; s++) {
        const uint32_t place = st.place + s * smem.slab_bytes;
        if (Traits::kHasPlane8)
            trf_cp_async16(place + k % kSteps * kStepBytes, st.source[s] + k * kStepBytes);
        if (k == 0)
            trf_stage_narrow<Traits>(place + (Traits::kHasPlane8 ? kSteps * kStepBytes : 0) + st.narrow,
                                     st.source[s] + (Traits::kHasPlane8 ? 4 * kStepBytes : 0), lane, planes);
    }
    if (k == 0)
        st.narrow ^= trf_narrow_stride(Traits::raw(planes.raw_bits), kSteps);
    trf_cp_async_commit();
}

/* Begins a walk: the first slab's streams, and its first steps. memory: the warp's, a shared address. */
template <class Traits, int kSlabs, int kSteps, class BandOrder>
static __device__ __forceinline__ void trf_start(trf_stager<kSlabs, kSteps> &st, const trf_device_view &view,
                                                 const trf_smem_layout &smem, const trf_int_planes &planes,
                                                 const trf_walk &walk, const BandOrder &band_order, uint32_t memory,
                                                 uint32_t lane) {
    st.walk = walk;
    st.buffer = st.narrow = st.read_buffer = st.read_narrow = 0;
    st.place = memory + 16 * lane;
#pragma unroll
    for (int s = 0; s < kSlabs; s++) {
        st.slab[s] = trf_slab_at(view, walk, kSlabs * walk.band + s);
    }
    trf_enter_slab<Traits>(st, view, smem, band_order, lane);
    if (!st.bytes[0])
        return;
#pragma unroll
    for (int k = 0; k < (Traits::kHasPlane8 ? trf_stager<kSlabs, kSteps>::kAhead : 1); k++)
        trf_stage_step<Traits>(st, smem, k, lane, planes);
}

/* Of a slab. One lane calls it. */
static __device__ __forceinline__ void trf_report_fault(const trf_device_view &view, uint32_t band, uint32_t col) {
    const uint64_t tile =
        (uint64_t)(band / TRF_BANDS_PER_TILE) * view.num_tile_cols + col * view.slab_cols / TRF_TILE_SIZE;
    trf_record_fault(view, tile);
}

/* ---- the walk, step by step ---- */

/* What a walk reads and never changes. masks: shared address of what trf_build_pair_masks leaves. */
template <int kP, int kLog, class BandOrder> struct trf_walk_inputs {
    const trf_device_view &view;
    const trf_smem_layout &smem;
    const trf_int_planes &planes;
    const trf_rans_params<kP, kLog> &params;
    const BandOrder &band_order;
    uint32_t masks, lane;
};

/* The slabs that a warp is decoding. */
template <int kSlabs> struct trf_open_slabs {
    trf_rans_stream rans_stream[kSlabs]; /* the lane's */
    trf_exceptions exceptions[kSlabs];
    uint32_t last_record; /* exceptions of step k are those up to k << 28 | 0x0FFFFFFF */
};

/* Batches of copies that were committed after those of a step, when the step's are waited for. */
template <class Traits, class Stager, class Sink>
constexpr int kPendingCopies = (Traits::kHasPlane8 ? Stager::kAhead - 1 : 0) + Sink::kCopiesX;

/* Begins the lanes' rANS streams, which are in shared memory, and the cursors on exceptions. */
template <int kSlabs, int kSteps, class Inputs>
static __device__ __forceinline__ void trf_begin_rans_streams(trf_open_slabs<kSlabs> &open,
                                                              trf_stager<kSlabs, kSteps> &st, const Inputs &in) {
#pragma unroll
    for (int s = 0; s < kSlabs; s++) {
        const uint32_t at = st.place - 16 * in.lane + s * in.smem.slab_bytes + in.smem.rans_streams +
                            st.read_buffer * in.smem.rans_bytes;
        const uint32_t count =
            min(trf_lds16(at + TRF_RANS_EXCEPTION_COUNT_OFFSET), (st.bytes[s] - TRF_RANS_HEAD_BYTES) / 4);
        trf_lane_begin(open.rans_stream[s], in.params, at, st.bytes[s], count, in.masks, in.lane);
        trf_exceptions_begin(open.exceptions[s], at, count);
    }
    st.read_buffer ^= 1;
    open.last_record = 0x0FFFFFFF;
}

/* Lets the sink start its own copies, before step k of a chunk. chunks: of the slab, this one included. */
template <int kSlabs, int kSteps, class Sink>
static __device__ __forceinline__ void trf_begin_step(const trf_stager<kSlabs, kSteps> &st, uint32_t chunks, int k,
                                                      Sink &sink) {
    if (k % 2 == 0)
        sink.begin_step_pair(k / 2);
    if constexpr (!trf_stager<kSlabs, kSteps>::kRefillAfterRead) {
        if (k == 2 && chunks > 1)
            sink.prefetch_chunk();
        else if (k == 2 && st.bytes[0])
            sink.prefetch_slab(st.entered);
    }
    if (Sink::kCopiesX && k % 2 == 0)
        trf_cp_async_commit();
}

/* Waits until the planes of step k of a chunk are in shared memory, and loads the lane's words of them. */
template <class Traits, class Sink, int kSlabs, int kSteps, class Inputs>
static __device__ __forceinline__ void trf_load_step(const trf_stager<kSlabs, kSteps> &st, const Inputs &in, int k,
                                                     uint4 *plane8, trf_narrow_words *narrow) {
    constexpr uint32_t kRingBytes = Traits::kHasPlane8 ? kSteps * kStepBytes : 0;
    constexpr int kPending = kPendingCopies<Traits, trf_stager<kSlabs, kSteps>, Sink>;
    if (Traits::kHasPlane8 || k == 0)
        trf_cp_async_wait<kPending>();
    else if (Sink::kCopiesX && k == 2) /* the copies of step 1 may be on their way, too */
        trf_cp_async_wait<kPending + 1>();
#pragma unroll
    for (int s = 0; s < kSlabs; s++) {
        const uint32_t place = st.place + s * in.smem.slab_bytes;
        if (Traits::kHasPlane8)
            plane8[s] = trf_lds128(place + k % kSteps * kStepBytes);
        trf_load_narrow<Traits>(narrow[s], place + kRingBytes + st.read_narrow, in.lane, k, in.planes);
    }
}

/* Starts the copies that belong beside step k of a chunk: those of the step that is kAhead steps on. */
template <class Traits, int kSlabs, int kSteps, class Inputs>
static __device__ __forceinline__ void trf_stage_ahead(trf_stager<kSlabs, kSteps> &st, const Inputs &in, int k) {
    using Stager = trf_stager<kSlabs, kSteps>;
    if (k == Stager::kEnterStep)
        trf_enter_chunk<Traits>(st, in.view, in.smem, in.band_order, in.lane);
    if (Traits::kHasPlane8)
        trf_stage_step<Traits>(st, in.smem, (k + Stager::kAhead) % 4, in.lane, in.planes);
    else if (k == Stager::kEnterStep)
        trf_stage_step<Traits>(st, in.smem, 0, in.lane, in.planes);
}

/* Decodes step k of a chunk: four quads a slab, to reg[kSlabs][8] as trf_build_quad leaves them. The slabs take turns
 * symbol by symbol, so that their chains of states overlap. */
template <class Traits, int kSlabs, class Inputs>
static __device__ __forceinline__ void trf_decode_step(trf_open_slabs<kSlabs> &open, const Inputs &in,
                                                       const uint4 *plane8, const trf_narrow_words *narrow, int k,
                                                       uint32_t (*reg)[8]) {
#pragma unroll
    for (int g = 0; g < 4; g++) {
        uint32_t x[kSlabs][2] = {};
#pragma unroll
        for (int i = 0; i < Traits::kSymbols; i++)
#pragma unroll
            for (int s = 0; s < kSlabs; s++)
                x[s][i] = trf_lane_step<Traits>(open.rans_stream[s], in.params);
#pragma unroll
        for (int s = 0; s < kSlabs; s++) {
            const uint4 &words = plane8[s];
            const uint32_t word = g == 0 ? words.x : g == 1 ? words.y : g == 2 ? words.z : words.w;
            trf_build_quad<Traits>(reg[s] + 2 * g, x[s][0], x[s][1], word, narrow[s], k, g, in.planes);
        }
    }
}

/* Puts the step's exceptions into reg[kSlabs][8], and moves the cursors on to the next step's. */
template <int kSlabs, class Sink>
static __device__ __forceinline__ void trf_patch_step(trf_open_slabs<kSlabs> &open, const trf_walk &walk, uint32_t lane,
                                                      const Sink &sink, uint32_t (*reg)[8]) {
    trf_exceptions *const exceptions = open.exceptions;
    if ((kSlabs == 2 ? min(exceptions[0].next, exceptions[kSlabs - 1].next) : exceptions[0].next) < open.last_record) {
#pragma unroll
        for (int s = 0; s < kSlabs; s++)
#pragma unroll 1
            while (exceptions[s].next < open.last_record) {
                const uint32_t record = exceptions[s].next;
                trf_patch_exception(reg[s], record, sink.exception_value(s, record, walk), lane);
                trf_exceptions_advance(exceptions[s]);
            }
    }
    open.last_record += 1u << 28;
}

/* Decodes a chunk, four steps. chunks: of the slab, this one included; first_step: of the slab's, 0, 4, 8 or 12. */
template <class Traits, int kSlabs, int kSteps, class Inputs, class Sink>
static __device__ __forceinline__ void trf_walk_chunk(trf_open_slabs<kSlabs> &open, trf_stager<kSlabs, kSteps> &st,
                                                      const Inputs &in, const trf_walk &walk, uint32_t chunks,
                                                      uint32_t first_step, Sink &sink) {
    using Stager = trf_stager<kSlabs, kSteps>;
    trf_narrow_words narrow[kSlabs] = {};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint4 plane8[kSlabs] = {};
        uint32_t reg[kSlabs][8];
        trf_begin_step(st, chunks, k, sink);
        trf_load_step<Traits, Sink>(st, in, k, plane8, narrow);
        if (!Stager::kRefillAfterRead)
            trf_stage_ahead<Traits>(st, in, k);
        trf_decode_step<Traits>(open, in, plane8, narrow, k, reg);
        if (Stager::kRefillAfterRead)
            trf_stage_ahead<Traits>(st, in, k);
#pragma unroll
        for (int s = 0; s < kSlabs; s++)
            sink.finish_step(reg[s]);
        trf_patch_step(open, walk, in.lane, sink, reg);
        if (Sink::kCopiesX && Traits::kHasPlane8 && k == 0 && first_step == 0) /* what prefetch_slab started */
            trf_cp_async_wait<kPendingCopies<Traits, Stager, Sink> - 1>();
        sink.step(reg, walk, first_step + k);
    }
    st.read_narrow ^= trf_narrow_stride(Traits::raw(in.planes.raw_bits), kSteps);
}

/* Whether the slabs are what was encoded, as far as their rANS streams tell; if not, records their tile as corrupt. */
template <int kSlabs, class Inputs>
static __device__ __forceinline__ bool trf_slab_verdict(const trf_open_slabs<kSlabs> &open, const Inputs &in,
                                                        const trf_walk &walk) {
    bool good = true;
#pragma unroll
    for (int s = 0; s < kSlabs; s++)
        good &= trf_lane_good(open.rans_stream[s], in.params);
    good = __all_sync(0xFFFFFFFFu, good);
    if (!good && in.lane == 0)
        trf_report_fault(in.view, kSlabs * walk.band, walk.col);
    return good;
}

/* ---- the walk ----
 * For the slabs of a warp's walk that are there, in order, up to those of band last_band (those of stored tiles are
 * left out):
 *   sink.begin_slab(walk)
 *   sink.begin_step_pair(half)                     before each two steps; half: 0 or 1, of a chunk
 *   sink.prefetch_chunk(), sink.prefetch_slab(walk) two steps before another chunk of the slab, or the first one of
 *   another slab, begins (not with the short ring)
 *   sink.finish_step(reg) reg[8]: fragments as trf_build_quad leaves them (int, fp8 but in halves: the four X in reg[0,
 *   2, 4, 6])
 *   sink.exception_value(s, record, walk)     for each exception of the step in slab s: the 16 bits that take its place
 *   sink.step(reg, walk, k)                   reg[kSlabs][8], exceptions in place; k: 0 to 15
 *   sink.end_slab(walk, good)
 * walk.band counts kSlabs bands as one. Sink::kCopiesX: begin_step_pair, prefetch_chunk and prefetch_slab start copies,
 * which the walk commits; they are there for the steps behind the next begin_step_pair. */
template <class Traits, int kSlabs, int kSteps, int kP, int kLog, class BandOrder, class Sink>
static __device__ __forceinline__ void
trf_walk_slabs(const trf_device_view &view, const trf_smem_layout &smem, const trf_int_planes &planes,
               trf_stager<kSlabs, kSteps> &st, const trf_rans_params<kP, kLog> &params, uint32_t masks,
               const BandOrder &band_order, uint32_t last_band, uint32_t lane, Sink &sink) {
    const trf_walk_inputs<kP, kLog, BandOrder> in = {view, smem, planes, params, band_order, masks, lane};
#pragma unroll 1
    while (st.bytes[0] && st.entered.band <= last_band) {
        const trf_walk walk = st.entered;
        uint32_t chunks = st.chunks_left, first_step = 0;
        trf_open_slabs<kSlabs> open;
        sink.begin_slab(walk);
        trf_cp_async_wait<kPendingCopies<Traits, trf_stager<kSlabs, kSteps>, Sink>>();
        __syncwarp();
        trf_begin_rans_streams(open, st, in);
#pragma unroll 1
        do {
            trf_walk_chunk<Traits>(open, st, in, walk, chunks, first_step, sink);
            first_step += 4;
        } while (--chunks);
        sink.end_slab(walk, trf_slab_verdict(open, in, walk));
    }
}

#endif
