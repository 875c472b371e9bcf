/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding on the device: every weight that trf_device_layer_decode writes is the one that the CPU decodes, bit for
 * bit, for every codec, scale layout, shape and kind of output; and nothing else is written. */
#include "gpu_layers.h"

#include "trf_number_formats.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Compares everything at once, and makes a message only if it differs. */
static void check_bytes(const gpu_layer *layer, const void *found, const void *expected, size_t element_bytes,
                        const char *what) {
    size_t count = (size_t)layer->info.rows * layer->info.cols, wrong = 0, first = 0;
    if (memcmp(found, expected, count * element_bytes) == 0)
        return;
    for (size_t i = count; i-- > 0;)
        if (memcmp((const char *)found + i * element_bytes, (const char *)expected + i * element_bytes,
                   element_bytes)) {
            wrong++;
            first = i;
        }
    uint32_t a = 0, b = 0;
    memcpy(&a, (const char *)found + first * element_bytes, element_bytes);
    memcpy(&b, (const char *)expected + first * element_bytes, element_bytes);
    ck_abort_msg("%s: %s: %zu of %zu differ; the first at row %zu, column %zu: 0x%X, not 0x%X", layer->name, what,
                 wrong, count, first / layer->info.cols, first % layer->info.cols, a, b);
}

/* Decodes as `as` to memory that was filled with 0xFF. */
static void decode(const gpu_layer *layer, trf_decode_as as, size_t element_bytes, void *found, trf_stream stream) {
    gpu_memory memory = gpu_memory_make((uint64_t)layer->info.rows * layer->info.cols * element_bytes);
    trf_error err = {0};
    gpu_check(trf_device_layer_decode(layer->device, as, memory.at, memory.bytes, stream, &err), TRF_OK, &err,
              layer->name);
    gpu_memory_read(&memory, found);
    gpu_memory_free(&memory);
}

static void check_source(const gpu_layer *layer, trf_stream stream) {
    const size_t element_bytes = trf_dtype_bytes(layer->info.dtype);
    const size_t bytes = (size_t)layer->info.rows * layer->info.cols * element_bytes;
    void *expected = gpu_malloc(bytes), *found = gpu_malloc(bytes);
    trf_error err = {0};
    gpu_check(trf_layer_decode(layer->host, expected, bytes, 0, &err), TRF_OK, &err, layer->name);
    decode(layer, TRF_DECODE_SOURCE, element_bytes, found, stream);
    check_bytes(layer, found, expected, element_bytes, "as its source");
    free(expected);
    free(found);
}

static void check_elements(const gpu_layer *layer, trf_stream stream) {
    uint16_t *found = gpu_malloc((size_t)layer->info.rows * layer->info.cols * 2);
    decode(layer, TRF_DECODE_ELEMENTS, 2, found, stream);
    check_bytes(layer, found, layer->elements, 2, "as elements");
    free(found);
}

static int is_nan16(uint16_t bits, trf_decode_as as) {
    return (bits & 0x7FFF) > (as == TRF_DECODE_BF16 ? 0x7F80 : 0x7C00);
}

/* Expects the value, rounded once. It does not matter which NaN a NaN becomes. */
static void check_rounded(const gpu_layer *layer, trf_decode_as as, trf_stream stream) {
    const size_t count = (size_t)layer->info.rows * layer->info.cols;
    uint16_t *found = gpu_malloc(count * 2), *expected = gpu_malloc(count * 2);
    decode(layer, as, 2, found, stream);
    for (uint32_t row = 0; row < layer->info.rows; row++)
        for (uint32_t col = 0; col < layer->info.cols; col++) {
            size_t i = (size_t)row * layer->info.cols + col;
            double value = gpu_layer_weight(layer, row, col);
            expected[i] = as == TRF_DECODE_BF16 ? trf_f64_to_bf16(value) : trf_f64_to_f16(value);
            if (isnan(value) && is_nan16(found[i], as))
                expected[i] = found[i];
        }
    check_bytes(layer, found, expected, 2, as == TRF_DECODE_BF16 ? "as BF16" : "as F16");
    free(found);
    free(expected);
}

static void check_layer(const gpu_layer *layer) {
    static const trf_decode_as kinds[] = {TRF_DECODE_BF16, TRF_DECODE_F16};
    static const trf_codec others[] = {TRF_CODEC_FP16, TRF_CODEC_BF16};
    trf_error err = {0};
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check_source(layer, NULL);
    check_elements(layer, stream);
    for (int i = 0; i < 2; i++)
        if (trf_element_codec(layer->info.codec, layer->info.dtype) != others[i])
            check_rounded(layer, kinds[i], i ? stream : NULL);
    CUDA(cudaStreamDestroy(stream));
    gpu_check(trf_device_layer_check(layer->device, &err), TRF_OK, &err, layer->name);
}

/* ---- the layers ---- */

static const gpu_shape kShapes[] = {
    {1, 1},    {15, 300}, {33, 65},   {300, 515}, {256, 256}, {272, 320},  {16, 16}, {32, 64}, {80, 144},   {31, 4096},
    {48, 272}, {64, 128}, {17, 8192}, {288, 800}, {257, 256}, {512, 2880}, {1, 700}, {700, 1}, {1000, 1030}};
enum {
    SHAPES = sizeof kShapes / sizeof kShapes[0],
    QUICK_SHAPES = 6 /* the first ones */
};

START_TEST(every_codec_and_shape) {
    const gpu_recipe *recipe = &kGpuRecipes[_i];
    const int shapes = test_quick() ? QUICK_SHAPES : SHAPES;
    test_rng rng = {1000 + (uint64_t)_i};
    for (int s = 0; s < shapes; s++)
        for (trf_favor favor = TRF_FAVOR_SPEED; favor <= TRF_FAVOR_SIZE; favor++)
            for (gpu_weight_kind kind = GPU_WEIGHTS_NORMAL; kind <= GPU_WEIGHTS_PATTERNS; kind++)
                for (uint32_t w = 0; w < GPU_NUM_SLAB_COLS; w++) {
                    int scaled = recipe->codec == TRF_CODEC_INT; /* the quantizer does not take other weights */
                    if ((scaled && kind != GPU_WEIGHTS_NORMAL) || (test_quick() && (s + favor + kind + w) % 2))
                        continue;
                    gpu_layer layer = gpu_layer_make(&rng, recipe, favor, kGpuSlabCols[w], kShapes[s], kind);
                    check_layer(&layer);
                    gpu_layer_free(&layer);
                }
}
END_TEST

/* Enough tiles for every block and multiprocessor. */
START_TEST(large_layers) {
    static const gpu_shape shape = {2048, 5632}, small = {600, 700};
    test_rng rng = {2000 + (uint64_t)_i};
    trf_favor favor = (trf_favor)(_i % 2);
    const uint32_t slab_cols = kGpuSlabCols[_i / 2 / GPU_RECIPES];
    gpu_layer layer = gpu_layer_make(&rng, &kGpuRecipes[_i / 2 % GPU_RECIPES], favor, slab_cols,
                                     test_quick() ? small : shape, GPU_WEIGHTS_FINITE);
    check_layer(&layer);
    gpu_layer_free(&layer);
}
END_TEST

/* Rows and columns have very different magnitudes, and so exponent offsets. */
START_TEST(exponent_offsets) {
    static const trf_dtype dtypes[] = {TRF_DTYPE_BF16, TRF_DTYPE_F16};
    const trf_dtype dtype = dtypes[_i % 2];
    const uint32_t rows = test_quick() ? 290 : 768, cols = test_quick() ? 530 : 1040, reach = _i % 2 ? 5 : 12;
    const int modes = 1 + _i / 2 % 3;
    test_rng rng = {3000 + (uint64_t)_i};
    int *row_scale = gpu_malloc(rows * sizeof *row_scale), *col_scale = gpu_malloc(cols * sizeof *col_scale);
    uint16_t *weights = gpu_malloc((size_t)rows * cols * 2);
    for (uint32_t r = 0; r < rows; r++)
        row_scale[r] = modes & 1 ? (int)test_below(&rng, reach) : 0;
    for (uint32_t c = 0; c < cols; c++)
        col_scale[c] = modes & 2 ? (int)test_below(&rng, reach) : 0;
    for (size_t i = 0; i < (size_t)rows * cols; i++)
        test_put_weight(weights, dtype, i, ldexp(0.05 * test_normal(&rng), row_scale[i / cols] - col_scale[i % cols]));
    for (int k = 0; k < 2 * GPU_NUM_SLAB_COLS; k++) {
        const trf_favor favor = (trf_favor)(k / GPU_NUM_SLAB_COLS);
        trf_encode_options options;
        trf_error err = {0};
        void *blob;
        uint64_t blob_bytes;
        trf_encode_options_init(&options);
        options.favor = favor;
        options.slab_cols = kGpuSlabCols[k % GPU_NUM_SLAB_COLS];
        const trf_matrix matrix = test_matrix(weights, dtype, rows, cols);
        gpu_check(trf_encode_layer(&matrix, &options, &blob, &blob_bytes, NULL, &err), TRF_OK, &err, "encode");
        gpu_layer layer = gpu_layer_of_blob("exponent offsets", blob, blob_bytes);
        check_layer(&layer);
        gpu_layer_free(&layer);
    }
    free(row_scale);
    free(col_scale);
    free(weights);
}
END_TEST

START_TEST(golden_files) {
    json_error_t error;
    json_t *list = json_load_file(TRF_TEST_DATA_DIR "/golden/golden.json", JSON_REJECT_DUPLICATES, &error), *entry;
    ck_assert_msg(list != NULL, "golden.json: %s", error.text);
    const char *name;
    json_object_foreach(list, name, entry) {
        gpu_layer layer = gpu_layer_of_golden(name);
        check_layer(&layer);
        gpu_layer_free(&layer);
    }
    json_decref(list);
}
END_TEST

/* loop: recipes bf16 and fp16; slabs of either width; favors. */
START_TEST(gathered_rows) {
    if (test_quick() && _i % 4 != _i / 4)
        return;
    const uint32_t slab_cols = kGpuSlabCols[_i / 2 % 2];
    test_rng rng = {4000 + (uint64_t)_i};
    gpu_layer layer = gpu_layer_make(&rng, &kGpuRecipes[_i / 4], (trf_favor)(_i % 2), slab_cols,
                                     gpu_gathered_shape(slab_cols), GPU_WEIGHTS_NORMAL);
    check_layer(&layer);
    gpu_layer_free(&layer);
}
END_TEST

int main(void) {
    const gpu_test tests[] = {{every_codec_and_shape, GPU_RECIPES},
                              {large_layers, 2 * GPU_RECIPES * GPU_NUM_SLAB_COLS},
                              {exponent_offsets, 6},
                              {golden_files, 1},
                              {gathered_rows, 8}};
    return gpu_main("decode", tests, sizeof tests / sizeof tests[0]);
}
