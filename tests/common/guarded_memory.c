/* SPDX-License-Identifier: Apache-2.0 */
#include "guarded_memory.h"

#include "checkpoint_fixture.h"
#include "expect.h"

#include <stdlib.h>
#include <string.h>

enum {
    CANARY_BYTES = 512,
    CANARY = 0xA7
};

guarded_memory guarded_allocate(const trf_context *context, uint64_t bytes) {
    trf_error err;
    guarded_memory guarded = {.context = context, .bytes = bytes};
    void *memory;
    uint8_t *canaries = malloc(bytes + 2 * CANARY_BYTES);
    memset(canaries, CANARY, bytes + 2 * CANARY_BYTES);
    fixture_check_status(trf_device_allocate(context, bytes + 2 * CANARY_BYTES, &memory, &err), TRF_OK, &err);
    fixture_check_status(trf_device_upload(context, memory, canaries, bytes + 2 * CANARY_BYTES, &err), TRF_OK, &err);
    free(canaries);
    guarded.memory = memory;
    guarded.at = guarded.memory + CANARY_BYTES;
    return guarded;
}

void guarded_free(guarded_memory *guarded) { trf_device_free(guarded->context, guarded->memory); }

uint8_t *guarded_read(const guarded_memory *guarded) {
    trf_error err;
    const uint64_t bytes = guarded->bytes;
    uint8_t *all = malloc(bytes + 2 * CANARY_BYTES);
    fixture_check_status(trf_device_download(guarded->context, all, guarded->memory, bytes + 2 * CANARY_BYTES, &err),
                         TRF_OK, &err);
    for (int i = 0; i < CANARY_BYTES; i++)
        EXPECT(all[i] == CANARY && all[CANARY_BYTES + bytes + (uint64_t)i] == CANARY);
    memmove(all, all + CANARY_BYTES, bytes);
    return all;
}

void guarded_check_untouched(const guarded_memory *guarded) {
    uint8_t *found = guarded_read(guarded);
    for (uint64_t i = 0; i < guarded->bytes; i++)
        EXPECT(found[i] == CANARY);
    free(found);
}
