/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-K: how sums are shared evenly. Each sum takes a number of k blocks, one after the other. The k blocks of all
 * sums, one sum after the other, are cut into equal shares. "A sum" means here everything that has the same k blocks:
 * either the sums of a unit, whose k blocks are its panels, with a share for each warp of a block
 * (trf_group_kernel.cuh); or the sums of a block tile, with a share for each block (trf_packed_handover.cuh). C and
 * CUDA.
 *
 * A share finishes the sums of which it has all k blocks. It may have only some k blocks of the sum that it begins in
 * and of the one that it ends in; it leaves its partial result of these, and those who share the sum add the partial
 * results up in the order of shares. */
#ifndef TRF_STREAM_K_H
#define TRF_STREAM_K_H

#include "trf_blob.h"

/* Where the i-th share begins when things are cut as evenly as possible: each share has `quotient` of them, and the
 * first `remainder` shares have one more. */
TRF_HD uint32_t trf_share_begin(uint32_t quotient, uint32_t remainder, uint32_t i) {
    return quotient * i + (i < remainder ? i : remainder);
}

/* Which share has the thing number `at`. */
TRF_HD uint32_t trf_share_of(uint32_t quotient, uint32_t remainder, uint32_t at) {
    const uint32_t longer = remainder * (quotient + 1);
    return at < longer ? at / (quotient + 1) : remainder + (at - longer) / quotient;
}

typedef struct trf_stream_k {
    uint32_t k_blocks;            /* of a sum, at least 1 */
    uint32_t all;                 /* k blocks of all sums */
    uint32_t quotient, remainder; /* k blocks of a share; one more in the first `remainder` shares */
} trf_stream_k;

TRF_HD trf_stream_k trf_stream_k_of(uint32_t sums, uint32_t k_blocks, uint32_t shares) {
    trf_stream_k stream_k;
    stream_k.k_blocks = k_blocks;
    stream_k.all = sums * k_blocks;
    stream_k.quotient = stream_k.all / shares;
    stream_k.remainder = stream_k.all % shares;
    return stream_k;
}

/* The first k block of a share, counted through all sums. The share ends where the next one begins. */
TRF_HD uint32_t trf_stream_k_begin(const trf_stream_k *stream_k, uint32_t share) {
    return trf_share_begin(stream_k->quotient, stream_k->remainder, share);
}

/* Whether the share has all k blocks of a sum, of which it has some. */
TRF_HD int trf_stream_k_owns_sum(const trf_stream_k *stream_k, uint32_t share, uint32_t sum) {
    const uint32_t first = sum * stream_k->k_blocks;
    return trf_stream_k_begin(stream_k, share) <= first &&
           trf_stream_k_begin(stream_k, share + 1) >= first + stream_k->k_blocks;
}

/* Whether a sum that the share has only a part of is the one that it begins in; otherwise it is the one that it ends
 * in. */
TRF_HD int trf_stream_k_begins_in(const trf_stream_k *stream_k, uint32_t share, uint32_t sum) {
    return trf_stream_k_begin(stream_k, share) >= sum * stream_k->k_blocks;
}

/* The share that has a k block; exactly one does. */
TRF_HD uint32_t trf_stream_k_share_of(const trf_stream_k *stream_k, uint32_t k_block) {
    return trf_share_of(stream_k->quotient, stream_k->remainder, k_block);
}

/* The shares that have k blocks of a sum: *first to *last. */
TRF_HD void trf_stream_k_sharers(const trf_stream_k *stream_k, uint32_t sum, uint32_t *first, uint32_t *last) {
    *first = trf_stream_k_share_of(stream_k, sum * stream_k->k_blocks);
    *last = trf_stream_k_share_of(stream_k, (sum + 1) * stream_k->k_blocks - 1);
}

#endif
