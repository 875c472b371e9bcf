/* SPDX-License-Identifier: Apache-2.0 */
/* The list of fused kernels, and functions that choose one. Each .cu of the family instantiates its own codecs, with
 * quads and pairs:
 *
 *   codec                       type of x
 *   bf16, fp16                  its own
 *   e4m3, e5m2                  F16, BF16
 *   scaled FP8                  BF16
 *   int; int with scale groups  F16, BF16
 *
 * Each has the variants below; an x tile is 8 rows of x. With two slabs a warp, int also has kernels made for the raw
 * bits that it mostly has. */
#ifndef TRF_FUSED_INSTANCES_CUH
#define TRF_FUSED_INSTANCES_CUH

#include "trf_fused_kernel.cuh"

typedef void (*trf_fused_kernel)(trf_fused_args);

template <class Codec, class Type, bool kScaleGroups, int kVariant, int kXTiles>
static trf_fused_kernel trf_fused_pick_instance() {
    constexpr int kP = kVariant == TRF_VARIANT_GENERAL ? 0 : kDefaultP<Codec>;
    return trf_fused<Codec, Type, kP, trf_fused_unit_slabs(kVariant), kXTiles, kScaleGroups,
                     trf_fused_warps(Codec::kCodec, Codec::kClassBits, kScaleGroups, kXTiles, kVariant)>;
}

/* x_tiles: a number that there are kernels for. */
template <class Codec, class Type, bool kScaleGroups> static trf_fused_kernel trf_fused_pick_two_slabs(int x_tiles) {
    constexpr int kMost = trf_fused_two_slab_max_x_tiles(Codec::kCodec, Codec::kClassBits,
                                                         Codec::kKnownRaw ? Codec::raw(0) : 0, kScaleGroups);
    if constexpr (kMost > 1) {
        if (x_tiles == 2)
            return trf_fused_pick_instance<Codec, Type, kScaleGroups, TRF_VARIANT_TWO_SLABS, 2>();
        if (x_tiles == 3)
            return trf_fused_pick_instance<Codec, Type, kScaleGroups, TRF_VARIANT_TWO_SLABS, 3>();
        if (x_tiles == 4)
            return trf_fused_pick_instance<Codec, Type, kScaleGroups, TRF_VARIANT_TWO_SLABS, 4>();
    }
    if constexpr (kMost > 0)
        return trf_fused_pick_instance<Codec, Type, kScaleGroups, TRF_VARIANT_TWO_SLABS, 1>();
    return nullptr;
}

template <class Codec, class Type, bool kScaleGroups> static trf_fused_kernel trf_fused_pick(int x_tiles, int variant) {
    if (variant == TRF_VARIANT_TWO_SLABS)
        return trf_fused_pick_two_slabs<Codec, Type, kScaleGroups>(x_tiles);
    if (variant == TRF_VARIANT_GENERAL)
        return x_tiles == 1 ? trf_fused_pick_instance<Codec, Type, kScaleGroups, TRF_VARIANT_GENERAL, 1>()
                            : trf_fused_pick_instance<Codec, Type, kScaleGroups, TRF_VARIANT_GENERAL, 8>();
    switch (x_tiles) {
    case 1:
        return trf_fused_pick_instance<Codec, Type, kScaleGroups, TRF_VARIANT_ONE_SLAB, 1>();
    case 2:
        return trf_fused_pick_instance<Codec, Type, kScaleGroups, TRF_VARIANT_ONE_SLAB, 2>();
    case 4:
        return trf_fused_pick_instance<Codec, Type, kScaleGroups, TRF_VARIANT_ONE_SLAB, 4>();
    default:
        return trf_fused_pick_instance<Codec, Type, kScaleGroups, TRF_VARIANT_ONE_SLAB, 8>();
    }
}

/* For codecs that take either type of x. */
template <class Quads, class Pairs, bool kScaleGroups>
static trf_fused_kernel trf_fused_pick_codec(int class_bits, int bf16_x, int x_tiles, int variant) {
    if (class_bits == 2)
        return bf16_x ? trf_fused_pick<Quads, trf_bf16_type, kScaleGroups>(x_tiles, variant)
                      : trf_fused_pick<Quads, trf_f16_type, kScaleGroups>(x_tiles, variant);
    return bf16_x ? trf_fused_pick<Pairs, trf_bf16_type, kScaleGroups>(x_tiles, variant)
                  : trf_fused_pick<Pairs, trf_f16_type, kScaleGroups>(x_tiles, variant);
}

/* One function for each .cu. bf16_x: whether x is BF16, for codecs that take both types. */
trf_fused_kernel trf_fused_bf16(int class_bits, int x_tiles, int variant);
trf_fused_kernel trf_fused_fp16(int class_bits, int x_tiles, int variant);
trf_fused_kernel trf_fused_e4m3(int class_bits, int bf16_x, int x_tiles, int variant);
trf_fused_kernel trf_fused_scaled_fp8(int class_bits, int x_tiles, int variant);
trf_fused_kernel trf_fused_e5m2(int class_bits, int bf16_x, int x_tiles, int variant);
trf_fused_kernel trf_fused_int(int class_bits, uint32_t raw_bits, int bf16_x, int x_tiles, int variant);
trf_fused_kernel trf_fused_int_scale_groups(int class_bits, int bf16_x, int x_tiles, int variant);

#endif
