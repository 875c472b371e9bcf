/* SPDX-License-Identifier: Apache-2.0 */
/* What `transfuse verify --device` does: loads each compressed layer, and compares it with its checksums where it lies
 * in device memory. */
#ifndef CLI_DEVICE_CHECK_H
#define CLI_DEVICE_CHECK_H

#include "cli_options.h"

typedef struct cli_device_check {
    char device[256];
    uint64_t layers, bytes; /* that were verified, experts one by one; bytes of device memory */
    uint64_t coded;         /* of them, those that --layout does not take, which were loaded coded */
    double seconds;         /* in which those bytes were verified, without loading */
} cli_device_check;

/* Checks the checkpoint that is the command's argument, on the context's device and in the layout that the options
 * name. @return CLI_OK, or the exit status after a message, which names the first layer that has changed. */
cli_exit cli_check_on_device(const cli_options *options, trf_context *context, cli_device_check *check);

#endif
