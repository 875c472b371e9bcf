/* SPDX-License-Identifier: Apache-2.0 */
/* A warp packs a packed slab: 16 rows of 32 columns, of which each lane has an octet of two rows (trf_pack_lane.h). The
 * words go to the packed tile. The records of weights that the window does not include go to a list of the tile's
 * records. */
#ifndef TRF_PACK_SLAB_CUH
#define TRF_PACK_SLAB_CUH

#include "trf_pack_lane.h"
#include "trf_pack_launch.h"
#include "trf_warp.cuh"

/* ---- where ---- */

/* Where an exception line's tiles lie. */
struct trf_line_place {
    uint64_t line;
    uint32_t band, first_tile, tiles;
};

static __device__ __forceinline__ trf_line_place trf_line_place_of(const trf_packed_view &view, uint64_t line) {
    trf_line_place at;
    at.line = line;
    at.band = (uint32_t)(line / view.lines_per_band);
    at.first_tile = (uint32_t)(line % view.lines_per_band) * TRF_PACKED_LINE_TILES;
    at.tiles = min(view.tiles_per_band - at.first_tile, (uint32_t)TRF_PACKED_LINE_TILES);
    return at;
}

/* Where a line and a packed tile are written: the caller of trf_launch_pack allows writing to the view's memory. */
static __device__ __forceinline__ uint32_t *trf_line_to_write(const trf_packed_view &view, uint64_t line) {
    return const_cast<uint32_t *>(view.lines) + TRF_PACKED_LINE_WORDS * line;
}
static __device__ __forceinline__ uint8_t *trf_packed_tile_to_write(const trf_packed_view &view, uint32_t band,
                                                                    uint32_t tile) {
    return const_cast<uint8_t *>(view.tiles) + TRF_PACKED_TILE_BYTES * trf_packed_tile_number(&view, band, tile);
}

/* A lane's part of a packed slab. */
struct trf_packed_lane_place {
    uint64_t line;
    uint32_t row, col;    /* the lane's first weight, in the layer */
    uint32_t lane_record; /* as for trf_packed_slab_patch */
};

/* first_tile: the line's first tile in its band; tile: the number in the line. */
static __device__ __forceinline__ trf_packed_lane_place trf_packed_lane_place_of(uint32_t band, uint32_t first_tile,
                                                                                 uint32_t tile, uint32_t slab,
                                                                                 uint32_t lane, uint64_t line) {
    trf_packed_lane_place at;
    at.line = line;
    at.row = TRF_PACKED_TILE_ROWS * band + trf_packed_row_in_tile(slab, lane, 0);
    at.col = TRF_PACKED_TILE_COLS * (first_tile + tile) + 2 * (lane % 4);
    at.lane_record = trf_packed_record(tile, slab, 0, lane, 0, 0, 0);
    return at;
}

/* A tile's records, in order, as far as there is room for them. */
struct trf_record_list {
    uint32_t *records;
    uint32_t room;
};

/* The numbers that the records of a packed slab get in their tile's list: by step, then lane, then register. */
struct trf_record_ranks {
    uint32_t found;        /* the lane's: bit i: half i % 2 of register i / 2 becomes a record */
    uint32_t rank0, rank1; /* of the lane's first record of each step */
    uint32_t end;          /* behind the slab's last one */

    __device__ __forceinline__ uint32_t of(uint32_t bit) const {
        const uint32_t in_step = bit < 8 ? found & 0xFF : found & 0xFF00;
        return (bit < 8 ? rank0 : rank1) + trf_packed_count_bits(in_step & ((1u << bit) - 1));
    }
};

/* count: records that the list has already. All lanes call it. */
static __device__ __forceinline__ trf_record_ranks trf_rank_records(uint32_t found, uint32_t count, uint32_t lane) {
    const uint32_t counts = trf_packed_count_bits(found & 0xFF) | trf_packed_count_bits(found >> 8) << 16;
    const uint32_t scan = trf_warp_scan(counts, lane), total = __shfl_sync(kAllLanes, scan, TRF_LANES - 1);
    return {found, count + ((scan - counts) & 0xFFFF), count + (total & 0xFFFF) + ((scan - counts) >> 16),
            count + (total & 0xFFFF) + (total >> 16)};
}

/* ---- packing ---- */

/* Adds the records of a packed slab in which some lane has weights without a flag, and clears these weights in a.
 * state: as for trf_launch_pack, or NULL.
 * count: how many records the list had before. @return how many it has now, including those without room. */
static __device__ __forceinline__ uint32_t trf_add_records(const trf_packed_view &view, trf_pack_state *state,
                                                           const trf_packed_lane_place &at, const trf_record_list &list,
                                                           const trf_row_to_window rows[2], uint32_t flags,
                                                           uint32_t a[8], uint32_t count) {
    const uint32_t lane = trf_packed_record_lane(at.lane_record);
    const uint32_t unflagged = trf_packed_slab_unflagged(flags);
    const uint32_t found = unflagged & trf_packed_slab_there(at.row, at.col, view.rows, view.cols);
    const trf_record_ranks ranks = trf_rank_records(found, count, lane);
    for (uint32_t left = found; left; left &= left - 1) {
        const uint32_t bit = (uint32_t)__ffs((int)left) - 1, rank = ranks.of(bit);
        int exact = 1;
        const int32_t shift = bit / 2 % 2 ? rows[1].shift : rows[0].shift;
        const uint32_t bits = trf_scale_bf16(trf_packed_slab_weight(a, bit), shift, &exact);
        const uint32_t record = trf_packed_slab_record(at.lane_record, bit, bits);
        if (!exact && state)
            atomicMax((unsigned long long *)&state->inexact, ~(unsigned long long)(at.line << 16 | record >> 16));
        if (rank < list.room)
            list.records[rank] = record;
    }
    trf_packed_slab_clear(a, unflagged);
    return ranks.end;
}

/* Packs a packed slab. octets: the lane's octets of rows `row` and `row` + 8, before the quartet exchanges words. to:
 * the packed slab's first byte. @return how many records the list has now. */
template <bool kZeroing>
static __device__ __forceinline__ uint32_t trf_pack_slab(const trf_packed_view &view, trf_pack_state *state,
                                                         const trf_packed_lane_place &at, const trf_record_list &list,
                                                         trf_words4 octets[2], const trf_row_to_window rows[2],
                                                         uint32_t count, uint8_t *to) {
    const uint32_t lane = trf_packed_record_lane(at.lane_record);
    uint32_t a[TRF_PACKED_LANE_REGISTERS], flags = 0;
    trf_quartet_transpose(octets[0].word, lane);
    trf_quartet_transpose(octets[1].word, lane);
    trf_packed_slab_from_rows(a, octets);
    for (uint32_t i = 0; i < TRF_PACKED_LANE_REGISTERS; i++)
        flags = trf_packed_slab_add_flags(flags, trf_pack_halves(&a[i], rows[i % 2], kZeroing));
    if (__ballot_sync(kAllLanes, flags != TRF_PACKED_SLAB_ALL_FLAGS))
        count = trf_add_records(view, state, at, list, rows, flags, a, count);
    trf_words4 raw;
    trf_words2 index;
    trf_packed_slab_unform(a, &raw, &index);
    *(trf_words4 *)(to + trf_packed_slab_raw_at(0, lane)) = raw;
    *(trf_words2 *)(to + trf_packed_slab_index_at(0, lane)) = index;
    return count;
}

#endif
