/* SPDX-License-Identifier: Apache-2.0 */
/* A layer as the kernels see it, with everything in host memory: for tests that run device code's shared functions on
 * the CPU. */
#ifndef HOST_VIEW_H
#define HOST_VIEW_H

#include "trf_device_view.h"

typedef struct host_view {
    trf_device_view view;
    trf_device_fault fault;
    trf_device_slab *slabs;
    uint32_t decode_table[TRF_MAX_SLOTS];
} host_view;

/* blob: the bytes that the tiles' data_offsets count from, blob_bytes of them; all of it validated, and it and `from`
 * outlive the result. @return malloc'd; host_view_free. */
host_view *host_view_make(const trf_blob_view *from, const uint8_t *blob, uint64_t blob_bytes);
void host_view_free(host_view *host);

#endif
