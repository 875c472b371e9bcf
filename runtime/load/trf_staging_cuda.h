/* SPDX-License-Identifier: Apache-2.0 */
/* The copy engine of a GPU. It has a stream of its own, which waits for no other, and an event for each staging
 * buffer. */
#ifndef TRF_STAGING_CUDA_H
#define TRF_STAGING_CUDA_H

#include "trf_staging.h"

extern const trf_copy_engine trf_cuda_copy_engine;

/* The engine's context for a device. Create it while the device is current, and release it with
 * trf_cuda_copier_destroy. Errors: TRF_ERR_CUDA, TRF_ERR_MEMORY. */
typedef struct trf_cuda_copier trf_cuda_copier;
trf_status trf_cuda_copier_create(int device, trf_cuda_copier **copier, trf_error *err);
void trf_cuda_copier_destroy(trf_cuda_copier *copier); /* NULL is allowed; the device is current */

/* @return the stream of its copies; and the stream on which the device works on what was copied. The second one waits
 * for no other stream, either. */
trf_stream trf_cuda_copier_stream(const trf_cuda_copier *copier);
trf_stream trf_cuda_copier_work_stream(const trf_cuda_copier *copier);

/* A trf_copy_back_fn; copier: a trf_cuda_copier. It does not wait for work that is queued on other streams. */
trf_status trf_cuda_copy_back(void *copier, void *to_host, const void *from, uint64_t bytes, trf_error *err);

#endif
