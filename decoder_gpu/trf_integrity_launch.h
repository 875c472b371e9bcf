/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the checksums of layers where they lie in device memory, at the speed of that memory. C and CUDA. */
#ifndef TRF_INTEGRITY_LAUNCH_H
#define TRF_INTEGRITY_LAUNCH_H

#include "transfuse.h"
#include "trf_blob.h"
#include "trf_data_checksum.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues the computation of a data checksum, which is added to *to_dev. data_dev: device, 16-byte aligned.
 * multiprocessors: the device's. @return a cudaError_t, 0 for success. */
int trf_launch_sum_data(const void *data_dev, uint64_t bytes, trf_data_checksum *to_dev, uint32_t multiprocessors,
                        trf_stream stream);

/* A blob in device memory. Its own bytes say where tiles lie; all else is known without them. */
typedef struct trf_blob_to_check {
    const uint8_t *blob; /* 128-byte aligned */
    uint64_t blob_bytes;
    uint64_t head_bytes;        /* to the first tile's data */
    const trf_tile_meta *tiles; /* [num_tiles], in the blob */
    uint64_t num_tiles;
} trf_blob_to_check;

/* Enqueues a comparison of the head and all tiles with their checksums. *wrong_dev, which is 0 before, becomes the
 * complement of the lowest number of what has a wrong one: 0 for the head, 1 + t for tile t. It stays 0 if there is
 * none. Whatever the blob holds, nothing outside it is read. @return a cudaError_t, 0 for success. */
int trf_launch_check_blob(const trf_blob_to_check *blob, uint64_t *wrong_dev, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
