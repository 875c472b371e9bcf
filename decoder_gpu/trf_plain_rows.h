/* SPDX-License-Identifier: Apache-2.0 */
/* Copies rows of plain weights, as they are or widened: all that decoding and row look-ups of a plain layer have to do.
 * C and CUDA. */
#ifndef TRF_PLAIN_ROWS_H
#define TRF_PLAIN_ROWS_H

#include "trf_device_view.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trf_plain_rows_request {
    const uint16_t *weights; /* device, [rows][cols], a float codec's elements; 16-byte aligned */
    uint32_t rows, cols, codec;
    uint32_t id_bytes, count;
    const void *ids;       /* device, `count` signed integers of id_bytes (4 or 8); NULL: rows 0 to count - 1 */
    uint32_t weight_bytes; /* 2: elements as they are; 4: their values in F32 */
    uint32_t missing;      /* the bits that are written for each weight of a row that does not exist */
    void *to;              /* device, [count][cols] */
} trf_plain_rows_request;

/* Enqueues the copy on `stream`. @return the launch's cudaError_t, 0 for success. */
int trf_launch_plain_rows(const trf_plain_rows_request *rows, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
