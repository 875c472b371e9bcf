/* SPDX-License-Identifier: Apache-2.0 */
/* Writes blobs that the encoder makes to a folder, as seeds for fuzz targets: all codecs, small layers, both favors and
 * both widths of slabs. */
#include "common/test_weights.h"
#include "transfuse.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct seed_kind {
    const char *name;
    trf_dtype dtype;
    trf_codec codec;
    uint32_t rows, cols, bytes; /* of a weight */
} seed_kind;

static const seed_kind kKinds[] = {
    {"bf16", TRF_DTYPE_BF16, TRF_CODEC_BF16, 64, 64, 2},    {"bf16", TRF_DTYPE_BF16, TRF_CODEC_BF16, 64, 320, 2},
    {"bf16", TRF_DTYPE_BF16, TRF_CODEC_BF16, 40, 72, 2},    {"fp16", TRF_DTYPE_F16, TRF_CODEC_FP16, 64, 96, 2},
    {"e4m3", TRF_DTYPE_F8_E4M3, TRF_CODEC_E4M3, 64, 96, 1}, {"e5m2", TRF_DTYPE_F8_E5M2, TRF_CODEC_E5M2, 64, 96, 1},
    {"int", TRF_DTYPE_BF16, TRF_CODEC_INT, 64, 96, 2},
};

static int write_seed(const char *folder, const seed_kind *kind, trf_favor favor, uint32_t slab_cols) {
    const size_t weights = (size_t)kind->rows * kind->cols;
    test_rng rng = {kind->rows + slab_cols};
    void *values = malloc(weights * kind->bytes), *blob;
    uint64_t bytes;
    trf_encode_options options;
    trf_encode_options_init(&options);
    options.codec = kind->codec;
    options.favor = favor;
    options.slab_cols = slab_cols;
    if (!values)
        return 0;
    test_fill_normal(&rng, values, kind->dtype, weights, 0.02);
    const trf_matrix matrix = {sizeof matrix, values, kind->dtype, kind->rows, kind->cols};
    trf_error err;
    if (trf_encode_layer(&matrix, &options, &blob, &bytes, NULL, &err) != TRF_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 0;
    }
    char path[1024];
    snprintf(path, sizeof path, "%s/%s_%ux%u_%s_%u.trf", folder, kind->name, kind->rows, kind->cols,
             favor == TRF_FAVOR_SIZE ? "pairs" : "quads", slab_cols);
    FILE *file = fopen(path, "wb");
    const int written = file && fwrite(blob, 1, bytes, file) == bytes;
    if (!file || fclose(file) != 0 || !written)
        perror(path);
    free(values);
    trf_free(blob);
    return written;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: make_fuzz_seeds FOLDER\n");
        return 2;
    }
    int written = 1;
    for (size_t k = 0; k < sizeof kKinds / sizeof *kKinds; k++)
        for (int way = 0; way < 4; way++)
            written &= write_seed(argv[1], &kKinds[k], way % 2 ? TRF_FAVOR_SIZE : TRF_FAVOR_SPEED, way / 2 ? 128 : 256);
    return !written;
}
