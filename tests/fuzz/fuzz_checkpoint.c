/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as a checkpoint (a safetensors file, compressed or not, or a .trf file), opens, lists, verifies and
 * decompresses it. Checksums are corrected first. What verifies must decompress, and only to a file that can be
 * read. */
#include "fuzz_file.h"

#include "fuzz_folder.h"
#include "fuzz_mutate_checkpoint.h"
#include "transfuse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void list_tensors(trf_checkpoint *checkpoint) {
    trf_tensor_info info;
    trf_error err;
    for (uint64_t i = 0; i < trf_checkpoint_num_tensors(checkpoint); i++)
        (void)trf_checkpoint_tensor(checkpoint, i, &info, &err);
}

/* Decompresses to a new file. */
static void decompress(const char *path, const trf_checkpoint_options *options, trf_status verified) {
    const fuzz_path out = fuzz_path_of("out.safetensors");
    trf_checkpoint_report report;
    trf_checkpoint *checkpoint;
    trf_error err;
    if (trf_decompress_checkpoint(path, out.text, options, &report, &err) == TRF_OK) {
        if (trf_checkpoint_open(out.text, &checkpoint, &err) != TRF_OK)
            abort();
        list_tensors(checkpoint);
        trf_checkpoint_close(checkpoint);
        fuzz_remove(out.text);
    } else if (verified == TRF_OK || access(out.text, F_OK) == 0) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *mended = malloc(size + 1);
    if (!mended)
        return 0;
    memcpy(mended, data, size);
    fuzz_mend_blobs(mended, size);
    const fuzz_file file = fuzz_file_of(mended, size);
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.threads = 1;
    trf_error err;
    trf_checkpoint *checkpoint;
    if (trf_checkpoint_open(file.path, &checkpoint, &err) == TRF_OK) {
        list_tensors(checkpoint);
        trf_checkpoint_close(checkpoint);
        trf_checkpoint_report report;
        const trf_status verified = trf_verify_checkpoint(file.path, NULL, &options, &report, &err);
        decompress(file.path, &options, verified);
    }
    close(file.fd);
    free(mended);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    return fuzz_mutate_checkpoint(data, size, max_size, seed);
}
