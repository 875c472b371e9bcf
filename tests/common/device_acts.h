/* SPDX-License-Identifier: Apache-2.0 */
/* What programs do with a device, in acts, which a test repeats while one call after another fails beneath them: every
 * allocation of the library's on the CPU (tests/unit/test_acts_no_memory.c), every call of CUDA on a GPU
 * (tests/gpu/test_gpu_failing_calls.c). tests/structure/test_failing_functions.py sees to it that every public function
 * that can fail is in an act, or in another test of failures. */
#ifndef DEVICE_ACTS_H
#define DEVICE_ACTS_H

#include "transfuse.h"

/* It makes no assertions, since Check allocates. */
typedef struct device_act {
    const char *name;
    trf_status (*act)(void);
} device_act;

extern const device_act kDeviceActs[];
extern const int kNumDeviceActs;

/* The last error of an act. */
extern trf_error device_act_error;

/* Makes the layers and files that acts use; this and device_acts_end are Check's unchecked fixtures. Uses `device`, and
 * ends the test where something fails. */
void device_acts_begin(int device);
void device_acts_end(void);

/* Does an act, and destroys all that it made, also where it fails. *digest: of everything that it computed and read;
 * equal runs have equal ones. */
trf_status device_act_do(const device_act *act, uint64_t *digest);

#endif
