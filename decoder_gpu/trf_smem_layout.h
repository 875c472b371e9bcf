/* SPDX-License-Identifier: Apache-2.0 */
/* How a block that walks slabs divides its shared memory, and what of a layer decides which kernels walk it: what
 * planning on the host and the kernels (trf_slab_walk.cuh) both compute. C and CUDA. */
#ifndef TRF_SMEM_LAYOUT_H
#define TRF_SMEM_LAYOUT_H

#include "trf_device_view.h"

/* A function that kernels use as a template argument, too. */
#ifdef __CUDACC__
#define TRF_HD_CONSTEXPR static __host__ __device__ constexpr
#elif defined(__cplusplus)
#define TRF_HD_CONSTEXPR __attribute__((unused)) static constexpr
#else
#define TRF_HD_CONSTEXPR __attribute__((unused)) static inline
#endif

enum {
    TRF_RING_STEPS = 4, /* of the 8-bit plane; the unrolling is a multiple, so that places are constants */
    TRF_SHORT_RING_STEPS = 2,
    TRF_STEP_BYTES = 512,  /* of the 8-bit plane, one step of 16 columns */
    TRF_GUARD_BYTES = 544, /* in front of and behind all buffers: as far as a corrupt rANS stream can lead a lane */
    /* The decode table's size. 32 KiB hold half of the copies of each entry: lanes collide in banks more often, and
     * there is more space for buffers. */
    TRF_TABLE_LOG = 16,
    TRF_SMALL_TABLE_LOG = 15,
    TRF_STATIC_SMEM_BYTES = 1024,    /* at most, of a kernel of this project, its alignment included */
    TRF_LARGE_SMEM_BYTES = 160 << 10 /* of a block, on devices that TRF_LARGE_SHARED is 1 for */
};

/* Shared memory of one block, in bytes from the start of its dynamic part. */
typedef struct trf_smem_layout {
    uint32_t table_log;       /* bytes of the table at 0, [2^p][copies]: 1 << table_log */
    uint32_t lane_pair_masks; /* uint4[32] */
    uint32_t first_warp;      /* what warp 0 has; warp_bytes from warp to warp */
    uint32_t warp_bytes;      /* each slab's buffers and others, or a unit's sums at the end if that is more */
    uint32_t slab_bytes;      /* ring, narrow buffers, two buffers of rANS streams */
    uint32_t narrow_bytes;    /* of one buffer */
    uint32_t rans_streams;    /* from the slab's first byte */
    uint32_t rans_bytes;      /* of one buffer */
    uint32_t total;
} trf_smem_layout;

/* Bytes of a chunk's narrow planes. */
TRF_HD_CONSTEXPR uint32_t trf_narrow_bytes(uint32_t raw_bits) { return (raw_bits & 7) * (4 * TRF_CHUNK_WEIGHTS); }

/* From one chunk's narrow planes to the next one's, 0 where one buffer does: with a short ring, and without a plane of
 * 4, since the next ones are copied from step 1 on, and those of 2 and 1 have been read by then. */
TRF_HD_CONSTEXPR uint32_t trf_narrow_stride(uint32_t raw_bits, int ring_steps) {
    return ring_steps == TRF_RING_STEPS && raw_bits & 4 ? trf_narrow_bytes(raw_bits) : 0;
}

/* unit_slabs: that a warp walks at the same time. sum_bytes: that a warp leaves at the end. other_bytes: behind its
 * slabs' buffers, for each warp. */
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

/* Whether a layer can have the kernels made for its default p. */
TRF_HD int trf_has_default_p(const trf_device_view *view, uint32_t max_frequency) {
    const uint32_t p = view->class_bits == 2 ? TRF_QUADS_PROBABILITY_BITS : TRF_PAIRS_PROBABILITY_BITS;
    return view->probability_bits == p && view->state_bits == p && max_frequency <= 255;
}

/* Panels that are regular. The last one may be too narrow. */
TRF_HD uint32_t trf_regular_panels(const trf_device_view *view) {
    const uint32_t steps = view->cols % view->slab_cols / TRF_FRAGMENT_SIZE; /* beside the full columns */
    return view->cols / view->slab_cols + (steps > 0 && steps % 4 == 0);
}

#endif
