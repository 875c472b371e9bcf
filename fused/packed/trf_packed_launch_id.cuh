/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of launches, by which blocks recognize what was handed over to them (trf_packed_handover.cuh). */
#ifndef TRF_PACKED_LAUNCH_ID_CUH
#define TRF_PACKED_LAUNCH_ID_CUH

#include <stdint.h>

/* Returns a number that no other launch of this process has, and that is very unlikely to be found in memory which
 * never held a flag. */
uint64_t trf_next_launch_id(void);

#endif
