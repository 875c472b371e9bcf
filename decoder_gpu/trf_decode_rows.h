/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes single rows of a layer on the device. C and CUDA. */
#ifndef TRF_DECODE_ROWS_H
#define TRF_DECODE_ROWS_H

#include "trf_device_view.h"
#include "trf_shard_range.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The request of a trf_decode_rows call, with checked arguments. */
typedef struct trf_row_lookup {
    const void *ids; /* `count` signed integers of id_bytes, 4 or 8; device */
    uint32_t id_bytes, count;
    trf_decode_as as;
    void *rows; /* device */
} trf_row_lookup;

/* Enqueues the rows' decoding on `stream`. shard: the layer's. @return the launch's cudaError_t, 0 for success. */
int trf_launch_decode_rows(const trf_device_view *view, const trf_shard_range *shard, const trf_row_lookup *request,
                           trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
