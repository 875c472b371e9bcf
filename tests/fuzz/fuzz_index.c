/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as a model.safetensors.index.json of a small model. An index that fits is rewritten for the
 * compressed model, and must come back from that byte for byte. */
#include "fuzz_file.h"

#include "fuzz_small_model.h"
#include "trf_checkpoint_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The model's file and what it is compressed; both are named model.safetensors. */
typedef struct index_files {
    trf_checkpoint_file source, compressed;
} index_files;

static const index_files *find_files(void) {
    static index_files files;
    if (files.source.path)
        return &files;
    const fuzz_path source = fuzz_path_of("source"), compressed = fuzz_path_of("compressed"),
                    source_file = fuzz_path_of("source/model.safetensors"),
                    compressed_file = fuzz_path_of("compressed/model.safetensors");
    const trf_checkpoint_options options = fuzz_checkpoint_options();
    trf_error err;
    fuzz_make_model_folder(source.text);
    fuzz_expect(trf_compress_checkpoint(source.text, compressed.text, &options, NULL, &err), &err);
    fuzz_expect(trf_checkpoint_file_open(source_file.text, &files.source, &err), &err);
    fuzz_expect(trf_checkpoint_file_open(compressed_file.text, &files.compressed, &err), &err);
    return &files;
}

static void check_comes_back(const trf_checkpoint_index *index, const uint8_t *data, size_t size) {
    const index_files *files = find_files();
    char *text, *back;
    size_t bytes, back_bytes;
    trf_error err;
    fuzz_expect(trf_checkpoint_index_rewrite(index, &files->source, &files->compressed, 1, &text, &bytes, &err), &err);
    const fuzz_file file = fuzz_file_of((const uint8_t *)text, bytes);
    trf_checkpoint_index compressed;
    fuzz_expect(trf_checkpoint_index_open(file.path, &compressed, &err), &err);
    fuzz_expect(trf_checkpoint_index_check(&compressed, &files->compressed, 1, &err), &err);
    fuzz_expect(trf_checkpoint_index_check_kept(&compressed, &files->compressed, 1, &err), &err);
    fuzz_expect(
        trf_checkpoint_index_rewrite(&compressed, &files->compressed, &files->source, 1, &back, &back_bytes, &err),
        &err);
    if (back_bytes != size || memcmp(back, data, size) != 0)
        abort();
    trf_checkpoint_index_free(&compressed);
    close(file.fd);
    free(text);
    free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const index_files *files = find_files();
    const fuzz_file file = fuzz_file_of(data, size);
    trf_checkpoint_index index;
    trf_error err;
    if (trf_checkpoint_index_open(file.path, &index, &err) == TRF_OK) {
        char *text;
        size_t bytes;
        if (!trf_checkpoint_index_why_idle(&index, &files->source, 1) &&
            trf_checkpoint_index_check(&index, &files->source, 1, &err) == TRF_OK)
            check_comes_back(&index, data, size);
        /* The index of a compressed model is a stranger's, too. */
        if (!trf_checkpoint_index_why_idle(&index, &files->compressed, 1) &&
            trf_checkpoint_index_check(&index, &files->compressed, 1, &err) == TRF_OK) {
            (void)trf_checkpoint_index_check_kept(&index, &files->compressed, 1, &err);
            if (trf_checkpoint_index_rewrite(&index, &files->compressed, &files->source, 1, &text, &bytes, &err) ==
                TRF_OK)
                free(text);
        }
        trf_checkpoint_index_free(&index);
    }
    close(file.fd);
    return 0;
}
