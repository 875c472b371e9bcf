/* SPDX-License-Identifier: Apache-2.0 */
/* Which layers of a stack stay in device memory, and where each of them lies when it is there. No CUDA in here. */
#ifndef TRF_STACK_PLACEMENT_H
#define TRF_STACK_PLACEMENT_H

#include "trf_error.h"

/* A layer's place in the device memory of its stack. */
typedef struct trf_stack_place {
    uint64_t bytes;  /* at least 1; known before */
    uint64_t offset; /* from the first byte of the stack's memory */
    int is_resident; /* stays there; else shares its place with others */
} trf_stack_place;

typedef struct trf_stack_placement {
    uint64_t buffer_bytes;    /* of each of the two buffers that offloaded layers share; 0: all of them stay */
    uint64_t device_bytes;    /* of the stack's memory */
    uint64_t offloaded_bytes; /* sum of the layers that do not stay */
    uint32_t num_resident;
} trf_stack_placement;

/* @return the least budget that trf_stack_placement_make takes. */
uint64_t trf_stack_least_bytes(const trf_stack_place *places, uint32_t count, uint64_t fixed_bytes);

/* Fills *placement, and of each place all but its bytes. The memory: fixed_bytes that are none of a layer's | two
 * buffers | layers that stay.
 *
 * As many bytes as the budget allows stay, spread evenly over the order, so that copies always have products to hide
 * behind. A buffer is as large as one of the layers, those that are larger stay in any case: the smallest that the
 * budget allows, since that leaves most room, but not below 32 MiB if there is a choice. Offloaded layers take the two
 * buffers in turns; neighbours that fit into one share it. So of two neighbours neither is in the other's place, unless
 * the last and the first one take the same buffer. Errors: TRF_ERR_ARGUMENT (budget). */
trf_status trf_stack_placement_make(trf_stack_place *places, uint32_t count, uint64_t fixed_bytes,
                                    uint64_t budget_bytes, trf_stack_placement *placement, trf_error *err);

#endif
