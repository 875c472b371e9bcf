/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of launches by which blocks know what was handed over to them (trf_packed_handover.cuh). */
#ifndef TRF_PACKED_LAUNCH_ID_CUH
#define TRF_PACKED_LAUNCH_ID_CUH

#include <stdint.h>

/* A number that no other launch of this process has, and that memory which was never a flag hardly has. */
uint64_t trf_next_launch_id(void);

#endif
