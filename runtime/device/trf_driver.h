/* SPDX-License-Identifier: Apache-2.0 */
/* What to say where the NVIDIA driver is too old for the CUDA runtime of this build. No CUDA in here. */
#ifndef TRF_DRIVER_H
#define TRF_DRIVER_H

#include "trf_error.h"

/* Where the driver's kernel module says what version it has. */
#define TRF_DRIVER_MODULE_FILE "/proc/driver/nvidia/version"

/* Fails with TRF_ERR_DEVICE, and names the driver that is there and the one that is needed. cuda_found: the newest CUDA
 * that the driver is for, cuda_needed: the runtime's, both as 12040 for 12.4. module_file: TRF_DRIVER_MODULE_FILE; it
 * may be missing. */
trf_status trf_fail_old_driver(int cuda_found, int cuda_needed, const char *module_file, trf_error *err);

#endif
