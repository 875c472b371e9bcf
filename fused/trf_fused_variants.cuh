/* The list of fused kernels, and how to get at them. Each .cu of the family instantiates its own codecs, with quads and pairs:
 *
 *   codec                       type of x
 *   bf16, fp16                  its own
 *   e4m3, e5m2                  F16, BF16
 *   int; int with group scales  F16, BF16
 *
 * each in the geometries below; tiles: of 8 rows of x. With two slabs a warp, int has kernels for the raw bits that it mostly has, too. */
#ifndef TRF_FUSED_VARIANTS_CUH
#define TRF_FUSED_VARIANTS_CUH

#include "trf_fused_kernel.cuh"

typedef void (*trf_fused_kernel)(trf_fused_args);

/* Which ones a layer can have depends on its p, L and frequencies (trf_has_usual_p), on the batch, and on shared memory. */
enum trf_fused_geometry {
    TRF_GEOMETRY_TWO, /* usual p, two slabs a warp, 1 tile or up to trf_fused_two_tiles; not with group scales */
    TRF_GEOMETRY_ONE, /* usual p; 1, 2, 4 or 8 tiles */
    TRF_GEOMETRY_ANY, /* 1 or 8 tiles, 8 warps: for long streams and little shared memory, too */
    TRF_GEOMETRIES
};

static constexpr int trf_fused_slabs(int geometry) { return geometry == TRF_GEOMETRY_TWO ? 2 : 1; }

static constexpr int trf_fused_tiles(uint32_t m, int geometry) {
    return m <= 8                                    ? 1
           : geometry == TRF_GEOMETRY_ANY            ? 8
           : m <= 16                                 ? 2
           : m <= 24 && geometry == TRF_GEOMETRY_TWO ? 3
           : m <= 32                                 ? 4
                                                     : 8;
}

/* Whether int has kernels made for these raw bits: with quads, of 8-bit codes (6) and of those near 4 bits a weight (3). */
static constexpr bool trf_has_known_planes(uint32_t codec, int class_bits, uint32_t raw_bits) {
    return codec == TRF_CODEC_INT && class_bits == 2 && (raw_bits == 3 || raw_bits == 6);
}

/* Tiles of the kernels with two slabs a warp, at most: what was faster than with one slab, or has the registers. 0: there are none. */
static constexpr int trf_fused_two_tiles(uint32_t codec, int class_bits, uint32_t raw_bits, bool scaled) {
    if (scaled)
        return 0;
    if (class_bits == 4 || (codec == TRF_CODEC_INT && !trf_has_known_planes(codec, class_bits, raw_bits)))
        return 1;
    return 4;
}

/* Warps of a block: what the accumulators leave registers for. Pairs have the longer chains of states, and want more. */
static constexpr int trf_fused_warps(uint32_t codec, int class_bits, bool scaled, int tiles, int geometry) {
    if (geometry == TRF_GEOMETRY_ANY || tiles == 8)
        return 8;
    if (geometry == TRF_GEOMETRY_TWO)
        return tiles > 2 || (tiles == 2 && codec == TRF_CODEC_FP16) ? 12 : 16;
    if (tiles == 4 && scaled)
        return 12;
    return class_bits == 4 && tiles == 1 && !scaled ? 20 : 16;
}

template <class Form, class Type, bool kScaled, int kGeometry, int kTiles> static trf_fused_kernel trf_pick_kernel() {
    constexpr int kP = kGeometry == TRF_GEOMETRY_ANY ? 0 : kUsualP<Form>;
    return trf_fused<Form, Type, kP, trf_fused_slabs(kGeometry), kTiles, kScaled,
                     trf_fused_warps(Form::kCodec, Form::kClassBits, kScaled, kTiles, kGeometry)>;
}

/* tiles: that there are. */
template <class Form, class Type, bool kScaled> static trf_fused_kernel trf_pick_two(int tiles) {
    constexpr int kMost =
        trf_fused_two_tiles(Form::kCodec, Form::kClassBits, Form::kKnownRaw ? Form::raw(0) : 0, kScaled);
    if constexpr (kMost > 1) {
        if (tiles == 2)
            return trf_pick_kernel<Form, Type, kScaled, TRF_GEOMETRY_TWO, 2>();
        if (tiles == 3)
            return trf_pick_kernel<Form, Type, kScaled, TRF_GEOMETRY_TWO, 3>();
        if (tiles == 4)
            return trf_pick_kernel<Form, Type, kScaled, TRF_GEOMETRY_TWO, 4>();
    }
    if constexpr (kMost > 0)
        return trf_pick_kernel<Form, Type, kScaled, TRF_GEOMETRY_TWO, 1>();
    return nullptr;
}

template <class Form, class Type, bool kScaled> static trf_fused_kernel trf_pick(int tiles, int geometry) {
    if (geometry == TRF_GEOMETRY_TWO)
        return trf_pick_two<Form, Type, kScaled>(tiles);
    if (geometry == TRF_GEOMETRY_ANY)
        return tiles == 1 ? trf_pick_kernel<Form, Type, kScaled, TRF_GEOMETRY_ANY, 1>()
                          : trf_pick_kernel<Form, Type, kScaled, TRF_GEOMETRY_ANY, 8>();
    switch (tiles) {
    case 1:
        return trf_pick_kernel<Form, Type, kScaled, TRF_GEOMETRY_ONE, 1>();
    case 2:
        return trf_pick_kernel<Form, Type, kScaled, TRF_GEOMETRY_ONE, 2>();
    case 4:
        return trf_pick_kernel<Form, Type, kScaled, TRF_GEOMETRY_ONE, 4>();
    default:
        return trf_pick_kernel<Form, Type, kScaled, TRF_GEOMETRY_ONE, 8>();
    }
}

/* For codecs that take either type of x. */
template <class Quads, class Pairs, bool kScaled>
static trf_fused_kernel trf_pick_form(int class_bits, int bf16_x, int tiles, int geometry) {
    if (class_bits == 2)
        return bf16_x ? trf_pick<Quads, trf_bf16_type, kScaled>(tiles, geometry)
                      : trf_pick<Quads, trf_f16_type, kScaled>(tiles, geometry);
    return bf16_x ? trf_pick<Pairs, trf_bf16_type, kScaled>(tiles, geometry)
                  : trf_pick<Pairs, trf_f16_type, kScaled>(tiles, geometry);
}

/* One for each .cu. bf16_x: the type of x where the codec takes both. */
trf_fused_kernel trf_fused_bf16(int class_bits, int tiles, int geometry);
trf_fused_kernel trf_fused_fp16(int class_bits, int tiles, int geometry);
trf_fused_kernel trf_fused_e4m3(int class_bits, int bf16_x, int tiles, int geometry);
trf_fused_kernel trf_fused_e5m2(int class_bits, int bf16_x, int tiles, int geometry);
trf_fused_kernel trf_fused_int(int class_bits, uint32_t raw_bits, int bf16_x, int tiles, int geometry);
trf_fused_kernel trf_fused_int_scaled(int class_bits, int bf16_x, int tiles, int geometry);

#endif
