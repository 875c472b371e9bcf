/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes made inputs and prints a hash of each blob and of what it decodes to; then the same of the golden blobs, and
 * of the files of a small checkpoint. Every build on every machine prints the same.
 *
 * Usage: same_bytes THREADS GOLDEN_FOLDER SCRATCH_FOLDER, where SCRATCH_FOLDER is empty and stays behind full.
 * TRF_SIMD in the environment limits the instruction set. */
#include "same_bytes.h"

#include "made_weights.h"
#include "trf_checksum.h"
#include "trf_decode.h"
#include "trf_log2.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int same_threads;

void same_check(trf_status status, const char *what, const trf_error *err) {
    if (status == TRF_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, trf_status_name(status), err->message);
    exit(1);
}

void same_print(const void *bytes, uint64_t size, const char *kind, const char *name) {
    printf("%016llx,%s,%s\n", (unsigned long long)trf_checksum_best()(bytes, size, 0), kind, name);
}

static void print_decoded(const trf_layer *layer, const char *name) {
    trf_error err = {0};
    trf_layer_info info;
    trf_layer_get_info(layer, &info);
    const uint64_t bytes = (uint64_t)info.rows * info.cols * trf_dtype_bytes(info.dtype);
    void *weights = malloc(bytes);
    same_check(weights ? TRF_OK : TRF_ERR_MEMORY, name, &err);
    same_check(trf_layer_decode(layer, weights, bytes, same_threads, &err), name, &err);
    same_print(weights, bytes, "decoded", name);
    free(weights);
}

/* ---- single layers ---- */

typedef struct layer_case {
    trf_dtype dtype;
    made_kind kind;
    uint32_t rows, cols;
    trf_encode_options options;
} layer_case;

static void encode_case(const layer_case *of, uint32_t seed) {
    static const char *const kKinds[MADE_KINDS] = {"trained", "rows",     "cols",       "patterns", "zeros",
                                                   "bell",    "outliers", "fp8_tensor", "fp8_rows", "fp8_blocks"};
    const trf_encode_options *o = &of->options;
    char name[200];
    snprintf(name, sizeof name, "%s_%s_%ux%u_%s_%s_slabs%u_p%u_bits%d_scales%d_%u", trf_dtype_name(of->dtype),
             kKinds[of->kind], of->rows, of->cols, trf_codec_name(o->codec),
             o->favor == TRF_FAVOR_SIZE ? "size" : "speed", o->slab_cols, o->probability_bits, (int)(10 * o->bits),
             (int)o->granularity, o->scale_group_size);
    trf_error err = {0};
    trf_matrix matrix;
    trf_matrix_init(&matrix);
    void *weights = malloc((size_t)of->rows * of->cols * trf_dtype_bytes(of->dtype)), *blob;
    same_check(weights ? TRF_OK : TRF_ERR_MEMORY, name, &err);
    made_fill(weights, of->dtype, of->kind, of->rows, of->cols, seed);
    matrix.weights = weights;
    matrix.dtype = of->dtype;
    matrix.rows = of->rows;
    matrix.cols = of->cols;
    uint64_t blob_bytes;
    trf_layer *layer;
    same_check(trf_encode_layer(&matrix, o, &blob, &blob_bytes, NULL, &err), name, &err);
    same_print(blob, blob_bytes, "encoded", name);
    same_check(trf_layer_from_memory(blob, blob_bytes, &layer, &err), name, &err);
    print_decoded(layer, name);
    trf_layer_free(layer);
    trf_free(blob);
    free(weights);
}

static layer_case make_case(trf_dtype dtype, made_kind kind, uint32_t rows, uint32_t cols) {
    layer_case made = {dtype, kind, rows, cols, {0}};
    trf_encode_options_init(&made.options);
    made.options.threads = same_threads;
    return made;
}

static const trf_dtype kFloats[] = {TRF_DTYPE_BF16, TRF_DTYPE_F16, TRF_DTYPE_F8_E4M3, TRF_DTYPE_F8_E5M2};

/* Each float type with both lane layouts, every width of slabs and number of probability bits, and odd shapes. */
static void encode_floats(void) {
    static const uint32_t kShapes[][2] = {{1, 1},    {16, 16},  {15, 300}, {257, 33}, {53, 131},
                                          {300, 19}, {1, 1300}, {64, 512}, {272, 273}};
    static const uint32_t kProbabilityBits[] = {0, 9, 10, 11, 12}, kSlabCols[] = {0, 128, 256};
    for (uint32_t i = 0; i < 72; i++) {
        const uint32_t *shape = kShapes[i % 9];
        layer_case of = make_case(kFloats[i % 4], MADE_TRAINED, shape[0], shape[1]);
        of.options.favor = i / 4 % 2 ? TRF_FAVOR_SIZE : TRF_FAVOR_SPEED;
        of.options.slab_cols = kSlabCols[i / 8 % 3];
        of.options.probability_bits = kProbabilityBits[i % 5];
        encode_case(&of, i);
    }
    for (uint32_t i = 0; i < 32; i++) {
        layer_case of = make_case(kFloats[i % 4], MADE_ROWS + i / 8, 193, 273);
        of.options.favor = i / 4 % 2 ? TRF_FAVOR_SIZE : TRF_FAVOR_SPEED;
        encode_case(&of, 100 + i);
    }
    layer_case rounded = make_case(TRF_DTYPE_F32, MADE_TRAINED, 100, 272);
    rounded.options.codec = TRF_CODEC_BF16;
    encode_case(&rounded, 200);
    layer_case large = make_case(TRF_DTYPE_BF16, MADE_ROWS, 600, 1100);
    encode_case(&large, 201);
    large.options.favor = TRF_FAVOR_SIZE;
    encode_case(&large, 202);
    for (made_kind kind = MADE_FP8_TENSOR; kind <= MADE_FP8_BLOCKS; kind++) {
        layer_case fp8 = make_case(TRF_DTYPE_BF16, kind, 272, 300);
        fp8.options.codec = TRF_CODEC_E4M3;
        encode_case(&fp8, 210 + kind);
        fp8.options.favor = TRF_FAVOR_SIZE;
        encode_case(&fp8, 220 + kind);
    }
}

/* The codec int, at several rates and with every kind of scales. */
static void encode_integers(void) {
    static const trf_dtype kDtypes[] = {TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16};
    static const double kBits[] = {0, 4.5, 3, 2, 6, 8};
    static const uint32_t kGroups[] = {16, 128};
    for (uint32_t i = 0; i < 12; i++) {
        layer_case of = make_case(kDtypes[i % 3], i % 2 ? MADE_OUTLIERS : MADE_BELL, i % 5 ? 96 : 17, i % 7 ? 272 : 75);
        of.options.codec = TRF_CODEC_INT;
        of.options.favor = i / 5 % 2 ? TRF_FAVOR_SIZE : TRF_FAVOR_SPEED;
        of.options.bits = kBits[i % 6];
        of.options.granularity = (trf_granularity)(i % 5);
        if (of.options.granularity >= TRF_GRANULARITY_SCALE_GROUP)
            of.options.scale_group_size = kGroups[i / 5 % 2];
        encode_case(&of, 300 + i);
    }
    layer_case large = make_case(TRF_DTYPE_F32, MADE_OUTLIERS, 400, 800);
    large.options.codec = TRF_CODEC_INT;
    large.options.bits = 4.5;
    large.options.granularity = TRF_GRANULARITY_TENSOR;
    encode_case(&large, 330);
    for (uint32_t i = 0; i < 4; i++) {
        layer_case of = make_case(TRF_DTYPE_I8, i < 2 ? MADE_BELL : MADE_OUTLIERS, 70, 290);
        of.options.favor = i % 2 ? TRF_FAVOR_SIZE : TRF_FAVOR_SPEED;
        encode_case(&of, 340 + i);
    }
}

/* The numbers that costs are made of: bytes seldom depend on their last bit, so it is looked at here. */
static void print_logarithms(void) {
    enum {
        COUNT = 1 << 14
    };
    static double logarithms[COUNT], ratios[COUNT], powers[COUNT];
    for (int i = 0; i < COUNT; i++) {
        logarithms[i] = trf_log2((i + 1) * 0x1p-7);
        ratios[i] = trf_log2((i + 2.0) / (i + 1.0));
        powers[i] = trf_exp2((i - COUNT / 2) * 0x1.8p-9);
    }
    same_print(logarithms, sizeof logarithms, "computed", "log2");
    same_print(ratios, sizeof ratios, "computed", "log2_of_ratios");
    same_print(powers, sizeof powers, "computed", "exp2");
}

/* ---- golden blobs ---- */

static void decode_golden(const char *folder) {
    char pattern[4096];
    glob_t files;
    snprintf(pattern, sizeof pattern, "%s/*.trf", folder);
    if (glob(pattern, 0, NULL, &files) != 0) {
        fprintf(stderr, "no golden blobs in %s\n", folder);
        exit(1);
    }
    for (size_t i = 0; i < files.gl_pathc; i++) {
        trf_error err = {0};
        trf_layer *layer;
        same_check(trf_layer_open(files.gl_pathv[i], &layer, &err), files.gl_pathv[i], &err);
        print_decoded(layer, strrchr(files.gl_pathv[i], '/') + 1);
        trf_layer_free(layer);
    }
    globfree(&files);
}

int main(int argc, char **argv) {
    if (argc != 4 || (same_threads = atoi(argv[1])) < 1) {
        fprintf(stderr, "usage: same_bytes THREADS GOLDEN_FOLDER SCRATCH_FOLDER\n");
        return 2;
    }
    fprintf(stderr, "%s\n", trf_decode_tile_best_name());
    print_logarithms();
    encode_floats();
    encode_integers();
    decode_golden(argv[2]);
    same_checkpoint(argv[3]);
    return 0;
}
