/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_driver.h"

#include <stdio.h>
#include <string.h>

enum {
    VERSION_BYTES = 32
};

/* The file's first line looks like "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar ...". version
 * becomes " " and that number, or "" if there is none. */
static void read_version(const char *module_file, char version[VERSION_BYTES]) {
    char line[256] = "";
    version[0] = 0;
    FILE *file = fopen(module_file, "r");
    if (!file)
        return;
    const char *number = fgets(line, sizeof line, file) ? strstr(line, "  ") : NULL;
    if (number && sscanf(number, " %30[0-9.]", version + 1) == 1)
        version[0] = ' ';
    fclose(file);
}

/* Names the oldest driver for a major version of CUDA. It serves all of its minor versions. */
static const char *name_needed(int cuda_major) {
    return cuda_major == 12 ? " (525.60.13 or newer)" : cuda_major == 13 ? " (580 or newer)" : "";
}

trf_status trf_fail_old_driver(int cuda_found, int cuda_needed, const char *module_file, trf_error *err) {
    char version[VERSION_BYTES];
    read_version(module_file, version);
    return trf_fail(err, TRF_ERR_DEVICE, TRF_NO_OFFSET,
                    "the NVIDIA driver%s is for CUDA %d.%d; this build has CUDA %d.%d, and needs a driver for CUDA "
                    "%d%s",
                    version, cuda_found / 1000, cuda_found % 1000 / 10, cuda_needed / 1000, cuda_needed % 1000 / 10,
                    cuda_needed / 1000, name_needed(cuda_needed / 1000));
}
