/* The list of fused kernels, and how to get at them. Each .cu of the family instantiates its own codecs.
 *
 *   codec             x           batches          p = L = 9, 16 warps | any p, 16 warps | any p, 8 warps
 *   bf16, fp16        own type    8, 16, 32, 64
 *   e4m3, e5m2, int   F16, BF16   8, 16, 32, 64
 *   int, group scales F16, BF16   8, 16, 32, 64
 * each with quads and pairs. */
#ifndef TRF_FUSED_VARIANTS_CUH
#define TRF_FUSED_VARIANTS_CUH

#include "trf_fused_kernel.cuh"

typedef void (*trf_fused_kernel)(trf_fused_args);

/* Warps of a block, by batch: accumulators of 64 columns leave registers for 8 warps. */
static constexpr int kSmallWarps = 16, kLargeWarps = 16, kWidestWarps = 8, kFewWarps = 8;

enum trf_fused_geometry {
    TRF_GEOMETRY_NINE, /* p = L = 9, 16 warps */
    TRF_GEOMETRY_ANY,  /* any p and L, 16 warps */
    TRF_GEOMETRY_FEW,  /* any p and L, 8 warps: for large streams and little shared memory */
    TRF_GEOMETRIES
};

/* tiles: 1, 2, 4 or 8 groups of 8 batch rows. */
static inline int trf_fused_warps(int tiles, int geometry) {
    if (geometry == TRF_GEOMETRY_FEW)
        return kFewWarps;
    return tiles == 1 ? kSmallWarps : tiles == 8 ? kWidestWarps : kLargeWarps;
}

template <class Form, class Type, bool kScaled, int kP, bool kFew> static trf_fused_kernel trf_pick_tiles(int tiles) {
    switch (tiles) {
    case 1:
        return trf_fused_small<Form, Type, kP, kScaled, kFew ? kFewWarps : kSmallWarps>;
    case 2:
        return trf_fused_large<Form, Type, kP, 2, kScaled, kFew ? kFewWarps : kLargeWarps>;
    case 4:
        return trf_fused_large<Form, Type, kP, 4, kScaled, kFew ? kFewWarps : kLargeWarps>;
    default:
        return trf_fused_large<Form, Type, kP, 8, kScaled, kFew ? kFewWarps : kWidestWarps>;
    }
}

template <class Form, class Type, bool kScaled> static trf_fused_kernel trf_pick(int tiles, int geometry) {
    switch (geometry) {
    case TRF_GEOMETRY_NINE:
        return trf_pick_tiles<Form, Type, kScaled, 9, false>(tiles);
    case TRF_GEOMETRY_ANY:
        return trf_pick_tiles<Form, Type, kScaled, 0, false>(tiles);
    default:
        return trf_pick_tiles<Form, Type, kScaled, 0, true>(tiles);
    }
}

/* One for each .cu. bf16_x: the type of x where the codec takes both. */
trf_fused_kernel trf_fused_bf16(int class_bits, int tiles, int geometry);
trf_fused_kernel trf_fused_fp16(int class_bits, int tiles, int geometry);
trf_fused_kernel trf_fused_fp8(int e5m2, int class_bits, int bf16_x, int tiles, int geometry);
trf_fused_kernel trf_fused_int(int scaled, int class_bits, int bf16_x, int tiles, int geometry);

#endif
