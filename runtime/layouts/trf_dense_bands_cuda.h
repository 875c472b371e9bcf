/* SPDX-License-Identifier: Apache-2.0 */
/* Dense rows of a coded layer's parts (trf_transcode_cuda.h), in whole packed bands, for what packs such rows:
 *
 *   dense    64 rows  |  a part's rows
 *              [left] |  [part ....................]      left: rows of the band that the part before began
 *
 * Rows that are left over are copied in front of the next part, so that the rows of a band are contiguous. A shard's
 * bands begin with its first row, wherever that row is in its part. */
#ifndef TRF_DENSE_BANDS_CUDA_H
#define TRF_DENSE_BANDS_CUDA_H

#include "trf_pack_launch.h"
#include "trf_shard_range.h"
#include "trf_transcode_cuda.h"

/* Queues the packing of a range of the shard's packed bands. @return a cudaError_t. */
typedef int trf_pack_bands_fn(void *context, const trf_rows_to_pack *rows, trf_stream stream);

typedef struct trf_dense_bands {
    const trf_shard_range *shard; /* which of the rows and columns of all parts are packed */
    uint32_t cols;                /* of a part */
    uint32_t part_rows;           /* of the largest part */
    trf_decode_as as;             /* what gives 16 bits a weight */
    trf_pack_bands_fn *pack;
    void *context;   /* pack's */
    uint16_t *dense; /* [64 rows and those of a part][cols], device memory; NULL until it is needed */
    uint32_t packed; /* the shard's rows that are packed already */
    uint32_t left;   /* rows in front of the next part that are not */
} trf_dense_bands;

/* Decodes a part, and packs the bands that are complete by then. Only enqueues work on `stream`. The device is current.
 * Errors: TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_dense_bands_take(trf_dense_bands *bands, const trf_coded_part *part, trf_stream stream, trf_error *err);

/* Releases the dense rows, which no queued work uses any more. */
void trf_dense_bands_release(trf_dense_bands *bands);

#endif
