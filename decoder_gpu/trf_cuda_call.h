/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for calling CUDA from the host: errors become statuses, and the current device is restored. */
#ifndef TRF_CUDA_CALL_H
#define TRF_CUDA_CALL_H

#include "trf_error.h"

/* Turns a cudaError_t into a status: TRF_OK, TRF_ERR_MEMORY if the device has no memory left, else TRF_ERR_CUDA. Clears
 * the runtime's record of the error, so that a later launch is not blamed for it. doing: what the call was to do, for
 * the message. */
trf_status trf_check_cuda(int error, const char *doing, trf_error *err);

/* For a call whose failure changes nothing, such as waiting before memory is released: clears the record, too. */
void trf_pass_over_cuda(int error);

/* The device that was current before trf_enter_device. */
typedef struct trf_device_scope {
    int previous, device;
} trf_device_scope;

/* Makes `device` current for the calling thread until trf_leave_device. That must follow a success and may follow a
 * failure, so that clean-up can go on if a device is lost. It costs next to nothing if the device is current already,
 * and is allowed while a stream is captured. Errors: TRF_ERR_CUDA. */
trf_status trf_enter_device(int device, trf_device_scope *scope, trf_error *err);
void trf_leave_device(const trf_device_scope *scope);

#endif
