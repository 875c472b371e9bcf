/* SPDX-License-Identifier: Apache-2.0 */
/* What all tile decoders share: finding what a slab is made of, writing exceptions, copying slivers. A decoder itself
 * only turns slabs into elements; trf_decode_tile_by_slabs does the rest around it. */
#ifndef TRF_DECODE_TILE_H
#define TRF_DECODE_TILE_H

#include "trf_decode.h"

/* One slab of a checked tile. Pointers lead into the tile's bytes. */
typedef struct trf_slab_view {
    trf_slab_shape shape;
    uint32_t row, col;              /* of its first weight, from the tile's */
    const uint8_t *raw;             /* chunks of planes */
    const uint16_t *start_states;   /* [32] */
    const uint8_t *lane_pair_words; /* [16] */
    const uint32_t *exceptions;     /* [num_exceptions] */
    uint32_t num_exceptions;
    const uint16_t *words; /* [num_words], the sum of lane_pair_words */
    uint32_t num_words;
} trf_slab_view;

/* What decoding a tile needs to know. */
typedef struct trf_tile_decoder {
    const trf_blob_view *view;
    const trf_decode_table *table;
    trf_tile_shape shape;
    uint32_t predictor_mode;
} trf_tile_decoder;

/* Decodes the elements of the coded region. Exceptions are not yet written. elements, stride: as trf_decode_tile_fn.
 *
 * A corrupt rANS stream may ask for words that its lane pair, or its slab, does not have. What is read then is up to
 * the decoder (but nothing outside the tile's bytes), and so are the elements. It does not influence the verdict: a
 * slab is good if and only if every lane ends in state 2^L and both lanes of every lane pair together have taken
 * lane_pair_words words. As long as the sum is not exceeded, no lane has left its lane pair; once it is, no later word
 * can bring it back.
 * @return the number of the first bad slab, or num_slabs. */
typedef uint32_t trf_decode_slabs_fn(const trf_tile_decoder *decoder, const trf_slab_view *slabs, uint32_t num_slabs,
                                     uint16_t *elements, size_t stride);

/* Replaces `count` neighbouring codes of scaled FP8 by the BF16 elements that they give with one scale
 * (trf_scale_fp8). */
typedef void trf_scale_codes_fn(uint16_t *elements, uint32_t count, float scale);

/* A trf_decode_tile_fn around decode_slabs and scale_codes. */
trf_status trf_decode_tile_by_slabs(trf_decode_slabs_fn *decode_slabs, trf_scale_codes_fn *scale_codes,
                                    const trf_blob_view *view, const trf_decode_table *table, uint64_t tile,
                                    const uint8_t *tile_bytes, uint16_t *elements, size_t stride, trf_error *err);

#ifdef TRF_HAVE_X86_SIMD
trf_decode_tile_fn trf_decode_tile_avx2;   /* needs AVX2 */
trf_decode_tile_fn trf_decode_tile_avx512; /* needs AVX-512 F, BW, DQ, VL, VBMI, VBMI2 */
#endif

#endif
