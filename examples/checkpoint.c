/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint's life: compressed, listed, one layer taken out as a .trf file, verified against its source, and
 * decompressed again.
 *
 * Usage: example_checkpoint SOURCE FOLDER
 *   SOURCE    a .safetensors file that is not compressed
 *   FOLDER    gets compressed.safetensors, layer.trf and decompressed.safetensors */
#include "transfuse.h"

#include <stdio.h>
#include <stdlib.h>

static void check(trf_status status, const trf_error *err) {
    if (status == TRF_OK)
        return;
    fprintf(stderr, "%s [%s]\n", err->message, trf_status_name(status));
    exit(1);
}

/* Nonzero would stop the work. */
static int print_progress(void *context, const char *tensor, uint64_t done_bytes, uint64_t total_bytes) {
    (void)tensor;
    *(double *)context = total_bytes ? 100.0 * (double)done_bytes / (double)total_bytes : 100;
    return 0;
}

static void compress(const char *source, const char *path) {
    trf_checkpoint_options options;
    trf_checkpoint_report report;
    trf_error err;
    double percent = 0;
    trf_checkpoint_options_init(&options);
    options.encode.favor = TRF_FAVOR_SIZE;
    options.overwrite = 1;
    options.progress = print_progress;
    options.progress_context = &percent;
    check(trf_compress_checkpoint(source, path, &options, &report, &err), &err);
    printf("compressed %llu of %llu tensors: %llu bytes instead of %llu, %.0f %% done\n",
           (unsigned long long)report.compressed_tensors, (unsigned long long)report.tensors,
           (unsigned long long)report.output_bytes, (unsigned long long)report.source_bytes, percent);
}

/* Lists a compressed checkpoint. first: receives the name of the first tensor that is compressed, or "". */
static void list(const char *path, char first[512]) {
    trf_checkpoint *checkpoint;
    trf_error err;
    *first = 0;
    check(trf_checkpoint_open(path, &checkpoint, &err), &err);
    for (uint64_t i = 0; i < trf_checkpoint_num_tensors(checkpoint); i++) {
        trf_tensor_info info;
        check(trf_checkpoint_tensor(checkpoint, i, &info, &err), &err);
        printf("%s: %llu bytes of %s as %llu%s%s\n", info.name, (unsigned long long)info.source_bytes, info.dtype,
               (unsigned long long)info.bytes, info.compressed ? " by codec " : "",
               info.compressed ? trf_codec_name(info.layer.codec) : "");
        if (info.compressed && !*first)
            snprintf(first, 512, info.num_dims == 3 ? "%s[0]" : "%s", info.name);
    }
    trf_checkpoint_close(checkpoint);
}

static void extract(const char *path, const char *tensor, const char *layer_path) {
    trf_layer *layer;
    trf_layer_info info;
    trf_error err;
    check(trf_extract_layer(path, tensor, layer_path, 1, &err), &err);
    check(trf_layer_open(layer_path, &layer, &err), &err);
    trf_layer_get_info(layer, &info);
    printf("extracted %s: %u x %u %s\n", tensor, info.rows, info.cols, trf_dtype_name(info.dtype));
    trf_layer_free(layer);
}

int main(int argc, char **argv) {
    char compressed[1024], layer[1024], decompressed[1024], first[512];
    trf_checkpoint_options options;
    trf_error err;
    if (argc != 3) {
        fprintf(stderr, "usage: %s SOURCE FOLDER\n", argv[0]);
        return 2;
    }
    snprintf(compressed, sizeof compressed, "%s/compressed.safetensors", argv[2]);
    snprintf(layer, sizeof layer, "%s/layer.trf", argv[2]);
    snprintf(decompressed, sizeof decompressed, "%s/decompressed.safetensors", argv[2]);
    compress(argv[1], compressed);
    list(compressed, first);
    if (*first)
        extract(compressed, first, layer);
    check(trf_verify_checkpoint(compressed, argv[1], NULL, NULL, &err), &err);
    printf("verified: every tensor is its source's, bit for bit\n");
    trf_checkpoint_options_init(&options);
    options.overwrite = 1;
    check(trf_decompress_checkpoint(compressed, decompressed, &options, NULL, &err), &err);
    printf("decompressed\n");
    return 0;
}
