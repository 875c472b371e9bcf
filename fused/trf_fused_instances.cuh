/* The list of fused kernels, and how to get at them. Each .cu of the family instantiates its own codecs, with quads and
 * pairs:
 *
 *   codec                       type of x
 *   bf16, fp16                  its own
 *   e4m3, e5m2                  F16, BF16
 *   int; int with group scales  F16, BF16
 *
 * each in the geometries below; tiles: of 8 rows of x. With two slabs a warp, int has kernels for the raw bits that it
 * mostly has, too. */
#ifndef TRF_FUSED_INSTANCES_CUH
#define TRF_FUSED_INSTANCES_CUH

#include "trf_fused_kernel.cuh"

typedef void (*trf_fused_kernel)(trf_fused_args);

/* Which ones a layer can have depends on its p, L and frequencies (trf_has_default_p), on the batch, and on shared
 * memory. */
enum trf_fused_geometry {
    /* usual p, two slabs a warp, 1 tile or up to trf_fused_two_slab_max_x_tiles; not with group scales */
    TRF_GEOMETRY_TWO_SLABS,
    TRF_GEOMETRY_ONE_SLAB, /* usual p; 1, 2, 4 or 8 tiles */
    TRF_GEOMETRY_GENERAL,  /* 1 or 8 tiles, 8 warps: for long streams and little shared memory, too */
    TRF_GEOMETRIES
};

static constexpr int trf_fused_slabs(int geometry) { return geometry == TRF_GEOMETRY_TWO_SLABS ? 2 : 1; }

static constexpr int trf_fused_x_tiles(uint32_t m, int geometry) {
    return m <= 8                                          ? 1
           : geometry == TRF_GEOMETRY_GENERAL              ? 8
           : m <= 16                                       ? 2
           : m <= 24 && geometry == TRF_GEOMETRY_TWO_SLABS ? 3
           : m <= 32                                       ? 4
                                                           : 8;
}

/* Whether int has kernels made for these raw bits: with quads, of 8-bit codes (6) and of those near 4 bits a weight
 * (3). */
static constexpr bool trf_has_known_planes(uint32_t codec, int class_bits, uint32_t raw_bits) {
    return codec == TRF_CODEC_INT && class_bits == 2 && (raw_bits == 3 || raw_bits == 6);
}

/* Tiles of the kernels with two slabs a warp, at most: what was faster than with one slab, or has the registers. 0:
 * there are none. */
static constexpr int trf_fused_two_slab_max_x_tiles(uint32_t codec, int class_bits, uint32_t raw_bits, bool scaled) {
    if (scaled)
        return 0;
    if (class_bits == 4 || (codec == TRF_CODEC_INT && !trf_has_known_planes(codec, class_bits, raw_bits)))
        return 1;
    return 4;
}

/* Warps of a block: what the accumulators leave registers for. Pairs have the longer chains of states, and want
 * more. */
static constexpr int trf_fused_warps(uint32_t codec, int class_bits, bool scaled, int x_tiles, int geometry) {
    if (geometry == TRF_GEOMETRY_GENERAL || x_tiles == 8)
        return 8;
    if (geometry == TRF_GEOMETRY_TWO_SLABS)
        return x_tiles > 2 || (x_tiles == 2 && codec == TRF_CODEC_FP16) ? 12 : 16;
    if (x_tiles == 4 && scaled)
        return 12;
    return class_bits == 4 && x_tiles == 1 && !scaled ? 20 : 16;
}

template <class Traits, class Type, bool kScaled, int kGeometry, int kXTiles>
static trf_fused_kernel trf_fused_pick_instance() {
    constexpr int kP = kGeometry == TRF_GEOMETRY_GENERAL ? 0 : kDefaultP<Traits>;
    return trf_fused<Traits, Type, kP, trf_fused_slabs(kGeometry), kXTiles, kScaled,
                     trf_fused_warps(Traits::kCodec, Traits::kClassBits, kScaled, kXTiles, kGeometry)>;
}

/* tiles: that there are. */
template <class Traits, class Type, bool kScaled> static trf_fused_kernel trf_fused_pick_two_slabs(int x_tiles) {
    constexpr int kMost = trf_fused_two_slab_max_x_tiles(Traits::kCodec, Traits::kClassBits,
                                                         Traits::kKnownRaw ? Traits::raw(0) : 0, kScaled);
    if constexpr (kMost > 1) {
        if (x_tiles == 2)
            return trf_fused_pick_instance<Traits, Type, kScaled, TRF_GEOMETRY_TWO_SLABS, 2>();
        if (x_tiles == 3)
            return trf_fused_pick_instance<Traits, Type, kScaled, TRF_GEOMETRY_TWO_SLABS, 3>();
        if (x_tiles == 4)
            return trf_fused_pick_instance<Traits, Type, kScaled, TRF_GEOMETRY_TWO_SLABS, 4>();
    }
    if constexpr (kMost > 0)
        return trf_fused_pick_instance<Traits, Type, kScaled, TRF_GEOMETRY_TWO_SLABS, 1>();
    return nullptr;
}

template <class Traits, class Type, bool kScaled> static trf_fused_kernel trf_fused_pick(int x_tiles, int geometry) {
    if (geometry == TRF_GEOMETRY_TWO_SLABS)
        return trf_fused_pick_two_slabs<Traits, Type, kScaled>(x_tiles);
    if (geometry == TRF_GEOMETRY_GENERAL)
        return x_tiles == 1 ? trf_fused_pick_instance<Traits, Type, kScaled, TRF_GEOMETRY_GENERAL, 1>()
                            : trf_fused_pick_instance<Traits, Type, kScaled, TRF_GEOMETRY_GENERAL, 8>();
    switch (x_tiles) {
    case 1:
        return trf_fused_pick_instance<Traits, Type, kScaled, TRF_GEOMETRY_ONE_SLAB, 1>();
    case 2:
        return trf_fused_pick_instance<Traits, Type, kScaled, TRF_GEOMETRY_ONE_SLAB, 2>();
    case 4:
        return trf_fused_pick_instance<Traits, Type, kScaled, TRF_GEOMETRY_ONE_SLAB, 4>();
    default:
        return trf_fused_pick_instance<Traits, Type, kScaled, TRF_GEOMETRY_ONE_SLAB, 8>();
    }
}

/* For codecs that take either type of x. */
template <class Quads, class Pairs, bool kScaled>
static trf_fused_kernel trf_fused_pick_codec(int class_bits, int bf16_x, int x_tiles, int geometry) {
    if (class_bits == 2)
        return bf16_x ? trf_fused_pick<Quads, trf_bf16_type, kScaled>(x_tiles, geometry)
                      : trf_fused_pick<Quads, trf_f16_type, kScaled>(x_tiles, geometry);
    return bf16_x ? trf_fused_pick<Pairs, trf_bf16_type, kScaled>(x_tiles, geometry)
                  : trf_fused_pick<Pairs, trf_f16_type, kScaled>(x_tiles, geometry);
}

/* One for each .cu. bf16_x: the type of x where the codec takes both. */
trf_fused_kernel trf_fused_bf16(int class_bits, int x_tiles, int geometry);
trf_fused_kernel trf_fused_fp16(int class_bits, int x_tiles, int geometry);
trf_fused_kernel trf_fused_e4m3(int class_bits, int bf16_x, int x_tiles, int geometry);
trf_fused_kernel trf_fused_e5m2(int class_bits, int bf16_x, int x_tiles, int geometry);
trf_fused_kernel trf_fused_int(int class_bits, uint32_t raw_bits, int bf16_x, int x_tiles, int geometry);
trf_fused_kernel trf_fused_int_scaled(int class_bits, int bf16_x, int x_tiles, int geometry);

#endif
