/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a packed layer on a GPU, from dense weights, or from a coded layer that is there, whole or in parts
 * (trf_transcode_cuda.h). */
#ifndef TRF_PACKED_MAKER_CUDA_H
#define TRF_PACKED_MAKER_CUDA_H

#include "trf_dense_bands_cuda.h"
#include "trf_load_scratch_cuda.h"
#include "trf_pack_coded_launch.h"
#include "trf_packed_layer.h"
#include "trf_transcode_cuda.h"

/* What kernels write besides the layer. It lies in device memory, and the host has a copy. */
typedef struct trf_pack_results {
    trf_pack_state state;         /* counts what was packed from dense rows; its inexact weight may be in any row */
    trf_pack_coded_counts counts; /* of the layer, or of the last part, if that was packed from its slabs */
    trf_device_fault fault;       /* of the layer, if it is packed at once */
} trf_pack_results;
TRF_STATIC_ASSERT((int)sizeof(trf_pack_results) <= (int)TRF_LOAD_SCRATCH_RESULT_BYTES, "there is a place for a copy");

typedef struct trf_packed_maker {
    trf_device_layer *made;
    trf_dense_bands bands; /* its shard and cols are set at first, and its packed rows those of all ways */
    trf_pack_request request;
    trf_packed_window window;
    uint64_t stored_room;        /* the member of trf_pack_options */
    const trf_packed_view *like; /* what the layer is packed like, or NULL */

    trf_packed_head head; /* counts all stored tiles that there is room for */
    trf_packed_view view; /* of that */
    uint8_t *buffer;      /* made->memory, or the caller's */

    trf_pack_results *device_results; /* in a load scratch, as the next two */
    const trf_pack_results *results;  /* on the host: device_results after the last rows were packed */
    uint8_t *kernel_scratch;          /* for trf_launch_pack_coded; follows device_results */
    void *coded_packed;               /* cudaEvent_t: recorded after the open part's kernels and the copy of their
                                       * results */

    trf_coded_part open;  /* packed from its slabs, but not yet known to be complete; no rows: none */
    uint64_t num_records; /* of the parts that were packed completely from their slabs */
    trf_pack_state state; /* of all rows, in the end */
} trf_packed_maker;

/* Gives a maker, whose fields up to `like` are set, its buffer, and queues what the buffer holds besides lines and
 * tiles. memory is the caller's: it is large enough for the largest layer that may result, or has no buffer. has_room
 * says whether the buffer gets room for stored tiles at once; otherwise it is replaced when they may be needed.
 * row_offsets are those of the shard's rows, and stay where they are, on the host or the device; or NULL. The device is
 * current. Release the maker with trf_packed_maker_release, also after a failure. Errors: TRF_ERR_UNSUPPORTED,
 * TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_packed_maker_begin(trf_packed_maker *maker, const trf_layer_memory *memory, int has_room,
                                  const int8_t *row_offsets, trf_error *err);

/* Sets the window of a maker that began without one. No error occurs that trf_packed_maker_begin did not report. */
trf_status trf_packed_maker_set_window(trf_packed_maker *maker, trf_packed_window window, trf_error *err);

/* @return bytes of device memory for maker->device_results, and for what kernels need to pack so many coded rows. rows
 * may be 0. */
uint64_t trf_packed_maker_memory_bytes(const trf_packed_maker *maker, uint32_t rows);

/* Makes the maker use memory of that size in a load scratch, whose results and event it uses, too, for parts of up to
 * part_rows rows. Queues zeros for maker->device_results. Errors: TRF_ERR_CUDA. */
trf_status trf_packed_maker_use(trf_packed_maker *maker, const trf_load_scratch *scratch, uint8_t *memory,
                                uint32_t part_rows, trf_error *err);

/* Queues a copy of maker->device_results to maker->results. @return a cudaError_t. */
int trf_packed_maker_fetch(const trf_packed_maker *maker, trf_stream stream);

/* A trf_take_part_fn whose context is a maker that has memory for parts. Errors: TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_packed_maker_take_part(void *maker, const trf_coded_part *part, trf_stream stream, trf_error *err);

/* Reads the outcome of packing from maker->results. All queued work is done. */
void trf_packed_maker_read_results(trf_packed_maker *maker);

/* Completes the layer after that. The head is written last, so a buffer that has a head is complete. Errors:
 * TRF_ERR_UNSUPPORTED (the layer cannot be packed), TRF_ERR_CUDA. */
trf_status trf_packed_maker_complete(trf_packed_maker *maker, trf_error *err);

/* Releases what does not belong to the layer, and made->memory, too, if the layer is not complete. status: the outcome
 * of making it. */
void trf_packed_maker_release(trf_packed_maker *maker, trf_status status);

#endif
