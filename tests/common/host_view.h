/* SPDX-License-Identifier: Apache-2.0 */
/* A layer as the kernels see it, with everything in host memory, for tests that run the functions of device code on the
 * CPU. */
#ifndef HOST_VIEW_H
#define HOST_VIEW_H

#include "trf_device_view.h"

typedef struct host_view {
    trf_device_view view;
    trf_device_fault fault;
    trf_device_slab *slabs;
    uint32_t *decode_table; /* and the scale pairs, if it is scaled FP8 */
} host_view;

/* blob: blob_bytes bytes, from the first of which the tiles' data_offsets count. All of it is validated. It and `from`
 * must outlive the result. @return malloc'd; release with host_view_free. */
host_view *host_view_make(const trf_blob_view *from, const uint8_t *blob, uint64_t blob_bytes);
void host_view_free(host_view *host);

#endif
