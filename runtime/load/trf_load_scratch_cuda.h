/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a load or a conversion uses on a GPU, besides the layer's, while it runs. A context keeps it for the next
 * one: allocating device memory takes about as long as copying 8 MiB, and releasing it waits for all that the device
 * does, other loads included. */
#ifndef TRF_LOAD_SCRATCH_CUDA_H
#define TRF_LOAD_SCRATCH_CUDA_H

#include "trf_error.h"

enum {
    TRF_LOAD_SCRATCH_RESULT_BYTES = 4096,
    /* What a context keeps while nothing is loaded: enough for one load of a packed layer of up to 68 million weights,
     * which is first loaded coded (18944x3584: 92 MiB). Plain layers, which are loaded in parts of 16 MiB
     * (trf_transcode_cuda.h), take 40 MiB. */
    TRF_LOAD_SCRATCH_MOST_KEPT_BYTES = 96 << 20
};

typedef struct trf_load_scratch {
    uint8_t *memory; /* device, 256-byte aligned; NULL: it has none, which happens only while nobody uses it */
    uint64_t bytes;
    uint8_t *results; /* host, page-locked, TRF_LOAD_SCRATCH_RESULT_BYTES: where copies from the device arrive */
    /* Device: a table of constants that kernels of packing read, or NULL. The first load that needs it makes it, and it
     * is released with the scratch. */
    void *constants;
    /* Both are cudaEvent_t. arrived is recorded after a part's copies, in the end after the copy of the faults, or
     * after what packing waits for. taken is recorded, in turns, after what was queued for a part. */
    void *arrived, *taken[2];
    struct trf_load_scratch *next; /* in the list of those that nobody uses */
} trf_load_scratch;

/* The scratches of a context. Release with trf_load_scratches_destroy. Errors: TRF_ERR_MEMORY. */
typedef struct trf_load_scratches trf_load_scratches;
trf_status trf_load_scratches_create(trf_load_scratches **scratches, trf_error *err);
void trf_load_scratches_destroy(
    trf_load_scratches *scratches); /* NULL is allowed; none is in use. The device is current */

/* Takes a scratch with so much device memory, or more. Taking and giving back are thread-safe. The device is current.
 * Errors: TRF_ERR_MEMORY, TRF_ERR_CUDA. */
trf_status trf_load_scratch_take(trf_load_scratches *scratches, uint64_t bytes, trf_load_scratch **scratch,
                                 trf_error *err);

/* Gives a scratch back. No queued work uses it any more. When all have been given back, the largest one of at most
 * TRF_LOAD_SCRATCH_MOST_KEPT_BYTES keeps its device memory; until then all do. */
void trf_load_scratch_give_back(trf_load_scratches *scratches, trf_load_scratch *scratch); /* NULL is allowed */

#endif
