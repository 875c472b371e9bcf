/* SPDX-License-Identifier: Apache-2.0 */
/* Named ranges of host time in the domain "transfuse", for profilers that listen to NVTX, such as Nsight Systems.
 * Without a profiler a range costs two calls that return at once; if the toolkit has no nvtx3, there are no ranges. */
#ifndef TRF_NVTX_H
#define TRF_NVTX_H

/* Ranges nest: each push is followed by a pop in the same thread. name: must be static. */
void trf_nvtx_push(const char *name);
void trf_nvtx_pop(void);

#endif
