/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of the kernels that pack and unpack BF16 layers: format/PACKED.md. C and CUDA; each returns the launch's
 * cudaError_t as an int, 0 for success, and only enqueues work on `stream`. What is written is what trf_pack and
 * trf_unpack write, byte for byte. */
#ifndef TRF_PACK_LAUNCH_H
#define TRF_PACK_LAUNCH_H

#include "trf_packed_head.h"

#include "transfuse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- choosing the window ---- */

/* What trf_choose_packed_window and trf_packed_is_zeroing ask for. Its bytes are all zero before the
 * first launch adds to it. */
typedef struct trf_window_histogram {
    uint64_t exponents[256]; /* of weights with an exponent field of 1 to 254, once their row's offset is taken out */
    uint64_t zeros;
} trf_window_histogram;

/* What is packed: dense rows of a layer, device memory. Any alignment and stride will do; rows that are all aligned to
 * 16 bytes take less time. */
typedef struct trf_rows_to_pack {
    const uint16_t *weights; /* BF16, of first_row's first column */
    uint64_t stride;         /* weights from one row to the next */
    uint32_t first_row, num_rows;
    uint32_t cols;
} trf_rows_to_pack;

/* Adds the rows' weights to *histogram_dev. row_offsets: device, of the layer's rows from its first on: what is taken
 * out of the exponents of each; or NULL. */
int trf_launch_window_histogram(const trf_rows_to_pack *rows, const int8_t *row_offsets,
                                trf_window_histogram *histogram_dev, trf_stream stream);

/* ---- packing ---- */

/* What goes from one range of a layer's bands to the next, in device memory. All its bytes are zero before the
 * first range; it is read back behind the last one. */
typedef struct trf_pack_state {
    uint64_t num_records;
    uint64_t num_stored; /* tiles that are to be stored, also those that there is no room for */
    /* 0, or where the first weight is that is no BF16 in the window's scale (trf_pack_inexact): all ones less that
     * weight's place, which is the number of its exception line and then the upper 16 bits that its record has. */
    uint64_t inexact;
} trf_pack_state;

/* Finds in a state that was read back the first weight that is no BF16 in the window's scale, first as trf_pack_head
 * sees it; the layer cannot be packed then. @return 0 if there is none. lines_per_band: the view's. */
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

/* Packs a range of a layer's packed bands: their exception lines, packed tiles and stored tiles. Three kernels.
 * view: the layer's, in device memory: trf_packed_view_of a head that trf_size_packed made for as many stored tiles as
 *   there is room for, with base and flags set. Its lines, tiles and stored tiles are written; its row offsets, if
 *   there are some, are there already.
 * rows: whole packed bands; first_row is a multiple of 64, and so is num_rows unless the layer ends there.
 * state_dev: ranges follow each other from the layer's first band on, in the order of the stream. Behind the last one
 *   num_stored says whether there was room, and with trf_size_packed and trf_packed_pays whether to keep the layer;
 *   nothing is written beyond the room. */
int trf_launch_pack(const trf_packed_view *view, const trf_rows_to_pack *rows, trf_pack_state *state_dev,
                    trf_stream stream);

/* ---- unpacking ---- */

/* Rows that are written, device memory of any alignment and stride. */
typedef struct trf_unpack_target {
    void *weights;         /* of the first row to be written */
    uint64_t stride;       /* weights from one row to the next */
    uint32_t weight_bytes; /* 2: BF16, bit for bit; 4: the same values as F32 */
} trf_unpack_target;

/* All takes what trf_packed_view_of a checked head gives, in device memory, and stay in bounds whatever is there. */

/* Rows first_row to first_row + num_rows - 1, which the layer has. */
int trf_launch_unpack(const trf_packed_view *view, uint32_t first_row, uint32_t num_rows,
                      const trf_unpack_target *target, trf_stream stream);

/* Rows by number. An id that the layer does not have gives a row of NaNs. */
typedef struct trf_packed_lookup {
    const void *ids; /* `count` signed integers of id_bytes, 4 or 8; device */
    uint32_t id_bytes, count;
} trf_packed_lookup;

int trf_launch_unpack_rows(const trf_packed_view *view, const trf_packed_lookup *lookup,
                           const trf_unpack_target *target, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
