/* SPDX-License-Identifier: Apache-2.0 */
/* How the warps of a block share its units evenly: the units' panels, one unit behind the other, are cut into one
 * equal share a warp: stream-K. C and CUDA.
 *
 * A warp finishes the units that it has all panels of. Of the unit that its share begins in, and of the one that it
 * ends in, it may have some, and leaves its sums; those who share a unit add them up, each another part of y, in the
 * order of warps. */
#ifndef TRF_STREAM_K_H
#define TRF_STREAM_K_H

#include "trf_blob.h"

/* Where the i-th share of things begins that are cut as evenly as may be: `quotient` a share, one more in the first
 * `remainder`. */
TRF_HD uint32_t trf_share_begin(uint32_t quotient, uint32_t remainder, uint32_t i) {
    return quotient * i + (i < remainder ? i : remainder);
}

/* Which share the thing at `at` is in. */
TRF_HD uint32_t trf_share_of(uint32_t quotient, uint32_t remainder, uint32_t at) {
    const uint32_t longer = remainder * (quotient + 1);
    return at < longer ? at / (quotient + 1) : remainder + (at - longer) / quotient;
}

typedef struct trf_stream_k {
    uint32_t panels;              /* of a unit, at least 1 */
    uint32_t all;                 /* panels of all units */
    uint32_t quotient, remainder; /* a share's panels, one more in the first `remainder` shares */
} trf_stream_k;

TRF_HD trf_stream_k trf_stream_k_of(uint32_t units, uint32_t panels, uint32_t warps) {
    trf_stream_k stream_k;
    stream_k.panels = panels;
    stream_k.all = units * panels;
    stream_k.quotient = stream_k.all / warps;
    stream_k.remainder = stream_k.all % warps;
    return stream_k;
}

/* The first panel of a warp's share, counted through all units; the share ends where the next warp's begins. */
TRF_HD uint32_t trf_stream_k_begin(const trf_stream_k *stream_k, uint32_t warp) {
    return trf_share_begin(stream_k->quotient, stream_k->remainder, warp);
}

/* Whether a unit that the warp's share touches is all its own. */
TRF_HD int trf_stream_k_owns_unit(const trf_stream_k *stream_k, uint32_t warp, uint32_t unit) {
    const uint32_t first = unit * stream_k->panels;
    return trf_stream_k_begin(stream_k, warp) <= first &&
           trf_stream_k_begin(stream_k, warp + 1) >= first + stream_k->panels;
}

/* Whether a unit that the warp shares is the one that its share begins in; else it ends there. */
TRF_HD int trf_stream_k_begins_in(const trf_stream_k *stream_k, uint32_t warp, uint32_t unit) {
    return trf_stream_k_begin(stream_k, warp) >= unit * stream_k->panels;
}

/* The warp whose share has a panel; there is one. */
TRF_HD uint32_t trf_stream_k_warp_of(const trf_stream_k *stream_k, uint32_t panel) {
    return trf_share_of(stream_k->quotient, stream_k->remainder, panel);
}

/* The warps that share a unit: *first to *last. */
TRF_HD void trf_stream_k_sharers(const trf_stream_k *stream_k, uint32_t unit, uint32_t *first, uint32_t *last) {
    *first = trf_stream_k_warp_of(stream_k, unit * stream_k->panels);
    *last = trf_stream_k_warp_of(stream_k, (unit + 1) * stream_k->panels - 1);
}

#endif
