/* SPDX-License-Identifier: Apache-2.0 */
/* What a load or a conversion has on a GPU beside the layer, while it runs. A context keeps it for the next one: to
 * allocate device memory takes about as long as to copy 8 MiB, and to release it waits for all that the device does,
 * other loads included. */
#ifndef TRF_LOAD_SCRATCH_CUDA_H
#define TRF_LOAD_SCRATCH_CUDA_H

#include "trf_error.h"

enum {
    TRF_LOAD_SCRATCH_RESULT_BYTES = 4096,
    /* What a context keeps while nothing is loaded: that of one load of a packed layer of up to 68 million weights,
     * which is coded there first (18944x3584: 92 MiB). Plain layers, in parts of 16 MiB (trf_transcode_cuda.h), take
     * 40 MiB. */
    TRF_LOAD_SCRATCH_MOST_KEPT_BYTES = 96 << 20
};

typedef struct trf_load_scratch {
    uint8_t *memory; /* device, 256-byte aligned; NULL: it has none, while nobody uses it */
    uint64_t bytes;
    uint8_t *results; /* host, page-locked, TRF_LOAD_SCRATCH_RESULT_BYTES: where copies from the device arrive */
    /* cudaEvent_t. arrived: behind a part's copies, and in the end behind that of the faults, or behind what packing
     * waits for; taken: behind what was queued for a part, in turns. */
    void *arrived, *taken[2];
    struct trf_load_scratch *next; /* of those that nobody uses */
} trf_load_scratch;

/* A context's. Release with trf_load_scratches_destroy. Errors: TRF_ERR_MEMORY. */
typedef struct trf_load_scratches trf_load_scratches;
trf_status trf_load_scratches_create(trf_load_scratches **scratches, trf_error *err);
void trf_load_scratches_destroy(
    trf_load_scratches *scratches); /* NULL is allowed; none is used. The device is current */

/* Takes one with so much device memory, or more. Thread-safe, as giving back; the device is current. Errors:
 * TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_load_scratch_take(trf_load_scratches *scratches, uint64_t bytes, trf_load_scratch **scratch,
                                 trf_error *err);

/* Nothing that was queued uses it any more. Once all have been given back the largest one keeps its device memory, of
 * at most TRF_LOAD_SCRATCH_MOST_KEPT_BYTES; before that all do. */
void trf_load_scratch_give_back(trf_load_scratches *scratches, trf_load_scratch *scratch); /* NULL is allowed */

#endif
