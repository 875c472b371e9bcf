/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_memory.h"

#include "cli_messages.h"

#include <stdlib.h>

static void *report_lack(void *memory, uint64_t bytes) {
    char size[16];
    if (!memory)
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory for %s", cli_size_text(bytes, size));
    return memory;
}

void *bench_alloc(uint64_t bytes) { return report_lack(malloc(bytes ? bytes : 1), bytes); }

void *bench_alloc_zeros(uint64_t count, uint64_t element_bytes) {
    return report_lack(calloc(count ? count : 1, element_bytes), count * element_bytes);
}
