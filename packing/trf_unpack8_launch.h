/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of the kernels that unpack packed FP8 layers (format/PACKED.md). C and CUDA; each returns the launch's
 * cudaError_t as an int, 0 for success, and only enqueues work on `stream`. The kernels write what trf_unpack8 writes,
 * bit for bit. */
#ifndef TRF_UNPACK8_LAUNCH_H
#define TRF_UNPACK8_LAUNCH_H

#include "trf_pack_launch.h"
#include "trf_packed8.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Both functions take trf_packed8_view_of a checked head, in device memory, and stay in bounds whatever the layer
 * holds. Of its flags they go by TRF_PACKED8_IN_TURNS alone. */

/* Unpacks rows first_row to first_row + num_rows - 1. @return cudaErrorInvalidValue if the layer does not have them. */
int trf_launch_unpack8(const trf_packed8_view *view, uint32_t first_row, uint32_t num_rows,
                       const trf_unpack_target *target, trf_stream stream);

/* Unpacks rows by number, as trf_launch_unpack_rows does: an id that the layer does not have gives a row of NaNs. */
int trf_launch_unpack8_rows(const trf_packed8_view *view, const trf_packed_lookup *lookup,
                            const trf_unpack_target *target, trf_stream stream);

#ifdef __cplusplus
}
#endif

#endif
