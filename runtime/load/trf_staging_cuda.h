/* SPDX-License-Identifier: Apache-2.0 */
/* The copy engine of a GPU: a stream of its own, which waits for no other, and an event for each staging buffer. */
#ifndef TRF_STAGING_CUDA_H
#define TRF_STAGING_CUDA_H

#include "trf_staging.h"

extern const trf_copy_engine trf_cuda_copy_engine;

/* The engine's context for a device, which is current. Release with trf_cuda_copier_destroy. Errors: TRF_ERR_CUDA,
 * TRF_ERR_MEMORY. */
typedef struct trf_cuda_copier trf_cuda_copier;
trf_status trf_cuda_copier_create(int device, trf_cuda_copier **copier, trf_error *err);
void trf_cuda_copier_destroy(trf_cuda_copier *copier); /* NULL is allowed; the device is current */

/* The stream of its copies; and one for what is made of them on the device, which waits for no other, either. */
trf_stream trf_cuda_copier_stream(const trf_cuda_copier *copier);
trf_stream trf_cuda_copier_work_stream(const trf_cuda_copier *copier);

/* A trf_copy_back_fn; copier: a trf_cuda_copier. Does not wait for what streams have been given. */
trf_status trf_cuda_copy_back(void *copier, void *to_host, const void *from, uint64_t bytes, trf_error *err);

#endif
