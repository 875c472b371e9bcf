/* The list of fused kernels, and how to get at them. Each .cu of the family instantiates its own codecs, with quads and pairs:
 *
 *   codec                       type of x
 *   bf16, fp16                  its own
 *   e4m3, e5m2                  F16, BF16
 *   int; int with group scales  F16, BF16
 *
 * each for batches up to 8, 16, 32 and 64, and for the geometries below. */
#ifndef TRF_FUSED_VARIANTS_CUH
#define TRF_FUSED_VARIANTS_CUH

#include "trf_fused_kernel.cuh"

typedef void (*trf_fused_kernel)(trf_fused_args);

/* Best first; which ones a layer can have depends on its p, L and frequencies, and on shared memory. */
enum trf_fused_geometry {
    TRF_GEOMETRY_NINE_TWO, /* p = L = 9, frequencies to 255, 16 warps of two slabs; quads of bf16 and fp16, batches to 8 */
    TRF_GEOMETRY_NINE,     /* p = L = 9, frequencies to 255, 16 warps */
    TRF_GEOMETRY_ANY,      /* any p and L, 16 warps */
    TRF_GEOMETRY_FEW,      /* any p and L, 8 warps: for long streams and little shared memory */
    TRF_GEOMETRIES
};

/* tiles: 1, 2, 4 or 8 groups of 8 batch rows. Accumulators for 64 columns leave registers for 8 warps. */
static inline int trf_fused_warps(int tiles, int geometry) {
    return geometry == TRF_GEOMETRY_FEW || tiles == 8 ? 8 : 16;
}

static inline int trf_fused_slabs(int geometry) { return geometry == TRF_GEOMETRY_NINE_TWO ? 2 : 1; }

/* Whether warps of a block split K (and share units), or have a unit each. */
static inline bool trf_fused_splits_warps(int tiles) { return tiles <= 2; }

template <class Form, class Type, bool kScaled, int kP, int kWarps> static trf_fused_kernel trf_pick_tiles(int tiles) {
    switch (tiles) {
    case 1:
        return trf_fused_small<Form, Type, kP, 1, 1, kScaled, kWarps>;
    case 2:
        return trf_fused_small<Form, Type, kP, 1, 2, kScaled, kWarps>;
    case 4:
        return trf_fused_large<Form, Type, kP, 4, kScaled, kWarps>;
    default:
        return trf_fused_large<Form, Type, kP, 8, kScaled, 8>;
    }
}

template <class Form, class Type, bool kScaled> static trf_fused_kernel trf_pick(int tiles, int geometry) {
    switch (geometry) {
    case TRF_GEOMETRY_NINE_TWO:
        if constexpr (Form::kWide && Form::kClassBits == 2)
            return trf_fused_small<Form, Type, 9, 2, 1, kScaled, 16>;
        return nullptr;
    case TRF_GEOMETRY_NINE:
        return trf_pick_tiles<Form, Type, kScaled, 9, 16>(tiles);
    case TRF_GEOMETRY_ANY:
        return trf_pick_tiles<Form, Type, kScaled, 0, 16>(tiles);
    default:
        return trf_pick_tiles<Form, Type, kScaled, 0, 8>(tiles);
    }
}

/* One for each .cu. bf16_x: the type of x where the codec takes both. */
trf_fused_kernel trf_fused_bf16(int class_bits, int tiles, int geometry);
trf_fused_kernel trf_fused_fp16(int class_bits, int tiles, int geometry);
trf_fused_kernel trf_fused_fp8(int e5m2, int class_bits, int bf16_x, int tiles, int geometry);
trf_fused_kernel trf_fused_int(int scaled, int class_bits, int bf16_x, int tiles, int geometry);

#endif
