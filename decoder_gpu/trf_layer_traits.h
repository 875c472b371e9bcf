/* SPDX-License-Identifier: Apache-2.0 */
/* What the host knows about a layer, beside what kernels see of it, when it chooses among kernels. C and CUDA. */
#ifndef TRF_LAYER_TRAITS_H
#define TRF_LAYER_TRAITS_H

#include "transfuse.h"
#include "trf_blob.h"

/* Properties of the whole layer that decide which kernels take it; found on the host while it is uploaded. */
typedef struct trf_layer_traits {
    uint64_t irregular_weights; /* weights of edges: in stored tiles, in slivers, and in slabs that are not regular */
    uint64_t coded_slabs;
    uint32_t max_rans_bytes;      /* of a slab's rANS streams */
    uint32_t max_frequency;       /* of a symbol */
    uint32_t predictor_modes;     /* union over tiles */
    int mixed_predictor_modes;    /* whether coded tiles differ in their predictor mode */
    uint32_t max_abs_offset;      /* bound of exponents' |D + row offset + column offset| */
    uint32_t max_abs_code;        /* bound for coded, exceptional and stored codes of the int codec */
    int exceptions_fit_fragments; /* whether every exception is exact in the type of fragments */
    int scales_have_pairs;        /* whether it is scaled FP8 with a scale pair for each scale: 2^-80 <= s < 2^7 */
} trf_layer_traits;

/* How many powers of two a codec's matrix fragments are too small by, beside their offsets: kernels make F16 of E4M3 by
 * moving bits (trf_fragment.cuh). Those of scaled FP8 are BF16, and as much too small, so that sums of both are
 * finished alike; their scale pairs are found for scales times 2^-8. */
TRF_HD int trf_fragment_exponent(uint32_t codec) { return codec == TRF_CODEC_E4M3 ? 8 : 0; }

#endif
