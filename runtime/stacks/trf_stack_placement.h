/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which layers of a stack stay in device memory, and where each of them lies when it is there. No CUDA in
 * here. */
#ifndef TRF_STACK_PLACEMENT_H
#define TRF_STACK_PLACEMENT_H

#include "trf_error.h"

/* A layer's place in the device memory of its stack. */
typedef struct trf_stack_place {
    uint64_t bytes;  /* at least 1; set by the caller */
    uint64_t offset; /* from the first byte of the stack's memory */
    int is_resident; /* whether the layer stays there; otherwise it shares its place with others */
} trf_stack_place;

typedef struct trf_stack_placement {
    uint64_t buffer_bytes;    /* of each of the two buffers that offloaded layers share; 0: all of them stay */
    uint64_t device_bytes;    /* of the stack's memory */
    uint64_t offloaded_bytes; /* sum of the layers that do not stay */
    uint32_t num_resident;
} trf_stack_placement;

/* @return the least budget that trf_stack_placement_make takes. */
uint64_t trf_stack_least_bytes(const trf_stack_place *places, uint32_t count, uint64_t fixed_bytes);

/* Fills *placement, and all fields of the places but `bytes`. The memory is laid out as: fixed_bytes that belong to no
 * layer | two buffers | layers that stay.
 *
 * As many bytes as the budget allows stay. They are spread evenly over the order, so that copies always overlap with
 * products. A buffer has the size of one of the layers; layers that are larger than it stay in any case. The size is
 * the smallest that the budget allows, since that leaves the most room, but not below 32 MiB if there is a choice.
 * Offloaded layers use the two buffers in turns, and neighbours that fit into one buffer share it. So no layer lies in
 * its neighbour's place, unless the last and the first one use the same buffer. Errors: TRF_ERR_ARGUMENT (budget). */
trf_status trf_stack_placement_make(trf_stack_place *places, uint32_t count, uint64_t fixed_bytes,
                                    uint64_t budget_bytes, trf_stack_placement *placement, trf_error *err);

#endif
