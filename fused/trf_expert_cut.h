/* How products of experts are shared out among blocks, from counts of tokens that only the device knows. Every block works this out by itself, from
 * the same numbers. C and CUDA.
 *
 * An *item* is one pass over an expert's weights, with up to TRF_EXPERT_TOKENS of its tokens. Items count through the experts in order, those without tokens have
 * none. A *grain* is the units (trf_fused_product.cuh) that a block walks at once; a block has consecutive grains, counted through all items, so that it
 * enters few experts. Each grain of each item belongs to one block, which adds up all of its sums itself. */
#ifndef TRF_EXPERT_CUT_H
#define TRF_EXPERT_CUT_H

#include "trf_blob.h"

enum {
    TRF_EXPERT_TOKENS = 8,
    TRF_EXPERT_CUTS = 32,          /* a warp's lanes look at one each */
    TRF_EXPERT_MAX_ROWS = 1 << 26, /* of x: 32 experts' passes fit 32 bits */
};

/* One way to cut an expert; any will do for any counts, and the estimates choose. */
typedef struct trf_expert_cut {
    uint32_t group, parts; /* units of a grain; warps that share a unit */
    uint32_t grains;       /* of an expert, at least 1 */
    uint32_t grain_ns;     /* a block's time for one */
} trf_expert_cut;

/* An expert's tokens: rows [first, first + count) of x. */
typedef struct trf_expert_tokens {
    uint32_t first, count;
} trf_expert_tokens;

/* Of the expert between two offsets, which are data: ones that make no sense never lead beyond max_rows. */
TRF_HD trf_expert_tokens trf_expert_tokens_of(uint32_t offset, uint32_t next, uint32_t max_rows) {
    const uint32_t first = offset < max_rows ? offset : max_rows, end = next < max_rows ? next : max_rows;
    const trf_expert_tokens tokens = {first, end > first ? end - first : 0};
    return tokens;
}

TRF_HD uint32_t trf_expert_passes(uint32_t count) {
    return count / TRF_EXPERT_TOKENS + (count % TRF_EXPERT_TOKENS != 0);
}

/* Where the i-th share of `count` things begins that are cut as evenly as may be among `shares`: longer ones first. */
TRF_HD uint64_t trf_even_begin(uint64_t count, uint64_t shares, uint64_t i) {
    const uint64_t more = count % shares;
    return count / shares * i + (i < more ? i : more);
}

/* Estimated time of the block that has most to do. *whole: whether blocks do better with one item each. items, blocks: at least 1. begin_ns: what entering an expert
 * takes. */
TRF_HD uint64_t trf_expert_cost(const trf_expert_cut *cut, uint32_t begin_ns, uint64_t items, uint32_t blocks,
                                int *whole) {
    const uint64_t grains = cut->grains, most = (items * grains + blocks - 1) / blocks,
                   entered = 1 + (most + grains - 2) / grains,
                   evenly = most * cut->grain_ns + entered * (uint64_t)begin_ns;
    *whole = 0;
    if (items > blocks)
        return evenly;
    const uint64_t sharing = blocks / items,
                   apart = (grains + sharing - 1) / sharing * cut->grain_ns + (uint64_t)begin_ns;
    *whole = apart <= evenly;
    return *whole ? apart : evenly;
}

/* A block's grains [begin, end), grain g of item i being i * grains + g. whole: blocks are cut among items, and an item among its blocks. */
typedef struct trf_expert_share {
    uint64_t begin, end;
} trf_expert_share;

TRF_HD trf_expert_share trf_expert_share_of(uint32_t grains, uint64_t items, uint32_t blocks, int whole,
                                            uint32_t block) {
    trf_expert_share share;
    if (!whole) {
        share.begin = trf_even_begin(items * grains, blocks, block);
        share.end = trf_even_begin(items * grains, blocks, block + 1ull);
        return share;
    }
    const uint64_t each = blocks / items, more = blocks % items, longer = more * (each + 1),
                   item = block < longer ? block / (each + 1) : more + (block - longer) / each,
                   sharing = each + (item < more), i = block - trf_even_begin(blocks, items, item);
    share.begin = item * grains + trf_even_begin(grains, sharing, i);
    share.end = item * grains + trf_even_begin(grains, sharing, i + 1);
    return share;
}

#endif
