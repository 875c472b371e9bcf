/* SPDX-License-Identifier: Apache-2.0 */
/* A packed layer that is made on a GPU, of parts of a coded one (trf_transcode_cuda.h) or of a plain one. */
#ifndef TRF_PACKED_TARGET_CUDA_H
#define TRF_PACKED_TARGET_CUDA_H

#include "trf_packed_layer.h"
#include "trf_transcode_cuda.h"
#include "trf_transcode_launch.h"

/* What kernels write beside the layer, in device memory. */
typedef struct trf_packed_work {
    trf_pack_state state; /* of all rows that were packed from dense ones */
    trf_transcode_counts counts;
} trf_packed_work;

typedef struct trf_packed_target {
    trf_device_layer *made;
    const trf_shard_range *shard; /* of all parts' rows and columns */
    uint32_t cols;                /* of a part */
    trf_pack_request request;
    trf_packed_window window;
    trf_layer_feed *feed; /* from which the window is found once a part is there; NULL: it is known */

    trf_packed_head head; /* as if all stored tiles that there is room for were there */
    trf_packed_view view; /* of that */
    uint8_t *buffer;      /* which is made->memory, or the caller's */

    trf_packed_work *work;
    uint8_t *scratch;   /* of trf_launch_transcode; behind work, or the caller's */
    uint16_t *dense;    /* [64 rows and those of a part][cols]; NULL until it is needed */
    uint32_t part_rows; /* of the largest part */
    void *transcoded;   /* cudaEvent_t: behind the open part's kernels */

    trf_coded_part open;  /* packed straight from its slabs, and it is not known yet if that will do; no rows: none */
    uint64_t num_records; /* of such parts that will do */
    uint32_t packed;      /* the shard's rows that are packed already */
    uint32_t left;        /* rows in front of the next part that are not */
} trf_packed_target;

/* Gives a target that has all fields up to `feed` its buffer, and queues what is in there beside lines and tiles.
 * memory: the caller's, large enough for the largest layer that it may become, or without a buffer. has_room: whether
 * there is to be room for stored tiles at once; else the buffer is replaced when they may be needed. row_offsets: of
 * the shard's rows, on the host, where they stay, or on the device; or NULL. The device is current. Release with
 * trf_packed_target_release, after a failure, too. Errors: TRF_ERR_UNSUPPORTED, TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_packed_target_begin(trf_packed_target *target, const trf_layer_memory *memory, int has_room,
                                   const int8_t *row_offsets, trf_error *err);

/* Makes the target ready for parts of so many rows. Errors: TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_packed_target_expect_parts(trf_packed_target *target, uint32_t part_rows, trf_error *err);

/* Makes target->work alone, and zeros in it; and scratch memory of so many bytes behind it, if that is not 0. Errors:
 * the same. */
trf_status trf_packed_target_allocate_work(trf_packed_target *target, uint64_t scratch_bytes, trf_error *err);

/* A trf_take_part_fn, of a target that expects parts. Errors: those of the feed, from which the window is found;
 * TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_packed_target_take_part(void *target, const trf_coded_part *part, trf_stream stream, trf_error *err);

/* Completes the layer, once all that is queued is done. The head comes last: a buffer that has one is whole. state,
 * which is target->work's: num_records of all lines. Errors: TRF_ERR_UNSUPPORTED (it cannot be packed), TRF_ERR_CUDA.
 */
trf_status trf_packed_target_complete(trf_packed_target *target, trf_pack_state state, trf_error *err);
trf_status trf_packed_target_finish(trf_packed_target *target, trf_error *err); /* reads the state, too */

/* Frees what is not the layer's; and made->memory if the layer is not complete. status: what making it came to. */
void trf_packed_target_release(trf_packed_target *target, trf_status status);

#endif
