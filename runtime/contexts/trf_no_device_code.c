/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces the CUDA device in a build without device code. */
#include "trf_context_create.h"

trf_status trf_cuda_context_create(int device, trf_context **context, trf_error *err) {
    (void)device, (void)context;
    return trf_fail(err, TRF_ERR_DEVICE, TRF_NO_OFFSET, "this build has no device code");
}
