/* The list of fused kernels, and how to get at them. Each .cu of the family instantiates its own codecs, with quads and pairs:
 *
 *   codec                       type of x
 *   bf16, fp16                  its own
 *   e4m3, e5m2                  F16, BF16
 *   int; int with group scales  F16, BF16
 *
 * each in the geometries below; tiles: of 8 rows of x, 1, 2, 4 or 8. */
#ifndef TRF_FUSED_VARIANTS_CUH
#define TRF_FUSED_VARIANTS_CUH

#include "trf_fused_columns.cuh"
#include "trf_fused_runs.cuh"

typedef void (*trf_fused_kernel)(trf_fused_args);

/* Which ones a layer can have depends on its p, L and frequencies (trf_has_usual_p), on the batch, and on shared memory. */
enum trf_fused_geometry {
    TRF_GEOMETRY_COLUMNS_TWO, /* usual p, two slabs a warp: quads without group scales, 1 tile */
    TRF_GEOMETRY_RUNS_TWO,    /* likewise */
    TRF_GEOMETRY_COLUMNS,     /* usual p */
    TRF_GEOMETRY_RUNS,        /* usual p, 1 tile */
    TRF_GEOMETRY_COLUMNS_ANY, /* from 2 tiles on, 8 warps */
    TRF_GEOMETRY_RUNS_ANY,    /* 1 tile */
    TRF_GEOMETRY_RUNS_FEW,    /* 1 tile, 8 warps: for long streams and little shared memory */
    TRF_GEOMETRIES
};

static constexpr bool trf_walks_columns(int geometry) {
    return geometry == TRF_GEOMETRY_COLUMNS_TWO || geometry == TRF_GEOMETRY_COLUMNS ||
           geometry == TRF_GEOMETRY_COLUMNS_ANY;
}

static constexpr int trf_fused_slabs(int geometry) {
    return geometry == TRF_GEOMETRY_COLUMNS_TWO || geometry == TRF_GEOMETRY_RUNS_TWO ? 2 : 1;
}

/* Warps of a block: what the accumulators leave registers for. Pairs have the longer chains of states, and want more. */
static constexpr int trf_fused_warps(int class_bits, bool scaled, int tiles, int geometry) {
    if (geometry == TRF_GEOMETRY_COLUMNS_ANY || geometry == TRF_GEOMETRY_RUNS_FEW)
        return 8;
    if (tiles == 8)
        return scaled ? 8 : 12;
    if (tiles == 4 && scaled)
        return 12;
    return class_bits == 4 && tiles == 1 && !scaled && geometry != TRF_GEOMETRY_RUNS_ANY ? 20 : 16;
}

template <class Form, class Type, bool kScaled, int kGeometry, int kTiles> static trf_fused_kernel trf_pick_columns() {
    constexpr int kP = kGeometry == TRF_GEOMETRY_COLUMNS_ANY ? 0 : kUsualP<Form>;
    return trf_fused_columns<Form, Type, kP, trf_fused_slabs(kGeometry), kTiles, kScaled,
                             trf_fused_warps(Form::kClassBits, kScaled, kTiles, kGeometry)>;
}

template <class Form, class Type, bool kScaled, int kGeometry> static trf_fused_kernel trf_pick_runs() {
    constexpr int kP = kGeometry == TRF_GEOMETRY_RUNS_TWO || kGeometry == TRF_GEOMETRY_RUNS ? kUsualP<Form> : 0;
    return trf_fused_runs<Form, Type, kP, trf_fused_slabs(kGeometry), kScaled,
                          trf_fused_warps(Form::kClassBits, kScaled, 1, kGeometry)>;
}

template <class Form, class Type, bool kScaled, int kGeometry> static trf_fused_kernel trf_pick_tiles(int tiles) {
    switch (tiles) {
    case 2:
        return trf_pick_columns<Form, Type, kScaled, kGeometry, 2>();
    case 4:
        return trf_pick_columns<Form, Type, kScaled, kGeometry, 4>();
    default:
        return trf_pick_columns<Form, Type, kScaled, kGeometry, 8>();
    }
}

template <class Form, class Type, bool kScaled> static trf_fused_kernel trf_pick(int tiles, int geometry) {
    constexpr bool kTwo = Form::kClassBits == 2 && !kScaled;
    switch (geometry) {
    case TRF_GEOMETRY_COLUMNS_TWO:
        if constexpr (kTwo)
            return trf_pick_columns<Form, Type, kScaled, TRF_GEOMETRY_COLUMNS_TWO, 1>();
        return nullptr;
    case TRF_GEOMETRY_RUNS_TWO:
        if constexpr (kTwo)
            return trf_pick_runs<Form, Type, kScaled, TRF_GEOMETRY_RUNS_TWO>();
        return nullptr;
    case TRF_GEOMETRY_COLUMNS:
        if constexpr (!kTwo)
            if (tiles == 1)
                return trf_pick_columns<Form, Type, kScaled, TRF_GEOMETRY_COLUMNS, 1>();
        return tiles == 1 ? nullptr : trf_pick_tiles<Form, Type, kScaled, TRF_GEOMETRY_COLUMNS>(tiles);
    case TRF_GEOMETRY_RUNS:
        return trf_pick_runs<Form, Type, kScaled, TRF_GEOMETRY_RUNS>();
    case TRF_GEOMETRY_COLUMNS_ANY:
        return trf_pick_tiles<Form, Type, kScaled, TRF_GEOMETRY_COLUMNS_ANY>(tiles);
    case TRF_GEOMETRY_RUNS_ANY:
        return trf_pick_runs<Form, Type, kScaled, TRF_GEOMETRY_RUNS_ANY>();
    default:
        return trf_pick_runs<Form, Type, kScaled, TRF_GEOMETRY_RUNS_FEW>();
    }
}

/* One for each .cu. bf16_x: the type of x where the codec takes both. */
trf_fused_kernel trf_fused_bf16(int class_bits, int tiles, int geometry);
trf_fused_kernel trf_fused_fp16(int class_bits, int tiles, int geometry);
trf_fused_kernel trf_fused_fp8(int e5m2, int class_bits, int bf16_x, int tiles, int geometry);
trf_fused_kernel trf_fused_int(int scaled, int class_bits, int bf16_x, int tiles, int geometry);

#endif
