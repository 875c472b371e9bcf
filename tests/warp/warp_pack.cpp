/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_emulation.h"

#include "trf_pack8_line.cuh"
#include "trf_unpack_line.cuh"
#include "trf_unpack_rows.cuh"
#include "trf_window_histogram.cuh"
#include "warp_pack.h"

/* ---- kernels around the bodies ---- */

template <class T> static T &shared_as() { return *(T *)warp_shared_memory(); }

template <bool kZeroing> static void pack_lines(void *args) {
    trf_pack_lines<kZeroing>(*(const trf_pack_args *)args, shared_as<trf_pack_shared>());
}
static void number_stored_tiles(void *args) {
    trf_number_stored_tiles(*(const trf_pack_args *)args, shared_as<trf_numbering_shared>());
}
static void make_stored_tiles(void *args) { trf_make_stored_tiles(*(const trf_pack_args *)args); }
static void count_exponents(void *args) {
    trf_count_exponents(*(const trf_histogram_args *)args, shared_as<trf_histogram_shared>());
}
static void find_pairs(void *args) { trf_find_pairs(*(const trf_pack8_args *)args); }
template <bool kInTurns> static void pack8_lines(void *args) {
    trf_pack8_lines<kInTurns>(*(const trf_pack8_args *)args, shared_as<trf_pack8_shared>());
}
static void unpack8_values(void *args) { trf_unpack8_values(*(const trf_unpack8_values_args *)args); }
template <class Weights> static void unpack_lines(void *args) {
    trf_unpack_lines<Weights>(*(const trf_unpack_args *)args);
}
template <class Weights, bool kHasOctets> static void unpack_ids(void *args) {
    trf_unpack_rows_by_id<Weights, kHasOctets>(*(const trf_unpack_rows_args *)args);
}

/* Runs as many blocks as the work needs, but not more than the grid has. shared: the size of its shared memory. */
static void run(void (*kernel)(void *), void *args, uint32_t threads, size_t shared, uint64_t wanted, warp_grid grid) {
    const uint32_t bytes = (uint32_t)(shared + 15) / 16 * 16; /* the address sanitizer sees accesses beyond that */
    warp_run_grid({threads / TRF_LANES, bytes, grid.order}, (uint32_t)min(wanted, (uint64_t)grid.blocks), kernel, args);
}

/* ---- as the launchers have it ---- */

void warp_window_histogram(const trf_rows_to_pack *rows, const int8_t *row_offsets, trf_window_histogram *histogram,
                           warp_grid grid) {
    trf_histogram_args args = trf_histogram_args_of(rows, row_offsets, histogram);
    run(count_exponents, &args, kHistogramThreads, sizeof(trf_histogram_shared), grid.blocks, grid);
}

void warp_pack(const trf_packed_view *view, const trf_rows_to_pack *rows, trf_pack_state *state, warp_grid grid) {
    trf_pack_args args = trf_pack_args_of(view, rows, state);
    run(view->zeroing ? pack_lines<true> : pack_lines<false>, &args, kPackThreads, sizeof(trf_pack_shared),
        args.num_lines, grid);
    run(number_stored_tiles, &args, kNumberingThreads, sizeof(trf_numbering_shared), 1, grid);
    run(make_stored_tiles, &args, kStoredTileThreads, 0, args.num_lines, grid);
}

template <class Weights>
static void run_lines(const trf_packed_view *view, uint32_t first_row, uint32_t num_rows,
                      const trf_unpack_target *target, warp_grid grid) {
    trf_unpack_args args = trf_unpack_args_of(view, first_row, num_rows, target);
    run(unpack_lines<Weights>, &args, kUnpackThreads, 0, args.num_lines, grid);
}

template <class Weights>
static void run_ids(const trf_packed_view *view, const trf_packed_lookup *lookup, const trf_unpack_target *target,
                    warp_grid grid) {
    trf_unpack_rows_args args = trf_unpack_rows_args_of(view, lookup, target);
    gridDim.y = min(grid.blocks, lookup->count);
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
        warp_run_grid({kByIdWarps, 0, grid.order}, args.row_blocks,
                      args.has_octets ? unpack_ids<Weights, true> : unpack_ids<Weights, false>, &args);
    gridDim.y = 1;
    blockIdx.y = 0;
}

void warp_unpack(const trf_packed_view *view, uint32_t first_row, uint32_t num_rows, const trf_unpack_target *target,
                 warp_grid grid) {
    (view->zeroing ? run_lines<trf_unpack_bf16<true>> : run_lines<trf_unpack_bf16<false>>)(view, first_row, num_rows,
                                                                                           target, grid);
}

void warp_unpack_rows(const trf_packed_view *view, const trf_packed_lookup *lookup, const trf_unpack_target *target,
                      warp_grid grid) {
    (view->zeroing ? run_ids<trf_unpack_row_bf16<true>> : run_ids<trf_unpack_row_bf16<false>>)(view, lookup, target,
                                                                                               grid);
}

void warp_unpack8(const trf_packed8_view *view, uint32_t first_row, uint32_t num_rows, const trf_unpack_target *target,
                  warp_grid grid) {
    (trf_pack8_in_turns(*view) ? run_lines<trf_unpack_fp8<true>>
                               : run_lines<trf_unpack_fp8<false>>)(&view->packed, first_row, num_rows, target, grid);
}

void warp_unpack8_rows(const trf_packed8_view *view, const trf_packed_lookup *lookup, const trf_unpack_target *target,
                       warp_grid grid) {
    (trf_pack8_in_turns(*view) ? run_ids<trf_unpack_row_fp8<true>>
                               : run_ids<trf_unpack_row_fp8<false>>)(&view->packed, lookup, target, grid);
}

void warp_pack8_pairs(const trf_packed8_view *view, const trf_pack8_scales *scales, trf_pack8_state *state,
                      warp_grid grid) {
    trf_pack8_args args = trf_pairs_args_of(view, scales, state);
    run(find_pairs, &args, kPairThreads, 0, grid.blocks, grid);
}

void warp_pack8(const trf_packed8_view *view, const trf_pack8_scales *scales, const trf_rows_to_pack *rows,
                trf_pack8_state *state, warp_grid grid) {
    trf_pack8_args args = trf_pack8_args_of(view, scales, rows, state);
    run(trf_pack8_in_turns(*view) ? pack8_lines<true> : pack8_lines<false>, &args, kPackThreads,
        sizeof(trf_pack8_shared), args.num_lines, grid);
}

void warp_unpack8_values(const trf_packed8_view *view, const trf_device_view *kind, trf_decode_as as,
                         const trf_packed_lookup *lookup, void *to, warp_grid grid) {
    trf_unpack8_values_args args = {*view, *kind, *lookup, as, to};
    run(unpack8_values, &args, kValueThreads, 0, grid.blocks, grid);
}
