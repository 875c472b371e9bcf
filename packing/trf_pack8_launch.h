/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of the kernels that pack FP8 layers (format/PACKED.md). C and CUDA; each returns the launch's cudaError_t
 * as an int, 0 for success, and only enqueues work on `stream`. The kernels write what trf_pack8 writes, byte for byte.
 */
#ifndef TRF_PACK8_LAUNCH_H
#define TRF_PACK8_LAUNCH_H

#include "trf_device_view.h"
#include "trf_pack_launch.h"
#include "trf_packed8_head.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The scales of a layer's weights, in device memory. */
typedef struct trf_pack8_scales {
    const float *table;    /* as trf_scale_table_index numbers it; NULL: all scales are 1 */
    const uint32_t *pairs; /* the constants of the table's scales, in the same order; NULL: they are looked for */
    uint32_t granularity, scale_group_size, scale_cols;
    uint32_t row, col; /* where the packed layer's first weight is in the table's layer */
} trf_pack8_scales;

/* What the kernels find out, in device memory. All its bytes are zero before the first launch. A layer whose last two
 * fields are zero is packed; another one cannot be packed so, and its bytes mean nothing. */
typedef struct trf_pack8_state {
    uint64_t num_records;
    uint32_t has_low; /* whether a second constant is not zero */
    uint32_t reserved;
    uint64_t no_pair;   /* ~(8 * line + pair) of the first 64x128 weights whose scale has no constants */
    uint64_t full_line; /* ~(line << TRF_PACK8_COUNT_BITS | records) of the first line with too many records */
} trf_pack8_state;

enum {
    TRF_PACK8_COUNT_BITS = 17 /* a line has 2^16 weights */
};

/* Writes the constants of all lines. view: of a head that trf_size_packed8 made, in device memory. scales: those of
 * weights that have the same constants are the same. */
int trf_launch_pack8_pairs(const trf_packed8_view *view, const trf_pack8_scales *scales, trf_pack8_state *state_dev,
                           trf_stream stream);

/* Packs a range of a layer's packed bands: their packed tiles, and what their lines have besides constants. rows: the
 * BF16 weights of whole packed bands, as trf_launch_pack has them; those of E4M3 without scales are the numbers of its
 * codes. Ranges may come in any order. */
int trf_launch_pack8(const trf_packed8_view *view, const trf_pack8_scales *scales, const trf_rows_to_pack *rows,
                     trf_pack8_state *state_dev, trf_stream stream);

/* Decodes rows of a layer of E4M3 without scales, whose packed weights are the numbers of its codes. view: as for
 * trf_launch_unpack8. kind: its codec and dtype. lookup: the rows' numbers, as for trf_launch_unpack8_rows; or ids is
 * NULL, for the first `count` rows. to: device, [count][cols] of what `as` gives, without padding. */
int trf_launch_unpack8_values(const trf_packed8_view *view, const trf_device_view *kind, trf_decode_as as,
                              const trf_packed_lookup *lookup, void *to, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
