/* SPDX-License-Identifier: Apache-2.0 */
/* Launcher of the kernels that pack a coded layer straight from its slabs, without dense rows in between. C and CUDA;
 * it returns the launches' cudaError_t as an int, 0 for success, and only enqueues work on `stream`. What is written is
 * what trf_launch_pack writes of the layer's decoded rows. */
#ifndef TRF_PACK_CODED_LAUNCH_H
#define TRF_PACK_CODED_LAUNCH_H

#include "trf_device_view.h"
#include "trf_layer_traits.h"
#include "trf_pack_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether a layer of the bf16 codec, or some of its rows of tiles as one, is what these kernels take: all of it in
 * regular slabs and whole packed bands, without row offsets, and with the default p. */
int trf_can_pack_coded(const trf_device_view *view, const trf_layer_traits *traits);

/* Device memory that a launch for so many rows needs for itself, 256-byte aligned. */
uint64_t trf_pack_coded_scratch_bytes(uint64_t rows, uint64_t cols);

/* What a launch has come to. If there are lines left, its rows are not packed, and have to be so by trf_launch_pack,
 * which alone makes stored tiles. */
typedef struct trf_pack_coded_counts {
    uint64_t num_records; /* of the lines that are not left */
    uint64_t num_left;    /* exception lines with too many records, of all tiles or of half a tile */
} trf_pack_coded_counts;

/* What a launch has beside the two layers, all in device memory. */
typedef struct trf_pack_coded_memory {
    void *scratch;                 /* as large as trf_pack_coded_scratch_bytes says; needs no preparation */
    trf_pack_coded_counts *counts; /* zeros before */
    /* The state is trf_launch_pack's, with whose launches ranges of a layer may take turns: num_stored is read,
     * inexact written; what is in counts is not added. */
    trf_pack_state *state;
} trf_pack_coded_memory;

/* Packs all rows of a coded layer that trf_can_pack_coded takes, as those of the packed one from first_row on:
 * exception lines and packed tiles. packed: the target, laid out as for trf_launch_pack, without row offsets; nothing
 * is written to stored tiles. first_row: a multiple of 64. */
int trf_launch_pack_coded(const trf_device_view *view, const trf_layer_traits *traits, const trf_packed_view *packed,
                          uint32_t first_row, const trf_pack_coded_memory *memory, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
