/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of the kernels that multiply by packed experts (trf_moe_product.cuh). */
#ifndef TRF_MOE_ARGS_CUH
#define TRF_MOE_ARGS_CUH

#include "trf_moe_route.h"
#include "trf_moe_sizes.h"
#include "trf_packed_handover.cuh"
#include "trf_packed_product.cuh"
#include "trf_packed_wgmma_weights.cuh"
#include "trf_tensor_map.cuh"

/* What is written of a slot's sums. */
enum trf_moe_result {
    TRF_MOE_GATED,   /* activation(gate) * up in BF16. Each packed slab has 8 rows of gate, then the same 8 of up */
    TRF_MOE_OCTETS,  /* the sums in 16 bits, 8 rows at a time */
    TRF_MOE_ELEMENTS /* the sums in any dtype, one by one */
};

/* Every kernel takes it by value. */
struct trf_moe_args {
    trf_tensor_map x_map;           /* boxes of 64 columns by TRF_MOE_BOX_ROWS slots; not for a kernel that gathers */
    const trf_packed_view *experts; /* device, [routes.experts]; of FP8 experts the parts of trf_packed8_view */
    trf_packed_view shape;          /* of any expert; its pointers do not count */
    uint32_t row_tiles, k_blocks;   /* tiles of an expert's rows; k blocks of a tile */
    trf_divisor tile_k_blocks;      /* divisor by k_blocks */
    uint32_t max_slots;             /* slots that x and y have room for */
    /* If it has ids, each block sorts the routes by itself. Otherwise the next tables say what other kernels have
     * found. */
    trf_moe_routes routes;
    const uint32_t *first_slots; /* [experts + 1] */
    const uint32_t *slot_routes; /* [slots]: the route of each */
    uint32_t *route_slots;       /* [routes.count]: the slot of each, which block 0 writes if it sorts; or NULL */
    uint32_t routes_are_old;     /* whether the routes were known before the preceding kernel began */
    uint32_t shares_all;         /* blocks share the k blocks of all tiles, not only of those left over */
    const uint16_t *x;           /* 16-byte aligned, as its rows are */
    uint64_t x_stride;
    uint32_t x_has_slots; /* whether x has a row for each slot, or one for each token */
    int result;           /* trf_moe_result */
    uint32_t activation;
    const uint16_t *bias; /* BF16, [experts][rows], or NULL */
    void *y;
    uint64_t y_stride;
    uint32_t y_dtype;
    trf_packed_handover handover;
};

/* Sets what follows from the kernel (trf_moe_kernel) and the experts. shape: the view of any of them. */
static inline void trf_moe_set_experts(trf_moe_args &args, int kernel, const trf_packed_view *experts,
                                       const trf_packed_view &shape) {
    args.experts = experts;
    args.shape = shape;
    args.row_tiles = (shape.bands + TRF_MOE_BANDS - 1) / TRF_MOE_BANDS;
    args.k_blocks = (shape.cols + TRF_PACKED_X_BOX_COLS - 1) / TRF_PACKED_X_BOX_COLS;
    args.tile_k_blocks = trf_divisor_of(args.k_blocks);
    args.shares_all = trf_moe_gathers_x(kernel);
}

#if TRF_HAS_SM_90A

/* OfWeights: one of trf_packed_wgmma_weights.cuh. */
template <int kKernel, class OfWeights> struct trf_moe_config {
    typedef OfWeights Weights;
    static constexpr int kNumber = kKernel;
    static constexpr uint32_t kXRows = trf_moe_x_rows(kKernel), kXTiles = kXRows / 8, kBands = TRF_MOE_BANDS,
                              kRows = TRF_MOE_ROWS, kAccTiles = trf_moe_acc_tiles(kKernel), kWarps = TRF_MOE_WARPS;
    static constexpr uint32_t kSlabBytes = Weights::kSlabBytes, kTileBytes = TRF_PACKED_SLABS * kSlabBytes,
                              kBandBytes = trf_packed_wgmma_band_bytes(kSlabBytes); /* of a stage */
    static constexpr uint32_t kXAt = trf_moe_stage_weight_bytes(kSlabBytes),
                              kStages = trf_moe_stages(kKernel, kSlabBytes),
                              kStageBytes = trf_moe_stage_bytes(kKernel, kSlabBytes), kLinesAt = kStages * kStageBytes,
                              kLinesBytes = trf_moe_stage_lines_bytes(), kSumsAt = kLinesAt + kStages * kLinesBytes,
                              kBarriersAt = kSumsAt + trf_moe_sums_bytes(),
                              kStints = trf_moe_stints(kKernel, kSlabBytes), kStintsAt = kBarriersAt + 16 * kStages,
                              kTablesAt = kStintsAt + kStints * trf_moe_stint_bytes();
    static constexpr uint32_t kBlocksBeforeAt = kTablesAt,
                              kFirstSlotsAt = kBlocksBeforeAt + trf_moe_blocks_before_bytes(),
                              kRoutesAt = kFirstSlotsAt + trf_moe_first_slots_bytes(),
                              kPointersAt = kRoutesAt + trf_moe_own_routes_bytes();
    static constexpr bool kGathersX = trf_moe_gathers_x(kKernel);
    /* The registers of consumers and of producers, if registers are moved. */
    static constexpr int kRegisters = kGathersX ? 0 : 232, kProducerRegisters = kGathersX ? 0 : 40;
    static_assert(kXAt % 1024 == 0 && kStageBytes % 1024 == 0, "x lies at multiples of 1024 bytes");
    static_assert(kStages >= 4, "a pipeline");
    static_assert(kTablesAt % 16 == 0 && kPointersAt % 16 == 0, "tables begin at multiples of 16 bytes");
    static_assert(kTablesAt + trf_moe_tables_bytes(kKernel) == trf_moe_shared_bytes(kKernel, kSlabBytes), "one layout");
    static_assert(trf_moe_shared_bytes(kKernel, kSlabBytes) <= TRF_PACKED_SMEM_BYTES, "it fits");
    /* While routes are sorted, counts lie where stages come to lie. */
    static_assert(TRF_MOE_OWN_ROUTES / TRF_MOE_CHUNK * 2 * TRF_MOE_MAX_EXPERTS <= kLinesAt, "the counts fit");
};

/* A tile of kRows tokens at most. */
template <class Config, uint32_t kTokens> struct trf_moe_class : Config {
    static constexpr uint32_t kXRows = kTokens, kXTiles = kTokens / 8;
    static constexpr bool kSeals = kTokens <= 16; /* sums are handed over under seals (trf_moe_sums.cuh) */
};

#endif

#endif
