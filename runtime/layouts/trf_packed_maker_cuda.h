/* SPDX-License-Identifier: Apache-2.0 */
/* A packed layer that is made on a GPU, of a coded one that is there, whole or in parts (trf_transcode_cuda.h), or of
 * dense weights. */
#ifndef TRF_PACKED_MAKER_CUDA_H
#define TRF_PACKED_MAKER_CUDA_H

#include "trf_load_scratch_cuda.h"
#include "trf_pack_coded_launch.h"
#include "trf_packed_layer.h"
#include "trf_transcode_cuda.h"

/* What kernels write beside the layer, in device memory; the host has copies of it. */
typedef struct trf_pack_results {
    trf_pack_state state;         /* of all rows that were packed from dense ones */
    trf_pack_coded_counts counts; /* of the layer, or of the last part, that was packed straight from its slabs */
    trf_device_fault fault;       /* of the layer, where it is packed whole */
} trf_pack_results;
TRF_STATIC_ASSERT((int)sizeof(trf_pack_results) <= (int)TRF_LOAD_SCRATCH_RESULT_BYTES, "there is a place for a copy");

typedef struct trf_packed_maker {
    trf_device_layer *made;
    const trf_shard_range *shard; /* of all parts' rows and columns */
    uint32_t cols;                /* of a part */
    trf_pack_request request;
    trf_packed_window window;
    uint64_t stored_room;        /* as trf_pack_options has it */
    const trf_packed_view *like; /* what the layer is packed like, or NULL */

    trf_packed_head head; /* as if all stored tiles that there is room for were there */
    trf_packed_view view; /* of that */
    uint8_t *buffer;      /* which is made->memory, or the caller's */

    trf_pack_results *device_results; /* of a load scratch, as what follows */
    const trf_pack_results *results;  /* on the host: as device_results were behind the last rows packed */
    uint8_t *kernel_scratch;          /* of trf_launch_pack_coded; behind device_results */
    uint16_t *dense;                  /* [64 rows and those of a part][cols]; NULL until it is needed */
    uint32_t part_rows;               /* of the largest part */
    void *coded_packed;               /* cudaEvent_t: behind the open part's kernels, and results */

    trf_coded_part open;  /* packed straight from its slabs, and it is not known yet if that will do; no rows: none */
    uint64_t num_records; /* of such parts that will do */
    uint32_t packed;      /* the shard's rows that are packed already */
    uint32_t left;        /* rows in front of the next part that are not */
    trf_pack_state state; /* of all rows, in the end */
} trf_packed_maker;

/* Gives a maker that has all fields up to `like` its buffer, and queues what is in there beside lines and tiles.
 * memory: the caller's, large enough for the largest layer that it may become, or without a buffer. has_room: whether
 * there is to be room for stored tiles at once; else the buffer is replaced when they may be needed. row_offsets: of
 * the shard's rows, on the host, where they stay, or on the device; or NULL. The device is current. Release with
 * trf_packed_maker_release, after a failure, too. Errors: TRF_ERR_UNSUPPORTED, TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_packed_maker_begin(trf_packed_maker *maker, const trf_layer_memory *memory, int has_room,
                                  const int8_t *row_offsets, trf_error *err);

/* Sets the window of a maker that began without. Errors: none that began has not had. */
trf_status trf_packed_maker_set_window(trf_packed_maker *maker, trf_packed_window window, trf_error *err);

/* Bytes of device memory for maker->device_results, and for what kernels need to pack so many coded rows; or 0 rows.
 */
uint64_t trf_packed_maker_memory_bytes(const trf_packed_maker *maker, uint32_t rows);

/* Has the maker use such memory, of a load scratch whose results and event it uses, too, for parts of so many rows, and
 * queues zeros in maker->device_results. Errors: TRF_ERR_CUDA. */
trf_status trf_packed_maker_use(trf_packed_maker *maker, const trf_load_scratch *scratch, uint8_t *memory,
                                uint32_t part_rows, trf_error *err);

/* Queues a copy of maker->device_results to maker->results. @return a cudaError_t. */
int trf_packed_maker_fetch(const trf_packed_maker *maker, trf_stream stream);

/* A trf_take_part_fn, of a maker that has memory for parts. Errors: TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_packed_maker_take_part(void *maker, const trf_coded_part *part, trf_stream stream, trf_error *err);

/* Takes what packing came to from maker->results, once all that is queued is done. */
void trf_packed_maker_read_results(trf_packed_maker *maker);

/* Completes the layer after that. The head comes last: a buffer that has one is whole. Errors: TRF_ERR_UNSUPPORTED (it
 * cannot be packed), TRF_ERR_CUDA. */
trf_status trf_packed_maker_complete(trf_packed_maker *maker, trf_error *err);

/* Releases what is not the layer's; and made->memory if the layer is not complete. status: what making it came to. */
void trf_packed_maker_release(trf_packed_maker *maker, trf_status status);

#endif
