/* SPDX-License-Identifier: Apache-2.0 */
/* The message for an NVIDIA driver that is too old for the CUDA runtime of this build. No CUDA in here. */
#ifndef TRF_DRIVER_H
#define TRF_DRIVER_H

#include "trf_error.h"

/* The file in which the driver's kernel module states its version. */
#define TRF_DRIVER_MODULE_FILE "/proc/driver/nvidia/version"

/* Fails with TRF_ERR_DEVICE, and names the driver that is installed and the one that is needed. cuda_found: the newest
 * CUDA that the driver supports; cuda_needed: the runtime's; both are written as 12040 for 12.4. module_file:
 * TRF_DRIVER_MODULE_FILE; it may be missing. */
trf_status trf_fail_old_driver(int cuda_found, int cuda_needed, const char *module_file, trf_error *err);

#endif
