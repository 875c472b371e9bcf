/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as a checkpoint (a safetensors file, compressed or not, or a .trf file) and opens, lists and verifies
 * it. */
#include "fuzz_file.h"

#include "transfuse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const fuzz_file file = fuzz_file_of(data, size);
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.threads = 1;
    trf_error err;
    trf_checkpoint *checkpoint;
    if (trf_checkpoint_open(file.path, &checkpoint, &err) == TRF_OK) {
        trf_tensor_info info;
        for (uint64_t i = 0; i < trf_checkpoint_num_tensors(checkpoint); i++)
            (void)trf_checkpoint_tensor(checkpoint, i, &info, &err);
        trf_checkpoint_close(checkpoint);
        trf_checkpoint_report report;
        (void)trf_verify_checkpoint(file.path, NULL, &options, &report, &err);
    }
    close(file.fd);
    return 0;
}
