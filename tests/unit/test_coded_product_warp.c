/* SPDX-License-Identifier: Apache-2.0 */
/* Products of coded layers of scaled FP8 as fused kernels compute them, in an emulated block: with unit vectors as x,
 * each sum is a weight, bit for bit. */
#include <stdio.h>

#ifndef TRF_HAVE_WARP_WALK
int main(void) {
    puts("skipped: kernels are not emulated in this build");
    return 77;
}
#else
#include "common/expect.h"
#include "common/host_view.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/was_fp8.h"
#include "trf_edges.h"
#include "trf_layer.h"
#include "trf_number_formats.h"
#include "trf_product_request.h"
#include "trf_slab_directory.h"
#include "warp/warp_coded_product.h"

#include <check.h>
#include <math.h>

enum {
    ROWS_OF_X = 8
};

static trf_error err;

/* ---- a layer, and its products ---- */

typedef struct tested_layer {
    trf_layer *layer;
    host_view *host;
    trf_layer_traits traits;
    uint16_t *weights; /* as the CPU decodes them */
} tested_layer;

static tested_layer open_layer(const void *blob, uint64_t blob_bytes) {
    tested_layer t = {0};
    ck_assert_msg(trf_layer_from_memory(blob, blob_bytes, &t.layer, &err) == TRF_OK, "%s", err.message);
    const trf_header *header = &t.layer->view.header;
    const size_t bytes = (size_t)header->rows * header->cols * sizeof *t.weights;
    t.weights = malloc(bytes);
    trf_device_slab *slabs = calloc(trf_count_device_slabs(header), sizeof *slabs);
    EXPECT(t.weights && slabs);
    ck_assert_msg(trf_layer_decode(t.layer, t.weights, bytes, 1, &err) == TRF_OK, "%s", err.message);
    trf_describe_layer(t.layer, slabs, &t.traits);
    free(slabs);
    t.host = host_view_make(&t.layer->view, blob, blob_bytes);
    return t;
}

static void close_layer(tested_layer *t) {
    host_view_free(t->host);
    trf_layer_free(t->layer);
    free(t->weights);
}

static const char *refusal_of(const tested_layer *t) {
    return trf_fragment_refusal(&t->host->view, &t->traits, TRF_DTYPE_BF16);
}

/* Whether a weight is one of a regular slab, which the kernel multiplies by. */
static int is_multiplied(const trf_device_view *view, uint32_t row, uint32_t col) {
    const uint32_t panel = col / view->slab_cols, left = view->cols - panel * view->slab_cols;
    return row / TRF_SLAB_ROWS < view->rows / TRF_SLAB_ROWS && (left >= view->slab_cols || left / 16 % 4 == 0) &&
           left >= 16 && col / 16 * 16 + 16 <= view->cols &&
           view->slabs[(size_t)(row / TRF_SLAB_ROWS) * view->num_panels + panel].rans_size_16;
}

/* Multiplies by the unit vectors of columns first to first + 7. */
static void check_columns(const tested_layer *t, warp_coded_product *product, uint16_t *x, uint32_t first,
                          const uint8_t *has_specials, const char *what) {
    const trf_device_view *view = &t->host->view;
    memset(x, 0, sizeof *x * ROWS_OF_X * product->x_stride);
    for (uint32_t n = 0; n < ROWS_OF_X && first + n < view->cols; n++)
        x[n * product->x_stride + first + n] = 0x3F80;
    warp_multiply_coded(product);
    for (uint32_t n = 0; n < ROWS_OF_X && first + n < view->cols; n++)
        for (uint32_t row = 0; row < view->rows / TRF_SLAB_ROWS * TRF_SLAB_ROWS; row++) {
            const uint16_t weight = t->weights[(size_t)row * view->cols + first + n];
            const float due = is_multiplied(view, row, first + n) ? trf_bf16_to_f32(weight) : 0;
            const float found = product->y[(size_t)n * view->rows + row];
            if (has_specials[row] ? !isnan(found) && found != due : found != due)
                ck_abort_msg("%s%s%s: %ux%u, %u class bits, slabs of %u, modes %u: row %u column %u is %a, not %a",
                             what, product->two_slabs ? ", two slabs" : "", product->general ? ", general" : "",
                             view->rows, view->cols, view->class_bits, view->slab_cols, t->traits.predictor_modes, row,
                             first + n, (double)found, (double)due);
        }
}

/* Marks rows that have weights without a number, whose products are none. */
static uint8_t *find_specials(const tested_layer *t) {
    const trf_device_view *view = &t->host->view;
    uint8_t *has_specials = calloc(view->rows, 1);
    EXPECT(has_specials);
    for (uint32_t row = 0; row < view->rows; row++)
        for (uint32_t col = 0; col < view->cols; col++)
            has_specials[row] |= (t->weights[(size_t)row * view->cols + col] & 0x7F80) == 0x7F80;
    return has_specials;
}

/* Multiplies by the kernels that take the layer, by every `step`-th eight unit vectors. @return how many did. */
static uint32_t check_products(test_rng *rng, const tested_layer *t, uint32_t step, const char *what) {
    const trf_device_view *view = &t->host->view;
    uint16_t *x;
    float *y = malloc(sizeof *y * ROWS_OF_X * view->rows);
    uint8_t *const has_specials = find_specials(t);
    const int usual = trf_has_default_p(view, t->traits.max_frequency);
    warp_coded_product product = {.view = view,
                                  .max_rans_bytes = t->traits.max_rans_bytes,
                                  .use_row_offsets = (t->traits.predictor_modes & TRF_PREDICT_ROW) != 0,
                                  .x_stride = (view->cols + 63) / 64 * 64,
                                  .y = y};
    EXPECT(y && posix_memalign((void **)&x, 16, sizeof *x * ROWS_OF_X * product.x_stride) == 0);
    product.x = x;
    uint32_t kernels = 0;
    for (uint32_t kind = 0; kind < 3; kind++) { /* one slab, two, general */
        product.two_slabs = kind == 1;
        product.general = kind == 2;
        if (!product.general &&
            (!usual || product.use_row_offsets)) /* as grouped kernels are, and kernels of default p */
            continue;
        kernels++;
        for (uint32_t first = 8 * test_below(rng, step); first < view->cols; first += 8 * step) {
            product.warps = 1 + test_below(rng, 3);
            product.order = test_below(rng, 64);
            memset(y, 0, sizeof *y * ROWS_OF_X * view->rows);
            check_columns(t, &product, x, first, has_specials, what);
        }
    }
    free(x);
    free(y);
    free(has_specials);
    return kernels;
}

/* ---- layers as the encoder makes them ---- */

typedef struct layer_case {
    trf_granularity granularity;
    uint32_t rows, cols;
} layer_case;

static const layer_case kCases[] = {
    {TRF_GRANULARITY_TENSOR, 96, 320},       {TRF_GRANULARITY_CHANNEL, 128, 256},
    {TRF_GRANULARITY_CHANNEL, 100, 338},     {TRF_GRANULARITY_SCALE_BLOCK, 160, 384},
    {TRF_GRANULARITY_SCALE_BLOCK, 300, 576},
};
enum {
    NUM_CASES = sizeof kCases / sizeof kCases[0]
};

START_TEST(layers) {
    const layer_case *tested = &kCases[_i / 2];
    test_rng rng = {9100 + (uint64_t)_i};
    uint16_t *weights = was_fp8_make(&rng, tested->granularity, tested->rows, tested->cols);
    for (int usual = 0; usual < 2; usual++) {
        trf_encode_options options;
        void *blob;
        uint64_t blob_bytes;
        trf_encode_options_init(&options);
        options.codec = TRF_CODEC_E4M3;
        options.favor = _i % 2 ? TRF_FAVOR_SPEED : TRF_FAVOR_SIZE;
        options.slab_cols = usual ? 256 : 128;
        options.probability_bits = usual ? 0 : 11;
        options.threads = 1;
        const trf_matrix matrix = test_matrix(weights, TRF_DTYPE_BF16, tested->rows, tested->cols);
        ck_assert_msg(trf_encode_layer(&matrix, &options, &blob, &blob_bytes, NULL, &err) == TRF_OK, "%s", err.message);
        tested_layer t = open_layer(blob, blob_bytes);
        EXPECT(t.host->view.granularity == (uint32_t)tested->granularity && t.traits.scales_have_pairs);
        ck_assert_msg(!refusal_of(&t), "%s", refusal_of(&t));
        EXPECT(t.layer->view.extension.exception_count > 0);
        const uint32_t kernels = check_products(&rng, &t, test_quick() ? 9 : 3, "made by the encoder");
        ck_assert_uint_eq(kernels, usual ? 3 : 1);
        close_layer(&t);
        trf_free(blob);
    }
    free(weights);
}
END_TEST

/* ---- golden files: all codes, offsets, exceptions that are no numbers ---- */

static void *read_file(const char *path, uint64_t *bytes) {
    FILE *file = fopen(path, "rb");
    void *memory;
    EXPECT(file && fseek(file, 0, SEEK_END) == 0);
    *bytes = (uint64_t)ftell(file);
    rewind(file);
    EXPECT(posix_memalign(&memory, TRF_TILE_ALIGNMENT, *bytes) == 0);
    EXPECT(fread(memory, 1, *bytes, file) == *bytes);
    fclose(file);
    return memory;
}

START_TEST(golden) {
    static const struct {
        const char *path, *refusal;
    } kFiles[] = {
        {"scaled_fp8_tensor_pairs.trf", NULL},
        {"scaled_fp8_channel_quads_exceptions.trf", "an exception is not exact when it is as small as its fragment"},
        {"scaled_fp8_block128_pairs.trf", "an exception is not exact when it is as small as its fragment"},
        {"scaled_fp8_all_codes.trf", NULL},
        {"scaled_fp8_block48_quads_stored.trf", "its scale blocks are not multiples of 128"},
        {"scaled_fp8_block_all_offsets.trf", "the layer has column offsets"},
    };
    test_rng rng = {9200};
    for (size_t i = 0; i < sizeof kFiles / sizeof *kFiles; i++) {
        char path[512];
        uint64_t bytes;
        snprintf(path, sizeof path, "%s/golden/%s", TRF_TEST_DATA_DIR, kFiles[i].path);
        void *blob = read_file(path, &bytes);
        tested_layer t = open_layer(blob, bytes);
        const char *const refusal = refusal_of(&t);
        printf("%s: %s\n", kFiles[i].path, refusal ? refusal : "multiplied");
        ck_assert_msg(!refusal == !kFiles[i].refusal && (!refusal || strcmp(refusal, kFiles[i].refusal) == 0), "%s: %s",
                      kFiles[i].path, refusal ? refusal : "it is taken");
        if (!refusal)
            check_products(&rng, &t, 1, kFiles[i].path);
        close_layer(&t);
        free(blob);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("coded_product_warp");
    TCase *tests = tcase_create("coded_product_warp");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, layers, 0, 2 * NUM_CASES);
    tcase_add_test(tests, golden);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
#endif
