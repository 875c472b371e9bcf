/* SPDX-License-Identifier: Apache-2.0 */
/* Named ranges of host time in the domain "transfuse", for profilers that listen to NVTX, such as Nsight Systems.
 * Without one a range costs two calls that return at once; where the toolkit has no nvtx3 there are none. */
#ifndef TRF_NVTX_H
#define TRF_NVTX_H

/* Ranges nest: each push is followed by a pop of the same thread. name: static. */
void trf_nvtx_push(const char *name);
void trf_nvtx_pop(void);

#endif
