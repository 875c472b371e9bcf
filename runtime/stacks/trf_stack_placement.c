/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_stack_placement.h"

/* Copying this many bytes takes about half a millisecond. That is longer than the layers that stay keep a GPU busy
 * between two offloaded ones. */
static const uint64_t kAmpleBufferBytes = 32 << 20;

/* Whether a buffer may have this size of a layer: it is kAmpleBufferBytes or more, or the largest one below that. */
static int is_buffer_size(const trf_stack_place *places, uint32_t count, uint64_t bytes) {
    for (uint32_t i = 0; bytes < kAmpleBufferBytes && i < count; i++)
        if (places[i].bytes > bytes && places[i].bytes < kAmpleBufferBytes)
            return 0;
    return 1;
}

static uint64_t sum_above(const trf_stack_place *places, uint32_t count, uint64_t bytes) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += places[i].bytes > bytes ? places[i].bytes : 0;
    return sum;
}

/* Chooses the smallest size of buffers for which a budget for layers and buffers has room; 0 if there is none. *least
 * is the smallest budget that works. */
static uint64_t choose_buffer(const trf_stack_place *places, uint32_t count, uint64_t budget, uint64_t *least) {
    uint64_t chosen = 0;
    *least = sum_above(places, count, 0);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t bytes = places[i].bytes;
        if (!is_buffer_size(places, count, bytes))
            continue;
        const uint64_t need = sum_above(places, count, bytes) + 2 * bytes;
        if (need < *least)
            *least = need;
        if (need <= budget && (!chosen || bytes < chosen))
            chosen = bytes;
    }
    return chosen;
}

uint64_t trf_stack_least_bytes(const trf_stack_place *places, uint32_t count, uint64_t fixed_bytes) {
    uint64_t least;
    choose_buffer(places, count, 0, &least);
    return fixed_bytes + least;
}

/* Marks the layers that stay: those too large for a buffer, and others of `room` bytes in all. These are chosen in
 * order, each when the share of the bytes so far allows it, and at the end whatever still fits. */
static void choose_residents(trf_stack_place *places, uint32_t count, uint64_t buffer, uint64_t room) {
    const uint64_t all = sum_above(places, count, 0) - sum_above(places, count, buffer);
    const double share = (double)room / (double)all;
    double due = 0;
    for (uint32_t i = 0; i < count; i++) {
        trf_stack_place *place = &places[i];
        place->is_resident = place->bytes > buffer;
        if (place->is_resident)
            continue;
        due += share * (double)place->bytes;
        if (due >= (double)place->bytes && room >= place->bytes) {
            place->is_resident = 1;
            due -= (double)place->bytes;
            room -= place->bytes;
        }
    }
    for (uint32_t i = 0; i < count; i++)
        if (!places[i].is_resident && room >= places[i].bytes) {
            places[i].is_resident = 1;
            room -= places[i].bytes;
        }
}

/* Sets the offsets, and the sums in the placement. */
static void lay_out_stack(trf_stack_place *places, uint32_t count, uint64_t fixed_bytes,
                          trf_stack_placement *placement) {
    const uint64_t buffer = placement->buffer_bytes;
    uint64_t used = 0, end = fixed_bytes + 2 * buffer;
    uint64_t first = fixed_bytes; /* of the buffer that is being filled */
    for (uint32_t i = 0; i < count; i++) {
        trf_stack_place *place = &places[i];
        if (place->is_resident) {
            place->offset = end;
            end += place->bytes;
            placement->num_resident++;
            continue;
        }
        if (used + place->bytes > buffer) {
            first = first == fixed_bytes ? fixed_bytes + buffer : fixed_bytes;
            used = 0;
        }
        place->offset = first + used;
        used += place->bytes;
        placement->offloaded_bytes += place->bytes;
    }
    placement->device_bytes = end;
}

trf_status trf_stack_placement_make(trf_stack_place *places, uint32_t count, uint64_t fixed_bytes,
                                    uint64_t budget_bytes, trf_stack_placement *placement, trf_error *err) {
    uint64_t least;
    const uint64_t all = sum_above(places, count, 0), budget = budget_bytes - fixed_bytes;
    *placement = (trf_stack_placement){0};
    const uint64_t buffer = choose_buffer(places, count, budget, &least);
    if (budget_bytes < fixed_bytes || least > budget)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "a budget of %llu bytes of device memory; %llu is the least for these %u layers: two buffers "
                        "for those that are offloaded, and "
                        "what does not fit in them",
                        (unsigned long long)budget_bytes, (unsigned long long)(fixed_bytes + least), count);
    if (all <= budget) {
        for (uint32_t i = 0; i < count; i++)
            places[i].is_resident = 1;
    } else {
        placement->buffer_bytes = buffer;
        choose_residents(places, count, buffer, budget - 2 * buffer - sum_above(places, count, buffer));
    }
    lay_out_stack(places, count, fixed_bytes, placement);
    return TRF_OK;
}
