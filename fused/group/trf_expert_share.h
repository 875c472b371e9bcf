/* SPDX-License-Identifier: Apache-2.0 */
/* How products of experts are shared out among blocks, from counts of tokens that only the device knows. Every block
 * works this out by itself, from the same numbers. C and CUDA.
 *
 * A *work item* is one pass over an expert's weights, with up to TRF_EXPERT_PASS_TOKENS of its tokens. Work items are
 * numbered expert by expert; an expert without tokens has none. A block has consecutive units (trf_warp_product.cuh),
 * counted through all work items, so that it enters few experts; the more experts it enters, the fewer units it gets. A
 * block has all columns of its units. */
#ifndef TRF_EXPERT_SHARE_H
#define TRF_EXPERT_SHARE_H

#include "trf_blob.h"

enum {
    TRF_EXPERT_PASS_TOKENS = 8,
    TRF_EXPERTS_MAX_TOKENS = 1 << 26 /* of a call, so that the passes of 32 experts fit 32 bits */
};

/* What an expert costs a block. */
typedef struct trf_expert_cost_model {
    uint32_t units, panels;  /* of an expert: units of whole bands, regular panels; at least 1 of each */
    uint32_t warps;          /* of a block; they share the columns of its units evenly */
    uint32_t step_ns;        /* estimated time of a step, in which each warp walks one panel of a unit */
    uint32_t begin_ns;       /* estimated time of entering an expert ... */
    uint32_t begin_quarters; /* ... and the same in quarters of a unit's time */
} trf_expert_cost_model;

/* An expert's tokens: rows [first, first + count) of x. */
typedef struct trf_expert_tokens {
    uint32_t first, count;
} trf_expert_tokens;

/* The tokens of the expert between two offsets. Offsets are data: with invalid ones the tokens still lie below
 * max_tokens. */
TRF_HD trf_expert_tokens trf_expert_tokens_of(uint32_t offset, uint32_t next, uint32_t max_tokens) {
    const uint32_t first = offset < max_tokens ? offset : max_tokens, end = next < max_tokens ? next : max_tokens;
    const trf_expert_tokens tokens = {first, end > first ? end - first : 0};
    return tokens;
}

TRF_HD uint32_t trf_expert_passes(uint32_t count) {
    return count / TRF_EXPERT_PASS_TOKENS + (count % TRF_EXPERT_PASS_TOKENS != 0);
}

/* Where the i-th share begins when `count` things are cut as evenly as possible among `shares`; longer shares come
 * first. */
TRF_HD uint64_t trf_even_share_begin(uint64_t count, uint64_t shares, uint64_t i) {
    const uint64_t more = count % shares;
    return count / shares * i + (i < more ? i : more);
}

/* The estimated time of a block that has so many units of one expert. */
TRF_HD uint64_t trf_expert_time(const trf_expert_cost_model *cost_model, uint64_t units) {
    return (units * cost_model->panels + cost_model->warps - 1) / cost_model->warps * cost_model->step_ns +
           cost_model->begin_ns;
}

/* The cost of work items, in quarters of a unit's time. */
TRF_HD uint64_t trf_expert_quarters(const trf_expert_cost_model *cost_model, uint64_t work_items) {
    return work_items * (4ull * cost_model->units + cost_model->begin_quarters);
}

/* The estimated time of the block that has the most to do. *one_work_item_each becomes whether it is faster if each
 * block has units of one work item only. work_items, blocks: at least 1. */
TRF_HD uint64_t trf_expert_cost(const trf_expert_cost_model *cost_model, uint64_t work_items, uint32_t blocks,
                                int *one_work_item_each) {
    const uint64_t most = (trf_expert_quarters(cost_model, work_items) + blocks - 1) / blocks,
                   evenly = trf_expert_time(cost_model, (most + 3) / 4);
    *one_work_item_each = 0;
    if (work_items > blocks)
        return evenly;
    const uint64_t sharing = blocks / work_items,
                   apart = trf_expert_time(cost_model, (cost_model->units + sharing - 1) / sharing);
    *one_work_item_each = apart <= evenly;
    return *one_work_item_each ? apart : evenly;
}

/* A block's units [begin, end). Unit u of work item i has number i * units + u. */
typedef struct trf_expert_share {
    uint64_t begin, end;
} trf_expert_share;

/* The first unit from position `quarters` on. The first quarters of a work item stand for entering it. */
TRF_HD uint64_t trf_expert_unit_at(const trf_expert_cost_model *cost_model, uint64_t quarters) {
    const uint64_t each = 4ull * cost_model->units + cost_model->begin_quarters, in_item = quarters % each;
    return quarters / each * cost_model->units +
           (in_item > cost_model->begin_quarters ? (in_item - cost_model->begin_quarters + 3) / 4 : 0);
}

/* A block's share. With one_work_item_each, blocks are shared out among work items, and a work item is shared out among
 * its blocks. */
TRF_HD trf_expert_share trf_expert_share_of(const trf_expert_cost_model *cost_model, uint64_t work_items,
                                            uint32_t blocks, int one_work_item_each, uint32_t block) {
    trf_expert_share share;
    if (!one_work_item_each) {
        const uint64_t all = trf_expert_quarters(cost_model, work_items);
        share.begin = trf_expert_unit_at(cost_model, trf_even_share_begin(all, blocks, block));
        share.end = trf_expert_unit_at(cost_model, trf_even_share_begin(all, blocks, block + 1ull));
        return share;
    }
    const uint64_t units = cost_model->units, each = blocks / work_items, more = blocks % work_items,
                   longer = more * (each + 1),
                   work_item = block < longer ? block / (each + 1) : more + (block - longer) / each,
                   sharing = each + (work_item < more), i = block - trf_even_share_begin(blocks, work_items, work_item);
    share.begin = work_item * units + trf_even_share_begin(units, sharing, i);
    share.end = work_item * units + trf_even_share_begin(units, sharing, i + 1);
    return share;
}

#endif
