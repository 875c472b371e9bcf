/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a context for each kind of device. Each kind has a file of its own: trf_context_cpu.c, and trf_context_cuda.c
 * or, in a build without device code, trf_no_device_code.c. */
#ifndef TRF_CONTEXT_CREATE_H
#define TRF_CONTEXT_CREATE_H

#include "trf_error.h"

/* Both do what trf_context_create does. */
trf_status trf_cpu_context_create(trf_context **context, trf_error *err);
trf_status trf_cuda_context_create(int device, trf_context **context, trf_error *err);

#endif
