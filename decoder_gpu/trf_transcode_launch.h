/* SPDX-License-Identifier: Apache-2.0 */
/* Launcher of the kernels that pack a coded layer straight from its slabs, without dense rows in between. C and CUDA;
 * it returns the launches' cudaError_t as an int, 0 for success, and only enqueues work on `stream`. What is written is
 * what trf_launch_pack writes of the layer's decoded rows. */
#ifndef TRF_TRANSCODE_LAUNCH_H
#define TRF_TRANSCODE_LAUNCH_H

#include "trf_device_view.h"
#include "trf_layer_traits.h"
#include "trf_pack_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether a layer of the bf16 codec is one that these kernels take: all of it in regular slabs and whole packed bands,
 * without row offsets, and with the default p. */
int trf_can_transcode(const trf_device_view *view, const trf_layer_traits *traits);

/* Device memory that a launch needs for itself, 256-byte aligned. packed: of the layer's shape. */
uint64_t trf_transcode_scratch_bytes(const trf_packed_view *packed);

/* What goes on while a layer is transcoded, all in device memory. */
typedef struct trf_transcode_memory {
    void *scratch; /* as large as trf_transcode_scratch_bytes says; needs no preparation */
    /* Zeros before. num_stored becomes the number of exception lines of which tiles would have to be stored: if that is
     * not 0, the layer is not packed, and has to be so from dense rows. The rest as of trf_launch_pack. */
    trf_pack_state *state;
} trf_transcode_memory;

/* Packs all of a layer that trf_can_transcode takes: exception lines and packed tiles. packed: the target, laid out as
 * for trf_launch_pack, without row offsets; nothing is written to stored tiles. */
int trf_launch_transcode(const trf_device_view *view, const trf_layer_traits *traits, const trf_packed_view *packed,
                         const trf_transcode_memory *memory, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
