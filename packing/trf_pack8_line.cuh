/* SPDX-License-Identifier: Apache-2.0 */
/* Packs dense rows of FP8 layers on the device, for any range of packed bands. It does what trf_pack8.c does, byte for
 * byte. There are two kernels, one after the other, and one for the way back to codes. Their bodies are here, and also
 * run on the CPU in emulated warps.
 *
 *   trf_find_pairs    A thread takes 64x128 weights, finds the constants of their scale, and writes them to the line. A
 *                     scale in a hundred takes a search, of up to 2,304 trials; none does that has its constants.
 *   trf_pack8_lines   A block takes a line, and each of its 16 warps two neighbouring packed tiles, as trf_pack_lines
 *                     has it. A weight's code is the nearest one to weight / scale. If the constants do not make the
 *                     weight of it, the weight becomes a record in shared memory. Then one warp writes the line.
 *
 * The place of a record in its line is counted, and no race decides it (trf_pack_line.cuh).
 *
 * Shared memory: 3,168 bytes. Registers: 64, none spilled (sm_90a). Memory is the limit to aim at: a weight is read in
 * two bytes and written in one. */
#ifndef TRF_PACK8_LINE_CUH
#define TRF_PACK8_LINE_CUH

#include "trf_decoded_bits.h"
#include "trf_pack8_launch.h"
#include "trf_pack_line.cuh"
#include "trf_packed8_reader.h"
#include "trf_row_reader.h"

static constexpr uint32_t kPairThreads = 128;

struct trf_pack8_args {
    trf_packed8_view view;
    trf_pack8_scales scales[2]; /* the second ones in turns alone */
    trf_dense_rows dense;
    trf_pack8_state *state;
    uint64_t first_line, num_lines; /* the lines of the range */
};

static inline bool trf_pack8_in_turns(const trf_packed8_view &view) { return view.flags & TRF_PACKED8_IN_TURNS; }

/* Makes the arguments for the range that the rows are. */
static inline trf_pack8_args trf_pack8_args_of(const trf_packed8_view *view, const trf_pack8_scales *scales,
                                               const trf_rows_to_pack *rows, trf_pack8_state *state) {
    const uint64_t band = rows->first_row / TRF_PACKED_TILE_ROWS, lines_per_band = view->packed.lines_per_band;
    const uint64_t bands = ((uint64_t)rows->num_rows + TRF_PACKED_TILE_ROWS - 1) / TRF_PACKED_TILE_ROWS;
    return {*view,
            {scales[0], scales[trf_pack8_in_turns(*view) ? 1 : 0]},
            trf_dense_rows_of(rows->weights, rows->stride, rows->first_row, rows->num_rows, rows->cols, 2),
            state,
            band * lines_per_band,
            bands * lines_per_band};
}

/* Makes those of all lines, for their constants. */
static inline trf_pack8_args trf_pairs_args_of(const trf_packed8_view *view, const trf_pack8_scales *scales,
                                               trf_pack8_state *state) {
    return {*view, {scales[0], scales[trf_pack8_in_turns(*view) ? 1 : 0]},    {}, state,
            0,     (uint64_t)view->packed.bands * view->packed.lines_per_band};
}

struct trf_pack8_shared {
    uint32_t counts[TRF_PACKED_LINE_TILES];                           /* records of each tile */
    uint32_t records[TRF_PACKED_LINE_TILES][TRF_PACKED8_MAX_RECORDS]; /* [tile][number]; as many as there is room for */
    uint32_t line[TRF_PACKED8_MAX_RECORDS + 1];
};

/* Where the scale of a packed tile's weights is in the table; row and col: the tile's first ones. */
TRF_HD uint64_t trf_pack8_scale_index(const trf_pack8_scales *scales, uint32_t row, uint32_t col) {
    return trf_scale_table_index(scales->granularity, scales->scale_group_size, scales->scale_cols,
                                 (uint64_t)scales->row + row, (uint64_t)scales->col + col);
}

TRF_HD float trf_pack8_scale_of(const trf_pack8_scales *scales, uint32_t row, uint32_t col) {
    return scales->table ? scales->table[trf_pack8_scale_index(scales, row, col)] : 1.0f;
}

/* Gives the constants of the scale. @return whether it has some. */
TRF_HD int trf_pack8_pair_of(const trf_pack8_scales *scales, uint32_t row, uint32_t col, uint32_t *pair) {
    if (!scales->pairs)
        return trf_packed8_find_pair(trf_pack8_scale_of(scales, row, col), pair);
    *pair = scales->pairs[trf_pack8_scale_index(scales, row, col)];
    return 1;
}

/* The rows of a packed band that a table of scales has: in turns half of them are gate's, and half up's. */
static __device__ __forceinline__ uint32_t trf_pack8_band_rows(const trf_pack8_args &args) {
    return args.view.flags & TRF_PACKED8_IN_TURNS ? (uint32_t)TRF_PACKED_TILE_ROWS / 2 : (uint32_t)TRF_PACKED_TILE_ROWS;
}

/* ---- constants ---- */

/* Gives the constants of the scale of packed tile `tile` of a band, which are the pair `number` of all lines, and notes
 * what they say of the layer. turn: in turns 0 for the rows of gate, 1 for those of up; else 0. */
static __device__ __forceinline__ uint32_t trf_take_pair(const trf_pack8_args &args, uint32_t band, uint32_t tile,
                                                         uint32_t turn, uint64_t number) {
    uint32_t pair;
    if (!trf_pack8_pair_of(&args.scales[turn], trf_pack8_band_rows(args) * band, TRF_PACKED_TILE_COLS * tile, &pair))
        atomicMax((unsigned long long *)&args.state->no_pair, ~(unsigned long long)number);
    if (pair >> 16 != 0)
        args.state->has_low = 1; /* whoever writes it, it is 1 */
    return pair;
}

static __device__ __forceinline__ void trf_find_pairs(const trf_pack8_args &args) {
    const trf_packed_view &view = args.view.packed;
    const bool in_turns = args.view.flags & TRF_PACKED8_IN_TURNS;
    const uint64_t pairs = args.num_lines * TRF_PACKED8_PAIRS, threads = (uint64_t)gridDim.x * kPairThreads;
    for (uint64_t i = (uint64_t)blockIdx.x * kPairThreads + threadIdx.x; i < pairs; i += threads) {
        const trf_line_place at = trf_line_place_of(view, i / TRF_PACKED8_PAIRS);
        const uint32_t number = (uint32_t)(i % TRF_PACKED8_PAIRS), tile = number * TRF_PACKED8_PAIR_TILES;
        uint32_t *const line = trf_line_to_write(view, at.line);
        for (uint32_t turn = 0; turn < (in_turns ? 2 : 1); turn++)
            line[(turn ? TRF_PACKED8_SECOND_PAIRS_WORD : TRF_PACKED8_PAIRS_WORD) + number] =
                tile < at.tiles ? trf_take_pair(args, at.band, at.first_tile + tile, turn, i) : 0;
    }
}

/* ---- lines and packed tiles ---- */

/* The constants of a scale, and what weights are multiplied by to find their codes. */
struct trf_pack8_constants {
    uint32_t high, low, inverse;
    __device__ __forceinline__ explicit trf_pack8_constants(uint32_t pair)
        : high(trf_packed8_high(pair)), low(trf_packed8_low(pair)), inverse(trf_packed8_inverse(pair)) {}

    /* Bits of a register's two weights that the constants do not make of their codes. */
    __device__ __forceinline__ uint32_t misfit(uint32_t weights, uint32_t codes) const {
        return trf_packed8_fma(codes, high, trf_packed8_mul(codes, low)) ^ weights;
    }
};

/* Makes spread codes of a lane's weights; 0 of those that are no code times the scale. constants: of registers 0, 2, 4,
 * 6, and of the others. @return bit i: half i % 2 of register i / 2 is such a weight. */
static __device__ __forceinline__ uint32_t trf_find_codes(const uint32_t weights[TRF_PACKED_LANE_REGISTERS],
                                                          const trf_pack8_constants constants[2],
                                                          uint32_t codes[TRF_PACKED_LANE_REGISTERS]) {
    uint32_t bits = 0, misfits = 0;
#pragma unroll
    for (uint32_t i = 0; i < TRF_PACKED_LANE_REGISTERS; i++) {
        codes[i] = trf_packed8_nearest_codes(weights[i], constants[i % 2].inverse);
        bits |= constants[i % 2].misfit(weights[i], codes[i]);
    }
    if (bits == 0) /* as it is nearly always */
        return 0;
#pragma unroll
    for (uint32_t i = 0; i < TRF_PACKED_LANE_REGISTERS; i++)
#pragma unroll
        for (uint32_t half = 0; half < 2; half++)
            if (constants[i % 2].misfit(weights[i], codes[i]) >> 16 * half & 0xFFFF) {
                codes[i] &= 0xFFFF0000u >> 16 * half;
                misfits |= 1u << (2 * i + half);
            }
    return misfits;
}

/* Adds the records of a packed slab to those of its tile. weights: the lane's registers; found: bit i says whether half
 * i % 2 of register i / 2 becomes a record. @return how many the tile has now. */
static __device__ __forceinline__ uint32_t trf_add_records8(const uint32_t weights[8], uint32_t found,
                                                            uint32_t lane_record, uint32_t *records, uint32_t count) {
    const uint32_t lane = trf_packed_record_lane(lane_record);
    const trf_record_ranks ranks = trf_rank_records(found, count, lane);
    for (uint32_t left = found; left; left &= left - 1) {
        const uint32_t bit = (uint32_t)__ffs((int)left) - 1, rank = ranks.of(bit);
        if (rank < TRF_PACKED8_MAX_RECORDS)
            records[rank] = trf_packed_slab_record(lane_record, bit, trf_packed_slab_weight(weights, bit));
    }
    return ranks.end;
}

/* Packs a packed slab. constants: of its rows 0 to 7, and of its rows 8 to 15, whose weights are in odd registers.
 * octets: the lane's octets of its two rows, before the quartet exchanges words. to: the packed slab's first byte.
 * @return how many records the tile has now. */
static __device__ __forceinline__ uint32_t trf_pack8_slab(const trf_packed_view &view, const trf_packed_lane_place &at,
                                                          const trf_pack8_constants constants[2], trf_words4 octets[2],
                                                          uint32_t *records, uint32_t count, uint8_t *to) {
    const uint32_t lane = trf_packed_record_lane(at.lane_record);
    uint32_t weights[TRF_PACKED_LANE_REGISTERS], codes[TRF_PACKED_LANE_REGISTERS];
    trf_quartet_transpose(octets[0].word, lane);
    trf_quartet_transpose(octets[1].word, lane);
    trf_packed_slab_from_rows(weights, octets);
    const uint32_t misfits = trf_find_codes(weights, constants, codes);
    if (__ballot_sync(kAllLanes, misfits != 0))
        count = trf_add_records8(weights, misfits & trf_packed_slab_there(at.row, at.col, view.rows, view.cols),
                                 at.lane_record, records, count);
    trf_words4 words;
    trf_unspread_packed8(codes, words.word);
    trf_unspread_packed8(codes + 4, words.word + 2);
    *(trf_words4 *)(to + trf_packed8_codes_offset(0, lane, 0)) = words;
    return count;
}

/* Packs the warp's tiles of a line. */
template <bool kInTurns>
static __device__ __forceinline__ void trf_pack8_tiles(const trf_pack8_args &args, trf_pack8_shared &shared,
                                                       const trf_line_place &at, uint32_t warp, uint32_t lane) {
    const trf_packed_view &view = args.view.packed;
    const uint32_t tile = kTilesEach * warp, row = TRF_PACKED_TILE_ROWS * at.band + lane / 4;
    const uint32_t *const line = trf_line_to_write(view, at.line); /* its constants are there already */
    const trf_pack8_constants constants[2] = {
        trf_pack8_constants(line[trf_packed8_pair_word(tile)]),
        trf_pack8_constants(line[kInTurns ? trf_packed8_second_pair_word(tile) : trf_packed8_pair_word(tile)])};
    uint32_t counts[kTilesEach] = {};
#pragma unroll 1
    for (uint32_t slab = 0; slab < TRF_PACKED_SLABS; slab++) {
        trf_words4 octets[kTilesEach][2];
#pragma unroll
        for (uint32_t t = 0; t < kTilesEach; t++)
            trf_load_slab_octets(args.dense, row + TRF_PACKED_SLAB_ROWS * slab, at.first_tile + tile + t, lane,
                                 octets[t]);
#pragma unroll
        for (uint32_t t = 0; t < kTilesEach; t++)
            if (tile + t < at.tiles) {
                const trf_packed_lane_place place =
                    trf_packed_lane_place_of(at.band, at.first_tile, tile + t, slab, lane, at.line);
                uint8_t *const to = const_cast<uint8_t *>(
                    trf_packed8_tile(&args.view, at.band, at.first_tile + tile + t) + TRF_PACKED8_SLAB_BYTES * slab);
                counts[t] = trf_pack8_slab(view, place, constants, octets[t], shared.records[tile + t], counts[t], to);
            }
    }
#pragma unroll
    for (uint32_t t = 0; t < kTilesEach; t++)
        if (lane == 0)
            shared.counts[tile + t] = counts[t];
}

/* Called by one warp: writes the line except for its constants. */
static __device__ __forceinline__ void trf_finish_line8(const trf_pack8_args &args, trf_pack8_shared &shared,
                                                        const trf_line_place &at, uint32_t lane) {
    /* Each lane has a tile. */
    const uint32_t count = shared.counts[lane], scan = trf_warp_scan(count, lane);
    const uint32_t records = __shfl_sync(kAllLanes, scan, TRF_LANES - 1);
    const uint32_t mask = __ballot_sync(kAllLanes, count != 0), max_records = trf_packed8_max_records(args.view.flags);
    if (lane < TRF_PACKED8_MAX_RECORDS)
        shared.line[lane] = 0;
    __syncwarp();
    if (records <= max_records)
        for (uint32_t i = 0; i < count; i++)
            shared.line[scan - count + i] = shared.records[lane][i];
    __syncwarp();
    if (lane < max_records || lane == TRF_PACKED8_MASK_WORD) /* beside constants */
        trf_line_to_write(args.view.packed, at.line)[lane] = lane == TRF_PACKED8_MASK_WORD ? mask : shared.line[lane];
    if (lane == 0 && records) {
        atomicAdd((unsigned long long *)&args.state->num_records, (unsigned long long)records);
        if (records > max_records)
            atomicMax((unsigned long long *)&args.state->full_line,
                      ~(unsigned long long)(at.line << TRF_PACK8_COUNT_BITS | records));
    }
}

template <bool kInTurns>
static __device__ __forceinline__ void trf_pack8_lines(const trf_pack8_args &args, trf_pack8_shared &shared) {
    const uint32_t warp = threadIdx.x / TRF_LANES, lane = threadIdx.x % TRF_LANES;
    for (uint64_t i = blockIdx.x; i < args.num_lines; i += gridDim.x) {
        const trf_line_place at = trf_line_place_of(args.view.packed, args.first_line + i);
        trf_pack8_tiles<kInTurns>(args, shared, at, warp, lane);
        __syncthreads();
        if (warp == 0)
            trf_finish_line8(args, shared, at, lane);
        __syncthreads(); /* before the next line's counts are written */
    }
}

/* ---- the way back to codes ---- */

struct trf_unpack8_values_args {
    trf_packed8_view view;
    trf_device_view kind;     /* what trf_decoded_bits needs: codec and dtype */
    trf_packed_lookup lookup; /* ids: NULL for rows 0 to count - 1 */
    trf_decode_as as;
    void *to;
};

/* Which of rows, packed tiles, steps and lanes of a row a thread takes: 4 weights. */
static constexpr uint32_t kValueThreads = 256, kLanesOfRow = 4;

static __device__ __forceinline__ void trf_unpack8_row_values(const trf_unpack8_values_args &args, uint64_t index,
                                                              uint32_t in_row) {
    const trf_packed_view &view = args.view.packed;
    const uint32_t bytes = trf_decoded_weight_bytes(&args.kind, args.as);
    const int64_t id = args.lookup.ids ? trf_row_id(args.lookup.ids, args.lookup.id_bytes, index) : (int64_t)index;
    const int is_there = id >= 0 && id < (int64_t)view.rows;
    const trf_packed_place place = trf_packed_place_of(is_there ? (uint32_t)id : 0, 0);
    const uint32_t lane = place.lane + in_row % kLanesOfRow, step = in_row / kLanesOfRow % TRF_PACKED_STEPS,
                   tile = in_row / kLanesOfRow / TRF_PACKED_STEPS;
    uint32_t a[4];
    trf_read_packed8_step(&args.view, place.band, tile, place.slab, step, lane, a);
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t reg = i / 2 * 2,
                       col = TRF_PACKED_TILE_COLS * tile + trf_packed_col_in_tile(step, lane, reg, i % 2);
        const uint32_t pair = place.reg ? a[reg + 1] : a[reg], weight = pair >> 16 * (i % 2) & 0xFFFF;
        const uint32_t bits = is_there ? trf_decoded_bits(&args.kind, args.as, trf_packed8_code_of_number(weight), 0, 0)
                                       : trf_decoded_corrupt_bits(&args.kind, args.as);
        if (col < view.cols)
            trf_store_decoded_bits(args.to, bytes, index * view.cols + col, bits);
    }
}

static __device__ __forceinline__ void trf_unpack8_values(const trf_unpack8_values_args &args) {
    const uint64_t each = (uint64_t)args.view.packed.tiles_per_band * TRF_PACKED_STEPS * kLanesOfRow,
                   all = each * args.lookup.count;
    for (uint64_t i = (uint64_t)blockIdx.x * kValueThreads + threadIdx.x; i < all;
         i += (uint64_t)gridDim.x * kValueThreads)
        trf_unpack8_row_values(args, i / each, (uint32_t)(i % each));
}

#endif
