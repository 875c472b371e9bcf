/* Any bytes as a checkpoint: a safetensors file, compressed or not, or a .trf file. Opened, listed and verified. */
#define _GNU_SOURCE /* memfd_create */
#include "transfuse.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    int fd = memfd_create("checkpoint", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);

    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.threads = 1;
    trf_error err;
    trf_checkpoint *checkpoint;
    if (trf_checkpoint_open(path, &checkpoint, &err) == TRF_OK) {
        trf_tensor_info info;
        for (uint64_t i = 0; i < trf_checkpoint_num_tensors(checkpoint); i++)
            (void)trf_checkpoint_tensor(checkpoint, i, &info, &err);
        trf_checkpoint_close(checkpoint);
        trf_checkpoint_report report;
        (void)trf_verify_checkpoint(path, NULL, &options, &report, &err);
    }
    close(fd);
    return 0;
}
