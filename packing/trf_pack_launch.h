/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of the kernels that pack and unpack BF16 layers (format/PACKED.md). C and CUDA; each returns the launch's
 * cudaError_t as an int, 0 for success, and only enqueues work on `stream`. The kernels write what trf_pack and
 * trf_unpack write, byte for byte. */
#ifndef TRF_PACK_LAUNCH_H
#define TRF_PACK_LAUNCH_H

#include "trf_packed_head.h"

#include "transfuse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- choosing the window ---- */

/* What trf_choose_packed_window and trf_packed_is_zeroing need. All bytes are zero before the first launch adds to
 * it. */
typedef struct trf_window_histogram {
    uint64_t exponents[256]; /* counts of weights by exponent field, without their row's offset, if it is 1 to 254 */
    uint64_t zeros;
} trf_window_histogram;

/* What is packed: dense rows of a layer in device memory. Any alignment and stride will do; it takes less time if all
 * rows are aligned to 16 bytes. */
typedef struct trf_rows_to_pack {
    const uint16_t *weights; /* BF16, from first_row's first column on */
    uint64_t stride;         /* weights from one row to the next */
    uint32_t first_row, num_rows;
    uint32_t cols;
} trf_rows_to_pack;

/* Adds the rows' weights to *histogram_dev. row_offsets: device, what is subtracted from the exponents of each of the
 * layer's rows, from its first row on; or NULL. */
int trf_launch_window_histogram(const trf_rows_to_pack *rows, const int8_t *row_offsets,
                                trf_window_histogram *histogram_dev, trf_stream stream);

/* ---- packing ---- */

/* What is passed on from one range of a layer's bands to the next, in device memory. All its bytes are zero before the
 * first range; it is read back after the last one. */
typedef struct trf_pack_state {
    uint64_t num_records;
    uint64_t num_stored; /* tiles that have to be stored, including those that there is no room for */
    /* 0, or the place of the first weight that is no BF16 in the window's scale (trf_pack_inexact): all ones minus that
     * place, which is the number of the weight's exception line followed by the upper 16 bits that its record has. */
    uint64_t inexact;
} trf_pack_state;

/* Finds the first weight that is no BF16 in the window's scale, in a state that was read back. It is the one that
 * trf_pack_head sees first; the layer cannot be packed then. @return 0 if there is none. lines_per_band: the view's. */
TRF_HD int trf_pack_inexact(const trf_pack_state *state, uint32_t lines_per_band, uint32_t *row, uint32_t *col) {
    if (state->inexact == 0)
        return 0;
    const uint64_t in_layer = UINT64_MAX - state->inexact, line = in_layer >> 16;
    const uint32_t place = (uint32_t)in_layer << 16, slab = trf_packed_record_slab(place); /* as a record has it */
    const uint32_t lane = trf_packed_record_lane(place), reg = trf_packed_record_reg(place);
    *row = (uint32_t)(line / lines_per_band) * TRF_PACKED_TILE_ROWS + trf_packed_row_in_tile(slab, lane, reg);
    *col = (uint32_t)(line % lines_per_band) * TRF_PACKED_LINE_COLS +
           trf_packed_record_tile(place) * TRF_PACKED_TILE_COLS +
           trf_packed_col_in_tile(trf_packed_record_step(place), lane, reg, trf_packed_record_half(place));
    return 1;
}

/* Packs a range of a layer's packed bands: their exception lines, packed tiles and stored tiles. This takes three
 * kernels.
 * view: the layer's, in device memory: trf_packed_view_of a head that trf_size_packed made for as many stored tiles as
 *   there is room for, with base and flags set. Its lines, tiles and stored tiles are written; its row offsets, if it
 *   has any, must be there already.
 * rows: whole packed bands; first_row is a multiple of 64, and so is num_rows unless the layer ends there.
 * state_dev: ranges follow each other from the layer's first band on, in the order of the stream. After the last one
 *   num_stored says whether there was room and, with trf_size_packed and trf_packed_pays, whether to keep the layer.
 *   Nothing is written beyond the room. */
int trf_launch_pack(const trf_packed_view *view, const trf_rows_to_pack *rows, trf_pack_state *state_dev,
                    trf_stream stream);

/* ---- unpacking ---- */

/* The rows that are written, in device memory of any alignment and stride. */
typedef struct trf_unpack_target {
    void *weights;         /* the first row to be written */
    uint64_t stride;       /* weights from one row to the next */
    uint32_t weight_bytes; /* 2: BF16, bit for bit; 4: the same values as F32 */
} trf_unpack_target;

/* The next functions take trf_packed_view_of a checked head, in device memory, and stay in bounds whatever the layer
 * holds. */

/* Unpacks rows first_row to first_row + num_rows - 1, which the layer must have. */
int trf_launch_unpack(const trf_packed_view *view, uint32_t first_row, uint32_t num_rows,
                      const trf_unpack_target *target, trf_stream stream);

/* Rows that are looked up by number. An id that the layer does not have gives a row of NaNs. */
typedef struct trf_packed_lookup {
    const void *ids; /* device, `count` signed integers of id_bytes, 4 or 8 */
    uint32_t id_bytes, count;
} trf_packed_lookup;

int trf_launch_unpack_rows(const trf_packed_view *view, const trf_packed_lookup *lookup,
                           const trf_unpack_target *target, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
