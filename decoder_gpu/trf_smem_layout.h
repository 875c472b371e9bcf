/* SPDX-License-Identifier: Apache-2.0 */
/* How a block that walks slabs divides its shared memory, and the properties of a layer that decide which kernels walk
 * it. Planning on the host and the kernels (trf_slab_walk.cuh) both compute these. C and CUDA. */
#ifndef TRF_SMEM_LAYOUT_H
#define TRF_SMEM_LAYOUT_H

#include "trf_device_view.h"

/* For functions that kernels use in template arguments, too. */
#ifdef __CUDACC__
#define TRF_HD_CONSTEXPR static __host__ __device__ constexpr
#elif defined(__cplusplus)
#define TRF_HD_CONSTEXPR __attribute__((unused)) static constexpr
#else
#define TRF_HD_CONSTEXPR __attribute__((unused)) static inline
#endif

enum {
    /* steps in the ring of the 8-bit plane; loops are unrolled by a multiple of it, so that places are constants */
    TRF_RING_STEPS = 4,
    TRF_SHORT_RING_STEPS = 2,
    TRF_STEP_BYTES = 512,  /* bytes of the 8-bit plane for one step of 16 columns */
    TRF_GUARD_BYTES = 544, /* before and after all buffers: as far as a corrupt rANS stream can lead a lane */
    /* The log of the decode table's size. A table of 32 KiB holds half as many copies of each entry: lanes have more
     * bank conflicts, and there is more space for buffers. */
    TRF_TABLE_LOG = 16,
    TRF_SMALL_TABLE_LOG = 15,
    /* the most static shared memory of a kernel of this project, its alignment included */
    TRF_STATIC_SMEM_BYTES = 1024,
    TRF_LARGE_SMEM_BYTES = 160 << 10 /* what a block can have on devices for which TRF_LARGE_SHARED is 1 */
};

/* Shared memory of one block, in bytes from the start of its dynamic part. */
typedef struct trf_smem_layout {
    uint32_t table_log;       /* the table is at 0, [2^p][copies], and has 1 << table_log bytes */
    uint32_t lane_pair_masks; /* uint4[32] */
    uint32_t first_warp;      /* warp 0's part; other warps' parts follow, warp_bytes apart */
    uint32_t warp_bytes;   /* buffers of each slab and other buffers, or a unit's sums at the end if these are larger */
    uint32_t slab_bytes;   /* ring, narrow buffers and two buffers of rANS streams */
    uint32_t narrow_bytes; /* of one buffer */
    uint32_t rans_streams; /* offset from the slab's first byte */
    uint32_t rans_bytes;   /* of one buffer */
    uint32_t total;
} trf_smem_layout;

/* Bytes of a chunk's narrow planes. */
TRF_HD_CONSTEXPR uint32_t trf_narrow_bytes(uint32_t raw_bits) { return (raw_bits & 7) * (4 * TRF_CHUNK_WEIGHTS); }

/* The distance from one chunk's narrow planes to the next one's. It is 0 where one buffer is enough: with a short ring,
 * and without a plane of 4 bits, since the next chunk's planes are copied from step 1 on, and planes of 2 and 1 bits
 * have been read by then. */
TRF_HD_CONSTEXPR uint32_t trf_narrow_stride(uint32_t raw_bits, int ring_steps) {
    return ring_steps == TRF_RING_STEPS && raw_bits & 4 ? trf_narrow_bytes(raw_bits) : 0;
}

/* unit_slabs: slabs that a warp walks at the same time. sum_bytes: what a warp leaves at the end. other_bytes: what
 * each warp has after the buffers of its slabs. */
TRF_HD trf_smem_layout trf_smem_layout_of(uint32_t raw_bits, uint32_t max_rans_bytes, uint32_t warps,
                                          uint32_t unit_slabs, uint32_t table_log, uint32_t sum_bytes,
                                          uint32_t other_bytes, int ring_steps) {
    trf_smem_layout smem;
    smem.table_log = table_log;
    smem.lane_pair_masks = 1u << table_log;
    smem.first_warp = smem.lane_pair_masks + 32 * 16 + TRF_GUARD_BYTES;
    smem.narrow_bytes = trf_narrow_bytes(raw_bits);
    smem.rans_streams = (raw_bits & 8 ? (uint32_t)ring_steps * TRF_STEP_BYTES : 0) + smem.narrow_bytes +
                        trf_narrow_stride(raw_bits, ring_steps);
    smem.rans_bytes = (max_rans_bytes + 15) / 16 * 16;
    smem.slab_bytes = smem.rans_streams + 2 * smem.rans_bytes;
    smem.warp_bytes = unit_slabs * smem.slab_bytes + other_bytes;
    if (smem.warp_bytes < sum_bytes)
        smem.warp_bytes = sum_bytes;
    smem.total = smem.first_warp + warps * smem.warp_bytes + TRF_GUARD_BYTES;
    return smem;
}

/* Whether a layer can use the kernels made for its default p. */
TRF_HD int trf_has_default_p(const trf_device_view *view, uint32_t max_frequency) {
    const uint32_t p = view->class_bits == 2 ? TRF_QUADS_PROBABILITY_BITS : TRF_PAIRS_PROBABILITY_BITS;
    return view->probability_bits == p && view->state_bits == p && max_frequency <= TRF_DEFAULT_P_MAX_FREQUENCY;
}

/* The number of regular panels. The last panel may be too narrow to be one. */
TRF_HD uint32_t trf_regular_panels(const trf_device_view *view) {
    const uint32_t steps = view->cols % view->slab_cols / TRF_FRAGMENT_SIZE; /* column steps after the whole panels */
    return view->cols / view->slab_cols + (steps > 0 && steps % 4 == 0);
}

#endif
