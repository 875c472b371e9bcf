/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher of the kernels that pack a coded layer straight from its slabs, without dense rows in between. C and
 * CUDA; it returns the launches' cudaError_t as an int, 0 for success, and only enqueues work on `stream`. The result
 * is what trf_launch_pack makes of the layer's decoded rows. */
#ifndef TRF_PACK_CODED_LAUNCH_H
#define TRF_PACK_CODED_LAUNCH_H

#include "trf_device_view.h"
#include "trf_layer_traits.h"
#include "trf_pack_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether these kernels take a layer, or some of its rows of tiles as if they were one: it must have the bf16 codec,
 * lie completely in regular slabs and whole packed bands, and have no row offsets and the default p. */
int trf_can_pack_coded(const trf_device_view *view, const trf_layer_traits *traits);

/* Returns how much device memory a launch for so many rows needs for itself, 256-byte aligned. */
uint64_t trf_pack_coded_scratch_bytes(uint64_t rows, uint64_t cols);

/* The result of a launch. If lines are left, the launch's rows are not packed, and must be packed by trf_launch_pack,
 * which alone makes stored tiles. */
typedef struct trf_pack_coded_counts {
    uint64_t num_records; /* records of the lines that are not left */
    uint64_t num_left;    /* exception lines that were left, since all tiles or half a tile had too many records */
} trf_pack_coded_counts;

/* What a launch uses besides the two layers, all in device memory. */
typedef struct trf_pack_coded_memory {
    void *scratch;                 /* trf_pack_coded_scratch_bytes bytes; needs no preparation */
    trf_pack_coded_counts *counts; /* must be zeros before the launch */
    /* The state is trf_launch_pack's, whose launches and these may take turns for ranges of a layer: num_stored is read
     * and inexact is written; what is in counts is not added to it. */
    trf_pack_state *state;
} trf_pack_coded_memory;

/* Packs all rows of a coded layer that trf_can_pack_coded takes, to the packed layer's rows from first_row on:
 * exception lines and packed tiles. packed: the target, laid out as for trf_launch_pack, without row offsets; stored
 * tiles are not written. first_row: a multiple of 64. */
int trf_launch_pack_coded(const trf_device_view *view, const trf_layer_traits *traits, const trf_packed_view *packed,
                          uint32_t first_row, const trf_pack_coded_memory *memory, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
