/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as the safetensors file of a source, compresses it, verifies the result against the source, and
 * decompresses that. What can be opened and is not compressed must come back: with a lossless codec byte for byte,
 * unless its header is laid out otherwise than ours.
 *
 * The first byte says how to encode; the file follows. */
#include "fuzz_file.h"

#include "fuzz_bytes.h"
#include "fuzz_mutate_checkpoint.h"
#include "fuzz_small_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static trf_checkpoint_options options_of(uint32_t how) {
    trf_checkpoint_options options = fuzz_checkpoint_options();
    options.encode.favor = how & 1 ? TRF_FAVOR_SIZE : TRF_FAVOR_SPEED;
    options.encode.codec = how & 2 ? TRF_CODEC_INT : TRF_CODEC_AUTO;
    options.encode.bits = how & 4 ? 2 + how / 32 % 7 : 0;
    options.encode.slab_cols = how & 8 ? 128 : 0;
    options.embeddings = how >> 4 & 1;
    return options;
}

/* Whether the file is no source: it is compressed, or cannot be opened. */
static int is_no_source(const char *path) {
    trf_checkpoint *checkpoint;
    trf_tensor_info info;
    int compressed = 0;
    if (trf_checkpoint_open(path, &checkpoint, NULL) != TRF_OK)
        return 1;
    for (uint64_t i = 0; i < trf_checkpoint_num_tensors(checkpoint); i++)
        compressed |= trf_checkpoint_tensor(checkpoint, i, &info, NULL) != TRF_OK || info.compressed;
    trf_checkpoint_close(checkpoint);
    return compressed;
}

static void come_back(const char *source, uint32_t how) {
    const trf_checkpoint_options options = options_of(how);
    const fuzz_path compressed = fuzz_path_of("compressed.safetensors"), back = fuzz_path_of("back.safetensors");
    trf_checkpoint_report report;
    trf_error err;
    const trf_status status = trf_compress_checkpoint(source, compressed.text, &options, &report, &err);
    if (status == TRF_OK) {
        fuzz_expect(trf_verify_checkpoint(compressed.text, source, &options, &report, &err), &err);
        fuzz_expect(trf_decompress_checkpoint(compressed.text, back.text, &options, &report, &err), &err);
        if (!(how & 2))
            fuzz_expect(trf_verify_checkpoint(compressed.text, back.text, &options, &report, &err), &err);
        fuzz_remove(compressed.text);
        fuzz_remove(back.text);
    } else if (access(compressed.text, F_OK) == 0) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_bytes bytes = {data, size};
    const uint32_t how = fuzz_take(&bytes);
    const fuzz_path source = fuzz_path_of("source.safetensors");
    fuzz_write(source.text, bytes.left ? bytes.at : data, bytes.left);
    if (!is_no_source(source.text))
        come_back(source.text, how);
    return 0;
}

/* The header's text, or anything. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    const size_t mutated = seed % 2 && size > 9 ? fuzz_mutate_header(data + 1, size - 1, max_size - 1) : 0;
    if (mutated > 0)
        return mutated + 1;
    return LLVMFuzzerMutate ? LLVMFuzzerMutate(data, size, max_size) : size;
}
