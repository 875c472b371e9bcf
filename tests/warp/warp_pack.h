/* SPDX-License-Identifier: Apache-2.0 */
/* The launchers of trf_pack_launch.h, trf_pack8_launch.h and trf_unpack8_launch.h on the CPU: emulated blocks
 * (warp_emulation.h) run the kernels' bodies. All memory is host memory. `order` selects the order of threads and
 * blocks and may be any number; `blocks` is the most that a grid has. */
#ifndef WARP_PACK_H
#define WARP_PACK_H

#include "trf_pack8_launch.h"
#include "trf_unpack8_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct warp_grid {
    uint32_t blocks, order;
} warp_grid;

void warp_window_histogram(const trf_rows_to_pack *rows, const int8_t *row_offsets, trf_window_histogram *histogram,
                           warp_grid grid);
void warp_pack(const trf_packed_view *view, const trf_rows_to_pack *rows, trf_pack_state *state, warp_grid grid);
void warp_unpack(const trf_packed_view *view, uint32_t first_row, uint32_t num_rows, const trf_unpack_target *target,
                 warp_grid grid);
void warp_unpack_rows(const trf_packed_view *view, const trf_packed_lookup *lookup, const trf_unpack_target *target,
                      warp_grid grid);
void warp_unpack8(const trf_packed8_view *view, uint32_t first_row, uint32_t num_rows, const trf_unpack_target *target,
                  warp_grid grid);
void warp_unpack8_rows(const trf_packed8_view *view, const trf_packed_lookup *lookup, const trf_unpack_target *target,
                       warp_grid grid);

void warp_pack8_pairs(const trf_packed8_view *view, const trf_pack8_scales *scales, trf_pack8_state *state,
                      warp_grid grid);
void warp_pack8(const trf_packed8_view *view, const trf_pack8_scales *scales, const trf_rows_to_pack *rows,
                trf_pack8_state *state, warp_grid grid);
void warp_unpack8_values(const trf_packed8_view *view, const trf_device_view *kind, trf_decode_as as,
                         const trf_packed_lookup *lookup, void *to, warp_grid grid);

#ifdef __cplusplus
}
#endif

#endif
